"""An atlas that grows: every round is valid and honest, and the last is the same in any number of
rounds, stopped and resumed or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headwise import Atlas, Corpus, HeadModel, make_analysis, make_atlas
from headwise.analyses.contract import Analysis
from headwise.analyses.distance.analysis import Distance
from headwise.analyses.surface.analysis import Surface
from headwise.core.errors import ParameterError
from headwise.core.interrupts import TimeIsUp, raise_if_interrupted, stopping_at
from headwise.core.store import Checkpoint, CheckpointStore
from headwise.run import growth as growth_module
from headwise.run import runner as runner_module
from headwise.run.growth import RoundClock, Step, in_order
from headwise.testing import planted_decoder, planted_model
from headwise.testing.models import Size, blank_llama
from headwise.testing.vocabulary import make_vocabulary

WORDS = ["the", "a", "cat", "dog", "saw", "sleeps", ".", ","]
BEHAVIOURS = [["previous", "next", "self", "sep"], ["cls", "uniform", "same_word", "block"]]
SIZE = 2  # of a shard


@pytest.fixture(autouse=True)
def every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round ends whenever it may, however little time has passed."""
    monkeypatch.setattr(growth_module, "MOST_TIME_IN_ROUNDS", 1.0)


def texts(count: int, words: list[str], length: int = 7) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(words, k=length)) for _ in range(count)]


@pytest.fixture(scope="module")
def bert() -> tuple[HeadModel, Corpus, list[Analysis]]:
    planted = planted_model(BEHAVIOURS, words=WORDS)
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    chosen: list[Analysis] = [
        make_analysis("surface"),
        make_analysis("offsets"),
        make_analysis("roles", {"bootstrap": 20, "random_models": 1}),
        make_analysis("distance", {"permutations": 20}),
        make_analysis("patterns", {"min_tokens": 4}),
        make_analysis("examples"),
    ]
    return model, Corpus.from_texts(texts(10, WORDS), name="toy"), chosen


@pytest.fixture(scope="module")
def llama() -> tuple[HeadModel, Corpus, list[Analysis]]:
    vocabulary = make_vocabulary(None, None, {}, {}, True)
    module = blank_llama(vocabulary, Size(2, 4, 32, 64, 64), seed=0)
    model = HeadModel.open(module, tokenizer=vocabulary.tokenizer)
    chosen: list[Analysis] = [
        make_analysis("surface"),
        make_analysis("sinks"),
        make_analysis("offsets"),
        make_analysis("gradient"),
        make_analysis("logits"),
        make_analysis("induction", {"length": 6, "sequences": 4, "draws": 2, "confirm": 2}),
    ]
    words = [word for word in sorted(vocabulary.tokenizer.get_vocab()) if word.isalpha()][:20]
    return model, Corpus.from_texts(texts(8, words), name="toy"), chosen


@pytest.fixture(params=["bert", "llama"])
def given(request: pytest.FixtureRequest) -> tuple[HeadModel, Corpus, list[Analysis]]:
    return request.getfixturevalue(request.param)


def grow(given: tuple[HeadModel, Corpus, list[Analysis]], **more: object) -> Atlas:
    model, corpus, chosen = given
    return make_atlas(model, corpus, chosen, full=True, shard_size=SIZE, **more)  # type: ignore[arg-type]


def test_the_last_round_is_the_same_in_any_number_of_rounds(given, tmp_path: Path) -> None:
    whole = grow(given, rounds=1).to_bytes()
    rounds: list[Atlas] = []
    assert grow(given, on_round=rounds.append).to_bytes() == whole
    assert len(rounds) > 8  # after every shard and every step
    three: list[Atlas] = []
    assert grow(given, on_round=three.append, rounds=3).to_bytes() == whole
    assert len(three) == 2
    assert [atlas.provenance["unfinished"]["round"] for atlas in three] == [1, 2]
    assert grow(given, rounds=1, on_round=lambda _: pytest.fail("a round")).to_bytes() == whole


def test_every_round_is_an_atlas_of_what_was_read_so_far(given, tmp_path: Path) -> None:
    model, corpus, chosen = given
    rounds: list[Atlas] = []
    finished = grow(given, on_round=rounds.append)
    everything = {analysis.name for analysis in chosen}
    assert set(finished) == everything
    assert "unfinished" not in finished.provenance

    read_before = 0
    done_before = 0.0
    for number, atlas in enumerate(rounds):
        path = tmp_path / f"{number}.nc"
        path.write_bytes(atlas.to_bytes())
        assert Atlas.load(path).digest == atlas.digest
        about = atlas.provenance["unfinished"]
        # What is there, what is to come: nothing is in both, nothing in neither.
        assert set(atlas) | set(about["to_come"]) == everything
        assert not set(atlas) & set(about["to_come"])
        read, total = about["examples"]["toy"]
        assert total == len(list(corpus))
        assert read_before <= read <= total
        assert done_before <= about["done"] <= 1.0
        assert int(atlas["surface"]["entropy_n"].max()) == read
        if read < total:
            assert about["partial"]["surface"] == [read, total]
        else:
            assert "surface" not in about["partial"]
            np.testing.assert_array_equal(
                atlas["surface"]["entropy"], finished["surface"]["entropy"]
            )
        read_before = read
        done_before = about["done"]
    assert read_before == total

    # The intervals of the first round are those of a run over these examples alone.
    first = rounds[0]
    assert first.provenance["unfinished"]["examples"]["toy"][0] == SIZE
    few = Corpus.from_texts([example.text for example in corpus][:SIZE], name="toy")
    alone = make_atlas(model, few, [make_analysis("surface")], full=True, shard_size=SIZE)
    for name in ("entropy", "entropy_n", "entropy_low", "entropy_high", "mass_low", "mass_high"):
        np.testing.assert_allclose(
            first["surface"][name], alone["surface"][name], rtol=1e-5, atol=1e-7, err_msg=name
        )
    width = finished["surface"]["entropy_high"] - finished["surface"]["entropy_low"]
    first_width = first["surface"]["entropy_high"] - first["surface"]["entropy_low"]
    assert float(first_width.mean()) > float(width.mean())


def test_the_first_round_has_the_first_part_of_induction() -> None:
    planted = planted_decoder(max_length=40)
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    words = [f"word{number}" for number in range(1, 12)]
    given = (
        model,
        Corpus.from_texts(texts(6, words), name="toy"),
        [
            make_analysis("surface"),
            make_analysis(
                "induction", {"length": 12, "sequences": 6, "disable": 1, "draws": 1, "confirm": 3}
            ),
        ],
    )
    rounds: list[Atlas] = []
    finished = grow(given, on_round=rounds.append)
    first = rounds[0]
    assert first.provenance["unfinished"]["first_parts"] == {"induction": "Repeated sequences"}
    assert "disabled_effect" not in first["induction"].attrs
    assert "disabled_effect" in finished["induction"].attrs
    assert '"disable": 0' in first["induction"].attrs["parameters"]
    name = "prefix_matching"
    np.testing.assert_array_equal(first["induction"][name], finished["induction"][name])


def test_the_first_part_of_an_analysis_is_not_computed_twice(
    llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[str] = []
    original = CheckpointStore.save

    def noting(store: CheckpointStore, name: str, *rest: object) -> Checkpoint:
        saved.append(f"{store.folder.name}/{name}")
        return original(store, name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointStore, "save", noting)
    grow(llama, folder=tmp_path / "run", on_round=lambda _: None)
    assert len(saved) == len(set(saved))
    assert sum("sequences-" in name for name in saved) >= 1


def test_a_round_says_what_random_models_have_not_confirmed(bert) -> None:
    rounds: list[Atlas] = []
    finished = grow(bert, on_round=rounds.append)
    for atlas in rounds:
        without = atlas.provenance["unfinished"]["without_random_models"]
        assert ("roles" in without) == ("random_bound" not in str(list(atlas["roles"])))
    assert "roles" in rounds[0].provenance["unfinished"]["without_random_models"]
    assert "random_models" in finished["roles"].attrs


class Killed(BaseException):
    """Ends a run as a signal would."""


def test_killed_in_every_round_it_resumes_to_the_same_bytes(given, tmp_path: Path) -> None:
    whole = grow(given, rounds=1).to_bytes()
    counts: list[int] = []

    def kill(atlas: Atlas) -> None:
        about = atlas.provenance["unfinished"]
        if counts and about["done"] <= counts[-1]:
            return  # a round that an earlier process has shown
        counts.append(about["done"])
        raise Killed

    for _ in range(100):
        try:
            finished = grow(given, folder=tmp_path / "run", on_round=kill)
            break
        except Killed:
            pass
    assert len(counts) > 5
    assert finished.to_bytes() == whole


def test_after_its_minutes_a_run_returns_what_it_has_and_the_same_call_continues(
    given, tmp_path: Path
) -> None:
    whole = grow(given, rounds=1).to_bytes()
    shown: list[Atlas] = []
    stopped = grow(given, folder=tmp_path / "run", minutes=0, on_round=shown.append)
    about = stopped.provenance["unfinished"]
    assert about["stopped"] == "after 0 minutes"
    assert about["examples"]["toy"][0] == SIZE  # the first round, which is always done
    assert "surface" in stopped
    assert shown[-1].digest == stopped.digest
    again = grow(given, folder=tmp_path / "run")
    assert again.to_bytes() == whole


def test_an_interrupted_call_passes_on_what_it_has(bert, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook whose cell is interrupted."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Distance, "observe_batch", interrupted)
    shown: list[Atlas] = []
    with pytest.raises(KeyboardInterrupt):
        grow(bert, on_round=shown.append)
    about = shown[-1].provenance["unfinished"]
    assert about["stopped"] == "by a signal"
    assert "distance" in about["to_come"]
    assert about["examples"]["toy"] == [10, 10]


def test_an_interruption_between_two_sums_does_not_count_half_a_shard(
    bert, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[str] = []
    original = runner_module.merge_checkpoint

    def merge(state: object, observer: Analysis, *rest: object) -> None:
        # In the second shard, after the first of its observers.
        merged.append(observer.name)
        if merged.count(observer.name) == 2 and observer.name != merged[0]:
            merged.clear()
            monkeypatch.undo()
            raise KeyboardInterrupt
        original(state, observer, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(runner_module, "merge_checkpoint", merge)
    shown: list[Atlas] = []
    with pytest.raises(KeyboardInterrupt):
        grow(bert, on_round=shown.append, rounds=1)
    for name in ("surface", "offsets"):
        counts = [int(v.max()) for key, v in shown[-1][name].items() if str(key).endswith("_n")]
        assert max(counts) == SIZE, name


def test_an_interruption_in_a_shard_beyond_the_budget_of_an_analysis(
    bert, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later shards hold nothing of an analysis with a small budget, and neither of a failed one."""
    model, corpus, _ = bert
    monkeypatch.setattr(Surface, "budget", SIZE)
    monkeypatch.setattr(Surface, "max_examples", lambda self, shape: SIZE)
    original = runner_module.merge_checkpoint
    merged: list[str] = []

    def merge(state: object, observer: Analysis, *rest: object) -> None:
        merged.append(observer.name)
        if merged.count("offsets") == 3:
            monkeypatch.setattr(runner_module, "merge_checkpoint", original)
            raise KeyboardInterrupt
        original(state, observer, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(runner_module, "merge_checkpoint", merge)
    shown: list[Atlas] = []
    chosen = [make_analysis("surface"), make_analysis("offsets")]
    with pytest.raises(KeyboardInterrupt):
        make_atlas(model, corpus, chosen, shard_size=SIZE, on_round=shown.append, rounds=2)
    assert merged.count("surface") == 1
    assert int(shown[-1]["surface"]["entropy_n"].max()) == SIZE
    counts = [int(v.max()) for key, v in shown[-1]["offsets"].items() if str(key).endswith("_n")]
    assert max(counts) == 2 * SIZE


def test_a_result_that_fails_on_few_examples_is_not_yet_there(
    bert, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Surface.result

    def needs_four(self: Surface, state, shape):  # type: ignore[no-untyped-def]
        dataset = original(self, state, shape)
        if int(dataset["entropy_n"].max()) < 4:
            raise ParameterError("too few examples")
        return dataset

    monkeypatch.setattr(Surface, "result", needs_four)
    rounds: list[Atlas] = []
    finished = grow(bert, on_round=rounds.append)
    assert "surface" in rounds[0].provenance["unfinished"]["to_come"]
    assert "surface" not in rounds[0]
    assert "surface" in finished
    assert finished.provenance["failed"] == {}


# --- the parts ------------------------------------------------------------------------------------


def nothing() -> None:
    pass


def names_in_order(steps: dict[str, Step]) -> list[str]:
    by_step = {id(step): name for name, step in steps.items()}
    return [by_step[id(step)] for step in in_order(list(steps.values()))]


def test_steps_come_by_worth_for_cost_the_first_round_first() -> None:
    first = Step(nothing, cost=50.0, early=True)
    others = Step(nothing, cost=300.0, worth=10.0, after=first)
    steps = {
        "dear": Step(nothing, cost=500.0),
        "worth it": Step(nothing, cost=600.0, worth=30.0),
        "result": Step(nothing, cost=0.0, after=others),
        "others": others,
        "first": first,
    }
    assert names_in_order(steps) == ["first", "worth it", "others", "result", "dear"]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that goes only when it is told to."""
    time = [100.0]
    monkeypatch.setattr(growth_module.time, "monotonic", lambda: time[0])

    def wait(seconds: float) -> None:
        time[0] += seconds

    return wait


def test_rounds_take_a_tenth_of_the_time(
    now: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth_module, "MOST_TIME_IN_ROUNDS", 0.1)
    clock = RoundClock(None)
    assert clock.is_due  # the first comes at once
    now(2.0)
    clock.end_round(began=100.0)
    # The next one is expected to take 2.5 s: both are a tenth of 45 s.
    now(40.4)
    assert not clock.is_due
    now(0.2)
    assert clock.is_due
    # One that took longer than expected is made up for by waiting longer.
    now(10.0)
    clock.end_round(began=142.6)
    assert clock.spent == pytest.approx(12.0)
    now(179.0)
    assert not clock.is_due
    now(1.0)
    assert clock.is_due
    one = RoundClock(1)
    now(1000.0)
    assert not one.is_due


def test_the_time_left_is_told_from_what_was_computed(now: Callable[[float], None]) -> None:
    clock = RoundClock(None)
    assert clock.seconds_left(100.0) is None
    assert clock.seconds_left(0.0) is None  # analyses that say of themselves that they cost nothing
    clock.advance(50.0, restored=True)  # a checkpoint: it took no time, and tells none
    assert clock.seconds_left(100.0) is None
    now(10.0)
    clock.advance(10.0)
    now(5.0)
    clock.end_round(began=110.0)  # writing a round is not work
    now(10.0)
    clock.advance(10.0)
    assert clock.seconds_left(100.0) == pytest.approx(30.0)


def test_a_deadline_stops_work_where_it_looks() -> None:
    raise_if_interrupted()
    with stopping_at(0.0), pytest.raises(TimeIsUp):
        raise_if_interrupted()
    with stopping_at(None):
        raise_if_interrupted()
