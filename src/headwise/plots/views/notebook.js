// The views of notebooks: maps of an input, and the heads of an atlas coloured by any measure. `show` draws into an
// element and tells which head is picked.
import { bytesOf, drawHead, drawScale, element, inkOn, inkRamp, measureScale, number, palette } from "./drawing.js";
import { headGrid, headName, thumbnail } from "./heads.js";

function chooser(names, change, label) {
  const select = element("select", { "aria-label": label, onchange: () => change(Number(select.value)) });
  for (const [i, name] of names.entries()) select.append(element("option", { value: i }, name));
  return select;
}

function parsed(name, layers, heads) {
  const found = /^L(\d+)H(\d+)$/.exec(name || "");
  const place = found ? [Number(found[1]), Number(found[2])] : null;
  return place && place[0] < layers && place[1] < heads ? place : null;
}

// `data`: examples (tokens, keys, special, keysSpecial, maps as uint16 of [place, row, column]), layers, heads, places
// (which heads have maps; all where null).
function showMaps(el, data, bridge) {
  let shown = 0;
  let row = null;
  let picked = parsed(bridge.selected(), data.layers, data.heads) || data.places?.[0] || [0, 0];
  const state = { hide: false, mode: "lines" };
  const maps = data.examples.map((example) => new Uint16Array(bytesOf(example.maps).buffer));
  const gridHost = element("div", { style: "overflow-x:auto" });
  const large = element("div", { style: "overflow-x:auto" });
  const title = element("div", { style: "font-weight:600" });
  const said = element("div", { class: "hw-quiet", "aria-live": "polite" });
  const size = () => [data.examples[shown].tokens.length, data.examples[shown].keys.length];
  const order = (layer, head) => (data.places ? data.places.findIndex(([l, h]) => l === layer && h === head) : layer * data.heads + head);
  const weights = (layer, head) => {
    const [rows, columns] = size();
    const start = order(layer, head) * rows * columns;
    return Float32Array.from(maps[shown].subarray(start, start + rows * columns), (code) => code / 65535);
  };
  const draw = () => {
    const example = data.examples[shown];
    title.textContent = headName(...picked);
    drawHead(large, { ...example, weights: weights(...picked), signed: false, ...state, row, pick: (at) => { row = row === at ? null : at; draw(); }, say: (text) => (said.textContent = text) });
  };
  const pick = (layer, head) => {
    if (order(layer, head) < 0) return;
    picked = [layer, head];
    grid?.mark(layer, head);
    bridge.select(headName(layer, head));
    draw();
  };
  let grid = null;
  const thumbs = () => {
    const [rows, columns] = size(), colours = palette(inkRamp(el));
    for (const [layer, cells] of grid.cells.entries())
      for (const [head, cell] of cells.entries())
        if (order(layer, head) >= 0) thumbnail(cell.firstChild, Uint8Array.from(weights(layer, head), (weight) => Math.round(255 * Math.sqrt(weight))), 0, rows, columns, colours);
  };
  const controls = element("div", { class: "hw-controls" });
  if (data.examples.length > 1) controls.append(chooser(data.examples.map((e, i) => `${i}: ${e.tokens.slice(0, 8).join(" ")}`), (i) => { shown = i; row = null; if (grid) thumbs(); draw(); }, "example"));
  if (data.places) controls.append(chooser(data.places.map(([l, h]) => headName(l, h)), (i) => pick(...data.places[i]), "head"));
  controls.append(chooser(["lines", "matrix"], (i) => { state.mode = ["lines", "matrix"][i]; draw(); }, "drawing"));
  controls.append(element("label", {}, element("input", { type: "checkbox", onchange: (event) => { state.hide = event.target.checked; draw(); } }), " hide special tokens"));
  el.append(controls, element("div", { style: "display:flex;flex-wrap:wrap;gap:18px" }, gridHost, element("div", {}, title, large, said)));
  if (!data.places) {
    grid = headGrid(gridHost, { layers: data.layers, heads: data.heads, fill: (cell) => cell.append(element("canvas")), label: headName, pick });
    thumbs();
    grid.mark(...picked);
  }
  draw();
  bridge.listen((name) => { const place = parsed(name, data.layers, data.heads); if (place) pick(...place); });
}

// `data`: layers, heads, words and told [layer][head], measures (name, label, unit, values [layer][head]), colour.
function showAtlas(el, data, bridge) {
  let measure = Math.max(0, data.measures.findIndex((m) => m.name === data.colour));
  let picked = parsed(bridge.selected(), data.layers, data.heads);
  const card = element("div", { style: "min-width:260px;max-width:460px" });
  const gridHost = element("div", { style: "overflow-x:auto" });
  const scale = element("span", { class: "hw-quiet hw-controls" });
  const label = (layer, head) => `${headName(layer, head)}: ${data.told[layer][head][0]?.[1] || ""}` + (data.measures.length ? `, ${data.measures[measure].label} ${number(data.measures[measure].values[layer][head])}` : "");
  const grid = headGrid(gridHost, {
    layers: data.layers, heads: data.heads, label,
    fill: (cell, layer, head) => cell.append(element("span", { class: "hw-word", style: "height:20px;line-height:20px;color:inherit" }, data.words[layer][head])),
    pick: (layer, head) => pick(layer, head),
  });
  const paint = () => {
    const own = data.measures[measure];
    if (own) {
      const values = own.values.flat(), colour = measureScale(values);
      for (const [layer, cells] of grid.cells.entries())
        for (const [head, cell] of cells.entries()) {
          const value = own.values[layer][head];
          cell.style.background = value === null ? "" : colour(value);
          cell.style.color = value === null ? "" : inkOn(colour(value));
        }
      scale.replaceChildren(drawScale(values, colour, "value", picked ? own.values[picked[0]][picked[1]] ?? NaN : NaN), own.unit || "");
    }
    grid.mark(...(picked || [-1, -1]));
  };
  const pick = (layer, head) => {
    picked = [layer, head];
    bridge.select(headName(layer, head));
    paint();
    const table = element("table", { class: "hw-table" }, element("tr", {}, element("th", {}, "measure"), element("th", {}, "value"), element("th", {}, "rank")));
    for (const own of data.measures.slice(0, 400)) {
      const value = own.values[layer][head];
      if (value === null) continue;
      const rank = 1 + own.values.flat().filter((other) => other !== null && other > value).length;
      table.append(element("tr", {}, element("td", { title: own.name }, own.label), element("td", { class: "hw-number" }, number(value)), element("td", { class: "hw-number" }, String(rank))));
    }
    const told = element("div", {});
    for (const [name, text] of data.told[layer][head]) told.append(element("div", {}, element("span", { class: "hw-quiet" }, `${name}: `), text));
    card.replaceChildren(element("div", { style: "font-weight:600" }, headName(layer, head)), told, element("div", { style: "max-height:340px;overflow:auto" }, table));
  };
  const select = chooser(data.measures.map((m) => m.label), (i) => { measure = i; paint(); }, "colour by");
  select.value = String(measure);
  const controls = element("div", { class: "hw-controls" }, "colour by ", select, scale);
  card.append(element("p", { class: "hw-quiet" }, "Click a head to see its measures."));
  el.append(controls, element("div", { style: "display:flex;flex-wrap:wrap;gap:18px" }, gridHost, card));
  paint();
  if (picked) pick(...picked);
  bridge.listen((name) => { const place = parsed(name, data.layers, data.heads); if (place) pick(...place); });
}

export function show(el, data, bridge = { selected: () => data.selected, select: () => {}, listen: () => {} }) {
  const host = element("div", { class: "hw" }), around = element("div", {}, host);
  if (el.getRootNode() !== document) {
    // In a shadow (marimo's widgets) the style does not see what theme the page has: it is told.
    const follow = () => (around.className = ["dark-theme", "light-theme"].find((theme) => document.body.classList.contains(theme)) || "");
    new MutationObserver(follow).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    follow();
  }
  el.replaceChildren(around);
  (data.kind === "atlas" ? showAtlas : showMaps)(host, data, bridge);
}

// What anywidget calls.
function render({ model, el }) {
  let known = model.get("selected"); // some hosts (marimo) call back while a value is being set
  const news = (name) => { const changed = name !== known; known = name; return changed; };
  show(el, model.get("data"), {
    selected: () => model.get("selected"),
    select: (name) => { if (news(name)) { model.set("selected", name); model.save_changes(); } },
    listen: (change) => model.on("change:selected", () => { const name = model.get("selected"); if (news(name)) change(name); }),
  });
}
export default { render };
