"""`surface` and `offsets`: exact on planted heads, and equal to plain numpy on a real model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from headwise import Corpus, HeadModel, make_atlas
from headwise.run.engine import WAITING_BYTES
from headwise.testing import eager_maps, planted_model
from headwise.text import open_corpus
from headwise.text.encode import Encoded
from slow_intervals import slow_mean_interval

TYPES = ("first", "cls", "sep", "punct", "other")
WORDS = ["the", "a", "cat", "dog", "saw", "sleeps", ".", ",", "in", "house", "play|ing"]
TEXTS: list[str | tuple[str, str]] = [
    "the cat saw a dog .",
    ("the cat , a dog", "the dog sleeps in a house ."),
    "dog",
    ("a cat playing", "a cat ."),
    "a dog saw the cat in the house",
]


def slow(
    maps: Sequence[np.ndarray], rows: Sequence[Encoded], causal: bool
) -> dict[str, np.ndarray]:
    """Both analyses in plain loops over tokens, in float64, from whole maps [layer, head, query,
    key] of one example at a time."""
    layers, heads = maps[0].shape[:2]
    scores: dict[str, list[np.ndarray]] = {}
    longest = max(len(row) for row in rows)
    mass, pairs = np.zeros((layers, heads, 2 * longest - 1)), np.zeros(2 * longest - 1)
    for full, row in zip(maps, rows, strict=True):
        weights, n = full.astype(np.float64), len(row)
        visible = np.tril(np.ones((n, n), bool)) if causal else np.ones((n, n), bool)
        kinds = np.zeros((5, n))
        for t in range(n):
            kinds[1 if row.cls[t] else 2 if row.sep[t] else 3 if row.punct[t] else 4, t] = 1
        kinds[2:, 0], kinds[0, 0] = 0, 1
        to_kind = np.einsum("lhij,tj->lhit", weights, kinds)

        def over(rows_chosen: np.ndarray, values: np.ndarray = to_kind) -> np.ndarray:
            return (
                values[:, :, rows_chosen].mean(2)
                if rows_chosen.any()
                else np.full((layers, heads, 5), np.nan)
            )

        logs = np.log(np.where(weights > 0, weights, 1))
        entropy = -(weights * logs).sum(-1)
        found = {
            "mass": over(np.ones(n, bool)),
            "mass_from_sep": over(row.sep),
            "mass_from_other": over(~row.sep),
            "entropy": entropy.mean(-1),
            "entropy_from_cls": entropy[:, :, 0],
            "max_weight": weights.max(-1).mean(-1),
            "mean_offset": np.zeros((layers, heads)),
            "mean_distance": np.zeros((layers, heads)),
        }
        position = []
        for o in (-1, 0, 1):
            at = [weights[:, :, i, i + o] for i in range(n) if 0 <= i + o < n and visible[i, i + o]]
            position.append(np.mean(at, axis=0) if at else np.full((layers, heads), np.nan))
        found["position"] = np.stack(position, -1)
        found |= without_first(weights, visible, kinds)
        even = visible / visible.sum(1, keepdims=True)
        of_uniform = without_first(even[None, None], visible, kinds)
        for name in ("mass_rest", "position_rest"):
            found[f"{name}_uniform"] = np.broadcast_to(
                of_uniform[name][0], (layers, *of_uniform[name].shape[2:])
            )
        found["mass_uniform"] = np.broadcast_to((even @ kinds.T).mean(0), (layers, 5))
        own = [np.diagonal(even, o)[np.diagonal(visible, o)] for o in (-1, 0, 1)]
        found["position_uniform"] = np.broadcast_to(
            [d.mean() if len(d) else np.nan for d in own], (layers, 3)
        )
        for i in range(n):
            for j in range(n):
                found["mean_offset"] += weights[:, :, i, j] * (j - i) / n
                found["mean_distance"] += weights[:, :, i, j] * abs(j - i) / n
                mass[:, :, j - i + longest - 1] += weights[:, :, i, j]
                pairs[j - i + longest - 1] += visible[i, j]
        for name, value in found.items():
            scores.setdefault(name, []).append(value)
    with np.errstate(invalid="ignore", divide="ignore"):
        histogram = mass / pairs
    offsets = np.arange(1 - longest, longest)
    kept = pairs > 0
    result = {}
    for (
        name,
        values,
    ) in scores.items():  # means over the examples that have a value; NaN where none has
        stacked = np.stack(values)
        count = np.isfinite(stacked).sum(0)
        result[name] = np.where(
            count > 0, np.nansum(stacked, axis=0) / np.maximum(count, 1), np.nan
        )
    there = [
        t in ("first", "punct", "other") or any(getattr(row, t).any() for row in rows)
        for t in TYPES
    ]
    of_types = ("mass", "mass_from_sep", "mass_from_other", "mass_rest", "mass_uniform")
    for name in (*of_types, "mass_rest_uniform"):
        result[name][..., ~np.array(there)] = (
            np.nan
        )  # a share of tokens that no text has is no share
    result["histogram"] = histogram[..., kept]
    result["centre"] = (offsets[kept] * histogram[..., kept]).sum(-1) / histogram[..., kept].sum(-1)
    result["offset"] = offsets[kept]
    return result


def without_first(
    weights: np.ndarray, visible: np.ndarray, kinds: np.ndarray
) -> dict[str, np.ndarray]:
    """What is left of one example's maps without the first token, rows made to sum to one, one row
    at a time."""
    layers, heads, n, _ = weights.shape
    out = {
        "mass_rest": np.full((layers, heads, 5), np.nan),
        "position_rest": np.full((layers, heads, 3), np.nan),
    }
    out |= {name: np.full((layers, heads), np.nan) for name in ("entropy_rest", "max_weight_rest")}
    for layer, head in np.ndindex(layers, heads):
        held: dict[str, list[np.ndarray | float]] = {name: [] for name in out}
        at: list[list[float]] = [[], [], []]
        for i in range(1, n):
            left = weights[layer, head, i, 1:]
            if left.sum() <= 1e-4:
                continue
            row = np.concatenate([[0.0], left / left.sum()])
            held["mass_rest"].append(kinds @ row)
            held["entropy_rest"].append(-(row[row > 0] * np.log(row[row > 0])).sum())
            held["max_weight_rest"].append(row.max())
            for place, o in enumerate((-1, 0, 1)):
                if 0 < i + o < n and visible[i, i + o]:
                    at[place].append(row[i + o])
        for name, values in held.items():
            if values:
                out[name][layer, head] = np.mean(values, axis=0)
        out["position_rest"][layer, head] = [np.mean(own) if own else np.nan for own in at]
    out["entropy_rest_uniform"] = np.full(
        layers, np.log(visible[1:, 1:].sum(1)).mean() if n > 1 else np.nan
    )
    return out


def assert_equal_to_slow(
    surface: xr.Dataset,
    offsets: xr.Dataset,
    expected: dict[str, np.ndarray],
    causal: bool,
    atol: float,
) -> None:
    names = [*("mass", "mass_from_sep", "mass_from_other", "entropy", "max_weight", "position")]
    names += [
        *("mass_rest", "position_rest", "entropy_rest", "entropy_rest_uniform", "max_weight_rest")
    ]
    names += ["mass_rest_uniform", "position_rest_uniform"]
    for name in (*names, "mass_uniform", "position_uniform"):
        np.testing.assert_allclose(surface[name], expected[name], atol=atol, err_msg=name)
    if not causal:
        np.testing.assert_allclose(
            surface["entropy_from_cls"], expected["entropy_from_cls"], atol=atol
        )
    assert offsets["offset"].values.tolist() == expected["offset"].tolist()
    for name in ("histogram", "mean_offset", "mean_distance", "centre"):
        scale = max(1.0, float(np.abs(expected[name]).max()))
        np.testing.assert_allclose(
            offsets[name].sel(source="attention"), expected[name], atol=atol * scale, err_msg=name
        )


@pytest.mark.parametrize("waiting", [0, 2**40])  # layer by layer, or all layers at once as on a GPU
@pytest.mark.parametrize("causal", [False, True])
def test_equal_to_plain_loops_on_planted_heads(
    causal: bool, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WAITING_BYTES, "cpu", waiting)
    behaviours = [["previous", "self", "uniform"], ["first", "same_word", "offset:-2"]]
    planted = planted_model(behaviours, causal=causal, words=WORDS)
    corpus = Corpus.from_texts([t for t in TEXTS if not causal or isinstance(t, str)])
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    atlas = make_atlas(model, corpus, ["surface", "offsets"])
    rows = [model.encode(example, i) for i, example in enumerate(corpus)]
    expected = slow([planted.expected_map(row) for row in rows], rows, causal)
    assert_equal_to_slow(atlas["surface"], atlas["offsets"], expected, causal, 2e-5)


def test_planted_heads_are_recovered_exactly() -> None:
    planted = planted_model(
        [["previous", "next", "self", "sep"], ["cls", "uniform", "offset:+3", "block"]], words=WORDS
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    texts = [f"the cat {'saw a dog ' * k}." for k in range(1, 6)]
    atlas = make_atlas(model, Corpus.from_texts(texts), ["surface", "offsets"])
    surface, offsets = atlas["surface"], atlas["offsets"]
    position = surface["position"]
    assert float(position.sel(layer=0, head=0, offset=-1)) == pytest.approx(1, abs=1e-5)
    assert float(position.sel(layer=0, head=1, offset=1)) == pytest.approx(1, abs=1e-5)
    assert float(position.sel(layer=0, head=2, offset=0)) == pytest.approx(1, abs=1e-5)
    kinds = surface["mass"]
    assert float(kinds.sel(layer=0, head=3, token_type="sep")) == pytest.approx(1, abs=1e-5)
    assert float(kinds.sel(layer=1, head=0, token_type="cls")) == pytest.approx(1, abs=1e-5)
    lengths = [len(model.encode(text)) for text in texts]
    assert float(surface["entropy"].sel(layer=1, head=1)) == pytest.approx(
        np.mean(np.log(lengths)), abs=1e-5
    )
    assert float(surface["entropy_uniform"][1]) == pytest.approx(np.mean(np.log(lengths)), abs=1e-6)
    assert float(surface["max_weight"].sel(layer=1, head=1)) == pytest.approx(
        np.mean(1 / np.array(lengths)), abs=1e-5
    )
    histogram = offsets["histogram"].sel(source="attention")
    assert float(histogram.sel(layer=0, head=0, offset=-1)) == pytest.approx(1, abs=1e-5)
    assert float(histogram.sel(layer=1, head=2, offset=3)) == pytest.approx(1, abs=1e-5)


def test_a_type_the_tokenizer_lacks_is_nan_and_a_decoder_has_no_next_token() -> None:
    planted = planted_model([["previous", "uniform"]], causal=True, words=WORDS)
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    atlas = make_atlas(model, Corpus.from_texts(["the cat saw a dog .", "a dog"]), ["surface"])
    surface, has = atlas["surface"], ("first", "cls", "punct", "other")
    assert "sep" in model.encoder.token_types
    why = atlas.provenance["left_out"]["surface"]["token_type=sep"]
    assert why == "no tokens of this type in the corpus"  # a decoder's closing token
    for kind in TYPES:
        assert bool(surface["mass"].sel(token_type=kind).isnull().all()) == (kind not in has), kind
    assert surface["position"].sel(offset=1).isnull().all()
    assert int(surface["position_n"].sel(offset=1).max()) == 0
    assert surface["entropy_from_cls"].isnull().all()
    assert float(surface["position"].sel(layer=0, head=0, offset=-1)) == pytest.approx(1, abs=1e-5)


def test_interval_and_weighting() -> None:
    planted = planted_model([["uniform", "previous"]], words=WORDS)
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    texts = ["cat", "the cat saw a dog .", "a cat , a dog , a cat ."]
    corpus = Corpus.from_texts(texts)
    by_example = make_atlas(model, corpus, ["surface"])["surface"]
    by_token = make_atlas(
        model, corpus, ["surface"], parameters={"surface": {"weighting": "tokens"}}
    )["surface"]
    n = np.array([len(model.encode(text)) for text in texts])
    assert float(by_example["entropy"][0, 0]) == pytest.approx(np.log(n).mean(), abs=1e-5)
    assert float(by_token["entropy"][0, 0]) == pytest.approx(
        (n * np.log(n)).sum() / n.sum(), abs=1e-5
    )
    low, high = slow_mean_interval(np.log(n))
    assert float(by_example["entropy_low"][0, 0]) == pytest.approx(low, abs=1e-5)
    assert float(by_example["entropy_high"][0, 0]) == pytest.approx(high, abs=1e-5)
    assert int(by_token["entropy_n"][0, 0]) == 3
    assert (
        float(by_token["entropy_low"][0, 0])
        < float(by_token["entropy"][0, 0])
        < float(by_token["entropy_high"][0, 0])
    )


def test_mass_beyond_the_reach_is_reported() -> None:
    planted = planted_model([["first", "self"]], words=WORDS)
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    offsets = make_atlas(
        model,
        Corpus.from_texts(["the cat saw a dog ."]),
        ["offsets"],
        parameters={"offsets": {"reach": 3}},
    )["offsets"]
    assert float(offsets["beyond"].sel(source="attention", layer=0, head=0)) == pytest.approx(
        4 / 8, abs=1e-5
    )  # 8 tokens; the last four are further than 3 from the first
    assert float(offsets["beyond"].sel(source="attention", layer=0, head=1)) == pytest.approx(
        0, abs=1e-6
    )


@pytest.mark.real
def test_equal_to_plain_numpy_on_wiki_bert(wiki_model: HeadModel, shared: Path) -> None:
    count = 200 if os.environ.get("HEADWISE_FULL") else 3
    model = wiki_model
    articles = f"articles:{shared / 'data' / 'wikipedia' / 'articles.jsonl.gz'}"
    corpus = Corpus.from_examples(
        list(islice(open_corpus(articles, tokenizer=model.tokenizer), count))
    )
    atlas = make_atlas(model, corpus, ["surface", "offsets"])
    rows = [model.encode(example, i) for i, example in enumerate(corpus)]
    assert len(rows) == count
    expected = slow(eager_maps(model, rows), rows, causal=False)
    assert_equal_to_slow(atlas["surface"], atlas["offsets"], expected, False, 1e-5)


@pytest.mark.real
def test_equal_to_plain_numpy_on_a_decoder(stories: Path) -> None:
    model = HeadModel.open(stories)
    corpus = Corpus.from_texts(
        [
            "Once upon a time, there was a little dog.",
            "The cat ran.",
            "She saw a big red ball and she wanted to play with it.",
        ]
    )
    atlas = make_atlas(model, corpus, ["surface", "offsets"])
    rows = [model.encode(example, i) for i, example in enumerate(corpus)]
    expected = slow(eager_maps(model, rows), rows, causal=True)
    assert_equal_to_slow(atlas["surface"], atlas["offsets"], expected, True, 1e-5)
