"""Running analyses: the corpus read once, the plan, the engine, and the run that can be killed and goes on."""

from headwise.run.plan import Plan
from headwise.run.runner import Listener, Run, RunOptions, run_analyses
from headwise.run.simple import make_atlas
from headwise.run.source import Source

__all__ = ["Listener", "Plan", "Run", "RunOptions", "Source", "make_atlas", "run_analyses"]
