"""Workers on Ray: the bytes of a run in one process, whatever happens to the workers."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor
from transformers import BertModel

from headwise import Atlas, Corpus, HeadModel, RunOptions, make_analysis, make_atlas
from headwise.analyses.contract import Analysis
from headwise.analyses.surface.analysis import Surface
from headwise.core.errors import ModelError, ParameterError
from headwise.core.failures import Failure, UnexpectedError
from headwise.core.store import Checkpoint, CheckpointStore
from headwise.core.workers import Workers, raise_failures, use_workers
from headwise.experiments.ablation import (
    AblationOptions,
    ScoredClassifier,
    ScoredLanguageModel,
    ablate_scored_model,
)
from headwise.experiments.comparison import ComparisonOptions, compare
from headwise.experiments.finetuning.classifier import PooledClassifier
from headwise.experiments.patching import PromptPair, patch
from headwise.experiments.track import track
from headwise.models.random_init import with_random_weights
from headwise.models.vectors import collect_vectors
from headwise.run import Backend, Run, RunCallbacks, Source, run_analyses, workers_of
from headwise.run import growth as growth_module
from headwise.run.cluster import MAX_IDLE_ENDS, RayWorkers
from headwise.run.progress import Progress, no_progress
from headwise.run.shipping import Packer, Parcel, dumps, unpack, unpack_unit
from headwise.stats.accumulators import State
from headwise.testing import planted_model, random_model
from headwise.testing.toy import toy_task
from headwise.text.encode import Batch
from headwise.text.example import Example

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed")

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
        with use_workers(Workers()):  # each test says itself who works
            yield made


def analyses() -> list[Analysis]:
    return [make_analysis(name) for name in ("surface", "offsets", "roles")]


def run_bytes(
    model: HeadModel, folder: Path, callbacks: RunCallbacks | None = None, texts: list[str] = TEXTS
) -> bytes:
    options = RunOptions(full=True, shard_size=4, batch_tokens=24)
    corpus = Corpus.from_texts(texts, name="toy")
    return run_analyses(
        model, corpus, analyses(), folder, options, callbacks or RunCallbacks()
    ).to_bytes()


@pytest.fixture(scope="module")
def here(model: HeadModel, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The atlas of a run in one process."""
    return run_bytes(model, tmp_path_factory.mktemp("here") / "run")


def test_an_atlas_has_the_bytes_of_one_process(
    model: HeadModel, workers: RayWorkers, here: bytes, tmp_path: Path
) -> None:
    seen: list[int] = []

    def see(what: str, done: int, total: int) -> None:
        if what == "examples":
            seen.append(done)

    with use_workers(workers):
        assert run_bytes(model, tmp_path, RunCallbacks(progress=see)) == here
    assert seen == sorted(seen)
    assert seen[-1] == len(TEXTS)
    assert len(workers.pids) == 2
    assert os.getpid() not in workers.pids


def test_an_atlas_grows_with_workers_to_the_bytes_of_one_process(
    model: HeadModel, workers: RayWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth_module, "MOST_TIME_IN_ROUNDS", 1.0)  # a round ends whenever it may
    corpus = Corpus.from_texts(TEXTS, name="toy")
    chosen = [*analyses(), make_analysis("distance", {"permutations": 20})]
    options = {"full": True, "shard_size": 4, "batch_tokens": 24}

    def grow(folder: str, on_round: Callable[[Atlas], None] | None = None) -> bytes:
        atlas = make_atlas(
            model, corpus, chosen, folder=tmp_path / folder, on_round=on_round, **options
        )
        return atlas.to_bytes()

    alone = grow("alone")
    rounds: list[Atlas] = []
    with use_workers(workers):
        assert grow("rounds", rounds.append) == alone
    read = [atlas.provenance["unfinished"]["examples"]["toy"][0] for atlas in rounds]
    # The first round has one shard of each worker, and later ones have more.
    assert read[0] == 2 * options["shard_size"]
    assert read == sorted(read)
    assert read[-1] == len(TEXTS)
    assert len(rounds) > len(TEXTS) // options["shard_size"] // 2

    def stop(atlas: Atlas) -> None:
        if atlas.provenance["unfinished"]["done"] > 0.3:
            raise KeyboardInterrupt

    with use_workers(workers), pytest.raises(KeyboardInterrupt):
        grow("stopped", stop)
    assert grow("stopped", lambda _: None) == alone


def test_a_module_that_has_no_name_travels(workers: RayWorkers, tmp_path: Path) -> None:
    planted = planted_model(BEHAVIOURS, words=WORDS)
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as given:
        alone = run_bytes(given, tmp_path / "here", texts=TEXTS[:8])
        with use_workers(workers):
            assert run_bytes(given, tmp_path / "ray", texts=TEXTS[:8]) == alone


@pytest.mark.parametrize("first", ["ray", "here"])
def test_a_stopped_run_is_resumed_by_the_other(
    model: HeadModel, workers: RayWorkers, here: bytes, tmp_path: Path, first: str
) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what == "examples" and done >= 12:
            raise KeyboardInterrupt

    turns = [workers, Workers()] if first == "ray" else [Workers(), workers]
    with use_workers(turns[0]), pytest.raises(KeyboardInterrupt):
        run_bytes(model, tmp_path, RunCallbacks(progress=stop))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*.checkpoint")}
    assert 2 <= len(before) < len(TEXTS) / 4
    with use_workers(turns[1]):
        assert run_bytes(model, tmp_path) == here
    assert all(
        path.stat().st_mtime_ns == when for path, when in before.items()
    )  # none was made again


def test_a_tokenizer_that_models_share_is_the_one_of_the_model_of_the_job() -> None:
    module, tokenizer = random_model(words=WORDS, layers=1, heads=1, d_head=4)
    others = [HeadModel.open(module, tokenizer=tokenizer)]
    others += [with_random_weights(others[0], seed) for seed in range(4)]  # opened before and after
    for model in others:
        packer = Packer()
        parcel = packer.pack(partial(_asked, model))
        assert len(parcel.models) == 1
        content = packer.pack_unit({"row": model.encode("the cat"), "tokenizer": tokenizer})
        try:
            job = unpack(parcel)
            assert unpack_unit(content)["tokenizer"] is job.args[0].tokenizer is not tokenizer
        finally:
            unpack(Parcel(dumps(None), {}))  # lets the model go
        other = others[0] if model is not others[0] else others[1]
        assert (
            len(packer.pack_unit(other.module)) > 1000
        )  # of no model of the job: it travels itself


def _asked(model: HeadModel, unit: object) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    return {}, {}


def _fail(unit: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    if unit == 1:
        raise ModelError("Unit 1 cannot be made.")
    return {"x": np.array(unit)}, {"pid": os.getpid()}


def test_units_and_their_errors(workers: RayWorkers, tmp_path: Path) -> None:
    units = [(f"unit-{i}", i) for i in range(3, 40)]
    with CheckpointStore(tmp_path / "a", {}) as store:
        results = list(raise_failures(workers.run_units(store, _fail, units)))
        assert [int(checkpoint.arrays["x"]) for checkpoint in results] == list(range(3, 40))
        assert os.getpid() not in {checkpoint.facts["pid"] for checkpoint in results}
        assert list(workers.run_units(store, _fail, iter(()))) == []
    with pytest.raises(ModelError, match="Unit 1 cannot"):
        list(workers.run_units(None, _fail, [("one", 1)]))


def _rest(unit: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    time.sleep(0.1)
    return {}, {"pid": os.getpid()}


def test_all_that_are_ready_work(workers: RayWorkers) -> None:
    units = [(f"unit-{i}", i) for i in range(12)]
    list(
        workers.run_units(None, _rest, units)
    )  # all are started, and take the next job at the same moment
    made = Counter(
        checkpoint.facts["pid"]
        for checkpoint in raise_failures(workers.run_units(None, _rest, units))
    )
    assert set(made) == set(workers.pids)
    assert min(made.values()) >= 3


def test_what_needs_every_checkpoint_raises_what_failed_after_all_others() -> None:
    taken: list[int] = []

    def results() -> Iterator[Checkpoint | Failure]:
        for number in range(4):
            taken.append(number)
            yield (
                Failure("unit 1", "it ended its worker 3 times", "")
                if number == 1
                else Checkpoint({}, {})
            )

    with pytest.raises(UnexpectedError, match="unit 1 failed"):
        list(raise_failures(results()))
    assert taken == [0, 1, 2, 3]


def test_workers_with_gpus_are_for_models_on_gpus(model: HeadModel, tmp_path: Path) -> None:
    with (
        workers_of(Backend("ray", workers=1, gpus_per_worker=1)),
        pytest.raises(ParameterError, match="on the CPU"),
    ):
        run_bytes(model, tmp_path)


def test_what_does_not_fit_is_rejected() -> None:
    with pytest.raises(ParameterError, match="choose the backend 'ray'"):
        Backend(workers=2)
    with pytest.raises(ParameterError, match="one of local, ray"):
        Backend("dask")
    with pytest.raises(ParameterError, match="at least 1"):
        Backend("ray", workers=0)


def same_both_ways(workers: RayWorkers, make: Callable[[], xr.Dataset], jobs: int = 1) -> None:
    """The same values from one process and from workers, who were given so many jobs for it."""
    here, before = make(), workers.jobs
    with use_workers(workers):
        xr.testing.assert_identical(make(), here)
    assert workers.jobs - before == jobs


def test_heads_disabled_by_workers(workers: RayWorkers) -> None:
    module, tokenizer = random_model(words=WORDS, layers=2, heads=2, d_head=4)
    opened = HeadModel.open(module, tokenizer=tokenizer)
    language = ScoredLanguageModel(opened, Corpus.from_texts(TEXTS), batch_tokens=64)
    for how in ("corpus_mean", "resample"):
        options = AblationOptions(how=how, layers=False, importance=how == "resample", sinks=False)
        same_both_ways(
            workers, partial(ablate_scored_model, language, options), 2 if options.importance else 1
        )
    torch.manual_seed(0)
    bare = BertModel(module.config)
    classifier = PooledClassifier(
        bare, tokenizer, 2, heads=["L0H1", "L1H0"]
    )  # reads what its encoder's heads give
    task = ScoredClassifier(classifier.eval(), tokenizer, toy_task(48), batch_tokens=64)
    same_both_ways(
        workers, partial(ablate_scored_model, task, AblationOptions(importance=False)), 2
    )


def test_models_compared_by_workers(model: HeadModel, workers: RayWorkers) -> None:
    other = planted_model([row[::-1] for row in BEHAVIOURS], words=WORDS)
    corpus = Corpus.from_texts(TEXTS)
    with HeadModel.open(other.model, tokenizer=other.tokenizer) as second:
        options = ComparisonOptions(analyses=["surface"])
        here, before = compare([model, second], corpus, options=options).to_bytes(), workers.jobs
        with use_workers(workers):
            assert compare([model, second], corpus, options=options).to_bytes() == here
        assert workers.jobs == before + 1


def test_a_family_is_compared_by_workers(
    model: HeadModel, workers: RayWorkers, tmp_path: Path
) -> None:
    larger = planted_model([*BEHAVIOURS, BEHAVIOURS[0]], words=WORDS)
    larger.model.save_pretrained(tmp_path / "larger")
    larger.tokenizer.save_pretrained(tmp_path / "larger")
    # One model is open and travels, the other is opened by the worker.
    models = [model, tmp_path / "larger"]
    corpus = Corpus.from_texts(TEXTS)
    here = compare(models, corpus, analyses=["surface"])
    assert len(here["family_matches"]["match"])
    before = workers.jobs
    with use_workers(workers):
        on_ray = compare(models, corpus, analyses=["surface"])
    assert on_ray.to_bytes() == here.to_bytes()
    assert workers.jobs == before + 1


@pytest.mark.parametrize("stopped", [False, True], ids=["whole", "stopped"])
def test_a_series_is_tracked_by_workers(workers: RayWorkers, tmp_path: Path, stopped: bool) -> None:
    for step in range(4):
        module, tokenizer = random_model(causal=True, words=WORDS, layers=2, heads=2, seed=step)
        module.save_pretrained(tmp_path / f"step-{step}")
        tokenizer.save_pretrained(tmp_path / f"step-{step}")
    models = [tmp_path / "step-*"]
    corpus = Corpus.from_texts(TEXTS)

    def track_to(name: str, progress: Progress = no_progress) -> bytes:
        path = tmp_path / name
        track(models, corpus, ("surface", "sinks"), random=2, out=path, limit=8, progress=progress)
        return path.read_bytes()

    def stop(what: str, done: int, total: int) -> None:
        if what == "models" and done == 2:
            raise KeyboardInterrupt

    here = track_to("here.nc")
    before = workers.jobs
    with use_workers(workers):
        if stopped:
            with pytest.raises(KeyboardInterrupt):
                track_to("ray.nc", stop)
        else:
            assert track_to("ray.nc") == here
    assert workers.jobs == before + 1
    assert len(workers.pids) == 2
    if stopped:
        # What workers have finished is not computed again here.
        kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model-*.checkpoint")}
        assert len(kept) >= 2
        assert track_to("ray.nc", _unchanged(kept)) == here


def _unchanged(times: Mapping[Path, int]) -> Progress:
    """Return a progress that checks that checkpoints stay as they are while there are any."""

    def check(what: str, done: int, total: int) -> None:
        if what == "models" and done < total:
            for path, when in times.items():
                assert path.stat().st_mtime_ns == when

    return check


def test_pairs_patched_and_decoders_asked_by_workers(workers: RayWorkers, tmp_path: Path) -> None:
    module, tokenizer = random_model(causal=True, words=WORDS, layers=2, heads=2, d_head=4)
    pairs = [
        PromptPair(f"the {a} saw", f"the {b} saw", a, b, f"{a}:{b}")
        for a in WORDS[2:5]
        for b in WORDS[3:7]
        if a != b
    ]
    with HeadModel.open(module, tokenizer=tokenizer) as opened:
        same_both_ways(workers, lambda: patch(opened, pairs, batch=4, ablate=2), 2)
        same_both_ways(workers, lambda: vectors_of(opened))
        asked = [make_analysis(name) for name in ("logits", "opening_token")]

        def asked_of(folder: str) -> bytes:
            return run_analyses(
                opened, Corpus.from_texts(TEXTS), asked, tmp_path / folder
            ).to_bytes()

        alone = asked_of("here")
        with use_workers(workers):
            assert asked_of("ray") == alone


def vectors_of(opened: HeadModel) -> xr.Dataset:
    found = collect_vectors(opened, [Example(text=text) for text in TEXTS], what="toy")
    return xr.Dataset({"heads": (("layer", "head", "example", "size"), found.heads)})


def test_random_models_made_by_workers(
    model: HeadModel, workers: RayWorkers, tmp_path: Path
) -> None:
    asked = [make_analysis("roles", {"bootstrap": 0, "random_models": 3})]

    def atlas(folder: str) -> bytes:
        return run_analyses(
            model, Corpus.from_texts(TEXTS[:8]), asked, tmp_path / folder
        ).to_bytes()

    alone, before = atlas("here"), workers.jobs
    with use_workers(workers):
        assert atlas("ray") == alone
    assert workers.jobs - before == 3  # the pass, the first random model, the other two


# --- workers that end: last, so that no other test waits for those that come after them ---


def test_what_a_dead_worker_had_is_computed_again(
    model: HeadModel,
    workers: RayWorkers,
    here: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(workers, "note", said.append)
    killed: list[int] = []

    def kill(what: str, done: int, total: int) -> None:
        # A worker may be idle when it is killed, above all on a busy machine, and nothing is said of
        # those: then all are killed again after the next shard.
        if what == "examples" and done < total and not said and len(killed) < MAX_IDLE_ENDS - 2:
            for pid in workers.pids:
                if pid not in killed:
                    killed.append(pid)
                    os.kill(pid, signal.SIGKILL)

    with use_workers(workers):
        assert run_bytes(model, tmp_path, RunCallbacks(progress=kill)) == here
    assert killed[0] not in workers.pids
    assert len(workers.pids) >= 1
    assert any("is computed again" in sentence for sentence in said)


@dataclass(frozen=True)
class Poisoned(Surface):
    """Ends its process when it meets some text."""

    name: ClassVar[str] = ""  # not in the registry

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        if any(row.example.text == POISON for row in batch.rows):
            os.kill(os.getpid(), signal.SIGKILL)
        super().update(state, sums, layers, batch)


Poisoned.name = "poisoned"


def test_a_shard_that_kills_is_set_aside_and_named(
    model: HeadModel, workers: RayWorkers, tmp_path: Path
) -> None:
    texts = [*TEXTS[:4], *TEXTS[4:6], POISON, TEXTS[6], *TEXTS[8:12]]
    options = RunOptions(full=True, shard_size=4, batch_tokens=24)

    def run(texts: list[str], folder: str) -> Run:
        return Run(
            Source(model, Corpus.from_texts(texts)), [Poisoned()], tmp_path / folder, options
        )

    with use_workers(workers), run(texts, "ray") as made:
        partial = made.atlas()
    (failure,) = made.failures.values()
    assert failure.what == "Shard 1 (examples 5 to 8 of 'texts')"
    assert "5 workers ended while they computed it" in failure.sentence
    assert failure.what in partial.provenance["failed"]
    with run(texts[:4] + texts[8:], "others") as others:
        xr.testing.assert_equal(partial["poisoned"], others.atlas()["poisoned"])
