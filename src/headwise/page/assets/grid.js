// The grid of heads: coloured by a measure, walked with the arrow keys, dimmed by the filter; and the same as a list.

const LISTED = 40;
const cells = new Array(COUNT).fill(null);
let filter = null, many = false;
const cellRoom = (i) => cells[i].querySelector("a");

function setUpGrid() {
  const table = byId("grid");
  many = table.classList.contains("many");
  table.querySelectorAll("td[data-head]").forEach((cell) => {
    const i = headIndex.get(cell.dataset.head);
    if (i === undefined) return;
    cells[i] = cell;
    const link = cellRoom(i);
    link.setAttribute("href", `#${cell.dataset.head}`);
    link.tabIndex = -1;
    link.dataset.word = link.getAttribute("aria-label") || "";
  });
  if (cells[0]) cellRoom(0).tabIndex = 0;
  const at = (event) => { const cell = event.target.closest("td[data-head]"); return cell ? headIndex.get(cell.dataset.head) : undefined; };
  table.addEventListener("click", (event) => {
    const i = at(event);
    if (i === undefined) return;
    event.preventDefault();
    if (event.shiftKey || event.ctrlKey || event.metaKey) toggleCompared(data.heads[i].name);
    else {
      change({ head: data.heads[i].name });
      if (matchMedia("(max-width: 1020px)").matches) byId("card").scrollIntoView({ block: "start" });  // it lies below there
    }
    focusCell(i, false);
  });
  table.addEventListener("keydown", (event) => {
    const i = at(event);
    if (i === undefined) return;
    const column = i % HEADS, row = Math.floor(i / HEADS);
    const to = {
      ArrowRight: column < HEADS - 1 ? i + 1 : i, ArrowLeft: column ? i - 1 : i,
      ArrowDown: row < LAYERS - 1 ? i + HEADS : i, ArrowUp: row ? i - HEADS : i,
      Home: event.ctrlKey ? 0 : row * HEADS, End: event.ctrlKey ? COUNT - 1 : row * HEADS + HEADS - 1,
    }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      focusCell(to, true);
      change({ head: data.heads[to].name });
    } else if (event.key === " ") { event.preventDefault(); change({ head: data.heads[i].name }); }
    else if (event.key.toLowerCase() === "c" && !event.ctrlKey && !event.metaKey) toggleCompared(data.heads[i].name);
  });
  table.addEventListener("pointerover", (event) => { const i = at(event); if (i === undefined) return; cellRoom(i).title = cellRoom(i).getAttribute("aria-label"); point(i); });
  table.addEventListener("pointerleave", () => point(null));
}

function focusCell(i, grab) {
  const before = byId("grid").querySelector('a[tabindex="0"]');
  if (before) before.tabIndex = -1;
  cellRoom(i).tabIndex = 0;
  if (grab) cellRoom(i).focus();
}

// The head under the pointer, here and on the map of distances.
let pointed = null;
const pointers = [];
function point(i) {
  if (pointed !== null && cells[pointed]) cells[pointed].classList.remove("pointed");
  pointed = i;
  if (i !== null && cells[i]) cells[i].classList.add("pointed");
  for (const listener of pointers) listener(i);
}

// The colour of every head as it stands; null where it has no value, or where words colour the grid.
let headColours = null;

function paint() {
  const measure = byName.get(state.colour), started = performance.now();
  const values = measure && valuesOf(measure), scale = measure && scaleOf(measure);
  headColours = measure ? [] : null;
  byId("grid").classList.toggle("measured", Boolean(measure));
  for (let i = 0; i < COUNT; i++) {
    const cell = cells[i];
    if (!cell) continue;
    const x = measure ? values[i] : NaN, known = measure && !Number.isNaN(x);
    const colour = known ? scale(x) : null;
    if (measure) headColours.push(colour);
    cell.style.background = colour || "";
    if (!many) cell.style.setProperty("--cell-ink", colour ? inkOn(colour) : "");
    const link = cell.firstElementChild, head = data.heads[i];
    if (!many) link.lastElementChild.textContent = measure ? number(x, measure.kind) : head.below || "";
    // What is seen comes first: who speaks to the page says what stands in the cell.
    const seen = many ? "" : `${head.word} ${measure ? number(x, measure.kind) : head.below || ""}`.trim() + ", ";
    link.setAttribute("aria-label", `${head.name}: ${seen}${head.word === "–" ? "no label" : head.does || head.word}${measure ? `, ${measure.label} ${number(x, measure.kind)}` : ""}`);
  }
  paintLegend(measure, scale);
  document.documentElement.dataset.painted = (performance.now() - started).toFixed(1);
}

function headLink(i, ...more) {
  const name = data.heads[i].name;
  return element("a", {
    href: `#${name}`, class: "head",
    onclick: (event) => { event.preventDefault(); change({ head: name }); },
    onpointerenter: () => point(i), onpointerleave: () => point(null),
  }, name, ...more);
}

function paintLegend(measure, scale) {
  byId("colour-name").textContent = measure ? fullLabel(measure) : "what each head does";
  const legend = byId("legend"), kinds = byId("kinds");
  kinds.hidden = Boolean(measure);
  legend.hidden = !measure;
  if (!measure) return;
  const about = [measure.unit, measure.n ? `n ${countText(measure.n)}${measure.over ? `, intervals over ${measure.over}` : ""}` : "", textOf(measure.paper)].filter(Boolean).join(" · ");
  const values = valuesOf(measure), order = ordered(measure).filter((i) => !Number.isNaN(values[i]));
  const best = measure.kind === "p" ? order.slice().reverse() : order;
  const named = (list) => list.slice(0, 3).flatMap((i, k) => [k ? ", " : "", headLink(i), ` ${number(values[i], measure.kind)}`]);
  const line = element("p", { class: "ends" }, measure.kind === "p" ? "smallest: " : "highest: ", ...named(best), measure.kind === "p" ? "" : "; lowest: ", ...(measure.kind === "p" ? [] : named(best.slice().reverse())));
  legend.replaceChildren(
    element("div", { class: "scale hw" }, drawScale(values, scale, measure.kind, state.head ? values[headIndex.get(state.head)] : NaN), element("span", { class: "quiet" }, about), nameButton(measure, "definition")),
    line,
  );
}

// Heads from the highest value of a measure to the lowest, those without one last.
function ordered(measure) {
  const values = valuesOf(measure);
  return d3.sort(d3.range(COUNT), (i) => -values[i]);
}

// The name of a measure: opens its definition just below it.
function nameButton(measure, text) {
  const button = element("button", { type: "button", class: "name", "aria-expanded": "false" }, text || measure.label + (measure.model ? ` · ${measure.model}` : ""));
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) { button.nextElementSibling.remove(); return; }
    const paper = textOf(measure.paper), group = data.groups[measure.group] || {};
    const facts = [`${measure.name}`, measure.unit, measure.n ? `n ${countText(measure.n)}` : "", paper ? `after ${paper}` : ""].filter(Boolean).join(" · ");
    button.after(element("span", { class: "meaning", role: "note" }, coded(textOf(measure.definition) || group.title || "no definition"), element("small", {}, facts)));
  });
  return button;
}
// Text with code in backticks set as such.
const coded = (text) => text.split("`").map((piece, k) => (k % 2 ? element("code", {}, piece) : piece));

function applyFilter() {
  const said = byId("filter-said"), input = byId("filter");
  if (document.activeElement !== input) input.value = state.filter;
  filter = null;
  said.textContent = "";
  said.className = "quiet";
  if (state.filter.trim()) {
    try {
      const made = parseFilter(state.filter);
      filter = made.test;
      const kept = d3.range(COUNT).filter(filter).length;
      const used = made.used.map((m) => m.name).join(", ");
      said.textContent = `${kept} of ${COUNT} heads${used ? ` (${used})` : ""}`;
    } catch (error) {
      said.textContent = `Not a filter yet: ${error.message}.`;
      said.className = "wrong";
    }
  }
  for (let i = 0; i < COUNT; i++) if (cells[i]) cells[i].classList.toggle("dim", Boolean(filter) && !filter(i));
}

// Heads from the strongest label to the weakest: what a test found first, then by how far each is above its bar.
const marginOf = (i) => (data.heads[i].evidence ? data.heads[i].evidence[1] - data.heads[i].evidence[2] : -Infinity);
const byStrength = (a, b) => (data.heads[b].tested || 0) - (data.heads[a].tested || 0) || marginOf(b) - marginOf(a) || a - b;

let listedAll = false;
function paintList() {
  const measure = byName.get(state.colour), values = measure && valuesOf(measure);
  const up = state.down ? 1 : -1, rank = (x) => (Number.isNaN(x) ? -Infinity * up : x);
  const compare = {
    value: (a, b) => (values ? up * (rank(values[b]) - rank(values[a])) || a - b : up * byStrength(a, b)),
    name: (a, b) => up * (a - b),
    word: (a, b) => up * data.heads[a].word.localeCompare(data.heads[b].word) || byStrength(a, b),
  }[state.sort];
  const shown = d3.range(COUNT).filter((i) => !filter || filter(i)).sort(compare);
  const column = (key, text) => element("th", { scope: "col", "aria-sort": state.sort === key ? (state.down ? "descending" : "ascending") : "none" },
    element("button", { type: "button", onclick: () => change({ sort: key, down: state.sort === key ? !state.down : true }) }, text, state.sort === key ? (state.down ? " ↓" : " ↑") : ""));
  const columns = measure ? measureColumns(measure, column) : evidenceColumns(column);
  byId("list-about").textContent = measure ? "Heads that pass the filter, sorted by the measure that colours the grid." :
    columns.length ? "Heads that pass the filter, sorted by how far their label's measure is above its bar: first what a test found, then where attention goes." : "Heads that pass the filter.";
  const rows = shown.slice(0, listedAll ? COUNT : LISTED).map((i) => element("tr", { "data-head": data.heads[i].name, class: state.head === data.heads[i].name ? "chosen" : null },
    element("th", { scope: "row" }, headLink(i)), element("td", {}, labelText(i)), ...columns.map((own) => element("td", { class: own.words ? null : "number" }, own.text(i)))));
  byId("list").replaceChildren(element("thead", {}, element("tr", {}, column("name", "head"), column("word", "label"), ...columns.map((own) => own.head))), element("tbody", {}, ...rows));
  const more = byId("list-more");
  more.hidden = shown.length <= LISTED;
  more.textContent = listedAll ? `Show the first ${LISTED}` : `Show all ${shown.length}`;
  byId("list-csv").onclick = () => {
    const lines = shown.map((i) => [data.heads[i].name, labelText(i), ...columns.flatMap((own) => own.cells(i))]);
    download("heads.csv", csvText([["head", "does", ...columns.flatMap((own) => own.names)], ...lines]));
  };
}
function markListed() {
  byId("list").querySelectorAll("tbody tr").forEach((row) => row.classList.toggle("chosen", row.dataset.head === state.head));
}
const labelText = (i) => data.heads[i].does || data.heads[i].word;

// The columns of the ranking: { head (its cell in the header), text(i), names and cells(i) in the CSV }.
function measureColumns(measure, sortable) {
  const values = valuesOf(measure), [low, high, p, against] = ["low", "high", "p", "against"].map((name) => part(measure, name));
  const plain = (text) => element("th", { scope: "col" }, text);
  const columns = [{ head: sortable("value", measure.label), text: (i) => number(values[i], measure.kind), names: [measure.name], cells: (i) => [short(values[i])] }];
  if (low) columns.push({ head: plain("95 % interval"), text: (i) => (Number.isNaN(low[i]) ? "" : `${number(low[i])} to ${number(high[i])}`), names: ["low", "high"], cells: (i) => [short(low[i]), short(high[i])] });
  if (against) columns.push({ head: plain(measure.against_name), text: (i) => number(against[i]), names: ["against"], cells: (i) => [short(against[i])] });
  if (p) columns.push({ head: plain("corrected p"), text: (i) => number(p[i], "p"), names: ["p_adjusted"], cells: (i) => [short(p[i])] });
  return columns;
}
function evidenceColumns(sortable) {
  if (!data.heads.some((head) => head.evidence)) return [];
  const of = (i, place) => (data.heads[i].evidence || [])[place], numberOf = (x) => (x === undefined ? "" : number(x));
  const plain = (text) => element("th", { scope: "col" }, text);
  return [
    { head: sortable("value", "margin"), text: (i) => (of(i, 1) === undefined ? "" : number(marginOf(i))), names: ["margin"], cells: (i) => [of(i, 1) === undefined ? NaN : short(marginOf(i))] },
    { head: plain("value"), text: (i) => numberOf(of(i, 1)), names: ["value"], cells: (i) => [of(i, 1)] },
    { head: plain("bar"), text: (i) => (of(i, 2) === undefined ? "" : `${number(of(i, 2))} ${of(i, 3)}`), names: ["bar", "bar_is"], cells: (i) => [of(i, 2), of(i, 3)] },
    { head: plain("measured"), words: true, text: (i) => of(i, 0) || "", names: ["measured"], cells: (i) => [of(i, 0)] },
  ];
}
