"""The models of a series: folders, patterns and hub revisions, in the order of their steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import huggingface_hub

from headwise.core.errors import ModelError, ParameterError
from headwise.core.files import file_digest
from headwise.experiments.track.options import LEAST_MODELS
from headwise.models import loading
from headwise.models.fingerprint import hash_files, weight_files

NUMBER = re.compile(r"\d+")
REVISION = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)@(?P<revision>.+)")
# What must be alike for heads of the same number to be the same head.
SIZES = {
    "model_type": "architecture",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "hidden_size": "hidden size",
    "vocab_size": "vocabulary size",
}
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt"]


@dataclass(frozen=True, slots=True)
class TrackedModel:
    """One model of a series: its name, its folder and its training step."""

    name: str
    folder: str
    step: float

    def identity(self) -> dict[str, Any]:
        """Return what distinguishes it from others, as a job records it."""
        return {"name": self.name, "step": self.step, "weights": _weights_digest(self.folder)}


def open_series(
    models: Sequence[str | Path], steps: Sequence[float] | None = None
) -> list[TrackedModel]:
    """Return the models of a series, ordered by step; all have one shape.

    Parameters
    ----------
    models : sequence of str or Path
        Folders, patterns of folders (`runs/checkpoint-*`), hub names, hub revisions
        (`name@revision`).
    steps : sequence of float, optional
        The step of each model in the order of `models`; by default the last number in each name
        where all have one and all differ, else 0, 1, 2 ...
    """
    names = _expanded(models)
    if len(names) < LEAST_MODELS:
        raise ParameterError(
            f"A series has at least {LEAST_MODELS} models; {len(names)} were named: "
            "`headwise.compare` compares two or three."
        )
    if steps is None:
        steps = steps_in_names(names)
    elif len(steps) != len(names):
        raise ParameterError(
            f"`steps` has {len(steps)} numbers for {len(names)} models; name one for each."
        )
    elif len(set(steps)) != len(steps):
        raise ParameterError("`steps` names a step twice; each model needs a step of its own.")
    series = []
    for name, step in sorted(zip(names, steps, strict=True), key=lambda pair: pair[1]):
        series.append(TrackedModel(name, _folder_of(name), float(step)))
    check_shapes(series)
    return series


def steps_in_names(names: Sequence[str]) -> list[float]:
    """Return the last number of each name, or 0, 1, 2 ... where some name has none or two share one.

    >>> steps_in_names(["run/step-0", "run/step-50"]), steps_in_names(["early", "late"])
    ([0.0, 50.0], [0.0, 1.0])
    """
    steps = []
    for name in names:
        numbers = NUMBER.findall(Path(name).name.rpartition("@")[2])
        if numbers:
            steps.append(float(numbers[-1]))
    if len(set(steps)) == len(names):
        return steps
    return [float(number) for number in range(len(names))]


def check_shapes(series: Sequence[TrackedModel]) -> None:
    """Raise an error if a model differs from the first in architecture or size."""
    first = loading.load_config(series[0].folder)
    for model in series[1:]:
        config = loading.load_config(model.folder)
        for key, word in SIZES.items():
            expected = getattr(first, key, None)
            value = getattr(config, key, None)
            if value != expected:
                raise ModelError(
                    f"The models of a series must have one shape: '{model.name}' has {word} {value}, "
                    f"'{series[0].name}' has {expected}; leave one of them out."
                )


def _expanded(models: Sequence[str | Path]) -> list[str]:
    """Return names with patterns replaced by the folders that match them, in natural order."""
    names: list[str] = []
    for model in models:
        text = str(model)
        if not has_magic(text) or Path(text).exists():
            names.append(text)
            continue
        matches = []
        for match in glob(str(Path(text).expanduser())):
            if (Path(match) / "config.json").is_file():
                matches.append(match)
        if not matches:
            raise ModelError(
                f"No folder with a config.json matches '{text}'; name folders of models."
            )
        names += sorted(matches, key=_natural_order)
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ParameterError(f"The model '{min(repeated)}' is named twice; name it once.")
    return names


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which `step-9` comes before `step-10`."""
    key = []
    for part in re.split(r"(\d+)", name):
        key.append((int(part), "") if part.isdigit() else (-1, part))
    return key


def _folder_of(name: str) -> str:
    """Return the folder of a model; what is on the hub is brought to this disk."""
    revision = REVISION.fullmatch(name)
    if Path(name).expanduser().exists() or (revision is None and "@" in name):
        return loading.located(name)
    if revision is None:
        where = loading.located(name)
        return where if Path(where).is_dir() else _from_hub(where, None)
    return _from_hub(revision["name"], revision["revision"])


def _from_hub(name: str, revision: str | None) -> str:
    """Return the folder of a revision of a hub model, downloaded where it is not cached."""
    try:
        folder = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=HUB_FILES
        )
        if not any(Path(folder).glob("*.safetensors")):
            patterns = [*HUB_FILES, "*.bin"]
            folder = huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=patterns
            )
    except Exception as error:  # of the network, the hub, or the cache: one sentence for all
        of_revision = f" at revision '{revision}'" if revision else ""
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"The model '{name}'{of_revision} cannot be brought from the hub ({reason}); check the "
            "name, or download it and name its folder."
        ) from error
    return str(folder)


def _weights_digest(folder: str) -> str:
    files = weight_files(folder)
    if files:
        return hash_files(files)
    return " ".join(file_digest(path) for path in sorted(Path(folder).glob("*.bin")))
