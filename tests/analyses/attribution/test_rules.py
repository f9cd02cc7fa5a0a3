"""Rules for tangents: the two ways to push a tangent through a layer norm are one derivative."""

from __future__ import annotations

import torch
from torch.func import jvp

from headwise.analyses.attribution.tangent_rules import _norm_tangent, norm_tangent


def test_both_ways_through_a_layer_norm_are_its_derivative() -> None:
    torch.manual_seed(0)
    x, tangents = (
        torch.randn(2, 5, 16, dtype=torch.float64),
        torch.randn(7, 2, 5, 16, dtype=torch.float64),
    )
    weight = torch.randn(16, dtype=torch.float64)

    def norm(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(values, (16,), eps=1e-12) * weight

    true = torch.stack([jvp(norm, (x,), (t,))[1] for t in tangents])
    deviation = (x.var(-1, unbiased=False, keepdim=True) + 1e-12).sqrt()
    normed = (x - x.mean(-1, keepdim=True)) / deviation
    for way in (norm_tangent, _norm_tangent):  # the second is what `compiled` compiles
        torch.testing.assert_close(
            way(tangents, normed, 1 / deviation) * weight, true, rtol=1e-9, atol=1e-9
        )
