"""What runs in a worker's process: it takes a job, opens its models once, and computes units."""

from __future__ import annotations

import os
import pickle
import platform
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.core.errors import HeadwiseError
from headwise.core.version import __version__
from headwise.run.shipping import Parcel, dumps, unpack, unpack_unit

Answer = tuple[str, Any, Any]


def software() -> dict[str, str]:
    """Return the versions that bytes depend on."""
    return {
        "headwise": __version__,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "numpy": version("numpy"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that gives the work: its software, and where it finds modules (a user's own
    analyses, say)."""

    software: dict[str, str] = field(default_factory=software)
    path: list[str] = field(
        default_factory=lambda: [str(Path(folder).resolve()) for folder in sys.path]
    )


class Worker:
    """One worker: a Ray actor."""

    def __init__(self) -> None:
        self._number = -1
        self._function: Any = None
        self._error: bytes | None = None  # why the job cannot be done here, pickled

    def here(self) -> None:
        """Answer once everything before is done: the next call has then begun."""

    def take(self, number: int, parcel: Parcel, threads: int, driver: Driver) -> int:
        """Prepare for a job; an error is the answer to every unit of it. Returns the process id."""
        self._number = number
        self._function = None
        self._error = None
        torch.set_num_threads(threads)
        try:
            _check_software(driver.software)
            for folder in driver.path:
                if folder not in sys.path and Path(folder).exists():
                    sys.path.append(folder)
            self._function = unpack(parcel)
        except Exception as error:
            self._error = _pickled(error)
        return os.getpid()

    def make(self, number: int, unit: bytes, begun: None) -> Answer:
        """Return `("made", arrays, facts)` or `("raised", exception, None)`.

        `begun` is the answer of `here`, so that the driver knows when the unit has begun."""
        assert number == self._number
        if self._error is not None:
            return "raised", self._error, None
        try:
            arrays, facts = self._function(unpack_unit(unit))
            return "made", {key: np.asarray(array) for key, array in arrays.items()}, dict(facts)
        except Exception as error:
            return "raised", _pickled(error), None


def _check_software(expected: dict[str, str]) -> None:
    installed = software()
    for name, expected_version in expected.items():
        if installed[name] != expected_version:
            raise HeadwiseError(
                f"A worker on {platform.node()} has {name} {installed[name]}, this machine "
                f"{expected_version}; install the same on all."
            )


def _pickled(error: Exception) -> bytes:
    """Return an exception pickled; one that cannot be is replaced by its message."""
    try:
        content = dumps(error)
        pickle.loads(content)
    except Exception:
        if isinstance(error, HeadwiseError):
            return dumps(HeadwiseError(str(error), option=error.option))
        return dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return content
