"""Everything that changed between two or more models, head by head, on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.analyses.contract import Analysis, Observer, choose_analyses
from headwise.analyses.gradient.analysis import Gradient
from headwise.analyses.papers import reference
from headwise.analyses.released import PAPER, RELEASED, check_reading
from headwise.analyses.roles.analysis import Roles
from headwise.atlas import Atlas
from headwise.core.checks import check_types, one_of
from headwise.core.errors import ModelError, ParameterError
from headwise.core.workers import raise_failures
from headwise.experiments.comparison.maps import PADDED, map_cosines
from headwise.experiments.comparison.measures import (
    AnalysisValues,
    BatchMeasurer,
    ModelMeasurements,
)
from headwise.experiments.comparison.probing import probing_change
from headwise.experiments.comparison.result import (
    change_dataset,
    difference_dataset,
    role_changes,
    words_dataset,
)
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.job import Job, Progress, no_progress, software_versions
from headwise.run.plan import make_plan
from headwise.run.provenance import describe
from headwise.stats.corrections import CORRECTIONS
from headwise.text import Corpus, open_corpus
from headwise.text.encode import Batch, Encoded, batches, collate

ANALYSES = ("surface", "roles", "features")
MAP_BYTES = 128 * 2**20  # of one model's maps that are held at once
EXAMPLES = 1000  # as many as the paper took


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """What is compared, and how.

    Parameters
    ----------
    analyses : sequence of str or Analysis, default ("surface", "roles", "features")
        Streaming analyses whose per-example means are compared; those that do not apply to the
        corpus are left out and named in the provenance.
    names : sequence of str, optional
        What the models are called; by default their own names.
    probing : optional
        Tasks to probe all models for, as `probe` takes them.
    probing_limits : tuple of int or None, default (None, None, None)
        At most so many training, validation and test examples of each of them.
    limit : int, optional, default 1000
        Use at most this many inputs.
    correction : str, default "holm"
        `holm`, `benjamini_hochberg` or `none`, over all heads (and labels) of a variable.
    seed : int, default 0
        For everything random.
    device : str or torch.device, optional
        Where models that are given by name run; a GPU where there is one.
    reading : {"paper", "released"}, default "paper"
        `released`: maps and analyses as the code of the papers' authors has them (see
        `headwise.analyses.released`); analyses that are given already made stay as they are.
    """

    analyses: Sequence[str | Analysis] = ANALYSES
    names: Sequence[str] | None = None
    probing: Any = None
    probing_limits: tuple[int | None, int | None, int | None] = (None, None, None)
    limit: int | None = EXAMPLES
    correction: str = "holm"
    seed: int = 0
    device: str | torch.device | None = None
    reading: str = PAPER

    def __post_init__(self) -> None:
        check_types(self)
        check_reading(self.reading)
        one_of("correction", self.correction, CORRECTIONS)


def compare(
    models: Sequence[HeadModel | nn.Module | str | Path | None],
    corpus: Corpus | str | Path | None = None,
    options: ComparisonOptions = ComparisonOptions(),  # noqa: B008  (frozen)
    *,
    folder: Job | str | Path | None = None,
    overwrite: bool = False,
    report: Progress = no_progress,
) -> Atlas:
    """Compare the heads of two or more models of the same shape, each against the first.

    Parameters
    ----------
    models : sequence of HeadModel, Module, str, Path or None
        Opened models, or what `HeadModel.open` takes.
    corpus : Corpus, str or Path, optional
        The inputs; None for the built-in corpus.
    options : ComparisonOptions, optional
        What is compared, and how.
    folder : str or Path, optional
        Where finished batches are kept: a killed call goes on from them. They stay until
        `headwise.core.store.delete_checkpoints` removes them.
    overwrite : bool, default False
        Start anew where the folder holds other work, instead of refusing.
    report : callable, optional
        Told how far it is.

    Returns
    -------
    Atlas
        `change` (`cosine[layer, head]`: Kovaleva et al. 2019, Fig 5), `change_surface`,
        `change_roles` (with thirds of the layers: Pande et al. 2021, Fig 6; and the roles that
        heads gain and lose), `change_features` (Kovaleva Fig 6), `change_probing` (Jo & Myaeng
        2020, Fig 4); `change_words`: what each head of each model does, in a word.
    """
    if len(models) < 2:
        raise ParameterError(f"Comparing takes at least two models; {len(models)} was given.")
    with ExitStack() as stack:
        opened = []
        for model in models:
            if not isinstance(model, HeadModel):
                model = stack.enter_context(HeadModel.open(model, device=options.device))
            opened.append(model)
        limit = min(model.encoder.max_length for model in opened)
        opened = [model.limited(limit) for model in opened]
        names = _names(opened, options.names)
        first = opened[0]
        text = open_corpus(
            corpus,
            tokenizer=first.tokenizer,
            limit=options.limit,
            seed=options.seed,
            prose=first.causal,
        ).alone()
        work = _Comparison(opened, names, EncodedCorpus(text, opened[0].encoder), options)
        with Job.opened(folder, overwrite=overwrite, progress=report) as job:
            job.begin(work.provenance())
            return work.atlas(job)


class _Comparison:
    """Models of one shape on the same inputs."""

    def __init__(
        self,
        models: Sequence[HeadModel],
        names: Sequence[str],
        corpus: EncodedCorpus,
        options: ComparisonOptions,
    ) -> None:
        self.models, self.names, self.corpus, self.options = models, names, corpus, options
        _check_shapes(models, names)
        self.rows = [replace(row, index=place) for place, row in enumerate(corpus)]
        _check_tokens(models, names, self.rows)
        given = choose_analyses(options.analyses, reading=options.reading)
        self.analyses = [
            analysis.seeded(options.seed)
            for analysis in given
            if isinstance(analysis, Observer) and not isinstance(analysis, Gradient)
        ]
        self.left_out: dict[str, Mapping[str, str]] = {}
        self.measuring: list[ModelMeasurements] = []
        if self.analyses:
            plans = [make_plan(model, corpus, self.analyses) for model in models]
            self.left_out = {
                name: dict(items) for plan in plans for name, items in plan.dropped.items()
            }
            everywhere = set.intersection(*({a.name for a in plan.streaming} for plan in plans))
            usable = [a for a in plans[0].streaming if a.name in everywhere]
            both = zip(models, plans, strict=True)
            self.measuring = [
                ModelMeasurements(m, usable, plan.shape, len(self.rows)) for m, plan in both
            ]

    def provenance(self) -> dict[str, Any]:
        """What is compared, as the atlas keeps it."""
        first, scan = self.models[0], self.corpus.scan
        called = zip(self.names, self.models, strict=True)
        return {
            **software_versions(),
            "model": first.identity(),
            "models": [{"called": name, **model.identity()} for name, model in called],
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
            "correction": self.options.correction,
            "reading": self.options.reading,
            "seed": self.options.seed,
            "device": first.device.type,
        }

    def atlas(self, job: Job) -> Atlas:
        """Do what is not done yet, and label it."""
        first, options = self.models[0], self.options
        cosines = np.full((len(self.models) - 1, len(self.rows), first.layers, first.heads), np.nan)
        done = 0
        together = self._batches()
        units = ((f"batch-{number:06d}", batch) for number, batch in enumerate(together))
        compare_batch = partial(
            _piece, self.models, [own.watching for own in self.measuring], options.reading
        )
        for batch, piece in zip(
            together, raise_failures(job.units(compare_batch, units)), strict=True
        ):
            found = piece.arrays
            cosines[:, batch.index] = found["cosine"]
            for m, measuring in enumerate(self.measuring):
                prefix = f"{m}/"
                own = {
                    key.removeprefix(prefix): array
                    for key, array in found.items()
                    if key.startswith(prefix)
                }
                measuring.take(own, batch.index)
            done += len(batch)
            job.progress("examples", done, len(self.rows))
        maps = change_dataset(cosines, self.names).assign_attrs(reading=options.reading)
        datasets = {"change": maps}
        results: list[dict[str, AnalysisValues]] = [
            measuring.results() for measuring in self.measuring
        ]
        for name in results[0] if results else ():
            dataset = difference_dataset(
                name, [each[name] for each in results], self.names, options.correction
            )
            roles = next(
                (a for a in self.analyses if isinstance(a, Roles) and a.name == name), None
            )
            if roles is not None and "bias_change" in dataset:
                dataset = dataset.assign(
                    role_changes(dataset, [each[name] for each in results], roles)
                )
            if dataset.data_vars:
                datasets[f"change_{name}"] = dataset.assign_attrs(_paper(self.analyses, name))
        if results:
            datasets["change_words"] = words_dataset(results, self.names, first.layers, first.heads)
        if options.probing is not None:
            datasets["change_probing"] = probing_change(
                self.models, self.names, options, store=job.begun, report=job.progress
            )
        return Atlas(datasets, {**self.provenance(), "threads": job.provenance["threads"]})

    def _batches(self) -> list[Batch]:
        """So many inputs at once as their maps find room."""
        first, longest = self.models[0], max(map(len, self.rows))
        room = MAP_BYTES // (4 * first.layers * first.heads)
        if self.options.reading != RELEASED:
            return batches(self.rows, max(longest, room // longest), first.pad_id, first.device)
        size = max(1, room // max(longest, PADDED) ** 2)  # every map is as large as the longest's
        rows = sorted(self.rows, key=len)
        return [
            collate(rows[i : i + size], first.pad_id, first.device)
            for i in range(0, len(rows), size)
        ]


def _piece(
    models: Sequence[HeadModel], watching: Sequence[BatchMeasurer], reading: str, batch: Batch
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """`cosine[model, example, layer, head]` of one batch and what every analysis saw of it."""
    arrays = {
        "cosine": torch.stack(
            [c.cpu() for c in map_cosines(models[0], models[1:], batch, reading)]
        ).numpy()
    }
    for m, watch in enumerate(watching):
        arrays |= {f"{m}/{key}": array for key, array in watch(batch).items()}
    return arrays, {}


def _names(models: Sequence[HeadModel], given: Sequence[str] | None) -> list[str]:
    if given is not None:
        if len(given) != len(models) or len(set(given)) < len(given):
            raise ParameterError(
                f"`names` must be {len(models)} different names; they are {list(given)}."
            )
        return list(given)
    names: list[str] = []
    for model in models:
        name, number = model.name, 2
        while name in names:
            name, number = f"{model.name} ({number})", number + 1
        names.append(name)
    return names


def _check_shapes(models: Sequence[HeadModel], names: Sequence[str]) -> None:
    """Refuse models of other shapes than the first."""
    for model, name in zip(models[1:], names[1:], strict=True):
        for what in ("layers", "heads"):
            own, first = getattr(model, what), getattr(models[0], what)
            if own != first:
                raise ModelError(
                    f"'{name}' has {own} {what}, but '{names[0]}' has {first}: "
                    "only models of the same shape can be compared head by head."
                )


def _check_tokens(
    models: Sequence[HeadModel], names: Sequence[str], rows: Sequence[Encoded]
) -> None:
    """Refuse tokenizers that cut the text otherwise than the first."""
    for model, name in zip(models[1:], names[1:], strict=True):
        for row in rows:
            other = model.encoder.encode(row.example, row.index)
            if other is None or not np.array_equal(other.ids, row.ids):
                raise ModelError(
                    f"'{name}' and '{names[0]}' cut {row.example.where} into different tokens, "
                    "so their maps cannot be compared; give models with one tokenizer."
                )


def _paper(analyses: Sequence[Analysis], name: str) -> dict[str, str]:
    analysis = next(a for a in analyses if a.name == name)
    section = {"roles": "Fig 6", "features": "§4.4, Fig 6"}.get(name, analysis.paper.section)
    return reference("pande2021" if name == "roles" else analysis.paper.key).attributes(section)
