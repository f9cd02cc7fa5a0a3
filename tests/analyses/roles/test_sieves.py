"""Sieves, features and pairs equal plain loops on made and real text; whatever a user can get wrong
is refused in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import slow_sieves
from headwise.analyses.features.predicates import known_features, parse_features
from headwise.analyses.roles.sieves import (
    TokenAxis,
    find_sieve,
    known_sieves,
    load_sieves,
    sieve,
    sieve_matrices,
    sieve_matrix,
)
from headwise.analyses.roles.sieves.registry import forget_sieve
from headwise.analyses.token_pairs.pairs import known_pairs, parse_pairs
from headwise.core.errors import ParameterError
from headwise.testing import planted_model
from headwise.testing.corpora import battery_examples
from headwise.text import open_corpus
from headwise.text.demo import demo_examples
from headwise.text.encode import Encoded, Encoder, collate
from headwise.text.example import Example

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sees",
    "not",
    "don",
    "'",
    "t",
    "do",
    "n't",
    ".",
    "?",
    "play|ing",
    "un|believ|able",
    "n’t",
    "ca",
]
COUNT = 50
IMPORT = "from headwise import sieve\n"


def rows_of(*examples: Example) -> list[Encoded]:
    return planted_model([["uniform"]], words=WORDS).encode(examples)


def compare(rows: list[Encoded]) -> None:
    for row in rows:
        n = range(len(row))
        for name, created in known_sieves().items():
            expected = [[slow_sieves.in_sieve(name, row, i, j) for j in n] for i in n]
            assert sieve_matrix(created, row).tolist() == expected, f"{name} on {row.example.where}"
        for name, feature in known_features().items():
            assert feature.tokens(row).tolist() == [
                slow_sieves.has_feature(name, row, t) for t in n
            ], f"{name} on {row.example.where}"
        for name, pair in known_pairs().items():
            assert pair.matrix(row).tolist() == [
                [slow_sieves.is_pair(name, row, i, j) for j in n] for i in n
            ], f"{name} on {row.example.where}"


def test_all_named_sieves_exist() -> None:
    assert {
        "local", "local:prev", "local:next", "syntactic", "nsubj", "dobj", "amod", "advmod", "block", "delimiter",
        "cls", "sep", "rare", "same_word", "same_word:other_segment", "siblings", "question_mark", "first",
        "previous", "duplicate", "induction", "sink",
    } <= set(known_sieves())  # fmt: skip
    assert set(known_features()) == {
        "noun",
        "verb",
        "pronoun",
        "subject",
        "object",
        "negation",
        "cls",
        "sep",
        "punct",
    }
    assert set(known_pairs()) == {
        "verb->subject",
        "subject->verb",
        "noun->pronoun",
        "pronoun->noun",
    }


def test_equal_to_loops_on_made_text() -> None:
    planted = planted_model(
        [["uniform"]], words=[w for e in battery_examples() for w in e.all_words]
    )
    compare(planted.encode(battery_examples()))
    tricky = [
        Example(words=("the", "unbelievable", "cat"), words_pair=("a", "playing", "cat", "?"),
                heads=(2, 2, -1, 4, 5, -1, 5),
                relations=("det", "amod", "root", "nsubj:pass", "advmod", "root", "punct")),
        Example(words=("playing",), heads=(-1,), relations=("root",)),
        Example(text="the cat sees a cat ?"),
        Example(text="the cat", pair="the dog ."),
    ]  # fmt: skip
    compare(rows_of(*tricky))


@pytest.mark.real
def test_equal_to_loops_on_real_text(shared: Path, wiki_bert: Path) -> None:
    from transformers import AutoTokenizer

    encoder = Encoder(AutoTokenizer.from_pretrained(wiki_bert), 64)
    gold = list(open_corpus(shared / "data" / "trees" / "en_ewt-ud-dev.conllu.xz", limit=COUNT))
    created = demo_examples(COUNT)
    rows = [encoder.encode(example, i) for i, example in enumerate([*gold, *created])]
    compare([row for row in rows if row is not None])


def test_edges_of_the_band_and_special_tokens() -> None:
    (row,) = rows_of(Example(text="the cat sees a dog"))
    n = len(row)
    assert n == 7
    local = sieve_matrix(find_sieve("local"), row)
    assert local.sum(1).tolist() == [3, 4, 5, 5, 5, 4, 3]
    assert sieve_matrix(find_sieve("local:prev"), row).sum(1).tolist() == [0, 1, 2, 2, 2, 2, 2]
    assert sieve_matrix(find_sieve("local:next"), row).sum(1).tolist() == [2, 2, 2, 2, 2, 1, 0]
    assert not sieve_matrix(find_sieve("block"), row).any()  # one segment
    assert sieve_matrix(find_sieve("delimiter"), row).nonzero()[1].tolist() == [0, n - 1] * n


def test_block_leaves_special_tokens_out() -> None:
    (row,) = rows_of(Example(text="the cat", pair="a dog sees"))
    block = sieve_matrix(find_sieve("block"), row)
    assert block.sum(1).tolist() == [0, 2, 2, 0, 3, 3, 3, 0]


def test_syntactic_links_reach_all_pieces_in_both_directions() -> None:
    (row,) = rows_of(
        Example(
            words=("unbelievable", "cat", "sees"),
            heads=(1, 2, -1),
            relations=("amod", "nsubj:outer", "root"),
        )
    )
    assert row.word.tolist() == [-1, 0, 0, 0, 1, 2, -1]
    amod = sieve_matrix(find_sieve("amod"), row)
    assert amod.nonzero()[0].tolist() == [1, 2, 3, 4, 4, 4]
    assert amod.nonzero()[1].tolist() == [4, 4, 4, 1, 2, 3]
    assert sieve_matrix(find_sieve("nsubj"), row)[4, 5]
    assert sieve_matrix(find_sieve("relation:amod"), row).tolist() == amod.tolist()


def test_blocks_of_rows_and_padding() -> None:
    rows = rows_of(Example(text="the cat sees a dog"), Example(text="the cat", pair="the dog"))
    batch = collate(rows, pad_to=12)
    chosen = [find_sieve(name) for name in ("local", "cls", "block", "same_word")]
    whole = sieve_matrices(chosen, batch)
    assert whole.shape == (2, 4, 12, 12)
    assert not whole[0, :, 7:].any()
    assert not whole[0, :, :, 7:].any()
    parts = [sieve_matrices(chosen, batch, start, start + 5) for start in (0, 5)] + [
        sieve_matrices(chosen, batch, 10, 12)
    ]
    assert np.concatenate([p.numpy() for p in parts], axis=2).tolist() == whole.numpy().tolist()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("they", "do", "n't", "play"), [1, 2]),
        (("they", "don’t"), [1]),
        (("don", "'", "t"), [0, 1, 2]),
        (("Not", "a", "Nothing"), [0, 2]),
        (("ca", "n’t"), [0, 1]),
        (("no", "where", "no"), []),  # only forms with an apostrophe are rejoined
        (("does", "n't"), []),  # not on the paper's list
    ],
)
def test_negation_words(words: tuple[str, ...], found: list[int]) -> None:
    planted = planted_model([["uniform"]], words=list(words))
    (row,) = planted.encode([Example(words=words)])
    mask = known_features()["negation"].tokens(row)
    assert sorted(set(row.word[mask].tolist())) == found


def test_negation_does_not_cross_segments() -> None:
    (row,) = rows_of(Example(words=("a", "do"), words_pair=("n't", "a")))
    assert not known_features()["negation"].tokens(row).any()


def test_own_features() -> None:
    example = Example(
        words=("the", "playing", "cat"),
        upos=("DET", "VERB", "NOUN"),
        lemmas=("the", "Play", "cat"),
        heads=(2, 2, -1),
        relations=("det", "acl:relcl", "root"),
    )
    (row,) = rows_of(example)
    created = parse_features(
        "play: upos=verb & lemma=PLAY|run; other: upos!=VERB ; clause: relation=acl; sub: relation=acl:relcl; "
        "edge: token=cls|sep; inner: token!=cls"
    )
    assert created["play"].tokens(row).tolist() == [False, False, True, True, False, False]
    assert created["other"].tokens(row).tolist() == [False, True, False, False, True, False]
    assert (
        created["clause"].tokens(row).tolist()
        == created["sub"].tokens(row).tolist()
        == created["play"].tokens(row).tolist()
    )
    assert created["edge"].tokens(row).nonzero()[0].tolist() == [0, 5]
    assert created["inner"].tokens(row).nonzero()[0].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modal", "names no feature"),
        ("modal: upos", "no condition"),
        ("modal: upos=", "no condition"),
        ("modal: tense=Past", "no key of a feature 'tense'"),
        ("modal: upos=NUON", "Did you mean 'NOUN'"),
        ("modal: token=eos", "cls, sep, punct"),
        ("noun: upos=NOUN", "Two features"),
        ("a: form=x; a: form=y", "Two features"),
        ("__import__('os'): form=x", "names no feature"),
    ],
)
def test_bad_features(text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parse_features(text)


def test_own_pairs() -> None:
    example = Example(
        words=("the", "cat", "sees", "a", "dog"),
        upos=("DET", "NOUN", "VERB", "DET", "NOUN"),
        heads=(1, 2, -1, 4, 2),
        relations=("det", "nsubj", "root", "det", "obj"),
    )
    (row,) = rows_of(example)
    created = parse_pairs(
        "d: upos=DET -> noun; up: upos=DET -> noun up det; no: upos=DET -> noun down det; by: noun -> any by det|obj",
        known_features(),
    )
    pairs = {
        name: list(zip(*(x.tolist() for x in pair.matrix(row).nonzero()), strict=True))
        for name, pair in created.items()
    }
    assert pairs == {
        "d": [(1, 2), (1, 5), (4, 2), (4, 5)],
        "up": [(1, 2), (4, 5)],
        "no": [],
        "by": [(2, 1), (5, 3), (5, 4)],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "names no pair"),
        ("x: noun", "names no pair"),
        ("x: nuon -> verb", "is no feature"),
        ("x: noun -> verb; x: verb -> noun", "Two pairs"),
        ("x: noun -> foo=1", "no key"),
    ],
)
def test_bad_pairs(text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parse_pairs(text, known_features())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda i, j: np.ones((3, 4), bool),
            r"shape \(3, 4\) for 7 queries and 7 keys; it must be \(7, 7\)",
        ),
        (lambda i, j: np.ones(7, bool), r"shape \(7,\)"),
        (lambda i, j: i.position + j.position, "gives int64"),
        (lambda i, j: i.nothing, "fails on .*AttributeError"),
    ],
)
def test_sieves_of_the_wrong_shape(function, message: str) -> None:
    sieve("wrong", "a mistake")(function)
    try:
        (row,) = rows_of(Example(text="the cat sees a dog"))
        with pytest.raises(ParameterError, match=message):
            sieve_matrix(find_sieve("wrong"), row)
    finally:
        forget_sieve("wrong")


def test_the_documented_sieves_work_as_they_stand(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "adding-an-analysis.md").read_text(
        encoding="utf-8"
    )
    (code,) = (
        block.removeprefix("python\n")
        for block in text.split("```")
        if "mine.py:" in block and "@sieve" in block
    )
    (tmp_path / "mine.py").write_text(code)
    example = Example(words=("cat", "sees", "a", "dog"), upos=("PROPN", "VERB", "DET", "NOUN"))
    try:
        load_sieves(str(tmp_path / "mine.py"))
        (row,) = rows_of(example)
        assert sieve_matrix(find_sieve("names"), row).sum(0).tolist() == [0, 6, 0, 0, 0, 0]
        assert sieve_matrix(find_sieve("verb:before"), row).nonzero() == (
            pytest.approx([3, 4]),
            pytest.approx([2, 2]),
        )
    finally:
        forget_sieve("names")
        forget_sieve("verb:before")
    named = [
        line.split('"extra=')[1].split('"')[0]
        for line in text.splitlines()
        if '--set "extra=' in line
    ]
    assert set(parse_features(named[0])) == {"modal", "proper"}
    assert set(parse_pairs(named[1], known_features())) == {"det", "adj"}


def test_a_sieve_of_ones_own_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    cats = "@sieve('cats', 'cats')\ndef cats(i, j):\n    return j.piece == 'cat'\n"
    file.write_text(IMPORT + cats)
    try:
        load_sieves(str(file))
        (row,) = rows_of(Example(text="the cat sees a dog"))
        assert sieve_matrix(find_sieve("cats"), row).sum(1).tolist() == [1] * 7
        assert list(known_sieves())[-1] == "cats"
        file.write_text(
            file.read_text().replace("'cat'", "'sees'")
            + "# a change of mind, in the same notebook\n"
        )
        os.utime(file, ns=(1, file.stat().st_mtime_ns + 10**9))
        load_sieves(str(file))
        assert sieve_matrix(find_sieve("cats"), row)[0].nonzero()[0].tolist() == [3]
        file.write_text(file.read_text().replace("'cats', 'cats'", "'seers', 'by another name'"))
        os.utime(file, ns=(1, file.stat().st_mtime_ns + 2 * 10**9))
        load_sieves(str(file))
        assert list(known_sieves())[-1] == "seers"
        assert "cats" not in known_sieves()  # no role of a later run
        with pytest.raises(ParameterError, match="Two sieves are called 'local'"):
            sieve("local", "")(lambda i, j: i)
    finally:
        forget_sieve("cats")
        forget_sieve("seers")
    (tmp_path / "taken.py").write_text(IMPORT + cats.replace("'cats', ", "'local', "))
    with pytest.raises(
        ParameterError,
        match=r"Two sieves are called 'local' \(in headwise.*builtin and in .*taken.py\)",
    ):
        load_sieves(str(tmp_path / "taken.py"))
    (tmp_path / "bad.py").write_text("1/0")
    with pytest.raises(ParameterError, match=r"cannot be loaded .ZeroDivisionError"):
        load_sieves(str(tmp_path / "bad.py"))
    with pytest.raises(ParameterError, match="no file"):
        load_sieves(str(tmp_path / "none.py"))
    with pytest.raises(ParameterError, match="cannot be loaded"):
        load_sieves("no_such_module_of_sieves")
    with pytest.raises(ParameterError, match="name must be"):
        sieve("two words", "")
    with pytest.raises(ParameterError, match="Did you mean 'local'"):
        find_sieve("locale")


def test_names_that_clash_are_refused_in_every_list(tmp_path: Path) -> None:
    cats = "@sieve('cats', 'cats')\ndef cats(i, j):\n    return j.piece == 'cat'\n"
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(IMPORT + cats)
    (tmp_path / "twice.py").write_text(IMPORT + cats.replace("'cats', ", "'two', ") * 2)
    try:
        load_sieves(str(tmp_path / "a" / "mine.py"))
        with pytest.raises(ParameterError, match=r"'cats' \(in .*a.mine.py and in .*b.mine.py\)"):
            load_sieves(
                str(tmp_path / "b" / "mine.py")
            )  # the same name of file and function: another sieve all the same
        with pytest.raises(ParameterError, match="Two sieves are called 'two'"):
            load_sieves(str(tmp_path / "twice.py"))

        def define(answer: bool) -> None:
            @sieve("again", "a cell that is run twice")
            def again(i: TokenAxis, j: TokenAxis) -> np.ndarray:
                return np.full((1, j.position.size), answer)

        define(False)
        define(True)  # replaces itself
        (row,) = rows_of(Example(text="the cat"))
        assert sieve_matrix(find_sieve("again"), row).all()
        with pytest.raises(ParameterError, match="Two sieves are called 'again'"):
            sieve("again", "")(lambda i, j: j.cls)
    finally:
        for name in ("cats", "two", "again"):
            forget_sieve(name)
    for text in ("noun: upos=NOUN", "mine: upos=NOUN; mine: upos=VERB"):
        with pytest.raises(ParameterError, match="Two features are called"):
            parse_features(text)
    for text in ("mine: noun -> verb; mine: verb -> noun", "noun->pronoun: noun -> verb"):
        with pytest.raises(ParameterError, match="Two pairs are called"):
            parse_pairs(text, known_features())


def test_a_relation_has_one_sieve() -> None:
    assert find_sieve("relation:det") is find_sieve(
        "relation:det"
    )  # a batch's matrices are remembered by it
