"""What is scored while heads are disabled: a fine-tuned model on its task, or a language model on a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analyses.gradient.analysis import Gradient
from headwise.core.errors import InputError, ModelError
from headwise.experiments.finetuning.classifier import PooledClassifier, TaskModel, open_classifier
from headwise.models import HeadModel
from headwise.models.session import Session
from headwise.models.vectors import pool_tokens
from headwise.models.view import Layer, Rows
from headwise.text import Corpus
from headwise.text.encode import Batch, batches
from headwise.text.tasks import Task, score

MAX_LENGTH = 128
BATCH_TOKENS = 4096


class Subject:
    """A model, batches to run it on, and how its output is scored.

    `values` gives one number for each example (class, value, or loss); `score` turns those of all examples into the metric, of which more is better where `higher_better`.
    """

    model: HeadModel
    batches: list[Batch]
    examples: int
    metric: str
    metrics: tuple[str, ...]
    higher_better = True
    truth: np.ndarray | None = None

    def run(self, batch: Batch, session: Session) -> Tensor:
        """The output of one batch inside a session, `[example, ...]`."""
        raise NotImplementedError

    def values(self, output: Tensor) -> Tensor:
        raise NotImplementedError

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """One loss for each example, for first-order importance."""
        raise NotImplementedError

    def score(self, values: np.ndarray) -> dict[str, float]:
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        raise NotImplementedError


class HeadOutputs:
    """Keeps head outputs (after interventions) for a classifier that reads them."""

    needs = frozenset({"outputs"})

    def __init__(self) -> None:
        self.outputs: dict[int, Tensor] = {}

    def rows(self, rows: Rows) -> None:
        """Weights are not asked for."""

    def layer(self, layer: Layer) -> None:
        assert layer.outputs is not None
        self.outputs[layer.layer] = layer.outputs


class TaskSubject(Subject):
    """A fine-tuned model on the dev part of its task."""

    def __init__(
        self,
        classifier: TaskModel,
        tokenizer: Any,
        task: Task,
        *,
        name: str = "",
        max_length: int = MAX_LENGTH,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        self.classifier, self.task = classifier.eval(), task
        if isinstance(classifier, PooledClassifier):
            self.model = classifier._opened
        else:
            self.model = HeadModel.open(classifier.encoder, tokenizer=tokenizer)
        self.model.name = name or self.model.name
        outputs = _outputs(classifier)
        if outputs != task.outputs:
            raise ModelError(
                f"'{self.model.name}' gives {outputs} outputs, but {task.name} has {task.outputs}: it was fine-tuned on another task (a checkpoint of another model)."
            )
        self.model.encoder.max_length = min(max_length, self.model.max_length)
        self.metrics, self.metric = task.metrics, task.metrics[0]
        rows = [self.model.encode(example, i) for i, example in enumerate(task.dev)]
        self.batches = batches(rows, batch_tokens, self.model.pad_id, self.model.device)
        self.examples = len(rows)
        self.truth = _own_targets(task, classifier)

    @classmethod
    def open(
        cls, folder: str | Path, task: Task, *, device: str | torch.device | None = None, **options: Any
    ) -> TaskSubject:
        """A fine-tuned model from its folder."""
        where = device or ("cuda" if torch.cuda.is_available() else "cpu")
        classifier, tokenizer = open_classifier(folder, where)
        return cls(classifier, tokenizer, task, name=Path(folder).resolve().name, **options)

    @property
    def watcher(self) -> HeadOutputs | None:
        """What a session must keep for the classifier: head outputs, where it reads them."""
        return (
            HeadOutputs()
            if isinstance(self.classifier, PooledClassifier) and self.classifier.heads is not None
            else None
        )

    def run(self, batch: Batch, session: Session) -> Tensor:
        classifier = self.classifier
        if not isinstance(classifier, PooledClassifier):
            return self.model.run(batch.ids, batch.real, batch.types, logits=True).logits
        if classifier.heads is None:
            return classifier(batch.ids, batch.types, batch.real)
        kept = session.watcher
        assert isinstance(kept, HeadOutputs)
        self.model.run(batch.ids, batch.real, batch.types)
        pooled = torch.cat(
            [
                pool_tokens(kept.outputs[layer][:, head], batch.real, classifier.token)
                for layer, head in classifier.heads
            ],
            -1,
        )
        return classifier.classifier(torch.tanh(classifier.dense(pooled)))

    def values(self, output: Tensor) -> Tensor:
        return output.float().squeeze(-1) if self.task.regression else output.argmax(-1)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        assert self.truth is not None
        targets = torch.from_numpy(self.truth[batch.index]).to(output.device)
        if self.task.regression:
            return (output.float().squeeze(-1) - targets).square()
        return nn.functional.cross_entropy(output.float(), targets, reduction="none")

    def score(self, values: np.ndarray) -> dict[str, float]:
        assert self.truth is not None
        return score(self.metrics, self.truth, values)

    def identity(self) -> dict[str, Any]:
        return {"task": self.task.name, "dev": self.task.fingerprint(), "max_length": self.model.encoder.max_length}


class LanguageSubject(Subject):
    """A language model on a text: the mean loss in nats over predicted tokens of each example (15 % masked by seed, or the next token), then over examples."""

    metric, metrics, higher_better = "loss", ("loss",), False

    def __init__(
        self,
        model: HeadModel,
        corpus: Corpus,
        *,
        limit: int | None = None,
        max_length: int | None = None,
        seed: int = 0,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        if model.lm_kind is None:
            raise ModelError(
                f"'{model.name}' has no language-model head, so there is no loss to score; name a task with --task and its files."
            )
        self.model = model
        model.encoder.max_length = min(max_length or MAX_LENGTH, model.max_length)
        rows = [
            row
            for i, example in enumerate(corpus.limit(limit))
            if (row := model.encoder.encode(example, i)) is not None
        ]
        self.fingerprint = corpus.limit(limit).fingerprint()
        self._losses: dict[int, Any] = {}
        self.batches, kept = [], 0
        gradient = Gradient(seed=seed)
        for batch in batches(rows, batch_tokens, model.pad_id, model.device):
            inputs, loss = gradient.prepare(batch, model)
            if len(inputs):
                self._losses[id(inputs)] = loss
                self.batches.append(inputs)
                kept += len(inputs)
        if not kept:
            raise InputError(f"Nothing in '{corpus.name}' can be predicted: give longer texts.")
        # Examples with nothing to predict are gone: the rest is numbered anew, in corpus order.
        place = {index: i for i, index in enumerate(sorted(index for batch in self.batches for index in batch.index))}
        self._place, self.examples, self.seed = place, kept, seed

    def places(self, batch: Batch) -> list[int]:
        return [self._place[index] for index in batch.index]

    def run(self, batch: Batch, session: Session) -> Tensor:
        output = self.model.run(batch.ids, batch.real, batch.types, logits=True)
        return self._losses[id(batch)](output, batch)

    def values(self, output: Tensor) -> Tensor:
        return output.double()

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        return output

    def score(self, values: np.ndarray) -> dict[str, float]:
        return {"loss": float(np.mean(values))}

    def identity(self) -> dict[str, Any]:
        return {"corpus": self.fingerprint, "max_length": self.model.encoder.max_length, "seed": self.seed}


def places(subject: Subject, batch: Batch) -> list[int]:
    """Where the examples of a batch stand among all that are scored."""
    return subject.places(batch) if isinstance(subject, LanguageSubject) else batch.index


def _outputs(classifier: TaskModel) -> int:
    if isinstance(classifier, PooledClassifier):
        return classifier.classifier.out_features
    return int(classifier.encoder.config.num_labels or 0)


def _own_targets(task: Task, classifier: TaskModel) -> np.ndarray:
    """The true classes, numbered as the classifier numbers them where it says how."""
    targets = task.targets(task.dev)
    known = {
        str(label).lower(): number
        for label, number in (getattr(classifier.encoder.config, "label2id", None) or {}).items()
    }
    named = [label.lower() for label in task.classes]
    if task.regression or set(known) != set(named):
        return targets
    return np.array([known[named[i]] for i in targets.tolist()], dtype=np.int64)


def session_for(subject: Subject, batch: Batch, plan: Any = None) -> Session:
    """A session over one batch with interventions."""
    watcher: Any = subject.watcher if isinstance(subject, TaskSubject) else None
    return Session(subject.model.sites, batch.real, watcher, plan)
