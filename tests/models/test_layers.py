"""Layers are told apart also where the module has no layer index or is shared between layers."""

from __future__ import annotations

import pytest
import torch
from tiny_models import SUPPORTED, build, ids_batch

from headwise.models import HeadModel

NAMES = ["albert", "albert-groups", "albert-inner", "distilbert", "bert", "llama", "xlnet", "gpt1"]
SPECS = SUPPORTED | {
    "albert-inner": (
        *SUPPORTED["albert"][:2],
        SUPPORTED["albert"][2] | {"inner_group_num": 2, "num_hidden_layers": 3},
    )
}


@pytest.mark.parametrize("name", NAMES)
def test_an_intervention_in_a_layer_changes_it_and_what_follows_only(name: str) -> None:
    opened = HeadModel.open(build(*SPECS[name]))
    batch = ids_batch(pad_id=opened.pad_id)
    before = opened.trace(batch, {"attention", "outputs", "hidden"})
    assert before.attention is not None
    assert before.outputs is not None
    assert before.hidden is not None
    for layer in range(opened.layers):
        after = opened.trace(
            batch, {"attention", "outputs", "hidden"}, interventions={(layer, 1): "zero"}
        )
        assert after.attention is not None
        assert after.outputs is not None
        assert after.hidden is not None
        real = batch.attention_mask[:, None].expand(len(batch), opened.layers + 1, -1)
        moved = ((after.hidden - before.hidden).abs().amax(-1) * real).amax((0, 2)) > 0
        assert moved.tolist() == [False] * (layer + 1) + [True] * (opened.layers - layer)
        assert torch.equal(after.attention[:, : layer + 1], before.attention[:, : layer + 1])
        assert (
            not torch.equal(after.attention[:, layer + 1 :], before.attention[:, layer + 1 :])
            or layer == opened.layers - 1
        )
        assert not after.outputs[:, layer, 1].any()
        others = [head for head in range(opened.heads) if head != 1]
        assert torch.equal(after.outputs[:, layer, others], before.outputs[:, layer, others])


@pytest.mark.parametrize("name", ["albert", "distilbert"])
def test_the_layers_differ(name: str) -> None:
    attention = HeadModel.open(build(*SUPPORTED[name])).trace(ids_batch((9,))).attention
    assert attention is not None
    assert (attention[:, 0] - attention[:, 1]).abs().max() > 1e-3
    assert (attention[:, 1] - attention[:, 2]).abs().max() > 1e-3


def test_two_passes_in_a_row_start_at_layer_zero_again() -> None:
    opened = HeadModel.open(build(*SUPPORTED["albert"]))
    batch = ids_batch()
    first, second = opened.trace(batch).attention, opened.trace(batch).attention
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)


def test_what_leaves_the_last_layer_is_before_the_final_norm() -> None:
    opened = HeadModel.open(build(*SUPPORTED["llama"]))
    batch = ids_batch()
    hidden = opened.trace(batch, {"hidden"}).hidden
    assert hidden is not None
    with torch.no_grad():
        torch.testing.assert_close(
            opened.module.norm(hidden[:, -1]), opened.forward(batch).last_hidden_state
        )
    xlm = HeadModel.open(build(*SUPPORTED["xlm"]))
    batch = ids_batch(pad_id=xlm.pad_id)
    last = xlm.trace(batch, {"hidden"}).hidden
    assert last is not None
    torch.testing.assert_close(last[:, -1], xlm.forward(batch).last_hidden_state)
