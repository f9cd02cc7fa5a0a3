"""Correlations against scipy, ties and all; rollout and norm-weighted attention against plain
loops."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from headwise.analyses.attribution import norm_weighted, rollout, row_correlations
from headwise.models import HeadModel

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from tiny_models import SEQ2SEQ, SUPPORTED, build, ids_batch


def test_correlations_are_scipys_with_ties_and_hidden_tokens() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 4, (200, 7)).astype(float), rng.normal(size=(200, 7))
    b[::3] = np.round(b[::3])
    seen = rng.random((200, 7)) < 0.8
    pearson, spearman = row_correlations(
        torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(seen)
    )
    compared = 0
    for row in range(200):
        x, y = a[row, seen[row]], b[row, seen[row]]
        if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
            assert np.isnan(float(pearson[row]))
            assert np.isnan(float(spearman[row]))
            continue
        assert float(pearson[row]) == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-10)
        assert float(spearman[row]) == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-10)
        compared += 1
    assert 100 < compared < 200


def test_a_constant_row_is_constant_in_spite_of_rounding() -> None:
    a = torch.full((1, 9), 1 / 9, dtype=torch.float32)
    pearson, spearman = row_correlations(
        a, torch.arange(9.0)[None], torch.ones(1, 9, dtype=torch.bool)
    )
    assert pearson.isnan().all()
    assert spearman.isnan().all()


def test_rollout_by_hand() -> None:
    model, batch = HeadModel.open(build(*SUPPORTED["bert"])), ids_batch((6, 4))
    attention = model.trace(batch).attention
    found = rollout(attention, batch.attention_mask).numpy()
    for e, n in enumerate((6, 4)):
        so_far = np.eye(n)
        for layer in range(model.layers):
            maps = attention[e, layer, :, :n, :n].double().numpy()
            for head in range(model.heads):
                np.testing.assert_allclose(
                    found[e, layer, head, :n, :n], maps[head] @ so_far, atol=1e-6
                )
            so_far = (0.5 * maps.mean(0) + 0.5 * np.eye(n)) @ so_far
        assert (found[e, ..., n:] == 0).all()


@pytest.mark.parametrize(
    ("name", "projection"),
    [("bert", "attention.output.dense"), ("gpt2", "attn.c_proj"), ("llama", "self_attn.o_proj")],
)
def test_norm_weighted_attention_by_hand(name: str, projection: str) -> None:
    """The output projection is found: norms of each head's projected values, from the weights
    themselves."""
    model, batch = HeadModel.open(build(*SUPPORTED[name])), ids_batch((6, 4))
    attention = model.trace(batch).attention
    found, projected = norm_weighted(model, batch, attention)
    assert projected

    class Values:
        needs = frozenset({"outputs"})

        def __init__(self) -> None:
            self.layers = {}

        def on_rows(self, rows) -> None: ...

        def on_layer(self, layer) -> None:
            self.layers[layer.layer] = layer.value

    watcher = Values()
    model.forward(batch, watcher)
    for layer in range(model.layers):
        module = model.sites.entries[layer].get_submodule(projection)
        matrix = (
            (module.weight if name == "gpt2" else module.weight.T).detach().double()
        )  # inputs by outputs
        value = (
            watcher.layers[layer].double().repeat_interleave(model.heads // model.kv_heads, dim=1)
        )
        for head in range(model.heads):
            part = matrix[head * model.d_head : (head + 1) * model.d_head]
            norms = (value[:, head] @ part).norm(dim=-1)
            expected = (
                attention[:, layer, head].double()
                * norms[:, None]
                * (batch.attention_mask[:, :, None] & batch.attention_mask[:, None, :])
            )
            expected = expected / expected.sum(-1, keepdim=True).clamp(min=1e-30)
            assert torch.allclose(found[:, layer, head], expected, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    ["xlnet", "deberta", "gpt1", "bloom", "t5", "fsmt", "gpt-oss", "albert", "deepseek-v3", "xlm"],
)
def test_norm_weighted_attention_of_other_architectures(name: str) -> None:
    model, batch = HeadModel.open(build(*(SUPPORTED | SEQ2SEQ)[name])), ids_batch((6, 4))
    attention = model.trace(batch).attention
    found, _ = norm_weighted(model, batch, attention)
    sums = found.sum(-1)
    real = batch.attention_mask[:, None, None].expand_as(sums)
    assert torch.allclose(sums[real], torch.ones(1, dtype=torch.float64), atol=1e-6)
    assert found.shape == attention.shape
