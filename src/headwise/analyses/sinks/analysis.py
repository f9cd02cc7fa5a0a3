"""Attention sinks: how much of each head rests on the first token, and what is left of it without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from headwise.analyses.contract import Bench, Experiment, Paper, Shape, layer_head_coords, mean_variables
from headwise.analyses.sinks.watch import TOKEN_TYPES, observe_piece, with_opening
from headwise.core.errors import InputError, ParameterError
from headwise.core.labels import head_name
from headwise.core.workers import current, whole
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import holm
from headwise.stats.tests import mean_above

HEADS = ("layer", "head")
LEVEL = 0.05
SHORTEST = 3  # tokens of an input that has anything to say
PIECE = 32  # examples kept together


@dataclass(frozen=True)
class Sinks(Experiment):
    """How much of each head rests on the first token of an input, and what is left of it without.

    Over the rows i > 0 that see token 0, averaged in an example, then over examples, with count and 95 % interval:

    - `first[layer, head]`: `A[i, 0]`; `uniform[layer]`: `1/|V(i)|`, what a uniform head would have; `rate`: share of
      rows with `A[i, 0]` above `threshold`; `learned`, `learned_rate`: the same of a learned sink, where
      the model has one;
    - `first_p`: over examples, the mean is no more than `threshold`, or than twice a uniform head's where that is more
      (Student's t); `first_p_adjusted`: corrected over heads (Holm). Against a uniform head alone random weights would
      pass: the first token is always the same, and a random head likes or dislikes it;
    - `value_norm_ratio[layer, head]`: `‖v_0‖` over the mean of the other `‖v_j‖`: a sink that moves nothing has a small
      one; `hidden_norm_ratio[layer]`: norm of what enters the layer at token 0, over the median of the tokens;
    - `rest_entropy`, `rest_largest[layer, head]`, `rest_mass[layer, head, token_type]`: entropy in nats, largest weight
      and mass by kind of token of rows without token 0, made to sum to one: what a head does when it does not rest;
    - `first_other`, `rate_other[layer, head]`: the same inputs with the opening token taken away or, where the
      tokenizer has one but does not add it, put there (attribute `other` says which).

    Parameters
    ----------
    threshold : float, default 0.3
        The weight on the first token above which a row counts as resting.

    Notes
    -----
    Question: How much of each head rests on the first token, and what does it do when it does not rest?

    Assumes: The first token is seen by all others, so it is asked of decoders.

    Traps: A rest without the first token is made to sum to one even where it is a thousandth of the row: read `rest_*`
    beside `first`. Whether the tokenizer adds an opening token changes what the first token is (`first_other`).

    Cost: A pass over the examples, and one over the same with or without the opening token.
    """

    threshold: float = 0.3

    name: ClassVar[str] = "sinks"
    title: ClassVar[str] = "Attention sinks: what rests on the first token"
    paper: ClassVar[Paper] = Paper("gu2024", "Attention sinks; Xiao et al. 2023")
    units: ClassVar[Mapping[str, str]] = {"share of attention": "uniform"}
    budget: ClassVar[int | None] = 64

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ParameterError(f"`threshold` must lie between 0 and 1; it is {self.threshold!r}.")

    def refusal(self, shape: Shape) -> str | None:
        return None if shape.causal else "it is asked of decoders, whose first token every other token sees"

    def perform(self, bench: Bench) -> xr.Dataset:
        model = bench.model
        rows = [row for row in islice(iter(bench.rows), bench.limit) if len(row) >= SHORTEST]
        if not rows:
            raise InputError(f"Every input is shorter than {SHORTEST} tokens; give longer texts.")
        opens = bool(rows[0].ids[0] == model.encoder.cls_id)
        variants: dict[str, list[Any]] = {"given": rows}
        if model.encoder.cls_id is not None:
            other = [with_opening(model, row, not opens) for row in rows]
            variants["other"] = [row for row in other if len(row) >= SHORTEST]
        found: dict[str, dict[str, np.ndarray]] = {}
        for name, own in variants.items():
            parts: list[dict[str, np.ndarray]] = []
            units = ((f"{name}-{start:06d}", own[start : start + PIECE]) for start in range(0, len(own), PIECE))
            for made in whole(current().pieces(bench.store, partial(observe_piece, model, self.threshold), units)):
                parts.append(made.arrays)
                bench.progress(f"sinks ({name})", min(len(parts) * PIECE, len(own)), len(own))
            found[name] = {key: np.concatenate([p[key] for p in parts]) for key in parts[0]}
        attrs: dict[str, Any] = {"opening": int(opens), "threshold": self.threshold}
        if "other" in found:
            attrs["other"] = "without the opening token" if opens else "with the tokenizer's opening token"
        return self._dataset(found, bench.shape, attrs)

    def _dataset(
        self, found: Mapping[str, Mapping[str, np.ndarray]], shape: Shape, attrs: dict[str, Any]
    ) -> xr.Dataset:
        given, share = found["given"], "share of attention"
        variables: dict[str, Any] = {}

        def add(name: str, values: np.ndarray, dims: tuple[str, ...] = HEADS, units: str = share) -> None:
            moments = Moments(*values.shape[1:])
            moments.add(torch.as_tensor(values.astype(np.float64)))
            variables.update(mean_variables(name, dims, moments, units=units))

        add("first", given["first"])
        add("rate", given["above"], units="share of rows")
        for name, dims, units in (
            ("value_norm_ratio", HEADS, "times the mean"),
            ("hidden_norm_ratio", ("layer",), "times the median"),
            ("rest_entropy", HEADS, "nats"),
            ("rest_largest", HEADS, share),
            ("rest_mass", (*HEADS, "token_type"), share),
            ("learned", HEADS, share),
            ("learned_rate", HEADS, "share of rows"),
        ):
            if name in given:
                add(name, given[name], dims, units)
        uniform = given["uniform"][..., 0]
        variables["uniform"] = ("layer", np.nanmean(uniform, 0))
        present = ~np.isnan(given["first"]).any((1, 2))
        least = np.maximum(self.threshold, 2 * given["uniform"][present].astype(float))
        p = mean_above(given["first"][present].astype(float), least)
        variables["first_p"], variables["first_p_adjusted"] = (HEADS, p), (HEADS, holm(p))
        if "other" in found:
            add("first_other", found["other"]["first"])
            add("rate_other", found["other"]["above"], units="share of rows")
        coords = layer_head_coords(shape) | {"token_type": list(TOKEN_TYPES)}
        return xr.Dataset(variables, coords, attrs)

    def called(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["first_p_adjusted"] < LEVEL

    def headline(self, dataset: xr.Dataset) -> list[str]:
        first, sure = dataset["first"].values, (dataset["first_p_adjusted"] < LEVEL).values
        layer, head = np.unravel_index(np.nanargmax(first), first.shape)
        lines = [
            f"{int((first > 0.5).sum())} of {first.size} heads give over half of their attention to the first token, "
            f"{int(sure.sum())} over {self.threshold:g} surely (corrected p < {LEVEL:g}); "
            f"most: {head_name(int(layer), int(head))} {first[layer, head]:.2f}"
        ]
        norms = dataset["hidden_norm_ratio"].values
        if np.isfinite(norms).any():
            lines.append(
                f"Norm of the first token's hidden state: {np.nanmax(norms):.1f} times the median at layer "
                f"{int(np.nanargmax(norms))}"
            )
        if "first_other" in dataset:
            lines.append(
                f"Mean over heads {np.nanmean(first):.2f}; {dataset.attrs['other']} "
                f"{float(dataset['first_other'].mean()):.2f}"
            )
        return lines
