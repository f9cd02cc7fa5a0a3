"""Shares of labels by relative depth, tests of their differences, and heads matched by label, as
labelled arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.optimize import linear_sum_assignment

from headwise.atlas import behaviours
from headwise.atlas.describe import LABELS, describe_heads
from headwise.core.labels import SIGNIFICANCE_LEVEL, head_name, labels_of
from headwise.experiments.comparison.options import ComparisonOptions
from headwise.stats.corrections import correct
from headwise.stats.depth import (
    STRATA,
    depth_bins,
    depth_difference_p,
    depth_distance_test,
    mean_depth_interval,
    relative_depth,
    share_difference_p,
    share_intervals,
)
from headwise.stats.intervals import share

# A label that stands in fewer layers of two models together is not tested: no permutation of so few
# layers is rare, and the correction would count it.
LEAST_LAYERS = 4
SYNTAX = "syntax"
DIFFERENCE_COLUMNS = (
    "label",
    "model",
    "other",
    "share",
    "share_other",
    "share_p",
    "depth",
    "depth_other",
    "depth_p",
)
MATCH_COLUMNS = ("label", "model", "head", "depth", "other", "head_other", "depth_other")


@dataclass(frozen=True, slots=True)
class MemberLabels:
    """The labels of one model's heads, `[layer, head]`.

    `label` is `other` where a head has none, or none that is significant; `in_atlas` is the label
    whatever its interval. `impossible` are labels that no head of this model can have, `relations`
    the dependency relations of its text."""

    name: str
    label: np.ndarray
    in_atlas: np.ndarray
    category: np.ndarray
    why: np.ndarray
    relations: tuple[str, ...]
    impossible: frozenset[str]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.label)

    @property
    def heads(self) -> int:
        """The number of heads of a layer."""
        return int(self.label.shape[1])

    def applies(self, label: str) -> bool:
        """Return whether this model could have the label: a decoder attends to no next token."""
        if label in LABELS:
            return label not in self.impossible
        return label in self.relations

    def counts(self, labels: Sequence[str]) -> np.ndarray:
        """Return how many heads of each layer have each label, `[layer, label]`."""
        return np.stack([(self.label == label).sum(1) for label in labels], axis=1)


def labels_of_member(name: str, groups: Mapping[str, xr.Dataset]) -> MemberLabels:
    """Return the labels of one model from these groups of its atlas."""
    layers = max(dataset.sizes.get("layer", 0) for dataset in groups.values())
    heads = max(dataset.sizes.get("head", 0) for dataset in groups.values())
    table = describe_heads(groups, layers, heads)

    def by_head(column: str) -> np.ndarray:
        return np.asarray(table[column].astype(str).to_numpy(dtype=str).reshape(layers, heads))

    in_atlas = by_head("does")
    significant = behaviours.significant_labels(groups, in_atlas)
    relations: tuple[str, ...] = ()
    if "dependency" in groups:
        relations = tuple(labels_of(groups["dependency"], "relation"))
    return MemberLabels(
        name=name,
        label=np.where(significant, in_atlas, behaviours.OTHER),
        in_atlas=in_atlas,
        category=np.where(significant, by_head("kind"), behaviours.OTHER),
        why=by_head("why"),
        relations=relations,
        impossible=_impossible_labels(groups),
    )


def _impossible_labels(groups: Mapping[str, xr.Dataset]) -> frozenset[str]:
    """Return the labels of where attention goes that no head of this model can have: of a target
    that its attention never reaches (the next token of a decoder) or its tokenizer lacks."""
    targets = {*behaviours.POSITIONS.values(), *behaviours.TYPES.values()}
    if "surface" not in groups:
        return frozenset({*targets, behaviours.NEIGHBOURS, behaviours.DELIMITERS})
    possible = set()
    for label, attention in behaviours.attention_shares(groups["surface"]).items():
        if bool(attention.notnull().any()):
            possible.add(label)
    return frozenset(targets - possible)


# --- the datasets -------------------------------------------------------------------------------


def family_datasets(
    members: Sequence[MemberLabels],
    corpora: Sequence[str],
    bins: int,
    options: ComparisonOptions,
) -> dict[str, xr.Dataset]:
    """Return the groups of a comparison by depth.

    - `family`: `share[model, label, depth]` of the heads at each relative depth, with counts and
      intervals that take heads of one layer as alike as they are; `total_share[model, label]`;
      `mean_depth[model, label]` with its interval over layers; for each pair of models the tests
      `share_difference`, `depth_difference[model, other, label]` and `depth_distance[model, other]`;
    - `family_heads`: `label`, `category`, `why[model, layer, head]`, "" where a model has no such
      head;
    - `family_matches`: a row for each pair of heads that are matched by label.
    """
    labels = _ordered_labels(members)
    names = [member.name for member in members]
    applies = np.zeros((len(members), len(labels)), dtype=bool)
    for row, member in enumerate(members):
        for column, label in enumerate(labels):
            applies[row, column] = member.applies(label)
    variables: dict[str, Any] = {
        "applies": (
            ("model", "label"),
            applies,
            {"long_name": "whether a head of this model could have the label"},
        )
    }
    variables |= _share_variables(members, labels, applies, bins)
    variables |= _depth_variables(members, labels)
    variables |= _test_variables(members, labels, applies, options)
    edges = np.arange(bins + 1) / bins
    coords: dict[str, Any] = {
        "model": names,
        "other": names,
        "label": np.array(labels, dtype=str),
        "depth": (edges[:-1] + edges[1:]) / 2,
        "depth_low": ("depth", edges[:-1]),
        "depth_high": ("depth", edges[1:]),
        "layers": ("model", [member.layers for member in members]),
        "heads": ("model", [member.heads for member in members]),
        "corpus": ("model", list(corpora)),
        "label_category": ("label", np.array([_category(label) for label in labels], dtype=str)),
    }
    attributes = {
        "title": "What heads do by relative depth",
        "correction": options.correction,
        "same_corpus": int(len(set(corpora)) == 1),
        "least_layers": LEAST_LAYERS,
    }
    family = xr.Dataset(variables, coords, attributes)
    return {
        "family": family,
        "family_heads": _heads_dataset(members),
        "family_matches": _matches_dataset(members, labels),
    }


def _ordered_labels(members: Sequence[MemberLabels]) -> list[str]:
    """Return the labels that some head has, in the order of `LABELS`, relations after them."""
    present: set[str] = set()
    for member in members:
        present |= {str(label) for label in np.unique(member.label)}
    present.discard(behaviours.OTHER)
    named = [label for label in LABELS if label in present]
    return named + sorted(present - set(named))


def _category(label: str) -> str:
    return LABELS[label][0] if label in LABELS else SYNTAX


def _share_variables(
    members: Sequence[MemberLabels], labels: Sequence[str], applies: np.ndarray, bins: int
) -> dict[str, Any]:
    """Return shares with counts and intervals, by depth and in all; NaN where a label cannot be."""
    n_models = len(members)
    counts = np.zeros((n_models, len(labels), bins), dtype=int)
    n_heads = np.zeros((n_models, bins), dtype=int)
    ends = np.full((2, n_models, len(labels), bins), np.nan)
    total_ends = np.full((2, n_models, len(labels)), np.nan)
    for number, member in enumerate(members):
        bin_of_layer = depth_bins(member.layers, bins)
        label_counts = _counts(member, labels)
        for layer, counts_of_layer in enumerate(label_counts):
            counts[number, :, bin_of_layer[layer]] += counts_of_layer
            n_heads[number, bin_of_layer[layer]] += member.heads
        low, high, total_low, total_high = share_intervals(label_counts, member.heads, bins)
        ends[:, number] = low, high
        total_ends[:, number] = total_low, total_high
    variables: dict[str, Any] = {
        "n_heads": (("model", "depth"), n_heads, {"long_name": "heads at this depth"}),
        "total_heads": ("model", n_heads.sum(1), {"long_name": "heads of the model"}),
    }
    by_depth = (counts, n_heads[:, None], ends, applies[:, :, None])
    in_all = (counts.sum(2), n_heads.sum(1)[:, None], total_ends, applies)
    parts = {
        "": (("model", "label", "depth"), *by_depth),
        "total_": (("model", "label"), *in_all),
    }
    for prefix, (dims, successes, trials, (low, high), possible) in parts.items():
        variables[f"{prefix}count"] = (dims, successes, {"long_name": "heads with the label"})
        by_suffix = {"share": share(successes, trials), "share_low": low, "share_high": high}
        for suffix, values in by_suffix.items():
            about = {"long_name": f"{suffix.replace('_', ' ')} of heads with the label"}
            variables[f"{prefix}{suffix}"] = (dims, np.where(possible, values, np.nan), about)
    return variables


def _counts(member: MemberLabels, labels: Sequence[str]) -> np.ndarray:
    """Return how many heads of each layer have each label, also where there is no label at all."""
    if not labels:
        return np.zeros((member.layers, 0), dtype=int)
    return member.counts(labels)


def _depth_variables(members: Sequence[MemberLabels], labels: Sequence[str]) -> dict[str, Any]:
    """Return the mean relative depth of the heads of each label, with its interval over layers."""
    shape = (len(members), len(labels))
    mean = np.full(shape, np.nan)
    low = np.full(shape, np.nan)
    high = np.full(shape, np.nan)
    count = np.zeros(shape, dtype=int)
    for number, member in enumerate(members):
        label_counts = _counts(member, labels)
        count[number] = label_counts.sum(0)
        for column in range(len(labels)):
            place = (number, column)
            mean[place], low[place], high[place] = mean_depth_interval(label_counts[:, column])
    dims = ("model", "label")
    return {
        "mean_depth": (dims, mean, {"long_name": "mean relative depth of the label's heads"}),
        "mean_depth_n": (dims, count),
        "mean_depth_low": (dims, low),
        "mean_depth_high": (dims, high),
    }


def _test_variables(
    members: Sequence[MemberLabels],
    labels: Sequence[str],
    applies: np.ndarray,
    options: ComparisonOptions,
) -> dict[str, Any]:
    """Return what is tested between each two models, corrected over pairs (and labels).

    The value of a pair stands at [first, second] alone; at [second, first] is NaN, so that a
    correction counts each test once."""
    n_models = len(members)
    by_label = (n_models, n_models, len(labels))
    by_pair = (n_models, n_models)
    share_gap = np.full(by_label, np.nan)
    share_p = np.full(by_label, np.nan)
    depth_gap = np.full(by_label, np.nan)
    depth_p = np.full(by_label, np.nan)
    distance = np.full(by_pair, np.nan)
    distance_random = np.full(by_pair, np.nan)
    distance_p = np.full(by_pair, np.nan)
    matched = np.zeros(by_pair, dtype=int)
    strata = min(STRATA, *(member.layers for member in members))
    all_counts = [_counts(member, labels) for member in members]
    for first, second in combinations(range(n_models), 2):
        pair = (first, second)
        counts = all_counts[first], all_counts[second]
        heads = members[first].heads, members[second].heads
        # In how many layers of the two models each label stands.
        n_layers_with = (counts[0] > 0).sum(0) + (counts[1] > 0).sum(0)
        is_tested = applies[first] & applies[second] & (n_layers_with >= LEAST_LAYERS)
        p = share_difference_p(
            counts[0] / heads[0],
            counts[1] / heads[1],
            depth_bins(members[first].layers, strata),
            depth_bins(members[second].layers, strata),
            options.seed,
        )
        share_p[pair] = np.where(is_tested, p, np.nan)
        gap = counts[1].mean(0) / heads[1] - counts[0].mean(0) / heads[0]
        share_gap[pair] = np.where(is_tested, gap, np.nan)
        for column in np.flatnonzero(is_tested):
            columns = counts[0][:, column], counts[1][:, column]
            depth_gap[pair][column] = _mean_depth(columns[1]) - _mean_depth(columns[0])
            depth_p[pair][column] = depth_difference_p(*columns, options.seed)
        distance[pair], distance_random[pair], distance_p[pair] = depth_distance_test(
            *counts, options.seed
        )
        matched[pair] = np.minimum(counts[0].sum(0), counts[1].sum(0)).sum()
    dims = ("model", "other", "label")
    variables: dict[str, Any] = {
        "share_difference": (dims, share_gap, {"long_name": "share in `other` minus in `model`"}),
        "depth_difference": (dims, depth_gap, {"long_name": "mean depth in `other` minus `model`"}),
        "depth_distance": (
            dims[:2],
            distance,
            {"long_name": "how far apart the heads of the same labels lie, in relative depth"},
        ),
        "depth_distance_random": (
            dims[:2],
            distance_random,
            {"long_name": "the same with the layers of `other` in random order"},
        ),
        "matched": (dims[:2], matched, {"long_name": "heads matched by label"}),
    }
    tests = {"share_difference": share_p, "depth_difference": depth_p, "depth_distance": distance_p}
    for name, p in tests.items():
        own_dims = dims[: p.ndim]
        variables[f"{name}_p"] = (own_dims, p)
        variables[f"{name}_p_adjusted"] = (own_dims, correct(p, options.correction))
    return variables


def _mean_depth(counts: np.ndarray) -> float:
    """Return the mean relative depth of heads counted by layer; NaN where there are none."""
    if not counts.sum():
        return float("nan")
    return float(counts @ relative_depth(len(counts)) / counts.sum())


def _heads_dataset(members: Sequence[MemberLabels]) -> xr.Dataset:
    """Return label, category and reason of each head; "" where a model has no such head."""
    layers = max(member.layers for member in members)
    heads = max(member.heads for member in members)
    shape = (len(members), layers, heads)
    variables = {}
    about = {
        "label": "the label, `other` where it is not significant",
        "in_atlas": "the label of the atlas, significant or not",
        "category": "the category of the label",
        "why": "the numbers behind the label of the atlas",
    }
    for name, long_name in about.items():
        values = np.full(shape, "", dtype=object)
        for number, member in enumerate(members):
            values[number, : member.layers, : member.heads] = getattr(member, name)
        array = values.astype(str)
        variables[name] = (("model", "layer", "head"), array, {"long_name": long_name})
    coords = {
        "model": [member.name for member in members],
        "layer": np.arange(layers),
        "head": np.arange(heads),
    }
    return xr.Dataset(variables, coords, {"title": "The label of each head of each model"})


# --- heads matched by label ---------------------------------------------------------------------


def match_heads(first: MemberLabels, second: MemberLabels, label: str) -> list[tuple[int, ...]]:
    """Return pairs of heads that have this label in two models, `(layer, head, layer, head)`.

    One to one, so that relative depths are as near as possible in all; the model with more heads of
    the label keeps some unmatched. Heads of one layer are told apart by their number alone."""
    first_places = np.argwhere(first.label == label)
    second_places = np.argwhere(second.label == label)
    if not len(first_places) or not len(second_places):
        return []
    first_depth = relative_depth(first.layers)[first_places[:, 0]]
    second_depth = relative_depth(second.layers)[second_places[:, 0]]
    rows, columns = linear_sum_assignment(np.abs(first_depth[:, None] - second_depth[None]))
    pairs = []
    for row, column in zip(rows, columns, strict=True):
        pairs.append((*first_places[row].tolist(), *second_places[column].tolist()))
    return pairs


def _matches_dataset(members: Sequence[MemberLabels], labels: Sequence[str]) -> xr.Dataset:
    rows = []
    for first, second in combinations(members, 2):
        first_depth = relative_depth(first.layers)
        second_depth = relative_depth(second.layers)
        for label in labels:
            for layer, head, other_layer, other_head in match_heads(first, second, label):
                rows.append(
                    (
                        label,
                        first.name,
                        head_name(layer, head),
                        first_depth[layer],
                        second.name,
                        head_name(other_layer, other_head),
                        second_depth[other_layer],
                    )
                )
    variables = {}
    for column, name in enumerate(MATCH_COLUMNS):
        dtype = float if name.startswith("depth") else str
        variables[name] = ("match", np.array([row[column] for row in rows], dtype=dtype))
    coords = {"match": np.arange(len(rows))}
    return xr.Dataset(variables, coords, {"title": "Heads matched by label"})


# --- tables -------------------------------------------------------------------------------------


def matches(result: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Return the matched heads of a comparison by depth, a row for each pair of heads.

    Parameters
    ----------
    result : Atlas
        The result of `headwise.compare`.
    """
    dataset = result["family_matches"]
    return pd.DataFrame({name: dataset[name].values for name in MATCH_COLUMNS})


def differences(dataset: xr.Dataset, significant: bool = True) -> pd.DataFrame:
    """Return which labels differ between models, the smallest corrected p first.

    Parameters
    ----------
    dataset : Dataset
        The group `family`.
    significant : bool, default True
        Only rows with a corrected p below 0.05, in share or in depth.

    Returns
    -------
    DataFrame
        A row for each label and pair: `share`, `share_other` with `share_p`, and `depth`,
        `depth_other` with `depth_p` (corrected p-values).
    """
    rows = []
    names = [str(name) for name in dataset["model"].values]
    labels = [str(label) for label in dataset["label"].values]
    share_p = dataset["share_difference_p_adjusted"].transpose("model", "other", "label").values
    depth_p = dataset["depth_difference_p_adjusted"].transpose("model", "other", "label").values
    shares = dataset["total_share"].transpose("model", "label").values
    depths = dataset["mean_depth"].transpose("model", "label").values
    for first, second in combinations(range(len(names)), 2):
        for column, label in enumerate(labels):
            p_values = share_p[first, second, column], depth_p[first, second, column]
            if not np.isfinite(p_values).any():
                continue
            if significant and not np.nanmin(p_values) < SIGNIFICANCE_LEVEL:
                continue
            rows.append(
                (
                    label,
                    names[first],
                    names[second],
                    shares[first, column],
                    shares[second, column],
                    p_values[0],
                    depths[first, column],
                    depths[second, column],
                    p_values[1],
                )
            )
    table = pd.DataFrame(rows, columns=list(DIFFERENCE_COLUMNS))
    smallest = table[["share_p", "depth_p"]].min(axis=1)
    return table.iloc[np.argsort(smallest.to_numpy(), kind="stable")].reset_index(drop=True)
