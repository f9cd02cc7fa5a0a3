"""What the papers share: inputs of a task drawn between two lengths, and which claims a quick run may judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.frame import Verdict
from headwise.models import HeadModel
from headwise.text import Corpus, Example


def between(
    examples: Sequence[Example], name: str, count: int, lengths: tuple[int, int], model: HeadModel, seed: int
) -> tuple[Corpus, list[int]]:
    """At most `count` of the examples, in an order drawn by the seed, that have so many tokens, as a corpus in the
    order of their file; and how many tokens each has."""
    found: dict[int, int] = {}
    for place in np.random.RandomState(seed).permutation(len(examples)).tolist():
        row = model.encoder.encode(examples[place], place)
        if row is not None and lengths[0] <= len(row) <= lengths[1]:
            found[place] = len(row)
        if len(found) == count:
            break
    places = sorted(found)
    return Corpus.from_examples([examples[place] for place in places], name), [found[place] for place in places]


def sizes_differ(bench: Bench, count: int, printed: int, what: str = "inputs") -> list[str]:
    """A sentence where another number of inputs was used than the paper's."""
    if count == printed:
        return []
    why = "to save time" if bench.options.quick or bench.options.scale != 1 else "no more were given"
    return [f"{count:,} {what} in place of {printed:,}: {why}."]


HARDLY = "fine-tuned on a few rows only, with --quick"


def judged(bench: Bench, claims: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Claims about what fine-tuning does, judged only where models are more than touched: `quick` trains on a few rows
    whatever was not given."""
    if not bench.options.quick or bench.options.finetuned:
        return dict(claims)
    return {key: replace(verdict, holds=None, why=verdict.why or HARDLY) for key, verdict in claims.items()}
