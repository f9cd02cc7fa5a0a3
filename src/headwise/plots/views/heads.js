// All heads at once in a browser: a table of small maps or of words, layers down, heads across. The explorer's page and
// the views in notebooks share it.
import { element, paintCells } from "./drawing.js";

export const headName = (layer, head) => `L${layer}H${head}`;

// One small map: its bytes are places in the palette.
export const thumbnail = (canvas, bytes, start, rows, columns, colours) => paintCells(canvas, rows, columns, colours, (i) => bytes[start + i]);

// A grid of heads as a table with names: layers down, heads across; arrows move, Enter picks. With `follow`, arrows pick
// too. `pick(layer, head, byPointer)`.
export function headGrid(host, { layers, heads, fill, label, pick, key, follow = false, className = "hw-grid", title = "heads: layers down, heads across" }) {
  const cells = [];
  const table = element("table", { class: className, role: "grid", "aria-label": title });
  const top = element("tr", {}, element("td"));
  for (let head = 0; head < heads; head++) top.append(element("th", { scope: "col" }, `H${head}`));
  table.append(element("thead", {}, top));
  const body = element("tbody");
  for (let layer = 0; layer < layers; layer++) {
    const row = element("tr", {}, element("th", { scope: "row" }, `L${layer}`));
    cells.push([]);
    for (let head = 0; head < heads; head++) {
      const first = layer === 0 && head === 0;
      const button = element("button", {
        type: "button",
        class: "hw-cell",
        "data-head": headName(layer, head),
        tabindex: first ? "0" : "-1",
        onclick: () => pick(layer, head, true),
      });
      fill(button, layer, head);
      row.append(element("td", {}, button));
      cells[layer].push(button);
    }
    body.append(row);
  }
  table.append(body);
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  table.addEventListener("keydown", (event) => {
    const button = event.target.closest(".hw-cell");
    if (!button) return;
    const [layer, head] = button.dataset.head.slice(1).split("H").map(Number);
    const move = moves[event.key];
    if (move) {
      event.preventDefault();
      const next = cells[layer + move[0]]?.[head + move[1]];
      if (next) {
        button.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
        if (follow) pick(layer + move[0], head + move[1], false);
      }
    } else if (key) key(event, layer, head);
  });
  host.replaceChildren(table);
  const mark = (layer, head) => {
    for (const [l, row] of cells.entries())
      for (const [h, button] of row.entries()) {
        const here = l === layer && h === head;
        button.classList.toggle("hw-picked", here);
        button.setAttribute("aria-pressed", String(here));
        if (layer >= 0) button.tabIndex = here ? 0 : -1;
        button.setAttribute("aria-label", label(l, h));
        button.title = label(l, h);
      }
  };
  return { cells, mark };
}
