// What the page of an atlas, the explorer and the views of notebooks draw with: elements, numbers, the colours of
// measures and of weights, and a head on a sentence as a matrix or as lines. All text goes in as text, never as markup.
import d3 from "./d3.js";

const MOST_LINES = 3000;
const LEAST = 0.01; // weights below are not drawn as lines

// An element with attributes and children; nothing given here is ever read as markup.
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

export function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// What an atlas says of a head, on its card: names of columns of `atlas.describe()`, and words for them.
export const FACTS = { why: "why", also: "also", attention: "attention goes to", finds: "finds", roles: "roles", maps: "its maps are" };
// A full stop that is also the previous token counts twice, so the shares can sum to more than 1.
export const overlapNote = () => element("small", { class: "overlap" }, "token types and positions overlap: a token counts for both");

// A narrow screen shows some of the heads: words and a fading edge say that a grid scrolls, until its end.
export function scrollCue(box, cue) {
  const look = () => {
    const hidden = box.scrollWidth - box.clientWidth;
    box.classList.toggle("more-right", hidden - box.scrollLeft > 8);
    cue.hidden = hidden <= 8;
  };
  box.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(box);
  look();
}

// Numbers. d3 writes a true minus; in exponents it does not.
const written = Object.fromEntries(["d", ".0f", ".1f", ".2f", ".2~f", ".3f", "+.3f", ".0e", ".1e", ",d"].map((how) => [how, d3.format(how)]));
export const counted = written[",d"];
export function number(x, kind = "value") {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (kind === "flag") return x ? "yes" : "no";
  if (kind === "p" && x < 1e-299) return "< 1e−299";
  const size = Math.abs(x);
  let how = size >= 1000 ? ".0f" : size >= 10 ? ".1f" : size >= 1 ? ".2f" : size >= 0.001 || size < 1e-12 ? ".3f" : ".1e";
  if (Number.isInteger(x) && size < 1e6) how = "d";
  if (kind === "p") how = x < 0.001 ? ".0e" : ".3f";
  return written[how](x).replace("e-", "e−");
}
export const weightText = (x) => (Number.isNaN(x) ? "masked" : x >= 0.9995 ? "1" : written[".3f"](x));

// A token as it can be shown: line feeds and the like as signs, very long ones cut.
export function shownToken(text, longest = 18) {
  const plain = text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u202a-\u202e\u2066-\u2069]/g, "·");
  const signs = Array.from(plain);
  return signs.length > longest ? signs.slice(0, longest - 1).join("") + "…" : plain;
}

// The colours of a measure, which colour-blind readers can tell apart: viridis; purple to orange around nought where
// there are both signs; p-values by their size.
export function measureScale(values, kind = "value") {
  const [low = 0, high = 0] = d3.extent(values);
  if (kind === "p") return d3.scaleSequentialLog([1, Math.max(Math.min(low, 0.01), 1e-12)], d3.interpolateViridis).clamp(true);
  const most = Math.max(-low, high);
  if (low < 0 && high > 0) return d3.scaleDiverging([-most, 0, most], (share) => d3.interpolatePuOr(1 - share));
  return d3.scaleSequential(low < high ? [low, high] : [low - 1, low + 1], d3.interpolateViridis);
}
export const ends = (scale) => [scale.domain()[0], scale.domain().at(-1)];
// Black or white, whichever can be read better: at L* 49 both have a contrast of 4.5 : 1.
export const inkOn = (colour) => (d3.lab(colour).l > 49 ? "#000" : "#fff");

// The scale of a measure: how many heads have which value, in its colours, over an axis; `mark` is one head's value.
export function drawScale(values, scale, kind = "value", mark = NaN) {
  const [width, tall, band, left] = [260, 26, 6, 12], [low, high] = ends(scale);
  const x = (kind === "p" ? d3.scaleLog() : d3.scaleLinear()).domain([low, high]).range([0, width]).clamp(true);
  const known = Array.from(values).filter((value) => value !== null && !Number.isNaN(value));
  const at = (value) => x(kind === "p" ? Math.max(value, high) : value);
  const bins = d3.bin().domain([0, width]).thresholds(d3.range(width / 40, width, width / 40))(known.map(at));
  const y = d3.scaleLinear([0, d3.max(bins, (bin) => bin.length) || 1], [0, tall]);
  const svg = d3.create("svg").attr("class", "hw-scale").attr("width", width + 2 * left).attr("height", tall + band + 20).attr("role", "img")
    .attr("aria-label", `${counted(known.length)} heads, coloured from ${number(low, kind)} to ${number(high, kind)}`);
  const drawn = svg.append("g").attr("transform", `translate(${left},0)`);
  const column = (own) => own.attr("x", (bin) => bin.x0).attr("width", (bin) => Math.max(bin.x1 - bin.x0, 0)).attr("fill", (bin) => scale(x.invert((bin.x0 + bin.x1) / 2)));
  column(drawn.selectAll("rect.count").data(bins).join("rect")).attr("class", "count").attr("y", (bin) => tall - y(bin.length)).attr("height", (bin) => y(bin.length))
    .append("title").text((bin) => `${counted(bin.length)} heads from ${number(x.invert(bin.x0), kind)} to ${number(x.invert(bin.x1), kind)}`);
  column(drawn.selectAll("rect.band").data(bins).join("rect")).attr("class", "band").attr("y", tall).attr("height", band);
  if (!Number.isNaN(mark)) drawn.append("path").attr("class", "hw-here").attr("d", `M${at(mark)},${tall + band}V0`);
  const axis = d3.axisBottom(x).ticks(4).tickSize(3).tickPadding(2);
  if (kind === "p") axis.tickValues(d3.range(0, 13, 3).map((power) => 10 ** -power).filter((p) => p >= high * 0.999)).tickFormat((p) => (p === 1 ? "1" : number(p, "p")));
  drawn.append("g").attr("class", "hw-axis").attr("transform", `translate(0,${tall + band})`).call(axis);
  return svg.node();
}

// The ramp of attention from no weight to all of it, on page, explorer and figures alike: ever more of one colour. A signed
// ramp goes from what became less to what became more.
export function inkRamp(host, signed = false) {
  // What is not on the page yet has no style.
  const style = getComputedStyle(host.isConnected ? host : document.body);
  const own = (name, fallback) => d3.rgb(style.getPropertyValue(name).trim() || fallback);
  const ink = own("--hw-weight", "#14477d"), less = own("--hw-less", "#c45810");
  const none = (colour) => colour.copy({ opacity: 0 });
  if (!signed) return d3.interpolateRgb(none(ink), ink);
  const [down, up] = [d3.interpolateRgb(less, none(less)), d3.interpolateRgb(none(ink), ink)];
  return (share) => (share < 0.5 ? down(2 * share) : up(2 * share - 1));
}

// 256 colours of a ramp as bytes, to paint many cells with.
const CODES = 255;
export const palette = (ramp) => d3.range(CODES + 1).map((code) => { const { r, g, b, opacity } = d3.rgb(ramp(code / CODES)); return [r, g, b, 255 * opacity]; });

// Cells as pixels: `code(i)` is a place in the palette; cells without one stay blank.
export function paintCells(canvas, rows, columns, colours, code) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const colour = colours[code(i)];
    if (colour) image.data.set(colour, 4 * i);
  }
  context.putImageData(image, 0, 0);
}

// A head on a sentence as it is shown: { rows, columns } of { text, tokens } and weights[row][column], NaN for what a row
// may not see. `view`: tokens, keys (where they are others), special, keysSpecial, weights (rows × columns, flat), hide
// (special tokens), words (of each token) and join (pieces to words: to a word the sum, from a word the mean),
// withoutFirst (the first token is left out, and the rest of each row sums to 1).
export function arranged(view) {
  const across = (view.keys || view.tokens).length;
  const flat = view.withoutFirst ? withoutFirst(view.weights, across) : view.weights;
  const groups = (tokens, special, words) => {
    const shown = d3.range(tokens.length).filter((t) => !(view.hide && special && special[t]) && !(view.withoutFirst && t === 0));
    const found = [];
    for (const t of shown.length ? shown : d3.range(tokens.length)) {
      const word = view.join && words ? words[t] : -1, last = found.at(-1);
      if (word >= 0 && last && last.word === word) { last.text += tokens[t].replace(/^##/, ""); last.tokens.push(t); }
      else found.push({ text: tokens[t], word, tokens: [t] });
    }
    return found;
  };
  const rows = groups(view.tokens, view.special, view.words);
  const columns = view.keys ? groups(view.keys, view.keysSpecial, null) : rows;
  const known = (values) => values.filter((x) => !Number.isNaN(x));
  const weights = rows.map((row) => columns.map((column) => d3.mean(known(row.tokens.map((r) => {
    const seen = known(column.tokens.map((k) => flat[r * across + k]));
    return seen.length ? d3.sum(seen) : NaN;
  }))) ?? NaN));
  return { rows, columns, weights };
}

// The weights of rows without their first key, scaled to sum to 1. A row that leaves less than a ten-thousandth of its
// attention has none: the analyses (`surface`, `sinks`) hold the same threshold.
const LEAST_REST = 1e-4;
function withoutFirst(weights, across) {
  const scaled = Float64Array.from(weights);
  for (let start = 0; start < scaled.length; start += across) {
    const rest = d3.sum(scaled.subarray(start + 1, start + across));
    scaled[start] = NaN;
    for (let k = start + 1; k < start + across; k++) scaled[k] = rest < LEAST_REST ? NaN : scaled[k] / rest;
  }
  return scaled;
}

// What a picture of a map says in words, for those who do not see it.
function described({ rows, columns, weights }) {
  const strong = weights.flatMap((row, r) => row.map((x, k) => [x, r, k])).filter(([x]) => Math.abs(x) >= 0.3);
  const most = d3.sort(strong, ([x]) => -Math.abs(x)).slice(0, 6);
  const text = most.map(([x, r, k]) => `${shownToken(rows[r].text, 20)} to ${shownToken(columns[k].text, 20)} ${weightText(x)}`).join(", ");
  return `attention map of ${rows.length} by ${columns.length} tokens; strongest: ${text || "no weight of 0.3 or more"}`;
}

const codeOf = (weight, signed) => {
  const root = Math.sqrt(Math.min(Math.abs(weight), 1)); // small weights are seen too
  return Math.round(CODES * (signed ? 0.5 + (Math.sign(weight) * root) / 2 : root));
};
function cellsOf(map, colours, signed) {
  const canvas = element("canvas"), flat = map.weights.flat();
  paintCells(canvas, map.rows.length, map.columns.length, colours, (i) => codeOf(flat[i], signed));
  return canvas;
}

// A map alone, without its tokens, at most `size` pixels wide and high.
export function smallMap(view, size) {
  const map = arranged(view), cell = size / Math.max(map.rows.length, map.columns.length);
  const canvas = cellsOf(map, palette(view.ramp || inkRamp(document.body)), false);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", described(map));
  canvas.style.cssText = `width:${map.columns.length * cell}px;height:${map.rows.length * cell}px;image-rendering:pixelated`;
  return canvas;
}

// One head large. `view`: what `arranged` wants, and mode (lines or matrix), signed (a difference), ramp (the colours of a
// matrix; the theme's ink where there is none), room (pixels for its cells), largest (pixels of a cell), bar (whether a colour bar is drawn), row (the
// picked token, or null), pick(token), say(text). Gives what it drew, as `arranged` does.
export function drawHead(host, view) {
  const map = arranged(view), ink = inkRamp(host, view.signed);
  const told = (x) => (view.signed && !Number.isNaN(x) ? written["+.3f"](x) : weightText(x));
  const pair = (r, k) => `${shownToken(map.rows[r].text, 40)} → ${shownToken(map.columns[k].text, 40)}: ${told(map.weights[r][k])}`;
  const svg = d3.create("svg").attr("class", `hw-${view.mode}`).attr("role", view.pick ? "group" : "img").attr("aria-label", described(map));
  let [width, height] = (view.mode === "matrix" ? matrix : lines)(svg, { say: () => {}, ...view, ...map, ink, told, pair });
  if (view.bar) height = colourBar(svg, view.ramp || ink, Boolean(view.signed), height + 8, view.barTitle || "attention weight");
  svg.attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`);
  host.replaceChildren(svg.node());
  return map;
}

// The colours of weights, which are even in their square root; gives the height down to which it reaches.
const BAR_TICKS = [0, 0.01, 0.1, 0.25, 0.5, 1], SIGNED_TICKS = [-1, -0.25, 0, 0.25, 1];
function colourBar(svg, ramp, signed, top, title) {
  const [left, width, tall] = [12, 210, 9];
  const share = (x) => codeOf(x, signed) / CODES;
  const bar = svg.append("g").attr("class", "hw-bar-of-weights");
  bar.append("text").attr("class", "hw-axis").attr("x", left).attr("y", top + 8).text(title);
  const colours = element("canvas");
  paintCells(colours, 1, CODES + 1, palette(ramp), (code) => code);
  const frame = (own) => own.attr("x", left).attr("y", top + 13).attr("width", width).attr("height", tall);
  frame(bar.append("image")).attr("preserveAspectRatio", "none").attr("href", colours.toDataURL());
  frame(bar.append("rect")).attr("class", "hw-bar-frame");
  for (const tick of signed ? SIGNED_TICKS : BAR_TICKS)
    bar.append("text").attr("class", "hw-axis").attr("x", left + share(tick) * width).attr("y", top + 13 + tall + 11).attr("text-anchor", "middle").text(written[tick && Math.abs(tick) < 1 ? ".2~f" : "d"](tick));
  return top + 13 + tall + 16;
}

// A finger that is lifted leaves too, but its reader still reads.
const pointerLeft = (event) => event.pointerType !== "touch";

// The labels of tokens that look: those that can be picked are buttons.
function rowLabels(labels, view) {
  labels.attr("class", (row) => (row.tokens.includes(view.row) ? "hw-token hw-looks hw-picked" : "hw-token hw-looks")).attr("data-token", (row) => row.tokens[0]);
  if (!view.pick) return;
  const pick = (row) => view.pick(row.tokens[0]);
  labels.attr("tabindex", 0).attr("role", "button").attr("aria-label", (row) => `token ${row.tokens[0]}: ${shownToken(row.text, 40)}`)
    .on("click", (_, row) => pick(row))
    .on("keydown", (event, row) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      pick(row);
    });
}

// Tokens that look on the left, those looked at on the right; a line is as dark as its weight.
function lines(svg, view) {
  const { rows, columns } = view, most = Math.max(rows.length, columns.length), step = 18, [left, right, width] = [124, 236, 360];
  const band = d3.scaleBand(d3.range(most), [4, 4 + step * most]), y = (i) => band(i) + step / 2;
  const strong = view.weights.flatMap((row, r) => row.map((x, k) => ({ x, r, k }))).filter(({ x }) => Math.abs(x) >= LEAST);
  const drawn = svg.append("g").attr("class", "hw-strokes").selectAll("line").data(d3.sort(strong, ({ x }) => -Math.abs(x)).slice(0, MOST_LINES)).join("line")
    .attr("x1", left).attr("x2", right).attr("y1", ({ r }) => y(r)).attr("y2", ({ k }) => y(k))
    .attr("stroke", ({ x }) => view.ink(x < 0 ? 0 : 1)).attr("stroke-opacity", ({ x }) => Math.min(1, Math.abs(x)).toFixed(3))
    .attr("stroke-width", ({ x }) => (1 + 2.5 * Math.abs(x)).toFixed(2));
  drawn.append("title").text(({ r, k }) => view.pair(r, k));
  const only = (chosen) => drawn.style("display", (line) => (chosen(line) ? null : "none"));
  const picked = rows.findIndex((row) => row.tokens.includes(view.row));
  const rest = () => only(({ r }) => picked < 0 || r === picked);
  const strongest = (list, name) => d3.sort(list.filter(([x]) => Math.abs(x) >= 0.005), ([x]) => -Math.abs(x)).slice(0, 5).map(([x, i]) => `${shownToken(name(i), 20)} ${view.told(x)}`).join(", ");
  const names = (list, x, anchor, over) => svg.append("g").selectAll("text").data(list).join("text").attr("class", "hw-token")
    .attr("x", x).attr("y", (_, i) => y(i)).attr("text-anchor", anchor).attr("dominant-baseline", "central").text((own) => shownToken(own.text))
    .on("pointerenter", (_, own) => over(list.indexOf(own))).on("pointerleave", (event) => { if (!pointerLeft(event)) return; rest(); view.say(""); });
  const looking = names(rows, left - 6, "end", (at) => {
    only(({ r }) => r === at);
    view.say(`${shownToken(rows[at].text, 30)} → ${strongest(view.weights[at].map((x, k) => [x, k]), (k) => columns[k].text)}`);
  });
  rowLabels(looking, view);
  names(columns, right + 6, "start", (at) => {
    only(({ k }) => k === at);
    view.say(`${shownToken(columns[at].text, 30)} ← ${strongest(view.weights.map((row, r) => [row[at], r]), (r) => rows[r].text)}`);
  });
  rest();
  return [width, band.range()[1] + 4];
}

// Rows look, columns are looked at.
function matrix(svg, view) {
  const { rows, columns } = view, longest = (list, most) => d3.max(list, (own) => shownToken(own.text, most).length);
  const [left, top] = [12 + 6.5 * longest(rows, 14), 14 + 5.7 * longest(columns, 12)];
  const cell = Math.max(8, Math.min(view.largest || 20, (view.room || 520) / Math.max(rows.length, columns.length)));
  const x = d3.scaleBand(d3.range(columns.length), [left, left + cell * columns.length]);
  const y = d3.scaleBand(d3.range(rows.length), [top, top + cell * rows.length]);
  const frame = (own) => own.attr("x", left).attr("y", top).attr("width", cell * columns.length).attr("height", cell * rows.length);
  frame(svg.append("image")).attr("preserveAspectRatio", "none").attr("style", "image-rendering: pixelated")
    .attr("href", cellsOf(view, palette(view.ramp || view.ink), view.signed).toDataURL());
  const cover = frame(svg.append("rect")).attr("class", "hw-frame"), hint = cover.append("title");
  cover.on("pointermove pointerdown", (event) => {
    const [px, py] = d3.pointer(event), [r, k] = [Math.floor((py - top) / cell), Math.floor((px - left) / cell)];
    if (!rows[r] || !columns[k]) return;
    hint.text(view.pair(r, k));
    view.say(view.pair(r, k));
  }).on("pointerleave", (event) => pointerLeft(event) && view.say(""));
  const names = (list, axis, moved, longest) => svg.append("g").attr("class", "hw-names").attr("transform", moved)
    .call(axis.tickSize(0).tickPadding(5).tickFormat((i) => shownToken(list[i].text, longest)))
    .selectAll("text").data(list).attr("class", "hw-token").attr("font-size", Math.min(12, cell + 1));
  rowLabels(names(rows, d3.axisLeft(y), `translate(${left},0)`, 14), view);
  names(columns, d3.axisTop(x), `translate(0,${top})`, 12).attr("text-anchor", "start").attr("transform", "rotate(-60)").attr("x", 5).attr("y", 0).attr("dy", "0.35em");
  const picked = rows.findIndex((row) => row.tokens.includes(view.row));
  if (picked >= 0) svg.append("rect").attr("class", "hw-row").attr("x", left).attr("y", y(picked)).attr("width", cell * columns.length).attr("height", cell);
  return [x.range()[1] + 44, y.range()[1] + 4];
}
