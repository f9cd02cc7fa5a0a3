// One model of the explorer: its grid of heads, the card of one head, what the model predicts, what its heads add to
// that, and the tokens that it wrote.
import d3 from "./d3.js";
import { ask, errorText, latest } from "./asking.js";
import { bytesOf, drawHead, element, FACTS, inkOn, inkRamp, number, overlapNote, palette, scrollCue, shownToken, weightText } from "./drawing.js";
import { download, downloadBlob, mapCsv, pngOf, standaloneSvg } from "./export.js";
import { headGrid, headName, thumbnail } from "./heads.js";

const HOW = { zero: "zero ablation", uniform: "uniform attention", mean: "mean ablation" };
const TOUCH = matchMedia("(hover: none)").matches;
const NARROW = "(max-width: 1020px)"; // where the card lies below the grid
const GRID_WIDTH = 390; // pixels for the maps of a layer's heads
const LABEL_WIDTH = 30; // a cell from this width on has room for its label
const LARGEST_CELL = 36; // pixels of a cell of the large map
const SHOWN_HEADS = 10; // of those that add to a logit
const LEAST_REST = 1e-4; // as in drawing.js: a row that leaves less than this to other tokens is blank
const CODES = 255;
const SMOOTH_FROM = 64; // tokens of a small map

const floatsOf = (base64) => new Float32Array(bytesOf(base64).buffer);
// Where the largest of some numbers is; -1 where there is none.
function largestAt(values) {
  let largest = -1;
  for (const [i, value] of values.entries()) if (!Number.isNaN(value) && (largest < 0 || value > values[largest])) largest = i;
  return largest;
}
// A token within a sentence; its leading space would look like a mistake there.
const quoted = (token) => `“${shownToken(token.trim() || token, 24)}”`;

function button(text, attributes, onclick) {
  return element("button", { type: "button", ...attributes, onclick }, text);
}

function checkbox(text, name, checked, onchange, disabled = false) {
  return element("label", {}, element("input", { type: "checkbox", name, checked, disabled, onchange }), ` ${text}`);
}

// `page`: settings that all models share, their texts(), and say, remember, redraw.
export class Pane {
  constructor(index, info, page, host) {
    this.index = index;
    this.info = info;
    this.page = page;
    this.disabled = new Set();
    this.picked = this.firstHead();
    this.row = null; // the token of the large map that was picked
    this.collects = false; // whether a reader asked what the head collects for it
    this.mask = null;
    this.position = null;
    this.source = "input";
    this.answer = null; // id of the token whose logit was picked
    this.shows = "maps"; // what the cells of the grid show: maps, looks, logit
    this.written = null; // what the model wrote: ids, tokens, and with which heads disabled
    this.step = 0; // how many of the written tokens are part of the input
    this.question = null; // the one that was answered last
    this.seen = null;
    this.weights = null;
    this.before = null;
    this.parts = null; // of a logit
    this.build(host);
    const say = page.say;
    this.look = latest(() => this.lookNow(), say);
    this.readHead = latest(() => this.readHeadNow(), say);
    this.collect = latest(() => this.collectNow(), say);
    this.contribute = latest(() => this.contributeNow(), say);
    this.write = latest(() => this.writeNow(), say);
  }

  // --- parts of the page -----------------------------------------------------------------------------------------------

  build(host) {
    const info = this.info;
    const part = (name, ...children) => element("div", { class: name }, ...children);
    this.notice = element("p", { class: "notice", hidden: true, role: "note" });
    this.stepsHost = element("div", { class: "steps", role: "group", "aria-label": "Tokens that the model wrote" });
    this.writingHost = part("writing");
    this.stepNote = element("p", { class: "quiet", "aria-live": "polite" });
    this.toolbar = part("toolbar");
    this.gridHost = part("scroll grid");
    this.swipe = element("p", { class: "swipe quiet", hidden: true }, "← Swipe the grid sideways for more heads →");
    this.legend = element("p", { class: "quiet legend" });
    this.offHost = part("buttons disabled-heads");
    this.card = element("article", { class: "card head-card", "aria-label": "The selected head" });
    this.predictions = element("section", { class: "card predictions" });
    this.contributions = element("section", { class: "card contributions" });
    let size = `${info.layers} layers × ${info.heads} heads, at most ${info.tokens} tokens`;
    if (info.stack !== "encoder" && !info.writes) size += `, ${info.stack} stack`;
    host.append(element("section", { class: "pane", "data-model": this.index, "aria-label": info.name },
      element("h2", {}, info.name, " ", element("span", { class: "count" }, size)),
      this.notice, this.writingHost, this.stepsHost, this.stepNote,
      element("div", { class: "workbench explore" },
        part("left", this.toolbar, this.swipe, this.gridHost, this.legend, this.offHost),
        this.card,
        part("side", this.predictions, this.contributions))));
    this.buildGrid();
    this.buildWriting();
    scrollCue(this.gridHost, this.swipe);
  }

  buildGrid() {
    const { layers, heads, labels, name } = this.info;
    this.grid = headGrid(this.gridHost, {
      layers, heads, follow: true, className: "hw-grid heads",
      title: `heads of ${name}: layers down, heads across`,
      fill: (cell, layer, head) => {
        cell.append(element("canvas"), element("span", { class: "value", hidden: true }));
        if (labels) cell.append(" ", element("span", { class: "hw-word" }, labels[layer][head].label));
        cell.append(element("span", { class: "moved", style: "width:0" }));
      },
      label: (layer, head) => this.describe(layer, head),
      pick: (layer, head, byPointer) => this.pick(layer, head, byPointer),
      key: (event, layer, head) => {
        if (event.key === "d" && !event.ctrlKey && !event.metaKey) this.toggle(layer, head);
      },
    });
    const cellSize = Math.max(22, Math.min(46, Math.floor(GRID_WIDTH / heads)));
    this.gridHost.style.setProperty("--hw-size", `${cellSize}px`);
    this.gridHost.firstChild.classList.toggle("narrow", cellSize < LABEL_WIDTH);
    if (labels)
      for (const [layer, row] of this.grid.cells.entries())
        for (const [head, cell] of row.entries()) cell.parentNode.classList.add(`kind-${labels[layer][head].category}`);
    this.grid.mark(...this.picked);
  }

  buildWriting() {
    if (!this.info.writes) return;
    this.writtenCount = element("input", { type: "number", min: 1, max: this.page.mostWritten, value: 12 });
    this.writingHost.append(
      button("Let the model write", { class: "write" }, () => this.write()),
      element("label", {}, this.writtenCount, " tokens, and step through them"));
  }

  // The head that is shown first: of those with a label, one with what readers look for first.
  firstHead() {
    const { layers, heads } = this.info;
    const all = d3.range(layers * heads).map((i) => [Math.floor(i / heads), i % heads]);
    for (const category of ["repeats", "retrieval", "coreference", "syntax", "copying"]) {
      const labelled = all.find(([layer, head]) => this.labelOf(layer, head).category === category);
      if (labelled) return labelled;
    }
    return [0, 0];
  }

  labelOf(layer, head) {
    return this.info.labels ? this.info.labels[layer][head] : {};
  }

  // A cell of the grid in words. They begin with what the cell shows: who speaks to the computer says what is to be read.
  describe(layer, head) {
    const name = headName(layer, head);
    const label = this.labelOf(layer, head);
    const shown = [];
    if (this.seen && this.shows !== "maps") shown.push(this.grid.cells[layer][head].querySelector(".value").textContent.trim());
    if (label.label) shown.push(label.label);
    const parts = [shown.length ? `${name}: ${shown.join(" ")}` : name];
    if (label.does && label.does !== label.label) parts.push(label.does);
    if (this.disabled.has(name)) parts.push("disabled");
    if (this.seen) {
      const moved = this.seen.moved?.[layer][head];
      if (moved) parts.push(`attention moved by ${weightText(moved)}`);
      if (this.shows === "looks") {
        const target = this.looksAt(layer, head);
        parts.push(target ? `${quoted(this.seen.tokens[this.lookingToken()])} looks at ${quoted(target.token)} ${weightText(target.weight)}${target.withoutFirst ? ", excluding the first token" : ""}` : "looks at the first token alone");
      }
      if (this.shows === "logit" && this.parts) parts.push(`adds ${number(this.parts.heads[layer][head])} to the logit`);
    }
    return parts.join(", ");
  }

  // --- what is asked ---------------------------------------------------------------------------------------------------

  newQuestion() {
    const question = { ...this.page.texts(), model: this.index, disabled: [...this.disabled], how: this.page.settings.how };
    if (this.mask !== null) question.mask = this.mask;
    if (this.position !== null) question.position = this.position;
    if (this.written) question.written = this.written.ids.slice(0, this.step);
    return question;
  }

  // The text was changed: what was picked in the old one says nothing of it.
  newText() {
    Object.assign(this, { mask: null, position: null, row: null, collects: false, answer: null, written: null, step: 0 });
    if (this.shows !== "maps") this.shows = "maps";
    this.showSteps();
    this.look();
  }

  change(values) {
    Object.assign(this, values);
    this.look();
  }

  // A part is pale from the question on until it shows the answer: what it shows is of the question before.
  setBusy(busy, ...parts) {
    for (const part of parts) {
      part.classList.toggle("busy", busy);
      part.setAttribute("aria-busy", String(busy));
    }
  }

  async lookNow() {
    const parts = [this.gridHost, this.predictions, this.card, this.contributions];
    this.setBusy(true, ...parts);
    try {
      this.question = this.newQuestion();
      this.seen = await ask("look", this.question);
    } catch (error) {
      this.setBusy(false, ...parts);
      throw error;
    }
    this.setBusy(false, this.gridHost, this.predictions);
    this.bytes = bytesOf(this.seen.maps);
    this.parts = null;
    if (this.isStep()) this.row = this.seen.tokens.length - 1; // the token that looks when the next one is written
    if (this.row !== null && this.row >= this.seen.tokens.length) this.row = null;
    this.showTruncation();
    this.showDisabled();
    this.paintGrid();
    this.showPredictions();
    this.gridHost.dataset.seconds = this.seen.seconds;
    this.contribute();
    await this.readHead();
  }

  async readHeadNow() {
    if (!this.seen) return;
    this.setBusy(true, this.card);
    const answer = await ask("head", { ...this.question, head: headName(...this.picked) }).finally(() => this.setBusy(false, this.card));
    this.weights = floatsOf(answer.weights);
    this.before = answer.before && floatsOf(answer.before);
    this.draw();
    if (this.row !== null && this.collects) this.collect();
  }

  async collectNow() {
    const row = this.row;
    if (row === null) return;
    const attention = this.attentionOf(row);
    if (!this.info.attributes) return this.showCollected({ attention, contribution: null });
    this.showCollected({ attention, contribution: null, waiting: true });
    const answer = await ask("attribution", { ...this.question, head: headName(...this.picked), token: row, source: this.source });
    if (row === this.row) this.showCollected(answer);
  }

  async contributeNow() {
    const answer = this.answerId();
    if (!this.info.writes || answer === null) {
      this.setBusy(false, this.contributions);
      return this.showContributions("");
    }
    this.setBusy(true, this.contributions);
    try {
      this.parts = await ask("logit", { ...this.question, answer });
    } catch (error) {
      this.parts = null;
      this.showContributions(errorText(error));
      return;
    } finally {
      this.setBusy(false, this.contributions);
    }
    this.showContributions("");
    if (this.shows === "logit") this.paintGrid();
  }

  async writeNow() {
    const tokens = Math.max(1, Math.min(this.page.mostWritten, Math.round(Number(this.writtenCount.value)) || 1));
    const question = { ...this.newQuestion(), written: [] };
    delete question.position;
    this.writingHost.classList.add("busy");
    try {
      const answer = await ask("write", { ...question, tokens });
      this.written = { ids: answer.ids, tokens: answer.tokens, disabled: question.disabled, how: question.how };
    } finally {
      this.writingHost.classList.remove("busy");
    }
    this.shows = "looks";
    this.goTo(0);
  }

  // --- steps of what the model wrote -----------------------------------------------------------------------------------

  // Whether the input ends where the next of the written tokens was written.
  isStep() {
    return Boolean(this.written) && this.step < this.written.ids.length;
  }

  goTo(step) {
    const last = this.written.ids.length;
    Object.assign(this, { step: Math.max(0, Math.min(step, last)), position: null, answer: null, collects: false });
    if (this.step === last) this.row = null;
    this.showSteps();
    this.look();
  }

  showSteps() {
    if (!this.written) {
      this.stepsHost.replaceChildren();
      this.stepNote.textContent = "";
      return;
    }
    const { tokens, disabled, how } = this.written;
    const at = this.step;
    const steps = tokens.map((token, i) => button(shownToken(token), { "aria-pressed": String(i === at), "data-step": i, "aria-label": `step ${i + 1}: ${shownToken(token, 40)}` }, () => this.goTo(i)));
    const hadFocus = this.stepsHost.contains(document.activeElement);
    this.stepsHost.replaceChildren(
      button("‹ back", { class: "plain back", disabled: at === 0 }, () => this.goTo(at - 1)),
      button("next ›", { class: "plain next", disabled: at >= tokens.length }, () => this.goTo(at + 1)),
      ...steps,
      button("whole text", { class: "plain whole", "aria-pressed": String(at === tokens.length) }, () => this.goTo(tokens.length)),
      button("clear", { class: "plain clear" }, () => this.newText()));
    if (hadFocus) this.stepsHost.querySelector("[aria-pressed=true]").focus();
    this.stepsHost.onkeydown = (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      this.goTo(at + move);
    };
    const by = disabled.length ? `without ${disabled.join(", ")} (${HOW[how]})` : "by the intact model";
    const where = at < tokens.length ? `Step ${at + 1} of ${tokens.length}: what each head looks at while ${quoted(tokens[at])} is written.` : "The whole text.";
    this.stepNote.textContent = `${where} Written ${by}${TOUCH ? "" : "; arrow keys step"}.`;
  }

  // --- the grid --------------------------------------------------------------------------------------------------------

  canHideFirst() {
    return Boolean(this.seen?.sinks) && this.seen.tokens.length > 1;
  }

  // Whether the first token is left out of a head's map: as the reader chose; before that, where the head is a sink.
  hidesFirst(layer, head) {
    if (!this.canHideFirst()) return false;
    const choice = this.page.settings.first;
    return choice === null ? this.seen.sinks[layer][head] : choice === "hide";
  }

  // The codes of a head's map, and its size, as they are shown.
  mapCodes(layer, head) {
    const [, heads, rows, columns] = this.seen.shape;
    const start = (layer * heads + head) * rows * columns;
    const codes = this.bytes.subarray(start, start + rows * columns);
    if (!this.hidesFirst(layer, head)) return { codes, rows, columns };
    const shown = new Uint8Array((rows - 1) * (columns - 1));
    for (let row = 1; row < rows; row++) {
      const { weights } = this.rowWeights(layer, head, row);
      for (let key = 1; key < columns; key++) shown[(row - 1) * (columns - 1) + key - 1] = Math.round(CODES * Math.sqrt(weights[key] || 0));
    }
    return { codes: shown, rows: rows - 1, columns: columns - 1 };
  }

  // What a token looks at, from the rounded weights of all heads; without the first token where that is hidden.
  rowWeights(layer, head, row) {
    const [, heads, rows, columns] = this.seen.shape;
    const start = ((layer * heads + head) * rows + row) * columns;
    const weights = Float64Array.from(this.bytes.subarray(start, start + columns), (code) => (code / CODES) ** 2);
    const withoutFirst = this.hidesFirst(layer, head);
    if (!withoutFirst) return { weights, withoutFirst };
    const rest = d3.sum(weights.subarray(1));
    weights[0] = NaN;
    for (let key = 1; key < columns; key++) weights[key] = rest < LEAST_REST ? NaN : weights[key] / rest;
    return { weights, withoutFirst };
  }

  // The token whose attention the grid shows.
  lookingToken() {
    return this.row ?? this.seen.tokens.length - 1;
  }

  // The token that gets most of the attention of the looking token; null where nothing is left.
  looksAt(layer, head) {
    const { weights, withoutFirst } = this.rowWeights(layer, head, this.lookingToken());
    const key = largestAt(weights);
    if (key < 0) return null;
    return { token: (this.seen.keys || this.seen.tokens)[key], weight: weights[key], withoutFirst };
  }

  paintGrid() {
    if (!this.seen) return;
    if (this.shows === "logit" && !this.info.writes) this.shows = "maps";
    this.showToolbar();
    const ramp = inkRamp(document.body);
    const signedRamp = inkRamp(document.body, true);
    const paper = d3.rgb(getComputedStyle(document.body).getPropertyValue("--hw-paper").trim());
    const colours = palette(ramp);
    // The colours of weights are see-through: on paper they are these.
    const onPaper = (colour) => {
      const { r, g, b, opacity } = d3.rgb(colour);
      return d3.interpolateRgb(paper, d3.rgb(r, g, b))(opacity);
    };
    const most = this.parts ? d3.max(this.parts.heads.flat(), Math.abs) || 1 : 1;
    for (const [layer, row] of this.grid.cells.entries())
      for (const [head, cell] of row.entries()) {
        const canvas = cell.querySelector("canvas");
        const value = cell.querySelector(".value");
        canvas.hidden = this.shows !== "maps";
        value.hidden = this.shows === "maps";
        let colour = "transparent";
        if (this.shows === "maps") {
          const { codes, rows, columns } = this.mapCodes(layer, head);
          thumbnail(canvas, codes, 0, rows, columns, colours);
          // More tokens than pixels: a browser that smooths drops no row.
          canvas.style.imageRendering = columns > SMOOTH_FROM ? "auto" : "";
        } else if (this.shows === "looks") {
          const target = this.looksAt(layer, head);
          value.textContent = target ? shownToken(target.token, 9) : "–";
          colour = onPaper(ramp(target ? Math.sqrt(target.weight) : 0));
        } else {
          const added = this.parts?.heads[layer][head];
          value.textContent = added === undefined ? "" : d3.format("+.1f")(added);
          colour = onPaper(signedRamp(added === undefined ? 0.5 : 0.5 + added / most / 2));
        }
        value.style.background = colour;
        value.style.color = colour === "transparent" ? "" : inkOn(colour);
        cell.classList.toggle("disabled", this.disabled.has(headName(layer, head)));
        cell.querySelector(".moved").style.width = `${100 * Math.sqrt(this.seen.moved?.[layer][head] || 0)}%`;
      }
    this.grid.mark(...this.picked);
  }

  showToolbar() {
    const token = quoted(this.seen.tokens[this.lookingToken()]);
    const choices = [["maps", "attention maps"], ["looks", `where ${token} looks`]];
    if (this.info.writes) choices.push(["logit", this.parts ? `what each adds to ${quoted(this.parts.token)}` : "what each adds to the token"]);
    const select = element("select", { name: "shows", onchange: (event) => { this.shows = event.target.value; this.paintGrid(); } },
      ...choices.map(([value, text]) => element("option", { value, selected: value === this.shows }, text)));
    this.toolbar.replaceChildren(element("label", {}, element("span", { class: "quiet" }, "Show "), select));
    const legends = {
      maps: "Rows look, columns are looked at; the stronger the colour, the more attention.",
      looks: `The token that gets most of ${token}’s attention; the stronger the colour, the more.`,
      logit: "Blue raises the logit, orange lowers it (directly, without later layers).",
    };
    let legend = legends[this.shows];
    if (this.seen.moved) legend += " The bar below a head: how far its attention moved by what is disabled.";
    this.legend.textContent = legend;
  }

  // --- heads: picked, disabled -----------------------------------------------------------------------------------------

  pick(layer, head, byPointer = false) {
    this.picked = [layer, head];
    this.grid.mark(layer, head);
    this.page.remember();
    this.readHead();
    if (byPointer && matchMedia(NARROW).matches) this.card.scrollIntoView({ block: "start" }); // it lies below there
  }

  toggle(layer, head) {
    const name = headName(layer, head);
    if (!this.disabled.delete(name)) this.disabled.add(name);
    this.page.remember();
    this.look();
  }

  showDisabled() {
    const names = [...this.disabled];
    if (!names.length) return this.offHost.replaceChildren();
    const enable = () => {
      this.disabled.clear();
      this.page.remember();
      this.look();
    };
    this.offHost.replaceChildren(`Disabled: ${names.join(", ")} (${HOW[this.question.how]})`, button("Enable all", { class: "enable" }, enable));
  }

  showTruncation() {
    this.notice.hidden = !this.seen.truncated;
    this.notice.textContent = `The text is longer than the ${this.info.tokens} tokens that are read here: its end was left out.`;
  }

  // --- the card of a head ----------------------------------------------------------------------------------------------

  draw() {
    if (!this.weights) return;
    const [layer, head] = this.picked;
    const name = headName(layer, head);
    const label = this.labelOf(layer, head);
    const title = element("h2", { class: "picked" }, name);
    if (label.does) title.append(" ", element("span", { class: `does kind-${label.category}` }, label.does));
    const facts = Object.entries(FACTS).filter(([key]) => label[key]);
    const list = element("dl", {}, ...facts.flatMap(([key, words]) => [element("dt", {}, words), element("dd", {}, label[key], key === "attention" ? overlapNote() : "")]));
    const off = this.disabled.has(name);
    this.collected = element("div", { class: "collected" });
    const focused = this.card.contains(document.activeElement) ? document.activeElement.getAttribute("name") : null;
    const token = document.activeElement?.dataset?.token;
    const inMap = this.card.contains(document.activeElement) && token !== undefined;
    this.card.replaceChildren(title,
      element("div", { class: "buttons" },
        button(off ? "Enable this head" : "Disable this head", { name: "disable", class: "disable", "aria-pressed": String(off), title: TOUCH ? "" : "key d in the grid" }, () => this.toggle(layer, head)),
        element("label", {}, element("span", { class: "quiet" }, "by "), this.page.howSelect(HOW))),
      this.mapControls(), ...this.mapView(name, label), this.collected, facts.length ? list : "");
    if (inMap) this.card.querySelector(`[data-token="${token}"]`)?.focus();
    else if (focused) this.card.querySelector(`[name="${focused}"]`)?.focus();
    this.showCollected(null);
  }

  isSigned() {
    return this.page.settings.signed && this.before !== null;
  }

  mapControls() {
    const settings = this.page.settings;
    const set = (name, value) => { settings[name] = value; this.page.redraw(); };
    const boxes = [checkbox("lines", "lines", settings.view === "lines", (event) => set("view", event.target.checked ? "lines" : "matrix"))];
    if (this.canHideFirst()) boxes.push(checkbox("hide the first token", "first", this.hidesFirst(...this.picked) && !this.isSigned(), (event) => set("first", event.target.checked ? "hide" : "show"), this.isSigned()));
    if (this.seen.special.some(Boolean) || this.seen.keys_special.some(Boolean)) boxes.push(checkbox("hide special tokens", "special", settings.hide, (event) => set("hide", event.target.checked)));
    if (this.before) boxes.push(checkbox("difference from the intact model", "signed", settings.signed, (event) => set("signed", event.target.checked)));
    return element("div", { class: "map-controls" }, ...boxes);
  }

  mapView(name, label) {
    const { seen } = this;
    const settings = this.page.settings;
    const signed = this.isSigned();
    const withoutFirst = !signed && this.hidesFirst(...this.picked);
    const drawn = element("div", { class: "map hw large" });
    const said = element("p", { class: "said", "aria-live": "polite" });
    const hint = `${TOUCH ? "Tap" : "Point at"} the picture for numbers; ${TOUCH ? "tap" : "click"} a token on the left for what the head collects for it.`;
    const say = (text) => { said.textContent = text || hint; };
    say("");
    let barTitle = "attention weight";
    if (withoutFirst) barTitle = "attention weight, excluding the first token";
    if (signed) barTitle = "difference from the intact model";
    const longest = d3.max(seen.tokens, (token) => Math.min(14, token.length));
    const room = Math.max(200, Math.min(this.card.clientWidth - 95 - 6.5 * longest, 0.8 * innerHeight));
    const map = drawHead(drawn, {
      tokens: seen.tokens, keys: seen.keys, special: seen.special, keysSpecial: seen.keys_special,
      weights: signed ? this.weights.map((weight, i) => weight - this.before[i]) : this.weights,
      signed, withoutFirst, hide: settings.hide, mode: settings.view, row: this.row, room, largest: LARGEST_CELL, bar: true, barTitle, say,
      pick: (row) => this.pickToken(row),
    });
    const note = withoutFirst ? element("p", { class: "quiet" }, "The first token is left out and the rest of each row scaled to sum to 1; rows that leave less than 0.0001 are blank.") : null;
    return [drawn, said, note, this.saveButtons(name, label, drawn, map)].filter(Boolean);
  }

  saveButtons(name, label, drawn, map) {
    const title = `${this.info.name} ${name}${label.does ? `: ${label.does}` : ""}`;
    const vectors = () => standaloneSvg(drawn.querySelector("svg"), title, getComputedStyle(this.card).backgroundColor);
    const save = (format, work) => button(format, { class: `save-${format.toLowerCase()}`, "aria-label": `Save this map as ${format}` }, work);
    return element("p", { class: "buttons save" }, element("span", { class: "quiet" }, "Save this map:"),
      save("SVG", () => download(`${name}-map.svg`, vectors().text, "image/svg+xml")),
      save("PNG", async () => downloadBlob(`${name}-map.png`, await pngOf(vectors()))),
      save("CSV", () => download(`${name}-map.csv`, mapCsv(name, map))));
  }

  pickToken(row) {
    this.row = this.row === row && this.collects ? null : row;
    this.collects = this.row !== null;
    this.draw();
    if (this.shows === "looks") this.paintGrid();
    else this.showToolbar();
    if (this.collects) this.collect();
  }

  attentionOf(row) {
    const keys = (this.seen.keys || this.seen.tokens).length;
    return Array.from(this.weights.slice(row * keys, (row + 1) * keys));
  }

  // Attention beside what the head collects for the picked token.
  showCollected(answer) {
    if (!answer) return this.collected.replaceChildren();
    const { seen } = this;
    const token = seen.tokens[this.row];
    const controls = element("div", { class: "buttons" });
    const choice = (value, text) => element("label", {}, element("input", { type: "radio", name: `source${this.index}`, value, checked: this.source === value, onchange: () => { this.source = value; this.collect(); } }), ` ${text}`);
    if (this.info.attributes) controls.append(element("span", { class: "quiet" }, "contribution of"), choice("input", "the input"), choice("previous_layer", "the layer below"));
    const masked = this.mask === this.row;
    if (this.info.predicts === "masked" && (masked || token !== this.info.mask)) controls.append(button(masked ? "Unmask this token" : "Mask this token", { class: "mask" }, () => this.change({ mask: masked ? null : this.row })));
    if (this.info.predicts === "causal" && !this.isStep()) controls.append(button("Predict after this token", { class: "predict" }, () => this.change({ position: this.row, answer: null })));
    const body = [];
    for (const [i, key] of (seen.keys || seen.tokens).entries()) {
      if (this.page.settings.hide && seen.keys_special[i]) continue;
      const cells = [element("th", { scope: "row" }, shownToken(key)), ...shareCells(answer.attention[i], "")];
      if (answer.contribution) cells.push(...shareCells(answer.contribution[i], "less"));
      body.push(element("tr", {}, ...cells));
    }
    const heads = [element("th", { scope: "col" }, "token"), element("th", { scope: "col", colspan: 2 }, "attention")];
    if (answer.contribution) heads.push(element("th", { scope: "col", colspan: 2 }, "contribution"));
    const parts = [
      element("h3", {}, `What ${headName(...this.picked)} collects for ${quoted(token)}`), controls,
      element("table", { class: "bars" }, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body)),
    ];
    if (answer.waiting) parts.push(element("p", { class: "quiet" }, "Computing the contribution …"));
    else if (answer.seconds !== undefined) parts.push(element("p", { class: "quiet", "data-seconds": answer.seconds }, `Contribution: hidden token attribution (Pascual et al. 2021), ${answer.seconds.toFixed(2)} s.`));
    this.collected.replaceChildren(...parts);
  }

  // --- predictions and logits ------------------------------------------------------------------------------------------

  // The token whose logit is taken apart: the picked one; of a step, the one that was written; else the likeliest.
  answerId() {
    if (this.answer !== null) return this.answer;
    if (this.isStep()) return this.written.ids[this.step];
    const rows = this.seen.predictions.rows;
    return rows.length ? rows[largestAt(rows.map((row) => row.now))].id : null;
  }

  showPredictions() {
    const found = this.seen.predictions;
    if (found.why) return this.predictions.replaceChildren(element("h3", {}, "Prediction"), element("p", { class: "quiet" }, found.why));
    const compared = found.kl !== undefined;
    const titles = { masked: "At the mask", class: "Class" };
    const title = titles[found.kind] || `Next token after ${quoted(this.seen.tokens[found.position])}`;
    const writtenId = this.isStep() ? this.written.ids[this.step] : null;
    const pickable = this.info.writes;
    const most = d3.max(found.rows, (row) => Math.max(row.now, row.before)); // fills the bar
    const width = (probability) => `width:${((100 * probability) / most).toFixed(2)}%`;
    const body = found.rows.map((row) => {
      const name = pickable
        ? button(shownToken(row.token, 24), { "aria-pressed": String(row.id === this.answerId()), "data-id": row.id }, () => { this.answer = row.id; this.showPredictions(); this.contribute(); })
        : shownToken(row.token, 24);
      const track = element("span", { class: "track" }, element("span", { style: width(row.now) }));
      if (compared) track.append(element("span", { class: "intact", style: width(row.before) }));
      const numbers = [element("td", { class: "number now" }, weightText(row.now))];
      if (compared) numbers.push(element("td", { class: "number intact" }, weightText(row.before)));
      return element("tr", { class: row.id === writtenId ? "written" : null }, element("th", { scope: "row" }, name), element("td", {}, track), ...numbers);
    });
    const parts = [element("h3", {}, title)];
    if (compared) parts.push(element("p", { class: "key" }, element("span", {}, element("i"), "with heads disabled"), element("span", {}, element("i", { class: "intact" }), "all heads")));
    parts.push(element("table", { class: "bars", "aria-label": title }, element("tbody", {}, ...body)));
    if (compared) parts.push(element("p", { class: "quiet" }, `Divergence from the intact model: ${number(found.kl)} nats.`));
    const focused = this.predictions.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    this.predictions.replaceChildren(...parts);
    if (focused) this.predictions.querySelector(`[data-id="${focused}"]`)?.focus();
  }

  showContributions(why) {
    const title = (text) => element("h3", {}, text);
    this.contributions.hidden = !this.info.writes || (!this.parts && !why);
    if (this.contributions.hidden) return;
    if (!this.parts) return this.contributions.replaceChildren(title("What each head adds"), element("p", { class: "quiet" }, why));
    const { heads, embedding, feed_forward: feedForward, constant, logit, token } = this.parts;
    const all = heads.flatMap((row, layer) => row.map((added, head) => ({ added, layer, head })));
    const strongest = d3.sort(all, ({ added }) => -Math.abs(added)).slice(0, SHOWN_HEADS);
    const [least, most] = d3.extent([0, ...strongest.map(({ added }) => added)]);
    const place = (x) => (100 * (x - least)) / (most - least || 1); // in per cent of the bars' width
    const body = strongest.map(({ added, layer, head }) => {
      const label = this.labelOf(layer, head);
      const span = `left:${place(Math.min(added, 0)).toFixed(2)}%;width:${Math.abs(place(added) - place(0)).toFixed(2)}%`;
      const name = element("th", { scope: "row" }, button(headName(layer, head), { class: "head" }, () => this.pick(layer, head, true)));
      if (label.label && label.label !== "–") name.append(" ", element("span", { class: `chip kind-${label.category}` }, label.label));
      return element("tr", {}, name,
        element("td", {}, element("span", { class: "track signed" }, element("span", { class: added < 0 ? "less" : null, style: span }), element("span", { class: "axis", style: `left:${place(0).toFixed(2)}%` }))),
        element("td", { class: "number" }, d3.format("+.2f")(added)));
    });
    const total = d3.sum(all, ({ added }) => added);
    const sum = [["all heads", total], ["feed-forward parts", feedForward], ["embedding", embedding], ["constant", constant]];
    this.contributions.replaceChildren(title(`What each head adds to the logit of ${quoted(token)}`),
      element("table", { class: "bars", "aria-label": "heads that add most" }, element("tbody", {}, ...body)),
      element("p", { class: "quiet sum" }, `${sum.map(([name, x]) => `${name} ${d3.format("+.2f")(x)}`).join(", ")}: logit ${d3.format(".2f")(logit)} above the mean of the vocabulary.`),
      element("p", { class: "buttons" }, button("Show in the grid", { class: "in-grid" }, () => { this.shows = "logit"; this.paintGrid(); })));
    if (this.shows !== "logit") this.showToolbar();
  }
}

// A share as a bar and its number, in two cells.
function shareCells(share, className) {
  const bar = element("span", { class: className || null, style: `width:${(100 * share).toFixed(2)}%` });
  return [element("td", {}, element("span", { class: "track" }, bar)), element("td", { class: "number share" }, weightText(share))];
}
