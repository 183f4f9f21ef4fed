"use strict";
// Saves a figure: as SVG, in the colours for paper, with its title and a legend; and its values as CSV.

function save(name, kind, words) {
  const link = html("a", { download: name, href: URL.createObjectURL(new Blob([words], { type: kind })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function fileName(plot, ending) {
  const words = `${document.querySelector("h1").textContent} ${plot.figure.title}`;
  return `${words.toLowerCase().replace(/[^a-z0-9.+-]+/g, "-")}.${ending}`;
}

// ---------------------------------------------------------------- CSV

function csvCell(value) {
  const words = value == null ? "" : String(value);
  return /[",\n]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words;
}

// The values of the series and rows that are shown, with or without a zoom.
function saveCsv(plot) {
  const lines = plot.chart.table ? plot.chart.table() : [];
  save(fileName(plot, "csv"), "text/csv", lines.map(line => line.map(csvCell).join(",") + "\n").join(""));
}

// ---------------------------------------------------------------- SVG

const TITLE_HEIGHT = 26, LEGEND_LINE = 18;
// What the style sheet gives a node, where it differs from the defaults of SVG.
const SVG_DEFAULTS = { fill: "rgb(0, 0, 0)", stroke: "none", "stroke-width": "1px", "stroke-dasharray": "none",
  "stroke-linejoin": "miter", opacity: "1" };

function keepStyle(node) {
  const style = getComputedStyle(node), isText = node.tagName === "text";
  for (const [name, usual] of Object.entries(SVG_DEFAULTS))    // few programs know paint-order, so no text has a stroke
    if (style[name] !== usual && !(isText && name.startsWith("stroke"))) node.setAttribute(name, style[name]);
  if (isText) node.setAttribute("font-size", style["font-size"]);
}

function dropNames(node) {
  for (const name of ["class", "data-step", "data-of-seed"]) node.removeAttribute(name);
}

// The steps with their colours, in as many lines as they take below `top`.
function legendOf(steps, width, top) {
  const g = svg("g", {});
  let x = 14, y = top;
  for (const step of steps) {
    const room = 34 + LETTER * step.name.length;
    if (x > 14 && x + room > width) [x, y] = [14, y + LEGEND_LINE];
    g.append(svg("path", { d: `M${x},${y - 4}h16`, stroke: colourOf(step), "stroke-width": 2,
      "stroke-dasharray": dashOf(step), fill: "none" }), text(step.name, x + 21, y, "start"));
    x += room;
  }
  return { g, bottom: steps.length ? y + 8 : top - LEGEND_LINE + 8 };
}

function titleOf(plot) {
  const { figure, view } = plot;
  return figure.kind === "curves" ? `${figure.title} (${view.metric})` : figure.title;
}

function paperCopy(plot) {
  const { chart, group, figure } = plot, drawn = chart.node.cloneNode(true);
  drawn.setAttribute("transform", `translate(0,${TITLE_HEIGHT})`);
  const steps = figure.kind === "rows" ? [] : group.steps.filter(isOn);     // rows have their names
  const legend = legendOf(steps, chart.width, TITLE_HEIGHT + chart.height + LEGEND_LINE - 4);
  const size = { width: chart.width, height: legend.bottom };
  return svg("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}`, "font-family": "sans-serif" },
    svg("rect", { ...size, class: "sheet" }), text(titleOf(plot), 14, 18, "start", { class: "name" }), drawn, legend.g);
}

function saveSvg(plot) {
  const copy = paperCopy(plot), holder = html("div", { class: "plot paper" }, copy);
  document.body.append(holder);     // only what is in the page has a style
  copy.querySelectorAll(".dim").forEach(node => node.classList.remove("dim"));
  copy.querySelectorAll("*").forEach(keepStyle);
  copy.querySelectorAll("*").forEach(dropNames);
  holder.remove();
  save(fileName(plot, "svg"), "image/svg+xml", new XMLSerializer().serializeToString(copy));
}
