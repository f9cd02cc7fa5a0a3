"""Everything that changed between two or more models, head by head, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from headwise.analyses.contract import Analysis, Observer, make_analysis, one_of
from headwise.atlas import Atlas
from headwise.core.errors import ModelError, ParameterError
from headwise.core.version import __version__
from headwise.experiments.comparison.maps import map_cosines
from headwise.experiments.comparison.measures import Measuring
from headwise.experiments.comparison.probing import probing_change
from headwise.experiments.comparison.result import change_dataset, difference_dataset
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.plan import make_plan
from headwise.stats.corrections import CORRECTIONS
from headwise.text import Corpus, open_corpus
from headwise.text.encode import Encoded, batches

Report = Callable[[str, int, int], None]
ANALYSES = ("surface", "roles", "features")
MAP_BYTES = 128 * 2**20  # of one model's maps that are held at once
EXAMPLES = 1000  # as many as the paper took


def compare(
    models: Sequence[HeadModel | nn.Module | str | Path | None],
    corpus: Corpus | str | Path | None = None,
    *,
    names: Sequence[str] | None = None,
    analyses: Sequence[str | Analysis] = ANALYSES,
    probing: Any = None,
    probing_limits: tuple[int | None, int | None, int | None] = (None, None, None),
    limit: int | None = EXAMPLES,
    correction: str = "holm",
    seed: int = 0,
    device: str | None = None,
    report: Report | None = None,
) -> Atlas:
    """Compare the heads of two or more models of the same shape, each against the first.

    Parameters
    ----------
    models
        Opened models, or what `HeadModel.open` takes.
    corpus
        The inputs; at most `limit` of them. None for the demo corpus.
    names
        What the models are called; by default their own names.
    analyses
        Streaming analyses whose per-example means are compared; those that do not apply to the corpus are left out and named in the provenance.
    probing
        Tasks to probe all models for (as `probe` takes them), or None.
    correction
        `holm`, `benjamini_hochberg` or `none`, over all heads (and labels) of a variable.

    Returns
    -------
    Atlas
        `change` (`cosine[layer, head]`: Kovaleva et al. 2019, Fig 5), `change_surface`, `change_roles` (with thirds of the layers: Pande et al. 2021, Fig 6), `change_features`
        (Kovaleva Fig 6), `change_probing` (Jo & Myaeng 2020, Fig 4).
    """
    if len(models) < 2:
        raise ParameterError(f"Comparing takes at least two models; {len(models)} was given.")
    one_of("correction", correction, CORRECTIONS)
    opened = [model if isinstance(model, HeadModel) else HeadModel.open(model, device=device) for model in models]
    called = _names(opened, names)
    text = open_corpus(corpus, tokenizer=opened[0].tokenizer, limit=limit)
    rows = _rows(opened, called, text)
    given = [make_analysis(item) if isinstance(item, str) else item for item in analyses]
    chosen = [a for a in given if isinstance(a, Observer) and "attention_gradient" not in a.taps]
    left_out: dict[str, Any] = {}
    measuring: list[Measuring] = []
    if chosen:
        plans = [make_plan(model, EncodedCorpus(text, model.encoder), chosen) for model in opened]
        left_out = {name: dict(items) for plan in plans for name, items in plan.dropped.items()}
        usable = [a for a in plans[0].streaming if all(any(b.name == a.name for b in plan.analyses) for plan in plans)]
        if usable:
            measuring = [
                Measuring(model, usable, plan.shape, len(rows)) for model, plan in zip(opened, plans, strict=True)
            ]
    cosines = np.full((len(opened) - 1, len(rows), opened[0].layers, opened[0].heads), np.nan, dtype=np.float64)
    longest = max(map(len, rows))
    tokens = max(longest, MAP_BYTES // (4 * opened[0].layers * opened[0].heads * longest))
    done = 0
    for batch in batches(rows, tokens, opened[0].pad_id, opened[0].device):
        for i, found in enumerate(map_cosines(opened[0], opened[1:], batch)):
            cosines[i][batch.index] = found.cpu().numpy()
        for watching in measuring:
            watching.observe(batch)
        done += len(batch)
        if report is not None:
            report("examples", done, len(rows))
    datasets = {"change": change_dataset(cosines, called)}
    results = [watching.results() for watching in measuring]
    for name in results[0] if results else ():
        dataset = difference_dataset(name, [each[name] for each in results], called, correction)
        if dataset.data_vars:
            datasets[f"change_{name}"] = dataset.assign_attrs(_paper(chosen, name))
    if probing is not None:
        datasets["change_probing"] = probing_change(
            opened, called, probing, limits=probing_limits, correction=correction, seed=seed, report=report
        )
    provenance = {
        "headwise": __version__,
        "model": opened[0].identity(),
        "models": [{"called": name, **model.identity()} for name, model in zip(called, opened, strict=True)],
        "corpus": {"name": text.name, "fingerprint": text.fingerprint(), "examples": len(rows)},
        "left_out": left_out,
        "seed": seed,
    }
    return Atlas(datasets, provenance)


def _names(models: Sequence[HeadModel], given: Sequence[str] | None) -> list[str]:
    if given is not None:
        if len(given) != len(models) or len(set(given)) < len(given):
            raise ParameterError(f"`names` must be {len(models)} different names; they are {list(given)}.")
        return list(given)
    names: list[str] = []
    for model in models:
        name, number = model.name, 2
        while name in names:
            name, number = f"{model.name} ({number})", number + 1
        names.append(name)
    return names


def _rows(models: Sequence[HeadModel], names: Sequence[str], corpus: Corpus) -> list[Encoded]:
    """The inputs as rows of tokens; refuses models of other shapes, and tokenizers that cut the text otherwise."""
    first = models[0]
    for model, name in zip(models[1:], names[1:], strict=True):
        for what in ("layers", "heads"):
            if getattr(model, what) != getattr(first, what):
                raise ModelError(
                    f"'{name}' has {getattr(model, what)} {what}, but '{names[0]}' has {getattr(first, what)}: only models of the same shape can be compared head by head."
                )
    limit = min(min(model.max_length, model.encoder.max_length) for model in models)
    for model in models:
        model.encoder.max_length = limit
    rows: list[Encoded] = []
    for example in corpus:
        row = first.encoder.encode(example, len(rows))
        if row is None:
            continue
        for model, name in zip(models[1:], names[1:], strict=True):
            other = model.encoder.encode(example, len(rows))
            if other is None or not np.array_equal(other.ids, row.ids):
                raise ModelError(
                    f"'{name}' and '{names[0]}' cut {example.where} into different tokens, so their maps cannot be compared; give models with one tokenizer."
                )
        rows.append(row)
    if not rows:
        raise ParameterError(f"Nothing in '{corpus.name}' is short enough to be compared on.")
    return rows


def _paper(analyses: Sequence[Analysis], name: str) -> dict[str, str]:
    from headwise.core.papers import reference

    analysis = next(a for a in analyses if a.name == name)
    paper = reference("pande2021" if name == "roles" else analysis.paper.key)
    section = {"roles": "Fig 6", "features": "§4.4, Fig 6"}.get(name, analysis.paper.section)
    return {"paper": paper.short, "section": section, "citation": paper.citation}
