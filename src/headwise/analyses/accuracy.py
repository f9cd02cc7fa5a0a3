"""Accuracies of single heads: shares with their count and interval over documents, and the best
head for each item."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from headwise.core.errors import ParameterError
from headwise.core.labels import Shape, head_name, parse_head
from headwise.stats.intervals import share
from headwise.stats.units import share_interval

Places = tuple[np.ndarray, ...]


def accuracy_variables(
    dims: Sequence[str], hits: np.ndarray, tries: np.ndarray, what: str = "pairs"
) -> dict[str, xr.Variable]:
    """`accuracy`, `accuracy_n`, `accuracy_low`, `accuracy_high`: the share of `what` that is right.

    Parameters
    ----------
    dims : sequence of str
        Of both counts, behind the units.
    hits, tries : ndarray
        How many are right, of how many, `[unit, ...]`: intervals are over units.
    what : str, default "pairs"
        What is counted, in the plural.
    """
    low, high = share_interval(hits, tries)
    right, count = hits.sum(0), tries.sum(0)
    long_name = "{} end of the 95 % interval (Wilson's, with the effective number over units)"
    return {
        "accuracy": xr.Variable(
            dims, share(right, count).astype(np.float32), {"units": f"share of {what}"}
        ),
        "accuracy_n": xr.Variable(
            dims, count.astype(np.int64), {"long_name": f"{what} behind accuracy"}
        ),
        "accuracy_low": xr.Variable(
            dims, low.astype(np.float32), {"long_name": long_name.format("lower")}
        ),
        "accuracy_high": xr.Variable(
            dims, high.astype(np.float32), {"long_name": long_name.format("upper")}
        ),
    }


def argmax_heads(
    accuracy: np.ndarray, allowed: np.ndarray | bool = True
) -> tuple[Places, np.ndarray]:
    """Where each item of the last axis has its highest accuracy (the first of equals), and whether
    it has any.

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
    *others, items = accuracy.shape
    flat = np.where(np.isnan(accuracy) | ~np.asarray(allowed), -1.0, accuracy).reshape(-1, items)
    return (*np.unravel_index(flat.argmax(0), others), np.arange(items)), flat.max(
        0, initial=-1.0
    ) >= 0


def format_accuracy(one: xr.Dataset, name: str) -> tuple[str, str, str]:
    """What a headline says of the head (`best` or `given`) of an item: its name, its accuracy in %
    with the interval, and of how many."""
    accuracy, low, high = (
        100 * float(one[f"{name}_accuracy{end}"]) for end in ("", "_low", "_high")
    )
    head = head_name(int(one[f"{name}_layer"]), int(one[f"{name}_head"]))
    return (
        head,
        f"{accuracy:.1f} % ({low:.1f} to {high:.1f})",
        f"of {int(one[f'{name}_accuracy_n']):,}",
    )


# --- heads found on one text, tested on another ---------------------------------------------------


def best_heads_parameter(dataset: xr.Dataset) -> tuple[str, ...]:
    """The best heads of a result (`dependency`, `coreference`) as its parameter `heads` takes them
    for another text.

    Each is `item head`, and for `dependency` the direction: `obj L4H0 dependent_to_head`.
    """
    if "best_layer" not in dataset:
        raise ParameterError(
            "This result has no best heads; give one of `dependency` or `coreference`."
        )
    (item,) = dataset["best_layer"].dims
    out = []
    for label in map(str, dataset[item].values):
        one = dataset.sel({item: label})
        layer, head = int(one["best_layer"]), int(one["best_head"])
        direction = [str(one["best_direction"].values)] if "best_direction" in one else []
        out += [" ".join([label, head_name(layer, head), *direction])] if layer >= 0 else []
    return tuple(out)


def parse_heads(
    heads: Sequence[str] | str, shape: Shape | None = None, directions: Sequence[str] = ()
) -> dict[str, tuple[int, ...]]:
    """For each item the place of its head, as `best_heads_parameter` writes them: (layer, head), or
    (direction, layer, head).

    >>> parse_heads("obj L4H0 b, det L1H2 a", directions=("a", "b"))
    {'obj': (1, 4, 0), 'det': (0, 1, 2)}
    """
    out: dict[str, tuple[int, ...]] = {}
    for text in heads.split(",") if isinstance(heads, str) else heads:
        parts = text.split()
        wanted = "obj L4H0 dependent_to_head" if directions else "pronoun L7H5"
        if len(parts) != 2 + bool(directions) or (directions and parts[2] not in directions):
            raise ParameterError(
                f"`heads` holds '{text}', where something like '{wanted}' is needed."
            )
        layer, head = parse_head(parts[1])
        if shape is not None and (layer >= shape.layers or head >= shape.heads):
            raise ParameterError(
                f"`heads` names {parts[1]}, but the model has {shape.layers} layers of {shape.heads} heads."
            )
        out[parts[0]] = (*([directions.index(parts[2])] if directions else []), layer, head)
    return out
