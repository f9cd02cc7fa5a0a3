// What a reader takes away from a page: files of text, and a drawn map as SVG, PNG or CSV.
import { element } from "./drawing.js";

const PNG_SCALE = 3; // pixels of a PNG for each pixel on screen: sharp in print
const STYLED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline", "display"];
const SVG = "http://www.w3.org/2000/svg";

export function downloadBlob(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
export function download(name, text, type = "text/csv") {
  downloadBlob(name, new Blob([text], { type: `${type};charset=utf-8` }));
}

// A cell of CSV; one that a spreadsheet would take for a formula is marked as text.
function csvCell(value) {
  let text = value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
export const csvText = (rows) => rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";

// The weights of a map, one row for each pair that a query may attend to.
export function mapCsv(head, map) {
  const lines = [["head", "query_position", "query", "key_position", "key", "weight"]];
  for (const [r, row] of map.rows.entries())
    for (const [k, column] of map.columns.entries()) {
      const weight = map.weights[r][k];
      if (!Number.isNaN(weight)) lines.push([head, row.tokens[0], row.text, column.tokens[0], column.text, Number(weight.toPrecision(4))]);
    }
  return csvText(lines);
}

// A drawn SVG as a file of its own: the style of the page is written into it, below a title.
export function standaloneSvg(svg, title, paper) {
  const copy = svg.cloneNode(true), originals = [svg, ...svg.querySelectorAll("*")];
  for (const [i, node] of [copy, ...copy.querySelectorAll("*")].entries()) {
    const style = getComputedStyle(originals[i]);
    for (const name of STYLED) node.style.setProperty(name, style.getPropertyValue(name));
    for (const name of ["class", "tabindex", "role", "data-token"]) node.removeAttribute(name);
  }
  const [width, height] = ["width", "height"].map((name) => Number(svg.getAttribute(name))), above = 24;
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("height", height + above);
  copy.setAttribute("viewBox", `0 ${-above} ${width} ${height + above}`);
  const add = (name, attributes, text = "") => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };
  const style = getComputedStyle(svg);
  copy.prepend(
    add("rect", { x: 0, y: -above, width, height: height + above, fill: paper }),
    add("text", { x: 8, y: -8, fill: style.color, "font-family": style.fontFamily, "font-size": 13, "font-weight": 600 }, title),
  );
  return { text: new XMLSerializer().serializeToString(copy), width, height: height + above };
}

export async function pngOf({ text, width, height }) {
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const image = new Image(width, height);
  image.src = address;
  await image.decode();
  const canvas = element("canvas", { width: width * PNG_SCALE, height: height * PNG_SCALE });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
