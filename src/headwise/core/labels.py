"""The vocabulary of results: the shape of a run, heads and their names, means with count and
interval."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import xarray as xr

from headwise.core.errors import ParameterError

FEW = 30  # below this many values an approximation by large samples is flagged
SIGNIFICANCE_LEVEL = 0.05  # of p-values after correction: a head below it is called significant
HEAD_NAME = re.compile(r"^L(\d{1,9})H(\d{1,9})$")
# Other spellings of a head, which are rejected with the right one: `l7h9`, `7.9`, `L7 H9`.
LIKE_HEAD_NAME = re.compile(
    r"\s*(?:L|layer)?\s*(\d{1,4})\s*(?:[.,:_/-]\s*(?:H|head)?|H|head)\s*(\d{1,4})\s*", re.IGNORECASE
)
HEAD_OR_LAYER_NAME = re.compile(r"L(\d+)(?:H(\d+))?")


def head_name(layer: int, head: int) -> str:
    """Return the name of a head: `L7H9` for layer 7, head 9, both counted from 0."""
    return f"L{layer}H{head}"


def parse_head(name: str) -> tuple[int, int]:
    """Return the layer and the head of a name: (7, 9) for `L7H9`."""
    match = HEAD_NAME.match(name)
    if match is None:
        hint = ""
        alike = LIKE_HEAD_NAME.fullmatch(name)
        if alike is not None:
            hint = f" Did you mean '{head_name(int(alike[1]), int(alike[2]))}'?"
        raise ParameterError(
            f"A head is named like 'L7H9' (layer 7, head 9, counted from 0); it is '{name}'.{hint}"
        )
    return int(match[1]), int(match[2])


def parse_place(value: Any) -> Any:
    """Return (3, 5) for the head `L3H5`, 3 for the layer `L3`, a list for several heads; anything
    else as it is.

    >>> parse_place("L3H5"), parse_place("L3"), parse_place((3, 5)), parse_place("third")
    ((3, 5), 3, (3, 5), 'third')
    >>> parse_place(("L3H5", "L4H0"))
    ['L3H5', 'L4H0']
    """
    if isinstance(value, tuple) and not all(isinstance(part, int | np.integer) for part in value):
        return list(value)
    match = HEAD_OR_LAYER_NAME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    layer, head = match.groups()
    if head is None:
        return int(layer)
    return int(layer), int(head)


def variable_of(dataset: xr.Dataset, name: str) -> xr.DataArray | None:
    """Return a variable, or None if there is none.

    `Dataset.get` first looks for similar names, which takes longer than all else on a page of a
    thousand measures."""
    return dataset[name] if name in dataset else None  # noqa: SIM401


def existing_heads(
    names: Iterable[str | Sequence[int]], layers: int, heads: int
) -> list[tuple[int, int]]:
    """Return heads, named (`L7H9`) or as pairs, as pairs in the same order; raise an error for one
    that the model does not have."""
    pairs = []
    for item in names:
        if isinstance(item, str):
            layer, head = parse_head(item)
        else:
            try:
                layer, head = map(operator.index, item)
            except (TypeError, ValueError):
                raise ParameterError(
                    f"A head is named like 'L7H9' or (7, 9); it is {item!r}."
                ) from None
        if not (0 <= layer < layers and 0 <= head < heads):
            known = f"the model has layers 0 to {layers - 1} and heads 0 to {heads - 1}"
            raise ParameterError(f"There is no head {head_name(layer, head)}: {known}.")
        pairs.append((layer, head))
    return pairs


@dataclass(frozen=True, slots=True)
class Shape:
    """What an analysis may know before a run starts: the model's size and the corpus's
    annotations."""

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
    """An accumulator whose summary is `mean`, `n`, `units`, `low`, `high`."""

    def summary(self) -> dict[str, np.ndarray]: ...


def layer_head_coords(shape: Shape) -> dict[str, Any]:
    """Return the coordinates of variables with one value for each head."""
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
    """Return a mean over examples with its count and 95 % interval: the variables `name`, `name_n`,
    `name_low`, `name_high`."""
    summary = moments.summary()
    dims = tuple(dims)
    units = summary["units"]
    n = summary["n"]
    # The units of an interval are examples, or documents where the examples have some. Student's t
    # is only roughly right where units are few.
    basis: dict[str, Any] = {
        "over": "documents" if (units < n).any() else "examples",
        "few": int(((units > 0) & (units < FEW)).sum()),
        # For intervals that hold for all heads at once.
        "smallest_units": int(units[units > 0].min(initial=n.max(initial=0))),
    }
    low_attrs = {"long_name": f"lower end of the 95 % interval of {name}", **basis}
    high_attrs = {"long_name": f"upper end of the 95 % interval of {name}", **basis}
    return {
        name: xr.Variable(dims, summary["mean"].astype(np.float32), attrs),
        f"{name}_n": xr.Variable(dims, n, {"long_name": f"examples behind {name}"}),
        f"{name}_low": xr.Variable(dims, summary["low"].astype(np.float32), low_attrs),
        f"{name}_high": xr.Variable(dims, summary["high"].astype(np.float32), high_attrs),
    }


def interval_note(dataset: xr.Dataset) -> str:
    """Return a sentence on the units of a result's intervals and how many have few; "" if it has no
    intervals."""
    units: set[str] = set()
    n_few = 0
    for name, array in dataset.data_vars.items():
        if not str(name).endswith("_low"):
            continue
        n_few += int(array.attrs.get("few", 0))
        if "over" in array.attrs:
            units.add(str(array.attrs["over"]))
    if not units:
        return ""
    rough = ""
    if n_few:
        rough = f"; {n_few:,} of them rest on fewer than {FEW} and are rough"
    return f"95 % intervals are over {' or '.join(sorted(units))}{rough}."


def labels_of(data: xr.Dataset | xr.DataArray, dim: str) -> list[str]:
    """Return the labels of a dim as text; numbers from 0 if it has none."""
    return [str(label) for label in data.get_index(dim)]


def labelled(group: str, dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset in which every dim has labels: a dim without labels gets 0, 1, 2 …

    A variable with the name of a dim, which xarray would take for that dim's labels, is rejected.
    """
    for name, array in dataset.variables.items():
        if name in dataset.dims and array.dims != (name,):
            raise ParameterError(
                f"'{group}' has a variable and a dim called '{name}': "
                "give the variable another name."
            )
    numbers = {}
    for dim, size in dataset.sizes.items():
        if dim not in dataset.coords:
            numbers[dim] = np.arange(size)
    return dataset.assign_coords(numbers)
