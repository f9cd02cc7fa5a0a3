"""LAMB against the paper's formula in plain loops."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.experiments.finetuning import Lamb


def test_steps_are_those_of_the_formula() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(3, 2, dtype=torch.float64))
    bias = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = Lamb(
        [{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "weight_decay": 0.0}],
        lr=0.05,
    )
    expected = {0: weight.detach().clone(), 1: bias.detach().clone()}
    moments = {i: (torch.zeros_like(w), torch.zeros_like(w)) for i, w in expected.items()}
    for step in range(1, 5):
        gradients = [torch.randn_like(weight), torch.randn_like(bias)]
        weight.grad, bias.grad = gradients[0].clone(), gradients[1].clone()
        optimizer.step()
        for i, decay in ((0, 0.1), (1, 0.0)):
            first, second = moments[i]
            first, second = (
                0.9 * first + 0.1 * gradients[i],
                0.999 * second + 0.001 * gradients[i] ** 2,
            )
            moments[i] = (first, second)
            r = (first / (1 - 0.9**step)) / (
                (second / (1 - 0.999**step)).sqrt() + 1e-6
            ) + decay * expected[i]
            size, reach = math.sqrt(float((expected[i] ** 2).sum())), math.sqrt(float((r**2).sum()))
            ratio = min(size, 10.0) / reach if size > 0 and reach > 0 else 1.0
            expected[i] = expected[i] - 0.05 * ratio * r
        assert torch.allclose(weight, expected[0], atol=1e-12)
        assert torch.allclose(bias, expected[1], atol=1e-12)


def test_a_step_is_a_share_of_the_weights_size() -> None:
    weight = torch.nn.Parameter(torch.full((4,), 2.0))
    weight.grad = torch.tensor([1.0, -3.0, 0.5, 100.0])
    before = weight.detach().clone()
    Lamb([weight], lr=0.01, weight_decay=0.0).step()
    assert (weight - before).norm().item() == pytest.approx(0.01 * before.norm().item(), rel=1e-5)
