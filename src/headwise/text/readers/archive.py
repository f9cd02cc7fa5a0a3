"""Tar archives, read from front to back. They must be complete: a damaged header is an error, not
the end."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, Any

# Bytes of a header that names or describes the next member. Python searches such headers with slow
# regular expressions.
LONGEST_DESCRIPTION = 1 << 13
MOST_GLOBAL_HEADERS = 1000  # headers that apply to all members
CHUNK = 1 << 16  # bytes per read
_DESCRIPTION_TYPES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class _Member(tarfile.TarInfo):
    """A member whose header is valid; a damaged one is an error, where tarfile itself takes it for
    the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not buf:
                raise tarfile.ReadError("it ends without its end mark") from None
            is_end_mark = not buf.strip(b"\0")  # a block of zeros
            if is_end_mark:
                raise
            raise tarfile.ReadError(f"the header of a member is damaged: {error}") from None
        if member.size < 0:
            raise tarfile.ReadError("a member has a negative size")
        if member.type in _DESCRIPTION_TYPES and member.size > LONGEST_DESCRIPTION:
            raise tarfile.ReadError(
                f"a member's name or description is longer than {LONGEST_DESCRIPTION:,} bytes"
            )
        return member


def members(raw: IO[bytes]) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the plain files of an archive in order; each must be read before the next.

    Raises `tarfile.ReadError` where the archive is cut off, where a header is damaged, and where
    something follows its end.
    """
    with tarfile.open(fileobj=raw, mode="r|", tarinfo=_Member) as archive:
        stream: Any = archive.fileobj
        while (member := archive.next()) is not None:
            # tarfile keeps every member it has read: a million of them would fill the memory.
            archive.members.clear()  # type: ignore[attr-defined]
            if len(archive.pax_headers) > MOST_GLOBAL_HEADERS:
                raise tarfile.ReadError(
                    f"it has more than {MOST_GLOBAL_HEADERS} headers for all members"
                )
            if member.isfile():
                if member.issparse():
                    raise tarfile.ReadError(
                        f"'{member.name}' is stored as a sparse file; pack it again without"
                    )
                yield archive, member
            # Skip the member's remaining bytes by reading. `seek` would go on long after the end of
            # the file where a header declares a size of 2^60 bytes.
            remaining = archive.offset - stream.tell()
            while remaining > 0:
                n_read = len(stream.read(min(remaining, CHUNK)))
                if not n_read:
                    raise tarfile.ReadError("it is cut off within a member")
                remaining -= n_read
        while padding := stream.read(CHUNK):
            if padding.strip(b"\0"):
                raise tarfile.ReadError(
                    "something follows its end mark: it is damaged, or several archives in one"
                )
