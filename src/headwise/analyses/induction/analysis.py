"""Induction, duplicate-token and previous-token heads, by attention on random sequences written
twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

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
)
from headwise.analyses.induction.sequences import (
    RepeatedSequences,
    at_once,
    disabled_piece,
    observe,
    repeats,
)
from headwise.analyses.summaries import SIGNIFICANCE_LEVEL, format_heads, ranked_heads
from headwise.core.errors import ModelError, ParameterError
from headwise.core.labels import head_name
from headwise.core.workers import current, raise_failures
from headwise.models.structure import find_structure
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import holm
from headwise.stats.correlation import correlation
from headwise.stats.tests import mean_above, outlying

HEADS = ("layer", "head")
CONTROL = "rare"  # a role on natural text that repeating has nothing to do with
MEASURES = {
    "prefix_matching": "the token after the earlier occurrence",
    "duplicate": "the earlier occurrence",
}
MEASURES |= {"previous": "the token before"}


@dataclass(frozen=True)
class Induction(Experiment):
    """Attention of every head on random sequences written twice, `[bos] r_1..r_T r_1..r_T`, and
    what it does for the loss.

    Over the rows i of the second half, averaged in a sequence, then over sequences:

    - `prefix_matching[layer, head]`: `A[i, i−T+1]`, the token after the earlier occurrence;
      `duplicate`: `A[i, i−T]`, the earlier occurrence; `previous`: `A[i, i−1]`. Each with count and
      95 % interval over sequences; `_p`: the largest of three p-values, so that all nulls must
      fall: the mean is no more than `least` times that of a uniform head (`uniform[layer]`, the
      mean of `1/|V(i)|`; Student's t over sequences); it is one of the means at the offsets at
      which nothing repeats (2..T−2, T+1, T+2; Student's prediction interval); it is no more than
      the largest of them (Student's t over sequences). Random weights need all three: they like
      some positions, like a token that is their own a little, and like both more the sharper they
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
    confirm : int, default 6
        Sequences used for the confirmation.
    least : float, default 2
        How many times the weight of a uniform head a head must give to be sure of anything.
    seed : int, optional
        For sequences and draws; the run's by default.

    Notes
    -----
    Question: Which heads continue a repeated sequence, and does the model need them for it?

    Assumes: Random tokens have no meaning, so only repetition can be used; what happens there
    happens on text too.

    Traps: It does not follow: scores on random sequences and in natural text can differ
    (`docs/decoders.md`). A head that attends to the right token need not move it (`copying`), and a
    model that does not get better in the second half (`induces`) has no induction to speak of.
    Disabling several heads is confirmed on few sequences.

    Cost: A pass over `sequences` sequences of 2 × `length` tokens, and one for each random draw of
    heads."""

    length: int = 50
    sequences: int = 25
    disable: int = 5
    draws: int = 20
    confirm: int = 6
    least: float = 2.0
    seed: int | None = None

    name: ClassVar[str] = "induction"
    title: ClassVar[str] = "Repeated sequences: induction, duplicates, the token before"
    paper: ClassVar[Paper] = Paper("olsson2022", "Prefix matching and copying; Elhage et al. 2021")
    units: ClassVar[Mapping[str, str]] = {"share of attention": "uniform profile"}
    order_dependent: ClassVar[frozenset[str]] = frozenset({"drawn_effect"})

    def __post_init__(self) -> None:
        for name, low in (
            ("length", 4),
            ("sequences", 2),
            ("disable", 0),
            ("draws", 1),
            ("confirm", 2),
        ):
            at_least(name, getattr(self, name), low)
        if not 0 <= self.least < float("inf"):
            raise ParameterError(f"`least` must be a number of at least 0; it is {self.least!r}.")

    def unsupported_reason(self, shape: Shape) -> str | None:
        if not shape.causal:
            return "it is asked of decoders, which predict the next token"
        if shape.extras.get("lm_kind") != "causal":
            return "the model has no head that predicts the next token"
        if shape.extras.get("reads_source"):
            return "the decoder reads a source beside its own text, and random sequences have none"
        return None

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model, seed = bench.model, self.seed or 0
        repeated = repeats(model, self.sequences, self.length, seed)
        structure, why = None, ""
        try:
            found = find_structure(model)
            structure, why = (found, "") if found.refusal is None else (None, found.refusal)
        except ModelError as error:
            why = str(error).rstrip(".")
        size, pieces = at_once(model, repeated), []
        starts = range(0, self.sequences, size)
        units = (
            (f"sequences-{start:06d}", repeated.rows[start : start + size]) for start in starts
        )
        for piece in raise_failures(
            current().run_units(bench.store, partial(observe, model, structure, repeated), units)
        ):
            pieces.append(piece.arrays)
            bench.progress("sequences", min(len(pieces) * size, self.sequences), self.sequences)
        joined = {
            name: np.concatenate([p[name] for p in pieces])
            for name in pieces[0]
            if name != "uniform"
        }
        dataset = self._scored(joined, pieces[0]["uniform"], repeated, bench.shape)
        if why:
            dataset.attrs["copying_left_out"] = why
        if self.disable and dataset.attrs["induces"]:
            self._confirm(dataset, bench, repeated)
        return dataset

    def _scored(
        self,
        found: Mapping[str, np.ndarray],
        uniform: np.ndarray,
        repeated: RepeatedSequences,
        shape: Shape,
    ) -> xr.Dataset:
        length, profile = repeated.length, found["profile"].astype(np.float64)
        variables: dict[str, Any] = {"uniform": ("layer", uniform.astype(np.float32))}
        controls = profile[..., [*range(2, length - 1), length + 1, length + 2]]
        offsets = {"prefix_matching": length - 1, "duplicate": length, "previous": 1}
        for name, offset in offsets.items():
            values = profile[..., offset]
            about = f"mean attention to {MEASURES[name]}"
            variables |= mean_variables(
                name, HEADS, _moments(values), units="share of attention", long_name=about
            )
            p = sure_of(values, controls, self.least * uniform[:, None])
            variables[f"{name}_p"] = (HEADS, p)
            variables[f"{name}_p_adjusted"] = (HEADS, holm(p))
        variables["profile"] = ((*HEADS, "offset"), profile.mean(0)[..., ::-1].astype(np.float32))
        if "copying" in found:
            about = "direct contribution to the logit of the token most attended to"
            moments = _moments(found["copying"])
            variables |= mean_variables("copying", HEADS, moments, units="logit", long_name=about)
        variables |= mean_variables("loss", ("half",), _moments(found["loss"]), units="nats")
        gains = found["loss"][:, 0] - found["loss"][:, 1]
        summary = {name: float(value) for name, value in _moments(gains).summary().items()}
        attrs: dict[str, Any] = {
            "gain": summary["mean"],
            "gain_low": summary["low"],
            "gain_high": summary["high"],
        }
        attrs |= {"gain_p": float(mean_above(gains)), "length": length, "sequences": self.sequences}
        attrs["induces"] = int(attrs["gain_p"] < SIGNIFICANCE_LEVEL)
        coords = layer_head_coords(shape) | {
            "half": ["first", "second"],
            "offset": np.arange(1 - profile.shape[-1], 1),
        }
        return xr.Dataset(variables, coords, attrs)

    def _confirm(
        self, dataset: xr.Dataset, bench: ExperimentContext, repeated: RepeatedSequences
    ) -> None:
        """Disable the best heads, and as many random heads of the same layers."""
        model = bench.model
        scores = dataset["prefix_matching"].values
        best = ranked_heads(scores)[: self.disable]
        chosen, left_out = drawn_heads(best, scores.shape[1], self.draws, self.seed or 0)
        if not chosen:
            dataset.attrs["disabled_left_out"] = left_out
            return
        rows = repeated.rows[: self.confirm]

        sets = {
            "none": [],
            "best": best,
            **{f"draw-{i:04d}": heads for i, heads in enumerate(chosen)},
        }
        losses: dict[str, np.ndarray] = {}
        units = ((f"disabled-{name}", heads) for name, heads in sets.items())
        made = raise_failures(
            current().run_units(bench.store, partial(disabled_piece, model, repeated, rows), units)
        )
        for name, piece in zip(sets, made, strict=True):
            losses[name] = piece.arrays["loss"]
            bench.progress("disabled", len(losses), len(sets))
        effects = _moments(losses["best"] - losses["none"]).summary()
        drawn = np.array(
            [(losses[f"draw-{i:04d}"] - losses["none"]).mean() for i in range(len(chosen))]
        )
        dataset["drawn_effect"] = ("draw", drawn)
        effect = float(effects["mean"])
        dataset.attrs |= {
            "disabled": ", ".join(head_name(*place) for place in best),
            "disabled_effect": effect,
            "disabled_effect_low": float(effects["low"]),
            "disabled_effect_high": float(effects["high"]),
            "disabled_p": float((1 + (drawn >= effect).sum()) / (1 + len(drawn))),
        }

    def extend(self, datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
        """Adds how the scores go with the role `induction` on natural text, where `roles` has it:
        the rank correlation over heads of `prefix_matching` with the bias (`role_r`) and with the
        bias once the first token is left out (`role_rest_r`), for a head that rests has a small
        bias for every role; beside it the same with the role `rare` (`control_rest_r`), which has
        nothing to do with it."""
        roles, own = (datasets.get(name) for name in ("roles", self.name))
        if roles is None or own is None:
            return dict(datasets)
        score = own["prefix_matching"].values.ravel()
        attrs: dict[str, float] = {}
        for name, variable, role in (
            ("role", "bias", "induction"),
            ("role_rest", "bias_rest", "induction"),
            ("control_rest", "bias_rest", CONTROL),
        ):
            if variable not in roles or role not in roles["role"].values:
                continue
            one = correlation(
                score, roles[variable].sel(role=role).transpose(*HEADS).values.ravel(), "spearman"
            )
            if np.isfinite(one.r):
                fields = (("r", one.r), ("low", one.low), ("high", one.high), ("p", one.p_value))
                attrs |= {f"{name}_{key}": float(value) for key, value in fields}
        return dict(datasets) | {self.name: own.assign_attrs(attrs)}

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return xr.concat(
            [dataset[f"{name}_p_adjusted"] < SIGNIFICANCE_LEVEL for name in MEASURES],
            pd.Index(MEASURES, name="measure"),
        )

    def summary(self, dataset: xr.Dataset) -> list[str]:
        attrs = dataset.attrs
        first, second = (float(value) for value in dataset["loss"].values)
        lines = [
            f"Loss of the first half {first:.2f} nats, of the second {second:.2f}: gain {attrs['gain']:.2f} "
            f"({attrs['gain_low']:.2f} … {attrs['gain_high']:.2f})"
            + (
                ""
                if attrs["induces"]
                else "; the second half is no easier: there is no induction to find"
            )
        ]
        for name in MEASURES:
            score = dataset[name].values
            sure = ranked_heads(score, (dataset[f"{name}_p_adjusted"] < SIGNIFICANCE_LEVEL).values)
            named = f": {format_heads(score, sure[:5])}" if sure else ""
            lines.append(f"{name}: {len(sure)} heads (corrected p < {SIGNIFICANCE_LEVEL:g}){named}")
        if "disabled_effect" in attrs:
            lines.append(
                f"Without {attrs['disabled']} the second half's loss rises by {attrs['disabled_effect']:.2f} nats "
                f"({attrs['disabled_effect_low']:.2f} … {attrs['disabled_effect_high']:.2f}); without as many random "
                f"heads of the same layers by {float(dataset['drawn_effect'].mean()):.2f} on average, at most "
                f"{float(dataset['drawn_effect'].max()):.2f} (p = {attrs['disabled_p']:.2g})"
            )
        return lines


def sure_of(values: np.ndarray, controls: np.ndarray, bar: np.ndarray) -> np.ndarray:
    """p-values of heads `[layer, head]` that give one offset (`values[sequence, layer, head]`) more
    than the bar, and more than the offsets at which nothing repeats (`controls[sequence, layer,
    head, offset]`): the largest of three, see `Induction`."""
    means = controls.mean(0)
    largest = np.take_along_axis(controls, means.argmax(-1)[None, ..., None], -1)[..., 0]
    of_all = outlying(values.mean(0), np.moveaxis(means, -1, 0))
    p: np.ndarray = np.maximum(
        np.maximum(mean_above(values, bar), mean_above(values - largest)), of_all
    )
    return p


def drawn_heads(
    best: list[tuple[int, int]], heads: int, draws: int, seed: int
) -> tuple[list[list[tuple[int, int]]], str]:
    """Random sets of heads with as many in each layer as the best have there, none of which is
    among the best; no set, and why, where a layer has too few others."""
    random = np.random.default_rng([seed, 1])
    layers = sorted({layer for layer, _ in best})
    others = {layer: [h for h in range(heads) if (layer, h) not in best] for layer in layers}
    needed = {layer: sum(own == layer for own, _ in best) for layer in layers}
    for layer in layers:
        if len(others[layer]) < needed[layer]:
            return [], f"layer {layer} has too few other heads to draw from"
    drawn = []
    for _ in range(draws):
        picked = {
            layer: random.choice(others[layer], needed[layer], replace=False).tolist()
            for layer in layers
        }
        drawn.append([(layer, int(head)) for layer in layers for head in picked[layer]])
    return drawn, ""


def _moments(values: np.ndarray) -> Moments:
    moments = Moments(*values.shape[1:])
    moments.add(torch.as_tensor(np.asarray(values, dtype=np.float64)))
    return moments
