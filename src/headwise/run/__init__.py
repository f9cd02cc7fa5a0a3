"""Running analyses: the plan, the engine, shards and resume."""

from headwise.run.runner import RunOptions, run_analyses
from headwise.run.simple import make_atlas

__all__ = ["RunOptions", "make_atlas", "run_analyses"]
