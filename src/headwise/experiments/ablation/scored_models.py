"""Models with what they are scored on: a fine-tuned model with its task, or a language model with a
text."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analyses.gradient.analysis import logits_of, masked_tokens, token_loss
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.core.options import part_of
from headwise.core.token_types import OTHER
from headwise.experiments.ablation.options import MAX_LENGTH, EvaluationOptions
from headwise.experiments.finetuning.classifier import (
    OwnClassifier,
    PooledClassifier,
    TaskModel,
    open_classifier,
)
from headwise.models import HeadModel, loading
from headwise.models.forward_call import evaluating
from headwise.models.interventions import InterventionPlan
from headwise.models.options import ModelOptions
from headwise.models.session import Session
from headwise.models.view import Layer, Watcher
from headwise.run.encoded import EncodedCorpus
from headwise.text import Corpus, Spec, open_corpus
from headwise.text.encode import Batch, batches, documents_of
from headwise.text.tasks import Task, read_task, score

BATCH_TOKENS = 4096
GRADIENT_TOKENS = 1024  # tokens run at once where gradients are kept
MASKED_SHARE = 0.15


class HeadOutputCollector(Watcher):
    """Collects head outputs (after interventions), `[example, head, token, d_head]` by layer."""

    needs = frozenset({"outputs"})

    def __init__(self) -> None:
        self.outputs: dict[int, Tensor] = {}

    def on_layer(self, layer: Layer) -> None:
        assert layer.outputs is not None
        self.outputs[layer.layer] = layer.outputs


class ScoredModel(ABC):
    """A model, batches to run it on, and how its output is scored.

    `values` gives one number for each example (class, value, or loss); `score` turns those of all
    examples into the metric, of which more is better where `higher_better`. Any selection of the
    examples of a batch (`Batch.select`) can be run and scored by itself."""

    model: HeadModel
    batches: list[Batch]
    examples: int
    metric: str
    metrics: tuple[str, ...]
    higher_better = True
    truth: np.ndarray | None = None

    @abstractmethod
    def run(self, batch: Batch, session: Session) -> Tensor:
        """Return the output of one batch inside a session, `[example, ...]`."""

    @abstractmethod
    def values(self, output: Tensor) -> Tensor:
        """Return one number for each example: a class, a value or a loss."""

    @abstractmethod
    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return one loss for each example, for gradients."""

    @abstractmethod
    def score(self, values: np.ndarray, places: np.ndarray | None = None) -> dict[str, float]:
        """Return the metrics of all examples, or of those at some places."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return what identifies the examples and how they are read."""

    @property
    def max_tokens_per_step(self) -> int:
        """Tokens that one step of learning gates runs at most."""
        return GRADIENT_TOKENS

    def places(self, batch: Batch) -> list[int]:
        """Return the positions of a batch's examples among all that are scored."""
        return batch.index

    @property
    def units(self) -> np.ndarray | None:
        """The document of each scored example, as a number; None where some example has none."""
        units = np.zeros(self.examples, dtype=np.int64)
        for batch in self.batches:
            documents = documents_of(batch.rows)
            if documents is None:
                return None
            units[self.places(batch)] = documents
        return units

    def with_batches(self, batches: list[Batch]) -> Self:
        """Return the same model to be scored on other batches of the same examples."""
        part = copy.copy(self)
        part.batches = batches
        return part

    def session(
        self, batch: Batch, plan: InterventionPlan | None = None, watcher: Watcher | None = None
    ) -> Session:
        """Return a session over one batch with interventions."""
        return Session(
            self.model.sites, batch.attention_mask, watcher, plan, keys=batch.keys.attention_mask
        )

    def evaluating(self) -> AbstractContextManager[None]:
        """Put the model into evaluation mode for a `with` block."""
        return self.model.evaluating()


class ScoredClassifier(ScoredModel):
    """A fine-tuned model on the dev part of its task.

    Parameters
    ----------
    classifier : TaskModel
        The model with its classifier.
    tokenizer
        Its tokenizer.
    task : Task
        The task that it was fine-tuned on.
    name : str, optional
        Name of the model; default: its class.
    max_length : int, default 128
        Longer inputs are cut.
    batch_tokens : int, default 4096
        Tokens that go through the model at once, padding included.
    """

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
        self.classifier = classifier
        self.task = task
        if isinstance(classifier, PooledClassifier):
            self.model = classifier.opened
        else:
            self.model = HeadModel.open(classifier.encoder, tokenizer=tokenizer)
            self.model.name = name or self.model.name
        if classifier.outputs != task.outputs:
            raise ModelError(
                f"'{self.model.name}' gives {classifier.outputs} outputs, but {task.name} has "
                f"{task.outputs}: it was fine-tuned on another task."
            )
        encoder = self.model.encoder.limited(max_length, "truncate")
        rows = []
        for index, example in enumerate(task.dev):
            row = encoder.encode(example, index)
            if row is not None:
                rows.append(row)
        self.batches = batches(rows, batch_tokens, self.model.pad_id, self.model.device)
        self.metrics = task.metrics
        self.metric = task.metrics[0]
        self.max_length = encoder.max_length
        self.examples = len(rows)
        self.targets = _targets_of(task, classifier)
        self.truth = self.targets

    @classmethod
    def open(
        cls,
        folder: str | Path,
        task: Task,
        *,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> ScoredClassifier:
        """Open a fine-tuned model from its folder; `options` are those of the class."""
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        classifier, tokenizer = open_classifier(folder, device)
        return cls(classifier, tokenizer, task, name=Path(folder).resolve().name, **options)

    def session(
        self, batch: Batch, plan: InterventionPlan | None = None, watcher: Watcher | None = None
    ) -> Session:
        if watcher is None and self._reads_heads:
            watcher = HeadOutputCollector()
        return super().session(batch, plan, watcher)

    @property
    def _reads_heads(self) -> bool:
        """Whether the classifier reads the outputs of chosen heads, not a layer's output."""
        classifier = self.classifier
        return isinstance(classifier, PooledClassifier) and classifier.heads is not None

    def evaluating(self) -> AbstractContextManager[None]:
        return evaluating(self.classifier)

    def run(self, batch: Batch, session: Session) -> Tensor:
        classifier = self.classifier
        if not isinstance(classifier, PooledClassifier):
            logits: Tensor = self.model.run(
                batch.ids, batch.attention_mask, batch.types, logits=True
            ).logits
            return logits
        if classifier.heads is None:
            return classifier.classify(
                classifier.pooled(batch.ids, batch.types, batch.attention_mask)
            )
        assert isinstance(session.watcher, HeadOutputCollector)
        self.model.run(batch.ids, batch.attention_mask, batch.types)
        return classifier.classify(classifier.joined(session.watcher.outputs, batch.attention_mask))

    def values(self, output: Tensor) -> Tensor:
        if self.task.regression:
            return output.float().squeeze(-1)
        return output.argmax(-1)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        targets = torch.from_numpy(self.targets[batch.index]).to(output.device)
        if self.task.regression:
            return (output.float().squeeze(-1) - targets).square()
        return nn.functional.cross_entropy(output.float(), targets, reduction="none")

    def score(self, values: np.ndarray, places: np.ndarray | None = None) -> dict[str, float]:
        targets = self.targets if places is None else self.targets[places]
        return score(self.metrics, targets, values)

    def identity(self) -> dict[str, Any]:
        return {
            "task": self.task.name,
            "dev": self.task.fingerprint(),
            "max_length": self.max_length,
        }


class ScoredLanguageModel(ScoredModel):
    """A language model on a text.

    The score is the mean loss in nats over the predicted tokens of each example (15 % masked by
    seed, or every next token), then over examples.

    Parameters
    ----------
    model : HeadModel
        A model with a language-model head.
    corpus : Corpus
        The text.
    limit : int, optional
        Use at most this many examples.
    max_length : int, default 128
        Longer inputs are cut.
    seed : int, default 0
        For the tokens that are masked.
    batch_tokens : int, default 4096
        Tokens that go through the model at once, padding included.
    """

    metric = "loss"
    metrics = ("loss",)
    higher_better = False

    def __init__(
        self,
        model: HeadModel,
        corpus: Corpus,
        *,
        limit: int | None = None,
        max_length: int = MAX_LENGTH,
        seed: int = 0,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        if model.lm_kind is None:
            raise ModelError(
                f"'{model.name}' has no language-modelling head, so there is no loss to score; "
                "name a task and its files.",
                option="task",
            )
        self.model = model
        self.seed = seed
        rows = EncodedCorpus(corpus.sample(limit, seed), model.encoder.limited(max_length))
        self.batches = []
        for batch in batches(list(rows), batch_tokens, model.pad_id, model.device):
            inputs = self._hide_predicted_tokens(batch)
            if len(inputs):
                self.batches.append(inputs)

        # Examples with nothing to predict are left out: the others are numbered anew, in the order
        # of the corpus.
        corpus_indices: list[int] = []
        for batch in self.batches:
            corpus_indices += batch.index
        if not corpus_indices:
            raise InputError(f"Nothing in '{corpus.name}' can be predicted: give longer texts.")
        corpus_indices.sort()
        self._place = {index: place for place, index in enumerate(corpus_indices)}
        self.examples = len(corpus_indices)
        self._identity = {
            "corpus": rows.scan.fingerprint,
            "name": corpus.name,
            "max_length": rows.encoder.max_length,
            "seed": seed,
        }

    @property
    def max_tokens_per_step(self) -> int:
        # Every token of a causal model is a prediction; of a masked one only 15 % are.
        return 256 if self.model.lm_kind == "causal" else super().max_tokens_per_step

    def places(self, batch: Batch) -> list[int]:
        return [self._place[index] for index in batch.index]

    def _predicted(self, batch: Batch) -> Tensor:
        """Return which tokens of a batch are predicted, `[example, token]`.

        It depends on the rows alone (their tokens, their place in the corpus) and on the seed, so
        that any selection of examples has the same predictions.
        """
        if self.model.lm_kind == "causal":
            predicted = batch.attention_mask.clone()
            predicted[:, 0] = False
            return predicted
        predicted = torch.zeros_like(batch.attention_mask)
        for number, row in enumerate(batch.rows):
            masked = torch.from_numpy(masked_tokens(row, MASKED_SHARE, self.seed))
            predicted[number, masked.to(batch.device)] = True
        return predicted

    def _hide_predicted_tokens(self, batch: Batch) -> Batch:
        """Return the batch as the model reads it: without examples that have nothing to predict,
        and, for a masked language model, with the mask token in place of what is predicted."""
        predicted = self._predicted(batch)
        usable = predicted.any(-1).nonzero()[:, 0].tolist()
        if len(usable) < len(batch):
            batch = batch.select(usable)
            predicted = predicted[usable]
        if self.model.lm_kind == "causal":
            return batch
        mask = torch.full_like(batch.ids, self.model.tokenizer.mask_token_id)
        return replace(
            batch,
            ids=torch.where(predicted, mask, batch.ids),
            token_type=torch.where(predicted, OTHER, batch.token_type),
        )

    def run(self, batch: Batch, session: Session) -> Tensor:
        output = self.model.run(
            batch.ids, batch.attention_mask, batch.types, logits=True, source=batch.source
        )
        return self.token_losses(logits_of(output), batch)

    def token_losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss of each example over its predicted tokens, from the logits."""
        predicted = self._predicted(batch)
        # The rows of a batch keep the tokens of the text, also where the model reads a mask.
        targets = torch.zeros_like(batch.ids)
        for number, row in enumerate(batch.rows):
            targets[number, : len(row)] = torch.as_tensor(row.ids, device=batch.device)
        if self.model.lm_kind == "causal":  # a token is predicted from the one before it
            logits = logits[:, :-1]
            targets = targets[:, 1:]
            predicted = predicted[:, 1:]
        return token_loss(logits, targets, predicted)

    def values(self, output: Tensor) -> Tensor:
        return output.double()

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        return output

    def score(self, values: np.ndarray, places: np.ndarray | None = None) -> dict[str, float]:
        return {"loss": float(np.mean(values))}

    def identity(self) -> dict[str, Any]:
        return self._identity


def _targets_of(task: Task, classifier: TaskModel) -> np.ndarray:
    """Return the true classes, numbered as the classifier numbers them where its config says how."""
    targets = task.targets(task.dev)
    label_numbers = getattr(classifier.encoder.config, "label2id", None) or {}
    numbers = {str(label).lower(): number for label, number in label_numbers.items()}
    labels = [label.lower() for label in task.classes]
    if task.regression or set(numbers) != set(labels):
        return targets
    return np.array([numbers[labels[target]] for target in targets.tolist()], dtype=np.int64)


def open_scored_model(
    model: HeadModel | str | Path | None,
    corpus: Corpus | Spec | str | Path | None,
    options: EvaluationOptions,
) -> ScoredModel:
    """Open a fine-tuned model with its dev set where a task is named, else a language model with
    its text.

    Parameters
    ----------
    model : HeadModel, str, Path or None
        A hub name, a folder or an open model; None for the built-in model.
    corpus : Corpus, Spec, str, Path or None
        The text of a language model; None for the built-in corpus.
    options : EvaluationOptions
        The task, and how model and examples are opened.
    """
    if options.names_task:
        return _open_classifier(model, corpus, options)
    model = part_of(options, ModelOptions).open(model)
    text = open_corpus(corpus, tokenizer=model.tokenizer, prose=model.causal)
    return ScoredLanguageModel(
        model, text, limit=options.limit, max_length=options.max_length, seed=options.seed
    )


def _open_classifier(
    model: HeadModel | str | Path | None,
    corpus: Corpus | Spec | str | Path | None,
    options: EvaluationOptions,
) -> ScoredClassifier:
    if corpus is not None:
        raise ParameterError("Name either a task or a text (`corpus`), not both.")
    if options.dtype or options.device_map:
        raise ParameterError(
            "`dtype` and `device_map` are for a model on a text (`corpus`): a fine-tuned model is "
            "opened in float32, on one device."
        )
    task = options.task
    if not isinstance(task, Task):
        task = read_task(
            task, data=options.data, dev=options.dev, needs_train=False, limit=options.limit
        )
    if not isinstance(model, HeadModel):
        return ScoredClassifier.open(
            loading.model_path(model), task, device=options.device, max_length=options.max_length
        )
    if not hasattr(model.module, "num_labels"):
        raise ModelError(
            f"'{model.name}' has no classifier; open a fine-tuned model, or pass its folder."
        )
    classifier = OwnClassifier(model.module, model.tokenizer)
    return ScoredClassifier(
        classifier, model.tokenizer, task, name=model.name, max_length=options.max_length
    )
