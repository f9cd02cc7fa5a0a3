"""Heads that find antecedents (Clark et al. 2019, §4.3), and coreference without a model: mentions,
rules, windows."""

from headwise.analyses.coreference.baselines import BASELINES, baseline_choices
from headwise.analyses.coreference.mentions import MENTION_TYPES, Expression, expressions_of
from headwise.analyses.coreference.windows import Window, windows

__all__ = [
    "BASELINES",
    "MENTION_TYPES",
    "Expression",
    "Window",
    "baseline_choices",
    "expressions_of",
    "windows",
]
