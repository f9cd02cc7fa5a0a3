"""Measure every model of a series on one corpus, and say where heads change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from headwise.analyses.contract import Analysis, choose_analyses
from headwise.atlas import Atlas
from headwise.core.errors import ModelError
from headwise.core.failures import UnexpectedError
from headwise.core.options import part_of, recorded_options, takes_options
from headwise.core.store import delete_checkpoints
from headwise.core.workers import UnitResult, Workers, current, raise_failures
from headwise.experiments.ablation.scored_models import ScoredLanguageModel
from headwise.experiments.track.options import ANALYSES, TrackOptions
from headwise.experiments.track.result import (
    ModelMeasures,
    SeriesMeasures,
    measures_of,
    track_dataset,
)
from headwise.experiments.track.series import TrackedModel, open_series
from headwise.models import HeadModel
from headwise.models.random_init import with_random_weights
from headwise.run.encoded import EncodedCorpus
from headwise.run.job import Job, Progress, no_progress, software_versions
from headwise.run.nulls import SHARPNESS_INPUTS, matching_factors, sharpen, sharpness
from headwise.run.options import RunOptions, SourceOptions
from headwise.run.provenance import describe
from headwise.run.runner import Run, RunCallbacks
from headwise.run.source import Source
from headwise.stats.units import mean_over_units
from headwise.text import Corpus, Example, Spec

RANDOM_SEED = 5_501_000  # far from the seeds that users give to models of their own
COMPARED_ROWS = 8  # rows that two tokenizers must encode alike


@takes_options(TrackOptions)
def track(
    models: Sequence[str | Path],
    corpus: Corpus | Spec | str | Path | None = None,
    analyses: Sequence[str | Analysis] = ANALYSES,
    *,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    options: TrackOptions,
) -> xr.Dataset:
    """Measure the models of a series on one corpus: what each head does over training steps, and
    where that changes.

    Parameters
    ----------
    models : sequence of str or Path
        At least four models of one architecture: folders, patterns (`runs/checkpoint-*`), hub
        names, hub revisions (`EleutherAI/pythia-70m@step1000`). They are ordered by step.
    corpus : Corpus, Spec, str or Path, optional
        The inputs; default: built-in corpus.
    analyses : sequence of str or Analysis
        By default `surface`, `sinks`, `induction`, `offsets`; what does not apply to the models is
        left out.
    parameters : mapping, optional
        Parameters by analysis.
    out : str or Path, optional
        A NetCDF file for the result. An interrupted call with `out` resumes: repeat it.
    overwrite : bool, default False
        Replace an existing file.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    options : TrackOptions
        Each option is also a keyword.

    Returns
    -------
    Dataset
        `value[step, measure, layer, head]` with `low`, `high` (95 % intervals over examples or
        documents); `label`, `category[step, layer, head]`; `label_since[layer, head]`, the step
        since which a head has its last label; `loss[step]` with its interval. For each measure of
        each head the best single step by least squares: `change_step` (the first step after it),
        `change_before` (the last before it), `change_low`, `change_high` (the earliest and latest
        step that fit almost as well, 95 %), `change_size` (mean after minus mean before),
        `change_share` (of the sum of squares), `change_p` (against series of random-weights models
        as sharp as the last model, family-wise over heads) and `change_p_adjusted` (over measures,
        too). `headwise.experiments.track.births` lists the significant rises of the measures in the
        attribute `shown` by at least `least`.
    """
    chosen = choose_analyses(analyses, parameters)
    with Job.for_call(out, overwrite=overwrite, progress=progress) as job:
        result = track_in_job(job, models, corpus, chosen, options)
        job.finish_with(result)
    return result["track"]


def track_in_job(
    job: Job,
    models: Sequence[str | Path],
    corpus: Corpus | Spec | str | Path | None,
    analyses: Sequence[Analysis],
    options: TrackOptions,
) -> Atlas:
    """Measure a series within a job; see `track`."""
    series = open_series(models, options.steps)
    source_options = part_of(options, SourceOptions)
    rows = _read_corpus(series[0], corpus, source_options, options)
    seeded = [analysis.seeded(options.seed) for analysis in analyses]
    identity: dict[str, Any] = {
        "models": [model.identity() for model in series],
        "corpus": {"name": rows.corpus.name, "fingerprint": rows.scan.fingerprint},
        "analyses": {analysis.name: describe(analysis.parameters) for analysis in seeded},
        "options": recorded_options(options),
    }
    store = job.begin(identity)
    is_local = type(current()) is Workers
    measure_model = MeasureModel(
        series=series,
        examples=tuple(rows.corpus),
        corpus_name=rows.corpus.name,
        analyses=tuple(seeded),
        options=options,
        # Models in this process have checkpoints of their own; on a worker a model is one unit.
        folder=store.folder if is_local else None,
        rows=rows,
    )
    units = []
    for number in range(len(series)):
        units.append((f"model-{number:04d}", SeriesUnit(number)))
    for number in range(options.random):
        units.append((f"random-{number:04d}", SeriesUnit(len(series) - 1, RANDOM_SEED + number)))
    results: list[ModelMeasures] = []
    job.progress("models", 0, len(units))
    checkpoints = raise_failures(job.units(measure_model, units))
    for (name, _), checkpoint in zip(units, checkpoints, strict=True):
        results.append(ModelMeasures.unpack(checkpoint.arrays, checkpoint.facts))
        delete_checkpoints(_inner_folder(store.folder, name))
        job.progress("models", len(results), len(units))
    measured = SeriesMeasures(
        series=series,
        models=results[: len(series)],
        random=results[len(series) :],
        examples=rows.scan.examples,
        corpus=rows.corpus.name,
        options=options,
    )
    provenance = {
        **software_versions(),
        "model": identity["models"][-1],
        "models": identity["models"],
        "corpus": {**rows.scan.counts(), **identity["corpus"]},
        "analyses": identity["analyses"],
        "track": recorded_options(options),
    }
    return Atlas({"track": track_dataset(measured)}, provenance)


def _read_corpus(
    first: TrackedModel,
    corpus: Corpus | Spec | str | Path | None,
    source_options: SourceOptions,
    options: TrackOptions,
) -> EncodedCorpus:
    """Return the examples as tokens of the first model."""
    source = Source(first.folder, corpus, source_options)
    with source.open_model() as model:
        return source.encode(model, options.limit, options.seed)


def _inner_folder(folder: Path, name: str) -> Path:
    """Return where the run of one model has its checkpoints while it is measured."""
    return folder / f"run-{name}.part"


@dataclass(frozen=True, slots=True)
class SeriesUnit:
    """A unit of work: a model of the series, or its shape with random weights."""

    number: int
    random_seed: int | None = None


@dataclass(slots=True, eq=False)
class MeasureModel:
    """Measures one model of a series, or random weights of its shape; a unit of work.

    `rows` are the examples as tokens; a worker encodes them once. `folder` is where the runs of
    single models have checkpoints; None where nothing is kept."""

    series: Sequence[TrackedModel]
    examples: tuple[Example, ...]
    corpus_name: str
    analyses: tuple[Analysis, ...]
    options: TrackOptions
    folder: Path | None = None
    rows: EncodedCorpus | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.series, self.examples, self.corpus_name, self.analyses, self.options)
        return MeasureModel, parts

    def __call__(self, unit: SeriesUnit) -> UnitResult:
        tracked = self.series[unit.number]
        source = Source(tracked.folder, options=part_of(self.options, SourceOptions))
        with source.open_model() as model:
            rows = self._rows_for(model, tracked.name)
            if unit.random_seed is None:
                measured = self._measure(model, rows, f"model-{unit.number:04d}")
                measured.loss, measured.loss_low, measured.loss_high = _mean_loss(
                    model, rows, self.options
                )
            else:
                number = unit.random_seed - RANDOM_SEED
                with self._random_model(model, rows, unit.random_seed) as random:
                    measured = self._measure(random, rows, f"random-{number:04d}")
        return measured.pack()

    def _rows_for(self, model: HeadModel, name: str) -> EncodedCorpus:
        """Return the rows, which all models share; reject a model whose tokenizer differs."""
        if self.rows is None:
            corpus = Corpus.from_examples(self.examples, self.corpus_name)
            self.rows = EncodedCorpus(corpus, model.encoder)
        first = self.rows.encoder
        is_same = first.max_length == model.encoder.max_length
        for index, example in enumerate(self.examples[:COMPARED_ROWS]):
            row = model.encoder.encode(example, index)
            expected = first.encode(example, index)
            if row is None or expected is None:
                is_same = is_same and row is expected
            else:
                is_same = is_same and np.array_equal(row.ids, expected.ids)
        if not is_same:
            raise ModelError(
                f"The tokenizer of '{name}' differs from that of '{self.series[0].name}', so their "
                "heads read different tokens; leave one of them out."
            )
        return self.rows

    def _random_model(self, model: HeadModel, rows: EncodedCorpus, seed: int) -> HeadModel:
        """Return random weights of the model's shape, each layer as sharp as the model's."""
        few_rows = list(rows)[:SHARPNESS_INPUTS]
        target = sharpness(model, few_rows)
        random = with_random_weights(model, seed + 100 * self.options.seed)
        sharpen(random, matching_factors(random, target, few_rows))
        return random

    def _measure(self, model: HeadModel, rows: EncodedCorpus, name: str) -> ModelMeasures:
        folder = None if self.folder is None else _inner_folder(self.folder, name)
        run_options = RunOptions(full=True, seed=self.options.seed, overwrite=True)
        callbacks = RunCallbacks(note=_ignore_note)
        source = Source(model, rows=rows)
        with Run(source, self.analyses, folder, run_options, callbacks) as run:
            atlas = run.atlas()
            if run.failures:
                raise UnexpectedError(*run.failures.values())
        return measures_of(atlas, model.layers, model.heads)


def _ignore_note(sentence: str) -> None:
    """Notes on a single model of many (a precision, a missing pooler) are in its provenance."""


@torch.no_grad()
def _mean_loss(
    model: HeadModel, rows: EncodedCorpus, options: TrackOptions
) -> tuple[float, float, float]:
    """Return the mean loss of a language model over examples with its interval; NaN where there is
    none."""
    if model.lm_kind is None:
        return np.nan, np.nan, np.nan
    scored = ScoredLanguageModel(
        model, rows.corpus, max_length=rows.encoder.max_length, seed=options.seed
    )
    losses = np.zeros(scored.examples)
    with scored.evaluating():
        for batch in scored.batches:
            session = scored.session(batch)
            with session.running():
                losses[scored.places(batch)] = scored.values(scored.run(batch, session)).cpu()
    # A single document has no variance: its interval is NaN.
    mean = mean_over_units(losses, scored.units)
    low, high = mean.interval()
    return float(mean.value), float(low), float(high)
