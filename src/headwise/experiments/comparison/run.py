"""Compare two or more models head by head on the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from headwise.analyses.contract import Analysis, Observer, choose_analyses
from headwise.analyses.gradient.analysis import Gradient
from headwise.analyses.papers import reference
from headwise.analyses.released import RELEASED
from headwise.analyses.roles.analysis import Roles
from headwise.atlas import Atlas
from headwise.core.errors import ModelError, ParameterError
from headwise.core.options import recorded_options, takes_options
from headwise.core.workers import raise_failures
from headwise.experiments.comparison.maps import PADDED, map_cosines
from headwise.experiments.comparison.measures import (
    AnalysisValues,
    BatchMeasurer,
    ModelMeasurements,
)
from headwise.experiments.comparison.options import ANALYSES, ComparisonOptions
from headwise.experiments.comparison.probing import probing_change
from headwise.experiments.comparison.result import (
    change_dataset,
    difference_dataset,
    role_changes,
    words_dataset,
)
from headwise.experiments.family.members import (
    MemberLike,
    compares_by_depth,
    distinct_names,
    opened,
)
from headwise.experiments.family.run import family_in_job
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.job import Job, Progress, no_progress, software_versions
from headwise.run.options import SourceOptions
from headwise.run.plan import make_plan
from headwise.run.provenance import describe
from headwise.run.source import Source
from headwise.text import Corpus, Spec
from headwise.text.encode import Batch, Encoded, batches, collate, documents_of

MAP_BYTES = 128 * 2**20  # of one model's maps that are held at once
CorpusLike = Corpus | Spec | str | Path | None


@takes_options(ComparisonOptions)
def compare(
    models: Sequence[MemberLike],
    corpus: CorpusLike = None,
    *,
    out: str | Path | None = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    options: ComparisonOptions,
) -> Atlas:
    """Compare models: those of one shape head by head, each against the first; 2 to 8 models of
    different shapes, or atlases, by label and relative depth.

    Parameters
    ----------
    models : sequence of HeadModel, Module, Atlas, str, Path or None
        Open models, or what `HeadModel.open` takes; by depth also atlases, or their files or
        folders, of which nothing is computed again.
    corpus : Corpus, Spec, str or Path, optional
        The inputs; default: built-in corpus.
    out : str or Path, optional
        A NetCDF file for the result. An interrupted call with `out` resumes: repeat it.
    folder : str or Path, optional
        Without `out`: where finished batches have checkpoints. They stay until
        `headwise.core.store.delete_checkpoints` removes them.
    overwrite : bool, default False
        Replace an existing file, or start again where the folder holds other work.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    options : ComparisonOptions
        Each option is also a keyword.

    Returns
    -------
    Atlas
        `change` (`cosine[layer, head]`: Kovaleva et al. 2019, Fig 5), `change_surface`,
        `change_roles` (with thirds of the layers: Pande et al. 2021, Fig 6; and the roles that
        heads gain and lose), `change_features` (Kovaleva Fig 6), `change_probing` (Jo & Myaeng
        2020, Fig 4); `change_words`: the label of each head of each model.

        By depth: `family` (`share[model, label, depth]` of the heads with counts and intervals,
        `mean_depth[model, label]`, and tests between each two models), `family_heads` (the label of
        each head) and `family_matches` (heads matched by label); see
        `headwise.experiments.family.result.family_datasets`.
    """
    if len(models) < 2:
        raise ParameterError(f"Comparing takes at least two models; {len(models)} was given.")
    if out is None:
        job = Job.in_folder(folder, overwrite=overwrite, progress=progress)
    else:
        job = Job.for_file(Path(out), overwrite=overwrite, progress=progress)
    with ExitStack() as stack:
        stack.enter_context(job)
        if compares_by_depth(models, options.by):
            result = family_in_job(job, models, corpus, options)
        else:
            open_models = [stack.enter_context(opened(model, options)) for model in models]
            result = Comparison.open(open_models, corpus, options).run(job)
        if out is not None:
            job.write(result.to_bytes())
            job.finish()
    return result


class Comparison:
    """Models of one shape on the same inputs.

    Parameters
    ----------
    models : sequence of HeadModel
        The models, with the same limit of tokens.
    corpus : EncodedCorpus
        The inputs, encoded by the first model's tokenizer.
    options : ComparisonOptions
        What is compared, and how.
    """

    def __init__(
        self, models: Sequence[HeadModel], corpus: EncodedCorpus, options: ComparisonOptions
    ) -> None:
        self.models = models
        self.names = distinct_names([model.name for model in models], options.names)
        self.corpus = corpus
        self.options = options
        _check_shapes(models, self.names)
        self.rows = [replace(row, index=place) for place, row in enumerate(corpus)]
        _check_tokens(models, self.names, self.rows)
        self.units = documents_of(self.rows)
        self.analyses: list[Observer] = []
        names_of_analyses = ANALYSES if options.analyses is None else options.analyses
        for analysis in choose_analyses(names_of_analyses, variant=options.variant):
            # Gradients are not means by example that could be compared pair by pair.
            if isinstance(analysis, Observer) and not isinstance(analysis, Gradient):
                self.analyses.append(analysis.seeded(options.seed))
        self.left_out: dict[str, dict[str, str]] = {}
        self.measurements: list[ModelMeasurements] = []
        if self.analyses:
            self._plan_analyses()

    @classmethod
    def open(
        cls, models: Sequence[HeadModel], corpus: CorpusLike, options: ComparisonOptions
    ) -> Comparison:
        """Open the corpus for open models, all cut to the length that every model takes."""
        max_length = min(model.encoder.max_length for model in models)
        limited = [model.limited(max_length) for model in models]
        first = limited[0]
        source = Source(first, corpus, SourceOptions(parser=options.parser))
        text = source.open_corpus(first, options.limit, options.seed).alone()
        return cls(limited, EncodedCorpus(text, first.encoder), options)

    def _plan_analyses(self) -> None:
        """Find the analyses that apply to every model."""
        plans = [make_plan(model, self.corpus, self.analyses) for model in self.models]
        usable = list(plans[0].streaming)
        for plan in plans:
            for name, items in plan.left_out.items():
                self.left_out[name] = dict(items)
            applicable = {analysis.name for analysis in plan.streaming}
            usable = [analysis for analysis in usable if analysis.name in applicable]
        for model, plan in zip(self.models, plans, strict=True):
            self.measurements.append(ModelMeasurements(model, usable, plan.shape, len(self.rows)))

    def provenance(self) -> dict[str, Any]:
        """Return what is compared, as the atlas keeps it."""
        first = self.models[0]
        scan = self.corpus.scan
        identities = []
        for name, model in zip(self.names, self.models, strict=True):
            identities.append({"called": name, **model.identity()})
        recorded = recorded_options(self.options)
        # Files call the variant "reading".
        recorded["reading"] = recorded.pop("variant")
        return {
            **software_versions(),
            "model": first.identity(),
            "models": identities,
            "corpus": {
                "name": self.corpus.corpus.name,
                "fingerprint": scan.fingerprint,
                **scan.counts(),
            },
            "encoding": {
                "max_length": first.encoder.max_length,
                "overlong": first.encoder.overlong,
            },
            "analyses": {
                analysis.name: describe(analysis.parameters) for analysis in self.analyses
            },
            "left_out": self.left_out,
            **recorded,
            "device": first.device.type,
        }

    def run(self, job: Job) -> Atlas:
        """Do what has no checkpoint yet, and label it."""
        job.begin(self.provenance())
        first = self.models[0]
        options = self.options
        cosines = self._run_batches(job)
        maps = change_dataset(cosines, self.names, self.units).assign_attrs(reading=options.variant)
        datasets = {"change": maps}
        results = [measurements.results() for measurements in self.measurements]
        if results:
            for name in results[0]:
                values = [result[name] for result in results]
                dataset = self._difference(name, values)
                if dataset.data_vars:
                    paper = _paper(self.analyses, name)
                    datasets[f"change_{name}"] = dataset.assign_attrs(paper)
            datasets["change_words"] = words_dataset(results, self.names, first.layers, first.heads)
        if options.probing is not None:
            datasets["change_probing"] = probing_change(
                self.models, self.names, options, store=job.started_store, report=job.progress
            )
        return Atlas(datasets, {**self.provenance(), "threads": job.provenance["threads"]})

    def _run_batches(self, job: Job) -> np.ndarray:
        """Run all models over all batches; return `cosines[model, example, layer, head]` and add
        what the analyses measure to `measurements`."""
        first = self.models[0]
        shape = (len(self.models) - 1, len(self.rows), first.layers, first.heads)
        cosines = np.full(shape, np.nan)
        n_done = 0
        all_batches = self._batches()
        units = ((f"batch-{number:06d}", batch) for number, batch in enumerate(all_batches))
        measurers = [measurements.measure_batch for measurements in self.measurements]
        compare_batch = partial(_compare_batch, self.models, measurers, self.options.variant)
        checkpoints = raise_failures(job.units(compare_batch, units))
        for batch, checkpoint in zip(all_batches, checkpoints, strict=True):
            cosines[:, batch.index] = checkpoint.arrays["cosine"]
            for number, measurements in enumerate(self.measurements):
                prefix = f"{number}/"
                arrays = {}
                for key, array in checkpoint.arrays.items():
                    if key.startswith(prefix):
                        arrays[key.removeprefix(prefix)] = array
                measurements.update(arrays, batch.index)
            n_done += len(batch)
            job.progress("examples", n_done, len(self.rows))
        return cosines

    def _difference(self, name: str, values: Sequence[AnalysisValues]) -> xr.Dataset:
        """Return the group of one analysis; that of `roles` says who gains and loses them too."""
        dataset = difference_dataset(name, values, self.names, self.options.correction, self.units)
        for analysis in self.analyses:
            if not isinstance(analysis, Roles):
                continue
            if analysis.name == name and "bias_change" in dataset:
                return dataset.assign(role_changes(dataset, values, analysis))
        return dataset

    def _batches(self) -> list[Batch]:
        """Return batches of as many inputs as fit into memory with all their maps."""
        first = self.models[0]
        longest = max(len(row) for row in self.rows)
        weights_in_memory = MAP_BYTES // (4 * first.layers * first.heads)
        if self.options.variant != RELEASED:
            tokens = max(longest, weights_in_memory // longest)
            return batches(self.rows, tokens, first.pad_id, first.device)
        # Inputs are padded: every map is as large as the longest's.
        size = max(1, weights_in_memory // max(longest, PADDED) ** 2)
        rows = sorted(self.rows, key=len)
        padded_batches = []
        for start in range(0, len(rows), size):
            padded_batches.append(collate(rows[start : start + size], first.pad_id, first.device))
        return padded_batches


def _compare_batch(
    models: Sequence[HeadModel], measurers: Sequence[BatchMeasurer], variant: str, batch: Batch
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return `cosine[model, example, layer, head]` of one batch and what every analysis measures,
    as a unit of work."""
    cosines = map_cosines(models[0], models[1:], batch, variant)
    arrays = {"cosine": torch.stack([cosine.cpu() for cosine in cosines]).numpy()}
    for number, measure in enumerate(measurers):
        for key, array in measure(batch).items():
            arrays[f"{number}/{key}"] = array
    return arrays, {}


def _check_shapes(models: Sequence[HeadModel], names: Sequence[str]) -> None:
    """Reject models of other shapes than the first."""
    for model, name in zip(models[1:], names[1:], strict=True):
        for dimension in ("layers", "heads"):
            count = getattr(model, dimension)
            first_count = getattr(models[0], dimension)
            if count != first_count:
                raise ModelError(
                    f"'{name}' has {count} {dimension}, but '{names[0]}' has {first_count}: "
                    "only models of the same shape can be compared head by head; compare them by "
                    "depth.",
                    option="by depth",
                )


def _check_tokens(
    models: Sequence[HeadModel], names: Sequence[str], rows: Sequence[Encoded]
) -> None:
    """Reject tokenizers that split the text in another way than the first."""
    for model, name in zip(models[1:], names[1:], strict=True):
        for row in rows:
            encoded = model.encoder.encode(row.example, row.index)
            if encoded is None or not np.array_equal(encoded.ids, row.ids):
                raise ModelError(
                    f"'{name}' and '{names[0]}' split {row.example.where} into different tokens, "
                    "so their maps cannot be compared; choose models with one tokenizer, or compare "
                    "by depth.",
                    option="by depth",
                )


def _paper(analyses: Sequence[Analysis], name: str) -> dict[str, str]:
    """Return the attributes of the paper whose figure a group repeats."""
    if name == "roles":
        return reference("pande2021").attributes("Fig 6")
    analysis = next(each for each in analyses if each.name == name)
    section = "§4.4, Fig 6" if name == "features" else analysis.paper.section
    return reference(analysis.paper.key).attributes(section)
