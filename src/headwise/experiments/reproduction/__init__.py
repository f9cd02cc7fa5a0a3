"""Reproduce papers: every table and figure in its order, the printed numbers beside ours, claims as
a checklist."""

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.experiments.reproduction.context import ReproductionContext
    from headwise.experiments.reproduction.options import ReproductionOptions
    from headwise.experiments.reproduction.rules import Evidence, Verdict
    from headwise.experiments.reproduction.run import (
        ReproductionReport,
        papers,
        reproduce,
        reproduction_of,
    )
    from headwise.experiments.reproduction.schema import (
        Entry,
        EntryResult,
        NotRunError,
        ReportFigure,
        ReportRow,
        ReportTable,
        Reproduction,
    )

__all__ = [
    "Entry",
    "EntryResult",
    "Evidence",
    "NotRunError",
    "ReportFigure",
    "ReportRow",
    "ReportTable",
    "Reproduction",
    "ReproductionContext",
    "ReproductionOptions",
    "ReproductionReport",
    "Verdict",
    "papers",
    "reproduce",
    "reproduction_of",
]

# The command line imports the options alone, which need neither torch nor transformers.
__getattr__ = lazy_names(
    __name__,
    {
        "headwise.experiments.reproduction.context": ("ReproductionContext",),
        "headwise.experiments.reproduction.options": ("ReproductionOptions",),
        "headwise.experiments.reproduction.rules": ("Evidence", "Verdict"),
        "headwise.experiments.reproduction.run": (
            "ReproductionReport",
            "papers",
            "reproduce",
            "reproduction_of",
        ),
        "headwise.experiments.reproduction.schema": (
            "Entry",
            "EntryResult",
            "NotRunError",
            "ReportFigure",
            "ReportRow",
            "ReportTable",
            "Reproduction",
        ),
    },
)
