"""The way to Ray: its import, a cluster that is there or one started here, signals it must leave
alone, its words."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headwise.core.errors import HeadwiseError, MissingExtraError

ANSWER = 10.0  # seconds for the head of a cluster to answer


def import_ray() -> Any:
    """Ray, which is slow to import and only there with its extra."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "The backend 'ray'") from error
    return ray


def connect(ray: Any, address: str | None, workers: int) -> bool:
    """Connect to a cluster, or start one here with cores for so many workers; False where somebody
    did so before."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run tells nobody of itself
    os.environ.setdefault(
        "RAY_worker_niceness", "0"
    )  # of a cluster started here: the workers are the work
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        with _same_signals():
            if address:
                _knock(address)
                ray.init(address=address, **quiet)
            else:
                cores = max(os.cpu_count() or 1, workers)
                ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"at '{address}'" if address else "on this machine"
        words = " ".join(str(error).split())[:300].rstrip(".")
        asks = bool(address) and "RAY_AUTH_MODE" not in os.environ
        token = "; one that asks for a token wants RAY_AUTH_MODE=token" if asks else ""
        raise HeadwiseError(
            f"Ray cannot be reached {where} ({words}); see `ray status` there{token}."
        ) from error
    return True


def _knock(address: str) -> None:
    """Whether anybody answers at `HOST:PORT`: Ray itself goes on asking for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in address:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()


@contextmanager
def _same_signals() -> Iterator[None]:
    """Ray sets handlers of its own; afterwards they are what they were."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def words_of(error: Exception) -> str:
    """What Ray says of an end, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next(
        (line for line in lines if "died because" in line or "exit" in line.lower()),
        lines[0] if lines else "",
    )
    told = told.partition("Some common causes")[0]  # advice for any program follows
    return (told or type(error).__name__)[:200].rstrip(". ")
