"""The result of `track`: measures and labels over steps, the step at which each head changes, and
the table of births."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headwise.analyses.papers import reference
from headwise.atlas import Atlas
from headwise.atlas.describe import describe_heads
from headwise.atlas.tables import long_table
from headwise.core.errors import ParameterError, unknown
from headwise.core.labels import SIGNIFICANCE_LEVEL, head_name
from headwise.core.store import Facts
from headwise.core.workers import UnitResult
from headwise.experiments.track.options import TrackOptions
from headwise.experiments.track.series import TrackedModel
from headwise.stats.change_points import chance_p, fit_step, largest_gaps_by_chance

HEADS = ("layer", "head")
ARRAYS = ("value", "low", "high")
MOST_NUMBERS = 8  # numeric labels of a measure, such as offsets; one with more is a curve
CHANCE_DRAWS = 3_999  # the smallest p-value is 1 / 4,000, before it is corrected over measures
# The measures whose births are listed, in the words of a reader. A rise means that the head begins
# to do it.
BEHAVIOURS = {
    "surface.position.-1": "previous token",
    "surface.position.1": "next token",
    "induction.prefix_matching": "induction",
    "induction.duplicate": "duplicate",
    "sinks.first": "first token",
    "surface.mass.sep": "closing token",
}
BIRTH_COLUMNS = (
    "head",
    "behaviour",
    "measure",
    "born_after",
    "born_by",
    "earliest",
    "latest",
    "before",
    "after",
    "share",
    "p",
    "label",
)


@dataclass(slots=True, eq=False)
class ModelMeasures:
    """The measures of one model.

    `value`, `low`, `high` are `[measure, layer, head]`, `label` and `category` `[layer, head]`."""

    measures: list[str]
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    label: np.ndarray
    category: np.ndarray
    loss: float = np.nan
    loss_low: float = np.nan
    loss_high: float = np.nan

    def pack(self) -> UnitResult:
        """Return arrays and facts, as a checkpoint holds them."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays["loss"] = np.array([self.loss, self.loss_low, self.loss_high])
        facts = {
            "measures": self.measures,
            "label": self.label.tolist(),
            "category": self.category.tolist(),
        }
        return arrays, facts

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], facts: Facts) -> ModelMeasures:
        """Return what `pack` has packed."""
        loss, loss_low, loss_high = arrays["loss"].tolist()
        return cls(
            measures=list(facts["measures"]),
            value=arrays["value"],
            low=arrays["low"],
            high=arrays["high"],
            label=np.array(facts["label"], dtype=str),
            category=np.array(facts["category"], dtype=str),
            loss=loss,
            loss_low=loss_low,
            loss_high=loss_high,
        )


def measures_of(atlas: Atlas, layers: int, heads: int) -> ModelMeasures:
    """Return every measure of every head of an atlas, and the labels of its heads.

    p-values are left out, since they say nothing new of a series, and so are curves."""
    table = long_table(atlas)
    table = table[table["layer"].notna() & table["head"].notna()]
    is_p_value = table["variable"].str.contains(r"(?:^|_)p(?:_adjusted)?$")
    table = table[~is_p_value.astype(bool)]
    names: list[str] = []
    planes: dict[str, list[np.ndarray]] = {name: [] for name in ARRAYS}
    for (analysis, variable), rows in table.groupby(["analysis", "variable"], sort=False):
        if _is_curve(atlas[str(analysis)][str(variable)]):
            continue
        for item, values in rows.groupby("item", sort=False):
            parts = [analysis, variable, *str(item).split()]
            names.append(".".join(parts))
            place = (values["layer"].to_numpy(int), values["head"].to_numpy(int))
            for name, column in (("value", "value"), ("low", "low"), ("high", "high")):
                plane = np.full((layers, heads), np.nan)
                plane[place] = values[column].to_numpy(float)
                planes[name].append(plane)
    labels = describe_heads(atlas, layers, heads)
    shape = (layers, heads)
    return ModelMeasures(
        measures=names,
        value=np.array(planes["value"]),
        low=np.array(planes["low"]),
        high=np.array(planes["high"]),
        label=labels["does"].astype(str).to_numpy(str).reshape(shape),
        category=labels["kind"].astype(str).to_numpy(str).reshape(shape),
    )


def _is_curve(array: xr.DataArray) -> bool:
    """Return whether a variable is a function of a number: a histogram, a profile by offset."""
    for dim in array.dims:
        labels = array.get_index(dim)
        if dim not in HEADS and labels.dtype.kind in "iuf" and len(labels) > MOST_NUMBERS:
            return True
    return False


@dataclass(frozen=True, slots=True, eq=False)
class SeriesMeasures:
    """The measures of all models of a series, and of random weights of their shape."""

    series: Sequence[TrackedModel]
    models: Sequence[ModelMeasures]
    random: Sequence[ModelMeasures]
    examples: int
    corpus: str
    options: TrackOptions


def track_dataset(measured: SeriesMeasures) -> xr.Dataset:
    """Return all variables of a series; see `track`."""
    # A measure counts if all models have it: a random model may lack one that depends on a result.
    measures = list(measured.models[0].measures)
    for model in (*measured.models[1:], *measured.random):
        measures = [name for name in measures if name in model.measures]
    measures = _with_values(measured.models, measures)
    steps = np.array([model.step for model in measured.series])
    dims = ("step", "measure", *HEADS)
    variables: dict[str, Any] = {}
    for name in ARRAYS:
        variables[name] = (dims, _stacked(measured.models, measures, name).astype(np.float32))
    for name in ("label", "category"):
        by_step = np.array([getattr(model, name) for model in measured.models], dtype=str)
        variables[name] = (("step", *HEADS), by_step)
    variables["label_since"] = (HEADS, _label_since(variables["label"][1], steps))
    for name in ("loss", "loss_low", "loss_high"):
        variables[name] = ("step", np.array([getattr(model, name) for model in measured.models]))
    values = _stacked(measured.models, measures, "value")
    random_values = _stacked(measured.random, measures, "value")
    # Half the width of a 95 % interval is about two standard errors.
    errors = _stacked(measured.models, measures, "high") - _stacked(
        measured.models, measures, "low"
    )
    errors = np.nan_to_num(errors / 4)
    variables |= _change_variables(values, errors, random_values, steps, measured.options.seed)
    coords = {
        "step": steps,
        "model": ("step", [model.name for model in measured.series]),
        "measure": measures,
        "layer": np.arange(values.shape[2]),
        "head": np.arange(values.shape[3]),
    }
    attributes = {
        "title": "What each head does over training",
        **reference("olsson2022").attributes("Argument 1"),
        "examples": measured.examples,
        "corpus": measured.corpus,
        "random_models": len(measured.random),
        "least": measured.options.least,
        "shown": shown_measures(measures, measured.options.measures),
    }
    return xr.Dataset(variables, coords, attributes)


def _with_values(models: Sequence[ModelMeasures], measures: Sequence[str]) -> list[str]:
    """Return the measures that some head has: a decoder attends to no next token, say."""
    has_value = np.isfinite(_stacked(models, measures, "value")).any((0, 2, 3))
    return [name for name, present in zip(measures, has_value, strict=True) if present]


def shown_measures(measures: Sequence[str], chosen: Sequence[str] | None) -> list[str]:
    """Return the measures whose births are listed: those chosen, or those of `BEHAVIOURS`."""
    if chosen is None:
        shown = [name for name in BEHAVIOURS if name in measures]
        return shown or list(measures[:4])
    for name in chosen:
        if name not in measures:
            raise ParameterError(unknown("measure", name, list(measures)), option="measures")
    return list(chosen)


def _stacked(models: Sequence[ModelMeasures], measures: Sequence[str], name: str) -> np.ndarray:
    """Return one array of all models, `[model, measure, layer, head]`."""
    planes = []
    for model in models:
        order = [model.measures.index(measure) for measure in measures]
        planes.append(getattr(model, name)[order])
    return np.array(planes)


def _label_since(labels: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the first step from which each head has its last label without a break."""
    is_last_label = labels == labels[-1]
    # Counted from the end: the steps before the first other label.
    n_steps_with_it = is_last_label[::-1].cumprod(0).sum(0)
    return np.asarray(steps[len(steps) - n_steps_with_it])


def _change_variables(
    values: np.ndarray,
    errors: np.ndarray,
    random_values: np.ndarray,
    steps: np.ndarray,
    seed: int,
) -> dict[str, Any]:
    """Return the best step of each measure of each head, with interval and p-value.

    Parameters
    ----------
    values, random_values : array
        `[model, measure, layer, head]` of the series and of the random-weights models.
    errors : array
        Standard errors of `values`; 0 where they are not known.
    steps : array
        The step of each model.
    seed : int
        Of the draws by chance.
    """
    fit = fit_step(np.moveaxis(values, 0, -1))
    error = np.sqrt((errors**2).mean(0))
    p = np.full(fit.gap.shape, np.nan)
    for number in range(len(p)):
        p[number] = _p_against_random(
            fit.gap[number],
            fit.size[number],
            random_values[:, number],
            error[number],
            len(steps),
            seed,
        )
    # Family-wise over heads by the largest of all, over measures by Bonferroni.
    n_tested = max(1, int(np.isfinite(p).any((1, 2)).sum()))
    dims = ("measure", *HEADS)
    return {
        "change_step": (dims, steps[fit.first_after], {"long_name": "first step after the change"}),
        "change_before": (dims, steps[fit.first_after - 1], {"long_name": "last step before it"}),
        "change_low": (dims, steps[fit.low], {"long_name": "earliest plausible change_step"}),
        "change_high": (dims, steps[fit.high], {"long_name": "latest plausible change_step"}),
        "change_size": (dims, fit.size, {"long_name": "mean after minus mean before"}),
        "change_share": (dims, fit.share, {"long_name": "share of the sum of squares"}),
        "change_p": (dims, p, {"long_name": "p against random weights, family-wise over heads"}),
        "change_p_adjusted": (
            dims,
            np.minimum(1.0, p * n_tested),
            {"long_name": "p, corrected over measures too"},
        ),
    }


def _p_against_random(
    gaps: np.ndarray,
    sizes: np.ndarray,
    random_values: np.ndarray,
    errors: np.ndarray,
    n_steps: int,
    seed: int,
) -> np.ndarray:
    """Return the p-value of the step of each head in one measure, family-wise over heads.

    The null: at every step the head is a new head of random weights in the same layer.

    Parameters
    ----------
    gaps, sizes : array
        `[layer, head]` of the fitted steps.
    random_values : array
        `[model, layer, head]` of the random-weights models.
    errors : array
        `[layer, head]`: the standard error of a single value.
    n_steps : int
        Models of the series.
    seed : int
        Of the draws.
    """
    n_layers = len(gaps)
    pools = np.moveaxis(random_values, 0, -1).reshape(n_layers, -1)
    if not np.isfinite(pools).all():
        return np.full(gaps.shape, np.nan)
    # In units of what a value varies by chance, so that the largest gap counts in every layer.
    scales = np.sqrt(pools.var(-1, ddof=1)[:, None] + errors**2)
    smallest = 1e-6 * max(1.0, float(np.abs(pools).max()))
    scales = np.maximum(scales, smallest)
    p = np.full(gaps.shape, np.nan)
    for sign in (1, -1):
        # A fall is a rise of the negative values; the two directions are two tests.
        draws = largest_gaps_by_chance(sign * pools, errors, scales, n_steps, CHANCE_DRAWS, seed)
        one_sided = chance_p(gaps / scales, draws)
        p = np.where(np.sign(sizes) == sign, np.minimum(1.0, 2 * one_sided), p)
    return p


def births(dataset: xr.Dataset) -> pd.DataFrame:
    """Return the births, by step: significant rises of the measures in the attribute `shown`, by at
    least the attribute `least`.

    Parameters
    ----------
    dataset : Dataset
        The result of `track`.

    Returns
    -------
    DataFrame
        A row for each birth: `head`, `behaviour`, `measure`; it was born after the step
        `born_after` and by `born_by` (`earliest`, `latest`: 95 % interval of `born_by`); the mean
        `before` and `after`; the `share` of the sum of squares that the step explains; the
        corrected `p`; the last `label` of the head.
    """
    rows = []
    for measure in np.atleast_1d(dataset.attrs["shown"]):
        one = dataset.sel(measure=str(measure))
        is_significant = one["change_p_adjusted"] < SIGNIFICANCE_LEVEL
        is_birth = is_significant & (one["change_size"] >= dataset.attrs["least"])
        for layer, head in np.argwhere(is_birth.transpose(*HEADS).values).tolist():
            place = one.isel(layer=layer, head=head)
            series = place["value"].values.astype(float)
            is_after = dataset["step"].values >= float(place["change_step"])
            rows.append(
                (
                    head_name(layer, head),
                    BEHAVIOURS.get(str(measure), str(measure)),
                    str(measure),
                    float(place["change_before"]),
                    float(place["change_step"]),
                    float(place["change_low"]),
                    float(place["change_high"]),
                    float(series[~is_after].mean()),
                    float(series[is_after].mean()),
                    float(place["change_share"]),
                    float(place["change_p_adjusted"]),
                    str(place["label"].values[-1]),
                )
            )
    table = pd.DataFrame(rows, columns=list(BIRTH_COLUMNS))
    return table.sort_values(["born_by", "behaviour", "head"], ignore_index=True)
