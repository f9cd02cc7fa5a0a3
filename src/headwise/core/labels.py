"""The vocabulary of results: the shape of a run, the coordinates of heads and their names, means with count and interval."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import xarray as xr

from headwise.core.errors import ParameterError

HEAD_NAME = re.compile(r"^L(\d+)H(\d+)$")


def head_name(layer: int, head: int) -> str:
    """`L7H9`: layer 7, head 9, both counted from 0."""
    return f"L{layer}H{head}"


def parse_head(name: str) -> tuple[int, int]:
    """(7, 9) for `L7H9`."""
    found = HEAD_NAME.match(name)
    if not found:
        raise ParameterError(f"A head is named like 'L7H9' (layer 7, head 9, counted from 0); it is '{name}'.")
    return int(found[1]), int(found[2])


@dataclass(frozen=True, slots=True)
class Shape:
    """What an analysis may know of a run before it starts: the model's size and what the corpus offers."""

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
    """Accumulators that end as means: `mean`, `n`, `low`, `high`."""

    def summary(self) -> dict[str, np.ndarray]: ...


def layer_head_coords(shape: Shape) -> dict[str, Any]:
    """The coordinates of everything that has one value for each head."""
    coords: dict[str, Any] = {"layer": np.arange(shape.layers), "head": np.arange(shape.heads)}
    if shape.kv_groups and shape.kv_groups != tuple(range(shape.heads)):
        coords["kv_group"] = ("head", np.array(shape.kv_groups))
    return coords


def mean_variables(name: str, dims: Sequence[str], moments: Summarised, **attrs: Any) -> dict[str, xr.Variable]:
    """`name`, `name_n`, `name_low`, `name_high`: a mean over examples with its count and 95 % interval."""
    summary = moments.summary()
    dims = tuple(dims)
    low, high = (f"{end} end of the 95 % interval of {name}" for end in ("lower", "upper"))
    return {
        name: xr.Variable(dims, summary["mean"].astype(np.float32), attrs),
        f"{name}_n": xr.Variable(dims, summary["n"], {"long_name": f"examples behind {name}"}),
        f"{name}_low": xr.Variable(dims, summary["low"].astype(np.float32), {"long_name": low}),
        f"{name}_high": xr.Variable(dims, summary["high"].astype(np.float32), {"long_name": high}),
    }


def tidy(dataset: xr.Dataset) -> xr.Dataset:
    """Make a dataset whose variable is named like one of its dims (`token_type[layer, head, token_type]`) behave: the labels of that dim live in `token_type_name`,
    by which it can be selected, and the variable is a data variable, not the coordinate that xarray takes it for."""
    misplaced = [name for name, coordinate in dataset.coords.items() if coordinate.ndim > 1]
    dataset = dataset.reset_coords(misplaced)
    labels = [str(name) for name in dataset.coords if str(name).endswith("_name") and name not in dataset.xindexes]
    for label in labels:
        dataset = dataset.set_xindex(label)
    return dataset
