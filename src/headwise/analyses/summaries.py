"""Lines that summarise a result: the top heads of a measure, rows of a table, p-values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from headwise.core.labels import head_name, variable_of


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
    there is one, its interval.

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
    low = variable_of(dataset, f"{name}_low")
    high = variable_of(dataset, f"{name}_high")
    texts = []
    for head in ranked_heads(values, allowed)[:count]:
        text = f"{head_name(*head)} {values[head]:{form}}"
        if low is not None and high is not None:
            lower = float(low.transpose("layer", "head")[head])
            upper = float(high.transpose("layer", "head")[head])
            text += f" ({lower:{form}} to {upper:{form}})"
        texts.append(text)
    return ", ".join(texts) or "none"


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
