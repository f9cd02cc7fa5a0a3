"""Sets of heads by name, by list, or picked from another result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import xarray as xr

from headwise.core.errors import ParameterError
from headwise.core.labels import existing_heads, labels_of

LAYER = re.compile(r"(?:layer:|L)(\d+)")
EXTREME = re.compile(r"(top|bottom)(\d+)(/layer)?")
# The variable of a group that ranks its heads where a rule names none, and whether heads are ranked
# by how far a mean is high.
RANKED = {
    "frames": "score",
    "ablation": "difference",
    "importance": "importance",
    "change": "cosine",
    "probing": "accuracy",
    "coreference": "accuracy",
}
HOW = (
    "a rule is a list of heads (L7H9,L8H1), a layer (L3), GROUP:ROLE (roles:delimiter), "
    "or GROUP[.VARIABLE[=LABEL]]:topN or :bottomN, with /layer for so many of each layer (frames:top5)"
)

Heads = list[tuple[int, int]]


def pick_heads(
    rule: str, layers: int, heads: int, atlas: Mapping[str, xr.Dataset] | None = None
) -> Heads:
    """The heads a rule names, sorted.

    Parameters
    ----------
    rule
        `L7H9,L8H1` (heads), `L3` or `layer:3` (a whole layer), `roles:delimiter` (heads that have
        the role), `frames:top5`, `ablation:bottom10`, `probing.accuracy=MRPC:top12` (the highest or
        lowest of a variable, at one label of its other dimension), `ablation:bottom2/layer` (so
        many of each layer), `ablation.harm:bottom10` (the heads whose loss harms least, for scores
        and losses alike).
    atlas
        Where results are looked up.
    """
    rule = rule.strip()
    if re.fullmatch(r"L\d+H\d+(\s*,\s*L\d+H\d+)*", rule):
        return checked_heads([name.strip() for name in rule.split(",")], layers, heads)
    layer = LAYER.fullmatch(rule)
    if layer:
        number = int(layer[1])
        if number >= layers:
            raise ParameterError(
                f"There is no layer {number}: the model has layers 0 to {layers - 1}."
            )
        return [(number, head) for head in range(heads)]
    source, colon, what = rule.partition(":")
    if not colon or not what:
        raise ParameterError(f"'{rule}' names no heads; {HOW}.")
    if atlas is None:
        raise ParameterError(
            f"'{rule}' picks heads from another result; give its file with --atlas."
        )
    group, _, variable = source.partition(".")
    if group not in atlas:
        raise ParameterError(f"The atlas has no '{group}'; it has {', '.join(atlas)}.")
    dataset = atlas[group]
    if (dataset.sizes.get("layer"), dataset.sizes.get("head")) != (layers, heads):
        raise ParameterError(
            f"'{group}' is of a model with {dataset.sizes.get('layer')} layers of {dataset.sizes.get('head')} heads; "
            f"this one has {layers} of {heads}."
        )
    extreme = EXTREME.fullmatch(what)
    if extreme is None:
        return _with_role(dataset, group, what)
    values = _plane(dataset, group, variable)
    if extreme[3]:
        return sorted(
            (layer, head)
            for layer, row in enumerate(values)
            for _, head in _extremes(row[None], extreme[1], int(extreme[2]))
        )
    return _extremes(values, extreme[1], int(extreme[2]))


def checked_heads(found: Iterable[str | Sequence[int]], layers: int, heads: int) -> Heads:
    """Heads, sorted and each once; refuses those the model does not have."""
    return sorted(set(existing_heads(found, layers, heads)))


def _with_role(dataset: xr.Dataset, group: str, role: str) -> Heads:
    if "has_role" not in dataset or "role" not in dataset["has_role"].dims:
        raise ParameterError(f"'{group}' tells no roles; {HOW}.")
    known = labels_of(dataset, "role")
    if role not in known:
        raise ParameterError(f"There is no role '{role}' in this atlas; it has {', '.join(known)}.")
    has = (
        dataset["has_role"]
        .transpose("layer", "head", "role")
        .values[..., known.index(role)]
        .astype(float)
    )
    found = [(layer, head) for layer, head in np.argwhere(has > 0).tolist()]
    if not found:
        raise ParameterError(f"No head has the role '{role}' in this atlas.")
    return found


def _plane(dataset: xr.Dataset, group: str, variable: str) -> np.ndarray:
    name, _, label = variable.partition("=")
    name = name or RANKED.get(group, "")
    if group == "ablation" and name == "harm" and "difference" in dataset:
        # How far the model is worse without the head: a fall of a score, a rise of a loss.
        dataset = dataset.assign(
            harm=dataset["difference"] * (-1 if dataset.attrs.get("higher_better", 1) else 1)
        )
    if name not in dataset:
        raise ParameterError(
            f"'{group}' has no variable '{name}'; name one as {group}.VARIABLE:topN."
        )
    array = dataset[name]
    for dim in [str(d) for d in array.dims if d not in ("layer", "head")]:
        known = labels_of(dataset, dim)
        if label in known or len(known) == 1:
            array = array.isel({dim: known.index(label) if label in known else 0})
        else:
            raise ParameterError(
                f"'{group}.{name}' has several values a head by {dim}; name one as {group}.{name}=LABEL:topN "
                f"({', '.join(known[:12])})."
            )
    return array.transpose("layer", "head").values.astype(float)


def _extremes(values: np.ndarray, which: str, count: int) -> Heads:
    usable = int(np.isfinite(values).sum())
    if not 1 <= count <= usable:
        raise ParameterError(
            f"{which}{count}: the number of heads must be from 1 to {usable}, those that have a value."
        )
    flat = np.where(np.isfinite(values), values if which == "bottom" else -values, np.inf).ravel()
    order = np.argsort(flat, kind="stable")[:count]
    return sorted(divmod(int(i), values.shape[1]) for i in order)
