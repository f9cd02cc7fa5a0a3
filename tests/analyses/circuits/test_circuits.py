"""Circuits: the planted composition is found, numbers are those of dense matrices, random weights
are nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headwise import make_atlas
from headwise.analyses.circuits.products import compose, composition_sides
from headwise.analyses.contract import make_analysis
from headwise.models import HeadModel
from headwise.models.weights import LayerWeights
from headwise.plots import figures_for
from headwise.plots.registry import tables_for
from headwise.stats.rotations import turned_overlap, turned_trace
from headwise.testing import planted_decoder, random_model
from headwise.text import Corpus
from headwise.text.example import Example

CORPUS = Corpus.from_examples([Example(text="word1 word2 word3")], "one")


@pytest.fixture(scope="module")
def decoder():
    return planted_decoder(words=30, max_length=40)


@pytest.fixture(scope="module")
def dataset(decoder):
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer) as model:
        return make_atlas(model, CORPUS, ["circuits"])["circuits"]


def test_planted_circuits(decoder, dataset) -> None:
    for name in ("induction", "copying"):
        assert dataset["ov_copying"].values[decoder.where(name)] == pytest.approx(1, abs=1e-3)
        assert dataset["ov_copying_p_adjusted"].values[decoder.where(name)] < 1e-6
    assert dataset["qk_matching"].values[decoder.where("duplicate")] == pytest.approx(1, abs=1e-3)


def test_the_planted_composition_is_the_strongest(decoder, dataset) -> None:
    first = dataset.isel(rank=0)
    summary_text = (
        str(first["pair_from"].values),
        str(first["pair_to"].values),
        str(first["pair_side"].values),
    )
    assert summary_text == ("L0H0", "L1H0", "key")
    assert float(first["pair_p_adjusted"]) < 1e-6
    others = dataset["composition_p_adjusted"].values.copy()
    assert np.nansum(others < 0.05) == 1
    # W_QK is the identity between two blocks of V, W_OV a projector of rank V − 1: 1/√V, but for
    # the centring.
    tokens = len(decoder.vocabulary)
    ratio = float(first["pair_composition"]) + float(turned_expected(dataset))
    assert ratio == pytest.approx(1 / np.sqrt(tokens), rel=0.05)


def turned_expected(dataset) -> float:
    return turned_overlap(np.array(0.1), np.array(1 / 34), np.array(1 / 34), 225).expected


def test_dense_matrices_agree() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        intermediate_size=32, vocab_size=50, max_position_embeddings=40,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2)
    tokenizer = random_model(causal=True)[1]
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        dataset = make_atlas(model, CORPUS, ["circuits"])["circuits"]
    e, u = (
        w.detach().double().numpy()
        for w in (module.model.embed_tokens.weight, module.lm_head.weight)
    )
    u = u * module.model.norm.weight.detach().double().numpy()
    parts = []
    for layer in module.model.layers:
        gain = layer.input_layernorm.weight.detach().double().numpy()
        q, k, v, o = (
            getattr(layer.self_attn, f"{n}_proj").weight.detach().double().numpy()
            for n in ("q", "k", "v", "o")
        )
        for head in range(4):
            own, group = slice(6 * head, 6 * head + 6), slice(6 * (head // 2), 6 * (head // 2) + 6)
            parts.append(
                (
                    gain[:, None] * q[own].T,
                    gain[:, None] * k[group].T,
                    gain[:, None] * v[group].T,
                    o[:, own].T,
                )
            )
    for place, (q, k, v, o) in enumerate(parts):
        at = divmod(place, 4)
        for name, circuit in (("ov_copying", e @ v @ o @ u.T), ("qk_matching", e @ q @ k.T @ e.T)):
            values = np.linalg.eigvals(circuit)
            expected = values.sum().real / np.abs(values[np.argsort(-np.abs(values))[:6]]).sum()
            assert dataset[name].values[at] == pytest.approx(expected, rel=1e-4)
    composition = dataset["composition"].values
    sides = [str(side) for side in dataset["side"].values]
    for a in range(4):
        ov = parts[a][2] @ parts[a][3]
        for b in range(4, 12):
            q, k, v, o = parts[b]
            for side, m in (("query", (q @ k.T).T), ("key", q @ k.T), ("value", (v @ o).T)):
                ratio = np.linalg.norm(m @ ov.T) / np.linalg.norm(m) / np.linalg.norm(ov)
                spread = [
                    np.sum(np.linalg.svd(x)[1] ** 4) / np.sum(np.linalg.svd(x)[1] ** 2) ** 2
                    for x in (ov, m)
                ]
                expected = (
                    ratio - turned_overlap(np.array(0.1), *map(np.array, spread), 24).expected
                )
                assert composition[sides.index(side), a, b] == pytest.approx(expected, abs=1e-4)
    assert np.isnan(composition[:, 4:, :4]).all()


def test_random_weights_are_nothing() -> None:
    count = 0
    for seed in range(6):
        module, tokenizer = random_model(causal=True, layers=3, heads=4, d_head=8, seed=seed)
        with HeadModel.open(module, tokenizer=tokenizer) as model:
            dataset = make_atlas(model, CORPUS, ["circuits"])["circuits"]
        names = ("ov_copying_p_adjusted", "qk_matching_p_adjusted", "composition_p_adjusted")
        count += sum(int((dataset[name] < 0.05).any()) for name in names)
    assert count <= 3  # 18 families at 5 %


def test_the_null_is_that_of_random_turns() -> None:
    random = np.random.default_rng(0)
    width, a, b = 20, random.normal(size=(3, 20)) * [[3], [1], [1]], random.normal(size=(20, 4))
    turns = [np.linalg.qr(random.normal(size=(width, width)))[0] for _ in range(4000)]
    turns = [q * np.sign(random.normal(size=width)) for q in turns]
    norms = (
        np.array([np.linalg.norm(a @ q @ b) for q in turns]) / np.linalg.norm(a) / np.linalg.norm(b)
    )
    spread = [
        np.sum(np.linalg.svd(x)[1] ** 4) / np.sum(np.linalg.svd(x)[1] ** 2) ** 2 for x in (a, b)
    ]
    for share in (0.5, 0.9, 0.99):
        cut = np.quantile(norms, share)
        dataset = turned_overlap(np.array(cut**2), *map(np.array, spread), width)
        assert float(dataset.p_value) == pytest.approx(1 - share, abs=0.015)
    assert float(dataset.expected) == pytest.approx(norms.mean(), rel=0.01)
    square = b @ random.normal(size=(4, 20))
    traces = np.array([np.trace(square @ q) for q in turns])
    cut = np.quantile(np.abs(traces), 0.95)
    assert float(turned_trace(cut, np.linalg.norm(square), width)) == pytest.approx(0.05, abs=0.015)


def test_figures_tables_and_summary(dataset) -> None:
    drawn = [one.name for spec in figures_for("circuits") for one in spec.draw(dataset)]
    assert drawn == ["heads", "composition"]
    assert tables_for("circuits")[0].function(dataset)["from"][0] == "L0H0"
    assert "L0H0 → L1H0 (key" in " ".join(make_analysis("circuits").summary(dataset))


def layers_with_gains(seed: int, aligned: bool, planted: bool) -> list[LayerWeights]:
    """Random heads between norms whose gains lie on a few dimensions: the norm before attention on
    those of the norm after it, or on all others. Planted: the key of L1H0 reads what L0H0 writes."""
    generator = torch.Generator().manual_seed(seed)
    width, heads, d = 96, 4, 8
    gain = torch.exp(1.5 * torch.randn(width, generator=generator))
    before = gain if aligned else 1 / gain

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    layers = []
    for number in range(3):
        key = draw(heads, width, d)
        if planted and number == 1:
            # Behind both gains, the key reads what is written before them.
            key[0] = layers[0].output[0].T / (gain * before)[:, None]
        reads = [draw(heads, width, d), key, draw(heads, width, d)]
        query, key, value = (before[:, None] * matrix for matrix in reads)
        layers.append(LayerWeights(query, key, value, draw(heads, d, width), gain, frozenset()))
    return layers


def composition_p_values(layers: list[LayerWeights]) -> dict[str, np.ndarray]:
    composition = compose([composition_sides(layer) for layer in layers], lambda *_: None)
    p_values = {}
    for side, squared in composition.squared.items():
        spreads = composition.writes[:, None], composition.reads[side]
        p_values[side] = turned_overlap(squared, *spreads, 96).p_value
    return p_values


@pytest.mark.parametrize("aligned", [True, False])
def test_gains_of_norms_on_both_sides_are_no_composition_and_hide_none(aligned: bool) -> None:
    known = []
    for seed in range(4):
        for p_value in composition_p_values(layers_with_gains(seed, aligned, False)).values():
            known.append(p_value[np.isfinite(p_value)])
    p_values = np.concatenate(known)
    assert len(p_values) == 4 * 3 * 48
    assert 0.02 < (p_values < 0.05).mean() < 0.09
    planted = composition_p_values(layers_with_gains(0, aligned, True))["key"]
    assert planted[0, 4] < 0.01  # 0.99 where the gain is turned together with what is written
