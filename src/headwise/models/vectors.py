"""Sentence vectors of every layer and every head from one pass, stored in checkpoints."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.checks import one_of
from headwise.core.errors import InputError
from headwise.core.files import claim
from headwise.core.store import CheckpointStore, digest_of
from headwise.core.workers import current, raise_failures
from headwise.models.view import Layer, Watcher
from headwise.text.encode import Batch, Encoded, batches
from headwise.text.example import Example

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel

TOKENS = ("auto", "first", "last", "mean")
DTYPES = ("float32", "float16")
CHECKPOINT_EXAMPLES = 512
MAX_BYTES_IN_MEMORY = 2**30  # larger vectors lie in a file beside their store
MAX_TOKENS = 4096  # padded tokens of a batch

Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Vectors at the sentence's token: `heads[layer, head, example, d_head]` and `layers[layer,
    example, hidden]`.

    Of a head its output O[l, h], of a layer what leaves it.
    """

    heads: np.ndarray
    layers: np.ndarray

    def __len__(self) -> int:
        return int(self.heads.shape[2])

    def part(self, start: int, stop: int) -> Vectors:
        return Vectors(self.heads[:, :, start:stop], self.layers[:, start:stop])


def token_rule(model: HeadModel, token: str = "auto") -> str:
    """Return which token represents the sentence: last in decoders, first in encoders, the mean if
    no special token opens the sentence."""
    one_of("token", token, TOKENS)
    if token != "auto":
        return token
    if model.causal:
        return "last"
    if model.tokenizer is None or model.encoder.cls_id is not None:
        return "first"
    return "mean"


def pool_tokens(values: Tensor, attention_mask: Tensor, token: str) -> Tensor:
    """Return `values[example, ..., token, size]` at the sentence's token, [example, ..., size];
    padding never counts."""
    if token == "first":
        return values[..., 0, :]
    if token == "last":
        last = (attention_mask.sum(-1) - 1).view(-1, *[1] * (values.ndim - 1))
        index = last.expand(*values.shape[:-2], 1, values.shape[-1])
        return values.gather(-2, index)[..., 0, :]
    weight = attention_mask.to(values.dtype)
    weight = weight.view(len(attention_mask), *[1] * (values.ndim - 3), -1, 1)
    return (values * weight).sum(-2) / weight.sum(-2)


class _SentenceVectors(Watcher):
    """Collects the sentence's vector of each layer and head from one batch."""

    needs = frozenset({"outputs", "hidden"})

    def __init__(self, batch: Batch, token: str) -> None:
        self.batch = batch
        self.token = token
        self.heads: list[Tensor] = []
        self.entering: list[Tensor] = []

    def on_layer(self, layer: Layer) -> None:
        assert layer.outputs is not None
        assert layer.hidden is not None
        attention_mask = self.batch.attention_mask
        heads = pool_tokens(layer.outputs, attention_mask, self.token)
        hidden = pool_tokens(layer.hidden, attention_mask, self.token)
        self.heads.append(heads.float().cpu())
        self.entering.append(hidden.float().cpu())


def batch_vectors(model: HeadModel, batch: Batch, token: str) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors of heads [layer, head, example, d_head] and layers [layer, example, hidden] of
    one batch.

    The vector of layer l is what enters layer l + 1; of the last layer, the model's own output
    (after its final norm if it has one)."""
    watcher = _SentenceVectors(batch, token)
    output = model.forward(batch, watcher)
    final = output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]
    last = pool_tokens(final.float(), batch.attention_mask, token).cpu()
    layers = torch.stack([*watcher.entering[1:], last])
    return torch.stack(watcher.heads).transpose(1, 2).numpy(), layers.numpy()


def collect_vectors(
    model: HeadModel,
    examples: Sequence[Example],
    store: CheckpointStore | None = None,
    *,
    token: str = "auto",
    dtype: str = "float32",
    report: Report | None = None,
    what: str = "vectors",
) -> Vectors:
    """Run the model once over the examples and collect the vectors of all layers and heads.

    Parameters
    ----------
    model : HeadModel
        Whose vectors.
    examples : sequence of Example
        In the order of the result.
    store : CheckpointStore, optional
        Stores every 512 examples as a checkpoint, so that an interrupted run resumes; checkpoints
        of another model, other examples or another setting are computed again. Vectors of more than
        a GiB then lie in a scratch file. Without a store all are in memory.
    token : {"auto", "first", "last", "mean"}, default "auto"
        Which token represents the sentence; see `token_rule`.
    dtype : {"float32", "float16"}, default "float32"
        Of the stored vectors.
    report : callable, optional
        Gets (`what`, done, total) after each checkpoint.
    what : str, default "vectors"
        Names the vectors in reports and errors.
    """
    one_of("dtype", dtype, DTYPES)
    rule = token_rule(model, token)
    encoded = [model.encode(example, i) for i, example in enumerate(examples)]
    shapes = _shapes(model, len(encoded))
    if store is not None:
        digest = hashlib.sha256(b"".join(example.fingerprint() for example in examples)).hexdigest()
        identity = {"model": model.identity(), "examples": digest, "token": rule, "dtype": dtype}
        store = store.part(f"vectors-{digest_of(identity)[:16]}", identity)
    n_bytes = sum(math.prod(shape) for shape in shapes.values()) * np.dtype(dtype).itemsize
    arrays = {}
    for name, shape in shapes.items():
        if store is not None and n_bytes > MAX_BYTES_IN_MEMORY:
            arrays[name] = scratch_array(store, name, shape, dtype)
        else:
            arrays[name] = np.empty(shape, dtype)
    starts = range(0, len(encoded), CHECKPOINT_EXAMPLES)
    units = (
        (f"examples-{start:08d}", encoded[start : start + CHECKPOINT_EXAMPLES]) for start in starts
    )
    compute = partial(_compute_vectors, model, rule, dtype, what)
    results = raise_failures(current().run_units(store, compute, units))
    for start, result in zip(starts, results, strict=True):
        stop = min(start + CHECKPOINT_EXAMPLES, len(encoded))
        for name, values in result.arrays.items():
            arrays[name][..., start:stop, :] = values
        if report is not None:
            report(what, stop, len(encoded))
    return Vectors(arrays["heads"], arrays["layers"])


def _shapes(model: HeadModel, examples: int) -> dict[str, tuple[int, ...]]:
    return {
        "heads": (model.layers, model.heads, examples, model.d_head),
        "layers": (model.layers, examples, model.hidden),
    }


def _compute_vectors(
    model: HeadModel, rule: str, dtype: str, what: str, rows: list[Encoded]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the vectors of one checkpoint, and no metadata."""
    vectors = {name: np.empty(shape, dtype) for name, shape in _shapes(model, len(rows)).items()}
    for batch in batches(rows, MAX_TOKENS, model.pad_id, model.device):
        heads, layers = batch_vectors(model, batch, rule)
        _check(heads, layers, dtype, batch, what)
        place = np.asarray(batch.index) - rows[0].index
        vectors["heads"][:, :, place] = heads
        vectors["layers"][:, place] = layers
    return vectors, {}


def scratch_array(
    store: CheckpointStore, name: str, shape: tuple[int, ...], dtype: str
) -> np.ndarray:
    """Return an empty array in a scratch file of the store, for vectors too large for memory."""
    path = store.scratch(name)
    # A full disk is an error here, not a crash while the array is used.
    claim(path, math.prod(shape) * np.dtype(dtype).itemsize)
    array = np.memmap(path, np.dtype(dtype), "r+", shape=shape)
    # If the system allows it, the space is free as soon as the array is no longer needed.
    with suppress(OSError):
        path.unlink()
    return array


def _check(heads: np.ndarray, layers: np.ndarray, dtype: str, batch: Batch, what: str) -> None:
    """Reject vectors that are not finite, or too large for half precision."""
    for name, values in (("heads", heads), ("layers", layers)):
        if not np.isfinite(values).all():
            raise InputError(
                f"{what}: the {name}' vectors hold NaN or infinity from "
                f"{batch.rows[0].example.where} on; open the model in float32 or check its weights."
            )
        if dtype == "float16" and np.abs(values).max() > np.finfo(np.float16).max:
            largest = np.abs(values).max()
            raise InputError(
                f"{what}: the {name}' vectors reach {largest:.0f}, too large for float16; keep "
                "them in float32."
            )
