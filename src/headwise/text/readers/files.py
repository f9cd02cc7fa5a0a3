"""Read files line by line: plain, compressed, in an archive or in a folder."""

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
from headwise.text.readers.limits import BLANK_ROWS, Walk, reading, shown
from headwise.text.readers.packed import ARCHIVE_SHORT, endings, unpacked

DAMAGED = "; it may be cut off, damaged or not what its ending says"
MAX_LINES_BEFORE_ROW = 100_000  # lines that may come before the first row
NUL = "lines with NUL characters, read as U+FFFD"


def plain_name(name: str) -> str:
    """Return the name of a file without folder, compression and format ending."""
    base = PurePosixPath(name.replace("\\", "/")).name
    ending, compression = endings(base)
    if PurePosixPath(base).suffix.lower() in ARCHIVE_SHORT:
        return shown(PurePosixPath(base).stem, 255)
    for part in (compression, ending):
        if part and base.lower().endswith(part):
            base = base[: -len(part)]
    return shown(base, 255)  # a name may contain bytes that are not text


@dataclass(frozen=True)
class TextFile:
    """One file of lines.

    `label` is its name in messages; `walk` holds the limits. `begun` is set where reading has
    started already: all lines from the first on, which can be read once.
    """

    label: str
    open: Callable[[], IO[bytes]]
    walk: Walk = field(default_factory=Walk)
    begun: Iterator[tuple[int, str]] | None = None

    @property
    def stem(self) -> str:
        """The name of the file, without archive, folder and endings."""
        return plain_name(self.label.rsplit("!", 1)[-1])

    def where(self, line: int) -> str:
        """Return file and line, for messages."""
        return f"{self.label}:{line}"

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield lines with their 1-based numbers, without line end.

        Only LF and CRLF end a line: a line separator of Unicode is text.
        """
        if self.begun is not None:
            return self.begun
        return self._lines()

    def filled(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that are not blank, each with file and line number; count the others."""
        for number, line in self.lines():
            if line.strip():
                yield self.where(number), line
            else:
                self.walk.notes[BLANK_ROWS] += 1

    def first_line(self, wanted: Callable[[str], bool]) -> tuple[str, TextFile]:
        """Return the first line that is wanted ("" for none in the whole file), and the file from
        its start."""
        line, file, more = self.find_line(wanted)
        if line is None and more:
            raise InputError(
                f"{self.where(self.walk.line)}: no line up to here is a row; check the format of "
                "the file."
            )
        return line or "", file

    def find_line(
        self, wanted: Callable[[str], bool], most: int = MAX_LINES_BEFORE_ROW
    ) -> tuple[str | None, TextFile, bool]:
        """Search the beginning of the file for a line.

        Returns the first line that is wanted (None where none of the first `most` is), the file
        from its start (a member of an archive cannot be opened twice), and whether the search
        stopped before the end of the file.
        """
        lines = self.lines()
        lines_read: list[tuple[int, str]] = []
        n_characters = 0
        first_wanted = None
        stopped_early = False
        for number, line in lines:
            lines_read.append((number, line))
            n_characters += len(line)
            if wanted(line):
                first_wanted = line
                break
            if len(lines_read) >= most or n_characters > self.walk.limits.max_whole:
                stopped_early = True
                break
        return first_wanted, replace(self, begun=chain(lines_read, lines)), stopped_early

    def read(self) -> bytes:
        """Return the whole content, for formats that cannot be read by lines."""
        limits = self.walk.limits
        self.walk.label = self.label
        self.walk.line = 0
        with reading(self.label, "the file cannot be read", advice=DAMAGED), self.open() as handle:
            content = handle.read(limits.max_whole + 1)
        if len(content) > limits.max_whole:
            limits.refuse(
                self.label, "a file of more than {} bytes that must be held whole", "max_whole"
            )
        return content

    def _lines(self) -> Iterator[tuple[int, str]]:
        walk = self.walk
        max_bytes = walk.limits.max_line
        walk.label = self.label
        walk.line = 0

        def place() -> str:
            if walk.line:
                return self.where(walk.line + 1)
            return self.label

        with reading(place, "the file cannot be read", advice=DAMAGED), self.open() as handle:
            # Two bytes more than the limit, for the line end.
            raw_lines = iter(partial(handle.readline, max_bytes + 2), b"")
            for number, raw in enumerate(raw_lines, 1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                raw = raw.removesuffix(b"\n").removesuffix(b"\r")
                walk.line = number
                if len(raw) > max_bytes:
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
    """The text files of one path: the file itself, or the matching members of an archive or
    folder.

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
            n_files = 0
            for path in sorted(self.path.rglob("*")):
                if path.is_file() and self._fits(path.name):
                    n_files += 1
                    yield on_disk(path, self.walk)
            if not n_files:
                raise InputError(
                    f"The folder '{self.path}' holds no file that ends in {', '.join(self.wanted)}."
                )
        elif endings(self.path.name)[0] == ".tar":
            yield from self._members()
        else:
            yield on_disk(self.path, self.walk)

    def member_names(self) -> Iterator[str]:
        """Yield the names of an archive's members, in order."""
        with self._archive() as archive:
            for _, member in archive:
                yield member.name

    def _fits(self, name: str) -> bool:
        if PurePosixPath(name).name.startswith("."):
            return False
        compression = endings(name)[1]
        return name[: len(name) - len(compression)].lower().endswith(self.wanted)

    def _members(self) -> Iterator[TextFile]:
        any_member = False
        packed_already = bool(endings(self.path.name)[1])
        with self._archive() as archive:
            for tar, member in archive:
                if not self._fits(member.name):
                    continue
                any_member = True
                label = f"{self.label}!{shown(member.name, 1000)}"
                open_member = partial(_open_member, tar, member, self.walk, packed_already)
                yield TextFile(label, open_member, self.walk)
        if not any_member:
            raise InputError(
                f"The archive '{self.path}' holds no file that ends in {', '.join(self.wanted)}."
            )

    @contextmanager
    def _archive(self) -> Iterator[Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]]:
        # Front to back: the archive is decompressed once, whatever its size.
        advice = "; it may be cut off or damaged"
        broken = reading(self.label, "the archive cannot be read to its end", advice=advice)
        with broken, on_disk(self.path, self.walk).open() as raw:
            yield members(raw)


def on_disk(path: Path, walk: Walk | None = None) -> TextFile:
    """Return a file on disk, decompressed by its ending."""
    if walk is None:
        walk = Walk()
    label = shown(path, 1000)
    return TextFile(label, lambda: unpacked(path.name, _open_file(path), walk), walk)


def _open_file(path: Path) -> IO[bytes]:
    """Open a plain file; a pipe or device, which may never end and cannot be read twice, is an
    error."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        handle = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except FileNotFoundError:
        raise InputError(f"There is no file '{shown(path, 1000)}'; check the path.") from None
    if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
        handle.close()
        raise InputError(
            f"'{shown(path, 1000)}' is a pipe or device, not a file; save its content to a file "
            "first."
        )
    return handle


def _open_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, walk: Walk, packed_already: bool
) -> IO[bytes]:
    handle = archive.extractfile(member)
    assert handle is not None  # only plain files are opened
    return unpacked(member.name, handle, walk, packed_already)
