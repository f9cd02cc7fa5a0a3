// The explorer's page: what is typed, the settings that all models share, and the address that keeps both.
import { ask, errorText } from "./asking.js";
import { element } from "./drawing.js";
import { headName } from "./heads.js";
import { Pane } from "./pane.js";

const WAIT = 300; // milliseconds after the last key
const SENTENCE = { masked: "She gave the old [MASK] to her sister.", other: "Once upon a time, a little girl gave the old book to" };
const byId = (id) => document.getElementById(id);
const panes = [];
let state = null;

const page = {
  // `first`: null, or whether the reader wants the first token hidden or shown.
  settings: { how: "zero", view: "matrix", hide: false, signed: false, first: null },
  mostWritten: 1,
  say: (text) => { byId("said").textContent = text; },
  texts() {
    const texts = { text: byId("text").value };
    if (byId("pair").value.trim()) texts.pair = byId("pair").value;
    return texts;
  },
  remember,
  redraw() {
    for (const pane of panes) {
      pane.draw();
      pane.paintGrid();
      if (pane.collects && pane.row !== null) pane.collect();
    }
  },
  howSelect(names) {
    const change = (event) => {
      page.settings.how = event.target.value;
      for (const pane of panes) pane.look();
    };
    return element("select", { name: "how", "aria-label": "What disabling does", onchange: change },
      ...state.ways.map((way) => element("option", { value: way, selected: way === page.settings.how }, names[way] || way)));
  },
};

function remember() {
  const parts = new URLSearchParams({ text: byId("text").value });
  if (byId("pair").value) parts.set("pair", byId("pair").value);
  for (const pane of panes) {
    parts.append("head", headName(...pane.picked));
    parts.append("off", [...pane.disabled].join(" "));
  }
  history.replaceState(null, "", `#${parts}`);
}

function recall() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const first = state.models[0];
  const sentence = first.predicts === "masked" ? SENTENCE.masked.replace("[MASK]", first.mask) : SENTENCE.other;
  byId("text").value = parts.get("text") ?? sentence;
  byId("pair").value = parts.get("pair") ?? "";
  const read = (text) => /^L(\d{1,4})H(\d{1,4})$/.exec(text)?.slice(1).map(Number);
  for (const [i, pane] of panes.entries()) {
    const exists = (head) => head && head[0] < pane.info.layers && head[1] < pane.info.heads;
    const head = read(parts.getAll("head")[i] || "");
    if (exists(head)) pane.picked = head;
    pane.disabled = new Set((parts.getAll("off")[i] || "").split(" ").filter((name) => exists(read(name))));
  }
}

let timer = 0;
function submit() {
  clearTimeout(timer);
  remember();
  if (!byId("text").value.trim()) {
    page.say("Type a sentence.");
    return;
  }
  for (const pane of panes) pane.newText();
}

function listen() {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  for (const id of ["text", "pair"]) {
    byId(id).addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(submit, WAIT);
    });
    byId(id).addEventListener("keydown", (event) => {
      // An input method ends a word by Enter too: that is not the end of the sentence.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      submit();
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.redraw());
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // the bars of a phone come and go
    width = innerWidth;
    for (const pane of panes) pane.draw();
  });
}

async function start() {
  state = await ask("state");
  page.mostWritten = state.most_written;
  for (const id of ["text", "pair"]) byId(id).maxLength = state.longest;
  if (state.models.some((model) => model.needs_pair)) byId("pair-label").textContent = "Target (what the decoder reads)";
  else if (state.models.every((model) => model.writes)) for (const id of ["pair", "pair-label"]) byId(id).hidden = true;
  byId("panes").classList.toggle("two", state.models.length > 1);
  for (const [i, info] of state.models.entries()) panes.push(new Pane(i, info, page, byId("panes")));
  if (state.notes.length) {
    byId("notes").hidden = false;
    byId("notes").append(...state.notes.map((note) => element("p", {}, note)));
  }
  recall();
  if (byId("pair").value) for (const id of ["pair", "pair-label"]) byId(id).hidden = false;
  listen();
  for (const pane of panes) pane.look();
}

start().catch((error) => page.say(errorText(error)));
