"""The list of figures and tables: a decorated function is its own registration, found by the group
it reads."""

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
from headwise.core.loaders import FIGURES, load
from headwise.plots import style

Drawing = TypeVar("Drawing", bound=Callable[..., Figure])
Maker = TypeVar("Maker", bound=Callable[..., pd.DataFrame])


@dataclass(frozen=True, slots=True)
class Drawn:
    """One drawn figure with the words that belong to it."""

    name: str  # file name without ending
    title: str
    caption: str
    paper: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """A registered figure: which group it draws, what it is called, and the function that draws
    it."""

    group: str
    name: str
    title: str
    caption: str
    paper: str
    function: Callable[..., Figure]
    needs: tuple[str, ...] = ()  # variables of which at least one must hold a number
    each: str = ""  # a dimension: one figure per label of it

    def applies(self, dataset: xr.Dataset) -> bool:
        """Whether there is anything to draw: one of the needed variables is there and not all
        NaN."""
        found = [dataset.variables[name].values for name in self.needs if name in dataset.variables]
        return not self.needs or any(
            v.dtype.kind not in "fc" or bool(np.isfinite(v).any()) for v in found
        )

    def draw(self, dataset: xr.Dataset) -> list[Drawn]:
        """All figures this one gives for a dataset: none where it does not apply, one for each
        label with `each`."""
        if not self.applies(dataset):
            return []
        if not self.each or self.each not in dataset.dims:
            return [Drawn(self.name, self.title, self.caption, self.paper, self.function(dataset))]
        drawn = []
        for index, label in enumerate(map(str, dataset.get_index(self.each))):
            part = dataset.isel({self.each: [index]})
            if self.applies(part):
                name = re.sub(
                    r"[\\/\s]+", "-", label.replace("_", "-")
                )  # a hub name's slash would name a folder
                title = f"{self.title}: {label.replace('_', ' ')}"
                drawn.append(
                    Drawn(
                        f"{self.name}-{name}", title, self.caption, self.paper, self.function(part)
                    )
                )
        return drawn


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A registered table: which group it reads, what it is called, and the function that makes
    it."""

    group: str
    name: str
    title: str
    note: str
    function: Callable[..., pd.DataFrame]


Spec = TypeVar("Spec", FigureSpec, TableSpec)
_FIGURES: dict[tuple[str, str], FigureSpec] = {}
_TABLES: dict[tuple[str, str], TableSpec] = {}


def _enter(entries: dict[tuple[str, str], Spec], spec: Spec) -> None:
    """Take a figure or table into its list. Its name must be free; the same function made again
    replaces itself."""
    before = entries.setdefault((spec.group, spec.name), spec).function
    if (before.__module__, before.__qualname__) != (
        spec.function.__module__,
        spec.function.__qualname__,
    ):
        kind = "figures" if isinstance(spec, FigureSpec) else "tables"
        raise ParameterError(
            f"Two {kind} of group '{spec.group}' are called '{spec.name}': give one of them another name."
        )
    entries[spec.group, spec.name] = spec


def figure(
    group: str,
    *,
    name: str,
    title: str,
    caption: str,
    paper: str = "",
    needs: tuple[str, ...] = (),
    each: str = "",
) -> Callable[[Drawing], Drawing]:
    """Register a function `Dataset -> Figure` as a figure of a group of the atlas.

    Parameters
    ----------
    group : str
        The group of the atlas (the analysis's name).
    name : str
        What the figure's files are called, unique within the group.
    title, caption : str
        Shown beside the figure on the page; the caption says how to read it.
    paper : str, default ""
        Where the figure comes from, for instance ``"Clark et al. 2019, Fig 2"``.
    needs : tuple of str, default ()
        Variables to draw; the figure is left out when none of them holds a number.
    each : str, default ""
        A dimension: one figure is drawn for each of its labels, the function seeing a dataset of
        one label.
    """

    def register(function: Drawing) -> Drawing:
        @functools.wraps(function)
        def styled(*args: Any, **kwargs: Any) -> Figure:
            with style.context():
                return function(*args, **kwargs)

        _enter(_FIGURES, FigureSpec(group, name, title, caption, paper, styled, needs, each))
        return styled  # type: ignore[return-value]

    return register


def table_of(group: str, *, name: str, title: str, note: str = "") -> Callable[[Maker], Maker]:
    """Register a function `Dataset -> DataFrame` as a table of a group of the atlas; an empty table
    is left out."""

    def register(function: Maker) -> Maker:
        _enter(_TABLES, TableSpec(group, name, title, note, function))
        return function

    return register


def figures_for(group: str) -> list[FigureSpec]:
    """The figures of a group, in the order in which they were registered; an empty list for a group
    without any."""
    load(FIGURES)
    return [spec for spec in _FIGURES.values() if spec.group == group]


def tables_for(group: str) -> list[TableSpec]:
    """The tables of a group, in the order in which they were registered."""
    load(FIGURES)
    return [spec for spec in _TABLES.values() if spec.group == group]
