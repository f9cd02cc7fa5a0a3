"""Random tangents: unbiased, with errors that hold what they promise, the same whatever an example
is batched with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from headwise.analyses.attribution import ContributionOptions, contributions
from headwise.analyses.attribution.forward import exact_squared_norms
from headwise.analyses.attribution.pushforward import push_tangents
from headwise.analyses.attribution.reverse import gradients, jacobian_squared_norms, reverse_graph
from headwise.analyses.attribution.sketch import PILOT, share_intervals, sketch
from headwise.models import HeadModel

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from tiny_models import SUPPORTED, build, ids_batch


def total_variation(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).abs().sum(-1) / 2


def test_squares_are_unbiased() -> None:
    """The mean of many sketches of two tangents is the exact squared norm."""
    model, batch = HeadModel.open(build(*SUPPORTED["bert"])), ids_batch((4,))
    exact = contributions(model, batch).heads
    found = sketch(model, batch, ContributionOptions(tangents=600)).heads
    assert total_variation(found, exact).max() < 0.03
    few = torch.stack(
        [
            sketch(model, batch, ContributionOptions(tangents=4, seed=seed)).heads
            for seed in range(40)
        ]
    )
    assert total_variation(few.mean(0), exact).median() < 0.02
    assert total_variation(few[0], exact).median() > 0.02  # or the tests above say nothing


def test_what_is_promised_is_held() -> None:
    """Intervals cover the truth, standard errors are the spread over seeds, the wanted error is
    reached."""
    model, batch = HeadModel.open(build(*SUPPORTED["gpt2"])), ids_batch((9, 6))
    exact = contributions(model, batch).heads
    real = (
        (batch.attention_mask[:, :, None] & batch.attention_mask[:, None, :])[
            :, None, None
        ].expand_as(exact)
        & (exact > 0)
        & (exact < 1)
    )
    runs = [
        contributions(
            model, batch, method="sketch", options=ContributionOptions(tangents=8, seed=seed)
        )
        for seed in range(25)
    ]
    inside = torch.stack([(run.low <= exact) & (exact <= run.high) for run in runs])[:, real]
    assert inside.double().mean() >= 0.92
    assert inside.double().mean() < 0.995  # not by being useless
    spread = torch.stack([run.heads for run in runs]).std(0)[real]
    stated = torch.stack([run.error for run in runs]).square().mean(0).sqrt()[real]
    assert 0.8 < float((stated / spread.clamp(min=1e-9)).median()) < 1.25
    rows = batch.attention_mask[:, None, None].expand(*exact.shape[:-1])
    for wanted in (0.1, 0.04):
        found = [
            contributions(
                model, batch, method="sketch", options=ContributionOptions(error=wanted, seed=seed)
            )
            for seed in range(8)
        ]
        assert (
            torch.cat([total_variation(run.heads, exact)[rows] for run in found]).median() <= wanted
        )
        assert all((run.total_variation <= wanted).all() for run in found)


def test_a_smaller_error_takes_more_tangents_and_in_the_end_all() -> None:
    model, batch = HeadModel.open(build(*SUPPORTED["bert"])), ids_batch((6,))
    used = [
        int(
            contributions(
                model, batch, method="sketch", options=ContributionOptions(error=e)
            ).tangents[0]
        )
        for e in (0.2, 0.02, 0.014)
    ]
    assert PILOT == used[0] < used[1] < used[2]
    exact = contributions(model, batch, method="sketch", options=ContributionOptions(error=0.001))
    assert int(exact.tangents[0]) == model.hidden
    squares = exact_squared_norms(model, batch).heads.sqrt()
    assert torch.allclose(exact.heads, squares / squares.sum(-1, keepdim=True))
    assert (exact.error == 0).all()
    assert torch.allclose(exact.low, exact.heads)


def test_an_example_does_not_depend_on_its_company() -> None:
    model = HeadModel.open(build(*SUPPORTED["llama"]))
    batch = ids_batch((9, 5, 7))
    together = contributions(model, batch, method="sketch", layer_output=True)
    for e, n in enumerate((9, 5, 7)):
        alone = contributions(model, batch.select([e]), method="sketch", layer_output=True)
        assert torch.allclose(alone.heads[0], together.heads[e], atol=1e-5)
        assert torch.allclose(alone.layers[0], together.layers[e], atol=1e-5)
        assert int(alone.tangents[0]) == int(together.tangents[e])
        assert (together.heads[e, ..., n:] == 0).all()
    other = contributions(model, batch, method="sketch", options=ContributionOptions(seed=1))
    assert not torch.allclose(other.heads, together.heads, atol=1e-3)


def test_intervals_of_numbers_known_by_hand() -> None:
    """Equal squares without spread: no error. All spread in one token: its own interval is the
    widest."""
    mean = torch.ones(1, 1, 1, 1, 4, dtype=torch.float64)
    real, k = torch.ones_like(mean, dtype=torch.bool), torch.tensor([8.0], dtype=torch.float64)
    shares, errors, low, high = share_intervals(mean, torch.zeros_like(mean), k, real)
    assert torch.allclose(shares, torch.full_like(shares, 0.25))
    assert torch.allclose(low, shares)
    assert (errors == 0).all()
    spread = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64).view_as(mean)
    _, errors, low, high = share_intervals(mean, spread, k, real)
    assert errors[..., 0] > errors[..., 1:].max() > 0
    assert ((low < 0.25) & (high > 0.25)).all()


@pytest.mark.real
def test_tangents_through_wiki_bert_are_those_of_reverse_mode(wiki_model: HeadModel) -> None:
    """Two sentences in one padded batch, some random directions: every number of random heads and
    tokens, with its sign. (That squares are summed over all directions is seen on smaller models:
    here it would take a minute.)"""
    model = wiki_model
    batch = model.batch(["Some birds sang.", "Nobody."])
    generator = torch.Generator().manual_seed(0)
    tangents = torch.randn(3, *batch.ids.shape, model.hidden, generator=generator)
    moved: dict[int, torch.Tensor] = {}
    push_tangents(
        model, batch, tangents, lambda layer, found: moved.__setitem__(layer, found.clone())
    )
    graph = reverse_graph(model, batch)
    for _ in range(10):
        layer, head, token = (
            int(torch.randint(0, size, (), generator=generator)) for size in (12, 12, 5)
        )
        output = graph.outputs[layer][:, head, token]
        size = output.shape[-1]
        each = gradients(
            output, torch.eye(size)[:, None].expand(size, *output.shape), graph.leaf_inputs[0]
        )
        slow = torch.einsum("denh,kenh->ked", each, tangents)
        fast = moved[layer][:, :, head, token]
        assert ((slow - fast).abs() <= 1e-4 * slow.abs().amax()).all()


@pytest.mark.real
def test_of_stories_exact_equals_reverse_and_sketches_hold(stories: Path) -> None:
    """Two sentences in one padded batch: exact against reverse on random rows; coverage over seeds;
    the error."""
    model = HeadModel.open(stories)
    batch = model.batch(["Once there was", "She ran"])
    squares = exact_squared_norms(model, batch).heads
    graph = reverse_graph(model, batch)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        layer, head, token = (
            int(torch.randint(0, size, (), generator=generator)) for size in (6, 6, 3)
        )
        slow = jacobian_squared_norms(
            graph.outputs[layer][:, head, token], graph.leaf_inputs[0]
        ).sqrt()
        fast = squares[:, layer, head, token].sqrt()
        assert ((slow - fast).abs() <= 1e-4 * slow.max(-1, keepdim=True).values).all()
    exact = squares.sqrt() / squares.sqrt().sum(-1, keepdim=True).clamp(min=1e-30)
    real = (
        (batch.attention_mask[:, :, None] & batch.attention_mask[:, None, :])[
            :, None, None
        ].expand_as(exact)
        & (exact > 0)
        & (exact < 1)
    )
    covered, rows = [], []
    for seed in range(10):
        found = contributions(
            model, batch, method="sketch", options=ContributionOptions(error=0.05, seed=seed)
        )
        covered.append(((found.low <= exact) & (exact <= found.high))[real].double().mean())
        rows.append(
            total_variation(found.heads, exact)[
                batch.attention_mask[:, None, None].expand(*exact.shape[:-1])
            ]
        )
    assert int(real.sum()) >= 500
    assert float(torch.stack(covered).mean()) >= 0.92, covered
    assert float(torch.cat(rows).median()) <= 0.05
