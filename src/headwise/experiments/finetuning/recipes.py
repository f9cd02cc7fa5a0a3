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
    """One way to fine-tune.

    `learning_rate` holds for the encoder and the head, `frozen_rate` for the head alone where the
    encoder is frozen (at the encoder's rate a new head would hardly move in three epochs). Warm-up
    is linear over `warmup_share` of the steps, or over `warmup_steps` of them but never more than a
    third; then the rate falls linearly to zero. `new_pooler`: the pooler before the classifier is
    drawn anew, so that every pooling starts with an untrained head (Jo & Myaeng 2020, App. A.4).
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
        for name in ("learning_rate", "frozen_rate"):
            above(name, getattr(self, name), 0)
        for name in ("batch_size", "epochs"):
            at_least(name, getattr(self, name), 1)

    def changed(self, **given: Any) -> Recipe:
        """The recipe with whatever is not None put in its place."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def optimizer_for(self, modules: nn.Module, frozen: bool) -> torch.optim.Optimizer:
        """An optimizer over what is to be trained; biases and norms do not decay."""
        trained = [p for p in modules.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        rate = self.frozen_rate if frozen else self.learning_rate
        if self.optimizer == "lamb":
            return Lamb(groups, lr=rate)
        return torch.optim.AdamW(groups, lr=rate, fused=trained[0].is_cuda)

    def warmup(self, steps: int) -> int:
        """Steps of warm-up in a training of so many steps."""
        if self.warmup_steps is None:
            return round(self.warmup_share * steps)
        return min(self.warmup_steps, steps // 3)

    def factor(self, step: int, steps: int) -> float:
        """What the rate is multiplied by at a step (0-based)."""
        rising = self.warmup(steps)
        if step < rising:
            return (step + 1) / (rising + 1)
        return max(0.0, (steps - step) / max(1, steps - rising))


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
    """A recipe by the paper's name."""
    if isinstance(name, Recipe):
        return name
    if name not in RECIPES:
        raise ParameterError(unknown("recipe", name, RECIPES))
    return RECIPES[name]


def parse_seeds(given: int | Iterable[int], first: int = 0) -> tuple[int, ...]:
    """So many seeds from the first on, or the seeds themselves."""
    seeds = tuple(range(first, first + given)) if isinstance(given, int) else tuple(given)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ParameterError(
            f"`seeds` must be a number of at least 1, or different seeds; it is {given!r}."
        )
    return seeds
