"""`token_pairs`: equal to loops over pairs of tokens; a head that only knows distances has no
excess, one that knows the tree has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from matplotlib.text import Text

import slow_sieves
from headwise import Corpus, HeadModel, make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.token_pairs.figures import pair_excess
from headwise.analyses.token_pairs.pairs import known_pairs
from headwise.core.errors import ParameterError
from headwise.testing import eager_maps, planted_annotations, planted_model
from headwise.testing.corpora import battery_examples
from headwise.text import open_corpus
from headwise.text.demo import demo_examples
from headwise.text.encode import Encoded

COUNT = 50 if os.environ.get("HEADWISE_FULL") else 8


def matched(row: Encoded, i: int, j: int, kind: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs that one is matched with, from loops: same offset; same parts of speech where there
    are such."""
    tags = row.example.upos
    ordinary = [t for t in range(len(row)) if not row.special[t]]
    there = [(a, a + j - i) for a in ordinary if a + j - i in ordinary]
    others = [pair for pair in there if pair not in kind]
    last = [(a, b) for a, b in others if tags[row.word[b]] == tags[row.word[j]]]
    both = [(a, b) for a, b in last if tags[row.word[a]] == tags[row.word[i]]]
    return both or last or others or there


def compare(
    dataset: xr.Dataset, maps: Sequence[np.ndarray], rows: Sequence[Encoded], causal: bool
) -> None:
    for name in known_pairs():
        result: dict[str, list[np.ndarray]] = {
            "attention": [],
            "pair_mean": [],
            "expected": [],
            "excess": [],
        }
        total = 0
        for full, row in zip(maps, rows, strict=True):
            n = len(row)
            pairs = [
                (i, j) for i in range(n) for j in range(n) if slow_sieves.is_pair(name, row, i, j)
            ]
            total += len(pairs)
            seen = [(i, j) for i, j in pairs if j <= i or not causal]
            if not seen:
                continue
            weights, usual = [], []
            for i, j in seen:
                weights.append(full[:, :, i, j])
                same = matched(row, i, j, set(pairs))
                mean = np.mean([full[:, :, a, b] for a, b in same], axis=0)
                row_of = {a: 1 / (a + 1 if causal else n) for a in range(n)}
                above = np.mean([full[:, :, a, b] - row_of[a] for a, b in same], axis=0)
                usual.append(np.maximum(mean, above + row_of[i]))
            result["attention"].append(np.max(weights, axis=0))
            result["pair_mean"].append(np.mean(weights, axis=0))
            result["expected"].append(np.mean(usual, axis=0))
            result["excess"].append(result["pair_mean"][-1] - result["expected"][-1])
        one = dataset.sel(pair=name)
        assert int(one["count"]) == total
        for variable, values in result.items():
            assert (one[f"{variable}_n"] == len(values)).all()
            if values:
                np.testing.assert_allclose(
                    one[variable], np.mean(values, axis=0), atol=2e-6, err_msg=f"{name} {variable}"
                )


@pytest.mark.parametrize("causal", [False, True])
def test_equal_to_loops_on_planted_heads(causal: bool) -> None:
    examples = battery_examples()
    planted = planted_model(
        [["previous", "uniform"], ["first", "offset:-2"]],
        causal=causal,
        words=[w for e in examples for w in e.all_words],
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    dataset = make_atlas(model, Corpus.from_examples(examples), ["token_pairs"])["token_pairs"]
    rows = [model.encode(example, i) for i, example in enumerate(examples)]
    compare(dataset, [planted.expected_map(row) for row in rows], rows, causal)


@pytest.mark.real
def test_equal_to_loops_on_a_real_model(shared: Path, wiki_model: HeadModel) -> None:
    model = wiki_model
    gold = list(open_corpus(shared / "data" / "trees" / "en_ewt-ud-dev.conllu.xz", limit=COUNT))
    examples = [*[e for e in gold if len(e.all_words) < 40], *demo_examples(COUNT // 2)]
    pair_parameters = {"token_pairs": {"random_models": 0}}  # what they give is not compared here
    dataset = make_atlas(
        model, Corpus.from_examples(examples), ["token_pairs"], parameters=pair_parameters
    )["token_pairs"]
    rows = [model.encode(example, i) for i, example in enumerate(examples)]
    compare(dataset, eager_maps(model, rows), rows, causal=False)


def test_distance_alone_gives_no_excess_and_the_tree_does() -> None:
    planted, examples = planted_annotations(
        demo_examples(40), [["tree", "children", "previous", "uniform"]], max_length=128
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    dataset = make_atlas(model, Corpus.from_examples(examples), ["token_pairs"])["token_pairs"].sel(
        layer=0
    )
    assert dataset.attrs["random_models"] == 4
    assert bool(dataset["stands_out"].sel(head=0, pair="subject->verb"))
    assert bool(dataset["stands_out"].sel(head=1, pair="verb->subject"))
    assert not dataset["stands_out"].sel(head=[2, 3]).any()
    assert (dataset["matched"] >= 0).all() & (dataset["matched"] <= 1).all()
    up, down = dataset.sel(pair="subject->verb"), dataset.sel(pair="verb->subject")
    assert up["p_adjusted"].sel(head=0) < 1e-6
    assert down["p_adjusted"].sel(head=1) < 1e-6
    # the head of the previous token sees many subjects right before their verbs, but it does so
    # before every token
    assert down["attention"].sel(head=2) > 0.3
    assert abs(float(down["excess"].sel(head=2))) < 0.02
    assert float(dataset["p_value"].sel(head=[2, 3]).min()) > 0.001
    assert (dataset["p_value"].sel(head=3) == 1).all()


def test_a_decoder_s_uniform_and_previous_heads_have_no_excess() -> None:
    """Early rows have few keys: a uniform head gives verbs near the beginning more to their
    subjects than others."""
    examples = demo_examples(40)
    planted = planted_model(
        [["uniform", "previous"]],
        causal=True,
        words=[w for e in examples for w in e.all_words],
        max_length=96,
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    pair_parameters = {"token_pairs": {"random_models": 0}}
    dataset = make_atlas(
        model, Corpus.from_examples(examples), ["token_pairs"], parameters=pair_parameters
    )["token_pairs"]
    assert (dataset["excess_n"].max(("layer", "head")) > 15).sum() >= 2
    assert float(dataset["excess"].max()) < 1e-6
    assert not dataset["stands_out"].any()


def test_own_pairs_and_bad_ones() -> None:
    examples = battery_examples()
    planted = planted_model([["uniform"]], words=[w for e in examples for w in e.all_words])
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    pair_parameters = {"extra": "det: upos=DET -> noun up det; ghost: form=ghost -> noun"}
    dataset = make_atlas(
        model,
        Corpus.from_examples(examples),
        ["token_pairs"],
        parameters={"token_pairs": pair_parameters},
    )["token_pairs"]
    dets = sum(sum(r == "det" for r in e.relations) for e in examples)
    assert int(dataset["count"].sel(pair="det")) == dets
    assert (
        dataset.attrs["matched_nothing"] == "noun->pronoun, pronoun->noun, ghost"
    )  # no sentence there has a noun and a pronoun
    alone = {"pairs": "ghost", "extra": "ghost: form=ghost -> noun"}
    with pytest.raises(ParameterError, match="no pair of any of the types ghost; check"):
        make_atlas(
            model,
            Corpus.from_examples(examples),
            ["token_pairs"],
            parameters={"token_pairs": alone},
        )
    with pytest.raises(ParameterError, match="Did you mean"):
        make_analysis("token_pairs", {"pairs": "noun->pronouns"})
    with pytest.raises(ParameterError, match="no relation in this corpus 'dett'"):
        make_atlas(
            model,
            Corpus.from_examples(examples),
            ["token_pairs"],
            parameters={"token_pairs": {"extra": "x: any -> any by dett"}},
        )


def test_the_figure_names_heads_by_their_labels() -> None:
    heads, pairs = ("layer", "head", "pair"), ["a"]
    excess = np.zeros((2, 2, 1))
    excess[1, 0] = 0.5
    variables = {
        "excess": (heads, excess),
        "excess_n": (heads, np.full((2, 2, 1), 9)),
        "stands_out": (heads, excess > 1),
    }
    dataset = xr.Dataset(variables, coords={"layer": [4, 5], "head": [2, 3], "pair": pairs})
    texts = [text.get_text() for text in pair_excess(dataset).findobj(Text)]
    assert any("a: L5H2 +0.50" in text for text in texts)
