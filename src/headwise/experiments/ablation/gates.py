"""Which heads a model can do without, learned: a gate on every head, most of which must close (L0
regularisation)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.core.checks import above, at_least
from headwise.core.errors import InputError, ParameterError
from headwise.experiments.ablation.importance import at_once, trainable
from headwise.experiments.ablation.run import Condition, evaluate
from headwise.experiments.ablation.sets import Heads
from headwise.experiments.ablation.subjects import Subject
from headwise.experiments.work import Report, silent
from headwise.models.interventions import Plan, Scale
from headwise.text.encode import Batch

LOW, HIGH, HEAT = -0.1, 1.1, 2 / 3  # of the hard concrete distribution (Louizos et al. 2018, §4.1)


@dataclass(frozen=True, slots=True)
class GateOptions:
    """How gates are learned.

    Parameters
    ----------
    remove : int
        So many heads are to be given up.
    steps : int, default 200
        Of Adam, one batch each.
    learning_rate : float, default 0.1
        Of the gates; the model itself stays as it is.
    random_sets : int, default 20
        Random sets of as many heads that the choice is compared with.
    seed : int, default 0
        For the gates' noise, the order of batches and the random sets.
    """

    remove: int
    steps: int = 200
    learning_rate: float = 0.1
    random_sets: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("remove", "steps", "random_sets"):
            at_least(name, getattr(self, name), 1)
        above("learning_rate", self.learning_rate, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Gates:
    """What came of it: the heads to give up, how open each gate ended (`open[layer, head]`, 0 to
    1), and the score on the examples that had no part in learning: of the whole model, without
    these heads, and without each random set."""

    heads: Heads
    open: np.ndarray
    metric: str
    whole: float
    without: float
    random: np.ndarray
    p_value: float  # share of random sets (the chosen one counted) that do no more harm


def learn_gates(subject: Subject, options: GateOptions, *, report: Report = silent) -> Gates:
    """Choose heads to give up under a budget (Louizos et al. 2018; Voita et al. 2019, §5).

    Every head's output is multiplied by a gate drawn from a hard concrete distribution, zero or one
    for the most part. The gates' parameters minimise the loss of the model plus a price for each
    gate above the budget, raised as long as too many are open. Half of the examples are learned on;
    the other half says what the choice is worth."""
    model, total = subject.model, subject.model.layers * subject.model.heads
    if not options.remove < total:
        raise ParameterError(
            f"The model has {total} heads; give up at least 1 and at most {total - 1} of them."
        )
    learned, held = _halves(subject)
    if not learned or not held:
        raise InputError(
            "Gates are learned on one half of the examples and tested on the other; give more of them."
        )
    gates = _Gates(model.layers, model.heads, total - options.remove, options, model.device)
    random = np.random.default_rng(options.seed)
    with subject.evaluating(), trainable(model.module, False):
        for step in range(options.steps):
            gates.step(
                subject,
                _some(learned[int(random.integers(len(learned)))], random, subject.divisible),
            )
            report("gates", step + 1, options.steps)
    order = np.argsort(gates.opened().ravel(), kind="stable")[: options.remove]
    draws = [
        random.choice(total, options.remove, replace=False) for _ in range(options.random_sets)
    ]
    chosen, *sets = (
        [divmod(int(i), model.heads) for i in np.sort(places)] for places in (order, *draws)
    )
    return _judged(subject, held, chosen, sets, gates.opened(), report)


class _Gates:
    """Hard concrete gates of all heads, and the price of an open one."""

    def __init__(
        self, layers: int, heads: int, keep: int, options: GateOptions, device: torch.device
    ) -> None:
        self.keep = keep
        self.generator = torch.Generator().manual_seed(options.seed)
        self.logits = torch.full(
            (layers, heads), 2.0, device=device, requires_grad=True
        )  # nearly all open at first
        self.optimizer = torch.optim.Adam([self.logits], lr=options.learning_rate)
        self.price = 0.0
        self.raise_by = 4.0 / options.steps

    def drawn(self) -> Tensor:
        noise = (
            torch.rand(self.logits.shape, generator=self.generator)
            .clamp(1e-6, 1 - 1e-6)
            .to(self.logits.device)
        )
        soft = torch.sigmoid((noise.log() - (1 - noise).log() + self.logits) / HEAT)
        return (soft * (HIGH - LOW) + LOW).clamp(0, 1)

    def expected(self) -> Tensor:
        """The probability of each gate to be open at all."""
        return torch.sigmoid(self.logits - HEAT * float(np.log(-LOW / HIGH)))

    def opened(self) -> np.ndarray:
        """How open each gate is without noise."""
        values = torch.sigmoid(self.logits.detach()) * (HIGH - LOW) + LOW
        # Gates that are quite shut or quite open are told apart by their parameters.
        return (values.clamp(0, 1) + 1e-6 * self.logits.detach()).cpu().numpy()

    def step(self, subject: Subject, batch: Batch) -> None:
        with torch.enable_grad():
            gates = self.drawn()
            plan: Plan = {
                layer: {head: Scale(gates[layer, head]) for head in range(gates.shape[1])}
                for layer in range(gates.shape[0])
            }
            session = subject.session(batch, plan)
            with session.running():
                loss = subject.losses(subject.run(batch, session), batch).mean()
            above = (self.expected().sum() - self.keep) / gates.numel()
            self.optimizer.zero_grad()
            (loss + self.price * gates.numel() * above.clamp(min=0)).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        # Dual ascent: an open gate too many costs more from step to step, one too few less.
        self.price = max(
            0.0, self.price + self.raise_by * (1.0 if float(above.detach()) > 0 else -0.5)
        )


def _halves(subject: Subject) -> tuple[list[Batch], list[Batch]]:
    """Every other example, or every other batch where batches cannot be parted."""
    if not subject.divisible:
        return subject.batches[::2], subject.batches[1::2]
    parts = (
        [b.select(range(first, len(b), 2)) for b in subject.batches if len(b) > first]
        for first in (0, 1)
    )
    return next(parts), next(parts)


def _some(batch: Batch, random: np.random.Generator, divisible: bool) -> Batch:
    """As much of a batch as gradients are kept for."""
    if not divisible or at_once(batch) >= len(batch):
        return batch
    return batch.select(np.sort(random.choice(len(batch), at_once(batch), replace=False)).tolist())


def _judged(
    subject: Subject,
    held: list[Batch],
    chosen: Heads,
    sets: list[Heads],
    opened: np.ndarray,
    report: Report,
) -> Gates:
    conditions = [
        Condition("chosen", tuple(chosen)),
        *(Condition(f"{i}", tuple(s)) for i, s in enumerate(sets)),
    ]
    whole = subject.batches
    subject.batches = held
    try:
        found = evaluate(subject, conditions, "zero", report=report)
    finally:
        subject.batches = whole
    where = np.array(sorted(place for batch in held for place in subject.places(batch)))
    said = [found.baseline[where], *(row[where] for row in found.values)]
    scores = np.array([subject.score(values, where)[subject.metric] for values in said])
    harm = (scores[1:] - scores[0]) * (-1 if subject.higher_better else 1)
    p = (1 + int((harm[1:] <= harm[0]).sum())) / len(harm)
    return Gates(
        chosen, opened, subject.metric, float(scores[0]), float(scores[1]), scores[2:], float(p)
    )
