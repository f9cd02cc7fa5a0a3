"""What tells an open model from others: above all a hash over its weights, from the files they came
from where nothing was changed, else from the tensors."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.utils.hub import cached_file

from headwise.core.errors import ModelError
from headwise.models.devices import stored_weights

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel

FILES, TENSORS = "files", "tensors"  # what a hash was taken of
INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
SIZES = ("stack", "layers", "heads", "kv_heads", "d_head", "hidden", "causal")
SAMPLED = 256  # places of a weight that are looked at one by one
READ = 16 << 20  # bytes hashed at a time


@dataclass(frozen=True, slots=True)
class Origin:
    """The files that a module's weights came from, and what the weights looked like then."""

    files: tuple[Path, ...]
    written: tuple[tuple[int, int], ...]  # size and time of each file
    trace: str


_ORIGINS: WeakKeyDictionary[nn.Module, Origin] = WeakKeyDictionary()


def remember(module: nn.Module, where: str) -> None:
    """Note which files a module was loaded from, so that they can be hashed instead of its
    weights."""
    files = weight_files(where)
    if files:
        _ORIGINS[module] = Origin(files, _written(files), trace_of(module))


def _written(files: tuple[Path, ...]) -> tuple[tuple[int, int], ...]:
    try:
        return tuple(
            (about.st_size, about.st_mtime_ns) for about in (path.stat() for path in files)
        )
    except OSError:
        return ()


def weight_files(where: str) -> tuple[Path, ...]:
    """The safetensors files of a folder or of a cached hub name that transformers reads; none where
    it reads others, or adds an adapter to them."""
    if _found(where, "adapter_config.json") is not None:
        return ()
    whole, index = _found(where, WHOLE), _found(where, INDEX)
    if whole is not None:
        return (whole,)
    if index is None:
        return ()
    try:
        parts = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ()
    files = tuple(path for name in parts if (path := _found(where, str(name))) is not None)
    return files if len(files) == len(parts) else ()


def _found(where: str, name: str) -> Path | None:
    if Path(where).is_dir():
        path = Path(where) / name
        return path if path.is_file() else None
    try:
        cached = cached_file(
            where, name, local_files_only=True, _raise_exceptions_for_missing_entries=False
        )
    except (OSError, ValueError):
        return None
    return None if cached is None else Path(cached)


def trace_of(module: nn.Module) -> str:
    """What tells whether weights were changed since, at the cost of reading them once: where they
    lie, how often they were written, the sum over all their bits and some of them one by one."""
    digest = hashlib.sha256()
    sums: list[Tensor] = []
    for name, parameter in sorted(module.named_parameters()):
        digest.update(
            f"{name} {parameter.dtype} {tuple(parameter.shape)} {parameter.device}".encode()
        )
        if parameter.is_meta or parameter.numel() == 0:  # on the disk: nobody writes there
            continue
        digest.update(f" {parameter._version}".encode())
        bits = parameter.detach().reshape(-1).view(_WHOLE[parameter.element_size()])
        some = (
            torch.linspace(0, len(bits) - 1, min(SAMPLED, len(bits)), dtype=torch.float64)
            .long()
            .to(bits.device)
        )
        sums.append(
            torch.cat([_long(bits).sum(dtype=torch.int64)[None], bits[some].to(torch.int64)])
        )
    for device in dict.fromkeys(values.device for values in sums):  # one transfer for each device
        together = torch.cat([values for values in sums if values.device == device]).cpu()
        digest.update(together.numpy().data)
    return digest.hexdigest()


def _long(bits: Tensor) -> Tensor:
    """Eight bytes as one number, where they go into it: a sum that need not turn each into a longer
    one first takes a thirtieth of the time."""
    each = 8 // bits.element_size()
    return (
        bits.view(torch.int64)
        if len(bits) % each == 0 and bits.storage_offset() % each == 0
        else bits
    )


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def weight_hash(module: nn.Module, way: str | None = None) -> tuple[str, str] | None:
    """A SHA-256 over all weights, and what it was taken of: `files` or `tensors`.

    Both are over names, types, shapes and bytes, but a file may hold other names, types and weights
    than the module that was made from it: hashes of the two ways say nothing of each other.

    Parameters
    ----------
    module : Module
        A model.
    way : str, optional
        The way that is wanted; None comes back where it cannot be had. By default the files where
        the weights are still those that were read from them.
    """
    if way != TENSORS:
        origin = _ORIGINS.get(module)
        if (
            origin is not None
            and _written(origin.files) == origin.written
            and trace_of(module) == origin.trace
        ):
            return hash_files(origin.files), FILES
        if way == FILES:
            return None
    return hash_tensors(module), TENSORS


def hash_tensors(module: nn.Module) -> str:
    """A SHA-256 over names, types, shapes and bytes of all weights of a module."""
    digest = hashlib.sha256()
    for key, weight in stored_weights(module):
        digest.update(f"{key} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_files(files: tuple[Path, ...]) -> str:
    """A SHA-256 over names, types, shapes and bytes of all weights in safetensors files: the same
    however they are cut into files, in whatever order."""
    jobs: list[tuple[str, Path, int, int]] = []
    for path in files:
        jobs += _entries(path)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        digests = dict(pool.map(_hash_entry, jobs))
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def _entries(path: Path) -> list[tuple[str, Path, int, int]]:
    """What a safetensors file says of its weights: name with type and shape, and from and to which
    byte it lies."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: Mapping[str, Any] = json.loads(file.read(length))
        start = 8 + length
        return [
            (
                f"{name} {about['dtype']} {about['shape']}",
                path,
                *(start + at for at in about["data_offsets"]),
            )
            for name, about in header.items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"The weights in '{path}' can no longer be read ({error}); open the model again."
        ) from error


def _hash_entry(job: tuple[str, Path, int, int]) -> tuple[str, str]:
    name, path, start, stop = job
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(READ, stop - start)))
    with path.open("rb") as file:
        file.seek(start)
        while start < stop:
            count = file.readinto(buffer[: stop - start])
            if not count:
                raise ModelError(
                    f"The weights in '{path}' can no longer be read: the file is shorter than it says."
                )
            digest.update(buffer[:count])
            start += count
    return name, digest.hexdigest()


def identity(model: HeadModel, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what distinguishes a model from others; see `HeadModel.identity`."""
    digest, source = _hash(model)
    if like and like.get("weights_from", TENSORS) != source and same_weights(model, like):
        digest = like["weight_hash"]
        source = like.get("weights_from", TENSORS)
    return {
        "name": model.name,
        "architecture": type(model.module).__name__,
        "model_type": model.config.model_type,
        "weight_hash": digest,
        "weights_from": source,
        **{name: getattr(model, name) for name in SIZES},
        "dtype": str(model.dtype).removeprefix("torch."),
    }


def same_weights(model: HeadModel, identity: Mapping[str, Any]) -> bool | None:
    """Return whether an identity has the weights of a model; see `HeadModel.same_weights`."""
    # An identity without `weights_from` is older than hashes of files: it is of the tensors.
    source = identity.get("weights_from", TENSORS)
    hashed: tuple[str, str] | None = _hash(model)
    if hashed is not None and hashed[1] != source:
        hashed = weight_hash(model.module, source)
    if hashed is None or not identity.get("weight_hash"):
        return None
    return bool(hashed[0] == identity["weight_hash"])


def _hash(model: HeadModel) -> tuple[str, str]:
    """Return the hash of the weights as they were when it was first requested."""
    if model.weight_hash is None:
        model.weight_hash = weight_hash(model.module)
        assert model.weight_hash is not None
    return model.weight_hash
