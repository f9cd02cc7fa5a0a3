"""What a run is and where its numbers come from: its identity, its provenance, the attributes of
its results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from headwise.analyses.contract import Analysis
from headwise.analyses.papers import reference
from headwise.core.files import file_digest
from headwise.core.options import recorded_options
from headwise.core.store import CheckpointStore
from headwise.models import HeadModel
from headwise.run.encoded import CorpusScan
from headwise.run.options import RunOptions
from headwise.run.plan import Plan
from headwise.text import Corpus

Reasons = Mapping[str, str]


def describe(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as JSON can hold them: sets sorted, tuples as lists."""
    described = {}
    for name, value in parameters.items():
        if isinstance(value, set | frozenset):
            value = sorted(value)
        elif isinstance(value, tuple):
            value = list(value)
        described[name] = value
    return described


def identity(
    model: HeadModel,
    corpus: Corpus,
    plan: Plan,
    options: RunOptions,
    stored: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return all that decides the numbers of a run; one of the same identity may resume it.

    Parameters
    ----------
    model, corpus, plan, options
        Of the run.
    stored : mapping, optional
        The identity of the run that may be resumed: the same weights are described as they are
        there.
    """
    stored_model = (stored or {}).get("model")
    if isinstance(stored_model, dict):
        model_identity = model.identity(stored_model)
    else:
        model_identity = model.identity()
    about: dict[str, Any] = {
        "model": model_identity,
        "corpus": _corpus_identity(corpus, plan.scan),
        "encoding": {"max_length": model.encoder.max_length, "overlong": model.encoder.overlong},
        "analyses": {a.name: describe(a.parameters) for a in plan.analyses},
        "files": _digests_of_named_files(plan.analyses),
        "limits": dict(plan.limits),
        "shard_size": plan.shard_size,
        **recorded_options(options),
        "device": model.device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    if plan.elsewhere:
        part_by_name = {part.name: part for part in plan.parts.values()}
        about["corpus"]["parts"] = {}
        for name, analyses in plan.elsewhere.items():
            rows = part_by_name[name].rows
            about["corpus"]["parts"][name] = {
                **_corpus_identity(rows.corpus, rows.scan),
                "analyses": analyses,
            }
    return about


def _corpus_identity(corpus: Corpus, scan: CorpusScan) -> dict[str, Any]:
    return {
        "name": corpus.name,
        "licence": corpus.licence,
        "fingerprint": scan.fingerprint,
        **scan.counts(),
        "notes": dict(scan.notes),
    }


def _digests_of_named_files(analyses: Sequence[Analysis]) -> dict[str, str]:
    """Return digests of the files that parameters name (sieves, word vectors): a run whose files
    changed is another run."""
    digests = {}
    for analysis in analyses:
        for name, value in analysis.parameters.items():
            if not isinstance(value, str | Path) or not str(value):
                continue
            digest = file_digest(Path(value))[:16]
            if digest:
                digests[f"{analysis.name}.{name}"] = digest
    return digests


def provenance(
    store: CheckpointStore, plan: Plan, left_out: Mapping[str, Reasons], batch_tokens: Sequence[int]
) -> dict[str, Any]:
    """Return the run's identity and what was left out or sampled.

    Parameters
    ----------
    store : CheckpointStore
        The checkpoints, which hold the identity.
    plan : Plan
        What was done.
    left_out : mapping
        What was left out, by analysis and item, with the reason.
    batch_tokens : sequence of int
        The batch size of every shard: smaller than asked for where memory was short.
    """
    notes = []
    smaller = sorted(set(batch_tokens) - {store.identity["batch_tokens"]})
    if smaller:
        notes.append(
            f"memory was short: some batches held {', '.join(map(str, smaller))} tokens, "
            "so bytes may differ from an undisturbed run"
        )
    return {
        **store.identity,
        "threads": store.inherited["threads"],
        "left_out": left_out,
        "sampled": plan.sampled(),
        "notes": notes,
    }


def label(dataset: xr.Dataset, analysis: Analysis, left_out: Reasons) -> xr.Dataset:
    """Return a result with its paper and parameters, and with units for variables without one."""
    dataset = dataset.copy()
    for unit, names in analysis.units.items():
        for name in names.split():
            if name in dataset.data_vars:
                dataset[name].attrs.setdefault("units", unit)
    attrs = {
        "title": analysis.title,
        **reference(analysis.paper.key).attributes(analysis.paper.section),
        "parameters": json.dumps(describe(analysis.parameters), sort_keys=True),
        "left_out": json.dumps(dict(left_out), sort_keys=True),
    }
    return dataset.assign_attrs(dataset.attrs | attrs)
