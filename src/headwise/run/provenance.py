"""What a run is and where its numbers come from: its identity, its provenance, the words on its
results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from headwise.analyses.contract import Analysis
from headwise.analyses.papers import reference
from headwise.core.files import file_digest
from headwise.core.store import CheckpointStore
from headwise.models import HeadModel
from headwise.run.encoded import Scan
from headwise.run.options import RunOptions
from headwise.run.plan import Plan
from headwise.text import Corpus

Reasons = Mapping[str, str]


def describe(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as JSON can hold them."""

    def plain(value: Any) -> Any:
        if isinstance(value, set | frozenset):
            return sorted(value)
        return list(value) if isinstance(value, tuple) else value

    return {name: plain(value) for name, value in parameters.items()}


def identity(
    model: HeadModel,
    corpus: Corpus,
    plan: Plan,
    options: RunOptions,
    stored: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All that decides the numbers: a run with the same identity may go on with what another has
    finished.

    `stored` is the identity of the run that lies there: the same weights are told as they are
    there."""
    like = (stored or {}).get("model")
    found: dict[str, Any] = {
        "model": model.identity(like) if isinstance(like, dict) else model.identity(),
        "corpus": _read(corpus, plan.scan),
        "encoding": {"max_length": model.encoder.max_length, "overlong": model.encoder.overlong},
        "analyses": {a.name: describe(a.parameters) for a in plan.analyses},
        "files": _named_files(plan.analyses),
        "limits": dict(plan.limits),
        "seed": options.seed,
        "shard_size": plan.shard_size,
        "batch_tokens": options.batch_tokens,
        "device": model.device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    if plan.elsewhere:
        parts = {part.name: part for part in plan.parts.values()}
        found["corpus"]["parts"] = {
            name: {**_read(parts[name].rows.corpus, parts[name].rows.scan), "analyses": seen}
            for name, seen in plan.elsewhere.items()
        }
    return found


def _read(corpus: Corpus, scan: Scan) -> dict[str, Any]:
    """What was read of a corpus."""
    about = {"name": corpus.name, "licence": corpus.licence, "fingerprint": scan.fingerprint}
    return {**about, **scan.counts(), "notes": dict(scan.notes)}


def _named_files(analyses: Sequence[Analysis]) -> dict[str, str]:
    """Digests of the files that parameters name (sieves, word vectors): a run whose files changed
    is another run."""
    digests = {
        f"{analysis.name}.{name}": file_digest(Path(value))[:16]
        for analysis in analyses
        for name, value in analysis.parameters.items()
        if isinstance(value, str | Path) and str(value)
    }
    return {name: digest for name, digest in digests.items() if digest}


def provenance(
    store: CheckpointStore, plan: Plan, left_out: Mapping[str, Reasons], batch_tokens: Sequence[int]
) -> dict[str, Any]:
    """The run's identity, and what came of it; `batch_tokens` are the sizes of batches that memory
    allowed."""
    smaller = sorted(set(batch_tokens) - {store.identity["batch_tokens"]})
    note = (
        f"memory was short: some batches held {', '.join(map(str, smaller))} tokens, "
        "so bytes may differ from an undisturbed run"
    )
    return {
        **store.identity,
        "threads": store.adopted["threads"],
        "left_out": left_out,
        "sampled": plan.sampled(),
        "notes": [note] if smaller else [],
    }


def label(dataset: xr.Dataset, analysis: Analysis, left_out: Reasons) -> xr.Dataset:
    """A result with where it comes from, and the units that its variables do not carry
    themselves."""
    dataset = dataset.copy()
    for unit, names in analysis.units.items():
        for name in filter(dataset.data_vars.__contains__, names.split()):
            dataset[name].attrs.setdefault("units", unit)
    attrs = {
        "title": analysis.title,
        **reference(analysis.paper.key).attributes(analysis.paper.section),
        "parameters": json.dumps(describe(analysis.parameters), sort_keys=True),
        "left_out": json.dumps(dict(left_out), sort_keys=True),
    }
    return dataset.assign_attrs(dataset.attrs | attrs)
