"""Where the result of a command goes: held by one process from before the work until all of it is
written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from headwise.core.files import file_digest, sweep, write_atomically
from headwise.core.folders import refuse_existing, refuse_sources
from headwise.core.lock import Lock
from headwise.core.store import CONSENT, delete_checkpoints


class OutputTarget:
    """The file a result goes to and the folder of the work behind it, for one process at a time.

    A file that is there is refused unless it may be replaced, but for the file of this very work: a
    command that was killed after it had written its result, while it drew, goes on.

    Parameters
    ----------
    target : Path
        The file.
    work : Path
        The folder of its store.
    overwrite : bool, default False
        Whether a file that is there may be replaced.
    sources : iterable of Path, optional
        What is read: none of it may be the target, nor lie in `around`.
    around : Path, optional
        The folder that gets figures, tables and a page beside the file.
    inside : bool, default False
        That folder is what is read: it holds the result that is drawn, and may be the one worked
        in.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with OutputTarget(folder / "a.nc", folder / ".a.nc.run") as place:
    ...     digest = place.write(b"numbers")
    ...     place.done()
    >>> [path.name for path in folder.iterdir()]
    ['a.nc']
    """

    def __init__(
        self,
        target: Path,
        work: Path,
        *,
        overwrite: bool = False,
        sources: Iterable[Path] = (),
        around: Path | None = None,
        inside: bool = False,
    ) -> None:
        self.target, self.work, self.overwrite, self.around = target, work, overwrite, around
        refuse_sources(around or target, sources, working=around is not None and not inside)
        self._lock = Lock(work / "command", named=around or target)
        self._check()

    @property
    def _consent(self) -> Path:
        """Says that this work may replace the target: asked once, also where the work is killed and
        goes on."""
        return self.work / CONSENT

    @property
    def unfinished(self) -> bool:
        """Whether work of an earlier process lies there."""
        return (self.work / "run.json").exists() or any(self.work.glob("*.piece"))

    def _check(self) -> None:
        refuse_existing(self.target, self.overwrite or self.unfinished)

    def __enter__(self) -> Self:
        self._lock.take()
        try:
            self._check()  # whoever had it before may just have written it
            for folder, name in (
                (self.target.parent, self.target.name),
                *((f, None) for f in self._drawn()),
            ):
                sweep(folder, name)
            if self.overwrite and self.target.exists():
                write_atomically(self._consent, b"")
            elif not self.unfinished:
                self._consent.unlink(missing_ok=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _drawn(self) -> list[Path]:
        return (
            []
            if self.around is None
            else [self.around, self.around / "figures", self.around / "tables"]
        )

    @property
    def may_replace(self) -> bool:
        """Whether what is there may be replaced: this command, or the one it goes on for, was told
        so."""
        return self.overwrite or self._consent.exists()

    def write(self, content: bytes) -> str:
        """Write the result, whole or not at all, and give its digest; the same bytes again are no
        change."""
        digest = hashlib.sha256(content).hexdigest()
        if not self.holds(digest):
            refuse_existing(self.target, self.may_replace)
            write_atomically(self.target, content)
        return digest

    def holds(self, digest: str) -> bool:
        """Whether the file is there with this digest."""
        return file_digest(self.target) == digest

    def done(self) -> None:
        """Everything is written: the work behind it is not needed any more."""
        self._consent.unlink(missing_ok=True)
        delete_checkpoints(self.work)

    def __exit__(self, *error: object) -> None:
        self._lock.release(remove=not self.unfinished)
        with suppress(OSError):
            self.work.rmdir()  # stays where anything is in it
