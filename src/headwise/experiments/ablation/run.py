"""Disabling heads: every single head, whole layers and sets, scored in one run that shares the layers below the change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import one_of
from headwise.core.errors import ModelError, ParameterError
from headwise.experiments.ablation.importance import head_importance
from headwise.experiments.ablation.prefix import Prefix
from headwise.experiments.ablation.result import ablation_dataset
from headwise.experiments.ablation.sets import Heads, checked_heads, pick_heads
from headwise.experiments.ablation.subjects import HeadOutputs, Subject, places, session_for
from headwise.models.interventions import NAMED, Plan, plan_interventions
from headwise.run.shards import RunFolder
from headwise.stats.corrections import CORRECTIONS
from headwise.text.encode import Batch

Report = Callable[[str, int, int], None]
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Condition:
    """One way in which the model is disturbed: which heads, as what."""

    name: str
    heads: tuple[tuple[int, int], ...]

    def plan(self, how: str, layers: int, heads: int, d_head: int) -> Plan:
        return plan_interventions(dict.fromkeys(self.heads, how), layers, heads, d_head)

    @property
    def first_layer(self) -> int:
        return min(layer for layer, _ in self.heads)


def single_heads(layers: int, heads: int) -> list[Condition]:
    return [Condition(f"L{layer}H{head}", ((layer, head),)) for layer in range(layers) for head in range(heads)]


def whole_layers(layers: int, heads: int) -> list[Condition]:
    return [Condition(f"L{layer}", tuple((layer, head) for head in range(heads))) for layer in range(layers)]


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What the model said of each example, undisturbed `[example]` and under each condition `[condition, example]`; `shared` tells whether lower layers were run once only."""

    baseline: np.ndarray
    values: np.ndarray
    shared: bool
    note: str = ""


@torch.no_grad()
def evaluate(
    subject: Subject,
    conditions: Sequence[Condition],
    how: str = "uniform",
    *,
    share: bool = True,
    folder: RunFolder | None = None,
    report: Report | None = None,
) -> Evaluation:
    """Run a model under every condition on every batch.

    With `share` the layers below a condition's first disturbed layer are not run again: they give what they gave undisturbed. The first batch is run both ways for conditions at
    several depths; where the outputs differ by more than 1e-6 (an architecture that passes more between layers than its layers' outputs), whole runs are made and `note` says so.
    """
    one_of("how", how, NAMED)
    model = subject.model
    note = ""
    if share and not Prefix.serves(model.sites):
        share, note = False, f"The layers of {model.name} cannot be run apart, so every condition was a whole run."
    plans = [c.plan(how, model.layers, model.heads, model.d_head) for c in conditions]
    runner = _Runner(subject, conditions, plans)
    baseline = np.zeros(subject.examples)
    values = np.zeros((len(conditions), subject.examples))
    with model.evaluating():
        if share:
            difference = runner.check(subject.batches[0])
            if not difference <= TOLERANCE:
                share, note = (
                    False,
                    f"The layers of {model.name} pass on more than their outputs (difference {difference:.1e}), so every condition was a whole run.",
                )
        for number, batch in enumerate(subject.batches):
            if folder is not None and folder.done(number):
                arrays, _ = folder.load(number)
                own, changed = arrays["baseline"], arrays["values"]
            else:
                own, changed = runner.batch(batch, share)
                if folder is not None:
                    folder.save(number, {"baseline": own, "values": changed}, {"examples": len(batch)})
            where = places(subject, batch)
            baseline[where], values[:, where] = own, changed
            if report is not None:
                report("batches", number + 1, len(subject.batches))
    return Evaluation(baseline, values, share, note)


class _Runner:
    """Runs batches under conditions."""

    def __init__(self, subject: Subject, conditions: Sequence[Condition], plans: Sequence[Plan]) -> None:
        self.subject, self.conditions, self.plans = subject, conditions, plans

    def output(self, batch: Batch, plan: Plan | None = None, prefix: Prefix | None = None, layer: int = 0) -> Tensor:
        """The model's output on a batch, with layers below `layer` taken from the prefix."""
        session = session_for(self.subject, batch, plan)
        with ExitStack() as stack:
            if prefix is not None:
                stack.enter_context(prefix.skipping(layer, session))
                if isinstance(session.watcher, HeadOutputs):  # a classifier reads outputs of layers that are not run
                    session.watcher.outputs.update(
                        {number: kept for number, kept in prefix.head_outputs.items() if number < layer}
                    )
            stack.enter_context(session.running())
            output = self.subject.run(batch, session)
        if session.layer_count.seen != self.subject.model.layers:
            raise ModelError(
                f"The tap saw {session.layer_count.seen} of the {self.subject.model.layers} layers of {self.subject.model.name}; open the model again."
            )
        return output

    def record(self, batch: Batch) -> tuple[Prefix, Tensor]:
        prefix = Prefix(self.subject.model)
        session = session_for(self.subject, batch)
        with prefix.recording(), session.running():
            output = self.subject.run(batch, session)
        if isinstance(session.watcher, HeadOutputs):
            prefix.head_outputs = session.watcher.outputs
        return prefix, output

    def batch(self, batch: Batch, share: bool) -> tuple[np.ndarray, np.ndarray]:
        prefix, own = self.record(batch) if share else (None, self.output(batch))
        changed = np.zeros((len(self.conditions), len(batch)))
        for i, (condition, plan) in enumerate(zip(self.conditions, self.plans, strict=True)):
            output = self.output(batch, plan, prefix, condition.first_layer)
            changed[i] = self.subject.values(output).double().cpu().numpy()
        return self.subject.values(own).double().cpu().numpy(), changed

    def check(self, batch: Batch) -> float:
        """The largest difference between shared and whole runs, over conditions at the first, middle and last layer."""
        if not self.conditions:
            return 0.0
        prefix, _ = self.record(batch)
        if len(prefix.outputs) != self.subject.model.layers:
            return float("inf")
        difference = 0.0
        depths = sorted({c.first_layer for c in self.conditions})
        for depth in {depths[0], depths[len(depths) // 2], depths[-1]}:
            i = next(i for i, c in enumerate(self.conditions) if c.first_layer == depth)
            shared, whole = self.output(batch, self.plans[i], prefix, depth), self.output(batch, self.plans[i])
            difference = max(difference, float((shared - whole).abs().max() / max(1.0, float(whole.abs().max()))))
        return difference


def ablate(
    subject: Subject,
    *,
    how: str = "uniform",
    heads: str | Heads = "all",
    layers: bool = True,
    sets: Mapping[str, str | Heads] | None = None,
    atlas: Mapping[str, xr.Dataset] | None = None,
    importance: bool = True,
    correction: str = "holm",
    share: bool = True,
    seed: int = 0,
    folder: str | Path | None = None,
    report: Report | None = None,
) -> xr.Dataset:
    """Disable heads and score the model without them (Kovaleva et al. 2019, §4.6, Fig 8-9).

    Parameters
    ----------
    subject
        A `TaskSubject` (a fine-tuned model on its dev set) or a `LanguageSubject`.
    how
        `uniform` (the paper's: the same attention to every visible token), `zero` (no output) or `mean` (its mean output over the input).
    heads
        `all` single heads, `none`, or those of a rule or list.
    layers
        Whole layers too.
    sets
        Sets to disable together, by name: a list of heads, or a rule (`roles:delimiter`, `frames:top5`) looked up in `atlas`.
    atlas
        Results of the same model; where it has `roles`, the effect of heads is correlated with their roles.
    importance
        First-order importance beside it (Michel et al. 2019), and the correlation of both.
    correction
        `holm`, `benjamini_hochberg` or `none`, over heads (and layers, and sets, apart).
    folder
        Where finished batches are kept until the result is there; a killed run goes on from them.

    Returns
    -------
    Dataset
        `score[layer, head]`, `difference` (score − baseline) with `_low`, `_high`, `p_value`, `p_adjusted`;
        `layer_score[layer]`, `set_score[set]` and the like; attributes `baseline`, `metric`, `mean_difference` (a random head).
    """
    one_of("correction", correction, CORRECTIONS)
    model = subject.model
    size = (model.layers, model.heads)
    if isinstance(heads, str):
        chosen = {"all": single_heads(*size), "none": []}.get(heads)
        if chosen is None:
            chosen = [Condition(f"L{a}H{b}", ((a, b),)) for a, b in pick_heads(heads, *size, atlas)]
    else:
        chosen = [Condition(f"L{a}H{b}", ((a, b),)) for a, b in checked_heads(list(heads), *size)]
    picked = {
        name: checked_heads(list(what), *size) if not isinstance(what, str) else pick_heads(what, *size, atlas)
        for name, what in (sets or {}).items()
    }
    conditions = [
        *chosen,
        *(whole_layers(*size) if layers else []),
        *(Condition(name, tuple(found)) for name, found in picked.items()),
    ]
    if not conditions and not importance:
        raise ParameterError("Nothing is to be disabled; name heads, layers or sets.")
    store = None
    if folder is not None:
        store = RunFolder(Path(folder))
        store.open(
            {
                "model": model.identity(),
                "how": how,
                "conditions": [c.name + ":" + str(c.heads) for c in conditions],
                **subject.identity(),
                "adopted": {},
            }
        )
    evaluation = evaluate(subject, conditions, how, share=share, folder=store, report=report)
    weights = head_importance(subject, report) if importance else None
    dataset = ablation_dataset(
        subject, evaluation, [c.heads[0] for c in chosen], layers, picked, how, correction, weights, atlas, seed
    )
    if store is not None:
        store.remove()
    return dataset
