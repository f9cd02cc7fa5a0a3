// The picker: any measure of any group, found by name, unit, paper or what it means.

const SHOWN_AT_ONCE = 80;

function searched(text) {
  const asked = text.toLowerCase().split(/\s+/).filter(Boolean);
  const ranked = [];
  data.measures.forEach((measure, place) => {
    const short = [measure.variable, ...(measure.item || []), ...(measure.asked || [])].map((s) => s.toLowerCase());
    const all = `${measure.name} ${fullLabel(measure)} ${measure.unit || ""} ${textOf(measure.paper)} ${textOf(measure.definition)}`.toLowerCase();
    if (!asked.every((word) => all.includes(word))) return;
    const exact = asked.filter((word) => short.includes(word)).length;
    const within = asked.filter((word) => measure.name.toLowerCase().includes(word)).length;
    ranked.push([-exact * 4 - within * 2 - (measure.leading ? 1 : 0), place, measure]);
  });
  return ranked.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((entry) => entry[2]);
}

function setUpPicker() {
  const button = byId("colour-button"), panel = byId("colour-panel"), input = byId("colour-search"), list = byId("colour-list");
  const said = byId("colour-count");
  let shown = [], active = 0;

  function open(yes) {
    panel.hidden = !yes;
    button.setAttribute("aria-expanded", String(yes));
    if (yes) { input.value = ""; fill(); input.focus(); }
  }
  function choose(name) { open(false); change({ colour: name, sort: "value", down: true }); button.focus(); }
  function mark(place) {
    active = Math.max(0, Math.min(place, list.children.length - 1));
    [...list.children].forEach((row, i) => row.setAttribute("aria-selected", String(i === active)));
    const row = list.children[active];
    if (row) { input.setAttribute("aria-activedescendant", row.id); row.scrollIntoView({ block: "nearest" }); }
  }
  function fill() {
    const found = searched(input.value);
    shown = [...(input.value.trim() ? [] : [null]), ...found.slice(0, SHOWN_AT_ONCE)];
    list.replaceChildren(...shown.map((measure, i) => {
      const row = element("li", { role: "option", id: `colour-option-${i}`, "aria-selected": "false", onclick: () => choose(measure ? measure.name : "") });
      if (!measure) row.append(element("strong", {}, "what each head does"), element("small", {}, "the label of each head"));
      else {
        const about = [measure.unit, textOf(measure.paper), measure.n ? `n ${countText(measure.n)}` : ""].filter(Boolean).join(" · ");
        row.append(element("strong", {}, measure.label + (measure.model ? ` · ${measure.model}` : "")), element("span", {}, measure.group.replaceAll("_", " ")), element("small", {}, about));
      }
      return row;
    }));
    said.textContent = found.length > SHOWN_AT_ONCE ? `the first ${SHOWN_AT_ONCE} of ${found.length}: type to find others` : `${found.length} measures`;
    mark(0);
  }
  button.addEventListener("click", () => open(panel.hidden));
  input.addEventListener("input", fill);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") mark(active + 1);
    else if (event.key === "ArrowUp") mark(active - 1);
    else if (event.key === "Enter" && list.children[active]) choose(shown[active] ? shown[active].name : "");
    else if (event.key === "Escape") { open(false); button.focus(); }
    else return;
    event.preventDefault();
  });
  document.addEventListener("pointerdown", (event) => { if (!panel.hidden && !panel.contains(event.target) && !button.contains(event.target)) open(false); });
}
