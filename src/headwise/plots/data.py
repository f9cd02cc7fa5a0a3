"""Read what a figure needs out of a dataset: values in a fixed order of dims, labels, counts and
intervals in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from headwise.core.errors import ParameterError, unknown
from headwise.core.labels import FEW, labels_of

labels = labels_of


def values(dataset: xr.Dataset, name: str, dims: Sequence[str]) -> np.ndarray:
    """A variable as float64 with its dimensions in the given order."""
    if name not in dataset.variables:
        raise ParameterError(unknown("variable", name, sorted(map(str, dataset.variables))))
    variable = dataset.variables[name]
    if set(variable.dims) != set(dims):
        raise ParameterError(
            f"`{name}` must have the dimensions {', '.join(dims)}; it has {', '.join(map(str, variable.dims))}."
        )
    return np.asarray(variable.transpose(*dims).values, dtype=float)


def has(dataset: xr.Dataset, name: str) -> bool:
    """Whether a variable is there and holds at least one number."""
    return name in dataset.variables and bool(
        np.isfinite(np.asarray(dataset.variables[name].values, dtype=float)).any()
    )


def interval(
    dataset: xr.Dataset, name: str, dims: Sequence[str]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Lower and upper end of a mean's interval, or nothing where the dataset has none."""
    if has(dataset, f"{name}_low") and has(dataset, f"{name}_high"):
        return values(dataset, f"{name}_low", dims), values(dataset, f"{name}_high", dims)
    return None


def panels(dataset: xr.Dataset, name: str, dim: str) -> dict[str, xr.DataArray]:
    """A variable at each label of a dim that has a number, as heat maps take it."""
    found = {
        label: dataset[name].isel({dim: place}) for place, label in enumerate(labels(dataset, dim))
    }
    return {label: panel for label, panel in found.items() if np.isfinite(panel.values).any()}


def numbers(dataset: xr.Dataset | xr.DataArray, dim: str) -> list[int]:
    """The labels of a dimension of whole numbers (layers, heads, offsets); 0, 1, 2 … where it has
    none."""
    return [int(label) for label in dataset.get_index(dim)]


def texts(dataset: xr.Dataset, name: str) -> list[str]:
    """A variable of texts, in order: the tokens of an input, which may repeat, and so cannot be
    labels."""
    return [str(text) for text in dataset[name].values]


def count_text(dataset: xr.Dataset, *names: str, each: str = "examples") -> str:
    """How many examples are behind the means: `n = 200 examples`, or a range where heads or items
    differ; and that they are few, where they are."""
    counts = [
        np.asarray(dataset.variables[f"{name}_n"].values, dtype=float).ravel()
        for name in names
        if f"{name}_n" in dataset.variables
    ]
    found = np.concatenate(counts) if counts else np.array([])
    found = found[np.isfinite(found) & (found > 0)]
    if not found.size:
        total = dataset.attrs.get("examples", dataset.attrs.get("n_examples"))
        return f"n = {int(total):,} {each}" if isinstance(total, int | float | np.number) else ""
    low, high = int(found.min()), int(found.max())
    rough = f" (fewer than {FEW}: rough)" if high < FEW else ""
    return (f"n = {low:,} {each}" if low == high else f"n = {low:,} to {high:,} {each}") + rough


def source_text(dataset: xr.Dataset) -> str:
    """Which model on which corpus, as far as the dataset says."""
    model, corpus = dataset.attrs.get("model"), dataset.attrs.get("corpus")
    if model and corpus:
        return f"{model} on {corpus}"
    return str(model or corpus or "")


def ground(dataset: xr.Dataset, *names: str, each: str = "examples") -> list[str]:
    """The notes that every figure begins with: which model on which corpus, and how many examples
    are behind it."""
    return [source_text(dataset), count_text(dataset, *names, each=each)]


def interval_text(present: bool) -> str:
    """What the interval on a figure is."""
    return (
        "Bars: 95 % interval of the mean over examples, for each head"
        if present
        else "No interval over examples"
    )
