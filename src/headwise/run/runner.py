"""One run on one machine: plan, shards, merge, atlas; killed at any moment, the same call goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xarray as xr

from headwise.analyses.contract import Analysis, Experiment, Observer, Shape
from headwise.atlas import Atlas
from headwise.core.errors import HeadwiseError, MissingAnnotationError, ModelError
from headwise.core.papers import reference
from headwise.core.store import Store
from headwise.core.version import __version__
from headwise.run.engine import observe_batch
from headwise.run.plan import Plan, describe, make_plan
from headwise.run.shards import RunFolder
from headwise.stats.accumulators import State
from headwise.text.encode import Encoded, batches

if TYPE_CHECKING:
    from headwise.models import HeadModel
    from headwise.text import Corpus

SHARD_SIZE = 64
BATCH_TOKENS = 4096

Report = Callable[[str, int, int], None]


def _silent(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run, apart from what: none of it changes what a result means, all of it is recorded."""

    limit: int | None = None
    full: bool = True  # every analysis sees every example; False: each keeps to its own budget
    shard_size: int = SHARD_SIZE
    batch_tokens: int = BATCH_TOKENS
    seed: int = 0
    overwrite: bool = False


@dataclass(slots=True)
class LocalBench:
    """What an experiment gets to work with."""

    model: Any
    corpus: Any
    shape: Shape
    folder: Path
    store: Store
    limit: int | None
    report: Report

    def progress(self, what: str, done: int, total: int) -> None:
        self.report(what, done, total)


def run_analyses(
    model: HeadModel,
    corpus: Corpus,
    analyses: Sequence[Analysis],
    folder: str | Path,
    options: RunOptions = RunOptions(),  # noqa: B008  (frozen)
    report: Report = _silent,
    announce: Callable[[Plan], None] | None = None,
) -> Atlas:
    """Run analyses over a corpus and return the atlas.

    `folder` keeps the state of finished shards until the atlas is there; a call with the same arguments goes on where a killed one stopped. `report(what, done, total)` is told of
    progress, `announce(plan)` of what is about to be done.
    """
    plan = make_plan(model, corpus, analyses, limit=options.limit, shard_size=options.shard_size, full=options.full)
    if announce:
        announce(plan)
    run_folder = RunFolder(Path(folder))
    identity = _identity(model, corpus, plan, options)
    stored = run_folder.open(identity, fresh=options.overwrite)
    torch.set_num_threads(int(stored["adopted"]["threads"]))  # the same number of threads gives the same bytes
    views = _views(model, corpus, plan, options)
    together = replace(plan, analyses=tuple(a for a in plan.analyses if a.name not in views))
    _run_shards(model, corpus, together, run_folder, options, report)
    states, facts = _merge(together, run_folder)
    makers: dict[str, Callable[[], xr.Dataset]] = {
        a.name: partial(a.result, states[a.name], plan.shape) for a in together.streaming
    }
    makers |= {
        a.name: partial(_run_apart, a, model, views[a.name], run_folder, options, report)
        for a in plan.streaming
        if a.name in views
    }
    makers |= {e.name: partial(_perform, e, model, corpus, plan, run_folder, options, report) for e in plan.experiments}
    datasets = _make_all(makers, plan)
    for analysis in plan.analyses:
        unmatched = analysis.unmatched(datasets[analysis.name]) if analysis.name in datasets else {}
        if unmatched:
            plan.dropped[analysis.name] = {**plan.dropped.get(analysis.name, {}), **unmatched}
        datasets = analysis.extend(datasets)
    return Atlas(
        {name: _labelled(dataset, plan, name) for name, dataset in datasets.items()}, _provenance(stored, plan, facts)
    )


def _views(model: HeadModel, corpus: Corpus, plan: Plan, options: RunOptions) -> dict[str, Corpus]:
    """The analyses that want the corpus in a form of their own, each with that form; what an analysis may see is limited before."""
    views = {}
    for analysis in plan.streaming:
        limits = [limit for limit in (options.limit, plan.limits[analysis.name]) if limit is not None]
        limited = corpus.limit(min(limits) if limits else None)
        view = analysis.view(limited, model.encoder, plan.scan.longest, plan.scan.truncated)
        if view is not None:
            views[analysis.name] = view
    return views


def _run_apart(
    analysis: Observer, model: HeadModel, view: Corpus, run_folder: RunFolder, options: RunOptions, report: Report
) -> xr.Dataset:
    """Give an analysis a pass of its own over its form of the corpus; a finished one is kept on disk until the atlas is written."""
    path = run_folder.finished(analysis.name)
    if not path.exists():
        folder = run_folder.work(analysis.name)
        part = run_analyses(
            model, view, [analysis], folder, replace(options, limit=None, full=True, overwrite=False), report
        )
        Atlas({analysis.name: part[analysis.name]}, {}).save(path)
        RunFolder(folder).remove()
    return Atlas.load(path)[analysis.name]


def _run_shards(
    model: HeadModel, corpus: Corpus, plan: Plan, run_folder: RunFolder, options: RunOptions, report: Report
) -> None:
    pending: dict[int, list[Encoded]] = {}
    total = plan.scan.examples + plan.scan.skipped
    if not plan.streaming or all(run_folder.done(shard) for shard in range(plan.shards)):
        return
    current = 0
    for index, example in enumerate(corpus):
        if index >= total:
            break
        shard = index // plan.shard_size
        if shard != current:
            _finish_shard(model, plan, run_folder, current, pending.pop(current, []), options, report, total)
            current = shard
        if not run_folder.done(shard):
            row = model.encoder.encode(example, index)
            if row is not None:
                pending.setdefault(shard, []).append(row)
    _finish_shard(model, plan, run_folder, current, pending.pop(current, []), options, report, total)


def _finish_shard(
    model: HeadModel,
    plan: Plan,
    run_folder: RunFolder,
    shard: int,
    rows: list[Encoded],
    options: RunOptions,
    report: Report,
    total: int,
) -> None:
    last = min((shard + 1) * plan.shard_size, total)
    if not run_folder.done(shard):
        states, batch_tokens = _shard_states(model, plan, shard, rows, options.batch_tokens)
        arrays = {f"{name}/{key}": array for name, state in states.items() for key, array in state.arrays().items()}
        run_folder.save(
            shard, arrays, {"examples": len(rows), "tokens": sum(map(len, rows)), "batch_tokens": batch_tokens}
        )
    report("examples", last, total)


def _shard_states(
    model: HeadModel, plan: Plan, shard: int, rows: list[Encoded], batch_tokens: int
) -> tuple[dict[str, State], int]:
    """The states of one shard, from scratch; smaller batches are tried where memory does not suffice."""
    active = plan.active(shard)
    while True:
        states = {a.name: a.start(plan.shape) for a in active}
        try:
            for batch in batches(rows, batch_tokens, model.pad_id, model.device):
                observe_batch(model, batch, active, states)
            return states, batch_tokens
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_memory(error):
                raise
            if batch_tokens <= max(map(len, rows)):
                raise ModelError(
                    f"One example of {max(map(len, rows))} tokens does not fit into memory; use --max-length to cut inputs."
                ) from error
            batch_tokens //= 2


def _is_memory(error: BaseException) -> bool:
    return (
        isinstance(error, torch.OutOfMemoryError | MemoryError)
        or "not enough memory" in str(error)
        or "can't allocate memory" in str(error)
    )


def _merge(plan: Plan, run_folder: RunFolder) -> tuple[dict[str, State], list[dict[str, Any]]]:
    """Add the shards up in their order, so that the sum is the same whoever made which."""
    states = {a.name: a.start(plan.shape) for a in plan.streaming}
    facts = []
    for shard in range(plan.shards) if plan.streaming else ():
        arrays, fact = run_folder.load(shard)
        facts.append(fact)
        for analysis in plan.active(shard):
            part = analysis.start(plan.shape)
            prefix = f"{analysis.name}/"
            part.load({key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)})
            states[analysis.name].merge(part)
    return states, facts


def _make_all(makers: Mapping[str, Callable[[], xr.Dataset]], plan: Plan) -> dict[str, xr.Dataset]:
    """The labelled arrays of every analysis. One that finds only now that it cannot be done is left out with its reason, unless it is the only one."""
    datasets = {}
    for name, make in makers.items():
        try:
            datasets[name] = make()
        except HeadwiseError as error:
            if len(makers) == 1:
                raise
            plan.dropped.setdefault(name, {})[""] = str(error).rstrip(".")
    if not datasets:
        raise MissingAnnotationError(
            "; ".join(f"{name}: {items['']}" for name, items in plan.dropped.items() if "" in items) + "."
        )
    return datasets


def _perform(
    experiment: Experiment,
    model: HeadModel,
    corpus: Corpus,
    plan: Plan,
    run_folder: RunFolder,
    options: RunOptions,
    report: Report,
) -> xr.Dataset:
    """Perform an experiment once; a finished one is kept on disk until the atlas is written."""
    path = run_folder.finished(experiment.name)
    if path.exists():
        return Atlas.load(path)[experiment.name]
    limits = [limit for limit in (plan.limits[experiment.name], options.limit) if limit is not None]
    work = run_folder.work(experiment.name)
    with Store(work, {"experiment": experiment.name, "parameters": describe(experiment.parameters)}) as store:
        bench = LocalBench(model, corpus, plan.shape, work, store, min(limits, default=None), report)
        result = experiment.perform(bench)
    Atlas({experiment.name: result}, {}).save(path)
    return result


def _named_files(plan: Plan) -> dict[str, str]:
    """Digests of the files that parameters name (a plugin's sieves, word vectors, a classifier), by analysis and parameter: a run whose files changed is another run."""
    found = {}
    for analysis in plan.analyses:
        for name, value in analysis.parameters.items():
            digest = _digest(Path(value)) if isinstance(value, str | Path) and str(value) else ""
            if digest:
                found[f"{analysis.name}.{name}"] = digest
    return found


def _digest(path: Path) -> str:
    """A file's digest; nothing where there is none (a text may be too long for a file's name), or none that can be read, which the analysis itself refuses."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return ""


def _identity(model: HeadModel, corpus: Corpus, plan: Plan, options: RunOptions) -> dict[str, Any]:
    return {
        "headwise": __version__,
        "model": model.identity(),
        "corpus": {
            "name": corpus.name,
            "licence": corpus.licence,
            "fingerprint": plan.scan.fingerprint,
            **plan.scan.counts(),
            "notes": plan.scan.notes,
        },
        "encoding": {"max_length": model.encoder.max_length, "overlong": model.encoder.overlong},
        "analyses": {a.name: describe(a.parameters) for a in plan.analyses},
        "files": _named_files(plan),
        "limits": plan.limits,
        "seed": options.seed,
        "shard_size": plan.shard_size,
        "batch_tokens": options.batch_tokens,
        "device": model.device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "adopted": {"threads": torch.get_num_threads()},
    }


def _provenance(stored: Mapping[str, Any], plan: Plan, facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    smaller = sorted({f["batch_tokens"] for f in facts} - {stored["batch_tokens"]})
    provenance = dict(json.loads(json.dumps(stored)))
    provenance["threads"] = provenance.pop("adopted")["threads"]
    provenance["left_out"] = plan.dropped
    provenance["sampled"] = plan.sampled()
    provenance["notes"] = (
        [
            f"memory was short: some batches held {', '.join(map(str, smaller))} tokens, so bytes may differ from an undisturbed run"
        ]
        if smaller
        else []
    )
    return provenance


def _labelled(dataset: xr.Dataset, plan: Plan, name: str) -> xr.Dataset:
    analysis = next(a for a in plan.analyses if a.name == name)
    paper = reference(analysis.paper.key)
    attrs = {
        "title": analysis.title,
        "paper": paper.short,
        "section": analysis.paper.section,
        "citation": paper.citation,
        "parameters": json.dumps(describe(analysis.parameters), sort_keys=True),
        "left_out": json.dumps(plan.dropped.get(name, {}), sort_keys=True),
    }
    return dataset.assign_attrs(dataset.attrs | attrs)
