"""How far labellers agree with each other, and the shipped classifier with each of them on the held-out model.

    python tools/train_patterns/agree.py data/patterns

Prints the tables of data/patterns/RESULTS.md: the second opinion says how far a single labeller's labels can be met.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from fitting import predict
from labelled import Labelled, load_labelled
from train import HELD_OUT, score

from headwise.analyses.patterns import cohen_kappa
from headwise.analyses.patterns.network import PATTERNS, shipped_classifier

FIRST, SECOND, THIRD = (f"vision language model{n}" for n in ("", " 2", " 3"))
SHORT = {FIRST: "first", SECOND: "second", THIRD: "third"}


def labels_of(folder: Path, labeller: str) -> Labelled:
    """The maps of models never seen or causal that a labeller labelled in the first pass, by name."""
    found = load_labelled(folder, labeller=labeller)
    own = found.select((found.model == HELD_OUT) | found.causal.numpy())
    return own.select(np.argsort(own.names))


def shared(one: Labelled, other: Labelled) -> tuple[Labelled, Labelled]:
    """The maps that both labelled, in one order."""
    first, second = (a.select(np.isin(a.names, b.names)) for a, b in ((one, other), (other, one)))
    return first, second


def row(name: str, scored: dict[str, Any], kappa: str = "") -> str:
    """A line of the table."""
    cells = [f"{p:.2f} ({low:.2f} to {high:.2f})" for p, low, high in (scored["macro F1"], scored["accuracy"])]
    classes = [f"{scored[k][0]:.2f} · {n}" if n else "" for k, n in zip(PATTERNS, scored["per class"], strict=True)]
    return f"| {' | '.join([name, str(scored['n']), kappa, *classes, *cells])} |"


def tables(folder: Path) -> str:
    """The table in Markdown: F1 of each pattern and how many maps have it, macro F1, accuracy; intervals over heads."""
    labelled = {short: labels_of(folder, labeller) for labeller, short in SHORT.items()}
    lines = [
        f"| {' | '.join(['compared', 'maps', 'kappa', *PATTERNS, 'macro F1', 'accuracy'])} |",
        f"|{'---|' * (5 + len(PATTERNS))}",
    ]
    for kind, (one, other) in product((HELD_OUT, "causal models"), combinations(labelled, 2)):
        a, b = (own.select((own.model == HELD_OUT) == (kind == HELD_OUT)) for own in (labelled[one], labelled[other]))
        a, b = shared(a, b)
        truth, said = a.labels.numpy(), b.labels.numpy()
        kappa = cohen_kappa([PATTERNS[k] for k in truth], [PATTERNS[k] for k in said])
        between = f"{kappa.kappa:.2f} ({kappa.low:.2f} to {kappa.high:.2f})"
        lines.append(row(f"{kind}: labellers {one} and {other}", score(truth, said, a.head), between))
    a, b = shared(labelled["first"], labelled["third"])
    a, b = (own.select(own.model == HELD_OUT) for own in (a, b))
    first, third = a.labels.numpy(), b.labels.numpy()
    classified = predict(shipped_classifier().networks, a).argmax(-1)
    for short, truth in (("first", first), ("third", third)):
        lines.append(row(f"{HELD_OUT}: classifier and {short}", score(truth, classified, a.head)))
    both = first == third
    agreed = score(first[both], classified[both], a.head[both])
    lines.append(row(f"{HELD_OUT}: classifier, where first and third agree", agreed))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    (folder,) = arguments or sys.argv[1:]
    print(tables(Path(folder)))


if __name__ == "__main__":
    main()
