"""Fine-tuning on tasks: the papers' recipes, three poolings, four starts, several seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.experiments.finetuning.classifier import (
        ClassifierOptions,
        make_classifier,
        open_classifier,
    )
    from headwise.experiments.finetuning.lamb import Lamb
    from headwise.experiments.finetuning.options import POOLINGS, STARTS, FinetuneOptions
    from headwise.experiments.finetuning.recipes import RECIPES, Recipe
    from headwise.experiments.finetuning.results import ResultsFile, TrainingRecord
    from headwise.experiments.finetuning.run import finetune

_PACKAGE = "headwise.experiments.finetuning"
__getattr__ = lazy_names(
    __name__,
    {
        f"{_PACKAGE}.classifier": ("ClassifierOptions", "make_classifier", "open_classifier"),
        f"{_PACKAGE}.lamb": ("Lamb",),
        f"{_PACKAGE}.options": ("POOLINGS", "STARTS", "FinetuneOptions"),
        f"{_PACKAGE}.recipes": ("RECIPES", "Recipe"),
        f"{_PACKAGE}.results": ("ResultsFile", "TrainingRecord"),
        f"{_PACKAGE}.run": ("finetune",),
    },
)

__all__ = [
    "POOLINGS",
    "RECIPES",
    "STARTS",
    "ClassifierOptions",
    "FinetuneOptions",
    "Lamb",
    "Recipe",
    "ResultsFile",
    "TrainingRecord",
    "finetune",
    "make_classifier",
    "open_classifier",
]
