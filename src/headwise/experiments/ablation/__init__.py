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
from headwise.experiments.ablation.prune import PruneOptions, PruneResult, prune
from headwise.experiments.ablation.run import (
    AblationCondition,
    AblationOptions,
    Evaluation,
    ablate,
    evaluate,
    provenance,
    single_heads,
    whole_layers,
)
from headwise.experiments.ablation.scored_models import (
    ScoredClassifier,
    ScoredLanguageModel,
    ScoredModel,
)
from headwise.experiments.ablation.sets import pick_heads

__all__ = [
    "AblationCondition",
    "AblationOptions",
    "Evaluation",
    "GateCost",
    "GateOptions",
    "GateResult",
    "PruneOptions",
    "PruneResult",
    "ScoredClassifier",
    "ScoredLanguageModel",
    "ScoredModel",
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
