"""One training with checkpoints: killed at any moment, the same call goes on from the last finished
epoch to the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.core.errors import InputError
from headwise.core.store import CheckpointStore
from headwise.experiments.finetuning.classifier import TaskModel
from headwise.experiments.finetuning.data import (
    TaskRows,
    collate_rows,
    scoring_order,
    training_order,
)
from headwise.experiments.finetuning.recipes import Recipe
from headwise.run.job import Progress, no_progress
from headwise.text.tasks import Task, score

SCORING_BATCH = 64


@dataclass(frozen=True, slots=True, eq=False)
class TrainingResult:
    """What a training came to: `history` has loss and dev scores after each epoch; `predicted` what
    the trained model says of the dev part."""

    metrics: dict[str, float]
    history: list[dict[str, float]]
    predicted: np.ndarray


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How one training goes.

    Parameters
    ----------
    recipe : Recipe
        Optimizer, rate, batches and epochs.
    seed : int
        For the order of batches.
    epochs : int, optional
        Instead of the recipe's; 0 scores the model as it is.
    frozen : bool, default False
        Train the head only.
    half : bool, default False
        Compute in bfloat16 where that is safe (autocast); weights and optimizer stay in float32.
    """

    recipe: Recipe
    seed: int
    epochs: int | None = None
    frozen: bool = False
    half: bool = False


def train(
    model: TaskModel,
    task: Task,
    rows: Mapping[str, TaskRows],
    options: TrainingOptions,
    *,
    checkpoint: TrainingCheckpoint | None = None,
    report: Progress = no_progress,
) -> TrainingResult:
    """Train a model on `rows["train"]` and score it on `rows["dev"]` after each epoch.

    With a `checkpoint` each finished epoch is kept, and a training found there goes on. Dropout
    comes from torch's current random state."""
    recipe, frozen, half = options.recipe, options.frozen, options.half
    device = next(model.parameters()).device
    epochs = recipe.epochs if options.epochs is None else options.epochs
    history: list[dict[str, float]] = []
    predicted: np.ndarray | None = None
    steps_each = -(-len(rows["train"]) // recipe.batch_size)
    steps = steps_each * epochs
    if epochs:
        optimizer = recipe.optimizer_for(model, frozen)
        rates = [group["lr"] for group in optimizer.param_groups]
        if checkpoint is not None:
            history = checkpoint.restore(model, optimizer)
        trained = [p for p in model.parameters() if p.requires_grad]
        for epoch in range(len(history), epochs):
            model.training_mode(frozen)
            total = torch.zeros((), device=device)
            for number, index in enumerate(
                training_order(rows["train"], recipe.batch_size, options.seed, epoch)
            ):
                step = epoch * steps_each + number
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * recipe.factor(step, steps)
                batch = collate_rows(rows["train"], index, model.pad_id, device)
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    loss = task_loss(
                        task, model(batch.ids, batch.types, batch.attention_mask), batch.targets
                    )
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(trained, recipe.clip)
                optimizer.step()
                total += loss.detach() * len(
                    index
                )  # no look at the number itself: that would wait for the device
                report(f"seed {options.seed}", step + 1, steps)
            mean = float(total) / len(rows["train"])
            if not np.isfinite(mean):
                raise InputError(
                    f"{task.name}: the loss became NaN or infinite in epoch {epoch}; take a smaller learning rate."
                )
            predicted = predict(model, task, rows["dev"], half)
            scores = score(task.metrics, rows["dev"].targets, predicted)
            history.append({"epoch": epoch, "loss": mean, **scores})
            if checkpoint is not None:
                checkpoint.write(model, optimizer, history)
    if predicted is None:  # nothing was left to train
        predicted = predict(model, task, rows["dev"], half)
    return TrainingResult(score(task.metrics, rows["dev"].targets, predicted), history, predicted)


def task_loss(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy, or the mean squared error of a regression."""
    if task.regression:
        return nn.functional.mse_loss(logits.float().squeeze(-1), targets)
    return nn.functional.cross_entropy(logits.float(), targets)


@torch.no_grad()
def predict(model: TaskModel, task: Task, rows: TaskRows, half: bool = False) -> np.ndarray:
    """What a model says of each row: class numbers, or values of a regression."""
    model.eval()
    device = next(model.parameters()).device
    order: list[int] = []
    found: list[Tensor] = []
    for index in scoring_order(rows, SCORING_BATCH):
        batch = collate_rows(rows, index, model.pad_id, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = model(batch.ids, batch.types, batch.attention_mask).float()
        order += index
        found.append(logits.squeeze(-1) if task.regression else logits.argmax(-1))
    values = torch.cat(found).cpu().numpy()
    out = np.empty_like(values)
    out[order] = values
    return out


class TrainingCheckpoint:
    """The state of a training after its last finished epoch, as one piece of a store: weights,
    optimizer, random state, history."""

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, float]]:
        """Put weights, optimizer and random state back; gives the history so far, empty where there
        is no checkpoint."""
        piece = self.store.load("epoch")
        if piece is None:
            return []
        parts: dict[str, dict[str, Tensor]] = {"weight": {}, "optimizer": {}, "random": {}}
        for key, array in piece.arrays.items():
            part, _, name = key.partition("/")
            parts[part][name] = torch.from_numpy(array)
        model.load_state_dict(
            parts["weight"], strict=False
        )  # of tied weights only one is kept: it sets the others
        state: dict[int, dict[str, Any]] = {
            int(number): dict(own) for number, own in piece.facts["numbers"].items()
        }
        for name, value in parts["optimizer"].items():
            number, _, key = name.partition("/")
            state.setdefault(int(number), {})[key] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        torch.set_rng_state(parts["random"]["cpu"])
        if "cuda" in parts["random"] and torch.cuda.is_available():
            torch.cuda.set_rng_state(parts["random"]["cuda"])
        return [dict(epoch) for epoch in piece.facts["history"]]

    def write(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, history: list[dict[str, float]]
    ) -> None:
        """Keep this epoch in the place of the one before."""
        arrays: dict[str, np.ndarray] = {}
        seen: set[int] = set()
        for name, value in model.state_dict().items():
            if value.data_ptr() not in seen or not value.numel():
                arrays[f"weight/{name}"] = value.detach().cpu().numpy()
            seen.add(value.data_ptr())
        numbers: dict[int, dict[str, float]] = {}
        for number, own in optimizer.state_dict()["state"].items():
            for key, value in own.items():
                if isinstance(value, Tensor):
                    arrays[f"optimizer/{number}/{key}"] = value.cpu().numpy()
                else:
                    numbers.setdefault(number, {})[key] = value
        arrays["random/cpu"] = torch.get_rng_state().numpy()
        if next(model.parameters()).is_cuda:
            arrays["random/cuda"] = torch.cuda.get_rng_state().numpy()
        kept = [
            list(epoch.items()) for epoch in history
        ]  # pairs: the order of the scores is the task's
        self.store.save("epoch", arrays, {"history": kept, "numbers": numbers})
