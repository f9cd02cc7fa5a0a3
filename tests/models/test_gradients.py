"""Gradients with respect to attention weights: against finite differences of a patched head, and
against autograd on the model's own attentions."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny_models import SUPPORTED, build, ids_batch
from torch import Tensor

from headwise.core.errors import ModelError, ParameterError
from headwise.models import HeadModel, Patch
from headwise.models.gradients import stream_gradients
from headwise.models.view import AttentionRows
from headwise.text.encode import Batch

HEADED = {
    "bert": "BertForMaskedLM",
    "llama": "LlamaForCausalLM",
    "gpt1": "OpenAIGPTLMHeadModel",
    "gpt2": "GPT2LMHeadModel",
    "bloom": "BloomForCausalLM",
}


def headed(name: str) -> Any:
    config, _, arguments = SUPPORTED[name]
    return build(config, HEADED[name], arguments)


def loss(output: Any, batch: Batch) -> Tensor:
    """Mean over real tokens of the loss of predicting the token itself."""
    own = -output.logits.log_softmax(-1).gather(-1, batch.ids[..., None])[..., 0]
    return (own * batch.attention_mask).sum(-1) / batch.lengths


@pytest.mark.parametrize("block_rows", [None, 4])
@pytest.mark.parametrize("name", HEADED)
def test_against_autograd_on_the_models_own_attentions(name: str, block_rows: int | None) -> None:
    model = headed(name)
    own = copy.deepcopy(model)
    opened = HeadModel.open(model)
    batch = ids_batch(pad_id=opened.pad_id)
    blocks = opened.gradients(batch, loss, block_rows=block_rows)
    output = own(
        input_ids=batch.ids,
        attention_mask=batch.attention_mask.long(),
        output_attentions=True,
        use_cache=False,
    )
    # Eager attentions are the tensors that multiply the values: no dropout in evaluation mode.
    expected = torch.autograd.grad(loss(output, batch).sum(), output.attentions)
    got = torch.zeros(len(expected), *expected[0].shape)
    for rows in blocks:
        assert rows.gradient is not None
        assert not rows.gradient[~rows.visible.expand_as(rows.gradient)].any()
        got[rows.layer, :, :, rows.start : rows.stop] = rows.gradient
    for layer, gradient in enumerate(expected):
        real = batch.attention_mask[:, None, :, None] & batch.attention_mask[:, None, None, :]
        seen = (
            real & (torch.ones(11, 11, dtype=torch.bool).tril() if opened.causal else True)
        ).expand_as(gradient)
        torch.testing.assert_close(got[layer][seen], gradient[seen], atol=1e-6, rtol=1e-4)
    assert got.abs().amax((1, 2, 3, 4)).min() > 1e-6


def test_against_finite_differences() -> None:
    opened = HeadModel.open(headed("bert").double())
    batch = ids_batch((7, 5))
    layer, head = 1, 2
    rows = opened.gradients(batch, loss)[layer]
    assert rows.gradient is not None
    weights = rows.weights[:, head]
    for example, query, key in ((0, 0, 6), (0, 3, 2), (1, 4, 0)):
        step = torch.zeros_like(weights)
        step[example, query, key] = 1e-5
        values = [
            loss(
                opened.forward(
                    batch,
                    interventions={(layer, head): Patch(weights=weights + sign * step)},
                    logits=True,
                ),
                batch,
            )
            for sign in (1, -1)
        ]
        slope = (values[0] - values[1]) / 2e-5
        assert slope[example].item() == pytest.approx(
            rows.gradient[example, head, query, key].item(), rel=1e-5, abs=1e-10
        )
        assert slope[1 - example].abs() < 1e-12  # examples do not see each other


def test_an_example_has_the_same_gradient_alone() -> None:
    opened = HeadModel.open(headed("llama"))
    alone, together = (
        opened.gradients(batch, loss)[0].gradient for batch in (ids_batch((6,)), ids_batch((6, 11)))
    )
    assert alone is not None
    assert together is not None
    torch.testing.assert_close(together[0, :, :6, :6], alone[0], atol=1e-7, rtol=1e-4)


def test_the_gradient_is_that_of_the_changed_head() -> None:
    opened = HeadModel.open(headed("bert"))
    batch = ids_batch()
    first, second, third = opened.gradients(
        batch, loss, interventions={(1, 0): "uniform", (2, 3): "zero"}
    )
    assert first.gradient is not None
    assert third.gradient is not None
    real = batch.attention_mask[0]
    torch.testing.assert_close(second.weights[0, 0][real], torch.full((11, 11), 1 / 11))
    assert not third.gradient[:, 3].any()  # its output is replaced: nothing depends on its weights
    assert third.gradient[:, 2].any()


def test_no_gradient_is_left_on_the_model() -> None:
    opened = HeadModel.open(headed("bert"))
    opened.gradients(ids_batch(), loss)
    assert all(p.grad is None for p in opened.module.parameters())
    assert not opened.forward(ids_batch()).last_hidden_state.requires_grad


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ModelError, match="opened without a head"):
        HeadModel.open(build(*SUPPORTED["bert"])).gradients(ids_batch(), loss)
    with pytest.raises(
        ParameterError, match=r"one number for each of the 3 examples; it returned shape \[\]"
    ):
        HeadModel.open(headed("bert")).gradients(
            ids_batch(), lambda output, batch: output.logits.sum()
        )


@pytest.mark.parametrize("name", HEADED)
def test_weights_that_are_not_held_give_the_same_gradients(name: str) -> None:
    model = HeadModel.open(headed(name))
    batch = ids_batch(pad_id=model.pad_id)
    expected = {
        (rows.layer, rows.start): rows for rows in model.gradients(batch, loss, block_rows=4)
    }
    shown: list[AttentionRows] = []
    stream_gradients(model, batch, loss, shown.append, block_rows=4, max_kept_bytes=0)
    order = [
        rows.layer for rows in shown
    ]  # a module that forms its weights itself keeps them: first layer first
    assert order == sorted(order, reverse=name != "bloom")
    for rows in shown:
        held = expected.pop((rows.layer, rows.start))
        assert rows.gradient is not None
        assert held.gradient is not None
        torch.testing.assert_close(rows.weights, held.weights, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(rows.gradient, held.gradient, atol=1e-7, rtol=1e-4)
        assert bool((rows.gradient[~rows.visible.expand_as(rows.gradient)] == 0).all())
    assert not expected
