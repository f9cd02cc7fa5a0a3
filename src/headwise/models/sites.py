"""Which modules of a model compute attention, of which kind, in which layer: found by running a few
tokens through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from headwise.core.errors import ModelError
from headwise.models.tap import Call, Running, use_session

STACKS = ("encoder", "decoder", "cross")
NO_ATTENTION = "{} has no attention, so it has no heads to look at; give a transformer."
TOLERANCE = 1e-2  # of the probe; loose, for half precision: it looks for another computation, not for rounding


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """An attention module and the layers it computes, in the order of its calls (more than one
    where layers share it)."""

    path: str
    layers: tuple[int, ...]
    entry: nn.Module | None  # the layer's module: what enters it is E[l]


@dataclass(slots=True, eq=False)
class Sites:
    """The attention modules of one stack, with the sizes they were seen to have."""

    by_module: WeakKeyDictionary[nn.Module, Site]
    layers: int
    heads: int
    kv_heads: int
    d_heads: tuple[int, ...]  # of each layer
    causal: bool
    entries: list[nn.Module] = field(default_factory=list)
    tokens_first: bool = (
        False  # hidden states run [token, example, width] inside the model (XLNet, FSMT)
    )

    def of(self, module: nn.Module) -> Site | None:
        return self.by_module.get(module)


class LayerCount:
    """Tells which layer each attention call of one pass is: that of its module, or by the order of
    calls where layers share one."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._calls: Counter[nn.Module] = Counter()

    def of_call(self, module: nn.Module) -> int | None:
        """The layer of the call that is being made, which is counted; None for a module outside the
        watched stack."""
        site = self._sites.of(module)
        if site is None:
            return None
        self._calls[module] += 1
        return site.layers[(self._calls[module] - 1) % len(site.layers)]

    def skip(self, layers: int) -> None:
        """Count so many layers, from the first, as called: they are stood in for."""
        for module, site in self._sites.by_module.items():
            self._calls[module] += sum(layer < layers for layer in site.layers)

    @property
    def seen(self) -> int:
        """How many calls of the watched stack there were."""
        return self._calls.total()


@dataclass(slots=True, eq=False)
class _Seen:
    module: nn.Module
    queries: int
    keys: int
    heads: int
    kv_heads: int
    d_head: int
    causal: bool


class Probe(Running):
    """A session that notes every attention call and compares the tap's numbers with the model's own
    eager function."""

    def __init__(self, attention_mask: Tensor) -> None:
        self.attention_mask = attention_mask
        self.seen: list[_Seen] = []

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        if (
            call.value.ndim != 4
            or len(call.value) != len(self.attention_mask)
            or call.sizes[1] % call.sizes[4]
        ):
            raise ModelError(
                f"{type(call.module).__name__} lays out its attention as {list(call.value.shape)}, which headwise does "
                "not serve."
            )
        _, heads, queries, keys, kv_heads, d_head = call.sizes
        attention_mask = self.attention_mask.to(call.value.device)
        key, value = call.repeated()
        weights, _ = call.weights(key, 0, queries)
        output = (weights.to(value.dtype) @ value).transpose(1, 2)
        if call.own is not None:
            own = call.own()[0].reshape(output.shape)
            rows = attention_mask[:, : output.shape[1]]
            difference = (own[rows] - output[rows]).abs().max().item()
            if not difference <= TOLERANCE * max(1.0, own[rows].abs().max().item()):
                raise ModelError(
                    f"{type(call.module).__name__} computes its attention in a way that headwise does not reproduce "
                    f"(outputs differ by {difference:.1e}); this model is not served."
                )
        causal = queries == keys and not bool(
            (weights * attention_mask[:, None, :queries, None]).triu(1).any()
        )
        self.seen.append(_Seen(call.module, queries, keys, heads, kv_heads, d_head, causal))
        return output.contiguous(), weights


def has_attention(model: nn.Module) -> bool:
    """Whether any part of a model is called attention."""
    return any("attention" in type(part).__name__.lower() for part in model.modules())


def find_sites(
    model: nn.Module,
    run: Callable[[], object],
    attention_mask: Tensor,
    stack: str | None,
    encoder: nn.Module | None,
) -> tuple[Sites, str]:
    """Run a probe and sort the attention calls it made; gives the sites of the asked-for stack and
    its name."""
    probe = Probe(attention_mask)
    with use_session(probe), torch.no_grad():
        run()
    name = type(model).__name__
    if not probe.seen:
        if not has_attention(model):
            raise ModelError(NO_ATTENTION.format(name))
        raise ModelError(
            f"{name} is not served: it computes its attention in its own way, outside the attention interface of "
            "transformers."
        )
    inside = {id(m) for m in encoder.modules()} if encoder is not None else set()
    kinds: dict[str, list[_Seen]] = {}
    for seen in probe.seen:
        if encoder is None:
            kind = "decoder" if all(s.causal for s in probe.seen) else "encoder"
        else:
            kind = (
                "encoder"
                if id(seen.module) in inside
                else "decoder"
                if seen.queries == seen.keys
                else "cross"
            )
        kinds.setdefault(kind, []).append(seen)
    stack = stack or ("encoder" if "encoder" in kinds else "decoder")
    if stack not in kinds:
        raise ModelError(
            f"{name} has no attention of the kind '{stack}'; it has {' and '.join(sorted(kinds))}."
        )
    return _sites(model, kinds[stack], name), stack


def _sites(model: nn.Module, calls: Sequence[_Seen], name: str) -> Sites:
    if len({c.heads for c in calls}) > 1:
        raise ModelError(
            f"The layers of {name} have different numbers of heads ({', '.join(str(c.heads) for c in calls)}), which "
            "headwise does not serve."
        )
    paths = {module: path for path, module in model.named_modules()}
    layers: dict[nn.Module, list[int]] = {}
    for layer, call in enumerate(calls):
        layers.setdefault(call.module, []).append(layer)
    by_module: WeakKeyDictionary[nn.Module, Site] = WeakKeyDictionary()
    entries = []
    for module, numbers in layers.items():
        entry = _entry(model, paths[module], layers)
        by_module[module] = Site(paths[module], tuple(numbers), entry)
        if entry is not None:
            entries.append(entry)
    sizes, causal = tuple(c.d_head for c in calls), all(c.causal for c in calls)
    return Sites(by_module, len(calls), calls[0].heads, calls[0].kv_heads, sizes, causal, entries)


def _entry(model: nn.Module, path: str, attentions: Mapping[nn.Module, object]) -> nn.Module | None:
    """The outermost entry of a ModuleList on the way to an attention module that holds no other
    attention of the same stack."""
    parts = path.split(".")
    for depth in range(1, len(parts) + 1):
        parent = model.get_submodule(".".join(parts[: depth - 1]))
        candidate = model.get_submodule(".".join(parts[:depth]))
        if (
            isinstance(parent, nn.ModuleList)
            and sum(m in attentions for m in candidate.modules()) == 1
        ):
            return candidate
    return None


def hidden_input(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """The hidden states among the arguments of a layer: the first, or the one that carries the
    name."""
    for value in (*args[:1], kwargs.get("hidden_states"), *args, *kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 3:
            return value
    raise ModelError("A layer of this model takes no hidden states, so they cannot be watched.")


def replaced(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], old: Tensor, new: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with one tensor replaced."""
    named = {key: new if value is old else value for key, value in kwargs.items()}
    return tuple(new if a is old else a for a in args), named


def hidden_output(output: Any) -> Tensor:
    """The hidden states among what a layer returns."""
    return (
        output
        if isinstance(output, Tensor)
        else next(value for value in output if isinstance(value, Tensor))
    )
