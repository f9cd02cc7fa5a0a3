"""What runs in a worker's process: it takes a job, opens the models of it once, and makes pieces of
units."""

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
    """The versions that bytes depend on."""
    python = ".".join(platform.python_version_tuple()[:2])
    named = {name: version(name) for name in ("transformers", "numpy")}
    return {"headwise": __version__, "torch": torch.__version__, **named, "Python": python}


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that gives the work: its software, and where it finds modules (analyses of a
    user's own, say)."""

    software: dict[str, str] = field(default_factory=software)
    path: list[str] = field(
        default_factory=lambda: [str(Path(folder).resolve()) for folder in sys.path]
    )


class Worker:
    """One worker: an actor of Ray."""

    def __init__(self) -> None:
        self._number = -1
        self._job: Any = None
        self._refusal: bytes | None = None

    def here(self) -> None:
        """Answer, when all that was asked before is done: what is asked next has then begun."""

    def take(self, number: int, parcel: Parcel, threads: int, driver: Driver) -> int:
        """Get ready for a job; what goes wrong is the answer to every unit of it."""
        self._number, self._job, self._refusal = number, None, None
        torch.set_num_threads(threads)
        try:
            _check_software(driver.software)
            sys.path += [
                folder for folder in driver.path if folder not in sys.path and Path(folder).exists()
            ]
            self._job = unpack(parcel)
        except Exception as error:
            self._refusal = _pickled(error)
        return os.getpid()

    def make(self, number: int, unit: bytes, begun: None) -> Answer:
        """`("made", arrays, facts)`, or `("raised", exception, None)`; sent when the driver has the
        answer `begun`."""
        assert number == self._number
        if self._refusal is not None:
            return "raised", self._refusal, None
        try:
            arrays, facts = self._job(unpack_unit(unit))
            return "made", {key: np.asarray(array) for key, array in arrays.items()}, dict(facts)
        except Exception as error:
            return "raised", _pickled(error), None


def _check_software(expected: dict[str, str]) -> None:
    own = software()
    for name, wanted in expected.items():
        if own[name] != wanted:
            raise HeadwiseError(
                f"A worker on {platform.node()} has {name} {own[name]}, this machine {wanted}; install the same on all."
            )


def _pickled(error: Exception) -> bytes:
    """An exception as it travels; one that cannot is told by its words."""
    try:
        content = dumps(error)
        pickle.loads(content)
        return content
    except Exception:
        told = type(error).__name__
        plain = (
            HeadwiseError(str(error))
            if isinstance(error, HeadwiseError)
            else RuntimeError(f"{told}: {error}")
        )
        return dumps(plain)
