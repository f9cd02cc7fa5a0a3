// The theme's search is a dialog without a name: screen readers need one.
document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
