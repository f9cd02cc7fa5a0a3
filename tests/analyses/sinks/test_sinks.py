"""Sinks: exact on the planted decoder, nothing on random weights, equal to a slow computation."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise import make_atlas
from headwise.analyses.contract import make_analysis
from headwise.models import HeadModel
from headwise.plots import figures_for
from headwise.testing import planted_decoder, random_model
from headwise.text import Corpus
from headwise.text.example import Example

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from tiny_models import SERVED, build


def words(count: int, length: int, seed: int = 0, names=None) -> Corpus:
    random = np.random.default_rng(seed)
    names = names or [f"word{i}" for i in range(30)]
    texts = [" ".join(random.choice(names, length + i % 5, replace=False)) for i in range(count)]
    return Corpus.from_examples([Example(text=text) for text in texts], "words")


@pytest.fixture(scope="module")
def made():
    return planted_decoder(words=30, max_length=40)


@pytest.fixture(scope="module")
def found(made):
    with HeadModel.open(made.model, tokenizer=made.tokenizer) as model:
        return make_atlas(model, words(12, 14), ["sinks"])["sinks"]


def test_the_planted_sink(made, found) -> None:
    first, p = found["first"].values, found["first_p_adjusted"].values
    # No word comes twice: the duplicate and the induction head rest too.
    resting = {made.where(name) for name in ("sink", "duplicate", "induction")}
    for place in np.ndindex(first.shape):
        assert (first[place] == pytest.approx(1, abs=1e-5)) == (place in resting)
        assert (p[place] < 0.05) == (place in resting)
    assert found["rate"].values[made.where("sink")] == 1
    assert found["value_norm_ratio"].values[made.where("sink")] == pytest.approx(0, abs=1e-5)
    assert found["value_norm_ratio"].values[made.where("copying")] == pytest.approx(1, abs=1e-5)
    assert first[made.where("idle")] == pytest.approx(found["uniform"].values[1], rel=1e-5)
    # Without the opening token it rests on the first word.
    assert found.attrs["other"] == "without the opening token"
    assert found["first_other"].values[made.where("sink")] == pytest.approx(1, abs=1e-5)


def test_rows_without_the_sink(made, found) -> None:
    place = made.where("previous")
    assert found["rest_largest"].values[place] == pytest.approx(1, abs=1e-4)
    assert found["rest_entropy"].values[place] == pytest.approx(0, abs=1e-3)
    idle = found.isel(layer=1, head=2)
    assert float(idle["rest_mass"].sel(token_type="other")) == pytest.approx(1, abs=1e-5)
    assert np.isnan(found["rest_entropy"].values[made.where("sink")])


def test_random_weights_are_nothing_and_a_slow_computation_agrees() -> None:
    names = ["cat", "dog", "bird", "child", "saw", "heard", "near", "under", "tree", "house", "not", "he", "she"]
    names += ["it", "and", "old", "small"]
    for seed in range(3):
        module, tokenizer = random_model(causal=True, layers=3, heads=4, seed=seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(3 if parameter.ndim > 1 else 1)
        corpus = words(10, 12, seed, names)
        with HeadModel.open(module, tokenizer=tokenizer) as model:
            found = make_atlas(model, corpus, ["sinks"])["sinks"]
        assert (found["first_p_adjusted"] > 0.05).all()
    module.set_attn_implementation("eager")
    firsts, entropies = [], []
    for example in corpus:
        ids = torch.tensor([tokenizer(example.text)["input_ids"]])
        maps = torch.stack(module(ids, output_attentions=True).attentions)[:, 0].detach().double().numpy()
        firsts.append(maps[:, :, 1:, 0].mean(-1))
        rest = maps[:, :, 1:, 1:]
        total = rest.sum(-1)
        rest = rest / np.maximum(total, 1e-6)[..., None]
        entropy = -(rest * np.log(np.where(rest > 0, rest, 1))).sum(-1)
        entropies.append((entropy * (total > 1e-6)).sum(-1) / (total > 1e-6).sum(-1))
    np.testing.assert_allclose(found["first"].values, np.mean(firsts, 0), rtol=1e-4)
    np.testing.assert_allclose(found["rest_entropy"].values, np.mean(entropies, 0), rtol=1e-4)


def test_learned_sinks() -> None:
    config, _, arguments = SERVED["gpt-oss"]
    tokenizer = random_model(causal=True)[1]
    with HeadModel.open(build(config, "GptOssForCausalLM", arguments), tokenizer=tokenizer) as model:
        corpus = words(
            3, 8, 0, ["cat", "dog", "bird", "child", "saw", "heard", "near", "under", "tree", "house", "not", "he"]
        )
        found = make_atlas(model, corpus, ["sinks"])["sinks"]
        expected = [model.trace(model.batch(e)).sink[0].mean(-1).numpy() for e in corpus]
        above = [(model.trace(model.batch(e)).sink[0] > 0.3).double().mean(-1).numpy() for e in corpus]
    np.testing.assert_allclose(found["learned"].values, np.mean(expected, 0), rtol=1e-4)
    np.testing.assert_allclose(found["learned_rate"].values, np.mean(above, 0), atol=1e-6)


def test_figures_and_headline(found) -> None:
    drawn = [one.name for spec in figures_for("sinks") for one in spec.draw(found)]
    assert drawn == ["heads", "values"]
    assert "3 of 6 heads" in make_analysis("sinks").headline(found)[0]
