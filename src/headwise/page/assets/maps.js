// A head on a sentence: what drawing.js draws it from, what a reader can choose of it, and what a reader can save.

// Whether the first token is left out of a head's maps: as the reader chose; before that, where the head is a sink.
const hidesFirst = (i) => Boolean(data.model.decoder) && (state.first === null ? Boolean(data.heads[i].sink) : state.first === "hide");

// The map of a head on a sentence as drawing.js takes it; null where the page has no map of it.
function mapOf(i, place) {
  const sentence = (data.sentences || [])[place];
  const own = sentence && (sentence.heads ? sentence.heads.indexOf(i) : i);
  if (!sentence || own < 0) return null;
  const size = sentence.tokens.length * (sentence.keys || sentence.tokens).length, start = sentence.place + own * size;
  const weights = Float64Array.from(mapCodes.subarray(start, start + size), (code) => (code === HIDDEN ? NaN : (code / (HIDDEN - 1)) ** 2));
  return { tokens: sentence.tokens, keys: sentence.keys, special: sentence.special, words: sentence.words, weights, hide: !state.special, join: state.words, withoutFirst: hidesFirst(i) && !sentence.keys };
}

const sentenceText = (sentence, longest) => shownToken(sentence.tokens.filter((_, t) => !(sentence.special && sentence.special[t])).join(" "), longest);

function mapControls(i) {
  const sentences = data.sentences || [], now = sentences[state.sentence] || {};
  const choice = element("select", { "aria-label": "sentence", onchange: (event) => change({ sentence: Number(event.target.value) }) },
    ...sentences.map((s, k) => element("option", { value: k, selected: k === state.sentence }, (s.model ? `${s.model}: ` : "") + sentenceText(s, 60))));
  const tick = (text, checked, changed, id) => element("label", {}, element("input", { type: "checkbox", checked, id, onchange: changed }), ` ${text}`);
  const boxes = [tick("lines", state.view === "lines", (e) => change({ view: e.target.checked ? "lines" : "matrix" }), "as-lines")];
  if (data.model.decoder && !now.keys) boxes.push(tick("hide the first token", hidesFirst(i), (e) => change({ first: e.target.checked ? "hide" : "show" }), "hide-first"));
  if (now.special && now.special.some(Boolean)) boxes.push(tick("hide special tokens", !state.special, (e) => change({ special: !e.target.checked }), "hide-special"));
  if (now.words && now.words.some((w, t) => w >= 0 && now.words[t + 1] === w)) boxes.push(tick("whole words", state.words, (e) => change({ words: e.target.checked }), "as-words"));
  return element("div", { class: "map-controls" }, choice, ...boxes);
}

function mapView(i) {
  const map = mapOf(i, state.sentence);
  if (!map) return element("p", { class: "quiet" }, (data.sentences || []).length ? "This head's map on this sentence is not on this page (see “Before you read”)." : "This atlas has no example sentences.");
  const said = element("p", { class: "said", "aria-live": "polite" }, ""), drawn = element("div", { class: "map hw" });
  const say = (text) => { said.textContent = text || `${POINT_AT} the picture for numbers.`; };
  say("");
  const barTitle = map.withoutFirst ? "attention weight, excluding the first token" : "attention weight";
  const arrangedMap = drawHead(drawn, { ...map, mode: state.view, room: 330, bar: true, barTitle, say });
  const note = map.withoutFirst ? element("p", { class: "quiet", id: "first-note" }, "The first token is left out and the rest of each row scaled to sum to 1; rows that leave less than 0.0001 are blank.") : null;
  return element("div", {}, drawn, said, note, saveButtons(i, drawn, arrangedMap), inAllModels(i));
}

// The map as it is drawn, as a file: vectors, pixels, or numbers.
function saveButtons(i, drawn, map) {
  const head = data.heads[i], name = `${head.name}-map-${state.sentence + 1}`;
  const vectors = () => standaloneSvg(drawn.querySelector("svg"), `${data.model.name} ${head.name}: ${head.does || head.word}`, getComputedStyle(byId("card")).backgroundColor);
  const button = (format, save) => element("button", { type: "button", id: `map-${format.toLowerCase()}`, "aria-label": `Save this map as ${format}`, onclick: save }, format);
  return element("p", { class: "buttons save" }, element("span", { class: "quiet" }, "Save this map:"),
    button("SVG", () => download(`${name}.svg`, vectors().text, "image/svg+xml")),
    button("PNG", async () => downloadBlob(`${name}.png`, await pngOf(vectors()))),
    button("CSV", () => download(`${name}.csv`, mapCsv(head.name, map))));
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
