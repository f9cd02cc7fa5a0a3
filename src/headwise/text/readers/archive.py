"""Tar archives read from front to back, that must end as archives do: a damaged header is no
end."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, Any

EXTENDED = (
    1 << 13
)  # bytes of a header that names or describes the next member; Python searches it with slow patterns
GLOBAL = 1000  # headers for all members
_DESCRIBES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class _Member(tarfile.TarInfo):
    """A header that is right, or an error: tarfile itself takes a damaged one as the end of the
    archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not buf.strip(b"\0") and buf:  # a block of zeros: the end mark
                raise
            if not buf:
                raise tarfile.ReadError("it ends without its end mark") from None
            raise tarfile.ReadError(f"the header of a member is damaged: {error}") from None
        if member.size < 0:
            raise tarfile.ReadError("a member has a negative size")
        if member.type in _DESCRIBES and member.size > EXTENDED:
            raise tarfile.ReadError(
                f"a member's name or description is longer than {EXTENDED:,} bytes"
            )
        return member


def members(raw: IO[bytes]) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The plain files of an archive in its order, each to be read before the next.

    tarfile.ReadError where the archive is cut off, where a header is damaged, and where something
    follows its end."""
    with tarfile.open(fileobj=raw, mode="r|", tarinfo=_Member) as archive:
        stream: Any = archive.fileobj
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # or a million members would be kept
            if len(archive.pax_headers) > GLOBAL:
                raise tarfile.ReadError(f"it has more than {GLOBAL} headers for all members")
            if member.isfile():
                if member.issparse():
                    raise tarfile.ReadError(
                        f"'{member.name}' is stored as a sparse file; pack it again without"
                    )
                yield archive, member
            # Not by `seek`, which for a declared size of 2^60 bytes counts on long after the file
            # has ended.
            left = archive.offset - stream.tell()
            while left > 0:
                passed = len(stream.read(min(left, 1 << 16)))
                if not passed:
                    raise tarfile.ReadError("it is cut off within a member")
                left -= passed
        while rest := stream.read(1 << 16):
            if rest.strip(b"\0"):
                raise tarfile.ReadError(
                    "something follows its end mark: it is damaged, or several archives in one"
                )
