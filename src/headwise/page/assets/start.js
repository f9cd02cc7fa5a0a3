// Begin: figures that open when they are seen, then the numbers, then everything that hangs on them.

// Figures lie packed in the page: each is unpacked when it comes into view, and its SVG can be saved from the page itself.
function setUpFigures() {
  const addresses = new Map();
  const show = async (image) => {
    if (!addresses.has(image)) addresses.set(image, unpack(image.dataset.svg).then((bytes) => URL.createObjectURL(new Blob([bytes], { type: "image/svg+xml" }))));
    const address = await addresses.get(image);
    if (!image.src) image.src = address;
    return address;
  };
  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => { if (entry.isIntersecting) { seen.unobserve(entry.target); show(entry.target); } }), { rootMargin: "400px" });
  const images = document.querySelectorAll("img[data-svg]");
  images.forEach((image) => seen.observe(image));
  document.querySelectorAll("figure .downloads a[href$='.svg']").forEach((link) => link.addEventListener("click", async (event) => {
    const image = link.closest("figure").querySelector("img[data-svg]");
    if (!image) return;
    event.preventDefault();
    const copy = element("a", { href: await show(image), download: decodeURIComponent(link.getAttribute("href").split("/").pop()) });
    document.body.append(copy);
    copy.click();
    copy.remove();
  }));
  window.addEventListener("beforeprint", () => { document.querySelectorAll("details.paper").forEach((box) => { box.open = true; }); images.forEach(show); });
}

async function start() {
  setUpFigures();
  if (!byId("grid")) { readAddress(); return; }
  const [planesRead, mapsRead] = await Promise.all([unpack(data.arrays), data.maps ? unpack(data.maps) : new ArrayBuffer(0)]);
  codes = new Uint16Array(planesRead);
  mapCodes = new Uint8Array(mapsRead);
  setUpGrid();
  scrollCue(byId("grid").parentElement, byId("swipe"));
  setUpPicker();
  setUpDistances();
  let typing = 0;
  byId("filter").addEventListener("input", (event) => { clearTimeout(typing); const text = event.target.value; typing = setTimeout(() => change({ filter: text }), 120); });
  byId("list-more").addEventListener("click", () => { listedAll = !listedAll; paintList(); });
  listeners.unshift((keys) => {
    const any = (...names) => names.some((name) => keys.has(name));
    if (any("colour")) paint();
    if (any("filter")) applyFilter();
    if (any("colour", "filter", "sort", "down")) paintList();
    else if (any("head")) markListed();
    if (any("head") && state.colour) paintLegend(byName.get(state.colour), scaleOf(byName.get(state.colour)));  // it marks the head
    if (any("head")) {
      byId("grid").querySelectorAll("td.chosen").forEach((cell) => { cell.classList.remove("chosen"); cell.removeAttribute("aria-selected"); });
      if (state.head) { const i = headIndex.get(state.head); if (cells[i]) { cells[i].classList.add("chosen"); cells[i].setAttribute("aria-selected", "true"); focusCell(i, false); } }
    }
    if (any("head", "compare", "sentence", "view", "special", "words", "first")) paintCard(keys);
    if (any("compare", "sentence", "special", "words", "first")) paintCompare();
  });
  document.addEventListener("click", (event) => {  // heads named in tables
    const link = event.target.closest("td > a.head, dt > a.head");
    if (!link || event.defaultPrevented || !headIndex.has(link.textContent)) return;
    event.preventDefault();
    change({ head: link.textContent });
    byId("card").scrollIntoView({ block: "nearest" });
  });
  document.addEventListener("click", (event) => {  // heads of a drawn graph, which lies far below the card
    const node = event.target.closest("svg a.node");
    if (!node || event.defaultPrevented || !headIndex.has(node.textContent)) return;
    event.preventDefault();
    change({ head: node.textContent });
    byId("card").scrollIntoView({ block: "start" });
  });
  readAddress();
  tell(new Set(Object.keys(state)));
  window.addEventListener("hashchange", () => { if (readAddress()) tell(new Set(Object.keys(state))); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => tell(new Set(["head", "compare"])));
  document.documentElement.dataset.readyAt = performance.now().toFixed(0);
  document.documentElement.dataset.ready = "yes";
}

start();
