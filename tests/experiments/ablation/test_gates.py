"""Learned gates: heads that do nothing are the ones given up; scaling a head's output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.core.errors import InputError, ParameterError
from headwise.experiments.ablation import GateOptions, LanguageSubject, learn_gates
from headwise.models import HeadModel, Scale
from headwise.models.session import Session
from headwise.testing.toy import toy_examples, toy_folder
from headwise.text import Corpus
from headwise.text.encode import Batch

DEAD = [(0, 2), (1, 0), (1, 1), (1, 3)]


class Same(LanguageSubject):
    """How far the model's scores are from what the whole model gives."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.whole: dict[int, Tensor] = {}
        for batch in self.batches:
            self.whole[id(batch)] = self.model.forward(batch, logits=True).logits

    def run(self, batch: Batch, session: Session) -> Tensor:
        logits = self.model.run(batch.ids, batch.attention_mask, batch.types, logits=True).logits
        return (logits - self.whole[id(batch)]).square().mean((1, 2))


def opened(path: Path) -> HeadModel:
    model = HeadModel.open(toy_folder(path, causal=True, layers=2, heads=4), device="cpu")
    with torch.no_grad():
        for layer, head in DEAD:
            model.module.transformer.h[layer].attn.c_proj.weight[head * 8 : (head + 1) * 8] = 0  # type: ignore[union-attr, index]
    return model


def test_heads_that_do_nothing_are_given_up(tmp_path: Path) -> None:
    model = opened(tmp_path / "lm")
    subject = Same(model, Corpus.from_examples(toy_examples(40)), batch_tokens=60)
    before = [p.requires_grad for p in model.module.parameters()]
    found = learn_gates(subject, GateOptions(remove=4, steps=120))
    assert found.heads == DEAD
    assert found.without == pytest.approx(found.whole, abs=1e-9)
    assert (found.random >= found.without).all()
    assert found.p_value <= 0.15
    dead = np.zeros((2, 4), bool)
    dead[tuple(np.array(DEAD).T)] = True
    assert found.open[dead].max() < found.open[~dead].min()
    assert [p.requires_grad for p in model.module.parameters()] == before
    few = GateOptions(remove=4, steps=12, random_sets=2)
    one, other = (learn_gates(subject, few) for _ in range(2))
    assert np.array_equal(one.open, other.open)
    assert np.array_equal(one.random, other.random)


def test_what_gates_cannot_do(tmp_path: Path) -> None:
    model = opened(tmp_path / "lm")
    subject = Same(model, Corpus.from_examples(toy_examples(3)), batch_tokens=4000)
    with pytest.raises(ParameterError, match="has 8 heads"):
        learn_gates(subject, GateOptions(remove=8))
    with pytest.raises(InputError, match="one half of the examples"):
        learn_gates(subject, GateOptions(remove=2))
    with pytest.raises(ParameterError, match="`remove` must be at least 1"):
        GateOptions(remove=0)


def test_a_scaled_head_lies_between_whole_and_zero(tmp_path: Path) -> None:
    model = opened(tmp_path / "lm")
    batch = model.batch(["good film the", "bad book"])

    def logits(what: Any) -> Tensor:
        return model.forward(
            batch, interventions=None if what is None else {(0, 1): what}, logits=True
        ).logits

    assert torch.equal(logits(Scale(torch.tensor(1.0))), logits(None))
    assert torch.equal(logits(Scale(torch.tensor(0.0))), logits("zero"))
    assert not torch.allclose(logits(Scale(torch.tensor(0.5))), logits("zero"))
    with pytest.raises(ParameterError, match="one number"):
        logits(Scale(torch.ones(2)))
