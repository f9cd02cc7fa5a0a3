"""No damage to an atlas makes `Atlas.load` raise anything but an AtlasError, run on, or give
another atlas.

Some dozens of damaged files; `benchmarks/fuzz_atlas.py` does five thousand and measures time and
memory."""

from __future__ import annotations

from datetime import timedelta
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.atlas_inputs import KINDS, attack, edited, seed_bytes

edits = st.lists(
    st.tuples(st.sampled_from(KINDS), st.floats(0, 1), st.floats(0, 1), st.integers(0, 63)),
    min_size=1,
    max_size=4,
)


def test_damaged_atlases_are_refused_in_a_sentence(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    content = seed_bytes(folder)
    path = folder / "damaged.nc"
    path.write_bytes(content)
    assert attack(path) == "read"

    @settings(
        max_examples=150,
        deadline=timedelta(seconds=5),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(edits=edits)
    def one(edits):
        path.write_bytes(edited(content, edits))
        # A process for each would take minutes. Damage that only a subprocess finds does not occur
        # here (see tests/atlas/test_load.py).
        with patch("headwise.atlas.file.try_in_subprocess"):
            attack(path)

    one()
