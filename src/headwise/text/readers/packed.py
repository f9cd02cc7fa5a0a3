"""Compressed files: every stream must be complete, and what it unpacks to counts against the
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

CHUNK = 1 << 16  # unpacked bytes per read
# Packed bytes per read. Few, because zstd can turn four bytes into 128 KiB and returns everything
# at once.
PACKED_CHUNK = 1 << 12
WINDOW = 1 << 27  # bytes of a decompressor's window; compressors stay well below it by default
ARCHIVE_SHORT = {".tgz": ".tar.gz", ".txz": ".tar.xz", ".tbz2": ".tar.bz2", ".tzst": ".tar.zst"}


def endings(name: str) -> tuple[str, str]:
    """Return the ending of a file name that tells its format, and that of its compression.

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
    """Return the content of a file, decompressed according to its name.

    Parameters
    ----------
    name : str
        The file's name.
    handle : binary file
        The packed content.
    walk : Walk
        Counts packed and unpacked bytes against the limits.
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
    """A decompressed stream that counts its bytes and closes the packed file with itself."""

    def __init__(self, source: Any, below: IO[bytes], walk: Walk, packed_already: bool) -> None:
        self._source = source
        self._below = below
        self._walk = walk
        self._counts_packed = not packed_already
        self._packed_position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n_unpacked = int(self._source.readinto(buffer))
        position = self._below.tell() if self._counts_packed else 0
        self._walk.unpacked(position - self._packed_position, n_unpacked)
        self._packed_position = position
        return n_unpacked

    def close(self) -> None:
        self._source.close()
        self._below.close()
        super().close()


class Decompressor(Protocol):
    """The interface of the decompressors of bz2, lzma and compression.zstd."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Streams(io.RawIOBase):
    """Reads one compressed stream after another to the end of the file.

    Unlike Python's own readers it accepts nothing but another stream (or padding of zeros) after a
    stream, so that a damaged stream is not taken for the end of the file.
    """

    def __init__(self, new_decompressor: Callable[[], Decompressor], below: IO[bytes]) -> None:
        self._new_decompressor = new_decompressor
        self._below = below
        self._decompressor: Decompressor | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            data = b""
            if self._decompressor is None or self._decompressor.eof:
                data = self._next_stream()
                if not data:
                    return 0
                self._decompressor = self._new_decompressor()
            elif self._decompressor.needs_input:
                data = self._below.read(PACKED_CHUNK)
                if not data:
                    raise EOFError("the compressed data end before their end mark")
            unpacked_bytes = self._decompressor.decompress(data, len(buffer))
            if unpacked_bytes:
                buffer[: len(unpacked_bytes)] = unpacked_bytes
                return len(unpacked_bytes)

    def _next_stream(self) -> bytes:
        """Return the first bytes of the next stream; b"" at the end of the file."""
        if self._decompressor is None:
            data = self._below.read(PACKED_CHUNK)
            if not data:
                raise EOFError("the file is empty")
            return data
        data = self._decompressor.unused_data.lstrip(b"\0")
        while not data:
            data = self._below.read(PACKED_CHUNK)
            if not data:
                return b""
            data = data.lstrip(b"\0")
        return data


class _Zstandard:
    """Gives the package zstandard the interface of the standard library's decompressors."""

    def __init__(self, package: Any) -> None:
        self._decompressor = package.ZstdDecompressor(max_window_size=WINDOW).decompressobj()
        self._pending = memoryview(b"")  # unpacked but not yet returned

    @property
    def eof(self) -> bool:
        return bool(self._decompressor.eof) and not self._pending

    @property
    def needs_input(self) -> bool:
        return not self._pending

    @property
    def unused_data(self) -> bytes:
        return bytes(self._decompressor.unused_data)

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        if data:
            self._pending = memoryview(self._decompressor.decompress(data))
        unpacked_bytes = bytes(self._pending[:max_length])
        self._pending = self._pending[max_length:]
        return unpacked_bytes


def _zstd_decompressor() -> Callable[[], Decompressor]:
    """Return what makes a zstd decompressor, from whichever package has one."""
    try:  # in the standard library since Python 3.14
        from compression import zstd
    except ImportError:
        pass
    else:
        options = {zstd.DecompressionParameter.window_log_max: WINDOW.bit_length() - 1}
        return lambda: zstd.ZstdDecompressor(options=options)
    try:
        import zstandard
    except ImportError:
        raise MissingExtraError("zstandard", "zstd", "Reading a .zst file") from None
    return lambda: _Zstandard(zstandard)


def _open_gzip(handle: IO[bytes]) -> Any:
    # Python's reader already accepts nothing but streams and zeros.
    return gzip.GzipFile(fileobj=handle, mode="rb")


COMPRESSIONS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": _open_gzip,
    ".xz": lambda handle: _Streams(lambda: lzma.LZMADecompressor(memlimit=2 * WINDOW), handle),
    ".bz2": lambda handle: _Streams(bz2.BZ2Decompressor, handle),
    ".zst": lambda handle: _Streams(_zstd_decompressor(), handle),
}
