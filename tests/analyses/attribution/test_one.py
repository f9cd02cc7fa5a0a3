"""One row of one head is the row that all heads at once have, also while other heads are
disabled."""

from __future__ import annotations

import pytest
import torch

from headwise import HeadModel
from headwise.analyses.attribution.contributions import contributions, head_contributions
from headwise.analyses.attribution.reverse import reverse_graph
from headwise.core.errors import InputError, ParameterError
from headwise.models.interventions import Patch, plan_interventions
from headwise.testing.models import random_model

TEXT = "the cat saw the dog"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("source", ["input", "previous_layer"])
def test_it_is_the_row_of_the_whole(causal: bool, source: str) -> None:
    module, tokenizer = random_model(causal=causal)
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        whole = contributions(model, TEXT, source).heads[0]
        for layer, head, token in ((1, 0, 3), (1, 1, 1), (0, 1, 2)):
            row = head_contributions(model, TEXT, (layer, head), token, source)
            torch.testing.assert_close(
                row, whole[layer, head, token].double(), atol=1e-5, rtol=1e-4
            )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", ["zero", "uniform", "mean"])
def test_disabled_heads_change_what_later_heads_gather(causal: bool, how: str) -> None:
    module, tokenizer = random_model(causal=causal, d_head=4)
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        off = {"L0H0": how, "L0H1": how}
        graph = reverse_graph(
            model, model.batch(TEXT), plan=plan_interventions(off, 2, model.heads, model.d_head)
        )
        told = model.trace(TEXT, {"outputs"}, interventions=off).outputs
        assert told is not None
        torch.testing.assert_close(graph.outputs[1], told[:, 1], atol=1e-5, rtol=1e-4)
        row = head_contributions(model, TEXT, "L1H0", 3, interventions=off)
        assert float((row - head_contributions(model, TEXT, "L1H0", 3)).abs().max()) > 1e-3
        # A slow way of its own: move the input a little, and see how far the head's output moves.
        step = 1e-3
        entering = model.trace(TEXT, {"hidden"}).hidden
        assert entering is not None
        norms = []
        for token in range(entering.shape[2]):
            total = 0.0
            for dimension in range(entering.shape[3]):
                moved = []
                for sign in (1, -1):
                    changed = entering[:, 0].clone()
                    changed[0, token, dimension] += sign * step
                    streams = {(0, "residual"): Patch(output=changed), **off}
                    found = model.trace(TEXT, {"outputs"}, interventions=streams).outputs
                    assert found is not None
                    moved.append(found[0, 1, 0, 3].double())
                total += float(((moved[0] - moved[1]) / (2 * step)).square().sum())
            norms.append(total**0.5)
        slow = torch.tensor(norms, dtype=torch.float64)
        torch.testing.assert_close(row, slow / slow.sum(), atol=2e-3, rtol=0)


def test_of_a_disabled_head_it_tells_what_it_would_give() -> None:
    module, tokenizer = random_model()
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        plain = head_contributions(model, TEXT, "L0H1", 2)
        torch.testing.assert_close(
            head_contributions(model, TEXT, "L0H1", 2, interventions={"L0H1": "zero"}), plain
        )


def test_wrong_questions_are_named() -> None:
    module, tokenizer = random_model()
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        with pytest.raises(ParameterError, match="`token` must be one of"):
            head_contributions(model, TEXT, "L0H0", 99)
        with pytest.raises(ParameterError, match="There is no head L9H0"):
            head_contributions(model, TEXT, "L9H0", 0)
        with pytest.raises(InputError, match="one text"):
            head_contributions(model, [TEXT, TEXT], "L0H0", 0)
