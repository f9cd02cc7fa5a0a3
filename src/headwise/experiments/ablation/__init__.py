"""Disabling heads: what it does to the score, first-order importance, and removing heads for
good."""

from headwise.experiments.ablation.gates import (
    GateCost,
    GateOptions,
    GateResult,
    estimate_gate_cost,
    learn_gates,
)
from headwise.experiments.ablation.importance import head_importance
from headwise.experiments.ablation.prune import Pruned, PruneOptions, prune
from headwise.experiments.ablation.run import (
    AblationOptions,
    Condition,
    Evaluation,
    ablate,
    evaluate,
    provenance,
    single_heads,
    whole_layers,
)
from headwise.experiments.ablation.sets import pick_heads
from headwise.experiments.ablation.subjects import LanguageSubject, Subject, TaskSubject

__all__ = [
    "AblationOptions",
    "Condition",
    "Evaluation",
    "GateCost",
    "GateOptions",
    "GateResult",
    "LanguageSubject",
    "PruneOptions",
    "Pruned",
    "Subject",
    "TaskSubject",
    "ablate",
    "estimate_gate_cost",
    "evaluate",
    "head_importance",
    "learn_gates",
    "pick_heads",
    "provenance",
    "prune",
    "single_heads",
    "whole_layers",
]
