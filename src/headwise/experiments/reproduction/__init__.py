"""The papers reproduced: every table and figure in its order, the printed numbers beside ours,
claims as a checklist."""

from headwise.experiments.reproduction.bench import Bench, ReproductionOptions
from headwise.experiments.reproduction.run import Reproduced, papers, reproduce, reproduction_of
from headwise.experiments.reproduction.schema import (
    Entry,
    NotRunError,
    Outcome,
    Picture,
    Reproduction,
    Row,
    Table,
    Verdict,
)

__all__ = [
    "Bench",
    "Entry",
    "NotRunError",
    "Outcome",
    "Picture",
    "Reproduced",
    "Reproduction",
    "ReproductionOptions",
    "Row",
    "Table",
    "Verdict",
    "papers",
    "reproduce",
    "reproduction_of",
]
