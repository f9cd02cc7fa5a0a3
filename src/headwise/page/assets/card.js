// The card of a head, beside the grid: everything that is known of it.

const FIRST_ROWS = 8;
const opened = new Set();  // groups that the reader has opened, kept from card to card

const rankOf = (values, i) => { let above = 1; for (const x of values) if (x > values[i]) above++; return above; };

function rowOf(measure, i) {
  const values = valuesOf(measure), x = values[i];
  const [low, high, p, against] = ["low", "high", "p", "against"].map((name) => part(measure, name));
  return {
    measure, x, low: low ? low[i] : NaN, high: high ? high[i] : NaN, p: p ? p[i] : NaN, against: against ? against[i] : NaN,
    rank: measure.kind === "value" && !Number.isNaN(x) ? rankOf(values, i) : NaN,
  };
}

function tableOf(rows) {
  const has = (name) => rows.some((row) => !Number.isNaN(row[name]));
  const columns = [["low", "95 % interval"], ["against", "baseline"], ["p", "corrected p"]].filter(([name]) => has(name));
  const head = element("tr", {}, element("th", { scope: "col" }, "measure"), element("th", { scope: "col" }, "value"), ...columns.map(([, text]) => element("th", { scope: "col" }, text)), element("th", { scope: "col" }, "rank"));
  const body = rows.map((row) => {
    const cell = (name) => ({
      low: () => (Number.isNaN(row.low) ? "" : `${number(row.low)} to ${number(row.high)}`),
      against: () => (Number.isNaN(row.against) ? "" : `${number(row.against)} ${row.measure.against_name || ""}`),
      p: () => (Number.isNaN(row.p) ? "" : number(row.p, "p")),
    })[name]();
    const significant = row.p < 0.05;
    return element("tr", { class: significant ? "significant" : null }, element("th", { scope: "row" }, nameButton(row.measure)),
      element("td", { class: "number" }, number(row.x, row.measure.kind)), ...columns.map(([name]) => element("td", { class: "number" }, cell(name))),
      element("td", { class: "number" }, Number.isNaN(row.rank) ? "" : String(row.rank)));
  });
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

// Why the head has its label: what was measured, and the bar it is held against.
function evidenceText(head) {
  if (!head.evidence) return "";
  const [measure, value, bar, barName] = head.evidence;
  return `${measure} ${number(value)}; ${barName} ${number(bar)}`;
}

// In a comparison: what each model has, what changed, and the evidence for it. null for groups without changes.
function changesOf(group, i) {
  const changes = data.measures.filter((m) => m.group === group && m.kind === "value" && m.variable.endsWith("_change"));
  if (!data.models || !changes.length) return null;
  const rows = changes.map((m) => {
    const mean = (model) => byName.get([group, m.variable.replace(/_change$/, "_mean"), ...(m.item || []), model].join("."));
    const [before, after] = [mean(data.models[0]), mean(m.model)].map((own) => (own ? valuesOf(own)[i] : NaN));
    return { m, before, after, ...rowOf(m, i) };
  }).filter((row) => !Number.isNaN(row.x));
  const seen = new Set();  // several measures may show one change: a decoder's first token is its `cls` too
  const once = rows.filter((row) => { const key = [row.m.model, row.before, row.after, row.low, row.high, row.p].join(); return !seen.has(key) && seen.add(key); });
  once.sort((a, b) => (a.p < 0.05 ? 0 : 1) - (b.p < 0.05 ? 0 : 1));
  const many = data.models.length > 2;
  const heads = ["measure", ...(many ? ["model"] : []), data.models[0], many ? "there" : data.models[1], "change", "95 % interval", "corrected p"];
  const cells = (row) => [number(row.before), number(row.after), number(row.x), Number.isNaN(row.low) ? "" : `${number(row.low)} to ${number(row.high)}`, Number.isNaN(row.p) ? "" : number(row.p, "p")];
  const named = (m) => m.label.replace(/ change(?=:|$)/, "");
  return element("table", { class: "changes" }, element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...once.map((row) => element("tr", { class: row.p < 0.05 ? "significant" : null }, element("th", { scope: "row" }, nameButton(row.m, named(row.m))),
      many ? element("td", {}, row.m.model) : "", ...cells(row).map((text) => element("td", { class: "number" }, text))))));
}

// Rows of a group, significant ones first; measures that readers look for first before the others.
const byGroup = new Map(Object.keys(data.groups).map((group) => [group, []]));
for (const measure of data.measures) byGroup.get(measure.group)?.push(measure);
function groupRows(group, i, all) {
  const own = byGroup.get(group).filter((m) => all || m.leading);
  const rows = own.map((m) => rowOf(m, i)).filter((row) => !Number.isNaN(row.x));
  const order = (row) => (row.p < 0.05 ? 0 : 1);
  return rows.some((row) => row.p < 0.05) ? rows.slice().sort((a, b) => order(a) - order(b) || (order(a) ? 0 : b.x - a.x)) : rows;
}

function groupOf(group, i) {
  const about = data.groups[group] || {}, count = byGroup.get(group).length;
  if (!count) return null;
  // A closed group costs a count, not a table: switching heads stays quick.
  const significant = byGroup.get(group).filter((m) => m.leading && m.p !== undefined && part(m, "p")[i] < 0.05 && !Number.isNaN(valuesOf(m)[i])).length;
  const box = element("details", { class: "group", open: opened.has(group), "data-group": group },
    element("summary", {}, (about.title || group).split(":")[0], element("span", { class: "count" }, significant ? `${significant} significant` : `${count} measures`)));
  let leading = [], changes = null;
  function fill(rows) {
    const source = [about.paper, about.section].filter(Boolean).join(", ");
    const parts = [element("p", { class: "quiet" }, `${group}${source ? ` · after ${source}` : ""}`), element("div", { class: "scroll" }, changes || tableOf(rows))];
    if (!changes && rows.length < count) parts.push(element("button", { type: "button", onclick: () => fill(rows.length === leading.length && leading.length > 0 ? groupRows(group, i, true) : leading.length ? leading : groupRows(group, i, true)) }, "Show more measures"));
    box.replaceChildren(box.firstElementChild, ...parts);
  }
  const begin = () => {
    if (box.children.length > 1) return;
    leading = groupRows(group, i, false);
    changes = changesOf(group, i);
    fill(leading.length ? leading.slice(0, FIRST_ROWS) : groupRows(group, i, true));
  };
  box.addEventListener("toggle", () => { if (box.open) { opened.add(group); begin(); } else opened.delete(group); });
  if (box.open) begin();
  return box;
}

function cardCsv(i) {
  const rows = data.measures.map((m) => [m, rowOf(m, i)]).filter(([, row]) => !Number.isNaN(row.x));
  const lines = rows.map(([m, row]) => [m.group, m.variable, (m.item || []).join(" "), m.model || "", short(row.x), short(row.low), short(row.high), short(row.p), short(row.against), row.rank]);
  download(`${data.heads[i].name}.csv`, csvText([["analysis", "variable", "item", "model", "value", "low", "high", "p_adjusted", "against", "rank"], ...lines]));
}

function nearestOf(i) {
  const near = (data.nearest || [])[i];
  if (!near || !near.length) return [];
  const first = near.slice(0, 3).map(([other]) => data.heads[other].name);
  return [element("h3", {}, "Most similar heads"),
    element("p", { class: "near" }, ...near.flatMap(([other, js], k) => [k ? " · " : "", headLink(other), ` ${data.heads[other].word} `, element("span", { class: "quiet", title: "Jensen-Shannon divergence of their attention, in nats" }, number(js))])),
    element("p", {}, element("button", { type: "button", id: "compare-near", onclick: () => { change({ compare: [data.heads[i].name, ...first] }); byId("compare").scrollIntoView({ block: "nearest" }); } }, "Compare with the three nearest"))];
}

function modelLabels(head) {
  if (!head.models) return [];
  return Object.entries(head.models).map(([name, label]) => [`label in ${name}`, label]);
}

// Rows of the corpus: first those that show what the label says, then the largest weights, whatever they show.
function exampleRows(head) {
  const list = (rows, id) => element("ul", { class: "rows", id }, ...rows.map(([text, weight]) => element("li", {}, text, " ", element("span", { class: "quiet" }, number(weight)))));
  const parts = [];
  if (head.label_examples) parts.push(element("h3", {}, `Strongest examples of ${labelWords(head)}`), list(head.label_examples, "label-examples"));
  if (head.examples && head.examples.length) parts.push(element("h3", {}, head.label_examples ? "Largest weights on any token" : "Strongest examples"), list(head.examples, "sharp-examples"));
  if (parts.length) parts.splice(1, 0, element("p", { class: "quiet" }, "«query» attends to ⟦key⟧; the first token is left out."));
  return parts;
}
const labelWords = (head) => ({ obj: "its objects (obj)", nsubj: "its subjects (nsubj)" })[head.does] || head.does;

function paintCard(keys) {
  const card = byId("card");
  if (!state.head) {
    card.replaceChildren(element("p", { class: "quiet empty" }, `${TOUCH ? "Tap" : "Click"} a head in the grid: its card opens here, with all its measures and its attention maps on example sentences.`));
    return;
  }
  const i = headIndex.get(state.head), head = data.heads[i];
  const compared = state.compare.includes(head.name);
  const evidence = evidenceText(head);
  const facts = [...(evidence ? [["label rests on", evidence]] : []), ...modelLabels(head), ...Object.entries(FACTS).filter(([key]) => head[key]).map(([key, words]) => [words, head[key]])];
  if (data.model.kv_groups) {
    let left = i % HEADS;
    const own = data.model.kv_groups.find(([, size]) => (left -= size) < 0);
    if (own) facts.push(["key/value group", `${own[0]}, shared by ${own[1]} heads`]);
  }
  if (data.model.layer_kinds) facts.push(["its layer sees", data.model.layer_kinds[Math.floor(i / HEADS)]]);
  const top = card.scrollTop;
  card.replaceChildren(
    element("h2", { id: "card-title" }, head.name, " ", element("span", { class: `does kind-${head.kind}` }, head.does || head.word)),
    element("p", { class: "buttons" },
      element("button", { type: "button", id: "compare-button", "aria-pressed": String(compared), onclick: () => toggleCompared(head.name) }, compared ? "Remove from comparison" : "Compare"),
      element("button", { type: "button", id: "card-csv", onclick: () => cardCsv(i) }, "All measures (CSV)")),
    element("dl", {}, ...facts.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text, name === FACTS.attention ? overlapNote() : "")])),
    ...((data.sentences || []).length ? [element("h3", {}, "On a sentence"), mapControls(i), mapView(i)] : []),
    ...nearestOf(i),
    ...exampleRows(head),
    element("h3", {}, "Measures"),
    ...Object.keys(data.groups).map((group) => groupOf(group, i)).filter(Boolean),
  );
  card.scrollTop = keys && keys.has("head") ? 0 : top;
}
