"""Induction, duplicate-token and previous-token heads, by attention on random sequences written
twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
import xarray as xr

from headwise.analyses.contract import (
    Experiment,
    ExperimentContext,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
    mean_variables,
    relative_cost,
)
from headwise.analyses.induction.sequences import (
    RepeatedSequences,
    SecondHalfLoss,
    make_sequences,
    observe_sequences,
    sequences_at_once,
)
from headwise.analyses.summaries import format_heads, ranked_heads
from headwise.core.errors import ModelError, ParameterError
from headwise.core.labels import SIGNIFICANCE_LEVEL, head_name
from headwise.core.workers import current, raise_failures
from headwise.models import HeadModel
from headwise.models.structure import Structure, find_structure
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import holm
from headwise.stats.correlation import correlation
from headwise.stats.tests import mean_above, outlying

HEADS = ("layer", "head")
# Sequences on which the effect of disabled heads is confirmed, and the fewest, where each is costly.
FULL_CONFIRM = 6
MIN_CONFIRM = 4
CONTROL_ROLE = "rare"  # a role on natural text that has nothing to do with repetition
MEASURES = {
    "prefix_matching": "the token after the earlier occurrence",
    "duplicate": "the earlier occurrence",
    "previous": "the token before",
}


@dataclass(frozen=True)
class Induction(Experiment):
    """Score every head on random sequences written twice, `[bos] r_1..r_T r_1..r_T`, and measure
    what the best heads do for the loss.

    Over the rows i of the second half, averaged in a sequence, then over sequences:

    - `prefix_matching[layer, head]`: `A[i, i−T+1]`, the token after the earlier occurrence;
      `duplicate`: `A[i, i−T]`, the earlier occurrence; `previous`: `A[i, i−1]`. Each with count and
      95 % interval over sequences; `_p`: the largest of three p-values, so that all nulls must
      fall: the mean is no more than `least` times that of a uniform head (`uniform[layer]`, the
      mean of `1/|V(i)|`; Student's t over sequences); it is one of the means at the offsets at
      which nothing repeats (2..T−2, T+1, T+2; Student's prediction interval); it is no more than
      the largest of them (Student's t over sequences). Random weights need all three: they prefer
      some positions, and their own token a little, both the more the sharper they
      are; `_p_adjusted`: corrected over heads (Holm);
    - `profile[layer, head, offset]`: mean weight by offset, −T−2 to 0, over the rows that have a
      token of the sequence there;
    - `copying[layer, head]`: what the head adds directly to the logit of the token it most attends
      to, less the mean over the vocabulary (pre-norm decoders only);
    - `loss[half]`: mean loss of the first and second half in nats; the attributes `gain` (first
      less second), `gain_low`, `gain_high`, `gain_p`: where it is not above zero there is no
      induction to find, and `induces` is 0;
    - `disabled_effect`, an attribute, with interval: rise of the second half's loss when the
      `disable` best heads by `prefix_matching` attend uniformly; `drawn_effect[draw]`: the same for
      as many random heads of the same layers; `disabled_p`: the share of draws (and the set itself)
      that reach it. Only where the model induces.

    Parameters
    ----------
    length : int, default 50
        Tokens of a sequence; fewer where the model takes less.
    sequences : int, default 25
        Sequences.
    disable : int, default 5
        Heads disabled together; 0 leaves the confirmation out.
    draws : int, default 20
        Random draws it is compared with.
    confirm : int, optional
        Sequences used for the confirmation; by default 6, fewer where the model or its vocabulary is
        large, but at least 4 (attribute `disabled_sequences`).
    least : float, default 2
        How many times the weight of a uniform head a significant head must exceed.
    seed : int, optional
        For sequences and draws; the run's by default.

    Notes
    -----
    Question: Which heads continue a repeated sequence, and does the model need them for it?

    Assumes: Random tokens have no meaning, so only repetition can be used; what happens there
    happens on text too.

    Pitfalls: It does not follow: scores on random sequences and in natural text can differ
    (`docs/decoders.md`). A head that attends to the right token need not move it (`copying`), and a
    model that does not get better in the second half (`induces`) has no induction to speak of.
    Disabling several heads is confirmed on few sequences.

    Cost: A pass over `sequences` sequences of 2 × `length` tokens, and one for each random draw of
    heads."""

    length: int = 50
    sequences: int = 25
    disable: int = 5
    draws: int = 20
    confirm: int | None = None
    least: float = 2.0
    seed: int | None = None

    name: ClassVar[str] = "induction"
    title: ClassVar[str] = "Repeated sequences: induction, duplicates, the token before"
    paper: ClassVar[Paper] = Paper("olsson2022", "Prefix matching and copying; Elhage et al. 2021")
    units: ClassVar[Mapping[str, str]] = {"share of attention": "uniform profile"}
    order_dependent: ClassVar[frozenset[str]] = frozenset({"drawn_effect"})
    worth: ClassVar[float] = 10.0
    reads_logits: ClassVar[bool] = True
    typical_passes: ClassVar[float] = 600.0

    def __post_init__(self) -> None:
        at_least("length", self.length, 4)
        at_least("sequences", self.sequences, 2)
        at_least("disable", self.disable, 0)
        at_least("draws", self.draws, 1)
        if self.confirm is not None:
            at_least("confirm", self.confirm, 2)
        if not 0 <= self.least < float("inf"):
            raise ParameterError(f"`least` must be a number of at least 0; it is {self.least!r}.")

    def unsupported_reason(self, shape: Shape) -> str | None:
        if not shape.causal:
            return "decoder-only analysis"
        if shape.extras.get("lm_kind") != "causal":
            return "the model has no language-modelling head"
        if shape.extras.get("reads_source"):
            return "the decoder reads a source beside its own text, and random sequences have none"
        return None

    def planned(self, shape: Shape) -> Self:
        if self.confirm is not None:
            return self
        cost = relative_cost(shape, self.reads_logits)
        return replace(self, confirm=max(MIN_CONFIRM, round(FULL_CONFIRM / cost)))

    def smallest(self) -> tuple[Self, float]:
        return self._with_sequences(2)

    def larger(self) -> tuple[Self, float]:
        return self._with_sequences(8)

    def first_part(self) -> Self | None:
        # The confirmation has a run for each of `draws` sets of heads.
        return replace(self, disable=0) if self.disable else None

    def _with_sequences(self, count: int) -> tuple[Self, float]:
        # Without confirmation: a cut model does not induce.
        small = replace(self, sequences=count, disable=0)
        n_sequences = self.sequences
        if self.disable:
            # Without heads disabled, with the best, and with each draw.
            n_sequences += (self.draws + 2) * (self.confirm or FULL_CONFIRM)
        return small, n_sequences / small.sequences

    # --- the passes -------------------------------------------------------------------------------

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model = bench.model
        repeated = make_sequences(model, self.sequences, self.length, self.seed or 0)
        structure, no_copying_reason = _direct_structure(model)
        batch_size = sequences_at_once(model, repeated)
        units = []
        for start in range(0, self.sequences, batch_size):
            rows = repeated.rows[start : start + batch_size]
            units.append((f"sequences-{start:06d}", rows))
        parts = []
        observe = partial(observe_sequences, model, structure, repeated)
        for checkpoint in raise_failures(current().run_units(bench.store, observe, units)):
            parts.append(checkpoint.arrays)
            n_done = min(len(parts) * batch_size, self.sequences)
            bench.progress("sequences", n_done, self.sequences)
        observed = {}
        for name in parts[0]:
            if name != "uniform":
                observed[name] = np.concatenate([part[name] for part in parts])
        # What a uniform head has is the same for all sequences.
        dataset = self._score(observed, parts[0]["uniform"], repeated, bench.shape)
        if no_copying_reason:
            dataset.attrs["copying_left_out"] = no_copying_reason
        if self.disable and dataset.attrs["induces"]:
            self._confirm(dataset, bench, repeated)
        return dataset

    def _confirm(
        self, dataset: xr.Dataset, bench: ExperimentContext, repeated: RepeatedSequences
    ) -> None:
        """Disable the best heads, and as many random heads of the same layers; add the effects to
        the dataset."""
        scores = dataset["prefix_matching"].values
        best = ranked_heads(scores)[: self.disable]
        draws, reason = draw_heads(best, scores.shape[1], self.draws, self.seed or 0)
        if not draws:
            dataset.attrs["disabled_left_out"] = reason
            return
        head_sets = {"none": [], "best": best}
        for number, heads in enumerate(draws):
            head_sets[f"draw-{number:04d}"] = heads
        units = [(f"disabled-{name}", heads) for name, heads in head_sets.items()]
        rows = repeated.rows[: self.confirm or FULL_CONFIRM]
        first_layer = min(layer for layer, _ in best)
        compute = SecondHalfLoss(bench.model, repeated, rows, first_layer)
        checkpoints = raise_failures(current().run_units(bench.store, compute, units))
        losses: dict[str, np.ndarray] = {}
        for name, checkpoint in zip(head_sets, checkpoints, strict=True):
            losses[name] = checkpoint.arrays["loss"]
            bench.progress("disabled", len(losses), len(head_sets))

        effect = _moments(losses["best"] - losses["none"]).summary()
        drawn_effects = []
        for number in range(len(draws)):
            difference = losses[f"draw-{number:04d}"] - losses["none"]
            drawn_effects.append(difference.mean())
        drawn = np.array(drawn_effects)
        mean_effect = float(effect["mean"])
        n_as_large = int((drawn >= mean_effect).sum())
        dataset["drawn_effect"] = ("draw", drawn)
        dataset.attrs |= {
            "disabled": ", ".join(head_name(*place) for place in best),
            "disabled_sequences": len(rows),
            "disabled_effect": mean_effect,
            "disabled_effect_low": float(effect["low"]),
            "disabled_effect_high": float(effect["high"]),
            "disabled_p": (1 + n_as_large) / (1 + len(drawn)),
        }

    # --- the result -------------------------------------------------------------------------------

    def _score(
        self,
        observed: Mapping[str, np.ndarray],
        uniform: np.ndarray,
        repeated: RepeatedSequences,
        shape: Shape,
    ) -> xr.Dataset:
        """Return the scores and tests of all heads."""
        length = repeated.length
        profile = observed["profile"].astype(np.float64)  # [sequence, layer, head, offset]
        variables: dict[str, Any] = {"uniform": ("layer", uniform.astype(np.float32))}
        # Offsets at which nothing repeats, and which are not those of the scores.
        controls = profile[..., [*range(2, length - 1), length + 1, length + 2]]
        offsets = {"prefix_matching": length - 1, "duplicate": length, "previous": 1}
        for name, offset in offsets.items():
            values = profile[..., offset]
            variables |= mean_variables(
                name,
                HEADS,
                _moments(values),
                units="share of attention",
                long_name=f"mean attention to {MEASURES[name]}",
            )
            p_value = offset_p_values(values, controls, self.least * uniform[:, None])
            variables[f"{name}_p"] = (HEADS, p_value)
            variables[f"{name}_p_adjusted"] = (HEADS, holm(p_value))
        mean_profile = profile.mean(0)[..., ::-1].astype(np.float32)
        variables["profile"] = ((*HEADS, "offset"), mean_profile)
        if "copying" in observed:
            variables |= mean_variables(
                "copying",
                HEADS,
                _moments(observed["copying"]),
                units="logit",
                long_name="direct contribution to the logit of the token most attended to",
            )
        loss = observed["loss"]  # [sequence, half]
        variables |= mean_variables("loss", ("half",), _moments(loss), units="nats")
        gain = loss[:, 0] - loss[:, 1]
        gain_summary = _moments(gain).summary()
        gain_p = float(mean_above(gain))
        attrs: dict[str, Any] = {
            "gain": float(gain_summary["mean"]),
            "gain_low": float(gain_summary["low"]),
            "gain_high": float(gain_summary["high"]),
            "gain_p": gain_p,
            "length": length,
            "sequences": self.sequences,
            "induces": int(gain_p < SIGNIFICANCE_LEVEL),
        }
        coords = layer_head_coords(shape) | {
            "half": ["first", "second"],
            "offset": np.arange(1 - profile.shape[-1], 1),
        }
        return xr.Dataset(variables, coords, attrs)

    def extend(self, datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
        """Add how the scores correlate with the role `induction` on natural text, if `roles` has
        it.

        Attributes: the rank correlation over heads of `prefix_matching` with the bias (`role_r`)
        and with the bias without the first token (`role_rest_r`), since a head with a sink has a
        small bias for every role; and the same with the unrelated role `rare` (`control_rest_r`).
        """
        roles = datasets.get("roles")
        dataset = datasets.get(self.name)
        if roles is None or dataset is None:
            return dict(datasets)
        score = dataset["prefix_matching"].values.ravel()
        attrs: dict[str, float] = {}
        for prefix, variable, role in (
            ("role", "bias", "induction"),
            ("role_rest", "bias_rest", "induction"),
            ("control_rest", "bias_rest", CONTROL_ROLE),
        ):
            if variable not in roles or role not in roles["role"].values:
                continue
            bias = roles[variable].sel(role=role).transpose(*HEADS).values.ravel()
            ranks = correlation(score, bias, "spearman")
            if np.isfinite(ranks.r):
                attrs[f"{prefix}_r"] = float(ranks.r)
                attrs[f"{prefix}_low"] = float(ranks.low)
                attrs[f"{prefix}_high"] = float(ranks.high)
                attrs[f"{prefix}_p"] = float(ranks.p_value)
        return dict(datasets) | {self.name: dataset.assign_attrs(attrs)}

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        significant = []
        for name in MEASURES:
            significant.append(dataset[f"{name}_p_adjusted"] < SIGNIFICANCE_LEVEL)
        return xr.concat(significant, pd.Index(MEASURES, name="measure"))

    def summary(self, dataset: xr.Dataset) -> list[str]:
        attrs = dataset.attrs
        first_loss, second_loss = dataset["loss"].values
        gain_line = (
            f"Loss of the first half {first_loss:.2f} nats, of the second {second_loss:.2f}: gain "
            f"{attrs['gain']:.2f} ({attrs['gain_low']:.2f} … {attrs['gain_high']:.2f})"
        )
        if not attrs["induces"]:
            gain_line += "; the second half is no easier: there is no induction to find"
        lines = [gain_line]
        for name in MEASURES:
            score = dataset[name].values
            is_significant = (dataset[f"{name}_p_adjusted"] < SIGNIFICANCE_LEVEL).values
            heads = ranked_heads(score, is_significant)
            line = f"{name}: {len(heads)} heads (corrected p < {SIGNIFICANCE_LEVEL:g})"
            if heads:
                line += f": {format_heads(score, heads[:5])}"
            lines.append(line)
        if "disabled_effect" in attrs:
            drawn = dataset["drawn_effect"]
            basis = ""
            if "disabled_sequences" in attrs:
                basis = f", {attrs['disabled_sequences']} sequences"
            lines.append(
                f"Without {attrs['disabled']} the second half's loss rises by "
                f"{attrs['disabled_effect']:.2f} nats ({attrs['disabled_effect_low']:.2f} … "
                f"{attrs['disabled_effect_high']:.2f}{basis}); without as many random heads of the same "
                f"layers by {float(drawn.mean()):.2f} on average, at most "
                f"{float(drawn.max()):.2f} (p = {attrs['disabled_p']:.2g})"
            )
        return lines


def _direct_structure(model: HeadModel) -> tuple[Structure | None, str]:
    """Return the structure by which heads add to the logits; None and the reason if there is
    none."""
    try:
        structure = find_structure(model)
    except ModelError as error:
        return None, str(error).rstrip(".")
    if structure.refusal is not None:
        return None, structure.refusal
    return structure, ""


def offset_p_values(values: np.ndarray, controls: np.ndarray, bar: np.ndarray) -> np.ndarray:
    """Test whether heads attend to one offset more than to others; the largest of three p-values.

    Parameters
    ----------
    values : ndarray
        `[sequence, layer, head]`: mean weight at the offset.
    controls : ndarray
        `[sequence, layer, head, offset]`: the same at the offsets at which nothing repeats.
    bar : ndarray
        `[layer, 1]`: the weight that must be exceeded in any case.

    Returns
    -------
    ndarray
        `[layer, head]`, see `Induction` for the three nulls.
    """
    control_means = controls.mean(0)
    largest_offset = control_means.argmax(-1)[None, ..., None]
    largest_control = np.take_along_axis(controls, largest_offset, -1)[..., 0]
    p_above_bar = mean_above(values, bar)
    p_above_largest = mean_above(values - largest_control)
    p_outlying = outlying(values.mean(0), np.moveaxis(control_means, -1, 0))
    return np.asarray(np.maximum(np.maximum(p_above_bar, p_above_largest), p_outlying))


def draw_heads(
    best: list[tuple[int, int]], heads: int, draws: int, seed: int
) -> tuple[list[list[tuple[int, int]]], str]:
    """Return random sets of heads with as many in each layer as the best have there.

    None of them is among the best. No set, and the reason, if a layer has too few others."""
    random = np.random.default_rng([seed, 1])
    layers = sorted({layer for layer, _ in best})
    others: dict[int, list[int]] = {}
    n_best: dict[int, int] = {}
    for layer in layers:
        others[layer] = [head for head in range(heads) if (layer, head) not in best]
        n_best[layer] = sum(best_layer == layer for best_layer, _ in best)
        if len(others[layer]) < n_best[layer]:
            return [], f"layer {layer} has too few other heads to draw from"
    sets = []
    for _ in range(draws):
        drawn = []
        for layer in layers:
            for head in random.choice(others[layer], n_best[layer], replace=False):
                drawn.append((layer, int(head)))
        sets.append(drawn)
    return sets, ""


def _moments(values: np.ndarray) -> Moments:
    """Return the moments of `values[sequence, ...]` over sequences."""
    moments = Moments(*values.shape[1:])
    moments.add(torch.as_tensor(np.asarray(values, dtype=np.float64)))
    return moments
