"""CSV, named text fields, and plain text by lines or paragraphs."""

from __future__ import annotations

import csv
import json

import pytest

from headwise.core.errors import InputError, ParameterError
from headwise.text import open_corpus
from headwise.text.readers.plain import AS_LINES, AS_PARAGRAPHS


def put(path, text):
    path.write_bytes(text.encode())
    return path


def test_csv(tmp_path):
    path = put(
        tmp_path / "a.csv",
        'text,label\r\n"A ""big"" dog, it barks",x\r\n\r\n"two\nlines",y\r\nplain,z\r\n',
    )
    assert [(e.text, e.label, e.origin) for e in open_corpus(path)] == [
        ('A "big" dog, it barks', "x", f"{path}:2"),
        ("two\nlines", "y", f"{path}:4"),
        ("plain", "z", f"{path}:6"),
    ]
    semicolons = put(tmp_path / "b.csv", "premise;hypothesis;label\na, b;c;d\n")
    (example,) = open_corpus(semicolons)
    assert (example.text, example.pair, example.label) == ("a, b", "c", "d")
    (example,) = open_corpus(put(tmp_path / "c.csv", "text|score\na|2.5\n"), delimiter="|")
    assert (example.text, example.label) == ("a", 2.5)
    assert csv.field_size_limit() == 131072  # left as it was


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            "text,label\na,b\nc\n",
            r"a\.csv:3: the row has 1 columns where the first line has 2; fix",
        ),
        ('text,label\n"a"b,c\n', r"a\.csv:2: the row that starts here is not CSV"),
        (
            'text,label\nx,y\n"a\nb,c\n',
            r"a\.csv:3: the row that starts here is not CSV \(unexpected end of data\)",
        ),
        (
            "id,name\n1,2\n",
            r"a\.csv:1: the header names no text column .* it has id, name\. .*text_field",
        ),
    ],
)
def test_broken_csv(tmp_path, content, why):
    with pytest.raises(InputError, match=why):
        list(open_corpus(put(tmp_path / "a.csv", content)))


def test_options_of_tables(tmp_path):
    path = put(tmp_path / "a.csv", "text,label\na,b\nc\nd,e\n")
    assert [e.text for e in open_corpus(path, bad_rows="skip")] == ["a", "d"]
    for wrong in ({"delimiter": "::"}, {"bad_rows": "maybe"}, {"delimiter": 3}, {"text_field": 5}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            open_corpus(path, **wrong)
    with pytest.raises(
        ParameterError,
        match="`documents` of the format conllu must be true or false; it is 'perhaps'",
    ):
        open_corpus(f"conllu:{path}", documents="perhaps")


ROWS = [
    {"id": 1, "body": "One.", "reply": "Yes.", "score": 2.5},
    {"id": 2, "body": "Two.", "reply": "No.", "score": 1},
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv"])
def test_the_text_field_by_name(tmp_path, name):
    mark = "\t" if name.endswith("tsv") else ","
    table = "".join(
        mark.join(map(str, row)) + "\n" for row in ([*ROWS[0]], *(row.values() for row in ROWS))
    )
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    path = put(tmp_path / name, lines if name.endswith("jsonl") else table)
    assert [e.text for e in open_corpus(path, text_field="body")] == ["One.", "Two."]
    first = next(iter(open_corpus(path, text_field="body,reply")))
    assert (first.text, first.pair, float(first.label)) == ("One.", "Yes.", 2.5)
    with pytest.raises(
        InputError, match=r":1: there is no field 'text' \(text_field\); there are: id, body, reply"
    ):
        open_corpus(path, text_field="text")


def test_fields_known_without_name(tmp_path):
    rows = [
        {"content": "A."},
        {"prompt": "B?", "completion": "C."},
        {"prompt": "D?", "completion": ""},
        {"prompt": "E?"},
        {"tokens": ["F", "G"]},
        {"sentence1": "H", "sentence2": "I", "label": 1},
        {"text": "J", "content": "not this"},
    ]
    path = put(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    found = [(e.text, e.pair, e.words) for e in open_corpus(path)]
    assert found == [
        ("A.", None, None),
        ("B?", "C.", None),
        ("D?", None, None),
        ("E?", None, None),
        (None, None, ("F", "G")),
        ("H", "I", None),
        ("J", None, None),
    ]
    (example,) = open_corpus(
        put(tmp_path / "w.jsonl", '{"parts": ["a", "b"], "text": "x"}'), text_field="parts"
    )
    assert (example.words, example.text) == (("a", "b"), None)


def test_lines_or_paragraphs(tmp_path):
    lines = put(tmp_path / "a.txt", "\none two\nthree\n  four \n\n")
    corpus = open_corpus(lines)
    assert [(e.text, e.origin) for e in corpus] == [
        ("one two", f"{lines}:2"),
        ("three", f"{lines}:3"),
        ("four", f"{lines}:4"),
    ]
    assert corpus.notes == {AS_LINES: 1}
    assert "split=paragraphs" in AS_LINES
    whole = open_corpus(lines, split="paragraphs")
    assert [e.text for e in whole] == ["one two three four"]
    assert whole.notes == {}
    paragraphs = put(tmp_path / "b.txt", "one\ntwo\n\nthree\n")
    corpus = open_corpus(paragraphs)
    assert [e.text for e in corpus] == ["one two", "three"]
    assert corpus.notes == {AS_PARAGRAPHS: 1}
    assert [e.text for e in open_corpus(paragraphs, split="lines")] == ["one", "two", "three"]
    with pytest.raises(ParameterError, match="split"):
        open_corpus(paragraphs, split="words")
    late = put(
        tmp_path / "c.txt", "line\n" * 2000 + "\nlast\n"
    )  # a blank line far down changes nothing
    assert sum(1 for _ in open_corpus(late)) == 2001


def test_nothing_is_said_of_how_an_empty_file_was_read(tmp_path):
    with pytest.raises(InputError, match="empty holds no examples; use a corpus"):
        list(open_corpus(put(tmp_path / "empty.txt", "\n")))
