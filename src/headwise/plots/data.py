"""Read what a figure needs from a dataset: values in a fixed order of dims, labels, counts and
intervals as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from headwise.core.errors import ParameterError, unknown
from headwise.core.labels import FEW, labels_of

labels = labels_of


def values(dataset: xr.Dataset, name: str, dims: Sequence[str]) -> np.ndarray:
    """Return a variable as float64 with its dimensions in the requested order."""
    if name not in dataset.variables:
        raise ParameterError(unknown("variable", name, sorted(map(str, dataset.variables))))
    variable = dataset.variables[name]
    if set(variable.dims) != set(dims):
        actual_dims = ", ".join(map(str, variable.dims))
        raise ParameterError(
            f"`{name}` must have the dimensions {', '.join(dims)}; it has {actual_dims}."
        )
    return np.asarray(variable.transpose(*dims).values, dtype=float)


def has(dataset: xr.Dataset, name: str) -> bool:
    """Return whether a variable exists and holds at least one finite number."""
    if name not in dataset.variables:
        return False
    numbers = np.asarray(dataset.variables[name].values, dtype=float)
    return bool(np.isfinite(numbers).any())


def interval(
    dataset: xr.Dataset, name: str, dims: Sequence[str]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lower and upper end of a mean's interval, or None without intervals."""
    if has(dataset, f"{name}_low") and has(dataset, f"{name}_high"):
        return values(dataset, f"{name}_low", dims), values(dataset, f"{name}_high", dims)
    return None


def panels(dataset: xr.Dataset, name: str, dim: str) -> dict[str, xr.DataArray]:
    """Return a variable at each label of a dim, as `heatmap_panels` takes it.

    Labels at which no value is finite are left out.
    """
    panel_of_label = {}
    for index, label in enumerate(labels(dataset, dim)):
        panel = dataset[name].isel({dim: index})
        if np.isfinite(panel.values).any():
            panel_of_label[label] = panel
    return panel_of_label


def numbers(dataset: xr.Dataset | xr.DataArray, dim: str) -> list[int]:
    """Return the labels of an integer dimension (layers, heads, offsets); 0, 1, 2 … where it has
    none."""
    return [int(label) for label in dataset.get_index(dim)]


def texts(dataset: xr.Dataset, name: str) -> list[str]:
    """Return a variable of texts in order, for instance the tokens of an input.

    Tokens may repeat, so they are a variable and not the labels of a dimension.
    """
    return [str(text) for text in dataset[name].values]


def count_text(dataset: xr.Dataset, *names: str, each: str = "examples") -> str:
    """Return how many examples the means rest on, as text.

    `n = 200 examples`, or a range where heads or items differ; with a remark where they are few.
    The dataset's total is used where none of the variables has counts.
    """
    count_arrays = []
    for name in names:
        if f"{name}_n" in dataset.variables:
            variable = dataset.variables[f"{name}_n"]
            count_arrays.append(np.asarray(variable.values, dtype=float).ravel())
    counts = np.concatenate(count_arrays) if count_arrays else np.array([])
    counts = counts[np.isfinite(counts) & (counts > 0)]
    if not counts.size:
        total = dataset.attrs.get("examples", dataset.attrs.get("n_examples"))
        return f"n = {int(total):,} {each}" if isinstance(total, int | float | np.number) else ""

    low = int(counts.min())
    high = int(counts.max())
    text = f"n = {low:,} {each}" if low == high else f"n = {low:,} to {high:,} {each}"
    if high < FEW:
        text += f" (fewer than {FEW}: rough)"
    return text


def source_text(dataset: xr.Dataset) -> str:
    """Return "model on corpus", as far as the dataset names them."""
    model = dataset.attrs.get("model")
    corpus = dataset.attrs.get("corpus")
    if model and corpus:
        return f"{model} on {corpus}"
    return str(model or corpus or "")


def source_notes(dataset: xr.Dataset, *names: str, each: str = "examples") -> list[str]:
    """Return the notes that every figure begins with: model, corpus and number of examples."""
    return [source_text(dataset), count_text(dataset, *names, each=each)]


def interval_text(present: bool) -> str:
    """Return the note that says what the interval on a figure is."""
    if present:
        return "Bars: 95 % interval of the mean over examples, for each head"
    return "No interval over examples"
