"""Accuracies of single heads: shares with count and interval, and the best head for each item."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from headwise.core.errors import ParameterError
from headwise.core.labels import Shape, head_name, parse_head
from headwise.stats.intervals import share
from headwise.stats.units import share_interval

# Indices into an array `[..., item]`, one `[item]` for each of its axes.
Places = tuple[np.ndarray, ...]


def accuracy_variables(
    dims: Sequence[str], hits: np.ndarray, tries: np.ndarray, what: str = "pairs"
) -> dict[str, xr.Variable]:
    """Return `accuracy`, `accuracy_n`, `accuracy_low`, `accuracy_high`: the share that is right.

    Parameters
    ----------
    dims : sequence of str
        Of both counts, without the units.
    hits, tries : ndarray
        How many are right, of how many, `[unit, ...]`: intervals are over units.
    what : str, default "pairs"
        What is counted, in the plural.
    """
    low, high = share_interval(hits, tries)
    count = tries.sum(0)
    accuracy = share(hits.sum(0), count).astype(np.float32)
    interval = "end of the 95 % interval (Wilson's, with the effective number over units)"
    return {
        "accuracy": xr.Variable(dims, accuracy, {"units": f"share of {what}"}),
        "accuracy_n": xr.Variable(
            dims, count.astype(np.int64), {"long_name": f"{what} behind accuracy"}
        ),
        "accuracy_low": xr.Variable(
            dims, low.astype(np.float32), {"long_name": f"lower {interval}"}
        ),
        "accuracy_high": xr.Variable(
            dims, high.astype(np.float32), {"long_name": f"upper {interval}"}
        ),
    }


def argmax_heads(
    accuracy: np.ndarray, allowed: np.ndarray | bool = True
) -> tuple[Places, np.ndarray]:
    """Return where each item of the last axis has its highest accuracy (the first of equals).

    Parameters
    ----------
    accuracy : ndarray
        `[..., item]`, NaN where nothing was scored.
    allowed : ndarray or bool, default True
        Which entries may be best.

    Returns
    -------
    places : tuple of ndarray
        Indices into `accuracy`, one `[item]` for each of its axes.
    scored : ndarray
        Bool `[item]`: False where no entry was both scored and allowed.
    """
    *head_shape, n_items = accuracy.shape
    is_candidate = ~np.isnan(accuracy) & np.asarray(allowed)
    flat = np.where(is_candidate, accuracy, -1.0).reshape(-1, n_items)
    places = np.unravel_index(flat.argmax(0), head_shape)
    scored = flat.max(0, initial=-1.0) >= 0
    return (*places, np.arange(n_items)), scored


def format_accuracy(item: xr.Dataset, name: str) -> tuple[str, str, str]:
    """Return the head of an item, its accuracy in % with the interval, and the number of tries.

    Parameters
    ----------
    item : Dataset
        A result with one item selected.
    name : str
        `best` or `given`.
    """
    head = head_name(int(item[f"{name}_layer"]), int(item[f"{name}_head"]))
    accuracy = 100 * float(item[f"{name}_accuracy"])
    low = 100 * float(item[f"{name}_accuracy_low"])
    high = 100 * float(item[f"{name}_accuracy_high"])
    count = int(item[f"{name}_accuracy_n"])
    return head, f"{accuracy:.1f} % ({low:.1f} to {high:.1f})", f"of {count:,}"


# --- heads chosen on one text, tested on another ------------------------------------------------


def best_heads_parameter(dataset: xr.Dataset) -> tuple[str, ...]:
    """Return the best heads of a result of `dependency` or `coreference`, as their parameter
    `heads` takes them for another text.

    Each is `item head`, and for `dependency` the direction: `obj L4H0 dependent_to_head`.
    """
    if "best_layer" not in dataset:
        raise ParameterError(
            "This result has no best heads; pass one of `dependency` or `coreference`."
        )
    (item_dim,) = dataset["best_layer"].dims
    entries = []
    for label in map(str, dataset[item_dim].values):
        item = dataset.sel({item_dim: label})
        layer = int(item["best_layer"])
        if layer < 0:  # nothing was scored
            continue
        entry = f"{label} {head_name(layer, int(item['best_head']))}"
        if "best_direction" in item:
            entry += f" {item['best_direction'].values}"
        entries.append(entry)
    return tuple(entries)


def parse_heads(
    heads: Sequence[str] | str, shape: Shape | None = None, directions: Sequence[str] = ()
) -> dict[str, tuple[int, ...]]:
    """Return the head of each item, from texts as `best_heads_parameter` writes them.

    Parameters
    ----------
    heads : sequence of str or str
        Texts, or one with commas.
    shape : Shape, optional
        The model, which must have these heads.
    directions : sequence of str, default ()
        The directions that may be named; without any, a text has none.

    Returns
    -------
    dict of str to tuple of int
        (layer, head), or (direction, layer, head), by item.

    Examples
    --------
    >>> parse_heads("obj L4H0 b, det L1H2 a", directions=("a", "b"))
    {'obj': (1, 4, 0), 'det': (0, 1, 2)}
    """
    if isinstance(heads, str):
        heads = heads.split(",")
    pattern = "obj L4H0 dependent_to_head" if directions else "pronoun L7H5"
    n_words = 3 if directions else 2
    parsed: dict[str, tuple[int, ...]] = {}
    for text in heads:
        words = text.split()
        if len(words) != n_words or (directions and words[2] not in directions):
            raise ParameterError(f"`heads` has '{text}'; write it like '{pattern}'.")
        layer, head = parse_head(words[1])
        if shape is not None and (layer >= shape.layers or head >= shape.heads):
            raise ParameterError(
                f"`heads` names {words[1]}, but the model has {shape.layers} layers of "
                f"{shape.heads} heads."
            )
        place: tuple[int, ...] = (layer, head)
        if directions:
            place = (directions.index(words[2]), *place)
        parsed[words[0]] = place
    return parsed
