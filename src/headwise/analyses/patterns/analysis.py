"""Which of five patterns a head's maps show: vertical, diagonal, both, block or none (Kovaleva et
al. 2019, §4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import (
    Analysis,
    Observer,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
    mean_variables,
)
from headwise.analyses.patterns.correct import (
    ErrorModel,
    corrected_shares,
    corrected_with_interval,
    said_given_true,
    seen_in_training,
    shipped_errors,
)
from headwise.analyses.patterns.maps import images, shrink, shrink_visible
from headwise.analyses.patterns.network import (
    PATTERNS,
    PatternClassifier,
    load_classifier,
    shipped_classifier,
)
from headwise.atlas.behaviours import MIN_SHARE
from headwise.models.view import AttentionRows, Layer
from headwise.stats.accumulators import Moments, State
from headwise.stats.bootstrap import bootstrap_interval
from headwise.stats.intervals import wilson_interval
from headwise.stats.records import Records
from headwise.text.encode import Batch

# Maps that are classified at once: a processor takes 1.6 times as long for each of 256, which its
# cache does not hold.
AT_ONCE = {"cpu": 64, "cuda": 256}


@dataclass(frozen=True)
class Patterns(Observer):
    """The share of a head's maps that a classifier calls vertical, diagonal, vertical+diagonal,
    block, heterogeneous.

    Every map `A[l, h]` of every example is brought to one size (`headwise.analyses.patterns.maps`)
    and classified by a network of eight convolutions; its class is the most probable one (Kovaleva
    et al. 2019, §4.1).

    - `proportion[layer, head, pattern]`: share of examples whose map is called that, with Wilson's
      95 % interval;
    - `probability[layer, head, pattern]`: the mean probability the network gives, with its
      interval;
    - `overall[pattern]`: the share over all heads and examples (Fig 2), with an interval over
      examples;
    - `overall_corrected[pattern]`, `proportion_corrected[layer, head, pattern]`: the true shares
      that the classifier's known confusion would turn into those (least squares on the simplex);
      the interval of the former holds the doubt about examples and about the confusion, whose
      labelled maps are drawn by head. NaN where the correction is likely to do more harm than good
      (attribute `correction_helps`): then there are only counts. That is so where the mistakes on
      half of the labelled heads (of a model never seen: on another model) do not bring the other
      half nearer to its labels, and where the correction adds more variance than it takes bias
      away;
    - `confusion[pattern, said]`: the counts on held-out labelled maps behind the correction: of
      encoders or of causal models, of models that the classifier was trained on or of one it never
      saw, as the model at hand is (attribute `error_model`).

    Parameters
    ----------
    min_tokens : int, default 6
        Shorter examples are left out and counted in the attribute `short_examples`: three tokens
        show no pattern.
    classifier : str, optional
        A weights file written by `tools/train_patterns`; nothing for the shipped one.

    Notes
    -----
    Question: Which of five kinds of map (vertical, diagonal, both, block, heterogeneous) does each
    head make?

    Assumes: What labellers call these kinds on small pictures of maps; the classifier was trained
    on maps of three models and on planted ones.

    Traps: The classifier errs, more on models it never saw (`data/patterns/RESULTS.md` has its
    measured error: macro F1 0.62 to 0.77 there, where two labellers have 0.83 to 0.84 with each
    other): shares that differ by a few points are not told apart. A dark first column over
    unordered content is where labellers part too. A map brought to one size loses thin lines of
    long inputs. Single sentences have no blocks.

    Cost: All maps of an example in memory at once, and a small network on each
    (`benchmarks/bench_patterns.py`)."""

    min_tokens: int = 6
    classifier: str = ""

    name: ClassVar[str] = "patterns"
    title: ClassVar[str] = "The five kinds of attention map"
    paper: ClassVar[Paper] = Paper("kovaleva2019", "§4.1, Fig 1-2")
    budget: ClassVar[int | None] = 40

    def __post_init__(self) -> None:
        at_least("min_tokens", self.min_tokens, 1)
        if self.classifier:
            load_classifier(Path(self.classifier))

    @cached_property
    def _classifier(self) -> PatternClassifier:
        return load_classifier(Path(self.classifier)) if self.classifier else shipped_classifier()

    def max_examples(self, shape: Shape) -> int | None:
        return Analysis.max_examples(
            self, shape
        )  # a network on every map costs more than the pass, and grows with heads

    def start(self, shape: Shape) -> State:
        heads = (shape.layers, shape.heads, len(PATTERNS))
        return State(
            said=Moments(*heads),
            probability=Moments(*heads),
            example=Records(shape.layers, len(PATTERNS)),
        )

    def reduce_rows(self, rows: AttentionRows, batch: Batch) -> Mapping[str, Tensor]:
        weights = rows.weights
        if rows.sink is not None:
            weights = weights / (1 - rows.sink.unsqueeze(-1)).clamp(
                min=torch.finfo(weights.dtype).tiny
            )
        return {
            "mass": shrink(weights, batch.lengths, rows.start),
            "pairs": shrink_visible(rows.visible, batch.lengths, rows.start),
        }

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        mass, pairs = sums["mass"], sums["pairs"]
        heads = mass.shape[1]
        classifier = self._on(mass.device)
        parts = []
        step = max(AT_ONCE.get(mass.device.type, 64) // heads, 1)
        for begin in range(0, len(mass), step):
            here = slice(begin, begin + step)
            shown = images(mass[here].float(), pairs[here], batch.lengths[here])
            parts.append(
                classifier.probabilities(shown.flatten(0, 1)).view(-1, heads, len(PATTERNS))
            )
        probability = torch.cat(parts).double().cpu()
        short = batch.lengths.cpu() < self.min_tokens
        said = torch.nn.functional.one_hot(probability.argmax(-1), len(PATTERNS)).double()
        probability[short] = torch.nan
        said[short] = torch.nan
        where = (layer.layer,)
        state.moments("said").add(said, where)
        state.moments("probability").add(probability, where)
        state.records("example").add(batch.index, said.mean(1), where)

    def _on(self, device: torch.device) -> PatternClassifier:
        own = self._classifier
        if next(own.networks[0].parameters()).device == device:
            return own
        moved = own.to(device)
        self.__dict__["_classifier"] = moved  # a cached property: the next batch finds it there
        return moved

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        heads = ("layer", "head", "pattern")
        said = state.moments("said")
        variables = mean_variables("proportion", heads, said, units="share of examples")
        count = said.count.numpy()
        low, high = wilson_interval(said.mean.numpy() * count, count)
        variables["proportion_low"].values[:], variables["proportion_high"].values[:] = low, high
        variables |= mean_variables(
            "probability", heads, state.moments("probability"), units="probability"
        )
        errors = self._errors(shape)
        per_example = state.records("example").values.mean(
            1
        )  # over layers; every layer has as many heads
        found = corrected_with_interval(per_example, errors)
        shares = np.where((count > 0) & found.helps, said.mean.numpy(), np.nan)
        corrected = corrected_shares(shares, said_given_true(errors.counts)).astype(np.float32)
        words = {
            "units": "share of examples",
            "long_name": "proportion corrected for the classifier's confusion",
        }
        variables["proportion_corrected"] = xr.Variable(heads, corrected, words)
        kept = per_example[~np.isnan(per_example).any(-1)]
        nothing = np.full(len(PATTERNS), np.nan)
        whole = kept.mean(0) if len(kept) else nothing
        low, high = bootstrap_interval(kept) if len(kept) > 1 else (nothing, nothing)
        mended = (
            (found.shares, found.low, found.high) if found.helps else (nothing, nothing, nothing)
        )
        for name, values in (("overall", (whole, low, high)), ("overall_corrected", mended)):
            for suffix, value in zip(("", "_low", "_high"), values, strict=True):
                variables[name + suffix] = xr.Variable(
                    "pattern", value.astype(np.float32), {"units": "share of maps"}
                )
            words = {"long_name": f"examples behind {name}"}
            behind = np.full(len(PATTERNS), len(kept) if name == "overall" or found.helps else 0)
            variables[f"{name}_n"] = xr.Variable("pattern", behind, words)
        words = {"long_name": "held-out labelled maps by true and by said pattern"}
        variables["confusion"] = xr.Variable(
            ("pattern", "said"), errors.counts.astype(np.int64), words
        )
        coords = layer_head_coords(shape) | {
            "pattern": np.array(PATTERNS),
            "said": np.array(PATTERNS),
        }
        short = int(len(per_example) - len(kept))
        attrs = {
            "short_examples": short,
            "error_model": errors.origin,
            "correction_helps": int(found.helps),
        }
        return xr.Dataset(variables, coords=coords, attrs=attrs)

    def _errors(self, shape: Shape) -> ErrorModel:
        """The classifier's mistakes on such a model: heads that it saw others of, or a model it
        never saw."""
        if self.classifier:
            counts = (
                self._classifier.confusion_causal if shape.causal else self._classifier.confusion
            )
            return ErrorModel(counts[None], origin=f"held-out maps of {Path(self.classifier).name}")
        seen = seen_in_training(str(shape.extras.get("model", "")), shape.layers, shape.heads)
        return shipped_errors(seen, shape.causal)

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        """Patterns that more than half of a head's maps show, by the lower end of the interval."""
        return dataset["proportion_low"].drop_sel(pattern="heterogeneous") > MIN_SHARE

    def summary(self, dataset: xr.Dataset) -> list[str]:
        counted, corrected = dataset["overall"], dataset["overall_corrected"]
        if counted.isnull().all():
            return [f"No example has {self.min_tokens} tokens or more, so no map was looked at."]
        if corrected.isnull().all():
            shares = ", ".join(
                f"{name} {_percent(dataset, 'overall', k)}" for k, name in enumerate(PATTERNS)
            )
            labelled = dataset["confusion"].values
            why = "a correction for the classifier's confusion would do more harm than good here"
            right = (
                f"{100 * np.trace(labelled) / max(labelled.sum(), 1):.0f} % of {labelled.sum():,}"
            )
            return [
                f"Of all maps, as counted ({why}; it is right on {right} labelled maps): {shares}"
            ]
        shares = ", ".join(
            f"{name} {_percent(dataset, 'overall', k)}, corrected {_percent(dataset, 'overall_corrected', k)}"
            for k, name in enumerate(PATTERNS)
        )
        return [f"Of all maps, as counted and corrected for the classifier's confusion: {shares}"]


def _percent(dataset: xr.Dataset, name: str, place: int) -> str:
    """A share of maps in per cent, with its interval where there is one."""
    share, low, high = (
        100 * float(dataset[name + suffix][place]) for suffix in ("", "_low", "_high")
    )
    return f"{share:.0f} %" + ("" if np.isnan(low) else f" ({low:.0f} to {high:.0f})")
