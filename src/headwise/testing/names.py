"""The names of dims and variables of an atlas, and the variables that every mean has beside it."""

from __future__ import annotations

import numpy as np
import xarray as xr

# The one vocabulary of dims.
_DIMS = """
layer head role relation direction offset source pattern task feature pair token_type mention_type
baseline probe pooling head_a head_b axis example
"""
DIMS = frozenset(_DIMS.split())
# Dims of single analyses, outside the vocabulary, each with what it is.
EXTRA_DIMS = {
    "choice": "the relations of a head in `examples`, the one it follows most first",
    "layer_b": "the second layer of a pair of layers",
    "merge": "a step of a clustering tree",
    "part": "a column of a clustering tree",
    "upos": "a part of speech",
    "baseline_kind": "a baseline without syntax",
    "group": "words that have a relation, and words that do not",
    "n_heads": "how many heads are taken together",
    "task_b": "the second task of a pair of tasks",
    "rank": "place in an order of heads",
    "selection": "how heads taken together were chosen",
    "role_b": "the second role of a pair of roles",
    "threshold": "a value of the threshold τ",
    "bin": "a range of scores",
    "frame": "a semantic frame",
    "element": "an element of a frame",
    "said": "the pattern that the classifier gave a labelled map",
    "receiver": "the type of the token that receives a contribution",
    "token": "a token of one input that is drawn whole",
    "source_token": "the token it receives from",
    "half": "the first or the second half of a repeated sequence",
    "draw": "a random draw of heads",
    "length": "tokens of a prompt",
    "depth": "where in a text a needle lies, from 0 to 1",
    "source_b": "the second of a pair of sources",
    "layer_source": "a source of contributions to the output of a layer",
    "layer_source_b": "the second of a pair of these",
    "edge": "an edge between two parts of a model",
    "size": "how many edges a circuit has",
    "span": "the tokens that others can no longer attend to",
    "renormalised": "whether the remaining weights of a row are scaled up to 1",
    "rows": "rows where the role of a head fires, and the others",
    "component": "a part that writes into the residual stream",
    "query_component": "a part that wrote at the query",
    "key_component": "a part that wrote at the key",
    "kv_head": "a head of keys and values, which several query heads may share",
    "ranking": "how the key/value heads that stay whole are chosen",
    "share": "the share of key/value heads that stay whole",
    "stream": "what stands for a word: its embedding, or the residual stream after the first MLP",
    "side": "the side of a head that reads what another wrote: query, key or value",
}
_HEADS = ("layer", "head")
VARIABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "surface": {
        "position": (*_HEADS, "offset"),
        "mass": (*_HEADS, "token_type"),
        "mass_from_sep": (*_HEADS, "token_type"),
        "mass_from_other": (*_HEADS, "token_type"),
        "entropy": _HEADS,
        "entropy_from_cls": _HEADS,
        "max_weight": _HEADS,
    },
    "offsets": {"histogram": ("source", *_HEADS, "offset"), "centre": ("source", *_HEADS)},
    "gradient": {"importance": (*_HEADS, "token_type")},
    "dependency": {
        "accuracy": ("direction", *_HEADS, "relation"),
        "count": ("relation",),
        "baseline": ("relation",),
        "baseline_offset": ("relation",),
        "bar": ("direction", "relation"),
    },
    "coreference": {
        "accuracy": (*_HEADS, "mention_type"),
        "baseline_accuracy": ("baseline", "mention_type"),
        "count": ("mention_type",),
    },
    "distance": {"js": ("head_a", "head_b"), "mds": ("head_a", "axis")},
    "tree_probe": {"uas": ("probe",)},
    "patterns": {"proportion": (*_HEADS, "pattern")},
    "frames": {"score": _HEADS},
    "features": {"attention": (*_HEADS, "feature"), "from_cls": ("head", "feature")},
    "token_pairs": {"attention": (*_HEADS, "pair")},
    "attribution": {"pearson": ("source", *_HEADS), "spearman": ("source", *_HEADS)},
    "roles": {
        "bias": (*_HEADS, "role"),
        "p_value": (*_HEADS, "role"),
        "p_adjusted": (*_HEADS, "role"),
        "has_role": (*_HEADS, "role"),
    },
    "probing": {
        "accuracy": ("task", *_HEADS),
        "layer_accuracy": ("task", "layer"),
        "pooled_accuracy": ("task", "pooling"),
    },
    "induction": {
        "prefix_matching": _HEADS,
        "duplicate": _HEADS,
        "previous": _HEADS,
        "prefix_matching_p_adjusted": _HEADS,
        "profile": (*_HEADS, "offset"),
        "loss": ("half",),
    },
    "opening_token": {"first_with": _HEADS, "first_without": _HEADS, "change": _HEADS},
    "sinks": {
        "first": _HEADS,
        "rate": _HEADS,
        "first_p_adjusted": _HEADS,
        "value_norm_ratio": _HEADS,
    },
    "circuits": {
        "ov_copying": _HEADS,
        "qk_matching": _HEADS,
        "composition": ("side", "head_a", "head_b"),
    },
    "logits": {
        "direct": _HEADS,
        "specific": _HEADS,
        "copying": _HEADS,
        "copying_p_adjusted": _HEADS,
        "direct_other": ("layer",),
    },
    "copy_suppression": {
        "suppression": _HEADS,
        "suppression_spreads": _HEADS,
        "suppression_p_adjusted": _HEADS,
        "attention": _HEADS,
        "rows": ("layer",),
    },
    "function_vectors": {"accuracy": ("task",)},
    # Few words of a small vocabulary are in its lists.
    "successors": {"share_n": ("relation",)},
    "examples": {"sharp_weight": (*_HEADS, "rank"), "sharp_text": (*_HEADS, "rank")},
    "retrieval": {"emitted": ("length", "depth")},
    "patching": {"estimate": _HEADS, "estimate_p_adjusted": _HEADS},
    "circuit": {
        "effect": ("edge",),
        "exact": ("edge",),
        "effect_p_adjusted": ("edge",),
        "in_circuit": ("edge",),
        "head_effect": _HEADS,
        "mlp_effect": ("layer",),
    },
    "knockout": {"change": ("span", "renormalised", "layer")},
    "cache": {
        "distant": ("layer", "kv_head"),
        "output_error": ("layer", "kv_head"),
        "whole": ("layer", "kv_head"),
        "loss_rise": ("ranking", "share"),
        "bytes_per_token": ("share",),
    },
    "ablation": {"score": _HEADS, "layer_score": ("layer",)},
    "change": {"cosine": _HEADS},
}
# Means over examples: each has its count and interval beside it.
MEANS: dict[str, tuple[str, ...]] = {
    "surface": tuple(VARIABLES["surface"]),
    "gradient": ("importance",),
    "frames": ("score",),
    "features": ("attention", "from_cls"),
    "token_pairs": ("attention",),
    "attribution": ("pearson", "spearman"),
    "roles": ("bias",),
    "change": ("cosine",),
    "induction": ("prefix_matching", "duplicate", "previous", "loss"),
    "sinks": ("first", "rate", "value_norm_ratio"),
    "opening_token": ("first_with", "first_without", "rate_with", "rate_without", "change"),
    "logits": ("direct", "specific", "direct_other"),
    "circuit": ("effect", "exact"),
    "knockout": ("change",),
    "cache": (
        "distant",
        "output_error",
        "head_distant",
        "head_output_error",
        "loss_rise",
        "divergence",
    ),
    "copy_suppression": ("suppression", "suppression_effect", "attention"),
}


def check_names(group: str, dataset: xr.Dataset) -> None:
    """Assert that dims are in the vocabulary, that no variable is missing, and that every mean has
    its count and interval.

    Parameters
    ----------
    group : str
        The group of the atlas: the name of its analysis.
    dataset : Dataset
        Its result.
    """
    for name, array in dataset.variables.items():
        unknown_dims = [dim for dim in array.dims if dim not in DIMS and dim not in EXTRA_DIMS]
        assert not unknown_dims, (
            f"{group}.{name} has dims {unknown_dims}, which are not in the vocabulary: "
            "use its names, or add what the dim is to EXTRA_DIMS"
        )
    for name, dims in VARIABLES.get(group, {}).items():
        assert name in dataset.data_vars, f"{group} lacks the variable `{name}`"
        assert dataset[name].dims == dims, (
            f"{group}.{name} has dims {dataset[name].dims}, not {dims}"
        )
    names = [str(name) for name in dataset.data_vars]
    means = set(MEANS.get(group, ()))
    for name in names:
        if name.endswith("_low"):
            means.add(name.removesuffix("_low"))
    for name in sorted(means):
        _check_mean(group, name, dataset)
    for name in names:
        if name.endswith("p_value") and dataset[name].size > 1:
            _check_p_values(group, name, dataset)


def _check_p_values(group: str, name: str, dataset: xr.Dataset) -> None:
    adjusted_name = name.replace("p_value", "p_adjusted")
    assert adjusted_name in dataset, f"{group}.{name} has no `{adjusted_name}` beside it"
    raw = dataset[name].values
    adjusted = dataset[adjusted_name].values
    assert (np.isnan(raw) | (adjusted >= raw - 1e-9)).all(), (
        f"{group}.{adjusted_name} is smaller than `{name}`"
    )


def _check_mean(group: str, name: str, dataset: xr.Dataset) -> None:
    for part in (name, f"{name}_low", f"{name}_high"):
        assert part in dataset.data_vars, f"{group} has a mean `{name}` but no `{part}`"
        assert dataset[part].dims == dataset[name].dims, (
            f"{group}.{part} has dims {dataset[part].dims}, not {dataset[name].dims}"
        )
    mean = dataset[name].values.astype(float)
    low = dataset[f"{name}_low"].values.astype(float)
    high = dataset[f"{name}_high"].values.astype(float)
    inside = (low <= mean + 1e-5) & (mean <= high + 1e-5)
    assert (inside | np.isnan(low) | np.isnan(high)).all(), (
        f"{group}.{name} lies outside its interval"
    )
    if name in MEANS.get(group, ()) or f"{name}_n" in dataset:
        assert f"{name}_n" in dataset.data_vars, f"{group} has a mean `{name}` but no `{name}_n`"
        count = np.broadcast_to(dataset[f"{name}_n"].values, mean.shape)
        assert count.dtype.kind in "iu", f"{group}.{name}_n is not a count: {count.dtype}"
        assert (count >= 0).all(), f"{group}.{name}_n is negative"
        assert np.isnan(mean[count == 0]).all(), (
            f"{group}.{name} has a number where nothing was counted"
        )
        assert not np.isnan(mean[count > 0]).any(), (
            f"{group}.{name} is NaN where something was counted"
        )
