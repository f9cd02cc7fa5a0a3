"""`features`: equal to loops over tokens on planted heads and a real model; what matches nothing is
named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import slow_sieves
from headwise import Corpus, HeadModel, make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.features.predicates import known_features
from headwise.core.errors import MissingAnnotationError, ParameterError
from headwise.testing import eager_maps, planted_annotations, planted_model
from headwise.testing.corpora import battery_examples
from headwise.text import open_corpus
from headwise.text.demo import demo_examples
from headwise.text.encode import Encoded
from headwise.text.example import Example

COUNT = 50 if os.environ.get("HEADWISE_FULL") else 4


def compare(
    dataset: xr.Dataset, maps: Sequence[np.ndarray], rows: Sequence[Encoded], causal: bool
) -> None:
    for name in known_features():
        from_all, from_first, uniform, excess, opens = [], [], [], [], []
        for full, row in zip(maps, rows, strict=True):
            tokens = [t for t in range(len(row)) if slow_sieves.has_feature(name, row, t)]
            if tokens:
                n = len(row)
                from_all.append(
                    np.max([sum(full[:, :, i, t] for i in range(n)) / n for t in tokens], axis=0)
                )
                from_first.append(np.max([full[-1, :, 0, t] for t in tokens], axis=0))
                uniform.append(
                    max(
                        sum(1 / (i + 1) for i in range(t, n)) / n if causal else 1 / n
                        for t in tokens
                    )
                )
                opens.append(float(0 in tokens))
                differences = []
                for t in tokens:
                    near = [
                        u for u in (t - 2, t - 1, t + 1, t + 2) if 0 < u < n and u not in tokens
                    ]
                    even = [u for u in near if 2 * t - u in near]
                    if t and near:
                        got = {u: sum(full[:, :, i, u] for i in range(n)) for u in (t, *near)}
                        differences.append(got[t] - np.mean([got[u] for u in even or near], axis=0))
                if differences:
                    excess.append(np.mean(differences, axis=0))
        one = dataset.sel(feature=name)
        assert (one["excess_n"] == len(excess)).all(), name
        if excess:
            np.testing.assert_allclose(
                one["excess"], np.mean(excess, axis=0), atol=1e-5, err_msg=name
            )
        assert (one["attention_n"] == len(from_all)).all(), name
        assert int(one["inputs_left_out"]) == len(rows) - len(from_all)
        if not from_all:
            assert one["attention"].isnull().all()
            continue
        np.testing.assert_allclose(
            one["attention"], np.mean(from_all, axis=0), atol=2e-6, err_msg=name
        )
        assert float(one["first"]) == pytest.approx(np.mean(opens))
        np.testing.assert_allclose(one["uniform"], np.mean(uniform), atol=2e-6, err_msg=name)
        if causal:
            assert one["from_cls"].isnull().all()
        else:
            np.testing.assert_allclose(
                one["from_cls"], np.mean(from_first, axis=0), atol=2e-6, err_msg=name
            )


@pytest.mark.parametrize("causal", [False, True])
def test_equal_to_loops_on_planted_heads(causal: bool) -> None:
    examples = battery_examples()
    planted = planted_model(
        [["previous", "uniform"], ["first", "same_word"]],
        causal=causal,
        words=[w for e in examples for w in e.all_words],
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    dataset = make_atlas(model, Corpus.from_examples(examples), ["features"])["features"]
    rows = [model.encode(example, i) for i, example in enumerate(examples)]
    compare(dataset, [planted.expected_map(row) for row in rows], rows, causal)


@pytest.mark.real
def test_equal_to_loops_on_a_real_model(shared: Path, wiki_model: HeadModel) -> None:
    model = wiki_model
    gold = list(open_corpus(shared / "data" / "trees" / "en_ewt-ud-dev.conllu.xz").limit(COUNT))
    examples = [*gold, *demo_examples(COUNT)]
    feature_parameters = {"features": {"random_models": 0}}  # what they give is not compared here
    dataset = make_atlas(
        model, Corpus.from_examples(examples), ["features"], parameters=feature_parameters
    )["features"]
    rows = [model.encode(example, i) for i, example in enumerate(examples)]
    compare(dataset, eager_maps(model, rows), rows, causal=False)


def test_planted_heads_are_recovered() -> None:
    planted = planted_model([["sep", "cls", "uniform"]], words=["the", "cat", "sleeps"])
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    dataset = make_atlas(model, Corpus.from_texts(["the cat sleeps", "cat"]), ["features"])[
        "features"
    ].sel(layer=0)
    assert dataset["attention"].sel(head=0, feature="sep").item() == pytest.approx(1)
    assert dataset["attention"].sel(head=1, feature="cls").item() == pytest.approx(1)
    assert dataset["from_cls"].sel(head=0, feature="sep").item() == pytest.approx(1)
    assert dataset["attention"].sel(head=2, feature="cls").item() == pytest.approx(
        np.mean([1 / 5, 1 / 3])
    )
    assert dataset["attention"].sel(feature="noun").isnull().all()


def test_own_features_and_those_that_match_nothing() -> None:
    examples = battery_examples()
    planted = planted_model([["uniform"]], words=[w for e in examples for w in e.all_words])
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    corpus = Corpus.from_examples(examples)
    feature_parameters = {
        "extra": "old: form=old & upos=ADJ; ghost: lemma=ghost",
        "features": "old,ghost,cls",
    }
    atlas = make_atlas(model, corpus, ["features"], parameters={"features": feature_parameters})
    dataset = atlas["features"]
    assert atlas.provenance["left_out"]["features"] == {
        "feature=ghost": "no token of this type in the corpus"
    }  # so the page and the file name it
    assert dataset["feature"].values.tolist() == ["old", "ghost", "cls"]
    assert dataset["attention_n"].sel(feature="old").item() == sum(
        "old" in e.all_words for e in examples
    )
    assert dataset.attrs["matched_nothing"] == "ghost"
    assert dataset["attention"].sel(feature="ghost").isnull().all()
    with pytest.raises(ParameterError, match=r"'subj' matches nothing.*Did you mean 'nsubj'"):
        make_atlas(
            model, corpus, ["features"], parameters={"features": {"extra": "subj: relation=nsubjx"}}
        )
    with pytest.raises(
        ParameterError, match="No token of the corpus has any of the features ghost; check"
    ):
        make_atlas(
            model,
            corpus,
            ["features"],
            parameters={"features": {"extra": "ghost: lemma=ghost", "features": "ghost"}},
        )
    with pytest.raises(MissingAnnotationError, match="no pos and words: use a treebank"):
        make_atlas(
            model,
            Corpus.from_texts(["old cat"]),
            ["features"],
            parameters={"features": {"features": "noun"}},
        )
    with pytest.raises(ParameterError, match="Did you mean 'noun'"):
        make_analysis("features", {"features": "nuon"})


@pytest.mark.parametrize("causal", [False, True])
def test_a_sink_is_no_head_for_a_feature_and_a_head_for_one_is(causal: bool) -> None:
    """Without a token that opens the input the sink is a word: where that is a noun, it is not for
    being one."""
    examples = [e for e in demo_examples(60) if not e.has_pair]
    words = [w for e in examples for w in e.all_words]
    # every text begins with its first noun
    moved = []
    for example in examples:
        noun = list(example.upos).index("NOUN") if "NOUN" in example.upos else None
        if noun is not None:
            order = [noun, *[i for i in range(len(example.words)) if i != noun]]
            moved.append(
                Example(
                    words=tuple(example.words[i] for i in order),
                    upos=tuple(example.upos[i] for i in order),
                )
            )
    moved = [
        *moved,
        *[replace(e, words=(*e.words, ".")[:], upos=(*e.upos, "PUNCT")) for e in moved],
    ]
    planted = planted_model(
        [["first", "uniform", "previous"]], causal=causal, words=words, max_length=96
    )
    planted.tokenizer._tokenizer.post_processor = None  # no cls, no sep
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    feature_parameters = {"features": {"features": "noun,verb", "random_models": 0}}
    result = make_atlas(
        model, Corpus.from_examples(moved), ["features"], parameters=feature_parameters
    )["features"].sel(layer=0)
    assert len(moved) >= 30
    assert float(result["first"].sel(feature="noun")) == 1
    assert (
        float(result["attention"].sel(head=0, feature="noun")) > 0.9
    )  # what passed for linguistics
    assert abs(float(result["excess"].sel(head=0, feature="noun"))) < 0.02
    assert (abs(result["excess"].sel(head=[1, 2])) < 0.2).all()
    if not causal:
        assert (abs(result["excess"].sel(head=1)) < 1e-4).all()
        assert (result["p_value"].sel(head=1) == 1).all()
    assert not result["stands_out"].any()


def test_a_head_for_a_feature_stands_out_beside_random_models() -> None:
    planted, examples = planted_annotations(
        demo_examples(48), [["tree", "uniform", "previous"]], max_length=128
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    feature_parameters = {"features": {"features": "noun,verb,pronoun"}}
    result = make_atlas(
        model, Corpus.from_examples(examples), ["features"], parameters=feature_parameters
    )["features"].sel(layer=0)
    assert result.attrs["random_models"] == 4
    assert bool(result["stands_out"].sel(head=0, feature="verb"))  # most words hang on a verb
    assert not result["stands_out"].sel(head=[1, 2]).any()
    assert (result["random_bound"] > result["random_excess"]).all()
