"""The planted decoder that names indirect objects: exactly its four edges, with their closed-form
effects, and no other edge significant."""

from __future__ import annotations

import numpy as np
import pytest

import headwise
from headwise.experiments.patching import PromptPair
from headwise.models import HeadModel
from headwise.testing import planted_names

N_PAIRS = 24


def name_pairs() -> list[PromptPair]:
    """`A B other A end`: B follows; where B is repeated instead, A does."""
    random = np.random.default_rng(0)
    pairs = []
    for number in range(N_PAIRS):
        subject, other, filler, end = (f"word{i}" for i in random.choice(20, 4, replace=False))
        clean = f"{subject} {other} {filler} {subject} {end}"
        corrupted = f"{subject} {other} {filler} {other} {end}"
        pairs.append(PromptPair(clean, corrupted, other, subject, f"pair:{number}", str(number)))
    return pairs


def test_exactly_the_four_planted_edges() -> None:
    decoder = planted_names()
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        result = headwise.circuit(model, name_pairs(), exact=30, random=2)
    facts = result.attrs
    assert facts["clean"] == pytest.approx(decoder.logit, rel=1e-3)
    assert facts["corrupted"] == pytest.approx(-decoder.logit, rel=1e-3)
    planted = {
        ("embedding", "L0H0", "query"),
        ("L0H0", "L1H0", "value"),
        ("L1H0", "L2H0", "query"),
        ("L2H0", "logits", ""),
    }
    exact_effects = {}
    for place in range(result.sizes["edge"]):
        edge = result.isel(edge=place)
        name = tuple(str(edge[part].values) for part in ("sender", "receiver", "input"))
        effect = float(edge["exact"])
        if np.isfinite(effect):
            exact_effects[name] = effect
    # Each carries the whole behaviour: without it the answer is that of the corrupted input.
    for name in planted:
        assert exact_effects[name] == pytest.approx(2 * decoder.logit, rel=1e-3)
    for name, effect in exact_effects.items():
        if name not in planted:
            assert abs(effect) < 1e-3
    assert facts["circuit_edges"] == 4
    assert facts["circuit_faithfulness"] == pytest.approx(1.0, abs=1e-3)
    significant = set()
    for place in np.flatnonzero(result["effect_p_adjusted"].values < 0.05):
        edge = result.isel(edge=int(place))
        if abs(float(edge["effect"])) > 0.01 * decoder.logit:
            significant.add(
                tuple(str(edge[part].values) for part in ("sender", "receiver", "input"))
            )
    assert significant == planted


def test_the_heads_attend_as_set() -> None:
    decoder = planted_names()
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        text = "word3 word7 word9 word3 word12"
        attention = {}
        for name in ("duplicate", "suppression", "mover"):
            attention[name] = model.attention(text, decoder.where(name)).values
    assert attention["duplicate"][4, 1] > 0.999  # the second occurrence, to the first
    assert attention["suppression"][5, 4] > 0.999  # the last token, to the one before
    assert attention["mover"][5, 2] > 0.999  # the last token, to the name that is not repeated
