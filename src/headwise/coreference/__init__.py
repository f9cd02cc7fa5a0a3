"""Coreference without a model: what a mention is, which mentions may be its antecedents, rules that pick one, and documents cut to size."""

from headwise.coreference.baselines import BASELINES, baseline_choices
from headwise.coreference.mentions import MENTION_TYPES, Expression, expressions_of
from headwise.coreference.windows import Window, windows

__all__ = ["BASELINES", "MENTION_TYPES", "Expression", "Window", "baseline_choices", "expressions_of", "windows"]
