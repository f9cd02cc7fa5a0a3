"""Workers on Ray: the bytes of a run in one process, whatever happens to the workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr
from torch import Tensor

from headwise import Corpus, HeadModel, RunOptions, make_analysis
from headwise.analyses.contract import Analysis
from headwise.analyses.surface.analysis import Surface
from headwise.core.errors import ModelError, ParameterError
from headwise.core.failures import Failure, UnexpectedError
from headwise.core.store import Piece, Store
from headwise.core.workers import Workers, whole, working
from headwise.run import Backend, Listener, Run, Source, run_analyses, workers_of
from headwise.run.cluster import RayWorkers
from headwise.stats.accumulators import State
from headwise.testing import planted_model
from headwise.text.encode import Batch

pytest.importorskip("ray", reason="the extra `ray` is not installed")

WORDS = ["the", "a", "cat", "dog", "saw", "sleeps", ".", ","]
BEHAVIOURS = [["previous", "next", "self", "sep"], ["cls", "uniform", "same_word", "block"]]
TEXTS = [" ".join(WORDS[(3 * i + j) % len(WORDS)] for j in range(2 + i % 9)) for i in range(40)]
POISON = "cat cat cat cat"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> HeadModel:
    planted = planted_model(BEHAVIOURS, words=WORDS)
    folder = tmp_path_factory.mktemp("planted")
    planted.model.save_pretrained(folder)
    planted.tokenizer.save_pretrained(folder)
    return HeadModel.open(folder, device="cpu")


@pytest.fixture(scope="module")
def workers() -> Iterator[RayWorkers]:
    with workers_of(Backend("ray", workers=2)) as made:
        assert isinstance(made, RayWorkers)
        with working(Workers()):  # each test says itself who works
            yield made


def analyses() -> list[Analysis]:
    return [make_analysis(name) for name in ("surface", "offsets", "roles")]


def run_bytes(model: HeadModel, folder: Path, listener: Listener | None = None, texts: list[str] = TEXTS) -> bytes:
    options = RunOptions(shard_size=4, batch_tokens=24)
    corpus = Corpus.from_texts(texts, name="toy")
    return run_analyses(model, corpus, analyses(), folder, options, listener or Listener()).to_bytes()


@pytest.fixture(scope="module")
def here(model: HeadModel, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The atlas of a run in one process."""
    return run_bytes(model, tmp_path_factory.mktemp("here") / "run")


def test_an_atlas_has_the_bytes_of_one_process(
    model: HeadModel, workers: RayWorkers, here: bytes, tmp_path: Path
) -> None:
    seen: list[int] = []
    with working(workers):
        assert run_bytes(model, tmp_path, Listener(progress=lambda what, done, _: seen.append(done))) == here
    assert seen == sorted(seen)
    assert seen[-1] == len(TEXTS)
    assert len(workers.pids) == 2
    assert os.getpid() not in workers.pids


def test_a_module_that_has_no_name_travels(workers: RayWorkers, tmp_path: Path) -> None:
    planted = planted_model(BEHAVIOURS, words=WORDS)
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as given:
        alone = run_bytes(given, tmp_path / "here", texts=TEXTS[:8])
        with working(workers):
            assert run_bytes(given, tmp_path / "ray", texts=TEXTS[:8]) == alone


def test_what_a_dead_worker_had_is_made_again(
    model: HeadModel, workers: RayWorkers, here: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(workers, "_say", said.append)
    killed: list[int] = []

    def kill(what: str, done: int, total: int) -> None:
        if not killed:
            killed.append(next(iter(workers.pids)))
            os.kill(killed[0], signal.SIGKILL)

    with working(workers):
        assert run_bytes(model, tmp_path, Listener(progress=kill)) == here
    assert killed[0] not in workers.pids
    assert len(workers.pids) >= 1
    assert any("is made again" in sentence for sentence in said)


@pytest.mark.parametrize("first", ["ray", "here"])
def test_a_stopped_run_is_resumed_by_the_other(
    model: HeadModel, workers: RayWorkers, here: bytes, tmp_path: Path, first: str
) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if done >= 12:
            raise KeyboardInterrupt

    turns = [workers, Workers()] if first == "ray" else [Workers(), workers]
    with working(turns[0]), pytest.raises(KeyboardInterrupt):
        run_bytes(model, tmp_path, Listener(progress=stop))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*.piece")}
    assert 3 <= len(before) < len(TEXTS) / 4
    with working(turns[1]):
        assert run_bytes(model, tmp_path) == here
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())  # none was made again


@dataclass(frozen=True)
class Poisoned(Surface):
    """Ends its process when it meets some text."""

    name: ClassVar[str] = ""  # not in the registry

    def take(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        if any(row.example.text == POISON for row in batch.rows):
            os.kill(os.getpid(), signal.SIGKILL)
        super().take(state, sums, layers, batch)


Poisoned.name = "poisoned"


def test_a_shard_that_kills_is_set_aside_and_named(model: HeadModel, workers: RayWorkers, tmp_path: Path) -> None:
    texts = [*TEXTS[:4], *TEXTS[4:6], POISON, TEXTS[6], *TEXTS[8:12]]
    options = RunOptions(shard_size=4, batch_tokens=24)

    def run(texts: list[str], folder: str) -> Run:
        return Run(Source(model, Corpus.from_texts(texts)), [Poisoned()], tmp_path / folder, options)

    with working(workers), run(texts, "ray") as made:
        partial = made.atlas()
    (failure,) = made.failures.values()
    assert failure.what == "Shard 1 (examples 5 to 8 of 'texts')"
    assert "ended its worker 3 times" in failure.sentence
    assert failure.what in partial.provenance["failed"]
    with run(texts[:4] + texts[8:], "others") as others:
        xr.testing.assert_equal(partial["poisoned"], others.atlas()["poisoned"])


def _fail(unit: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    if unit == 1:
        raise ModelError("Unit 1 cannot be made.")
    return {"x": np.array(unit)}, {"pid": os.getpid()}


def test_units_and_their_errors(workers: RayWorkers, tmp_path: Path) -> None:
    units = [(f"unit-{i}", i) for i in range(3, 40)]
    with Store(tmp_path / "a", {}) as store:
        pieces = list(whole(workers.pieces(store, _fail, units)))
        assert [int(piece.arrays["x"]) for piece in pieces] == list(range(3, 40))
        assert os.getpid() not in {piece.facts["pid"] for piece in pieces}
        assert list(workers.pieces(store, _fail, iter(()))) == []
    with pytest.raises(ModelError, match="Unit 1 cannot"):
        list(workers.pieces(None, _fail, [("one", 1)]))


def test_what_needs_every_piece_raises_what_failed_after_all_others() -> None:
    taken: list[int] = []

    def pieces() -> Iterator[Piece | Failure]:
        for number in range(4):
            taken.append(number)
            yield Failure("unit 1", "it ended its worker 3 times", "") if number == 1 else Piece({}, {})

    with pytest.raises(UnexpectedError, match="unit 1 failed"):
        list(whole(pieces()))
    assert taken == [0, 1, 2, 3]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ParameterError, match="give --backend ray"):
        Backend(workers=2)
    with pytest.raises(ParameterError, match="one of local, ray"):
        Backend("dask")
    with pytest.raises(ParameterError, match="at least 1"):
        Backend("ray", workers=0)
