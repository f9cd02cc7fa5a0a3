"""JSON lines: every field, both numberings of heads, and what is wrong with a row."""

from __future__ import annotations

import json

import pytest

from headwise.core.errors import InputError
from headwise.text import Example, FrameLink, Mention, open_corpus
from headwise.text.demo import demo_examples
from headwise.text.readers.rows import example_of_row, row_of_example


def opened(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return list(open_corpus(path))


FULL = {
    "words": ["The", "dog", "barks"],
    "words_pair": ["It", "runs"],
    "heads": [2, 3, 0, 5, 0],
    "relations": ["det", "nsubj", "root", "nsubj", "root"],
    "upos": ["DET", "NOUN", "VERB", "PRON", "VERB"],
    "lemmas": ["the", "dog", "bark", "it", "run"],
    "features": ["_", {"Number": "Sing"}, "Number=Sing|Person=3", None, {}],
    "mentions": [{"start": 0, "end": 2, "entity": 1, "head": 1}, [3, 4, "1"]],
    "frames": [
        {
            "frame": "Make_noise",
            "element": "Sound_source",
            "target": [2, 3],
            "span": [0, 2],
            "core": False,
        }
    ],
    "sentences": [0, 0, 0, 1, 1],
    "label": 1,
    "scheme": "stanford",
}


def test_everything(tmp_path):
    (example,) = opened(tmp_path, FULL)
    assert example.heads == (1, 2, -1, 4, -1)
    assert example.words_pair == ("It", "runs")
    assert example.features == ({}, {"Number": "Sing"}, {"Number": "Sing", "Person": "3"}, {}, {})
    assert example.mentions == (Mention(0, 2, "1", 1), Mention(3, 4, "1"))
    assert example.frames == (FrameLink("Make_noise", "Sound_source", (2, 3), (0, 2), False),)
    assert (example.label, example.scheme) == (1, "stanford")
    assert example.annotations == {
        "words",
        "dependencies",
        "pos",
        "coreference",
        "frames",
        "segments",
        "label",
    }


def test_heads_with_minus_one_are_zero_based(tmp_path):
    one, two = opened(
        tmp_path,
        {"words": ["a", "b", "c"], "heads": [1, -1, 1]},
        {"words": ["a", "b", "c"], "heads": [2, 0, 2]},
    )
    assert one.heads == two.heads == (1, -1, 1)


def test_texts_with_places_of_words(tmp_path):
    row = {
        "text": "a cat",
        "pair": "runs",
        "words": ["a", "cat"],
        "words_pair": ["runs"],
        "spans": [[0, 1], [2, 5], [0, 4]],
    }
    assert opened(tmp_path, row, "", {"text": "plain", "other": 3})[0] == Example(
        text="a cat",
        pair="runs",
        words=("a", "cat"),
        words_pair=("runs",),
        spans=((0, 1), (2, 5), (0, 4)),
        origin=f"{tmp_path}/rows.jsonl:1",
    )


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{broken", "not JSON"),
        ("[1]", "must be a JSON object, not a list"),
        ({"body": "x"}, "needs `text` or `words`; it has `body`; name the field"),
        ({"text": 3}, "`text` must be a text, not a number"),
        ({"words": "a b"}, "`words` must be a list, not a text"),
        ({"words": ["a", 1]}, "`words` must be a list of texts"),
        ({"text": "a b", "words": ["a", "b"]}, "needs `spans`"),
        (
            {"text": "a b", "words": ["a", "b"], "spans": [[0, 1], [2, 9]]},
            "2..9, lies outside its text of 3 characters",
        ),
        ({"words": ["a", "b"], "heads": [0]}, "`heads` has 1 entries for 2 words"),
        ({"words": ["a", "b"], "heads": [0, 3]}, "entry 2 is 3, outside 0..2 .*1-based"),
        ({"words": ["a", "b"], "heads": [-1, 2]}, "entry 2 is 2, outside -1..1 .*0-based"),
        ({"words": ["a", "b"], "heads": [0, "1"]}, "'1'; it must be a whole number"),
        ({"words": ["a", "b"], "heads": [2, 1]}, "cycle"),
        ({"words": ["a"], "mentions": [[0, 2, "x"]]}, "mention 0..2 lies outside"),
        ({"words": ["a"], "mentions": [{"start": 0, "end": 1}]}, "lacks 'entity'"),
        (
            {"words": ["a"], "mentions": [{"start": 0, "end": 1, "entity": "x", "head": 4}]},
            "head 4 of mention 0..1 lies outside",
        ),
        ({"words": ["a"], "mentions": ["x"]}, "a mention must be"),
        ({"words": ["a"], "frames": [{"frame": "F"}]}, "lacks `element`"),
        (
            {
                "words": ["a"],
                "frames": [{"frame": "F", "element": "E", "target": [0, 1], "span": [1, 3]}],
            },
            "frame span 1..3 lies outside",
        ),
        ({"text": "a", "label": [1]}, "`label` must be"),
        ({"text": "a", "heads": [0]}, "`heads` has 1 entries for no words"),
    ],
)
def test_broken_rows_say_where_and_why(tmp_path, row, why):
    with pytest.raises(InputError, match=why) as caught:
        opened(tmp_path, {"text": "fine"}, row)
    assert "rows.jsonl:2: " in str(caught.value)


def test_a_written_row_is_read_back_to_the_same_example():
    for example in (*demo_examples(12), Example(text="a cat", pair="runs", label=0.5)):
        row = json.loads(json.dumps(row_of_example(example)))
        assert example_of_row(row, example.origin) == example
