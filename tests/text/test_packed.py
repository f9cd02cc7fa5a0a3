"""Compressed files and archives: they must end as such files do, and nothing is lost without a
word."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
import sys
import tarfile

import pytest

from headwise.core.errors import InputError, MissingExtraError
from headwise.text import open_corpus

DATA = "\n\n".join(f"Document {n} of many." for n in range(300)).encode()
HAS_ZSTD = bool(importlib.util.find_spec("zstandard")) or sys.version_info >= (3, 14)


def zstd(data):
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


PACKERS = [
    pytest.param("gz", gzip.compress, id="gz"),
    pytest.param("xz", lzma.compress, id="xz"),
    pytest.param("bz2", bz2.compress, id="bz2"),
    pytest.param(
        "zst",
        zstd,
        id="zst",
        marks=pytest.mark.skipif(not HAS_ZSTD, reason="pip install 'headwise[zstd]'"),
    ),
]


@pytest.mark.parametrize(("ending", "pack"), PACKERS)
def test_streams_one_after_another(tmp_path, ending, pack):
    path = tmp_path / f"a.txt.{ending}"
    path.write_bytes(pack(DATA) + pack(b"\n\nThe last.\n\n") + bytes(8 * (ending != "zst")))
    texts = [e.text for e in open_corpus(path)]
    assert (len(texts), texts[-1]) == (301, "The last.")


@pytest.mark.parametrize(("ending", "pack"), PACKERS)
def test_a_stream_that_is_cut_off_or_damaged_is_no_end(tmp_path, ending, pack):
    path = tmp_path / f"a.txt.{ending}"
    for content in (
        pack(DATA)[:-10],
        pack(DATA) + b"garbage of a second stream",
        pack(DATA) + pack(b"\n\nThe last.")[:-6],
        pack(DATA) + b"\x01" + pack(b"\n\nThe last.")[1:],
        b"",
    ):
        path.write_bytes(content)
        if not content and ending == "gz":  # an empty file is an empty gzip file
            continue
        with pytest.raises(InputError, match=rf"a\.txt\.{ending}"):
            list(open_corpus(path))


@pytest.mark.skipif(not HAS_ZSTD, reason="pip install 'headwise[zstd]'")
def test_zstd_in_and_of_archives(tmp_path):
    for name, content in (
        ("a.tar.zst", zstd(archive(("a.txt", DATA)))),
        ("b.tzst", zstd(archive(("a.txt.zst", zstd(DATA))))),
    ):
        (tmp_path / name).write_bytes(content)
        corpus = open_corpus(tmp_path / name)
        assert len(list(corpus)) == 300
        assert corpus.name == name[0]


def test_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    (tmp_path / "a.txt.zst").write_bytes(b"x")
    with pytest.raises(MissingExtraError, match=r"pip install 'headwise\[zstd\]'"):
        open_corpus(tmp_path / "a.txt.zst")


def archive(*files, form=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


TEN = [(f"{n}.txt", f"Document {n}.".encode()) for n in range(10)]
WHOLE = archive(*TEN, form=tarfile.USTAR_FORMAT)
END = 10 * 1024  # ten headers and ten blocks of content; then zeros


def damaged(at, data):
    return WHOLE[:at] + data + WHOLE[at + len(data) :]


def with_size(number, size):
    entry = tarfile.TarInfo(f"{number}.txt")
    entry.size = size
    return damaged(number * 1024, entry.tobuf(tarfile.GNU_FORMAT))


def sparse():
    entry = tarfile.TarInfo("5.txt")
    entry.type = tarfile.GNUTYPE_SPARSE
    entry.size = 512
    return damaged(5 * 1024, entry.tobuf(tarfile.GNU_FORMAT))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (damaged(3 * 1024, b"9"), "the header of a member is damaged: bad checksum"),
        (damaged(3 * 1024, b"garbage " * 64), "the header of a member is damaged"),
        (damaged(3 * 1024, bytes(512)), "something follows its end mark"),
        (WHOLE[: 5 * 1024], "it ends without its end mark"),
        (WHOLE[: 5 * 1024 + 100], "the header of a member is damaged: truncated"),
        (WHOLE[: 5 * 1024 + 515], "unexpected end of data"),
        (WHOLE + archive(*TEN), "something follows its end mark"),
        (with_size(9, 1 << 60), "unexpected end of data"),
        (with_size(9, -512), "a negative size"),
        (sparse(), "sparse"),
    ],
)
def test_archives_end_as_archives_do(tmp_path, content, why):
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    with pytest.raises(InputError, match=why):
        list(open_corpus(path))


def test_no_flipped_byte_loses_a_document(tmp_path):
    path = tmp_path / "a.tar"
    refused = 0
    for at in range(0, END, 17):
        path.write_bytes(damaged(at, bytes([WHOLE[at] ^ 2])))
        try:
            assert len(list(open_corpus(path))) == 10, at
        except InputError:
            refused += 1
    assert refused > 250  # headers are half of the bytes


def test_a_huge_member_that_is_not_wanted(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(with_size(9, 1 << 60).replace(b"9.txt", b"9.pdf"))
    with pytest.raises(
        InputError, match=r"a\.tar: the archive cannot be read to its end"
    ):  # the checksum, here
        list(open_corpus(path))
    entry = tarfile.TarInfo("9.pdf")
    entry.size = 1 << 60
    path.write_bytes(damaged(9 * 1024, entry.tobuf(tarfile.GNU_FORMAT)))
    with pytest.raises(InputError, match="it is cut off within a member"):
        list(open_corpus(path))


def test_archives_that_are_whole(tmp_path):
    path = tmp_path / "a.tar"
    for content in (WHOLE, WHOLE[: END + 1024], WHOLE[: END + 512], WHOLE + bytes(10240)):
        path.write_bytes(content)
        assert len(list(open_corpus(path))) == 10
    long = [(f"{'long' * 60}/{n}é.txt", b"x") for n in range(3)]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path.write_bytes(archive(*long, form=form))
        assert len(list(open_corpus(path))) == 3
    path.write_bytes(tarfile.TarInfo("x" * 100_000).tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(InputError, match="longer than 8,192 bytes"):
        list(open_corpus(path))


def test_a_name_that_is_no_text(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(archive(("d\udcff\x1b[1m.txt", b"x"), form=tarfile.GNU_FORMAT))
    (example,) = open_corpus(path)
    assert example.origin == f"{path}!d\\udcff\\x1b[1m.txt:1"
