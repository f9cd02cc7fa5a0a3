"""The files of a report: whole or not at all, and named in their folder's manifest before they are
written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from headwise.core.errors import OutputError
from headwise.core.files import file_digest, write_atomically
from headwise.core.folders import MANIFEST, written_before


class ReportFiles:
    """What a report writes into a folder.

    The manifest tells headwise's files from those a user put there: an earlier report's go when the
    new one does not have them, nobody else's are touched.

    Parameters
    ----------
    folder : Path
        Where to.
    overwrite : bool, default True
        Whether files of the same name that headwise did not write may be replaced.
    """

    def __init__(self, folder: Path, overwrite: bool = True) -> None:
        self.folder, self.overwrite = folder, overwrite
        self._before = written_before(folder)
        self._names: set[str] = set()

    def check(self, name: str) -> None:
        """Refuse a file that a user put there."""
        if (
            not self.overwrite
            and name not in self._before | self._names
            and (self.folder / name).exists()
        ):
            raise OutputError(
                f"{self.folder / name} was not written by headwise; pass overwrite=True to replace it, "
                "or choose another folder.",
                option="overwrite",
            )

    def note(self, names: Iterable[str]) -> None:
        """Name files in the manifest that are about to be written, or are there already."""
        known = self._before | self._names
        self._names |= set(names)
        if not self._names <= known:
            self._write_manifest(known | self._names)

    def write(self, contents: Mapping[str, bytes]) -> dict[str, str]:
        """Write files by their path from the folder; gives their digests."""
        for name in contents:
            self.check(name)
        self.note(contents)
        for name, content in contents.items():
            write_atomically(self.folder / name, content)
        return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}

    def intact(self, digests: Mapping[str, str]) -> bool:
        """Whether files are there as they were written."""
        return all(file_digest(self.folder / name) == digest for name, digest in digests.items())

    def close(self) -> None:
        """All is written: what an earlier report had and this one has not goes."""
        for name in self._before - self._names:
            path = self.folder / name
            if path.resolve().is_relative_to(self.folder.resolve()) and not path.is_dir():
                path.unlink(missing_ok=True)
        self._write_manifest(self._names)

    def _write_manifest(self, names: set[str]) -> None:
        write_atomically(
            self.folder / MANIFEST, json.dumps({"files": sorted(names)}, indent=1).encode()
        )
