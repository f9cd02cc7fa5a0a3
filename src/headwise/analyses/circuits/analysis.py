"""Circuits from weights: what each head copies and matches, and which heads compose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.circuits.products import (
    CircuitScores,
    Composition,
    CompositionSides,
    compose,
    eigen_score,
    gram,
    sides,
)
from headwise.analyses.contract import (
    Experiment,
    ExperimentContext,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
)
from headwise.analyses.summaries import SIGNIFICANCE_LEVEL, format_heads, ranked_heads
from headwise.core.errors import ModelError
from headwise.core.labels import head_name
from headwise.models import HeadModel
from headwise.models.devices import weight_in
from headwise.models.structure import Structure, find_structure
from headwise.models.weights import head_weights
from headwise.stats.corrections import holm
from headwise.stats.rotations import turned_overlap, turned_trace

HEADS = ("layer", "head")
SCORES = {"ov_copying": "copy", "qk_matching": "look for their own token"}
MOST_HEADS = 600  # above, only the strongest pairs are kept
ROTARY = "positions that turn queries and keys (both at the first position here, so at offset 0)"


@dataclass(frozen=True)
class Circuits(Experiment):
    """What the weights of heads do by themselves, without any text.

    With `W_Q, W_K, W_V, W_O` of each head (grouped keys repeated, the gain of the norm before
    attention folded in), embedding `W_E` and unembedding `W_U` (the gain of the final norm folded
    in):

    - `ov_copying[layer, head]`: `Σλ / Σ|λ|` (real part) over the eigenvalues of `W_O W_U W_E W_V`:
      1 where every token raises its own logit, −1 where it lowers it; `qk_matching`: the same for
      `W_E W_Q W_Kᵀ W_Eᵀ`, at offset 0: 1 where tokens look for themselves;
    - `ov_copying_p`, `qk_matching_p`: two-sided p-value of the trace, against circuits in which
      what is read is turned at random against what is written: exact for random weights;
      `_p_adjusted`: corrected over heads (Holm);
    - `composition[side, head_a, head_b]`: for a head a and a head b of a later layer, `‖M_b
      W_OV^a‖_F / (‖M_b‖_F ‖W_OV^a‖_F)` with M_b the query, key or value side of b, less its mean
      over random turns (which keep the spectra); `composition_p`, `composition_p_adjusted` (Holm,
      over all pairs and sides). Models of more than 600 heads keep the strongest pairs only;
    - `pair_from`, `pair_to`, `pair_side`, `pair_composition`, `pair_p_adjusted[rank]`: the
      strongest pairs;
    - `composes_into`, `composes_from[layer, head]`: the largest composition of the head with a
      later and with an earlier one.

    The attribute `left_out_of_weights` lists what the matrices do not hold: biases, scales of
    norms, positions.

    Parameters
    ----------
    pairs : int, default 200
        The strongest pairs that are kept.

    Notes
    -----
    Question: What do the weights of heads copy, look for and compose, without any text?

    Assumes: Norms are folded in by their gain alone; positions, biases and the scale of norms are
    left out (`left_out_of_weights`).

    Traps: A head that copies by its weights may never do so on text, and positions, which decide
    much of attention, are not in it. A composition is a match of subspaces, not a use. Eigenvalues
    weigh all tokens of the vocabulary alike.

    Cost: No text: matrices of the size of a head's width, for every head; compositions grow with
    the square of the number of heads."""

    pairs: int = 200

    name: ClassVar[str] = "circuits"
    title: ClassVar[str] = "Circuits from weights: copying, matching, composition"
    paper: ClassVar[Paper] = Paper("elhage2021", "OV and QK circuits; composition")
    units: ClassVar[Mapping[str, str]] = {
        "from −1 to 1": "ov_copying qk_matching",
        "ratio of norms above chance": "composition pair_composition composes_into composes_from",
    }
    order_dependent: ClassVar[frozenset[str]] = frozenset(
        {"pair_from", "pair_to", "pair_side", "pair_composition", "pair_p", "head_a", "head_b"}
    )

    def __post_init__(self) -> None:
        at_least("pairs", self.pairs, 1)

    def unsupported_reason(self, shape: Shape) -> str | None:
        if shape.extras.get("reads_source"):
            return "the model is an encoder-decoder, whose weights are not followed to the logits"
        return (
            None
            if shape.causal
            else "it is asked of decoders, whose layers read and write one stream"
        )

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model = bench.model
        structure = find_structure(model)
        if len(set(model.sites.d_heads)) > 1:
            raise ModelError(f"The heads of {model.name} have different sizes in different layers.")
        embedding, unembedding, left_out = ends(model, structure)
        same = None if unembedding is None else gram(unembedding, embedding)  # U E: [width, width]
        own = gram(embedding, embedding)
        copying: list[CircuitScores] = []
        matching: list[CircuitScores] = []
        layers: list[CompositionSides] = []
        for layer, weights in enumerate(head_weights(model, structure)):
            left_out |= weights.left_out
            if same is not None:
                copying.append(eigen_score(weights.output, same, weights.value))
            if weights.query is not None and weights.key is not None:
                matching.append(eigen_score(weights.key.transpose(1, 2), own, weights.query))
            layers.append(sides(weights))
            bench.progress("weights", layer + 1, model.layers)
        variables: dict[str, Any] = {}
        for name, scores in (("ov_copying", copying), ("qk_matching", matching)):
            if scores:
                variables |= _scored(name, scores, embedding.shape[1])
        found = compose(
            layers, lambda done, total: bench.progress("composition", done, total), model.device
        )
        more, coords = _composed(found, bench.shape, embedding.shape[1], self.pairs)
        left_out |= (
            {ROTARY} if matching else {"queries and keys, which this architecture does not show"}
        )
        attrs = {"left_out_of_weights": "; ".join(sorted(left_out))}
        return xr.Dataset(variables | more, layer_head_coords(bench.shape) | coords, attrs)

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        found = {
            name: dataset[f"{name}_p_adjusted"] < SIGNIFICANCE_LEVEL
            for name in SCORES
            if name in dataset
        }
        return xr.concat(found.values(), pd.Index(found, name="score")) if found else None

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        for name, said in SCORES.items():
            if name not in dataset:
                continue
            score, sure = (
                dataset[name].values,
                (dataset[f"{name}_p_adjusted"] < SIGNIFICANCE_LEVEL).values,
            )
            up = ranked_heads(score, sure & (score > 0))
            told = f"; most: {format_heads(score, up[:1])}" if up else ""
            down = int((sure & (score < 0)).sum())
            lines.append(
                f"{len(up)} heads {said}, {down} do the reverse (corrected p < {SIGNIFICANCE_LEVEL:g}){told}"
            )
        strong = [
            i
            for i in range(dataset.sizes["rank"])
            if float(dataset["pair_p_adjusted"][i]) < SIGNIFICANCE_LEVEL
        ]
        named = [
            f"{dataset['pair_from'].values[i]} → {dataset['pair_to'].values[i]} ({dataset['pair_side'].values[i]} "
            f"{float(dataset['pair_composition'][i]):+.2f})"
            for i in strong[:5]
        ]
        count = int(dataset["compositions_sure"])
        lines.append(
            f"{count} compositions of two heads (corrected p < {SIGNIFICANCE_LEVEL:g}){': ' if named else ''}{', '.join(named)}"
        )
        lines.append(f"Not in the matrices: {dataset.attrs['left_out_of_weights']}")
        return lines


def ends(model: HeadModel, structure: Structure) -> tuple[Tensor, Tensor | None, set[str]]:
    """Embedding and unembedding `[token, width]`, the gain of the final norm folded in, and what
    they do not hold."""
    table = model.module.get_input_embeddings()
    embedding = weight_in(table, "weight", table.weight).cpu()
    if embedding.shape[1] != model.hidden:
        raise ModelError(
            f"The embeddings of {model.name} have {embedding.shape[1]} dimensions, its layers {model.hidden}: what "
            "lies between is not followed."
        )
    left_out = {"position embeddings, scales of norms and what feed-forward layers do in between"}
    if structure.final is None or structure.head is None:
        return embedding, None, left_out | {f"the way to the logits ({structure.refusal})"}
    out = weight_in(structure.head, "weight", structure.head.weight).cpu().float()  # type: ignore[arg-type]
    out = structure.final.middle(out * structure.final.gain.cpu())
    if (
        bool(structure.final.bias.abs().max() > 0)
        or getattr(structure.head, "bias", None) is not None
    ):
        left_out.add("the biases of the final norm and the output matrix")
    rows = min(len(out), len(embedding))  # some pad one of the two
    return embedding[:rows], out[:rows], left_out


def _scored(name: str, scores: list[CircuitScores], width: int) -> dict[str, Any]:
    share, trace, norm = (
        torch.stack([getattr(s, part) for s in scores]).numpy()
        for part in ("share", "trace", "norm")
    )
    p = turned_trace(trace, norm, width)
    return {name: (HEADS, share), f"{name}_p": (HEADS, p), f"{name}_p_adjusted": (HEADS, holm(p))}


def _composed(
    found: Composition, shape: Shape, width: int, keep: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compositions less what random turns give, tested, and the strongest of them."""
    known = list(found.squared)
    squared = np.stack([found.squared[side] for side in known])
    reads = np.stack([found.reads[side] for side in known])
    turned = turned_overlap(squared, found.writes[None, :, None], reads[:, None, :], width)
    excess = turned.ratio - turned.expected
    adjusted = holm(turned.p_value)
    flat = np.where(np.isnan(excess), -np.inf, excess).ravel()
    order = np.argsort(-flat, kind="stable")[: min(keep, int(np.isfinite(flat).sum()))]
    side, a, b = np.unravel_index(order, excess.shape)
    names = np.array(
        [head_name(*divmod(i, shape.heads)) for i in range(shape.layers * shape.heads)]
    )
    variables: dict[str, Any] = {
        "pair_from": ("rank", names[a]),
        "pair_to": ("rank", names[b]),
        "pair_side": ("rank", np.array(known)[side]),
        "pair_composition": ("rank", excess[side, a, b]),
        "pair_p": ("rank", turned.p_value[side, a, b]),
        "pair_p_adjusted": ("rank", adjusted[side, a, b]),
    }
    with np.errstate(invalid="ignore"):
        best = np.where(np.isnan(excess), -np.inf, excess).max(0)
    for name, values in (("composes_into", best.max(1)), ("composes_from", best.max(0))):
        variables[name] = (
            HEADS,
            np.where(np.isfinite(values), values, np.nan).reshape(shape.layers, shape.heads),
        )
    coords: dict[str, Any] = {"rank": np.arange(len(order))}
    variables["compositions_sure"] = ((), int((adjusted < SIGNIFICANCE_LEVEL).sum()))
    if len(names) <= MOST_HEADS:
        dims = ("side", "head_a", "head_b")
        variables["composition"] = (dims, excess.astype(np.float32))
        variables["composition_p"] = (dims, turned.p_value.astype(np.float32))
        variables["composition_p_adjusted"] = (dims, adjusted.astype(np.float32))
        coords |= {"side": known, "head_a": names, "head_b": names}
    return variables, coords
