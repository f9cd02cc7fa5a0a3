"""Compressed files: every stream must end as streams do, and what comes out is counted against the
limits."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import IO, Any, Protocol

from headwise.core.errors import MissingExtraError
from headwise.text.readers.limits import Walk

CHUNK = 1 << 16  # bytes given at a time
TAKEN = (
    1 << 12
)  # packed bytes taken at a time: zstd makes 128 KiB of four bytes, and gives all that they make at once
WINDOW = 1 << 27  # bytes a decompressor may hold; what packers use by default is well below it
ARCHIVE_SHORT = {".tgz": ".tar.gz", ".txz": ".tar.xz", ".tbz2": ".tar.bz2", ".tzst": ".tar.zst"}


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


def unpacked(name: str, handle: IO[bytes], walk: Walk, packed_already: bool = False) -> IO[bytes]:
    """The content of a file, decompressed as its name says.

    Parameters
    ----------
    packed_already : bool, default False
        Whether the file comes out of a compressed archive: its packed bytes have been counted
        there.
    """
    compression = endings(name)[1]
    if not compression:
        return handle
    source = COMPRESSIONS[compression](handle)
    return io.BufferedReader(_Counted(source, handle, walk, packed_already), CHUNK)


class _Counted(io.RawIOBase):
    """A decompressed stream that counts, and closes the file below it too."""

    def __init__(self, source: Any, below: IO[bytes], walk: Walk, packed_already: bool) -> None:
        self._source, self._below, self._walk = source, below, walk
        self._counts_taken, self._taken = not packed_already, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        given = int(self._source.readinto(buffer))
        at = self._below.tell() if self._counts_taken else 0
        self._walk.unpacked(at - self._taken, given)
        self._taken = at
        return given

    def close(self) -> None:
        self._source.close()
        self._below.close()
        super().close()


class Decompressor(Protocol):
    """What bz2, lzma and compression.zstd have."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Streams(io.RawIOBase):
    """One compressed stream after another to the end of the file. Unlike Python's own readers it
    takes nothing but another stream (or padding of zeros) behind a stream: a damaged one is no
    end."""

    def __init__(self, make: Callable[[], Decompressor], below: IO[bytes]) -> None:
        self._make, self._below = make, below
        self._tool: Decompressor | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            data = b""
            if self._tool is None or self._tool.eof:
                data = self._next_stream()
                if not data:
                    return 0
                self._tool = self._make()
            elif self._tool.needs_input:
                data = self._below.read(TAKEN)
                if not data:
                    raise EOFError("the compressed data end before their end mark")
            out = self._tool.decompress(data, len(buffer))
            if out:
                buffer[: len(out)] = out
                return len(out)

    def _next_stream(self) -> bytes:
        """The first bytes of the next stream; b"" at the end of the file."""
        if self._tool is None:
            data = self._below.read(TAKEN)
            if not data:
                raise EOFError("the file is empty")
            return data
        data = self._tool.unused_data.lstrip(b"\0")
        while not data:
            more = self._below.read(TAKEN)
            if not more:
                return b""
            data = more.lstrip(b"\0")
        return data


class _Zstandard:
    """The package zstandard with the manners of the standard library's decompressors."""

    def __init__(self, package: Any) -> None:
        self._tool = package.ZstdDecompressor(max_window_size=WINDOW).decompressobj()
        self._held = memoryview(b"")

    @property
    def eof(self) -> bool:
        return bool(self._tool.eof) and not self._held

    @property
    def needs_input(self) -> bool:
        return not self._held

    @property
    def unused_data(self) -> bytes:
        return bytes(self._tool.unused_data)

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        if data:
            self._held = memoryview(self._tool.decompress(data))
        out, self._held = self._held[:max_length], self._held[max_length:]
        return bytes(out)


def _zstd_maker() -> Callable[[], Decompressor]:
    try:  # Python 3.14 has its own
        from compression import zstd
    except ImportError:
        pass
    else:
        log = {zstd.DecompressionParameter.window_log_max: WINDOW.bit_length() - 1}
        return lambda: zstd.ZstdDecompressor(options=log)
    try:
        import zstandard
    except ImportError:
        raise MissingExtraError("zstandard", "zstd", "Reading a .zst file") from None
    return lambda: _Zstandard(zstandard)


COMPRESSIONS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda handle: gzip.GzipFile(
        fileobj=handle, mode="rb"
    ),  # takes nothing but streams and zeros already
    ".xz": lambda handle: _Streams(lambda: lzma.LZMADecompressor(memlimit=2 * WINDOW), handle),
    ".bz2": lambda handle: _Streams(bz2.BZ2Decompressor, handle),
    ".zst": lambda handle: _Streams(_zstd_maker(), handle),
}
