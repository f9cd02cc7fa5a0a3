"""Training of parsing probes to convergence: L-BFGS where there is one optimum, Adam with a
searched learning rate elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.probes.tree import (
    AttentionProbe,
    AttentionWordsProbe,
    DependencyTrees,
    TreeBatch,
    TreeProbe,
    WordMaps,
    make_tree_batch,
)

MIN_STEPS = 20  # optimizer steps in an epoch
MAP_BYTES = 2**30  # padded maps kept in memory; on a GPU half of what is free
RATE_FACTOR = 3.0  # from one learning rate to the next
TRIAL_EPOCHS = 2  # epochs by which a learning rate is judged
MAX_RATE_STEPS = 4  # how far the search may go from the first rate, in either direction
MAX_COOLINGS = 2  # times the rate is lowered once validation stops improving
MAX_ITERATIONS = 300  # of L-BFGS
# Variance of the weights before any data: so wide that it matters only where few words separate
# the classes and the optimum would lie at infinity.
PRIOR_VARIANCE = 100.0
Report = Callable[[int, float], None]  # epoch, validation UAS


@dataclass(frozen=True, slots=True)
class TreeFitSettings:
    """How a probe is trained, on the mean cross-entropy of a batch's words.

    A convex probe is fitted by L-BFGS, with a wide normal prior that keeps its weights finite.
    Others are trained by Adam: a few rates are tried for two epochs each, `learning_rate` first,
    and further ones while the best is the last one tried (with `search`). After `patience` epochs
    without a better validation UAS the rate is divided by three, from the best state; the third
    time training ends. The state with the best validation UAS is kept.
    """

    learning_rate: float
    epochs: int = 60
    patience: int = 3
    search: bool = True
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class TreeFit:
    """Outcome of a training.

    Attributes
    ----------
    validation : float
        The best validation UAS.
    learning_rate : float
        The rate it was reached with; NaN for L-BFGS.
    epochs : int
        Passes over the training part.
    converged : bool
        Whether training ended before its limit of epochs.
    """

    validation: float
    learning_rate: float
    epochs: int
    converged: bool


class TreeBatches:
    """Sentences in padded batches of similar length, with their maps cached where memory allows.

    Parameters
    ----------
    trees : DependencyTrees
        All sentences.
    word_maps : WordMaps, optional
        Their maps; None for probes that use no attention.
    sentences : ndarray
        Numbers of the sentences to batch.
    batch_pairs : int, default 16384
        Word pairs in a batch, padding included.
    device : str, default "cpu"
        Where batches go.
    """

    def __init__(
        self,
        trees: DependencyTrees,
        word_maps: WordMaps | None,
        sentences: np.ndarray,
        batch_pairs: int = 16_384,
        device: str = "cpu",
    ) -> None:
        self.trees = trees
        self.word_maps = word_maps
        self.sentences = sentences
        self.device = device
        self.without_maps: list[TreeBatch] = []
        for group in batch_by_length(trees.sizes, sentences, batch_pairs):
            self.without_maps.append(make_tree_batch(trees, group, None, device))
        self._n_scored = [int(batch.scored.sum()) for batch in self.without_maps]
        self.n_words = sum(self._n_scored)

        n_heads = 0 if word_maps is None else word_maps.heads
        n_pairs = sum(batch.width * batch.word_mask.numel() for batch in self.without_maps)
        map_memory = _memory_for_maps(device)
        self._cache_maps = 2 * n_heads * n_pairs <= map_memory
        # Float32 maps need no conversion in each epoch, but twice the memory.
        self._cache_as_float32 = 4 * n_heads * n_pairs <= map_memory
        self._cached: list[Tensor | None] = [None] * len(self.without_maps)

    def __len__(self) -> int:
        return len(self.without_maps)

    def batches(
        self, maps: bool, generator: np.random.Generator | None = None
    ) -> Iterator[TreeBatch]:
        """Yield all batches.

        Parameters
        ----------
        maps : bool
            Whether batches have their maps, rounded to half precision.
        generator : numpy Generator, optional
            For training: batches come in a random order, without those that have no scored word.
        """
        if generator is None:
            order = np.arange(len(self))
        else:
            order = generator.permutation(len(self))
        for number in order.tolist():
            batch = self.without_maps[number]
            if generator is not None and not self._n_scored[number]:
                continue
            if not maps or self.word_maps is None:
                yield batch
            else:
                yield replace(batch, maps=self._maps(number).float())

    def _maps(self, number: int) -> Tensor:
        cached = self._cached[number]
        if cached is not None:
            return cached
        assert self.word_maps is not None
        batch = self.without_maps[number]
        maps = self.word_maps.read(batch.sentences, batch.width).half().to(self.device)
        if self._cache_as_float32:
            maps = maps.float()
        if self._cache_maps:
            self._cached[number] = maps
        return maps


def _memory_for_maps(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0] // 2
    return MAP_BYTES


def batch_by_length(
    sizes: Sequence[int], sentences: np.ndarray, batch_pairs: int
) -> Iterator[list[int]]:
    """Yield groups of sentences of similar length with at most `batch_pairs` word pairs each (at
    least one sentence)."""
    group: list[int] = []
    for sentence in sorted(sentences.tolist(), key=lambda number: sizes[number]):
        if group and (len(group) + 1) * sizes[sentence] ** 2 > batch_pairs:
            yield group
            group = []
        group.append(sentence)
    if group:
        yield group


def fit_tree_probe(
    probe: TreeProbe,
    train: TreeBatches,
    validation: TreeBatches,
    settings: TreeFitSettings,
    report: Report | None = None,
) -> TreeFit:
    """Train a probe in place.

    Parameters
    ----------
    probe : TreeProbe
        Changed in place.
    train, validation : TreeBatches
        The sentences to learn from, and those that decide when to stop.
    settings : TreeFitSettings
        How it is trained.
    report : callable, optional
        Called with the epoch and the validation UAS after each epoch.
    """
    probe.to(settings.device)
    if report is None:
        report = _no_report
    if not train.n_words:  # nothing to learn from: all words are punctuation
        return TreeFit(_uas(probe, validation), float("nan"), 0, True)
    if probe.convex:
        return _fit_convex(probe, train, validation, report)
    return _AdamTraining(probe, train, validation, settings, report).fit()


def _no_report(epoch: int, uas: float) -> None:
    pass


def _fit_convex(
    probe: TreeProbe, train: TreeBatches, validation: TreeBatches, report: Report
) -> TreeFit:
    parameters = list(probe.parameters())
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=MAX_ITERATIONS,
        max_eval=2 * MAX_ITERATIONS,
        history_size=20,
        tolerance_grad=1e-6,
        tolerance_change=1e-6,
        line_search_fn="strong_wolfe",
    )
    n_passes = 0

    def closure() -> Tensor:
        nonlocal n_passes
        n_passes += 1
        optimizer.zero_grad()
        squares = torch.zeros((), device=parameters[0].device)
        for parameter in parameters:
            squares = squares + parameter.square().sum()
        prior = squares / (2 * PRIOR_VARIANCE * train.n_words)
        prior.backward()  # type: ignore[no-untyped-call]
        total = prior.detach()
        # The gradient is summed over batches, so that only one batch's graph is in memory.
        for batch in train.batches(probe.needs_maps):
            loss = _loss(probe, batch, "sum") / train.n_words
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    uas = _uas(probe, validation)
    report(n_passes, uas)
    n_iterations = next(iter(optimizer.state.values()))["n_iter"]
    converged = n_iterations < MAX_ITERATIONS and n_passes < 2 * MAX_ITERATIONS
    return TreeFit(uas, float("nan"), n_passes, converged)


@dataclass(slots=True, eq=False)
class _TrainingRun:
    """State of one training with one learning rate."""

    learning_rate: float
    state: dict[str, Tensor]
    best_uas: float = -1.0
    best_state: dict[str, Tensor] = field(default_factory=dict)
    generator: np.random.Generator | None = None
    optimizer_state: dict[str, Any] | None = None


class _AdamTraining:
    """Adam on one probe: the search for a learning rate, then training until validation stops
    improving."""

    def __init__(
        self,
        probe: TreeProbe,
        train: TreeBatches,
        validation: TreeBatches,
        settings: TreeFitSettings,
        report: Report,
    ) -> None:
        self.probe = probe
        self.train = train
        self.validation = validation
        self.settings = settings
        self.report = report
        self.n_epochs = 0

    def fit(self) -> TreeFit:
        start = _copy_state(self.probe)
        if self.settings.search:
            run = self._search_rate(start)
        else:
            run = _TrainingRun(self.settings.learning_rate, start)
        first_rate = run.learning_rate
        n_coolings = 0
        epochs_without_gain = 0
        while self.n_epochs < self.settings.epochs:
            if self._train_epoch(run):
                epochs_without_gain = 0
            else:
                epochs_without_gain += 1
            if epochs_without_gain < self.settings.patience:
                continue
            if n_coolings == MAX_COOLINGS:
                break
            n_coolings += 1
            epochs_without_gain = 0
            run = _TrainingRun(
                run.learning_rate / RATE_FACTOR,
                run.best_state,
                run.best_uas,
                run.best_state,
                run.generator,
            )
        self.probe.load_state_dict(run.best_state)
        return TreeFit(run.best_uas, first_rate, self.n_epochs, n_coolings == MAX_COOLINGS)

    def _search_rate(self, start: dict[str, Tensor]) -> _TrainingRun:
        """Try several learning rates and return the run of the best one, after its trial."""
        trial_epochs = min(TRIAL_EPOCHS, self.settings.epochs)
        runs: dict[int, _TrainingRun] = {}  # by power of RATE_FACTOR

        def try_rate(power: int) -> None:
            rate = self.settings.learning_rate * RATE_FACTOR**power
            runs[power] = _TrainingRun(rate, start)
            epochs_before = self.n_epochs
            for _ in range(trial_epochs):
                self._train_epoch(runs[power])
            self.n_epochs = epochs_before  # trials do not count

        for power in (-1, 0, 1):
            try_rate(power)
        while True:
            # Ties go to the larger rate: rates that are too small to change anything are equal.
            best = max(runs, key=lambda power: (runs[power].best_uas, power))
            inside = best - 1 in runs and best + 1 in runs
            if inside or abs(best) >= MAX_RATE_STEPS:
                break
            try_rate(best - 1 if best + 1 in runs else best + 1)
        self.n_epochs = trial_epochs
        return runs[best]

    def _train_epoch(self, run: _TrainingRun) -> bool:
        """Train one epoch; return whether validation UAS improved."""
        probe = self.probe
        if run.generator is None:
            run.generator = np.random.default_rng([self.settings.seed, 7])
        probe.load_state_dict(run.state)
        optimizer = torch.optim.Adam(probe.parameters(), lr=run.learning_rate)
        if run.optimizer_state is not None:
            optimizer.load_state_dict(run.optimizer_state)
        n_steps = 0
        # An epoch of a small corpus is several passes: validation would be checked too often.
        while n_steps < MIN_STEPS:
            for batch in self.train.batches(probe.needs_maps, run.generator):
                loss = _loss(probe, batch, "mean")
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                n_steps += 1
        run.optimizer_state = optimizer.state_dict()
        run.state = _copy_state(probe)
        self.n_epochs += 1
        uas = _uas(probe, self.validation)
        self.report(self.n_epochs, uas)
        if uas <= run.best_uas:
            return False
        run.best_uas = uas
        run.best_state = run.state
        return True


def _loss(probe: TreeProbe, batch: TreeBatch, reduction: str) -> Tensor:
    scores = probe(batch).flatten(0, 1)
    return nn.functional.cross_entropy(scores, batch.gold_heads.flatten(), reduction=reduction)


def _copy_state(probe: TreeProbe) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in probe.state_dict().items()}


def _uas(probe: TreeProbe, batches: TreeBatches) -> float:
    correct, total = score_tree_probe(probe, batches)
    return float(correct.sum() / max(total.sum(), 1))


@torch.no_grad()
def score_tree_probe(probe: TreeProbe, batches: TreeBatches) -> tuple[np.ndarray, np.ndarray]:
    """Return the words whose head is found and the words scored, for each sentence in its order."""
    row_of = {int(sentence): row for row, sentence in enumerate(batches.sentences)}
    counts = []
    for batch in batches.batches(probe.needs_maps):
        hits = (probe(batch).argmax(-1) == batch.gold_heads) & batch.scored
        counts.append((batch.sentences, hits.sum(1), batch.scored.sum(1)))
    correct = np.zeros(len(row_of))
    total = np.zeros(len(row_of))
    # Copied only after all batches are launched: each copy waits for the GPU.
    for sentences, n_hits, n_scored in counts:
        rows = [row_of[sentence] for sentence in sentences]
        correct[rows] = n_hits.cpu().numpy()
        total[rows] = n_scored.cpu().numpy()
    return correct, total


@torch.no_grad()
def mean_head_weights(probe: TreeProbe, batches: TreeBatches) -> np.ndarray:
    """Return the mean weight of each head over scored words and their true heads, `[head, (w,
    u)]`."""
    assert isinstance(probe, AttentionProbe | AttentionWordsProbe)
    total = torch.zeros(())
    count = 0
    for batch in batches.batches(maps=False):
        weights = probe.head_weights(batch).double().cpu()
        total = total + weights.sum(0)
        count += len(weights)
    return np.asarray(total / max(count, 1))
