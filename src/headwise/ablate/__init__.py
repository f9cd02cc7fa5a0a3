"""Disabling heads: what it does to the score, first-order importance, and removing heads for good."""

from headwise.ablate.importance import head_importance
from headwise.ablate.prune import Pruned, prune
from headwise.ablate.run import Condition, Evaluation, ablate, evaluate, single_heads, whole_layers
from headwise.ablate.sets import pick_heads
from headwise.ablate.subjects import LanguageSubject, Subject, TaskSubject

__all__ = [
    "Condition",
    "Evaluation",
    "LanguageSubject",
    "Pruned",
    "Subject",
    "TaskSubject",
    "ablate",
    "evaluate",
    "head_importance",
    "pick_heads",
    "prune",
    "single_heads",
    "whole_layers",
]
