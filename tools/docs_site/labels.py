"""The page of the labels on the grid, made from the rules that give them."""

from __future__ import annotations

from docs_site.docstrings import table
from headwise.atlas import behaviours, describe
from headwise.core.labels import SIGNIFICANCE_LEVEL


def page() -> str:
    """Return the page as Markdown."""
    labels = [
        (f"`{short}`", label, category) for label, (category, short) in describe.LABELS.items()
    ]
    labels.append(("`obj`, `det`, …", "a dependency relation", "syntax"))
    limits = [
        (
            "share of its attention on one target, above what a uniform head gives",
            f"{behaviours.MIN_SHARE}",
        ),
        (
            "`sink`: the same share on the first token, where no other single target gets as much",
            f"{behaviours.MIN_SINK}",
        ),
        (
            "share of the pairs of a relation, by the lower end of the interval",
            f"{behaviours.MIN_ACCURACY}",
        ),
        (
            "margin over the best baseline, for a relation or antecedents",
            f"{behaviours.MIN_MARGIN}",
        ),
        ("share of its attention on a repeated sequence", f"{behaviours.MIN_REPEAT}"),
        ("share of a needle's tokens", f"{behaviours.MIN_RETRIEVAL}"),
        (
            "`copying`: logits on the token it attends to, over a control, by the lower end of the "
            "interval",
            f"{behaviours.MIN_COPYING}",
        ),
        (
            "`copying`: the same in standard deviations of what it adds to all logits",
            f"{behaviours.MIN_COPYING_SPREADS}",
        ),
        (
            "`copy suppression`: logits off a predicted token of the text, over a control, by the "
            "lower end of the interval",
            f"{behaviours.MIN_SUPPRESSION}",
        ),
        (
            "`copy suppression`: the same in standard deviations of what it adds to all logits",
            f"{behaviours.MIN_SUPPRESSION_SPREADS}",
        ),
        (
            "`successor`: share of the words of sequences that its weights turn into the next one",
            f"{behaviours.MIN_SUCCESSORS}",
        ),
        (
            "`function vector`: rise of the right answer's probability",
            f"{behaviours.MIN_GAIN}",
        ),
        ("level of every test, after correction", f"{SIGNIFICANCE_LEVEL}"),
        (
            "`broad`: from this to that share of the entropy of a uniform head",
            f"{behaviours.MIN_BROAD_ENTROPY} to {behaviours.MAX_BROAD_ENTROPY}",
        ),
        (
            "`broad`: standard deviation of that share over the heads of a layer",
            f"{behaviours.MIN_ENTROPY_SPREAD}",
        ),
        (
            "`broad`, and `sink` below half: share of a model's heads with another label",
            f"{behaviours.MIN_LABELLED}",
        ),
    ]
    return (
        "\n\n".join(
            [
                "# The labels on the grid",
                "Each cell of the grid on the page of an atlas has a short label; "
                "`atlas.describe()` has the long one in `does` and its category in `kind`. Made "
                "from `headwise.atlas.describe` and `headwise.atlas.behaviours`; the rules in "
                "sentences, and how stable the labels are: [labels](../labels.md).",
                table(("on the grid", "label", "category"), labels),
                "## Categories",
                "A category is a colour of the grid.",
                table(
                    ("category", "a head of this category"),
                    [
                        (f"`{category}`", text)
                        for category, text in describe.LABEL_CATEGORIES.items()
                    ],
                ),
                "## Thresholds behind the labels",
                table(("threshold", "value"), limits),
            ]
        )
        + "\n"
    )
