(() => {
"use strict";
const data = JSON.parse(document.getElementById("headwise-data").textContent);
const slider = document.getElementById("step");
const measureBox = document.getElementById("measure");
const grid = document.getElementById("grid");
const nHeads = data.layers * data.heads;
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320, HEIGHT = 120, MARGIN = 8;
const MOST_CURVES = 6;
let chosen = 0;
let timer = null;

const headName = (number) => `L${Math.floor(number / data.heads)}H${number % data.heads}`;
const shownNumber = (value) => (value === null ? "–" : String(Number(value.toPrecision(3))));

// The head that is born first is chosen when the page opens.
if (data.births.length) {
  for (let number = 0; number < nHeads; number += 1) {
    if (headName(number) === data.births[0].head) chosen = number;
  }
}

function rangeOf(values) {
  const known = values.flat().filter((value) => value !== null);
  const low = known.reduce((a, b) => Math.min(a, b), 0);
  const high = known.reduce((a, b) => Math.max(a, b), -Infinity);
  return high > low ? [low, high] : [low, low + 1];
}

function buildGrid() {
  const top = grid.insertRow();
  top.append(document.createElement("th"));
  for (let head = 0; head < data.heads; head += 1) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = `H${head}`;
    top.append(cell);
  }
  for (let layer = 0; layer < data.layers; layer += 1) {
    const row = grid.insertRow();
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = `L${layer}`;
    row.append(name);
    for (let head = 0; head < data.heads; head += 1) {
      const button = document.createElement("button");
      button.type = "button";
      const number = layer * data.heads + head;
      button.dataset.number = number;
      button.addEventListener("click", () => { chosen = number; draw(); });
      row.insertCell().append(button);
    }
  }
}

function draw() {
  const step = Number(slider.value);
  const loss = data.loss[step] === null ? "" : `, loss ${data.loss[step].toFixed(2)}`;
  const stepText = `${data.steps[step].toLocaleString("en")} (${data.models[step].split("/").pop()}${loss})`;
  document.getElementById("step-text").textContent = stepText;
  slider.setAttribute("aria-valuetext", stepText);
  const measure = data.measures.find((one) => one.name === measureBox.value);
  const [low, high] = measure ? rangeOf(measure.values) : [0, 1];
  for (const button of grid.querySelectorAll("button")) {
    const number = Number(button.dataset.number);
    const label = data.labels[step][number];
    const category = data.categories[step][number];
    const isBorn = data.births.some((birth) => birth.head === headName(number)
      && birth.born_by === data.steps[step] && (!measure || birth.measure === measure.name));
    button.classList.toggle("born", isBorn);
    button.setAttribute("aria-pressed", String(number === chosen));
    let text = label;
    if (measure) {
      const value = measure.values[step][number];
      const share = value === null ? 0 : (value - low) / (high - low);
      button.style.background = `color-mix(in srgb, var(--hw-weight) ${Math.round(100 * share)}%, var(--hw-paper))`;
      button.style.color = share > 0.62 ? "var(--hw-paper)" : "var(--hw-text)";
      text = `${shownNumber(value)} ${label === "other" ? "" : label}`;
    } else {
      button.style.background = `var(--hw-${category}, var(--hw-other))`;
      button.style.color = `var(--hw-on-${category}, var(--hw-on-other))`;
    }
    button.textContent = text;
    button.setAttribute("aria-label", `${headName(number)}: ${text}${isBorn ? ", born here" : ""}`);
    button.title = headName(number);
  }
  document.getElementById("scale").textContent = measure
    ? `${measure.title}: white ${shownNumber(low)}, dark ${shownNumber(high)}. A ring: born at this step. Click a head for its curves.`
    : "The label of each head at this step. A ring: born at this step. Click a head for its curves.";
  drawCurves(step);
}

function drawCurves(step) {
  const panels = document.getElementById("curves");
  panels.replaceChildren();
  const series = data.measures.slice(0, MOST_CURVES).map((measure) => ({
    title: measure.title, name: measure.name, values: measure.values.map((row) => row[chosen]), range: rangeOf(measure.values),
  }));
  const measure = data.measures.find((one) => one.name === measureBox.value);
  if (measure && !series.some((one) => one.name === measure.name)) {
    series.unshift({ title: measure.title, name: measure.name, values: measure.values.map((row) => row[chosen]), range: rangeOf(measure.values) });
  }
  if (data.loss.some((value) => value !== null)) {
    series.push({ title: "loss", name: "", values: data.loss, range: rangeOf([data.loss]) });
  }
  for (const one of series) {
    if (one.values.some((value) => value !== null)) panels.append(curve(one, step));
  }
}

function line(svg, x1, y1, x2, y2, colour, dash) {
  const element = document.createElementNS(SVG, "line");
  for (const [name, value] of Object.entries({ x1, y1, x2, y2 })) element.setAttribute(name, value);
  element.style.stroke = colour;
  if (dash) element.setAttribute("stroke-dasharray", dash);
  svg.append(element);
}

function curve(one, step) {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const who = one.name ? `${headName(chosen)}, ` : "";
  caption.textContent = `${who}${one.title}: ${shownNumber(one.values[step])} (axis ${shownNumber(one.range[0])} to ${shownNumber(one.range[1])})`;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", caption.textContent);
  const [low, high] = one.range;
  const x = (index) => MARGIN + (WIDTH - 2 * MARGIN) * index / Math.max(1, data.steps.length - 1);
  const y = (value) => HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value - low) / (high - low);
  line(svg, x(step), 0, x(step), HEIGHT, "var(--hw-edge)", "3 3");
  for (const birth of data.births) {
    if (birth.head === headName(chosen) && birth.measure === one.name) {
      const place = data.steps.indexOf(birth.born_by) - 0.5;
      line(svg, x(place), 0, x(place), HEIGHT, "var(--hw-mark)");
    }
  }
  const path = document.createElementNS(SVG, "polyline");
  const points = [];
  one.values.forEach((value, index) => { if (value !== null) points.push(`${x(index)},${y(value)}`); });
  path.setAttribute("points", points.join(" "));
  path.style.fill = "none";
  path.style.stroke = "var(--hw-accent)";
  path.style.strokeWidth = 2;
  svg.append(path);
  figure.append(svg, caption);
  return figure;
}

function play() {
  const button = document.getElementById("play");
  if (timer !== null) {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
    return;
  }
  button.textContent = "Stop";
  if (Number(slider.value) === data.steps.length - 1) slider.value = 0;
  draw();
  timer = setInterval(() => {
    if (Number(slider.value) === data.steps.length - 1) { play(); return; }
    slider.value = Number(slider.value) + 1;
    draw();
  }, 700);
}

for (const measure of data.measures) {
  const choice = document.createElement("option");
  choice.value = measure.name;
  choice.textContent = measure.title;
  measureBox.append(choice);
}
slider.addEventListener("input", draw);
measureBox.addEventListener("change", draw);
document.getElementById("play").addEventListener("click", play);
buildGrid();
draw();
})();
