"""One group of pairs on a tiny model: what is patched where, first order against differences,
shared and whole runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from headwise.experiments.patching import PromptPair
from headwise.experiments.patching.pairs import encode_pairs
from headwise.experiments.patching.run import PatchRunner
from headwise.models import HeadModel, Patch
from headwise.models.prefix import SharedTokens
from headwise.testing import random_model

LAYERS = 3
HEADS = 2
PAIRS = [
    PromptPair("the cat saw", "the dog saw", "bird", "child", "pair:1"),
    PromptPair("the bird saw", "the child saw", "cat", "dog", "pair:2"),
]


@pytest.fixture(scope="module")
def model() -> Iterator[HeadModel]:
    module, tokenizer = random_model(causal=True, layers=LAYERS, heads=HEADS, d_head=4)
    with HeadModel.open(module, tokenizer=tokenizer, device="cpu") as opened:
        yield opened


@pytest.fixture(scope="module")
def runner(model: HeadModel) -> PatchRunner:
    encoded, n_left_out = encode_pairs(model, PAIRS, strict=True)
    assert n_left_out == 0
    return PatchRunner(model, encoded, share=True)


def test_the_difference_is_that_of_the_logits_at_the_last_token(
    model: HeadModel, runner: PatchRunner
) -> None:
    for name in ("clean", "corrupted"):
        for number, pair in enumerate(PAIRS):
            batch = model.batch(getattr(pair, name))
            logits = model.forward(batch, logits=True).logits[0, -1]
            answer, wrong = model.tokenizer.convert_tokens_to_ids([pair.answer, pair.wrong])
            expected = float(logits[answer] - logits[wrong])
            assert float(runner.difference[name][number]) == pytest.approx(expected, abs=1e-4)


def test_a_head_that_gets_its_own_output_changes_nothing(
    model: HeadModel, runner: PatchRunner
) -> None:
    for layer in range(LAYERS):
        own_output = runner.outputs["corrupted"][layer][:, 1]
        difference = runner.intervened("corrupted", layer, 1, Patch(output=own_output), True)
        torch.testing.assert_close(difference, runner.difference["corrupted"])


def test_shared_runs_give_what_whole_runs_give(runner: PatchRunner) -> None:
    assert runner.shares()
    for into in ("clean", "corrupted"):
        for layer in range(LAYERS):
            shared = runner.patched(into, layer, 0, share=True)
            whole = runner.patched(into, layer, 0, share=False)
            torch.testing.assert_close(shared, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads_at_once", [1, HEADS])
def test_the_heads_of_a_layer_at_once_are_the_heads_one_by_one(
    runner: PatchRunner, monkeypatch: pytest.MonkeyPatch, heads_at_once: int
) -> None:
    monkeypatch.setattr(PatchRunner, "_heads_at_once", lambda self: heads_at_once)
    for into in ("clean", "corrupted"):
        for layer in range(LAYERS):
            together = runner.patched_layer(into, layer)
            for head in range(HEADS):
                alone = runner.patched(into, layer, head)
                torch.testing.assert_close(together[head], alone, atol=1e-5, rtol=1e-5)
                assert (alone - runner.difference[into]).abs().max() > 1e-4


def test_tokens_before_the_first_difference_run_once(
    model: HeadModel, runner: PatchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    differs = (runner.batches["clean"].ids != runner.batches["corrupted"].ids).any(0).tolist()
    n_tokens = len(differs)
    assert differs[:3] == [False, False, True]  # [CLS], the, cat or dog
    assert runner.tokens.length == 2
    n_run = []
    run = model.run

    def counted(ids: torch.Tensor, *args: object, **options: object) -> object:
        n_run.append(ids.shape[1])
        return run(ids, *args, **options)

    monkeypatch.setattr(model, "run", counted)
    runner.patched("corrupted", 1, 0)
    runner.patched_layer("clean", 1)
    # Zeroing changes the tokens before the difference too.
    runner.zeroed(1, 0)
    assert n_run == [n_tokens - 2, n_tokens - 2, n_tokens]


def test_tokens_whose_keys_cannot_be_shared_are_noticed(
    model: HeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, _ = encode_pairs(model, PAIRS, strict=True)
    for_copies = SharedTokens.for_copies

    def wrong(tokens: SharedTokens, times: int) -> object:
        cache = for_copies(tokens, times)
        if cache is not None:
            # As if what the tokens hand on were not in the cache alone.
            cache.layers[0].values = 2 * cache.layers[0].values
        return cache

    monkeypatch.setattr(SharedTokens, "for_copies", wrong)
    runner = PatchRunner(model, encoded, share=True)
    assert runner.tokens.length == 0
    assert runner.shares()


def test_layers_that_pass_on_something_else_are_noticed(model: HeadModel) -> None:
    encoded, _ = encode_pairs(model, PAIRS, strict=True)
    runner = PatchRunner(model, encoded, share=True)
    outputs = runner._prefix["corrupted"].outputs
    # As if the output of the first layer were not all that the second one gets.
    first = outputs[0]
    outputs[0] = (2 * first[0], *first[1:]) if isinstance(first, tuple) else 2 * first
    assert not runner.shares()


def test_in_the_last_layer_only_the_last_position_counts(runner: PatchRunner) -> None:
    last = LAYERS - 1
    n_tokens = runner.batches["clean"].ids.shape[1]
    for head in range(HEADS):
        everywhere = runner.patched("corrupted", last, head)
        at_the_end = runner.patched("corrupted", last, head, position=0)
        torch.testing.assert_close(at_the_end, everywhere)
        for position in range(1, n_tokens):
            before = runner.patched("corrupted", last, head, position=position)
            torch.testing.assert_close(before, runner.difference["corrupted"])


def test_tokens_before_the_difference_carry_nothing(runner: PatchRunner) -> None:
    # A decoder reads `the` before it reads the noun that differs.
    n_tokens = runner.batches["clean"].ids.shape[1]
    for layer in range(LAYERS):
        at_first_token = runner.patched("corrupted", layer, 0, position=n_tokens - 1)
        torch.testing.assert_close(at_first_token, runner.difference["corrupted"])


def test_zeroing_is_zero_ablation(model: HeadModel, runner: PatchRunner) -> None:
    batch = model.batch([pair.clean for pair in PAIRS])
    rows = torch.arange(len(PAIRS))
    for head in range(HEADS):
        output = model.forward(batch, interventions={(1, head): "zero"}, logits=True)
        logits = output.logits[rows, batch.lengths - 1]
        expected = logits[rows, runner.answer] - logits[rows, runner.wrong]
        torch.testing.assert_close(runner.zeroed(1, head), expected, atol=1e-5, rtol=1e-4)


def test_the_estimate_is_the_slope_towards_the_clean_output(runner: PatchRunner) -> None:
    estimate = runner.estimate()
    assert estimate.shape == (len(PAIRS), LAYERS, HEADS, runner.batches["clean"].ids.shape[1])
    step = 1e-2
    for layer in range(LAYERS):
        for head in range(HEADS):
            corrupted = runner.outputs["corrupted"][layer][:, head]
            change = runner.outputs["clean"][layer][:, head] - corrupted
            up = Patch(output=corrupted + step * change)
            down = Patch(output=corrupted - step * change)
            above = runner.intervened("corrupted", layer, head, up, True)
            below = runner.intervened("corrupted", layer, head, down, True)
            slope = (above - below) / (2 * step)
            by_head = estimate[:, layer, head].sum(-1)
            torch.testing.assert_close(by_head, slope, atol=5e-3, rtol=2e-2)
