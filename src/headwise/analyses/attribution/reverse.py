"""The slow reference: Jacobian blocks by reverse mode, one gradient for each dimension of each
output."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from headwise.analyses.attribution.forward import SquaredNorms
from headwise.analyses.attribution.hooked_pass import HookedPass, StopPass, token_pair_mask
from headwise.models import HeadModel
from headwise.models.interventions import Plan, attend_by_plan
from headwise.models.tap import Call
from headwise.text.encode import Batch

AT_ONCE = 64  # directions that go back together, or more where all that they leave at the input stays small
SMALL = 2**21  # numbers


class GradientGraph(HookedPass):
    """One pass with gradients: leaves at the input (or at every layer), outputs of heads and layers
    kept.

    Parameters
    ----------
    model : HeadModel
        Whose pass it is.
    every_layer : bool
        Whether each layer's input is a leaf, or the first one's alone.
    plan : Plan, optional
        Heads that are changed. What is kept of a head is what it gives before its output is
        replaced.
    last : int, optional
        The last layer of interest: the pass ends there.
    """

    def __init__(
        self, model: HeadModel, every_layer: bool, plan: Plan | None = None, last: int | None = None
    ) -> None:
        super().__init__(model)
        self.every_layer, self.plan, self.last = every_layer, plan or {}, last
        self.leaf_inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.hidden: list[Tensor] = []

    def on_layer_input(self, layer: int, hidden: Tensor) -> Tensor | None:
        if layer:
            self.hidden.append(hidden)
        if layer and not self.every_layer:
            return None
        leaf = hidden.detach().clone().requires_grad_()
        self.leaf_inputs.append(leaf)
        return leaf

    def on_head_outputs(self, layer: int, call: Call, output: Tensor) -> None:
        self.outputs.append(output)
        if layer == self.last:
            raise StopPass

    def attend_layer(self, layer: int, call: Call) -> tuple[Tensor, Tensor | None]:
        plan = self.plan.get(layer)
        if plan is None:
            return super().attend_layer(layer, call)
        output, changed, weights = attend_by_plan(call, plan)
        self.on_head_outputs(layer, call, output)
        return changed.transpose(1, 2).contiguous(), weights

    def on_last_output(self, hidden: Tensor) -> None:
        self.hidden.append(hidden)


def reverse_graph(
    model: HeadModel,
    batch: Batch,
    source: str = "input",
    plan: Plan | None = None,
    last: int | None = None,
) -> GradientGraph:
    """Run the model once with a graph from E[0] (or from each E[l], for `previous_layer`) to all
    head outputs, with heads changed by a plan (batches of one example only), up to a layer."""
    graph = GradientGraph(model, source == "previous_layer", plan, last)
    frozen = [p for p in model.module.parameters() if p.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(False)
        with torch.enable_grad():
            graph.run(batch)
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
    return graph


def reverse_squared_norms(
    model: HeadModel, batch: Batch, *, source: str = "input", layer_output: bool = False
) -> SquaredNorms:
    """What `exact_squared_norms` and `previous_layer_squared_norms` give, by one gradient for each output number."""
    graph = reverse_graph(model, batch, source)
    examples, n = batch.ids.shape
    heads = torch.zeros(
        examples, model.layers, model.heads, n, n, dtype=torch.float64, device=model.device
    )
    layers = torch.zeros_like(heads[:, :, 0]) if layer_output else None
    for layer in range(model.layers):
        leaf = graph.leaf_inputs[layer if source == "previous_layer" else 0]
        heads[:, layer] = jacobian_squared_norms(graph.outputs[layer], leaf)
        if layers is not None:
            layers[:, layer] = jacobian_squared_norms(graph.hidden[layer], leaf)
    pairs = token_pair_mask(batch).double()
    return SquaredNorms(
        heads * pairs[:, None, None], None if layers is None else layers * pairs[:, None]
    )


def jacobian_squared_norms(output: Tensor, leaf: Tensor) -> Tensor:
    """`[example, ..., source]` from vectors `[example, ..., size]`: the gradients of each one's
    numbers at each source."""
    numbers, size = output.flatten(1), output.shape[-1]
    total = numbers.new_zeros(
        len(output), numbers.shape[1] // size, leaf.shape[1], dtype=torch.float64
    )
    step = max(AT_ONCE, SMALL // max(leaf.numel(), 1))
    for start in range(0, numbers.shape[1], step):
        some = torch.arange(start, min(start + step, numbers.shape[1]), device=output.device)
        chosen = nn.functional.one_hot(some, numbers.shape[1]).to(output.dtype)
        found = gradients(numbers, chosen[:, None, :].expand(-1, *numbers.shape), leaf)
        total.index_add_(1, some // size, found.double().square().sum(-1).transpose(0, 1))
    return total.reshape(*output.shape[:-1], leaf.shape[1])


def gradients(output: Tensor, directions: Tensor, leaf: Tensor) -> Tensor:
    """Gradients of `Σ direction · output`, `[direction, *leaf]`: all at once where torch can, else
    one by one."""
    try:
        (found,) = torch.autograd.grad(
            output, leaf, directions, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
    except (RuntimeError, NotImplementedError):
        each: Iterable[Tensor | None] = (
            torch.autograd.grad(output, leaf, d, retain_graph=True, allow_unused=True)[0]
            for d in directions
        )
        return torch.stack([torch.zeros_like(leaf) if g is None else g for g in each])
    return leaf.new_zeros(len(directions), *leaf.shape) if found is None else found
