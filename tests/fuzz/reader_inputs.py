"""Inputs that attack readers: for each reader small files that are right, and edits that make them
wrong.

Shared by `test_readers.py` (some hundred inputs each) and `benchmarks/fuzz_readers.py` (ten
thousand each)."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.core.errors import HeadwiseError
from headwise.text import Example, open_corpus

LONGEST_MESSAGE = 3000  # characters of a sentence to a user; a path and a cut value fit


# --- files that are right -------------------------------------------------------------------------

PROSE = "One day\nit rained — and stopped.\n\n\nThen came the sun.\r\n\r\nThe end."
JSONL = "\n".join(
    json.dumps(row)
    for row in (
        {"text": "Hello there.", "pair": "Good \ud83d\ude00 day.", "label": "x"},
        {
            "words": ["Dogs", "bark", "."],
            "heads": [2, 0, 2],
            "relations": ["nsubj", "root", "punct"],
            "upos": ["NOUN", "VERB", "PUNCT"],
            "features": [{"Number": "Plur"}, "Tense=Pres|Mood=Ind", None],
            "mentions": [{"start": 0, "end": 1, "entity": "e1", "head": 0}, [1, 2, "e2"]],
            "frames": [{"frame": "F", "element": "E", "target": [1, 2], "span": [0, 1]}],
            "sentences": [0, 0, 0],
            "label": 3,
        },
        {
            "text": "Cats sleep.",
            "words": ["Cats", "sleep", "."],
            "spans": [[0, 4], [5, 10], [10, 11]],
        },
        {"paragraphs": ["One.", "Two.", "Three."]},
        {"prompt": "Why?", "completion": "So."},
        {"content": "Some text."},
    )
)
ARTICLES = json.dumps({"title": "T", "paragraphs": ["One day.", "Two days.", "Three."]}) + "\n"
CONLLU = """# newdoc id = doc_a
# global.Entity = GRP-etype-infstat-salience-centering-minspan-link-identity
# text = The mayor of Rome spoke
1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\tEntity=(1-person-new-sssss-cf1-2-coref
2-3\tmayorof\t_\t_\t_\t_\t_\t_\t_\t_
2\tmayor\tmayor\tNOUN\t_\tNumber=Sing\t5\tnsubj\t_\t_
3\tof\tof\tADP\t_\t_\t4\tcase\t_\t_
3.1\tx\t_\t_\t_\t_\t_\t_\t_\t_
4\tRome\tRome\tPROPN\t_\t_\t2\tnmod\t_\tEntity=(2-place-new-nnnnn-cf2-1-sgl-Rome%2DCity)1)|X=y
5\tspoke\tspeak\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No

1\tShe\tshe\tPRON\t_\t_\t2\tnsubj\t_\tEntity=(1-person-giv:act-sssss-cf1-1-ana)
2\tleft\tleave\tVERB\t_\t_\t0\troot\t_\tEntity=(3[1/2]-event-new-n-cf3-1-pred)
"""
ONTOGUM = "# begin document x\n0\tThe\t(1\n1\tmayor\t_\n2\tof\t_\n3\tRome\t(2)|1)\n\n4\tShe\t(1)\n# end document\n"
CONLL2012 = """#begin document (nw/x/00/x_0001); part 000
nw/x/00/x_0001 0 0 The DT (TOP(S(NP(NP* - - - - * - (0
nw/x/00/x_0001 0 1 big JJ * - - - - * - -
nw/x/00/x_0001 0 2 dogs NNS *) - - - - * - (3
nw/x/00/x_0001 0 3 of IN (PP* - - - - * - 3)
nw/x/00/x_0001 0 4 Rome NNP (NP*))) - - - - * - (1)|0)
nw/x/00/x_0001 0 5 bark VBP (VP* bark 01 1 - * (V*) -
nw/x/00/x_0001 0 6 . . *))) - - - - * - -

nw/x/00/x_0001 0 0 They PRP (TOP(S(NP*) - - - - * - (0)
nw/x/00/x_0001 0 1 run VBP (VP*))) run 01 1 - * (V*) -

#end document
"""
TSV = "sentence1\tsentence2\tscore\nA dog.\tA cat.\t2.5\nOne.\tTwo.\t0\n"
COLA = "gj04\t1\t\tDogs bark.\ngj04\t0\t*\tBark dogs the.\n"
CSV = 'text,pair,label\n"A ""big"" dog, it barks",x,1\n"two\nlines",y,0\n'
SENTEVAL = "tr\t1\tA dog barks .\nva\t0\tCats sleep .\nte\t1\tYes .\n"
EXEMPLAR = {
    "frame": "Copying",
    "text": "She  copied it out onto paper . ",
    "target": [[5, 11], [15, 18]],
    "fe": [["Copier", 0, 3], ["Goal", 19, 29], ["Hidden", None, None, "INI"]],
}
FRAMENET = json.dumps(EXEMPLAR) + "\n"
LEXUNIT = """<?xml version="1.0" encoding="UTF-8"?>
<lexUnit xmlns="http://framenet.icsi.berkeley.edu" name="copy.v" frame="Copying">
 <subCorpus><sentence ID="1"><text>She copied it out .</text>
  <annotationSet><layer rank="1" name="Target"><label start="4" end="9" name="Target"/></layer>
   <layer rank="1" name="FE"><label start="0" end="2" name="Copier"/><label itype="INI" name="Goal"/></layer>
  </annotationSet></sentence></subCorpus>
</lexUnit>
"""
FRAME = (
    '<?xml version="1.0"?><frame xmlns="http://framenet.icsi.berkeley.edu" name="Copying">'
    '<FE coreType="Core" name="Copier"/></frame>'
)


def zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


def tar(*files: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


THREE = [(f"d{'é' * 60}/{n}.txt", f"Document {n}.\n\nIts end.\n".encode()) for n in range(3)]


# --- targets --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A reader: the file it reads, its options, and right contents to start from; `pack` comes
    after the edits."""

    name: str
    file: str
    seeds: tuple[bytes, ...]
    spec: str = "{}"
    options: tuple[tuple[str, Any], ...] = ()
    pack: Callable[[bytes], bytes] | None = None

    def put(self, content: bytes, folder: Path) -> str:
        """Write an input; the SPEC that reads it."""
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(
            missing_ok=True
        )  # some file systems wait for the disk where one is cut and written again
        path.write_bytes(self.pack(content) if self.pack else content)
        if self.name == "framenet-xml":
            frame = folder / "fn" / "frame" / "Copying.xml"
            frame.parent.mkdir(parents=True, exist_ok=True)
            if not frame.exists():
                frame.write_bytes(FRAME.encode())
            return self.spec.format(folder / "fn")
        return self.spec.format(path)


def _target(
    name: str, file: str, *seeds: str | bytes, spec: str = "{}", pack: Any = None, **options: Any
) -> Target:
    contents = tuple(seed.encode() if isinstance(seed, str) else seed for seed in seeds)
    return Target(name, file, contents, spec, tuple(options.items()), pack)


TARGETS = {
    target.name: target
    for target in (
        _target("txt", "a.txt", PROSE, "one\ntwo\nthree\n"),
        _target("txt-pairs", "a.txt", PROSE, spec="txt-pairs:{}"),
        _target("jsonl", "a.jsonl", JSONL, FRAMENET, ARTICLES),
        _target(
            "jsonl-field",
            "a.jsonl",
            '{"body": "Some text."}\n{"body": ["a", "b"]}\n',
            text_field="body",
        ),
        _target("articles", "a.jsonl", ARTICLES, spec="articles:{}", overlapping=True),
        _target("conllu", "a.conllu", CONLLU),
        _target("conllu-text", "a.conllu", CONLLU, documents=True, text=True),
        _target("gum", "a.conllu", CONLLU, spec="gum:{}", skip_links=("pred",)),
        _target("conll", "a.conll", ONTOGUM, CONLL2012),
        _target("ontogum", "a.conll", ONTOGUM, spec="ontogum:{}"),
        _target("conll2012", "a.conll", CONLL2012, spec="conll2012:{}"),
        _target("tsv", "a.tsv", TSV, COLA),
        _target("csv", "a.csv", CSV, "text;label\na;b\n"),
        _target("senteval", "a.txt", SENTEVAL, spec="senteval:{}"),
        _target("framenet", "a.jsonl", FRAMENET, spec="framenet:{}", bad_spans="skip"),
        _target("framenet-xml", "fn/lu/lu1.xml", LEXUNIT, spec="framenet:{}"),
        _target(
            "gz",
            "a.txt.gz",
            gzip.compress(PROSE.encode() * 9, mtime=0),
            gzip.compress(b"x\n", mtime=0) * 3,
        ),
        _target(
            "xz", "a.jsonl.xz", lzma.compress(JSONL.encode()), lzma.compress(b'{"text": "x"}\n') * 2
        ),
        _target("bz2", "a.txt.bz2", bz2.compress(PROSE.encode() * 9), bz2.compress(b"x\n") * 3),
        _target(
            "tar",
            "a.tar",
            tar(*THREE),
            tar(*THREE, form=tarfile.GNU_FORMAT),
            tar(*THREE, form=tarfile.USTAR_FORMAT),
        ),
        _target("tar.gz", "a.tar.gz", tar(*THREE), pack=gzip.compress),
    )
}
with suppress(ImportError):  # where the extra is not installed; `test_packed.py` says so
    TARGETS["zst"] = _target("zst", "a.txt.zst", zstd(PROSE.encode() * 9), zstd(b"x\n") * 3)


# --- edits ----------------------------------------------------------------------------------------

# What was found to hurt, or might: each is put somewhere into a file that is right.
PAYLOADS: tuple[bytes, ...] = (
    b"9" * 5000,
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"99999999999999999999",
    b"1152921504606846976",
    b"\\ud800",
    b'"\\udfff\\u0000"',
    b"\xed\xa0\x80",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b"\n\n",
    b"\t",
    b"\t\t\t",
    b" " * 2000,
    b"#begin document" + b" " * 2000,
    b"# begin document ((((;;;; part part",
    b"# global.Entity = \n",
    b"# newdoc\n",
    b"[" * 3000,
    b'{"a":' * 1500,
    b"(" * 1500,
    b"(1" * 1000,
    b"(1)|" * 1000,
    b"1)" * 3,
    b"a" * 5000,
    b"(NP" * 1500 + b"*",
    b"*))))",
    b"<a>" * 1500,
    b"<!DOCTYPE a [<!ENTITY b 'bb'><!ENTITY c '&b;&b;&b;'>]>&c;",
    b'encoding="utf-7"',
    b'encoding="utf-32"',
    b'encoding="no-such"',
    b'encoding="rot13"',
    b"&#0;",
    b'"',
    b'""',
    b"'",
    b",",
    b";",
    b"\\",
    b"_",
    b"-",
    b"\xe2\x80\xa8",
    b"\xcc\x81" * 500,
    b"\xe2\x80\x8b" * 5,
    "٣".encode(),
    "²".encode(),
    b"true",
    b"[]",
    b"{}",
    b'"paragraphs": 3,',
    b"\x1b[31m",
    bytes(512),
    b"\x80" + bytes(10) + b"\x10",  # a size of 2^60 and more, as tar writes it in base 256
    b"\xff" * 12,  # a negative one
    b"77777777777\0",
    b"L",
    b"x",
    b"g",
    b"S",
)

Edit = tuple[
    str, float, float, int
]  # what, where (share of the file), how long (share of it), which payload
KINDS = ("insert", "replace", "delete", "repeat", "cut", "flip", "swap", "number", "field")


def edited(content: bytes, edits: Sequence[Edit]) -> bytes:
    """The content after the edits, one after another."""
    for kind, where, share, which in edits:
        at = int(where * len(content))
        end = min(len(content), at + 1 + int(share * share * len(content)))
        payload = PAYLOADS[which % len(PAYLOADS)]
        if kind == "insert":
            content = content[:at] + payload + content[at:]
        elif kind == "replace":
            content = content[:at] + payload + content[at + len(payload) :]
        elif kind == "delete":
            content = content[:at] + content[end:]
        elif kind == "repeat":
            content = content[:at] + content[at:end] * (2 + which % 30) + content[end:]
        elif kind == "cut":
            content = content[:at]
        elif kind == "flip" and content:
            at = min(at, len(content) - 1)
            content = content[:at] + bytes([content[at] ^ 1 << which % 8]) + content[at + 1 :]
        elif kind == "swap":
            content = content[end:] + content[at:end] + content[:at]
        elif kind in ("number", "field"):
            content = _swapped_piece(content, at, payload, digits=kind == "number")
        if len(content) > 300_000:
            content = content[:300_000]
    return content


def _swapped_piece(content: bytes, at: int, payload: bytes, digits: bool) -> bytes:
    """The number, or the field between separators, that comes next, exchanged for a payload."""
    fits = (lambda c: chr(c).isdigit()) if digits else (lambda c: c not in b'\t\n ,:"[]{}<>()|=')
    start = at
    while start < len(content) and not fits(content[start]):
        start += 1
    end = start
    while end < len(content) and fits(content[end]):
        end += 1
    return content[:start] + payload + content[end:]


# --- what must hold -------------------------------------------------------------------------------


def attack(target: Target, content: bytes, folder: Path, use: Callable[[Example], object]) -> str:
    """Read an input as a user would, and use each example. "read" or the sentence of the refusal;
    anything else that is raised is a fault of the reader."""
    spec = target.put(content, folder)
    try:
        for number, example in enumerate(open_corpus(spec, **dict(target.options))):
            example.fingerprint()
            json.dumps([example.text, example.words, example.origin], ensure_ascii=False).encode()
            if number < 5:
                use(example)
    except HeadwiseError as error:
        said = str(error)
        said.encode()  # it can be printed
        fit = len(said) < LONGEST_MESSAGE and "\n" not in said and "\x1b" not in said
        assert fit, f"{len(said)} characters are no sentence: {said[:300]!r}"
        return said
    return "read"
