"""Learn which heads a model can do without: a gate on every head, most of which must close (L0
regularisation)."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.core.checks import above, at_least
from headwise.core.errors import InputError, ParameterError
from headwise.experiments.ablation.importance import examples_within, trainable
from headwise.experiments.ablation.options import Heads
from headwise.experiments.ablation.run import AblationCondition, evaluate
from headwise.experiments.ablation.scored_models import ScoredModel
from headwise.models.interventions import InterventionPlan, Scale
from headwise.run.job import Job, Progress, no_progress
from headwise.text.encode import Batch

# The hard concrete distribution of Louizos et al. 2018, §4.1: a sigmoid stretched to this range and
# cut at 0 and 1, at this temperature.
STRETCH_LOW = -0.1
STRETCH_HIGH = 1.1
TEMPERATURE = 2 / 3


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Options of learning gates.

    Parameters
    ----------
    remove : int
        How many heads to remove.
    steps : int, default 200
        Steps of Adam, each on a few examples.
    learning_rate : float, default 0.1
        Learning rate of the gates; the weights of the model stay as they are.
    random_sets : int, default 20
        Random sets of as many heads that the choice is compared with.
    seed : int, default 0
        Seed of the gates' noise, the examples of each step and the random sets.
    """

    remove: int
    steps: int = 200
    learning_rate: float = 0.1
    random_sets: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("remove", self.remove, 1)
        at_least("steps", self.steps, 1)
        at_least("random_sets", self.random_sets, 1)
        above("learning_rate", self.learning_rate, 0)


@dataclass(frozen=True, slots=True, eq=False)
class GateResult:
    """The heads that learned gates give up, and the score without them on held-out examples.

    Attributes
    ----------
    heads : list of (layer, head)
        The heads to remove.
    openness : ndarray
        How open each gate ended, 0 to 1, `[layer, head]`.
    metric : str
        The metric of the scores.
    intact : float
        The score of the intact model on the held-out half.
    without : float
        The score without the chosen heads.
    random : ndarray
        The score without each random set.
    p_value : float
        Share of sets (the chosen one counted) that do no more harm than the chosen one.
    """

    heads: Heads
    openness: np.ndarray
    metric: str
    intact: float
    without: float
    random: np.ndarray
    p_value: float


@dataclass(frozen=True, slots=True)
class GateCost:
    """What learning gates takes: steps with gradients, then passes over the held-out half.

    `seconds` is an estimate from one step and one pass that were timed.
    """

    steps: int
    tokens_per_step: int
    passes: int
    tokens_per_pass: int
    seconds: float


def learn_gates(
    scored: ScoredModel, options: GateOptions, *, report: Progress = no_progress
) -> GateResult:
    """Choose heads to remove under a budget (Louizos et al. 2018; Voita et al. 2019, §5).

    Every head's output is multiplied by a gate drawn from a hard concrete distribution, zero or one
    for the most part. The gates' parameters minimise the loss of the model plus a penalty for each
    gate above the budget, which grows as long as too many are open. The gates are learned on half
    of the examples; the other half scores the choice."""
    model = scored.model
    n_heads = model.layers * model.heads
    if not options.remove < n_heads:
        raise ParameterError(
            f"The model has {n_heads} heads; remove at least 1 and at most {n_heads - 1} of them."
        )
    training, held_out = _split_in_halves(scored)
    gates = HardConcreteGates(model.layers, model.heads, options, model.device)
    random = np.random.default_rng(options.seed)
    with scored.evaluating(), trainable(model.module, False):
        for step in range(options.steps):
            batch = training[int(random.integers(len(training)))]
            gates.step(scored, _draw_examples(batch, scored.max_tokens_per_step, random))
            report("gates", step + 1, options.steps)

    openness = gates.openness()
    most_closed = np.argsort(openness.ravel(), kind="stable")[: options.remove]
    chosen = _as_heads(most_closed, model.heads)
    random_sets = []
    for _ in range(options.random_sets):
        drawn = random.choice(n_heads, options.remove, replace=False)
        random_sets.append(_as_heads(drawn, model.heads))
    return _score_on_held_out(scored, held_out, chosen, random_sets, openness, report)


def estimate_gate_cost(scored: ScoredModel, options: GateOptions) -> GateCost:
    """Time one step and one pass, and say what `learn_gates` will take with these options."""
    training, held_out = _split_in_halves(scored)
    largest = max(training, key=lambda batch: batch.ids.shape[1])
    sample = _draw_examples(largest, scored.max_tokens_per_step, np.random.default_rng(0))
    tokens_per_step = sample.ids.numel()
    gates = HardConcreteGates(scored.model.layers, scored.model.heads, options, sample.device)
    with scored.evaluating(), trainable(scored.model.module, False):
        gates.step(scored, sample)  # the first step warms up
        began = time.perf_counter()
        gates.step(scored, sample)
        seconds_per_step = time.perf_counter() - began
        session = scored.session(sample)
        began = time.perf_counter()
        with torch.no_grad(), session.running():
            scored.values(scored.run(sample, session)).cpu()
        seconds_per_token = (time.perf_counter() - began) / tokens_per_step
    passes = 2 + options.random_sets  # the intact model, the choice, the random sets
    tokens_per_pass = sum(batch.ids.numel() for batch in held_out)
    seconds = options.steps * seconds_per_step + passes * tokens_per_pass * seconds_per_token
    return GateCost(options.steps, tokens_per_step, passes, tokens_per_pass, seconds)


class HardConcreteGates:
    """Hard concrete gates of all heads, and the penalty for an open one."""

    def __init__(self, layers: int, heads: int, options: GateOptions, device: torch.device) -> None:
        self.n_kept = layers * heads - options.remove
        self.generator = torch.Generator().manual_seed(options.seed)
        # A logit of 2: nearly all gates are open at first.
        self.logits = torch.full((layers, heads), 2.0, device=device, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.logits], lr=options.learning_rate)
        self.penalty = 0.0
        self.penalty_step = 4.0 / options.steps

    def sample(self) -> Tensor:
        """Draw all gates, `[layer, head]`, differentiably."""
        uniform = torch.rand(self.logits.shape, generator=self.generator)
        uniform = uniform.clamp(1e-6, 1 - 1e-6).to(self.logits.device)
        noise = uniform.log() - (1 - uniform).log()
        soft = torch.sigmoid((noise + self.logits) / TEMPERATURE)
        return (soft * (STRETCH_HIGH - STRETCH_LOW) + STRETCH_LOW).clamp(0, 1)

    def open_probability(self) -> Tensor:
        """Return P(gate > 0) of each gate, `[layer, head]`."""
        shift = TEMPERATURE * float(np.log(-STRETCH_LOW / STRETCH_HIGH))
        return torch.sigmoid(self.logits - shift)

    def openness(self) -> np.ndarray:
        """Return how open each gate is without noise, `[layer, head]`."""
        logits = self.logits.detach()
        values = torch.sigmoid(logits) * (STRETCH_HIGH - STRETCH_LOW) + STRETCH_LOW
        # Ties at 0 and 1 are broken by the logits.
        return (values.clamp(0, 1) + 1e-6 * logits).cpu().numpy()

    def step(self, scored: ScoredModel, batch: Batch) -> None:
        """Make one step of Adam on the loss of a batch and the penalty for open gates."""
        with torch.enable_grad():
            gates = self.sample()
            plan: InterventionPlan = {}
            for layer in range(gates.shape[0]):
                plan[layer] = {head: Scale(gates[layer, head]) for head in range(gates.shape[1])}
            session = scored.session(batch, plan)
            with session.running():
                loss = scored.losses(scored.run(batch, session), batch).mean()
            self.descend(loss)

    def descend(self, loss: Tensor) -> None:
        """Make one step of Adam on a loss that depends on the gates, and the penalty for open ones."""
        n_above = self.open_probability().sum() - self.n_kept
        self.optimizer.zero_grad()
        penalised_loss = loss + self.penalty * n_above.clamp(min=0)
        penalised_loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        # Dual ascent: the penalty grows while too many gates are open and shrinks otherwise.
        if float(n_above.detach()) > 0:
            self.penalty += self.penalty_step
        else:
            self.penalty = max(0.0, self.penalty - 0.5 * self.penalty_step)


def _split_in_halves(scored: ScoredModel) -> tuple[list[Batch], list[Batch]]:
    """Return every other example of each batch, and the others."""
    training = []
    held_out = []
    for batch in scored.batches:
        training.append(batch.select(range(0, len(batch), 2)))
        if len(batch) > 1:
            held_out.append(batch.select(range(1, len(batch), 2)))
    if not held_out:
        raise InputError(
            "Gates are learned on one half of the examples and tested on the other; give at least "
            "two examples."
        )
    return training, held_out


def _draw_examples(batch: Batch, tokens: int, random: np.random.Generator) -> Batch:
    """Return as many examples of a batch, drawn at random, as fit into a number of tokens."""
    count = examples_within(batch, tokens)
    if count >= len(batch):
        return batch
    return batch.select(np.sort(random.choice(len(batch), count, replace=False)).tolist())


def _as_heads(numbers: np.ndarray, heads_per_layer: int) -> Heads:
    """Return the (layer, head) of heads that are numbered over all layers, sorted."""
    return [divmod(int(number), heads_per_layer) for number in np.sort(numbers)]


def _score_on_held_out(
    scored: ScoredModel,
    held_out: list[Batch],
    chosen: Heads,
    random_sets: list[Heads],
    openness: np.ndarray,
    report: Progress,
) -> GateResult:
    conditions = [AblationCondition("chosen", tuple(chosen))]
    for number, heads in enumerate(random_sets):
        conditions.append(AblationCondition(str(number), tuple(heads)))
    evaluation = evaluate(
        scored.with_batches(held_out), conditions, "zero", job=Job(progress=report)
    )

    places: list[int] = []
    for batch in held_out:
        places += scored.places(batch)
    where = np.array(sorted(places))
    scores = []
    for values in (evaluation.baseline, *evaluation.values):
        scores.append(scored.score(values[where], where)[scored.metric])
    intact, without, *random = scores
    sign = -1 if scored.higher_better else 1
    harm = sign * (without - intact)
    random_harm = sign * (np.array(random) - intact)
    p_value = (1 + int((random_harm <= harm).sum())) / (1 + len(random_sets))
    return GateResult(
        heads=chosen,
        openness=openness,
        metric=scored.metric,
        intact=float(intact),
        without=float(without),
        random=np.array(random),
        p_value=float(p_value),
    )
