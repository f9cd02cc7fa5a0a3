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
    CorrectedShares,
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
from headwise.stats.records import Records
from headwise.stats.units import mean_over_units
from headwise.text.encode import Batch

DIMS = ("layer", "head", "pattern")
# Maps that are classified at once. 256 do not fit into the cache of a CPU, which then takes 1.6
# times as long for each.
MAPS_AT_ONCE = {"cpu": 64, "cuda": 256}


@dataclass(frozen=True)
class Patterns(Observer):
    """Classify a head's maps as vertical, diagonal, vertical+diagonal, block or heterogeneous, and
    count them.

    Every map `A[l, h]` of every example is brought to one size (`headwise.analyses.patterns.maps`)
    and classified by a network of eight convolutions; its class is the most probable one (Kovaleva
    et al. 2019, §4.1).

    - `proportion[layer, head, pattern]`: share of examples whose map is classified so, with Wilson's
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
        A weights file written by `tools/train_patterns`; default: the shipped one.

    Notes
    -----
    Question: Which of five patterns (vertical, diagonal, both, block, heterogeneous) does each
    head make?

    Assumes: What labellers call these kinds on small pictures of maps; the classifier was trained
    on maps of three models and on planted ones.

    Pitfalls: The classifier errs, more on models it never saw (`data/patterns/RESULTS.md` has its
    measured error: macro F1 0.62 to 0.77 there, where two labellers have 0.83 to 0.84 with each
    other): shares that differ by a few points cannot be distinguished. A dark first column over
    unordered content is where labellers part too. A map brought to one size loses thin lines of
    long inputs. Single sentences have no blocks.

    Cost: All maps of an example in memory at once, and a small network on each
    (`benchmarks/bench_patterns.py`)."""

    min_tokens: int = 6
    classifier: str = ""

    name: ClassVar[str] = "patterns"
    title: ClassVar[str] = "The five patterns of attention maps"
    paper: ClassVar[Paper] = Paper("kovaleva2019", "§4.1, Fig 1-2")
    budget: ClassVar[int | None] = 40
    # Its network takes several times what the model takes.
    apart: ClassVar[bool] = True
    typical_passes: ClassVar[float] = 10.0

    def __post_init__(self) -> None:
        at_least("min_tokens", self.min_tokens, 1)
        if self.classifier:
            load_classifier(Path(self.classifier))

    @cached_property
    def _classifier(self) -> PatternClassifier:
        if self.classifier:
            return load_classifier(Path(self.classifier))
        return shipped_classifier()

    def max_examples(self, shape: Shape) -> int | None:
        # A network on every map costs more than the pass, and grows with the number of heads.
        return Analysis.max_examples(self, shape)

    # --- the pass ---------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        by_head = (shape.layers, shape.heads, len(PATTERNS))
        return State(
            said=Moments(*by_head),
            probability=Moments(*by_head),
            example=Records(shape.layers, len(PATTERNS)),
        )

    def reduce_rows(self, rows: AttentionRows, batch: Batch) -> Mapping[str, Tensor]:
        weights = rows.weights
        if rows.sink is not None:
            # A learned sink is no token: the rows of a map sum to one without it.
            tiny = torch.finfo(weights.dtype).tiny
            weights = weights / (1 - rows.sink.unsqueeze(-1)).clamp(min=tiny)
        return {
            "mass": shrink(weights, batch.lengths, rows.start),
            "pairs": shrink_visible(rows.visible, batch.lengths, rows.start),
        }

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        mass = sums["mass"]
        visible_pairs = sums["pairs"]
        heads = mass.shape[1]
        classifier = self._classifier_on(mass.device)
        examples_at_once = max(MAPS_AT_ONCE.get(mass.device.type, 64) // heads, 1)
        parts = []
        for start in range(0, len(mass), examples_at_once):
            part = slice(start, start + examples_at_once)
            maps = images(mass[part].float(), visible_pairs[part], batch.lengths[part])
            probabilities = classifier.probabilities(maps.flatten(0, 1))
            parts.append(probabilities.view(-1, heads, len(PATTERNS)))
        probability = torch.cat(parts).double().cpu()
        predicted = torch.nn.functional.one_hot(probability.argmax(-1), len(PATTERNS)).double()
        is_short = batch.lengths.cpu() < self.min_tokens
        probability[is_short] = torch.nan
        predicted[is_short] = torch.nan
        where = (layer.layer,)
        state.moments("said").add(predicted, where)
        state.moments("probability").add(probability, where)
        state.records("example").add(batch.index, predicted.mean(1), where)

    def _classifier_on(self, device: torch.device) -> PatternClassifier:
        classifier = self._classifier
        if next(classifier.networks[0].parameters()).device != device:
            classifier = classifier.to(device)
            # Replaces the value of the cached property: the next batch finds it there.
            self.__dict__["_classifier"] = classifier
        return classifier

    # --- the result -------------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        predicted = state.moments("said")
        count = predicted.count.numpy()
        mean = predicted.mean.numpy()
        variables = mean_variables("proportion", DIMS, predicted, units="share of examples")
        low, high = predicted.share_interval()
        variables["proportion_low"].values[:] = low
        variables["proportion_high"].values[:] = high
        variables |= mean_variables(
            "probability", DIMS, state.moments("probability"), units="probability"
        )

        errors = self._errors(shape)
        # The mean over layers is that over heads: every layer has as many.
        records = state.records("example")
        per_example = records.values.mean(1)
        units = records.units
        corrected = corrected_with_interval(per_example, errors, units=units)
        shares = np.where((count > 0) & corrected.helps, mean, np.nan)
        corrected_proportion = corrected_shares(shares, said_given_true(errors.counts))
        variables["proportion_corrected"] = xr.Variable(
            DIMS,
            corrected_proportion.astype(np.float32),
            {
                "units": "share of examples",
                "long_name": "proportion corrected for the classifier's confusion",
            },
        )
        is_long_enough = ~np.isnan(per_example).any(-1)
        long_enough = per_example[is_long_enough]
        variables |= _overall_variables(long_enough, units[is_long_enough], corrected)
        variables["confusion"] = xr.Variable(
            ("pattern", "said"),
            errors.counts.astype(np.int64),
            {"long_name": "held-out labelled maps by true and by predicted pattern"},
        )
        coords = layer_head_coords(shape) | {
            "pattern": np.array(PATTERNS),
            "said": np.array(PATTERNS),
        }
        attrs = {
            "short_examples": len(per_example) - len(long_enough),
            "error_model": errors.origin,
            "correction_helps": int(corrected.helps),
        }
        return xr.Dataset(variables, coords=coords, attrs=attrs)

    def _errors(self, shape: Shape) -> ErrorModel:
        """Return the classifier's errors on such a model: one whose other heads it was trained on,
        or one it never saw."""
        if self.classifier:
            classifier = self._classifier
            counts = classifier.confusion_causal if shape.causal else classifier.confusion
            return ErrorModel(counts[None], origin=f"held-out maps of {Path(self.classifier).name}")
        model_name = str(shape.extras.get("model", ""))
        seen = seen_in_training(model_name, shape.layers, shape.heads)
        return shipped_errors(seen, shape.causal)

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        """Return patterns that more than half of a head's maps show, by the lower end of the
        interval."""
        return dataset["proportion_low"].drop_sel(pattern="heterogeneous") > MIN_SHARE

    def summary(self, dataset: xr.Dataset) -> list[str]:
        if dataset["overall"].isnull().all():
            return [f"No example has {self.min_tokens} tokens or more, so no map was classified."]
        if dataset["overall_corrected"].isnull().all():
            shares = []
            for place, name in enumerate(PATTERNS):
                shares.append(f"{name} {_percent(dataset, 'overall', place)}")
            confusion = dataset["confusion"].values
            n_labelled = confusion.sum()
            accuracy = 100 * np.trace(confusion) / max(n_labelled, 1)
            return [
                "Of all maps, as counted (a correction for the classifier's confusion would do "
                f"more harm than good here; it is right on {accuracy:.0f} % of {n_labelled:,} "
                f"labelled maps): {', '.join(shares)}"
            ]
        shares = []
        for place, name in enumerate(PATTERNS):
            counted = _percent(dataset, "overall", place)
            corrected = _percent(dataset, "overall_corrected", place)
            shares.append(f"{name} {counted}, corrected {corrected}")
        return [
            "Of all maps, as counted and corrected for the classifier's confusion: "
            f"{', '.join(shares)}"
        ]


def _overall_variables(
    per_example: np.ndarray, units: np.ndarray, corrected: CorrectedShares
) -> dict[str, xr.Variable]:
    """Return the shares over all heads and examples, as counted and corrected, with intervals and
    the number of examples."""
    n_examples = len(per_example)
    unknown = np.full(len(PATTERNS), np.nan)
    counted = [unknown, unknown, unknown]
    if n_examples:
        mean = mean_over_units(per_example, units)
        low, high = mean.interval()
        counted = [mean.value, np.clip(low, 0, 1), np.clip(high, 0, 1)]
    after_correction = [unknown, unknown, unknown]
    if corrected.helps:
        after_correction = [corrected.shares, corrected.low, corrected.high]

    variables = {}
    for name, values, n_behind in (
        ("overall", counted, n_examples),
        ("overall_corrected", after_correction, n_examples if corrected.helps else 0),
    ):
        for suffix, array in zip(("", "_low", "_high"), values, strict=True):
            variables[name + suffix] = xr.Variable(
                "pattern", array.astype(np.float32), {"units": "share of maps"}
            )
        variables[f"{name}_n"] = xr.Variable(
            "pattern",
            np.full(len(PATTERNS), n_behind),
            {"long_name": f"examples behind {name}"},
        )
    return variables


def _percent(dataset: xr.Dataset, name: str, place: int) -> str:
    """Return a share of maps in per cent, with its interval if there is one."""
    share = 100 * float(dataset[name][place])
    low = 100 * float(dataset[f"{name}_low"][place])
    high = 100 * float(dataset[f"{name}_high"][place])
    if np.isnan(low):
        return f"{share:.0f} %"
    return f"{share:.0f} % ({low:.0f} to {high:.0f})"
