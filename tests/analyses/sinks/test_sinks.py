"""Sinks: exact on the planted decoder, nothing on random weights, equal to a slow computation."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from headwise import make_atlas
from headwise.analyses.contract import make_analysis
from headwise.atlas import Atlas
from headwise.models import HeadModel
from headwise.models.session import Session
from headwise.models.view import Layer, TraceWatcher
from headwise.plots import figures_for
from headwise.testing import planted_decoder, random_model
from headwise.text import Corpus
from headwise.text.example import Example

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from tiny_models import SUPPORTED, build


def words(count: int, length: int, seed: int = 0, names=None) -> Corpus:
    random = np.random.default_rng(seed)
    names = names or [f"word{i}" for i in range(30)]
    texts = [" ".join(random.choice(names, length + i % 5, replace=False)) for i in range(count)]
    return Corpus.from_examples([Example(text=text) for text in texts], "words")


@pytest.fixture(scope="module")
def planted():
    return planted_decoder(words=30, max_length=40)


@pytest.fixture(scope="module")
def sinks(planted):
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model:
        return make_atlas(model, words(12, 14), ["sinks"])["sinks"]


def test_the_planted_sink(planted, sinks) -> None:
    first, p = sinks["first"].values, sinks["first_p_adjusted"].values
    # No word comes twice: the duplicate and the induction head rest too.
    resting = {planted.where(name) for name in ("sink", "duplicate", "induction")}
    for place in np.ndindex(first.shape):
        assert (first[place] == pytest.approx(1, abs=1e-5)) == (place in resting)
        assert (p[place] < 0.05) == (place in resting)
    assert sinks["rate"].values[planted.where("sink")] == 1
    assert sinks["value_norm_ratio"].values[planted.where("sink")] == pytest.approx(0, abs=1e-5)
    assert sinks["value_norm_ratio"].values[planted.where("copying")] == pytest.approx(1, abs=1e-5)
    assert first[planted.where("idle")] == pytest.approx(sinks["uniform"].values[1], rel=1e-5)


def test_rows_without_the_sink(planted, sinks) -> None:
    place = planted.where("previous")
    assert sinks["rest_largest"].values[place] == pytest.approx(1, abs=1e-4)
    assert sinks["rest_entropy"].values[place] == pytest.approx(0, abs=1e-3)
    idle = sinks.isel(layer=1, head=2)
    assert float(idle["rest_mass"].sel(token_type="other")) == pytest.approx(1, abs=1e-5)
    assert np.isnan(sinks["rest_entropy"].values[planted.where("sink")])


NAMES = [
    "cat",
    "dog",
    "bird",
    "child",
    "saw",
    "heard",
    "near",
    "under",
    "tree",
    "house",
    "not",
    "he",
    "she",
    "it",
]
NAMES += ["and", "old", "small"]


def test_random_weights_are_nothing_and_a_slow_computation_agrees() -> None:
    for seed in range(3):
        module, tokenizer = random_model(causal=True, layers=3, heads=4, seed=seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(3 if parameter.ndim > 1 else 1)
        corpus = words(10, 12, seed, NAMES)
        with HeadModel.open(module, tokenizer=tokenizer) as model:
            found = make_atlas(model, corpus, ["sinks"])["sinks"]
        assert (found["first_p_adjusted"] > 0.05).all()
    slow = slowly(module, tokenizer, corpus, 0.3)
    for name, values in slow.items():
        np.testing.assert_allclose(found[name].values, values.mean(0), rtol=1e-4, err_msg=name)


def test_the_test_is_against_the_threshold_or_twice_a_uniform_head() -> None:
    """Short and long inputs, so that the bar is now the one and now the other; a threshold amid
    what heads give."""
    module, tokenizer = random_model(causal=True, layers=3, heads=4, seed=1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2 if parameter.ndim > 1 else 1)
    texts = [*words(6, 3, 1, NAMES), *words(5, 12, 2, NAMES)]
    corpus = Corpus.from_examples(
        [*texts, Example(text="cat")], "lengths"
    )  # a word is too short to be asked
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        found = make_atlas(
            model, corpus, ["surface", "sinks"], parameters={"sinks": {"threshold": 0.4}}
        )["sinks"]
    slow = slowly(module, tokenizer, texts, 0.4)
    bars = np.array(
        [max(0.4, 2 * np.mean(1 / np.arange(2, 1 + len(ids(tokenizer, one))))) for one in texts]
    )
    assert (bars > 0.4).any()
    assert (bars == 0.4).any()
    p = scipy_stats.ttest_1samp(
        slow["first"] - bars[:, None, None], 0, axis=0, alternative="greater"
    ).pvalue
    assert 0.001 < p.min() < 0.9
    np.testing.assert_allclose(found["first_p"].values, p, rtol=1e-3)
    assert (found["first_n"] == len(texts)).all()
    assert (found["hidden_norm_ratio_n"] == len(texts)).all()


def ids(tokenizer, example: Example) -> list[int]:
    return tokenizer(example.text)["input_ids"]


def slowly(module, tokenizer, corpus, threshold: float) -> dict[str, np.ndarray]:
    """What `sinks` says of each example, from whole maps, values and hidden states."""
    module.set_attn_implementation("eager")
    found: dict[str, list[np.ndarray]] = {}
    for example in corpus:
        output = module(
            torch.tensor([ids(tokenizer, example)]),
            output_attentions=True,
            output_hidden_states=True,
        )
        maps = torch.stack(output.attentions)[:, 0].detach().double().numpy()
        first, rest = maps[:, :, 1:, 0], maps[:, :, 1:, 1:]
        total = rest.sum(-1)
        some = np.where(total > 1e-4, 1, np.nan)  # rows that leave enough to other tokens
        rest = rest / np.maximum(total, 1e-6)[..., None]
        hidden = torch.stack(output.hidden_states[: len(maps)])[:, 0].detach()
        lengths = hidden.double().norm(dim=-1)
        ratios = []
        for layer, block in enumerate(module.transformer.h):
            value = block.attn.c_attn(block.ln_1(hidden[layer])).chunk(3, -1)[2]
            norms = value.reshape(len(value), maps.shape[1], -1).double().norm(dim=-1)
            ratios.append((norms[0] / norms[1:].mean(0)).detach().numpy())
        one = {
            "first": first.mean(-1),
            "rate": (first > threshold).mean(-1),
            "rest_entropy": np.nanmean(
                some * -(rest * np.log(np.where(rest > 0, rest, 1))).sum(-1), -1
            ),
            "rest_largest": np.nanmean(some * rest.max(-1), -1),
            "value_norm_ratio": np.stack(ratios),
            "hidden_norm_ratio": (lengths[:, 0] / lengths.quantile(0.5, -1)).numpy(),
        }
        for name, values in one.items():
            found.setdefault(name, []).append(values)
    return {name: np.stack(values) for name, values in found.items()}


def test_learned_sinks() -> None:
    config, _, arguments = SUPPORTED["gpt-oss"]
    tokenizer = random_model(causal=True)[1]
    with HeadModel.open(
        build(config, "GptOssForCausalLM", arguments), tokenizer=tokenizer
    ) as model:
        corpus = words(3, 8, 0, NAMES)
        found = make_atlas(model, corpus, ["sinks"])["sinks"]
        expected = [model.trace(model.batch(e)).sink[0].mean(-1).numpy() for e in corpus]
        above = [
            (model.trace(model.batch(e)).sink[0] > 0.3).double().mean(-1).numpy() for e in corpus
        ]
    np.testing.assert_allclose(found["learned"].values, np.mean(expected, 0), rtol=1e-4)
    np.testing.assert_allclose(found["learned_rate"].values, np.mean(above, 0), atol=1e-6)


def test_figures_and_headline(sinks) -> None:
    drawn = [one.name for spec in figures_for("sinks") for one in spec.draw(sinks)]
    assert drawn == ["heads", "values"]
    said = make_analysis("sinks").summary(sinks)
    assert "3 of 6 heads" in said[0]
    assert not any("opening token" in line for line in said)


def test_an_atlas_with_both_ways_in_it_draws_as_before(sinks, tmp_path: Path) -> None:
    """`first_other` was a part of `sinks` before it became `opening_token`."""
    old = sinks.assign(
        {
            f"first_other{end}": sinks[f"first{end}"] * (0.5 if end != "_n" else 1)
            for end in ("", "_n", "_low", "_high")
        }
    ).assign_attrs(opening=1, other="without the opening token")
    loaded = Atlas.load(Atlas({"sinks": old}).save(tmp_path / "atlas.nc"))["sinks"]
    heads = next(spec for spec in figures_for("sinks") if spec.name == "heads")
    panels = heads.draw(loaded)[0].figure.axes
    titles = [text.get_text() for axes in panels for text in axes.texts]
    titles += [axes.get_title(loc) for axes in panels for loc in ("left", "center")]
    assert any("without the opening token" in title for title in titles)
    assert "without the opening token" in make_analysis("sinks").summary(loaded)[-1]


def test_inputs_too_short_for_anything(planted) -> None:
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model:
        atlas = make_atlas(
            model, Corpus.from_examples([Example(text="word1")], "short"), ["surface", "sinks"]
        )
    assert np.isnan(atlas["sinks"]["first"].values).all()
    assert "every input is shorter than 3 tokens" in atlas["sinks"].attrs["left_out"]
    assert make_analysis("sinks").summary(atlas["sinks"]) == []


def test_values_and_hidden_states_are_held_for_one_layer_at_a_time(planted) -> None:
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model:
        held: list[int] = []

        class CountingWatcher(TraceWatcher):
            def on_layer(self, layer: Layer) -> None:
                held.append(len(session._entering))
                super().on_layer(layer)

        watcher = CountingWatcher(frozenset({"hidden"}))
        batch = model.batch("word1 word2 word3")
        session = Session(model.sites, batch.attention_mask, watcher)
        with torch.no_grad(), session.running():
            model.run(batch.ids, batch.attention_mask, batch.types)
    assert held == [1, 1]
