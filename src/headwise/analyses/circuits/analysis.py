"""Circuits from weights: what each head copies and matches, and which heads compose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor, nn

from headwise.analyses.circuits.products import (
    CircuitScores,
    Composition,
    CompositionSides,
    compose,
    composition_sides,
    eigen_score,
    gram,
)
from headwise.analyses.contract import (
    Experiment,
    ExperimentContext,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
)
from headwise.analyses.summaries import format_heads, ranked_heads
from headwise.core.errors import ModelError
from headwise.core.labels import SIGNIFICANCE_LEVEL, head_name
from headwise.models import HeadModel
from headwise.models.devices import weight_in
from headwise.models.structure import Norm, Structure, find_structure
from headwise.models.weights import head_weights
from headwise.stats.corrections import holm
from headwise.stats.rotations import turned_overlap, turned_trace

HEADS = ("layer", "head")
SCORES = {"ov_copying": "copy", "qk_matching": "look for their own token"}
MAX_MATRIX_HEADS = 600  # of larger models only the strongest pairs are kept
ROTARY = "positions that turn queries and keys (both at the first position here, so at offset 0)"


@dataclass(frozen=True)
class Circuits(Experiment):
    """Describe what the weights of heads do by themselves, without any text.

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
      over random turns (which keep the spectra; the gain of a norm after the output projection
      belongs to what is read, so that turns leave it in place); `composition_p`, `composition_p_adjusted` (Holm,
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

    Pitfalls: A head that copies by its weights may never do so on text, and positions, which decide
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
    # The embeddings are read once, weights of each layer, compositions of each two.
    depth_power: ClassVar[float | None] = 0.85
    # Measured on SmolLM2-135M and on a decoder of 268 M parameters: 75 and 180.
    typical_passes: ClassVar[float] = 120.0
    order_dependent: ClassVar[frozenset[str]] = frozenset(
        {"pair_from", "pair_to", "pair_side", "pair_composition", "pair_p", "head_a", "head_b"}
    )

    def __post_init__(self) -> None:
        at_least("pairs", self.pairs, 1)

    def unsupported_reason(self, shape: Shape) -> str | None:
        if shape.extras.get("reads_source"):
            return "the model is an encoder-decoder, whose weights are not followed to the logits"
        if not shape.causal:
            return "decoder-only analysis"
        return None

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model = bench.model
        structure = find_structure(model)
        if len(set(model.sites.d_heads)) > 1:
            raise ModelError(f"The heads of {model.name} have different sizes in different layers.")
        embedding, unembedding, left_out = embeddings(model, structure)
        width = embedding.shape[1]
        embedding_gram = gram(embedding, embedding)
        logit_gram = None if unembedding is None else gram(unembedding, embedding)
        copying: list[CircuitScores] = []
        matching: list[CircuitScores] = []
        layers: list[CompositionSides] = []
        for layer, weights in enumerate(head_weights(model, structure)):
            left_out |= weights.left_out
            if logit_gram is not None:
                copying.append(eigen_score(weights.written(), logit_gram, weights.value))
            if weights.query is not None and weights.key is not None:
                key = weights.key.transpose(1, 2)
                matching.append(eigen_score(key, embedding_gram, weights.query))
            layers.append(composition_sides(weights))
            bench.progress("weights", layer + 1, model.layers)
        if matching:
            left_out.add(ROTARY)
        else:
            left_out.add("queries and keys, which this architecture does not show")
        variables: dict[str, Any] = {}
        if copying:
            variables |= _score_variables("ov_copying", copying, width)
        if matching:
            variables |= _score_variables("qk_matching", matching, width)

        def report(done: int, total: int) -> None:
            bench.progress("composition", done, total)

        composition = compose(layers, report, model.device)
        pair_variables, pair_coords = _composition_variables(
            composition, bench.shape, width, self.pairs
        )
        return xr.Dataset(
            variables | pair_variables,
            layer_head_coords(bench.shape) | pair_coords,
            {"left_out_of_weights": "; ".join(sorted(left_out))},
        )

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        significant = {}
        for name in SCORES:
            if name in dataset:
                significant[name] = dataset[f"{name}_p_adjusted"] < SIGNIFICANCE_LEVEL
        if not significant:
            return None
        return xr.concat(significant.values(), pd.Index(significant, name="score"))

    def summary(self, dataset: xr.Dataset) -> list[str]:
        lines = []
        for name, verb in SCORES.items():
            if name not in dataset:
                continue
            score = dataset[name].values
            is_significant = (dataset[f"{name}_p_adjusted"] < SIGNIFICANCE_LEVEL).values
            positive = ranked_heads(score, is_significant & (score > 0))
            n_negative = int((is_significant & (score < 0)).sum())
            line = (
                f"{len(positive)} heads {verb}, {n_negative} do the reverse (corrected p < "
                f"{SIGNIFICANCE_LEVEL:g})"
            )
            if positive:
                line += f"; most: {format_heads(score, positive[:1])}"
            lines.append(line)
        is_significant = dataset["pair_p_adjusted"].values < SIGNIFICANCE_LEVEL
        pairs = []
        for rank in np.flatnonzero(is_significant)[:5]:
            pair = dataset.isel(rank=rank)
            pairs.append(
                f"{pair['pair_from'].item()} → {pair['pair_to'].item()} "
                f"({pair['pair_side'].item()} {float(pair['pair_composition']):+.2f})"
            )
        n_significant = int(dataset["compositions_sure"])
        line = f"{n_significant} compositions of two heads (corrected p < {SIGNIFICANCE_LEVEL:g})"
        if pairs:
            line += f": {', '.join(pairs)}"
        lines.append(line)
        lines.append(f"Not in the matrices: {dataset.attrs['left_out_of_weights']}")
        return lines


def embeddings(model: HeadModel, structure: Structure) -> tuple[Tensor, Tensor | None, set[str]]:
    """Return embedding and unembedding `[token, width]`, the gain of the final norm folded in, and
    what they do not contain.

    The unembedding is None if the way to the logits is not known."""
    table = model.module.get_input_embeddings()
    embedding = weight_in(table, "weight", table.weight).cpu()
    if embedding.shape[1] != model.hidden:
        raise ModelError(
            f"The embeddings of {model.name} have {embedding.shape[1]} dimensions, its layers "
            f"{model.hidden}: what lies between is not followed."
        )
    left_out = {"position embeddings, scales of norms and what feed-forward layers do in between"}
    if structure.final is None or structure.head is None:
        return embedding, None, left_out | {f"the way to the logits ({structure.refusal})"}
    unembedding = unembedding_of(structure.head, structure.final)
    has_norm_bias = bool(structure.final.bias.abs().max() > 0)
    has_output_bias = getattr(structure.head, "bias", None) is not None
    if has_norm_bias or has_output_bias:
        left_out.add("the biases of the final norm and the output matrix")
    # Some models pad one of the two matrices.
    n_tokens = min(len(unembedding), len(embedding))
    return embedding[:n_tokens], unembedding[:n_tokens], left_out


def unembedding_of(head: nn.Module, final: Norm, tokens: Sequence[int] | None = None) -> Tensor:
    """Return what the logits of these tokens (default: all) read, `[token, width]`, the gain of the
    final norm folded in."""
    weight: Tensor = weight_in(head, "weight", head.weight)  # type: ignore[arg-type]
    if tokens is not None:
        weight = weight[list(tokens)]
    return final.middle(weight.cpu().float() * final.gain.cpu())


def _score_variables(name: str, scores: list[CircuitScores], width: int) -> dict[str, Any]:
    """Return a score of all heads with its p-values."""
    share = torch.stack([layer.share for layer in scores]).numpy()
    trace = torch.stack([layer.trace for layer in scores]).numpy()
    norm = torch.stack([layer.norm for layer in scores]).numpy()
    p_value = turned_trace(trace, norm, width)
    return {
        name: (HEADS, share),
        f"{name}_p": (HEADS, p_value),
        f"{name}_p_adjusted": (HEADS, holm(p_value)),
    }


def _composition_variables(
    composition: Composition, shape: Shape, width: int, max_pairs: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return compositions less what random turns give, with tests, the strongest pairs, and their
    coordinates."""
    sides = list(composition.squared)
    squared = np.stack([composition.squared[side] for side in sides])  # [side, head a, head b]
    reads = np.stack([composition.reads[side] for side in sides])  # [side, head a, head b]
    turned = turned_overlap(squared, composition.writes[None, :, None], reads, width)
    excess = turned.ratio - turned.expected
    p_adjusted = holm(turned.p_value)
    ordered = np.where(np.isnan(excess), -np.inf, excess)

    n_known = int(np.isfinite(ordered).sum())
    strongest = np.argsort(-ordered.ravel(), kind="stable")[: min(max_pairs, n_known)]
    side, head_a, head_b = np.unravel_index(strongest, excess.shape)
    n_heads = shape.layers * shape.heads
    names = np.array([head_name(*divmod(place, shape.heads)) for place in range(n_heads)])
    variables: dict[str, Any] = {
        "pair_from": ("rank", names[head_a]),
        "pair_to": ("rank", names[head_b]),
        "pair_side": ("rank", np.array(sides)[side]),
        "pair_composition": ("rank", excess[side, head_a, head_b]),
        "pair_p": ("rank", turned.p_value[side, head_a, head_b]),
        "pair_p_adjusted": ("rank", p_adjusted[side, head_a, head_b]),
        "compositions_sure": ((), int((p_adjusted < SIGNIFICANCE_LEVEL).sum())),
    }
    best_side = ordered.max(0)
    for name, values in (
        ("composes_into", best_side.max(1)),
        ("composes_from", best_side.max(0)),
    ):
        largest = np.where(np.isfinite(values), values, np.nan)
        variables[name] = (HEADS, largest.reshape(shape.layers, shape.heads))
    coords: dict[str, Any] = {"rank": np.arange(len(strongest))}
    if n_heads <= MAX_MATRIX_HEADS:
        dims = ("side", "head_a", "head_b")
        variables["composition"] = (dims, excess.astype(np.float32))
        variables["composition_p"] = (dims, turned.p_value.astype(np.float32))
        variables["composition_p_adjusted"] = (dims, p_adjusted.astype(np.float32))
        coords |= {"side": sides, "head_a": names, "head_b": names}
    return variables, coords
