// The search of a gallery: from words to one measure (or a label), and from there to a ranking of the heads of all
// atlases. Everything it knows is in the page.

const data = JSON.parse(document.getElementById("headwise-data").textContent);
const MOST_ROWS = 50, MOST_HITS = 50, MOST_ALTERNATIVES = 8;
const IGNORED = new Set("best top strongest highest most all of the heads head which what who in for with that a an on by to and is are do does largest".split(" "));
const REVERSED = new Set("lowest least weakest smallest fewest worst".split(" "));
// What readers call some measures.
const SYNONYMS = { prev: "previous", sinks: "sink", objects: "obj", object: "obj", subject: "nsubj", subjects: "nsubj", copy: "copying" };

const byId = (id) => document.getElementById(id);
const wordsOf = (text) => text.toLowerCase().split(/[^\p{L}\p{N}]+/u).filter(Boolean);
const stem = (word) => (word.length > 3 && word.endsWith("s") && !word.endsWith("ss") ? word.slice(0, -1) : word);
const headName = (atlas, index) => `L${Math.floor(index / atlas.heads)}H${index % atlas.heads}`;

for (const measure of data.measures) {
  measure.words = [...new Set([...wordsOf(measure.name.replaceAll("_", " ")), ...wordsOf(measure.label)])].map(stem);
  measure.title = `${measure.group.replaceAll("_", " ")} · ${measure.label}`;
  measure.atlases = data.atlases.filter((atlas) => measure.name in atlas.values).length;
}
for (const label of data.labels) label.words = wordsOf(label.text).map(stem);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// How well a word is met by the words of a measure or label: 3 the same, 1 as a beginning, 0 not.
function met(term, words) {
  if (words.includes(term)) return 3;
  return term.length > 2 && words.some((word) => word.startsWith(term)) ? 1 : 0;
}
function score(terms, words) {
  let total = 0;
  for (const term of terms) {
    const one = met(term, words);
    if (!one) return 0;
    total += one;
  }
  return total;
}

function parse(text) {
  const query = { terms: [], models: [], head: null, reversed: false, raw: text.trim() };
  for (let word of text.toLowerCase().split(/[^\p{L}\p{N}_.\-]+/u).filter(Boolean)) {
    if (/^l\d+h\d+$/.test(word)) query.head = word.toUpperCase();
    else if (REVERSED.has(word)) query.reversed = true;
    else if (!IGNORED.has(word)) {
      word = SYNONYMS[word] || word;
      const terms = wordsOf(word).map(stem);
      const known = [...data.measures, ...data.labels].some((thing) => terms.every((term) => met(term, thing.words)));
      const models = data.atlases.filter((atlas) => `${atlas.model} ${atlas.corpus}`.toLowerCase().includes(word));
      if (!known && models.length) query.models.push(word);
      else query.terms.push(...terms);
    }
  }
  return query;
}

function search(text, chosen = null) {
  const query = parse(text);
  const atlases = data.atlases.filter((atlas) => query.models.every((word) => `${atlas.model} ${atlas.corpus}`.toLowerCase().includes(word)));
  const labels = new Set(), points = new Map();
  if (query.terms.length) {
    for (const measure of data.measures) {
      const reached = score(query.terms, measure.words);
      if (reached) points.set(measure.name, reached);
    }
    data.labels.forEach((label, i) => {
      const reached = score(query.terms, label.words);
      if (!reached) return;
      labels.add(i);
      // The measure behind a label comes before others whose names have the same words.
      if (label.measure) points.set(label.measure, 10 + reached - label.words.length / 100);
    });
  }
  // The sort is stable: of equal ones, in the order in which readers look for them.
  const measures = data.measures.filter((measure) => points.has(measure.name)).sort((a, b) => points.get(b.name) - points.get(a.name));
  const measure = measures.find((each) => each.name === chosen) || measures[0] || null;
  const hits = [];
  for (const atlas of atlases) {
    const values = measure ? atlas.values[measure.name] : null;
    if (measure && !values) continue;
    for (let i = 0; i < atlas.labels.length; i++) {
      if (query.head && headName(atlas, i) !== query.head) continue;
      if (measure ? values[i] === null : !query.head && !labels.has(atlas.labels[i])) continue;
      hits.push({ atlas, index: i, value: measure ? values[i] : null, labelled: labels.has(atlas.labels[i]) });
    }
  }
  const sign = query.reversed ? 1 : -1;
  if (measure) hits.sort((a, b) => sign * (a.value - b.value));
  return { query, measure, measures, labels, hits };
}

const format = (x) => (Math.abs(x) >= 100 ? x.toFixed(0) : Math.abs(x) >= 1 ? x.toFixed(2) : x.toFixed(3));

function answerText({ query, measure, hits, labels }) {
  if (!query.raw) return "";
  if (!hits.length) return `Nothing here is called “${query.raw}”; name a measure or a label, such as those below.`;
  const n = hits.length.toLocaleString("en");
  const labelled = hits.filter((hit) => hit.labelled).length;
  const names = [...labels].map((i) => data.labels[i].text).join(", ");
  const said = labelled && measure ? ` ${labelled.toLocaleString("en")} of them carry the label ${names}.` : "";
  if (!measure) return `${n} heads${names ? ` with the label ${names}` : ""}.`;
  return `${n} heads by ${measure.title}${measure.unit ? ` (${measure.unit})` : ""}, the ${query.reversed ? "lowest" : "highest"} first.${said}`;
}

function row(hit, rank, measure, largest) {
  const { atlas, index, value } = hit;
  const name = headName(atlas, index);
  const label = data.labels[atlas.labels[index]];
  const colour = measure ? `&colour=${encodeURIComponent(measure.name)}` : "";
  const head = atlas.page ? element("a", { href: `${encodeURI(atlas.page)}#${name}${colour}` }, name) : name;
  const cells = [element("td", { class: "rank" }, String(rank)), element("td", { class: "head" }, head), element("td", {}, atlas.model)];
  if (measure) {
    const bar = element("span");
    bar.style.width = `${largest ? Math.min(100, (100 * Math.abs(value)) / largest) : 0}%`;
    cells.push(element("td", { class: "value number" }, format(value)), element("td", { class: "bar" }, bar));
  }
  cells.push(element("td", {}, element("span", { class: `dot kind-${label.kind}` }), label.text));
  return element("tr", {}, ...cells);
}

function show(text, chosen = null) {
  const started = performance.now();
  const found = search(text, chosen);
  const { query, measure, measures, hits } = found;
  byId("answer").textContent = answerText(found);
  const table = byId("results");
  const shown = query.raw ? hits.slice(0, MOST_ROWS) : [];
  const largest = Math.max(...shown.map((hit) => Math.abs(hit.value || 0)), 0);
  const titles = ["", "head", "model", ...(measure ? [measure.label, ""] : []), "does"];
  const header = element("tr", {}, ...titles.map((title, i) => element("th", { scope: "col", ...(measure && i === 3 ? { class: "value" } : {}) }, title)));
  table.replaceChildren(element("thead", {}, header), element("tbody", {}, ...shown.map((hit, i) => row(hit, i + 1, measure, largest))));
  table.parentElement.hidden = !shown.length;
  if (hits.length > MOST_ROWS && query.raw) byId("answer").textContent += ` The first ${MOST_ROWS} are shown.`;

  const alternatives = byId("alternatives");
  const others = query.raw && hits.length ? measures.filter((each) => each !== measure).slice(0, MOST_ALTERNATIVES) : [];
  const offered = !query.raw || hits.length ? others : [...data.measures].sort((a, b) => b.atlases - a.atlases).slice(0, MOST_ALTERNATIVES);
  alternatives.replaceChildren(...(offered.length ? [query.raw && hits.length ? "Or by" : "Measures"] : []), ...offered.map((each) => {
    const button = element("button", { type: "button" }, each.title);
    button.addEventListener("click", () => (hits.length ? show(byId("query").value, each.name) : ask(each.name.replaceAll(".", " "))));
    return button;
  }));
  alternatives.hidden = !offered.length;
  frame(query.raw ? hits.slice(0, MOST_HITS) : []);
  document.documentElement.dataset.searchMs = String(performance.now() - started);
}

// Frame the heads that were found in the grids.
function frame(hits) {
  const paths = data.atlases.map(() => "");
  for (const { atlas, index } of hits) {
    paths[data.atlases.indexOf(atlas)] += `M${index % atlas.heads} ${Math.floor(index / atlas.heads)}h1v1h-1z`;
  }
  document.querySelectorAll(".atlas-card").forEach((card) => {
    const grid = card.querySelector(".thumbnail");
    grid.classList.toggle("searched", hits.length > 0);
    grid.querySelector(".hits").setAttribute("d", paths[Number(card.dataset.atlas)]);
  });
}

function remember(text) {
  try { history.replaceState(null, "", text ? `#q=${encodeURIComponent(text)}` : location.pathname + location.search); } catch { /* a frame that has no history */ }
}
function ask(text) {
  byId("query").value = text;
  remember(text);
  show(text);
}

byId("query").addEventListener("input", () => { remember(byId("query").value); show(byId("query").value); });
document.querySelector("form.search").addEventListener("submit", (event) => { event.preventDefault(); show(byId("query").value); });
document.querySelectorAll("[data-query]").forEach((button) => button.addEventListener("click", () => {
  ask(button.dataset.query);
  byId("search").scrollIntoView();
}));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== byId("query")) { event.preventDefault(); byId("query").focus(); }
  if (event.key === "Escape" && document.activeElement === byId("query")) ask("");
});
function readAddress() {
  const match = /^#q=(.*)$/.exec(location.hash);
  if (!match) return;
  try { ask(decodeURIComponent(match[1])); } catch { /* no text */ }
}
window.addEventListener("hashchange", readAddress);
readAddress();
