"""How each paper fine-tuned: optimizer, rate, batches, epochs and warm-up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from headwise.core.checks import above, at_least, check_types
from headwise.core.errors import ParameterError, unknown
from headwise.experiments.finetuning.lamb import Lamb

OPTIMIZERS = ("adamw", "lamb")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The hyperparameters of a fine-tuning.

    `learning_rate` is for the encoder and the head, `frozen_rate` for the head alone where the
    encoder is frozen (at the encoder's rate a new head would hardly change in three epochs).
    Warm-up is linear over `warmup_share` of the steps, or over `warmup_steps` of them but never
    more than a third; then the rate falls linearly to zero. `new_pooler`: the pooler before the
    classifier is drawn anew, so that every pooling starts with an untrained head (Jo & Myaeng 2020,
    App. A.4).
    """

    name: str
    optimizer: str = "adamw"
    learning_rate: float = 5e-5
    frozen_rate: float = 1e-3
    batch_size: int = 32
    epochs: int = 3
    weight_decay: float = 0.01
    warmup_share: float = 0.1
    warmup_steps: int | None = None
    clip: float = 1.0
    dropout: float = 0.1
    new_pooler: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        above("learning_rate", self.learning_rate, 0)
        above("frozen_rate", self.frozen_rate, 0)
        at_least("batch_size", self.batch_size, 1)
        at_least("epochs", self.epochs, 1)

    def changed(self, **values: Any) -> Recipe:
        """Return the recipe with the values that are not None in place of its own."""
        changes = {name: value for name, value in values.items() if value is not None}
        return replace(self, **changes)

    def optimizer_for(self, modules: nn.Module, frozen: bool) -> torch.optim.Optimizer:
        """Return an optimizer of what is trained; biases and norms do not decay."""
        trained = [parameter for parameter in modules.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.ndim > 1]
        vectors = [parameter for parameter in trained if parameter.ndim <= 1]
        groups: list[dict[str, Any]] = []
        if matrices:
            groups.append({"params": matrices, "weight_decay": self.weight_decay})
        if vectors:
            groups.append({"params": vectors, "weight_decay": 0.0})
        rate = self.frozen_rate if frozen else self.learning_rate
        if self.optimizer == "lamb":
            return Lamb(groups, lr=rate)
        return torch.optim.AdamW(groups, lr=rate, fused=trained[0].is_cuda)

    def warmup(self, steps: int) -> int:
        """Return the steps of warm-up in a training of `steps` steps."""
        if self.warmup_steps is None:
            return round(self.warmup_share * steps)
        return min(self.warmup_steps, steps // 3)

    def factor(self, step: int, steps: int) -> float:
        """Return what the rate is multiplied by at a step (0-based)."""
        warmup_steps = self.warmup(steps)
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        return max(0.0, (steps - step) / max(1, steps - warmup_steps))


RECIPES = {
    recipe.name: recipe
    for recipe in (
        # Devlin et al.'s settings at batch 32 and 3 epochs (§3); the rate is the released trainer's
        # default.
        Recipe("kovaleva"),
        # App. A.4: batch 32, 2e-5, three epochs, dropout 0.1 + linear + tanh before the classifier.
        Recipe("jo", learning_rate=2e-5, new_pooler=True),
        # Experimental setup: LAMB, 1e-4 or 2e-4, batch 32 or 128, 10k steps of warm-up (no more
        # than a third of a short training here).
        Recipe("pande", optimizer="lamb", learning_rate=2e-4, warmup_steps=10_000),
    )
}


def recipe_named(name: str | Recipe) -> Recipe:
    """Return a recipe by the paper's name."""
    if isinstance(name, Recipe):
        return name
    if name not in RECIPES:
        raise ParameterError(unknown("recipe", name, RECIPES))
    return RECIPES[name]


def parse_seeds(seeds: int | Iterable[int], first: int = 0) -> tuple[int, ...]:
    """Return this many seeds from the first on, or the seeds themselves."""
    if isinstance(seeds, int):
        numbers = tuple(range(first, first + seeds))
    else:
        numbers = tuple(seeds)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ParameterError(
            f"`seeds` must be a number of at least 1, or different seeds; it is {seeds!r}."
        )
    return numbers
