"""The registry of figures and tables: decorated functions, found by the atlas group they read."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from headwise.core.errors import ParameterError
from headwise.core.lazy import FIGURES, load
from headwise.plots import style

FigureFunction = TypeVar("FigureFunction", bound=Callable[..., Figure])
TableFunction = TypeVar("TableFunction", bound=Callable[..., pd.DataFrame])
InlineFunction = Callable[[xr.Dataset], str]


@dataclass(frozen=True, slots=True)
class DrawnFigure:
    """A drawn figure with its title, caption and paper."""

    name: str  # file name without ending
    title: str
    caption: str
    paper: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """A registered figure: the group it draws, its name and texts, and the function that draws
    it."""

    group: str
    name: str
    title: str
    caption: str
    paper: str
    function: Callable[..., Figure]
    needs: tuple[str, ...] = ()  # at least one of these variables must hold a number
    each: str = ""  # a dimension: one figure per label of it

    def applies(self, dataset: xr.Dataset) -> bool:
        """Return whether one of the needed variables is in the dataset and not all NaN."""
        if not self.needs:
            return True
        for name in self.needs:
            if name not in dataset.variables:
                continue
            values = dataset.variables[name].values
            is_float = values.dtype.kind in "fc"
            if not is_float or bool(np.isfinite(values).any()):
                return True
        return False

    def draw(self, dataset: xr.Dataset) -> list[DrawnFigure]:
        """Draw the figures of a dataset: none where it does not apply, one per label with
        `each`."""
        if not self.applies(dataset):
            return []
        if not self.each or self.each not in dataset.dims:
            return [self._drawn(dataset, self.name, self.title)]
        figures = []
        for index, label in enumerate(map(str, dataset.get_index(self.each))):
            dataset_of_label = dataset.isel({self.each: [index]})
            if not self.applies(dataset_of_label):
                continue
            # The slash in a model's name on the hub would otherwise name a folder.
            file_label = re.sub(r"[\\/\s]+", "-", label.replace("_", "-"))
            title = f"{self.title}: {label.replace('_', ' ')}"
            figures.append(self._drawn(dataset_of_label, f"{self.name}-{file_label}", title))
        return figures

    def _drawn(self, dataset: xr.Dataset, name: str, title: str) -> DrawnFigure:
        return DrawnFigure(name, title, self.caption, self.paper, self.function(dataset))


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A registered table: the group it reads, its name and texts, and the function that builds
    it."""

    group: str
    name: str
    title: str
    note: str
    function: Callable[..., pd.DataFrame]


Spec = TypeVar("Spec", FigureSpec, TableSpec)
_FIGURES: dict[tuple[str, str], FigureSpec] = {}
_TABLES: dict[tuple[str, str], TableSpec] = {}
_INLINE: dict[tuple[str, str], InlineFunction] = {}


def _register(registry: dict[tuple[str, str], Spec], spec: Spec) -> None:
    """Add a figure or table to its registry. Its name must be free within the group."""
    key = (spec.group, spec.name)
    if key in registry and not _same_function(registry[key].function, spec.function):
        kind = "figures" if isinstance(spec, FigureSpec) else "tables"
        raise ParameterError(
            f"Two {kind} of group '{spec.group}' are called '{spec.name}': "
            "give one of them another name."
        )
    registry[key] = spec


def _same_function(first: Callable[..., Any], second: Callable[..., Any]) -> bool:
    """Return whether two functions have the same definition: a reloaded module, or a notebook cell
    that is run again, replaces its own figure."""
    return (first.__module__, first.__qualname__) == (second.__module__, second.__qualname__)


def figure(
    group: str,
    *,
    name: str,
    title: str,
    caption: str,
    paper: str = "",
    needs: tuple[str, ...] = (),
    each: str = "",
) -> Callable[[FigureFunction], FigureFunction]:
    """Register a function `Dataset -> Figure` as a figure of a group of the atlas.

    Parameters
    ----------
    group : str
        The group of the atlas (the analysis's name).
    name : str
        The name of the figure's files, unique within the group.
    title, caption : str
        Printed beside the figure on the page; the caption says how to read it.
    paper : str, default ""
        The source of the figure, for instance ``"Clark et al. 2019, Fig 2"``.
    needs : tuple of str, default ()
        Variables to draw; the figure is left out when none of them holds a number.
    each : str, default ""
        A dimension: one figure is drawn for each of its labels; the function gets a dataset with
        that label alone.
    """

    def register(function: FigureFunction) -> FigureFunction:
        @functools.wraps(function)
        def styled(*args: Any, **kwargs: Any) -> Figure:
            with style.context():
                return function(*args, **kwargs)

        _register(_FIGURES, FigureSpec(group, name, title, caption, paper, styled, needs, each))
        return styled  # type: ignore[return-value]

    return register


def inline_figure(group: str, *, name: str) -> Callable[[InlineFunction], InlineFunction]:
    """Register a function `Dataset -> SVG text` that the page shows in place of a figure's picture:
    one that can be pointed at. The figure's files stay those of `figure`.

    The text goes into the page as it is: the function escapes whatever it takes from the dataset.
    An empty text leaves the picture in its place."""

    def register(function: InlineFunction) -> InlineFunction:
        _INLINE[group, name] = function
        return function

    return register


def inline_svg(group: str, name: str, dataset: xr.Dataset) -> str:
    """Return the drawing that replaces a figure's picture on the page; empty without one."""
    load(FIGURES)
    function = _INLINE.get((group, name))
    return "" if function is None else function(dataset)


def table_of(
    group: str, *, name: str, title: str, note: str = ""
) -> Callable[[TableFunction], TableFunction]:
    """Register a function `Dataset -> DataFrame` as a table of a group of the atlas.

    An empty table is left out of the page.
    """

    def register(function: TableFunction) -> TableFunction:
        _register(_TABLES, TableSpec(group, name, title, note, function))
        return function

    return register


def figures_for(group: str) -> list[FigureSpec]:
    """Return the figures of a group, in the order of registration; [] for a group without any."""
    load(FIGURES)
    return [spec for spec in _FIGURES.values() if spec.group == group]


def tables_for(group: str) -> list[TableSpec]:
    """Return the tables of a group, in the order of registration."""
    load(FIGURES)
    return [spec for spec in _TABLES.values() if spec.group == group]
