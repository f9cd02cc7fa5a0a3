"""Running analyses: the corpus read once, the plan, the engine, and the run that resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.run.cluster import Backend, workers_of
    from headwise.run.job import Job
    from headwise.run.options import AtlasOptions, RunOptions, SourceOptions
    from headwise.run.plan import Plan
    from headwise.run.runner import Listener, Run, run_analyses
    from headwise.run.simple import make_atlas
    from headwise.run.source import Source

# Imported when first used: the command line reads `run.options` and does not wait for torch.
__getattr__ = lazy_names(
    __name__,
    {
        "headwise.run.cluster": ("Backend", "workers_of"),
        "headwise.run.job": ("Job",),
        "headwise.run.options": ("AtlasOptions", "RunOptions", "SourceOptions"),
        "headwise.run.plan": ("Plan",),
        "headwise.run.runner": ("Listener", "Run", "run_analyses"),
        "headwise.run.simple": ("make_atlas",),
        "headwise.run.source": ("Source",),
    },
)

__all__ = [
    "AtlasOptions",
    "Backend",
    "Job",
    "Listener",
    "Plan",
    "Run",
    "RunOptions",
    "Source",
    "SourceOptions",
    "make_atlas",
    "run_analyses",
    "workers_of",
]
