"""`patterns` as an analysis: equal to one map at a time, planted heads, short examples, proportions
that hold."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise import Corpus, HeadModel, make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.patterns import PATTERNS, classify_maps
from headwise.analyses.patterns.correct import corrected_shares, said_given_true, shipped_errors
from headwise.core.errors import InputError, ParameterError
from headwise.testing import eager_maps, planted_model, random_model
from headwise.text import open_corpus

WORDS = ["the", "a", "cat", "dog", "saw", "sleeps", ".", ",", "in", "house", "play|ing"]
LONG = "the cat saw a dog in the house , a dog sleeps . the dog saw a cat in a house ."
PAIRS = [
    (f"{LONG} {'the cat sleeps .' * k}", f"a dog {'saw the cat ' * (k + 4)}.") for k in range(4)
]


@pytest.mark.parametrize("causal", [False, True])
def test_equals_one_map_at_a_time(causal: bool) -> None:
    module, tokenizer = random_model(causal=causal)
    model = HeadModel.open(module, tokenizer=tokenizer)
    corpus = Corpus.from_texts(
        [
            "the cat saw a dog .",
            "a dog sleeps in the house , the cat saw it and a cat saw the dog",
            "dog",
            LONG,
        ]
    )
    got = make_atlas(model, corpus, ["patterns"], parameters={"patterns": {"min_tokens": 6}})[
        "patterns"
    ]
    rows = [model.encode(example, i) for i, example in enumerate(corpus)]
    kept = [row for row in rows if len(row) >= 6]
    assert 0 < len(kept) < len(rows)
    expected = np.stack(
        [classify_maps(torch.tensor(maps), causal).numpy() for maps in eager_maps(model, kept)]
    )
    np.testing.assert_allclose(got["probability"], expected.mean(0), atol=1e-4)
    said = np.eye(5)[expected.argmax(-1)]
    np.testing.assert_allclose(got["proportion"], said.mean(0), atol=1e-6)
    np.testing.assert_allclose(got["overall"], said.mean((0, 1, 2)), atol=1e-6)
    assert (got["proportion_n"] == len(kept)).all()
    assert got.attrs["short_examples"] == len(rows) - len(kept)
    counts = shipped_errors(False, causal).counts  # of a model never seen
    np.testing.assert_array_equal(got["confusion"], counts)
    mended = corrected_shares(said.mean((0, 1, 2)), said_given_true(counts))
    wanted = mended if got.attrs["correction_helps"] else np.full(5, np.nan)
    np.testing.assert_allclose(got["overall_corrected"], wanted, atol=1e-5)
    [line] = make_analysis("patterns").summary(got)
    assert ("more harm than good" in line) != bool(got.attrs["correction_helps"])


def test_the_summary_has_intervals_and_no_number_where_nothing_was_classified() -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    patterns = make_analysis("patterns")
    got = make_atlas(
        model,
        Corpus.from_texts([LONG, f"{LONG} {LONG}", "a dog saw the cat in the house ."]),
        [patterns],
    )
    [line] = patterns.summary(got["patterns"])
    place = int(got["patterns"]["overall"].values.argmax())
    share, low, high = (
        100 * float(got["patterns"][f"overall{end}"][place]) for end in ("", "_low", "_high")
    )
    assert f"{PATTERNS[place]} {share:.0f} % ({low:.0f} to {high:.0f})" in line
    [line] = patterns.summary(
        make_atlas(model, Corpus.from_texts(["dog", "cat"]), [patterns])["patterns"]
    )
    assert line == "No example has 6 tokens or more, so no map was classified."


def test_planted_heads_get_their_pattern() -> None:
    planted = planted_model(
        [["previous", "next", "self"], ["cls", "sep", "block"]], words=WORDS, max_length=120
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    got = make_atlas(model, Corpus.from_texts(PAIRS), ["patterns"])["patterns"]
    named = got["pattern"].values[got["proportion"].argmax("pattern").values]
    assert named.tolist() == [["diagonal"] * 3, ["vertical", "vertical", "block"]]
    assert (got["proportion_low"] <= got["proportion"] + 1e-6).all()
    assert (got["proportion_high"] >= got["proportion"] - 1e-6).all()
    np.testing.assert_allclose(got["proportion"].sum("pattern"), 1, atol=1e-6)
    if got.attrs["correction_helps"]:
        np.testing.assert_allclose(got["proportion_corrected"].sum("pattern"), 1, atol=1e-5)
        assert (got["overall_corrected_low"] <= got["overall_corrected_high"]).all()
    else:
        assert got["proportion_corrected"].isnull().all()
        assert (got["overall_corrected_n"] == 0).all()


def test_only_short_examples_give_nothing_but_say_so() -> None:
    module, tokenizer = random_model()
    got = make_atlas(
        HeadModel.open(module, tokenizer=tokenizer), Corpus.from_texts(["dog", "cat"]), ["patterns"]
    )["patterns"]
    assert got["proportion"].isnull().all()
    assert got["overall_corrected"].isnull().all()
    assert got.attrs["short_examples"] == 2


def test_parameters_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="`min_tokens` must be at least 1"):
        make_analysis("patterns", {"min_tokens": 0})
    with pytest.raises(InputError, match="cannot be read as a pattern classifier"):
        make_analysis("patterns", {"classifier": str(tmp_path / "none.safetensors")})


@pytest.mark.real
def test_wiki_bert_has_block_heads_on_pairs_and_none_on_single_sentences(
    shared: Path, wiki_model: HeadModel
) -> None:
    model = wiki_model
    single = open_corpus(str(shared / "data" / "trees" / "en_pud-ud-test.conllu.xz"))
    texts = [
        example.text or " ".join(example.words or ())
        for example, _ in zip(single, range(6), strict=False)
    ]
    shares = {}
    for name, corpus in (
        ("pairs", list(zip(texts[::2], texts[1::2], strict=True))),
        ("single", texts[:3]),
    ):
        shares[name] = make_atlas(model, Corpus.from_texts(corpus), ["patterns"])["patterns"][
            "overall"
        ]
    assert float(shares["pairs"].sel(pattern="block")) > 2 * float(
        shares["single"].sel(pattern="block")
    )
    assert float(shares["single"].sel(pattern="block")) < 0.05
    assert sorted(PATTERNS) == sorted(shares["single"]["pattern"].values)
    assert os.environ["HEADWISE_SHARED"]
