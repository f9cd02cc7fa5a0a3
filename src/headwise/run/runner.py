"""One run on one machine: plan, shards, merge, atlas; killed at any moment, the same call goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import xarray as xr

from headwise.analyses.contract import Analysis, Experiment, Observer, Shape
from headwise.atlas import Atlas
from headwise.core.errors import HeadwiseError, MissingAnnotationError, ModelError, OutputError
from headwise.core.store import Store
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import observe_batch
from headwise.run.options import RunOptions, Source
from headwise.run.plan import Part, Plan, make_plan
from headwise.run.provenance import describe, identity, label, provenance
from headwise.stats.accumulators import State
from headwise.text import Corpus
from headwise.text.encode import Encoded, batches

Report = Callable[[str, int, int], None]


def _silent(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Listener:
    """Whom a run tells how far it is (what, done, total), what is about to be done, and whatever else must be said."""

    progress: Report = _silent
    plan: Callable[[Plan], None] = _silent
    note: Callable[[str], None] = logging.getLogger("headwise").warning


@dataclass(frozen=True, slots=True)
class LocalBench:
    """What an experiment gets to work with."""

    model: HeadModel
    corpus: Corpus
    rows: EncodedCorpus
    shape: Shape
    store: Store
    limit: int | None
    progress: Report


class Run:
    """One run, open from before the work until its result is safe; as long no other run can have its folder.

    Parameters
    ----------
    source : Source
        The model and the corpus.
    analyses : sequence of Analysis
        What is asked; those that draw anything and have no seed of their own get the run's.
    folder : str or Path
        Where finished pieces are kept: the same call goes on where a killed one stopped. `forget` removes them.
    options : RunOptions, optional
        How to run.
    listener : Listener, optional
        Whom to tell how it goes.

    Attributes
    ----------
    model, corpus, plan
        What it runs on (the examples are read once) and what will be done.

    Examples
    --------
    >>> import tempfile
    >>> from headwise.analyses.contract import make_analysis
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Run(Source(), [make_analysis("surface")], folder, RunOptions(limit=2)) as run:
    ...         atlas = run.atlas()  # save it, draw it: then the pieces are not needed any more
    ...         run.forget()
    >>> list(atlas)
    ['surface']
    """

    def __init__(
        self,
        source: Source,
        analyses: Sequence[Analysis],
        folder: str | Path,
        options: RunOptions = RunOptions(),  # noqa: B008  (frozen)
        listener: Listener = Listener(),  # noqa: B008  (frozen)
    ) -> None:
        self.options, self.listener = options, listener
        self.model = source.open_model()
        self._opened_here = source.opens_model
        try:
            for note in self.model.notes if self._opened_here else ():
                listener.note(note)
            self._rows = EncodedCorpus(source.open_corpus(self.model, options.limit, options.seed), self.model.encoder)
            self.corpus = self._rows.corpus
            seeded = [analysis.seeded(options.seed) for analysis in analyses]
            self.plan = self._planned(self._rows, seeded, options.full)
            listener.plan(self.plan)
            self._store = Store(
                Path(folder),
                identity(self.model, self.corpus, self.plan, options),
                fresh=options.overwrite,
                adopt={"threads": torch.get_num_threads()},
                say=listener.note,
            )
        except BaseException:
            self._close_model()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others have the folder; what is finished stays there."""
        self._store.close()
        self._close_model()

    def forget(self) -> None:
        """Remove the finished pieces: the result is safe elsewhere."""
        self._store.remove()

    def _close_model(self) -> None:
        if self._opened_here:
            self.model.close()

    def _planned(self, rows: EncodedCorpus, analyses: Sequence[Analysis], full: bool) -> Plan:
        return make_plan(self.model, rows, analyses, shard_size=self.options.shard_size, full=full)

    # --- the work ---------------------------------------------------------------------------------------------------

    def atlas(self) -> Atlas:
        """Do what is not done yet, and label it."""
        plan = self.plan
        # The same number of threads gives the same bytes.
        with _guarded(int(self._store.adopted["threads"]), self.model.device):
            views = {a.name: view for a in plan.streaming if (view := self._view(a)) is not None}
            makers: dict[str, Callable[[], xr.Dataset]] = {}
            facts: list[dict[str, Any]] = []
            for part in dict.fromkeys(plan.parts.values()):
                together = [a for a in plan.streaming if a.name not in views and plan.parts[a.name] is part]
                own = self._store if part.rows is self._rows else self._store.part(f"corpus-{part.name}")
                states, told = self._stream(part, together, plan, own)
                facts += told
                makers |= {a.name: partial(a.result, states[a.name], part.shape) for a in together}
            makers |= {a.name: partial(self._apart, a, views[a.name]) for a in plan.streaming if a.name in views}
            makers |= {e.name: partial(self._perform, e) for e in plan.experiments}
            datasets, left_out = self._make_all(makers)
            for analysis in plan.analyses:
                unmatched = analysis.unmatched(datasets[analysis.name]) if analysis.name in datasets else {}
                if unmatched:
                    left_out[analysis.name] = left_out.get(analysis.name, {}) | unmatched
                datasets = analysis.extend(datasets)
        asked = {a.name: a for a in plan.analyses}
        labelled = {name: label(dataset, asked[name], left_out.get(name, {})) for name, dataset in datasets.items()}
        for name, dataset in labelled.items():
            dataset.attrs["corpus"] = plan.parts[name].name
        return Atlas(labelled, provenance(self._store, plan, left_out, [fact["batch_tokens"] for fact in facts]))

    def _view(self, analysis: Observer) -> Corpus | None:
        """The form of the corpus that an analysis wants for itself; what it may see is limited before."""
        rows = self.plan.parts[analysis.name].rows
        scan, limited = rows.scan, rows.corpus.limit(self.plan.limits[analysis.name])
        return analysis.view(limited, self.model.encoder, scan.longest, scan.truncated)

    def _apart(self, analysis: Observer, view: Corpus) -> xr.Dataset:
        """A pass of its own over its form of the corpus."""

        def make() -> xr.Dataset:
            plan = self._planned(EncodedCorpus(view.alone(), self.model.encoder), [analysis], full=True)
            part = plan.parts[analysis.name]
            states, _ = self._stream(part, plan.streaming, plan, self._store.part(analysis.name))
            return analysis.result(states[analysis.name], part.shape)

        return self._store.dataset(f"result-{analysis.name}", make)

    def _perform(self, experiment: Experiment) -> xr.Dataset:
        """Perform an experiment once; a finished one is kept until the run is forgotten."""
        seen = self.plan.parts[experiment.name]
        bench = LocalBench(
            model=self.model,
            corpus=seen.rows.corpus,
            rows=seen.rows,
            shape=seen.shape,
            store=self._store.part(experiment.name, {"parameters": describe(experiment.parameters)}),
            limit=self.plan.limits[experiment.name],
            progress=self.listener.progress,
        )
        return self._store.dataset(f"result-{experiment.name}", lambda: experiment.perform(bench))

    def _stream(
        self, part: Part, analyses: Sequence[Observer], plan: Plan, store: Store
    ) -> tuple[dict[str, State], list[dict[str, Any]]]:
        """The states after the whole corpus: shards are added up in their order, so that the sum is always the same."""
        rows, shape = part.rows, part.shape
        states = {a.name: a.start(shape) for a in analyses}
        facts = []
        for shard, block in enumerate(rows.blocks(plan.shard_size) if analyses else ()):
            active = [a for a in plan.active(shard) if a.name in states]
            make = partial(_shard_piece, self.model, shape, active, block, self.options.batch_tokens)
            piece = store.piece(f"shard-{shard:06d}", make)
            facts.append(piece.facts)
            for analysis in active:
                own, prefix = analysis.start(shape), f"{analysis.name}/"
                own.load({key.removeprefix(prefix): a for key, a in piece.arrays.items() if key.startswith(prefix)})
                states[analysis.name].merge(own)
            self.listener.progress("examples", min((shard + 1) * plan.shard_size, len(rows)), len(rows))
        return states, facts

    def _make_all(
        self, makers: Mapping[str, Callable[[], xr.Dataset]]
    ) -> tuple[dict[str, xr.Dataset], dict[str, dict[str, str]]]:
        """The labelled arrays of every analysis, and what was left out.

        One that finds only now that it cannot be done is left out with its reason, unless it is the only one.
        """
        datasets = {}
        left_out = {name: dict(items) for name, items in self.plan.dropped.items()}
        for name, make in makers.items():
            try:
                datasets[name] = make()
            except OutputError:
                raise
            except HeadwiseError as error:
                if len(makers) == 1:
                    raise
                left_out.setdefault(name, {})[""] = str(error).rstrip(".")
        if not datasets:
            reasons = (f"{name}: {items['']}" for name, items in left_out.items() if "" in items)
            raise MissingAnnotationError("; ".join(reasons) + ".")
        return datasets, left_out


def run_analyses(
    model: HeadModel,
    corpus: Corpus,
    analyses: Sequence[Analysis],
    folder: str | Path,
    options: RunOptions = RunOptions(),  # noqa: B008  (frozen)
    listener: Listener = Listener(),  # noqa: B008  (frozen)
) -> Atlas:
    """Run analyses over a corpus and return the atlas; see `Run`. What is finished stays in the folder."""
    with Run(Source(model, corpus), analyses, folder, options, listener) as run:
        return run.atlas()


@contextmanager
def _guarded(threads: int, device: torch.device) -> Iterator[None]:
    """So many threads for torch; they and torch's generator, from which new modules draw, come back as found."""
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _shard_piece(
    model: HeadModel, shape: Shape, active: Sequence[Observer], block: Callable[[], list[Encoded]], batch_tokens: int
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The states of one shard, from scratch; smaller batches are tried where memory does not suffice."""
    rows = block()
    while True:
        states = {a.name: a.start(shape) for a in active}
        try:
            for batch in batches(rows, batch_tokens, model.pad_id, model.device):
                observe_batch(model, batch, active, states)
            break
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_memory(error):
                raise
            longest = max(map(len, rows))
            if batch_tokens <= longest:
                raise ModelError(
                    f"One example of {longest} tokens does not fit into memory; use --max-length to cut inputs."
                ) from error
            batch_tokens //= 2
    arrays = {f"{name}/{key}": array for name, state in states.items() for key, array in state.arrays().items()}
    return arrays, {"examples": len(rows), "tokens": sum(map(len, rows)), "batch_tokens": batch_tokens}


def _is_memory(error: BaseException) -> bool:
    said = ("not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in said)
