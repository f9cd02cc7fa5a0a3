"""The residual stream as a graph: what each part writes into it, and through which inputs the parts
above read it.

Senders are the embedding, every head and every feed-forward part (MLP). Receivers are the query, key
and value input of every head, the input of every MLP, and the logits. An edge is the term that a
sender adds to the input of a receiver.

Three questions are answered here for a batch of inputs without padding:

- `ResidualGraph.edge_attribution`: what every edge would change, to first order, all edges at once;
- `ResidualGraph.patched_path`: what one edge changes, exactly;
- `ResidualGraph.run_circuit`: what the model computes when only some edges are live.

No names of modules are used: the places where the stream is read are found by `find_structure`, and
which outputs of the input projections belong to which head is found by a backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.core.errors import ModelError, ParameterError
from headwise.core.labels import head_name
from headwise.models.forward_call import only_in_this_thread
from headwise.models.headmodel import HeadModel
from headwise.models.session import BLOCK_BYTES, at_least_float32
from headwise.models.sites import LayerCount, Sites, hidden_input, replaced
from headwise.models.structure import Norm, TransformerBlock, affine, find_structure
from headwise.models.tap import Call, FormedCall, TapSession, use_session
from headwise.models.weights import capture_call
from headwise.text.encode import Batch

ROLES = ("query", "key", "value")
EMBEDDING = "embedding"
LOGITS = "logits"
POINTS_AT_ONCE = 8  # whose gradients are held at once, each as large as the activations of a run
Skipping = Callable[[int, Any], AbstractContextManager[None]]  # see `patched_path`
Metric = Callable[[Tensor], Tensor]  # logits of the last tokens [example, vocabulary] to [example]


# --- nodes and edges ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edges:
    """All edges of a model, in one order: layer by layer those into its heads (by sender, then
    query, key and value of every head), then those into its MLP; at the end those into the logits.

    Senders are numbered: 0 is the embedding, then each layer's heads and its MLP.

    Parameters
    ----------
    layers, heads : int
        Sizes of the model.
    has_mlp : tuple of bool
        Which layers have a feed-forward part.
    mlp_after_heads : tuple of bool
        Whether the MLP of a layer reads what the layer's own heads write.
    """

    layers: int
    heads: int
    has_mlp: tuple[bool, ...]
    mlp_after_heads: tuple[bool, ...]

    @property
    def n_senders(self) -> int:
        return 1 + self.layers * (self.heads + 1)

    def head(self, layer: int, head: int) -> int:
        """Return the number of a head as a sender."""
        return 1 + layer * (self.heads + 1) + head

    def mlp(self, layer: int) -> int:
        """Return the number of an MLP as a sender."""
        return 1 + layer * (self.heads + 1) + self.heads

    def below_heads(self, layer: int) -> int:
        """Return how many senders the heads of a layer read: the first so many."""
        return 1 + layer * (self.heads + 1)

    def below_mlp(self, layer: int) -> int:
        """Return how many senders the MLP of a layer reads."""
        own_heads = self.heads if self.mlp_after_heads[layer] else 0
        return self.below_heads(layer) + own_heads

    @cached_property
    def sender_names(self) -> list[str]:
        names = [EMBEDDING]
        for layer in range(self.layers):
            names += [head_name(layer, head) for head in range(self.heads)]
            names.append(f"L{layer}MLP")
        return names

    @cached_property
    def parts(self) -> list[tuple[str, int, int, int]]:
        """The blocks of edges in order: ("heads" | "mlp" | "logits", layer, senders, receivers)."""
        parts = []
        for layer in range(self.layers):
            parts.append(("heads", layer, self.below_heads(layer), 3 * self.heads))
            if self.has_mlp[layer]:
                parts.append(("mlp", layer, self.below_mlp(layer), 1))
        parts.append(("logits", self.layers, self.n_senders, 1))
        return parts

    def __len__(self) -> int:
        return sum(senders * receivers for _, _, senders, receivers in self.parts)

    @cached_property
    def senders(self) -> np.ndarray:
        """The sender of every edge."""
        numbers = []
        for _, _, senders, receivers in self.parts:
            numbers.append(np.repeat(np.arange(senders), receivers))
        return np.concatenate(numbers)

    @cached_property
    def receivers(self) -> np.ndarray:
        """The receiver of every edge, numbered as senders are; the logits are `n_senders`."""
        numbers = []
        for kind, layer, senders, _ in self.parts:
            if kind == "heads":
                heads = self.head(layer, 0) + np.arange(self.heads)
                numbers.append(np.tile(np.tile(heads, 3), senders))
            elif kind == "mlp":
                numbers.append(np.full(senders, self.mlp(layer)))
            else:
                numbers.append(np.full(senders, self.n_senders))
        return np.concatenate(numbers)

    @cached_property
    def roles(self) -> np.ndarray:
        """The input of every edge: 0, 1, 2 for query, key, value; −1 where there is only one."""
        numbers = []
        for kind, _, senders, _ in self.parts:
            if kind == "heads":
                numbers.append(np.tile(np.repeat(np.arange(3), self.heads), senders))
            else:
                numbers.append(np.full(senders, -1))
        return np.concatenate(numbers)

    def name(self, edge: int) -> str:
        """Return an edge as text, like `L3H1 -> L5H2.key`."""
        return f"{self.sender_names[self.senders[edge]]} -> {self.receiver_name(edge)}"

    def receiver_name(self, edge: int) -> str:
        receiver = int(self.receivers[edge])
        if receiver == self.n_senders:
            return LOGITS
        role = int(self.roles[edge])
        name = self.sender_names[receiver]
        return name if role < 0 else f"{name}.{ROLES[role]}"

    def number(self, sender: str, receiver: str) -> int:
        """Return the number of an edge given by names: `"L3H1"`, `"L5H2.key"`, `"logits"`.

        The name of a head alone, without `.key`, stands for no edge: it has three inputs."""
        if sender not in self.sender_names:
            raise ParameterError(
                f"There is no sender '{sender}'; senders are 'embedding', heads ('L3H1') and "
                "feed-forward parts ('L3MLP')."
            )
        from_sender = np.flatnonzero(self.senders == self.sender_names.index(sender))
        for edge in from_sender:
            if self.receiver_name(int(edge)) == receiver:
                return int(edge)
        raise ParameterError(
            f"There is no edge from '{sender}' to '{receiver}'; receivers lie above their sender "
            "and are inputs of heads ('L5H2.query', 'L5H2.key', 'L5H2.value'), feed-forward parts "
            "('L5MLP') or 'logits'."
        )

    def split(self, values: np.ndarray | Tensor) -> dict[tuple[str, int], Any]:
        """Return values `[..., edge]` as blocks `[..., sender, receiver]` by (kind, layer)."""
        blocks = {}
        start = 0
        for kind, layer, senders, receivers in self.parts:
            stop = start + senders * receivers
            blocks[kind, layer] = values[..., start:stop].reshape(
                *values.shape[:-1], senders, receivers
            )
            start = stop
        return blocks

    def connected(self, live: np.ndarray) -> np.ndarray:
        """Return the live edges that lie on a path of live edges from the embedding to the logits.

        The others carry nothing: their sender gives what it gave in the corrupted run, or nothing
        that it changes reaches the logits."""
        is_reached = np.zeros(self.n_senders + 1, bool)
        is_reached[0] = True
        leads_to_logits = np.zeros(self.n_senders + 1, bool)
        leads_to_logits[self.n_senders] = True
        connected = np.zeros_like(live)
        # Nodes from the bottom up: whether its senders are reached is known before a node's turn.
        for node, edges in self._edges_into:
            carrying = edges[live[edges] & is_reached[self.senders[edges]]]
            connected[carrying] = True
            is_reached[node] = len(carrying) > 0
        for node, edges in reversed(self._edges_into):
            if leads_to_logits[node]:
                leads_to_logits[self.senders[edges[connected[edges]]]] = True
            else:
                connected[edges] = False
        return connected

    @cached_property
    def _edges_into(self) -> list[tuple[int, np.ndarray]]:
        """The edges into each receiver, in the order of the receivers."""
        order = np.argsort(self.receivers, kind="stable")
        nodes, starts = np.unique(self.receivers[order], return_index=True)
        return list(zip(nodes.tolist(), np.split(order, starts[1:]), strict=True))


# --- where heads read -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class HeadInputs:
    """How the heads of a layer read the residual stream.

    `norm` is the norm before them (None: they read the bare stream); `projections` the linear
    modules, whose outputs side by side are `normed stream @ matrix + bias`; `channels[role]` says
    which of these outputs belong to which (key/value) head, `[head, size]`."""

    norm: Norm | None
    projections: tuple[nn.Module, ...]
    sizes: tuple[int, ...]
    matrix: Tensor
    bias: Tensor
    channels: Mapping[str, Tensor]


class _ForwardSession(TapSession):
    """Computes a model's attention as it stands and keeps what the graph needs of each layer.

    Parameters
    ----------
    sites : Sites
        The attention modules.
    keep : {"outputs", "calls"}
        Head outputs, or calls with their gradient history.
    """

    def __init__(self, sites: Sites, keep: str) -> None:
        self.layer_count = LayerCount(sites)
        self.keep = keep
        self.outputs: dict[int, Tensor] = {}
        self.calls: dict[int, tuple[Call, Tensor, Tensor]] = {}

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        if self.keep == "outputs":
            output = call.output(BLOCK_BYTES)
            self.outputs[layer] = at_least_float32(output.transpose(1, 2))
            return output, None
        _reject_formed(call)
        key, value = call.repeated()
        output = attention_output(call.query, key, value, call)
        self.calls[layer] = (call, key, value)
        return output.transpose(1, 2).contiguous(), None


def attention_output(query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
    """Return head outputs `[example, head, token, d]` of a call with other queries, keys and values,
    one key and value for each query head."""
    changed = Call(
        call.module,
        query,
        key,
        value,
        call.mask,
        scaling=1.0,
        bias=call.bias,
        softcap=call.softcap,
        sinks=call.sinks,
        causal=call.causal,
    )
    changed.scaling = call.scaling  # it holds the module's own factor already
    weights, _ = changed.weights(key, 0, query.shape[2])
    return weights.to(value.dtype) @ value


def _reject_formed(call: Call) -> None:
    if isinstance(call, FormedCall):
        raise ModelError(
            f"{type(call.module).__name__} forms its attention weights itself, so the inputs of "
            "its queries and keys cannot be told apart."
        )


# --- the graph ------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Recording:
    """What every part wrote in one run, and what every part read.

    `contributions[example, sender, token, width]`; the residual stream that the heads of each layer
    read (`streams`), that each MLP reads (`feed_streams`, None without an MLP), that the final norm
    reads (`final`); `logits[example, vocabulary]` of the last tokens."""

    contributions: Tensor
    streams: list[Tensor]
    feed_streams: list[Tensor | None]
    final: Tensor
    logits: Tensor

    def at(self, positions: Tensor, otherwise: Recording) -> Recording:
        """Return the recording in the layout of another input: token t holds what this run had at
        `positions[example, t]`, or what `otherwise` has where that is −1."""
        in_place = torch.arange(self.final.shape[1], device=positions.device)
        if torch.equal(positions, in_place.expand(len(positions), -1)):
            return self  # contributions are large: not copied where no token moves
        missing = positions < 0
        index = positions.clamp(min=0)

        def moved(values: Tensor, others: Tensor) -> Tensor:
            # The token dim is the last but one.
            shape = (len(index), *[1] * (values.ndim - 3), index.shape[1], 1)
            places = index.view(shape).expand(*others.shape[:-1], values.shape[-1])
            return torch.where(missing.view(shape), others, values.gather(-2, places))

        feed_streams: list[Tensor | None] = []
        for values, others in zip(self.feed_streams, otherwise.feed_streams, strict=True):
            if values is None or others is None:
                feed_streams.append(None)
            else:
                feed_streams.append(moved(values, others))
        streams = []
        for stream, other_stream in zip(self.streams, otherwise.streams, strict=True):
            streams.append(moved(stream, other_stream))
        return Recording(
            contributions=moved(self.contributions, otherwise.contributions),
            streams=streams,
            feed_streams=feed_streams,
            final=moved(self.final, otherwise.final),
            logits=self.logits,
        )


@dataclass(slots=True, eq=False)
class InputGradients:
    """The gradients of a metric at one point by what every receiver reads, each with the residual
    stream there, `[example, token, width]`.

    `heads[layer]`: the gradients by what the projections give, by role `[group, member, example ·
    token, channel]`; `feeds[layer]` (None without an MLP) and `final`: by what the norm gives,
    `[example, token, width]`."""

    heads: list[tuple[dict[str, Tensor], Tensor]]
    feeds: list[tuple[Tensor, Tensor] | None]
    final: tuple[Tensor, Tensor]


class ResidualGraph:
    """The parts of a causal language model as senders and receivers of the residual stream.

    Parameters
    ----------
    model : HeadModel
        A causal language model whose layers add to the residual stream; others are rejected with
        the reason.
    """

    def __init__(self, model: HeadModel) -> None:
        if model.lm_kind != "causal":
            raise ModelError(
                f"'{model.name}' has no language-modelling head for the next token, so no path "
                "leads to its logits; choose a decoder."
            )
        structure = find_structure(model)
        if structure.refusal is not None or structure.final is None:
            raise ModelError(f"The parts of {model.name} form no graph: {structure.refusal}.")
        for layer, block in enumerate(structure.blocks):
            if block.other is not None and block.feed is None:
                raise ModelError(
                    f"It cannot be told where the feed-forward part of layer {layer} of "
                    f"{model.name} reads the residual stream."
                )
        self.model = model
        self.structure = structure
        self.blocks = structure.blocks
        self.final_norm = structure.final
        has_mlp = []
        after_heads = []
        for block in self.blocks:
            has_mlp.append(block.other is not None)
            after_heads.append(block.feed is not None and block.feed.after_attention)
        self.edges = Edges(model.layers, model.heads, tuple(has_mlp), tuple(after_heads))
        self._output_matrices: list[tuple[Tensor, Tensor]] = []
        for layer, block in enumerate(self.blocks):
            shape = (1, model.heads, 1, model.sites.d_heads[layer])
            dtype = torch.promote_types(model.dtype, torch.float32)
            like = torch.empty(shape, dtype=dtype, device=model.device)
            matrix, bias = block.written(like)
            matrix = matrix.view(model.heads, -1, matrix.shape[-1])  # head, d_head, width
            self._output_matrices.append((matrix, bias))

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker finds the parts of its own copy of the model again.
        return ResidualGraph, (self.model,)

    # --- running ----------------------------------------------------------------------------------

    def _check_batch(self, batch: Batch) -> None:
        if not bool(batch.attention_mask.all()):
            raise ParameterError("Inputs of a batch must have equally many tokens here.")

    @contextmanager
    def _running(self, session: TapSession, hooks: _Hooks) -> Iterator[None]:
        with self.model.evaluating(), hooks.placed(), use_session(session):
            yield

    def _run(self, batch: Batch) -> Tensor:
        """Return the logits of the last tokens, in the session and hooks of the context."""
        output = self.model.run(batch.ids, batch.attention_mask, batch.types, logits=True)
        last: Tensor = at_least_float32(output.logits[:, -1])
        return last

    def _entry(self, layer: int) -> nn.Module:
        site = self.model.sites.by_module.get(self.blocks[layer].module)
        assert site is not None
        assert site.entry is not None
        return site.entry

    @torch.no_grad()
    def record(self, batch: Batch) -> Recording:
        """Run inputs of equal length and return what every part wrote and read."""
        self._check_batch(batch)
        shape = (*batch.ids.shape, -1)
        inputs: dict[nn.Module, Tensor] = {}
        outputs: dict[nn.Module, Tensor] = {}

        def keep_input(module: nn.Module, args: Any, kwargs: Any) -> None:
            inputs[module] = at_least_float32(first_tensor(args, kwargs)).reshape(shape).clone()

        def keep_output(module: nn.Module, args: Any, output: Any) -> None:
            values = output if isinstance(output, Tensor) else output[0]
            outputs[module] = at_least_float32(values).reshape(shape).clone()

        hooks = _Hooks()
        hooks.before(self.final_norm.module, keep_input)
        for layer, block in enumerate(self.blocks):
            hooks.before(self._entry(layer), keep_input)
            if block.other is not None:
                hooks.after(block.other, keep_output)
            if block.writing is not None:
                hooks.after(block.projection, keep_output)
            if block.feed is not None:
                hooks.before(_feed_place(block), keep_input)
        session = _ForwardSession(self.model.sites, "outputs")
        with self._running(session, hooks):
            logits = self._run(batch)

        streams = []
        feed_streams: list[Tensor | None] = []
        contributions = [inputs[self._entry(0)][:, None]]
        for layer, block in enumerate(self.blocks):
            streams.append(inputs[self._entry(layer)])
            feed_streams.append(None if block.feed is None else inputs[_feed_place(block)])
            contributions.append(self.head_contributions(layer, session.outputs[layer]))
            if block.other is None:
                contributions.append(torch.zeros_like(contributions[0]))
            else:
                contributions.append(block.factor * outputs[block.other][:, None])
        return Recording(
            contributions=torch.cat(contributions, 1),
            streams=streams,
            feed_streams=feed_streams,
            final=inputs[self.final_norm.module],
            logits=logits,
        )

    def head_contributions(self, layer: int, outputs: Tensor) -> Tensor:
        """Return what each head adds to the residual stream, `[example, head, token, width]`.

        A norm after the output projection divides the sum of all heads: each head's share is
        divided by the scale of that sum."""
        block = self.blocks[layer]
        matrix, bias = self._output_matrices[layer]
        written = torch.einsum("ehtd,hdw->ehtw", outputs, matrix)
        if block.writing is not None:
            projected = written.sum(1) + bias
            scale = block.writing.scale(projected)[:, None]
            written = block.writing.middle(written) * block.writing.gain / scale
        return block.factor * written

    # --- first order ------------------------------------------------------------------------------

    @cached_property
    def head_inputs(self) -> list[HeadInputs]:
        """How the heads of each layer read the stream; a layer whose heads cannot be told apart is
        rejected."""
        model = self.model
        n_copies = max(model.heads, 2)
        vocabulary = getattr(model.module.get_input_embeddings(), "num_embeddings", 100)
        ids = (torch.arange(3, device=model.device) * 37 + 5) % vocabulary
        ids = ids.expand(n_copies, -1).contiguous()
        attention_mask = torch.ones_like(ids, dtype=torch.bool)
        recorded: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        attention_inputs: dict[nn.Module, Tensor] = {}

        def keep_linear(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and args:
                recorded[module] = (args[0].detach(), output)

        def keep_attention_input(module: nn.Module, args: Any, kwargs: Any) -> None:
            attention_inputs[module] = hidden_input(args, kwargs).detach()

        hooks = _Hooks()
        hooks.before(self._entry(0), _as_leaf)
        for block in self.blocks:
            hooks.before(block.module, keep_attention_input)
            for part in block.module.modules():
                is_matrix = any(weight.ndim == 2 for weight in part.parameters(recurse=False))
                if is_matrix and part is not block.projection:
                    hooks.after(part, keep_linear)
        session = _ForwardSession(model.sites, "calls")
        with self._running(session, hooks), torch.enable_grad():
            model.run(ids, attention_mask, torch.zeros_like(ids))
        layers = []
        for layer, block in enumerate(self.blocks):
            read = attention_inputs[block.module]
            linear = {}
            for part in block.module.modules():
                if part in recorded and recorded[part][0].numel() == read.numel():
                    taken = recorded[part][0].reshape(read.shape)
                    if torch.allclose(taken, read, rtol=1e-4, atol=1e-5):
                        linear[part] = recorded[part][1]
            layers.append(self._layer_inputs(block, linear, session.calls[layer][0]))
        return layers

    def _layer_inputs(
        self, block: TransformerBlock, linear: dict[nn.Module, Tensor], call: Call
    ) -> HeadInputs:
        """Find which outputs of the linear modules reach which head, by a backward pass in which
        every example asks for one head."""
        name = type(block.module).__name__
        apart = (
            f"The queries, keys and values of {name} are not linear maps that belong to one head"
        )
        if not linear:
            raise ModelError(f"{apart}, so the edges into them cannot be told apart.")
        projections = tuple(linear)
        sizes = tuple(linear[part].shape[-1] for part in projections)
        generator = torch.Generator().manual_seed(0)
        channels = {}
        owned = torch.zeros(sum(sizes), dtype=torch.int64)
        for role in ROLES:
            values: Tensor = getattr(call, role)
            n_heads = values.shape[1]
            asked = torch.zeros(values.shape)
            for head in range(n_heads):
                asked[head, head] = torch.rand(values.shape[2:], generator=generator) + 0.5
            gradients = torch.autograd.grad(
                values,
                [linear[part] for part in projections],
                asked.to(values),
                retain_graph=True,
                allow_unused=True,
            )
            reached = []
            for part, gradient in zip(projections, gradients, strict=True):
                if gradient is None:
                    gradient = torch.zeros_like(linear[part])
                by_example = gradient.reshape(len(values), -1, linear[part].shape[-1])
                reached.append((by_example != 0).any(1)[:n_heads])
            belongs = torch.cat(reached, -1).cpu()  # head, channel
            owned += belongs.sum(0)
            counts = belongs.sum(-1)
            if int(counts.min()) == 0 or int(counts.min()) != int(counts.max()):
                raise ModelError(f"{apart}, so the edges into them cannot be told apart.")
            channels[role] = belongs.nonzero()[:, 1].view(n_heads, -1).to(values.device)
        if bool((owned != 1).any()):
            raise ModelError(f"{apart} alone, so the edges into them cannot be told apart.")
        matrices = []
        biases = []
        width = self.model.hidden
        like = torch.empty(0, dtype=self.model.dtype, device=self.model.device)
        for part in projections:
            matrix, bias = affine(part, width, like)
            matrices.append(at_least_float32(matrix))
            biases.append(at_least_float32(bias))
        return HeadInputs(
            norm=block.reading,
            projections=projections,
            sizes=sizes,
            matrix=torch.cat(matrices, -1),
            bias=torch.cat(biases, -1),
            channels=channels,
        )

    @torch.no_grad()
    def edge_attribution(
        self,
        batch: Batch,
        change: Tensor,
        metric: Metric,
        entering: Sequence[Tensor] | None = None,
        *,
        hold_norms: bool = False,
    ) -> Tensor:
        """Return the first-order effect of every edge on the metric, `[example, edge]`.

        The effect is what the metric would gain if the term that the sender adds to the receiver's
        input changed by `change`: its product with the gradient of the metric by that input.

        Parameters
        ----------
        batch : Batch
            Inputs of equal length.
        change : Tensor
            Of what every sender writes, `[example, sender, token, width]`.
        metric : callable
            From the logits of the last tokens `[example, vocabulary]` to `[example]`.
        entering : sequence of Tensor, optional
            Points at which gradients are taken, each what enters the first layer `[example, token,
            width]`; their mean counts (integrated gradients). By default the inputs themselves.
        hold_norms : bool, default False
            Hold the scale of the norms before the receivers instead of computing it again.
        """
        self._check_batch(batch)
        points: Sequence[Tensor | None] = entering or [None]
        total: Tensor | None = None
        for first in range(0, len(points), POINTS_AT_ONCE):
            gradients = []
            for point in points[first : first + POINTS_AT_ONCE]:
                gradients.append(self._input_gradients(batch, metric, point))
            effects = self._summed_effects(change, gradients, hold_norms)
            total = effects if total is None else total + effects
        assert total is not None
        return total / len(points)

    def _input_gradients(
        self, batch: Batch, metric: Metric, entering: Tensor | None
    ) -> InputGradients:
        """Return the gradients of the metric at one point; `entering` enters the first layer there
        (None: the inputs themselves)."""
        n_examples, n_tokens = batch.ids.shape
        shape = (n_examples, n_tokens, -1)
        projected: dict[nn.Module, Tensor] = {}
        feed_inputs: dict[int, Tensor] = {}
        streams: dict[nn.Module, Tensor] = {}
        final: list[Tensor] = []

        def keep_projection(module: nn.Module, args: Any, output: Tensor) -> None:
            projected[module] = output

        def keep_stream(module: nn.Module, args: Any, kwargs: Any) -> None:
            stream = first_tensor(args, kwargs).detach()
            streams[module] = at_least_float32(stream).reshape(shape)

        def start(module: nn.Module, args: Any, kwargs: Any) -> Any:
            hidden = hidden_input(args, kwargs)
            leaf = hidden if entering is None else entering.to(hidden.dtype)
            return replaced(args, kwargs, hidden, leaf.detach().clone().requires_grad_())

        def keep_final(module: nn.Module, args: Any, output: Tensor) -> None:
            final.append(output)

        hooks = _Hooks()
        hooks.before(self._entry(0), start)
        hooks.before(self.final_norm.module, keep_stream)
        hooks.after(self.final_norm.module, keep_final)
        for layer, block in enumerate(self.blocks):
            hooks.before(self._entry(layer), keep_stream)
            for projection in self.head_inputs[layer].projections:
                hooks.after(projection, keep_projection)
            if block.feed is not None:
                hooks.before(_feed_place(block), keep_stream)
                # The branch's own copy of its input: the gradient of this copy is that of the
                # branch alone, also where attention reads the same norm.
                hooks.before(block.feed.module, _branch_off(feed_inputs, layer))
        session = _ForwardSession(self.model.sites, "calls")
        with self._running(session, hooks), torch.enable_grad():
            value = metric(self._run(batch)).sum()
            wanted = [final[0]]
            for layer in range(self.model.layers):
                call, key, repeated_value = session.calls[layer]
                wanted += [call.query, key, repeated_value]
            wanted += feed_inputs.values()
            try:
                gradients = torch.autograd.grad(value, wanted, retain_graph=True, allow_unused=True)
            except RuntimeError as error:
                raise ModelError(
                    f"The gradient of {self.model.name} cannot be taken; open it in float32.",
                    option="dtype float32",
                ) from error
        of_final = at_least_float32(_or_zero(gradients[0], wanted[0])).reshape(shape)
        of_calls = gradients[1 : 1 + 3 * self.model.layers]
        of_feeds = dict(zip(feed_inputs, gradients[1 + 3 * self.model.layers :], strict=True))

        heads = []
        feeds: list[tuple[Tensor, Tensor] | None] = []
        for layer, block in enumerate(self.blocks):
            inputs = self.head_inputs[layer]
            of_heads = self._pull_to_projections(
                inputs,
                session.calls[layer],
                of_calls[3 * layer : 3 * layer + 3],
                [projected[part] for part in inputs.projections],
            )
            heads.append((of_heads, streams[self._entry(layer)]))
            if block.feed is None:
                feeds.append(None)
            else:
                of_feed = at_least_float32(_or_zero(of_feeds[layer], feed_inputs[layer]))
                feeds.append((of_feed.reshape(shape), streams[_feed_place(block)]))
        final_stream = streams[self.final_norm.module]
        return InputGradients(heads=heads, feeds=feeds, final=(of_final, final_stream))

    def _pull_to_projections(
        self,
        inputs: HeadInputs,
        call_with_repeats: tuple[Call, Tensor, Tensor],
        gradients: Sequence[Tensor | None],
        projected: Sequence[Tensor],
    ) -> dict[str, Tensor]:
        """Return the gradients by what the projections give, from those by queries and repeated keys
        and values: by role `[group, member, example · token, channel]`.

        Between the projections and attention lie rotary embeddings and norms of queries and keys:
        autograd takes the gradients back through them. Grouped keys and values have one gradient for
        each query head of the group, so this is done once for each member of a group."""
        call, key, value = call_with_repeats
        of_query = _or_zero(gradients[0], call.query)
        of_key = _or_zero(gradients[1], key)
        of_value = _or_zero(gradients[2], value)
        n_groups = call.key.shape[1]
        group_size = call.query.shape[1] // n_groups
        n_examples, _, n_tokens, _ = call.query.shape
        by_role: dict[str, list[Tensor]] = {role: [] for role in ROLES}
        for member in range(group_size):
            read = [call.key, call.value]
            of_read = [of_key[:, member::group_size], of_value[:, member::group_size]]
            if member == 0:
                read.append(call.query)
                of_read.append(of_query)
            at_outputs = torch.autograd.grad(
                read, projected, of_read, retain_graph=True, allow_unused=True
            )
            flat = []
            for output, gradient in zip(projected, at_outputs, strict=True):
                values = at_least_float32(_or_zero(gradient, output))
                flat.append(values.reshape(n_examples * n_tokens, -1))
            joined = torch.cat(flat, -1)
            for role in ROLES:
                if role == "query" and member > 0:
                    continue
                of_heads = joined[:, inputs.channels[role]]  # example · token, head, channel
                by_role[role].append(of_heads.transpose(0, 1))
        # Head g · group_size + j is member j of group g; each query head is a group of its own.
        return {role: torch.stack(of_members, 1) for role, of_members in by_role.items()}

    def _summed_effects(
        self, change: Tensor, gradients: Sequence[InputGradients], hold_norms: bool
    ) -> Tensor:
        """Return the products of the changes with the gradients, summed over points, `[example,
        edge]`.

        Gradients are summed before they are multiplied by the changes of all senders: that product
        costs most, and is made once for all points."""
        by_token = change.device.type == "cuda"
        effects = []
        for layer, block in enumerate(self.blocks):
            n_below = self.edges.below_heads(layer)
            of_heads = [point.heads[layer] for point in gradients]
            by_unit = _pull_heads_to_stream(self.head_inputs[layer], of_heads, hold_norms)
            products = _products(change[:, :n_below], by_unit, by_token=by_token)
            effects.append(products.flatten(1))
            if block.feed is not None:
                of_feed = [point.feeds[layer] for point in gradients]
                by_feed = _pull_points_to_stream(block.feed.norm, of_feed, hold_norms)
                n_below = self.edges.below_mlp(layer)
                products = _products(change[:, :n_below], by_feed[None], by_token=by_token)
                effects.append(products.flatten(1))
        of_final = [point.final for point in gradients]
        by_logits = _pull_points_to_stream(self.final_norm, of_final, hold_norms)
        effects.append(_products(change, by_logits[None], by_token=by_token).flatten(1))
        return torch.cat(effects, 1)

    # --- one edge, exactly ------------------------------------------------------------------------

    @torch.no_grad()
    def patched_path(
        self, batch: Batch, edge: int, change: Tensor, skipping: Skipping | None = None
    ) -> Tensor:
        """Return the logits of the last tokens when the term of one edge changes, `[example,
        vocabulary]`.

        Only the input of the receiver changes, and its norm is computed again; what the receiver
        then gives flows on through the layers above as usual.

        Parameters
        ----------
        batch : Batch
            Inputs of equal length.
        edge : int
            The number of the edge; see `edges.number`.
        change : Tensor
            Of what the sender writes, `[example, token, width]`.
        skipping : callable, optional
            `skipping(layer, session)` returns a context in which the layers below give what they
            gave before (see `Prefix`); by default they are computed.
        """
        self._check_batch(batch)
        layer = self.edges.layers
        receiver = int(self.edges.receivers[edge])
        hooks = _Hooks()
        session: TapSession = _ForwardSession(self.model.sites, "outputs")
        if receiver == self.edges.n_senders:
            hooks.before(self.final_norm.module, _AddToStream(change))
        else:
            layer, place = divmod(receiver - 1, self.edges.heads + 1)
            block = self.blocks[layer]
            if place == self.edges.heads:
                assert block.feed is not None
                _change_feed_input(hooks, block, change)
            else:
                role = ROLES[int(self.edges.roles[edge])]
                session = _PathSession(self.model.sites, layer, place, role)
                hooks.before(self._entry(layer), session.keep_stream)
                read_changed = _ReadChanged(session, block, change)
                hooks.before(block.module, read_changed)
        with ExitStack() as stack:
            if skipping is not None:
                stack.enter_context(skipping(min(layer, self.edges.layers - 1), session))
            stack.enter_context(self._running(session, hooks))
            return self._run(batch)

    # --- only some edges live ---------------------------------------------------------------------

    @torch.no_grad()
    def run_circuit(
        self, batch: Batch, clean: Recording, corrupted: Recording, live: np.ndarray
    ) -> Tensor:
        """Return the logits of the last tokens when only the live edges carry the clean input.

        The embedding gives what it gives on the clean input. Every receiver reads the corrupted
        run's stream, plus, for each live edge into it, what its sender writes now less what it wrote
        in the corrupted run.

        Parameters
        ----------
        batch : Batch
            The clean inputs, of equal length.
        clean, corrupted : Recording
            Both runs, in the layout of the clean inputs (see `Recording.at`).
        live : array of bool
            By edge.
        """
        self._check_batch(batch)
        device = batch.ids.device
        dtype = corrupted.contributions.dtype
        blocks = {}
        for place, block in self.edges.split(live).items():
            blocks[place] = torch.as_tensor(block.T, dtype=dtype, device=device)
        runner = _CircuitRun(self, clean, corrupted, blocks)
        with self._running(runner, runner.hooks()):
            return self._run(batch)


# --- hooks ----------------------------------------------------------------------------------------


class _Hooks:
    """Hooks on modules, placed together for one run."""

    def __init__(self) -> None:
        self._before: list[tuple[nn.Module, Callable[..., Any]]] = []
        self._after: list[tuple[nn.Module, Callable[..., Any]]] = []

    def before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Add a hook `hook(module, args, kwargs)` before a module runs."""
        self._before.append((module, hook))

    def after(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Add a hook `hook(module, args, output)` after a module has run."""
        self._after.append((module, hook))

    @contextmanager
    def placed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, hook in self._before:
                handle = module.register_forward_pre_hook(
                    only_in_this_thread(hook), with_kwargs=True
                )
                stack.callback(handle.remove)
            for module, hook in self._after:
                handle = module.register_forward_hook(only_in_this_thread(hook))
                stack.callback(handle.remove)
            yield


def first_tensor(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the first tensor of floating point among the arguments of a module."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise ModelError("A part of this model takes no hidden states, so they cannot be changed.")


def _feed_place(block: TransformerBlock) -> nn.Module:
    """Return the module whose input is the residual stream that the MLP reads."""
    assert block.feed is not None
    return block.feed.module if block.feed.norm is None else block.feed.norm.module


def _as_leaf(module: nn.Module, args: Any, kwargs: Any) -> Any:
    hidden = hidden_input(args, kwargs)
    return replaced(args, kwargs, hidden, hidden.detach().clone().requires_grad_())


def _branch_off(branches: dict[int, Tensor], layer: int) -> Callable[..., Any]:
    """Return a hook that gives a module a copy of its input and keeps the copy."""

    def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
        values = first_tensor(args, kwargs)
        branches[layer] = values.clone()
        return replaced(args, kwargs, values, branches[layer])

    return hook


def _or_zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    """Return a gradient, zero where the metric does not depend on the tensor."""
    return torch.zeros_like(like) if gradient is None else gradient


def pull_through_norm(
    norm: Norm | None, gradient: Tensor, stream: Tensor, hold_scale: bool = False
) -> Tensor:
    """Return the gradient by a norm's input from the gradient by its output.

    Parameters
    ----------
    norm : Norm, optional
        None: the gradient stays as it is.
    gradient, stream : Tensor
        Of the output `[..., width]`; the input, in a shape that broadcasts.
    hold_scale : bool, default False
        Treat what the norm divides by as a constant.
    """
    if norm is None:
        return gradient
    scale = norm.scale(stream)
    pulled = norm.pulled(gradient, scale)
    if hold_scale:
        return pulled
    # d scale / d x = centred x / (width · scale)
    centred = norm.middle(stream)
    along = (gradient * norm.gain * centred).mean(-1, keepdim=True)
    return pulled - norm.middle(centred * along / scale**3)


def _pull_points_to_stream(
    norm: Norm | None, points: Sequence[tuple[Tensor, Tensor] | None], hold_norms: bool
) -> Tensor:
    """Return the sum over points of the gradients by a norm's input, `[example, token, width]`, from
    gradients by its output, each with the stream at its point."""
    total: Tensor | None = None
    for point in points:
        assert point is not None
        gradient, stream = point
        pulled = pull_through_norm(norm, gradient, stream, hold_norms)
        total = pulled if total is None else total + pulled
    assert total is not None
    return total


def _pull_heads_to_stream(
    inputs: HeadInputs, points: Sequence[tuple[dict[str, Tensor], Tensor]], hold_norms: bool
) -> Tensor:
    """Return the sum over points of the gradients by the stream that each head's query, key and
    value input reads, `[3 · head, example, token, width]`.

    The same as `pull_through_norm` of every gradient, but the width of the stream is entered only
    once for all points: the norm's scale is one number for a token, so gradients are divided by it
    and summed while they are as wide as a head."""
    norm = inputs.norm
    shape = points[0][1].shape  # example, token, width
    matrix = inputs.matrix
    if norm is not None:
        matrix = norm.middle(matrix * norm.gain[:, None], 0)
    by_role = []
    for role in ROLES:
        channels = inputs.channels[role]
        summed: Tensor | None = None
        for of_heads, stream in points:
            values = of_heads[role]
            if norm is not None:
                values = values / norm.scale(stream).reshape(-1, 1)
            summed = values if summed is None else summed + values
        assert summed is not None
        matrices = matrix[:, channels].permute(1, 2, 0)  # group, channel, width
        of_groups = summed.flatten(1, 2) @ matrices
        by_role.append(of_groups.view(-1, *shape))
    by_unit = torch.cat(by_role)
    if norm is None or hold_norms:
        return by_unit
    for of_heads, stream in points:
        # d scale / d x = centred x / (width · scale)
        centred = norm.middle(stream)
        read = centred.flatten(0, 1) @ matrix  # what the projections read, but for the scale
        along = []
        for role in ROLES:
            read_by_head = read[:, inputs.channels[role]].transpose(0, 1)[:, None]
            along.append((of_heads[role] * read_by_head).sum(-1).flatten(0, 1))
        factor = torch.cat(along).view(-1, *shape[:2], 1) / (shape[-1] * norm.scale(stream) ** 3)
        by_unit.addcmul_(factor, centred, value=-1)
    return by_unit


def _products(change: Tensor, by_unit: Tensor, *, by_token: bool) -> Tensor:
    """Return the products of changes `[example, sender, token, width]` with gradients `[unit,
    example, token, width]`, summed over tokens: `[example, sender, unit]`.

    With `by_token` there is a product for each token, and their results are added. One product for
    each example has few rows and columns but sums of a hundred thousand terms and more: a GPU
    would compute it with a few of its processors."""
    if not by_token:
        gradients = by_unit.flatten(2).transpose(0, 1)  # example, unit, token · width
        return change.flatten(2) @ gradients.transpose(1, 2)
    products = []
    for example in range(len(change)):
        of_senders = change[example].transpose(0, 1)  # token, sender, width
        of_units = by_unit[:, example].permute(1, 2, 0)  # token, width, unit
        products.append((of_senders @ of_units).sum(0))
    return torch.stack(products)


def apply_norm(norm: Norm | None, stream: Tensor) -> Tensor:
    """Return what a norm gives for a stream."""
    if norm is None:
        return stream
    return norm.middle(stream) / norm.scale(stream) * norm.gain + norm.bias


class _AddToStream:
    """A hook that adds a change to the first hidden states among a module's arguments."""

    def __init__(self, change: Tensor) -> None:
        self.change = change

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        stream = first_tensor(args, kwargs)
        changed = stream + self.change.reshape(stream.shape).to(stream)
        return replaced(args, kwargs, stream, changed)


def _change_feed_input(hooks: _Hooks, block: TransformerBlock, change: Tensor) -> None:
    """Let the MLP of a layer read a changed stream; other readers of the same norm do not."""
    feed = block.feed
    assert feed is not None
    norm = feed.norm
    streams: list[Tensor] = []

    def keep_stream(module: nn.Module, args: Any, kwargs: Any) -> None:
        streams.append(first_tensor(args, kwargs))

    def read_changed(module: nn.Module, args: Any, kwargs: Any) -> Any:
        normed = first_tensor(args, kwargs)
        stream = at_least_float32(streams[-1])
        changed = apply_norm(norm, stream + change.reshape(stream.shape))
        return replaced(args, kwargs, normed, changed.reshape(normed.shape).to(normed))

    hooks.before(_feed_place(block), keep_stream)
    hooks.before(feed.module, read_changed)


class _PathSession(TapSession):
    """A run in which one input (query, key or value) of one head reads a changed stream."""

    def __init__(self, sites: Sites, layer: int, head: int, role: str) -> None:
        self.layer_count = LayerCount(sites)
        self.layer = layer
        self.head = head
        self.role = role
        self.stream: Tensor | None = None
        self.changed_call: Call | None = None

    def keep_stream(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.stream = hidden_input(args, kwargs)

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        if layer != self.layer:
            return call.output(BLOCK_BYTES), None
        _reject_formed(call)
        assert self.changed_call is not None
        key, value = call.repeated()
        inputs = {"query": call.query.clone(), "key": key.clone(), "value": value.clone()}
        source: Tensor = getattr(self.changed_call, self.role)
        n_heads = call.query.shape[1]
        group = self.head // (n_heads // source.shape[1])
        inputs[self.role][:, self.head] = source[:, group]
        output = attention_output(inputs["query"], inputs["key"], inputs["value"], call)
        return output.transpose(1, 2).contiguous(), None


class _ReadChanged:
    """A hook that runs an attention module on a changed stream up to its attention, before the
    module runs as usual."""

    def __init__(self, session: _PathSession, block: TransformerBlock, change: Tensor) -> None:
        self.session = session
        self.block = block
        self.change = change
        self.busy = False  # the module is being run by this very hook

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.busy:
            return
        assert self.session.stream is not None
        stream = at_least_float32(self.session.stream) + self.change
        hidden = hidden_input(args, kwargs)
        normed = apply_norm(self.block.reading, stream).to(hidden)
        self.busy = True
        try:
            self.session.changed_call = capture_call(module, args, kwargs, normed)
        finally:
            self.busy = False


class _CircuitRun(TapSession):
    """A run in which every receiver reads the corrupted stream plus what its live edges carry.

    The model runs as usual, layer after layer, but every place where a part reads the residual
    stream is given its own input, so what the model itself adds up is never read.

    Parameters
    ----------
    graph : ResidualGraph
        The model.
    clean, corrupted : Recording
        Both runs.
    live : mapping
        1 for live edges, 0 for others, `[receiver, sender]` by (kind, layer).
    """

    def __init__(
        self,
        graph: ResidualGraph,
        clean: Recording,
        corrupted: Recording,
        live: Mapping[tuple[str, int], Tensor],
    ) -> None:
        self.graph = graph
        self.corrupted = corrupted
        self.live = live
        self.layer_count = LayerCount(graph.model.sites)
        # What each sender writes in this run, less what it wrote in the corrupted run.
        self.difference = torch.zeros_like(corrupted.contributions)
        self.difference[:, 0] = clean.contributions[:, 0] - corrupted.contributions[:, 0]
        self._calls: list[Call] = []  # one for each member of a key/value group
        self._overrides: dict[nn.Module, Tensor] = {}
        self._busy = False

    def hooks(self) -> _Hooks:
        """Return the hooks that give every reader its input."""
        hooks = _Hooks()
        graph = self.graph
        hooks.before(graph.final_norm.module, self._read_final)
        for layer, block in enumerate(graph.blocks):
            hooks.before(block.module, self._attention_reader(layer))
            for projection in graph.head_inputs[layer].projections:
                hooks.after(projection, self._override)
            if block.feed is not None:
                hooks.before(block.feed.module, self._feed_reader(layer))
                assert block.other is not None
                hooks.after(block.other, self._feed_writer(layer))
        return hooks

    def _stream(self, kind: str, layer: int, base: Tensor) -> Tensor:
        """Return what the receivers of a layer read, `[example, receiver, token, width]`."""
        live = self.live[kind, layer]
        senders = self.difference[:, : live.shape[1]]
        carried = live @ senders.flatten(2)
        return base[:, None] + carried.view(len(base), len(live), *base.shape[1:])

    def _read_final(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        values = first_tensor(args, kwargs)
        stream = self._stream("logits", self.graph.edges.layers, self.corrupted.final)
        return replaced(args, kwargs, values, stream.reshape(values.shape).to(values))

    def _feed_reader(self, layer: int) -> Callable[..., Any]:
        feed = self.graph.blocks[layer].feed
        assert feed is not None
        norm = feed.norm

        def read(module: nn.Module, args: Any, kwargs: Any) -> Any:
            values = first_tensor(args, kwargs)
            base = self.corrupted.feed_streams[layer]
            assert base is not None
            normed = apply_norm(norm, self._stream("mlp", layer, base))
            return replaced(args, kwargs, values, normed.reshape(values.shape).to(values))

        return read

    def _feed_writer(self, layer: int) -> Callable[..., None]:
        block = self.graph.blocks[layer]
        sender = self.graph.edges.mlp(layer)

        def write(module: nn.Module, args: Any, output: Any) -> None:
            values = output if isinstance(output, Tensor) else output[0]
            before = self.corrupted.contributions[:, sender]
            written = block.factor * at_least_float32(values).reshape(before.shape)
            self.difference[:, sender] = written - before

        return write

    def _attention_reader(self, layer: int) -> Callable[..., None]:
        """Return a hook that forms the queries, keys and values of a layer, each from its own
        input."""
        inputs = self.graph.head_inputs[layer]

        def read(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._busy:
                return
            stream = self._stream("heads", layer, self.corrupted.streams[layer])
            normed = apply_norm(inputs.norm, stream)
            hidden = hidden_input(args, kwargs)
            self._busy = True
            try:
                self._calls = []
                for outputs in self._projected(inputs, normed):
                    parts = torch.split(outputs, list(inputs.sizes), -1)
                    self._overrides = dict(zip(inputs.projections, parts, strict=True))
                    self._calls.append(capture_call(module, args, kwargs, hidden))
            finally:
                self._overrides = {}
                self._busy = False

        return read

    def _projected(self, inputs: HeadInputs, normed: Tensor) -> Iterator[Tensor]:
        """Yield what the projections give when each head's query, key and value has its own input,
        `[example, token, channel]`, once for each member of a key/value group."""
        n_examples, n_units, n_tokens, width = normed.shape
        n_heads = n_units // 3
        by_unit = normed.transpose(0, 1).reshape(n_units, -1, width)
        n_groups = len(inputs.channels["key"])
        group_size = n_heads // n_groups
        for member in range(group_size):
            outputs = normed.new_zeros(n_examples * n_tokens, inputs.matrix.shape[1])
            for number, role in enumerate(ROLES):
                channels = inputs.channels[role]
                units = by_unit[number * n_heads : (number + 1) * n_heads]
                if role != "query":
                    units = units[member::group_size]
                matrices = inputs.matrix[:, channels].transpose(0, 1)  # head, width, channel
                of_heads = units @ matrices + inputs.bias[channels][:, None]
                outputs[:, channels.flatten()] = of_heads.transpose(0, 1).flatten(1)
            yield outputs.view(n_examples, n_tokens, -1)

    def _override(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        values = self._overrides.get(module)
        if values is None:
            return None
        return values.reshape(output.shape).to(output)

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        _reject_formed(call)
        keys = torch.stack([member.key for member in self._calls], 2).flatten(1, 2)
        values = torch.stack([member.value for member in self._calls], 2).flatten(1, 2)
        output = attention_output(self._calls[0].query, keys, values, call)
        first = self.graph.edges.head(layer, 0)
        senders = slice(first, first + self.graph.edges.heads)
        written = self.graph.head_contributions(layer, at_least_float32(output))
        self.difference[:, senders] = written - self.corrupted.contributions[:, senders]
        return output.transpose(1, 2).contiguous(), None
