"""Learned gates: heads that do nothing are the ones given up; scaling a head's output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.analyses.gradient.analysis import masked_tokens
from headwise.core.errors import InputError, ParameterError
from headwise.experiments.ablation import (
    GateOptions,
    ScoredLanguageModel,
    estimate_gate_cost,
    learn_gates,
)
from headwise.models import HeadModel, Scale
from headwise.models.session import Session
from headwise.testing.toy import toy_examples, toy_folder
from headwise.text import Corpus
from headwise.text.encode import Batch

DEAD = [(0, 2), (1, 0), (1, 1), (1, 3)]


class DistanceToIntact(ScoredLanguageModel):
    """Scores how far the logits are from those of the intact model, so that a head without effect
    costs exactly nothing."""

    def __init__(self, model: HeadModel, corpus: Corpus, **options: Any) -> None:
        super().__init__(model, corpus, **options)
        self.intact: dict[int, Tensor] = {}
        for batch in self.batches:
            logits = self.model.forward(batch, logits=True).logits
            for number, index in enumerate(batch.index):
                self.intact[index] = logits[number]

    def run(self, batch: Batch, session: Session) -> Tensor:
        logits = self.model.run(batch.ids, batch.attention_mask, batch.types, logits=True).logits
        intact = torch.stack([self.intact[index] for index in batch.index])
        return (logits - intact).square().mean((1, 2))


def opened(path: Path) -> HeadModel:
    model = HeadModel.open(toy_folder(path, causal=True, layers=2, heads=4), device="cpu")
    with torch.no_grad():
        for layer, head in DEAD:
            model.module.transformer.h[layer].attn.c_proj.weight[head * 8 : (head + 1) * 8] = 0  # type: ignore[union-attr, index]
    return model


def test_heads_that_do_nothing_are_given_up(tmp_path: Path) -> None:
    model = opened(tmp_path / "lm")
    subject = DistanceToIntact(model, Corpus.from_examples(toy_examples(40)), batch_tokens=60)
    before = [p.requires_grad for p in model.module.parameters()]
    result = learn_gates(subject, GateOptions(remove=4, steps=120))
    assert result.heads == DEAD
    assert result.without == pytest.approx(result.intact, abs=1e-9)
    assert (result.random >= result.without).all()
    assert result.p_value <= 0.15
    dead = np.zeros((2, 4), bool)
    dead[tuple(np.array(DEAD).T)] = True
    assert result.openness[dead].max() < result.openness[~dead].min()
    assert [p.requires_grad for p in model.module.parameters()] == before
    few_steps = GateOptions(remove=4, steps=12, random_sets=2)
    first = learn_gates(subject, few_steps)
    second = learn_gates(subject, few_steps)
    assert np.array_equal(first.openness, second.openness)
    assert np.array_equal(first.random, second.random)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("batch_tokens", [24, 4096])
def test_held_out_examples_are_scored_against_their_own_tokens(
    tmp_path: Path, causal: bool, batch_tokens: int
) -> None:
    folder = toy_folder(tmp_path / "lm", causal=causal, layers=2, heads=4)
    with HeadModel.open(folder, device="cpu") as model:
        examples = toy_examples(9)
        corpus = Corpus.from_examples(examples)
        subject = ScoredLanguageModel(model, corpus, batch_tokens=batch_tokens, seed=3)
        result = learn_gates(subject, GateOptions(remove=2, steps=2, random_sets=3))
        held_out = [index for batch in subject.batches for index in batch.index[1::2]]
        losses = []
        for index in held_out:
            row = model.encode(examples[index], index)
            if causal:
                predicted = np.arange(1, len(row))
                ids = row.ids
            else:
                predicted = masked_tokens(row, 0.15, 3)
                ids = row.ids.copy()
                ids[predicted] = model.tokenizer.mask_token_id
            logits = model.forward(model.batch([ids]), logits=True).logits[0].log_softmax(-1)
            rows = predicted - 1 if causal else predicted
            losses.append(-float(logits[rows, row.ids[predicted]].mean()))
    assert len(held_out) == 4 if batch_tokens == 4096 else len(held_out) > 1
    assert result.intact == pytest.approx(np.mean(losses), abs=1e-5)


def test_the_cost_of_gates_is_estimated_beforehand(tmp_path: Path) -> None:
    model = opened(tmp_path / "lm")
    subject = ScoredLanguageModel(model, Corpus.from_examples(toy_examples(40)))
    cost = estimate_gate_cost(subject, GateOptions(remove=4, steps=50, random_sets=6))
    assert (cost.steps, cost.passes) == (50, 8)
    assert cost.tokens_per_step <= subject.max_tokens_per_step
    n_tokens = sum(batch.ids.numel() for batch in subject.batches)
    assert cost.tokens_per_pass == pytest.approx(n_tokens / 2, rel=0.1)
    assert cost.seconds > 0


def test_gates_need_two_examples_and_a_head_to_keep(tmp_path: Path) -> None:
    model = opened(tmp_path / "lm")
    subject = ScoredLanguageModel(model, Corpus.from_examples(toy_examples(1)), batch_tokens=4000)
    with pytest.raises(ParameterError, match="has 8 heads"):
        learn_gates(subject, GateOptions(remove=8))
    with pytest.raises(InputError, match="give at least two examples"):
        learn_gates(subject, GateOptions(remove=2))
    with pytest.raises(ParameterError, match="`remove` must be at least 1"):
        GateOptions(remove=0)


def test_a_scaled_head_lies_between_whole_and_zero(tmp_path: Path) -> None:
    model = opened(tmp_path / "lm")
    batch = model.batch(["good film the", "bad book"])

    def logits(intervention: Any) -> Tensor:
        interventions = None if intervention is None else {(0, 1): intervention}
        return model.forward(batch, interventions=interventions, logits=True).logits

    assert torch.equal(logits(Scale(torch.tensor(1.0))), logits(None))
    assert torch.equal(logits(Scale(torch.tensor(0.0))), logits("zero"))
    assert not torch.allclose(logits(Scale(torch.tensor(0.5))), logits("zero"))
    with pytest.raises(ParameterError, match="one number"):
        logits(Scale(torch.ones(2)))
