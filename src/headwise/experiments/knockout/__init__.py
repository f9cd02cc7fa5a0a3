"""Knockout: what is lost when some tokens can no longer attend to others, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.experiments.knockout.options import KnockoutOptions
    from headwise.experiments.knockout.run import MarkedText, knockout, knockout_in_job

_PACKAGE = "headwise.experiments.knockout"
__getattr__ = lazy_names(
    __name__,
    {
        f"{_PACKAGE}.options": ("KnockoutOptions",),
        f"{_PACKAGE}.run": ("MarkedText", "knockout", "knockout_in_job"),
    },
)

__all__ = ["KnockoutOptions", "MarkedText", "knockout", "knockout_in_job"]
