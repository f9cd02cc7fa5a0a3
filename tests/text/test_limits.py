"""The limits of readers: each refused with file, line and name, and raised by that name; and what
is no file."""

from __future__ import annotations

import gzip
import json
import os
import random
from dataclasses import fields
from pathlib import Path

import pytest

from headwise.core.errors import InputError, ParameterError
from headwise.text import Corpus, Example, Spec, open_corpus
from headwise.text.readers import FORMATS
from headwise.text.readers.entities import TreeHeads, bracketed, tree_head
from headwise.text.readers.limits import Limits, Walk, guarded, shown, whole_number
from headwise.text.readers.ptb import PhraseHeads, phrases

WORDS = "".join(f"{n}\tw\t_\t_\t_\t_\t_\t_\t_\t_\n" for n in range(1, 13))
MARKS = "".join(f"{n}\tw\t(1)\n" for n in range(12))
TREE = "x 0 0 a NN " + "(NP" * 12 + "*" + ")" * 12 + " - - - - * - -\n"
FRAMES = json.dumps({"frame": "F", "text": "a b", "target": [[0, 1]] * 4, "fe": [["E", 2, 3]] * 3})


@pytest.mark.parametrize(
    ("name", "content", "limit", "value", "line"),
    [
        ("a.txt", "short\n\n" + "x" * 30 + "\n", "max_line", 20, 3),
        ("a.txt", "one\n\n" + "word\n" * 9, "max_text", 20, 3),
        ("a.jsonl", '{"text": "a"}\n{"text": "' + "b" * 30 + '"}', "max_text", 20, 2),
        ("a.csv", 'text,label\n"never closed,\n' + "a,b\n" * 9, "max_text", 20, 2),
        ("a.conllu", WORDS, "max_words", 10, 11),
        ("a.conllu", "# text = x\n" * 11 + WORDS, "max_words", 10, 11),
        ("a.conllu", WORDS, "max_whole", 100, 6),
        ("a.conll", MARKS, "max_words", 10, 11),
        ("a.conll", MARKS, "max_marks", 5, 6),
        ("a.conll", "0\ta\t" + "(1)|" * 11 + "\n", "max_marks", 10, 1),
        ("a.conll", MARKS, "max_whole", 30, 5),
        ("a.conll", TREE, "max_depth", 10, 1),
        ("a.jsonl", FRAMES, "max_marks", 10, 1),
        ("a.jsonl", '{"words": ' + json.dumps(["w"] * 12) + "}", "max_words", 10, 1),
    ],
)
def test_each_limit_is_a_sentence_and_can_be_raised(tmp_path, name, content, limit, value, line):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        list(open_corpus(path, **{limit: value}))
    said = str(caught.value)
    assert said.startswith(f"{path}:{line}: "), said
    assert f"more than {value} " in said or f"more than {value}" in said
    assert f"{limit}=NUMBER" in said
    assert caught.value.option == f"reader {limit}=NUMBER"
    if "never closed" not in content:
        assert len(list(open_corpus(Spec(path, {limit: 100_000})))) > 0


def test_limits_are_checked_themselves(tmp_path):
    for wrong in (0, -1, "many", True, 1.5, None):
        with pytest.raises(ParameterError, match="max_line"):
            open_corpus(tmp_path / "a.txt", max_line=wrong)


def test_what_unpacks_to_too_much(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "%s"}\n' % (b"a" * 2000) * 900))
    with pytest.raises(
        InputError,
        match=r"a\.jsonl\.gz:\d+: it unpacks to more than 250 times its size \(the limit max_ratio",
    ):
        list(open_corpus(path))
    with pytest.raises(InputError, match=r"more than 100,000 bytes \(the limit max_expanded"):
        list(open_corpus(path, max_expanded=100_000, max_ratio=10_000))
    assert sum(1 for _ in open_corpus(path, max_ratio=10_000, limit=800)) == 800
    small = tmp_path / "b.jsonl.gz"
    small.write_bytes(
        gzip.compress(b'{"text": "%s"}\n' % (b"a" * 2000) * 300)
    )  # as repetitive, but no burden
    assert small.stat().st_size * 250 < 300 * 2013
    assert sum(1 for _ in open_corpus(small)) == 300


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "zero.tar").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe.txt", tmp_path / "zero.tar"):
        with pytest.raises(InputError, match="is a pipe or device, not a file"):
            open_corpus(path)
    with pytest.raises(InputError, match=r"cannot be used \(File name too long\)"):
        open_corpus("x" * 5000 + ".txt")


def test_any_error_of_a_parser_becomes_a_sentence_with_its_cause():
    def reader():
        yield Example(text="one")
        raise RecursionError("deep")

    examples = guarded(reader(), Walk(label="f.x", line=3), "a format")
    assert next(examples).text == "one"
    with pytest.raises(
        InputError, match=r"^f\.x:3: this cannot be read as a format \(RecursionError: deep\)"
    ) as caught:
        next(examples)
    assert isinstance(caught.value.__cause__, RecursionError)  # for --debug


def test_values_in_messages_are_cut_and_harmless(tmp_path):
    assert shown("a" * 100) == "a" * 80 + "…"
    assert shown("\x1b[31m\ud800\n") == "\\x1b[31m\\ud800\\n"
    path = tmp_path / "a.conllu"
    path.write_text("1\tw\t_\t_\t_\t_\t" + "9" * 5000 + "\tx\t_\t_\n")
    with pytest.raises(InputError, match=r"a\.conllu:1: HEAD is '9{80}…'; it must be a number"):
        open_corpus(path)
    assert whole_number("١٢") == 12


def test_halves_of_surrogate_pairs(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"words": ["a\\ud800b", "c\\u0000"], "label": "\\udfff"}\n{"text": "\\ud83d\\ude00"}\n'
    )
    corpus = open_corpus(path)
    first, second = corpus
    assert first.words == ("a\ufffdb", "c\ufffd")
    assert first.label == "\ufffd"
    assert second.text == "😀"
    assert corpus.notes == {
        "texts with an unpaired surrogate or NUL in an escape, read as U+FFFD": 3
    }
    assert corpus.fingerprint()
    for wrong in (
        {"text": "a\ud800"},
        {"words": ("a",), "relations": ("\0",)},
        {"text": "é", "label": "\udc00"},
    ):
        with pytest.raises(InputError, match="an unpaired surrogate or NUL"):
            Example(**wrong)
    with pytest.raises(InputError, match="texts:1: it contains an unpaired"):
        Corpus.from_texts(["\udc00"])
    (tmp_path / "nul.txt").write_bytes(b"a\0b\n")
    corpus = open_corpus(tmp_path / "nul.txt")
    assert [e.text for e in corpus] == ["a\ufffdb"]
    assert corpus.notes["lines with NUL characters, read as U+FFFD"] == 1


def test_numbers_too_large(tmp_path):
    path = tmp_path / "a.jsonl"
    for row, why in (
        ('{"text": "a", "label": ' + "9" * 5000 + "}", "not JSON that can be read"),
        ('{"text": "a", "label": ' + "9" * 400 + "}", "more than 18 digits"),
        ('{"words": ["a"], "sentences": [99999999999]}', "37 bits, which is not an index"),
        ("[" * 100_000, "RecursionError"),
    ):
        path.write_text(row)
        with pytest.raises(InputError, match=why):
            open_corpus(path)


def test_head_words_by_a_slow_search():
    rng = random.Random(3)
    for _ in range(60):
        count = rng.randint(1, 40)
        order = rng.sample(range(count), count)
        heads = [-1] * count
        for place, word in enumerate(order[1:], 1):
            heads[word] = rng.choice([-1, *order[:place]])
        quick = TreeHeads(heads)
        for start in range(count):
            for end in range(start + 1, count + 1):
                tops = [w for w in range(start, end) if not start <= heads[w] < end]
                some = rng.sample(range(count), min(3, count))
                wanted = next((w for w in tops if w in some), tops[0])
                assert quick(start, end) == tree_head(start, end, heads) == tops[0]
                assert quick(start, end, some) == wanted


def test_heads_of_flat_stretches_by_the_rules_themselves():
    from headwise.text.readers.ptb import Phrase, _head

    rng = random.Random(4)
    for _ in range(300):
        tags = rng.choices(
            ["NN", "DT", "IN", "POS", "CC", "NP", "PRP", "CD", "JJ", "VB", "$"],
            k=rng.randint(1, 12),
        )
        bits = ["*"] * len(tags)
        head_of = PhraseHeads(phrases(bits, ["x"] * len(tags), [0] * len(tags)), tags)
        for start in range(len(tags)):
            for end in range(start + 1, len(tags) + 1):
                flat = Phrase("NP", start, end, list(range(start, end)))
                assert head_of(start, end) == _head(flat, tags)


def test_brackets_of_all_kinds():
    def brackets_of(text):
        return [
            (b.start, b.end, b.opening)
            for b in bracketed([("(9", "x:1"), (text, "x:2"), ("9)", "x:3")], Limits())
        ]

    assert brackets_of("(1)|(2-a)(3)") == [(1, 2, "1"), (1, 2, "2-a"), (1, 2, "3"), (0, 3, "9")]
    assert brackets_of("(1(1)1)9)(9") == [(1, 2, "1"), (1, 2, "1"), (0, 2, "9"), (1, 3, "9")]
    for wrong in ("1", "()", "((", "(1)2", "a|b", "(|1)", ")"):
        with pytest.raises(InputError, match=r"x:2: .* is not a list of brackets"):
            brackets_of(wrong)


def test_the_documents_name_every_limit_and_option():
    written = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    for entry in fields(Limits):
        assert f"| `{entry.name}` | {entry.default:,} |" in written
    for format in FORMATS.values():
        for option in format.options:
            assert option in ("tokenizer", "max_tokens") or f"`{option}`" in written, (
                format.name,
                option,
            )
