"""`token_pairs`: equal to loops over pairs of tokens; a head that only knows distances has no excess, one that knows
the tree has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import slow_sieves
from headwise import Corpus, HeadModel, make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.token_pairs.pairs import known_pairs
from headwise.core.errors import ParameterError
from headwise.testing import eager_maps, planted_annotations, planted_model
from headwise.testing.corpora import battery_examples
from headwise.text import open_corpus
from headwise.text.demo import demo_examples
from headwise.text.encode import Encoded

COUNT = 50 if os.environ.get("HEADWISE_FULL") else 8


def compare(dataset: xr.Dataset, maps: Sequence[np.ndarray], rows: Sequence[Encoded], causal: bool) -> None:
    for name in known_pairs():
        found: dict[str, list[np.ndarray]] = {"attention": [], "pair_mean": [], "expected": [], "excess": []}
        total = 0
        for full, row in zip(maps, rows, strict=True):
            n = len(row)
            pairs = [(i, j) for i in range(n) for j in range(n) if slow_sieves.is_pair(name, row, i, j)]
            total += len(pairs)
            seen = [(i, j) for i, j in pairs if j <= i or not causal]
            if not seen:
                continue
            weights, usual = [], []
            for i, j in seen:
                weights.append(full[:, :, i, j])
                same = [
                    full[:, :, a, a + j - i]
                    for a in range(n)
                    if 0 <= a + j - i < n and not row.special[a] and not row.special[a + j - i]
                ]
                usual.append(np.mean(same, axis=0))
            found["attention"].append(np.max(weights, axis=0))
            found["pair_mean"].append(np.mean(weights, axis=0))
            found["expected"].append(np.mean(usual, axis=0))
            found["excess"].append(found["pair_mean"][-1] - found["expected"][-1])
        one = dataset.sel(pair=name)
        assert int(one["count"]) == total
        for variable, values in found.items():
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
def test_equal_to_loops_on_a_real_model(shared: Path, wiki_bert: Path) -> None:
    model = HeadModel.open(wiki_bert)
    gold = list(open_corpus(shared / "data" / "trees" / "en_ewt-ud-dev.conllu.xz", limit=COUNT))
    examples = [*[e for e in gold if len(e.all_words) < 40], *demo_examples(COUNT // 2)]
    dataset = make_atlas(model, Corpus.from_examples(examples), ["token_pairs"])["token_pairs"]
    rows = [model.encode(example, i) for i, example in enumerate(examples)]
    compare(dataset, eager_maps(model, rows), rows, causal=False)


def test_distance_alone_gives_no_excess_and_the_tree_does() -> None:
    planted, examples = planted_annotations(
        demo_examples(40), [["tree", "children", "previous", "uniform"]], max_length=128
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    dataset = make_atlas(model, Corpus.from_examples(examples), ["token_pairs"])["token_pairs"].sel(layer=0)
    up, down = dataset.sel(pair="subject->verb"), dataset.sel(pair="verb->subject")
    assert up["p_adjusted"].sel(head=0) < 1e-6
    assert down["p_adjusted"].sel(head=1) < 1e-6
    # the head of the previous token sees many subjects right before their verbs, but it does so before every token
    assert down["attention"].sel(head=2) > 0.3
    assert abs(float(down["excess"].sel(head=2))) < 0.02
    assert float(dataset["p_value"].sel(head=[2, 3]).min()) > 0.001
    assert (dataset["p_value"].sel(head=3) == 1).all()


def test_own_pairs_and_bad_ones() -> None:
    examples = battery_examples()
    planted = planted_model([["uniform"]], words=[w for e in examples for w in e.all_words])
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    given = {"extra": "det: upos=DET -> noun up det; ghost: form=ghost -> noun"}
    dataset = make_atlas(model, Corpus.from_examples(examples), ["token_pairs"], parameters={"token_pairs": given})[
        "token_pairs"
    ]
    dets = sum(sum(r == "det" for r in e.relations) for e in examples)
    assert int(dataset["count"].sel(pair="det")) == dets
    assert (
        dataset.attrs["matched_nothing"] == "noun->pronoun, pronoun->noun, ghost"
    )  # no sentence there has a noun and a pronoun
    alone = {"pairs": "ghost", "extra": "ghost: form=ghost -> noun"}
    with pytest.raises(ParameterError, match="no pair of any of the kinds ghost; check"):
        make_atlas(model, Corpus.from_examples(examples), ["token_pairs"], parameters={"token_pairs": alone})
    with pytest.raises(ParameterError, match="Did you mean"):
        make_analysis("token_pairs", {"pairs": "noun->pronouns"})
    with pytest.raises(ParameterError, match="no relation in this corpus 'dett'"):
        make_atlas(
            model,
            Corpus.from_examples(examples),
            ["token_pairs"],
            parameters={"token_pairs": {"extra": "x: any -> any by dett"}},
        )
