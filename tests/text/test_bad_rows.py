"""Rows without text, and rows that cannot be read: skipped and counted, or an error that names the
way out, in every reader."""

from __future__ import annotations

import json
import sys
import types

import pytest

from headwise.core.errors import InputError, ParameterError
from headwise.text import open_corpus

FRAME = {"frame": "F", "text": "a b", "target": [[0, 1]], "fe": [["E", 2, 3]]}
TREE_ROW = "1\t{}\t_\tX\t_\t_\t{}\troot\t_\t_\n"
# Columns of CoNLL-2012: document, part, number, word, tag, parse, ..., coreference.
CONLL2012_ROW = "d 0 0 {} NN (TOP*) - - - - * -\n"


def lines(*rows: object) -> str:
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return "\n".join(texts) + "\n"


# A good unit, a blank one, a malformed one and a good one, by format; the malformed one begins (or
# is wrong) in the third line or later.
FILES = {
    "a.jsonl": lines({"text": "one"}, {"text": " "}, {"text": 3}, {"text": "two"}),
    "null.jsonl": lines({"text": "one"}, {"text": None}, "{broken", {"text": "two"}),
    "words.jsonl": lines({"words": ["one"]}, {"words": []}, {"words": [1]}, {"words": ["two"]}),
    "nothing.jsonl": lines({"text": "one"}, {}, [1], {"text": "two"}),
    "field.jsonl": lines({"content": "one"}, {"content": None}, {"no": 1}, {"content": "two"}),
    "chat.jsonl": lines(
        {"messages": [["user", "one"]]},
        {"messages": []},
        {"messages": [3]},
        {"messages": [["user", "two"]]},
    ),
    "a.csv": lines("text,label", "one,1", ",2", "x,y,z", "two,1"),
    "blank.csv": lines("text,label", "one,1", ",", "x,y,z", "two,1"),
    "a.tsv": lines("text\tlabel", "one\t1", " \t2", "x\ty\tz", "two\t1"),
    "senteval:a.txt": lines("tr\t0\tone", "tr\t1\t ", "xx\t1\tz", "tr\t0\ttwo"),
    "framenet:a.jsonl": lines(FRAME, FRAME | {"text": " "}, FRAME | {"target": 3}, FRAME),
    "articles:a.jsonl": lines(
        {"paragraphs": ["one", "x"]},
        {"paragraphs": [" "]},
        {"paragraphs": "x"},
        {"paragraphs": ["two", "x"]},
    ),
}
# Formats whose units have several rows: a blank line ends them, so that none is blank.
WITHOUT_BLANKS = {
    "a.conllu": TREE_ROW.format("one", 0) + "\n1\tbad\trow\n\n" + TREE_ROW.format("two", 0),
    "cycle.conllu": TREE_ROW.format("one", 0)
    + "\n"
    + TREE_ROW.format("bad", 1)
    + "\n"
    + TREE_ROW.format("two", 0),
    "gum:a.conllu": "# newdoc id = a\n"
    + TREE_ROW.format("one", 0)
    + "\n# newdoc id = b\n"
    + TREE_ROW.format("fine", 0)
    + "\n1\tbad\trow\n\n# newdoc id = c\n"
    + TREE_ROW.format("two", 0),
    "a.conll": "# begin document a\n1\tone\t_\n# end document\n# begin document b\n1\tbad\n"
    "# end document\n# begin document c\n1\ttwo\t_\n",
    "conll2012:b.conll": "#begin document (a)\n"
    + CONLL2012_ROW.format("one")
    + "#begin document (b)\nd 0 0 bad\n#begin document (c)\n"
    + CONLL2012_ROW.format("two"),
}


def write(tmp_path, spec, content):
    format_name, colon, name = spec.rpartition(":")
    path = tmp_path / name
    path.write_text(content)
    return f"{format_name}{colon}{path}"


def first_words(corpus):
    return [(example.text or example.words[0]).split()[0] for example in corpus]


@pytest.mark.parametrize("spec", FILES)
def test_blank_rows_are_skipped_and_counted(tmp_path, spec):
    rows = FILES[spec].split("\n")
    without_bad = "\n".join(row for number, row in enumerate(rows) if number != len(rows) - 3)
    path = write(tmp_path, spec, without_bad)
    corpus = open_corpus(path)
    expected = ["a", "a"] if spec.startswith("framenet") else ["one", "two"]
    assert first_words(corpus) == expected
    assert corpus.notes["blank rows skipped"] == 1
    if spec == "blank.csv":
        return  # a line of empty fields is no row, even where rows are checked
    with pytest.raises(InputError, match=r"is null|is empty|no text|empty object") as caught:
        list(open_corpus(path, bad_rows="error"))
    assert f"{path.rpartition(':')[2]}:" in str(caught.value)
    assert str(caught.value).endswith("or leave out bad_rows=error to skip blank rows.")


@pytest.mark.parametrize("spec", [*FILES, *WITHOUT_BLANKS])
def test_malformed_rows_name_the_way_out(tmp_path, spec):
    content = (FILES | WITHOUT_BLANKS)[spec]
    path = write(tmp_path, spec, content)
    with pytest.raises(InputError, match=r"skip such rows with bad_rows=skip\.$") as caught:
        list(open_corpus(path))
    assert caught.value.option in ("reader bad_rows=skip", "text_field")
    corpus = open_corpus(path, bad_rows="skip")
    expected = ["a", "a"] if spec.startswith("framenet") else ["one", "two"]
    assert first_words(corpus) == expected
    assert corpus.notes.get("blank rows skipped", 0) == (1 if spec in FILES else 0)
    (broken,) = [note for note in corpus.notes if note.startswith("broken rows left out (first: ")]
    assert corpus.notes[broken] == 1


def test_null_is_said(tmp_path):
    for name in ("text", "words", "messages"):
        path = write(tmp_path, "a.jsonl", lines({name: None}, {"text": "x"}))
        with pytest.raises(InputError, match=rf"a\.jsonl:1: `{name}` is null;"):
            list(open_corpus(path, bad_rows="error"))
    path = write(tmp_path, "a.jsonl", lines({"body": None}, {"body": "x"}))
    with pytest.raises(InputError, match=r"a\.jsonl:1: `body` is null;"):
        list(open_corpus(path, bad_rows="error", text_field="body"))
    assert first_words(open_corpus(path, text_field="body")) == ["x"]


def test_blank_lines_are_counted(tmp_path):
    corpus = open_corpus(write(tmp_path, "a.jsonl", '{"text": "a"}\n\n  \n{"text": "b"}\n'))
    assert first_words(corpus) == ["a", "b"]
    assert corpus.notes["blank rows skipped"] == 2


def test_nothing_but_blank_rows_is_an_error(tmp_path):
    with pytest.raises(InputError, match="blank rows skipped: 2"):
        open_corpus(write(tmp_path, "a.jsonl", lines({"text": ""}, {"text": None})))


def test_limits_hold_whatever_is_skipped(tmp_path):
    path = write(tmp_path, "a.jsonl", lines({"text": "x" * 50}, {"text": "x"}))
    with pytest.raises(InputError, match="max_text"):
        list(open_corpus(path, bad_rows="skip", max_text=20))


def test_rows_of_the_hub(monkeypatch):
    rows = [{"text": "one"}, {"text": None}, {"text": 3}, {"text": "two"}]

    class Dataset(list):
        features = None
        info = None

    module = types.ModuleType("datasets")
    module.load_dataset = lambda *args, **options: Dataset(rows)
    monkeypatch.setitem(sys.modules, "datasets", module)
    with pytest.raises(InputError, match=r"row 3: `text` must be a text.*bad_rows=skip"):
        list(open_corpus("hf:a:train"))
    corpus = open_corpus("hf:a:train", bad_rows="skip")
    assert first_words(corpus) == ["one", "two"]
    assert corpus.notes["blank rows skipped"] == 1


def test_other_values_are_rejected(tmp_path):
    for spec in ("a.jsonl", "a.conllu"):
        path = write(tmp_path, spec, (FILES | WITHOUT_BLANKS)[spec])
        with pytest.raises(ParameterError, match="bad_rows"):
            open_corpus(path, bad_rows="maybe")
