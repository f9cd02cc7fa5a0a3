"""The planted decoder does what it says: maps, values, what it predicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.testing import planted_decoder

IDS = [2, 7, 9, 4, 11, 7, 9, 9, 4, 12, 7, 9]


@pytest.fixture(scope="module")
def planted():
    return planted_decoder(words=12, max_length=20)


def run(planted, ids):
    return planted.model(torch.tensor([ids]), output_attentions=True)


def test_every_map_is_the_rule(planted) -> None:
    found = torch.stack(run(planted, IDS).attentions)[:, 0].detach().double().numpy()
    np.testing.assert_allclose(found, planted.expected_map(IDS), atol=1e-5)


def test_the_rules_say_what_the_names_say(planted) -> None:
    expected = planted.expected_map(IDS)
    assert expected[planted.where("induction")][10, [6, 2]].sum() == pytest.approx(
        2 / 2
    )  # after both earlier 7s
    assert expected[planted.where("induction")][9, 0] == 1  # 12 was never seen
    assert expected[planted.where("duplicate")][10, [1, 5]].tolist() == [0.5, 0.5]
    assert expected[planted.where("previous")][10, 9] == 1


def test_it_predicts_by_copying_and_induction(planted) -> None:
    logits = run(planted, IDS).logits[0].detach()
    logits = logits - logits.mean(-1, keepdim=True)
    tokens, loud = len(planted.vocabulary), planted.loudness
    # Where the induction head rests it copies the first token, twice as loudly.
    assert logits[9, 12].item() == pytest.approx(loud - 2 * loud / (tokens - 1), rel=1e-5)
    assert logits[5, 9].item() == pytest.approx(
        2 * loud - loud / (tokens - 1), rel=1e-5
    )  # 7 was followed by 9
    assert logits[5].argmax() == 9
