"""What the papers' entries share: inputs, layers at a depth, best heads, tables, pictures, claims
that may be judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import xarray as xr

from headwise.core.errors import HeadwiseError, ParameterError, unknown
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.schema import NotRunError, Picture, Table, Verdict
from headwise.models import HeadModel
from headwise.plots import figures_for
from headwise.text import Corpus, Example

PAPER = 12  # layers of BERT-base, which the papers count from 1
HARDLY = "fine-tuned on a few rows only, with --quick"
Result = TypeVar("Result")


# --- inputs ---------------------------------------------------------------------------------------


def between(
    examples: Sequence[Example],
    name: str,
    count: int,
    lengths: tuple[int, int],
    model: HeadModel,
    seed: int,
) -> tuple[Corpus, list[int]]:
    """At most `count` of the examples, in an order drawn by the seed, that have so many tokens, as
    a corpus in the order of their file; and how many tokens each has."""
    found: dict[int, int] = {}
    for place in np.random.RandomState(seed).permutation(len(examples)).tolist():
        row = model.encoder.encode(examples[place], place)
        if row is not None and lengths[0] <= len(row) <= lengths[1]:
            found[place] = len(row)
        if len(found) == count:
            break
    places = sorted(found)
    return Corpus.from_examples([examples[place] for place in places], name), [
        found[place] for place in places
    ]


def sizes_differ(bench: Bench, count: int, printed: int, what: str = "inputs") -> list[str]:
    """A sentence where another number of inputs was used than the paper's."""
    if count == printed:
        return []
    why = (
        "to save time" if bench.options.quick or bench.options.scale != 1 else "no more were given"
    )
    return [f"{count:,} {what} in place of {printed:,}: {why}."]


def annotated(bench: Bench, limit: int | None) -> tuple[Corpus, dict[str, str], list[str]]:
    """English sentences with trees, what they are, and what to say where the treebank was not
    given."""
    instead = (
        "No treebank was given: the built-in corpus (500 sentences of UD English EWT) stands in."
    )
    corpus, differs = bench.text("ewt-dev", limit, instead)
    return corpus, {"text": f"{corpus.name}, {corpus.survey().count:,} sentences"}, differs


def of_each(
    tasks: Iterable[str], ask: Callable[[str], tuple[Result, Sequence[str]]]
) -> tuple[dict[str, Result], list[str]]:
    """What is found for each task that can be had, and a sentence on what differs, or on why there
    is nothing."""
    found: dict[str, Result] = {}
    differs: list[str] = []
    for task in tasks:
        try:
            found[task], told = ask(task)
        except HeadwiseError as error:
            told = [f"{task}: not run, {str(error).rstrip('.')}."]
        differs += told
    if not found:
        raise NotRunError("; ".join(text.rstrip(".") for text in differs))
    return found, differs


# --- layers and heads -----------------------------------------------------------------------------


def depth(first: int, last: int, layers: int) -> range:
    """The layers (from 0) of a model that stand where the paper's `first` to `last` (from 1, of 12)
    do.

    >>> depth(6, 10, 12), depth(6, 10, 6), depth(5, 12, 24)
    (range(5, 10), range(2, 5), range(8, 24))
    """
    start = int((first - 1) * layers / PAPER)
    return range(start, max(start + 1, round(last * layers / PAPER)))


def words(found: range) -> str:
    """The layers as one reads them.

    >>> words(range(5, 10))
    'layers 5 to 9'
    """
    return f"layers {found[0]} to {found[-1]}" if len(found) > 1 else f"layer {found[0]}"


def by_head(array: xr.DataArray) -> np.ndarray:
    """One value a head, `[layer, head]`."""
    return np.asarray(array.transpose("layer", "head").values)


def maps_of(model: HeadModel, example: Example) -> tuple[np.ndarray, list[str]]:
    """The maps of one input, `[layer, head, query, key]`, and its tokens."""
    found = model.attention(example)
    return found.transpose("layer", "head", "query", "key").values, [
        str(token) for token in found["query"].values
    ]


def best_head(values: np.ndarray) -> tuple[int, int]:
    """The head with the largest of `values[layer, head]`; of equals the first."""
    layer, head = divmod(int(np.nanargmax(values)), values.shape[1])
    return layer, head


def layer_table(title: str, columns: Mapping[str, np.ndarray], note: str = "") -> Table:
    """A row for each layer, a column for each of these `[layer]`."""
    cells = zip(*(values.tolist() for values in columns.values()), strict=True)
    return Table(
        title, ["layer", *columns], [[f"L{layer}", *row] for layer, row in enumerate(cells)], note
    )


# --- pictures and claims --------------------------------------------------------------------------


def pictures(group: str, dataset: xr.Dataset, *names: str) -> list[Picture]:
    """The registered figures of a result, in the order of their names here; those that do not apply
    are left out."""
    known = {spec.name: spec for spec in figures_for(group)}
    found = []
    for name in names:
        if name not in known:
            raise ParameterError(unknown(f"figure of {group}", name, known))
        found += [
            Picture(f"{group}-{drawn.name}", drawn.title, drawn.caption, drawn.figure)
            for drawn in known[name].draw(dataset)
        ]
    return found


def of_task(task: str, drawn: Iterable[Picture]) -> list[Picture]:
    """Pictures of one of several tasks, told apart by its name."""
    return [
        replace(one, name=f"{task.lower()}-{one.name}", title=f"{one.title}: {task}")
        for one in drawn
    ]


def untried(why: str) -> Verdict:
    """A claim that cannot be judged here."""
    return Verdict("", None, why)


def judged(
    bench: Bench, claims: Mapping[str, Verdict], given: Iterable[str] = ()
) -> dict[str, Verdict]:
    """Claims about what fine-tuning does, judged only where models are more than touched: `quick`
    trains on a few rows whatever was not given. `given` are the tasks whose models may be given."""
    tasks = list(given)
    if not bench.options.quick or (
        tasks and all(bench.given_model(task) is not None for task in tasks)
    ):
        return dict(claims)
    return {
        key: replace(verdict, holds=None, why=verdict.why or HARDLY)
        for key, verdict in claims.items()
    }
