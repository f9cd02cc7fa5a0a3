"""A cache of keys and values that keeps some key/value heads whole and the others short.

A short head keeps the first `sink` tokens and the last `window` tokens; a whole head keeps all. Which
is which says a `CachePattern`. `HeadwiseCache` is a cache of transformers with that pattern::

    cache = HeadwiseCache(CachePattern.load("pattern.json"))
    model.generate(**inputs, past_key_values=cache)

Transformers hands keys and values of all heads to torch's fused attention as two tensors of one
length. Here they are `SplitHeads`: tensors with that shape but without its storage, which compute the
attention of whole and of short heads apart when they reach the fused attention."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicSlidingWindowLayer

from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.core.files import write_atomically

FUSED = nn.functional.scaled_dot_product_attention
FORMAT = "headwise-cache-pattern"
# The files of a folder of DuoAttention.
HEADS_FILE = "full_attention_heads.tsv"
CONFIG_FILE = "config.json"
# Tokens for which room is made at once: without it each new token would copy the whole cache.
SPARE_TOKENS = 256
CANNOT_CROP = (
    "HeadwiseCache cannot take tokens back, because short heads have dropped the tokens before them; "
    "generate without an assistant model and without prompt lookup."
)


def pattern_files(path: Path) -> list[Path]:
    """Return the files that a pattern at this path has: the file itself, or those of a folder."""
    return [path] if path.suffix else [path / HEADS_FILE, path / CONFIG_FILE]


@dataclass(frozen=True)
class CachePattern:
    """Which key/value heads keep the whole context.

    Parameters
    ----------
    whole : array of bool
        `[layer, key/value head]`; the others keep `sink` and `window` tokens.
    sink, window : int
        How many of the first and of the last tokens a short head keeps.
    sliding : mapping of int to int, optional
        Layers that see a sliding window anyway, with its size; their heads are left as they are.
    scores : array, optional
        What heads were chosen by, `[layer, key/value head]`, larger for those kept whole.
    facts : mapping, optional
        Where the pattern comes from; written to the file and not used.
    """

    whole: np.ndarray
    sink: int = 4
    window: int = 256
    sliding: Mapping[int, int] = field(default_factory=dict)
    scores: np.ndarray | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole = np.asarray(self.whole, bool)
        if whole.ndim != 2:
            raise ParameterError("`whole` must be [layer, key/value head].")
        if self.sink < 0 or self.window < 1:
            raise ParameterError("`sink` must be 0 or more, `window` 1 or more.")
        object.__setattr__(self, "whole", whole)

    @property
    def layers(self) -> int:
        return int(self.whole.shape[0])

    @property
    def kv_heads(self) -> int:
        return int(self.whole.shape[1])

    @property
    def share_whole(self) -> float:
        """The share of key/value heads that keep everything, of those that have a choice."""
        free = [layer for layer in range(self.layers) if layer not in self.sliding]
        return float(self.whole[free].mean()) if free else 1.0

    def tokens_held(self, context: int) -> float:
        """Return how many tokens a key/value head holds on average after a context."""
        held = 0
        for layer in range(self.layers):
            if layer in self.sliding:
                held += self.kv_heads * min(context, self.sliding[layer])
                continue
            n_whole = int(self.whole[layer].sum())
            short = min(context, self.sink + self.window)
            held += n_whole * context + (self.kv_heads - n_whole) * short
        return held / self.whole.size

    def save(self, path: str | Path) -> None:
        """Write the pattern to a `.json` or a `.tsv` file, or to a folder; see `to_files`."""
        for file, content in self.to_files(path).items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, content)

    def to_files(self, path: str | Path) -> dict[Path, bytes]:
        """Return the content of the file, or of the files of a folder (a path without an ending).

        A folder has what loaders of DuoAttention's patterns read: `full_attention_heads.tsv`, a row
        for each layer and a column for each key/value head, and `config.json` with `sink_size` and
        `recent_size`. Those loaders keep the heads with the highest numbers, as many as a sparsity
        says, so the numbers are ranks: whole heads from 0.5 to 1, short ones below, each part in the
        order of the scores. The sparsity of the pattern is `config.json`'s `sparsity`."""
        path = Path(path)
        if path.suffix:
            return {path: self.to_bytes(path.suffix)}
        lines = ["\t".join(f"{cell:.6f}" for cell in row) for row in self.ranks()]
        config = {
            "sink_size": self.sink,
            "recent_size": self.window,
            "sparsity": 1 - float(self.whole.mean()),
            **{name: value for name, value in self.facts.items() if name == "model"},
        }
        return {
            path / HEADS_FILE: ("\n".join(lines) + "\n").encode(),
            path / CONFIG_FILE: (json.dumps(config, indent=1) + "\n").encode(),
        }

    def ranks(self) -> np.ndarray:
        """Return a number from 0 to 1 for each head: 0.5 or more for whole heads, larger for those
        with higher scores."""
        scores = np.zeros(self.whole.shape) if self.scores is None else self.scores
        ranks = np.zeros(self.whole.size)
        for members, low in ((self.whole, 0.5), (~self.whole, 0.0)):
            places = np.flatnonzero(members)
            order = np.argsort(scores.ravel()[places], kind="stable")
            if self.scores is None:
                # Without scores all of a part are alike.
                ranks[places] = 2 * low
                continue
            # The highest whole head gets 1, the highest short one less than 0.5.
            n_steps = len(places) - 1 if low else len(places)
            ranks[places[order]] = low + 0.5 * np.arange(len(places)) / max(n_steps, 1)
        if len(np.flatnonzero(self.whole)) == 1:
            ranks[self.whole.ravel()] = 1.0
        return ranks.reshape(self.whole.shape)

    def to_bytes(self, suffix: str = ".json") -> bytes:
        """Return the content of a file: of a `.json` with everything, or of a `.tsv` of zeros and
        ones as loaders of DuoAttention's style read them (a row for each layer, a column for each
        key/value head)."""
        if suffix == ".tsv":
            lines = ["\t".join(str(int(cell)) for cell in row) for row in self.whole]
            return ("\n".join(lines) + "\n").encode()
        if suffix != ".json":
            raise ParameterError(f"A pattern is a .json or a .tsv file, not '{suffix}'.")
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": 1,
            "sink_size": self.sink,
            "recent_size": self.window,
            "full_attention_heads": self.whole.astype(int).tolist(),
            "sliding_layers": {str(layer): size for layer, size in self.sliding.items()},
            "facts": dict(self.facts),
        }
        if self.scores is not None:
            content["scores"] = np.round(self.scores, 6).tolist()
        return (json.dumps(content, indent=1) + "\n").encode()

    @classmethod
    def load(
        cls, path: str | Path, *, sink: int = 4, window: int = 256, threshold: float = 0.5
    ) -> CachePattern:
        """Read a pattern from a `.json` of headwise, a `.tsv` of numbers from 0 to 1, or a folder in the
        layout of DuoAttention's released patterns (`full_attention_heads.tsv`, `config.json`).

        Parameters
        ----------
        path : str or Path
            The file or folder.
        sink, window : int
            Of a `.tsv`, which does not say.
        threshold : float, default 0.5
            Heads of a `.tsv` with at least this value are kept whole.
        """
        path = Path(path)
        if path.is_dir():
            sizes = cls._read_sizes(path / CONFIG_FILE)
            return cls.load(
                path / HEADS_FILE,
                sink=sizes["sink_size"],
                window=sizes["recent_size"],
                threshold=threshold,
            )
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read as a pattern: {error}.") from error
        if path.suffix == ".tsv":
            try:
                scores = np.array(
                    [[float(cell) for cell in line.split()] for line in text.splitlines()]
                )
            except ValueError as error:
                raise InputError(f"{path} is no table of numbers: {error}.") from error
            if scores.ndim != 2 or not scores.size:
                raise InputError(f"{path} must have equally many numbers in every line.")
            return cls(scores >= threshold, sink, window, scores=scores)
        try:
            content = json.loads(text)
            sliding = {int(layer): int(size) for layer, size in content["sliding_layers"].items()}
            stored = content.get("scores")
            return cls(
                np.array(content["full_attention_heads"], bool),
                int(content["sink_size"]),
                int(content["recent_size"]),
                sliding,
                None if stored is None else np.array(stored, float),
                content.get("facts", {}),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is no pattern of headwise: {error}.") from error

    @staticmethod
    def _read_sizes(path: Path) -> dict[str, int]:
        """Read sink and window of a folder's `config.json`."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return {name: int(content[name]) for name in ("sink_size", "recent_size")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} does not say sink_size and recent_size of a pattern: {error}."
            ) from error


class SplitHeads(Tensor):
    """Keys or values of all key/value heads, held apart for whole and short heads.

    It has the shape of the whole tensor `[example, head, token, d]` but no storage. Repeating heads
    for their query heads, as models do before the fused attention, keeps it; anything else that
    would need the numbers is an error."""

    layer: SplitLayer
    which: str  # "keys" or "values"

    @staticmethod
    def __new__(
        cls, layer: SplitLayer, which: str, shape: Sequence[int], like: Tensor
    ) -> SplitHeads:
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=like.dtype, device=like.device
        )
        wrapper.layer = layer
        wrapper.which = which
        return wrapper

    def __init__(self, *args: Any) -> None:
        pass

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"SplitHeads({self.which}, {list(self.shape)})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is FUSED:
            return _split_attention(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in ("__get__", "dim", "size", "numel", "stride", "is_contiguous", "__repr__"):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name in ("__getitem__", "expand", "reshape", "contiguous", "repeat_interleave", "to"):
            split = args[0]
            shape = _shape_after(func, split, args[1:], kwargs)
            return SplitHeads(split.layer, split.which, shape, split.layer.like)
        raise ModelError(
            "HeadwiseCache works with torch's fused attention; open the model with "
            f"attn_implementation='sdpa' (its attention calls '{name}' on the keys)."
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise ModelError(
            "HeadwiseCache works with torch's fused attention; open the model with "
            "attn_implementation='sdpa'."
        )


def _shape_after(func: Any, split: SplitHeads, args: Sequence[Any], kwargs: Any) -> tuple[int, ...]:
    """Return the shape that an operation would give, without any numbers."""
    empty = torch.empty(tuple(split.shape), device="meta")
    if getattr(func, "__name__", "") == "to":
        return tuple(split.shape)
    return tuple(func(empty, *args, **kwargs).shape)


class SplitLayer(CacheLayerMixin):  # type: ignore[misc]
    """The cache of one layer: whole heads grow, short heads keep sink and window.

    The tensors of whole heads have room for up to `SPARE_TOKENS` tokens more than they hold, so that a new
    token is written beside the others without a copy of them.

    The window is a ring: the token at position p lies in slot `sink + (p - sink) % window`, and a
    new token takes the place of the one that leaves. Keys are rotated before they come here, so
    their order does not matter to the attention.

    Parameters
    ----------
    whole : array of bool
        Which key/value heads keep everything.
    sink, window : int
        What the others keep.
    """

    is_sliding = False
    is_croppable = False

    def __init__(self, whole: np.ndarray, sink: int, window: int) -> None:
        super().__init__()
        self.whole_heads: list[int] = np.flatnonzero(whole).tolist()
        self.short_heads: list[int] = np.flatnonzero(~whole).tolist()
        self.sink = sink
        self.window = window
        self.seen = 0
        self.parts: dict[str, Tensor] = {}
        # What the attention of the current call reads: the parts before they were shortened.
        self.current: dict[str, Tensor] = {}
        # Whether a current call has one new token, which was written into the ring.
        self.is_in_ring = False
        self.like = torch.empty(0)
        # By kind: which key/value heads are whole, and which are short, as an index on the device.
        self._members: dict[str, Tensor] = {}
        # By group size: all query heads, those that read whole heads first.
        self._readers: dict[int, Tensor] = {}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._check_heads(key_states.shape[1])
        self.dtype = key_states.dtype
        self.device = key_states.device
        self.like = key_states.new_empty(0)
        # Indices are kept on the device: a new one for every layer and token would be a copy each.
        self._members = {
            "whole": torch.tensor(self.whole_heads, dtype=torch.long, device=self.device),
            "short": torch.tensor(self.short_heads, dtype=torch.long, device=self.device),
        }
        self._readers = {}
        for which, states in (("keys", key_states), ("values", value_states)):
            for kind, members in self._members.items():
                self.parts[f"{kind} {which}"] = states[:, :, :0].index_select(1, members)
        self.is_initialized = True

    def query_heads_whole_first(self, group_size: int) -> Tensor:
        """Return all query heads as an index, those that read whole heads first."""
        if group_size not in self._readers:
            members = torch.cat([self._members["whole"], self._members["short"]])
            offsets = torch.arange(group_size, device=self.device)
            self._readers[group_size] = (members[:, None] * group_size + offsets).flatten()
        return self._readers[group_size]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take in the keys and values of new tokens, and return those of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        n_new = key_states.shape[-2]
        self.is_in_ring = n_new == 1 and self.seen >= self.sink + self.window
        for which, states in (("keys", key_states), ("values", value_states)):
            if self.whole_heads:
                self._add_whole(which, states)
            if self.short_heads:
                self._add_short(which, states)
        self.seen += n_new
        shape = (key_states.shape[0], key_states.shape[1], self.seen)
        keys = SplitHeads(self, "keys", (*shape, key_states.shape[-1]), self.like)
        values = SplitHeads(self, "values", (*shape, value_states.shape[-1]), self.like)
        return keys, values

    def _check_heads(self, n_heads: int) -> None:
        # With too few heads in the pattern, the others would be left out without an error.
        n_in_pattern = len(self.whole_heads) + len(self.short_heads)
        if n_heads != n_in_pattern:
            raise InputError(
                f"The pattern has {n_in_pattern} key/value heads in a layer and the model has "
                f"{n_heads}; give the pattern of this model."
            )

    def _add_whole(self, which: str, states: Tensor) -> None:
        """Write the new tokens of whole heads behind the others."""
        members = self._members["whole"]
        name = f"whole {which}"
        stored = self.parts[name]
        n_all = self.seen + states.shape[2]
        if not _may_write_into(stored):
            stored = torch.cat([stored[:, :, : self.seen], states.index_select(1, members)], dim=2)
        else:
            if n_all > stored.shape[2]:
                larger = (stored.shape[0], stored.shape[1], n_all + SPARE_TOKENS, stored.shape[3])
                grown = stored.new_empty(larger)
                grown[:, :, : self.seen] = stored[:, :, : self.seen]
                stored = grown
            torch.index_select(states, 1, members, out=stored[:, :, self.seen : n_all])
        self.parts[name] = stored
        self.current[name] = stored[:, :, :n_all]

    def _add_short(self, which: str, states: Tensor) -> None:
        """Write the new tokens of short heads into the ring, or beside what they keep while the
        current call reads it."""
        members = self._members["short"]
        name = f"short {which}"
        stored = self.parts[name]
        if self.is_in_ring:
            slot = self.sink + (self.seen - self.sink) % self.window
            if not _may_write_into(stored):
                stored = stored.clone()
                stored[:, :, slot : slot + 1] = states.index_select(1, members)
            else:
                torch.index_select(states, 1, members, out=stored[:, :, slot : slot + 1])
            self.current[name] = stored
        else:
            in_time = torch.cat([self._unroll(stored), states.index_select(1, members)], dim=2)
            self.current[name] = in_time
            stored = self._shorten(in_time, self.seen + states.shape[2])
        self.parts[name] = stored

    def _unroll(self, part: Tensor) -> Tensor:
        """Return the short heads' tokens in the order of time."""
        if self.seen <= self.sink + self.window:
            return part
        ring = part[:, :, self.sink :].roll(-self._first_slot(self.seen), dims=2)
        return torch.cat([part[:, :, : self.sink], ring], dim=2)

    def _shorten(self, in_time: Tensor, seen: int) -> Tensor:
        """Return what short heads keep of tokens in the order of time, the window as a ring."""
        if seen <= self.sink + self.window:
            return in_time
        ring = in_time[:, :, -self.window :].roll(self._first_slot(seen), dims=2)
        return torch.cat([in_time[:, :, : self.sink], ring], dim=2)

    def _first_slot(self, seen: int) -> int:
        """Return the slot of the ring in which the oldest token of the window lies."""
        return (seen - self.window - self.sink) % self.window

    def short_positions(self, n_queries: int) -> Tensor:
        """Return the positions of the tokens that short heads read in the current call."""
        n_read = self.current["short keys"].shape[2]
        places = torch.arange(n_read, device=self.device)
        if self.is_in_ring:
            last = self.seen - 1
            in_ring = last - (last - places) % self.window
            return torch.where(places < self.sink, places, in_ring)
        # The first tokens, then the last ones without a gap.
        return torch.where(places < self.sink, places, places + self.seen - n_read)

    def release(self) -> None:
        """Forget what only the current call needed: a chunk's tokens beyond the window."""
        self.current = {}

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values that are held between calls."""
        total = 0
        for name, part in self.parts.items():
            held = part[:, :, : self.seen] if name.startswith("whole") else part
            total += held.numel() * held.element_size()
        return total

    @property
    def reserved_bytes(self) -> int:
        """Bytes of room for tokens to come."""
        allocated = sum(part.numel() * part.element_size() for part in self.parts.values())
        return allocated - self.nbytes

    def reset(self) -> None:
        self.parts = {}
        self.current = {}
        self.seen = 0
        self.is_initialized = False

    def crop(self, *args: Any) -> None:
        raise ModelError(CANNOT_CROP)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        for name, part in self.parts.items():
            self.parts[name] = part.index_select(0, beam_idx.to(part.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        for name, part in self.parts.items():
            self.parts[name] = part.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        for name, part in self.parts.items():
            self.parts[name] = part[indices]


def _may_write_into(stored: Tensor) -> bool:
    """Return whether new numbers may be written into a tensor of the cache.

    A gradient may need the old numbers, and a tensor that was made in inference mode is fixed outside
    it."""
    is_fixed = stored.is_inference() and not torch.is_inference_mode_enabled()
    return not torch.is_grad_enabled() and not is_fixed


def _split_attention(
    query: Tensor,
    key: SplitHeads,
    value: SplitHeads,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **grouping: bool,
) -> Tensor:
    """Compute fused attention for whole and for short heads apart; parameters as of torch's.

    `grouping` (`enable_gqa`) changes nothing: what is shared between query heads is known here."""
    layer = key.layer
    n_queries = query.shape[2]
    n_kv_heads = len(layer.whole_heads) + len(layer.short_heads)
    group_size = query.shape[1] // n_kv_heads
    mask = None
    if attn_mask is not None:
        mask = attn_mask[..., : layer.seen]
    if not layer.short_heads or not layer.whole_heads:
        kind = "whole" if layer.whole_heads else "short"
        of_all = _attention_of_kind(kind, layer, query, mask, dropout_p, is_causal, scale)
        layer.release()
        return of_all
    readers = layer.query_heads_whole_first(group_size)
    n_whole = len(layer.whole_heads) * group_size
    query = query.index_select(1, readers)
    output: Tensor | None = None
    for kind, heads in (("whole", slice(0, n_whole)), ("short", slice(n_whole, None))):
        part = _attention_of_kind(kind, layer, query[:, heads], mask, dropout_p, is_causal, scale)
        if output is None:
            # In the dtype of the attention: under autocast it is not that of the queries. Models ask
            # for `[example, token, head, d]` next: laid out like that it is no further copy.
            output = part.new_empty(len(query), n_queries, query.shape[1], value.shape[-1])
            output = output.transpose(1, 2)
        output.index_copy_(1, readers[heads], part)
    assert output is not None
    layer.release()
    return output


def _attention_of_kind(
    kind: str,
    layer: SplitLayer,
    query: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Compute fused attention of the query heads that read whole heads, or short ones."""
    n_queries = query.shape[2]
    keys = layer.current[f"{kind} keys"]
    values = layer.current[f"{kind} values"]
    part_is_causal = False
    if kind == "short":
        mask = _short_mask(layer, n_queries, mask)
    elif mask is None and is_causal and n_queries > 1:
        # Torch lets the first query see the first key only, which is right without earlier keys.
        part_is_causal = n_queries == layer.seen
        if not part_is_causal:
            mask = _causal_mask(layer, n_queries)
    group_size = query.shape[1] // keys.shape[1]
    options = {}
    if group_size > 1:
        if mask is None and keys.shape[-1] == values.shape[-1]:
            options = {"enable_gqa": True}
        else:
            # With a mask, kernels for shared keys are not to be had on every device.
            keys = keys.repeat_interleave(group_size, dim=1)
            values = values.repeat_interleave(group_size, dim=1)
    return FUSED(
        query,
        keys,
        values,
        attn_mask=mask,
        dropout_p=dropout_p,
        is_causal=part_is_causal,
        scale=scale,
        **options,
    )


def _causal_mask(layer: SplitLayer, n_queries: int) -> Tensor:
    """Return which of all tokens the last queries see, bool `[query, token]`."""
    positions = torch.arange(layer.seen, device=layer.device)
    return positions[None] <= positions[layer.seen - n_queries :, None]


def _short_mask(layer: SplitLayer, n_queries: int, mask: Tensor | None) -> Tensor | None:
    """Return which of their tokens short heads see, `[1 or example, 1, query, token]`; None if all.

    A single new token sees everything that is kept: what left the window is gone."""
    if mask is None and n_queries == 1:
        return None
    positions = layer.short_positions(n_queries)
    queries = torch.arange(layer.seen - n_queries, layer.seen, device=layer.device)
    distance = queries[:, None] - positions[None]
    visible = (distance >= 0) & ((positions[None] < layer.sink) | (distance < layer.window))
    visible = visible[None, None]
    if mask is None:
        return visible
    columns = mask[..., positions]
    if columns.dtype == torch.bool:
        _reject_padding(columns, positions, layer.sink)
        return visible & columns
    _reject_padding(columns > torch.finfo(columns.dtype).min / 2, positions, layer.sink)
    return columns.masked_fill(~visible, torch.finfo(columns.dtype).min)


def _reject_padding(is_open: Tensor, positions: Tensor, sink: int) -> None:
    """Raise where the last query cannot see a sink token: padding on the left, whose tokens would be
    kept in place of the real first ones, or a sliding window that the pattern does not state."""
    is_sink = positions < sink
    if sink and not bool(is_open[..., -1, :][..., is_sink].all()):
        raise InputError(
            "HeadwiseCache keeps the first tokens of every row, and the model's mask hides some of them: "
            "if rows begin with padding, give texts of equal length, or one at a time; if the model "
            "has a sliding window, give a pattern that states it."
        )


class HeadwiseCache(Cache):  # type: ignore[misc]
    """A cache of transformers that keeps some key/value heads whole and the others short.

    Parameters
    ----------
    pattern : CachePattern, str or Path
        Which heads keep everything, or the `.json` or `.tsv` file or the folder that says so; see
        `CachePattern.load`.

    Examples
    --------
    >>> import numpy as np
    >>> pattern = CachePattern(np.array([[True, False]]), sink=1, window=2)
    >>> HeadwiseCache(pattern).layers[0].short_heads
    [1]
    """

    def __init__(self, pattern: CachePattern | str | Path) -> None:
        if not isinstance(pattern, CachePattern):
            pattern = CachePattern.load(pattern)
        self.pattern = pattern
        layers: list[Any] = []
        for layer in range(pattern.layers):
            if layer in pattern.sliding:
                layers.append(DynamicSlidingWindowLayer(sliding_window=pattern.sliding[layer]))
            else:
                layers.append(SplitLayer(pattern.whole[layer], pattern.sink, pattern.window))
        super().__init__(layers=layers)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take in the keys and values of new tokens in a layer, and return those of all tokens."""
        self._check_layers(layer_idx)
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return keys, values

    def _check_layers(self, layer: int) -> None:
        n_layers = len(self.layers)
        if layer >= n_layers:
            raise InputError(
                f"The pattern has {n_layers} layers and the model has more; give the pattern of this "
                "model."
            )
        # When the first layer is read again, a pass is over: layers of the model have been read.
        if layer == 0 and self.layers[0].is_initialized and not self.layers[-1].is_initialized:
            n_read = sum(bool(each.is_initialized) for each in self.layers)
            raise InputError(
                f"The pattern has {n_layers} layers and the model has {n_read}; give the pattern of "
                "this model."
            )

    def crop(self, *args: Any) -> None:
        """Raise an error: tokens cannot be taken back."""
        raise ModelError(CANNOT_CROP)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values that are held between calls."""
        total = 0
        for layer in self.layers:
            if isinstance(layer, SplitLayer):
                total += layer.nbytes
            elif layer.is_initialized:
                total += layer.keys.numel() * layer.keys.element_size()
                total += layer.values.numel() * layer.values.element_size()
        return total
