"""Distances between heads against a slow loop over rows, and what follows from them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from headwise.analyses.contract import Shape
from headwise.analyses.distance import analysis as distance
from headwise.analyses.distance.analysis import Distance, distance_dataset, layer_means
from headwise.core.errors import ParameterError
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import observe_batches
from headwise.run.plan import model_shape
from headwise.testing import eager_maps, planted_model
from headwise.testing.corpora import battery_examples
from headwise.testing.models import random_model
from headwise.text import Corpus, batches, open_corpus
from headwise.text.encode import collate
from headwise.text.example import Example


def measured(
    model: HeadModel, examples: list[Example], analysis: Distance, max_tokens: int = 200
) -> xr.Dataset:
    corpus = Corpus.from_examples(examples, "test")
    shape = model_shape(model, EncodedCorpus(corpus, model.encoder).scan)
    rows = [model.encode(example, i) for i, example in enumerate(examples)]
    states = observe_batches(
        model,
        batches(rows, max_tokens, model.pad_id),
        [analysis],
        {"distance": analysis.start(shape)},
    )
    found = analysis.result(states["distance"], shape)
    assert set(found.dims) <= set(found.coords)  # every dim can be selected by label
    return found


def slow_js(maps: list[np.ndarray], smoothing: float = 0.0, causal: bool = False) -> np.ndarray:
    """Mean over all rows of all examples of two Kullback-Leibler divergences to the middle, in
    float64."""
    total: np.ndarray | float = 0.0
    tokens = 0
    for example in maps:
        flat = example.reshape(-1, *example.shape[2:]).astype(np.float64)
        for row in range(flat.shape[1]):
            visible = row + 1 if causal else flat.shape[2]
            p = (1 - smoothing) * flat[:, row, :visible] + smoothing / visible
            m = (p[:, None] + p[None]) / 2
            with np.errstate(divide="ignore", invalid="ignore"):
                one = np.where(p[:, None] > 0, p[:, None] * np.log(p[:, None] / m), 0).sum(-1)
            total = total + (one + one.T) / 2
            tokens += 1
    return np.asarray(total / tokens)


@pytest.mark.parametrize("smoothing", [0.0, 0.001, 0.2])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_slow_loop(causal: bool, smoothing: float) -> None:
    module, tokenizer = random_model(causal=causal)
    model = HeadModel.open(module, tokenizer=tokenizer)
    examples = [example for example in battery_examples() if not (causal and example.has_pair)]
    found = measured(model, examples, Distance(smoothing=smoothing))
    maps = eager_maps(model, [model.encode(example) for example in examples])
    np.testing.assert_allclose(found["js"], slow_js(maps, smoothing, causal), atol=2e-6)
    assert found.attrs["tokens"] == sum(m.shape[-1] for m in maps)
    assert found.attrs["examples"] == len(examples)


def test_planted_heads_are_where_theory_puts_them() -> None:
    words = [f"w{i}" for i in range(12)]
    planted = planted_model(
        [["previous", "next", "uniform"], ["previous", "self", "uniform"]], words=words
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    js = measured(model, [Example(words=tuple(words[:10]))], Distance())["js"]
    n = 12
    half = (
        -(1 + 1 / n) / 2 * math.log((1 + 1 / n) / 2)
        - (n - 1) / (2 * n) * math.log(1 / (2 * n))
        - math.log(n) / 2
    )
    assert float(js.sel(head_a="L0H0", head_b="L1H0")) == pytest.approx(0, abs=1e-6)
    assert float(js.sel(head_a="L0H2", head_b="L1H2")) == pytest.approx(0, abs=1e-6)
    assert float(js.sel(head_a="L0H0", head_b="L0H1")) == pytest.approx(math.log(2), rel=1e-4)
    # The first token has nothing before it and looks at itself, as `self` does.
    assert float(js.sel(head_a="L0H0", head_b="L1H1")) == pytest.approx(
        math.log(2) * (n - 1) / n, rel=1e-4
    )
    assert float(js.sel(head_a="L0H1", head_b="L0H2")) == pytest.approx(half, rel=1e-4)


def test_missing_mass_counts_as_one_more_key() -> None:
    shape = Shape(1, 2, 4, 8, False, 4, ("cls", "sep"))
    analysis = Distance()
    module, tokenizer = random_model()
    row = HeadModel.open(module, tokenizer=tokenizer).encode(Example(words=("the", "dog")))
    n = len(row)
    maps = torch.zeros(1, 1, 2, n, n)
    maps[0, 0, 0] = torch.eye(n)
    maps[0, 0, 1] = 0.5 * torch.eye(n)  # half of this head's attention rests on a sink
    state = analysis.start(shape)
    analysis.observe_maps(state, maps, torch.ones(1, 1, 1, n, n, dtype=torch.bool), collate([row]))
    m = 0.75
    expected = -m * math.log(m) - 0.25 * math.log(0.25) - math.log(2) / 2
    assert float(analysis.result(state, shape)["js"][0, 1]) == pytest.approx(expected, rel=1e-5)


def test_windowed_layers_are_smoothed_over_their_window_only() -> None:
    shape = Shape(2, 1, 4, 8, True, 8, ("cls",))
    module, tokenizer = random_model(causal=True)
    row = HeadModel.open(module, tokenizer=tokenizer).encode(
        Example(words=("the", "dog", "saw", "a", "cat"))
    )
    n = len(row)
    scores = torch.randn(1, 2, 1, n, n, generator=torch.Generator().manual_seed(0))
    place = torch.arange(n)
    causal = place[None] <= place[:, None]
    window = causal & (place[:, None] - place[None] < 2)
    masks = torch.stack([causal, window])[None, :, None]
    maps = scores.masked_fill(~masks, -torch.inf).softmax(-1)
    maps[0, 1, 0] = torch.eye(
        n
    )  # it sees the key before and gives it nothing: zeros do not tell what is visible
    analysis = Distance(smoothing=0.1)
    state = analysis.start(shape)
    analysis.observe_maps(state, maps, masks, collate([row]))
    smoothed = torch.where(masks, 0.9 * maps + 0.1 / masks.sum(-1, keepdim=True), 0.0)
    np.testing.assert_allclose(
        analysis.result(state, shape)["js"], slow_js([smoothed[0].numpy()], causal=True), atol=1e-6
    )


def test_layers_against_each_other() -> None:
    generator = np.random.default_rng(0)
    points = np.repeat(generator.normal(size=(4, 3)), 3, axis=0) + 0.05 * generator.normal(
        size=(12, 3)
    )
    js = ((points[:, None] - points[None]) ** 2).sum(-1)
    found = distance_dataset(js, 4, 3, Distance())
    within = [js[a, b] for a in range(12) for b in range(a) if a // 3 == b // 3]
    between = [js[a, b] for a in range(12) for b in range(a) if a // 3 != b // 3]
    assert float(found["js_within_layer"]) == pytest.approx(np.mean(within))
    assert float(found["js_between_layers"]) == pytest.approx(np.mean(between))
    assert float(found["layer_p_value"]) < 0.01
    np.testing.assert_array_equal(
        found["cluster"], found["layer_of_a"]
    )  # the planted families are the layers
    expected = np.mean([js[a, b] for a in range(3) for b in range(3, 6)])
    assert float(found["layer_js"].sel(layer=0, layer_b=1)) == pytest.approx(expected)
    assert float(found["layer_js"][2, 2]) == pytest.approx(np.mean([js[6, 7], js[6, 8], js[7, 8]]))
    assert list(found["head_a"].values[:4]) == ["L0H0", "L0H1", "L0H2", "L1H0"]
    assert np.isnan(layer_means(js[:2, :2], np.array([0, 1]))[0, 0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"smoothing": 1.0}, "below 1"),
        ({"axes": 0}, "`axes` must be at least 1"),
        ({"clusters": -1}, "at least 0"),
    ],
)
def test_parameters_are_checked(given: dict[str, float], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Distance(**given)  # type: ignore[arg-type]


@pytest.mark.real
def test_some_sentences_of_wiki_bert(shared: Path, wiki_model: HeadModel) -> None:
    model = wiki_model
    examples = list(open_corpus(shared / "data/trees/en_ewt-ud-dev.conllu.xz").limit(8))
    found = measured(model, examples, Distance(), max_tokens=2048)
    rows = [model.encode(example) for example in examples]
    expected = np.zeros((144, 144))
    for maps in eager_maps(model, rows):
        p = maps.reshape(144, -1)
        entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
        for a in range(144):
            m = (p[a] + p[: a + 1]) / 2
            expected[a, : a + 1] += (
                -(m * np.log(np.maximum(m, 1e-300))).sum(-1) - (entropy[a] + entropy[: a + 1]) / 2
            )
    expected += np.tril(expected, -1).T
    np.testing.assert_allclose(found["js"], expected / sum(map(len, rows)), atol=2e-6)
    # Heads of one layer are nearer to each other (the paper's finding).
    assert float(found["js_within_layer"]) < float(found["js_between_layers"])
    assert float(found["layer_p_value"]) < 0.01


@pytest.mark.parametrize("causal", [False, True])
def test_an_example_too_long_to_be_held_is_seen_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    module, tokenizer = random_model(causal=causal)
    model = HeadModel.open(module, tokenizer=tokenizer)
    examples = battery_examples()[:3]
    expected = measured(model, examples, Distance(smoothing=0.01))
    monkeypatch.setattr(
        distance, "MAPS_BYTES", model.layers * model.heads * 12 * 4 * 5
    )  # five rows of 12 tokens
    monkeypatch.setattr(distance, "GROUP_ENTRIES", 24)
    monkeypatch.setattr(Distance, "observe_maps", lambda *_: pytest.fail("held whole"))
    found = measured(model, examples, Distance(smoothing=0.01))
    np.testing.assert_allclose(found["js"], expected["js"], rtol=1e-5, atol=1e-9)
    assert found.attrs["tokens"] == expected.attrs["tokens"]
    assert found.attrs["examples"] == expected.attrs["examples"] == 3


@pytest.mark.parametrize("by_windows", [False, True])
def test_sampled_rows_have_the_error_that_is_stated(
    monkeypatch: pytest.MonkeyPatch, by_windows: bool
) -> None:
    """Twenty seeds: the true distance lies within two standard errors about as often as it
    should."""
    module, tokenizer = random_model(causal=True, max_length=256)
    model = HeadModel.open(module, tokenizer=tokenizer)
    words = np.random.default_rng(0).choice(["the", "dog", "saw", "a", "cat", "ran"], 160)
    examples = [Example(words=tuple(words))]
    exact = measured(model, examples, Distance(rows=0))
    assert "js_error" not in exact
    if by_windows:
        length = len(model.encode(examples[0]))
        monkeypatch.setattr(
            distance, "MAPS_BYTES", model.layers * model.heads * length * 4 * 20
        )  # twenty rows
    upper = np.triu_indices(len(exact["js"]), 1)
    inside = []
    for seed in range(20):
        found = measured(model, examples, Distance(rows=64, seed=seed))
        assert found.attrs["tokens"] == exact.attrs["tokens"]
        assert found.attrs["examples"] == 1
        assert found.attrs["sampled_rows"] == 64
        apart = np.abs(found["js"].values - exact["js"].values)[upper]
        assert apart.max() > 0
        inside.append((apart <= 2 * found["js_error"].values[upper]).mean())
    # Four groups tell an error with three degrees of freedom: two standard errors then hold 86 %
    # (Student's t).
    assert 0.72 < np.mean(inside) < 0.96


def test_the_plan_samples_rows_only_where_all_of_them_cost_more_than_ten_passes() -> None:
    shape = Shape(12, 12, 64, 768, False, 128, ("cls",))
    bert = Distance().planned(shape)
    assert bert.rows is not None
    assert bert.rows > 512
    wide = Distance().planned(Shape(12, 48, 16, 768, False, 128, ("cls",)))
    assert wide.rows is not None
    assert wide.rows == bert.rows // 16
    assert Distance(rows=0).planned(shape).rows == 0
    with pytest.raises(ParameterError, match="`rows` must be at least"):
        Distance(rows=3)
