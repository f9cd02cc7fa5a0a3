"""The list of figures: a decorated function is its own registration, found by the group of the atlas it draws."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from headwise.core.errors import ParameterError
from headwise.plots import style

Drawing = TypeVar("Drawing", bound=Callable[..., Figure])


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
    """A registered figure: which group it draws, what it is called, and the function that draws it."""

    group: str
    name: str
    title: str
    caption: str
    paper: str
    function: Callable[..., Figure]
    needs: tuple[str, ...] = ()  # variables of which at least one must hold a number
    each: str = ""  # a dimension: one figure per label of it

    def applies(self, dataset: xr.Dataset) -> bool:
        """Whether there is anything to draw: one of the needed variables is there and not all NaN."""
        if not self.needs:
            return True
        return any(name in dataset.variables and _has_numbers(dataset.variables[name].values) for name in self.needs)

    def draw(self, dataset: xr.Dataset) -> list[Drawn]:
        """All figures this one gives for a dataset: none where it does not apply, several where it is drawn for each label of a dimension."""
        if not self.applies(dataset):
            return []
        if not self.each or self.each not in dataset.dims:
            return [Drawn(self.name, self.title, self.caption, self.paper, self.function(dataset))]
        drawn = []
        for index in range(dataset.sizes[self.each]):
            part = dataset.isel({self.each: [index]})
            if self.applies(part):
                label = str(part[self.each].values[0]) if self.each in part.coords else str(index)
                title = f"{self.title}: {label.replace('_', ' ')}"
                drawn.append(
                    Drawn(f"{self.name}-{_file_part(label)}", title, self.caption, self.paper, self.function(part))
                )
        return drawn


_FIGURES: dict[tuple[str, str], FigureSpec] = {}


def figure(
    group: str, *, name: str, title: str, caption: str, paper: str = "", needs: tuple[str, ...] = (), each: str = ""
) -> Callable[[Drawing], Drawing]:
    """Register a function `Dataset -> Figure` as a figure of a group of the atlas.

    Parameters
    ----------
    group
        The group of the atlas (the analysis's name).
    name
        What the figure's files are called, unique within the group.
    title, caption
        Shown beside the figure on the page; the caption says how to read it.
    paper
        Where the figure comes from, for instance ``"Clark et al. 2019, Fig 2"``.
    needs
        Variables to draw; the figure is left out when none of them holds a number.
    each
        A dimension: one figure is drawn for each of its labels, the function seeing a dataset of one label.
    """

    def register(function: Drawing) -> Drawing:
        @functools.wraps(function)
        def styled(*args: Any, **kwargs: Any) -> Figure:
            with style.context():
                return function(*args, **kwargs)

        key = (group, name)
        before = _FIGURES.get(key)
        if before is not None and (before.function.__module__, before.function.__qualname__) != (
            function.__module__,
            function.__qualname__,
        ):
            raise ParameterError(f"Two figures of group '{group}' are called '{name}': give one of them another name.")
        _FIGURES[key] = FigureSpec(group, name, title, caption, paper, styled, needs, each)
        return styled  # type: ignore[return-value]

    return register


def figures_for(group: str) -> list[FigureSpec]:
    """The figures of a group, in the order in which they were registered; an empty list for a group without any."""
    load_all()
    return [spec for (owner, _), spec in _FIGURES.items() if owner == group]


def figure_groups() -> list[str]:
    """The groups that have figures, sorted."""
    load_all()
    return sorted({group for group, _ in _FIGURES})


HOMES = ("headwise.analyses", "headwise.experiments")  # packages of one folder per question, with its figures in it


@functools.cache
def load_all() -> None:
    """Import every question's figures once, so that adding a file is all it takes to add a figure."""
    for home in HOMES:
        for folder in pkgutil.iter_modules(importlib.import_module(home).__path__):
            modules = (
                pkgutil.iter_modules(importlib.import_module(f"{home}.{folder.name}").__path__) if folder.ispkg else ()
            )
            for module in sorted(info.name for info in modules if info.name.endswith(("figures", "tables"))):
                importlib.import_module(f"{home}.{folder.name}.{module}")


def _file_part(label: str) -> str:
    """A label as part of a file name: a hub name's slash would name a folder."""
    return re.sub(r"[\\/\s]+", "-", label.replace("_", "-"))


def _has_numbers(values: np.ndarray) -> bool:
    return values.dtype.kind not in "fc" or bool(np.isfinite(values).any())
