"""Tables of a group for the page and as CSV: a decorated function `Dataset -> DataFrame` is its own registration, as for figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd
import xarray as xr

from headwise.plots.registry import load_all

Maker = TypeVar("Maker", bound=Callable[..., pd.DataFrame])


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A registered table: which group it reads, what it is called, and the function that makes it."""

    group: str
    name: str
    title: str
    note: str
    function: Callable[[xr.Dataset], pd.DataFrame]


_TABLES: dict[tuple[str, str], TableSpec] = {}


def table_of(group: str, *, name: str, title: str, note: str = "") -> Callable[[Maker], Maker]:
    """Register a function `Dataset -> DataFrame` as a table of a group of the atlas; an empty table is left out."""

    def register(function: Maker) -> Maker:
        _TABLES[group, name] = TableSpec(group, name, title, note, function)
        return function

    return register


def tables_for(group: str) -> list[TableSpec]:
    """The tables of a group, in the order in which they were registered."""
    load_all()
    return [spec for (owner, _), spec in _TABLES.items() if owner == group]
