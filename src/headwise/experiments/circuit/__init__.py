"""Circuits: which edges between the parts of a model carry a behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.experiments.circuit.options import CircuitOptions
    from headwise.experiments.circuit.run import circuit, circuit_in_job

_PACKAGE = "headwise.experiments.circuit"
__getattr__ = lazy_names(
    __name__,
    {
        f"{_PACKAGE}.options": ("CircuitOptions",),
        f"{_PACKAGE}.run": ("circuit", "circuit_in_job"),
    },
)

__all__ = ["CircuitOptions", "circuit", "circuit_in_job"]
