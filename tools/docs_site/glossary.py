"""The words on the grid, from the rules that give them."""

from __future__ import annotations

from docs_site.docstrings import table
from headwise.atlas import describe
from headwise.core import behaviours


def page() -> str:
    """Markdown: the words and their kinds."""
    words = [(f"`{short}`", word, kind) for word, (kind, short) in describe.WORDS.items()]
    words.append(("`obj`, `det`, …", "a dependency relation", "syntax"))
    limits = [
        (
            "share of its attention on one target, above what a uniform head gives",
            f"{behaviours.LEAST_SHARE}",
        ),
        (
            "margin over the best baseline, for a relation or antecedents",
            f"{behaviours.LEAST_MARGIN}",
        ),
        ("share of its attention on a repeated sequence", f"{behaviours.LEAST_REPEAT}"),
        ("share of a needle's tokens", f"{behaviours.LEAST_RETRIEVAL}"),
        ("copying, by its weights", f"{behaviours.LEAST_COPYING}"),
        ("level of every test, after correction", f"{behaviours.LEVEL}"),
        (
            "`broad`: from this to that share of the entropy of a uniform head",
            f"{behaviours.BROAD} to {behaviours.UNIFORM}",
        ),
    ]
    return (
        "\n\n".join(
            [
                "# Glossary: the words on the grid",
                "Each cell of the grid on the page of an atlas has a short word; `atlas.describe()` has the long one "
                "in `does` and its kind in `kind`. Made from `headwise.atlas.describe` and "
                "`headwise.core.behaviours`; the rules in sentences, and how stable the words are: [what each head "
                "does, in a word](../words.md).",
                table(("on the grid", "word", "kind"), words),
                "## Kinds",
                "A kind is a colour of the grid.",
                table(
                    ("kind", "a head of this kind"),
                    [(f"`{kind}`", text) for kind, text in describe.KINDS.items()],
                ),
                "## Limits behind the words",
                table(("limit", "value"), limits),
            ]
        )
        + "\n"
    )
