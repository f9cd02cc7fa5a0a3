"""A model with random weights gets no label for any of its heads, however sharp its attention is and
however much its layers or the heads of a layer differ in that. `benchmarks/labels.py random` tries
more of them."""

from __future__ import annotations

import pytest

from headwise import make_atlas
from headwise.testing.levels import (
    Gain,
    HeadGain,
    RandomRuns,
    level_examples,
    random_weights_model,
)
from headwise.text import Corpus


@pytest.mark.parametrize("llama", [False, True])
@pytest.mark.parametrize("gain", [6.0, (1.0, 8.0), HeadGain(1.0, 8.0)])
def test_random_weights_get_no_label(llama: bool, gain: Gain) -> None:
    """Query and key weights six times as large, which makes attention far from uniform, with a
    factor that rises from layer to layer, as sharpness does in trained models, and with one that
    rises from head to head of a layer."""
    examples = level_examples()[:40]
    runs = RandomRuns(llama=llama, layers=4, heads=8, d_head=16)
    model = random_weights_model(examples, runs, gain, seed=1)
    analyses = ["surface", "dependency"]
    if llama:
        analyses += ["logits", "induction"]
    corpus = Corpus.from_examples(examples, "random weights")
    heads = make_atlas(model, corpus, analyses, full=True).describe()
    assert heads["does"].tolist() == ["other"] * 32, heads[["name", "does", "why"]].to_string()
    assert set(heads["also"]) == {""}
