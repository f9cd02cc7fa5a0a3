"""Attention flow: the maximum flow from an input token to a later one through averaged attention
(Abnar & Zuidema 2020)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from headwise.analyses.attribution.mixing_methods.base import Mixing, MixingInput, shares
from headwise.analyses.attribution.mixing_methods.rollout import mean_attention_with_residual

SCALE = 2**28  # scipy's capacities are integers; a row of them sums to this
# Of one input, about a minute's work; beyond them, an analysis computes flow only by layer.
MAX_FLOWS = 100_000


def flow_mixing(traced: MixingInput) -> Mixing:
    """Return the method `flow`: by layer, and by head with that head alone in the last step.

    One maximum flow for each pair of tokens, layer and requested head: about half a millisecond
    each at 20 tokens.
    """
    steps = mean_attention_with_residual(traced.attention).cpu().numpy()
    attention = traced.attention.cpu().numpy()
    heads = np.zeros_like(attention)
    layers = np.zeros_like(steps)
    requested = traced.requested_heads()
    for example, row in enumerate(traced.batch.rows):
        n = len(row)
        example_steps = steps[example, :, :n, :n]
        for layer in range(len(example_steps)):
            layers[example, layer, :n, :n] = maximum_flows(
                example_steps[:layer], example_steps[layer]
            )
        for layer, head in requested:
            heads[example, layer, head, :n, :n] = maximum_flows(
                example_steps[:layer], attention[example, layer, head, :n, :n]
            )
    device = traced.attention.device
    head_shares = None
    if requested:
        head_shares = shares(torch.from_numpy(heads).to(device), traced)
    return Mixing(head_shares, shares(torch.from_numpy(layers).to(device), traced))


def maximum_flows(below: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the maximum flows `[receiving, source]` from each input token to each token after the
    last step.

    Parameters
    ----------
    below : array
        `[step, receiving, source]`: the capacities of the steps before the last, from the input on.
    last : array
        `[receiving, source]`: those of the last step. Without steps below, it is the flow.
    """
    n_steps = len(below)
    n = len(last)
    if not n_steps:
        return np.array(last)
    # Node `step * n + token` is a token before a step; the sink is the receiving token.
    starts = []
    ends = []
    capacities = []
    for step, weights in enumerate(below):
        to_tokens, from_tokens = np.nonzero(weights)
        starts.append(step * n + from_tokens)
        ends.append((step + 1) * n + to_tokens)
        capacities.append(_as_integers(weights[to_tokens, from_tokens]))

    # Where no path leads there is no flow: such pairs need no search.
    connected = last > 0
    for weights in below[::-1]:
        connected = (connected.astype(float) @ (weights > 0)) > 0

    flows = np.zeros((n, n))
    sink = (n_steps + 1) * n
    for receiving in range(n):
        sources = np.flatnonzero(last[receiving])
        edge_starts = np.concatenate([*starts, n_steps * n + sources])
        edge_ends = np.concatenate([*ends, np.full(len(sources), sink)])
        edge_capacities = np.concatenate([*capacities, _as_integers(last[receiving, sources])])
        graph = csr_array((edge_capacities, (edge_starts, edge_ends)), shape=(sink + 1, sink + 1))
        for source in np.flatnonzero(connected[receiving]):
            flow = maximum_flow(graph, int(source), sink)
            flows[receiving, source] = flow.flow_value / SCALE
    return flows


def _as_integers(capacities: np.ndarray) -> np.ndarray:
    return np.asarray(np.rint(capacities * SCALE), dtype=np.int32)
