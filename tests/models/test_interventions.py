"""Interventions against a computation that knows nothing of the tap: hooks on the output projection
of an eager model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import SUPPORTED, build, ids_batch
from torch import Tensor

from headwise.core.errors import ParameterError
from headwise.models import HeadModel, Mean, Patch
from headwise.text.encode import Batch

D = 8
LAYER, HEAD = 1, 2


def parts(model: Any, name: str) -> tuple[Any, Any]:
    """The value projection and the output projection of the layer."""
    if name == "bert":
        block = model.encoder.layer[LAYER].attention
        return block.self.value, block.output.dense
    block = model.layers[LAYER].self_attn
    return block.v_proj, block.o_proj


def by_hooks(
    model: Any, name: str, batch: Batch, change: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Last hidden states when `change(slice [example, token, D], values [example, token, D])`
    replaces the head's slice of the projection's input."""
    value, projection = parts(model, name)
    group = HEAD if name == "bert" else HEAD // 2
    kept: dict[str, Tensor] = {}

    def keep(module: Any, args: Any, output: Tensor) -> None:
        kept["value"] = output[..., group * D : (group + 1) * D]

    def replace(module: Any, args: tuple[Tensor]) -> tuple[Tensor]:
        heads = args[0].clone()
        part = slice(HEAD * D, (HEAD + 1) * D)
        heads[..., part] = change(heads[..., part], kept["value"])
        return (heads,)

    handles = [value.register_forward_hook(keep), projection.register_forward_pre_hook(replace)]
    with torch.no_grad():
        result = model(
            input_ids=batch.ids, attention_mask=batch.attention_mask.long()
        ).last_hidden_state
    for handle in handles:
        handle.remove()
    return result


def visible_by_hand(name: str, batch: Batch) -> Tensor:
    """V(i) [example, query, key], written down by hand."""
    n = batch.ids.shape[1]
    keys = batch.attention_mask[:, None, :].expand(-1, n, n)
    return keys.tril() if name == "llama" else keys


GENERATOR = torch.Generator().manual_seed(7)
VECTOR = torch.randn(D, generator=GENERATOR)
OUTPUT = torch.randn(3, 11, D, generator=GENERATOR)
WEIGHTS = torch.rand(3, 11, 11, generator=GENERATOR)


@pytest.mark.parametrize("block_rows", [None, 4])
@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.parametrize(
    "what",
    ["zero", "uniform", "mean", "vector", "output", "output of all", "weights", "weights of all"],
)
def test_against_hooks(name: str, what: str, block_rows: int | None) -> None:
    model = build(*SUPPORTED[name])
    own = copy.deepcopy(model)
    batch = ids_batch()
    visible = visible_by_hand(name, batch).float()
    uniform = visible / visible.sum(-1, keepdim=True)
    share = batch.attention_mask.float() / batch.lengths[:, None]
    cases: dict[str, tuple[Any, Callable[[Tensor, Tensor], Tensor]]] = {
        "zero": ("zero", lambda head, value: torch.zeros_like(head)),
        "uniform": ("uniform", lambda head, value: uniform @ value),
        "mean": ("mean", lambda head, value: (share[:, None] @ head).expand_as(head)),
        "vector": (Mean(VECTOR), lambda head, value: VECTOR.expand_as(head)),
        "output": (Patch(output=OUTPUT), lambda head, value: OUTPUT),
        "output of all": (Patch(output=OUTPUT[0]), lambda head, value: OUTPUT[:1].expand_as(head)),
        "weights": (Patch(weights=WEIGHTS), lambda head, value: WEIGHTS @ value),
        "weights of all": (Patch(weights=WEIGHTS[0]), lambda head, value: WEIGHTS[0] @ value),
    }
    intervention, change = cases[what]
    expected = by_hooks(own, name, batch, change)
    opened = HeadModel.open(model)
    got = opened.forward(
        batch, interventions={(LAYER, HEAD): intervention}, block_rows=block_rows
    ).last_hidden_state
    plain = opened.forward(batch).last_hidden_state
    torch.testing.assert_close(
        got[batch.attention_mask], expected[batch.attention_mask], atol=1e-5, rtol=1e-5
    )
    assert (got - plain)[batch.attention_mask].abs().max() > 1e-3


def test_watchers_see_the_weights_after_it() -> None:
    opened = HeadModel.open(build(*SUPPORTED["gpt-oss"]))
    batch = ids_batch()
    trace = opened.trace(batch, interventions={0: "uniform", (2, 1): Patch(weights=WEIGHTS)})
    assert trace.attention is not None
    assert trace.visible is not None
    assert trace.sink is not None
    visible = trace.visible[:, 0].float()
    for head in range(opened.heads):
        torch.testing.assert_close(
            trace.attention[:, 0, head],
            visible[:, 0] / visible[:, 0].sum(-1, keepdim=True).clamp(min=1),
        )
    assert not trace.sink[:, 0].any()
    torch.testing.assert_close(trace.attention[0, 2, 1], WEIGHTS[0])
    assert trace.sink[:, 1].any()


def test_uniform_keeps_out_of_windows_and_padding() -> None:
    opened = HeadModel.open(build(*SUPPORTED["mistral"]))
    trace = opened.trace(ids_batch((9, 4)), interventions={0: "uniform"})
    assert trace.attention is not None
    torch.testing.assert_close(
        trace.attention[0, 0, 0, 8], torch.tensor([0, 0, 0, 0, 0, 0.25, 0.25, 0.25, 0.25])
    )
    torch.testing.assert_close(
        trace.attention[1, 0, 0, 1], torch.tensor([0.5, 0.5, 0, 0, 0, 0, 0, 0, 0])
    )
    assert not trace.attention[1, 0, 0, 4:].any()


def test_padding_does_not_enter_the_mean() -> None:
    opened = HeadModel.open(build(*SUPPORTED["bert"]))
    one = opened.trace(ids_batch((6,)), {"outputs"}, interventions={1: "mean"}).outputs
    two = opened.trace(ids_batch((6, 12)), {"outputs"}, interventions={1: "mean"}).outputs
    torch.testing.assert_close(two[0, ..., :6, :], one[0], atol=1e-5, rtol=1e-5)  # type: ignore[index]


def test_a_head_wins_over_its_layer() -> None:
    opened = HeadModel.open(build(*SUPPORTED["bert"]))
    for order in ({(0, 1): Mean(VECTOR), 0: "zero"}, {0: "zero", (0, 1): Mean(VECTOR)}):
        outputs = opened.trace(ids_batch((5,)), {"outputs"}, interventions=order).outputs
        assert outputs is not None
        assert not outputs[:, 0, [0, 2, 3]].any()
        torch.testing.assert_close(outputs[0, 0, 1, 3], VECTOR)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({(0, 9): "zero"}, "There is no head 9 in layer 0: the model has heads 0 to 3."),
        ({(3, 0): "zero"}, "There is no layer 3: the model has layers 0 to 2."),
        ({-1: "zero"}, "There is no layer -1: the model has layers 0 to 2."),
        (
            {"H1": "zero"},
            "An intervention is given for a head ('L3H5' or (3, 5)) or a layer ('L3' or 3), counted from 0; it was "
            "given for 'H1'.",
        ),
        (
            {0: "unifrom"},
            "There is no intervention 'unifrom'. Did you mean 'uniform'? Known: uniform, zero, mean.",
        ),
        (
            {0: 3},
            "An intervention is one of uniform, zero, mean, a Mean, a Patch or a Scale; it is a int.",
        ),
        (
            {0: Mean(torch.zeros(5))},
            "`Mean` takes a vector of the head's size, [8]; it has shape [5].",
        ),
        (
            {0: Patch(output=torch.zeros(2, 5))},
            "`Patch(output=...)` must have shape [3, 11, 8] or [11, 8] for this batch; it has [2, 5].",
        ),
        (
            {0: Patch(weights=torch.zeros(2, 11, 11))},
            "`Patch(weights=...)` must have shape [3, 11, 11] or [11, 11] for this batch; it has [2, 11, 11].",
        ),
    ],
)
def test_what_does_not_fit_is_said(given: Any, sentence: str) -> None:
    opened = HeadModel.open(build(*SUPPORTED["bert"]))
    with pytest.raises(ParameterError) as caught:
        opened.forward(ids_batch(), interventions=given)
    assert str(caught.value) == sentence


def test_a_patch_is_one_thing() -> None:
    with pytest.raises(ParameterError, match="exactly one"):
        Patch()
