// What is shown, kept in the address: #L4H0&colour=surface.entropy, so that a link shows what its sender saw.

const PLAIN = data.colour || "";  // what colours the grid where the address says nothing
const START = data.start || null;  // the head that is shown where the address names none
const state = {
  head: START, first: null, colour: PLAIN, filter: "", compare: [], sentence: 0, view: "matrix", special: true, words: false, sort: "value", down: true,
};
const listeners = [];
const onState = (listener) => listeners.push(listener);

function readAddress() {
  const [first, ...rest] = location.hash.slice(1).split("&");
  const given = new Map(rest.map((pair) => { const [key, ...value] = pair.split("="); return [key, value.join("=")]; }));
  const isHead = headIndex.has(first);
  if (!isHead && !(first === "" && given.size) && first !== "heads") {
    if (first) reveal(first);  // an inside link to a section
    return false;
  }
  const decoded = (key) => { try { return decodeURIComponent(given.get(key) || ""); } catch { return ""; } };
  state.head = isHead ? first : START;
  state.first = ["hide", "show"].includes(given.get("first")) ? given.get("first") : null;
  state.colour = given.has("colour") ? (byName.has(decoded("colour")) ? decoded("colour") : "") : PLAIN;
  state.filter = decoded("filter");
  state.compare = decoded("compare").split(",").filter((name) => headIndex.has(name)).slice(0, 8);
  state.sentence = Math.max(0, Math.min(Number(given.get("sentence")) || 0, (data.sentences || []).length - 1));
  state.view = given.get("view") === "lines" ? "lines" : "matrix";
  state.special = given.get("special") !== "hide";
  state.words = given.get("words") === "1";
  state.sort = ["value", "name", "word"].includes(given.get("sort")) ? given.get("sort") : "value";
  state.down = given.get("up") !== "1";
  return true;
}

function writeAddress() {
  const parts = [state.head || ""];
  const add = (key, value) => { if (value) parts.push(`${key}=${encodeURIComponent(value)}`); };
  if (state.colour !== PLAIN) add("colour", state.colour || "words");
  add("filter", state.filter);
  add("compare", state.compare.join(","));
  add("sentence", state.sentence || "");
  add("view", state.view === "lines" ? "lines" : "");
  add("first", state.first);
  add("special", state.special ? "" : "hide");
  add("words", state.words ? "1" : "");
  add("sort", state.sort === "value" ? "" : state.sort);
  add("up", state.down ? "" : "1");
  const text = parts.join("&");
  try { history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search); } catch { /* a frame that has no history */ }
}

function change(changes) {
  Object.assign(state, changes);
  writeAddress();
  tell(new Set(Object.keys(changes)));
}
function tell(keys) { for (const listener of listeners) listener(keys); }

// Open what an inside link leads to: sections lie folded by paper.
function reveal(id) {
  const target = document.getElementById(id);
  if (!target) return;
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  target.scrollIntoView();
}
