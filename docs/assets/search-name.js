// The theme's search is a dialog without a name: screen readers need one.
document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
// Wide tables scroll: also by keyboard.
new MutationObserver(() => { // the theme wraps them later
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach(table => { table.tabIndex = 0; });
}).observe(document.body, { childList: true, subtree: true });
// The theme escapes an "&" in the names of the links to the next page twice.
document.querySelectorAll(".md-footer__link").forEach(link => {
  link.ariaLabel = link.ariaLabel.replaceAll("&amp;", "&");
});
