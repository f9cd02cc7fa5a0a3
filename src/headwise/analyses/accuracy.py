"""Accuracies of single heads: shares with their count and interval over documents, and the best head for each item."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from headwise.stats.units import share_interval

Places = tuple[np.ndarray, ...]


def share(hits: np.ndarray, tries: np.ndarray) -> np.ndarray:
    """`hits / tries`; NaN where nothing was tried."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(tries > 0, hits / tries, np.nan)


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
        "accuracy": xr.Variable(dims, share(right, count).astype(np.float32), {"units": f"share of {what}"}),
        "accuracy_n": xr.Variable(dims, count.astype(np.int64), {"long_name": f"{what} behind accuracy"}),
        "accuracy_low": xr.Variable(dims, low.astype(np.float32), {"long_name": long_name.format("lower")}),
        "accuracy_high": xr.Variable(dims, high.astype(np.float32), {"long_name": long_name.format("upper")}),
    }


def best_places(accuracy: np.ndarray, allowed: np.ndarray | bool = True) -> tuple[Places, np.ndarray]:
    """Where each item of the last axis has its highest accuracy (the first of equals), and whether it has any.

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
    return (*np.unravel_index(flat.argmax(0), others), np.arange(items)), flat.max(0, initial=-1.0) >= 0
