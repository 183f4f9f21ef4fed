"use strict";
// Draws the page's figures from its data, and lets readers sort tables and fold columns.
//
// tools/report/plots.py describes the figures and packs the curves.  tools/report/page.py writes the
// page, which contains this data and the scripts.  A report loads nothing.  A page of `make serve`
// fetches itself again and again; `state` keeps what the reader has chosen, and page_address.js keeps it
// in the address.

const state = {
  off: new Set(),       // steps that are hidden
  offSeeds: new Set(),
  each: false,          // a curve per seed, not their mean
  axis: "iteration",    // of curves: one of AXES
  smooth: 0,            // weight of older values, as in TensorBoard
  views: Object.create(null),   // by name of the figure: metric, logx, logy, zoom, wide, pin
  tables: Object.create(null),  // by name of the table: the column that sorts, its direction, columns that are folded
  open: new Set(),      // details
};
let data = { groups: [], runs: [], x: [] };
let plots = [];
const drawers = {};     // by the kind of a figure: (plot, width) -> chart

// ---------------------------------------------------------------- elements

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const html = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// ---------------------------------------------------------------- numbers

const UNITS = [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]];

// The text of a tick.  Neighbours, which are `step` apart, get different texts; `size` is the largest tick.
function label(value, step, size) {
  if (value === 0) return "0";
  const [, unit, letter] = UNITS.find(([least]) => size >= least) || [0, 1, ""];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  if (digits > 6)
    return value.toExponential(Math.max(0, Math.ceil(Math.log10(Math.abs(value) / step) - 1e-9)));
  return (value / unit).toFixed(digits) + letter;
}

function exact(value) {
  const size = Math.abs(value);
  return size !== 0 && size < 1e-4 ? value.toExponential(3)
    : size >= 1e6 ? label(value, size / 1e4, size) : String(Number(value.toPrecision(5)));
}

function ticksEvery(step, low, high) {
  const size = Math.max(Math.abs(low), Math.abs(high)), ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++)
    ticks.push([k * step, label(k * step, step, size)]);
  return ticks;
}

// Uses the widest round step that gives at least three ticks and two thirds of the wanted number.
function linearTicks(low, high, wanted) {
  const power = 10 ** Math.floor(Math.log10(high - low)), least = Math.max(3, Math.floor(2 * wanted / 3));
  return [5, 2, 1, 0.5, 0.2, 0.1, 0.05].map(step => ticksEvery(step * power, low, high))
    .find(ticks => ticks.length >= least);
}

function logTicks(low, high, wanted) {
  const decades = Math.log10(high / low);
  if (decades < 1) return linearTicks(low, high, wanted);
  const factors = 3 * decades <= wanted ? [1, 2, 5] : [1], ticks = [];
  for (let e = Math.floor(Math.log10(low)); 10 ** e <= high; e += Math.ceil(decades / wanted))
    for (const at of factors.map(f => f * 10 ** e))
      if (at >= low && at <= high) ticks.push([at, label(at, at, at)]);
  return ticks;
}

function scale(low, high, log, from, to) {
  const there = log ? Math.log : v => v, back = log ? Math.exp : v => v;
  const a = there(low), b = there(high);
  return {
    low, high, log,
    at: value => from + (there(value) - a) / (b - a) * (to - from),
    value: at => back(a + (at - from) / (to - from) * (b - a)),
  };
}

// The range of the values with some room, or null.  A logarithmic axis shows only positive values.
function rangeOf(values, log, room = 0.04) {
  const known = values.filter(v => v != null && (!log || v > 0));
  if (!known.length) return null;
  let low = known.reduce((a, b) => Math.min(a, b)), high = known.reduce((a, b) => Math.max(a, b));
  if (log) return low === high ? [low / 2, high * 2]
    : [low / (high / low) ** room, high * (high / low) ** room];
  const space = room * (high - low) || 0.05 * Math.abs(high) || 1;
  return [low - space, high + space];
}

// ---------------------------------------------------------------- curves

function pointsOf(run, metric) {
  const [place, ys] = run.series[metric];
  return { xs: data.x[place], ys };
}

const AXES = { iteration: "iteration", tokens: "tokens", seconds: "seconds of training", work: "FLOPs" };
const MOST_SMOOTH = 0.98;

// "iteration 50", but "50 tokens".
const placeWords = (name, value) =>
  [AXES.tokens, AXES.seconds, AXES.work].includes(name) ? `${value} ${name}` : `${name} ${value}`;

// The index of the first of these rising values that is not less than x; their number if there is none.
function firstFrom(values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Between two records, time passes evenly.
function secondsAt([place, seconds], iteration) {
  const known = data.x[place], after = firstFrom(known, iteration);
  if (after === 0 || after === known.length) return after ? seconds.at(-1) : seconds[0];
  const share = (iteration - known[after - 1]) / (known[after] - known[after - 1]);
  return seconds[after - 1] + share * (seconds[after] - seconds[after - 1]);
}

function onAxis(run, iteration) {
  return state.axis === "iteration" ? iteration
    : state.axis === "seconds" ? secondsAt(run.axes.seconds, iteration) : iteration * run.axes[state.axis];
}

// Where the iterations are on the axis that the reader chose; for several runs, their mean.
const placesOf = (runs, iterations) => iterations.map(iteration =>
  runs.reduce((sum, run) => sum + onAxis(run, iteration), 0) / runs.length);

const knownAxes = () => Object.keys(AXES).filter(axis => axis === "iteration" ||
  data.runs.every(run => axis in run.axes || !Object.keys(run.series).length));

// The mean over seeds, at the iterations that the largest number of seeds has recorded.
function meanOf(runs, metric) {
  const values = new Map();
  for (const { xs, ys } of runs.map(run => pointsOf(run, metric)))
    xs.forEach((x, i) => ys[i] != null && values.set(x, [...values.get(x) || [], ys[i]]));
  const whole = Math.max(0, ...[...values.values()].map(v => v.length));
  const kept = [...values].filter(([, v]) => v.length === whole).sort((a, b) => a[0] - b[0]);
  return {
    xs: kept.map(([x]) => x), ys: kept.map(([, v]) => v.reduce((a, b) => a + b) / whole),
    low: kept.map(([, v]) => Math.min(...v)), high: kept.map(([, v]) => Math.max(...v)), n: whole,
  };
}

// An exponential moving average: older values count less by `weight` each time; the weights add up to one.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map(v => {
    if (v == null) return null;
    sum = weight * sum + (1 - weight) * v;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

function withSmoothing(series) {
  if (!state.smooth) return series;
  const smooth = key => series[key] && smoothed(series[key], state.smooth);
  return { ...series, raw: series.ys, ys: smooth("ys"), low: smooth("low"), high: smooth("high") };
}

const isOn = step => !state.off.has(step.name);
const isSeedOn = seed => !state.offSeeds.has(seed);

function curvesOf(step, metric) {
  const runs = data.runs.filter(run => run.step === step.name && isSeedOn(run.seed) &&
    run.series[metric]);
  if (state.each)
    return runs.map(run => moved({ ...pointsOf(run, metric), name: `${step.name}, seed ${run.seed}`,
      seed: run.seed }, [run]));
  const finished = runs.filter(run => run.isFinished);
  const averaged = finished.length ? finished : runs.filter(run => run.isRunning), mean = meanOf(averaged, metric);
  return mean.n ? [moved({ ...mean, name: mean.n > 1 ? `${step.name}, mean of ${mean.n}` : step.name }, averaged)] : [];
}

// On the chosen axis; `iterations` stay for the CSV.
const moved = (series, runs) => ({ ...series, iterations: series.xs, xs: placesOf(runs, series.xs) });

// The series of a figure of lines or points: [{name, step, xs, ys, low, high, raw, thin, text}].
function seriesOf(plot) {
  const { figure, group, view } = plot;
  if (figure.kind === "curves")
    return group.steps.filter(isOn).flatMap(step => curvesOf(step, view.metric).map(series =>
      figure.smooths ? withSmoothing({ ...series, step }) : { ...series, step }));
  return figure.series.map(series => ({ ...series, step: stepOf(group, series.step) }))
    .filter(series => isOn(series.step));
}

// Those of a figure of rows or bars.
const rowsOf = ({ figure, group }) => figure.rows.map(row => ({ ...row, step: stepOf(group, row.step) }))
  .filter(row => isOn(row.step));

const stepOf = (group, name) => group.steps.find(step => step.name === name);

// ---------------------------------------------------------------- looks

const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const dashOf = step => DASHES[step.shared % DASHES.length];
const colourOf = step => `var(--c${step.colour})`;

function markOf(step, x, y, r) {
  const shape = [
    `M${x - r},${y}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0z`,
    `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    `M${x},${y - 1.2 * r}L${x + 1.1 * r},${y + r}H${x - 1.1 * r}z`,
    `M${x},${y - 1.3 * r}L${x + 1.3 * r},${y}L${x},${y + 1.3 * r}L${x - 1.3 * r},${y}z`,
  ][step.shared % 4];
  return svg("path", { d: shape, fill: colourOf(step) });
}

function pathOf(xs, ys, across, up) {
  let path = "", pen = "M";
  xs.forEach((x, i) => {
    const y = ys[i];
    if (y == null || (up.log && y <= 0) || (across.log && x <= 0)) {
      pen = "M";
      return;
    }
    path += `${pen}${across.at(x).toFixed(1)},${up.at(y).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

const text = (words, x, y, anchor = "middle", more = {}) =>
  svg("text", { x, y, "text-anchor": anchor, ...more }, words);

const LETTER = 7.3;     // pixels of a letter, about
const cut = (words, most) => words.length > most ? words.slice(0, most - 1) + "…" : words;

function axes(frame, xTicks, yTicks, across, up, xName) {
  const g = svg("g", { class: "axes" });
  for (const [at, words] of xTicks) {
    const x = across.at(at);
    g.append(svg("path", { d: `M${x},${frame.top}V${frame.bottom}` }),
      text(words, x, frame.bottom + 17));
  }
  for (const [at, words] of yTicks) {
    const y = up.at(at);
    g.append(svg("path", { d: `M${frame.left},${y}H${frame.right}` }),
      text(words, frame.left - 6, y + 4, "end"));
  }
  if (xName) g.append(text(xName, (frame.left + frame.right) / 2, frame.bottom + 35));
  return g;
}

// Leaves out labels that would touch the label before them.
function apart(ticks, across) {
  let end = -Infinity;
  return ticks.filter(([at, words]) => {
    const half = LETTER * words.length / 2 + 4, x = across.at(at);
    if (x - half < end) return false;
    end = x + half;
    return true;
  });
}

// ---------------------------------------------------------------- lines and points

const FEWEST_POINTS = 3;    // that a vertical range is made for

function rangesOf(plot, series, log) {
  const { figure, view } = plot, zoom = view.zoom || {};
  const xs = series.flatMap(one => one.xs), last = xs.reduce((a, b) => Math.max(a, b));
  const x = zoom.x || (figure.kind === "curves" && !log.x ? [0, last || 1]
    : rangeOf(xs, log.x, figure.kind === "points" ? 0.08 : 0.02));
  // The steep fall at the start would flatten everything else, if there is enough else.
  const late = xs => xs.filter(at => at >= 0.1 * last).length;
  const from = figure.kind === "curves" && !zoom.x && !log.x && series.some(one => late(one.xs) >= FEWEST_POINTS)
    ? 0.1 * last : -Infinity;
  const shown = [];
  for (const one of series)
    one.xs.forEach((at, i) => at >= Math.max(from, x[0]) && at <= x[1] &&
      shown.push(one.ys[i], one.low?.[i], one.high?.[i]));
  if (figure.zero && !log.y) shown.push(0);
  const all = series.flatMap(one => one.ys);
  return { x, y: zoom.y || rangeOf(shown, log.y, figure.kind === "points" ? 0.1 : 0.04) ||
    rangeOf(all, log.y) };
}

function drawLine(one, across, up) {
  const { step } = one, g = svg("g", { "data-step": step.name, "data-of-seed": one.seed });
  const line = (ys, more) => svg("path", {
    d: pathOf(one.xs, ys, across, up), fill: "none", stroke: colourOf(step), ...more });
  if (one.low && one.n > 1) {
    const back = pathOf([...one.xs].reverse(), [...one.high].reverse(), across, up);
    g.append(svg("path", { class: "band", fill: colourOf(step),
      d: pathOf(one.xs, one.low, across, up) + back.replace("M", "L") + "z" }));
  }
  if (one.raw) g.append(line(one.raw, { class: "raw" }));
  g.append(line(one.ys, { "stroke-width": one.thin ? 1 : 2, "stroke-linejoin": "round",
    "stroke-dasharray": one.thin ? "1 4" : dashOf(step) }));
  if (one.xs.length <= 12 && !one.thin)
    one.xs.forEach((x, i) => one.ys[i] != null && (!up.log || one.ys[i] > 0) &&
      (!across.log || x > 0) && g.append(markOf(step, across.at(x), up.at(one.ys[i]), 3)));
  return g;
}

// Places the numbers of steps such that no number covers a point or another number.
function placeTexts(points, frame) {
  const taken = points.map(p => [p.x - 6, p.y - 6, p.x + 6, p.y + 6]), nodes = [];
  const meets = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
  for (const p of points) {
    const half = LETTER * p.text.length / 2 + 1;
    search: for (let away = 13; away < 90; away += 7)
      for (let turn = 0; turn < 16; turn++) {
        const angle = Math.PI / 4 + (turn % 2 ? 1 : -1) * Math.ceil(turn / 2) * Math.PI / 8;
        const x = p.x + (away + half - 4) * Math.cos(angle), y = p.y - away * Math.sin(angle);
        const box = [x - half, y - 7, x + half, y + 7];
        if (box[0] < frame.left || box[2] > frame.right || box[1] < frame.top ||
          box[3] > frame.bottom || taken.some(other => meets(box, other))) continue;
        taken.push(box);
        const g = svg("g", { "data-step": p.step.name }, text(p.text, x, y + 4.5));
        if (away > 20) g.append(svg("path", { class: "leader", d: `M${p.x},${p.y}L${x},${y}` }));
        nodes.push(g);
        break search;
      }
  }
  return nodes;
}

function drawPlane(plot, width) {
  const { figure, view } = plot, series = seriesOf(plot).filter(one => one.xs.length);
  const height = view.wide ? 440 : 280, xName = figure.kind === "curves" ? AXES[state.axis] : figure.x;
  if (!series.length) return empty(width, height);
  const log = { x: Boolean(view.logx || figure.places), y: Boolean(view.logy) };
  const ranges = rangesOf(plot, series, log);
  if (!ranges.x || !ranges.y) return empty(width, height, "no positive value to draw");
  const wanted = view.wide ? 8 : 5;
  const yTicks = (log.y ? logTicks : linearTicks)(...ranges.y, wanted);
  const left = 14 + LETTER * Math.max(...yTicks.map(([, words]) => words.length), 1);
  const frame = { left, right: width - 14, top: 10, bottom: height - 44 };
  const across = scale(...ranges.x, log.x, frame.left, frame.right);
  const up = scale(...ranges.y, log.y, frame.bottom, frame.top);
  const inside = ([at]) => at >= across.low && at <= across.high;
  const xTicks = apart(figure.places && !view.zoom ? figure.places.filter(inside)
    : (log.x ? logTicks : linearTicks)(...ranges.x, Math.max(2, Math.floor(width / 75))), across);
  const clip = `clip-${plot.key}`;
  const drawn = svg("g", { "clip-path": `url(#${clip})` });
  for (const x of figure.uprights || [])
    drawn.append(svg("path", { class: "mark", d: `M${across.at(x)},${frame.top}V${frame.bottom}` }));
  const node = svg("g", {}, svg("clipPath", { id: clip }, svg("rect", { x: frame.left - 4,
    y: frame.top - 4, width: frame.right - frame.left + 8, height: frame.bottom - frame.top + 8 })),
    axes(frame, xTicks, yTicks, across, up, xName), drawn);
  const cursor = figure.kind === "points" ? pointCursor(figure, series, across, up)
    : lineCursor(xName, series, across, up);
  if (figure.kind === "points") {
    const seen = cursor.points.filter(p => p.x >= frame.left && p.x <= frame.right &&
      p.y >= frame.top && p.y <= frame.bottom);
    for (const p of cursor.points)
      drawn.append(svg("g", { "data-step": p.step.name }, markOf(p.step, p.x, p.y, 5)));
    drawn.append(...placeTexts(seen, frame));
  } else drawn.append(...series.map(one => drawLine(one, across, up)));
  const table = () => figure.kind === "curves" ? curveLines(view.metric, series) : seriesLines(figure, series);
  return { node, frame, width, height, across, up, table, ...cursor };
}

// For the CSV.
function curveLines(metric, series) {
  const { raw, low } = series[0], isMoved = state.axis !== "iteration";
  return [["step", "seed", "iteration", ...(isMoved ? [AXES[state.axis]] : []), metric,
    ...(low ? ["lowest seed", "highest seed"] : []), ...(raw ? [`${metric}, not smoothed`] : [])],
  ...series.flatMap(one => one.iterations.map((iteration, i) => [one.step.name, one.seed, iteration,
    ...(isMoved ? [one.xs[i]] : []), one.ys[i], ...(low ? [one.low[i], one.high[i]] : []),
    ...(raw ? [one.raw[i]] : [])]))];
}

const seriesLines = (figure, series) => [["step", figure.x, figure.y || figure.title],
  ...series.flatMap(one => one.xs.map((x, i) => [one.name, x, one.ys[i]]))];

function pointCursor(figure, series, across, up) {
  const points = series.map(one => ({ step: one.step, text: one.text, x: across.at(one.xs[0]),
    y: up.at(one.ys[0]), values: [one.xs[0], one.ys[0]] })).sort((a, b) => a.x - b.x);
  return {
    points, count: points.length, ...byName(points.map(p => p.step.name)),
    nearest: (x, y) => smallest(points.map(p => Math.hypot(p.x - x, p.y - y))),
    tell: i => ({ x: points[i].x, y: points[i].y, step: points[i].step.name, title: points[i].step.name,
      lines: [[`${figure.x}: ${exact(points[i].values[0])}`], [`${figure.y}: ${exact(points[i].values[1])}`]] }),
    summary: points.map(p => `${p.step.name}: ${exact(p.values[1])} at ${exact(p.values[0])}`).join("; "),
  };
}

// What a pin keeps of the place of the cursor, and where that is in another drawing; -1: it is not there.
const byName = names => ({ keyOf: i => names[i], find: key => names.indexOf(key) });

const smallest = values => values.reduce((best, v, i) => v < values[best] ? i : best, 0);

// The point of a series that is nearest to x; none before its beginning or after its end.
function pointAt(one, x) {
  if (x < one.xs[0] || x > one.xs.at(-1)) return { one, y: null };
  const i = smallest(one.xs.map(place => Math.abs(place - x)));
  return { one, x: one.xs[i], y: one.ys[i] };
}

// Seeds of a step with the same value are one line, which names them all.
function valueLines(found, near, x) {
  const lines = new Map();
  for (const f of found) {
    const words = exact(f.y) + (f.x === x ? "" : ` at ${exact(f.x)}`);
    const key = f.one.seed == null ? f.one.name : `${f.one.step.name} ${words}`;
    if (!lines.has(key)) lines.set(key, { ...f, words, seeds: [], isNear: false });
    lines.get(key).seeds.push(f.one.seed);
    lines.get(key).isNear ||= f === near;
  }
  return [...lines.values()].map(({ one, words, seeds, isNear }) => [(seeds.length < 2 ? one.name
    : `${one.step.name}, seeds ${seeds.sort((a, b) => a - b).join(", ")}`) + `: ${words}`, one.step, isNear]);
}

function lineCursor(xName, series, across, up) {
  const places = [...new Set(series.flatMap(one => one.xs))].sort((a, b) => a - b)
    .filter(x => x >= across.low && x <= across.high && (!across.log || x > 0));
  const at = x => series.map(one => pointAt(one, x)).filter(({ y }) => y != null).sort((a, b) => b.y - a.y);
  return {
    count: places.length,
    nearest: x => smallest(places.map(place => Math.abs(across.at(place) - x))),
    keyOf: i => places[i], find: key => places.length ? smallest(places.map(place => Math.abs(place - key))) : -1,
    tell: (i, y) => {
      const found = at(places[i]);
      const near = y == null || !found.length ? null
        : found[smallest(found.map(f => Math.abs(up.at(f.y) - y)))];
      return { x: across.at(places[i]), y: near && up.at(near.y), step: near?.one.step.name,
        title: placeWords(xName, exact(places[i])) + (series[0].raw ? ", smoothed" : ""),
        lines: valueLines(found, near, places[i]) };
    },
    summary: series.map(one => `${one.name}: ${exact(one.ys.findLast(y => y != null) ?? NaN)} at ` +
      `${xName} ${exact(one.xs.at(-1))}`).join("; "),
  };
}

function empty(width, height, words = "all steps are hidden") {
  return { node: text(words, width / 2, height / 2, "middle", { class: "soft" }), width, height,
    count: 0, summary: words };
}

drawers.curves = drawers.lines = drawers.points = drawPlane;

// ---------------------------------------------------------------- a row per step, and bars

const ROW = 40, SEED = 5, MOST_LEVELS = 8;     // pixels of a row and of a seed; seeds above each other

// Seeds that would cover each other stand below each other, so that they can be counted.  `level` may be too large.
function spread(row, across) {
  const ends = [], seeds = row.values.map((value, k) => ({ x: across.at(value), seed: row.seeds[k] }))
    .filter(({ seed }) => isSeedOn(seed)).sort((a, b) => a.x - b.x);
  for (const one of seeds) {
    const free = ends.findIndex(end => one.x - end >= SEED);
    one.level = free < 0 ? ends.length : free;
    ends[one.level] = one.x;
  }
  return seeds;
}

// What does not fit below each other is counted in a text beside the last one.
function drawSeeds(row, seeds, y) {
  const shown = seeds.filter(one => one.level < MOST_LEVELS), more = [];
  for (const { x } of seeds.filter(one => one.level >= MOST_LEVELS)) {
    const near = more.find(one => x - one.x < 30);
    if (near) near.count++;
    else more.push({ x, count: 1 });
  }
  return [...shown.map(({ x, level, seed }) =>
    fill(markOf(row.step, x, y + SEED * level, 2), { "data-of-seed": seed }, [])),
  ...more.map(({ x, count }) => text(`+${count}`, x + 5, y + SEED * MOST_LEVELS, "start", { class: "more" }))];
}

// The heights depend on the seeds, the seeds on the scale.
function placeRows(rows, across, top) {
  let y = top;
  for (const row of rows) {
    row.drawnSeeds = spread(row, across);
    row.y = y;
    y += ROW + SEED * Math.min(MOST_LEVELS, Math.max(0, ...row.drawnSeeds.map(one => one.level)));
  }
  return y;
}

function drawRow(row, across, width) {
  const name = row.step.name, letters = Math.floor((width - 28) / LETTER);
  const g = svg("g", { "data-step": name }, text(cut(name, letters), 14, row.y + 14, "start", { class: "name" }));
  if (row.low != null)
    g.append(svg("path", { stroke: colourOf(row.step), "stroke-width": 2, fill: "none",
      d: `M${across.at(row.low)},${row.y + 20}v8m0,-4H${across.at(row.high)}m0,-4v8` }));
  g.append(markOf(row.step, across.at(row.mean), row.y + 24, 4.5), ...drawSeeds(row, row.drawnSeeds, row.y + 36));
  return g;
}

const rowLines = (figure, rows) => [["step", "what", figure.x], ...rows.flatMap(row => [
  ...["mean", "low", "high"].map(what => [row.step.name, what, row[what]]),
  ...row.values.map((value, k) => [row.step.name, `seed ${row.seeds[k]}`, value])])];

// A row shows a step's mean and interval, and its seeds below them.
drawers.rows = (plot, width) => {
  const { figure } = plot, rows = rowsOf(plot);
  if (!rows.length) return empty(width, 100);
  const frame = { left: 14, right: width - 14, top: 4 };
  const values = rows.flatMap(row => [...row.values, row.low, row.high]);
  const across = scale(...rangeOf(figure.zero ? [...values, 0] : values, false), false,
    frame.left, frame.right);
  frame.bottom = placeRows(rows, across, frame.top) + 6;
  const height = frame.bottom + 40;
  const ticks = apart(linearTicks(across.low, across.high, Math.max(2, Math.floor(width / 75))), across);
  const node = svg("g", {}, axes(frame, ticks, [], across, null, figure.x));
  if (figure.zero)
    node.append(svg("path", { class: "mark", d: `M${across.at(0)},${frame.top}V${frame.bottom}` }));
  node.append(...rows.map(row => drawRow(row, across, width)));
  return {
    node, frame, width, height, count: rows.length, isDown: true, ...byName(rows.map(row => row.step.name)),
    nearest: (x, y) => Math.max(0, rows.findLastIndex(row => row.y <= y)),
    table: () => rowLines(figure, rows),
    tell: i => ({
      x: across.at(rows[i].mean), y: rows[i].y + 24, step: rows[i].step.name,
      title: rows[i].step.name, lines: [
        [`mean ${exact(rows[i].mean)}` + (rows[i].low == null ? ""
          : `, 95% interval ${exact(rows[i].low)} to ${exact(rows[i].high)}`)],
        ...rows[i].values.map((v, k) => [`seed ${rows[i].seeds[k]}: ${exact(v)}`])],
    }),
    summary: rows.map(row => `${row.step.name}: ${exact(row.mean)}`).join("; "),
  };
};

drawers.bars = (plot, width) => {
  const { figure, view } = plot, height = view.wide ? 440 : 280, rows = rowsOf(plot);
  if (!rows.length) return empty(width, height);
  const [low, high] = rangeOf([0, 100, ...rows.flatMap(row => row.values)], false, 0);
  const frame = { left: 50, right: width - 14, top: 10, bottom: height - 44 };
  const up = scale(low, high, false, frame.bottom, frame.top);
  const across = scale(-0.5, figure.names.length - 0.5, false, frame.left, frame.right);
  const room = across.at(1) - across.at(0), letters = Math.max(3, Math.floor(room / LETTER));
  const names = figure.names.map((name, i) => [i, cut(name, letters)]);
  const node = svg("g", {}, axes(frame, [], linearTicks(low, high, 5), across, up, figure.x));
  names.forEach(([i, name]) => node.append(text(name, across.at(i), frame.bottom + 17)));
  const bar = 0.8 * room / rows.length;
  rows.forEach((row, place) => row.values.forEach((v, i) => v != null && node.append(svg("rect", {
    "data-step": row.step.name, fill: colourOf(row.step), width: 0.85 * bar,
    x: across.at(i) + (place - rows.length / 2) * bar, y: up.at(Math.max(v, 0)),
    height: Math.abs(up.at(v) - up.at(0)) }))));
  return {
    node, frame, width, height, count: figure.names.length, ...byName(figure.names),
    table: () => [["step", "component", figure.unit], ...rows.flatMap(row =>
      row.values.map((value, i) => [row.step.name, figure.names[i], value]))],
    nearest: x => Math.max(0, Math.min(figure.names.length - 1, Math.round(across.value(x)))),
    tell: i => ({ x: across.at(i), title: figure.names[i], lines: rows.filter(row => row.values[i] != null)
      .map(row => [`${row.step.name}: ${exact(row.values[i])}${figure.unit}`, row.step]) }),
    summary: rows.map(row => `${row.step.name}: ` + figure.names.map((name, i) =>
      row.values[i] == null ? "" : `${name} ${exact(row.values[i])}${figure.unit}`)
      .filter(Boolean).join(", ")).join("; "),
  };
};

// ---------------------------------------------------------------- hover, keys, zoom

const MOST_LINES = 14;  // of a box of values

const isPinned = plot => plot.view.pin != null;

function setPin(plot, index, y) {
  plot.view.pin = index == null ? null : plot.chart.keyOf(index);
  showCursor(plot, index, y);
}

// A click or a tap pins the values; one at the same place lets them go.
function togglePin(plot, index, y) {
  const isSame = isPinned(plot) && plot.chart.find(plot.view.pin) === index;
  plot.view.pin = isSame ? null : plot.chart.keyOf(index);
  showCursor(plot, index, y);
}

function hideCursor(plot) {
  plot.box.hidden = true;
  light();
}

// Beside the figure: to its right, else to its left, else below the cursor.  Pinned values stand below it, in the page.
function placeBox({ box, place, view, chart }, x) {
  box.classList.toggle("pinned", view.pin != null);
  Object.assign(box.style, { left: "", right: "", top: "" });
  if (view.pin != null) return;
  const around = place.getBoundingClientRect(), own = box.getBoundingClientRect();
  const { clientWidth, clientHeight } = document.documentElement;
  if (around.right + own.width + 8 <= clientWidth) box.style.left = "calc(100% + 4px)";
  else if (around.left - own.width - 8 >= 0) box.style.right = "calc(100% + 4px)";
  else {
    const middle = x / chart.width * around.width, most = around.width - own.width;
    Object.assign(box.style, { top: "100%", left: `${Math.max(0, Math.min(most, middle - own.width / 2))}px` });
    return;
  }
  box.style.top = `${Math.min(0, clientHeight - around.top - own.height - 8)}px`;
}

function showCursor(plot, index, y) {
  const { chart, over, box } = plot;
  plot.cursor = index;
  over.replaceChildren();
  if (index == null || !chart.count) {
    hideCursor(plot);
    return;
  }
  const told = chart.tell(index, y);
  drawCursor(plot, told);
  fillBox(plot, told);
  box.hidden = false;
  placeBox(plot, told.x);
  light(isPinned(plot) ? undefined : told.step);
}

function drawCursor({ chart, over }, told) {
  const { frame } = chart;
  if (!chart.isDown)
    over.append(svg("path", { class: "cursor", d: `M${told.x},${frame.top}V${frame.bottom}` }));
  if (told.y != null) over.append(svg("circle", { class: "cursor", cx: told.x, cy: told.y, r: 7 }));
}

function fillBox(plot, told) {
  const { box } = plot, near = Math.max(0, told.lines.findIndex(line => line[2]));
  const first = Math.max(0, Math.min(near - MOST_LINES / 2, told.lines.length - MOST_LINES));
  const lines = told.lines.slice(first, first + MOST_LINES);
  box.replaceChildren(html("b", {}, told.title), ...lines.map(([words, step, isNear]) =>
    html("div", { class: isNear && "near" }, ...(step ? [swatch(step)] : []), words)));
  if (told.lines.length > lines.length)
    box.append(html("div", { class: "soft" }, `and ${told.lines.length - lines.length} more`));
  if (isPinned(plot))
    box.prepend(html("button", { type: "button", class: "unpin", "aria-label": "unpin the values",
      onclick: () => setPin(plot, null) }, "×"));
}

function placeOf(plot, event) {
  const rect = plot.svg.getBoundingClientRect(), factor = plot.chart.width / rect.width;
  return [(event.clientX - rect.left) * factor, (event.clientY - rect.top) * factor];
}

function setZoom(plot, zoom) {
  plot.view.zoom = zoom;
  draw(plot);
}

function zoomTo(plot, [x0, y0], [x1, y1]) {
  const { across, up, frame } = plot.chart;
  const within = (v, a, b) => Math.min(Math.max(v, a), b);
  const xs = [x0, x1].map(x => across.value(within(x, frame.left, frame.right))).sort((a, b) => a - b);
  const ys = [y0, y1].map(y => up.value(within(y, frame.top, frame.bottom))).sort((a, b) => a - b);
  setZoom(plot, { x: xs, y: Math.abs(y1 - y0) > 20 ? ys : undefined });
}

// Zooms around the cursor and moves the view by `shift` of its width.
function zoomBy(plot, factor, shift = 0) {
  const { chart } = plot, { frame } = chart;
  if (!chart.across) return;
  const middle = plot.cursor == null ? (frame.left + frame.right) / 2 : chart.tell(plot.cursor).x;
  const from = middle + (frame.left - middle) * factor, to = middle + (frame.right - middle) * factor;
  const moved = shift * (frame.right - frame.left);
  const x = [chart.across.value(from + moved), chart.across.value(to + moved)];
  setZoom(plot, { x, y: plot.view.zoom?.y });
}

function onKey(plot, event) {
  const show = index => (isPinned(plot) ? setPin : showCursor)(plot, index);
  const move = by => show(plot.cursor == null ? (by > 0 ? 0 : plot.chart.count - 1)
    : Math.max(0, Math.min(plot.chart.count - 1, plot.cursor + by)));
  const keys = {
    ArrowRight: () => event.shiftKey ? zoomBy(plot, 1, 0.2) : move(1),
    ArrowLeft: () => event.shiftKey ? zoomBy(plot, 1, -0.2) : move(-1),
    ArrowDown: () => plot.chart.isDown && move(1),
    ArrowUp: () => plot.chart.isDown && move(-1),
    Home: () => show(0), End: () => show(plot.chart.count - 1),
    Enter: () => plot.cursor != null && togglePin(plot, plot.cursor),
    "+": () => zoomBy(plot, 0.5), "=": () => zoomBy(plot, 0.5), "-": () => zoomBy(plot, 2),
    0: () => setZoom(plot, null), Escape: () => setPin(plot, null),
  };
  const isFree = !["ArrowDown", "ArrowUp"].includes(event.key) || plot.chart.isDown;
  if (!keys[event.key] || !isFree || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  keys[event.key]();
}

// Pinned values stay as they are.
function pointAtPlace(plot, place) {
  if (plot.chart.count && !isPinned(plot)) showCursor(plot, plot.chart.nearest(...place), place[1]);
}

function leave(plot) {
  if (isPinned(plot)) light();
  else showCursor(plot, null);
}

function listen(plot) {
  let start = null, frame = null;
  const on = (name, act) => plot.svg.addEventListener(name, act);
  on("pointerdown", event => {
    start = event.button === 0 ? placeOf(plot, event) : null;
    pointAtPlace(plot, placeOf(plot, event));
  });
  on("pointermove", event => {
    if (!plot.chart.count) return;
    const place = placeOf(plot, event);
    frame?.remove();
    if (start && plot.chart.across && Math.abs(place[0] - start[0]) > 6) {
      plot.svg.setPointerCapture(event.pointerId);
      frame = svg("rect", { class: "select", x: Math.min(start[0], place[0]),
        y: Math.min(start[1], place[1]), width: Math.abs(place[0] - start[0]),
        height: Math.abs(place[1] - start[1]) });
      plot.svg.append(frame);
    } else pointAtPlace(plot, place);
  });
  const end = event => {
    frame?.remove();
    const place = placeOf(plot, event), isDrag = start && Math.abs(place[0] - start[0]) > 12;
    if (start && event.type === "pointerup" && plot.chart.count)
      if (!isDrag) togglePin(plot, plot.chart.nearest(...place), place[1]);
      else if (plot.chart.across) zoomTo(plot, start, place);
    start = frame = null;
  };
  on("pointerup", end);
  on("pointercancel", end);
  on("pointerleave", () => document.activeElement !== plot.svg && leave(plot));
  on("blur", () => leave(plot));
  on("dblclick", () => setZoom(plot, null));
  on("keydown", event => onKey(plot, event));
}

// Highlights one step or one seed; without arguments, nothing.
function light(step, seed) {
  for (const node of document.querySelectorAll("[data-step], [data-of-seed]")) {
    const { step: own, ofSeed } = node.dataset;
    node.classList.toggle("dim", node.tagName !== "TR" && Boolean(step && own && own !== step ||
      seed && ofSeed && ofSeed !== seed));
    node.classList.toggle("lit", Boolean(step) && own === step);
  }
}

// ---------------------------------------------------------------- figures and their tools

const KEYS = "Keys: arrows move along the values, Enter pins them, plus and minus zoom, Shift with arrows moves the " +
  "view, 0 shows all again.";

function draw(plot) {
  const width = Math.max(240, plot.place.clientWidth || 440), before = plot.chart;
  const kept = plot.view.pin ?? (plot.cursor == null ? null : before.keyOf(plot.cursor));
  plot.chart = drawers[plot.figure.kind](plot, width);
  plot.svg.setAttribute("viewBox", `0 0 ${plot.chart.width} ${plot.chart.height}`);
  plot.svg.setAttribute("aria-label", `${titleOf(plot)}: ${plot.chart.summary}`);
  plot.svg.replaceChildren(plot.chart.node, plot.over);
  plot.reset.hidden = !plot.view.zoom;
  const index = kept != null && plot.chart.count ? plot.chart.find(kept) : -1;
  showCursor(plot, index < 0 ? null : index);
}

const drawAll = () => plots.forEach(draw);

function swatch(step) {
  return html("i", { class: `swatch ${["", "dashed", "dotted", "double"][step.shared % 4]}`,
    style: `--of: ${colourOf(step)}`, "aria-hidden": "true" });
}

function check(words, key, isOn, act) {
  return html("label", {}, html("input", { type: "checkbox", checked: isOn, "data-key": key,
    onchange: event => act(event.target.checked) }), words);
}

function toolsOf(plot) {
  const { figure, view, name } = plot, tools = html("div", { class: "tools" });
  const choose = what => value => { Object.assign(view, { [what]: value, zoom: null }); draw(plot); };
  if (figure.kind === "curves" && figure.metrics.length > 1)
    tools.append(html("select", { "aria-label": `${figure.title}: which record`, "data-key": `${name}-metric`,
      onchange: event => choose("metric")(event.target.value) }, ...figure.metrics.map(metric =>
      html("option", { selected: metric === view.metric }, metric))));
  if (figure.kind === "curves" || figure.kind === "points")
    tools.append(check("log x", `${name}-logx`, view.logx, choose("logx")));
  if (["curves", "points", "lines"].includes(figure.kind))
    tools.append(check("log y", `${name}-logy`, view.logy, choose("logy")));
  if (figure.kind !== "rows")
    tools.append(check("wide", `${name}-wide`, view.wide, value => {
      view.wide = value;
      plot.place.closest("figure").classList.toggle("whole", value);
      draw(plot);
    }));
  plot.reset = html("button", { type: "button", hidden: true, onclick: () => {
    setZoom(plot, null);
    plot.svg.focus();
  } }, "show all");
  tools.append(plot.reset);
  return tools;
}

function saveTools(plot) {
  const button = (words, what, act) => html("button", { type: "button", "data-key": `${plot.name}-${words}`,
    "aria-label": `${plot.figure.title}: save ${what} as ${words}`, onclick: () => act(plot) }, words);
  return html("div", { class: "saves" }, button("SVG", "the picture", saveSvg), button("CSV", "its values", saveCsv));
}

const defaultsOf = figure => ({ logx: false, logy: Boolean(figure.logy), zoom: null, wide: false, pin: null,
  metric: figure.metrics?.[0] });

function viewOf(name, figure) {
  const defaults = defaultsOf(figure), view = state.views[name] = { ...defaults, ...state.views[name] };
  if (!figure.metrics?.includes(view.metric)) view.metric = defaults.metric;
  return view;
}

function makePlot(group, figure, key) {
  const shell = document.getElementById(key);
  const name = `${group.heading}: ${figure.title}`;     // A newer page may have more figures, so keys change.
  const plot = { group, figure, key, name, view: viewOf(name, figure), defaults: defaultsOf(figure), place: shell.querySelector(".plot"),
    over: svg("g", { class: "over" }), cursor: null,
    box: html("div", { class: "values", role: "status", hidden: true }) };
  plot.svg = svg("svg", { role: "img", tabindex: 0, "aria-describedby": `${key}-about ${key}-keys` });
  plot.place.before(toolsOf(plot));
  shell.querySelector("h3").after(saveTools(plot));
  plot.place.replaceChildren(plot.svg, plot.box, html("p", { id: `${key}-keys`, class: "unseen" }, KEYS));
  shell.classList.toggle("whole", plot.view.wide);
  listen(plot);
  return plot;
}

// ---------------------------------------------------------------- the legend, and tools for all figures

function toggle(words, key, isOn, act, ...before) {
  const button = html("button", { type: "button", class: "toggle", "aria-pressed": String(isOn),
    "data-key": key, onclick: () => {
      const now = button.getAttribute("aria-pressed") !== "true";
      act(now);
      redraw();
    } }, ...before, words);
  return button;
}

const setIn = (set, value) => now => now ? set.delete(value) : set.add(value);

function stepToggle(step, key) {
  const button = toggle(step.name, `${key}-${step.name}`, isOn(step), setIn(state.off, step.name),
    swatch(step));
  button.dataset.toggles = step.name;
  return lights(button, step.name);
}

// Highlights a step or a seed while the button is under the pointer or has the focus.
function lights(button, step, seed) {
  for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => light(step, seed));
  for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => light());
  return button;
}

function seedTools(key, seeds) {
  const tools = [check("each seed", `${key}-each`, state.each, value => {
    state.each = value;
    redraw();
  })];
  tools[0].querySelector("input").dataset.each = "";
  return seeds.length < 2 ? tools : [...tools, html("span", { role: "group", "aria-label": "seeds" }, "seeds ",
    ...seeds.map(seed => {
      const button = toggle(String(seed), `${key}-seed-${seed}`, isSeedOn(seed), setIn(state.offSeeds, seed));
      button.setAttribute("aria-label", `seed ${seed}`);
      button.dataset.seed = seed;
      return lights(button, "", String(seed));
    }))];
}

function smoothTool(key) {
  return html("label", {}, "smoothing ", html("input", { type: "range", min: 0, max: MOST_SMOOTH, step: 0.02,
    value: state.smooth, "data-key": `${key}-smooth`, "data-smooth": true, oninput: event => {
      state.smooth = Number(event.target.value);
      redraw();
    } }), html("output", {}));
}

// Zooms and pins of curves are places on the old axis.
function setAxis(axis) {
  state.axis = axis;
  for (const plot of plots.filter(one => one.figure.kind === "curves"))
    Object.assign(plot.view, { zoom: null, pin: null });
  redraw();
}

function axisTool(key) {
  return html("label", {}, "x axis ", html("select", { "data-key": `${key}-axis`, "data-axis": true,
    onchange: event => setAxis(event.target.value) }, ...knownAxes().map(axis =>
    html("option", { value: axis, selected: axis === state.axis }, AXES[axis]))));
}

function makeLegend(group, key) {
  const place = document.getElementById(`${key}-legend`);
  const seeds = [...new Set(data.runs.map(run => run.seed))].sort((a, b) => a - b);
  const button = (words, act) => html("button", { type: "button", "data-key": `${key}-${words}`, onclick: () => {
    group.steps.forEach(step => act(step.name));
    redraw();
  } }, words);
  const all = button("all", name => state.off.delete(name)), none = button("none", name => state.off.add(name));
  place.replaceChildren(
    html("div", { class: "steps", role: "group", "aria-label": "steps" },
      ...group.steps.map(step => stepToggle(step, key)), ...(group.steps.length > 1 ? [all, none] : [])),
    ...(data.runs.length ? [html("div", { class: "tools" }, axisTool(key), ...seedTools(key, seeds), smoothTool(key))] : []));
}

function redraw() {
  showChoices();
  drawAll();
}

// Every legend shows the same choices.
function showChoices() {
  const each = (selector, act) => document.querySelectorAll(selector).forEach(act);
  each("[data-toggles]", node => node.setAttribute("aria-pressed", !state.off.has(node.dataset.toggles)));
  each("[data-seed]", node => node.setAttribute("aria-pressed", isSeedOn(Number(node.dataset.seed))));
  each("[data-each]", node => { node.checked = state.each; });
  each("[data-axis]", node => { node.value = state.axis; });
  each("[data-smooth]", node => {
    node.value = state.smooth;
    node.nextSibling.textContent = state.smooth ? state.smooth.toFixed(2) : "off";
  });
}

// ---------------------------------------------------------------- tables

const FACTORS = { "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12 };

// The first number of a cell, else its text; null for an empty cell, which sorts last.
function sortValue(cell, isText) {
  const words = cell.textContent.trim(), found = words.match(/^([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)([kMGT]?)/);
  return words === "" ? null : !isText && found ? Number(found[1]) * FACTORS[found[2]] : words;
}

function compareValues(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortTable(table, chosen) {
  const rows = [...table.tBodies[0].rows];
  rows.forEach((row, i) => { row.dataset.place ??= i; });
  const isText = chosen.column != null && table.tHead.rows[0].cells[chosen.column].classList.contains("text");
  const value = row => chosen.column == null ? Number(row.dataset.place)
    : sortValue(row.cells[chosen.column], isText);
  const keyed = rows.map(row => [value(row), Number(row.dataset.place), row]);
  keyed.sort(([a, i], [b, j]) => a === null || b === null ? compareValues(a, b) || i - j
    : (chosen.down ? -1 : 1) * compareValues(a, b) || i - j);
  table.tBodies[0].append(...keyed.map(([, , row]) => row));
  [...table.tHead.rows[0].cells].forEach((head, i) => head.setAttribute("aria-sort",
    i !== chosen.column ? "none" : chosen.down ? "descending" : "ascending"));
}

function foldColumns(table, chosen) {
  for (const row of table.rows)
    [...row.cells].forEach((cell, i) => { cell.hidden = chosen.folded.has(headOf(table, i)); });
  fitTable(table);
}

const headOf = (table, i) => table.tHead.rows[0].cells[i].textContent;

function showTable(table, chosen) {
  sortTable(table, chosen);
  foldColumns(table, chosen);
}

// A heading sorts up, then down, then restores the planned order.
function nextSort(chosen, column) {
  if (chosen.column !== column) Object.assign(chosen, { column, down: false });
  else if (!chosen.down) chosen.down = true;
  else Object.assign(chosen, { column: null, down: false });
}

function tableTools(table, key, chosen) {
  const heads = [...table.tHead.rows[0].cells].map((_, i) => headOf(table, i));
  const order = html("select", { "data-key": `${key}-order`, onchange: event => {
    const at = Number(event.target.value);
    Object.assign(chosen, { column: at < 0 ? null : at >> 1, down: at > 0 && at % 2 === 1 });
    showTable(table, chosen);
  } }, html("option", { value: -1 }, "as planned"), ...heads.flatMap((head, i) => ["rising", "falling"].map(
    (way, down) => html("option", { value: 2 * i + down,
      selected: chosen.column === i && chosen.down === Boolean(down) }, `${head}, ${way}`))));
  return html("details", { "data-key": `${key}-tools` }, html("summary", {}, "Sort and fold columns"),
    html("div", { class: "tools" }, html("label", {}, "order ", order), ...heads.slice(1).map(head =>
      check(head, `${key}-fold-${head}`, !chosen.folded.has(head), now => {
        setIn(chosen.folded, head)(now);
        foldColumns(table, chosen);
      }))));
}

// A table that is too wide is set tighter; if that is not enough, each row becomes a card.
function fitTable(table) {
  const around = table.closest(".wide"), isWide = () => around.scrollWidth > around.clientWidth;
  table.classList.remove("tight", "cards");
  if (isWide()) table.classList.add("tight");
  if (isWide()) table.classList.add("cards");
}

const fitTables = () => document.querySelectorAll("table.sorted").forEach(fitTable);

// A table is named after the heading above it; a newer page may have more tables.
function nameTables() {
  const count = {};
  let heading = "";
  for (const node of document.querySelectorAll("h1, h2, table.sorted"))
    if (node.tagName !== "TABLE") heading = node.textContent;
    else {
      count[heading] = (count[heading] || 0) + 1;
      node.dataset.name = heading + (count[heading] > 1 ? ` ${count[heading]}` : "");
    }
}

function makeTable(table) {
  const key = table.dataset.name, given = state.tables[key] || {};
  const chosen = state.tables[key] = { column: null, down: false, ...given, folded: new Set(given.folded) };
  if (chosen.column >= table.tHead.rows[0].cells.length) chosen.column = null;
  if (table.tBodies[0].rows.length < 2) return;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = html("button", { type: "button", "data-key": `${key}-${column}`, onclick: () => {
      nextSort(chosen, column);
      showTable(table, chosen);
    } }, ...head.childNodes);
    head.replaceChildren(button);
  });
  table.closest(".wide").before(tableTools(table, key, chosen));
  showTable(table, chosen);
}

// ---------------------------------------------------------------- the page, and its newer versions

function build() {
  data = JSON.parse(document.getElementById("data").textContent);
  if (!knownAxes().includes(state.axis)) state.axis = "iteration";
  plots = [];
  data.groups.forEach((group, g) => {
    makeLegend(group, `g${g}`);
    group.figures.forEach((figure, f) => plots.push(makePlot(group, figure, `g${g}-f${f}`)));
  });
  nameTables();
  document.querySelectorAll("table.sorted").forEach(table => makeTable(table));
  keepChoicesAtLinks();
  document.querySelectorAll("details[data-key]").forEach(node => {
    node.open = state.open.has(node.dataset.key);
    node.addEventListener("toggle", () => setIn(state.open, node.dataset.key)(!node.open));
  });
  showChoices();
  fitTables();
  drawAll();
}

function replacePage(words) {
  const fresh = new DOMParser().parseFromString(words, "text/html");
  const focus = document.activeElement?.dataset?.key;
  const plot = plots.find(one => one.svg === document.activeElement)?.name;
  const chosen = [...document.querySelectorAll("form select")].map(select => [select.name, select.value]);
  for (const id of ["page", "data"])
    document.getElementById(id).replaceWith(fresh.getElementById(id));
  for (const [name, value] of chosen) document.querySelector(`form select[name="${name}"]`).value = value;
  build();
  const again = plot ? plots.find(one => one.name === plot)?.svg
    : focus && document.querySelector(`[data-key="${CSS.escape(focus)}"]`);
  again?.focus({ preventScroll: true });
}

async function refresh(status, tag) {
  if (document.hidden || document.activeElement?.closest("form")) return tag;     // Not in view, or the reader is choosing.
  try {
    const answer = await fetch(location.href, { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
    if (answer.status === 200) {
      const words = await answer.text();
      if (tag !== answer.headers.get("ETag")) replacePage(words);
    } else if (answer.status !== 304) throw new Error(await answer.text());
    status.textContent = `read at ${new Date().toLocaleTimeString()}`;
    return answer.headers.get("ETag");
  } catch (error) {
    status.textContent = `not read since: ${error.message}`;
    return tag;
  }
}

async function live(seconds) {
  const status = document.getElementById("live");
  let tag = null;
  for (;;) {
    await new Promise(done => setTimeout(done, 1000 * seconds));
    tag = await refresh(status, tag);
  }
}

readAddress();
build();
keepAddress();
let redrawing = 0;
new ResizeObserver(() => {
  cancelAnimationFrame(redrawing);
  redrawing = requestAnimationFrame(() => {
    fitTables();
    drawAll();
  });
}).observe(document.body);
if (document.getElementById("live")) live(Number(document.getElementById("live").dataset.seconds));
