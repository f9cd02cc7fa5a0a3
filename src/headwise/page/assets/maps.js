// A head on a sentence: what drawing.js draws it from, and what a reader can choose of it.

// The map of a head on a sentence as drawing.js takes it; null where the page has no map of it.
function mapOf(i, place) {
  const sentence = (data.sentences || [])[place];
  const own = sentence && (sentence.heads ? sentence.heads.indexOf(i) : i);
  if (!sentence || own < 0) return null;
  const size = sentence.tokens.length * (sentence.keys || sentence.tokens).length, start = sentence.place + own * size;
  const weights = Float64Array.from(mapCodes.subarray(start, start + size), (code) => (code === HIDDEN ? NaN : (code / (HIDDEN - 1)) ** 2));
  return { tokens: sentence.tokens, keys: sentence.keys, special: sentence.special, words: sentence.words, weights, hide: !state.special, join: state.words };
}

function mapControls() {
  const sentences = data.sentences || [], now = sentences[state.sentence] || {};
  const choice = element("select", { "aria-label": "sentence", onchange: (event) => change({ sentence: Number(event.target.value) }) },
    ...sentences.map((s, k) => element("option", { value: k, selected: k === state.sentence }, (s.model ? `${s.model}: ` : "") + shownToken(s.tokens.filter((_, t) => !(s.special && s.special[t])).join(" "), 60))));
  const tick = (text, checked, changed, id) => element("label", {}, element("input", { type: "checkbox", checked, id, onchange: changed }), ` ${text}`);
  const boxes = [tick("lines", state.view === "lines", (e) => change({ view: e.target.checked ? "lines" : "matrix" }), "as-lines")];
  if (now.special && now.special.some(Boolean)) boxes.push(tick("hide special tokens", !state.special, (e) => change({ special: !e.target.checked }), "hide-special"));
  if (now.words && now.words.some((w, t) => w >= 0 && now.words[t + 1] === w)) boxes.push(tick("whole words", state.words, (e) => change({ words: e.target.checked }), "as-words"));
  return element("div", { class: "map-controls" }, choice, ...boxes);
}

function mapView(i) {
  const map = mapOf(i, state.sentence);
  if (!map) return element("p", { class: "quiet" }, (data.sentences || []).length ? "This head's map on this sentence is not on this page (see “Before you read”)." : "This atlas has no example sentences.");
  const said = element("p", { class: "said", "aria-live": "polite" }, ""), drawn = element("div", { class: "map hw" });
  const say = (text) => { said.textContent = text || "Point at the picture for numbers."; };
  say("");
  drawHead(drawn, { ...map, mode: state.view, room: 330, say });
  return element("div", {}, drawn, said, inAllModels(i));
}

// In a comparison: the head on the same sentence in every model, side by side; one is chosen to be large.
function inAllModels(i) {
  if (!data.models || !data.sentences[state.sentence].model) return null;
  const first = state.sentence - (state.sentence % data.models.length), places = d3.range(first, first + data.models.length);
  return element("div", { class: "models", role: "group", "aria-label": "the same sentence in every model" }, ...places.map((place) => {
    const map = mapOf(i, place);
    return map && element("button", { type: "button", "aria-pressed": String(place === state.sentence), onclick: () => change({ sentence: place }) }, smallMap(map, 110), element("span", {}, data.sentences[place].model));
  }));
}
