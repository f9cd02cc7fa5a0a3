"""Names of corpora, packings, and the files that cannot be read."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile

import pytest

from headwise.core.errors import InputError, ParameterError
from headwise.text import Corpus, open_corpus
from headwise.text.readers import FORMATS
from headwise.text.readers.files import on_disk, reading

PROSE = "One day\nit rained.\n\n\nThen it  stopped.\r\n\r\nThe end."


def test_paragraphs(tmp_path):
    path = tmp_path / "story.txt"
    path.write_bytes(PROSE.encode())
    corpus = open_corpus(path)
    assert [e.text for e in corpus] == ["One day it rained.", "Then it  stopped.", "The end."]
    assert [e.origin for e in corpus] == [f"{path}:1", f"{path}:5", f"{path}:7"]
    assert corpus.name == "story"
    assert open_corpus(str(path), limit=2).survey().count == 2
    assert open_corpus(path, name="n", licence="CC0").licence == "CC0"


def archive(name, members, folder):
    path = folder / name
    mode = {"tar": "w", "gz": "w:gz", "xz": "w:xz", "bz2": "w:bz2", "tgz": "w:gz"}[
        name.rsplit(".", 1)[-1]
    ]
    with tarfile.open(path, mode) as tar:
        for member, data in members.items():
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    "packing", ["gz", "xz", "bz2", "tar", "tar.gz", "tar.xz", "tar.bz2", "tgz"]
)
def test_packings_give_the_same_corpus(tmp_path, packing):
    plain = tmp_path / "story.txt"
    data = PROSE.encode()
    plain.write_bytes(data)
    if packing.startswith("t"):
        path = archive(f"story.{packing}", {"README": b"no", "deep/a.txt": data}, tmp_path)
    else:
        path = tmp_path / f"story.txt.{packing}"
        path.write_bytes(
            {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}[packing](data)
        )
    packed = open_corpus(path)
    assert packed.fingerprint() == open_corpus(plain).fingerprint()
    assert packed.name == "story"


def test_archive_of_compressed_members_in_order(tmp_path):
    path = archive(
        "many.tar.xz",
        {"b.txt.gz": gzip.compress(b"second\n"), "a.txt": b"first", "c.conllu": b"x"},
        tmp_path,
    )
    corpus = open_corpus(path)
    assert [(e.text, e.origin) for e in corpus] == [
        ("second", f"{path}!b.txt.gz:1"),
        ("first", f"{path}!a.txt:1"),
    ]
    assert len(list(corpus)) == 2


def test_a_folder_by_format(tmp_path):
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(InputError, match="is a folder"):
        open_corpus(tmp_path)
    assert [e.text for e in open_corpus(f"txt:{tmp_path}")] == ["one", "two"]
    with pytest.raises(InputError, match=r"holds no file that ends in \.conllu"):
        open_corpus(f"conllu:{tmp_path}")


def test_format_by_name_and_unknown_ones(tmp_path):
    path = tmp_path / "rows.data"
    path.write_text('{"text": "hello"}\n')
    assert next(iter(open_corpus(f"jsonl:{path}"))).text == "hello"
    with pytest.raises(ParameterError) as caught:
        open_corpus(path)
    assert "tells no format" in str(caught.value)
    assert "format:path" in str(caught.value)
    assert all(name in str(caught.value) for name in FORMATS)
    with pytest.raises(ParameterError, match=r"no format 'jsonll'. Did you mean 'jsonl'"):
        open_corpus(f"jsonll:{path}")
    with pytest.raises(ParameterError, match="names no file"):
        open_corpus("txt:")
    with pytest.raises(ParameterError, match="name of the corpus is empty"):
        open_corpus("")


def test_options_are_checked(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "hello"}\n')
    with pytest.raises(ParameterError, match="no option of the format jsonl 'documents'"):
        open_corpus(path, documents=True)
    corpus = Corpus.from_texts(["a", "b"])
    assert open_corpus(corpus, limit=1).survey().count == 1
    with pytest.raises(ParameterError, match="takes no reader options"):
        open_corpus(corpus, part="tr")


def test_missing_empty_and_broken_files(tmp_path):
    with pytest.raises(InputError, match=r"no file '.*none\.txt'"):
        open_corpus(tmp_path / "none.txt")
    loop = tmp_path / "loop.txt"
    loop.symlink_to(loop)
    with pytest.raises(InputError, match="is a link to itself or to no file; check where it leads"):
        open_corpus(loop)
    with pytest.raises(
        InputError, match=r"^The path 'x{80}' cannot be used \(File name too long\)"
    ):
        open_corpus("x" * 5000)
    gone = on_disk(tmp_path / "gone.txt")
    for read in (gone.read, lambda: next(gone.lines())):
        with pytest.raises(InputError, match=r"^There is no file '.*gone\.txt'; check the path\.$"):
            read()
    for name in ("e.txt", "e.jsonl", "e.conllu", "e.conll", "e.tsv"):
        (tmp_path / name).write_text("\n")
        with pytest.raises(InputError, match="e holds no examples"):
            open_corpus(tmp_path / name)
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine\n\ngood\n\nbr\xffken\n")
    with pytest.raises(InputError, match=r"bad\.txt:5: byte 3 of the line is not UTF-8 \(0xff\)"):
        list(open_corpus(bad))
    not_gzip = tmp_path / "a.txt.gz"
    not_gzip.write_bytes(b"just text")
    with pytest.raises(InputError, match=r"a\.txt\.gz: the file cannot be read \(BadGzipFile"):
        open_corpus(not_gzip)
    cut = tmp_path / "cut.txt.gz"
    lines = "\n\n".join(f"paragraph {n} {hash(str(n))}" for n in range(20000)).encode()
    cut.write_bytes(gzip.compress(lines)[:-2000])
    with pytest.raises(InputError, match=r"cut\.txt\.gz:\d+: the file cannot be read \(EOFError"):
        list(open_corpus(cut))
    cut_xz = tmp_path / "cut.jsonl.xz"
    cut_xz.write_bytes(b"\xfd7zXZ\x00junk")
    with pytest.raises(InputError, match="cannot be read"):
        open_corpus(cut_xz)
    not_tar = tmp_path / "a.tar.gz"
    not_tar.write_bytes(gzip.compress(b"not a tar"))
    with pytest.raises(InputError, match="the archive cannot be read"):
        open_corpus(not_tar)
    strange = archive("s.tar", {"a.pdf": b"1"}, tmp_path)
    with pytest.raises(InputError, match="no file of a known format"):
        open_corpus(strange)


def test_a_byte_order_mark_and_odd_line_separators(tmp_path):
    path = tmp_path / "bom.txt"
    path.write_bytes("\ufeffone\u2028still one\n\ntwo".encode())
    assert [e.text for e in open_corpus(path)] == ["one\u2028still one", "two"]


def test_memory_does_not_grow_with_the_file(tmp_path):
    import tracemalloc

    path = tmp_path / "long.jsonl"
    with path.open("w") as out:
        for n in range(2000):
            out.write(f'{{"text": "row {n} {"x" * 5000}"}}\n')
    corpus = open_corpus(path)
    tracemalloc.start()
    corpus.fingerprint()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 10_000_000
    assert most < 1_000_000


def test_a_file_looked_into_is_still_read_from_its_start(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\none\n\ntwo\n")
    line, file = on_disk(path).first_line(lambda line: "t" in line)
    assert line == "two"
    assert list(file.filled()) == [(f"{path}:2", "one"), (f"{path}:4", "two")]
    line, file = on_disk(path).first_line(lambda line: "three" in line)
    assert (line, len(list(file.lines()))) == ("", 4)


def test_errors_of_others_become_one_sentence():
    with (
        pytest.raises(
            InputError, match=r"^f:3: it is broken \(ValueError: two lines\); mend it\.$"
        ),
        reading(lambda: "f:3", "it is broken", advice="; mend it"),
    ):
        raise ValueError("two\n lines")
    with pytest.raises(KeyError), reading("f", "it is broken", (ValueError,)):
        raise KeyError("not one of these")
    with pytest.raises(ParameterError, match="as it was"), reading("f", "it is broken"):
        raise ParameterError("as it was")
