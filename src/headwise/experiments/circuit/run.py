"""Find the circuit of a behaviour: score all edges, rank them on one half of the pairs, and judge the
ranking on the other half."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.atlas import Atlas
from headwise.core.errors import InputError
from headwise.core.options import part_of, recorded_options, takes_options
from headwise.experiments.circuit.options import CircuitOptions
from headwise.experiments.circuit.result import (
    CircuitMeasurements,
    CurveValues,
    circuit_dataset,
    does_task,
    rank_edges,
)
from headwise.experiments.patching.pairs import (
    EncodedPair,
    choose_pairs,
    distinct_pairs,
    encode_pairs,
)
from headwise.experiments.patching.templates import PromptPair
from headwise.models import HeadModel
from headwise.models.options import ModelOptions
from headwise.models.prefix import Prefix
from headwise.models.residual_graph import Metric, Recording, ResidualGraph, Skipping
from headwise.run.job import Job, Progress, no_progress, provenance_of
from headwise.text.encode import Batch, collate


@takes_options(CircuitOptions)
def circuit(
    model: HeadModel | str | Path | None,
    pairs: str | Path | Sequence[PromptPair] = "agreement",
    *,
    strict: bool | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    options: CircuitOptions,
) -> xr.Dataset:
    """Find which edges between heads, MLPs, embedding and logits carry a behaviour.

    Every edge is scored by edge attribution (Syed et al. 2023; Hanna et al. 2024), the best are
    patched exactly (path patching; Wang et al. 2022), and circuits of growing size are run alone.
    Edges are ranked on one half of the pairs; every number of the result is of the other half.

    Parameters
    ----------
    model : HeadModel, str or Path
        A causal language model: a hub name, a folder or an open model.
    pairs : str, Path or sequence of PromptPair, default "agreement"
        A built-in set (`agreement`, `names`, `greater-than`, `pronouns`, `induction`, `docstring`,
        `capitals`), a .jsonl file with `clean`, `corrupted`, `answer` and `wrong` in each row, or
        pairs. Inputs of unequal length are aligned by spans marked `[[...]]` in both.
    strict : bool, optional
        Raise for a pair that cannot be used, instead of leaving it out; default: for all but
        built-in pairs.
    out : str or Path, optional
        A NetCDF file for the result. An interrupted call with `out` resumes: repeat it.
    overwrite : bool, default False
        Replace an existing file.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    options : CircuitOptions
        Each option is also a keyword.

    Returns
    -------
    Dataset
        By `edge`, the best first (with `sender`, `receiver`, `input`): `effect`, what the metric
        loses when the edge carries the corrupted input (to first order), with `_n`, 95 % interval,
        `_p`, `_p_adjusted` (two-sided over units, corrected over the edges of the result by Holm);
        `exact`, the same by a run of its own, NaN where none was made; `in_circuit`. By `size`:
        `faithfulness`, the share of the metric that the best edges alone keep; `completeness`, the
        share that is left without them; `random_faithfulness[draw, size]`. By head and layer:
        `head_effect`, `mlp_effect`, sums over outgoing edges. Attributes: `clean`, `corrupted`
        (mean metric), `does_task`, `circuit_edges`, `circuit_faithfulness`, `area`, `random_area`,
        and so on. A model that does not do the task gets no significant edge and no circuit.
    """
    with Job.for_call(out, overwrite=overwrite, progress=progress) as job:
        result = circuit_in_job(job, model, pairs, options, strict)
        job.finish_with(result)
    return result["circuit"]


def circuit_in_job(
    job: Job,
    model: HeadModel | str | Path | None,
    pairs: str | Path | Sequence[PromptPair],
    options: CircuitOptions,
    strict: bool | None = None,
) -> Atlas:
    """Open a model and pairs, and find their circuit within a job; see `circuit`."""
    model = part_of(options, ModelOptions).open(model)
    graph = ResidualGraph(model)
    chosen, strict = choose_pairs(model, pairs, options.limit, options.seed, strict)
    distinct = distinct_pairs(chosen)
    encoded, n_left_out = encode_pairs(model, distinct, strict, marked=True)
    if len(encoded) < 2:
        raise InputError(
            "Edges are ranked on one half of the pairs and judged on the other: give at least two "
            "different pairs (for a single one: `patch`)."
        )
    job.begin(
        {
            "model": model.identity(),
            "device": model.device.type,
            "pairs": [asdict(pair) for pair in distinct],
            "options": recorded_options(options),
        }
    )
    search = CircuitSearch(job, graph, encoded, options)
    dataset = search.run()
    dataset.attrs["left_out_pairs"] = n_left_out
    dataset.attrs["duplicate_pairs"] = len(chosen) - len(distinct)
    dataset.attrs["task"] = str(pairs) if isinstance(pairs, str | Path) else "given pairs"
    corpus_facts = {"examples": len(chosen)}
    return Atlas({"circuit": dataset}, provenance_of("circuit", model, corpus_facts, options))


def split_by_unit(pairs: Sequence[EncodedPair]) -> tuple[list[EncodedPair], list[EncodedPair]]:
    """Return two halves of pairs without a common unit: one to rank edges on, one to judge them.

    Where all pairs are of one unit, the halves share it."""
    by_unit: dict[str, list[EncodedPair]] = {}
    for pair in pairs:
        by_unit.setdefault(pair.unit, []).append(pair)
    if len(by_unit) < 2:
        return list(pairs[::2]), list(pairs[1::2])
    ranking: list[EncodedPair] = []
    judging: list[EncodedPair] = []
    for alike in by_unit.values():
        smaller_half = ranking if len(ranking) <= len(judging) else judging
        smaller_half.extend(alike)
    return ranking, judging


def group_by_lengths(pairs: Sequence[EncodedPair], size: int) -> list[list[EncodedPair]]:
    """Return groups of at most `size` pairs whose inputs have the same lengths."""
    by_lengths: dict[tuple[int, int], list[EncodedPair]] = {}
    for pair in pairs:
        by_lengths.setdefault((len(pair.clean), len(pair.corrupted)), []).append(pair)
    groups = []
    for lengths in sorted(by_lengths):
        alike = by_lengths[lengths]
        for start in range(0, len(alike), size):
            groups.append(alike[start : start + size])
    return groups


def sample_by_rank(ranking: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return `count` edges drawn at random for comparison with exact patching: equally many from
    each tenfold of the ranking (all of it where there are fewer), since most edges carry next to
    nothing."""
    if not count:
        return np.zeros(0, int)
    random = np.random.default_rng(seed)
    bounds = [0, 10]
    while bounds[-1] < len(ranking):
        bounds.append(min(10 * bounds[-1], len(ranking)))
    strata = list(pairwise(bounds))
    drawn: list[np.ndarray] = []
    left = count
    for number, (start, stop) in enumerate(strata):
        share = left // (len(strata) - number)
        n_drawn = min(share, stop - start)
        drawn.append(random.choice(ranking[start:stop], n_drawn, replace=False))
        left -= n_drawn
    return np.concatenate(drawn)


class PairRuns:
    """Both runs of a group of pairs, and the metric.

    Parameters
    ----------
    graph : ResidualGraph
        The model.
    group : sequence of EncodedPair
        Pairs whose inputs have the same lengths.
    metric : {"difference", "kl"}
        What is measured of the logits of the last token.
    """

    def __init__(self, graph: ResidualGraph, group: Sequence[EncodedPair], metric: str) -> None:
        model = graph.model
        device = model.device
        self.graph = graph
        self.batch: Batch = collate([pair.clean for pair in group], model.pad_id, device)
        corrupted = collate([pair.corrupted for pair in group], model.pad_id, device)
        self.answer = torch.tensor([pair.answer for pair in group], device=device)
        self.wrong = torch.tensor([pair.wrong for pair in group], device=device)
        self._metric = metric
        self.prefix = Prefix(model)
        self.shares_layers = Prefix.supports(model.sites)
        if self.shares_layers:
            with self.prefix.recording():
                self.clean: Recording = graph.record(self.batch)
        else:
            self.clean = graph.record(self.batch)
        positions = torch.as_tensor(np.stack([pair.positions for pair in group]), device=device)
        self.corrupted = graph.record(corrupted).at(positions, self.clean)

    @property
    def metric(self) -> Metric:
        """The metric of logits of the last tokens, `[pair]`."""
        return self._kl if self._metric == "kl" else self.difference

    def difference(self, logits: Tensor) -> Tensor:
        """Return the logit of the answer less that of the wrong answer."""
        pairs = torch.arange(len(logits), device=logits.device)
        return logits[pairs, self.answer] - logits[pairs, self.wrong]

    def _kl(self, logits: Tensor) -> Tensor:
        """Return minus the divergence from the clean distribution: 0 for the clean run itself."""
        clean = self.clean.logits.log_softmax(-1)
        return -(clean.exp() * (clean - logits.log_softmax(-1))).sum(-1)

    @property
    def skipping(self) -> Skipping | None:
        return self.prefix.skipping if self.shares_layers else None

    def points(self, steps: int) -> list[Tensor] | None:
        """Return what enters the first layer at points between the corrupted and the clean input:
        the middles of equal steps; None for the clean input alone."""
        if steps == 1:
            return None
        clean = self.clean.contributions[:, 0]
        corrupted = self.corrupted.contributions[:, 0]
        points = []
        for step in range(steps):
            share = (step + 0.5) / steps
            points.append(corrupted + share * (clean - corrupted))
        return points


@dataclass(frozen=True, slots=True, eq=False)
class ScoreGroup:
    """Scores all edges on a group of pairs, as a unit of work."""

    graph: ResidualGraph
    options: CircuitOptions

    def __call__(
        self, group: Sequence[EncodedPair]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        runs = PairRuns(self.graph, group, self.options.metric)
        gained = self.graph.edge_attribution(
            runs.batch,
            runs.corrupted.contributions - runs.clean.contributions,
            runs.metric,
            runs.points(self.options.steps),
            hold_norms=self.options.hold_norms,
        )
        arrays = {
            "effect": (-gained).float().cpu().numpy(),
            "clean": _as_array(runs.metric(runs.clean.logits)),
            "corrupted": _as_array(runs.metric(runs.corrupted.logits)),
            # The difference of logits tells whether the model does the task, whatever the metric.
            "difference": _as_array(runs.difference(runs.clean.logits)),
        }
        return arrays, {}


@dataclass(frozen=True, slots=True, eq=False)
class PatchEdges:
    """Patches some edges exactly on a group of pairs, as a unit of work."""

    graph: ResidualGraph
    metric: str
    edges: np.ndarray
    progress: Progress = no_progress

    def __reduce__(self) -> tuple[Any, ...]:
        return PatchEdges, (self.graph, self.metric, self.edges)

    def __call__(
        self, group: Sequence[EncodedPair]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        runs = PairRuns(self.graph, group, self.metric)
        clean = runs.metric(runs.clean.logits)
        change = runs.corrupted.contributions - runs.clean.contributions
        lost = np.zeros((len(group), len(self.edges)))
        for number, edge in enumerate(self.edges):
            sender = int(self.graph.edges.senders[edge])
            logits = self.graph.patched_path(
                runs.batch, int(edge), change[:, sender], runs.skipping
            )
            lost[:, number] = _as_array(clean - runs.metric(logits))
            self.progress("edges patched", number + 1, len(self.edges))
        return {"lost": lost}, {}


@dataclass(frozen=True, slots=True, eq=False)
class CurveGroup:
    """Runs circuits of several sizes alone, and the model without them, on a group of pairs."""

    graph: ResidualGraph
    metric: str
    rankings: Sequence[np.ndarray]
    sizes: Sequence[int]
    complete: bool = False
    progress: Progress = no_progress

    def __reduce__(self) -> tuple[Any, ...]:
        return CurveGroup, (self.graph, self.metric, self.rankings, self.sizes, self.complete)

    def __call__(
        self, group: Sequence[EncodedPair]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        runs = PairRuns(self.graph, group, self.metric)
        shape = (len(group), len(self.rankings), len(self.sizes))
        arrays = {"with": np.zeros(shape)}
        if self.complete:
            arrays["without"] = np.zeros(shape)
        n_runs = len(self.rankings) * len(self.sizes)
        for number, ranking in enumerate(self.rankings):
            for place, size in enumerate(self.sizes):
                live = np.zeros(len(self.graph.edges), bool)
                live[ranking[:size]] = True
                arrays["with"][:, number, place] = circuit_metric(runs, live)
                if self.complete:
                    arrays["without"][:, number, place] = circuit_metric(runs, ~live)
                done = number * len(self.sizes) + place + 1
                self.progress("circuits run", done, n_runs)
        return arrays, {}


def circuit_metric(runs: PairRuns, live: np.ndarray) -> np.ndarray:
    """Return the metric of each pair when only some edges are live."""
    connected = runs.graph.edges.connected(live)
    if not connected.any():
        return _as_array(runs.metric(runs.corrupted.logits))
    if connected.all():
        return _as_array(runs.metric(runs.clean.logits))
    logits = runs.graph.run_circuit(runs.batch, runs.clean, runs.corrupted, connected)
    return _as_array(runs.metric(logits))


def _as_array(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.detach().double().cpu().numpy()
    return array


class CircuitSearch:
    """The steps of one search; each is kept as checkpoints.

    Parameters
    ----------
    job : Job
        A job that has begun.
    graph : ResidualGraph
        The model.
    pairs : sequence of EncodedPair
        At least two.
    options : CircuitOptions
        See there.
    """

    def __init__(
        self,
        job: Job,
        graph: ResidualGraph,
        pairs: Sequence[EncodedPair],
        options: CircuitOptions,
    ) -> None:
        self.job = job
        self.graph = graph
        self.options = options
        ranking, judging = split_by_unit(pairs)
        self.ranking_groups = group_by_lengths(ranking, options.batch)
        self.judging_groups = group_by_lengths(judging, options.batch)

    def run(self) -> xr.Dataset:
        """Return the result; see `circuit`."""
        ranking_scores = self._score("ranking", self.ranking_groups)
        scores = self._score("judging", self.judging_groups)
        units = _units(self.judging_groups)
        all_differences = np.concatenate([ranking_scores["difference"], scores["difference"]])
        all_units = _units(self.ranking_groups) + units
        task = does_task(all_differences, all_units)
        ranking = rank_edges(ranking_scores["effect"], _units(self.ranking_groups))
        exact: dict[int, np.ndarray] = {}
        sampled = np.zeros(0, int)
        curve = None
        smallest = None
        if task.done:
            sampled = sample_by_rank(ranking, self.options.check, self.options.seed)
            exact = self._patch_exactly(ranking, sampled)
            smallest = self._smallest(ranking)
            curve = self._curve(ranking, smallest)
        return circuit_dataset(
            CircuitMeasurements(
                graph=self.graph,
                options=self.options,
                scores=scores,
                units=units,
                ranking=ranking,
                task=task,
                exact=exact,
                sampled=sampled,
                curve=curve,
                smallest=smallest,
                n_ranking_pairs=len(ranking_scores["clean"]),
            )
        )

    def _score(self, half: str, groups: list[list[EncodedPair]]) -> dict[str, np.ndarray]:
        score = ScoreGroup(self.graph, self.options)
        parts = list(self.job.each(half, score, groups, what=f"pairs for {half}"))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _patch_exactly(self, ranking: np.ndarray, sampled: np.ndarray) -> dict[int, np.ndarray]:
        """Return what the metric of each pair loses by exact patching, by edge."""
        wanted = [*ranking[: self.options.exact], *sampled, *self._named_edges()]
        edges = np.array(list(dict.fromkeys(int(edge) for edge in wanted)), int)
        if not len(edges):
            return {}
        patch_edges = PatchEdges(self.graph, self.options.metric, edges, self.job.progress)
        parts = [part["lost"] for part in self.job.each("exact", patch_edges, self.judging_groups)]
        lost = np.concatenate(parts)
        return {int(edge): lost[:, number] for number, edge in enumerate(edges)}

    def _named_edges(self) -> Iterator[int]:
        """Yield the edges between the named senders and receivers, where such edges exist."""
        edges = self.graph.edges
        receivers = [name.strip() for name in self.options.receivers.split(",") if name.strip()]
        for sender in self.options.senders.split(","):
            for receiver in receivers:
                yield edges.number(sender.strip(), receiver)

    def sizes(self) -> list[int]:
        """Return the sizes of circuits that are run: 1, 3, 10, 30, ... and all edges."""
        n_edges = len(self.graph.edges)
        sizes = []
        power = 1
        while power < n_edges:
            sizes += [size for size in (power, 3 * power) if size < n_edges]
            power *= 10
        return [*sizes, n_edges]

    def _curve(self, ranking: np.ndarray, smallest: int | None) -> CurveValues:
        sizes = self.sizes()
        if smallest is not None:
            sizes = sorted({*sizes, smallest})
        best = self._run_curves("curve", [ranking], sizes, complete=True)
        random = np.random.default_rng(self.options.seed)
        draws = [random.permutation(ranking) for _ in range(self.options.random)]
        drawn = None
        if draws:
            drawn = self._run_curves("random", draws, sizes)["with"]
        return CurveValues(
            sizes=np.array(sizes),
            values=best["with"][:, 0],
            without=best["without"][:, 0],
            random=drawn,
        )

    def _run_curves(
        self, name: str, rankings: list[np.ndarray], sizes: list[int], complete: bool = False
    ) -> dict[str, np.ndarray]:
        run_group = CurveGroup(
            self.graph, self.options.metric, rankings, sizes, complete, self.job.progress
        )
        parts = list(self.job.each(name, run_group, self.judging_groups))
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def _smallest(self, ranking: np.ndarray) -> int | None:
        """Return the size of the smallest circuit that reaches the stated faithfulness on the pairs
        that edges were ranked on; None if only the whole model does.

        Found by halving: faithfulness need not grow with every edge, so a smaller one may exist."""

        def search() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
            runs = []
            for group in self.ranking_groups:
                runs.append(PairRuns(self.graph, group, self.options.metric))
            low = 1
            high = len(ranking)
            while low < high:
                middle = int(np.sqrt(low * high)) if high > 2 * low else (low + high) // 2
                if self._faithfulness(runs, ranking[:middle]) >= self.options.faithfulness:
                    high = middle
                else:
                    low = middle + 1
            return {"size": np.array(high)}, {}

        size = int(self.job.checkpoint("smallest", search).arrays["size"])
        return None if size == len(ranking) else size

    def _faithfulness(self, runs: Sequence[PairRuns], edges: np.ndarray) -> float:
        live = np.zeros(len(self.graph.edges), bool)
        live[edges] = True
        gained = whole = 0.0
        for pair_runs in runs:
            corrupted = _as_array(pair_runs.metric(pair_runs.corrupted.logits))
            clean = _as_array(pair_runs.metric(pair_runs.clean.logits))
            gained += float((circuit_metric(pair_runs, live) - corrupted).sum())
            whole += float((clean - corrupted).sum())
        return gained / whole


def _units(groups: Sequence[Sequence[EncodedPair]]) -> list[str]:
    return [pair.unit for group in groups for pair in group]
