// A head on a sentence: as a matrix or as lines between tokens, from the weights themselves.

// The map of a head on a sentence: { rows, keys (texts), weights[row][key] }, NaN for keys that a row may not see; as
// shown: with or without special tokens, of pieces or of words (to a word: the sum over its pieces; from a word: the
// mean). null where the page has no map of it.
function mapOf(i, number) {
  const sentence = (data.sentences || [])[number];
  if (!sentence) return null;
  const keys = sentence.keys || sentence.tokens, n = sentence.tokens.length, m = keys.length;
  const place = sentence.heads ? sentence.heads.indexOf(i) : i;
  if (place < 0) return null;
  const start = sentence.place + place * n * m;
  const weight = (row, key) => { const code = mapCodes[start + row * m + key]; return code === HIDDEN ? NaN : (code / (HIDDEN - 1)) ** 2; };
  const cross = Boolean(sentence.keys);
  const groups = (tokens, own) => {
    const found = [];
    tokens.forEach((text, t) => {
      if (own && !state.special && sentence.special && sentence.special[t]) return;
      const word = own && state.words && sentence.words ? sentence.words[t] : -1;
      const last = found[found.length - 1];
      if (word >= 0 && last && last.word === word) { last.text += text.replace(/^##/, ""); last.tokens.push(t); }
      else found.push({ text, word, tokens: [t] });
    });
    return found;
  };
  const rows = groups(sentence.tokens, true), columns = cross ? groups(keys, false) : rows;
  const weights = rows.map((row) => columns.map((column) => {
    const sums = row.tokens.map((r) => {
      const seen = column.tokens.map((k) => weight(r, k)).filter((x) => !Number.isNaN(x));
      return seen.length ? seen.reduce((a, b) => a + b, 0) : NaN;
    }).filter((x) => !Number.isNaN(x));
    return sums.length ? sums.reduce((a, b) => a + b, 0) / sums.length : NaN;
  }));
  return { rows: rows.map((r) => r.text), keys: columns.map((c) => c.text), weights };
}

const weightText = (x) => (Number.isNaN(x) ? "may not be seen" : x < 0.1 ? x.toFixed(3) : x.toFixed(2));
const cut = (text, longest = 14) => { const letters = Array.from(text); return letters.length > longest ? `${letters.slice(0, longest - 1).join("")}…` : text; };
const inkColour = () => getComputedStyle(document.body).color;

// A matrix on a canvas: rows look, columns are looked at. `small` leaves the tokens out.
function drawMatrix(map, small = 0) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2), n = map.rows.length, m = map.keys.length;
  const margin = small ? 0 : 92, cell = small ? small / Math.max(n, m) : Math.max(8, Math.min(16, 330 / Math.max(n, m)));
  const width = margin + m * cell + (small ? 0 : 44), height = (small ? 0 : 80) + n * cell, top = small ? 0 : 80;
  const canvas = make("canvas", { width: Math.ceil(width * ratio), height: Math.ceil(height * ratio), role: "img", "aria-label": describeMap(map) });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  map.weights.forEach((row, r) => row.forEach((x, k) => {
    if (Number.isNaN(x)) return;
    pen.fillStyle = css(blend(VIRIDIS, Math.sqrt(x)));
    pen.fillRect(margin + k * cell, top + r * cell, cell + 0.3, cell + 0.3);
  }));
  if (!small) {
    pen.fillStyle = inkColour();
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    map.rows.forEach((text, r) => pen.fillText(cut(text), margin - 5, top + (r + 0.5) * cell, margin - 8));
    pen.textAlign = "left";
    map.keys.forEach((text, k) => { pen.save(); pen.translate(margin + (k + 0.5) * cell, top - 5); pen.rotate(-Math.PI / 3); pen.fillText(cut(text, 12), 0, 0, 84); pen.restore(); });
  }
  canvas.atPoint = (event) => {
    const box = canvas.getBoundingClientRect();
    const r = Math.floor((event.clientY - box.top - top) / cell), k = Math.floor((event.clientX - box.left - margin) / cell);
    return r >= 0 && r < n && k >= 0 && k < m ? [r, k] : null;
  };
  return canvas;
}

// Lines from the tokens that look, on the left, to those looked at; a line is as dark as its weight.
function drawLines(map, say) {
  const step = 17, n = map.rows.length, m = map.keys.length, height = Math.max(n, m) * step + 8, width = 380, left = 130, right = 250;
  const y = (k) => k * step + step / 2 + 4;
  const picture = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "lines", role: "img", "aria-label": describeMap(map) });
  const lines = map.rows.map((_, r) => {
    const group = make("g", { class: "row" });
    map.keys.forEach((_, k) => {
      const x = map.weights[r][k];
      if (x >= 0.02) group.append(make("line", { x1: left, y1: y(r), x2: right, y2: y(k), "stroke-opacity": Math.min(1, x).toFixed(3), "stroke-width": (0.6 + 2 * x).toFixed(2) }));
    });
    picture.append(group);
    return group;
  });
  const over = (r) => () => {
    lines.forEach((group, i) => group.classList.toggle("away", r !== null && i !== r));
    if (r === null) { say(""); return; }
    const most = map.weights[r].map((x, k) => [x, k]).filter(([x]) => x >= 0.005).sort((a, b) => b[0] - a[0]).slice(0, 5);
    say(`${cut(map.rows[r], 30)} → ${most.map(([x, k]) => `${cut(map.keys[k], 20)} ${weightText(x)}`).join(", ")}`);
  };
  map.rows.forEach((text, r) => picture.append(make("text", { x: left - 6, y: y(r), "text-anchor": "end", class: "looks", onpointerenter: over(r), onpointerleave: over(null) }, cut(text, 18))));
  map.keys.forEach((text, k) => picture.append(make("text", { x: right + 6, y: y(k) }, cut(text, 18))));
  return picture;
}

// What a picture of a map says in words, for those who do not see it.
function describeMap(map) {
  const strong = [];
  map.weights.forEach((row, r) => row.forEach((x, k) => { if (x >= 0.3) strong.push([x, r, k]); }));
  strong.sort((a, b) => b[0] - a[0]);
  const text = strong.slice(0, 6).map(([x, r, k]) => `${cut(map.rows[r], 20)} to ${cut(map.keys[k], 20)} ${weightText(x)}`).join(", ");
  return `attention map of ${map.rows.length} by ${map.keys.length} tokens; strongest: ${text || "no weight of 0.3 or more"}`;
}

function mapControls() {
  const sentences = data.sentences || [], now = sentences[state.sentence] || {};
  const choice = make("select", { "aria-label": "sentence", onchange: (event) => change({ sentence: Number(event.target.value) }) },
    ...sentences.map((s, k) => make("option", { value: k, selected: k === state.sentence }, (s.model ? `${s.model}: ` : "") + cut(s.tokens.filter((_, t) => !(s.special && s.special[t])).join(" "), 60))));
  const tick = (text, checked, changed, id) => make("label", {}, make("input", { type: "checkbox", checked, id, onchange: changed }), ` ${text}`);
  const boxes = [tick("lines", state.view === "lines", (e) => change({ view: e.target.checked ? "lines" : "matrix" }), "as-lines")];
  if (now.special && now.special.some(Boolean)) boxes.push(tick("hide special tokens", !state.special, (e) => change({ special: !e.target.checked }), "hide-special"));
  if (now.words && now.words.some((w, t) => w >= 0 && now.words[t + 1] === w)) boxes.push(tick("words, not pieces", state.words, (e) => change({ words: e.target.checked }), "as-words"));
  return make("div", { class: "map-controls" }, choice, ...boxes);
}

function mapView(i) {
  const map = mapOf(i, state.sentence);
  if (!map) return make("p", { class: "quiet" }, (data.sentences || []).length ? "This head's map on this sentence is not on the page (see “Before you read”)." : "No sentence was kept with this atlas.");
  const said = make("p", { class: "said", "aria-live": "polite" }, "");
  const say = (text) => { said.textContent = text || "Point at the picture for numbers."; };
  say("");
  if (state.view === "lines") return make("div", { class: "map" }, drawLines(map, say), said);
  const canvas = drawMatrix(map);
  canvas.addEventListener("pointermove", (event) => {
    const at = canvas.atPoint(event);
    say(at ? `${cut(map.rows[at[0]], 30)} → ${cut(map.keys[at[1]], 30)}: ${weightText(map.weights[at[0]][at[1]])}` : "");
  });
  canvas.addEventListener("pointerleave", () => say(""));
  return make("div", { class: "map" }, canvas, said);
}
