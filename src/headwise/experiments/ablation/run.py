"""Disabling heads: every single head, whole layers and sets, scored in one run that shares the
layers below the change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.core.checks import check_types, one_of
from headwise.core.errors import ModelError, ParameterError
from headwise.core.labels import head_name
from headwise.experiments.ablation.importance import head_importance, sink_share
from headwise.experiments.ablation.prefix import Prefix
from headwise.experiments.ablation.replacements import (
    ABLATION_METHODS,
    AUTO,
    AblationPlanner,
    resolve_method,
)
from headwise.experiments.ablation.result import ablation_dataset
from headwise.experiments.ablation.scored_models import HeadOutputCollector, ScoredModel
from headwise.experiments.ablation.sets import Heads, checked_heads, pick_heads
from headwise.models.interventions import Plan
from headwise.run.job import Job, Progress, no_progress, software_versions
from headwise.stats.corrections import CORRECTIONS
from headwise.text.encode import Batch

TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class AblationOptions:
    """What is disabled, and how.

    Parameters
    ----------
    how : str, default "auto"
        `uniform` (the paper's: the same attention to every visible token), `zero` (no output),
        `mean` (its mean output over the input), `corpus_mean` (over all tokens of all inputs),
        `resample` (its output on another input, drawn by seed, place for place), or `auto`: `zero`
        for causal models, `uniform` for others.
    heads : str or list of (layer, head), default "all"
        `all` single heads, `none`, or those of a rule or list.
    layers : bool, default True
        Whole layers too.
    sets : mapping of str to a rule or a list of (layer, head), default none
        Sets to disable together, by name: a list of heads, or a rule (`roles:delimiter`,
        `frames:top5`).
    importance : bool, default True
        First-order importance beside it (Michel et al. 2019), and the correlation of both.
    sinks : bool, default True
        The share of each head's attention that goes to the first token beside it.
    correction : str, default "holm"
        `holm`, `benjamini_hochberg` or `none`, over heads (and layers, and sets, apart).
    share : bool, default True
        Run the layers below a change once only, where the model allows it.
    seed : int, default 0
        For the resamples behind intervals, and for what `resample` draws.
    """

    how: str = AUTO
    heads: str | Heads = "all"
    layers: bool = True
    sets: Mapping[str, str | Heads] = field(default_factory=dict)
    importance: bool = True
    sinks: bool = True
    correction: str = "holm"
    share: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        one_of("how", self.how, (AUTO, *ABLATION_METHODS))
        one_of("correction", self.correction, CORRECTIONS)


@dataclass(frozen=True, slots=True)
class AblationCondition:
    """One way in which the model is disturbed: a name, and the heads that are disabled."""

    name: str
    heads: tuple[tuple[int, int], ...]

    @property
    def first_layer(self) -> int:
        return min(layer for layer, _ in self.heads)


def single_heads(layers: int, heads: int) -> list[AblationCondition]:
    """Each head alone."""
    return [_single(layer, head) for layer in range(layers) for head in range(heads)]


def _single(layer: int, head: int) -> AblationCondition:
    return AblationCondition(head_name(layer, head), ((layer, head),))


def whole_layers(layers: int, heads: int) -> list[AblationCondition]:
    """All heads of each layer."""
    return [
        AblationCondition(f"L{layer}", tuple((layer, head) for head in range(heads)))
        for layer in range(layers)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What the model said of each example, undisturbed `[example]` and under each condition
    `[condition, example]`.

    `shared` tells whether lower layers were run once only.
    """

    baseline: np.ndarray
    values: np.ndarray
    shared: bool
    note: str = ""


@torch.no_grad()
def evaluate(
    subject: ScoredModel,
    conditions: Sequence[AblationCondition],
    how: str = AUTO,
    *,
    share: bool = True,
    seed: int = 0,
    job: Job | None = None,
) -> Evaluation:
    """Run a model under every condition on every batch.

    With `share` the layers below a condition's first disturbed layer are not run again: they give
    what they gave undisturbed. The first batch is run both ways for conditions at several depths;
    where the outputs differ by more than 1e-6 (an architecture that passes more between layers than
    its layers' outputs), whole runs are made and `note` says so. With a `job`, finished batches
    are its checkpoints."""
    name, note = subject.model.name, ""
    runner = ConditionRunner(subject, conditions, resolve_method(how, subject.model), seed)
    baseline, values = np.zeros(subject.examples), np.zeros((len(conditions), subject.examples))
    with subject.evaluating():
        if share and not Prefix.serves(subject.model.sites):
            share, note = (
                False,
                f"The layers of {name} cannot be run apart, so every condition was a whole run.",
            )
        if share and not (difference := runner.check(subject.batches[0])) <= TOLERANCE:
            share = False
            more = f"The layers of {name} pass on more than their outputs (difference {difference:.1e})"
            note = f"{more}, so every condition was a whole run."
        numbers = range(len(subject.batches))
        job = job or Job()
        made = job.each("batch", partial(runner.batch, share), numbers, "batches")
        for batch, arrays in zip(subject.batches, made, strict=True):
            where = subject.places(batch)
            baseline[where], values[:, where] = arrays["baseline"], arrays["values"]
    return Evaluation(baseline, values, share, note)


class ConditionRunner:
    """Runs batches under conditions."""

    def __init__(
        self, subject: ScoredModel, conditions: Sequence[AblationCondition], how: str, seed: int = 0
    ) -> None:
        self.subject, self.conditions = subject, conditions
        self.disabling = AblationPlanner(subject, how, seed)

    def plan(self, condition: AblationCondition, batch: Batch) -> Plan:
        """What a condition does to a batch."""
        return self.disabling.plan(condition.heads, batch)

    def output(
        self, batch: Batch, plan: Plan | None = None, prefix: Prefix | None = None, layer: int = 0
    ) -> Tensor:
        """The model's output on a batch, with layers below `layer` taken from the prefix."""
        session, model = self.subject.session(batch, plan), self.subject.model
        with ExitStack() as stack:
            if prefix is not None:
                stack.enter_context(prefix.skipping(layer, session))
                if isinstance(
                    session.watcher, HeadOutputCollector
                ):  # a classifier reads outputs of layers that are not run
                    kept = {
                        number: output
                        for number, output in prefix.head_outputs.items()
                        if number < layer
                    }
                    session.watcher.outputs.update(kept)
            stack.enter_context(session.running())
            output = self.subject.run(batch, session)
        if session.layer_count.seen != model.layers:
            seen = f"The tap saw {session.layer_count.seen} of the {model.layers} layers of {model.name}"
            raise ModelError(f"{seen}; open the model again.")
        return output

    def record(self, batch: Batch) -> tuple[Prefix, Tensor]:
        """An undisturbed run, and what each layer gave in it."""
        prefix, session = Prefix(self.subject.model), self.subject.session(batch)
        with prefix.recording(), session.running():
            output = self.subject.run(batch, session)
        if isinstance(session.watcher, HeadOutputCollector):
            prefix.head_outputs = session.watcher.outputs
        return prefix, output

    @torch.no_grad()
    def batch(self, share: bool, number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """`baseline[example]` and `values[condition, example]` of one batch, as a piece."""
        batch = self.subject.batches[number]
        with self.subject.evaluating():
            prefix, own = self.record(batch) if share else (None, self.output(batch))
            said = [own]
            for condition in self.conditions:
                said.append(
                    self.output(batch, self.plan(condition, batch), prefix, condition.first_layer)
                )
        values = torch.stack(
            [self.subject.values(output).double().cpu() for output in said]
        ).numpy()
        return {"baseline": values[0], "values": values[1:]}, {}

    def check(self, batch: Batch) -> float:
        """The largest difference between shared and whole runs, over conditions at the first,
        middle and last layer."""
        if not self.conditions:
            return 0.0
        prefix, _ = self.record(batch)
        if len(prefix.outputs) != self.subject.model.layers:
            return float("inf")
        difference = 0.0
        depths = sorted({c.first_layer for c in self.conditions})
        for depth in {depths[0], depths[len(depths) // 2], depths[-1]}:
            plan = self.plan(next(c for c in self.conditions if c.first_layer == depth), batch)
            shared, whole = self.output(batch, plan, prefix, depth), self.output(batch, plan)
            difference = max(
                difference, float((shared - whole).abs().max() / max(1.0, float(whole.abs().max())))
            )
        return difference


def ablate(
    subject: ScoredModel,
    options: AblationOptions = AblationOptions(),  # noqa: B008  (frozen)
    *,
    atlas: Mapping[str, xr.Dataset] | None = None,
    folder: Job | str | Path | None = None,
    overwrite: bool = False,
    report: Progress = no_progress,
) -> xr.Dataset:
    """Disable heads and score the model without them (Kovaleva et al. 2019, §4.6, Fig 8-9).

    Parameters
    ----------
    subject : ScoredModel
        A `ScoredClassifier` (a fine-tuned model on its dev set) or a `ScoredLanguageModel`.
    options : AblationOptions, optional
        What is disabled, and how.
    atlas : mapping of str to Dataset, optional
        Results of the same model, where rules are looked up; where it has `roles`, the effect of
        heads is correlated with their roles.
    folder : Job, str or Path, optional
        Where finished batches are kept: a killed call goes on from them. They stay until
        `headwise.core.store.delete_checkpoints` removes them.
    overwrite : bool, default False
        Start anew where the folder holds other work, instead of refusing.
    report : callable, optional
        Told how far it is.

    Returns
    -------
    Dataset
        `score[layer, head]`, `difference` (score − baseline) with `_low`, `_high`, `p_value`,
        `p_adjusted`; `layer_score[layer]`, `set_score[set]` and the like; `importance`,
        `sink_share[layer, head]`; attributes `baseline`, `metric`, `how`, `mean_difference` (a
        random head) with its interval over examples, the heads fixed.
    """
    options = replace(options, how=resolve_method(options.how, subject.model))
    size = (subject.model.layers, subject.model.heads)

    def picked(what: str | Heads) -> Heads:
        return (
            pick_heads(what, *size, atlas) if isinstance(what, str) else checked_heads(what, *size)
        )

    everything: dict[str, list[AblationCondition]] = {"all": single_heads(*size), "none": []}
    chosen = everything.get(options.heads) if isinstance(options.heads, str) else None
    if chosen is None:
        chosen = [_single(*place) for place in picked(options.heads)]
    sets = {name: picked(what) for name, what in options.sets.items()}
    together = [AblationCondition(name, tuple(heads)) for name, heads in sets.items()]
    conditions = [*chosen, *(whole_layers(*size) if options.layers else []), *together]
    if not conditions and not options.importance:
        raise ParameterError("Nothing is to be disabled; name heads, layers or sets.")
    disabled = [[condition.name, condition.heads] for condition in conditions]
    with Job.opened(folder, overwrite=overwrite, progress=report) as job:
        job.begin({**provenance(subject, options), "disabled": disabled})
        how: dict[str, Any] = {
            "share": options.share,
            "seed": options.seed,
            "job": job,
        }
        evaluation = evaluate(subject, conditions, options.how, **how)
        beside = {}
        if options.importance:
            beside["importance"] = head_importance(subject, job=job)
        if options.sinks:
            beside["sink_share"] = sink_share(subject, job=job)
    return ablation_dataset(
        subject, evaluation, [c.heads[0] for c in chosen], sets, options, beside, atlas
    )


def provenance(subject: ScoredModel, options: AblationOptions) -> dict[str, Any]:
    """What an ablation was made from, as an atlas keeps it."""
    model = subject.model
    about = {
        "model": model.identity(),
        "corpus": {"examples": subject.examples, **subject.identity()},
    }
    how = {"ablation": asdict(options), "seed": options.seed, "device": model.device.type}
    return {**software_versions(), **about, **how}
