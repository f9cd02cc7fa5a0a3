// Two to eight heads side by side: their words, their maps on one sentence, and where their measures differ most.

let comparedRows = 20;

function toggleCompared(name) {
  const on = state.compare.includes(name);
  change({ compare: on ? state.compare.filter((other) => other !== name) : [...state.compare, name].slice(-8) });
}

// How far heads are apart in a measure, as a share of its range over all heads.
function apart(measure, heads) {
  const values = valuesOf(measure), own = heads.map((i) => values[i]).filter((x) => !Number.isNaN(x));
  const [low, high] = d3.extent(values), range = high - low;
  return own.length < 2 || !range ? -1 : (Math.max(...own) - Math.min(...own)) / range;
}

// Measures that say the same of these heads once: a decoder's first token is its `cls` too, and the better direction of a
// relation is one of the two.
function withoutRepeats(ranked, heads) {
  const seen = new Set();
  return ranked.filter(([, m]) => {
    const key = `${m.group} ${m.model || ""} ${heads.map((i) => valuesOf(m)[i].toPrecision(4))}`;
    return !seen.has(key) && seen.add(key);
  });
}

function paintCompare() {
  const box = byId("compare"), heads = state.compare.map((name) => headIndex.get(name));
  for (let i = 0; i < COUNT; i++) if (cells[i]) cells[i].classList.toggle("compared", heads.includes(i));
  box.hidden = !heads.length;
  if (!heads.length) { box.replaceChildren(); return; }
  const title = element("h2", { id: "compare-title" }, "Comparison of heads");
  if (heads.length === 1) {
    box.replaceChildren(title, element("p", {}, headLink(heads[0]), " is in the comparison. Add a second head: choose it and press “Compare”, or shift-click it (or press c) in the grid. ", clearButton()));
    return;
  }
  const line = (text, cell) => element("tr", {}, element("th", { scope: "row" }, text), ...heads.map((i) => element("td", {}, cell(i))));
  const rows = [
    line("does", (i) => data.heads[i].does || data.heads[i].word),
    ...Object.entries(FACTS).filter(([key]) => heads.some((i) => data.heads[i][key])).map(([key, words]) => line(words, (i) => data.heads[i][key] || "–")),
  ];
  const maps = heads.map((i) => mapOf(i, state.sentence));
  if (maps.some(Boolean)) rows.push(element("tr", {}, element("th", { scope: "row" }, "on the sentence"), ...maps.map((map) => element("td", {}, map ? smallMap(map, 130) : "–"))));
  if (data.nearest && heads.length === 2) {
    const near = data.nearest[heads[0]].find(([other]) => other === heads[1]);
    if (near) rows.push(element("tr", {}, element("th", { scope: "row" }, "divergence of attention"), element("td", { colspan: 2 }, `${number(near[1])} nats`)));
  }
  const ranked = withoutRepeats(data.measures.filter((m) => m.leading && m.kind === "value").map((m) => [apart(m, heads), m]).filter(([far]) => far >= 0).sort((a, b) => b[0] - a[0]), heads);
  const body = ranked.slice(0, comparedRows).map(([, m]) => {
    const values = valuesOf(m), scale = scaleOf(m);
    return element("tr", {}, element("th", { scope: "row" }, nameButton(m, fullLabel(m))), ...heads.map((i) => {
      const cell = element("td", { class: "number" }, number(values[i], m.kind));
      if (!Number.isNaN(values[i])) { const colour = scale(values[i]); cell.style.background = colour; cell.style.color = inkOn(colour); }
      return cell;
    }));
  });
  const head = element("tr", {}, element("td", {}), ...heads.map((i) => element("th", { scope: "col" }, headLink(i), " ", element("button", { type: "button", class: "out", "aria-label": `take ${data.heads[i].name} out`, onclick: () => toggleCompared(data.heads[i].name) }, "×"))));
  box.replaceChildren(title,
    element("p", { class: "quiet" }, `Below the labels: the measures in which these ${heads.length} heads differ most, as a share of their range over all heads. `, clearButton()),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "compare-title" }, element("table", { class: "compared" }, element("thead", {}, head), element("tbody", {}, ...rows), element("tbody", { class: "differ" }, ...body))),
    element("p", {}, ranked.length > comparedRows ? element("button", { type: "button", onclick: () => { comparedRows += 60; paintCompare(); } }, `more of ${ranked.length} measures`) : "",
      " ", element("button", { type: "button", id: "compare-csv", onclick: () => download("compared.csv", csvText([["measure", ...heads.map((i) => data.heads[i].name)], ...ranked.map(([, m]) => [m.name, ...heads.map((i) => short(valuesOf(m)[i]))])])) }, "Download CSV")));
}
const clearButton = () => element("button", { type: "button", onclick: () => change({ compare: [] }) }, "Clear");
