"""Disabling heads: what it does to the score, first-order importance, and removing heads for
good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.experiments.ablation.gates import (
        GateCost,
        GateOptions,
        GateResult,
        estimate_gate_cost,
        learn_gates,
    )
    from headwise.experiments.ablation.importance import head_importance
    from headwise.experiments.ablation.options import (
        AblationOptions,
        EvaluationOptions,
        PruneOptions,
    )
    from headwise.experiments.ablation.pruning import PruneResult, prune, prune_in_job
    from headwise.experiments.ablation.run import (
        AblationCondition,
        Evaluation,
        ablate,
        ablate_in_job,
        ablate_scored_model,
        evaluate,
        provenance,
        single_heads,
        whole_layers,
    )
    from headwise.experiments.ablation.scored_models import (
        ScoredClassifier,
        ScoredLanguageModel,
        ScoredModel,
        open_scored_model,
    )
    from headwise.experiments.ablation.sets import pick_heads

_PACKAGE = "headwise.experiments.ablation"
__getattr__ = lazy_names(
    __name__,
    {
        f"{_PACKAGE}.gates": (
            "GateCost",
            "GateOptions",
            "GateResult",
            "estimate_gate_cost",
            "learn_gates",
        ),
        f"{_PACKAGE}.importance": ("head_importance",),
        f"{_PACKAGE}.options": ("AblationOptions", "EvaluationOptions", "PruneOptions"),
        f"{_PACKAGE}.pruning": ("PruneResult", "prune", "prune_in_job"),
        f"{_PACKAGE}.run": (
            "AblationCondition",
            "Evaluation",
            "ablate",
            "ablate_in_job",
            "ablate_scored_model",
            "evaluate",
            "provenance",
            "single_heads",
            "whole_layers",
        ),
        f"{_PACKAGE}.scored_models": (
            "ScoredClassifier",
            "ScoredLanguageModel",
            "ScoredModel",
            "open_scored_model",
        ),
        f"{_PACKAGE}.sets": ("pick_heads",),
    },
)

__all__ = [
    "AblationCondition",
    "AblationOptions",
    "Evaluation",
    "EvaluationOptions",
    "GateCost",
    "GateOptions",
    "GateResult",
    "PruneOptions",
    "PruneResult",
    "ScoredClassifier",
    "ScoredLanguageModel",
    "ScoredModel",
    "ablate",
    "ablate_in_job",
    "ablate_scored_model",
    "estimate_gate_cost",
    "evaluate",
    "head_importance",
    "learn_gates",
    "open_scored_model",
    "pick_heads",
    "provenance",
    "prune",
    "prune_in_job",
    "single_heads",
    "whole_layers",
]
