"""How large, how faithful and how costly circuits are on a real model.

    python benchmarks/circuits.py MODEL [--sets agreement induction] [--limit 64] [--check 200]
    python benchmarks/circuits.py MODEL --limit 64 --check 200 --device cuda --write circuits.md
    python benchmarks/circuits.py MODEL --limit 64 --check 200 --results FOLDER
    python benchmarks/circuits.py MODEL --sets induction --check 200 --steps 1 5 10 20
    python benchmarks/circuits.py MODEL --cost [--pairs 16]

The first form prints, for each set of pairs: the number of edges that reach 80 % faithfulness, and
what they reach on pairs that did not rank them; the area under the curve against 20 random rankings;
the correlation of the estimate with exact path patching over edges drawn at random; and, for
induction, which edges of the circuit lead from a previous-token head to the key of an induction head
(heads by `headwise run induction`, significant). With --results it keeps each result in a file
like FOLDER/agreement.nc, and reads those that are there: `headwise circuit --out` writes the same.

With --steps it prints how close the estimate is to exact patching with so many points between the
corrupted and the clean embeddings, all on the same edges. With --cost it prints what the attribution
of all edges costs, in plain forward and backward passes over the same pairs, processor time and peak
memory. Each prints a table in Markdown, and appends it to a file named by --write. The cost on a GPU
at the size of 8B: gpu_circuits.py."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import xarray as xr

import headwise
from headwise import Atlas, HeadModel, make_atlas
from headwise.core.labels import head_name
from headwise.experiments.circuit.options import CircuitOptions
from headwise.experiments.circuit.result import mean_by_unit, rank_edges
from headwise.experiments.circuit.run import (
    PatchEdges,
    ScoreGroup,
    group_by_lengths,
    sample_by_rank,
    split_by_unit,
)
from headwise.experiments.patching import builtin_pairs
from headwise.experiments.patching.pairs import (
    EncodedPair,
    choose_pairs,
    distinct_pairs,
    encode_pairs,
)
from headwise.models.residual_graph import ResidualGraph
from headwise.stats.correlation import correlation
from headwise.text.encode import collate

SIGNIFICANT = 0.05
LEAST_PREVIOUS = 0.3  # mean attention to the previous token, of a previous-token head
MOST_PASSES = 12  # that all edges may cost, in plain forward and backward passes
MOST_GIGABYTES = 2.0
REPORT_SECONDS = 10.0


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


def circuit_of(model: HeadModel, name: str, arguments: argparse.Namespace) -> xr.Dataset:
    """Return the circuit of a set of pairs, from its file if there is one."""
    file = None
    if arguments.results is not None:
        file = arguments.results / f"{name}.nc"
        if file.exists():
            return Atlas.load(file)["circuit"]
    return headwise.circuit(
        model,
        name,
        limit=arguments.limit,
        check=arguments.check,
        batch=arguments.batch,
        out=file,
        progress=Reporter(name),
    )


def print_circuits(model: HeadModel, arguments: argparse.Namespace) -> None:
    rows = []
    notes = []
    for name in arguments.sets:
        start = time.perf_counter()
        result = circuit_of(model, name, arguments)
        seconds = time.perf_counter() - start
        rows.append(circuit_row(name, result))
        notes.append(f"{name}: {seconds:.0f} s on {model.device.type}; {', '.join(rows[-1])}")
        # What is known so far stands in the file even if a later set is interrupted.
        write(arguments.write, notes[-1])
        if name == "induction" and result.attrs["does_task"]:
            edges = induction_edges(model, result)
            notes.append(
                f"{len(edges)} edges of the circuit lead from a previous-token head to the key of an "
                f"induction head: {', '.join(edges[:8])}"
            )
    columns = [
        "pairs",
        "right",
        "edges for 80 %",
        "on other pairs",
        "area (random)",
        "exact, Pearson",
    ]
    lines = ["", *table(columns, rows), ""]
    for note in notes:
        lines += [note, ""]
    text = "\n".join(lines)
    print(text)
    write(arguments.write, text)


# --- steps ----------------------------------------------------------------------------------------


def print_steps(model: HeadModel, arguments: argparse.Namespace) -> None:
    """Print the correlation of estimate and exact effect, by the number of points."""
    graph = ResidualGraph(model)
    for name in arguments.sets:
        chosen, strict = choose_pairs(model, name, arguments.limit, 0, None)
        encoded, _ = encode_pairs(model, distinct_pairs(chosen), strict, marked=True)
        ranking_pairs, judging_pairs = split_by_unit(encoded)
        ranking_groups = group_by_lengths(ranking_pairs, arguments.batch)
        judging_groups = group_by_lengths(judging_pairs, arguments.batch)
        # One sample for all: by the ranking that the command makes by default.
        options = CircuitOptions()
        ranked = edge_effects(ScoreGroup(graph, options), ranking_groups)
        ranking = rank_edges(ranked, units_of(ranking_groups))
        sampled = sample_by_rank(ranking, arguments.check, 0)
        patch_edges = PatchEdges(graph, options.metric, sampled, Reporter(name))
        lost = np.concatenate([patch_edges(group)[0]["lost"] for group in judging_groups])
        units = units_of(judging_groups)
        exact = mean_by_unit(lost, units).mean(0)
        rows = []
        for steps in arguments.steps:
            start = time.perf_counter()
            score = ScoreGroup(graph, CircuitOptions(steps=steps))
            effects = edge_effects(score, judging_groups)[:, sampled]
            seconds = time.perf_counter() - start
            estimate = mean_by_unit(effects, units).mean(0)
            cells = [name, str(steps)]
            for method in ("pearson", "spearman"):
                close = correlation(exact, estimate, method)
                cells.append(f"{close.r:.3f} ({close.low:.3f} … {close.high:.3f})")
            rows.append([*cells, f"{seconds:.0f} s"])
            print(", ".join(rows[-1]), file=sys.stderr, flush=True)
        columns = ["pairs", "points", "Pearson", "Spearman", "all edges"]
        text = "\n".join([f"{len(sampled)} edges", "", *table(columns, rows), ""])
        print(text)
        write(arguments.write, text)


def edge_effects(score: ScoreGroup, groups: list[list[EncodedPair]]) -> np.ndarray:
    """Return the estimated effects of all edges, `[pair, edge]`."""
    return np.concatenate([score(group)[0]["effect"] for group in groups])


def units_of(groups: list[list[EncodedPair]]) -> list[str]:
    return [pair.unit for group in groups for pair in group]


# --- cost -----------------------------------------------------------------------------------------


def cpu_seconds(works: list[Callable[..., object]], groups: list[list[EncodedPair]]) -> list[float]:
    """Return the processor time of each function over all groups, the least of three.

    They take turns: where other programs share the cores, processor time varies by the minute."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(3):
        for number, work in enumerate(works):
            start = time.process_time()
            for group in groups:
                work(group)
            times[number].append(time.process_time() - start)
    return [min(of_work) for of_work in times]


def print_cost(model: HeadModel, n_pairs: int, file: Path | None) -> bool:
    """Print what all edges cost; return whether that is within the bounds."""
    graph = ResidualGraph(model)
    encoded, _ = encode_pairs(model, builtin_pairs("agreement", n_pairs, 0), strict=False)
    groups = group_by_lengths(encoded, 16)
    before = peak_gigabytes()
    scores = {
        "EAP": ScoreGroup(graph, CircuitOptions(steps=1)),
        "EAP-IG, 5 steps": ScoreGroup(graph, CircuitOptions(steps=5)),
    }
    works: list[Callable[..., object]] = [partial(plain_pass, model), *scores.values()]
    plain, *scoring = cpu_seconds(works, groups)
    rows = []
    passes = []
    for name, seconds in zip(scores, scoring, strict=True):
        passes.append(seconds / plain)
        rows.append([name, f"{seconds:.1f} s", f"{plain:.1f} s", f"{seconds / plain:.1f}"])
    memory = peak_gigabytes() - before
    text = "\n".join(
        [
            f"{len(graph.edges)} edges, {len(encoded)} pairs; least of three, processor time",
            "",
            *table(["method", "all edges", "forward and backward", "passes"], rows),
            "",
            f"Peak memory {peak_gigabytes():.2f} GB, {memory:.2f} GB above the open model",
        ]
    )
    print(text)
    write(file, text)
    return max(passes) <= MOST_PASSES and memory <= MOST_GIGABYTES


def plain_pass(model: HeadModel, group: list[EncodedPair]) -> None:
    """Run a model forward and backward over the clean inputs of a group, to its embeddings."""
    batch = collate([pair.clean for pair in group], model.pad_id, model.device)
    with torch.enable_grad():
        embedded = model.module.get_input_embeddings()(batch.ids).detach().requires_grad_()
        logits = model.module(inputs_embeds=embedded).logits
        value = logits[:, -1].logsumexp(-1).sum()
        # To the embeddings, not to the weights: `backward` would cost half as much again.
        torch.autograd.grad(value, embedded)


def peak_gigabytes() -> float:
    """Return the largest memory this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes here
    return peak * unit / 1e9


# --- output ---------------------------------------------------------------------------------------


class Reporter:
    """Prints the progress of one set of pairs, at most every few seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.start = time.perf_counter()
        self.last = self.start

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.perf_counter()
        if done == total or now - self.last > REPORT_SECONDS:
            self.last = now
            elapsed = now - self.start
            print(f"{self.name}, {elapsed:.0f} s: {what} {done} of {total}", file=sys.stderr)


def table(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        lines.append(f"| {' | '.join(row)} |")
    return lines


def write(file: Path | None, text: str) -> None:
    """Append a text to a file, if there is one."""
    if file is not None:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"{text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="a hub name or a folder")
    parser.add_argument("--sets", nargs="+", default=["agreement", "induction"])
    parser.add_argument("--limit", type=int, default=64, help="pairs of each set")
    parser.add_argument("--check", type=int, default=200, help="edges that are patched exactly")
    parser.add_argument("--results", type=Path, help="a folder of results to keep or to read")
    parser.add_argument("--steps", nargs="+", type=int, help="numbers of points to compare")
    parser.add_argument("--cost", action="store_true", help="measure what all edges cost")
    parser.add_argument("--pairs", type=int, default=16, help="with --cost: how many pairs")
    parser.add_argument("--batch", type=int, default=32, help="pairs that run at once")
    parser.add_argument("--device", help="cpu, cuda; by default a GPU if there is one")
    parser.add_argument("--write", type=Path, help="append the tables to this file")
    arguments = parser.parse_args()
    with HeadModel.open(arguments.model, device=arguments.device, dtype="float32") as model:
        if arguments.cost:
            return 0 if print_cost(model, arguments.pairs, arguments.write) else 1
        if arguments.steps:
            print_steps(model, arguments)
            return 0
        print_circuits(model, arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
