"""Opening files of text: plain, compressed, in an archive or in a folder, line by line, with file and line in every error."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any

from headwise.core.errors import InputError

COMPRESSIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    ".gz": ("gzip", gzip.open),
    ".xz": ("xz", lzma.open),
    ".bz2": ("bzip2", bz2.open),
}
ARCHIVE_SHORT = {".tgz": ".tar.gz", ".txz": ".tar.xz", ".tbz2": ".tar.bz2"}
BROKEN = (EOFError, lzma.LZMAError, zlib.error, OSError, tarfile.TarError)  # gzip.BadGzipFile is an OSError


def endings(name: str) -> tuple[str, str]:
    """The ending of a file name that tells its format, and the one that tells its compression: ("x.tsv.gz") gives (".tsv", ".gz")."""
    path = PurePosixPath(name)
    last = path.suffix.lower()
    if last in ARCHIVE_SHORT:
        last = ARCHIVE_SHORT[last]
        return ".tar", last.removeprefix(".tar")
    if last in COMPRESSIONS:
        return PurePosixPath(path.stem).suffix.lower(), last
    return last, ""


def plain_name(name: str) -> str:
    """A file's name without folder, compression and format ending."""
    base = PurePosixPath(name.replace("\\", "/")).name
    ending, compression = endings(base)
    if PurePosixPath(base).suffix.lower() in ARCHIVE_SHORT:
        return PurePosixPath(base).stem
    for part in (compression, ending):
        if part and base.lower().endswith(part):
            base = base[: -len(part)]
    return base


@dataclass(frozen=True)
class TextFile:
    """One file of lines; `label` is what messages call it."""

    label: str
    open: Callable[[], IO[bytes]]

    @property
    def stem(self) -> str:
        """The file's own name, without archive, folder and endings."""
        return plain_name(self.label.rsplit("!", 1)[-1])

    def where(self, line: int) -> str:
        return f"{self.label}:{line}"

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines with their 1-based numbers, without line end. Only LF and CRLF end a line: a line separator of Unicode is text."""
        number = 0
        try:
            with self.open() as handle:
                for raw in handle:
                    number += 1
                    if number == 1:
                        raw = raw.removeprefix(b"\xef\xbb\xbf")
                    try:
                        line = raw.decode("utf-8")
                    except UnicodeDecodeError as error:
                        raise InputError(
                            f"{self.where(number)}: byte {error.start + 1} of the line is not UTF-8 (0x{raw[error.start]:02x}); save the file as UTF-8."
                        ) from None
                    yield number, line.rstrip("\n").removesuffix("\r")
        except BROKEN as error:
            raise self._broken(error, number) from error

    def read(self) -> bytes:
        """The whole content, for formats that cannot be read by lines."""
        try:
            with self.open() as handle:
                return handle.read()
        except BROKEN as error:
            raise self._broken(error, 0) from error

    def _broken(self, error: BaseException, number: int) -> InputError:
        place = f"{self.where(number + 1)}" if number else self.label
        return InputError(
            f"{place}: the file cannot be read ({type(error).__name__}: {error}); it may be cut off, damaged or not what its ending says."
        )


class _Replayed(TextFile):
    """A file whose first lines were looked at already; it can be read once more."""

    def __init__(self, file: TextFile, first: list[tuple[int, str]], rest: Iterator[tuple[int, str]]) -> None:
        super().__init__(file.label, file.open)
        object.__setattr__(self, "_again", chain(first, rest))

    def lines(self) -> Iterator[tuple[int, str]]:
        return self._again  # type: ignore[attr-defined]


def peek_lines(file: TextFile, enough: Callable[[str], bool]) -> tuple[list[str], TextFile]:
    """The first lines of a file up to one that is enough, and the file to read from its start: members of an archive cannot be opened twice."""
    lines = file.lines()
    seen = []
    for number, line in lines:
        seen.append((number, line))
        if enough(line):
            break
    return [line for _, line in seen], _Replayed(file, seen, lines)


class Files:
    """The files of text behind one path: the file itself, the fitting members of an archive, or the fitting files of a folder.

    Parameters
    ----------
    path
        A file, an archive (`.tar`, `.tar.gz`, `.tar.xz`, ...), or a folder.
    wanted
        Name endings of the members of an archive or folder that are read, each also compressed.
    """

    def __init__(self, path: Path, wanted: Sequence[str]) -> None:
        self.path = path
        self.wanted = tuple(wanted)
        if not path.exists():
            raise InputError(f"There is no file '{path}'; check the path.")

    @property
    def is_archive(self) -> bool:
        return endings(self.path.name)[0] == ".tar"

    def __iter__(self) -> Iterator[TextFile]:
        if self.path.is_dir():
            found = [p for p in sorted(self.path.rglob("*")) if p.is_file() and self._fits(p.name)]
            if not found:
                raise InputError(f"The folder '{self.path}' holds no file that ends in {', '.join(self.wanted)}.")
            for path in found:
                yield on_disk(path)
        elif self.is_archive:
            yield from self._members()
        else:
            yield on_disk(self.path)

    def member_names(self) -> Iterator[str]:
        """The names of an archive's members, in its order."""
        with self._archive() as archive:
            for member in archive:
                if member.isfile():
                    yield member.name

    def _fits(self, name: str) -> bool:
        if PurePosixPath(name).name.startswith("."):
            return False
        compression = endings(name)[1]
        return name[: len(name) - len(compression)].lower().endswith(self.wanted)

    def _members(self) -> Iterator[TextFile]:
        found = False
        with self._archive() as archive:
            for member in archive:
                if not member.isfile() or not self._fits(member.name):
                    continue
                found = True
                yield TextFile(f"{self.path}!{member.name}", _member_opener(archive, member))
        if not found:
            raise InputError(f"The archive '{self.path}' holds no file that ends in {', '.join(self.wanted)}.")

    @contextmanager
    def _archive(self) -> Iterator[tarfile.TarFile]:
        # Stream mode: members come in order and the archive is decompressed once, whatever its size.
        try:
            with on_disk(self.path).open() as raw, tarfile.open(fileobj=raw, mode="r|") as archive:
                yield archive
        except InputError:
            raise
        except BROKEN as error:
            raise InputError(
                f"{self.path}: the archive cannot be read ({type(error).__name__}: {error}); it may be cut off or damaged."
            ) from error


def on_disk(path: Path) -> TextFile:
    """A file of the file system, decompressed as its ending says."""
    return TextFile(str(path), lambda: _decompressed(path.name, path.open("rb")))


def _member_opener(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[], IO[bytes]]:
    def open_member() -> IO[bytes]:
        handle = archive.extractfile(member)
        assert handle is not None  # only plain files are asked for
        return _decompressed(member.name, handle)

    return open_member


def _decompressed(name: str, handle: IO[bytes]) -> IO[bytes]:
    compression = endings(name)[1]
    if not compression:
        return handle
    unpacked = COMPRESSIONS[compression][1](handle, "rb")
    return _Both(unpacked, handle)


class _Both(io.BufferedReader):
    """A decompressed stream that closes the file below it too."""

    def __init__(self, unpacked: Any, below: IO[bytes]) -> None:
        super().__init__(unpacked, buffer_size=1 << 16)
        self._below = below

    def close(self) -> None:
        super().close()
        self._below.close()
