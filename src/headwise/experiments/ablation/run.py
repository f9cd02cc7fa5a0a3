"""Disable every single head, whole layers and sets of heads, and score the model without them.

The layers below a disabled head give what they gave in the intact model, so they run only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.atlas import Atlas
from headwise.core.errors import ModelError, ParameterError
from headwise.core.labels import head_name
from headwise.core.options import takes_options
from headwise.experiments.ablation.importance import head_importance, sink_share
from headwise.experiments.ablation.options import AUTO, AblationOptions, Heads
from headwise.experiments.ablation.replacements import AblationPlanner, resolve_method
from headwise.experiments.ablation.result import ablation_dataset
from headwise.experiments.ablation.scored_models import (
    HeadOutputCollector,
    ScoredModel,
    open_scored_model,
)
from headwise.experiments.ablation.sets import checked_heads, pick_heads
from headwise.models import HeadModel
from headwise.models.interventions import InterventionPlan
from headwise.models.prefix import Prefix
from headwise.run.job import Job, Progress, no_progress, provenance_of
from headwise.text import Corpus, Spec
from headwise.text.encode import Batch

TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class AblationCondition:
    """A name, and the heads that are disabled together under it."""

    name: str
    heads: tuple[tuple[int, int], ...]

    @property
    def first_layer(self) -> int:
        """The lowest layer with a disabled head."""
        return min(layer for layer, _ in self.heads)


def single_heads(layers: int, heads: int) -> list[AblationCondition]:
    """Return a condition for each head alone."""
    conditions = []
    for layer in range(layers):
        for head in range(heads):
            conditions.append(_single_head(layer, head))
    return conditions


def _single_head(layer: int, head: int) -> AblationCondition:
    return AblationCondition(head_name(layer, head), ((layer, head),))


def whole_layers(layers: int, heads: int) -> list[AblationCondition]:
    """Return a condition for all heads of each layer."""
    conditions = []
    for layer in range(layers):
        heads_of_layer = tuple((layer, head) for head in range(heads))
        conditions.append(AblationCondition(f"L{layer}", heads_of_layer))
    return conditions


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What the model says of each example.

    Attributes
    ----------
    baseline : ndarray
        Of the intact model, `[example]`.
    values : ndarray
        Under each condition, `[condition, example]`.
    shared : bool
        Whether the layers below a disabled head were run only once.
    note : str
        Why they were not, "" where they were.
    """

    baseline: np.ndarray
    values: np.ndarray
    shared: bool
    note: str = ""


@torch.no_grad()
def evaluate(
    scored: ScoredModel,
    conditions: Sequence[AblationCondition],
    how: str = AUTO,
    *,
    share: bool = True,
    seed: int = 0,
    job: Job | None = None,
) -> Evaluation:
    """Run a model under every condition on every batch.

    With `share` the layers below a condition's first disabled head are not run again: they give
    what they gave in the intact model. The first batch is run both ways for conditions at several
    depths; where the outputs differ by more than 1e-6 (an architecture that passes more between
    layers than their outputs), every condition is a whole run and `note` says so. In a `job` that
    has begun, finished batches have checkpoints."""
    name = scored.model.name
    note = ""
    runner = ConditionRunner(scored, conditions, resolve_method(how, scored.model), seed)
    baseline = np.zeros(scored.examples)
    values = np.zeros((len(conditions), scored.examples))
    with scored.evaluating():
        if share and not Prefix.supports(scored.model.sites):
            share = False
            note = f"The layers of {name} cannot be run apart, so every condition was a whole run."
        if share:
            difference = runner.sharing_error(scored.batches[0])
            if not difference <= TOLERANCE:
                share = False
                note = (
                    f"The layers of {name} pass on more than their outputs (difference "
                    f"{difference:.1e}), so every condition was a whole run."
                )
        numbers = range(len(scored.batches))
        run_batch = partial(runner.run_batch, share)
        results = (job or Job()).each("batch", run_batch, numbers, "batches")
        for batch, arrays in zip(scored.batches, results, strict=True):
            places = scored.places(batch)
            baseline[places] = arrays["baseline"]
            values[:, places] = arrays["values"]
    return Evaluation(baseline, values, share, note)


class ConditionRunner:
    """Runs batches under conditions.

    Parameters
    ----------
    scored : ScoredModel
        The model and its batches.
    conditions : sequence of AblationCondition
        What is disabled.
    how : str
        One of `ABLATION_METHODS`.
    seed : int, default 0
        For resample ablation.
    """

    def __init__(
        self,
        scored: ScoredModel,
        conditions: Sequence[AblationCondition],
        how: str,
        seed: int = 0,
    ) -> None:
        self.scored = scored
        self.conditions = conditions
        self.planner = AblationPlanner(scored, how, seed)

    def plan(self, condition: AblationCondition, batch: Batch) -> InterventionPlan:
        """Return the interventions of a condition on a batch."""
        return self.planner.plan(condition.heads, batch)

    def output(
        self,
        batch: Batch,
        plan: InterventionPlan | None = None,
        prefix: Prefix | None = None,
        layer: int = 0,
    ) -> Tensor:
        """Return the model's output on a batch, with layers below `layer` taken from the prefix."""
        session = self.scored.session(batch, plan)
        model = self.scored.model
        with ExitStack() as stack:
            if prefix is not None:
                stack.enter_context(prefix.skipping(layer, session))
                if isinstance(session.watcher, HeadOutputCollector):
                    # A classifier reads head outputs of layers that are not run here.
                    for number, output in prefix.head_outputs.items():
                        if number < layer:
                            session.watcher.outputs[number] = output
            stack.enter_context(session.running())
            output = self.scored.run(batch, session)
        n_seen = session.layer_count.seen
        if n_seen != model.layers:
            raise ModelError(
                f"The tap saw {n_seen} of the {model.layers} layers of {model.name}; open the "
                "model again."
            )
        return output

    def run_intact(self, batch: Batch) -> tuple[Prefix, Tensor]:
        """Run the intact model; return the output of each layer and that of the model."""
        prefix = Prefix(self.scored.model)
        session = self.scored.session(batch)
        with prefix.recording(), session.running():
            output = self.scored.run(batch, session)
        if isinstance(session.watcher, HeadOutputCollector):
            prefix.head_outputs = session.watcher.outputs
        return prefix, output

    @torch.no_grad()
    def run_batch(self, share: bool, number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return `baseline[example]` and `values[condition, example]` of one batch, as a unit of
        work."""
        batch = self.scored.batches[number]
        prefix: Prefix | None = None
        outputs: list[Tensor] = []
        with self.scored.evaluating():
            if share:
                prefix, intact = self.run_intact(batch)
            else:
                intact = self.output(batch)
            outputs.append(intact)
            for condition in self.conditions:
                plan = self.plan(condition, batch)
                outputs.append(self.output(batch, plan, prefix, condition.first_layer))
        values = torch.stack([self.scored.values(output).double().cpu() for output in outputs])
        return {"baseline": values[0].numpy(), "values": values[1:].numpy()}, {}

    def sharing_error(self, batch: Batch) -> float:
        """Return the largest difference between shared and whole runs, over conditions at the
        first, middle and last depth."""
        if not self.conditions:
            return 0.0
        prefix, _ = self.run_intact(batch)
        if len(prefix.outputs) != self.scored.model.layers:
            return float("inf")
        first_at_depth: dict[int, AblationCondition] = {}
        for condition in self.conditions:
            first_at_depth.setdefault(condition.first_layer, condition)
        depths = sorted(first_at_depth)
        largest = 0.0
        for depth in {depths[0], depths[len(depths) // 2], depths[-1]}:
            plan = self.plan(first_at_depth[depth], batch)
            shared = self.output(batch, plan, prefix, depth)
            whole = self.output(batch, plan)
            scale = max(1.0, float(whole.abs().max()))
            largest = max(largest, float((shared - whole).abs().max() / scale))
        return largest


@takes_options(AblationOptions)
def ablate(
    model: HeadModel | str | Path | None = None,
    corpus: Corpus | Spec | str | Path | None = None,
    *,
    atlas: Mapping[str, xr.Dataset] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    options: AblationOptions,
) -> xr.Dataset:
    """Disable heads and score the model without them (Kovaleva et al. 2019, §4.6, Fig 8-9).

    Parameters
    ----------
    model : HeadModel, str or Path, optional
        A hub name, a folder or an open model; default: built-in model.
    corpus : Corpus, Spec, str or Path, optional
        The text of a language model; default: built-in corpus. A fine-tuned model is scored on
        the dev set of its `task` instead.
    atlas : mapping of str to Dataset, optional
        Results of the same model, where rules are looked up; where it has `roles`, the effect of
        heads is correlated with their roles.
    out : str or Path, optional
        A NetCDF file for the result. An interrupted call with `out` resumes: repeat it.
    overwrite : bool, default False
        Replace an existing file.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    options : AblationOptions
        Each option is also a keyword.

    Returns
    -------
    Dataset
        `score[layer, head]`, `difference` (score − baseline) with `_low`, `_high`, `p_value`,
        `p_adjusted`; `layer_score[layer]`, `set_score[set]` and the like; `importance`,
        `sink_share[layer, head]`; attributes `baseline`, `metric`, `how`, `mean_difference` (a
        random head) with its interval over examples, the heads fixed.
    """
    with Job.for_call(out, overwrite=overwrite, progress=progress) as job:
        result = ablate_in_job(job, model, corpus, options, atlas)
        job.finish_with(result)
    return result["ablation"]


def ablate_in_job(
    job: Job,
    model: HeadModel | str | Path | None,
    corpus: Corpus | Spec | str | Path | None,
    options: AblationOptions,
    atlas: Mapping[str, xr.Dataset] | None = None,
) -> Atlas:
    """Open a model with what it is scored on, and ablate it within a job; see `ablate`."""
    scored = open_scored_model(model, corpus, options)
    dataset = _ablation(job, scored, options, atlas)
    return Atlas({"ablation": dataset}, provenance(scored, options))


def ablate_scored_model(
    scored: ScoredModel,
    options: AblationOptions = AblationOptions(),  # noqa: B008  (frozen)
    *,
    atlas: Mapping[str, xr.Dataset] | None = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
    report: Progress = no_progress,
) -> xr.Dataset:
    """Disable heads of a model that is open with what it is scored on; see `ablate`.

    Parameters
    ----------
    scored : ScoredModel
        A `ScoredClassifier` (a fine-tuned model on its dev set) or a `ScoredLanguageModel`.
    options : AblationOptions, optional
        What is disabled, and how; the options that open a model or a task are not used.
    atlas : mapping of str to Dataset, optional
        See `ablate`.
    folder : str or Path, optional
        Where finished batches have checkpoints: an interrupted call resumes from them. They stay
        until `headwise.core.store.delete_checkpoints` removes them.
    overwrite : bool, default False
        Start again where the folder holds other work, instead of raising.
    report : callable, optional
        Called as `report(what, done, total)`.
    """
    with Job.in_folder(folder, overwrite=overwrite, progress=report) as job:
        return _ablation(job, scored, options, atlas)


def _ablation(
    job: Job,
    scored: ScoredModel,
    options: AblationOptions,
    atlas: Mapping[str, xr.Dataset] | None,
) -> xr.Dataset:
    options = replace(options, how=resolve_method(options.how, scored.model))
    size = (scored.model.layers, scored.model.heads)

    if options.heads == "all":
        singles = single_heads(*size)
    elif options.heads == "none":
        singles = []
    else:
        singles = [_single_head(*head) for head in _heads_of(options.heads, size, atlas)]
    sets: dict[str, Heads] = {}
    for name, rule in options.sets.items():
        sets[name] = _heads_of(rule, size, atlas)

    # `ablation_dataset` relies on this order: single heads, layers, sets.
    conditions = list(singles)
    if options.layers:
        conditions += whole_layers(*size)
    for name, heads in sets.items():
        conditions.append(AblationCondition(name, tuple(heads)))
    if not conditions and not options.importance:
        raise ParameterError("Nothing is to be disabled; name heads, layers or sets.")

    disabled = [[condition.name, condition.heads] for condition in conditions]
    job.begin({**provenance(scored, options), "disabled": disabled})
    evaluation = evaluate(
        scored,
        conditions,
        options.how,
        share=options.share,
        seed=options.seed,
        job=job,
    )
    means = {}
    if options.importance:
        means["importance"] = head_importance(scored, job=job)
    if options.sinks:
        means["sink_share"] = sink_share(scored, job=job)
    disabled_heads = [condition.heads[0] for condition in singles]
    return ablation_dataset(scored, evaluation, disabled_heads, sets, options, means, atlas)


def _heads_of(
    rule: str | Heads, size: tuple[int, int], atlas: Mapping[str, xr.Dataset] | None
) -> Heads:
    """Return the heads of a rule or of a list."""
    if isinstance(rule, str):
        return pick_heads(rule, *size, atlas)
    return checked_heads(rule, *size)


def provenance(scored: ScoredModel, options: AblationOptions) -> dict[str, Any]:
    """Return what an ablation was made from, as an atlas keeps it."""
    corpus = {"examples": scored.examples, **scored.identity()}
    return {
        **provenance_of("ablation", scored.model, corpus, options),
        "seed": options.seed,
        "device": scored.model.device.type,
    }
