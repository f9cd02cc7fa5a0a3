"""Models of different shapes side by side: which labels their heads have, at which relative depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.experiments.family.members import compares_by_depth
    from headwise.experiments.family.result import differences, matches
    from headwise.experiments.family.run import family_in_job

_PACKAGE = "headwise.experiments.family"
__getattr__ = lazy_names(
    __name__,
    {
        f"{_PACKAGE}.members": ("compares_by_depth",),
        f"{_PACKAGE}.result": ("differences", "matches"),
        f"{_PACKAGE}.run": ("family_in_job",),
    },
)

__all__ = ["compares_by_depth", "differences", "family_in_job", "matches"]
