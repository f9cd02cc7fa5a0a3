"""What a paper's reproduction is: entries in the paper's order, each computed from a bench, and the
claims of the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwise.core.errors import HeadwiseError

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from headwise.experiments.reproduction.bench import Bench


class NotRunError(HeadwiseError):
    """An entry cannot be computed here; its sentence says why, and the report shows it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One number of ours, beside the printed one of the same key where there is one.

    Parameters
    ----------
    key : str
        The key of the printed value (see `printed/`), or a new one.
    ours : float, optional
        In the unit of the printed value; None where it cannot be had, with the reason in `note`.
    low, high : float, optional
        The ends of its 95 % interval.
    note : str, default ""
        What a reader must know of it: which head, over how many.
    label, unit : str, default ""
        What it is called and counted in where nothing is printed.
    """

    key: str
    ours: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    label: str = ""
    unit: str = ""

    @classmethod
    def of(
        cls,
        key: str,
        found: xr.Dataset,
        name: str,
        note: str = "",
        scale: float = 100.0,
        label: str = "",
    ) -> Row:
        """From one cell of a result: its variable `name` with `name_low` and `name_high`, in per
        cent unless told."""
        value, low, high = (scale * float(found[f"{name}{end}"]) for end in ("", "_low", "_high"))
        return cls(key, value, low, high, note, label, "%" if scale == 100 else "")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of ours that has no printed counterpart cell by cell."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A drawn figure and the words that belong to it; `name` is unique within its entry."""

    name: str
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a claim: what was found here, and whether the claim holds by its rule (None:
    could not be tried, and why)."""

    ours: str
    holds: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What an entry comes to.

    Parameters
    ----------
    rows : sequence of Row
        Our numbers, in the order of the printed ones.
    tables : sequence of Table
        What else there is to say in numbers.
    pictures : sequence of Picture
        The figures.
    claims : mapping of str to Verdict
        By the claim's key in `printed/`.
    differs : sequence of str
        What differs from the paper's set-up and why, a sentence each.
    seen : mapping of str to str
        What it was computed on: corpus, sizes, model.
    """

    rows: Sequence[Row] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    claims: Mapping[str, Verdict] = field(default_factory=dict)
    differs: Sequence[str] = ()
    seen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """One numbered table or figure of a paper (`table1`, `fig2`), or one section's numbers
    (`text3.1`).

    Parameters
    ----------
    key : str
        What `--only` calls it.
    title : str
        What it shows, in our words.
    compute : callable
        From a bench to an outcome; it raises `NotRunError` where it cannot be had.
    needs : tuple of str, default ()
        Data sets (see `data.py`) without which nothing of it can be computed.
    """

    key: str
    title: str
    compute: Callable[[Bench], Outcome]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A paper: its key (as in `core.papers`), its settings in a sentence each, and its entries in
    the paper's order."""

    key: str
    settings: Sequence[str]
    entries: Sequence[Entry]
