"""Fine-tuning on tasks: the papers' recipes, three poolings, four starts, several seeds."""

from headwise.experiments.finetuning.classifier import (
    POOLINGS,
    STARTS,
    ClassifierOptions,
    make_classifier,
    open_classifier,
)
from headwise.experiments.finetuning.lamb import Lamb
from headwise.experiments.finetuning.recipes import RECIPES, Recipe
from headwise.experiments.finetuning.results import ResultsFile, TrainingRecord
from headwise.experiments.finetuning.run import FinetuneOptions, finetune

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
