"""Why a head attends where it does: its scores by the components that wrote query and key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.experiments.why.options import WhyOptions
    from headwise.experiments.why.run import why, why_in_job

_PACKAGE = "headwise.experiments.why"
__getattr__ = lazy_names(
    __name__,
    {
        f"{_PACKAGE}.options": ("WhyOptions",),
        f"{_PACKAGE}.run": ("why", "why_in_job"),
    },
)

__all__ = ["WhyOptions", "why", "why_in_job"]
