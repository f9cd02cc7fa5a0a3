// Heads drawn in a browser: a grid of small maps, one head large as lines or as a matrix, one colour per head.
// The explorer's page and the views in notebooks share it. Plain functions, no library, nothing from the network; all
// text goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const MOST_LINES = 3000;
const LEAST = 0.01; // weights below are not drawn as lines

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function drawn(name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

export const headName = (layer, head) => `L${layer}H${head}`;

export function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

export const floatsOf = (base64) => new Float32Array(bytesOf(base64).buffer);

// A token as it can be shown: line feeds and the like as signs, very long ones cut.
export function shownToken(text, longest = 18) {
  const plain = text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u202a-\u202e\u2066-\u2069]/g, "·");
  const signs = Array.from(plain);
  return signs.length > longest ? signs.slice(0, longest - 1).join("") + "…" : plain;
}

export const percent = (value) => (value >= 0.9995 ? "1" : value.toFixed(3).replace(/^0/, ""));

// The colours of the theme: ink for weights, a second one for what became less.
function colours(host) {
  const style = getComputedStyle(host);
  const parsed = (name, fallback) => {
    const found = style.getPropertyValue(name).trim().match(/^#(..)(..)(..)$/);
    return found ? found.slice(1).map((hex) => parseInt(hex, 16)) : fallback;
  };
  return { ink: parsed("--hw-ink", [31, 84, 140]), less: parsed("--hw-less", [196, 88, 16]) };
}

const css = ([red, green, blue]) => `rgb(${red},${green},${blue})`;

// One small map: as dark as the root of the weight (what the bytes already are).
export function thumbnail(canvas, bytes, start, rows, columns, host) {
  const { ink } = colours(host);
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    image.data[4 * i] = ink[0];
    image.data[4 * i + 1] = ink[1];
    image.data[4 * i + 2] = ink[2];
    image.data[4 * i + 3] = bytes[start + i];
  }
  context.putImageData(image, 0, 0);
}

// A grid of heads as a table with names: layers down, heads across; arrows move, Enter picks.
export function headGrid(host, { layers, heads, fill, label, pick, key }) {
  const cells = [];
  const table = element("table", { class: "hw-grid", role: "grid", "aria-label": "heads: layers down, heads across" });
  const top = element("tr", {}, element("th", { scope: "col" }, "layer"));
  for (let head = 0; head < heads; head++) top.append(element("th", { scope: "col" }, String(head)));
  table.append(element("thead", {}, top));
  const body = element("tbody");
  for (let layer = 0; layer < layers; layer++) {
    const row = element("tr", {}, element("th", { scope: "row" }, String(layer)));
    cells.push([]);
    for (let head = 0; head < heads; head++) {
      const first = layer === 0 && head === 0;
      const button = element("button", {
        type: "button",
        class: "hw-cell",
        "data-head": headName(layer, head),
        tabindex: first ? "0" : "-1",
        onclick: () => pick(layer, head),
      });
      fill(button, layer, head);
      row.append(element("td", {}, button));
      cells[layer].push(button);
    }
    body.append(row);
  }
  table.append(body);
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  table.addEventListener("keydown", (event) => {
    const button = event.target.closest(".hw-cell");
    if (!button) return;
    const [layer, head] = button.dataset.head.slice(1).split("H").map(Number);
    const move = moves[event.key];
    if (move) {
      event.preventDefault();
      const next = cells[layer + move[0]]?.[head + move[1]];
      if (next) {
        button.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
    } else if (key) key(event, layer, head);
  });
  host.replaceChildren(table);
  const mark = (layer, head) => {
    for (const [l, row] of cells.entries())
      for (const [h, button] of row.entries()) {
        const here = l === layer && h === head;
        button.classList.toggle("hw-picked", here);
        button.setAttribute("aria-pressed", String(here));
        if (layer >= 0) button.tabIndex = here ? 0 : -1;
        button.setAttribute("aria-label", label(l, h));
        button.title = label(l, h);
      }
  };
  return { cells, mark };
}

// What of an input is shown: positions of rows and of columns, special tokens left out where asked.
function kept(special, hidden, count) {
  const all = Array.from({ length: count }, (_, i) => i);
  const some = hidden ? all.filter((i) => !special[i]) : all;
  return some.length ? some : all;
}

// One head large. `view`: tokens, keys, special, keysSpecial, weights (rows × columns), signed (a difference), hide
// (special tokens), mode (lines or matrix), row (the picked token, or null), pick(row), say(text).
export function drawHead(host, view) {
  const rows = kept(view.special, view.hide, view.tokens.length);
  const columns = kept(view.keysSpecial, view.hide, view.keys.length);
  const all = { ...view, rows, columns, ...colours(host) };
  host.replaceChildren(view.mode === "matrix" ? matrix(all) : lines(all));
}

const at = (view, row, column) => view.weights[row * view.keys.length + column];
const told = (view, row, column) =>
  `${shownToken(view.tokens[row], 40)} → ${shownToken(view.keys[column], 40)}: ` +
  (view.signed ? (at(view, row, column) >= 0 ? "+" : "−") + percent(Math.abs(at(view, row, column))) : percent(at(view, row, column)));

function pickable(node, view, row) {
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "button");
  node.setAttribute("aria-label", `token ${row}: ${shownToken(view.tokens[row], 40)}`);
  node.setAttribute("data-token", row);
  node.addEventListener("click", () => view.pick(row));
  node.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      view.pick(row);
    }
  });
}

function lines(view) {
  const step = 19;
  const height = step * Math.max(view.rows.length, view.columns.length) + 10;
  const [left, right, width] = [112, 220, 332];
  const svg = drawn("svg", { class: "hw-lines", viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  svg.append(drawn("title", {}, "attention as lines: left looks, right is looked at"));
  const found = [];
  for (const [y, row] of view.rows.entries())
    for (const [x, column] of view.columns.entries()) {
      const weight = at(view, row, column);
      if (Math.abs(weight) >= LEAST) found.push([Math.abs(weight), weight, y, x, row, column]);
    }
  found.sort((one, other) => other[0] - one[0]);
  const strokes = drawn("g", { "stroke-linecap": "round", "stroke-width": "2" });
  const place = (index) => 14 + index * step;
  const paths = [];
  for (const [size, weight, y, x, row, column] of found.slice(0, MOST_LINES)) {
    const line = drawn("line", {
      x1: left + 6, y1: place(y) - 4, x2: right - 6, y2: place(x) - 4,
      stroke: css(weight < 0 ? view.less : view.ink), "stroke-opacity": Math.min(1, size).toFixed(3),
    });
    line.append(drawn("title", {}, told(view, row, column)));
    strokes.append(line);
    paths.push([line, row, column]);
  }
  const only = (chosen) => {
    for (const [line, row, column] of paths) line.style.display = chosen(row, column) ? "" : "none";
  };
  const rest = () => only((row) => view.row === null || row === view.row);
  svg.append(strokes);
  for (const [y, row] of view.rows.entries()) {
    const picked = row === view.row;
    const text = drawn("text", { x: left, y: place(y), "text-anchor": "end", class: picked ? "hw-token hw-picked" : "hw-token" }, shownToken(view.tokens[row]));
    pickable(text, view, row);
    text.addEventListener("mouseenter", () => only((from) => from === row));
    text.addEventListener("mouseleave", rest);
    svg.append(text);
  }
  for (const [x, column] of view.columns.entries()) {
    const text = drawn("text", { x: right, y: place(x), class: "hw-token" }, shownToken(view.keys[column]));
    text.addEventListener("mouseenter", () => only((_, to) => to === column));
    text.addEventListener("mouseleave", rest);
    svg.append(text);
  }
  rest();
  return svg;
}

function matrix(view) {
  const size = Math.max(5, Math.min(20, Math.floor(520 / Math.max(view.rows.length, view.columns.length))));
  const [left, top] = [116, 96];
  const width = left + size * view.columns.length + 10;
  const height = top + size * view.rows.length + 4;
  const svg = drawn("svg", { class: "hw-matrix", viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  svg.append(drawn("title", {}, "attention as a matrix: rows look, columns are looked at"));
  const canvas = element("canvas", { width: view.columns.length, height: view.rows.length });
  const context = canvas.getContext("2d");
  const image = context.createImageData(view.columns.length, view.rows.length);
  for (const [y, row] of view.rows.entries())
    for (const [x, column] of view.columns.entries()) {
      const weight = at(view, row, column);
      const place = 4 * (y * view.columns.length + x);
      const colour = weight < 0 ? view.less : view.ink;
      image.data.set([...colour, Math.round(255 * Math.sqrt(Math.min(1, Math.abs(weight))))], place);
    }
  context.putImageData(image, 0, 0);
  svg.append(drawn("image", { x: left, y: top, width: size * view.columns.length, height: size * view.rows.length, href: canvas.toDataURL(), preserveAspectRatio: "none", style: "image-rendering: pixelated" }));
  const frame = { x: left, y: top, width: size * view.columns.length, height: size * view.rows.length };
  const cover = drawn("rect", { ...frame, fill: "transparent", class: "hw-frame" });
  const hint = drawn("title", {}, "");
  cover.append(hint);
  cover.addEventListener("mousemove", (event) => {
    const box = cover.getBoundingClientRect();
    const x = Math.min(view.columns.length - 1, Math.floor(((event.clientX - box.left) / box.width) * view.columns.length));
    const y = Math.min(view.rows.length - 1, Math.floor(((event.clientY - box.top) / box.height) * view.rows.length));
    if (x < 0 || y < 0) return;
    hint.textContent = told(view, view.rows[y], view.columns[x]);
    if (view.say) view.say(hint.textContent);
  });
  svg.append(cover);
  const small = Math.min(12, size + 1);
  for (const [y, row] of view.rows.entries()) {
    const text = drawn("text", { x: left - 5, y: top + size * (y + 0.5) + small * 0.35, "text-anchor": "end", "font-size": small, class: row === view.row ? "hw-token hw-picked" : "hw-token" }, shownToken(view.tokens[row], 14));
    pickable(text, view, row);
    svg.append(text);
    if (row === view.row) svg.append(drawn("rect", { x: left, y: top + size * y, width: frame.width, height: size, class: "hw-row" }));
  }
  for (const [x, column] of view.columns.entries()) {
    const [px, py] = [left + size * (x + 0.5) + small * 0.3, top - 5];
    svg.append(drawn("text", { x: px, y: py, transform: `rotate(-60 ${px} ${py})`, "font-size": small, class: "hw-token" }, shownToken(view.keys[column], 14)));
  }
  return svg;
}
