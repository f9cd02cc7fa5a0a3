"""How far heads are from each other: divergences of all pairs, maps and families of heads (Clark et
al. 2019, §6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Observer, Paper, Shape, at_least
from headwise.analyses.summaries import format_p_value
from headwise.core.behaviours import behaviour_scores, head_labels
from headwise.core.errors import ParameterError
from headwise.core.labels import head_name
from headwise.stats.accumulators import State, Sums
from headwise.stats.clusters import best_cut, cut, leaf_order, linkage
from headwise.stats.divergence import pairwise_js, smooth
from headwise.stats.intervals import share
from headwise.stats.scaling import classical_mds, smacof_mds, stress
from headwise.stats.tests import group_distance_test
from headwise.text.encode import Batch

GROUP = 1 << 17  # entries of a head's maps taken together: short examples share one call
SINK = 1e-3  # a row that lacks more than this has a learned sink, no rounding
PASSES = (
    10  # exact distances may cost as much as so many passes of the model; beyond, rows are sampled
)
LOGARITHM = 150  # operations of a model's matrix products that take as long as one entry of one pair of heads
WINDOWS = 4  # passes over an example whose maps do not fit into memory
GROUPS = 4  # of sampled rows, from whose differences the error of the sample is told
LEAST_ROWS = 32


@dataclass(frozen=True)
class Distance(Observer):
    """Distances between heads, §6 and Fig 6.

    `js[head_a, head_b] = (1 / tokens) Σ_i JS(A_a[i, :], A_b[i, :])` in nats over all tokens of the
    corpus, with `JS = H(m) − (H(p) + H(q)) / 2`: 0 for heads that attend alike, ln 2 for heads that
    never share a key. Mass on a learned sink counts as one more key.

    - `mds[head_a, axis]`: classical scaling of `js`, largest axis first, the farthest head of each axis on its positive
      side; `mds_smacof` the same by stress majorisation; `mds_share[axis]`; attributes `stress`,
      `stress_smacof`;
    - `js_within_layer`, `js_between_layers`, `layer_p_value`: mean distance of pairs of heads of one layer and of
      different layers, and a permutation test of their difference (layers handed round at random
      among heads; one-tailed); `layer_js[layer, layer_b]`;
    - `js_error[head_a, head_b]`, where rows were sampled: the standard error of `js` that comes from the sample;
    - `cluster[head_a]`: families by Ward's rule on `sqrt(js)`, which is a Euclidean distance (the divergence itself is
      none), numbered by their first head; `linkage[merge, part]` and `leaf[head_a]` (place in the
      tree's order).

    Parameters
    ----------
    smoothing : float, default 0
        Share of the uniform row on V(i) mixed into every row before the divergence; 0.001 in the
        released code.
    rows : int, optional
        How many rows of an example are compared, drawn at random where it has more; 0 for all. By
        default as many as cost ten passes of the model, which is all of them for inputs of ordinary
        length; where all maps of an example do not fit into memory, as many as four passes show.
    axes : int, default 2
        Dimensions of the maps.
    clusters : int, default 0
        How many families; 0 takes the cut into 2 to 12 with the largest silhouette.
    permutations : int, default 1999
        Of the test.
    seed : int, optional
        Of the permutations and of sampled rows; the run's by default.

    Notes
    -----
    Question: Which heads attend alike?

    Assumes: Heads are compared on the same inputs, row by row; only where they look counts, not
    what they move.

    Traps: Two heads that rest on the same token are near, whatever they do elsewhere. A map of two
    dimensions shows a part of the distances (`mds_share`, `stress`): read distances off `js`.
    Families are a cut of a tree, not a finding.

    Cost: For every row all pairs of heads: it grows with the square of their number
    (`benchmarks/bench_distance.py`)."""

    smoothing: float = 0.0
    rows: int | None = None
    axes: int = 2
    clusters: int = 0
    permutations: int = 1999
    seed: int | None = None

    name: ClassVar[str] = "distance"
    title: ClassVar[str] = "Families of heads: distances between all pairs"
    paper: ClassVar[Paper] = Paper("clark2019", "§6, Fig 6")
    units: ClassVar[Mapping[str, str]] = {
        "share of distance": "mds_share",
        "as scipy's linkage": "linkage",
    }
    scope: ClassVar[str] = "example"
    budget: ClassVar[int | None] = 128
    cross: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ParameterError(
                f"`smoothing` must be at least 0 and below 1; it is {self.smoothing!r}."
            )
        if self.rows:
            at_least("rows", self.rows, LEAST_ROWS)
        elif self.rows is not None:
            at_least("rows", self.rows, 0)
        at_least("axes", self.axes, 1)
        at_least("clusters", self.clusters, 0)
        at_least("permutations", self.permutations, 1)

    def planned(self, shape: Shape) -> Self:
        if self.rows is not None:
            return self
        pairs = (shape.layers * shape.heads) ** 2 / 2 / (2 if shape.causal else 1)
        token = 24 * shape.layers * shape.hidden**2  # operations of a pass
        return replace(self, rows=max(LEAST_ROWS, int(PASSES * token / (pairs * LOGARITHM))))

    def start(self, shape: Shape) -> State:
        heads = shape.layers * shape.heads
        names = ("tokens", "examples", "sampled", "shown")
        return State(
            js=Sums(heads, heads),
            js_variance=Sums(heads, heads),
            **{name: Sums(1) for name in names},
        )

    def observe_example(self, state: State, maps: Tensor, visible: Tensor, batch: Batch) -> None:
        for flat in self._groups(maps, visible, batch):
            state.sums("js").add(pairwise_js(flat))
        keys = batch.keys.lengths.tolist()
        for example, length in enumerate(batch.lengths.tolist()):
            if self.rows and length > self.rows:
                chosen = self._drawn(length, self.rows, batch.index[example]).to(maps.device)
                own = maps[example, :, :, chosen, : keys[example]]
                self._sampled(
                    state, own, visible[example, :, :, chosen, : keys[example]], length, len(chosen)
                )
        state.sums("tokens").add(batch.lengths.sum())
        state.sums("examples").add(torch.tensor(len(batch)))

    def rows_wanted(self, batch: Batch, at_once: int) -> Tensor:
        length, most = int(batch.lengths[0]), self.rows
        if most and length > at_once * WINDOWS:
            most = max(LEAST_ROWS, min(most, at_once * WINDOWS))
        return (
            self._drawn(length, most, batch.index[0])
            if most and most < length
            else torch.arange(length)
        )

    def observe_rows(
        self, state: State, maps: Tensor, visible: Tensor, batch: Batch, total: int
    ) -> None:
        length, keys = int(batch.lengths[0]), int(batch.keys.lengths[0])
        own, seen = maps[0, ..., :keys], visible[0, ..., :keys]
        if total < length:
            self._sampled(state, own, seen, length, total)
        else:
            step = max(1, GROUP // keys)
            for first in range(0, own.shape[2], step):
                part = slice(first, first + step)
                state.sums("js").add(
                    pairwise_js(self._prepared(own[:, :, part].float(), seen[:, :, part]))
                )
        share = own.shape[2] / total
        state.sums("tokens").add(batch.lengths.sum() * share)
        state.sums("examples").add(torch.tensor(share))

    def _drawn(self, length: int, count: int, index: int) -> Tensor:
        """So many rows of an example, in random order; the same whatever else is in the batch."""
        order = np.random.default_rng([self.seed or 0, index]).permutation(length)
        return torch.from_numpy(order[:count])

    def _sampled(self, state: State, own: Tensor, seen: Tensor, length: int, total: int) -> None:
        """Take in sampled rows of an example, `[layer, head, row, key]`: all that are shown at once
        of `total`.

        Rows are dealt at random into groups, whose means differ as much as such samples do.
        """
        count = own.shape[2]
        order = torch.from_numpy(
            np.random.default_rng([self.seed or 0, length, count]).permutation(count)
        )
        means, sizes = [], []
        for group in order.to(own.device).tensor_split(GROUPS):
            if len(group):
                rows = self._prepared(own[:, :, group].float(), seen[:, :, group])
                means.append(pairwise_js(rows) / len(group))
                sizes.append(len(group))
        sums = torch.stack(means)
        weights = sums.new_tensor(sizes)[:, None, None] / count
        mean = (weights * sums).sum(0)
        part = length * count / total  # tokens that these rows stand for
        state.sums("js").add(mean * part)
        if len(means) > 1:
            apart = (weights * (sums - mean) ** 2).sum(0) / (len(means) - 1)
            state.sums("js_variance").add(apart * part**2 * (1 - total / length))
        state.sums("sampled").add(torch.tensor(part))
        state.sums("shown").add(torch.tensor(count))

    def _prepared(self, own: Tensor, seen: Tensor) -> Tensor:
        """The rows of one example as `[head, entries]`, with the mass on a sink as one more key."""
        lacking = 1 - own.sum(-1, keepdim=True)
        if bool((lacking > SINK).any()):
            own = torch.cat([own, lacking.clamp(min=0)], -1)
            seen = torch.nn.functional.pad(seen, (0, 1), value=True)
        return smooth(own, seen, self.smoothing).flatten(0, 1).flatten(1)

    def _groups(self, maps: Tensor, visible: Tensor, batch: Batch) -> Iterator[Tensor]:
        """The real parts of the maps as `[head, entries]`, several short examples together:
        divergences add up."""
        waiting: list[Tensor] = []
        for example, (length, keys) in enumerate(
            zip(*(b.lengths.tolist() for b in (batch, batch.keys)), strict=True)
        ):
            if self.rows and length > self.rows:
                continue
            own = maps[example, :, :, :length, :keys].float()
            waiting.append(self._prepared(own, visible[example, :, :, :length, :keys]))
            if sum(part.shape[1] for part in waiting) >= GROUP:
                yield _joined(waiting)
                waiting = []
        if waiting:
            yield _joined(waiting)

    def extend(self, datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
        """Say of each head and family what it does, from the other analyses of the run."""
        return with_behaviours(datasets)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        within, between = float(dataset["js_within_layer"]), float(dataset["js_between_layers"])
        js, names = dataset["js"].values, dataset["head_a"].values
        upper = np.triu_indices(len(js), 1)
        nearest = np.argsort(js[upper], kind="stable")[:5]
        pairs = [
            f"{names[upper[0][k]]} and {names[upper[1][k]]} {js[upper][k]:.3f}" for k in nearest
        ]
        families = len(np.unique(dataset["cluster"].values))
        return [
            f"Heads of one layer are {within:.3f} nats apart, of different layers {between:.3f} "
            f"({format_p_value(float(dataset['layer_p_value']))}, layers handed round among heads)",
            f"Nearest pairs: {', '.join(pairs)}",
            f"{families} families by Ward's rule; {dataset.attrs['tokens']:,} tokens",
            *_sample_said(dataset),
        ]

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        tokens = float(state.sums("tokens").total[0])
        js = (
            state.sums("js").total.numpy() / tokens
            if tokens
            else np.full((shape.layers * shape.heads,) * 2, np.nan)
        )
        dataset = distance_dataset(js, shape.layers, shape.heads, self).assign_attrs(
            tokens=round(tokens),
            examples=round(float(state.sums("examples").total[0])),
            smoothing=self.smoothing,
        )
        sampled, shown = (float(state.sums(name).total[0]) for name in ("sampled", "shown"))
        if not sampled:
            return dataset
        error = np.sqrt(state.sums("js_variance").total.numpy()) / tokens
        said = {"units": "nats", "long_name": "standard error of js from the sample of rows"}
        return dataset.assign(js_error=(("head_a", "head_b"), error, said)).assign_attrs(
            sampled_tokens=round(sampled), sampled_rows=round(shown)
        )


def _joined(parts: list[Tensor]) -> Tensor:
    return (
        parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    )  # one example of a large model is not copied


def _sample_said(dataset: xr.Dataset) -> list[str]:
    if "js_error" not in dataset:
        return []
    rows, tokens = dataset.attrs["sampled_rows"], dataset.attrs["sampled_tokens"]
    error = float(dataset["js_error"].max())
    return [
        f"{rows:,} of {tokens:,} rows of long inputs were drawn at random: standard error at most {error:.1g} nats"
    ]


def distance_dataset(js: np.ndarray, layers: int, heads: int, settings: Distance) -> xr.Dataset:
    """Everything that follows from the distances: maps, families, layers against each other."""
    count = layers * heads
    layer_of = np.repeat(np.arange(layers), heads)
    known = bool(np.isfinite(js).all())
    safe = js if known else np.zeros_like(js)
    points, share = classical_mds(safe, settings.axes)
    turned = smacof_mds(safe, settings.axes)
    metric = np.sqrt(safe)
    tree = linkage(metric)
    labels = cut(tree, count, settings.clusters) if settings.clusters else best_cut(metric, tree)
    leaf = np.empty(count, dtype=np.int64)
    leaf[leaf_order(tree, count)] = np.arange(count)
    test = group_distance_test(safe, layer_of, settings.permutations, settings.seed or 0)
    axes, pairs, parts = ("head_a", "axis"), ("head_a", "head_b"), ("merge", "part")
    rows: list[tuple[str, Any, Any, str]] = [
        ("js", pairs, js, "mean Jensen-Shannon divergence per token"),
        ("mds", axes, points, "classical scaling"),
        ("mds_smacof", axes, turned, "scaling by stress majorisation"),
        (
            "layer_js",
            ("layer", "layer_b"),
            layer_means(js, layer_of),
            "mean distance of heads of two layers",
        ),
        ("js_within_layer", (), test.within, "mean distance of heads of one layer"),
        ("js_between_layers", (), test.between, "mean distance of heads of different layers"),
        ("mds_share", "axis", share, "share of the absolute eigenvalues"),
        (
            "layer_p_value",
            (),
            test.p_value,
            "heads of one layer are nearer: one-tailed permutation test",
        ),
        ("cluster", "head_a", labels, "family by Ward's rule on the root of js"),
        ("leaf", "head_a", leaf, "place among the leaves of the tree"),
        ("linkage", parts, tree, "tree of merges"),
    ]
    units = {name: {"units": "nats"} for name, *_ in rows[:6]}
    dataset = xr.Dataset(
        {
            name: (dims, values, units.get(name, {}) | {"long_name": said})
            for name, dims, values, said in rows
        },
        coords=pair_coords(layers, heads)
        | {"axis": np.arange(settings.axes), "merge": np.arange(len(tree))}
        | {"part": ["first", "second", "distance", "size"]},
    )
    if not known:
        floats = [name for name, array in dataset.data_vars.items() if array.dtype.kind == "f"]
        dataset = dataset.assign({name: dataset[name] * np.nan for name in floats})
    return dataset.assign_attrs(stress=stress(safe, points), stress_smacof=stress(safe, turned))


def pair_coords(layers: int, heads: int) -> dict[str, Any]:
    """Labels of both sides of a pair: `L0H0`, `L0H1`, ..., each with its layer and its number in
    the layer."""
    layer_of, number = np.divmod(np.arange(layers * heads), heads)
    names = [head_name(layer, head) for layer, head in zip(layer_of, number, strict=True)]
    coords: dict[str, Any] = {"layer": np.arange(layers), "layer_b": np.arange(layers)}
    for side in "ab":
        coords |= {
            f"head_{side}": names,
            f"layer_of_{side}": (f"head_{side}", layer_of),
            f"number_of_{side}": (f"head_{side}", number),
        }
    return coords


def layer_means(js: np.ndarray, layer_of: np.ndarray) -> np.ndarray:
    """Mean distance of pairs of different heads, by the layers of the two; NaN for a layer of one
    head with itself."""
    members = (layer_of[:, None] == np.arange(layer_of.max(initial=-1) + 1)[None]).astype(float)
    sums = members.T @ (js - np.diag(np.diag(js))) @ members
    sizes = members.sum(0)
    pairs = np.outer(sizes, sizes) - np.diag(sizes)
    return share(sums, pairs)


def with_behaviours(datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """The same datasets; `distance` gets what its heads and families do, where there is something
    to take that from.

    `behaviour[head_a]` is one word for each head, `family_behaviour[family, behaviour_name]` the
    mean of each behaviour over the heads of a family, `family_size[family]` their number."""
    out = dict(datasets)
    distance = datasets.get("distance")
    if distance is None or "cluster" not in distance:
        return out
    scores = behaviour_scores(datasets)
    if not scores.size:
        return out
    layers, heads = scores.sizes["layer"], scores.sizes["head"]
    if layers * heads != distance.sizes["head_a"]:
        return out
    family = distance["cluster"].values
    members = np.eye(int(family.max()) + 1)[family]  # [head, family]
    flat = scores.values.reshape(len(scores), -1)
    present = np.isfinite(flat).astype(float)
    means = share(np.where(present > 0, flat, 0.0) @ members, present @ members)
    words = head_labels(datasets, layers, heads).ravel()
    labels: dict[str, Any] = {
        "behaviour": ("head_a", words, {"long_name": "what the head does, in a word"}),
        "family_behaviour": (
            ("family", "behaviour_name"),
            means.T,
            {"long_name": "mean over the heads of a family"},
        ),
        "family_size": (
            "family",
            members.sum(0).astype(np.int64),
            {"long_name": "heads of the family"},
        ),
    }
    coords = {"family": np.arange(members.shape[1]), "behaviour_name": scores["behaviour"].values}
    out["distance"] = distance.assign(labels).assign_coords(coords)
    return out
