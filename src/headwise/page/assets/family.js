(() => {
"use strict";
const data = JSON.parse(document.getElementById("headwise-data").textContent);
const family = document.getElementById("family");
const labelBox = document.getElementById("label");
const chosenText = document.getElementById("chosen");
const matchBox = document.getElementById("matches");
const NONE = "other";
// The buttons of each model, by the number of the head.
const buttons = [];
let chosenModel = 0;
let chosenHead = 0;

const headName = (model, number) => `L${Math.floor(number / model.heads)}H${number % model.heads}`;
const depthOf = (model, number) => (Math.floor(number / model.heads) + 0.5) / model.layers;

function buildGrids() {
  const deepest = Math.max(...data.models.map((model) => model.layers));
  family.style.setProperty("--family-rows", deepest);
  data.models.forEach((model, place) => {
    const box = document.createElement("div");
    box.className = "family-model";
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", `${model.name}: ${model.layers} layers of ${model.heads} heads`);
    const title = document.createElement("h3");
    title.textContent = model.name;
    const shape = document.createElement("p");
    shape.textContent = `${model.layers} × ${model.heads}`;
    const grid = document.createElement("div");
    grid.className = "family-grid";
    grid.style.gridTemplateColumns = `repeat(${model.heads}, minmax(0.9rem, 1fr))`;
    grid.style.gridTemplateRows = `repeat(${model.layers}, 1fr)`;
    const modelButtons = [];
    model.labels.forEach((label, number) => {
      const button = document.createElement("button");
      button.type = "button";
      button.tabIndex = -1;
      button.style.background = `var(--hw-${model.categories[number]}, var(--hw-other))`;
      button.setAttribute("aria-label", `${model.name} ${headName(model, number)}: ${label}`);
      button.title = `${headName(model, number)}: ${label}`;
      button.addEventListener("click", () => choose(place, number));
      button.addEventListener("keydown", (event) => move(event, place, number));
      grid.append(button);
      modelButtons.push(button);
    });
    buttons.push(modelButtons);
    box.append(title, shape, grid);
    family.append(box);
  });
}

// Arrow keys move within a model, and at its side to the same relative depth of the next one.
function move(event, place, number) {
  const model = data.models[place];
  const layer = Math.floor(number / model.heads);
  const head = number % model.heads;
  let nextPlace = place;
  let nextLayer = layer;
  let nextHead = head;
  if (event.key === "ArrowUp") nextLayer -= 1;
  else if (event.key === "ArrowDown") nextLayer += 1;
  else if (event.key === "ArrowLeft") nextHead -= 1;
  else if (event.key === "ArrowRight") nextHead += 1;
  else return;
  event.preventDefault();
  if (nextHead < 0 || nextHead >= model.heads) {
    nextPlace += nextHead < 0 ? -1 : 1;
    if (nextPlace < 0 || nextPlace >= data.models.length) return;
    const next = data.models[nextPlace];
    nextLayer = Math.floor(depthOf(model, number) * next.layers);
    nextHead = nextHead < 0 ? next.heads - 1 : 0;
  }
  const next = data.models[nextPlace];
  if (nextLayer < 0 || nextLayer >= next.layers) return;
  choose(nextPlace, nextLayer * next.heads + nextHead);
  buttons[nextPlace][nextLayer * next.heads + nextHead].focus();
}

function choose(place, number) {
  chosenModel = place;
  chosenHead = number;
  const label = data.models[place].labels[number];
  labelBox.value = data.labels.includes(label) ? label : "";
  draw();
}

function matchedWith(place, name) {
  const pairs = [];
  for (const [first, head, second, otherHead] of data.matches) {
    if (first === place && head === name) pairs.push([second, otherHead]);
    if (second === place && otherHead === name) pairs.push([first, head]);
  }
  return pairs;
}

function draw() {
  const shown = labelBox.value;
  data.models.forEach((model, place) => {
    model.labels.forEach((label, number) => {
      const button = buttons[place][number];
      const isChosen = place === chosenModel && number === chosenHead;
      button.classList.toggle("faint", shown !== "" && label !== shown);
      button.classList.toggle("same", shown !== "" && label === shown);
      button.setAttribute("aria-pressed", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
    });
  });
  drawChosen();
}

function drawChosen() {
  const model = data.models[chosenModel];
  const name = headName(model, chosenHead);
  const label = model.labels[chosenHead];
  const depth = Math.round(100 * depthOf(model, chosenHead));
  chosenText.textContent = `${model.name} ${name}: ${label === NONE ? "no significant label" : label} (depth ${depth} %)`;
  const matched = matchedWith(chosenModel, name);
  const reason = document.createElement("p");
  reason.textContent = model.why[chosenHead];
  matchBox.replaceChildren(reason);
  const list = document.createElement("ul");
  data.models.forEach((other, place) => {
    if (place === chosenModel) return;
    const item = document.createElement("li");
    const pair = matched.find(([otherPlace]) => otherPlace === place);
    const heads = label === NONE ? 0 : other.labels.filter((one) => one === label).length;
    item.append(`${other.name}: `);
    if (pair) {
      const link = document.createElement("button");
      link.type = "button";
      link.className = "family-match";
      const [layer, head] = pair[1].slice(1).split("H").map(Number);
      const number = layer * other.heads + head;
      link.textContent = pair[1];
      link.addEventListener("click", () => {
        choose(place, number);
        buttons[place][number].focus();
      });
      item.append(link, ` at ${Math.round(100 * depthOf(other, number))} % of the depth`);
    } else {
      item.append(label === NONE ? "nothing to match" : "no head is matched");
    }
    if (label !== NONE) item.append(` (${heads} of ${other.labels.length} heads have this label)`);
    list.append(item);
  });
  matchBox.append(list);
}

function buildLegend() {
  const legend = document.getElementById("legend");
  for (const category of data.categories) {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.style.background = `var(--hw-${category}, var(--hw-other))`;
    item.append(swatch, category === NONE ? "no significant label" : category);
    legend.append(item);
  }
}

for (const label of data.labels) {
  const choice = document.createElement("option");
  choice.value = label;
  choice.textContent = label;
  labelBox.append(choice);
}
labelBox.addEventListener("change", draw);
buildGrids();
buildLegend();
// The first pair of matched heads is chosen when the page opens.
if (data.matches.length) {
  const [place, name] = data.matches[0];
  const [layer, head] = name.slice(1).split("H").map(Number);
  choose(place, layer * data.models[place].heads + head);
} else {
  draw();
}
})();
