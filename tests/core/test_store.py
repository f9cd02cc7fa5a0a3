"""The store: what is damaged, out of place or of another run is computed again and said; one process at
a time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwise.core.errors import OutputError
from headwise.core.store import (
    CONSENT,
    CheckpointStore,
    pack_dataset,
    stored_identity,
    unpack_dataset,
)

ARRAYS = {
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    "empty": np.zeros((0, 4)),
    "yes": np.array([True, False]),
}
FACTS = {"n": 3, "name": "ü"}


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, notes: list[str]) -> CheckpointStore:
    made = CheckpointStore(
        tmp_path / "run", {"model": "a"}, inherited={"threads": 1}, note=notes.append
    )
    made.save("first", ARRAYS, FACTS)
    return made


def again(store: CheckpointStore, **changes: object) -> CheckpointStore:
    """The same folder in the hands of a later run."""
    store.close()
    given = {"identity": store.identity, "inherited": {"threads": 8}, "note": store.note} | changes
    return CheckpointStore(store.folder, **given)  # type: ignore[arg-type]


def test_a_checkpoint_comes_back_as_it_was_made(store: CheckpointStore, notes: list[str]) -> None:
    checkpoint = store.load("first")
    assert checkpoint is not None
    assert checkpoint.facts == FACTS
    assert checkpoint.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert checkpoint.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(checkpoint.arrays[name], array)
    assert store.load("second") is None  # simply not there: nothing to say
    assert store.names() == ["first"]
    assert notes == []


def test_arrays_come_back_in_one_order(store: CheckpointStore) -> None:
    """Or files whose variables follow them would differ from run to run."""
    store.save("many", {f"a{i}": np.zeros(i % 3) for i in range(12)})
    for _ in range(3):
        checkpoint = store.load("many")
        assert checkpoint is not None
        assert list(checkpoint.arrays) == sorted(checkpoint.arrays)


def test_a_checkpoint_is_made_once(store: CheckpointStore) -> None:
    made = []

    def make() -> tuple[dict[str, np.ndarray], dict[str, int]]:
        made.append(1)
        return {"x": np.ones(2)}, {"n": 2}

    assert store.checkpoint("other", make).facts == {"n": 2}
    assert again(store).checkpoint("other", make).facts == {"n": 2}
    assert len(made) == 1


def test_a_computed_checkpoint_equals_a_loaded_one(store: CheckpointStore) -> None:
    """Or a resumed run could differ from one that was never interrupted."""
    big_endian = np.arange(4, dtype=">f4")
    transposed = np.arange(6.0).reshape(2, 3).T
    source = {"z": big_endian, "a": transposed, "scalar": np.array(3, dtype=np.int8)}
    computed = store.checkpoint("other", lambda: (source, {"shape": (2, 3), "by": {1: 0.1}}))
    loaded = store.load("other")
    assert loaded is not None
    assert computed.facts == loaded.facts == {"shape": [2, 3], "by": {"1": 0.1}}
    assert list(computed.arrays) == list(loaded.arrays) == ["a", "scalar", "z"]
    for name, array in loaded.arrays.items():
        assert computed.arrays[name].dtype == array.dtype
        assert computed.arrays[name].strides == array.strides
        assert computed.arrays[name].flags.writeable == array.flags.writeable
        np.testing.assert_array_equal(computed.arrays[name], array)
    transposed[:] = 0  # whoever computed it may reuse its memory
    np.testing.assert_array_equal(computed.arrays["a"], loaded.arrays["a"])


def test_a_computed_dataset_equals_a_loaded_one(store: CheckpointStore) -> None:
    values = xr.DataArray([[1.5, 2.5]], dims=("layer", "head"), attrs={"low": np.float32(0.5)})
    dataset = xr.Dataset({"x": values}, {"name": ("head", np.array(["a", "bb"], dtype=object))})
    computed = store.dataset("labelled", lambda: dataset)
    loaded = store.dataset("labelled", lambda: pytest.fail("computed twice"))
    xr.testing.assert_identical(computed, loaded)
    assert computed["name"].dtype == loaded["name"].dtype


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_flipped_bit_anywhere_is_seen(
    store: CheckpointStore, notes: list[str], data: st.DataObject
) -> None:
    path = store.folder / "first.checkpoint"
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) * 8 - 1))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    notes.clear()
    assert store.load("first") is None
    assert notes == ["first.checkpoint is damaged and is computed again."]
    store.save("first", ARRAYS, FACTS)
    assert store.has("first")


def test_a_truncated_checkpoint_is_seen(store: CheckpointStore) -> None:
    path = store.folder / "first.checkpoint"
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        assert not store.has("first")
    path.write_bytes(content + b"\0")
    assert not store.has("first")


def test_a_checkpoint_under_another_name_or_of_another_run_is_computed_again(
    store: CheckpointStore, notes: list[str], tmp_path: Path
) -> None:
    shutil.copy(store.folder / "first.checkpoint", store.folder / "second.checkpoint")
    assert not store.has("second")
    with CheckpointStore(tmp_path / "other", {"model": "b"}) as other:
        other.save("first", ARRAYS, FACTS)
        shutil.copy(other.folder / "first.checkpoint", store.folder / "first.checkpoint")
    assert not store.has("first")
    assert notes == [
        f"{name}.checkpoint belongs to other work and is computed again."
        for name in ("second", "first")
    ]
    part = store.part("probing", {"seed": 1})
    part.save("first", ARRAYS, FACTS)
    assert part.has("first")
    assert not store.part("probing", {"seed": 2}).has("first")


@pytest.mark.parametrize(
    "note", [None, b"", b"{", b"[1]", b"\xff\xfe", b'{"identity": 3}', b"[" * 100_000]
)
def test_a_lost_or_nonsense_note_is_no_loss(store: CheckpointStore, note: bytes | None) -> None:
    path = store.folder / "run.json"
    path.unlink()
    if note is not None:
        path.write_bytes(note)
    later = again(store)
    assert later.has("first")
    assert later.inherited == {"threads": 1}  # every checkpoint has it too
    assert json.loads(path.read_text())["identity"] == {"model": "a"}


def test_another_identity_is_rejected_or_starts_again_and_the_same_resumes(
    store: CheckpointStore,
) -> None:
    kept = store.folder / "mine.txt"
    kept.write_text("not ours")
    with pytest.raises(
        OutputError, match=r"an unfinished run that differs in model; .*overwrite=True"
    ):
        again(store, identity={"model": "b"})
    with again(store, fresh=True) as same:
        assert same.has("first")
    store.part("inner").part("deeper").save("x", ARRAYS)
    other = again(store, identity={"model": "b"}, fresh=True)
    assert other.names() == []
    assert other.inherited == {"threads": 8}
    assert sorted(path.name for path in store.folder.iterdir()) == ["lock", "mine.txt", "run.json"]
    other.remove()
    assert [path.name for path in store.folder.iterdir()] == ["mine.txt"]


def test_a_run_that_finished_nothing_is_in_nobodys_way(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, {"model": "a"}) as first:
        first.part("inner").save("x", ARRAYS)
    with pytest.raises(OutputError, match="an unfinished run that differs in model"):
        CheckpointStore(tmp_path, {"model": "b"})
    first.part("inner").drop("x")
    (tmp_path / CONSENT).touch()  # the first may replace a result, the second may not
    with pytest.raises(OutputError, match="an unfinished run that differs in model"):
        CheckpointStore(tmp_path, {"model": "b"})
    (tmp_path / CONSENT).unlink()
    with CheckpointStore(tmp_path, {"model": "b"}) as other:
        other.save("x", ARRAYS)
    assert stored_identity(tmp_path) == {"model": "b"}


def test_scratch_is_never_trusted(store: CheckpointStore) -> None:
    part = store.part("probing")
    for owner in (store, part):
        owner.scratch("maps").write_bytes(b"from a run that was interrupted")
    later = again(store)
    assert not later.scratch("maps").exists()
    assert not later.part("probing").scratch("maps").exists()


def test_half_written_files_are_swept(store: CheckpointStore) -> None:
    (store.folder / ".first.checkpoint.77.headwise-tmp").write_bytes(b"half")
    again(store)
    assert not list(store.folder.glob(".*.headwise-tmp"))


HOLD = """
import sys, time
from pathlib import Path
from headwise.core.store import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]), {"model": "a"})
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_process_is_rejected_and_a_kill_lets_go(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        with pytest.raises(
            OutputError, match=f"in use by process {holder.pid} on .* since .*; wait for it to end"
        ):
            CheckpointStore(tmp_path, {"model": "a"})
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with (
            CheckpointStore(tmp_path, {"model": "a"}) as store,
            pytest.raises(OutputError, match=f"process {os.getpid()}"),
        ):
            CheckpointStore(store.folder, {"model": "a"})  # nor twice in one process
        CheckpointStore(tmp_path, {"model": "a"}).close()
    finally:
        holder.kill()
        holder.wait()


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OutputError, match="choose another output path"):
        CheckpointStore(tmp_path / "file", {"model": "a"})


def test_labelled_arrays_come_back_as_they_were(store: CheckpointStore) -> None:
    dataset = xr.Dataset(
        {
            "score": (
                ("layer", "word"),
                np.array([[1.0, np.nan]], dtype=np.float32),
                {"long_name": "a score", "n": np.int64(3)},
            ),
            "said": ("word", np.array(["ä", "b c"], dtype=object)),
            "none": (("layer", "nothing"), np.zeros((1, 0), dtype=np.int16)),
            "whole": ((), True),
        },
        {"layer": [0], "word": ["x", "yy"], "group": ("layer", [4])},
        {"tau": 0.5, "edges": np.array([1.0, 2.0])},
    )
    arrays, facts = pack_dataset(dataset)
    xr.testing.assert_identical(
        unpack_dataset(arrays, json.loads(json.dumps(facts))),
        dataset.assign(said=dataset["said"].astype(str)),
    )
    made = store.dataset("result", lambda: dataset)
    found = again(store).dataset("result", lambda: pytest.fail("made twice"))  # type: ignore[arg-type, return-value]
    xr.testing.assert_identical(made, found)
    assert list(found.variables) == list(dataset.variables)
    assert found["score"].attrs["n"] == 3


def test_a_damaged_note_makes_no_other_run_of_this_one(
    store: CheckpointStore, notes: list[str]
) -> None:
    note = store.folder / "run.json"
    for before, after in ((b'"a"', b'"b"'), (b'"threads": 1', b'"threads": 9')):
        content = note.read_bytes()
        assert before in content
        note.write_bytes(content.replace(before, after))
        store = again(store)
        assert store.has("first")
        assert store.inherited == {"threads": 1}
    assert notes == []
