"""From the effects of edges and the metrics of circuits to labelled arrays: ranking, intervals,
tests, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.papers import reference
from headwise.experiments.circuit.options import CircuitOptions
from headwise.models.residual_graph import ROLES, ResidualGraph
from headwise.stats.corrections import holm
from headwise.stats.correlation import correlation
from headwise.stats.intervals import sample_interval
from headwise.stats.tests import mean_above
from headwise.stats.units import mean_over_units, ratio_parts, share_interval, sum_by_unit

MIN_UNITS = 8  # fewer are not tested
TASK_LEVEL = 0.01


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """Whether the model prefers the answer on clean inputs.

    `right` is the share of pairs with the answer above the wrong one, with its 95 % interval; `p`
    the p-value of the mean difference of logits being no larger than zero, over units."""

    right: float
    right_low: float
    right_high: float
    p: float
    done: bool


@dataclass(frozen=True, slots=True, eq=False)
class CurveValues:
    """The metric of circuits of several sizes alone (`values[pair, size]`), of the model without
    them (`without`), and of random circuits of the same sizes (`random[pair, draw, size]`)."""

    sizes: np.ndarray
    values: np.ndarray
    without: np.ndarray
    random: np.ndarray | None


@dataclass(frozen=True, slots=True, eq=False)
class CircuitMeasurements:
    """What a search has measured.

    `scores` are of the pairs that judge: `effect[pair, edge]`, `clean` and `corrupted` `[pair]`;
    `units` the unit of each of these pairs. `ranking` has all edges, the best first, by the
    `n_ranking_pairs` other pairs. `task` says whether the model does the task; if not, nothing is
    significant. `exact` is what the metric of each pair loses by exact patching, by edge; `sampled`
    the edges drawn at random among them. `curve` has the metric of circuits of growing size, and
    `smallest` the size of the smallest that reaches the stated faithfulness; both None where no
    circuit was searched for, `smallest` also where only the whole model reaches it."""

    graph: ResidualGraph
    options: CircuitOptions
    scores: Mapping[str, np.ndarray]
    units: Sequence[str]
    ranking: np.ndarray
    task: TaskCheck
    exact: Mapping[int, np.ndarray]
    sampled: np.ndarray
    curve: CurveValues | None
    smallest: int | None
    n_ranking_pairs: int


def mean_by_unit(values: np.ndarray, units: Sequence[str]) -> np.ndarray:
    """Return the mean over the pairs of each unit, `[unit, ...]` of `[pair, ...]`."""
    _, index = np.unique(np.asarray(units), return_inverse=True)
    sums = np.zeros((index.max() + 1, *values.shape[1:]))
    np.add.at(sums, index, values)
    counts = np.bincount(index).reshape(-1, *[1] * (values.ndim - 1))
    return sums / counts


def does_task(differences: np.ndarray, units: Sequence[str]) -> TaskCheck:
    """Return whether a model does the task, from the difference of logits on clean inputs.

    It does if the answer is preferred on average over units (p below 0.01) and in more than half of
    the pairs (lower end of the interval over units above 0.5)."""
    is_right = differences > 0
    _, unit_of_pair = np.unique(np.asarray(units), return_inverse=True)
    low, high = share_interval(
        sum_by_unit(is_right.astype(float), unit_of_pair),
        np.bincount(unit_of_pair).astype(float),
    )
    by_unit = mean_by_unit(differences, units)
    p = float(mean_above(by_unit))
    return TaskCheck(
        right=float(is_right.mean()),
        right_low=float(low),
        right_high=float(high),
        p=p,
        done=bool(p < TASK_LEVEL and low > 0.5),
    )


def rank_edges(effects: np.ndarray, units: Sequence[str]) -> np.ndarray:
    """Return the numbers of all edges, the one with the largest mean effect (either sign) first."""
    mean = mean_by_unit(effects, units).mean(0)
    order: np.ndarray = np.argsort(-np.abs(mean), kind="stable")
    return order


def circuit_dataset(measured: CircuitMeasurements) -> xr.Dataset:
    """Return all variables and attributes of a search; see `circuit`."""
    graph = measured.graph
    options = measured.options
    edges = graph.edges
    scores = measured.scores
    units = measured.units
    ranking = measured.ranking
    task = measured.task
    exact = measured.exact
    curve = measured.curve
    smallest = measured.smallest
    in_circuit = np.zeros(len(edges), bool)
    if smallest is not None:
        in_circuit[ranking[:smallest]] = True
        in_circuit = edges.connected(in_circuit)
    kept = _kept_edges(ranking, options.edges, in_circuit, exact)

    variables = _effect_variables("effect", scores["effect"][:, kept], units, task.done)
    exact_values = np.full((len(units), len(kept)), np.nan)
    for place, edge in enumerate(kept):
        if int(edge) in exact:
            exact_values[:, place] = exact[int(edge)]
    variables |= _effect_variables("exact", exact_values, units, task.done)
    variables["in_circuit"] = ("edge", in_circuit[kept])
    variables |= _node_variables(graph, scores["effect"])

    clean = scores["clean"]
    corrupted = scores["corrupted"]
    attributes: dict[str, Any] = {
        "title": "Circuit: which edges between the parts of the model carry the behaviour",
        "paper": reference("hanna2024").short,
        "citation": reference("hanna2024").citation,
        "metric": options.metric,
        "pairs": len(clean),
        "ranking_pairs": measured.n_ranking_pairs,
        "units": len(set(units)),
        "all_edges": len(edges),
        "clean": float(clean.mean()),
        "corrupted": float(corrupted.mean()),
        "does_task": int(task.done),
        "right": task.right,
        "right_low": task.right_low,
        "right_high": task.right_high,
        "task_p": task.p,
        "note": "",
    }
    if not task.done:
        attributes["note"] = (
            f"The model does not do this task: it prefers the answer in {100 * task.right:.0f} % of "
            f"the pairs (p {task.p:.2g}). No edge is tested and no circuit is searched for."
        )
    coords: dict[str, Any] = {
        "layer": np.arange(edges.layers),
        "head": np.arange(edges.heads),
        "edge": np.arange(len(kept)),
        "sender": ("edge", np.array([edges.sender_names[edges.senders[edge]] for edge in kept])),
        "receiver": ("edge", np.array([_receiver_node(graph, edge) for edge in kept])),
        "input": ("edge", np.array([_input_name(graph, edge) for edge in kept])),
    }
    if len(measured.sampled) > 2:
        attributes |= _agreement(scores["effect"], exact, measured.sampled, units)
    if curve is not None:
        coords["size"] = curve.sizes
        curve_variables, curve_attributes = _curve_variables(curve, clean, corrupted, units)
        variables |= curve_variables
        attributes |= curve_attributes
    attributes["wanted_faithfulness"] = options.faithfulness
    if curve is not None:
        attributes |= _circuit_attributes(smallest, in_circuit, curve, clean, corrupted)
    return xr.Dataset(variables, coords, attributes)


def _kept_edges(
    ranking: np.ndarray, count: int, in_circuit: np.ndarray, exact: Mapping[int, np.ndarray]
) -> np.ndarray:
    """Return the edges of the result, in the order of the ranking: the best, those of the circuit,
    and those that were patched exactly."""
    wanted = in_circuit.copy()
    wanted[ranking[:count]] = True
    wanted[list(exact)] = True
    kept: np.ndarray = ranking[wanted[ranking]]
    return kept


def _receiver_node(graph: ResidualGraph, edge: int) -> str:
    return graph.edges.receiver_name(int(edge)).split(".")[0]


def _input_name(graph: ResidualGraph, edge: int) -> str:
    role = int(graph.edges.roles[edge])
    return "" if role < 0 else ROLES[role]


def _effect_variables(
    name: str, values: np.ndarray, units: Sequence[str], tested: bool
) -> dict[str, Any]:
    """Return the mean over units of what the metric loses, with interval and test, by edge."""
    by_unit = mean_by_unit(values, units)
    n_units = len(by_unit)
    mean, low, high = sample_interval(by_unit)
    p = np.full(mean.shape, np.nan)
    if tested and n_units >= MIN_UNITS:
        p = np.minimum(1.0, 2 * np.minimum(mean_above(by_unit), mean_above(-by_unit)))
        p = np.where(np.isnan(mean), np.nan, p)
    return {
        name: ("edge", mean, {"long_name": "loss of the metric without the edge"}),
        f"{name}_n": ("edge", np.where(np.isnan(mean), 0, n_units)),
        f"{name}_low": ("edge", low),
        f"{name}_high": ("edge", high),
        f"{name}_p": ("edge", p),
        f"{name}_p_adjusted": ("edge", holm(p)),
    }


def _node_variables(graph: ResidualGraph, effects: np.ndarray) -> dict[str, Any]:
    """Return the sums of effects over the outgoing edges of every head and MLP: what the metric
    loses, to first order, when the whole node gives what it gave on the corrupted input."""
    edges = graph.edges
    by_sender = np.bincount(edges.senders, effects.mean(0), edges.n_senders)
    by_layer = by_sender[1:].reshape(edges.layers, edges.heads + 1)
    return {
        "head_effect": (("layer", "head"), by_layer[:, :-1]),
        "mlp_effect": ("layer", by_layer[:, -1]),
    }


def _agreement(
    effects: np.ndarray,
    exact: Mapping[int, np.ndarray],
    sampled: np.ndarray,
    units: Sequence[str],
) -> dict[str, Any]:
    """Return the correlation of estimate and exact effect over the sampled edges."""
    estimates = mean_by_unit(effects[:, sampled], units).mean(0)
    exact_means = []
    for edge in sampled:
        exact_means.append(mean_by_unit(exact[int(edge)], units).mean())
    attributes: dict[str, Any] = {"checked_edges": len(sampled)}
    for method in ("pearson", "spearman"):
        agreement = correlation(np.array(exact_means), estimates, method)
        attributes[method] = float(agreement.r)
        attributes[f"{method}_low"] = float(agreement.low)
        attributes[f"{method}_high"] = float(agreement.high)
    return attributes


def _shares(values: np.ndarray, clean: np.ndarray, corrupted: np.ndarray) -> np.ndarray:
    """Return totals over pairs as shares of the total gap: 0 for the corrupted run, 1 for the
    clean one; `[...]` of `[pair, ...]`."""
    gap = (clean - corrupted).sum()
    base = corrupted.reshape(-1, *[1] * (values.ndim - 1))
    shares: np.ndarray = (values - base).sum(0) / gap
    return shares


def _share_interval(
    values: np.ndarray, clean: np.ndarray, corrupted: np.ndarray, units: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % interval of shares by Student's t over units, corrected for skewness, `[size]`
    of `[pair, size]`."""
    parts = ratio_parts(values - corrupted[:, None], (clean - corrupted)[:, None])
    _, unit_of_pair = np.unique(np.asarray(units), return_inverse=True)
    return mean_over_units(parts, unit_of_pair).interval()


def _area(sizes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the area under a curve of shares over the logarithm of the size, from 0 to 1."""
    places = np.log(sizes) / np.log(sizes[-1])
    area: np.ndarray = np.trapezoid(shares, places, axis=-1)
    return area


def _curve_variables(
    curve: CurveValues, clean: np.ndarray, corrupted: np.ndarray, units: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    variables: dict[str, Any] = {}
    for name, values in (("faithfulness", curve.values), ("completeness", curve.without)):
        low, high = _share_interval(values, clean, corrupted, units)
        variables[name] = ("size", _shares(values, clean, corrupted))
        variables[f"{name}_n"] = ("size", np.full(len(curve.sizes), len(set(units))))
        variables[f"{name}_low"] = ("size", low)
        variables[f"{name}_high"] = ("size", high)
    attributes = {"area": float(_area(curve.sizes, variables["faithfulness"][1]))}
    if curve.random is not None:
        shares = _shares(curve.random, clean, corrupted)
        areas = _area(curve.sizes, shares)
        variables["random_faithfulness"] = (("draw", "size"), shares)
        attributes |= {
            "random_area": float(areas.mean()),
            "random_area_most": float(areas.max()),
            "area_p": float((1 + (areas >= attributes["area"]).sum()) / (1 + len(areas))),
        }
    return variables, attributes


def _circuit_attributes(
    smallest: int | None,
    in_circuit: np.ndarray,
    curve: CurveValues,
    clean: np.ndarray,
    corrupted: np.ndarray,
) -> dict[str, Any]:
    if smallest is None:
        return {"circuit_size": 0, "circuit_edges": 0}
    shares = _shares(curve.values, clean, corrupted)
    place = int(np.flatnonzero(curve.sizes == smallest)[0])
    return {
        "circuit_size": smallest,
        "circuit_edges": int(in_circuit.sum()),
        "circuit_faithfulness": float(shares[place]),
    }


def describe_edges(dataset: xr.Dataset, count: int = 10) -> list[str]:
    """Return the best edges as text, each with its effect, interval and corrected p-value."""
    lines = []
    for place in range(min(count, dataset.sizes["edge"])):
        edge = dataset.isel(edge=place)
        receiver = str(edge["receiver"].values)
        role = str(edge["input"].values)
        if role:
            receiver = f"{receiver}.{role}"
        line = (
            f"{edge['sender'].values} -> {receiver}: {float(edge['effect']):+.3f} "
            f"({float(edge['effect_low']):+.3f} … {float(edge['effect_high']):+.3f})"
        )
        if np.isfinite(float(edge["exact"])):
            line += f", exact {float(edge['exact']):+.3f}"
        if np.isfinite(float(edge["effect_p_adjusted"])):
            line += f", p {float(edge['effect_p_adjusted']):.2g}"
        lines.append(line)
    return lines
