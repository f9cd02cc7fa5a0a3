"""The files of a report: written atomically, and listed in the folder's manifest beforehand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from headwise.core.errors import OutputError
from headwise.core.files import file_digest, write_atomically
from headwise.core.folders import MANIFEST, written_before


class ReportFiles:
    """The files that a report writes into a folder.

    The manifest tells headwise's files from those of users. Files of an earlier report are deleted
    if the new one does not have them; files of users are not touched.

    Parameters
    ----------
    folder : Path
        Where to write.
    overwrite : bool, default True
        Whether files of the same name that headwise did not write may be replaced.
    """

    def __init__(self, folder: Path, overwrite: bool = True) -> None:
        self.folder = folder
        self.overwrite = overwrite
        self._before = written_before(folder)
        self._names: set[str] = set()

    def check(self, name: str) -> None:
        """Raise `OutputError` if a file would replace one that headwise did not write."""
        if self.overwrite or name in self._before | self._names:
            return
        path = self.folder / name
        if path.exists():
            raise OutputError(
                f"{path} was not written by headwise; pass overwrite=True to replace it, or choose "
                "another folder.",
                option="overwrite",
            )

    def note(self, names: Iterable[str]) -> None:
        """List files in the manifest that exist already or are about to be written."""
        known = self._before | self._names
        self._names |= set(names)
        if not self._names <= known:
            self._write_manifest(known | self._names)

    def write(self, contents: Mapping[str, bytes]) -> dict[str, str]:
        """Write files by their path from the folder, and return their digests."""
        for name in contents:
            self.check(name)
        self.note(contents)
        digests = {}
        for name, content in contents.items():
            write_atomically(self.folder / name, content)
            digests[name] = hashlib.sha256(content).hexdigest()
        return digests

    def intact(self, digests: Mapping[str, str]) -> bool:
        """Return whether files still have the digests they were written with."""
        return all(file_digest(self.folder / name) == digest for name, digest in digests.items())

    def close(self) -> None:
        """Delete the files of an earlier report that this one did not write."""
        for name in self._before - self._names:
            path = self.folder / name
            # A manifest may be damaged or forged: nothing outside the folder is deleted.
            if path.resolve().is_relative_to(self.folder.resolve()) and not path.is_dir():
                path.unlink(missing_ok=True)
        self._write_manifest(self._names)

    def _write_manifest(self, names: set[str]) -> None:
        content = json.dumps({"files": sorted(names)}, indent=1).encode()
        write_atomically(self.folder / MANIFEST, content)
