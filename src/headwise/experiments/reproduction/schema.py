"""The parts of a paper's reproduction: its entries in the paper's order, and what each entry
returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwise.core.errors import HeadwiseError

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from headwise.experiments.reproduction.context import ReproductionContext
    from headwise.experiments.reproduction.rules import Evidence


class NotRunError(HeadwiseError):
    """An entry cannot be computed here; the report shows the message as the reason."""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One of our numbers, shown beside the printed number of the same key.

    Parameters
    ----------
    key : str
        The key of the printed value (see `printed/`), or a new one.
    ours : float, optional
        In the unit of the printed value; None where there is no value, with the reason in `note`.
    low, high : float, optional
        The ends of the 95 % interval.
    note : str, default ""
        What a reader must know about the number: which head, how many pairs.
    label, unit : str, default ""
        Name and unit of a number that the paper does not print.
    """

    key: str
    ours: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    label: str = ""
    unit: str = ""

    @classmethod
    def from_variable(
        cls,
        key: str,
        cell: xr.Dataset,
        name: str,
        note: str = "",
        scale: float = 100.0,
        label: str = "",
    ) -> ReportRow:
        """Make a row from the variable `name` of one cell of a result, with its interval.

        Parameters
        ----------
        key : str
            The key of the row.
        cell : xr.Dataset
            A result selected down to single values, with `name`, `name_low` and `name_high`.
        name : str
            The variable.
        note, label : str, default ""
            As for the row.
        scale : float, default 100
            A factor; 100 makes per cent of a share.
        """
        value = scale * float(cell[name])
        low = scale * float(cell[f"{name}_low"])
        high = scale * float(cell[f"{name}_high"])
        unit = "%" if scale == 100 else ""
        return cls(key, value, low, high, note, label, unit)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of ours that has no printed counterpart cell by cell."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ReportFigure:
    """A drawn figure with title and caption; `name` is unique within its entry."""

    name: str
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True, slots=True, eq=False)
class EntryResult:
    """Everything that an entry computes.

    Parameters
    ----------
    rows : sequence of ReportRow
        Our numbers, in the order of the printed ones.
    tables : sequence of ReportTable
        Further numbers.
    figures : sequence of ReportFigure
        The figures.
    evidence : mapping of str to Evidence
        What was measured for each claim, by the claim's key in `printed/`.
    deviations : sequence of str
        What differs from the paper's set-up and why, one sentence each.
    inputs : mapping of str to str
        What it was computed on: corpus, sizes, model.
    """

    rows: Sequence[ReportRow] = ()
    tables: Sequence[ReportTable] = ()
    figures: Sequence[ReportFigure] = ()
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    deviations: Sequence[str] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """One numbered table or figure of a paper, or the numbers of one section.

    Parameters
    ----------
    key : str
        The name by which `ReproductionOptions.only` selects it: `table1`, `fig2`, `text3.1`.
    title : str
        What it shows, in our words.
    compute : callable
        Takes a context and returns a result; raises `NotRunError` where that is impossible.
    needs : tuple of str, default ()
        Data sets (see `data.py`) without which nothing of it can be computed.
    """

    key: str
    title: str
    compute: Callable[[ReproductionContext], EntryResult]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A paper: its key (as in `core.papers`), its setting in a sentence each, and its entries in
    the paper's order."""

    key: str
    settings: Sequence[str]
    entries: Sequence[Entry]
