"""Lines that summarise a result: the top heads of a measure, rows of a table, p-values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from headwise.core.labels import head_name, variable_of
from headwise.stats.picking import simultaneous_interval


def ranked_heads(values: np.ndarray, allowed: np.ndarray | None = None) -> list[tuple[int, int]]:
    """Return the heads with a finite value, the largest `values[layer, head]` first.

    With `allowed[layer, head]`, only these heads.

    >>> ranked_heads(np.array([[0.1, np.nan], [0.3, 0.2]]))
    [(1, 0), (1, 1), (0, 0)]
    """
    is_candidate = np.isfinite(values)
    if allowed is not None:
        is_candidate &= allowed
    heads = []
    for flat_index in np.argsort(-values, axis=None, kind="stable"):
        layer, head = divmod(int(flat_index), values.shape[1])
        if is_candidate[layer, head]:
            heads.append((layer, head))
    return heads


def format_heads(values: np.ndarray, heads: Sequence[tuple[int, int]], form: str = ".2f") -> str:
    """Return heads with their values, separated by commas; `none` if there are none."""
    texts = [f"{head_name(*head)} {values[head]:{form}}" for head in heads]
    return ", ".join(texts) or "none"


def top_heads(
    dataset: xr.Dataset,
    name: str,
    count: int = 3,
    form: str = ".2f",
    allowed: np.ndarray | None = None,
) -> str:
    """Return the heads with the largest values of `name[layer, head]`, each with its value and, if
    there is one, an interval that allows for picking the largest of all heads.

    Parameters
    ----------
    dataset : Dataset
        With all other dims selected away.
    name : str
        The variable.
    count : int, default 3
        How many heads.
    form : str, default ".2f"
        The format of values.
    allowed : ndarray, optional
        Bool `[layer, head]`: heads that may be named.
    """
    values = dataset[name].transpose("layer", "head").values
    ranked = ranked_heads(values, allowed)
    interval = picked_interval(dataset, name, len(ranked))
    texts = []
    for head in ranked[:count]:
        text = f"{head_name(*head)} {values[head]:{form}}"
        if interval is not None:
            low, high = interval
            text += f" ({low[head]:{form}} to {high[head]:{form}})"
        texts.append(text)
    return ", ".join(texts) or "none"


def picked_interval(
    dataset: xr.Dataset, name: str, n_candidates: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the ends `[layer, head]` of intervals of a mean that hold for all heads at once; None
    if the mean has no interval.

    Parameters
    ----------
    dataset : Dataset
        With all other dims selected away.
    name : str
        The variable.
    n_candidates : int
        Heads that were picked from.
    """
    low = variable_of(dataset, f"{name}_low")
    high = variable_of(dataset, f"{name}_high")
    if low is None or high is None:
        return None
    n_units: Any = low.attrs.get("smallest_units")
    if n_units is None and f"{name}_n" in dataset:
        n_units = dataset[f"{name}_n"].transpose("layer", "head").values
    if n_units is None:
        n_units = np.inf
    dims = ("layer", "head")
    return simultaneous_interval(
        dataset[name].transpose(*dims).values,
        low.transpose(*dims).values,
        high.transpose(*dims).values,
        n_units,
        n_candidates,
    )


def format_p_value(p: float) -> str:
    """Return a p-value as text.

    >>> format_p_value(0.0004), format_p_value(0.034), format_p_value(float("nan"))
    ('p < 0.001', 'p = 0.034', 'no test')
    """
    if np.isnan(p):
        return "no test"
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}"


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines with aligned columns.

    >>> align_columns([("obj", "L4H0"), ("nsubj", "L4H8")])
    ['  obj    L4H0', '  nsubj  L4H8']
    """
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
