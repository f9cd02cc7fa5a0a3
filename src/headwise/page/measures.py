"""Every measure of every head, in the order in which people are shown them: the one list that the
page, the explorer and notebooks read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.contract import known_analyses
from headwise.atlas.tables import LEADING_MEASURES, measures
from headwise.core.labels import labels_of, variable_of

Beside = Mapping[str, xr.DataArray | None]
HEADS = ("layer", "head")
MODEL_DIMS = ("model", "model_all")  # of comparisons: whose the values are, no label of the measure
MOST_ITEMS = 160  # labels of a measure; one with more is a curve
UNSHOWN_DIMS = frozenset(
    {"rank", "bin", "token", "source_token", "threshold"}
)  # places in a list, curves, single inputs
P_VALUE = re.compile(r"(?:^|_)p(?:_value|_adjusted|_family|_holm|_fdr)?$")
# From what a head looks at, to what it finds, to what heads do together; a group not named here
# comes after these.
READING_ORDER = (
    *(
        "surface",
        "offsets",
        "patterns",
        "roles",
        "features",
        "token_pairs",
        "dependency",
        "coreference",
        "frames",
    ),
    *("sinks", "opening_token", "induction", "examples", "retrieval", "logits", "circuits"),
    *("distance", "gradient", "attribution", "probing", "tree_probe", "ablation"),
)
# What a measure is held against: the variable beside it, and what a reader calls that.
AGAINST = {
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
}
BETTER = {
    ("dependency", "accuracy"): "direction"
}  # of these dims the label in which a head does better is shown too


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """One number for each head: `values[layer, head]`, NaN where there is none, with what a reader
    must know of it.

    `item` are its labels (`obj`, `dependent_to_head`), `model` whose it is (in comparisons), `kind`
    is `value`, `p` (a p-value) or `flag` (0 or 1). `n` is how many examples are behind it, least
    and most over heads; `low` and `high` end its 95 % interval; `p` tests it, `against` is what it
    is held against (`against_name` in words). `asked` are the short names that an expression may
    use for it."""

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
        """`surface.mass.cls`: unique in an atlas."""
        return ".".join(
            (self.group, self.variable, *self.item, *((self.model,) if self.model else ()))
        )


def group_order(name: str) -> tuple[int, str]:
    """Where a group stands when people read: a key to sort by."""
    base = name.removeprefix("change_")
    return (READING_ORDER.index(base) if base in READING_ORDER else len(READING_ORDER)), name


def head_measures(datasets: Mapping[str, xr.Dataset]) -> list[Measure]:
    """Every measure over heads of an atlas (or of datasets by group), those that are asked for
    first of all first in their group, p-values and flags last.

    Parameters
    ----------
    datasets : mapping of str to xarray.Dataset
        An atlas, or groups by name. Variables without the dims `layer` and `head`, curves, and the
        `_n`, `_low`, `_high` beside others are no measures of their own.

    Returns
    -------
    list of Measure
        With different names; a measure without any number is left out.
    """
    found: dict[str, Measure] = {}
    for group in sorted(datasets, key=group_order):
        own = [
            made
            for variable in _variables(group, datasets[group])
            for made in _planes(group, datasets[group], variable)
        ]
        rank = {"value": 0, "flag": 1, "p": 2}
        for made in sorted(
            own, key=lambda m: (not m.leading, rank[m.kind])
        ):  # a stable sort: else as in the file
            if np.isfinite(made.values).any():
                found.setdefault(made.name, made)
    return list(found.values())


def _variables(group: str, data: xr.Dataset) -> list[str]:
    """The measures over heads of a group, the leading ones first and in their order."""
    named = [
        name
        for name in measures(data)
        if set(HEADS) <= set(data[name].dims)
        and data[name].dtype.kind in "fiub"
        and not UNSHOWN_DIMS & set(map(str, data[name].dims))
        and np.prod(
            [data.sizes[dim] for dim in data[name].dims if dim not in (*HEADS, *MODEL_DIMS)]
        )
        <= MOST_ITEMS
    ]
    leading = [name for name in LEADING_MEASURES.get(group, ()) if name in named]
    return leading + [name for name in named if name not in leading]


def _planes(group: str, data: xr.Dataset, variable: str) -> Iterator[Measure]:
    """One measure for each combination of labels."""
    array = data[variable]
    labels = [str(dim) for dim in array.dims if dim not in HEADS]
    about = _about(group, data, variable)
    beside = {
        name: _beside(array, variable_of(data, f"{variable}_{name}"))
        for name in ("n", "low", "high")
    }
    beside["p"] = _tested(group, data, variable)
    against, against_name = AGAINST.get((group, variable), ("", ""))
    beside["against"] = _beside(array, variable_of(data, against)) if against else None
    if beside["against"] is not None:
        about["against_name"] = against_name
    better = BETTER.get((group, variable))
    if better in labels:
        yield from _stacked(about, array, beside, labels, better)
    yield from _labelled(about, array, beside, labels)


def _labelled(
    about: dict[str, Any], array: xr.DataArray, beside: Beside, labels: list[str], note: str = ""
) -> Iterator[Measure]:
    names = [labels_of(array, dim) for dim in labels]
    found = {
        key: None if own is None else np.asarray(own.transpose(*labels, *HEADS).values, dtype=float)
        for key, own in {"values": array, **beside}.items()
    }
    counts = found.pop("n")
    for place in np.ndindex(*map(len, names)):
        said = {dim: names[i][place[i]] for i, dim in enumerate(labels)}
        item = tuple(text for dim, text in said.items() if dim not in MODEL_DIMS)
        words = str(about["variable"]).replace("_", " ")
        known = counts[place][np.isfinite(counts[place])] if counts is not None else np.array([])
        asked = item[-1:] if item and about["leading"] else () if item else (about["variable"],)
        yield Measure(
            **about,
            **{key: None if own is None else own[place] for key, own in found.items()},  # type: ignore[arg-type]
            item=item,
            label=": ".join(filter(None, (words, " ".join(item).replace("_", " ")))) + note,
            model=next((said[dim] for dim in MODEL_DIMS if dim in said), ""),
            n=(int(known.min()), int(known.max())) if known.size else None,
            asked=asked,
        )


def _stacked(
    about: dict[str, Any], array: xr.DataArray, beside: Beside, labels: list[str], dim: str
) -> Iterator[Measure]:
    """The measure at the label of a dim where each head has most, and what stands beside it
    there."""
    at = array.fillna(-np.inf).argmax(dim)
    rest = [label for label in labels if label != dim]
    picked = {
        key: None if own is None else own.isel({dim: at}) if dim in own.dims else own
        for key, own in beside.items()
    }
    yield from _labelled(about, array.isel({dim: at}), picked, rest, f" (better {dim})")


def _beside(array: xr.DataArray, other: xr.DataArray | None) -> xr.DataArray | None:
    """What stands beside a measure, with its dims; of dims it has more than the measure the largest
    value, which for a p-value and a baseline is the one that must be passed."""
    if other is None or other.dtype.kind not in "fiub":
        return None
    more = [dim for dim in other.dims if dim not in array.dims]
    other = other.max(more) if more else other
    return other.broadcast_like(array) if set(other.dims) != set(array.dims) else other


def _tested(group: str, data: xr.Dataset, variable: str) -> xr.DataArray | None:
    """The corrected p-value of a measure: by its own name, or the group's, which is of its first
    measure."""
    name = f"{variable}_p_adjusted"
    if name not in data:
        name = "p_adjusted" if variable in LEADING_MEASURES.get(group, ())[:1] else ""
    return _beside(data[variable], variable_of(data, name)) if name in data else None


def _about(group: str, data: xr.Dataset, variable: str) -> dict[str, Any]:
    attrs, array = data.attrs, data[variable]
    kind = "flag" if array.dtype.kind == "b" else "p" if P_VALUE.search(variable) else "value"
    low = variable_of(data, f"{variable}_low")
    return {
        "group": group,
        "variable": variable,
        "kind": kind,
        "unit": str(array.attrs.get("units", "")),
        "definition": definition(
            group, variable, str(array.attrs.get("long_name", "")), str(attrs.get("title", ""))
        ),
        "paper": ", ".join(str(attrs[key]) for key in ("paper", "section") if attrs.get(key)),
        "leading": variable in LEADING_MEASURES.get(group, ())
        or (group not in LEADING_MEASURES and kind == "value"),
        "over": "" if low is None else str(low.attrs.get("over", "")),
    }


def definition(group: str, variable: str, long_name: str = "", title: str = "") -> str:
    """What a measure is, in a sentence: what its analysis says of it, else its long name, else the
    group's title.

    >>> definition("surface", "max_weight")
    '`max_weight[layer, head]`: `max_j A[i, j]`'
    """
    if group.startswith("change_") and not long_name:
        base, _, what = variable.rpartition("_")
        words = {
            "mean": "Mean of each model",
            "change": "Mean difference to the first model, on the same examples",
        }
        if what in words:
            return ". ".join(
                filter(None, (words[what], definition(group.removeprefix("change_"), base)))
            )
    found = next((clause for clause in clauses(group) if _names(clause, variable)), "")
    texts = [text for text in (long_name, found) if text]
    return ". ".join(texts) or title


@cache
def clauses(group: str) -> tuple[str, ...]:
    """What an analysis says of its measures, clause by clause; nothing for a group that no analysis
    makes."""
    analysis = known_analyses().get(group.removeprefix("change_"))
    text = (analysis.__doc__ or "").partition("\n    Parameters\n")[0] if analysis else ""
    parts = re.split(r"\n\s*- |\n\s*\n|;\s+(?=`)|(?<=[.)])\s+(?=`\w+(?:\[|`:|`,))", text)
    return tuple(re.sub(r"\s+", " ", part).strip().rstrip(";.") for part in parts if "`" in part)


def _names(clause: str, variable: str) -> bool:
    """Whether a clause begins with the variable, or with a list that has it."""
    before = clause.partition(":")[0]
    return bool(
        re.search(rf"`{re.escape(variable)}(?:\[[^\]]*\])?`", before)
    ) and clause.startswith("`")
