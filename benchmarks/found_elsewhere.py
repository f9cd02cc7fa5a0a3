"""Best heads found on one treebank, tested on text that was not used to find them: the table in
docs/results/syntax.md.

    python benchmarks/found_elsewhere.py TREES [--limit N]

With `--limit` at most N sentences of each corpus are drawn, to try it out. TREES holds
`en_ewt-ud-dev`, `en_ewt-ud-train` and `en_pud` as CoNLL-U (packed or not). It is what `headwise run
dependency --heads-from dev.nc` does, with the second half of the training part as a corpus of its
own."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import xarray as xr

from headwise.analyses.accuracy import best_heads_parameter
from headwise.analyses.dependency.analysis import Dependency
from headwise.core.labels import FEW, head_name
from headwise.run import make_atlas
from headwise.text import Corpus, open_corpus

NAMES = ("EWT dev", "EWT train, second half", "PUD")


def measured(corpus: Corpus, heads: tuple[str, ...] = ()) -> xr.Dataset:
    return make_atlas(None, corpus, [Dependency(noop="off", heads=heads)], full=True)["dependency"]


def cell(dataset: xr.Dataset, relation: str, name: str) -> str:
    """Accuracy, bar and corrected p of a relation's head."""
    if (
        relation not in dataset["relation"]
        or int(dataset[f"{name}_accuracy_n"].sel(relation=relation)) < FEW
    ):
        return "– | – | –"
    one = dataset.sel(relation=relation)
    accuracy, low, high = (
        100 * float(one[f"{name}_accuracy{end}"]) for end in ("", "_low", "_high")
    )
    bar, p = 100 * float(one[f"{name}_baseline"]), float(one[f"{name}_p_adjusted"])
    return f"{accuracy:.1f} ({low:.1f} to {high:.1f}) | {bar:.1f} | {p:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", type=Path)
    parser.add_argument(
        "--limit", type=int, help="at most so many sentences of each corpus, drawn by seed"
    )
    given = parser.parse_args()
    folder = given.trees
    dev, train, pud = (
        open_corpus(next(iter(sorted(folder.glob(f"{name}*")))))
        for name in ("en_ewt-ud-dev", "en_ewt-ud-train", "en_pud")
    )
    sentences = list(train)
    second = Corpus.from_examples(sentences[len(sentences) // 2 :], "en_ewt-ud-train, second half")
    dev, second, pud = (corpus.sample(given.limit, 0) for corpus in (dev, second, pud))
    found = measured(dev)
    heads = best_heads_parameter(found)
    tested = [measured(corpus, heads) for corpus in (second, pud)]
    sizes = ", ".join(
        f"{name} {len(list(corpus)):,}"
        for name, corpus in zip(NAMES, (dev, second, pud), strict=True)
    )
    print(f"Sentences: {sizes}\n", flush=True)
    print("| relation | head | dev | bar | p | train, second half | bar | p | PUD | bar | p |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for relation in found["relation"].values[np.argsort(-found["count"].values, kind="stable")]:
        one = found.sel(relation=relation)
        if int(one["count"]) >= FEW:
            arrow = "" if str(one["best_direction"].values) == "dependent_to_head" else " ←"
            name = head_name(int(one["best_layer"]), int(one["best_head"])) + arrow
            cells = [
                cell(found, relation, "best"),
                *(cell(dataset, relation, "given") for dataset in tested),
            ]
            print(f"| {relation} | {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
