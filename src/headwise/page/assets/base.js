// What all parts of the page share: making elements, reading packed numbers, writing them, colours.

const data = JSON.parse(document.getElementById("headwise-data").textContent);
const HEADS = data.model.heads, LAYERS = data.model.layers, COUNT = HEADS * LAYERS;
const NO_VALUE = 65535, HIDDEN = 255;
let codes = new Uint16Array(0), mapCodes = new Uint8Array(0);

// An element with attributes and children. Texts go in as text nodes: nothing given here is ever read as markup.
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "line", "text", "g", "rect", "title"].includes(tag) && attributes.svg !== false;
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "svg" || value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== "") element.append(child);
  }
  return element;
}

const byId = (id) => document.getElementById(id);

async function unpack(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

// One number of a plane for each head; NaN where there is none.
const planes = new Map();
function plane(place, power = false) {
  if (place === undefined) return null;
  const key = Array.isArray(place) ? `${place}${power}` : `=${place}${power}`;
  if (!planes.has(key)) {
    const found = new Float64Array(COUNT);
    if (Array.isArray(place)) {
      const [start, low, high] = place;
      for (let i = 0; i < COUNT; i++) {
        const code = codes[start + i];
        found[i] = code === NO_VALUE ? NaN : low + (code / (NO_VALUE - 1)) * (high - low);
      }
    } else found.fill(place);
    planes.set(key, power ? found.map((x) => 10 ** -x) : found);
  }
  return planes.get(key);
}
const valuesOf = (measure) => plane(measure.values, measure.kind === "p");
const part = (measure, name) => plane(measure[name], name === "p");
const textOf = (place) => (place === undefined ? "" : data.texts[place]);
const byName = new Map(data.measures.map((measure) => [measure.name, measure]));
const headIndex = new Map(data.heads.map((head, i) => [head.name, i]));

function number(x, kind = "value") {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (kind === "flag") return x ? "yes" : "no";
  let text;
  const size = Math.abs(x);
  if (kind === "p") text = x < 1e-299 ? "< 1e-299" : x < 0.001 ? x.toExponential(0) : x.toFixed(3);
  else if (Number.isInteger(x) && size < 1e6) text = String(x);
  else if (size >= 1000) text = x.toFixed(0);
  else if (size >= 10) text = x.toFixed(1);
  else if (size >= 0.001 || size < 1e-12) text = x.toFixed(size >= 1 ? 2 : 3);
  else text = x.toExponential(1);
  return text.replace("-", "−");
}
const countText = (n) => (!n ? "" : n[0] === n[1] ? n[0].toLocaleString("en") : `${n[0].toLocaleString("en")} to ${n[1].toLocaleString("en")}`);
const fullLabel = (measure) => `${measure.group.replace("change_", "change of ").replaceAll("_", " ")} · ${measure.label}${measure.model ? ` · ${measure.model}` : ""}`;

// Colours that colour-blind readers can tell apart: viridis, and purple to orange around nothing.
const hex = (text) => text.match(/[0-9a-f]{6}/g).map((c) => [0, 2, 4].map((i) => parseInt(c.slice(i, i + 2), 16)));
const VIRIDIS = hex("440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725");
const DIVERGING = hex("2d004b 542788 8073ac b2abd2 d8daeb f7f7f7 fee0b6 fdb863 e08214 b35806 7f3b08");
function blend(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(at), stops.length - 2);
  return stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (at - i)));
}
const css = (rgb) => `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;
const inkOn = (rgb) => (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] > 140 ? "#111" : "#fff");

// How the values of a measure become colours: p-values by their size, signed ones around nought.
function scaleOf(measure) {
  const values = Array.from(valuesOf(measure)).filter((x) => !Number.isNaN(x));
  let low = Math.min(...values.slice(0, 1)), high = low;
  for (const x of values) { if (x < low) low = x; if (x > high) high = x; }
  if (measure.kind === "p") {
    const most = Math.min(Math.max(-Math.log10(Math.max(low, 1e-300)), 2), 12);
    return { low: 1, high: 10 ** -most, stops: VIRIDIS, share: (x) => -Math.log10(Math.max(x, 1e-300)) / most };
  }
  if (low < 0 && high > 0) {
    const most = Math.max(-low, high);
    return { low: -most, high: most, stops: DIVERGING, share: (x) => 0.5 + x / (2 * most) };
  }
  return { low, high, stops: VIRIDIS, share: (x) => (high > low ? (x - low) / (high - low) : 0.5) };
}

function download(name, text, type = "text/csv") {
  const address = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
// A cell of CSV; one that a spreadsheet would take for a formula is marked as text.
function csvCell(value) {
  let text = value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
const csvText = (rows) => rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
const short = (x) => (x === null || Number.isNaN(x) ? NaN : Number(x.toPrecision(5)));
