// The explorer's page: asks its own server, and draws with drawing.js and heads.js.
import { bytesOf, drawHead, element, inkRamp, number, palette, shownToken, weightText } from "./drawing.js";
import { headGrid, headName, thumbnail } from "./heads.js";

const floatsOf = (base64) => new Float32Array(bytesOf(base64).buffer);
const one = (id) => document.getElementById(id);
const WAIT = 300; // milliseconds after the last key
const PATIENCE = 6; // how often a busy server is asked again
const WAYS = { zero: "zero ablation", uniform: "uniform attention", mean: "mean ablation" };
const SENTENCE = { masked: "She gave the old [MASK] to her sister.", other: "Once upon a time, a little girl gave the old book to" };
const panes = [];
let state = null;

async function ask(path, content = null) {
  for (let tries = 0; ; tries++) {
    const options = content && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) };
    const answer = await fetch(path, options || {});
    if (answer.ok) return answer.json();
    const told = await answer.json().catch(() => ({}));
    if (answer.status !== 503 || tries >= PATIENCE) throw new Error(told.error || `the server says ${answer.status}`);
    await new Promise((done) => setTimeout(done, 250 * (tries + 1)));
  }
}

// A share as a bar with its number.
const bar = (value, kind) => element("td", { class: "bar" }, element("span", { class: `hw-bar ${kind}`, style: `width:${(60 * value).toFixed(1)}px` }), ` ${weightText(value)}`);

const say = (text) => (one("said").textContent = text);

// One question at a time of a kind: while it is answered, only the newest of those that come is kept.
function latest(work) {
  let running = false;
  let next = null;
  return async function go(...values) {
    if (running) {
      next = values;
      return;
    }
    running = true;
    try {
      await work(...values);
      say("");
    } catch (error) {
      say(error.message === "Failed to fetch" ? "The server has stopped." : error.message);
    } finally {
      running = false;
      if (next) {
        const again = next;
        next = null;
        go(...again);
      }
    }
  };
}

class Pane {
  constructor(number, info, host) {
    Object.assign(this, { number, info, disabled: new Set(), picked: [0, 0], row: null, mask: null, position: null, source: "input", seen: null, weights: null, before: null, asked: 0 });
    this.part = (name, ...children) => element("div", { class: name }, ...children);
    this.gridHost = this.part("scroll");
    this.offHost = this.part("hw-controls off-list");
    this.title = element("h3", { class: "picked" });
    this.about = element("p", { class: "hw-quiet about" });
    this.large = this.part("large scroll");
    this.gathers = this.part("gathers");
    this.predictions = this.part("predictions");
    const sizes = `${info.layers} layers × ${info.heads} heads, at most ${info.tokens} tokens` + (info.stack === "encoder" ? "" : `, ${info.stack} stack`);
    host.append(element("section", { class: "pane", "data-model": number, "aria-label": info.name },
      element("h2", {}, info.name, " ", element("span", { class: "hw-quiet" }, sizes)),
      this.part("columns", this.part("left", this.gridHost, this.offHost),
        this.part("right", this.predictions, this.title, this.about, this.part("parts", this.large, this.gathers)))));
    this.grid = headGrid(this.gridHost, {
      layers: info.layers, heads: info.heads,
      fill: (button, layer, head) => {
        button.append(element("canvas"));
        const word = info.labels?.[layer][head].label;
        if (info.labels) button.append(element("span", { class: "hw-word" }, word || ""));
        button.append(element("span", { class: "moved", style: "width:0" }));
      },
      label: (layer, head) => this.label(layer, head),
      pick: (layer, head) => this.pick(layer, head),
      key: (event, layer, head) => {
        if (event.key === "d") this.toggle(layer, head);
      },
    });
    for (const [layer, row] of this.grid.cells.entries())
      for (const [head, button] of row.entries())
        button.parentNode.append(element("button", { type: "button", class: "off", tabindex: "-1", "aria-label": `disable ${headName(layer, head)}`, "aria-pressed": "false", onclick: () => this.toggle(layer, head) }, "×"));
    this.look = latest(() => this.lookNow());
    this.full = latest(() => this.fullNow());
    this.gather = latest(() => this.gatherNow());
    this.grid.mark(...this.picked);
  }

  label(layer, head) {
    const words = this.info.labels?.[layer][head];
    const moved = this.seen?.moved?.[layer][head];
    return headName(layer, head) + (words?.does ? `: ${words.does}` : "") + (this.disabled.has(headName(layer, head)) ? ", disabled" : "") + (moved ? `, attention moved by ${weightText(moved)}` : "");
  }

  question() {
    const asked = { text: one("text").value, model: this.number, disabled: [...this.disabled], how: one("how").value };
    if (one("pair").value.trim()) asked.pair = one("pair").value;
    if (this.mask !== null) asked.mask = this.mask;
    if (this.position !== null) asked.position = this.position;
    return asked;
  }

  changed() {
    if (!one("text").value.trim()) return say("Type a sentence.");
    this.look();
  }

  async lookNow() {
    this.gridHost.classList.add("busy");
    try {
      this.asked = this.question();
      this.seen = await ask("look", this.asked);
    } finally {
      this.gridHost.classList.remove("busy");
    }
    const [layers, heads, rows, columns] = this.seen.shape;
    const bytes = bytesOf(this.seen.maps), colours = palette(inkRamp(document.body));
    for (let layer = 0; layer < layers; layer++)
      for (let head = 0; head < heads; head++) {
        const button = this.grid.cells[layer][head];
        const off = this.disabled.has(headName(layer, head));
        thumbnail(button.firstChild, bytes, (layer * heads + head) * rows * columns, rows, columns, colours);
        button.classList.toggle("disabled", off);
        button.nextSibling.setAttribute("aria-pressed", String(off));
        button.querySelector(".moved").style.width = `${100 * Math.sqrt(this.seen.moved?.[layer][head] || 0)}%`;
      }
    this.grid.mark(...this.picked);
    if (this.row !== null && this.row >= this.seen.tokens.length) this.row = null;
    this.showOff();
    this.showPredictions();
    this.gridHost.dataset.seconds = this.seen.seconds;
    if (this.seen.truncated) say(`${this.info.name} reads the first ${this.info.tokens} tokens; the input was truncated.`);
    await this.full();
  }

  pick(layer, head) {
    this.picked = [layer, head];
    this.grid.mark(layer, head);
    remember();
    this.full();
  }

  toggle(layer, head) {
    const name = headName(layer, head);
    if (!this.disabled.delete(name)) this.disabled.add(name);
    remember();
    this.changed();
  }

  async fullNow() {
    if (!this.seen) return;
    const answer = await ask("head", { ...this.asked, head: headName(...this.picked) });
    this.weights = floatsOf(answer.weights);
    this.before = answer.before && floatsOf(answer.before);
    this.draw();
    if (this.row !== null) this.gather();
    else this.showGathers(null);
  }

  draw() {
    if (!this.weights) return;
    const seen = this.seen;
    const signed = one("signed").checked && this.before !== null;
    const words = this.info.labels?.[this.picked[0]][this.picked[1]];
    this.title.textContent = headName(...this.picked) + (words?.does ? ` · ${words.does}` : "") + (signed ? " · difference" : "");
    this.about.textContent = words ? [words.attention, words.finds, words.roles, words.maps].filter(Boolean).join(" · ") : "";
    drawHead(this.large, {
      tokens: seen.tokens, keys: seen.keys, special: seen.special, keysSpecial: seen.keys_special,
      weights: signed ? this.weights.map((weight, i) => weight - this.before[i]) : this.weights,
      signed, hide: one("hide").checked, mode: document.querySelector("[name=mode]:checked").value, row: this.row,
      pick: (row) => {
        this.row = this.row === row ? null : row;
        this.draw();
        if (this.row === null) this.showGathers(null);
        else this.gather();
      },
    });
  }

  async gatherNow() {
    const row = this.row;
    if (row === null) return;
    if (!this.info.attributes) return this.showGathers({ attention: this.attentionOf(row), contribution: null });
    this.showGathers({ attention: this.attentionOf(row), contribution: null, waiting: true });
    const answer = await ask("attribution", { ...this.asked, head: headName(...this.picked), token: row, source: this.source });
    if (row === this.row) this.showGathers(answer);
  }

  attentionOf(row) {
    const keys = (this.seen.keys || this.seen.tokens).length;
    return Array.from(this.weights.slice(row * keys, (row + 1) * keys));
  }

  showGathers(found) {
    if (!found) return this.gathers.replaceChildren(element("p", { class: "hw-quiet" }, "Click a token on the left of the large head: attention beside what the head actually collects for it."));
    const seen = this.seen;
    const keys = seen.keys || seen.tokens;
    const table = element("table", { class: "hw-table" }, element("tr", {}, element("th", {}, "token"), element("th", {}, "attention"), ...(found.contribution ? [element("th", {}, "contribution")] : [])));
    const hide = one("hide").checked;
    for (const [i, key] of keys.entries())
      if (!(hide && seen.keys_special[i]))
        table.append(element("tr", {}, element("td", {}, shownToken(key)), bar(found.attention[i], ""), ...(found.contribution ? [bar(found.contribution[i], "hw-other")] : [])));
    const choice = (value, text) => element("label", {}, element("input", { type: "radio", name: `source${this.number}`, value, checked: this.source === value, onchange: () => { this.source = value; this.gather(); } }), ` ${text}`);
    const controls = element("div", { class: "hw-controls" });
    if (this.info.attributes) controls.append("contribution of", choice("input", "the input"), choice("previous_layer", "the layer below"));
    const act = (text, work) => element("button", { type: "button", class: "act", onclick: work }, text);
    if (this.info.predicts === "masked" && (this.mask === this.row || seen.tokens[this.row] !== this.info.mask)) controls.append(this.mask === this.row ? act("unmask this token", () => this.ask({ mask: null })) : act("mask this token", () => this.ask({ mask: this.row })));
    if (this.info.predicts === "causal") controls.append(act("predict after this token", () => this.ask({ position: this.row })));
    const when = found.waiting ? "computing the contribution …" : found.seconds === undefined ? "" : `${found.seconds.toFixed(2)} s`;
    this.gathers.replaceChildren(element("h3", {}, `What ${headName(...this.picked)} collects for “${shownToken(seen.tokens[this.row], 30)}”`), controls, table, element("p", { class: "hw-quiet", "data-seconds": found.seconds ?? false }, when));
  }

  ask(change) {
    Object.assign(this, change);
    this.changed();
  }

  showOff() {
    const names = [...this.disabled];
    this.offHost.replaceChildren(...(names.length ? [`disabled: ${names.join(", ")}`, element("button", { type: "button", class: "act", onclick: () => { this.disabled.clear(); remember(); this.changed(); } }, "enable all")] : []));
  }

  showPredictions() {
    const found = this.seen.predictions;
    if (found.why) return this.predictions.replaceChildren(element("p", { class: "hw-quiet" }, found.why));
    const compared = found.kl !== undefined;
    const where = { masked: "at the mask", causal: "next" }[found.kind];
    const after = found.kind === "causal" ? ` after “${shownToken(this.seen.tokens[found.position])}”` : "";
    const table = element("table", { class: "hw-table" }, element("tr", {}, element("th", {}, found.kind === "class" ? "class" : "token"), element("th", {}, compared ? "without them" : "probability"), ...(compared ? [element("th", {}, "all heads")] : [])));
    for (const row of found.rows) table.append(element("tr", {}, element("td", {}, shownToken(row.token, 30)), bar(row.now, ""), ...(compared ? [bar(row.before, "hw-other")] : [])));
    const kl = compared ? element("span", { class: "hw-quiet" }, ` divergence from the intact model ${number(found.kl)} nats`) : "";
    this.predictions.replaceChildren(element("h3", {}, where ? `The model expects ${where}${after}` : "The model's classes", kl), table);
  }
}

function remember() {
  const parts = new URLSearchParams({ text: one("text").value });
  if (one("pair").value) parts.set("pair", one("pair").value);
  for (const pane of panes) {
    parts.append("head", headName(...pane.picked));
    parts.append("off", [...pane.disabled].join(" "));
  }
  history.replaceState(null, "", `#${parts}`);
}

function recall() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const masked = state.models[0].predicts === "masked";
  one("text").value = parts.get("text") ?? (masked ? SENTENCE.masked.replace("[MASK]", state.models[0].mask) : SENTENCE.other);
  one("pair").value = parts.get("pair") ?? "";
  const read = (text) => /^L(\d{1,4})H(\d{1,4})$/.exec(text)?.slice(1).map(Number);
  for (const [i, pane] of panes.entries()) {
    const inside = (place) => place && place[0] < pane.info.layers && place[1] < pane.info.heads;
    const place = read(parts.getAll("head")[i] || "");
    if (inside(place)) pane.picked = place;
    pane.disabled = new Set((parts.getAll("off")[i] || "").split(" ").filter((name) => inside(read(name))));
  }
}

function every(work) {
  for (const pane of panes) work(pane);
}

async function start() {
  state = await ask("state");
  for (const way of state.ways) one("how").append(element("option", { value: way }, WAYS[way] || way));
  for (const id of ["text", "pair"]) one(id).maxLength = state.longest;
  if (state.models.some((model) => model.needs_pair)) one("second").firstChild.textContent = "Target (what the decoder reads) ";
  one("panes").classList.toggle("two", state.models.length > 1);
  for (const [i, info] of state.models.entries()) panes.push(new Pane(i, info, one("panes")));
  recall();
  let timer = 0;
  const typed = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      remember();
      every((pane) => pane.ask({ mask: null, position: null, row: null }));
    }, WAIT);
  };
  one("text").addEventListener("input", typed);
  one("pair").addEventListener("input", typed);
  one("ask").addEventListener("submit", (event) => event.preventDefault());
  one("how").addEventListener("change", () => every((pane) => pane.changed()));
  for (const id of ["hide", "signed"]) one(id).addEventListener("change", () => every((pane) => pane.draw()));
  for (const radio of document.querySelectorAll("[name=mode]")) radio.addEventListener("change", () => every((pane) => pane.draw()));
  for (const note of state.notes) say(note);
  every((pane) => pane.showGathers(null));
  every((pane) => pane.changed());
}

start().catch((error) => say(error.message));
