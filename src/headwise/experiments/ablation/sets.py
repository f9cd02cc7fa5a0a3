"""Sets of heads by name, by list, or picked from another result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import xarray as xr

from headwise.core.errors import ParameterError, unknown
from headwise.core.labels import existing_heads, labels_of
from headwise.experiments.ablation.options import Heads

HEAD_LIST = re.compile(r"L\d+H\d+(\s*,\s*L\d+H\d+)*")
LAYER = re.compile(r"(?:layer:|L)(\d+)")
EXTREME = re.compile(r"(top|bottom)(\d+)(/layer)?")
# The variable of a group that ranks its heads where a rule names none.
RANKING_VARIABLES = {
    "frames": "score",
    "ablation": "difference",
    "importance": "importance",
    "change": "cosine",
    "probing": "accuracy",
    "coreference": "accuracy",
}
RULE_HELP = (
    "a rule is a list of heads (L7H9,L8H1), a layer (L3), GROUP:ROLE (roles:delimiter), "
    "or GROUP[.VARIABLE[=LABEL]]:topN or :bottomN, with /layer for that many of each layer "
    "(frames:top5)"
)


def pick_heads(
    rule: str, layers: int, heads: int, atlas: Mapping[str, xr.Dataset] | None = None
) -> Heads:
    """Return the heads a rule names, sorted.

    Parameters
    ----------
    rule : str
        `L7H9,L8H1` (heads), `L3` or `layer:3` (a whole layer), `roles:delimiter` (heads that have
        the role), `frames:top5`, `ablation:bottom10`, `probing.accuracy=MRPC:top12` (the highest or
        lowest of a variable, at one label of its other dimension), `ablation:bottom2/layer` (that
        many of each layer), `ablation.harm:bottom10` (the heads without which the model is least
        worse, for scores and losses alike).
    layers, heads : int
        The size of the model.
    atlas : mapping of str to Dataset, optional
        Where results are looked up.
    """
    rule = rule.strip()
    if HEAD_LIST.fullmatch(rule):
        return checked_heads([name.strip() for name in rule.split(",")], layers, heads)
    layer_match = LAYER.fullmatch(rule)
    if layer_match:
        layer = int(layer_match[1])
        if layer >= layers:
            raise ParameterError(
                f"There is no layer {layer}: the model has layers 0 to {layers - 1}."
            )
        return [(layer, head) for head in range(heads)]

    source, colon, selection = rule.partition(":")
    if not colon or not selection:
        raise ParameterError(f"'{rule}' names no heads; {RULE_HELP}.")
    if atlas is None:
        raise ParameterError(
            f"'{rule}' picks heads from another result; pass it as `atlas`.", option="atlas"
        )
    group, _, variable = source.partition(".")
    if group not in atlas:
        raise ParameterError(f"The atlas has no '{group}'; it has {', '.join(atlas)}.")
    dataset = atlas[group]
    n_layers = dataset.sizes.get("layer")
    n_heads = dataset.sizes.get("head")
    if (n_layers, n_heads) != (layers, heads):
        raise ParameterError(
            f"'{group}' is of a model with {n_layers} layers of {n_heads} heads; this one has "
            f"{layers} of {heads}."
        )
    extreme = EXTREME.fullmatch(selection)
    if extreme is None:
        return _heads_with_role(dataset, group, selection)
    values = _values_by_head(dataset, group, variable)
    end = extreme[1]
    count = int(extreme[2])
    if not extreme[3]:
        return _extreme_heads(values, end, count)
    picked = []
    for layer, row in enumerate(values):
        for _, head in _extreme_heads(row[None], end, count):
            picked.append((layer, head))
    return sorted(picked)


def checked_heads(names: Iterable[str | Sequence[int]], layers: int, heads: int) -> Heads:
    """Return heads sorted, each once; raise for those the model does not have."""
    return sorted(set(existing_heads(names, layers, heads)))


def _heads_with_role(dataset: xr.Dataset, group: str, role: str) -> Heads:
    if "has_role" not in dataset or "role" not in dataset["has_role"].dims:
        raise ParameterError(f"'{group}' has no roles; {RULE_HELP}.")
    known_roles = labels_of(dataset, "role")
    if role not in known_roles:
        raise ParameterError(unknown("role", role, known_roles))
    has_role = dataset["has_role"].transpose("layer", "head", "role").values
    has_this_role = has_role[..., known_roles.index(role)].astype(float)
    heads = [(layer, head) for layer, head in np.argwhere(has_this_role > 0).tolist()]
    if not heads:
        raise ParameterError(f"No head has the role '{role}' in this atlas.")
    return heads


def _values_by_head(dataset: xr.Dataset, group: str, variable: str) -> np.ndarray:
    """Return a variable, written as `NAME` or `NAME=LABEL`, as `[layer, head]`."""
    name, _, label = variable.partition("=")
    name = name or RANKING_VARIABLES.get(group, "")
    if group == "ablation" and name == "harm" and "difference" in dataset:
        # How much worse the model is without the head: a fall of a score, a rise of a loss.
        sign = -1 if dataset.attrs.get("higher_better", 1) else 1
        dataset = dataset.assign(harm=dataset["difference"] * sign)
    if name not in dataset:
        # Only variables over heads can rank heads.
        candidates = []
        for known, values in dataset.data_vars.items():
            if {"layer", "head"} <= set(values.dims):
                candidates.append(f"{group}.{known}")
        problem = unknown("variable", f"{group}.{name}", candidates)
        raise ParameterError(f"{problem} Name one as {group}.VARIABLE:topN.")
    array = dataset[name]
    for dim in map(str, array.dims):
        if dim in ("layer", "head"):
            continue
        labels = labels_of(dataset, dim)
        if label in labels:
            array = array.isel({dim: labels.index(label)})
        elif len(labels) == 1:
            array = array.isel({dim: 0})
        else:
            raise ParameterError(
                f"'{group}.{name}' has several values a head by {dim}; name one as "
                f"{group}.{name}=LABEL:topN ({', '.join(labels[:12])})."
            )
    return array.transpose("layer", "head").values.astype(float)


def _extreme_heads(values: np.ndarray, end: str, count: int) -> Heads:
    """Return the `top` or `bottom` heads of `values[layer, head]`, sorted by place."""
    n_usable = int(np.isfinite(values).sum())
    if not 1 <= count <= n_usable:
        raise ParameterError(
            f"{end}{count}: the number of heads must be from 1 to {n_usable}, those that have a "
            "value."
        )
    ascending = values if end == "bottom" else -values
    ascending = np.where(np.isfinite(values), ascending, np.inf)
    order = np.argsort(ascending.ravel(), kind="stable")[:count]
    return sorted(divmod(int(number), values.shape[1]) for number in order)
