"""The closed form of hidden token attribution equals plain reverse-mode autograd on planted
models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.core.errors import ParameterError
from headwise.testing import contributions, planted_model
from headwise.text.example import Example


def reverse_mode(planted, row) -> dict[str, np.ndarray]:
    """Frobenius norms of Jacobian blocks, one output token at a time."""
    model = planted.model.double()
    base = model.transformer if planted.causal else model.bert
    layers = base.h if planted.causal else base.encoder.layer
    entering, outputs, leaving = {}, {}, {}
    hooks = []
    for index, layer in enumerate(layers):
        projection = layer.attn.c_proj if planted.causal else layer.attention.output.dense
        hooks.append(
            layer.register_forward_pre_hook(
                lambda _, args, index=index: entering.__setitem__(index, args[0])
            )
        )
        hooks.append(
            projection.register_forward_pre_hook(
                lambda _, args, index=index: outputs.__setitem__(index, args[0][0])
            )
        )
        hooks.append(
            layer.register_forward_hook(
                lambda _, args, out, index=index: leaving.__setitem__(
                    index, out[0] if isinstance(out, tuple) else out
                )
            )
        )
    model(torch.as_tensor(row.ids)[None])
    for hook in hooks:
        hook.remove()

    def shares(y: torch.Tensor, x: torch.Tensor) -> np.ndarray:
        rows = []
        for token in y:
            every = torch.eye(len(token), dtype=token.dtype)
            squares = (
                torch.autograd.grad(token, x, every, retain_graph=True, is_grads_batched=True)[0][
                    :, 0
                ]
                ** 2
            ).sum((0, -1))
            rows.append((squares.sqrt() / squares.sqrt().sum()).numpy())
        return np.array(rows)

    found: dict[str, list] = {
        "previous_layer": [],
        "input": [],
        "layer_previous": [],
        "layer_input": [],
    }
    for index in range(planted.layers):
        heads = outputs[index].unflatten(-1, (planted.heads, -1)).unbind(1)
        found["previous_layer"].append([shares(head, entering[index]) for head in heads])
        found["input"].append([shares(head, entering[0]) for head in heads])
        found["layer_previous"].append(
            shares(leaving[index].reshape(len(row), -1), entering[index])
        )
        found["layer_input"].append(shares(leaving[index].reshape(len(row), -1), entering[0]))
    return {name: np.array(value) for name, value in found.items()}


@pytest.mark.parametrize("causal", [False, True])
def test_closed_form_equals_autograd(causal):
    planted = planted_model(
        [["previous", "uniform"], ["first", "offset:-2"]],
        causal=causal,
        words=["a", "b", "c"],
        max_length=6,
    )
    row = planted.encode(["a b c"])[0]
    closed, slow = contributions(planted, row), reverse_mode(planted, row)
    for name, expected in slow.items():
        np.testing.assert_allclose(closed[name], expected, atol=1e-7, err_msg=name)
    # In the first layer of a linear head the contribution is the attention itself.
    np.testing.assert_allclose(
        closed["input"][0], planted.expected_map(row)[0], atol=1e-7 if not causal else 1e-2
    )


def test_heads_whose_weights_depend_on_the_input_are_rejected():
    planted = planted_model([["sep", "uniform"]], max_length=16)
    contributions(planted, planted.encode(["the cat"])[0])  # one [SEP]: nothing to spread over
    with pytest.raises(ParameterError, match="'sep' attends to several tokens"):
        contributions(planted, planted.encode([Example(text="the cat", pair="a dog")])[0])
