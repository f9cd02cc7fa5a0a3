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
        """Write the pattern to a `.json` or a `.tsv` file; see `to_bytes`."""
        write_atomically(Path(path), self.to_bytes(Path(path).suffix))

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
        """Read a pattern from a `.json` of headwise, or a `.tsv` of numbers from 0 to 1.

        Parameters
        ----------
        path : str or Path
            The file.
        sink, window : int
            Of a `.tsv`, which does not say.
        threshold : float, default 0.5
            Heads of a `.tsv` with at least this value are kept whole.
        """
        path = Path(path)
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
        self.whole_heads = np.flatnonzero(whole).tolist()
        self.short_heads = np.flatnonzero(~whole).tolist()
        self.sink = sink
        self.window = window
        self.seen = 0
        self.parts: dict[str, Tensor] = {}
        # What the attention of the current call reads: the parts before they were shortened.
        self.current: dict[str, Tensor] = {}
        self.positions: Tensor | None = None  # of the short heads' tokens
        self.current_positions: Tensor | None = None
        self.like = torch.empty(0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype = key_states.dtype
        self.device = key_states.device
        self.like = key_states.new_empty(0)
        for which, states in (("keys", key_states), ("values", value_states)):
            self.parts[f"whole {which}"] = states[:, self.whole_heads, :0]
            self.parts[f"short {which}"] = states[:, self.short_heads, :0]
        self.positions = torch.empty(0, dtype=torch.long, device=self.device)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take in the keys and values of new tokens, and return those of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.positions is not None
        n_new = key_states.shape[-2]
        new_positions = torch.arange(self.seen, self.seen + n_new, device=self.device)
        self.current_positions = torch.cat([self.positions, new_positions])
        self.seen += n_new
        for which, states in (("keys", key_states), ("values", value_states)):
            for kind, heads in (("whole", self.whole_heads), ("short", self.short_heads)):
                name = f"{kind} {which}"
                self.current[name] = torch.cat([self.parts[name], states[:, heads]], dim=-2)
        # After this call short heads keep the first tokens and the last ones; the window counts the
        # token that attends, so one token less stays for the next.
        is_kept = self.current_positions < self.sink
        is_kept |= self.current_positions > self.seen - self.window
        for which in ("keys", "values"):
            self.parts[f"whole {which}"] = self.current[f"whole {which}"]
            self.parts[f"short {which}"] = self.current[f"short {which}"][:, :, is_kept]
        self.positions = self.current_positions[is_kept]
        shape = (key_states.shape[0], key_states.shape[1], self.seen)
        keys = SplitHeads(self, "keys", (*shape, key_states.shape[-1]), self.like)
        values = SplitHeads(self, "values", (*shape, value_states.shape[-1]), self.like)
        return keys, values

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
        """Bytes of keys and values that are held between calls."""
        return sum(part.numel() * part.element_size() for part in self.parts.values())

    def reset(self) -> None:
        self.parts = {}
        self.current = {}
        self.positions = None
        self.seen = 0
        self.is_initialized = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        for name, part in self.parts.items():
            self.parts[name] = part.index_select(0, beam_idx.to(part.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        for name, part in self.parts.items():
            self.parts[name] = part.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        for name, part in self.parts.items():
            self.parts[name] = part[indices]


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

    `grouping` (`enable_gqa`) changes nothing: keys are repeated for their query heads here."""
    layer = key.layer
    n_query_heads = query.shape[1]
    n_kv_heads = len(layer.whole_heads) + len(layer.short_heads)
    group_size = n_query_heads // n_kv_heads
    n_queries = query.shape[2]
    output = query.new_empty(*query.shape[:3], layer.current["whole values"].shape[-1])
    query_positions = torch.arange(layer.seen - n_queries, layer.seen, device=query.device)
    mask = None
    if attn_mask is not None:
        mask = attn_mask[..., : layer.seen]
    for kind, heads in (("whole", layer.whole_heads), ("short", layer.short_heads)):
        if not heads:
            continue
        members: list[int] = []
        for head in heads:
            members += range(head * group_size, (head + 1) * group_size)
        keys = layer.current[f"{kind} keys"].repeat_interleave(group_size, dim=1)
        values = layer.current[f"{kind} values"].repeat_interleave(group_size, dim=1)
        part_mask = mask
        part_is_causal = is_causal and n_queries > 1
        if kind == "short":
            assert layer.current_positions is not None
            part_mask = _short_mask(layer, query_positions, mask, query.dtype)
            part_is_causal = False
        output[:, members] = FUSED(
            query[:, members],
            keys,
            values,
            attn_mask=part_mask,
            dropout_p=dropout_p,
            is_causal=part_is_causal,
            scale=scale,
        )
    return output


def _short_mask(
    layer: SplitLayer, query_positions: Tensor, mask: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return which of their tokens short heads see, `[1 or example, 1, query, token]`."""
    positions = layer.current_positions
    assert positions is not None
    distance = query_positions[:, None] - positions[None]
    visible = (distance >= 0) & ((positions[None] < layer.sink) | (distance < layer.window))
    visible = visible[None, None]
    if mask is None:
        return visible
    columns = mask[..., positions]
    if columns.dtype == torch.bool:
        _reject_padding(columns, layer)
        return visible & columns
    _reject_padding(columns > torch.finfo(columns.dtype).min / 2, layer)
    return columns.masked_fill(~visible, torch.finfo(columns.dtype).min)


def _reject_padding(is_open: Tensor, layer: SplitLayer) -> None:
    """Raise where the last query cannot see a sink token: padding on the left, whose tokens would be
    kept in place of the real first ones."""
    positions = layer.current_positions
    assert positions is not None
    is_sink = positions < layer.sink
    if layer.sink and not bool(is_open[..., -1, :][..., is_sink].all()):
        raise InputError(
            "HeadwiseCache keeps the first tokens of every row, and some rows begin with padding; "
            "give texts of equal length, or one at a time."
        )


class HeadwiseCache(Cache):  # type: ignore[misc]
    """A cache of transformers that keeps some key/value heads whole and the others short.

    Parameters
    ----------
    pattern : CachePattern, str or Path
        Which heads keep everything, or the `.json` or `.tsv` file that says so.

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
