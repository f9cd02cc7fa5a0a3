"""Accuracies of single heads: shares with count and interval, and the best head for each item."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from headwise.core.errors import ParameterError
from headwise.core.labels import Shape, head_name, parse_head
from headwise.stats.intervals import share
from headwise.stats.picking import CrossFit
from headwise.stats.units import share_interval, unit_ratio

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


def held_out_variables(
    fit: CrossFit, hits: np.ndarray, tries: np.ndarray, baseline_hits: np.ndarray, item_dim: str
) -> dict[str, xr.Variable]:
    """Return what the best head of each item reaches on units that it was not picked on.

    `best_heldout_accuracy` with count and interval, `best_heldout_baseline` (on the same tries),
    `best_heldout_margin` with its interval, and `best_heldout_same`: whether both halves of the
    units pick the same head.

    Parameters
    ----------
    fit : CrossFit
        The heads picked on each half.
    hits, tries : ndarray
        `[unit, head..., item]`
    baseline_hits : ndarray
        `[unit, head..., item]`, or `[baseline, unit, head..., item]` where there are several.
    item_dim : str
        The dim of the items; further baselines have the dim `baseline`.
    """
    dims: tuple[str, ...] = (item_dim,)
    scored = fit.scored
    right = fit.take(hits)
    tried = fit.take(tries)
    count = tried.sum(0)
    low, high = share_interval(right, tried)
    accuracy = share(right.sum(0), count)
    if baseline_hits.ndim > hits.ndim:
        dims_of_baseline: tuple[str, ...] = ("baseline", item_dim)
        baseline_right = np.stack([fit.take(of_baseline) for of_baseline in baseline_hits], 1)
        more = right[:, None] - baseline_right
        margin = unit_ratio(more, np.broadcast_to(tried[:, None], more.shape))
    else:
        dims_of_baseline = dims
        baseline_right = fit.take(baseline_hits)
        margin = unit_ratio(right - baseline_right, tried)
    margin_low, margin_high = margin.interval()
    interval = "end of the 95 % interval"
    what = "the best head, scored on units that it was not picked on"

    def known(values: np.ndarray) -> np.ndarray:
        return np.where(scored & (count > 0), values, np.nan)

    values = {
        "accuracy": (dims, known(accuracy), f"accuracy of {what}"),
        "accuracy_n": (dims, count.astype(np.int64), "tries behind it"),
        "accuracy_low": (dims, known(low), f"lower {interval}"),
        "accuracy_high": (dims, known(high), f"upper {interval}"),
        "baseline": (
            dims_of_baseline,
            known(share(baseline_right.sum(0), np.broadcast_to(count, baseline_right.shape[1:]))),
            "accuracy of the baseline on the same tries",
        ),
        "margin": (dims_of_baseline, known(margin.value), f"margin of {what} over the baseline"),
        "margin_n": (
            dims_of_baseline,
            np.broadcast_to(count.astype(np.int64), margin.value.shape),
            "tries behind it",
        ),
        "margin_low": (dims_of_baseline, known(margin_low), f"lower {interval}"),
        "margin_high": (dims_of_baseline, known(margin_high), f"upper {interval}"),
        "same": (dims, fit.same, "both halves of the units pick the same head"),
    }
    variables = {}
    for name, (variable_dims, array, long_name) in values.items():
        attributes = {"long_name": long_name}
        variables[f"best_heldout_{name}"] = xr.Variable(variable_dims, array, attributes)
    return variables


def shown_accuracy(dataset: xr.Dataset, name: str = "best") -> str:
    """Return the variable with the accuracy that is reported: of a best head the one on text that
    it was not picked on.

    It is `best_accuracy` in atlases made before that was computed, and where the text has too few
    units to be halved.
    """
    held_out = f"{name}_heldout_accuracy"
    if held_out in dataset and bool(dataset[held_out].notnull().any()):
        return held_out
    return f"{name}_accuracy"


def reported_best(dataset: xr.Dataset) -> xr.Dataset:
    """Return what is reported of the best head of each item: `accuracy`, `accuracy_low`,
    `accuracy_high`, `accuracy_n`, `baseline` and `margin`.

    They are of text that the head was not picked on; where that is not known (an atlas made before
    it was computed, too few units), of the text that it was picked on."""
    reported = {}
    for name in ("accuracy", "accuracy_low", "accuracy_high", "accuracy_n", "baseline", "margin"):
        same_text = dataset[f"best_{name}"]
        reported[name] = same_text
        if "best_heldout_accuracy" in dataset:
            is_known = dataset["best_heldout_accuracy"].notnull()
            reported[name] = dataset[f"best_heldout_{name}"].where(is_known, same_text)
    return xr.Dataset(reported)


def format_accuracy(item: xr.Dataset, name: str) -> tuple[str, str, str]:
    """Return the head of an item, its accuracy in % with the interval, and the number of tries.

    Parameters
    ----------
    item : Dataset
        A result with one item selected.
    name : str
        `best` (its accuracy on text that it was not picked on) or `given`.
    """
    head = head_name(int(item[f"{name}_layer"]), int(item[f"{name}_head"]))
    variable = shown_accuracy(item, name)
    accuracy = 100 * float(item[variable])
    low = 100 * float(item[f"{variable}_low"])
    high = 100 * float(item[f"{variable}_high"])
    count = int(item[f"{variable}_n"])
    text = f"{accuracy:.1f} % ({low:.1f} to {high:.1f})"
    if variable == "best_accuracy":
        text += " on the text it was picked on"
    elif name == "best" and not bool(item["best_heldout_same"]):
        head += "*"
    return head, text, f"of {count:,}"


def picking_note(dataset: xr.Dataset, heads: Sequence[str]) -> list[str]:
    """Return a line on how the accuracies of best heads came about, in a list; none where they are
    of the text that they were picked on.

    Parameters
    ----------
    dataset : Dataset
        The result.
    heads : sequence of str
        The heads as `format_accuracy` wrote them.
    """
    if shown_accuracy(dataset) == "best_accuracy":
        return []
    line = "  Accuracies on text that the head was not picked on (half by half)"
    if any(head.endswith("*") for head in heads):
        line += "; *: the two halves pick different heads"
    return [f"{line}."]


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
