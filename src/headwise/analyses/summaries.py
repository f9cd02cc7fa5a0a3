"""Lines that say what a result comes to: the heads at the top of a measure, rows of a table,
p-values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from headwise.core.labels import head_name, variable_of

SIGNIFICANCE_LEVEL = 0.05


def ranked_heads(values: np.ndarray, allowed: np.ndarray | None = None) -> list[tuple[int, int]]:
    """The heads that have a number, the largest `values[layer, head]` first; only those
    `allowed[layer, head]`.

    >>> ranked_heads(np.array([[0.1, np.nan], [0.3, 0.2]]))
    [(1, 0), (1, 1), (0, 0)]
    """
    known = np.isfinite(values) if allowed is None else np.isfinite(values) & allowed
    order = (
        divmod(int(place), values.shape[1])
        for place in np.argsort(-values, axis=None, kind="stable")
    )
    return [place for place in order if known[place]]


def format_heads(values: np.ndarray, places: Sequence[tuple[int, int]], form: str = ".2f") -> str:
    """Heads with their values, commas between; `none` where there is none."""
    return ", ".join(f"{head_name(*place)} {values[place]:{form}}" for place in places) or "none"


def top_heads(
    dataset: xr.Dataset,
    name: str,
    count: int = 3,
    form: str = ".2f",
    allowed: np.ndarray | None = None,
) -> str:
    """The heads with the largest values of `name[layer, head]`, each with its value and, where
    there is one, interval.

    Parameters
    ----------
    dataset : Dataset
        With all other dims selected away.
    name : str
        The variable.
    count : int, default 3
        How many heads.
    form : str, default ".2f"
        How values are written.
    allowed : ndarray, optional
        Bool `[layer, head]`: heads that may be named.
    """
    values = dataset[name].transpose("layer", "head").values
    ends = [variable_of(dataset, f"{name}_{end}") for end in ("low", "high")]
    out = []
    for place in ranked_heads(values, allowed)[:count]:
        known = [float(end.transpose("layer", "head")[place]) for end in ends if end is not None]
        interval = f" ({known[0]:{form}} to {known[1]:{form}})" if len(known) == 2 else ""
        out.append(f"{head_name(*place)} {values[place]:{form}}{interval}")
    return ", ".join(out) or "none"


def format_p_value(p: float) -> str:
    """A p-value in words.

    >>> p_text(0.0004), p_text(0.034), p_text(float("nan"))
    ('p < 0.001', 'p = 0.034', 'no test')
    """
    return "no test" if np.isnan(p) else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines whose columns stand under each other.

    >>> aligned([("obj", "L4H0"), ("nsubj", "L4H8")])
    ['  obj    L4H0', '  nsubj  L4H8']
    """
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))] if rows else []
    return [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
