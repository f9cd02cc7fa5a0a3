// The map of head distances: near heads attend alike. Linked with the grid: point at one, see the other.

function setUpDistances() {
  const box = byId("distances");
  if (!data.positions) return;
  box.hidden = false;
  const canvas = byId("distance-map"), said = byId("distance-said");
  const [wide, tall] = [0, 1].map((axis) => d3.extent(data.positions, (place) => place[axis]));
  let places = [], found = d3.quadtree();

  function paintMap() {
    const width = Math.max(canvas.parentElement.clientWidth, 200), height = Math.round(Math.min(width * 0.72, 420)), ratio = Math.min(window.devicePixelRatio || 1, 2);
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d"), edge = 14;
    pen.scale(ratio, ratio);
    const span = Math.max((wide[1] - wide[0]) / (width - 2 * edge), (tall[1] - tall[0]) / (height - 2 * edge), 1e-9);  // one scale for both: these are distances
    const around = ([low, high], room) => d3.scaleLinear([(low + high - span * room) / 2, (low + high + span * room) / 2], [0, room]);
    const x = around(wide, width), y = around(tall, height).range([height, 0]);
    places = data.positions.map((place) => [x(place[0]), y(place[1])]);
    found = d3.quadtree(d3.range(COUNT), (i) => places[i][0], (i) => places[i][1]);
    const radius = COUNT > 1500 ? 2.5 : COUNT > 400 ? 3.5 : 5, styles = getComputedStyle(document.body), edgeColour = styles.getPropertyValue("--hw-edge").trim() || "#888";
    const kinds = new Map();
    const kindColour = (i) => {
      const kind = data.heads[i].kind;
      if (!kinds.has(kind)) kinds.set(kind, (cells[i] && getComputedStyle(cells[i]).getPropertyValue("--kind").trim()) || "#888");
      return kinds.get(kind).startsWith("#") ? kinds.get(kind) : "#888";
    };
    const dot = (i, size, ring) => {
      pen.beginPath();
      pen.arc(places[i][0], places[i][1], size, 0, 7);
      pen.globalAlpha = filter && !filter(i) ? 0.15 : 1;
      pen.fillStyle = headColours ? headColours[i] || "#999" : kindColour(i);
      pen.fill();
      // Pale colours (no label) need an edge to be seen.
      pen.lineWidth = 0.6;
      pen.strokeStyle = edgeColour;
      pen.stroke();
      if (ring) { pen.lineWidth = 2; pen.strokeStyle = styles.color; pen.stroke(); }
      pen.globalAlpha = 1;
    };
    for (let i = 0; i < COUNT; i++) dot(i, radius, false);
    state.compare.forEach((name) => dot(headIndex.get(name), radius + 1, true));
    if (state.head) dot(headIndex.get(state.head), radius + 2, true);
    if (pointed !== null) {
      dot(pointed, radius + 3, true);
      pen.fillStyle = styles.color;
      pen.font = "600 12px system-ui, sans-serif";
      pen.textAlign = places[pointed][0] > width * 0.7 ? "right" : "left";
      pen.fillText(`${data.heads[pointed].name} ${data.heads[pointed].word}`, places[pointed][0] + (pen.textAlign === "right" ? -10 : 10), places[pointed][1] + 4);
    }
    canvas.dataset.pointed = pointed === null ? "" : data.heads[pointed].name;
  }
  const nearestTo = (event) => {
    const [x, y] = d3.pointer(event, canvas);
    return found.find(x, y, 15) ?? null;
  };
  canvas.addEventListener("pointermove", (event) => { const i = nearestTo(event); if (i !== pointed) point(i); });
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => { const i = nearestTo(event); if (i !== null) change({ head: data.heads[i].name }); });
  pointers.push((i) => { said.textContent = i === null ? "" : `${data.heads[i].name}: ${data.heads[i].does || data.heads[i].word}`; requestAnimationFrame(paintMap); });
  onState((keys) => { if (["head", "colour", "filter", "compare"].some((key) => keys.has(key))) paintMap(); });
  new ResizeObserver(paintMap).observe(canvas.parentElement);
  canvas.placeOf = (name) => places[headIndex.get(name)];
}
