"""Sentence vectors of every layer and every head from one pass, kept in memory-mapped arrays and resumable shard by shard."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import InputError, OutputError, ParameterError
from headwise.core.files import write_atomically
from headwise.models.view import Layer, Rows
from headwise.text.encode import Batch, batches
from headwise.text.example import Example

TOKENS = ("auto", "first", "last", "mean")
DTYPES = ("float32", "float16")
SHARD = 512  # examples written at a time
MAX_TOKENS = 4096  # padded tokens of a batch

Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """`heads[layer, head, example, d_head]`: O[l, h] at the sentence's token; `layers[layer, example, hidden]`: what leaves layer l there."""

    heads: np.ndarray
    layers: np.ndarray

    def __len__(self) -> int:
        return int(self.heads.shape[2])

    def part(self, start: int, stop: int) -> Vectors:
        return Vectors(self.heads[:, :, start:stop], self.layers[:, start:stop])


def token_rule(model: Any, token: str = "auto") -> str:
    """Which token stands for the sentence: `first` for encoders with an opening token, `last` real one for decoders, `mean` for encoders without one."""
    if token not in TOKENS:
        raise ParameterError(f"`token` must be one of {', '.join(TOKENS)}; it is {token!r}.")
    if token != "auto":
        return token
    if model.causal:
        return "last"
    return "first" if model.encoder is None or model.encoder.cls_id is not None else "mean"


def pool_tokens(values: Tensor, real: Tensor, token: str) -> Tensor:
    """`values[example, ..., token, size]` at the sentence's token, [example, ..., size]; padding is never it and never in the mean."""
    if token == "first":
        return values[..., 0, :]
    if token == "last":
        index = (real.sum(-1) - 1).view(-1, *[1] * (values.ndim - 1)).expand(*values.shape[:-2], 1, values.shape[-1])
        return values.gather(-2, index)[..., 0, :]
    weight = real.to(values.dtype).view(len(real), *[1] * (values.ndim - 3), -1, 1)
    return (values * weight).sum(-2) / weight.sum(-2)


class _Watcher:
    """Takes the sentence's vector of each layer and head out of one batch."""

    needs = frozenset({"outputs", "hidden"})

    def __init__(self, batch: Batch, token: str) -> None:
        self.batch, self.token = batch, token
        self.heads: list[Tensor] = []
        self.entering: list[Tensor] = []

    def rows(self, rows: Rows) -> None:
        """Weights are not asked for."""

    def layer(self, layer: Layer) -> None:
        assert layer.outputs is not None
        assert layer.hidden is not None
        self.heads.append(pool_tokens(layer.outputs, self.batch.real, self.token).float().cpu())
        self.entering.append(pool_tokens(layer.hidden, self.batch.real, self.token).float().cpu())


def batch_vectors(model: Any, batch: Batch, token: str) -> tuple[np.ndarray, np.ndarray]:
    """[layer, head, example, d_head] and [layer, example, hidden] of one batch.

    The vector of layer l is what enters layer l + 1; of the last layer, the model's own output (after its final norm where it has one).
    """
    watcher = _Watcher(batch, token)
    output = model.forward(batch, watcher)
    final = output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]
    last = pool_tokens(final.float(), batch.real, token).cpu()
    layers = torch.stack([*watcher.entering[1:], last])
    return torch.stack(watcher.heads).transpose(1, 2).numpy(), layers.numpy()


def collect_vectors(
    model: Any,
    examples: Sequence[Example],
    folder: Path | None = None,
    *,
    token: str = "auto",
    dtype: str = "float32",
    report: Report | None = None,
    what: str = "vectors",
    key: str = "",
) -> Vectors:
    """Run the model once over the examples and keep the vectors of all layers and heads.

    With a folder the arrays are memory-mapped files there. Each shard of examples is written and flushed before it is noted as done (the note is
    replaced in one step), so that a killed run goes on with the first shard not noted; a folder of another model, other examples or another setting is refused.
    """
    if dtype not in DTYPES:
        raise ParameterError(f"`dtype` must be one of {', '.join(DTYPES)}; it is {dtype!r}.")
    rule = token_rule(model, token)
    encoded = [model.encode(example, i) for i, example in enumerate(examples)]
    shapes = {
        "heads": (model.layers, model.heads, len(encoded), model.d_head),
        "layers": (model.layers, len(encoded), model.hidden),
    }
    note = _Note(folder, _key(model, examples, rule, dtype, key), len(encoded))
    arrays = {name: note.array(name, shape, dtype) for name, shape in shapes.items()}
    vectors = Vectors(arrays["heads"], arrays["layers"])
    pending = [start for start in range(0, len(encoded), SHARD) if start not in note.done]
    for start in pending:
        stop = min(start + SHARD, len(encoded))
        for batch in batches(encoded[start:stop], MAX_TOKENS, model.pad_id, model.device):
            heads, layers = batch_vectors(model, batch, rule)
            _check(heads, layers, dtype, batch, what)
            vectors.heads[:, :, batch.index] = heads
            vectors.layers[:, batch.index] = layers
        note.finish(start, arrays)
        if report is not None:
            report(what, stop, len(encoded))
    if not note.folder:
        return vectors
    return Vectors(*(np.load(note.file(name), mmap_mode="r") for name in ("heads", "layers")))


def _check(heads: np.ndarray, layers: np.ndarray, dtype: str, batch: Batch, what: str) -> None:
    """Refuse vectors that are no numbers, or too large for half precision."""
    for name, values in (("heads", heads), ("layers", layers)):
        if not np.isfinite(values).all():
            raise InputError(
                f"{what}: the {name}' vectors hold NaN or infinity from {batch.rows[0].example.where} on; open the model in float32 or check its weights."
            )
        if dtype == "float16" and np.abs(values).max() > np.finfo(np.float16).max:
            raise InputError(
                f"{what}: the {name}' vectors reach {np.abs(values).max():.0f}, too large for float16; keep them in float32."
            )


def _key(model: Any, examples: Sequence[Example], rule: str, dtype: str, extra: str) -> dict[str, str]:
    digest = hashlib.sha256()
    for example in examples:
        digest.update(example.fingerprint())
    model_name = hashlib.sha256(json.dumps(model.identity(), sort_keys=True).encode()).hexdigest()
    return {"model": model_name, "examples": digest.hexdigest(), "token": rule, "dtype": dtype, "extra": extra}


class _Note:
    """What is done in a folder; without a folder everything is in memory and nothing was done before."""

    def __init__(self, folder: Path | None, key: dict[str, str], examples: int) -> None:
        self.folder, self.key, self.examples = folder, key, examples
        self.done: set[int] = set()
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            found = json.loads(self._path.read_text())
            for name, value in key.items():
                if found["key"].get(name) != value:
                    raise OutputError(
                        f"The folder '{folder}' holds vectors of other {_WORDS[name]}; give another folder or remove it."
                    )
            self.done = set(found["done"])

    @property
    def _path(self) -> Path:
        assert self.folder is not None
        return self.folder / "vectors.json"

    def file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.npy"

    def array(self, name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if self.folder is None:
            return np.zeros(shape, dtype=dtype)
        if self.done and self.file(name).exists():
            found = np.load(self.file(name), mmap_mode="r+")
            if found.shape == shape and found.dtype == dtype:
                return found
        self.done = set()
        return np.lib.format.open_memmap(self.file(name), mode="w+", dtype=np.dtype(dtype), shape=shape)

    def finish(self, start: int, arrays: dict[str, np.ndarray]) -> None:
        if self.folder is None:
            return
        for array in arrays.values():
            if isinstance(array, np.memmap):
                array.flush()
        self.done.add(start)
        write_atomically(
            self._path, json.dumps({"key": self.key, "done": sorted(self.done), "examples": self.examples}).encode()
        )


_WORDS = {
    "model": "weights (a checkpoint of another model)",
    "examples": "examples",
    "token": "tokens",
    "dtype": "precision",
    "extra": "settings",
}
