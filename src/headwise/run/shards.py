"""The folder of a run under way: what run it is, and the state of each finished shard, written so that a kill at any moment loses one shard at most."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from headwise.core.errors import OutputError
from headwise.core.files import write_atomically


class RunFolder:
    """Finished shards of one run. `identity` says which run: the same identity resumes, another one is refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def _identity_file(self) -> Path:
        return self.folder / "run.json"

    def open(self, identity: Mapping[str, Any], fresh: bool = False) -> dict[str, Any]:
        """Start or resume; returns the identity on disk (with what was adopted there, such as the number of threads)."""
        if fresh:
            self.remove()
        if self._identity_file.exists():
            try:
                stored = json.loads(self._identity_file.read_text())
            except (OSError, ValueError) as error:
                raise OutputError(
                    f"{self._identity_file} cannot be read ({error}); delete the folder {self.folder} to start anew."
                ) from error
            changed = sorted(
                key
                for key in stored.keys() | identity.keys()
                if key != "adopted" and stored.get(key) != identity.get(key)
            )
            if changed:
                raise OutputError(
                    f"{self.folder} holds an unfinished run that differs in {', '.join(changed)}; repeat that command to finish it, or give --overwrite to start anew."
                )
            return dict(stored)
        write_atomically(self._identity_file, json.dumps(identity, indent=1, sort_keys=True).encode())
        return dict(identity)

    def _shard_file(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:06d}.safetensors"

    def done(self, shard: int) -> bool:
        return self._shard_file(shard).exists()

    def save(self, shard: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """Write a shard's state."""
        content = save(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            metadata={"facts": json.dumps(facts, sort_keys=True)},
        )
        write_atomically(self._shard_file(shard), content)

    def load(self, shard: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """A shard's state and facts."""
        path = self._shard_file(shard)
        try:
            with safe_open(path, framework="numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
                facts = json.loads(file.metadata()["facts"])
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise OutputError(
                f"{path} is damaged ({error}); delete it and run the same command again to make it anew."
            ) from error
        return arrays, facts

    def finished(self, experiment: str) -> Path:
        """Where the result of a finished experiment is kept."""
        return self.folder / f"experiment-{experiment}.nc"

    def work(self, experiment: str) -> Path:
        """A folder of an experiment's own, where it may keep finished phases."""
        folder = self.folder / "work" / experiment
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{folder} cannot be made ({error.strerror or error}); choose another place with --out."
            ) from error
        return folder

    def remove(self) -> None:
        """Delete this run's files (and nothing else in the folder)."""
        if not self.folder.is_dir():
            return
        for path in (
            *self.folder.glob("shard-*.safetensors"),
            *self.folder.glob(".*.tmp"),
            *self.folder.glob("experiment-*.nc"),
            self._identity_file,
        ):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        with suppress(OSError):
            self.folder.rmdir()
