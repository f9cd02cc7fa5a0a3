"""Fine-tuning on tasks: the papers' recipes, three poolings, four starts, several seeds."""

from headwise.finetune.classifier import POOLINGS, STARTS, make_classifier, open_classifier
from headwise.finetune.lamb import Lamb
from headwise.finetune.recipes import RECIPES, Recipe
from headwise.finetune.results import Record, Results, median_interval
from headwise.finetune.run import finetune

__all__ = [
    "POOLINGS",
    "RECIPES",
    "STARTS",
    "Lamb",
    "Recipe",
    "Record",
    "Results",
    "finetune",
    "make_classifier",
    "median_interval",
    "open_classifier",
]
