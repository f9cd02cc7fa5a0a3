"""Distances between heads: divergences of all pairs, maps and families of heads.

Clark et al. 2019, §6."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import OwnPassObserver, Paper, Shape, at_least, split_batch
from headwise.analyses.summaries import format_p_value
from headwise.atlas.behaviours import behaviour_scores, head_labels
from headwise.core.errors import ParameterError
from headwise.core.labels import head_name
from headwise.models import HeadModel
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.models.view import AttentionRows, Watcher
from headwise.stats.accumulators import State, Sums
from headwise.stats.clusters import best_cut, cut, leaf_order, linkage
from headwise.stats.divergence import pairwise_js, smooth
from headwise.stats.intervals import share
from headwise.stats.scaling import classical_mds, smacof_mds, stress
from headwise.stats.tests import group_distance_test
from headwise.text.encode import Batch, documents_of

# Bytes of the maps of one part of a batch; longer examples are compared some rows at a time.
MAPS_BYTES = 5 * 2**28

# Entries of a head's maps compared in one call: short examples share one.
GROUP_ENTRIES = 1 << 17

# A row that lacks more mass than this has a learned sink; less is rounding.
MIN_SINK_MASS = 1e-3

# Exact distances may cost as much as this many passes of the model; beyond that, rows are sampled.
MAX_COST_IN_PASSES = 10

# Operations of a model's matrix products that take as long as one entry of one pair of heads.
OPERATIONS_PER_ENTRY = 150

# Passes over an example whose maps do not fit into memory.
MAX_WINDOWS = 4

# Groups of sampled rows, whose differences give the standard error of the sample.
SAMPLE_GROUPS = 4
MIN_ROWS = 32

NEAREST_PAIRS = 5  # in the summary


@dataclass(frozen=True)
class Distance(OwnPassObserver):
    """Distances between heads, §6 and Fig 6.

    `js[head_a, head_b] = (1 / tokens) Σ_i JS(A_a[i, :], A_b[i, :])` in nats over all tokens of the
    corpus, with `JS = H(m) − (H(p) + H(q)) / 2`: 0 for heads that attend alike, ln 2 for heads that
    never share a key. Mass on a learned sink counts as one more key.

    - `mds[head_a, axis]`: classical scaling of `js`, largest axis first, the farthest head of each
      axis on its positive side; `mds_smacof` the same by stress majorisation; `mds_share[axis]`;
      attributes `stress`, `stress_smacof`;
    - `js_within_layer`, `js_between_layers`, `layer_p_value`: mean distance of pairs of heads of one
      layer and of different layers, and a permutation test of their difference (layers permuted
      among heads; one-tailed); `layer_js[layer, layer_b]`;
    - `js_error[head_a, head_b]`, if rows were sampled: the standard error of `js` due to the sample;
    - `cluster[head_a]`: families by Ward's rule on `sqrt(js)`, which is a Euclidean distance (the
      divergence itself is not), numbered by their first head; `linkage[merge, part]` and
      `leaf[head_a]` (position in the tree's order).

    Parameters
    ----------
    smoothing : float, default 0
        Share of the uniform row on V(i) mixed into every row before the divergence; 0.001 in the
        released code.
    rows : int, optional
        How many rows of an example are compared, drawn at random if it has more; 0: all. Default: as
        many as cost ten passes of the model, which is all of them for inputs of ordinary length; if
        the maps of an example do not fit into memory, as many as four passes yield.
    axes : int, default 2
        Dimensions of the maps.
    clusters : int, default 0
        How many families; 0 takes the cut into 2 to 12 with the largest silhouette.
    permutations : int, default 1999
        Of the test.
    seed : int, optional
        Of the permutations and of sampled rows; default: the run's seed.

    Notes
    -----
    Question: Which heads attend alike?

    Assumes: Heads are compared on the same inputs, row by row; only where they look counts, not
    what they move.

    Pitfalls: Two heads with the same attention sink are near, whatever they do elsewhere. A map of
    two dimensions shows a part of the distances (`mds_share`, `stress`): read distances off `js`.
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
    budget: ClassVar[int | None] = 128
    cross: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ParameterError(
                f"`smoothing` must be at least 0 and below 1; it is {self.smoothing!r}."
            )
        if self.rows:
            at_least("rows", self.rows, MIN_ROWS)
        elif self.rows is not None:
            at_least("rows", self.rows, 0)
        at_least("axes", self.axes, 1)
        at_least("clusters", self.clusters, 0)
        at_least("permutations", self.permutations, 1)

    def planned(self, shape: Shape) -> Self:
        if self.rows is not None:
            return self
        n_pairs = (shape.layers * shape.heads) ** 2 / 2
        if shape.causal:
            n_pairs /= 2  # half of a causal map is empty
        operations_per_token = 24 * shape.layers * shape.hidden**2
        affordable = MAX_COST_IN_PASSES * operations_per_token / (n_pairs * OPERATIONS_PER_ENTRY)
        return replace(self, rows=max(MIN_ROWS, int(affordable)))

    # --- the pass -------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        n_heads = shape.layers * shape.heads
        return State(
            js=Sums(n_heads, n_heads),
            js_variance=Sums(n_heads, n_heads),
            tokens=Sums(1),
            examples=Sums(1),
            sampled=Sums(1),  # tokens of examples whose rows were sampled
            shown=Sums(1),  # rows of these that were compared
        )

    def observe_batch(
        self, model: HeadModel, batch: Batch, state: State, block_rows: int | None = None
    ) -> None:
        bytes_per_row = model.layers * model.heads * batch.ids.shape[1] * 4
        bytes_per_example = bytes_per_row * batch.ids.shape[1]
        for part in split_batch(batch, max(1, MAPS_BYTES // bytes_per_example)):
            state.of(documents_of(part.rows))
            n_keys = part.keys.ids.shape[1]
            map_bytes = len(part) * model.layers * model.heads * part.ids.shape[1] * n_keys * 4
            if map_bytes <= MAPS_BYTES:
                maps = CollectMaps(part, model.layers)
                model.forward(part, maps, block_rows=block_rows)
                self.observe_maps(state, maps.weights, maps.visible, part)
            else:
                self._observe_windows(model, part, state)
            part.forget()

    def _observe_windows(self, model: HeadModel, batch: Batch, state: State) -> None:
        """Compare the rows of one example that is too long to be held whole, some in each pass."""
        bytes_per_row = model.layers * model.heads * batch.keys.ids.shape[1] * 4
        rows_per_pass = max(1, MAPS_BYTES // bytes_per_row)
        rows = self._rows_of_long_example(batch, rows_per_pass)
        for window in torch.split(rows, rows_per_pass):
            sorted_rows = window.sort().values.to(batch.ids.device)
            maps = CollectMaps(batch, model.layers, sorted_rows)
            model.forward(batch, maps)
            self._observe_window(state, maps, batch, len(rows))

    def _rows_of_long_example(self, batch: Batch, rows_per_pass: int) -> Tensor:
        """Return which rows are compared: all, or a sample in random order."""
        length = int(batch.lengths[0])
        max_rows = self.rows
        if max_rows and length > rows_per_pass * MAX_WINDOWS:
            max_rows = max(MIN_ROWS, min(max_rows, rows_per_pass * MAX_WINDOWS))
        if max_rows and max_rows < length:
            return self._draw_rows(length, max_rows, batch.index[0])
        return torch.arange(length)

    def _observe_window(
        self, state: State, maps: CollectMaps, batch: Batch, n_rows_in_all: int
    ) -> None:
        """Add some rows of one example to the state, of `n_rows_in_all` that will be compared."""
        length = int(batch.lengths[0])
        n_keys = int(batch.keys.lengths[0])
        weights = maps.weights[0, ..., :n_keys]
        visible = maps.visible[0, ..., :n_keys]
        n_rows = weights.shape[2]
        if n_rows_in_all < length:
            self._add_sample(state, weights, visible, length, n_rows_in_all)
        else:
            step = max(1, GROUP_ENTRIES // n_keys)
            for first in range(0, n_rows, step):
                rows = slice(first, first + step)
                flat = self._flatten(weights[:, :, rows].float(), visible[:, :, rows])
                state.sums("js").add(pairwise_js(flat))
        share_of_example = n_rows / n_rows_in_all
        state.sums("tokens").add(batch.lengths.sum() * share_of_example)
        state.sums("examples").add(torch.tensor(share_of_example))

    def observe_maps(self, state: State, weights: Tensor, visible: Tensor, batch: Batch) -> None:
        """Add the maps of a batch to the state.

        Parameters
        ----------
        state : State
            Changed in place.
        weights : Tensor
            `[example, layer, head, query, key]`.
        visible : Tensor
            V(i), the same for all heads: bool `[example, layer, 1, query, key]`.
        batch : Batch
            The examples.
        """
        for flat in self._short_examples(weights, visible, batch):
            state.sums("js").add(pairwise_js(flat))
        lengths = batch.lengths.tolist()
        n_keys = batch.keys.lengths.tolist()
        for example, length in enumerate(lengths):
            if self.rows and length > self.rows:
                rows = self._draw_rows(length, self.rows, batch.index[example]).to(weights.device)
                sampled_weights = weights[example, :, :, rows, : n_keys[example]]
                sampled_visible = visible[example, :, :, rows, : n_keys[example]]
                self._add_sample(state, sampled_weights, sampled_visible, length, len(rows))
        state.sums("tokens").add(batch.lengths.sum())
        state.sums("examples").add(torch.tensor(len(batch)))

    def _draw_rows(self, length: int, count: int, index: int) -> Tensor:
        """Return so many rows of an example in random order, whatever else is in the batch."""
        order = np.random.default_rng([self.seed or 0, index]).permutation(length)
        return torch.from_numpy(order[:count])

    def _add_sample(
        self, state: State, weights: Tensor, visible: Tensor, length: int, n_rows_in_all: int
    ) -> None:
        """Add sampled rows of an example, `[layer, head, row, key]`, to the state.

        Rows are divided at random into groups: the variance of the groups' means is that of the
        sample."""
        n_rows = weights.shape[2]
        generator = np.random.default_rng([self.seed or 0, length, n_rows])
        order = torch.from_numpy(generator.permutation(n_rows))
        means = []
        sizes = []
        for group in order.to(weights.device).tensor_split(SAMPLE_GROUPS):
            if len(group):
                flat = self._flatten(weights[:, :, group].float(), visible[:, :, group])
                means.append(pairwise_js(flat) / len(group))
                sizes.append(len(group))
        group_means = torch.stack(means)
        group_shares = group_means.new_tensor(sizes)[:, None, None] / n_rows
        mean = (group_shares * group_means).sum(0)
        tokens_represented = length * n_rows / n_rows_in_all
        state.sums("js").add(mean * tokens_represented)
        if len(means) > 1:
            variance = (group_shares * (group_means - mean) ** 2).sum(0) / (len(means) - 1)
            finite_correction = 1 - n_rows_in_all / length
            state.sums("js_variance").add(variance * tokens_represented**2 * finite_correction)
        state.sums("sampled").add(torch.tensor(tokens_represented))
        state.sums("shown").add(torch.tensor(n_rows))

    def _flatten(self, weights: Tensor, visible: Tensor) -> Tensor:
        """Return the rows of one example as `[head, entry]`, a learned sink as one more key."""
        missing_mass = 1 - weights.sum(-1, keepdim=True)
        if bool((missing_mass > MIN_SINK_MASS).any()):
            weights = torch.cat([weights, missing_mass.clamp(min=0)], -1)
            visible = torch.nn.functional.pad(visible, (0, 1), value=True)
        return smooth(weights, visible, self.smoothing).flatten(0, 1).flatten(1)

    def _short_examples(self, weights: Tensor, visible: Tensor, batch: Batch) -> Iterator[Tensor]:
        """Yield the maps of examples whose rows are all compared as `[head, entry]`, without
        padding, several short examples together: divergences add up."""
        waiting: list[Tensor] = []
        lengths = batch.lengths.tolist()
        n_keys = batch.keys.lengths.tolist()
        for example, (length, keys) in enumerate(zip(lengths, n_keys, strict=True)):
            if self.rows and length > self.rows:
                continue
            weights_of_example = weights[example, :, :, :length, :keys].float()
            visible_of_example = visible[example, :, :, :length, :keys]
            waiting.append(self._flatten(weights_of_example, visible_of_example))
            if sum(flat.shape[1] for flat in waiting) >= GROUP_ENTRIES:
                yield _concatenate(waiting)
                waiting = []
        if waiting:
            yield _concatenate(waiting)

    # --- the result -----------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        tokens = float(state.sums("tokens").total[0])
        if tokens:
            js = state.sums("js").total.numpy() / tokens
        else:
            js = np.full((shape.layers * shape.heads,) * 2, np.nan)
        dataset = distance_dataset(js, shape.layers, shape.heads, self).assign_attrs(
            tokens=round(tokens),
            examples=round(float(state.sums("examples").total[0])),
            smoothing=self.smoothing,
        )
        sampled_tokens = float(state.sums("sampled").total[0])
        if not sampled_tokens:
            return dataset
        error = np.sqrt(state.sums("js_variance").total.numpy()) / tokens
        attrs = {"units": "nats", "long_name": "standard error of js from the sample of rows"}
        return dataset.assign(js_error=(("head_a", "head_b"), error, attrs)).assign_attrs(
            sampled_tokens=round(sampled_tokens),
            sampled_rows=round(float(state.sums("shown").total[0])),
        )

    def extend(self, datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
        """Label each head and family, from the other analyses of the run."""
        return with_behaviours(datasets)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        within = float(dataset["js_within_layer"])
        between = float(dataset["js_between_layers"])
        p_value = format_p_value(float(dataset["layer_p_value"]))
        n_families = len(np.unique(dataset["cluster"].values))
        lines = [
            f"Heads of one layer are {within:.3f} nats apart, of different layers {between:.3f} "
            f"({p_value}, layers permuted among heads)",
            f"Nearest pairs: {_nearest_pairs(dataset)}",
            f"{n_families} families by Ward's rule; {dataset.attrs['tokens']:,} tokens",
        ]
        if "js_error" in dataset:
            n_rows = dataset.attrs["sampled_rows"]
            n_tokens = dataset.attrs["sampled_tokens"]
            max_error = float(dataset["js_error"].max())
            lines.append(
                f"{n_rows:,} of {n_tokens:,} rows of long inputs were drawn at random: "
                f"standard error at most {max_error:.1g} nats"
            )
        return lines


class CollectMaps(Watcher):
    """Collects the maps of a batch during a forward pass, or some of their rows.

    `weights[example, layer, head, row, key]` and `visible[example, layer, 1, row, key]` are
    allocated once: two copies would not fit. Single rows are requested as statistics, so that a GPU
    forms no others."""

    def __init__(self, batch: Batch, n_layers: int, rows: Tensor | None = None) -> None:
        self.needs: frozenset[str] = frozenset()
        self.request: StatsRequest | None = None
        if rows is None:
            self.needs = frozenset({"attention"})
            n_rows = batch.ids.shape[1]
        else:
            self.request = StatsRequest(rows={"wanted": rows})
            n_rows = len(rows)
        self._n_layers = n_layers
        self._size = (n_rows, batch.keys.ids.shape[1])
        self.weights = torch.empty(0)
        self.visible = torch.empty(0)

    def on_rows(self, rows: AttentionRows) -> None:
        self._store(rows.layer, slice(rows.start, rows.stop), rows.weights, rows.visible)

    def on_statistics(self, result: StatsResult) -> None:
        weights, visible = result.rows["wanted"]
        self._store(result.layer, slice(None), weights, visible)

    def _store(self, layer: int, rows: slice, weights: Tensor, visible: Tensor) -> None:
        if not self.weights.numel():
            examples, heads = weights.shape[:2]
            self.weights = weights.new_empty(examples, self._n_layers, heads, *self._size)
            self.visible = visible.new_empty(examples, self._n_layers, 1, *self._size)
        self.weights[:, layer, :, rows] = weights
        self.visible[:, layer, :, rows] = visible[:, :1]


def _concatenate(parts: list[Tensor]) -> Tensor:
    # The only example of a large model is not copied.
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, 1)


def _nearest_pairs(dataset: xr.Dataset) -> str:
    """Return the pairs of heads with the smallest distances, as text."""
    names = dataset["head_a"].values
    first, second = np.triu_indices(len(names), 1)
    distances = dataset["js"].values[first, second]
    pairs = []
    for k in np.argsort(distances, kind="stable")[:NEAREST_PAIRS]:
        pairs.append(f"{names[first[k]]} and {names[second[k]]} {distances[k]:.3f}")
    return ", ".join(pairs)


def distance_dataset(js: np.ndarray, layers: int, heads: int, settings: Distance) -> xr.Dataset:
    """Return all that follows from the distances: maps, families, a test of layers."""
    n_heads = layers * heads
    layer_of = np.repeat(np.arange(layers), heads)
    # Without any token distances are NaN, which no scaling or tree accepts.
    is_known = bool(np.isfinite(js).all())
    distances = js if is_known else np.zeros_like(js)
    mds_points, mds_share = classical_mds(distances, settings.axes)
    smacof_points = smacof_mds(distances, settings.axes)
    metric = np.sqrt(distances)
    tree = linkage(metric)
    if settings.clusters:
        families = cut(tree, n_heads, settings.clusters)
    else:
        families = best_cut(metric, tree)
    leaf = np.empty(n_heads, dtype=np.int64)
    leaf[leaf_order(tree, n_heads)] = np.arange(n_heads)
    test = group_distance_test(distances, layer_of, settings.permutations, settings.seed or 0)

    variables: dict[str, xr.Variable] = {}

    def add(name: str, dims: Any, values: Any, long_name: str, units: str = "") -> None:
        attrs = {"units": units} if units else {}
        variables[name] = xr.Variable(dims, values, attrs | {"long_name": long_name})

    pair_dims = ("head_a", "head_b")
    axis_dims = ("head_a", "axis")
    layer_dims = ("layer", "layer_b")
    by_layer = layer_means(js, layer_of)
    add("js", pair_dims, js, "mean Jensen-Shannon divergence per token", "nats")
    add("mds", axis_dims, mds_points, "classical scaling", "nats")
    add("mds_smacof", axis_dims, smacof_points, "scaling by stress majorisation", "nats")
    add("layer_js", layer_dims, by_layer, "mean distance of heads of two layers", "nats")
    add("js_within_layer", (), test.within, "mean distance of heads of one layer", "nats")
    add("js_between_layers", (), test.between, "mean distance of heads of different layers", "nats")
    add("mds_share", "axis", mds_share, "share of the absolute eigenvalues")
    add(
        "layer_p_value",
        (),
        test.p_value,
        "heads of one layer are nearer: one-tailed permutation test",
    )
    add("cluster", "head_a", families, "family by Ward's rule on the root of js")
    add("leaf", "head_a", leaf, "place among the leaves of the tree")
    add("linkage", ("merge", "part"), tree, "tree of merges")

    coords = pair_coords(layers, heads) | {
        "axis": np.arange(settings.axes),
        "merge": np.arange(len(tree)),
        "part": ["first", "second", "distance", "size"],
    }
    dataset = xr.Dataset(variables, coords=coords)
    if not is_known:
        for name, array in dataset.data_vars.items():
            if array.dtype.kind == "f":
                dataset[name] = array * np.nan
    return dataset.assign_attrs(
        stress=stress(distances, mds_points), stress_smacof=stress(distances, smacof_points)
    )


def pair_coords(layers: int, heads: int) -> dict[str, Any]:
    """Return the labels of both sides of a pair: `L0H0`, `L0H1`, ..., each with its layer and its
    number in the layer."""
    layer_of, number = np.divmod(np.arange(layers * heads), heads)
    names = [head_name(layer, head) for layer, head in zip(layer_of, number, strict=True)]
    coords: dict[str, Any] = {"layer": np.arange(layers), "layer_b": np.arange(layers)}
    for side in "ab":
        coords[f"head_{side}"] = names
        coords[f"layer_of_{side}"] = (f"head_{side}", layer_of)
        coords[f"number_of_{side}"] = (f"head_{side}", number)
    return coords


def layer_means(js: np.ndarray, layer_of: np.ndarray) -> np.ndarray:
    """Return the mean distance of pairs of different heads by their layers.

    NaN for a layer of one head with itself."""
    n_layers = layer_of.max(initial=-1) + 1
    members = (layer_of[:, None] == np.arange(n_layers)[None]).astype(float)
    without_diagonal = js - np.diag(np.diag(js))
    sums = members.T @ without_diagonal @ members
    sizes = members.sum(0)
    n_pairs = np.outer(sizes, sizes) - np.diag(sizes)
    return share(sums, n_pairs)


def with_behaviours(datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Return the datasets, with labels of heads and families added to `distance`.

    `behaviour[head_a]` is the label of each head, `family_behaviour[family, behaviour_name]` the
    mean of each behaviour over the heads of a family, `family_size[family]` their number. Without
    other analyses to take labels from, `distance` stays as it is."""
    extended = dict(datasets)
    distance = datasets.get("distance")
    if distance is None or "cluster" not in distance:
        return extended
    scores = behaviour_scores(datasets)
    if not scores.size:
        return extended
    layers = scores.sizes["layer"]
    heads = scores.sizes["head"]
    if layers * heads != distance.sizes["head_a"]:
        return extended

    family = distance["cluster"].values
    members = np.eye(int(family.max()) + 1)[family]  # [head, family]
    flat_scores = scores.values.reshape(len(scores), -1)
    is_known = np.isfinite(flat_scores).astype(float)
    sums = np.where(is_known > 0, flat_scores, 0.0) @ members
    family_means = share(sums, is_known @ members)
    labels = head_labels(datasets, layers, heads).ravel()
    variables: dict[str, Any] = {
        "behaviour": ("head_a", labels, {"long_name": "label of the head"}),
        "family_behaviour": (
            ("family", "behaviour_name"),
            family_means.T,
            {"long_name": "mean over the heads of a family"},
        ),
        "family_size": (
            "family",
            members.sum(0).astype(np.int64),
            {"long_name": "heads of the family"},
        ),
    }
    coords = {"family": np.arange(members.shape[1]), "behaviour_name": scores["behaviour"].values}
    extended["distance"] = distance.assign(variables).assign_coords(coords)
    return extended
