"""Workers that end: how often a unit is tried again, on a simulated Ray whose workers end when a test
says."""

from __future__ import annotations

import random
import socket
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from headwise.core.errors import HeadwiseError
from headwise.core.failures import Failure
from headwise.core.store import Checkpoint
from headwise.run import cluster
from headwise.run.cluster import ALONE_AFTER, MAX_TRIES, Backend, RayWorkers, workers_of
from headwise.run.connection import connect


class WorkerGone(Exception):
    """Stands for Ray's error."""


@dataclass(eq=False)
class Ref:
    """An answer to come: `left` ticks of work until then."""

    left: int
    value: Any = None
    error: Exception | None = None
    done: bool = False


@dataclass
class Actor:
    """A worker: does one thing after the other."""

    world: World
    dead: bool = False
    line: deque[tuple[str, Ref]] = field(default_factory=deque)

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self.ask(method, given))

    def ask(self, method: str, given: tuple[Any, ...]) -> Ref:
        ref = Ref({"take": 3, "make": 1, "here": 0}[method], id(self))
        unit = given[1].decode() if method == "make" else ""
        if method == "make":
            ref.left, ref.value = self.world.lengths[unit], ("made", {}, {"unit": unit})
        if self.dead:
            ref.error, ref.done = WorkerGone("The worker exited."), True
        else:
            self.line.append((unit, ref))
        return ref

    def tick(self) -> None:
        """A moment of work."""
        while self.line and self.line[0][1].left <= 0:
            self.line.popleft()[1].done = True
        if self.line:
            unit, ref = self.line[0]
            if unit in self.world.killers and ref.left == 1:
                self.world.tries[unit] += 1
                self.end()
            ref.left -= 1

    def end(self) -> None:
        self.dead = True
        for _, ref in self.line:
            ref.error, ref.done = WorkerGone("The worker exited."), True
        self.line.clear()


class World:
    """Ray, as far as the driver needs it; time passes whenever it is asked what is ready."""

    def __init__(self, lengths: dict[str, int], killers: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.lengths, self.killers = lengths, killers
        self.actors: list[Actor] = []
        self.tries: Counter[str] = Counter()
        self.now = self.ended = 0
        self.disturb: Callable[[World], None] = lambda _: None
        self.exceptions = SimpleNamespace(RayError=WorkerGone, RayTaskError=ZeroDivisionError)

    def remote(self, _: type) -> Any:
        def new() -> Actor:
            self.actors.append(Actor(self))
            return self.actors[-1]

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=new))

    def put(self, thing: object) -> object:
        return thing

    def kill(self, actor: Actor) -> None:
        actor.end()

    def tick(self) -> None:
        self.now += 1
        self.disturb(self)
        for actor in self.living:
            actor.tick()

    @property
    def living(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.dead]

    def wait(
        self, refs: list[Ref], num_returns: int, timeout: float
    ) -> tuple[list[Ref], list[Ref]]:
        self.tick()
        return [ref for ref in refs if ref.done], []

    def get(self, ref: Ref, timeout: float | None = None) -> Any:
        if not ref.done:
            self.tick()
        if ref.error is not None:
            raise ref.error
        return ref.value


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cluster, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None)
    )
    monkeypatch.setattr(
        cluster, "Packer", lambda: SimpleNamespace(pack=lambda _: parcel, pack_unit=str.encode)
    )


parcel = SimpleNamespace(models={})


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> RayWorkers:
    monkeypatch.setattr(cluster, "import_ray", lambda: None)
    monkeypatch.setattr(cluster, "connect", lambda *_: False)
    return RayWorkers(Backend("ray", workers=2, gpus_per_worker=0), lambda _: None)


def run_all_units(workers: RayWorkers, world: World) -> dict[str, bool]:
    """Every unit, in the order that it came in, and whether it was made."""
    workers.ray = world
    workers.handles = []
    cluster.time.monotonic = lambda: 0.5 * world.now  # type: ignore[assignment]
    units = [(name, name) for name in world.lengths]
    kept: dict[str, Checkpoint] = {}
    store: Any = SimpleNamespace(has=kept.__contains__, load=kept.get, inherited={})
    store.save = lambda name, arrays, facts: kept.update({name: Checkpoint(arrays, facts)})
    found = list(workers.run_units(store, lambda _: ({}, {}), iter(units)))
    assert [p.what if isinstance(p, Failure) else p.facts["unit"] for p in found] == list(
        world.lengths
    )
    return {
        name: not isinstance(checkpoint, Failure)
        for name, checkpoint in zip(world.lengths, found, strict=True)
    }


def at_random(seed: int, apart: tuple[int, int], count: int) -> Callable[[World], None]:
    """Ends of workers by another hand: any that lives, whatever it does, so many times."""
    chance = random.Random(seed)
    coming = chance.randint(*apart)
    left = count

    def disturb(world: World) -> None:
        nonlocal coming, left
        if left and world.now >= coming and world.living:
            chance.choice(world.living).end()
            world.ended += 1
            coming, left = world.now + chance.randint(*apart), left - 1

    return disturb


def test_ends_for_other_reasons_give_no_unit_up(workers: RayWorkers) -> None:
    for seed in range(40):
        world = World({f"unit-{i}": 6 if i % 8 == 7 else 2 for i in range(160)})
        world.disturb = at_random(seed, (8, 30), 12)
        assert all(run_all_units(workers, world).values())
        assert world.ended >= 8


@pytest.mark.parametrize("many", [1, 3])
def test_a_unit_that_ends_its_workers_is_given_up_after_a_fixed_number_of_tries(
    workers: RayWorkers, many: int
) -> None:
    killers = {f"unit-{5 + 7 * i}" for i in range(many)}
    world = World({f"unit-{i}": 2 for i in range(40)}, killers)
    found = run_all_units(workers, world)
    assert {name for name, whole in found.items() if not whole} == killers
    assert set(world.tries.values()) == {MAX_TRIES}


def test_a_unit_of_another_job_has_its_own_tries(workers: RayWorkers) -> None:
    for _ in range(2):
        world = World({"unit-0": 2, "unit-1": 2}, {"unit-1"})
        assert run_all_units(workers, world) == {"unit-0": True, "unit-1": False}
        assert world.tries["unit-1"] == MAX_TRIES


def test_where_workers_end_anyway_a_killer_is_still_found(workers: RayWorkers) -> None:
    world = World({f"unit-{i}": 2 for i in range(40)}, {"unit-5"})
    world.disturb = at_random(0, (8, 30), 1000)
    found = run_all_units(workers, world)
    assert [name for name, whole in found.items() if not whole] == ["unit-5"]
    assert 1 <= world.tries["unit-5"] <= MAX_TRIES


def test_a_unit_that_ended_two_workers_is_computed_alone(workers: RayWorkers) -> None:
    world = World({f"unit-{i}": 2 for i in range(12)}, {"unit-3"})
    beside: list[int] = []

    def see(world: World) -> None:
        working = [actor for actor in world.living if any(unit for unit, _ in actor.line)]
        if world.tries["unit-3"] == ALONE_AFTER and any(
            unit == "unit-3" for actor in working for unit, _ in actor.line
        ):
            beside.append(len(working))
            world.killers = set()  # it had too little memory beside the others

    world.disturb = see
    assert all(run_all_units(workers, world).values())
    assert set(beside) == {1}


def test_a_unit_given_to_a_worker_that_is_gone_counts_no_try(workers: RayWorkers) -> None:
    world = World({"unit-0": 30, "unit-1": 2})
    notes: list[str] = []
    workers.note = notes.append

    def disturb(world: World) -> None:
        for actor in world.living:
            if not actor.line and world.now > 6:
                actor.end()  # has nothing to do

    world.disturb = disturb
    workers.ray = world
    workers.handles = []
    results = workers.run_units(
        None, lambda _: ({}, {}), iter([("unit-0", "unit-0"), ("unit-1", "unit-1")])
    )
    assert len(list(results)) == 2
    world.disturb = lambda _: None
    assert (
        len(list(workers.run_units(None, lambda _: ({}, {}), iter([("unit-1", "unit-1")] * 1))))
        == 1
    )
    assert notes == []


def test_a_wrong_address_is_told_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(_: Any, address: str | None, workers: int) -> bool:
        raise HeadwiseError(f"Ray cannot be reached at '{address}'.")

    monkeypatch.setattr(cluster, "import_ray", lambda: None)
    monkeypatch.setattr(cluster, "connect", reject)
    with workers_of(Backend("ray")):
        pass  # nothing was to be made
    with (
        pytest.raises(HeadwiseError, match="at 'nowhere:1'"),
        workers_of(Backend("ray", address="nowhere:1")),
    ):
        raise AssertionError("nothing is begun")


def test_a_head_that_does_not_answer_is_told_at_once() -> None:
    """Ray itself would go on asking for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        asked: list[str] = []
        ray = SimpleNamespace(
            is_initialized=lambda: False, init=lambda address, **_: asked.append(address)
        )
        assert connect(ray, f"127.0.0.1:{port}", 1)
        assert connect(ray, "auto", 1)
    with pytest.raises(HeadwiseError, match=rf"^Ray cannot be reached at '127.0.0.1:{port}' \("):
        connect(ray, f"127.0.0.1:{port}", 1)
    assert asked == [f"127.0.0.1:{port}", "auto"]


def test_workers_that_end_before_they_begin_end_the_run(workers: RayWorkers) -> None:
    world = World({"unit-0": 2})

    def disturb(world: World) -> None:
        for handle in workers.handles:
            if handle.pid is not None:
                handle.actor.end()

    world.disturb = disturb
    with pytest.raises(HeadwiseError, match="before they had anything to do"):
        run_all_units(workers, world)
