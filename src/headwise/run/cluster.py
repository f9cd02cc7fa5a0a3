"""Workers on Ray: long-lived processes, on this machine or on a cluster, that compute the units of a
run."""

from __future__ import annotations

import pickle
import time
from collections import Counter, deque
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
from headwise.run.connection import connect, describe_end, import_ray
from headwise.run.shipping import Packer
from headwise.run.worker import Driver, Worker

BACKENDS = ("local", "ray")
UNITS_PER_WORKER = 2  # the unit that a worker computes, and the next one
AHEAD = 8  # units per worker that may be finished before one that is still being computed
POLL = 0.05  # seconds between looks at what workers have computed
ANSWER = 5.0  # seconds for an idle worker to answer
PATIENCE = 30.0  # seconds without any worker until that is noted
# Workers end for many reasons that are not the unit's: memory, preemption, a lost machine. A unit is
# given up after so many ended workers; from ALONE_AFTER on it is computed alone, when nothing else
# is left, since it may have had too little memory beside the others.
MAX_TRIES = 5
ALONE_AFTER = 2
MAX_OPENINGS = 3  # workers that may end one after the other while they open the model
MAX_IDLE_ENDS = 12  # workers that may end one after the other before they begin with anything
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Backend:
    """Where the work of a run is done.

    Parameters
    ----------
    name : {"local", "ray"}, default "local"
        In this process, or by workers on Ray.
    address : str, optional
        Of a running Ray cluster (`auto` for the one on this machine); None starts one on this
        machine for the time of the run, unless `RAY_ADDRESS` names one.
    workers : int, optional
        How many; by default as many as there are cores (or GPUs, where workers use them).
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
        if self.name != "local":
            return
        for parameter in ("address", "workers", "gpus_per_worker"):
            if getattr(self, parameter) is not None:
                raise ParameterError(
                    f"`{parameter}` is for workers on Ray; choose the backend 'ray' too.",
                    option="backend ray",
                )


@contextmanager
def workers_of(backend: Backend, note: Note = lambda _: None) -> Iterator[Workers | None]:
    """Have the units of every run and experiment within a block computed where `backend` says.

    Parameters
    ----------
    backend : Backend
        Where.
    note : callable, optional
        Called with a sentence for every worker that ended.

    Examples
    --------
    >>> from headwise.run import Backend, make_atlas, workers_of
    >>> with workers_of(Backend("ray", workers=2)):  # doctest: +SKIP
    ...     atlas = make_atlas(analyses=["surface"])
    """
    if backend.name == "local":
        yield None
        return
    workers = RayWorkers(backend, note)
    if backend.address:
        workers.connect()  # a wrong address is an error before anything is opened or written
    try:
        with use_workers(workers):
            yield workers
    finally:
        workers.close()


@dataclass(frozen=True, slots=True)
class _AssignedUnit:
    """A unit that a worker has, with Ray's references to its answers: that it has begun, and the
    result."""

    name: str
    unit: Any
    begun: Any
    result: Any


@dataclass(slots=True, eq=False)
class _WorkerHandle:
    """A worker as the driver sees it: the actor, its answer to the job, and its units, oldest
    first."""

    actor: Any
    ready: Any = None  # Ray's reference to the answer that it has the job
    alive: Any = None  # its answer before it was given the job; None for a new worker
    pid: int | None = None  # None until it has the job
    units: deque[_AssignedUnit] = field(default_factory=deque)


class RayWorkers(Workers):
    """Workers on Ray. They are started with the first job and stay until `close`; each opens a model
    once.

    Results become checkpoints as they arrive and are yielded in the order of units, so that sums
    are those of a run in one process. The units of a worker that ended are computed again; one that
    ends worker after worker is a `Failure`. See `workers_of`."""

    def __init__(self, backend: Backend, note: Note) -> None:
        self.ray = import_ray()
        self.note = note
        self._backend = backend
        self._gpus = backend.gpus_per_worker
        if self._gpus is None:
            self._gpus = 1.0 if torch.cuda.is_available() else 0.0
        several_on_cpu = backend.workers != 1 and not self._gpus
        self.threads = 1 if several_on_cpu else torch.get_num_threads()
        self.count = backend.workers or 0  # 0 until Ray is asked
        self._started_ray: bool | None = None  # None while Ray is not needed
        self.handles: list[_WorkerHandle] = []
        self.jobs = 0  # that workers were given
        self.failed_openings = 0  # one after the other
        self.idle_ends = 0  # one after the other

    def connect(self) -> None:
        """Connect to Ray, or start it; not before there is anything to compute."""
        if self._started_ray is None:
            self._started_ray = connect(self.ray, self._backend.address, self._backend.workers or 1)
            self.count = self.count or self._n_fitting()

    def _n_fitting(self) -> int:
        resources = self.ray.cluster_resources()
        if self._gpus:
            return max(1, int(resources.get("GPU", 0) / self._gpus))
        return max(1, int(resources.get("CPU", 0) / (self.threads or 1)))

    @property
    def pids(self) -> list[int]:
        """The processes of the workers that are ready."""
        return [handle.pid for handle in self.handles if handle.pid is not None]

    def close(self) -> None:
        """End the workers, and Ray where it was started here."""
        for handle in self.handles:
            with suppress(Exception):
                self.ray.kill(handle.actor)
        self.handles = []
        if self._started_ray:
            self.ray.shutdown()
        self._started_ray = None

    def run_units(
        self,
        store: CheckpointStore | None,
        function: UnitFunction,
        units: Iterable[tuple[str, Any]],
    ) -> Iterator[Checkpoint | Failure]:
        return _RayJob(self, store, function).results(iter(units))

    def start_job(
        self, packer: Packer, function: UnitFunction, threads: int
    ) -> Callable[[_WorkerHandle], None]:
        """Give all workers a job, and return what gives it to a new one; it is packed once."""
        parcel = packer.pack(function)
        for model in parcel.models.values():
            if self._gpus and model.device == "cpu":
                raise ParameterError(
                    f"Workers have GPUs, but '{model.name}' is on the CPU of this machine; "
                    "open it with device='cuda', or use workers with gpus_per_worker=0.",
                    option="gpus_per_worker 0",
                )
        self.connect()
        self.jobs += 1
        number = self.jobs
        parcel_reference = self.ray.put(parcel)
        driver = Driver()

        def give_job(handle: _WorkerHandle) -> None:
            handle.alive = None
            if handle.pid is not None:
                handle.alive = handle.actor.here.remote()
            handle.pid = None
            handle.units = deque()
            handle.ready = handle.actor.take.remote(number, parcel_reference, threads, driver)

        while len(self.handles) < self.count:
            self.handles.append(self._new_worker())
        for handle in self.handles:
            give_job(handle)
        return give_job

    def _new_worker(self) -> _WorkerHandle:
        threads = float(self.threads or 1)
        # Ray restarts nothing by itself: which units a worker had is known here.
        actor = self.ray.remote(Worker).options(
            num_cpus=threads, num_gpus=self._gpus, max_restarts=0, max_task_retries=0
        )
        return _WorkerHandle(actor.remote())

    def replace(self, handle: _WorkerHandle, give_job: Callable[[_WorkerHandle], None]) -> None:
        """Put a new worker in the place of one that ended."""
        with suppress(Exception):
            self.ray.kill(handle.actor)
        fresh = self._new_worker()
        give_job(fresh)
        self.handles[self.handles.index(handle)] = fresh


class _RayJob:
    """The units of one job on their way through the workers."""

    def __init__(
        self, workers: RayWorkers, store: CheckpointStore | None, function: UnitFunction
    ) -> None:
        self.workers = workers
        self.store = store
        self.function = function
        self.ray: Any = workers.ray
        self.packer = Packer()
        self.order: deque[str] = deque()  # names in the order of units, until they are yielded
        self.waiting: deque[tuple[str, Any]] = deque()
        self.suspects: deque[tuple[str, Any]] = deque()  # computed alone, when nothing else is left
        self.ends: Counter[str] = Counter()  # how many workers ended with each unit
        # Results by name; None for those that are in the store.
        self.finished: dict[str, Checkpoint | Failure | None] = {}
        self.give_job: Callable[[_WorkerHandle], None] | None = None

    def results(self, units: Iterator[tuple[str, Any]]) -> Iterator[Checkpoint | Failure]:
        """Yield the result of every unit, in their order."""
        any_left = True
        while any_left or self.order:
            while self.order and self.order[0] in self.finished:
                yield self._result(self.order.popleft())
            while any_left and self._room_for_another():
                name, unit = next(units, ("", None))
                if not name:
                    any_left = False
                    break
                self.order.append(name)
                if self.store is not None and self.store.has(name):
                    self.finished[name] = None
                    if self.order[0] == name:
                        break  # yield it before another unit is taken
                else:
                    self.waiting.append((name, unit))
            self._assign()
            if self.order and self.order[0] not in self.finished:
                self._wait()

    def _result(self, name: str) -> Checkpoint | Failure:
        result = self.finished.pop(name)
        if result is None:
            assert self.store is not None
            result = self.store.load(name)
            if result is None:
                raise HeadwiseError(
                    f"The checkpoint {name} was changed after it was written; "
                    "see what else writes to the folder."
                )
        return result

    def _room_for_another(self) -> bool:
        """Return whether another unit may be taken: workers have room, and few are ahead."""
        room = 0
        for handle in self.workers.handles:
            if handle.pid is not None:
                room += UNITS_PER_WORKER - len(handle.units)
        if len(self.waiting) >= max(1, room):  # the first unit starts the workers
            return False
        if self.suspects and self.store is not None:
            return True  # a suspect waits for all others, which have checkpoints meanwhile
        return len(self.order) < AHEAD * max(1, self.workers.count)

    def _assign(self) -> None:
        """Give units to the workers that have room for them."""
        if self.waiting and self.give_job is None:
            threads = self.workers.threads
            if self.store is not None and self.store.inherited.get("threads"):
                threads = self.store.inherited["threads"]
            self.give_job = self.workers.start_job(self.packer, self.function, int(threads or 1))
        # Nobody gets a second unit while another worker has none.
        for depth in range(1, UNITS_PER_WORKER + 1):
            for handle in self.workers.handles:
                if self.waiting and handle.pid is not None and len(handle.units) < depth:
                    self._send(handle, *self.waiting.popleft())
        ready = [handle for handle in self.workers.handles if handle.pid is not None]
        if self.suspects and ready and not any(handle.units for handle in ready):
            self._send(ready[0], *self.suspects.popleft())

    def _send(self, handle: _WorkerHandle, name: str, unit: Any) -> None:
        # A worker does one thing after the other: once it answers this, it begins with the unit.
        begun = handle.actor.here.remote()
        packed = self.packer.pack_unit(unit)
        result = handle.actor.make.remote(self.workers.jobs, packed, begun)
        handle.units.append(_AssignedUnit(name, unit, begun, result))

    def _wait(self) -> None:
        """Wait until a worker is ready or has a result.

        Ray is polled: while it waits itself, it swallows what the handler of a signal raises."""
        began = time.monotonic()
        noted = False
        while True:
            expected = {}
            for handle in self.workers.handles:
                if handle.pid is None:
                    expected[handle.ready] = handle
                elif handle.units:
                    expected[handle.units[0].result] = handle
            ready, _ = self.ray.wait(list(expected), num_returns=len(expected), timeout=0)
            raise_if_interrupted()
            if ready:
                for reference in ready:
                    self._receive(expected[reference])
                return
            time.sleep(POLL)
            if not noted and not self.workers.pids and time.monotonic() - began > PATIENCE:
                noted = True
                free_cores = self.ray.available_resources().get("CPU", 0)
                self.workers.note(
                    f"No worker is ready yet: Ray has {free_cores:g} free cores; "
                    "models are being opened, or the cluster is full."
                )

    def _receive(self, handle: _WorkerHandle) -> None:
        """Take a worker's answer: that it is ready, a result, or that it has ended."""
        errors = self.ray.exceptions
        try:
            if handle.pid is None:
                handle.pid = self.ray.get(handle.ready)
                self.workers.failed_openings = 0
                return
            kind, arrays, facts = self.ray.get(handle.units[0].result)
        except errors.RayTaskError as error:
            raise RuntimeError(f"A worker failed: {error}") from error
        except errors.RayError as error:
            self._replace_ended(handle, error)
            return
        name = handle.units.popleft().name
        self.workers.idle_ends = 0
        if kind == "raised":
            raise pickle.loads(arrays)
        if self.store is None:
            self.finished[name] = Checkpoint(arrays, facts)
        else:
            self.store.save(name, arrays, facts)
            self.finished[name] = None

    def _replace_ended(self, handle: _WorkerHandle, error: Exception) -> None:
        """Replace a worker that ended; compute its units again. Only the unit that it had begun
        counts another try."""
        assert self.give_job is not None
        units = list(handle.units)
        opening = handle.pid is None
        begun = self._answered(handle.alive if opening else units[0].begun)
        self.workers.replace(handle, self.give_job)
        if not begun:
            self._count_idle_end(error)
        elif opening:
            self._count_failed_opening(error)
        elif not getattr(error, "preempted", False):
            self._count_try(units.pop(0), error)
        self.waiting.extendleft((unit.name, unit.unit) for unit in reversed(units))

    def _answered(self, answer: Any) -> bool:
        """Return whether a worker answered before it ended; one that was not asked counts as
        having done so."""
        if answer is None:
            return True
        try:
            self.ray.get(answer, timeout=ANSWER)
        except self.ray.exceptions.RayError:
            return False
        return True

    def _count_idle_end(self, error: Exception) -> None:
        self.workers.idle_ends += 1
        if self.workers.idle_ends >= MAX_IDLE_ENDS:
            raise HeadwiseError(
                f"{MAX_IDLE_ENDS} workers ended one after the other before they had anything to "
                f"do ({describe_end(error)}); see what ends them."
            ) from error

    def _count_failed_opening(self, error: Exception) -> None:
        self.workers.failed_openings += 1
        if self.workers.failed_openings >= MAX_OPENINGS:
            raise HeadwiseError(
                f"{MAX_OPENINGS} workers ended one after the other while they opened the model "
                f"({describe_end(error)}); use fewer workers, or give each more memory.",
                option="workers",
            ) from error

    def _count_try(self, unit: _AssignedUnit, error: Exception) -> None:
        """Try a unit again whose worker ended, or give it up after MAX_TRIES."""
        self.workers.idle_ends = 0
        self.ends[unit.name] += 1
        n_tries = self.ends[unit.name]
        if n_tries >= MAX_TRIES:
            reason = f"{n_tries} workers ended while they computed it: {describe_end(error)}"
            self.finished[unit.name] = Failure(unit.name, reason, str(error))
            return
        if n_tries >= ALONE_AFTER:
            self.suspects.append((unit.name, unit.unit))
        else:
            self.waiting.appendleft((unit.name, unit.unit))
        self.workers.note(f"A worker ended while it computed {unit.name}; it is computed again.")
