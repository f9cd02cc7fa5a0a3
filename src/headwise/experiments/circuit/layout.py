"""Where the nodes of a circuit stand in a drawing: one row for each layer, few crossings."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import xarray as xr

MAX_EDGES = 60  # more cannot be read in one drawing
SWEEPS = 12
HEADS_WIDTH = 0.85  # heads, embedding and logits stand left of this
MLP_COLUMN = 0.96
NODE = re.compile(r"L(\d+)(H\d+|MLP)")


@dataclass(frozen=True, slots=True)
class CircuitEdge:
    """One edge of a drawing; `effect` with its 95 % interval, `exact` NaN where it was not run."""

    sender: str
    receiver: str
    input: str
    effect: float
    low: float
    high: float
    exact: float
    p: float


@dataclass(frozen=True, slots=True)
class CircuitLayout:
    """The edges of a drawing, its nodes by row (from the embedding up), and the place of each node:
    x from 0 to 1, y the number of the row."""

    edges: list[CircuitEdge]
    rows: list[list[str]]
    places: dict[str, tuple[float, float]]


def depth(node: str) -> float:
    """Return the height of a node: its layer; an MLP stands half a layer above its heads.

    >>> depth("embedding"), depth("L3H1"), depth("L3MLP"), depth("logits")
    (-1.0, 3.0, 3.5, inf)
    """
    match = NODE.fullmatch(node)
    if match is None:
        return -1.0 if node == "embedding" else np.inf
    return int(match[1]) + (0.5 if match[2] == "MLP" else 0.0)


def circuit_layout(dataset: xr.Dataset, max_edges: int = MAX_EDGES) -> CircuitLayout:
    """Return the drawing of a circuit: its strongest edges that lead from the embedding to the
    logits, as far as the drawn edges connect them."""
    in_circuit = np.flatnonzero(dataset["in_circuit"].values)
    effects = dataset["effect"].values
    strongest = in_circuit[np.argsort(-np.abs(effects[in_circuit]), kind="stable")][:max_edges]
    edges = []
    for place in strongest:
        edge = dataset.isel(edge=int(place))
        edges.append(
            CircuitEdge(
                sender=str(edge["sender"].values),
                receiver=str(edge["receiver"].values),
                input=str(edge["input"].values),
                effect=float(edge["effect"]),
                low=float(edge["effect_low"]),
                high=float(edge["effect_high"]),
                exact=float(edge["exact"]),
                p=float(edge["effect_p_adjusted"]),
            )
        )
    names = {edge.sender for edge in edges} | {edge.receiver for edge in edges}
    rows: list[list[str]] = []
    for name in sorted(names, key=lambda name: (depth(name), name)):
        if rows and depth(rows[-1][0]) == depth(name):
            rows[-1].append(name)
        else:
            rows.append([name])
    return CircuitLayout(edges, rows, _places(rows, edges))


def _places(rows: list[list[str]], edges: list[CircuitEdge]) -> dict[str, tuple[float, float]]:
    """Return places with few crossings: nodes of a row are put in the order of the mean place of
    their neighbours, up and down the rows several times."""
    places: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        _spread(row, number, places)
    neighbours: dict[str, list[str]] = {}
    for edge in edges:
        neighbours.setdefault(edge.sender, []).append(edge.receiver)
        neighbours.setdefault(edge.receiver, []).append(edge.sender)
    for sweep in range(SWEEPS):
        numbers = range(len(rows)) if sweep % 2 == 0 else reversed(range(len(rows)))
        for number in numbers:
            means = {}
            for node in rows[number]:
                means[node] = float(np.mean([places[other][0] for other in neighbours[node]]))
            rows[number].sort(key=lambda node: (means[node], node))
            _spread(rows[number], number, places)
    return places


def _spread(row: list[str], number: int, places: dict[str, tuple[float, float]]) -> None:
    """Put the nodes of a row side by side; MLPs have a column of their own at the right, so that
    the edges between them do not run through the heads."""
    for position, node in enumerate(row):
        x = MLP_COLUMN if node.endswith("MLP") else HEADS_WIDTH * (position + 0.5) / len(row)
        places[node] = (x, float(number))
