"""The vocabulary of results: the shape of a run, heads and their names, means with count and
interval."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import xarray as xr

from headwise.core.errors import ParameterError

FEW = 30  # below this many values an approximation by large samples is flagged
HEAD_NAME = re.compile(r"^L(\d{1,9})H(\d{1,9})$")
HEAD_OR_LAYER_NAME = re.compile(r"L(\d+)(?:H(\d+))?")


def head_name(layer: int, head: int) -> str:
    """`L7H9`: layer 7, head 9, both counted from 0."""
    return f"L{layer}H{head}"


def parse_head(name: str) -> tuple[int, int]:
    """(7, 9) for `L7H9`."""
    found = HEAD_NAME.match(name)
    if not found:
        raise ParameterError(
            f"A head is named like 'L7H9' (layer 7, head 9, counted from 0); it is '{name}'."
        )
    return int(found[1]), int(found[2])


def parse_place(name: str) -> Any:
    """Return (3, 5) for the head `L3H5`, 3 for the layer `L3`; anything else as it is.

    >>> parse_place("L3H5"), parse_place("L3"), parse_place("third")
    ((3, 5), 3, 'third')
    """
    match = HEAD_OR_LAYER_NAME.fullmatch(name)
    if match is None:
        return name
    layer, head = match.groups()
    if head is None:
        return int(layer)
    return int(layer), int(head)


def variable_of(dataset: xr.Dataset, name: str) -> xr.DataArray | None:
    """A variable, or None where there is none: `Dataset.get` first looks for all names that are
    like it, which takes longer than all else on a page of a thousand measures."""
    return dataset[name] if name in dataset else None  # noqa: SIM401


def existing_heads(
    given: Iterable[str | Sequence[int]], layers: int, heads: int
) -> list[tuple[int, int]]:
    """Heads, as names (`L7H9`) or pairs, as pairs in the order given; those that the model has not
    are refused."""
    found = []
    for item in given:
        layer, head = parse_head(item) if isinstance(item, str) else (int(item[0]), int(item[1]))
        if not (0 <= layer < layers and 0 <= head < heads):
            known = f"the model has layers 0 to {layers - 1} and heads 0 to {heads - 1}"
            raise ParameterError(f"There is no head {head_name(layer, head)}: {known}.")
        found.append((layer, head))
    return found


@dataclass(frozen=True, slots=True)
class Shape:
    """What an analysis may know of a run before it starts: the model's size and what the corpus
    offers."""

    layers: int
    heads: int
    d_head: int
    hidden: int
    causal: bool
    max_length: int
    token_types: tuple[str, ...]  # those the tokenizer really has
    annotations: frozenset[str] = frozenset()  # those some example of the corpus has
    relations: tuple[str, ...] = ()  # those seen in the corpus, sorted
    kv_groups: tuple[int, ...] = ()  # key/value group of each head
    extras: Mapping[str, Any] = field(default_factory=dict)


class Summarised(Protocol):
    """Accumulators that end as means: `mean`, `n`, `units`, `low`, `high`."""

    def summary(self) -> dict[str, np.ndarray]: ...


def layer_head_coords(shape: Shape) -> dict[str, Any]:
    """The coordinates of everything that has one value for each head."""
    coords: dict[str, Any] = {"layer": np.arange(shape.layers), "head": np.arange(shape.heads)}
    if shape.kv_groups and shape.kv_groups != tuple(range(shape.heads)):
        coords["kv_group"] = ("head", np.array(shape.kv_groups))
    kinds = shape.extras.get("layer_kinds", ())
    if set(kinds) - {"full"} and len(kinds) == shape.layers:
        coords["layer_kind"] = ("layer", np.array(kinds))
    return coords


def mean_variables(
    name: str, dims: Sequence[str], moments: Summarised, **attrs: Any
) -> dict[str, xr.Variable]:
    """`name`, `name_n`, `name_low`, `name_high`: a mean over examples with its count and 95 %
    interval."""
    summary = moments.summary()
    dims = tuple(dims)
    units, n = summary["units"], summary["n"]
    # Behind an interval stand so many values, or documents where the examples are of documents;
    # Student's t is only roughly right where they are few.
    behind: dict[str, Any] = {"over": "documents" if (units < n).any() else "examples"}
    behind["few"] = int(((units > 0) & (units < FEW)).sum())
    low, high = (
        {"long_name": f"{end} end of the 95 % interval of {name}", **behind}
        for end in ("lower", "upper")
    )
    return {
        name: xr.Variable(dims, summary["mean"].astype(np.float32), attrs),
        f"{name}_n": xr.Variable(dims, n, {"long_name": f"examples behind {name}"}),
        f"{name}_low": xr.Variable(dims, summary["low"].astype(np.float32), low),
        f"{name}_high": xr.Variable(dims, summary["high"].astype(np.float32), high),
    }


def interval_note(dataset: xr.Dataset) -> str:
    """What the intervals of a result are over, and how many of them rest on few values, in a
    sentence; "" where it has none."""
    ends = [array.attrs for name, array in dataset.data_vars.items() if str(name).endswith("_low")]
    over = sorted({str(attrs["over"]) for attrs in ends if "over" in attrs})
    few = sum(int(attrs.get("few", 0)) for attrs in ends)
    if not over:
        return ""
    rough = f"; {few:,} of them rest on fewer than {FEW} and are rough" if few else ""
    return f"95 % intervals are over {' or '.join(over)}{rough}."


def labels_of(data: xr.Dataset | xr.DataArray, dim: str) -> list[str]:
    """The labels of a dim as text; its numbers, counted from 0, where it has none."""
    return [str(label) for label in data.get_index(dim)]


def labelled(group: str, dataset: xr.Dataset) -> xr.Dataset:
    """A dataset in which every dim can be selected by label: one without labels gets 0, 1, 2 …

    A variable named like a dim, which xarray would take for that dim's labels, is refused.
    """
    named = [
        str(name)
        for name, array in dataset.variables.items()
        if name in dataset.dims and array.dims != (name,)
    ]
    if named:
        raise ParameterError(
            f"'{group}' has a variable and a dim called '{named[0]}': give the variable another name."
        )
    return dataset.assign_coords(
        {dim: np.arange(n) for dim, n in dataset.sizes.items() if dim not in dataset.coords}
    )
