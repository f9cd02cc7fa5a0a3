"""The parts of a model: the norms around its branches, its output projections, its way to the
logits.

No names of modules are used. A few tokens run through the model while every module is recorded; a
module is what its numbers say: a norm if it computes one, an output projection if its input is the
heads' outputs, a branch if the layer adds its output to what entered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
    """A norm: `gain · (x − mean x) / scale + bias`; without the mean unless it is `centred`."""

    module: nn.Module
    gain: Tensor
    bias: Tensor
    centred: bool
    epsilon: float

    def middle(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return x less its mean if the norm is centred, else x."""
        if not self.centred:
            return x
        return x - x.mean(dim, keepdim=True)

    def scale(self, x: Tensor) -> Tensor:
        """Return what the norm divides by, `[..., 1]`."""
        return (self.middle(x).square().mean(-1, keepdim=True) + self.epsilon).sqrt()

    def pulled(self, direction: Tensor, scale: Tensor) -> Tensor:
        """Return the direction before the norm that a direction after it reads, at this scale:
        `⟨direction, norm(x)⟩ = ⟨pulled, x⟩ + ⟨direction, bias⟩`."""
        return self.middle(direction * self.gain / scale)


@dataclass(frozen=True, slots=True, eq=False)
class FeedForwardInput:
    """Where the feed-forward branch of a layer reads the residual stream.

    `module` is the first module of the branch, `norm` the one before it (None: it reads the bare
    stream). `after_attention` says whether it reads what the layer's own heads have written; in
    parallel layers it does not."""

    module: nn.Module
    norm: Norm | None
    after_attention: bool


@dataclass(frozen=True, slots=True, eq=False)
class TransformerBlock:
    """One layer: `output = hidden + factor · (attention branch + other branch)`; each branch is
    what a module gives.

    `projection` takes the joined head outputs; `reading` is the norm before attention, `writing`
    the one after its projection; None where there is none. `inner` are norms inside attention, of
    queries and keys. `attention`, `other` are None where the layer adds no such branch: then
    `summed` is the norm that takes the sum of what entered and what the heads write (post-norm),
    None where no norm does. `feed` says where the other branch reads the residual stream, None
    where that is not known."""

    module: nn.Module
    inner: tuple[Norm, ...]
    projection: nn.Module
    reading: Norm | None
    writing: Norm | None
    attention: nn.Module | None
    other: nn.Module | None
    factor: float
    summed: Norm | None = None
    feed: FeedForwardInput | None = None

    def written(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return matrix `[head · d_head, width]` and bias of the projection, for outputs `[example,
        head, token, d_head]`."""
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


class _ModuleRecorder(Watcher):
    """Records the input and output of every module in one run, and the heads' outputs.

    `tolerance` is relative to the largest value; `rounding` is the relative error of one number in
    the precision of the model."""

    needs = frozenset({"outputs", "hidden"})

    def __init__(self, tolerance: float, rounding: float, device: torch.device) -> None:
        self.tolerance = tolerance
        self.rounding = rounding
        self.device = device
        self.inputs: dict[nn.Module, Tensor] = {}
        self.outputs: dict[nn.Module, Tensor] = {}
        self.layers: list[Layer] = []
        self._norms: dict[nn.Module, Norm | None] = {}

    def on_layer(self, layer: Layer) -> None:
        self.layers.append(layer)

    def same(self, first: Tensor, second: Tensor) -> bool:
        """Return whether two tensors are the same, except for rounding."""
        return _same(first, second, self.tolerance)

    def norm(self, module: nn.Module) -> Norm | None:
        """Return the norm that a module computes; None if it computes something else."""
        if module not in self._norms:
            self._norms[module] = read_norm(
                module, self.inputs[module], self.outputs[module], self.tolerance
            )
        return self._norms[module]

    def norm_with_output(self, value: Tensor, parts: Iterable[nn.Module]) -> Norm | None:
        """Return the first norm among these modules whose output this is."""
        return self._norm_with(self.outputs, value, parts)

    def norm_with_input(self, value: Tensor, parts: Iterable[nn.Module]) -> Norm | None:
        """Return the first norm among these modules whose input this is."""
        return self._norm_with(self.inputs, value, parts)

    def _norm_with(
        self, recorded: Mapping[nn.Module, Tensor], value: Tensor, parts: Iterable[nn.Module]
    ) -> Norm | None:
        for part in parts:
            if self.same(recorded[part], value):
                norm = self.norm(part)
                if norm is not None:
                    return norm
        return None

    @contextmanager
    def hooked(self, module: nn.Module) -> Iterator[None]:
        """Record all parts of a module for a `with` block."""
        record = only_in_this_thread(self._record)
        with ExitStack() as stack:
            for part in module.modules():
                stack.callback(part.register_forward_hook(record, with_kwargs=True).remove)
            yield

    def _record(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        result = output if isinstance(output, Tensor) else _first_tensor(output)
        tensors = []
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor) and value.is_floating_point():
                tensors.append(value)
        if not tensors or result is None or not result.is_floating_point():
            return
        # Some layers flatten examples and tokens before their feed-forward part.
        taken = next((tensor for tensor in tensors if tensor.ndim >= 3), tensors[0])
        # Copies: some models add in place.
        self.inputs.setdefault(module, taken.detach().float().to(self.device, copy=True))
        self.outputs.setdefault(module, result.detach().float().to(self.device, copy=True))


def _first_tensor(output: Any) -> Tensor | None:
    values = output if isinstance(output, tuple | list) else getattr(output, "values", tuple)()
    return next((value for value in values if isinstance(value, Tensor)), None)


def find_structure(model: HeadModel) -> Structure:
    """Find the parts of a model by running twelve tokens through it."""
    if model.encoder_part is not None:
        raise ModelError(
            f"{model.name} is an encoder-decoder: its weights are not followed to the logits."
        )
    has_logits = model.lm_kind == "causal"
    recorder, output = _record_run(model, has_logits)
    if any(len(site.layers) > 1 for site in model.sites.by_module.values()):
        raise ModelError(
            f"The layers of {model.name} share modules, so their weights cannot be told apart."
        )
    blocks = tuple(_blocks(model, recorder))
    if not has_logits:
        return Structure(blocks, refusal=f"{model.name} has no language-modelling head")
    return _with_head(model, recorder, blocks, output)


def find_blocks(model: HeadModel) -> list[TransformerBlock]:
    """Find the layers alone, by number; layers that share modules have the same block. Serves
    encoders of encoder-decoders too."""
    recorder, _ = _record_run(model, logits=False)
    return _blocks(model, recorder)


def _record_run(model: HeadModel, logits: bool) -> tuple[_ModuleRecorder, Any]:
    vocabulary = getattr(model.module.get_input_embeddings(), "num_embeddings", 100)
    ids = (torch.arange(12, device=model.device).view(2, 6) * 37 + 5) % vocabulary
    attention_mask = torch.ones_like(ids, dtype=torch.bool)
    is_half = model.dtype in (torch.float16, torch.bfloat16)
    tolerance = CLOSE_HALF if is_half else CLOSE
    recorder = _ModuleRecorder(tolerance, torch.finfo(model.dtype).eps, model.device)
    session = Session(model.sites, attention_mask, recorder)
    with torch.no_grad(), model.evaluating(), recorder.hooked(model.module), session.running():
        output = model.run(ids, attention_mask, torch.zeros_like(ids), logits=logits)
    return recorder, output


def _blocks(model: HeadModel, recorder: _ModuleRecorder) -> list[TransformerBlock]:
    blocks: dict[int, TransformerBlock] = {}
    for attention, site in model.sites.by_module.items():
        if site.entry is None:
            raise ModelError(
                f"The layers of {model.name} share modules, so their weights cannot be told apart."
            )
        block = _block(recorder, recorder.layers[site.layers[0]], attention, site.entry)
        for layer in site.layers:
            blocks[layer] = block
    return [blocks[layer] for layer in range(model.layers)]


def _block(
    recorder: _ModuleRecorder, layer: Layer, attention: nn.Module, entry: nn.Module
) -> TransformerBlock:
    parts = [part for part in entry.modules() if part in recorder.outputs]
    projection = _projection(recorder, layer, attention, parts)
    hidden = recorder.inputs[entry]
    attention_input = recorder.inputs.get(attention, hidden)
    reading = recorder.norm_with_output(attention_input, parts)
    if reading is not None and not recorder.same(recorder.inputs[reading.module], hidden):
        reading = None
    inner = []
    for part in attention.modules():
        norm = recorder.norm(part) if part in recorder.outputs else None
        if norm is not None:
            inner.append(norm)
    projected = recorder.outputs[projection]
    writing = recorder.norm_with_input(projected, parts)

    added = recorder.outputs[entry] - hidden
    candidates = []
    for part in parts:
        if part is not entry and recorder.outputs[part].numel() == added.numel():
            candidates.append(part)
    branch = projection if writing is None else writing.module
    # What the layer added is the difference of two rounded sums: where the residual stream is large
    # beside it (deep layers, massive activations), their rounding is its error.
    rounding = 2 * recorder.rounding * (hidden.abs() + recorder.outputs[entry].abs())
    allowed = recorder.tolerance * added.abs().max().clamp(min=1e-6) + rounding
    fitted = _fit_branches(recorder, added, allowed, branch, candidates)
    if fitted is None and writing is not None:
        # The norm after the projection may belong to another branch.
        branch = projection
        writing = None
        fitted = _fit_branches(recorder, added, allowed, branch, candidates)
    if fitted is None:
        summed = None
        if projected.numel() == hidden.numel():
            summed = recorder.norm_with_input(projected.reshape(hidden.shape) + hidden, parts)
        return TransformerBlock(
            module=attention,
            inner=tuple(inner),
            projection=projection,
            reading=reading,
            writing=writing,
            attention=None,
            other=None,
            factor=0.0,
            summed=summed,
        )
    other, factor = fitted
    feed = None
    if other is not None:
        after_attention = hidden + factor * recorder.outputs[branch].reshape(hidden.shape)
        feed = _feed_forward_input(recorder, hidden, after_attention, attention, entry, parts)
    return TransformerBlock(
        module=attention,
        inner=tuple(inner),
        projection=projection,
        reading=reading,
        writing=writing,
        attention=branch,
        other=other,
        factor=factor,
        feed=feed,
    )


def _feed_forward_input(
    recorder: _ModuleRecorder,
    hidden: Tensor,
    after_attention: Tensor,
    attention: nn.Module,
    entry: nn.Module,
    parts: list[nn.Module],
) -> FeedForwardInput | None:
    """Find the first module of the feed-forward branch: the outermost one outside attention that
    reads the residual stream, before or after attention, through a norm or bare."""
    in_attention = set(attention.modules())
    outside = []
    for part in parts:
        contains_attention = attention in set(part.modules())
        if part not in in_attention and not contains_attention:
            outside.append(part)
    # Layers in sequence first: if attention writes nothing, both streams are the same.
    for stream, is_after in ((after_attention, True), (hidden, False)):
        other_stream = hidden if is_after else after_attention
        norms = []
        for part in outside:
            if _nearest(recorder, recorder.inputs[part], stream, other_stream):
                norm = recorder.norm(part)
                if norm is not None:
                    norms.append(norm)
        norm_modules = {norm.module for norm in norms}
        for part in outside:  # the outermost modules come first
            if part in norm_modules:
                continue
            taken = recorder.inputs[part]
            if taken.numel() != stream.numel():
                continue
            taken = taken.reshape(stream.shape)
            for norm in norms:
                normed = recorder.outputs[norm.module].reshape(stream.shape)
                if recorder.same(taken, normed):
                    return FeedForwardInput(part, norm, is_after)
            if _nearest(recorder, taken, stream, other_stream):
                return FeedForwardInput(part, None, is_after)
    return None


def _nearest(recorder: _ModuleRecorder, values: Tensor, stream: Tensor, other: Tensor) -> bool:
    """Return whether values are a stream, except for rounding, and no nearer to the other one.

    In half precision both may be within rounding of the largest value."""
    if not recorder.same(values, stream):
        return False
    distance = float((values - stream).abs().mean())
    other_distance = float((values - other).abs().mean())
    return distance <= other_distance


def _projection(
    recorder: _ModuleRecorder, layer: Layer, attention: nn.Module, parts: list[nn.Module]
) -> nn.Module:
    """Return the output projection: the first module without parts of its own whose input is the
    joined outputs of the heads."""
    assert layer.outputs is not None
    joined = layer.outputs.transpose(1, 2).flatten(2).float()
    for part in parts:
        passes_through = type(part).__name__ in ("Dropout", "Identity")
        if passes_through or list(part.children()):
            continue
        if recorder.same(recorder.inputs[part], joined):
            return part
    raise ModelError(
        f"{type(attention).__name__} has no module that takes the joined outputs of its heads."
    )


def _fit_branches(
    recorder: _ModuleRecorder,
    added: Tensor,
    allowed: Tensor,
    branch: nn.Module,
    candidates: list[nn.Module],
) -> tuple[nn.Module | None, float] | None:
    """Find the module whose output, with that of the attention branch, is what the layer adds.

    Parameters
    ----------
    recorder : _ModuleRecorder
        A run.
    added, allowed : Tensor
        What the layer adds, and how far from it a fit may be, by element.
    branch : Module
        The attention branch.
    candidates : list of Module
        Modules of the layer whose outputs have the right size.

    Returns
    -------
    tuple or None
        The module (None if attention alone is added) and the factor on both; None if no module
        fits.
    """
    attention = recorder.outputs[branch]
    if attention.numel() != added.numel():  # a bottleneck: the layer works in another width
        return None
    attention = attention.reshape(added.shape)
    factor = _fit_factor(added / allowed, attention / allowed, recorder.tolerance)
    if recorder.same(factor * attention, added):
        return None, factor
    smallest = torch.inf
    best: tuple[nn.Module, float] | None = None
    for other in candidates:
        both = attention + recorder.outputs[other].reshape(attention.shape)
        # Elements count by how well they are known.
        factor = _fit_factor(added / allowed, both / allowed, recorder.tolerance)
        misfit = float(((factor * both - added).abs() / allowed).max())
        if best is None or misfit < smallest:
            smallest = misfit
            best = (other, factor)
    if best is None or not smallest <= 1:
        return None
    return best


def _fit_factor(target: Tensor, values: Tensor, tolerance: float) -> float:
    """Return the factor that brings values closest to the target, by least squares; 1 if it is 1
    but for rounding."""
    factor = float((target * values).sum() / (values * values).sum().clamp(min=1e-30))
    return 1.0 if abs(factor - 1) < tolerance else factor


def read_norm(
    module: nn.Module, inputs: Tensor, outputs: Tensor, tolerance: float = CLOSE
) -> Norm | None:
    """Return what a module computes if it is a norm over the last dim, else None.

    Parameters
    ----------
    module : Module
        The module.
    inputs, outputs : Tensor
        Its input and output in a run; the norm must reproduce them.
    tolerance : float, default 1e-4
        Relative.
    """
    if list(module.children()) or inputs.shape != outputs.shape:
        return None
    width = inputs.shape[-1]
    parameter = next(module.parameters(), None)
    if parameter is not None and (parameter.ndim != 1 or parameter.shape[0] != width):
        return None
    bias = torch.zeros(width, dtype=torch.float64, device=inputs.device)
    gains = [torch.ones_like(bias)]
    has_gain = has_bias = False
    for name, stored in module.named_parameters():
        values = weight_in(module, name, stored).double().to(inputs.device)
        if "bias" in name:
            bias = bias if has_bias else values
            has_bias = True
        elif not has_gain:
            gains = [values, values + 1]  # as stored, or with one added (Gemma)
            has_gain = True
    epsilons = {float(value) for name, value in vars(module).items() if "eps" in name} or {1e-5}
    x = inputs.double()
    for centred in (True, False) if isinstance(module, nn.LayerNorm) else (False, True):
        y = x - x.mean(-1, keepdim=True) if centred else x
        for epsilon in epsilons:
            unit = y / (y.square().mean(-1, keepdim=True) + epsilon).sqrt()
            for gain in gains:
                if _same(unit * gain + bias, outputs.double(), tolerance):
                    return Norm(module, gain.float(), bias.float(), centred, epsilon)
    return None


def _same(first: Tensor, second: Tensor, tolerance: float) -> bool:
    if first.shape != second.shape:
        return False
    largest = second.abs().max().clamp(min=1e-6)
    return bool((first - second).abs().max() <= tolerance * largest)


def _with_head(
    model: HeadModel, recorder: _ModuleRecorder, blocks: tuple[TransformerBlock, ...], output: Any
) -> Structure:
    """Add the way from the last layer to the logits, or the reason why there is none."""
    for number, block in enumerate(blocks):
        if block.attention is None:
            reason = (
                f"layer {number} of {model.name} does not add what its heads write to what enters "
                "it (it normalises the sum, or scales it), so no part of its logits is theirs alone"
            )
            return Structure(blocks, refusal=reason)
    head = model.module.get_output_embeddings()
    if head is None or head not in recorder.outputs:
        return Structure(blocks, refusal=f"{model.name} has no output matrix that can be read")
    last = list(model.sites.entries)[-1]
    in_last = set(last.modules())
    outside = [module for module in recorder.outputs if module not in in_last]
    final = recorder.norm_with_output(recorder.inputs[head], outside)
    if final is None or not recorder.same(recorder.inputs[final.module], recorder.outputs[last]):
        reason = (
            f"the output matrix of {model.name} does not read a norm of what leaves the last layer"
        )
        return Structure(blocks, refusal=reason)
    head_scores = recorder.outputs[head].double()
    scores = output.logits.detach().double()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if cap:
        scores = torch.atanh((scores / cap).clamp(-1 + 1e-12, 1 - 1e-12)) * cap
    times = float((scores * head_scores).sum() / head_scores.square().sum())
    if not _same(times * head_scores, scores, 10 * recorder.tolerance):
        reason = (
            f"{model.name} changes its scores after the output matrix in a way that headwise does "
            "not know"
        )
        return Structure(blocks, refusal=reason)
    return Structure(blocks, final, head, times, None if cap is None else float(cap))


def affine(call: Callable[[Tensor], Tensor], width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return matrix `[in, out]` and bias `[out]` of a linear module: its outputs for zero and for
    each direction."""
    directions = torch.eye(width, dtype=like.dtype, device=like.device)
    if isinstance(call, nn.Module):
        parameter = next(call.parameters(), None)
        if parameter is not None and not parameter.is_meta:
            directions = directions.to(parameter.device)
    with torch.no_grad():
        bias = call(torch.zeros_like(directions[:1]))[0].to(like.device)
        return call(directions).to(like.device) - bias, bias
