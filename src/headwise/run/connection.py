"""Reaching Ray: its import, a running cluster or one started here, and its error messages."""

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
    """Return the module of Ray, which is slow to import and needs its extra."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "The backend 'ray'") from error
    return ray


def connect(ray: Any, address: str | None, workers: int) -> bool:
    """Connect to a cluster, or start one here with cores for so many workers.

    Returns False if this process is connected already: Ray is then not ours to shut down."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run sends no usage statistics
    # Of a cluster started here: the workers do the work, so nothing should run before them.
    os.environ.setdefault("RAY_worker_niceness", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        with _signals_restored():
            if address:
                _check_answers(address)
                ray.init(address=address, **quiet)
            else:
                cores = max(os.cpu_count() or 1, workers)
                ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"at '{address}'" if address else "on this machine"
        reason = " ".join(str(error).split())[:300].rstrip(".")
        hint = ""
        if address and "RAY_AUTH_MODE" not in os.environ:
            hint = "; set RAY_AUTH_MODE=token for a cluster that asks for a token"
        raise HeadwiseError(
            f"Ray cannot be reached {where} ({reason}); see `ray status` there{hint}."
        ) from error
    return True


def _check_answers(address: str) -> None:
    """Raise an error unless something listens at `HOST:PORT`: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in address:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Restore the signal handlers afterwards: Ray sets its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe_end(error: Exception) -> str:
    """Return in one line why a worker ended, as Ray says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = type(error).__name__
    if lines:
        reason = lines[0]
    for line in lines:
        if "died because" in line or "exit" in line.lower():
            reason = line
            break
    reason = reason.partition("Some common causes")[0]  # advice for any program follows
    return (reason or type(error).__name__)[:200].rstrip(". ")
