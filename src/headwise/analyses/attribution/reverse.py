"""The slow reference: Jacobian blocks by reverse mode, one gradient for each dimension of each
output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.analyses.attribution.forward import SquaredNorms
from headwise.analyses.attribution.hooked_pass import HookedPass, StopPass, token_pair_mask
from headwise.models import HeadModel
from headwise.models.interventions import InterventionPlan, attend_by_plan
from headwise.models.tap import Call
from headwise.text.encode import Batch

# Output numbers that are differentiated together, or more while their gradients stay small.
MIN_TOGETHER = 64
SMALL_GRADIENTS = 2**21  # numbers


class GradientGraph(HookedPass):
    """One pass with gradients: leaves at the input (or at every layer), outputs of heads and layers
    kept.

    Parameters
    ----------
    model : HeadModel
        In float32 or better.
    every_layer : bool
        Whether each layer's input is a leaf, or only the first one's.
    plan : InterventionPlan, optional
        Interventions on heads. Of a head, the output before its replacement is kept.
    last : int, optional
        The last layer of interest: the pass ends there.

    Attributes
    ----------
    leaf_inputs, outputs, hidden : list of Tensor
        The leaves, the head outputs `[example, head, token, d_head]` and what leaves each layer.
    """

    def __init__(
        self,
        model: HeadModel,
        every_layer: bool,
        plan: InterventionPlan | None = None,
        last: int | None = None,
    ) -> None:
        super().__init__(model)
        self.every_layer = every_layer
        self.plan = plan or {}
        self.last = last
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
    plan: InterventionPlan | None = None,
    last: int | None = None,
) -> GradientGraph:
    """Run the model once with a graph from its input to all head outputs.

    Parameters
    ----------
    model : HeadModel
        In float32 or better.
    batch : Batch
        The inputs; with a plan, only one.
    source : {"input", "previous_layer"}, default "input"
        Whether the graph starts at E[0], or anew at each E[l].
    plan : InterventionPlan, optional
        Interventions on heads.
    last : int, optional
        The last layer of interest.
    """
    graph = GradientGraph(model, source == "previous_layer", plan, last)
    trainable = [p for p in model.module.parameters() if p.requires_grad]
    try:
        # Gradients of parameters are not needed and would keep more of the graph in memory.
        for parameter in trainable:
            parameter.requires_grad_(False)
        with torch.enable_grad():
            graph.run(batch)
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
    return graph


def reverse_squared_norms(
    model: HeadModel, batch: Batch, *, source: str = "input", layer_output: bool = False
) -> SquaredNorms:
    """Return what `exact_squared_norms` and `previous_layer_squared_norms` do, by one gradient for
    each output number."""
    graph = reverse_graph(model, batch, source)
    n_examples, n = batch.ids.shape
    shape = (n_examples, model.layers, model.heads, n, n)
    heads = torch.zeros(shape, dtype=torch.float64, device=model.device)
    layers = torch.zeros_like(heads[:, :, 0]) if layer_output else None
    for layer in range(model.layers):
        leaf = graph.leaf_inputs[layer if source == "previous_layer" else 0]
        heads[:, layer] = jacobian_squared_norms(graph.outputs[layer], leaf)
        if layers is not None:
            layers[:, layer] = jacobian_squared_norms(graph.hidden[layer], leaf)
    mask = token_pair_mask(batch).double()
    if layers is not None:
        layers = layers * mask[:, None]
    return SquaredNorms(heads * mask[:, None, None], layers)


def jacobian_squared_norms(output: Tensor, leaf: Tensor) -> Tensor:
    """Return the squared norms of the Jacobian blocks of each output vector with respect to each
    source token: `[example, ..., source]` from `output[example, ..., size]`."""
    size = output.shape[-1]
    numbers = output.flatten(1)
    n_numbers = numbers.shape[1]
    total = numbers.new_zeros(len(output), n_numbers // size, leaf.shape[1], dtype=torch.float64)
    step = max(MIN_TOGETHER, SMALL_GRADIENTS // max(leaf.numel(), 1))
    for start in range(0, n_numbers, step):
        chosen = torch.arange(start, min(start + step, n_numbers), device=output.device)
        one_hot = nn.functional.one_hot(chosen, n_numbers).to(output.dtype)
        directions = one_hot[:, None, :].expand(-1, *numbers.shape)
        squares = gradients(numbers, directions, leaf).double().square().sum(-1)
        total.index_add_(1, chosen // size, squares.transpose(0, 1))
    return total.reshape(*output.shape[:-1], leaf.shape[1])


def gradients(output: Tensor, directions: Tensor, leaf: Tensor) -> Tensor:
    """Return the gradients of `Σ direction · output`, `[direction, *leaf]`: all at once if torch
    can, else one by one."""
    try:
        (batched,) = torch.autograd.grad(
            output, leaf, directions, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
    except (RuntimeError, NotImplementedError):
        single_gradients = []
        for direction in directions:
            (gradient,) = torch.autograd.grad(
                output, leaf, direction, retain_graph=True, allow_unused=True
            )
            single_gradients.append(torch.zeros_like(leaf) if gradient is None else gradient)
        return torch.stack(single_gradients)
    if batched is None:
        return leaf.new_zeros(len(directions), *leaf.shape)
    return batched
