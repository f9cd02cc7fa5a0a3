"""No input makes a reader raise anything but a sentence, or run on; what it gives can be tokenized
and fingerprinted.

Some hundred edited inputs for each reader; `benchmarks/fuzz_readers.py` does ten thousand and
measures time and memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.reader_inputs import KINDS, PAYLOADS, TARGETS, attack, edited
from headwise.text.encode import Encoder
from text.tiny_tokenizers import bert_like, gpt2_like

edits = st.lists(
    st.tuples(
        st.sampled_from(KINDS), st.floats(0, 1), st.floats(0, 1), st.integers(0, len(PAYLOADS) - 1)
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def use() -> Any:
    encoders = [Encoder(bert_like(), 64), Encoder(gpt2_like(), 64)]
    return lambda example: [encoder.encode(example) for encoder in encoders]


@pytest.mark.parametrize("name", TARGETS)
def test_right_inputs_are_read(name, tmp_path, use):
    for seed in TARGETS[name].seeds:
        assert attack(TARGETS[name], seed, tmp_path, use) == "read"


@pytest.mark.parametrize("name", TARGETS)
def test_wrong_inputs_are_refused_in_a_sentence(name, tmp_path_factory, use):
    target = TARGETS[name]
    folder = tmp_path_factory.mktemp("fuzz")

    @settings(
        max_examples=60,
        deadline=timedelta(seconds=5),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(seed=st.sampled_from(target.seeds), edits=edits)
    def one(seed, edits):
        attack(target, edited(seed, edits), folder, use)

    one()


@pytest.mark.parametrize("name", TARGETS)
def test_every_payload_in_every_reader(name, tmp_path, use):
    target = TARGETS[name]
    places = (("field", 0.1), ("field", 0.6), ("number", 0.3), ("number", 0.8))
    contents = [
        edited(target.seeds[0], [(*place, 0.0, which)])
        for which in range(len(PAYLOADS))
        for place in places
    ]
    for content in dict.fromkeys(
        contents
    ):  # where there are no numbers, both places of one are the end
        attack(target, content, tmp_path, use)
