"""Every measure of every head, in display order: the list behind the page, the explorer and
notebooks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.contract import known_analyses
from headwise.atlas.role_words import role_words
from headwise.atlas.tables import LEADING_MEASURES, measures
from headwise.core.labels import labels_of, variable_of

# The arrays that belong to a measure (count, interval, p-value, reference), by field of `Measure`.
Companions = Mapping[str, xr.DataArray | None]
HEADS = ("layer", "head")
# Dims of comparisons: they say whose values these are, and are no label of the measure.
MODEL_DIMS = ("model", "model_all")
MOST_ITEMS = 160  # labels of a measure; one with more is a curve
# Positions in a list, curves, single inputs: too many values for a measure of a head.
UNSHOWN_DIMS = frozenset({"rank", "choice", "bin", "token", "source_token", "threshold"})
P_VALUE = re.compile(r"(?:^|_)p(?:_value|_adjusted|_family|_holm|_fdr)?$")
KIND_ORDER = {"value": 0, "flag": 1, "p": 2}
# From what a head attends to, to the relations it follows, to what heads do together. Groups that
# are not named here come last.
READING_ORDER = (
    "surface",
    "offsets",
    "patterns",
    "roles",
    "features",
    "token_pairs",
    "dependency",
    "coreference",
    "frames",
    "sinks",
    "opening_token",
    "induction",
    "examples",
    "retrieval",
    "function_vectors",
    "logits",
    "copy_suppression",
    "successors",
    "circuits",
    "distance",
    "gradient",
    "attribution",
    "probing",
    "tree_probe",
    "ablation",
    "cache",
)
# The reference of a measure: the variable that holds it, and its name for readers.
REFERENCES = {
    ("dependency", "accuracy"): ("bar", "best baseline"),
    ("coreference", "accuracy"): ("bar", "best rule"),
    ("roles", "bias"): ("random_bound", "no random head passes"),
    ("roles", "bias_rest"): ("bias_rest_bound", "no random head passes"),
    ("features", "excess"): ("random_bound", "no random head passes"),
    ("features", "attention"): ("uniform", "uniform attention"),
    ("token_pairs", "excess"): ("random_bound", "no random head passes"),
    ("token_pairs", "pair_mean"): ("expected", "expected of matched pairs"),
    ("frames", "score"): ("expected", "expected of links elsewhere"),
    ("sinks", "first"): ("uniform", "uniform attention"),
    ("probing", "accuracy"): ("majority", "majority label"),
    ("surface", "mass"): ("mass_uniform", "uniform attention"),
    ("surface", "position"): ("position_uniform", "uniform attention"),
    ("surface", "entropy"): ("entropy_uniform", "uniform attention"),
    ("induction", "prefix_matching"): ("uniform", "uniform attention"),
    ("induction", "duplicate"): ("uniform", "uniform attention"),
    ("successors", "share"): ("chance", "chance"),
}
# Along these dims, the value at the better label of each head is a measure of its own.
BETTER_OF = {("dependency", "accuracy"): "direction"}


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """One number for each head, with its definition, count, interval, p-value and reference.

    Parameters
    ----------
    group, variable : str
        The analysis and the variable in its dataset.
    item : tuple of str
        The labels of the measure: `obj`, `dependent_to_head`.
    values : ndarray
        `[layer, head]`; NaN where there is no value.
    label : str
        The name for readers.
    kind : {"value", "flag", "p"}
        A number, 0 or 1, or a p-value.
    unit, definition, paper : str
        What a reader must know.
    leading : bool
        Whether readers look for it first.
    model : str
        In comparisons, the model that the values belong to.
    n : tuple of int, optional
        The smallest and the largest number of examples over heads.
    over : str
        What the interval is taken over.
    low, high : ndarray, optional
        The 95 % interval.
    p : ndarray, optional
        The corrected p-value.
    against : ndarray, optional
        The reference that the measure is compared with; `against_name` says what it is.
    asked : tuple of str
        Short names for filter expressions.
    """

    group: str
    variable: str
    item: tuple[str, ...]
    values: np.ndarray
    label: str
    kind: str = "value"
    unit: str = ""
    definition: str = ""
    paper: str = ""
    leading: bool = False
    model: str = ""
    n: tuple[int, int] | None = None
    over: str = ""
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    p: np.ndarray | None = None
    against: np.ndarray | None = None
    against_name: str = ""
    asked: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A name that is unique in an atlas: `surface.mass.cls`."""
        parts = [self.group, self.variable, *self.item]
        if self.model:
            parts.append(self.model)
        return ".".join(parts)


def group_order(name: str) -> tuple[int, str]:
    """Return the key that sorts groups into reading order."""
    base = name.removeprefix("change_")
    if base in READING_ORDER:
        return READING_ORDER.index(base), name
    return len(READING_ORDER), name


def head_measures(datasets: Mapping[str, xr.Dataset]) -> list[Measure]:
    """Return every measure over heads of an atlas, in display order.

    Within a group the leading measures come first, flags and p-values last.

    Parameters
    ----------
    datasets : mapping of str to xarray.Dataset
        An atlas, or groups by name. Variables without the dims `layer` and `head`, curves, and the
        `_n`, `_low`, `_high` of other variables are no measures of their own.

    Returns
    -------
    list of Measure
        With unique names; a measure without any number is left out.
    """
    by_name: dict[str, Measure] = {}
    for group in sorted(datasets, key=group_order):
        dataset = datasets[group]
        group_measures: list[Measure] = []
        for variable in _measure_variables(group, dataset):
            group_measures.extend(_measures_of(group, dataset, variable))
        # The sort is stable: otherwise the order of the file stays.
        group_measures.sort(key=lambda measure: (not measure.leading, KIND_ORDER[measure.kind]))
        for measure in group_measures:
            if np.isfinite(measure.values).any():
                by_name.setdefault(measure.name, measure)
    return list(by_name.values())


def _measure_variables(group: str, dataset: xr.Dataset) -> list[str]:
    """Return the variables of a group that are measures over heads, the leading ones first."""
    names = [name for name in measures(dataset) if _is_head_measure(dataset[name])]
    leading = [name for name in LEADING_MEASURES.get(group, ()) if name in names]
    return leading + [name for name in names if name not in leading]


def _is_head_measure(array: xr.DataArray) -> bool:
    dims = set(map(str, array.dims))
    if not set(HEADS) <= dims or dims & UNSHOWN_DIMS or array.dtype.kind not in "fiub":
        return False
    n_items = 1
    for dim in dims - {*HEADS, *MODEL_DIMS}:
        n_items *= array.sizes[dim]
    return n_items <= MOST_ITEMS


def _measures_of(group: str, dataset: xr.Dataset, variable: str) -> Iterator[Measure]:
    """Yield one measure for each combination of the labels of a variable."""
    array = dataset[variable]
    label_dims = [str(dim) for dim in array.dims if dim not in HEADS]
    facts = _facts(group, dataset, variable)
    companions: dict[str, xr.DataArray | None] = {}
    for field in ("n", "low", "high"):
        companions[field] = _aligned(array, variable_of(dataset, f"{variable}_{field}"))
    companions["p"] = _p_values(group, dataset, variable)
    companions["against"] = None
    if (group, variable) in REFERENCES:
        reference, reference_name = REFERENCES[group, variable]
        companions["against"] = _aligned(array, variable_of(dataset, reference))
        if companions["against"] is not None:
            facts["against_name"] = reference_name
    better_dim = BETTER_OF.get((group, variable))
    if better_dim in label_dims:
        yield from _at_better_label(facts, array, companions, label_dims, better_dim)
    yield from _for_each_label(facts, array, companions, label_dims)


def _for_each_label(
    facts: dict[str, Any],
    array: xr.DataArray,
    companions: Companions,
    label_dims: list[str],
    note: str = "",
) -> Iterator[Measure]:
    labels = [labels_of(array, dim) for dim in label_dims]
    planes: dict[str, np.ndarray | None] = {}
    for field, companion in {"values": array, **companions}.items():
        planes[field] = None
        if companion is not None:
            ordered = companion.transpose(*label_dims, *HEADS)
            planes[field] = np.asarray(ordered.values, dtype=float)
    counts = planes.pop("n")
    for index in np.ndindex(*map(len, labels)):
        item = []
        model = ""
        for dim, dim_labels, position in zip(label_dims, labels, index, strict=True):
            if dim not in MODEL_DIMS:
                item.append(dim_labels[position])
            elif not model:
                model = dim_labels[position]
        label = str(facts["variable"]).replace("_", " ")
        item_text = " ".join(item).replace("_", " ")
        if facts["group"] == "roles":
            item_text = " ".join(role_words(name) for name in item)
        if item_text:
            label = f"{label}: {item_text}"
        measure_planes: dict[str, Any] = {}
        for field, plane in planes.items():
            measure_planes[field] = None if plane is None else plane[index]
        yield Measure(
            **facts,
            **measure_planes,
            item=tuple(item),
            label=label + note,
            model=model,
            n=None if counts is None else _range_of(counts[index]),
            asked=_short_names(facts, item),
        )


def _range_of(counts: np.ndarray) -> tuple[int, int] | None:
    known = counts[np.isfinite(counts)]
    if not known.size:
        return None
    return int(known.min()), int(known.max())


def _short_names(facts: Mapping[str, Any], item: list[str]) -> tuple[str, ...]:
    """Return the short names for filters: the last label of a leading measure, or the variable."""
    if not item:
        return (facts["variable"],)
    if facts["leading"]:
        return (item[-1],)
    return ()


def _at_better_label(
    facts: dict[str, Any],
    array: xr.DataArray,
    companions: Companions,
    label_dims: list[str],
    dim: str,
) -> Iterator[Measure]:
    """Yield the measures at the label of `dim` where each head has the largest value."""
    best = array.fillna(-np.inf).argmax(dim)
    at_best: dict[str, xr.DataArray | None] = {}
    for field, companion in companions.items():
        if companion is not None and dim in companion.dims:
            companion = companion.isel({dim: best})
        at_best[field] = companion
    other_dims = [label_dim for label_dim in label_dims if label_dim != dim]
    note = f" (better {dim})"
    yield from _for_each_label(facts, array.isel({dim: best}), at_best, other_dims, note)


def _aligned(array: xr.DataArray, companion: xr.DataArray | None) -> xr.DataArray | None:
    """Return an array with the dims of the measure it belongs to; None where it is not numeric."""
    if companion is None or companion.dtype.kind not in "fiub":
        return None
    extra_dims = [dim for dim in companion.dims if dim not in array.dims]
    if extra_dims:
        # Of several p-values or baselines the largest is the one that must be passed.
        companion = companion.max(extra_dims)
    if set(companion.dims) != set(array.dims):
        companion = companion.broadcast_like(array)
    return companion


def _p_values(group: str, dataset: xr.Dataset, variable: str) -> xr.DataArray | None:
    """Return the corrected p-values of a variable."""
    name = f"{variable}_p_adjusted"
    if name not in dataset:
        # A group's `p_adjusted` tests its first measure.
        if variable not in LEADING_MEASURES.get(group, ())[:1] or "p_adjusted" not in dataset:
            return None
        name = "p_adjusted"
    return _aligned(dataset[variable], variable_of(dataset, name))


def _facts(group: str, dataset: xr.Dataset, variable: str) -> dict[str, Any]:
    """Return the fields of `Measure` that are the same for all labels of a variable."""
    array = dataset[variable]
    kind = "value"
    if array.dtype.kind == "b":
        kind = "flag"
    elif P_VALUE.search(variable):
        kind = "p"
    if group in LEADING_MEASURES:
        leading = variable in LEADING_MEASURES[group]
    else:
        leading = kind == "value"
    low = variable_of(dataset, f"{variable}_low")
    long_name = str(array.attrs.get("long_name", ""))
    title = str(dataset.attrs.get("title", ""))
    return {
        "group": group,
        "variable": variable,
        "kind": kind,
        "unit": str(array.attrs.get("units", "")),
        "definition": definition(group, variable, long_name, title),
        "paper": paper_of(dataset),
        "leading": leading,
        "over": "" if low is None else str(low.attrs.get("over", "")),
    }


def paper_of(dataset: xr.Dataset) -> str:
    """Return the paper and the section that a group follows: "Clark et al. 2019, Table 1"."""
    parts = (dataset.attrs.get("paper"), dataset.attrs.get("section"))
    return ", ".join(str(part) for part in parts if part)


def definition(group: str, variable: str, long_name: str = "", title: str = "") -> str:
    """Return the definition of a measure: from its long name and its analysis, else the title.

    >>> definition("surface", "max_weight")
    '`max_weight[layer, head]`: `max_j A[i, j]`'
    """
    if group.startswith("change_") and not long_name:
        base, _, statistic = variable.rpartition("_")
        introductions = {
            "mean": "Mean of each model",
            "change": "Mean difference to the first model, on the same examples",
        }
        if statistic in introductions:
            base_definition = definition(group.removeprefix("change_"), base)
            sentences = [introductions[statistic], base_definition]
            return ". ".join(filter(None, sentences))
    sentences = [long_name]
    for clause in clauses(group):
        if _defines(clause, variable):
            sentences.append(clause)
            break
    return ". ".join(filter(None, sentences)) or title


@cache
def clauses(group: str) -> tuple[str, ...]:
    """Return the definitions in the docstring of a group's analysis, clause by clause."""
    analysis = known_analyses().get(group.removeprefix("change_"))
    if analysis is None:
        return ()
    text = (analysis.__doc__ or "").partition("\n    Parameters\n")[0]
    # Clauses end at list items, blank lines, and before the next `variable` that is defined.
    parts = re.split(r"\n\s*- |\n\s*\n|;\s+(?=`)|(?<=[.)])\s+(?=`\w+(?:\[|`:|`,))", text)
    texts = []
    for part in parts:
        if "`" in part:
            texts.append(re.sub(r"\s+", " ", part).strip().rstrip(";."))
    return tuple(texts)


def _defines(clause: str, variable: str) -> bool:
    """Return whether a clause begins with the variable, or with a list that contains it."""
    if not clause.startswith("`"):
        return False
    defined = clause.partition(":")[0]
    return re.search(rf"`{re.escape(variable)}(?:\[[^\]]*\])?`", defined) is not None
