"use strict";
// Keeps what the reader has chosen in the address, after #.  A reload, a bookmark or a link that somebody
// sends shows the same view.  Only what differs from the defaults is there:
//
//   #x=tokens&hide=1-gate&Plots: Validation loss.logy=true
//
// NAME.FIELD is a choice of a figure or a table; its value is JSON.

const isNumber = value => typeof value === "number" && Number.isFinite(value);
const isRange = value => Array.isArray(value) && value.length === 2 && value.every(isNumber) && value[0] < value[1];
const isFlag = value => typeof value === "boolean";
const isText = value => typeof value === "string";

// An address may say anything.
const VIEW_FIELDS = {
  metric: isText, logx: isFlag, logy: isFlag, wide: isFlag, pin: value => isText(value) || isNumber(value),
  zoom: value => isRange(value?.x) && (value.y === undefined || isRange(value.y)),
};
const TABLE_FIELDS = {
  column: value => Number.isInteger(value) && value >= 0, down: isFlag, folded: value => Array.isArray(value) && value.every(isText),
};

const READERS = {
  x: words => { if (Object.hasOwn(AXES, words)) state.axis = words; },
  hide: words => state.off.add(words),
  hideseed: words => state.offSeeds.add(Number(words)),
  each: words => { state.each = words === "true"; },
  smooth: words => { if (Number(words) >= 0 && Number(words) <= MOST_SMOOTH) state.smooth = Number(words); },
  open: words => state.open.add(words),
};

function parsed(words) {
  try {
    return JSON.parse(words);
  } catch {
    return undefined;
  }
}

// NAME.FIELD=JSON, of a figure or a table.
function readField(key, words) {
  const dot = key.lastIndexOf("."), name = key.slice(0, dot), field = key.slice(dot + 1), value = parsed(words);
  for (const [fields, all] of [[VIEW_FIELDS, state.views], [TABLE_FIELDS, state.tables]])
    if (dot > 0 && Object.hasOwn(fields, field) && fields[field](value)) (all[name] ||= {})[field] = value;
}

function readAddress() {
  for (const [key, words] of new URLSearchParams(location.hash.slice(1)))
    if (Object.hasOwn(READERS, key)) READERS[key](words);
    else readField(key, words);
}

function addFields(params, name, chosen, defaults) {
  for (const [field, value] of Object.entries(chosen)) {
    const words = JSON.stringify(value instanceof Set ? [...value] : value);
    if (value != null && words !== JSON.stringify(defaults[field])) params.append(`${name}.${field}`, words);
  }
}

function addressWords() {
  const params = new URLSearchParams();
  if (state.axis !== "iteration") params.append("x", state.axis);
  state.off.forEach(step => params.append("hide", step));
  state.offSeeds.forEach(seed => params.append("hideseed", seed));
  if (state.each) params.append("each", "true");
  if (state.smooth) params.append("smooth", state.smooth);
  for (const [name, view] of Object.entries(state.views))
    addFields(params, name, view, plots.find(plot => plot.name === name)?.defaults || {});
  for (const [name, chosen] of Object.entries(state.tables))
    addFields(params, name, chosen, { column: null, down: false, folded: [] });
  state.open.forEach(key => params.append("open", key));
  return params.toString();
}

const isChoice = words => words.includes("=");      // else it leads to a heading

function writeAddress() {
  const words = addressWords(), now = location.hash.slice(1);
  if (words !== now && (words || isChoice(now)))
    history.replaceState(null, "", words ? `#${words}` : location.href.split("#")[0]);
}

// Any action may have changed a choice.  Browsers refuse to change the address very often.
function keepAddress() {
  let waiting = 0;
  for (const name of ["click", "change", "input", "keyup", "pointerup", "toggle"])
    document.addEventListener(name, () => {
      clearTimeout(waiting);
      waiting = setTimeout(writeAddress, 200);
    }, true);
  window.addEventListener("hashchange", () => isChoice(location.hash) && location.reload());
}

// A link to a heading scrolls there and leaves the choices in the address.
function keepChoicesAtLinks() {
  document.querySelectorAll('nav a[href^="#"]').forEach(link => link.addEventListener("click", event => {
    event.preventDefault();
    document.getElementById(link.hash.slice(1)).scrollIntoView();
  }));
}
