"""The papers reproduced: every table and figure in its order, the printed numbers beside ours,
claims as a checklist."""

from headwise.experiments.reproduction.context import ReproductionContext, ReproductionOptions
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
    Verdict,
)

__all__ = [
    "Entry",
    "EntryResult",
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
