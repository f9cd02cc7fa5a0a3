"""How stable the words for heads are: the share of heads that get the same word on two texts.

    python benchmarks/words.py --trees FOLDER [--gum FILE] [--model MODEL] [--sentences 800]

FOLDER holds en_ewt-ud-train.conllu.xz and en_pud-ud-test.conllu.xz, FILE is GUM in CoNLL-U (a
.tar.xz of documents). Each text is read sentence by sentence, drawn by seed over documents; halves
are two draws of one text that share no document. A kind joins words that mean nearly the same: it
is a head's colour on the page. Prints a table in Markdown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from headwise import HeadModel, make_atlas
from headwise.text import Corpus, open_corpus
from headwise.text.example import Example

ANALYSES = ("surface", "dependency")
SHORTEST, LONGEST = 5, 60  # words


def read(path: Path, shipped: frozenset[str]) -> list[Example]:
    """The sentences of a treebank, without the documents that the built-in corpus is made of."""
    found = open_corpus(f"conllu:{path}")
    return [
        e for e in found if SHORTEST <= len(e.all_words) <= LONGEST and e.document not in shipped
    ]


def halves(examples: list[Example], count: int) -> tuple[Corpus, Corpus]:
    """Two draws that share no document: documents go to either side in turn."""
    order = {name: place for place, name in enumerate(dict.fromkeys(e.document for e in examples))}
    sides = [[e for e in examples if order[e.document] % 2 == side] for side in (0, 1)]
    first, second = (
        Corpus.from_examples(side, f"half {number}").sample(count)
        for number, side in enumerate(sides)
    )
    return first, second


def words(model: HeadModel, corpus: Corpus) -> pd.DataFrame:
    print(f"reading {corpus.name}", file=sys.stderr, flush=True)
    return make_atlas(model, corpus, ANALYSES, full=True).describe()


def share(
    one: pd.DataFrame, other: pd.DataFrame, column: str, heads: Iterable[bool] | None = None
) -> str:
    same = one[column] == other[column]
    return f"{100 * (same if heads is None else same[list(heads)]).mean():.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trees", type=Path, required=True)
    parser.add_argument("--gum", type=Path)
    parser.add_argument("--model", default=None)
    parser.add_argument("--sentences", type=int, default=800)
    given = parser.parse_args()
    model = HeadModel.open(given.model)
    builtin = open_corpus(prose=model.causal)
    shipped = frozenset(e.document for e in builtin if e.document)
    ewt = read(given.trees / "en_ewt-ud-train.conllu.xz", shipped)
    texts = {"EWT": words(model, Corpus.from_examples(ewt, "EWT").sample(given.sentences))}
    first, second = (words(model, half) for half in halves(ewt, given.sentences))
    others = {"PUD": given.trees / "en_pud-ud-test.conllu.xz"} | (
        {"GUM": given.gum} if given.gum else {}
    )
    for name, path in others.items():
        texts[name] = words(
            model, Corpus.from_examples(read(path, shipped), name).sample(given.sentences)
        )
    texts["built-in"] = words(model, builtin)
    rows = [("two halves of EWT", first, second)]
    rows += [
        (f"EWT and {name}", texts["EWT"], told) for name, told in texts.items() if name != "EWT"
    ]
    print(f"{model.name}, {given.sentences} sentences a text\n")
    print("| texts | same word | same kind | same place looked at | heads with a word |")
    print("|---|---|---|---|---|")
    for name, one, other in rows:
        named = ((one["does"] != "other") | (other["does"] != "other")).sum()
        cells = [share(one, other, column) for column in ("does", "kind", "looks")]
        print(f"| {name} | {' | '.join(cells)} | {named} of {len(one)} |")
    for name, told in texts.items():
        print(
            f"\n{name}: "
            + ", ".join(f"{word} {count}" for word, count in told["does"].value_counts().items())
        )


if __name__ == "__main__":
    main()
