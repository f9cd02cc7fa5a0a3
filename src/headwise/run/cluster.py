"""Workers on Ray: long-lived processes on this machine or on a cluster that make the pieces of a
run."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from headwise.core.checks import at_least, one_of
from headwise.core.errors import HeadwiseError, ParameterError
from headwise.core.failures import Failure
from headwise.core.interrupts import raise_if_interrupted
from headwise.core.store import Checkpoint, CheckpointStore
from headwise.core.workers import UnitFunction, Workers, use_workers
from headwise.run.blame import KILLS, TRIES, Blame
from headwise.run.connection import connect, import_ray, words_of
from headwise.run.shipping import Packer
from headwise.run.worker import Driver, Worker

BACKENDS = ("local", "ray")
DEPTH = 2  # units that a worker has: the one it makes and the next
AHEAD = 8  # pieces for each worker that may be finished before one that is still being made
POLL = 0.05  # seconds between looks at what workers have made
ANSWER = 5.0  # seconds for a worker with nothing to do to say that it is there
PATIENCE = 30.0  # seconds without any worker until that is said
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Backend:
    """Where the work of a run is done.

    Parameters
    ----------
    name : {"local", "ray"}, default "local"
        In this process, or by workers on Ray.
    address : str, optional
        Of a cluster of Ray that is there (`auto` for the one on this machine); None starts one on
        this machine for the time of the run, unless `RAY_ADDRESS` names one.
    workers : int, optional
        How many; by default as many as there are cores (or GPUs, where they have some).
    gpus_per_worker : float, optional
        GPUs of each worker; several share one where it is less than 1. By default 1 where this
        machine has any.
    """

    name: str = "local"
    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        one_of("backend", self.name, BACKENDS)
        at_least("workers", 1 if self.workers is None else self.workers, 1)
        at_least("gpus_per_worker", self.gpus_per_worker or 0, 0)
        given = [
            name
            for name in ("address", "workers", "gpus_per_worker")
            if getattr(self, name) is not None
        ]
        if self.name == "local" and given:
            raise ParameterError(
                f"`{given[0]}` is for workers on Ray; choose the backend 'ray' too.",
                option="backend ray",
            )


@contextmanager
def workers_of(backend: Backend, say: Say = lambda _: None) -> Iterator[Workers | None]:
    """Within, the work of every run and every experiment is done where `backend` says.

    Parameters
    ----------
    backend : Backend
        Where.
    say : callable, optional
        Told in a sentence of workers that ended.

    Examples
    --------
    >>> from headwise.run import Backend, make_atlas, workers_of
    >>> with workers_of(Backend("ray", workers=2)):  # doctest: +SKIP
    ...     atlas = make_atlas(analyses=["surface"])
    """
    if backend.name == "local":
        yield None
        return
    workers = RayWorkers(backend, say)
    if backend.address:
        workers.connect()  # a wrong address is told before anything is opened or written
    try:
        with use_workers(workers):
            yield workers
    finally:
        workers.close()


@dataclass(frozen=True, slots=True)
class _Given:
    """A unit that a worker has: its answers when it begins with it, and when it has made it."""

    name: str
    unit: Any
    begun: Any
    made: Any


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker as the driver sees it: the actor, its answer to the job, and what it was given to
    do, oldest first."""

    actor: Any
    taking: Any = None
    alive: Any = None  # its answer that it was there when it was handed the job; None for a new one
    pid: int | None = None  # None until it has taken the job
    given: deque[_Given] = field(default_factory=deque)
    since: float = 0.0  # when it began with the oldest


class RayWorkers(Workers):
    """Workers on Ray. They are started with the first job and stay until `close`; a model is opened
    once by each.

    Units are given to them two at a time, pieces are kept as they come and given on in the order of
    units, so that sums are those of a run in one process. What a worker had when it ended is made
    again. A unit that ended two waits until nothing else is to be done, and is then made alone; one
    that ends a third is set aside, unless it looks as if other hands had ended them (`Blame`). See
    `workers_of`."""

    def __init__(self, backend: Backend, say: Say) -> None:
        self._ray = import_ray()
        self._say, self._backend = say, backend
        self._gpus = backend.gpus_per_worker
        if self._gpus is None:
            self._gpus = 1.0 if torch.cuda.is_available() else 0.0
        many = backend.workers != 1
        self.threads = 1 if many and not self._gpus else torch.get_num_threads()
        self.count = backend.workers or 0  # 0 until Ray is asked
        self._connected: bool | None = (
            None  # whether Ray is ours to shut down; None while it is not needed
        )
        self._hands: list[_Worker] = []
        self.jobs = 0  # that workers were given
        self._openings = 0  # workers that ended one after the other while they opened a model
        self._idle_ends = 0  # workers that ended one after the other before they began with a unit
        self.blame = Blame()

    def connect(self) -> None:
        """Reach Ray; none is started here before there is anything to make."""
        if self._connected is None:
            self._connected = connect(self._ray, self._backend.address, self._backend.workers or 1)
            self.count = self.count or self._fitting()

    def _fitting(self) -> int:
        resources = self._ray.cluster_resources()
        name, each = ("GPU", self._gpus) if self._gpus else ("CPU", self.threads)
        return max(1, int(resources.get(name, 0) / (each or 1)))

    @property
    def pids(self) -> list[int]:
        """The processes of the workers that are ready."""
        return [hand.pid for hand in self._hands if hand.pid is not None]

    def close(self) -> None:
        """End the workers, and Ray where it was started here."""
        for hand in self._hands:
            with suppress(Exception):
                self._ray.kill(hand.actor)
        self._hands = []
        if self._connected:
            self._ray.shutdown()
        self._connected = None

    # --- pieces -----------------------------------------------------------------------------------

    def run_units(
        self,
        store: CheckpointStore | None,
        function: UnitFunction,
        units: Iterable[tuple[str, Any]],
    ) -> Iterator[Checkpoint | Failure]:
        return _Batch(self, store, function).results(iter(units))

    def job(self, packer: Packer, job: UnitFunction, threads: int) -> Callable[[_Worker], None]:
        """What hands a job to a worker; it is packed once, and all workers are handed it now."""
        packed = packer.pack(job)
        idle = [
            model.name for model in packed.models.values() if self._gpus and model.device == "cpu"
        ]
        if idle:
            raise ParameterError(
                f"Workers have GPUs, but '{idle[0]}' is on the CPU of this machine; "
                "open it with device='cuda', or use workers with gpus_per_worker=0.",
                option="gpus_per_worker 0",
            )
        self.connect()
        self.jobs += 1
        number, parcel = self.jobs, self._ray.put(packed)
        driver = Driver()

        def hand_over(hand: _Worker) -> None:
            hand.alive = None if hand.pid is None else hand.actor.here.remote()
            hand.pid, hand.given = None, deque()
            hand.taking = hand.actor.take.remote(number, parcel, threads, driver)

        while len(self._hands) < self.count:
            self._hands.append(self._new())
        for hand in self._hands:
            hand_over(hand)
        return hand_over

    def _new(self) -> _Worker:
        threads = float(self.threads or 1)
        # Ray restarts nothing by itself: what a worker had is known here.
        actor = self._ray.remote(Worker).options(
            num_cpus=threads, num_gpus=self._gpus, max_restarts=0, max_task_retries=0
        )
        return _Worker(actor.remote())

    def replace(self, hand: _Worker, hand_over: Callable[[_Worker], None]) -> None:
        """A new worker in the place of one that ended."""
        with suppress(Exception):
            self._ray.kill(hand.actor)
        fresh = self._new()
        hand_over(fresh)
        self._hands[self._hands.index(hand)] = fresh


class _Batch:
    """The units of one job on their way."""

    def __init__(
        self, workers: RayWorkers, store: CheckpointStore | None, job: UnitFunction
    ) -> None:
        self.workers, self.store, self.job = workers, store, job
        self.ray: Any = workers._ray
        self.packer = Packer()
        self.order: deque[str] = deque()  # names in the order of units, until they are given on
        self.todo: deque[tuple[str, Any]] = deque()
        self.suspects: deque[tuple[str, Any]] = (
            deque()
        )  # made alone, when nothing else is to be done
        self.found: dict[str, Checkpoint | Failure | None] = {}  # None: in the store
        self.blame = workers.blame
        self.blame.begin()
        self.hand_over: Callable[[_Worker], None] | None = None

    def results(self, units: Iterator[tuple[str, Any]]) -> Iterator[Checkpoint | Failure]:
        more = True
        while more or self.order:
            while self.order and self.order[0] in self.found:
                yield self._result(self.order.popleft())
            while more and len(self.todo) < self._room() and len(self.order) < self._ahead():
                name, unit = next(units, ("", None))
                more = bool(name)
                if more:
                    self.order.append(name)
                    if self.store is not None and self.store.has(name):
                        self.found[name] = None
                        if self.order[0] == name:
                            break  # it is given on before another is looked at
                    else:
                        self.todo.append((name, unit))
            self._give()
            if self.order and self.order[0] not in self.found:
                self._wait()

    def _result(self, name: str) -> Checkpoint | Failure:
        found = self.found.pop(name)
        if found is None:
            assert self.store is not None
            found = self.store.load(name)
            if found is None:
                raise HeadwiseError(
                    f"{name} was changed while it was written; see what else writes to the folder."
                )
        return found

    def _room(self) -> int:
        """How many units the workers that are ready can be given now; 1 at least, for the first
        starts them."""
        return max(
            1, sum(DEPTH - len(hand.given) for hand in self.workers._hands if hand.pid is not None)
        )

    def _ahead(self) -> float:
        """How many units may be on their way: all while a suspect waits for them, where they can be
        kept."""
        return (
            float("inf")
            if self.suspects and self.store is not None
            else AHEAD * max(1, self.workers.count)
        )

    def _give(self) -> None:
        """Give units to the workers that have room for them."""
        if self.todo and self.hand_over is None:
            adopted = {} if self.store is None else self.store.adopted
            self.hand_over = self.workers.job(
                self.packer, self.job, int(adopted.get("threads") or self.workers.threads or 1)
            )
        for depth in range(1, DEPTH + 1):  # nobody gets a second one while another has none
            for hand in self.workers._hands:
                if self.todo and hand.pid is not None and len(hand.given) < depth:
                    self._begin(hand, *self.todo.popleft())
        ready = [hand for hand in self.workers._hands if hand.pid is not None]
        if self.suspects and ready and not any(hand.given for hand in ready):
            self._begin(ready[0], *self.suspects.popleft())

    def _begin(self, hand: _Worker, name: str, unit: Any) -> None:
        hand.since = hand.since if hand.given else time.monotonic()
        begun = (
            hand.actor.here.remote()
        )  # a worker does one thing after the other, and is sent the unit after this
        packed = self.packer.pack_unit(unit)
        hand.given.append(
            _Given(name, unit, begun, hand.actor.make.remote(self.workers.jobs, packed, begun))
        )

    def _wait(self) -> None:
        """Wait until a worker is ready or has made something.

        Ray is asked now and then: while it waits itself, it swallows what the handler of a signal
        raises."""
        began, said = time.monotonic(), False
        while True:
            busy = [hand for hand in self.workers._hands if hand.pid is None or hand.given]
            due = {hand.taking if hand.pid is None else hand.given[0].made: hand for hand in busy}
            ready, _ = self.ray.wait(list(due), num_returns=len(due), timeout=0)
            raise_if_interrupted()
            if ready:
                for ref in ready:
                    self._heard(due[ref])
                return
            time.sleep(POLL)
            if not said and not self.workers.pids and time.monotonic() - began > PATIENCE:
                said = True
                self.workers._say(
                    f"No worker is ready yet: Ray has {self.ray.available_resources().get('CPU', 0):g} free cores; "
                    "models are opened, or the cluster is full."
                )

    def _heard(self, hand: _Worker) -> None:
        """Take what a worker has to say: that it is ready, what it made, or that it is no more."""
        errors = self.ray.exceptions
        try:
            if hand.pid is None:
                hand.pid = self.ray.get(hand.taking)
                self.workers._openings = 0
                return
            kind, arrays, facts = self.ray.get(hand.given[0].made)
        except errors.RayTaskError as error:
            raise RuntimeError(f"A worker failed: {error}") from error
        except errors.RayError as error:
            self._ended(hand, error)
            return
        name = hand.given.popleft().name
        self.blame.made(name)
        hand.since = time.monotonic()
        self.workers._idle_ends = 0
        if kind == "raised":
            raise pickle.loads(arrays)
        if self.store is None:
            self.found[name] = Checkpoint(arrays, facts)
        else:
            self.store.save(name, arrays, facts)
            self.found[name] = None

    def _ended(self, hand: _Worker, error: Exception) -> None:
        """A worker is gone. What it had begun to make is blamed; what else it had is not."""
        assert self.hand_over is not None
        given, opening = list(hand.given), hand.pid is None
        begun = self._answers(hand.alive) if opening else self._answers(given[0].begun)
        self.workers.replace(hand, self.hand_over)
        if not begun:
            self._idle_end(error)
        elif getattr(error, "preempted", False):
            self.blame.accidents += 1
        elif opening:
            self.workers._openings += 1
            if self.workers._openings >= KILLS:
                raise HeadwiseError(
                    f"{KILLS} workers ended one after the other while they opened the model ({words_of(error)}); give "
                    "each more memory, or fewer workers."
                ) from error
        else:
            self._blamed(given.pop(0), time.monotonic() - hand.since, error)
        self.todo.extendleft((own.name, own.unit) for own in reversed(given))

    def _answers(self, answer: Any) -> bool:
        """Whether a worker answered before it was gone; one that was not asked counts as having
        done so."""
        if answer is None:
            return True
        try:
            self.ray.get(answer, timeout=ANSWER)
        except self.ray.exceptions.RayError:
            return False
        return True

    def _idle_end(self, error: Exception) -> None:
        """A worker ended before it began with anything: no unit is to blame."""
        self.blame.accidents += 1
        self.workers._idle_ends += 1
        if self.workers._idle_ends >= TRIES:
            raise HeadwiseError(
                f"{TRIES} workers ended one after the other before they had anything to do ({words_of(error)}); see "
                "what ends them."
            ) from error

    def _look_at_idle(self) -> None:
        """Note the workers that ended while they had nothing to do."""
        assert self.hand_over is not None
        idle = [hand for hand in self.workers._hands if hand.pid is not None and not hand.given]
        for hand in idle:
            if not self._answers(hand.actor.here.remote()):
                self.blame.accidents += 1
                self.workers.replace(hand, self.hand_over)

    def _blamed(self, own: _Given, seconds: float, error: Exception) -> None:
        """A unit ended its worker, or was there when another hand did: it is made again, or set
        aside."""
        self.workers._idle_ends = 0
        if self.blame.ends(own.name) >= KILLS - 1:
            self._look_at_idle()
        if self.blame.ended(own.name, seconds):
            said = f"it ended its worker {self.blame.ends(own.name)} times: {words_of(error)}"
            self.found[own.name] = Failure(own.name, said, str(error))
            return
        again = self.suspects if self.blame.ends(own.name) >= KILLS - 1 else self.todo
        again.appendleft((own.name, own.unit))
        self.workers._say(f"A worker ended while it made {own.name}; it is made again.")
