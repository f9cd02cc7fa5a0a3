"""Examples of every head: the rows where it is most itself, as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from headwise.analyses.contract import (
    Experiment,
    ExperimentContext,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
)
from headwise.analyses.examples.find import marked
from headwise.analyses.examples.watch import Best, observe_piece
from headwise.analyses.roles.sieves import Sieve, find_sieve
from headwise.analyses.summaries import ranked_heads
from headwise.core.labels import head_name
from headwise.core.workers import current, raise_failures
from headwise.stats.intervals import share
from headwise.text.encode import Encoded

HEADS = ("layer", "head")
PIECE = 64
_NAMES = (
    "previous duplicate induction local:prev local:next same_word siblings nsubj dobj amod advmod"
)
ROLES = tuple(_NAMES.split())


@dataclass(frozen=True)
class Examples(Experiment):
    """For every head the rows of the corpus where it is most itself, as text with «query» and ⟦key⟧
    marked.

    No two rows are from one document (an example of its own where the corpus names none). Ranks
    from 0:

    - `sharp_weight`, `sharp_text[layer, head, rank]`: the largest weights on any token but the first, where heads rest;
    - `role[layer, head]`: of the roles that the corpus can give (neighbours, repetitions, syntax), the one that gets
      most of the head's weight, and how much on average over the tokens that have one, `role_mean`;
      `role_weight`, `role_text[layer, head, rank]`: the rows that give it most.

    Parameters
    ----------
    rows : int, default 5
        Rows kept for each head and kind.

    Notes
    -----
    Question: On which rows of the corpus is each head most itself?

    Assumes: None: these are rows to read.

    Traps: The sharpest rows of a head are not typical of it, and reading five rows invites stories.
    They show what to test.

    Cost: A pass that keeps the largest weights.
    """

    rows: int = 5

    name: ClassVar[str] = "examples"
    title: ClassVar[str] = "Examples of every head: where it is most itself"
    paper: ClassVar[Paper] = Paper(
        "olsson2022", "our own reading; rows where a head is most itself"
    )
    units: ClassVar[Mapping[str, str]] = {
        "share of attention": "sharp_weight role_weight role_mean"
    }
    budget: ClassVar[int | None] = 128
    order_dependent: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        at_least("rows", self.rows, 1)

    def sieves(self, shape: Shape) -> list[Sieve]:
        """The roles that this corpus and model can give."""
        known = [find_sieve(name) for name in ROLES]
        return [sieve for sieve in known if sieve.missing_reason(shape) is None]

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model, shape = bench.model, bench.shape
        rows = list(islice(iter(bench.rows), bench.limit))
        sieves = self.sieves(shape)
        documents = _documents(rows)
        kinds = 1 + len(sieves)
        best = Best(shape.layers * shape.heads * kinds, self.rows)
        mass = np.zeros((2, shape.layers, shape.heads, len(sieves)))
        starts = range(0, len(rows), PIECE)
        units = ((f"examples-{start:06d}", rows[start : start + PIECE]) for start in starts)
        job = partial(observe_piece, model, sieves, documents, self.rows)
        for start, piece in zip(
            starts, raise_failures(current().run_units(bench.store, job, units)), strict=True
        ):
            made = piece.arrays
            part = Best(0, self.rows)
            part.load(made)
            best.merge(part)
            mass += np.stack([made["mass"], made["count"]])
            bench.progress("examples", min(start + PIECE, len(rows)), len(rows))
        by_index = {row.index: row for row in rows}
        size = (shape.layers, shape.heads, kinds, self.rows)
        values, places = best.values.reshape(size), best.places.reshape(*size, -1)
        mean = share(mass[0], mass[1])
        chosen = (
            np.where(np.isnan(mean), -1, mean).argmax(-1) if sieves else np.zeros(size[:2], int)
        )
        ranked = (*HEADS, "rank")
        variables: dict[str, Any] = {}
        picks = {"sharp": np.zeros(size[:2], int)} | ({"role": 1 + chosen} if sieves else {})
        for name, kind in picks.items():
            own_values = np.take_along_axis(values, kind[..., None, None], 2)[:, :, 0]
            own_places = np.take_along_axis(places, kind[..., None, None, None], 2)[:, :, 0]
            texts = np.full(own_values.shape, "", dtype=object)
            for at in np.ndindex(own_values.shape):
                example, _, query, key = own_places[at].tolist()
                if example >= 0:
                    texts[at] = marked(model, by_index[example], query, key)
            variables[f"{name}_weight"] = (
                ranked,
                np.where(np.isfinite(own_values), own_values, np.nan),
            )
            variables[f"{name}_text"] = (ranked, texts.astype(str))
        if sieves:
            names = np.array([sieve.name for sieve in sieves])
            variables["role"] = (HEADS, names[chosen])
            variables["role_mean"] = (
                HEADS,
                np.take_along_axis(mean, chosen[..., None], -1)[..., 0],
            )
        coords = layer_head_coords(shape) | {"rank": np.arange(self.rows)}
        return xr.Dataset(variables, coords, {"documents": len(set(documents.values()))})

    def summary(self, dataset: xr.Dataset) -> list[str]:
        weight = dataset["sharp_weight"].isel(rank=0).values
        texts = dataset["sharp_text"].isel(rank=0).values
        return [
            f"{head_name(*at)} {weight[at]:.2f}: {texts[at]}" for at in ranked_heads(weight)[:3]
        ]


def _documents(rows: list[Encoded]) -> dict[int, int]:
    """The number of each row's document; a row without one is its own."""
    known: dict[str, int] = {}
    return {
        row.index: known.setdefault(row.example.document or f"\0{row.index}", len(known))
        for row in rows
    }
