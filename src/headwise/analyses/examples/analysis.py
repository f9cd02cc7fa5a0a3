"""Examples of every head: the rows that show what it does, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
from headwise.analyses.dependency.arcs import relation_label, relation_labels
from headwise.analyses.examples.best_rows import BestRows, best_rows_of
from headwise.analyses.examples.find import marked_text
from headwise.analyses.roles.sieves import Sieve, find_sieve
from headwise.analyses.roles.sieves.registry import RELATION
from headwise.analyses.summaries import ranked_heads
from headwise.core.labels import head_name
from headwise.core.workers import current, raise_failures
from headwise.models import HeadModel
from headwise.stats.intervals import share
from headwise.text.encode import Encoded

HEADS = ("layer", "head")
MOST_RELATIONS = 5  # of each head
MIN_ARCS = 20  # of a relation whose rows are kept
EXAMPLES_PER_CHECKPOINT = 64
ROLES = (
    "previous",
    "duplicate",
    "induction",
    "local:prev",
    "local:next",
    "same_word",
    "siblings",
    "nsubj",
    "dobj",
    "amod",
    "advmod",
)


@dataclass(frozen=True)
class Examples(Experiment):
    """For every head the rows of the corpus that show it best, with «query» and ⟦key⟧ marked.

    No two rows are from one document (examples without one count as their own). Ranks from 0:

    - `sharp_weight`, `sharp_text[layer, head, rank]`: the largest weights on any token but the
      first, the attention sink of many heads;
    - `role[layer, head]`: of the roles that the corpus has (neighbours, repetitions, syntax), the
      one that receives most of the head's weight, and its mean weight over the tokens that have
      one, `role_mean`; `role_weight`, `role_text[layer, head, rank]`: the rows that give it most;
    - `relation[layer, head, choice]`: the dependency relations that the head follows most, compared
      with other heads (five, the first the most): by the share of its attention to the words so
      linked, excluding the first token, `relation_mean`, in standard deviations over heads;
      `relation_weight`, `relation_text[layer, head, choice, rank]`: the rows that give them most.
      Relations that occur less than 20 times in these rows are left out.

    Parameters
    ----------
    rows : int, default 5
        Rows kept for each head and criterion.

    Notes
    -----
    Question: Which rows of the corpus show best what each head does?

    Assumes: None: these are rows to read.

    Pitfalls: The sharpest rows of a head are not typical of it, and reading five rows invites
    stories. They show what to test.

    Cost: A pass that keeps the largest weights.
    """

    rows: int = 5

    name: ClassVar[str] = "examples"
    title: ClassVar[str] = "Examples of every head: its strongest rows"
    paper: ClassVar[Paper] = Paper("olsson2022", "our own analysis; strongest rows of a head")
    units: ClassVar[Mapping[str, str]] = {
        "share of attention": "sharp_weight role_weight role_mean relation_weight relation_mean"
    }
    budget: ClassVar[int | None] = 128
    order_dependent: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        at_least("rows", self.rows, 1)

    def sieves(self, shape: Shape) -> list[Sieve]:
        """Return the roles that this corpus and model have."""
        sieves = [find_sieve(name) for name in ROLES]
        return [sieve for sieve in sieves if sieve.missing_reason(shape) is None]

    def relations(self, shape: Shape, rows: Sequence[Encoded]) -> list[Sieve]:
        """Return the relations that are frequent in these rows, subtypes folded; none without
        trees."""
        counts: Counter[str] = Counter()
        for row in rows:
            for relation in row.example.relations or ():
                counts[relation_label(relation, "fold")] += 1
        sieves = []
        for name in relation_labels(shape.relations, "fold"):
            if counts[name] >= MIN_ARCS:
                sieves.append(find_sieve(RELATION + name))
        return [sieve for sieve in sieves if sieve.missing_reason(shape) is None]

    def perform(self, context: ExperimentContext) -> xr.Dataset:
        shape = context.shape
        rows = list(islice(iter(context.rows), context.limit))
        sieves = self.sieves(shape)
        relations = self.relations(shape, rows)
        documents = _document_numbers(rows)
        units = []
        for start in range(0, len(rows), EXAMPLES_PER_CHECKPOINT):
            unit_rows = rows[start : start + EXAMPLES_PER_CHECKPOINT]
            units.append((f"examples-{start:06d}", unit_rows))

        n_roles = len(sieves) + len(relations)
        n_criteria = 1 + n_roles
        best_rows = BestRows(shape.layers * shape.heads * n_criteria, self.rows)
        mass = np.zeros((shape.layers, shape.heads, n_roles))
        count = np.zeros_like(mass)
        function = partial(best_rows_of, context.model, sieves, relations, documents, self.rows)
        checkpoints = raise_failures(current().run_units(context.store, function, iter(units)))
        n_done = 0
        for (_, unit_rows), checkpoint in zip(units, checkpoints, strict=True):
            part = BestRows(0, self.rows)
            part.load(checkpoint.arrays)
            best_rows.merge(part)
            mass += checkpoint.arrays["mass"]
            count += checkpoint.arrays["count"]
            n_done += len(unit_rows)
            context.progress("examples", n_done, len(rows))

        size = (shape.layers, shape.heads, n_criteria, self.rows)
        values = best_rows.values.reshape(size)
        places = best_rows.places.reshape(*size, -1)
        sharpest = np.zeros((shape.layers, shape.heads), int)  # the first criterion
        variables: dict[str, Any] = {}
        variables |= _row_variables("sharp", context.model, rows, sharpest, values, places)
        all_means = share(mass, count)
        if sieves:
            mean = all_means[..., : len(sieves)]
            role = np.where(np.isnan(mean), -1, mean).argmax(-1)
            variables |= _row_variables("role", context.model, rows, 1 + role, values, places)
            role_names = np.array([sieve.name for sieve in sieves])
            role_mean = np.take_along_axis(mean, role[..., None], -1)[..., 0]
            variables["role"] = (HEADS, role_names[role])
            variables["role_mean"] = (HEADS, role_mean)
        if relations:
            mean = all_means[..., len(sieves) :]
            # Compared with other heads: most attend much to neighbours, and many relations are
            # between neighbours.
            spread = np.nanstd(mean, (0, 1))
            deviation = (mean - np.nanmean(mean, (0, 1))) / np.where(spread > 0, spread, 1)
            order = np.argsort(-np.nan_to_num(deviation, nan=-np.inf), axis=-1, kind="stable")
            chosen = order[..., :MOST_RELATIONS]
            relation_names = np.array([sieve.name.removeprefix(RELATION) for sieve in relations])
            dims = (*HEADS, "choice")
            variables["relation"] = (dims, relation_names[chosen])
            variables["relation_mean"] = (dims, np.take_along_axis(mean, chosen, -1))
            choices = []
            for choice in range(chosen.shape[-1]):
                criterion = 1 + len(sieves) + chosen[..., choice]
                choices.append(
                    _row_variables("relation", context.model, rows, criterion, values, places)
                )
            for name in ("relation_weight", "relation_text"):
                stacked = np.stack([choice_rows[name][1] for choice_rows in choices], 2)
                variables[name] = ((*dims, "rank"), stacked)
        coords = layer_head_coords(shape) | {"rank": np.arange(self.rows)}
        return xr.Dataset(variables, coords, {"documents": len(set(documents.values()))})

    def summary(self, dataset: xr.Dataset) -> list[str]:
        weights = dataset["sharp_weight"].isel(rank=0).values
        texts = dataset["sharp_text"].isel(rank=0).values
        lines = []
        for head in ranked_heads(weights)[:3]:
            lines.append(f"{head_name(*head)} {weights[head]:.2f}: {texts[head]}")
        return lines


def _row_variables(
    name: str,
    model: HeadModel,
    rows: Sequence[Encoded],
    criterion: np.ndarray,
    values: np.ndarray,
    places: np.ndarray,
) -> dict[str, Any]:
    """Return `name_weight` and `name_text[layer, head, rank]`: the best rows by one criterion for
    each head, `criterion[layer, head]`."""
    row_of = {row.index: row for row in rows}
    weights = np.take_along_axis(values, criterion[..., None, None], 2)[:, :, 0]
    chosen_places = np.take_along_axis(places, criterion[..., None, None, None], 2)[:, :, 0]
    texts = np.full(weights.shape, "", dtype=object)
    for cell in np.ndindex(weights.shape):
        example, _, query, key = chosen_places[cell].tolist()
        if example >= 0:
            texts[cell] = marked_text(model, row_of[example], query, key)
    dims = (*HEADS, "rank")
    return {
        f"{name}_weight": (dims, np.where(np.isfinite(weights), weights, np.nan)),
        f"{name}_text": (dims, texts.astype(str)),
    }


def _document_numbers(rows: Sequence[Encoded]) -> dict[int, int]:
    """Return the number of each row's document; a row without one is a document of its own."""
    numbers: dict[str, int] = {}
    document_of = {}
    for row in rows:
        document = row.example.document or f"\0{row.index}"
        document_of[row.index] = numbers.setdefault(document, len(numbers))
    return document_of
