"""Coreference without a model: what a mention is, which mentions may be its antecedents, rules that pick one, and documents cut to size."""

from headwise.analyses.coreference.baselines import BASELINES, baseline_choices
from headwise.analyses.coreference.mentions import MENTION_TYPES, Expression, expressions_of
from headwise.analyses.coreference.windows import Window, windows

__all__ = ["BASELINES", "MENTION_TYPES", "Expression", "Window", "baseline_choices", "expressions_of", "windows"]
