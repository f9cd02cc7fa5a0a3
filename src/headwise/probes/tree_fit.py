"""Training parsing probes to the end: L-BFGS where there is one optimum, Adam with a searched rate
elsewhere."""

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
    Part,
    TreeProbe,
    Trees,
    WordMaps,
    part_of,
)

LEAST_STEPS = 20  # of the optimizer in an epoch
KEPT_BYTES = 2**30  # of padded maps in memory; on a GPU half of what is free
FACTOR = 3.0  # from one rate to the next in the search
TRIAL = 2  # epochs in which a rate shows what it is worth
FARTHEST = 4  # rates the search may go beyond the given one, each way
COOLINGS = 2  # times the rate is lowered once nothing gets better
ITERATIONS = 300  # of L-BFGS
PRIOR = 100.0  # variance of weights before any word is seen: so wide that it matters only where few words separate
Report = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How a probe is trained, on the mean cross-entropy of a batch's words.

    A convex probe goes to its optimum by L-BFGS, under a wide normal prior that keeps it finite.
    Others are trained by Adam: a few rates are tried for two epochs each, `learning_rate` first,
    and further where the best is the last one tried (with `search`); the best goes on. After
    `patience` epochs without a better validation UAS the rate falls to a third, from the best
    state; the third time the training ends. The state with the best validation UAS is kept."""

    learning_rate: float
    epochs: int = 60
    patience: int = 3
    search: bool = True
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Fit:
    """What training came to: the best validation UAS, the rate it was reached with (NaN for
    L-BFGS), passes over the training part in all, and whether it ended by itself."""

    validation: float
    learning_rate: float
    epochs: int
    converged: bool


class Prepared:
    """Sentences in batches of like length, padded once; their maps, rounded to half precision, are
    kept where they fit: ready to use where there is room for that."""

    def __init__(
        self,
        trees: Trees,
        word_maps: WordMaps | None,
        sentences: np.ndarray,
        batch_pairs: int = 16_384,
        device: str = "cpu",
    ) -> None:
        self.trees, self.word_maps, self.sentences, self.device = (
            trees,
            word_maps,
            sentences,
            device,
        )
        self.groups = list(batches_of(trees.sizes, sentences, batch_pairs))
        self.parts = [part_of(trees, group, None, device) for group in self.groups]
        self._scored = [int((part.head >= 0).sum()) for part in self.parts]
        self.words = sum(self._scored)
        heads = 0 if word_maps is None else word_maps.heads
        self._kept: list[Tensor | None] = [None] * len(self.groups)
        numbers = heads * sum(
            part.attention_mask.shape[1] * part.attention_mask.numel() for part in self.parts
        )
        self._keep, self._ready = 2 * numbers <= _room(device), 4 * numbers <= _room(device)

    def __len__(self) -> int:
        return len(self.parts)

    def batches(self, maps: bool, generator: np.random.Generator | None = None) -> Iterator[Part]:
        """All batches, with their maps where these are asked for; with a generator, for training,
        in a random order and without those that have no word to learn from."""
        places = np.arange(len(self)) if generator is None else generator.permutation(len(self))
        for place in places.tolist():
            part = self.parts[place]
            if generator is not None and not self._scored[place]:
                continue
            if not maps or self.word_maps is None:
                yield part
                continue
            kept = self._kept[place]
            if kept is None:
                kept = (
                    self.word_maps.read(self.groups[place], part.attention_mask.shape[1])
                    .half()
                    .to(self.device)
                )
                kept = kept.float() if self._ready else kept
                self._kept[place] = kept if self._keep else None
            yield replace(part, maps=kept.float())


def _room(device: str) -> int:
    return torch.cuda.mem_get_info(device)[0] // 2 if device.startswith("cuda") else KEPT_BYTES


def batches_of(
    sizes: Sequence[int], sentences: np.ndarray, batch_pairs: int
) -> Iterator[list[int]]:
    """Sentences of like length, at most so many word pairs at a time (at least one sentence)."""
    group: list[int] = []
    for s in sorted(sentences.tolist(), key=lambda s: sizes[s]):
        if group and (len(group) + 1) * sizes[s] ** 2 > batch_pairs:
            yield group
            group = []
        group.append(s)
    if group:
        yield group


def fit_tree_probe(
    probe: TreeProbe,
    train: Prepared,
    validation: Prepared,
    settings: FitSettings,
    report: Report | None = None,
) -> Fit:
    """Train a probe in place. `report(epoch, validation UAS)` is told of every look at the
    validation part."""
    probe.to(settings.device)
    tell = report or (lambda epoch, uas: None)
    if not train.words:  # nothing to learn from: all words are punctuation
        return Fit(_uas(probe, validation), float("nan"), 0, True)
    if probe.convex:
        return _to_the_optimum(probe, train, validation, tell)
    return _Descent(probe, train, validation, settings, tell).fit()


def _to_the_optimum(probe: TreeProbe, train: Prepared, validation: Prepared, tell: Report) -> Fit:
    parameters = list(probe.parameters())
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=ITERATIONS,
        max_eval=2 * ITERATIONS,
        history_size=20,
        tolerance_grad=1e-6,
        tolerance_change=1e-6,
        line_search_fn="strong_wolfe",
    )
    passes = 0

    def closure() -> Tensor:
        nonlocal passes
        passes += 1
        optimizer.zero_grad()
        total = sum(
            (p.square().sum() for p in parameters), torch.zeros((), device=parameters[0].device)
        )
        total = total / (2 * PRIOR * train.words)
        total.backward()  # type: ignore[no-untyped-call]
        total = total.detach()
        for part in train.batches(probe.needs_maps):
            loss = _loss(probe, part, "sum") / train.words
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    uas = _uas(probe, validation)
    tell(passes, uas)
    taken = next(iter(optimizer.state.values()))["n_iter"]
    return Fit(uas, float("nan"), passes, taken < ITERATIONS and passes < 2 * ITERATIONS)


class _Descent:
    """Adam on one probe: the search for a rate, and the way to where nothing gets better."""

    def __init__(
        self,
        probe: TreeProbe,
        train: Prepared,
        validation: Prepared,
        settings: FitSettings,
        tell: Report,
    ) -> None:
        self.probe, self.train, self.validation, self.settings, self.tell = (
            probe,
            train,
            validation,
            settings,
            tell,
        )
        self.passes = 0

    def fit(self) -> Fit:
        start = _copied(self.probe.state_dict())
        run = (
            self._search(start)
            if self.settings.search
            else _Run(self.settings.learning_rate, start)
        )
        chosen, coolings, since = run.rate, 0, 0
        while self.passes < self.settings.epochs:
            better = self._epoch(run)
            since = 0 if better else since + 1
            if since >= self.settings.patience:
                if coolings == COOLINGS:
                    break
                coolings, since = coolings + 1, 0
                run = _Run(
                    run.rate / FACTOR, run.best_state, run.best, run.best_state, run.generator
                )
        self.probe.load_state_dict(run.best_state)
        return Fit(run.best, chosen, self.passes, coolings == COOLINGS)

    def _search(self, start: dict[str, Tensor]) -> _Run:
        """The run, after its trial, of the best of several rates."""
        runs: dict[int, _Run] = {}

        def tried(step: int) -> float:
            if step not in runs:
                runs[step] = _Run(self.settings.learning_rate * FACTOR**step, start)
                before = self.passes
                for _ in range(min(TRIAL, self.settings.epochs)):
                    self._epoch(runs[step])
                self.passes = before  # the search has epochs of its own
            return runs[step].best

        for step in (-1, 0, 1):
            tried(step)
        while True:
            best = max(
                runs, key=lambda step: (tried(step), step)
            )  # rates too small to do anything are alike
            if abs(best) >= FARTHEST or (best - 1 in runs and best + 1 in runs):
                break
            tried(best + 1 if best + 1 not in runs else best - 1)
        self.passes = min(TRIAL, self.settings.epochs)
        return runs[best]

    def _epoch(self, run: _Run) -> bool:
        """One epoch of a run; whether it brought a better validation UAS."""
        probe, generator = (
            self.probe,
            run.generator or np.random.default_rng([self.settings.seed, 7]),
        )
        run.generator = generator
        probe.load_state_dict(run.state)
        optimizer = torch.optim.Adam(probe.parameters(), lr=run.rate)
        if run.moments is not None:
            optimizer.load_state_dict(run.moments)
        steps = 0
        while (
            steps < LEAST_STEPS
        ):  # a small corpus is gone through several times between looks at the validation part
            for part in self.train.batches(probe.needs_maps, generator):
                loss = _loss(probe, part, "mean")
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                steps += 1
        run.moments, run.state = optimizer.state_dict(), _copied(probe.state_dict())
        self.passes += 1
        uas = _uas(probe, self.validation)
        self.tell(self.passes, uas)
        if uas > run.best:
            run.best, run.best_state = uas, run.state
            return True
        return False


@dataclass(slots=True, eq=False)
class _Run:
    """Where one training with one rate stands."""

    rate: float
    state: dict[str, Tensor]
    best: float = -1.0
    best_state: dict[str, Tensor] = field(default_factory=dict)
    generator: np.random.Generator | None = None
    moments: dict[str, Any] | None = None


def _loss(probe: TreeProbe, part: Part, reduction: str) -> Tensor:
    return nn.functional.cross_entropy(
        probe(part).flatten(0, 1), part.head.flatten(), reduction=reduction
    )


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def _uas(probe: TreeProbe, prepared: Prepared) -> float:
    correct, total = score_tree_probe(probe, prepared)
    return float(correct.sum() / max(total.sum(), 1))


@torch.no_grad()
def score_tree_probe(probe: TreeProbe, prepared: Prepared) -> tuple[np.ndarray, np.ndarray]:
    """Words whose head is found, and words scored, for each of the sentences in their order."""
    place = {int(s): i for i, s in enumerate(prepared.sentences)}
    correct, total = np.zeros(len(place)), np.zeros(len(place))
    found = []
    for part in prepared.batches(probe.needs_maps):
        counted = part.head >= 0
        found.append(
            (
                part.sentences,
                ((probe(part).argmax(-1) == part.head) & counted).sum(1),
                counted.sum(1),
            )
        )
    for sentences, right, counted in found:  # only now is anything waited for
        where = [place[s] for s in sentences]
        correct[where], total[where] = right.cpu().numpy(), counted.cpu().numpy()
    return correct, total


@torch.no_grad()
def mean_head_weights(probe: TreeProbe, prepared: Prepared) -> np.ndarray:
    """The mean weight of each head over scored words and their true heads, `[head, (w, u)]`."""
    assert isinstance(probe, AttentionProbe | AttentionWordsProbe)
    total, count = torch.zeros(()), 0
    for part in prepared.batches(maps=False):
        weights = probe.head_weights(part).double().cpu()
        total = total + weights.sum(0)
        count += len(weights)
    return np.asarray(total / max(count, 1))
