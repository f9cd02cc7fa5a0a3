"""Attention flow: the largest flow from an input token to a later one through averaged attention
(Abnar & Zuidema 2020)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from headwise.analyses.attribution.mixing_methods.base import Mixing, MixingInput, shares
from headwise.analyses.attribution.mixing_methods.rollout import averaged

SCALE = 2**28  # capacities are whole numbers to scipy; a row of them sums to this
MOST_FLOWS = (
    100_000  # of one input; beyond them, about a minute, an analysis reads flow by layer alone
)


def flow_mixing(seen: MixingInput) -> Mixing:
    """The reading `flow`: by layer, and by head with that head alone in the last step.

    One maximum flow for each pair of tokens, layer and head asked for: about half a millisecond
    each at 20 tokens."""
    steps = averaged(seen.attention).cpu().numpy()
    attention = seen.attention.cpu().numpy()
    heads, layers = np.zeros_like(attention), np.zeros_like(steps)
    for e, row in enumerate(seen.batch.rows):
        n = len(row)
        own = steps[e, :, :n, :n]
        for layer in range(len(own)):
            layers[e, layer, :n, :n] = flows(own[:layer], own[layer])
        for layer, head in seen.wanted():
            heads[e, layer, head, :n, :n] = flows(own[:layer], attention[e, layer, head, :n, :n])
    device = seen.attention.device
    by_head = shares(torch.from_numpy(heads).to(device), seen) if seen.wanted() else None
    return Mixing(by_head, shares(torch.from_numpy(layers).to(device), seen))


def flows(below: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Largest flows `[receiving, source]` from each input token to each token after the last step.

    Parameters
    ----------
    below : array
        `[step, receiving, source]`, the capacities of the steps before the last, from the input on.
    last : array
        `[receiving, source]`, those of the last step. Without steps below it, it is the flow.
    """
    count, n = len(below), len(last)
    if not count:
        return np.array(last)
    edges = [_edges(below[step], step * n, (step + 1) * n) for step in range(count)]
    start, end, room = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    # Where no path leads there is no flow, and nothing to look for.
    reached = last > 0
    for step in below[::-1]:
        reached = (reached.astype(float) @ (step > 0)) > 0
    found, sink = np.zeros((n, n)), (count + 1) * n
    for receiving in range(n):
        into = np.flatnonzero(last[receiving])
        graph = csr_array(
            (
                np.concatenate([room, _whole(last[receiving, into])]),
                (
                    np.concatenate([start, count * n + into]),
                    np.concatenate([end, np.full(len(into), sink)]),
                ),
            ),
            shape=(sink + 1, sink + 1),
        )
        for source in np.flatnonzero(reached[receiving]):
            found[receiving, source] = maximum_flow(graph, int(source), sink).flow_value / SCALE
    return found


def _edges(step: np.ndarray, start: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    receiving, source = np.nonzero(step)
    return start + source, end + receiving, _whole(step[receiving, source])


def _whole(room: np.ndarray) -> np.ndarray:
    return np.asarray(np.rint(room * SCALE), dtype=np.int32)
