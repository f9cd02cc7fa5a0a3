"""One training with checkpoints: interrupted at any moment, the same call resumes from the last
finished epoch, to the same numbers."""

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
    """The result of a training: `history` has loss and dev scores after each epoch, `predicted` what
    the trained model predicts of the dev part."""

    metrics: dict[str, float]
    history: list[dict[str, float]]
    predicted: np.ndarray


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of one training.

    Parameters
    ----------
    recipe : Recipe
        Optimizer, rate, batches and epochs.
    seed : int
        Seed of the order of batches.
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

    With a `checkpoint` each finished epoch is kept, and a training found there resumes. Dropout
    comes from torch's current random state."""
    recipe = options.recipe
    train_rows = rows["train"]
    dev_rows = rows["dev"]
    device = next(model.parameters()).device
    epochs = recipe.epochs if options.epochs is None else options.epochs
    steps_per_epoch = -(-len(train_rows) // recipe.batch_size)  # rounded up
    n_steps = steps_per_epoch * epochs
    history: list[dict[str, float]] = []
    predicted: np.ndarray | None = None
    if epochs:
        optimizer = recipe.optimizer_for(model, options.frozen)
        rates = [group["lr"] for group in optimizer.param_groups]
        if checkpoint is not None:
            history = checkpoint.restore(model, optimizer)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for epoch in range(len(history), epochs):
            model.training_mode(options.frozen)
            # Summed on the device: reading the number after each step would wait for it.
            total_loss = torch.zeros((), device=device)
            order = training_order(train_rows, recipe.batch_size, options.seed, epoch)
            for number, index in enumerate(order):
                step = epoch * steps_per_epoch + number
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * recipe.factor(step, n_steps)
                batch = collate_rows(train_rows, index, model.pad_id, device)
                with torch.autocast(device.type, torch.bfloat16, enabled=options.half):
                    logits = model(batch.ids, batch.types, batch.attention_mask)
                    loss = task_loss(task, logits, batch.targets)
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(trained, recipe.clip)
                optimizer.step()
                total_loss += loss.detach() * len(index)
                report(f"seed {options.seed}", step + 1, n_steps)
            mean_loss = float(total_loss) / len(train_rows)
            if not np.isfinite(mean_loss):
                raise InputError(
                    f"{task.name}: the loss became NaN or infinite in epoch {epoch}; choose a "
                    "smaller learning rate.",
                    option="learning_rate",
                )
            predicted = predict(model, task, dev_rows, options.half)
            scores = score(task.metrics, dev_rows.targets, predicted)
            history.append({"epoch": epoch, "loss": mean_loss, **scores})
            if checkpoint is not None:
                checkpoint.write(model, optimizer, history)
    if predicted is None:  # nothing was left to train
        predicted = predict(model, task, dev_rows, options.half)
    return TrainingResult(score(task.metrics, dev_rows.targets, predicted), history, predicted)


def task_loss(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy, or the mean squared error of a regression."""
    if task.regression:
        return nn.functional.mse_loss(logits.float().squeeze(-1), targets)
    return nn.functional.cross_entropy(logits.float(), targets)


@torch.no_grad()
def predict(model: TaskModel, task: Task, rows: TaskRows, half: bool = False) -> np.ndarray:
    """Return what a model predicts of each row: class numbers, or values of a regression."""
    model.eval()
    device = next(model.parameters()).device
    order: list[int] = []
    predictions: list[Tensor] = []
    for index in scoring_order(rows, SCORING_BATCH):
        batch = collate_rows(rows, index, model.pad_id, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = model(batch.ids, batch.types, batch.attention_mask).float()
        order += index
        predictions.append(logits.squeeze(-1) if task.regression else logits.argmax(-1))
    values = torch.cat(predictions).cpu().numpy()
    in_order_of_rows = np.empty_like(values)
    in_order_of_rows[order] = values
    return in_order_of_rows


class TrainingCheckpoint:
    """The state of a training after its last finished epoch, as one checkpoint: weights, optimizer,
    random state, history."""

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, float]]:
        """Restore weights, optimizer and random state; return the history so far, empty where there
        is no checkpoint."""
        checkpoint = self.store.load("epoch")
        if checkpoint is None:
            return []
        parts: dict[str, dict[str, Tensor]] = {"weight": {}, "optimizer": {}, "random": {}}
        for key, array in checkpoint.arrays.items():
            part, _, name = key.partition("/")
            parts[part][name] = torch.from_numpy(array)
        # Of tied weights only one is kept: it sets the others.
        model.load_state_dict(parts["weight"], strict=False)
        state: dict[int, dict[str, Any]] = {}
        for number, values in checkpoint.facts["numbers"].items():
            state[int(number)] = dict(values)
        for name, value in parts["optimizer"].items():
            number, _, key = name.partition("/")
            state.setdefault(int(number), {})[key] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        torch.set_rng_state(parts["random"]["cpu"])
        if "cuda" in parts["random"] and torch.cuda.is_available():
            torch.cuda.set_rng_state(parts["random"]["cuda"])
        return [dict(epoch) for epoch in checkpoint.facts["history"]]

    def write(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, history: list[dict[str, float]]
    ) -> None:
        """Keep this epoch in the place of the one before."""
        arrays: dict[str, np.ndarray] = {}
        addresses: set[int] = set()
        for name, value in model.state_dict().items():
            # Of tied weights, which share their memory, the first is kept.
            if value.data_ptr() not in addresses or not value.numel():
                arrays[f"weight/{name}"] = value.detach().cpu().numpy()
            addresses.add(value.data_ptr())
        numbers: dict[int, dict[str, float]] = {}
        for number, parameter_state in optimizer.state_dict()["state"].items():
            for key, value in parameter_state.items():
                if isinstance(value, Tensor):
                    arrays[f"optimizer/{number}/{key}"] = value.cpu().numpy()
                else:
                    numbers.setdefault(number, {})[key] = value
        arrays["random/cpu"] = torch.get_rng_state().numpy()
        if next(model.parameters()).is_cuda:
            arrays["random/cuda"] = torch.cuda.get_rng_state().numpy()
        # Pairs, not an object: the order of the scores is the task's.
        history_pairs = [list(epoch.items()) for epoch in history]
        self.store.save("epoch", arrays, {"history": history_pairs, "numbers": numbers})
