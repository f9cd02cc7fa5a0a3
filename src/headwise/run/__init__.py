"""Running analyses: the corpus read once, the plan, the engine, and the run that resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.run.cluster import Backend, workers_of
    from headwise.run.job import Job
    from headwise.run.options import (
        AtlasOptions,
        GrowingAtlasOptions,
        GrowthOptions,
        RunOptions,
        SourceOptions,
    )
    from headwise.run.plan import Plan
    from headwise.run.runner import Run, RunCallbacks, make_atlas, run_analyses
    from headwise.run.source import Source

# Imported when first used: the command line reads `run.options` and does not wait for torch.
__getattr__ = lazy_names(
    __name__,
    {
        "headwise.run.cluster": ("Backend", "workers_of"),
        "headwise.run.job": ("Job",),
        "headwise.run.options": (
            "AtlasOptions",
            "GrowingAtlasOptions",
            "GrowthOptions",
            "RunOptions",
            "SourceOptions",
        ),
        "headwise.run.plan": ("Plan",),
        "headwise.run.runner": ("Run", "RunCallbacks", "make_atlas", "run_analyses"),
        "headwise.run.source": ("Source",),
    },
)

__all__ = [
    "AtlasOptions",
    "Backend",
    "GrowingAtlasOptions",
    "GrowthOptions",
    "Job",
    "Plan",
    "Run",
    "RunCallbacks",
    "RunOptions",
    "Source",
    "SourceOptions",
    "make_atlas",
    "run_analyses",
    "workers_of",
]
