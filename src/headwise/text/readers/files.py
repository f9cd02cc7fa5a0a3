"""Opening files of text: plain, compressed, in an archive or in a folder, line by line, with file and line in every
error."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any

from headwise.core.errors import HeadwiseError, InputError

COMPRESSIONS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
ARCHIVE_SHORT = {".tgz": ".tar.gz", ".txz": ".tar.xz", ".tbz2": ".tar.bz2"}
BROKEN = (EOFError, lzma.LZMAError, zlib.error, OSError, tarfile.TarError)  # gzip.BadGzipFile is an OSError
DAMAGED = "; it may be cut off, damaged or not what its ending says"


@contextmanager
def reading(
    where: str | Callable[[], str], problem: str, kinds: tuple[type[Exception], ...] = (Exception,), advice: str = ""
) -> Iterator[None]:
    """What parsers and decoders raise, as one sentence of headwise's own: where, what is wrong, what was said, what to
    do.

    Parameters
    ----------
    where : str or callable
        File and line; a function where the line moves on meanwhile.
    problem : str
        What is wrong with what stands there.
    kinds : tuple of exception types, default all
        Errors that mean it. Errors of headwise pass as they are.
    advice : str, optional
        What ends the sentence, from its semicolon on.
    """
    try:
        yield
    except HeadwiseError:
        raise
    except kinds as error:
        said = " ".join(str(error).split())[:200]
        place = where if isinstance(where, str) else where()
        raise InputError(f"{place}: {problem} ({type(error).__name__}: {said}){advice}.") from error


def endings(name: str) -> tuple[str, str]:
    """The ending of a file name that tells its format, and the one that tells its compression.

    >>> endings("x.tsv.gz")
    ('.tsv', '.gz')
    """
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
    """One file of lines, and the one place where lines are read.

    `label` is what messages call it. `begun` is set where reading has begun already: all lines from the first on, to be
    read once.
    """

    label: str
    open: Callable[[], IO[bytes]]
    begun: Iterator[tuple[int, str]] | None = None

    @property
    def stem(self) -> str:
        """The file's own name, without archive, folder and endings."""
        return plain_name(self.label.rsplit("!", 1)[-1])

    def where(self, line: int) -> str:
        """File and line, as messages name them."""
        return f"{self.label}:{line}"

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines with their 1-based numbers, without line end. Only LF and CRLF end a line: a line separator of Unicode
        is text."""
        return self._lines() if self.begun is None else self.begun

    def filled(self) -> Iterator[tuple[str, str]]:
        """Lines that are not blank, each with its place for messages."""
        return ((self.where(number), line) for number, line in self.lines() if line.strip())

    def first_line(self, wanted: Callable[[str], bool]) -> tuple[str, TextFile]:
        """The first line that is wanted ("" for none), and the file from its start: a member of an archive cannot be
        opened twice."""
        lines = self.lines()
        seen: list[tuple[int, str]] = []
        for number, line in lines:
            seen.append((number, line))
            if wanted(line):
                return line, replace(self, begun=chain(seen, lines))
        return "", replace(self, begun=iter(seen))

    def read(self) -> bytes:
        """The whole content, for formats that cannot be read by lines."""
        with reading(self.label, "the file cannot be read", BROKEN, DAMAGED), self.open() as handle:
            return handle.read()

    def _lines(self) -> Iterator[tuple[int, str]]:
        number = 0

        def place() -> str:
            return self.where(number + 1) if number else self.label

        with reading(place, "the file cannot be read", BROKEN, DAMAGED), self.open() as handle:
            for number, raw in enumerate(handle, 1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{self.where(number)}: byte {error.start + 1} of the line is not UTF-8 "
                        f"(0x{raw[error.start]:02x}); save the file as UTF-8."
                    ) from None
                yield number, line.rstrip("\n").removesuffix("\r")


class Files:
    """The files of text behind one path: the file itself, the fitting members of an archive, or the fitting files of a
    folder.

    Parameters
    ----------
    path : Path
        A file, an archive (`.tar`, `.tar.gz`, `.tar.xz`, ...), or a folder.
    wanted : sequence of str
        Name endings of the members of an archive or folder that are read, each also compressed.
    """

    def __init__(self, path: Path, wanted: Sequence[str]) -> None:
        self.path = path
        self.wanted = tuple(wanted)

    def __iter__(self) -> Iterator[TextFile]:
        if self.path.is_dir():
            found = [p for p in sorted(self.path.rglob("*")) if p.is_file() and self._fits(p.name)]
            if not found:
                raise InputError(f"The folder '{self.path}' holds no file that ends in {', '.join(self.wanted)}.")
            for path in found:
                yield on_disk(path)
        elif endings(self.path.name)[0] == ".tar":
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
        broken = reading(str(self.path), "the archive cannot be read", BROKEN, "; it may be cut off or damaged")
        with broken, on_disk(self.path).open() as raw, tarfile.open(fileobj=raw, mode="r|") as archive:
            yield archive


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
    return _Both(COMPRESSIONS[compression](handle, "rb"), handle) if compression else handle


class _Both(io.BufferedReader):
    """A decompressed stream that closes the file below it too."""

    def __init__(self, unpacked: Any, below: IO[bytes]) -> None:
        super().__init__(unpacked, buffer_size=1 << 16)
        self._below = below

    def close(self) -> None:
        super().close()
        self._below.close()
