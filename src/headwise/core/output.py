"""Where the result of a command goes: held by one process from before the work until all of it is
written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from headwise.core.files import file_digest, sweep, write_atomically
from headwise.core.folders import (
    new_folder,
    reject_existing,
    reject_sources,
    reject_unsafe,
    written_by,
)
from headwise.core.lock import Lock
from headwise.core.store import CONSENT, RUN_FILE


def work_folder(target: Path) -> Path:
    """Return the folder beside a file or folder where the checkpoints of its work lie."""
    return target.parent / f".{target.name}.run"


class OutputTarget:
    """A file that a result is written to, and the folder of its checkpoints, for one process at a
    time.

    An existing file is rejected unless it may be replaced, but for the file of this very work: a
    command that was interrupted after it had written its result resumes.

    Parameters
    ----------
    target : Path
        The file.
    work : Path
        The folder of its checkpoints.
    files : sequence of Path, optional
        The files that `target` stands for, where the result is several; by default itself.
    overwrite : bool, default False
        Whether an existing file may be replaced.
    sources : iterable of Path, optional
        What is read: none of it may be the target, nor lie in `around`.
    around : Path, optional
        The folder that gets figures, tables and a page beside the file.
    inside : bool, default False
        That folder is what is read: it holds the result that is drawn, and may be the working
        folder.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with OutputTarget(folder / "a.nc", folder / ".a.nc.run") as target:
    ...     digest = target.write(b"numbers")
    >>> [path.name for path in folder.iterdir()]
    ['a.nc']
    """

    def __init__(
        self,
        target: Path,
        work: Path,
        *,
        files: Sequence[Path] | None = None,
        overwrite: bool = False,
        sources: Iterable[Path] = (),
        around: Path | None = None,
        inside: bool = False,
    ) -> None:
        self.target = target
        self.work = work
        self.files = [target] if files is None else list(files)
        self.overwrite = overwrite
        self.around = around
        self.run = ""  # the digest of the identity of the work, once that is known
        # A file that says that this work may replace the target: consent is given once, also where
        # the work is interrupted and resumes.
        self._consent = work / CONSENT
        # Digests of what this work has written before it is finished: it may replace these.
        self.own: set[str] = set()
        sources = list(sources)
        if around is None:
            for path in self.files:
                self._reject_sources(path, sources)
        else:
            reject_sources(around, sources, working=not inside)
        # The lock of the checkpoints too: one process at a time.
        self.lock = Lock(work / "lock", named=around or target)
        self._reject_existing()

    @property
    def unfinished(self) -> bool:
        """Whether checkpoints of an earlier process lie there."""
        return (self.work / RUN_FILE).exists() or any(self.work.glob("*.checkpoint"))

    @property
    def may_replace(self) -> bool:
        """Whether existing files may be replaced: this command, or the one it resumes, was allowed
        to."""
        return self.overwrite or self._consent.exists()

    def _reject_sources(self, path: Path, sources: Iterable[Path]) -> None:
        reject_sources(path, sources, working=False)

    def _reject_existing(self) -> None:
        for path in self.files:
            reject_existing(path, self.overwrite or self.unfinished)

    def __enter__(self) -> Self:
        self.lock.take()
        try:
            self._reject_existing()  # whoever held the lock before may just have written it
            # What interrupted processes left half-written.
            for path in self.files:
                sweep(path.parent, path.name)
            if self.around is not None:
                for folder in (self.around, self.around / "figures", self.around / "tables"):
                    sweep(folder)
            exists = any(path.exists() for path in self.files)
            if self.overwrite and exists:
                write_atomically(self._consent, b"")
            elif not self.unfinished:
                self.forget_consent()
        except BaseException:
            self.__exit__()
            raise
        return self

    def write(self, content: bytes, path: Path | None = None) -> str:
        """Write the result atomically and return its digest; the same bytes again are no change."""
        path = path or self.target
        digest = hashlib.sha256(content).hexdigest()
        there = file_digest(path)
        if there != digest:
            reject_existing(path, self.may_replace or there in self.own)
            write_atomically(path, content)
        return digest

    def holds(self, digest: str) -> bool:
        """Return whether the file is there with this digest."""
        return file_digest(self.target) == digest

    def forget_consent(self) -> None:
        """Forget that existing files may be replaced."""
        self._consent.unlink(missing_ok=True)

    def __exit__(self, *error: object) -> None:
        self.lock.release(remove=not self.unfinished)
        with suppress(OSError):
            self.work.rmdir()  # it stays where anything is in it


class FolderTarget(OutputTarget):
    """A whole folder that a result is written to, beside its checkpoints; an earlier result of
    headwise there is replaced whole.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "pruned"
    >>> with FolderTarget(folder, work_folder(folder)) as target:
    ...     with target.new_folder() as beside:
    ...         _ = (beside / "config.json").write_text("{}")
    >>> (folder / "config.json").exists()
    True
    """

    def _reject_sources(self, path: Path, sources: Iterable[Path]) -> None:
        reject_sources(path, sources)

    def _reject_existing(self) -> None:
        reject_unsafe(self.target, self.overwrite or self.unfinished)

    @contextmanager
    def new_folder(self) -> Iterator[Path]:
        """Yield an empty folder that takes the target's place once the block has ended well."""
        # A resumed command may replace what it has written itself before it was interrupted.
        own_result = self.run != "" and written_by(self.target) == self.run
        with new_folder(
            self.target, overwrite=self.may_replace or own_result, run=self.run
        ) as beside:
            yield beside
