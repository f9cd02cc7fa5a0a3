"""FrameNet exemplars from JSON lines and from FrameNet's XML."""

from __future__ import annotations

import gzip
import json

import pytest

from headwise.core.errors import InputError, ParameterError
from headwise.text import FrameLink, open_corpus

FRAMES = {"Copying": {"fe": {"Copier": "Core", "Goal": "Peripheral", "Hidden": "Core-Unexpressed"}}}
ROW = {
    "frame": "Copying",
    "text": "She  copied it out onto paper . ",
    "target": [[5, 11], [15, 18]],
    "fe": [["Copier", 0, 3], ["Goal", 19, 29], ["Original", 11, 15], ["Hidden", None, None, "INI"]],
}


def put(folder, *rows, frames=FRAMES):
    path = folder / "exemplars.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if frames is not None:
        (folder / "frames.json.gz").write_bytes(gzip.compress(json.dumps(frames).encode()))
    return path


def test_links(tmp_path):
    path = put(tmp_path, ROW)
    for spec in (path, f"framenet:{path}"):
        corpus = open_corpus(spec)
        (example,) = corpus
        assert example.words == ("She", "copied", "it", "out", "onto", "paper", ".")
        assert set(example.frames) == {
            FrameLink("Copying", element, target, span, core)
            for target in ((1, 2), (3, 4))
            for element, span, core in (
                ("Copier", (0, 1), True),
                ("Goal", (4, 6), False),
                ("Original", (2, 3), True),
            )
        }
        assert corpus.notes == {"frame elements of unknown core type, taken as core": 1}


def test_core_types_from_elsewhere(tmp_path):
    path = put(tmp_path, ROW, frames=None)
    other = tmp_path / "core.json"
    other.write_text(json.dumps({"Copying": {"fe": {"Copier": "Peripheral"}}}))
    (example,) = open_corpus(f"framenet:{path}", frames=other)
    assert [link.core for link in example.frames if link.element == "Copier"] == [False, False]
    with pytest.raises(InputError, match=r"no file .* with the frames' core types"):
        open_corpus(f"framenet:{path}", frames=tmp_path / "none.json")
    other.write_text("[]")
    with pytest.raises(InputError, match=r"core\.json: not a table of frames"):
        open_corpus(f"framenet:{path}", frames=other)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"fe": [["Copier", 0, 99]]},
            r"the element Copier of Copying at characters 0\.\.99 lies outside the text of 32 characters",
        ),
        ({"fe": [["Copier", 5, 5]]}, "lies outside"),
        (
            {"target": [[40, 44]]},
            r"the target of Copying at characters \[\(40, 44\)\] lies outside",
        ),
        ({"target": []}, "the target of Copying"),
        ({"fe": [["Copier", "0", 3]]}, "not a FrameNet exemplar"),
    ],
)
def test_spans_outside_the_text(tmp_path, change, why):
    path = put(tmp_path, ROW, {**ROW, **change})
    with pytest.raises(InputError, match=why) as caught:
        list(open_corpus(path))
    assert "exemplars.jsonl:2: " in str(caught.value)
    corpus = open_corpus(f"framenet:{path}", bad_spans="skip")
    assert len(list(corpus)) == 1
    assert corpus.notes["exemplars left out: a span lies outside the text"] == 1
    with pytest.raises(ParameterError, match="bad_spans"):
        open_corpus(f"framenet:{path}", bad_spans="no")


def test_a_part_of_a_target_outside_is_left_out_and_counted(tmp_path):
    corpus = open_corpus(put(tmp_path, {**ROW, "target": [[5, 11], [40, 44]]}))
    (example,) = corpus
    assert {link.target for link in example.frames} == {(1, 2)}
    assert corpus.notes["parts of targets left out: outside the text"] == 1


LU = """<?xml version="1.0" encoding="UTF-8"?>
<lexUnit xmlns="http://framenet.icsi.berkeley.edu" frame="Copying" name="copy.v" ID="1">
  <header><frame><FE type="Core" name="Copier"/></frame></header>
  <subCorpus name="V">
    <sentence sentNo="0" ID="77">
      <text>I copied it onto paper .</text>
      <annotationSet status="UNANN" ID="1">
        <layer rank="1" name="PENN"><label end="2" start="0" name="PP"/></layer>
      </annotationSet>
      <annotationSet status="MANUAL" ID="2">
        <layer rank="1" name="FE">
          <label end="0" start="0" name="Copier"/>
          <label end="21" start="12" name="Goal"/>
          <label itype="INI" name="Hidden"/>
        </layer>
        <layer rank="2" name="FE"><label end="10" start="9" name="Second"/></layer>
        <layer rank="1" name="Target"><label end="7" start="2" name="Target"/></layer>
      </annotationSet>
    </sentence>
  </subCorpus>
</lexUnit>
"""
FRAME = """<frame xmlns="http://framenet.icsi.berkeley.edu" name="Copying">
<FE coreType="Core" name="Copier"/><FE coreType="Peripheral" name="Goal"/></frame>"""


@pytest.mark.parametrize("below", ["", "framenet_v17"])
def test_xml_folder(tmp_path, below):
    data = tmp_path / below
    (data / "lu").mkdir(parents=True)
    (data / "frame").mkdir()
    (data / "lu" / "lu1.xml").write_text(LU)
    (data / "frame" / "Copying.xml").write_text(FRAME)
    corpus = open_corpus(f"framenet:{tmp_path}")
    (example,) = corpus
    assert example.words == ("I", "copied", "it", "onto", "paper", ".")
    assert example.frames == (
        FrameLink("Copying", "Copier", (1, 2), (0, 1), True),
        FrameLink("Copying", "Goal", (1, 2), (3, 5), False),
    )
    assert example.origin.endswith("lu1.xml, sentence 77")
    (data / "lu" / "lu2.xml").write_text(LU.replace('end="21"', 'end="99"'))
    with pytest.raises(InputError, match=r"lu2\.xml, sentence 77: the element Goal"):
        list(open_corpus(f"framenet:{tmp_path}"))
    (data / "lu" / "lu2.xml").write_text(LU.replace("</subCorpus>", ""))
    with pytest.raises(InputError, match=r"lu2\.xml:\d+: the file is not well-formed XML"):
        list(open_corpus(f"framenet:{tmp_path}"))


@pytest.mark.real
def test_all_exemplars(shared):
    folder = shared / "data" / "frames"
    corpus = open_corpus(folder / "exemplars.jsonl.gz")
    core = {
        f: {e for e, kind in entry["fe"].items() if kind.startswith("Core")}
        for f, entry in json.loads(
            gzip.decompress((folder / "frames.json.gz").read_bytes())
        ).items()
    }
    count = 0
    rows = (
        json.loads(line)
        for line in gzip.decompress((folder / "exemplars.jsonl.gz").read_bytes()).splitlines()
        if line
    )
    for example, row in zip(corpus, rows, strict=True):
        count += 1
        overt = [fe for fe in row["fe"] if fe[1] is not None]
        parts = sum(a < len(row["text"]) for a, _ in row["target"])
        assert len(example.frames) == len(overt) * parts
        for link in example.frames[:1]:
            assert link.core == (link.element in core[row["frame"]])
            spelled = " ".join(example.words[slice(*link.span)])
            assert " ".join(row["text"][overt[0][1] : overt[0][2]].split()) in spelled
    assert count == 44603
    assert corpus.notes == {"parts of targets left out: outside the text": 7}
