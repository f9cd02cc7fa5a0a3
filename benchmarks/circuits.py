"""How large, how faithful and how costly circuits are on a real model.

    python benchmarks/circuits.py MODEL [--sets agreement induction] [--limit 64] [--check 200]
    python benchmarks/circuits.py MODEL --cost [--pairs 16]

The first form prints, for each set of pairs: the number of edges that reach 80 % faithfulness, and
what they reach on pairs that did not rank them; the area under the curve against 20 random rankings;
the correlation of the estimate with exact path patching over edges drawn at random; and, for
induction, which edges of the circuit lead from a previous-token head to the key of an induction head
(heads by `headwise run induction`, significant). The second form prints what the attribution of all
edges costs, in plain forward and backward passes over the same pairs, processor time and peak
memory. Each prints a table in Markdown."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import xarray as xr

import headwise
from headwise import HeadModel, make_atlas
from headwise.core.labels import head_name
from headwise.experiments.circuit.options import CircuitOptions
from headwise.experiments.circuit.run import ScoreGroup, group_by_lengths
from headwise.experiments.patching import builtin_pairs
from headwise.experiments.patching.pairs import EncodedPair, encode_pairs
from headwise.models.residual_graph import ResidualGraph
from headwise.text.encode import collate

SIGNIFICANT = 0.05
LEAST_PREVIOUS = 0.3  # mean attention to the previous token, of a previous-token head
MOST_PASSES = 12  # that all edges may cost, in plain forward and backward passes
MOST_GIGABYTES = 2.0


# --- circuits -------------------------------------------------------------------------------------


def circuit_row(name: str, result: xr.Dataset) -> list[str]:
    """Return the row of one set of pairs."""
    facts = result.attrs
    if not facts["does_task"]:
        return [name, facts["note"], "", "", "", ""]
    size = "none"
    if facts["circuit_size"]:
        size = f"{facts['circuit_edges']} of {facts['all_edges']}"
    return [
        name,
        f"{facts['right']:.0%} of {facts['pairs'] + facts['ranking_pairs']} pairs",
        size,
        f"{facts.get('circuit_faithfulness', float('nan')):.0%}",
        f"{facts['area']:.2f} ({facts['random_area']:.2f}, at most {facts['random_area_most']:.2f})",
        f"{facts['pearson']:.3f} ({facts['pearson_low']:.3f} … {facts['pearson_high']:.3f}), "
        f"rank {facts['spearman']:.2f}, {facts['checked_edges']} edges",
    ]


def induction_edges(model: HeadModel, result: xr.Dataset) -> list[str]:
    """Return the edges of the circuit from a previous-token head to the key of an induction head."""
    heads = make_atlas(model, analyses=["induction"])["induction"]
    previous = set()
    induction = set()
    for layer in range(model.layers):
        for head in range(model.heads):
            name = head_name(layer, head)
            if float(heads["previous"].values[layer, head]) > LEAST_PREVIOUS:
                previous.add(name)
            if float(heads["prefix_matching_p_adjusted"].values[layer, head]) < SIGNIFICANT:
                induction.add(name)
    edges = []
    for place in range(result.sizes["edge"]):
        edge = result.isel(edge=place)
        is_key = str(edge["input"].values) == "key" and bool(edge["in_circuit"])
        sender = str(edge["sender"].values)
        receiver = str(edge["receiver"].values)
        if is_key and sender in previous and receiver in induction:
            edges.append(f"{sender} -> {receiver}.key {float(edge['effect']):+.3f}")
    return edges


def print_circuits(model: HeadModel, arguments: argparse.Namespace) -> None:
    rows = []
    notes = []
    for name in arguments.sets:
        result = headwise.circuit(
            model, name, limit=arguments.limit, check=arguments.check, progress=print_progress
        )
        rows.append(circuit_row(name, result))
        if name == "induction" and result.attrs["does_task"]:
            edges = induction_edges(model, result)
            notes.append(
                f"{len(edges)} edges of the circuit lead from a previous-token head to the key of an "
                f"induction head: {', '.join(edges[:8])}"
            )
    print_table(
        ["pairs", "right", "edges for 80 %", "on other pairs", "area (random)", "exact, Pearson"],
        rows,
    )
    for note in notes:
        print(f"\n{note}")


# --- cost -----------------------------------------------------------------------------------------


def cpu_seconds(work: Callable[..., object], groups: list[list[EncodedPair]]) -> float:
    """Return the processor time of a function over all groups, the least of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        for group in groups:
            work(group)
        times.append(time.process_time() - start)
    return min(times)


def print_cost(model: HeadModel, n_pairs: int) -> bool:
    """Print what all edges cost; return whether that is within the bounds."""
    graph = ResidualGraph(model)
    encoded, _ = encode_pairs(model, builtin_pairs("agreement", n_pairs, 0), strict=False)
    groups = group_by_lengths(encoded, 16)
    before = peak_gigabytes()
    rows = []
    passes = []
    for steps in (1, 5):
        score_group = ScoreGroup(graph, CircuitOptions(steps=steps))
        scoring = cpu_seconds(score_group, groups)
        plain = cpu_seconds(partial(plain_pass, model), groups)
        passes.append(scoring / plain)
        name = "EAP" if steps == 1 else f"EAP-IG, {steps} steps"
        rows.append([name, f"{scoring:.1f} s", f"{plain:.1f} s", f"{scoring / plain:.1f}"])
    print(f"{len(graph.edges)} edges, {len(encoded)} pairs; least of three, processor time\n")
    print_table(["method", "all edges", "forward and backward", "passes"], rows)
    memory = peak_gigabytes() - before
    print(f"\nPeak memory {peak_gigabytes():.2f} GB, {memory:.2f} GB above the open model")
    return passes[0] <= MOST_PASSES and memory <= MOST_GIGABYTES


def plain_pass(model: HeadModel, group: list[EncodedPair]) -> None:
    """Run a model forward and backward over the clean inputs of a group, to its embeddings."""
    batch = collate([pair.clean for pair in group], model.pad_id, model.device)
    with torch.enable_grad():
        embedded = model.module.get_input_embeddings()(batch.ids).detach().requires_grad_()
        logits = model.module(inputs_embeds=embedded).logits
        logits[:, -1].logsumexp(-1).sum().backward()


def peak_gigabytes() -> float:
    """Return the largest memory this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes here
    return peak * unit / 1e9


# --- output ---------------------------------------------------------------------------------------


def print_progress(what: str, done: int, total: int) -> None:
    if done == total:
        print(f"{what}: {total}", file=sys.stderr)


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="a hub name or a folder")
    parser.add_argument("--sets", nargs="+", default=["agreement", "induction"])
    parser.add_argument("--limit", type=int, default=64, help="pairs of each set")
    parser.add_argument("--check", type=int, default=200, help="edges that are patched exactly")
    parser.add_argument("--cost", action="store_true", help="measure what all edges cost")
    parser.add_argument("--pairs", type=int, default=16, help="with --cost: how many pairs")
    arguments = parser.parse_args()
    with HeadModel.open(arguments.model) as model:
        if arguments.cost:
            return 0 if print_cost(model, arguments.pairs) else 1
        print_circuits(model, arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
