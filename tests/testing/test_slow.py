"""The slow helpers leave a model as they found it."""

from __future__ import annotations

import pytest

from headwise.testing import eager, planted_model


def test_eager_restores_implementation_and_mode():
    planted = planted_model([["uniform"]], max_length=8)
    planted.model.set_attn_implementation("sdpa")
    planted.model.train()
    with eager(planted.model) as module:
        assert module.config._attn_implementation == "eager"
        assert not module.training
    assert planted.model.config._attn_implementation == "sdpa"
    assert planted.model.training
    with pytest.raises(RuntimeError, match="inside"), eager(planted.model):
        raise RuntimeError("inside")
    assert planted.model.config._attn_implementation == "sdpa"
