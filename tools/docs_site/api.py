"""The Python API: which names are public, for mkdocstrings to take their docstrings."""

from __future__ import annotations

import headwise

FIRST = (
    "make_atlas",
    "HeadModel",
    "Atlas",
    "open_corpus",
    "Corpus",
    "Example",
    "draw",
)  # what one begins with
# Page, sentence, names.
PARTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "questions": (
        "Writing an analysis",
        "What a question of your own is made of: [adding an analysis](../../adding-an-analysis.md).",
        (
            "headwise.analyses.contract",
            "headwise.stats.accumulators",
            "headwise.models.statistics.request",
            "headwise.analyses.nulls",
        ),
    ),
    "mixing": (
        "What is mixed into what",
        "Readings of one text: [attribution](../../attribution.md).",
        ("headwise.analyses.attribution.mixing", "headwise.analyses.attribution.contributions"),
    ),
    "experiments": (
        "Changing a model",
        "Disabling, pruning, patching, circuits, reasons, knockout, caches, comparing, fine-tuning.",
        (
            "headwise.experiments.ablation",
            "headwise.experiments.comparison",
            "headwise.experiments.patching",
            "headwise.experiments.circuit",
            "headwise.experiments.why",
            "headwise.experiments.knockout",
            "headwise.experiments.cache",
            "headwise.experiments.finetuning",
        ),
    ),
    "stats": (
        "Statistics",
        "Arrays in, arrays out.",
        (
            "headwise.stats.bootstrap",
            "headwise.stats.corrections",
            "headwise.stats.correlation",
            "headwise.stats.divergence",
            "headwise.stats.flips",
            "headwise.stats.intervals",
            "headwise.stats.nulls",
            "headwise.stats.tests",
        ),
    ),
    "figures": (
        "Figures and page",
        "What draws: [figures and page from Python](../../how-to/figures-and-page.md).",
        ("headwise.plots", "headwise.plots.registry", "headwise.page", "headwise.explore"),
    ),
    "testing": (
        "Testing",
        "Planted models, and the battery that every analysis must pass.",
        ("headwise.testing",),
    ),
}


def pages() -> dict[str, str]:
    """Markdown by address."""
    rest = [name for name in headwise.__all__ if name not in FIRST and name != "__version__"]
    names = [*FIRST, *rest]
    first = "\n\n".join(_entry(_home(name)) for name in names)
    listed = "".join(
        f"- [{title}]({page}.md): {text}\n" for page, (title, text, _) in PARTS.items()
    )
    made = {
        "reference/api/index.md": "# Python\n\nThe names of `headwise` itself. More:\n\n"
        + listed
        + "\n"
        + first
        + "\n"
    }
    for page, (title, text, homes) in PARTS.items():
        made[f"reference/api/{page}.md"] = (
            f"# {title}\n\n{text}\n\n" + "\n\n".join(map(_entry, homes)) + "\n"
        )
    return made


def _home(name: str) -> str:
    found = getattr(headwise, name)
    return f"{found.__module__}.{name}"


def _entry(path: str) -> str:
    return f"::: {path}"
