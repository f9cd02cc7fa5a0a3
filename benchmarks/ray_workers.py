"""Workers on Ray against one process: throughput of two against one, random kills of workers and of
the command itself, Ctrl-C, a restart of the head.

    python benchmarks/ray_workers.py [--examples 512] [--kills 20] [--parts
    throughput,kills,driver,interrupt,head]

Prints a table. Every part compares bytes with a run in one process of one thread. Throughput is of
the pass of `surface`, `offsets` and `roles` over the built-in corpus, from the first shard to the
last, by workers that are ready; it wants an idle machine of two cores, so the load is printed
beside it, and the CPU time that it took."""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from headwise import HeadModel, make_analysis
from headwise.run import Backend, RunCallbacks, RunOptions, run_analyses, workers_of
from headwise.run.cluster import RayWorkers
from headwise.text import open_corpus

ANALYSES = ("surface", "offsets", "roles")


class Bench:
    """The built-in model on some of the built-in corpus."""

    def __init__(self, examples: int, folder: Path) -> None:
        self.model, self.folder = HeadModel.open(device="cpu"), folder
        self.corpus = open_corpus(None, tokenizer=self.model.tokenizer, limit=examples)
        self.examples = sum(1 for _ in self.corpus)
        self.runs = 0

    def run(
        self, limit: int | None = None, progress: Callable[[str, int, int], None] | None = None
    ) -> bytes:
        """The bytes of an atlas."""
        self.runs += 1
        options = RunOptions(full=True, shard_size=8, limit=limit)
        callbacks = RunCallbacks() if progress is None else RunCallbacks(progress=progress)
        chosen = [make_analysis(name) for name in ANALYSES]
        where = self.folder / f"run-{self.runs}"
        return run_analyses(self.model, self.corpus, chosen, where, options, callbacks).to_bytes()


def throughput(bench: Bench, expected: bytes) -> None:
    rates, cores = {}, {}
    for count in (1, 2):
        with workers_of(Backend("ray", workers=count)) as workers:
            assert isinstance(workers, RayWorkers)
            while len(workers.pids) < count:
                bench.run(limit=32)  # until every worker has its model
            load, moments = os.getloadavg()[0], []

            def note(
                what: str, done: int, total: int, moments: list[Any] = moments, own: Any = workers
            ) -> None:
                if what == "examples":  # the pass, and nothing after it
                    moments.append((done, time.perf_counter(), cpu(own.pids), time.process_time()))

            same = bench.run(progress=note) == expected
            passed = [last - first for first, last in zip(moments[0], moments[-1], strict=True)]
            rates[count], cores[count] = (
                passed[0] / passed[1],
                (passed[2] / passed[0], passed[3] / passed[0]),
            )
        told = "the bytes of one process" if same else "OTHER BYTES"
        used = f"CPU of an example: workers {1e3 * cores[count][0]:.1f} ms, driver {1e3 * cores[count][1]:.1f} ms"
        print(
            f"{count} worker(s): {rates[count]:7.1f} examples/s, {told} (load {load:.1f}; {used})",
            flush=True,
        )
    print(f"two against one: {rates[2] / rates[1]:.2f} (1.7 wanted)", flush=True)
    # One worker and the driver have a core each; with two workers, all three share two cores.
    print(
        f"by CPU time, were both cores free: {max(cores[1]) / (sum(cores[2]) / 2):.2f}", flush=True
    )


def cpu(pids: list[int]) -> float:
    """The CPU seconds that processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def kills(bench: Bench, expected: bytes, count: int, shard: float) -> None:
    """Workers are killed at random moments, 3 to 15 shards' time apart, until so many have been, in
    several runs. A random-weights model takes as long as several shards: some are hit again and
    again."""
    chance, killed, runs, same = random.Random(0), 0, 0, True
    with workers_of(Backend("ray", workers=2)) as workers:
        assert isinstance(workers, RayWorkers)
        while killed < count:
            over = threading.Event()

            def disturb(over: threading.Event = over) -> None:
                nonlocal killed
                while killed < count and not over.wait(chance.uniform(3, 15) * shard):
                    if workers.pids:
                        try:
                            os.kill(chance.choice(workers.pids), signal.SIGKILL)
                        except ProcessLookupError:
                            continue
                        killed += 1

            thread = threading.Thread(target=disturb)
            thread.start()
            same &= bench.run() == expected
            over.set()
            thread.join()
            runs += 1
    print(
        f"{killed} kills of workers, {3 * shard:.1f} to {15 * shard:.1f} s apart, in {runs} runs; "
        f"{'the same bytes' if same else 'OTHER BYTES'}",
        flush=True,
    )


ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
COMMAND = [sys.executable, "-m", "headwise", "run", "surface", "--out"]


def pieces(out: Path) -> int:
    """The shards of an unfinished command that are finished."""
    return len(list((out.parent / f".{out.name}.run").glob("shard-*.checkpoint")))


def begun(
    asked: list[str], out: Path, finished: int = 2, environment: dict[str, str] = ENVIRONMENT
) -> subprocess.Popen[str]:
    """A command in the middle of its work, with so many shards finished."""
    made = subprocess.Popen(
        asked,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while made.poll() is None and pieces(out) < finished:
        time.sleep(0.05)
    return made


def interrupt(folder: Path, alone: bytes) -> None:
    """Ctrl-C on a terminal goes to the command and all it started; the command goes on without
    workers."""
    out = folder / "interrupted.nc"
    first = begun([*COMMAND, str(out), "--backend", "ray", "--workers", "2"], out)
    os.killpg(first.pid, signal.SIGINT)
    said = (first.communicate(timeout=120)[1] or "").strip().splitlines()[-1:]
    kept = pieces(out)
    again = subprocess.run([*COMMAND, str(out)], env=ENVIRONMENT, capture_output=True)
    same = again.returncode == 0 and out.read_bytes() == alone
    print(
        f"Ctrl-C with {kept} shards finished: exit code {first.returncode}, {said}; resumed in one process: "
        f"{'the same bytes' if same else 'OTHER BYTES'}",
        flush=True,
    )


def driver(folder: Path, alone: bytes, count: int) -> None:
    """The command itself is killed, its workers with it as Ray sees fit; repeated with workers or
    without, in turn."""
    chance, same, kept = random.Random(0), 0, []
    for trial in range(count):
        out = folder / f"driver-{trial}.nc"
        workers = ["--backend", "ray", "--workers", "2"]
        first = begun([*COMMAND, str(out), *workers], out, chance.randrange(1, 6))
        first.kill()
        first.wait()
        kept.append(pieces(out))
        with suppress(ProcessLookupError):  # what Ray left of it
            os.killpg(first.pid, signal.SIGKILL)
        again = subprocess.run(
            [*COMMAND, str(out), *(workers if trial % 2 else [])],
            env=ENVIRONMENT,
            capture_output=True,
        )
        same += again.returncode == 0 and out.read_bytes() == alone
    print(
        f"{count} kills of the command, with {sorted(kept)} shards finished: {same} resumed to the same bytes",
        flush=True,
    )


def head(folder: Path, alone: bytes) -> None:
    """A cluster whose head is killed in the middle of a command and started again: the command is
    resumed."""
    out = folder / "ray.nc"
    port = free_port()
    environment = ENVIRONMENT | {"RAY_AUTH_MODE": "token"}  # what `ray start` asks for by itself
    cluster = start_head(port, environment)
    asked = [
        *COMMAND,
        str(out),
        "--backend",
        "ray",
        "--address",
        f"127.0.0.1:{port}",
        "--workers",
        "2",
    ]
    first = begun(asked, out, environment=environment)
    os.killpg(cluster.pid, signal.SIGKILL)
    stopped = first.poll() is None
    try:
        first.wait(120)
    except subprocess.TimeoutExpired:
        first.kill()
    kept = pieces(out)
    port = free_port()
    cluster = start_head(port, environment)
    asked[asked.index("--address") + 1] = f"127.0.0.1:{port}"
    again = subprocess.run(asked, env=environment, capture_output=True, text=True)
    os.killpg(cluster.pid, signal.SIGKILL)
    same = again.returncode == 0 and out.read_bytes() == alone
    print(
        f"head killed with {kept} shards finished{'' if stopped else ' (too late: the run was over)'}, started again: "
        f"exit code {again.returncode}, {'the same bytes' if same else 'OTHER BYTES'}",
        flush=True,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_head(port: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    ray = Path(sys.executable).with_name("ray")
    asked = [
        str(ray),
        "start",
        "--head",
        "--block",
        "--port",
        str(port),
        "--node-ip-address",
        "127.0.0.1",
    ]
    asked += ["--num-cpus", "2", "--include-dashboard", "false", "--disable-usage-stats"]
    made = subprocess.Popen(
        asked,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.2)
    time.sleep(5)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=512)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--parts", default="throughput,kills,driver,interrupt,head")
    given = parser.parse_args()
    parts = given.parts.split(",")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if {"throughput", "kills"} & set(parts):
            bench = Bench(given.examples, Path(folder))
            began = time.perf_counter()
            expected = bench.run()
            rate = bench.examples / (time.perf_counter() - began)
            print(f"one process, all of the run: {rate:.1f} examples/s", flush=True)
            if "throughput" in parts:
                throughput(bench, expected)
            if "kills" in parts:
                kills(bench, expected, given.kills, 8 / rate)
        if {"driver", "interrupt", "head"} & set(parts):
            target = Path(folder) / "alone.nc"
            subprocess.run(
                [*COMMAND, str(target)], env=ENVIRONMENT, check=True, capture_output=True
            )
            if "driver" in parts:
                driver(Path(folder), target.read_bytes(), given.kills // 2)
            if "interrupt" in parts:
                interrupt(Path(folder), target.read_bytes())
            if "head" in parts:
                head(Path(folder), target.read_bytes())


if __name__ == "__main__":
    main()
