"""One job: the lifecycle that every command, every experiment and every paper shares.

A job holds, from before the work until its result is safe:

- the **output target**: who may write there, what may be replaced, one process at a time;
- the **identity** of the work (software versions, model, corpus, options): the same identity
  resumes what an interrupted job left, another one is rejected;
- the **checkpoints** of finished units of work, and the number of threads they were made with, which
  a resumed job takes over: the same number of threads gives the same bytes;
- **progress** and notes for whoever watches.

A command reads like this::

    with Job.for_file(Path("ablation.nc"), overwrite=False, sources=[model_folder]) as job:
        model = HeadModel.open(model_folder)          # after the target is known to be writable
        job.begin({"model": model.identity(), "options": recorded_options(options)})
        losses = [arrays["loss"] for arrays in job.each("batch", compute_batch, batches)]
        job.write(as_bytes(losses))                   # atomically; the same bytes again: no change
        job.finish()                                  # the result is safe: checkpoints go

Interrupted at any point, the same command resumes: units with a checkpoint are not computed again,
consent to overwrite is remembered, and a result that was already written is recognised. A function of
the Python interface does the same without an output file: `Job.in_folder(folder)`, where None stands
for a temporary folder. A job that never calls `begin` keeps nothing on disk.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
import xarray as xr

from headwise.core.failures import Failure
from headwise.core.files import file_digest
from headwise.core.interrupts import keeping_work
from headwise.core.options import recorded_options
from headwise.core.output import FolderTarget, OutputTarget, work_folder
from headwise.core.store import WORK_FOLDER, Checkpoint, CheckpointStore, Facts, stored_identity
from headwise.core.version import __version__
from headwise.core.workers import UnitFunction, UnitResult, current, raise_failures
from headwise.models.forward_call import threads
from headwise.run.progress import Progress as Progress
from headwise.run.progress import no_progress as no_progress

if TYPE_CHECKING:
    from headwise.atlas import Atlas
    from headwise.models import HeadModel

Note = Callable[[str], None]
WRITTEN = "written"  # the checkpoint that says which result was written
UNFINISHED = "unfinished"  # the checkpoint that says what was written before the result


def log_note(sentence: str) -> None:
    """Log a sentence as a warning of headwise."""
    logging.getLogger("headwise").warning(sentence)


def software_versions() -> dict[str, str]:
    """Return the versions of the packages that numbers depend on."""
    return {
        "headwise": __version__,
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def provenance_of(
    group: str, model: HeadModel, corpus: Mapping[str, Any], options: Any
) -> dict[str, Any]:
    """Return what the one group of a result was made from, as an atlas keeps it.

    Parameters
    ----------
    group : str
        The name of the group; its options stand under this name.
    model : HeadModel
        The model.
    corpus : mapping
        Facts about the texts: `examples`, their number, and whatever else is known.
    options : dataclass
        The options of the analysis or experiment.
    """
    return {
        **software_versions(),
        "model": model.identity(),
        "corpus": dict(corpus),
        group: recorded_options(options),
    }


class Job:
    """One piece of work with an identity, from before it starts until its result is safe.

    Use one of `for_file`, `for_report`, `for_folder` (with an output) or `in_folder` (without).

    Parameters
    ----------
    target : OutputTarget, optional
        Where the result goes; None for a call that returns its result.
    folder : Path, optional
        Where checkpoints lie; the target's work folder by default, else a temporary folder.
    overwrite : bool, default False
        Start again where checkpoints of other work lie there, instead of rejecting the job.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    note : callable, optional
        Called with every sentence a user should read; by default a warning in the log.

    Attributes
    ----------
    checkpoints : CheckpointStore or None
        The finished work; None before `begin`.

    Examples
    --------
    >>> def square(number):
    ...     return {"square": np.array(number**2)}, {}
    >>> with Job.in_folder(None) as job:
    ...     checkpoints = job.begin({"task": "squares"})
    ...     [int(arrays["square"]) for arrays in job.each("number", square, [2, 3])]
    [4, 9]
    """

    def __init__(
        self,
        target: OutputTarget | None = None,
        folder: Path | None = None,
        *,
        overwrite: bool = False,
        progress: Progress = no_progress,
        note: Note = log_note,
    ) -> None:
        self.target = target
        self.folder = folder
        if folder is None and target is not None:
            self.folder = target.work
        self.overwrite = overwrite
        self.progress = progress
        self.note = note
        self.checkpoints: CheckpointStore | None = None
        self._stack = ExitStack()

    # --- opening ----------------------------------------------------------------------------------

    @classmethod
    def in_folder(cls, folder: str | Path | None, **options: Any) -> Self:
        """Return a job of a Python call: checkpoints in a folder, or in a temporary one."""
        return cls(folder=None if folder is None else Path(folder), **options)

    @classmethod
    @contextmanager
    def opened(
        cls,
        job_or_folder: Job | str | Path | None,
        *,
        overwrite: bool = False,
        progress: Progress = no_progress,
    ) -> Iterator[Job]:
        """Yield the job that a caller has opened, or a new job in a folder, closed afterwards.

        Functions of the Python interface use this, so that a command can pass its own job."""
        if isinstance(job_or_folder, Job):
            yield job_or_folder
            return
        with cls.in_folder(job_or_folder, overwrite=overwrite, progress=progress) as job:
            yield job

    @classmethod
    def for_call(
        cls, out: str | Path | None, *, overwrite: bool = False, progress: Progress = no_progress
    ) -> Self:
        """Return the job of a Python call that returns its result, and writes it to the file `out`
        where one is given; `finish_with` ends it."""
        if out is None:
            return cls.in_folder(None, progress=progress)
        return cls.for_file(Path(out), overwrite=overwrite, progress=progress)

    @classmethod
    def for_file(
        cls,
        path: Path,
        *,
        files: Sequence[Path] | None = None,
        overwrite: bool = False,
        sources: Iterable[Path] = (),
        **options: Any,
    ) -> Self:
        """Return a job whose result is a file, or the several `files` that `path` stands for."""
        target = OutputTarget(
            path, work_folder(path), files=files, overwrite=overwrite, sources=sources
        )
        return cls(target, overwrite=overwrite, **options)

    @classmethod
    def for_report(
        cls,
        folder: Path,
        name: str,
        *,
        work: str = WORK_FOLDER,
        overwrite: bool = False,
        sources: Iterable[Path] = (),
        inside: bool = False,
        **options: Any,
    ) -> Self:
        """Return a job whose result is the file `name` in a folder, with figures and a page around.

        Other files of that folder stay. `inside` says that the folder is also what is read."""
        target = OutputTarget(
            folder / name,
            folder / work,
            overwrite=overwrite,
            sources=sources,
            around=folder,
            inside=inside,
        )
        return cls(target, overwrite=overwrite, **options)

    @classmethod
    def for_folder(
        cls,
        folder: Path,
        *,
        overwrite: bool = False,
        sources: Iterable[Path] = (),
        **options: Any,
    ) -> Self:
        """Return a job whose result is a whole folder that takes the place of an earlier one."""
        if folder.is_symlink():
            # The link stays; the folder it points to is replaced.
            folder = folder.resolve()
        target = FolderTarget(folder, work_folder(folder), overwrite=overwrite, sources=sources)
        return cls(target, overwrite=overwrite, **options)

    def __enter__(self) -> Self:
        if self.target is not None:
            self._stack.enter_context(self.target)
        return self

    def __exit__(self, *error: object) -> None:
        # Output and checkpoints are free for other processes; finished work stays there.
        self._stack.close()

    @property
    def stored_identity(self) -> dict[str, Any] | None:
        """The identity of the interrupted job in the folder, where there is one."""
        if self.folder is None:
            return None
        return stored_identity(self.folder)

    def begin(self, identity: Mapping[str, Any], *, fresh: bool | None = None) -> CheckpointStore:
        """Start the work, or resume it where an interrupted job of the same identity lies.

        Parameters
        ----------
        identity : mapping
            All that decides the result, as JSON can hold it: model, corpus, options. Versions of the
            software are added.
        fresh : bool, optional
            Whether checkpoints of another identity may be deleted; by default the job's `overwrite`.

        Returns
        -------
        CheckpointStore
            The checkpoints; `job.checkpoints` from now on.
        """
        folder = self.folder
        if folder is None:
            folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="headwise-")))
        else:
            self._stack.enter_context(keeping_work(self))
        store = CheckpointStore(
            folder,
            {**software_versions(), **identity},
            fresh=self.overwrite if fresh is None else fresh,
            inherited={"threads": current().threads or torch.get_num_threads()},
            note=lambda sentence: self.note(sentence),
            lock=None if self.target is None else self.target.lock,
        )
        self._stack.callback(store.close)
        self.checkpoints = store
        if self.target is not None:
            self.target.run = store.run
            unfinished = store.load(UNFINISHED)
            if unfinished is not None:
                self.target.own = set(unfinished.facts["digests"])
        # The same number of threads gives the same bytes: a resumed job takes over the number
        # that its checkpoints were made with.
        self._stack.enter_context(threads(store.inherited["threads"]))
        return store

    # --- work -------------------------------------------------------------------------------------

    @property
    def started_store(self) -> CheckpointStore:
        """The checkpoints of a job that has started; raises before `begin`."""
        if self.checkpoints is None:
            raise RuntimeError("job.begin(identity) comes first")
        return self.checkpoints

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from: the identity, and what was taken over on resuming."""
        return {**self.started_store.identity, **self.started_store.inherited}

    def units(
        self, function: UnitFunction, units: Iterable[tuple[str, Any]]
    ) -> Iterator[Checkpoint | Failure]:
        """Compute named units of work, here or by workers, in their order.

        Units with a checkpoint are not computed again. A unit that ends every worker which tries it
        is a `Failure`; the others are computed all the same."""
        return current().run_units(self.checkpoints, function, units)

    def each(
        self,
        name: str,
        function: UnitFunction,
        items: Sequence[Any],
        what: str | None = None,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the arrays that a function computes of each item, and report progress.

        Parameters
        ----------
        name : str
            Of the checkpoints: `name-000000` and so on.
        function : callable
            Returns `(arrays, facts)` for an item. It may run in another process.
        items : sequence
            What is worked on.
        what : str, optional
            What progress counts; `name` by default.
        """
        units = [(f"{name}-{number:06d}", item) for number, item in enumerate(items)]
        results = raise_failures(self.units(function, units))
        for number, checkpoint in enumerate(results, 1):
            yield checkpoint.arrays
            self.progress(what or name, number, len(units))

    def checkpoint(self, name: str, compute: Callable[[], UnitResult]) -> Checkpoint:
        """Return one checkpoint, computed now unless it is there."""
        return self.started_store.checkpoint(name, compute)

    def dataset(self, name: str, compute: Callable[[], xr.Dataset]) -> xr.Dataset:
        """Return labelled arrays that have a checkpoint, computed now unless they are there."""
        return self.started_store.dataset(name, compute)

    # --- the result -------------------------------------------------------------------------------

    @property
    def output(self) -> OutputTarget:
        """The output target of a job that has one."""
        if self.target is None:
            raise RuntimeError("this job has no output target")
        return self.target

    def write(self, content: bytes, path: Path | None = None, facts: Facts | None = None) -> str:
        """Write the result atomically and return its digest; the same bytes again are no change.

        Parameters
        ----------
        content : bytes
            The whole file.
        path : Path, optional
            Which of the target's files; the only one by default.
        facts : mapping, optional
            What `written` returns when the job resumes after this point, as JSON can hold it.
        """
        digest = self.output.write(content, path)
        if self.checkpoints is not None and facts is not None:
            self.checkpoints.save(WRITTEN, {}, {"digest": digest, "facts": dict(facts)})
        return digest

    def write_unfinished(self, content: bytes, done: float) -> bool:
        """Write what is done so far in the place of the result, atomically; the job may replace it
        later, also where it is interrupted and resumes.

        Parameters
        ----------
        content : bytes
            The whole file.
        done : float
            Which part of the work is done. A job that resumes writes nothing until it has come as
            far as before.

        Returns
        -------
        bool
            Whether it was written.
        """
        output = self.output
        store = self.started_store
        before = store.load(UNFINISHED)
        there = file_digest(output.target)
        if before is not None and done < before.facts["done"] and there in output.own:
            return False
        digest = hashlib.sha256(content).hexdigest()
        # Noted before it is written: a process that ends in between leaves one of the two.
        digests = {digest} | ({there} & output.own)
        store.save(UNFINISHED, {}, {"digests": sorted(digests), "done": done})
        output.own = digests
        output.write(content)
        return True

    @property
    def has_unfinished(self) -> bool:
        """Whether `write_unfinished` has written anything, in this process or before."""
        return self.started_store.has(UNFINISHED)

    def written(self) -> dict[str, Any] | None:
        """Return the facts of the result if an interrupted job has already written it, else None."""
        saved = self.started_store.load(WRITTEN)
        if saved is None or not self.output.holds(saved.facts["digest"]):
            return None
        facts: dict[str, Any] = saved.facts["facts"]
        return facts

    @contextmanager
    def new_folder(self) -> Iterator[Path]:
        """Yield an empty folder that takes the place of the output folder once the block ends well.

        For jobs made by `for_folder`."""
        if not isinstance(self.target, FolderTarget):
            raise RuntimeError("only Job.for_folder has a folder to replace")
        with self.target.new_folder() as beside:
            yield beside

    def finish_with(self, result: Atlas) -> None:
        """Write the result of a job that has an output, and delete the checkpoints."""
        if self.target is not None:
            self.write(result.to_bytes())
        self.finish()

    def finish(self) -> None:
        """Delete the checkpoints: the result is safe."""
        if self.target is not None:
            self.target.forget_consent()
        if self.checkpoints is not None:
            self.checkpoints.remove()
