"""Why a head attends where it does: its score split over the components that wrote the residual
stream at the query and at the key.

A score is a product of a query and a key, each a linear function of the residual stream once the
norms are held at their actual scale. The stream is a sum over components (the embedding, heads, MLPs,
and a constant for all biases), so a score is a sum over pairs of components."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.core.labels import head_name
from headwise.models.forward_call import only_in_this_thread
from headwise.models.headmodel import HeadModel
from headwise.models.masks import is_open, rows_of
from headwise.models.residual_graph import HeadInputs, Recording, ResidualGraph, first_tensor
from headwise.models.sites import LayerCount
from headwise.models.structure import Norm
from headwise.models.tap import Call, TapSession, use_session
from headwise.models.weights import capture_call
from headwise.text.encode import Batch

CONSTANT = "constant"


@dataclass(frozen=True, slots=True, eq=False)
class ScoreParts:
    """The scores of one head on one text, in parts.

    `components` names the writers of the stream below the head, the constant last.
    `queries[component, token, d]` and `keys` are what each writer adds to queries and keys, the
    factor of the scores in the queries. `scores[query, key]` are the head's own, before a soft cap;
    `bias[query, key]` is added to them (ALiBi), None without one; `softcap` is applied to scores
    before the bias, None without one. `visible[query, key]`, `weights[query, key]`: where the head
    may look, and where it looks."""

    components: list[str]
    queries: Tensor
    keys: Tensor
    scores: Tensor
    bias: Tensor | None
    softcap: float | None
    visible: Tensor
    weights: Tensor

    def table(self, query: int, key: int) -> Tensor:
        """Return the score of a query token and a key token by components, `[query component, key
        component]`; it adds up to `scores[query, key]`."""
        return self.queries[:, query] @ self.keys[:, key].T

    def query_margins(self, query: Tensor, key: Tensor) -> Tensor:
        """Return what each component adds to scores by what it wrote at the query, `[score,
        component]`, for pairs of tokens."""
        whole_keys = self.keys.sum(0)
        return torch.einsum("csd,sd->sc", self.queries[:, query], whole_keys[key])

    def key_margins(self, query: Tensor, key: Tensor) -> Tensor:
        """Return what each component adds to scores by what it wrote at the key, `[score,
        component]`, for pairs of tokens."""
        whole_queries = self.queries.sum(0)
        return torch.einsum("csd,sd->sc", self.keys[:, key], whole_queries[query])


class ScoreAttribution:
    """Splits the scores of a model's heads over the components that wrote the residual stream.

    Parameters
    ----------
    model : HeadModel
        A causal language model whose layers add to the residual stream.
    """

    def __init__(self, model: HeadModel) -> None:
        self.graph = ResidualGraph(model)

    def component_names(self, layer: int) -> list[str]:
        """Return the names of the components below a layer, the constant last."""
        edges = self.graph.edges
        return [*edges.sender_names[: edges.below_heads(layer)], CONSTANT]

    @torch.no_grad()
    def parts(self, batch: Batch, layer: int, head: int) -> ScoreParts:
        """Return the scores of one head on one text, in parts.

        Parameters
        ----------
        batch : Batch
            One input.
        layer, head : int
            The head.
        """
        graph = self.graph
        recording = graph.record(batch)
        inputs = graph.head_inputs[layer]
        reader = _CallReader(graph, layer, inputs)
        with reader.placed(), use_session(reader), graph.model.evaluating():
            graph.model.run(batch.ids, batch.attention_mask, batch.types)
        call = reader.call
        assert call is not None
        stream = recording.streams[layer]
        components = _components(recording, stream, graph.edges.below_heads(layer))
        queries, keys = reader.by_component(_normed_parts(inputs, components, stream))
        group = head // (call.query.shape[1] // call.key.shape[1])
        queries = queries[:, head] * call.scaling
        keys = keys[:, group]
        n_tokens = batch.ids.shape[1]
        repeated, _ = call.repeated()
        weights, _ = call.weights(repeated, 0, n_tokens)
        visible = torch.ones_like(weights[0, 0], dtype=torch.bool)
        mask = call.rows_mask(0, n_tokens)
        if mask is not None:
            visible = visible & is_open(mask)[0, min(head, mask.shape[1] - 1)]
        bias = rows_of(call.bias, 0, n_tokens, n_tokens)
        if bias is not None:
            bias = bias[0, min(head, bias.shape[1] - 1)]
        return ScoreParts(
            components=self.component_names(layer),
            queries=queries,
            keys=keys,
            scores=call.query[0, head] @ call.key[0, group].T * call.scaling,
            bias=bias,
            softcap=call.softcap,
            visible=visible,
            weights=weights[0, head],
        )


def why_dataset(
    parts: ScoreParts, batch: Batch, head: tuple[int, int], query: int, key: int
) -> Any:
    """Return the score of one query and one key as labelled arrays; see `HeadModel.why`."""
    table = parts.table(query, key).double().cpu().numpy()
    tokens = batch.rows[0].tokens
    score = float(parts.scores[query, key])
    attributes: dict[str, Any] = {
        "head": head_name(*head),
        "query": tokens[query],
        "key": tokens[key],
        "query_position": query,
        "key_position": key,
        "score": score,
        "weight": float(parts.weights[query, key]),
        "mean_visible_score": float(parts.scores[query][parts.visible[query]].mean()),
    }
    if parts.bias is not None:
        attributes["position_bias"] = float(parts.bias[query, key])
    if parts.softcap is not None:
        capped = parts.softcap * np.tanh(score / parts.softcap)
        attributes["soft_capping"] = float(capped - score)
    variables = {
        "score": (("query_component", "key_component"), table),
        "query_margin": ("query_component", table.sum(1)),
        "key_margin": ("key_component", table.sum(0)),
    }
    names = np.array(parts.components)
    coords = {"query_component": names, "key_component": names}
    return xr.Dataset(variables, coords, attributes)


def token_position(batch: Batch, token: str | int, name: str) -> int:
    """Return the position of a token that a user named: by its number, or by its text (which must
    occur once; a leading space need not be written)."""
    tokens = batch.rows[0].tokens
    if isinstance(token, int):
        if not -len(tokens) <= token < len(tokens):
            raise ParameterError(
                f"`{name}` is token {token}; the text has tokens 0 to {len(tokens) - 1}."
            )
        return token % len(tokens)
    matches = [place for place, text in enumerate(tokens) if text == token]
    if not matches:
        matches = [place for place, text in enumerate(tokens) if text.strip() == token.strip()]
    if not matches:
        raise InputError(
            f"`{name}`: there is no token '{token}' in the text; its tokens are "
            f"{', '.join(repr(text) for text in tokens[:40])}."
        )
    if len(matches) > 1:
        raise InputError(
            f"`{name}`: the token '{token}' occurs {len(matches)} times, at {matches}; give its "
            "position instead."
        )
    return matches[0]


def _components(recording: Recording, stream: Tensor, below: int) -> Tensor:
    """Return what each component wrote below a layer, `[component, token, width]`: the senders, and
    as a constant what the stream holds beside them (biases of projections)."""
    written = recording.contributions[0, :below]
    constant = stream[0] - written.sum(0)
    return torch.cat([written, constant[None]])


def _normed_parts(inputs: HeadInputs, components: Tensor, stream: Tensor) -> Tensor:
    """Return the parts of the norm's output, its scale held: they add up to it, with its bias in the
    constant."""
    norm = inputs.norm
    if norm is None:
        return components
    parts = norm.middle(components) * norm.gain / norm.scale(stream)
    parts[-1] += norm.bias
    return parts


class _CallReader(TapSession):
    """Reads one layer's attention call, and again for inputs that are parts of the real one.

    Norms of queries and keys inside attention are not linear: while parts are read they divide by
    the scale that they had for the whole input."""

    def __init__(self, graph: ResidualGraph, layer: int, inputs: HeadInputs) -> None:
        self.graph = graph
        self.layer = layer
        self.inputs = inputs
        self.block = graph.blocks[layer]
        self.layer_count = LayerCount(graph.model.sites)
        self.call: Call | None = None
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._scales: dict[nn.Module, Tensor] = {}
        self._overrides: dict[nn.Module, Tensor] = {}

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        if self.layer_count.of_call(call.module) == self.layer:
            self.call = call
        return call.plain()

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Keep the arguments of the attention module and the scales of its inner norms."""

        def keep_arguments(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._arguments = args, dict(kwargs)

        def keep_scale(norm: Norm) -> Any:
            def hook(module: nn.Module, args: Any, output: Tensor) -> None:
                self._scales[module] = norm.scale(first_tensor(args, {}))

            return only_in_this_thread(hook)

        with ExitStack() as stack:
            before = only_in_this_thread(keep_arguments)
            handle = self.block.module.register_forward_pre_hook(before, with_kwargs=True)
            stack.callback(handle.remove)
            for norm in self.block.inner:
                stack.callback(norm.module.register_forward_hook(keep_scale(norm)).remove)
            yield

    def by_component(self, parts: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys of each part `[part, head, token, d]`; they add up to those of the
        whole input, with all biases in the last."""
        outputs = parts @ self.inputs.matrix
        outputs[-1] += self.inputs.bias
        zero = torch.zeros_like(outputs[:1])
        call = self._read(torch.cat([outputs, zero]))
        # What the module adds whatever it is given (the biases of inner norms) is the last part's.
        queries = call.query[:-1] - call.query[-1:]
        keys = call.key[:-1] - call.key[-1:]
        queries[-1] += call.query[-1]
        keys[-1] += call.key[-1]
        return queries, keys

    def _read(self, outputs: Tensor) -> Call:
        """Return the call that attention makes when its projections give these outputs, each a
        batch entry of its own."""
        if self._arguments is None:
            raise ModelError("The attention module was not run.")
        args, kwargs = self._arguments
        hidden = first_tensor(args, kwargs)
        expanded = hidden.expand(len(outputs), *hidden.shape[1:]).contiguous()
        parts = torch.split(outputs, list(self.inputs.sizes), -1)
        overrides = dict(zip(self.inputs.projections, parts, strict=True))

        def override(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            return overrides[module].reshape(output.shape).to(output)

        def hold_scale(norm: Norm) -> Any:
            def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
                values = norm.middle(first_tensor(args, {}))
                held = values / self._scales[module] * norm.gain + norm.bias
                return held.to(output)

            return only_in_this_thread(hook)

        with ExitStack() as stack:
            for projection in self.inputs.projections:
                hook = only_in_this_thread(override)
                stack.callback(projection.register_forward_hook(hook).remove)
            for norm in self.block.inner:
                stack.callback(norm.module.register_forward_hook(hold_scale(norm)).remove)
            return capture_call(self.block.module, args, kwargs, expanded)
