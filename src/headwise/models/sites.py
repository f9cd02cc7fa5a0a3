"""The attention modules of a model: found by running a few tokens through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from headwise.core.errors import ModelError
from headwise.models.tap import Call, TapSession, use_session

STACKS = ("encoder", "decoder", "cross")
NO_ATTENTION = "{} has no attention, so it has no heads to look at; give a transformer."
# Loose: the probe looks for another computation, not for rounding.
PROBE_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """An attention module and the layers it computes, in the order of its calls (more than one if
    layers share it)."""

    path: str
    layers: tuple[int, ...]
    entry: nn.Module | None  # the layer's module: what enters it is E[l]


@dataclass(slots=True, eq=False)
class Sites:
    """The attention modules of one stack, with the sizes they had in a run."""

    by_module: WeakKeyDictionary[nn.Module, Site]
    layers: int
    heads: int
    kv_heads: int
    d_heads: tuple[int, ...]  # of each layer
    causal: bool
    entries: list[nn.Module] = field(default_factory=list)
    # Hidden states are [token, example, width] inside the model (XLNet, FSMT).
    tokens_first: bool = False


@dataclass(slots=True, eq=False)
class LayerCount:
    """Tells which layer each attention call of one pass belongs to: that of its module, or by the
    order of calls if layers share one."""

    sites: Sites
    _calls: Counter[nn.Module] = field(default_factory=Counter)

    def of_call(self, module: nn.Module) -> int | None:
        """Count a call and return its layer; None for a module outside the watched stack."""
        site = self.sites.by_module.get(module)
        if site is None:
            return None
        self._calls[module] += 1
        return site.layers[(self._calls[module] - 1) % len(site.layers)]

    def skip(self, layers: int) -> None:
        """Count the first layers as called: their stored outputs are used instead."""
        for module, site in self.sites.by_module.items():
            self._calls[module] += sum(layer < layers for layer in site.layers)

    @property
    def seen(self) -> int:
        """Number of calls of the watched stack."""
        return self._calls.total()


@dataclass(slots=True, eq=False)
class _ProbedCall:
    module: nn.Module
    queries: int
    keys: int
    heads: int
    kv_heads: int
    d_head: int
    causal: bool


def _score_rounding(call: Call, key: Tensor) -> float:
    """Return by how much weights change, relative to themselves, where scores are rounded to the
    type of the call.

    Models round scores to half precision before their softmax, the tap does not: a score of 14 in
    bfloat16 is off by up to 0.03, and the weight by as much."""
    if type(call) is not Call or call.query.dtype not in (torch.float16, torch.bfloat16):
        return 0.0
    scores = call.query @ key.transpose(2, 3) * call.scaling
    return torch.finfo(call.query.dtype).eps * scores.abs().max().item()


@dataclass(eq=False)
class Probe(TapSession):
    """A session that records every attention call and compares the tap's output with the model's
    own eager function."""

    attention_mask: Tensor
    calls: list[_ProbedCall] = field(default_factory=list)

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        module_name = type(call.module).__name__
        has_examples_first = call.value.ndim == 4 and len(call.value) == len(self.attention_mask)
        if not has_examples_first or call.sizes[1] % call.sizes[4]:
            raise ModelError(
                f"{module_name} lays out its attention as {list(call.value.shape)}, which headwise "
                "does not support."
            )
        _, heads, queries, keys, kv_heads, d_head = call.sizes
        attention_mask = self.attention_mask.to(call.value.device)
        key, value = call.repeated()
        weights, _ = call.weights(key, 0, queries)
        output = (weights.to(value.dtype) @ value).transpose(1, 2)
        computed = None if call.model_eager is None else call.model_eager()
        if computed is not None:
            expected = computed[0].reshape(output.shape)
            is_token = attention_mask[:, : output.shape[1]]
            difference = (expected[is_token] - output[is_token]).abs().max().item()
            tolerance = max(PROBE_TOLERANCE, _score_rounding(call, key))
            tolerance *= max(1.0, expected[is_token].abs().max().item())
            if not difference <= tolerance:  # also for NaN
                raise ModelError(
                    f"{module_name} computes its attention in a way that headwise does not "
                    f"reproduce (outputs differ by {difference:.1e}); this model is not supported."
                )
        causal = False
        if queries == keys:
            token_weights = weights * attention_mask[:, None, :queries, None]
            causal = not bool(token_weights.triu(1).any())
        self.calls.append(_ProbedCall(call.module, queries, keys, heads, kv_heads, d_head, causal))
        return output.contiguous(), weights


def has_attention(model: nn.Module) -> bool:
    """Return whether any part of a model is called attention."""
    return any("attention" in type(part).__name__.lower() for part in model.modules())


def find_sites(
    model: nn.Module,
    run: Callable[[], object],
    attention_mask: Tensor,
    stack: str | None,
    encoder: nn.Module | None,
) -> tuple[Sites, str]:
    """Find the attention modules of a stack; return them with the name of the stack.

    Parameters
    ----------
    model : Module
        The model.
    run : callable
        Runs the model on a short input.
    attention_mask : Tensor
        The attention mask of that input.
    stack : str, optional
        `encoder`, `decoder` or `cross`; by default the encoder if there is one.
    encoder : Module, optional
        The encoder of an encoder-decoder.
    """
    probe = Probe(attention_mask)
    with use_session(probe), torch.no_grad():
        run()
    name = type(model).__name__
    if not probe.calls:
        if not has_attention(model):
            raise ModelError(NO_ATTENTION.format(name))
        raise ModelError(
            f"{name} is not supported: it computes its attention in its own way, outside the "
            "attention interface of transformers."
        )
    by_stack: dict[str, list[_ProbedCall]] = {}
    if encoder is None:
        is_decoder = all(call.causal for call in probe.calls)
        by_stack["decoder" if is_decoder else "encoder"] = probe.calls
    else:
        encoder_modules = set(encoder.modules())
        for call in probe.calls:
            if call.module in encoder_modules:
                call_stack = "encoder"
            elif call.queries == call.keys:
                call_stack = "decoder"
            else:
                call_stack = "cross"
            by_stack.setdefault(call_stack, []).append(call)
    if stack is None:
        stack = "encoder" if "encoder" in by_stack else "decoder"
    if stack not in by_stack:
        raise ModelError(
            f"{name} has no attention of the kind '{stack}'; it has "
            f"{' and '.join(sorted(by_stack))}."
        )
    return _sites(model, by_stack[stack], name), stack


def _sites(model: nn.Module, calls: Sequence[_ProbedCall], name: str) -> Sites:
    if len({call.heads for call in calls}) > 1:
        counts = ", ".join(str(call.heads) for call in calls)
        raise ModelError(
            f"The layers of {name} have different numbers of heads ({counts}), which headwise does "
            "not support."
        )
    paths = {module: path for path, module in model.named_modules()}
    layers_of: dict[nn.Module, list[int]] = {}
    for layer, call in enumerate(calls):
        layers_of.setdefault(call.module, []).append(layer)
    by_module: WeakKeyDictionary[nn.Module, Site] = WeakKeyDictionary()
    entries = []
    for module, layers in layers_of.items():
        entry = _entry(model, paths[module], layers_of)
        by_module[module] = Site(paths[module], tuple(layers), entry)
        if entry is not None:
            entries.append(entry)
    return Sites(
        by_module=by_module,
        layers=len(calls),
        heads=calls[0].heads,
        kv_heads=calls[0].kv_heads,
        d_heads=tuple(call.d_head for call in calls),
        causal=all(call.causal for call in calls),
        entries=entries,
    )


def _entry(model: nn.Module, path: str, attentions: Mapping[nn.Module, object]) -> nn.Module | None:
    """Return the layer of an attention module: the outermost entry of a ModuleList on its path that
    has no other attention of the same stack."""
    parts = path.split(".")
    for depth in range(1, len(parts) + 1):
        parent = model.get_submodule(".".join(parts[: depth - 1]))
        if not isinstance(parent, nn.ModuleList):
            continue
        candidate = model.get_submodule(".".join(parts[:depth]))
        n_attentions = sum(module in attentions for module in candidate.modules())
        if n_attentions == 1:
            return candidate
    return None


def hidden_input(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the hidden states among the arguments of a layer: the first, or the one of that
    name."""
    for value in (*args[:1], kwargs.get("hidden_states"), *args, *kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 3:
            return value
    raise ModelError("A layer of this model takes no hidden states, so they cannot be watched.")


def replaced(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], old: Tensor, new: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with one tensor replaced."""
    new_args = tuple(new if value is old else value for value in args)
    new_kwargs = {key: new if value is old else value for key, value in kwargs.items()}
    return new_args, new_kwargs


def hidden_output(output: Any) -> Tensor:
    """Return the hidden states among the outputs of a layer."""
    if isinstance(output, Tensor):
        return output
    return next(value for value in output if isinstance(value, Tensor))
