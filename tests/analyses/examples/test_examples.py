"""Examples and search: the best rows of planted heads, a state that merges, conditions that
hold."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import headwise
from headwise import make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.examples import RowCondition, find_rows
from headwise.analyses.examples.best_rows import BestRows
from headwise.cli.main import app
from headwise.core.errors import ParameterError
from headwise.models import HeadModel
from headwise.plots import figures_for
from headwise.plots.registry import tables_for
from headwise.testing import planted_decoder
from headwise.testing.toy import toy_folder
from headwise.text import Corpus
from headwise.text.example import Example

TEXTS = [
    "word1 word2 word3 word1",
    "word4 word5 word6 word7",
    "word4 word8 word9 word4",
    "word1 word1 word2",
]
CORPUS = Corpus.from_examples(
    [Example(text=t, document=f"d{i % 3}") for i, t in enumerate(TEXTS)], "texts"
)


@pytest.fixture(scope="module")
def model():
    made = planted_decoder(words=12, max_length=16)
    with HeadModel.open(made.model, tokenizer=made.tokenizer) as opened:
        opened.made = made
        yield opened


@pytest.fixture(scope="module")
def examples(model):
    return make_atlas(model, CORPUS, ["examples"], parameters={"examples": {"rows": 3}})["examples"]


def test_planted_heads_are_shown_at_work(model, examples) -> None:
    at = model.made.where("induction")
    assert str(examples["role"].values[at]) == "induction"
    assert examples["role_mean"].values[at] == pytest.approx(1, abs=1e-4)
    texts = [text for text in examples["role_text"].values[at] if text]
    # Documents d0 (first and last text) and d2 have an earlier occurrence; d1 has none.
    assert texts == ["[BOS] word1 ⟦word2⟧ word3 «word1»", "[BOS] word4 ⟦word8⟧ word9 «word4»"]
    assert str(examples["role"].values[model.made.where("previous")]) == "previous"
    assert (
        np.isnan(examples["sharp_weight"].values[model.made.where("sink")]).all()
        or (examples["sharp_weight"].values[model.made.where("sink")] < 1e-6).all()
    )


def test_rows_of_the_relation_that_a_head_follows(model) -> None:
    """The head that attends to the previous token follows a relation between neighbours, planted as
    `amod`; one between distant words, `obj`, it does not."""
    examples = []
    for number in range(24):
        words = (f"word{1 + number % 5}", f"word{6 + number % 5}", "word11")
        examples.append(
            Example(
                words=words,
                heads=(2, 0, -1),
                relations=("obj", "amod", "root"),
                document=f"d{number}",
            )
        )
    corpus = Corpus.from_examples(examples, "trees")
    rows = make_atlas(model, corpus, ["examples"], parameters={"examples": {"rows": 2}})["examples"]
    at = model.made.where("previous")
    assert set(rows["relation"].values[at].tolist()) == {"amod", "obj"}
    by_relation = dict(
        zip(rows["relation"].values[at].tolist(), rows["relation_mean"].values[at], strict=True)
    )
    assert by_relation["amod"] == pytest.approx(1, abs=0.02)
    assert by_relation["obj"] == pytest.approx(0, abs=0.02)
    choice = rows["relation"].values[at].tolist().index("amod")
    text = str(rows["relation_text"].values[at][choice][0])
    assert "⟦word1⟧ «word6»" in text


def test_the_state_merges_in_any_order() -> None:
    random = np.random.default_rng(0)
    values = random.integers(0, 6, (3, 20)).astype(float)
    places = np.stack(
        [
            np.tile(np.arange(20), (3, 1)),
            random.integers(0, 8, (3, 20)),
            *random.integers(0, 9, (2, 3, 20)),
        ],
        -1,
    )
    whole = BestRows(3, 4)
    whole.add(values, places)
    for cell in range(3):  # the slow way: sorted, first of each document
        seen, expected = set(), []
        for i in sorted(range(20), key=lambda i: (-values[cell, i], i)):
            if places[cell, i, 1] not in seen:
                seen.add(places[cell, i, 1])
                expected.append((values[cell, i], i))
        assert [
            (v, e) for v, e in zip(whole.values[cell], whole.places[cell, :, 0], strict=True)
        ] == expected[:4]
    for cut in (1, 7, 13):
        first, second = BestRows(3, 4), BestRows(3, 4)
        first.add(values[:, :cut], places[:, :cut])
        second.add(values[:, cut:], places[:, cut:])
        second.merge(first)
        np.testing.assert_array_equal(second.values, whole.values)
        np.testing.assert_array_equal(second.places, whole.places)


def test_search_finds_what_is_asked(model) -> None:
    hits = list(find_rows(model, CORPUS, "L1H0", RowCondition(role="induction")))
    assert [(h.query, h.key) for h in hits] == [(4, 2), (4, 2), (2, 2), (1, 2)] or len(hits) >= 3
    assert all(hit.weight > 0.3 for hit in hits)
    assert hits[0].text == "[BOS] word1 ⟦word2⟧ word3 «word1»"
    only = list(find_rows(model, CORPUS, "L1H0", RowCondition(token="word8")))
    assert [hit.text for hit in only] == ["[BOS] word4 ⟦word8⟧ word9 «word4»"]
    assert not list(find_rows(model, CORPUS, "L0H2"))  # it rests
    assert len(list(find_rows(model, CORPUS, "L0H2", RowCondition(sink=True)))) == sum(
        len(t.split()) + 1 for t in TEXTS
    )
    assert all(
        hit.text.count("«⟦word9⟧»")
        for hit in find_rows(model, CORPUS, "L1H1", RowCondition(query="word9"))
    )
    with pytest.raises(ParameterError, match="There is no head"):
        next(find_rows(model, CORPUS, "L9H0"))


def test_a_decoder_reads_the_built_in_corpus_as_running_text(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Example] = []
    monkeypatch.setattr(
        "headwise.run.find.find_rows",
        lambda model, corpus, *_: iter(read.extend(corpus) or ()),
    )
    done = CliRunner().invoke(
        app, ["find", "L0H0", str(toy_folder(tmp_path, causal=True)), "--limit", "9"]
    )
    assert done.exit_code == 0, done.output
    assert len(read) == 9
    assert not any(example.has_pair for example in read)


def test_command_figures_table_headline(examples) -> None:
    done = CliRunner().invoke(
        app, ["find", "L0H2", "--limit", "4", "--above", "0.3", "--hits", "2"]
    )
    assert done.exit_code == 0, done.output
    assert len(done.output.strip().splitlines()) == 2
    assert [one.name for spec in figures_for("examples") for one in spec.draw(examples)] == [
        "heads"
    ]
    assert len(tables_for("examples")[0].function(examples)) == 6
    assert make_analysis("examples").summary(examples)


def test_the_public_function_takes_the_options_of_the_command(model) -> None:
    rows = headwise.find("L1H0", model, CORPUS, role="induction", hits=2)
    assert rows == list(find_rows(model, CORPUS, "L1H0", RowCondition(role="induction")))[:2]
    with pytest.raises(ParameterError, match="`above` must be between 0 and 1"):
        headwise.find("L1H0", model, CORPUS, above=1.5)
    with pytest.raises(ParameterError, match="no option of find 'roles'"):
        headwise.find("L1H0", model, CORPUS, roles="induction")
