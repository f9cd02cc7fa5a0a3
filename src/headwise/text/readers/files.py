"""Opening files of text: plain, compressed, in an archive or in a folder, line by line, with file
and line in every error."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO

from headwise.core.errors import InputError
from headwise.text.readers.archive import members
from headwise.text.readers.limits import Walk, reading, shown
from headwise.text.readers.packed import ARCHIVE_SHORT, endings, unpacked

DAMAGED = "; it may be cut off, damaged or not what its ending says"
LOOKED_AT = 100_000  # lines that may come before the first that tells the format
NUL = "lines with NUL characters, read as U+FFFD"


def plain_name(name: str) -> str:
    """A file's name without folder, compression and format ending."""
    base = PurePosixPath(name.replace("\\", "/")).name
    ending, compression = endings(base)
    if PurePosixPath(base).suffix.lower() in ARCHIVE_SHORT:
        return shown(PurePosixPath(base).stem, 255)
    for part in (compression, ending):
        if part and base.lower().endswith(part):
            base = base[: -len(part)]
    return shown(base, 255)  # a name may hold bytes that are no text


@dataclass(frozen=True)
class TextFile:
    """One file of lines, and the one place where lines are read.

    `label` is what messages call it; `walk` holds the limits. `begun` is set where reading has
    begun already: all lines from the first on, to be read once."""

    label: str
    open: Callable[[], IO[bytes]]
    walk: Walk = field(default_factory=Walk)
    begun: Iterator[tuple[int, str]] | None = None

    @property
    def stem(self) -> str:
        """The file's own name, without archive, folder and endings."""
        return plain_name(self.label.rsplit("!", 1)[-1])

    def where(self, line: int) -> str:
        """File and line, as messages name them."""
        return f"{self.label}:{line}"

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines with their 1-based numbers, without line end. Only LF and CRLF end a line: a line
        separator of Unicode is text."""
        return self._lines() if self.begun is None else self.begun

    def filled(self) -> Iterator[tuple[str, str]]:
        """Lines that are not blank, each with its place for messages."""
        return ((self.where(number), line) for number, line in self.lines() if line.strip())

    def first_line(self, wanted: Callable[[str], bool]) -> tuple[str, TextFile]:
        """The first line that is wanted ("" for none in the whole file), and the file from its
        start."""
        line, file, more = self.look(wanted)
        if line is None and more:
            raise InputError(
                f"{self.where(self.walk.line)}: no line so far is a row; check the format of the file."
            )
        return line or "", file

    def look(
        self, wanted: Callable[[str], bool], most: int = LOOKED_AT
    ) -> tuple[str | None, TextFile, bool]:
        """The first line that is wanted (None where none of the first `most` is), the file from its
        start (a member of an archive cannot be opened twice), and whether lines were left that were
        not looked at."""
        lines = self.lines()
        seen: list[tuple[int, str]] = []
        found, held = None, 0
        for number, line in lines:
            seen.append((number, line))
            held += len(line)
            if wanted(line):
                found = line
                break
            if len(seen) >= most or held > self.walk.limits.max_whole:
                return None, replace(self, begun=chain(seen, lines)), True
        return found, replace(self, begun=chain(seen, lines)), False

    def read(self) -> bytes:
        """The whole content, for formats that cannot be read by lines."""
        limits = self.walk.limits
        self.walk.label, self.walk.line = self.label, 0
        with reading(self.label, "the file cannot be read", advice=DAMAGED), self.open() as handle:
            content = handle.read(limits.max_whole + 1)
        if len(content) > limits.max_whole:
            limits.refuse(
                self.label, "a file of more than {} bytes that must be held whole", "max_whole"
            )
        return content

    def _lines(self) -> Iterator[tuple[int, str]]:
        walk, longest = self.walk, self.walk.limits.max_line
        walk.label, walk.line = self.label, 0

        def place() -> str:
            return self.where(walk.line + 1) if walk.line else self.label

        with reading(place, "the file cannot be read", advice=DAMAGED), self.open() as handle:
            # At most two bytes more than a line may have, for its end.
            for number, raw in enumerate(iter(partial(handle.readline, longest + 2), b""), 1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                raw = raw.removesuffix(b"\n").removesuffix(b"\r")
                walk.line = number
                if len(raw) > longest:
                    walk.limits.refuse(
                        self.where(number), "a line of more than {} bytes", "max_line"
                    )
                if b"\0" in raw:
                    walk.notes[NUL] += 1
                    raw = raw.replace(b"\0", "\ufffd".encode())
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{self.where(number)}: byte {error.start + 1} of the line is not UTF-8 "
                        f"(0x{raw[error.start]:02x}); save the file as UTF-8."
                    ) from error
                yield number, line


class Files:
    """The files of text behind one path: the file itself, the fitting members of an archive, or the
    fitting files of a folder.

    Parameters
    ----------
    path : Path
        A file, an archive (`.tar`, `.tar.gz`, `.tar.xz`, ...), or a folder.
    wanted : sequence of str
        Name endings of the members of an archive or folder that are read, each also compressed.
    walk : Walk, optional
        The limits, and where notes are counted.
    """

    def __init__(self, path: Path, wanted: Sequence[str], walk: Walk | None = None) -> None:
        self.path = path
        self.wanted = tuple(wanted)
        self.walk = walk if walk is not None else Walk()
        self.label = self.walk.label = shown(path, 1000)

    def __iter__(self) -> Iterator[TextFile]:
        if self.path.is_dir():
            found = [p for p in sorted(self.path.rglob("*")) if p.is_file() and self._fits(p.name)]
            if not found:
                raise InputError(
                    f"The folder '{self.path}' holds no file that ends in {', '.join(self.wanted)}."
                )
            for path in found:
                yield on_disk(path, self.walk)
        elif endings(self.path.name)[0] == ".tar":
            yield from self._members()
        else:
            yield on_disk(self.path, self.walk)

    def member_names(self) -> Iterator[str]:
        """The names of an archive's members, in its order."""
        with self._archive() as archive:
            for _, member in archive:
                yield member.name

    def _fits(self, name: str) -> bool:
        if PurePosixPath(name).name.startswith("."):
            return False
        compression = endings(name)[1]
        return name[: len(name) - len(compression)].lower().endswith(self.wanted)

    def _members(self) -> Iterator[TextFile]:
        found = False
        packed_already = bool(endings(self.path.name)[1])
        with self._archive() as archive:
            for tar, member in archive:
                if not self._fits(member.name):
                    continue
                found = True
                label = f"{self.label}!{shown(member.name, 1000)}"
                yield TextFile(
                    label, partial(_open_member, tar, member, self.walk, packed_already), self.walk
                )
        if not found:
            raise InputError(
                f"The archive '{self.path}' holds no file that ends in {', '.join(self.wanted)}."
            )

    @contextmanager
    def _archive(self) -> Iterator[Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]]:
        # Front to back: members come in order and the archive is decompressed once, whatever its
        # size.
        advice = "; it may be cut off or damaged"
        broken = reading(self.label, "the archive cannot be read to its end", advice=advice)
        with broken, on_disk(self.path, self.walk).open() as raw:
            yield members(raw)


def on_disk(path: Path, walk: Walk | None = None) -> TextFile:
    """A file of the file system, decompressed as its ending says."""
    walk = walk if walk is not None else Walk()
    label = shown(path, 1000)
    return TextFile(label, lambda: unpacked(path.name, _open_file(path), walk), walk)


def _open_file(path: Path) -> IO[bytes]:
    """A plain file; a pipe or a device, which may never end and cannot be read twice, is refused
    without waiting."""
    try:
        handle = os.fdopen(
            os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb"
        )  # opening a pipe would wait for its writer
    except FileNotFoundError:
        raise InputError(f"There is no file '{shown(path, 1000)}'; check the path.") from None
    if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
        handle.close()
        raise InputError(
            f"'{shown(path, 1000)}' is no file but a pipe or device; save its content to a file first."
        )
    return handle


def _open_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, walk: Walk, packed_already: bool
) -> IO[bytes]:
    handle = archive.extractfile(member)
    assert handle is not None  # only plain files are asked for
    return unpacked(member.name, handle, walk, packed_already)
