"""One training with checkpoints: killed at any moment, the same call goes on from the last finished epoch to the same numbers."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from headwise.core.errors import InputError, OutputError
from headwise.core.files import write_atomically
from headwise.experiments.finetuning.classifier import TaskModel
from headwise.experiments.finetuning.data import Rows, collate_rows, scoring_order, training_order
from headwise.experiments.finetuning.recipes import Recipe
from headwise.text.tasks import Task, score

Report = Callable[[str, int, int], None]
SCORING_BATCH = 64


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """What a training came to: `history` has loss and dev scores after each epoch; `predicted` what the trained model says of the dev part."""

    metrics: dict[str, float]
    history: list[dict[str, float]]
    predicted: np.ndarray


def train(
    model: TaskModel,
    task: Task,
    rows: Mapping[str, Rows],
    recipe: Recipe,
    seed: int,
    *,
    frozen: bool = False,
    epochs: int | None = None,
    checkpoint: Checkpoint | None = None,
    half: bool = False,
    report: Report | None = None,
    what: str = "training",
) -> Trained:
    """Train a model on `rows["train"]` and score it on `rows["dev"]` after each epoch.

    Parameters
    ----------
    epochs
        Instead of the recipe's; 0 scores the model as it is.
    checkpoint
        Where each finished epoch is kept; a training found there goes on.
    half
        Compute in bfloat16 where that is safe (autocast); weights and optimizer stay in float32.
    """
    device = next(model.parameters()).device
    epochs = recipe.epochs if epochs is None else epochs
    history: list[dict[str, float]] = []
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
            for number, index in enumerate(training_order(rows["train"], recipe.batch_size, seed, epoch)):
                step = epoch * steps_each + number
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * recipe.factor(step, steps)
                batch = collate_rows(rows["train"], index, model.pad_id, device)
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    loss = task_loss(task, model(batch.ids, batch.types, batch.real), batch.targets)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(trained, recipe.clip)
                optimizer.step()
                total += loss.detach() * len(index)  # no look at the number itself: that would wait for the device
                if report is not None:
                    report(what, step + 1, steps)
            mean = float(total) / len(rows["train"])
            if not np.isfinite(mean):
                raise InputError(
                    f"{task.name}: the loss became NaN or infinite in epoch {epoch}; take a smaller learning rate."
                )
            history.append(
                {
                    "epoch": epoch,
                    "loss": mean,
                    **score(task.metrics, rows["dev"].targets, predict(model, task, rows["dev"], half)),
                }
            )
            if checkpoint is not None:
                checkpoint.write(model, optimizer, history)
    predicted = predict(model, task, rows["dev"], half)
    return Trained(score(task.metrics, rows["dev"].targets, predicted), history, predicted)


def task_loss(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy, or the mean squared error of a regression."""
    if task.regression:
        return nn.functional.mse_loss(logits.float().squeeze(-1), targets)
    return nn.functional.cross_entropy(logits.float(), targets)


@torch.no_grad()
def predict(model: TaskModel, task: Task, rows: Rows, half: bool = False) -> np.ndarray:
    """What a model says of each row: class numbers, or values of a regression."""
    model.eval()
    device = next(model.parameters()).device
    order: list[int] = []
    found: list[Tensor] = []
    for index in scoring_order(rows, SCORING_BATCH):
        batch = collate_rows(rows, index, model.pad_id, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = model(batch.ids, batch.types, batch.real).float()
        order += index
        found.append(logits.squeeze(-1) if task.regression else logits.argmax(-1))
    values = torch.cat(found).cpu().numpy()
    out = np.empty_like(values)
    out[order] = values
    return out


class Checkpoint:
    """The state of a training after its last finished epoch: weights as safetensors, the rest through `torch.load(weights_only=True)`, and what training it is.

    All of it is one file, replaced in one step. The identity says which training; another one's checkpoint is refused.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder, self.identity = folder, json.loads(json.dumps(identity))
        self.weights, self.state, self.note = (
            folder / name for name in ("checkpoint.safetensors", "checkpoint.pt", "checkpoint.json")
        )

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, float]]:
        """Put weights, optimizer and random state back; gives the history so far, empty where there is no checkpoint."""
        if not self.note.exists():
            return []
        try:
            note = json.loads(self.note.read_text())
            changed = sorted(
                key
                for key in self.identity.keys() | note["identity"].keys()
                if self.identity.get(key) != note["identity"].get(key)
            )
        except (OSError, ValueError, KeyError) as error:
            raise OutputError(f"{self.note} cannot be read ({error}); give --overwrite to start anew.") from error
        if changed:
            kind = " (a checkpoint of another model)" if "model" in changed else ""
            raise OutputError(
                f"{self.folder} holds a training that differs in {', '.join(changed)}{kind}; repeat that command to finish it, or give --overwrite to start anew."
            )
        epoch = note["epoch"]
        try:
            weights = load(self._numbered(self.weights, epoch).read_bytes())
            state = torch.load(self._numbered(self.state, epoch), map_location="cpu", weights_only=True)
            unmatched = model.load_state_dict(weights, strict=False)
            if unmatched.unexpected_keys:
                raise ValueError(f"unknown weight {unmatched.unexpected_keys[0]}")
            optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"])
            if state["cuda"] is not None and torch.cuda.is_available():
                torch.cuda.set_rng_state(state["cuda"])
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise OutputError(
                f"The checkpoint in {self.folder} is damaged ({type(error).__name__}: {error}); give --overwrite to start anew."
            ) from error
        return list(note["history"])

    def write(self, model: nn.Module, optimizer: torch.optim.Optimizer, history: list[dict[str, float]]) -> None:
        """Keep this epoch; the one before goes once the new one stands."""
        epoch = len(history)
        seen: set[int] = set()
        weights = {}
        for name, value in model.state_dict().items():
            if value.data_ptr() not in seen or not value.numel():  # tied weights once: loading one sets the other
                weights[name] = value.detach().cpu().contiguous()
            seen.add(value.data_ptr())
        write_atomically(self._numbered(self.weights, epoch), save(weights))
        buffer = io.BytesIO()
        cuda = torch.cuda.get_rng_state() if next(model.parameters()).is_cuda else None
        torch.save({"optimizer": optimizer.state_dict(), "random": torch.get_rng_state(), "cuda": cuda}, buffer)
        write_atomically(self._numbered(self.state, epoch), buffer.getvalue())
        note = {"identity": self.identity, "epoch": epoch, "history": history}
        write_atomically(self.note, json.dumps(note, indent=1).encode())  # from here on the new epoch counts
        self._drop(keep=epoch)

    def remove(self) -> None:
        """Delete the checkpoint (and nothing else)."""
        with suppress(OSError):
            self.note.unlink(missing_ok=True)
        self._drop()

    def _numbered(self, path: Path, epoch: int) -> Path:
        return path.with_name(f"{path.stem}-{epoch}{path.suffix}")

    def _drop(self, keep: int | None = None) -> None:
        kept = set() if keep is None else {self._numbered(self.weights, keep), self._numbered(self.state, keep)}
        for path in (
            *self.folder.glob("checkpoint-*.safetensors"),
            *self.folder.glob("checkpoint-*.pt"),
            *self.folder.glob(f".checkpoint*.{os.getpid()}.tmp"),
        ):
            if path not in kept:
                path.unlink(missing_ok=True)
