"""Running analyses: the corpus read once, the plan, the engine, and the run that can be killed and
goes on."""

from headwise.run.cluster import Backend, workers_of
from headwise.run.job import Job
from headwise.run.options import RunOptions, Source
from headwise.run.plan import Plan
from headwise.run.runner import Listener, Run, run_analyses
from headwise.run.simple import make_atlas

__all__ = [
    "Backend",
    "Job",
    "Listener",
    "Plan",
    "Run",
    "RunOptions",
    "Source",
    "make_atlas",
    "run_analyses",
    "workers_of",
]
