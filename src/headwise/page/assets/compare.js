// Two to eight heads side by side: their words, their maps on one sentence, and where their measures differ most.

let comparedRows = 20;

function toggleCompared(name) {
  const on = state.compare.includes(name);
  change({ compare: on ? state.compare.filter((other) => other !== name) : [...state.compare, name].slice(-8) });
}

// How far heads are apart in a measure, as a share of its range over all heads.
function apart(measure, heads) {
  const values = valuesOf(measure), own = heads.map((i) => values[i]).filter((x) => !Number.isNaN(x));
  const all = scaleOf(measure), range = Math.abs(all.high - all.low);
  return own.length < 2 || !range ? -1 : (Math.max(...own) - Math.min(...own)) / range;
}

function paintCompare() {
  const box = byId("compare"), heads = state.compare.map((name) => headIndex.get(name));
  for (let i = 0; i < COUNT; i++) if (cells[i]) cells[i].classList.toggle("compared", heads.includes(i));
  box.hidden = !heads.length;
  if (!heads.length) { box.replaceChildren(); return; }
  const title = make("h2", { id: "compare-title" }, "Side by side");
  if (heads.length === 1) {
    box.replaceChildren(title, make("p", {}, headLink(heads[0]), " is in the comparison. Add a second head: choose it and press “Compare”, or shift-click it (or press c) in the grid. ", clearButton()));
    return;
  }
  const line = (text, cell) => make("tr", {}, make("th", { scope: "row" }, text), ...heads.map((i) => make("td", {}, cell(i))));
  const rows = [
    line("does", (i) => data.heads[i].does || data.heads[i].word),
    ...Object.entries(TOLD).filter(([key]) => heads.some((i) => data.heads[i][key])).map(([key, words]) => line(words, (i) => data.heads[i][key] || "–")),
  ];
  const maps = heads.map((i) => mapOf(i, state.sentence));
  if (maps.some(Boolean)) rows.push(make("tr", {}, make("th", { scope: "row" }, "on the sentence"), ...maps.map((map) => make("td", {}, map ? drawMatrix(map, 130) : "–"))));
  if (data.nearest && heads.length === 2) {
    const near = data.nearest[heads[0]].find(([other]) => other === heads[1]);
    if (near) rows.push(make("tr", {}, make("th", { scope: "row" }, "divergence of attention"), make("td", { colspan: 2 }, `${number(near[1])} nats`)));
  }
  const ranked = data.measures.filter((m) => m.leading && m.kind === "value").map((m) => [apart(m, heads), m]).filter(([far]) => far >= 0).sort((a, b) => b[0] - a[0]);
  const body = ranked.slice(0, comparedRows).map(([, m]) => {
    const values = valuesOf(m), scale = scaleOf(m);
    return make("tr", {}, make("th", { scope: "row" }, nameButton(m, fullLabel(m))), ...heads.map((i) => {
      const cell = make("td", { class: "number" }, number(values[i], m.kind));
      if (!Number.isNaN(values[i])) { const rgb = blend(scale.stops, scale.share(values[i])); cell.style.background = css(rgb); cell.style.color = inkOn(rgb); }
      return cell;
    }));
  });
  const head = make("tr", {}, make("td", {}), ...heads.map((i) => make("th", { scope: "col" }, headLink(i), " ", make("button", { type: "button", class: "out", "aria-label": `take ${data.heads[i].name} out`, onclick: () => toggleCompared(data.heads[i].name) }, "×"))));
  box.replaceChildren(title,
    make("p", { class: "quiet" }, `Below the words: the measures in which these ${heads.length} heads differ most, as a share of their range over all heads. `, clearButton()),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "compare-title" }, make("table", { class: "compared" }, make("thead", {}, head), make("tbody", {}, ...rows), make("tbody", { class: "differ" }, ...body))),
    make("p", {}, ranked.length > comparedRows ? make("button", { type: "button", onclick: () => { comparedRows += 60; paintCompare(); } }, `more of ${ranked.length} measures`) : "",
      " ", make("button", { type: "button", id: "compare-csv", onclick: () => download("compared.csv", csvText([["measure", ...heads.map((i) => data.heads[i].name)], ...ranked.map(([, m]) => [m.name, ...heads.map((i) => short(valuesOf(m)[i]))])])) }, "Download CSV")));
}
const clearButton = () => make("button", { type: "button", onclick: () => change({ compare: [] }) }, "Clear");
