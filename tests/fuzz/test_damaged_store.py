"""No damage to a run's folder makes the store raise, or give other numbers: a checkpoint comes back as
it was or is computed again."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.atlas_inputs import KINDS, edited
from headwise.core.store import CheckpointStore

ARRAYS = {
    "x": np.arange(40, dtype=np.float32).reshape(5, 8),
    "yes": np.array([True, False]),
    "none": np.zeros((0, 4)),
}
FACTS = {"n": 3, "name": "ü", "list": [1, 2.5, None]}
IDENTITY = {"model": "a", "sizes": [1, 2]}
edits = st.lists(
    st.tuples(st.sampled_from(KINDS), st.floats(0, 1), st.floats(0, 1), st.integers(0, 63)),
    min_size=1,
    max_size=4,
)
HEADERS = (
    b"", b"\xff" * 8, (1 << 62).to_bytes(8, "little") + b"{}", (8).to_bytes(8, "little") + b"[[[[[[[[",
    (200_000).to_bytes(8, "little") + b"[" * 200_000, b"\x02" + bytes(7) + b"{}",
)  # fmt: skip


def test_damage_is_computed_again_or_has_no_effect(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    with CheckpointStore(folder, IDENTITY, inherited={"threads": 1}) as store:
        store.save("checkpoint", ARRAYS, FACTS)
    files = {name: (folder / name).read_bytes() for name in ("checkpoint.checkpoint", "run.json")}

    @settings(
        max_examples=150,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(name=st.sampled_from(sorted(files)), edits=edits)
    def one(name, edits):
        for other, content in files.items():
            (folder / other).write_bytes(edited(content, edits) if other == name else content)
        assert_store_is_intact_or_empty(folder)

    one()
    for header in HEADERS:
        (folder / "checkpoint.checkpoint").write_bytes(header)
        assert_store_is_intact_or_empty(folder)


def assert_store_is_intact_or_empty(folder):
    """Open the store as a later run does: what it gives is what was made, or nothing."""
    said = []
    with CheckpointStore(
        folder, IDENTITY, fresh=True, inherited={"threads": 1}, note=said.append
    ) as store:
        found = store.load("checkpoint")
    assert found is not None or said or not (folder / "checkpoint.checkpoint").exists()
    assert all(len(text) < 500 and "\n" not in text for text in said)
    if found is not None:
        assert found.facts == FACTS
        assert all(np.array_equal(found.arrays[key], ARRAYS[key]) for key in ARRAYS)
