"""Tracking: what every head does over the checkpoints of a training run, and when that begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.experiments.track.options import TrackOptions
    from headwise.experiments.track.result import births
    from headwise.experiments.track.run import track, track_in_job

_PACKAGE = "headwise.experiments.track"
__getattr__ = lazy_names(
    __name__,
    {
        f"{_PACKAGE}.options": ("TrackOptions",),
        f"{_PACKAGE}.result": ("births",),
        f"{_PACKAGE}.run": ("track", "track_in_job"),
    },
)

__all__ = ["TrackOptions", "births", "track", "track_in_job"]
