"""Where a model keeps what: the norms around its branches, its output projections, its way to the
logits.

No names of modules are known here. A few tokens run through the model while every module is
watched; a module is what its numbers say: a norm if it computes one, an output projection if it
takes the heads' outputs, a branch if the layer adds it to what entered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.core.errors import ModelError
from headwise.models.devices import weight_in
from headwise.models.forward_call import only_in_this_thread
from headwise.models.headmodel import HeadModel
from headwise.models.session import Session
from headwise.models.view import Layer, Watcher

CLOSE = 1e-4  # relative: what two ways of computing the same may differ by, in float32
CLOSE_HALF = 2e-2  # and where the model computes in half precision


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """What a norm does: `gain · (x − mean x) / scale + bias`, without the mean where it is not
    `centred`."""

    module: nn.Module
    gain: Tensor
    bias: Tensor
    centred: bool
    epsilon: float

    def middle(self, x: Tensor, dim: int = -1) -> Tensor:
        """x less its mean, where the norm takes that away."""
        return x - x.mean(dim, keepdim=True) if self.centred else x

    def scale(self, x: Tensor) -> Tensor:
        """What the norm divides by, `[..., 1]`."""
        return (self.middle(x).square().mean(-1, keepdim=True) + self.epsilon).sqrt()

    def pulled(self, direction: Tensor, scale: Tensor) -> Tensor:
        """The direction before the norm that a direction after it reads, the scale held: so that
        `⟨direction, norm(x)⟩ = ⟨pulled, x⟩ + ⟨direction, bias⟩`."""
        return self.middle(direction * self.gain / scale)


@dataclass(frozen=True, slots=True, eq=False)
class TransformerBlock:
    """One layer: `output = hidden + factor · (attention branch + other branch)`; each branch is
    what a module gives.

    `projection` takes the joined head outputs; `reading` is the norm before attention, `writing`
    the one after its projection; None where there is none. `inner` are norms inside attention, of
    queries and keys. `attention`, `other` are None where the layer adds no such branch: then
    `summed` is the norm that takes the sum of what entered and what the heads write (post-norm),
    None where no norm does."""

    module: nn.Module
    inner: tuple[Norm, ...]
    projection: nn.Module
    reading: Norm | None
    writing: Norm | None
    attention: nn.Module | None
    other: nn.Module | None
    factor: float
    summed: Norm | None = None

    def written(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Matrix `[head · d_head, width]` and bias of the projection, for outputs `[example, head,
        token, d_head]`."""
        like = outputs.new_empty(0, dtype=next(self.projection.parameters()).dtype)
        matrix, bias = affine(self.projection, outputs.shape[1] * outputs.shape[-1], like)
        return matrix.to(outputs.dtype), bias.to(outputs.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """The parts of a model that a direction in its logits is followed back through.

    `blocks` by layer; `final`, the norm before the output matrix; `head`, the module that gives the
    scores, and what is done to them after: `scores = cap · tanh(times · head / cap)`, without a cap
    where it is None. `refusal` says why heads add nothing directly to the logits, where that is so;
    then blocks may still serve for reading weights."""

    blocks: tuple[TransformerBlock, ...]
    final: Norm | None = None
    head: nn.Module | None = None
    times: float = 1.0
    cap: float | None = None
    refusal: str | None = None


class _Watch(Watcher):
    """Keeps what every module took and gave in one run, and the heads' outputs."""

    needs = frozenset({"outputs", "hidden"})

    def __init__(self, close: float, home: torch.device) -> None:
        self.close, self.home = close, home
        self.taken: dict[nn.Module, Tensor] = {}
        self.given: dict[nn.Module, Tensor] = {}
        self.layers: list[Layer] = []
        self._norms: dict[nn.Module, Norm | None] = {}

    def on_layer(self, layer: Layer) -> None:
        self.layers.append(layer)

    def same(self, a: Tensor, b: Tensor) -> bool:
        """Whether two tensors are the same, but for rounding."""
        return _same(a, b, self.close)

    def norm(self, module: nn.Module) -> Norm | None:
        """The norm that a module is, by what it computes."""
        if module not in self._norms:
            self._norms[module] = read_norm(
                module, self.taken[module], self.given[module], self.close
            )
        return self._norms[module]

    def norm_among(self, parts: Iterable[nn.Module]) -> Norm | None:
        """The first of these modules that is a norm."""
        return next(filter(None, map(self.norm, parts)), None)

    def norm_giving(self, value: Tensor, parts: Iterable[nn.Module]) -> Norm | None:
        """The norm among these modules that gave this."""
        return self.norm_among(part for part in parts if self.same(self.given[part], value))

    def norm_taking(self, value: Tensor, parts: Iterable[nn.Module]) -> Norm | None:
        """The norm among these modules that took this."""
        return self.norm_among(part for part in parts if self.same(self.taken[part], value))

    @contextmanager
    def hooked(self, module: nn.Module) -> Iterator[None]:
        with ExitStack() as stack:
            for part in module.modules():
                stack.callback(
                    part.register_forward_hook(
                        only_in_this_thread(self._keep), with_kwargs=True
                    ).remove
                )
            yield

    def _keep(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        given = output if isinstance(output, Tensor) else _first_tensor(output)
        tensors = [
            v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()
        ]
        if tensors and given is not None and given.is_floating_point():
            # Some layers flatten examples and tokens before their feed-forward part.
            taken = next((t for t in tensors if t.ndim >= 3), tensors[0])
            self.taken.setdefault(module, taken.detach().float().to(self.home, copy=True))
            self.given.setdefault(
                module, given.detach().float().to(self.home, copy=True)
            )  # some add in place


def _first_tensor(output: Any) -> Tensor | None:
    values = output if isinstance(output, tuple | list) else getattr(output, "values", tuple)()
    return next((value for value in values if isinstance(value, Tensor)), None)


def find_structure(model: HeadModel) -> Structure:
    """Find the parts of a model by running twelve made-up tokens through it."""
    if model.encoder_part is not None:
        raise ModelError(
            f"{model.name} is an encoder-decoder: its weights are not followed to the logits."
        )
    logits = model.lm_kind == "causal"
    watch, output = _watched(model, logits)
    if any(len(site.layers) > 1 for site in model.sites.by_module.values()):
        raise ModelError(
            f"The layers of {model.name} share modules, so their weights cannot be told apart."
        )
    return _with_head(model, watch, tuple(_blocks(model, watch)), output if logits else None)


def find_blocks(model: HeadModel) -> list[TransformerBlock]:
    """The layers alone, by number; one block stands for all layers that share it. Serves encoders
    of encoder-decoders too."""
    watch, _ = _watched(model, logits=False)
    return _blocks(model, watch)


def _watched(model: HeadModel, logits: bool) -> tuple[_Watch, Any]:
    vocabulary = getattr(model.module.get_input_embeddings(), "num_embeddings", 100)
    ids = (torch.arange(12, device=model.device).view(2, 6) * 37 + 5) % vocabulary
    attention_mask = torch.ones_like(ids, dtype=torch.bool)
    half = model.dtype in (torch.float16, torch.bfloat16)
    watch = _Watch(CLOSE_HALF if half else CLOSE, model.device)
    session = Session(model.sites, attention_mask, watch)
    with torch.no_grad(), model.evaluating(), watch.hooked(model.module), session.running():
        output = model.run(ids, attention_mask, torch.zeros_like(ids), logits=logits)
    return watch, output


def _blocks(model: HeadModel, watch: _Watch) -> list[TransformerBlock]:
    found: dict[int, TransformerBlock] = {}
    for attention, site in model.sites.by_module.items():
        if site.entry is None:
            raise ModelError(
                f"The layers of {model.name} share modules, so their weights cannot be told apart."
            )
        block = _block(watch, watch.layers[site.layers[0]], attention, site.entry)
        found |= dict.fromkeys(site.layers, block)
    return [found[layer] for layer in range(model.layers)]


def _block(watch: _Watch, seen: Layer, attention: nn.Module, entry: nn.Module) -> TransformerBlock:
    assert seen.outputs is not None
    joined = seen.outputs.transpose(1, 2).flatten(2).float()
    parts = [part for part in entry.modules() if part in watch.given]
    projections = [
        p for p in parts if not list(p.children()) and watch.same(watch.taken[p], joined)
    ]
    projections = [p for p in projections if p.__class__.__name__ not in ("Dropout", "Identity")]
    if not projections:
        raise ModelError(
            f"{type(attention).__name__} has no module that takes the joined outputs of its heads."
        )
    projection = projections[0]
    hidden, left = watch.taken[entry], watch.given[entry]
    entering = watch.taken.get(attention, hidden)
    reading = watch.norm_giving(entering, parts)
    if reading is not None and not watch.same(watch.taken[reading.module], hidden):
        reading = None
    inner = tuple(filter(None, (watch.norm(p) for p in attention.modules() if p in watch.given)))
    projected = watch.given[projection]
    writing = watch.norm_taking(projected, parts)
    gain = left - hidden
    candidates = [p for p in parts if p is not entry and watch.given[p].numel() == gain.numel()]
    own = writing.module if writing is not None else projection
    fitted = _branches(watch, gain, own, candidates)
    if fitted is None and writing is not None:  # the norm that takes it serves another branch
        own, writing = projection, None
        fitted = _branches(watch, gain, own, candidates)
    if fitted is None:
        fits = projected.numel() == hidden.numel()
        summed = (
            watch.norm_taking(projected.reshape(hidden.shape) + hidden, parts) if fits else None
        )
        return TransformerBlock(
            attention, inner, projection, reading, writing, None, None, 0.0, summed
        )
    other, factor = fitted
    return TransformerBlock(attention, inner, projection, reading, writing, own, other, factor)


def _branches(
    watch: _Watch, gain: Tensor, own: nn.Module, candidates: list[nn.Module]
) -> tuple[nn.Module | None, float] | None:
    """The module whose output, with that of attention, is what the layer adds, and the factor on
    both."""
    a = watch.given[own]
    if a.numel() != gain.numel():  # a bottleneck: the layer works in another width
        return None
    a = a.reshape(gain.shape)
    factor = float((gain * a).sum() / (a * a).sum().clamp(min=1e-30))
    if watch.same(factor * a, gain):
        return None, factor
    best: tuple[float, nn.Module, float] | None = None
    for other in candidates:
        both = a + watch.given[other].reshape(a.shape)
        factor = float((gain * both).sum() / (both * both).sum().clamp(min=1e-30))
        difference = float((factor * both - gain).abs().max())
        if best is None or difference < best[0]:
            best = difference, other, factor
    if best is None or best[0] > watch.close * max(1e-6, float(gain.abs().max())):
        return None
    return best[1], best[2]


def read_norm(module: nn.Module, taken: Tensor, given: Tensor, close: float = CLOSE) -> Norm | None:
    """What a module computes, if that is a norm over the last dim; None else. Checked on what it
    took and gave."""
    if list(module.children()) or taken.shape != given.shape:
        return None
    width, parameter = taken.shape[-1], next(module.parameters(), None)
    if parameter is not None and (parameter.ndim != 1 or parameter.shape[0] != width):
        return None
    own = {
        name: weight_in(module, name, p).double().to(taken.device)
        for name, p in module.named_parameters()
    }
    stored = next((p for name, p in own.items() if "bias" not in name), None)
    zero = torch.zeros(width, dtype=torch.float64, device=taken.device)
    gains = (
        [zero + 1] if stored is None else [stored, stored + 1]
    )  # as it is, or with one added (Gemma)
    bias = next((p for name, p in own.items() if "bias" in name), zero)
    x = taken.double()
    for centred in (True, False) if isinstance(module, nn.LayerNorm) else (False, True):
        y = x - x.mean(-1, keepdim=True) if centred else x
        for epsilon in {float(value) for key, value in vars(module).items() if "eps" in key} or {
            1e-5
        }:
            unit = y / (y.square().mean(-1, keepdim=True) + epsilon).sqrt()
            for gain in gains:
                if _same(unit * gain + bias, given.double(), close):
                    return Norm(module, gain.float(), bias.float(), centred, epsilon)
    return None


def _same(a: Tensor, b: Tensor, close: float) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= close * b.abs().max().clamp(min=1e-6))


def _with_head(
    model: HeadModel, watch: _Watch, blocks: tuple[TransformerBlock, ...], output: Any
) -> Structure:
    """The way from the last layer to the scores, or why there is none."""
    if output is None:
        return Structure(blocks, refusal=f"{model.name} has no head that predicts the next token")
    post = next((i for i, block in enumerate(blocks) if block.attention is None), None)
    if post is not None:
        reason = (
            f"layer {post} of {model.name} does not add what its heads write to what enters it (it normalises the sum, "
            "or scales it), so no part of its logits is theirs alone"
        )
        return Structure(blocks, refusal=reason)
    head = model.module.get_output_embeddings()
    if head is None or head not in watch.given:
        return Structure(blocks, refusal=f"{model.name} has no output matrix that can be read")
    last = list(model.sites.entries)[-1]
    final = watch.norm_giving(
        watch.taken[head], [m for m in watch.given if m not in set(last.modules())]
    )
    if final is None or not watch.same(watch.taken[final.module], watch.given[last]):
        what = (
            f"the output matrix of {model.name} does not read a norm of what leaves the last layer"
        )
        return Structure(blocks, refusal=what)
    given, scores = watch.given[head].double(), output.logits.detach().double()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    plain = torch.atanh((scores / cap).clamp(-1 + 1e-12, 1 - 1e-12)) * cap if cap else scores
    times = float((plain * given).sum() / given.square().sum())
    if not _same(times * given, plain, 10 * watch.close):
        what = f"{model.name} changes its scores after the output matrix in a way that headwise does not know"
        return Structure(blocks, refusal=what)
    return Structure(blocks, final, head, times, None if cap is None else float(cap))


def affine(call: Callable[[Tensor], Tensor], width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Matrix `[in, out]` and bias `[out]` of a module that is linear: what it gives for zero and
    for each direction."""
    eye = torch.eye(width, dtype=like.dtype, device=like.device)
    if (
        isinstance(call, nn.Module)
        and (own := next(call.parameters(), None)) is not None
        and not own.is_meta
    ):
        eye = eye.to(own.device)
    with torch.no_grad():
        bias = call(torch.zeros_like(eye[:1]))[0].to(like.device)
        return call(eye).to(like.device) - bias, bias
