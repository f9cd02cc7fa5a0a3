// What all parts of the page share: the data, reading packed numbers, names of measures. Elements, numbers,
// colours and drawing are of drawing.js, files to take away of export.js, which stand before.

const data = JSON.parse(document.getElementById("headwise-data").textContent);
const HEADS = data.model.heads, LAYERS = data.model.layers, COUNT = HEADS * LAYERS;
const NO_VALUE = 65535, HIDDEN = 255;
let codes = new Uint16Array(0), mapCodes = new Uint8Array(0);

// Fingers tap, pointers point.
const TOUCH = matchMedia("(hover: none)").matches;
const POINT_AT = TOUCH ? "Tap" : "Point at";

const byId = (id) => document.getElementById(id);

async function unpack(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
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

const countText = (n) => (!n ? "" : n[0] === n[1] ? counted(n[0]) : `${counted(n[0])} to ${counted(n[1])}`);
const fullLabel = (measure) => `${measure.group.replace("change_", "change of ").replaceAll("_", " ")} · ${measure.label}${measure.model ? ` · ${measure.model}` : ""}`;

const scales = new Map();
function scaleOf(measure) {
  if (!scales.has(measure)) scales.set(measure, measureScale(valuesOf(measure), measure.kind));
  return scales.get(measure);
}

const short = (x) => (x === null || Number.isNaN(x) ? NaN : Number(x.toPrecision(5)));
