// A page that grows, where it is served by its command: it asks whether there is more, and reloads itself then.
// What the reader has selected is in the address, and stays; the place on the page is kept here.

const GROW_EVERY = 2000;  // milliseconds between questions
const GROW_QUIET = 3000;  // without a key or a click, before the page is replaced under the reader's hands

function growByItself() {
  const banner = byId("unfinished");
  if (!location.protocol.startsWith("http")) return;
  const kept = "headwise-scroll";
  try {
    const place = sessionStorage.getItem(kept);
    if (place !== null) { sessionStorage.removeItem(kept); window.scrollTo(0, Number(place)); }
  } catch { /* a browser that keeps nothing */ }
  const said = banner.lastElementChild;
  said.textContent = "This page reloads itself when there is more.";
  let busyAt = -GROW_QUIET;
  for (const kind of ["keydown", "pointerdown"]) document.addEventListener(kind, () => { busyAt = performance.now(); }, true);
  let lost = 0;
  const ask = async () => {
    try {
      const answer = await (await fetch("status.json", { cache: "no-store" })).json();
      lost = 0;
      if (answer.version !== banner.dataset.version && performance.now() - busyAt >= GROW_QUIET) {
        try { sessionStorage.setItem(kept, String(window.scrollY)); } catch { /* it begins at the top */ }
        location.reload();
        return;
      }
    } catch {
      lost += 1;
      if (lost >= 3) { said.textContent = "Its command has ended: repeat it to continue."; return; }
    }
    setTimeout(ask, GROW_EVERY);
  };
  setTimeout(ask, GROW_EVERY);
}

growByItself();
