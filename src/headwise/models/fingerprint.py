"""The identity of an open model: above all a hash of its weights, taken from the files they came from
if nothing has changed since, else from the tensors."""

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
N_SAMPLED = 256  # elements of a weight that are compared one by one
READ_BYTES = 16 << 20  # hashed at a time


@dataclass(frozen=True, slots=True)
class Origin:
    """The files that a module's weights came from, and a checksum of the weights at that time."""

    files: tuple[Path, ...]
    written: tuple[tuple[int, int], ...]  # size and time of each file
    trace: str


_ORIGINS: WeakKeyDictionary[nn.Module, Origin] = WeakKeyDictionary()


def remember(module: nn.Module, where: str) -> None:
    """Store which files a module was loaded from: they can be hashed instead of its weights."""
    files = weight_files(where)
    if files:
        _ORIGINS[module] = Origin(files, _written(files), trace_of(module))


def _written(files: tuple[Path, ...]) -> tuple[tuple[int, int], ...]:
    """Return size and time of each file; nothing if one is gone."""
    written = []
    try:
        for path in files:
            status = path.stat()
            written.append((status.st_size, status.st_mtime_ns))
    except OSError:
        return ()
    return tuple(written)


def weight_files(where: str) -> tuple[Path, ...]:
    """Return the safetensors files that transformers reads of a folder or a cached hub name; none
    if it reads other files, or adds an adapter to them."""
    if _existing_file(where, "adapter_config.json") is not None:
        return ()
    whole = _existing_file(where, WHOLE)
    if whole is not None:
        return (whole,)
    index = _existing_file(where, INDEX)
    if index is None:
        return ()
    try:
        parts = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ()
    files = []
    for name in parts:
        path = _existing_file(where, str(name))
        if path is None:
            return ()
        files.append(path)
    return tuple(files)


def _existing_file(where: str, name: str) -> Path | None:
    """Return a file of a folder or a cached hub name; None if it does not exist."""
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
    """Return a checksum that shows whether weights have changed, at the cost of reading them once:
    device, version counter, the sum over all bits, and some elements one by one."""
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
        n_sampled = min(N_SAMPLED, len(bits))
        sampled = torch.linspace(0, len(bits) - 1, n_sampled, dtype=torch.float64).long()
        # Eight bytes as one number, where they are aligned: the sum takes a thirtieth of the time,
        # since no element is converted first.
        summed = bits
        n_packed = 8 // bits.element_size()
        if len(bits) % n_packed == 0 and bits.storage_offset() % n_packed == 0:
            summed = bits.view(torch.int64)
        total = summed.sum(dtype=torch.int64)
        sample = bits[sampled.to(bits.device)].to(torch.int64)
        sums.append(torch.cat([total[None], sample]))
    for device in dict.fromkeys(values.device for values in sums):  # one transfer for each device
        on_device = torch.cat([values for values in sums if values.device == device]).cpu()
        digest.update(on_device.numpy().data)
    return digest.hexdigest()


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def weight_hash(module: nn.Module, source: str | None = None) -> tuple[str, str] | None:
    """Return a SHA-256 of all weights, and what was hashed: `files` or `tensors`.

    Both cover names, dtypes, shapes and bytes, but a file may hold other names, dtypes and weights
    than the module that was made from it: the two hashes cannot be compared.

    Parameters
    ----------
    module : Module
        A model.
    source : str, optional
        What to hash; None is returned if that is not possible. By default the files, if the weights
        are still those that were read from them.
    """
    if source != TENSORS:
        origin = _ORIGINS.get(module)
        if (
            origin is not None
            and _written(origin.files) == origin.written
            and trace_of(module) == origin.trace
        ):
            return hash_files(origin.files), FILES
        if source == FILES:
            return None
    return hash_tensors(module), TENSORS


def hash_tensors(module: nn.Module) -> str:
    """Return a SHA-256 of names, dtypes, shapes and bytes of all weights of a module."""
    digest = hashlib.sha256()
    for key, weight in stored_weights(module):
        digest.update(f"{key} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_files(files: tuple[Path, ...]) -> str:
    """Return a SHA-256 of names, dtypes, shapes and bytes of all weights in safetensors files: the
    same for any order and any division into files."""
    jobs: list[tuple[str, Path, int, int]] = []
    for path in files:
        jobs += _entries(path)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        digests = dict(pool.map(_hash_entry, jobs))
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def _entries(path: Path) -> list[tuple[str, Path, int, int]]:
    """Return the weights of a safetensors file: name with dtype and shape, the file, first and last
    byte (exclusive)."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: Mapping[str, Any] = json.loads(file.read(length))
        entries = []
        for name, weight in header.items():
            if name == "__metadata__":
                continue
            first, last = weight["data_offsets"]
            description = f"{name} {weight['dtype']} {weight['shape']}"
            entries.append((description, path, 8 + length + first, 8 + length + last))
        return entries
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"The weights in '{path}' can no longer be read ({error}); open the model again."
        ) from error


def _hash_entry(job: tuple[str, Path, int, int]) -> tuple[str, str]:
    name, path, start, stop = job
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(READ_BYTES, stop - start)))
    with path.open("rb") as file:
        file.seek(start)
        while start < stop:
            count = file.readinto(buffer[: stop - start])
            if not count:
                raise ModelError(
                    f"The weights in '{path}' can no longer be read: the file is shorter than its "
                    "header says."
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
