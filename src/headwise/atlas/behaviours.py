"""What a head does, by number and in a word, read from the groups of a result: `surface`,
`dependency` and `roles`, and for decoders `induction`, `retrieval` and `circuits`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from headwise.core.labels import labels_of, variable_of

POSITIONS = {-1: "previous token", 0: "same token", 1: "next token"}
PREVIOUS = POSITIONS[-1]
SINK = "sink"
# What attention rests on, by kind of token. The first token is a sink, unless it is an encoder's
# opening token.
TYPES = {"first": SINK, "cls": "to cls", "sep": "to sep", "punct": "to punct"}
NEIGHBOURS, DELIMITERS, BROADLY, OTHER = "neighbours", "delimiters", "broad", "other"
INDUCTION, DUPLICATE, RETRIEVAL, COPYING = "induction", "duplicate", "retrieval", "copying"
# The measures on repeated sequences that a word is made of; the last one written wins.
REPEATS = {"previous": PREVIOUS, "duplicate": DUPLICATE, "prefix_matching": INDUCTION}
LEAST_SHARE = 0.5  # of its attention, chance taken off: what a head must put on one target to be named after it
LEAST_MARGIN = 0.1  # over the best of the baselines: what a relation's best head must find more
LEAST_REPEAT = 0.3  # of its attention on a repeated sequence
LEAST_RETRIEVAL = 0.1  # of a needle's tokens (Wu et al. 2024)
LEAST_COPYING = 0.5
LEVEL = 0.05
BROAD = 0.8  # of the entropy of a uniform head, whatever the length of the text
UNIFORM = 0.98  # what is above it is no different from a uniform head, which does nothing
ALIKE = 0.05  # heads whose shares of that entropy differ by less (one deviation) are alike, as random weights make them


def is_decoder(surface: xr.Dataset) -> bool:
    """Whether no head can look ahead."""
    return 1 in surface["offset"] and bool(surface["position"].sel(offset=1).isnull().all())


def shares(surface: xr.Dataset, suffix: str = "") -> dict[str, xr.DataArray]:
    """Mean attention to each position and kind of token that words are made of, `[layer, head]`, by
    the name of the behaviour; `suffix` is `_rest` for what is left without the first token,
    `_uniform` for a uniform head.

    An encoder's opening token is `to cls`, any other first token a `sink`: never both, for they are
    the same token."""
    kinds = {name: words for name, words in TYPES.items() if name in surface["token_type"]}
    opened = "cls" in kinds and bool(surface["mass"].sel(token_type="cls").notnull().any())
    if "first" not in kinds and is_decoder(surface):
        kinds["cls"] = (
            SINK  # an atlas from before the first token was a kind: what opens a decoder's text is one
        )
    elif "first" in kinds:
        kinds.pop("first" if opened and not is_decoder(surface) else "cls", None)
    by_position, by_kind = surface[f"position{suffix}"], surface[f"mass{suffix}"]
    found = {
        name: by_position.sel(offset=offset, drop=True)
        for offset, name in POSITIONS.items()
        if offset in surface["offset"]
    }
    return found | {words: by_kind.sel(token_type=name, drop=True) for name, words in kinds.items()}


def behaviour_scores(datasets: Mapping[str, xr.Dataset]) -> xr.DataArray:
    """How much of each behaviour a head shows, `[behaviour, layer, head]`, from what groups there
    are.

    From `surface`: mean attention to the previous, same and next token, to `[CLS]` (or to the first
    token, `sink`), `[SEP]` and punctuation, and `broad`, one minus the mean largest weight. From
    `dependency`: for each relation, by how much the head beats the best baseline in its better
    direction, where it does so significantly (else 0). From `roles`: 1 where it has the role."""
    found: dict[str, xr.DataArray] = {}
    surface = datasets.get("surface")
    if surface is not None:
        found |= shares(surface)
        found[BROADLY] = 1 - surface["max_weight"]
    dependency = datasets.get("dependency")
    if dependency is not None:
        margin = sure_margins(dependency).max("direction")
        for relation in map(str, dependency["relation"].values):
            own = margin.sel(relation=relation, drop=True)
            if relation != "all" and bool((own > 0).any()):
                found[f"relation {relation}"] = own
    roles = datasets.get("roles")
    if roles is not None:
        found |= {
            f"role {name}": roles["has_role"].sel(role=name, drop=True).astype(float)
            for name in labels_of(roles, "role")
        }
    if not found:
        return xr.DataArray(
            np.zeros((0, 0, 0)),
            dims=("behaviour", "layer", "head"),
            coords={"behaviour": np.array([], dtype=str)},
        )
    plain = [array.reset_coords(drop=True).transpose("layer", "head") for array in found.values()]
    joined = xr.concat(plain, dim="behaviour", coords="minimal", compat="override")
    return joined.assign_coords(behaviour=list(found))


def bar(dependency: xr.Dataset) -> xr.DataArray:
    """What a head must beat on each relation, `[direction, relation]`: the best of all baselines,
    or in an older atlas the best offset."""
    return dependency["bar" if "bar" in dependency else "baseline_possible"]


def sure_margins(dependency: xr.Dataset) -> xr.DataArray:
    """By how much each head beats the best baseline on each relation, `[direction, layer, head,
    relation]`: 0 where it does not, or not significantly, and for `all`, which is no relation."""
    better = dependency["accuracy"] - bar(dependency)
    certain = (dependency["p_adjusted"] < LEVEL) & (better > 0) & (dependency["relation"] != "all")
    return better.where(certain, 0.0).transpose("direction", "layer", "head", "relation")


def head_labels(datasets: Mapping[str, xr.Dataset], layers: int, heads: int) -> np.ndarray:
    """One word for what each head does, `[layer, head]`.

    What it was found to do on repeated sequences (`induction`, `duplicate`: 0.3 of its attention or
    more, after correction) or needles (`retrieval`), else the relation it follows best (by a margin
    of 0.1 over every baseline or more, significantly), else where its attention goes: the position
    or kind of token that gets more than half of it, else `delimiters` or `neighbours` where `[CLS]`
    (or the first token), `[SEP]` and punctuation, or the previous, same and next token, do so
    together (the larger of the two), else `broad`, else `copying` (from its weights), else `other`.

    What a uniform head would give is taken off first (`(share − uniform) / (1 − uniform)`), for in
    a short text it gives every token much. `broad` has from 0.8 to 0.98 of a uniform head's
    entropy, in a model whose heads differ in it: with random weights they are all alike."""
    labels = np.full((layers, heads), OTHER, dtype=object)
    copying = _sure(datasets, "circuits", "ov_copying")
    if copying is not None:
        labels[copying >= LEAST_COPYING] = COPYING
    surface = datasets.get("surface")
    if surface is not None:
        _name_looks(labels, surface)
    previous = _sure(datasets, "induction", "previous")
    if previous is not None:
        vague = np.isin(labels.astype(str), (OTHER, COPYING, BROADLY, NEIGHBOURS))
        labels[vague & (previous >= LEAST_REPEAT)] = PREVIOUS
    if "dependency" in datasets:
        _name_relations(labels, datasets["dependency"])
    retrieval = _sure(datasets, "retrieval", "score")
    if retrieval is not None:
        labels[retrieval >= LEAST_RETRIEVAL] = RETRIEVAL
    for measure, word in REPEATS.items():
        repeated = _sure(datasets, "induction", measure)
        if repeated is not None and word != PREVIOUS:
            labels[repeated >= LEAST_REPEAT] = word
    return labels.astype(str)


def rest_labels(surface: xr.Dataset) -> np.ndarray:
    """Where the attention of each head goes that it does not give the first token, in a word,
    `[layer, head]`; `other` in an atlas that does not know."""
    measures = ("position", "mass", "entropy", "max_weight")
    labels = np.full(surface["max_weight"].shape, OTHER, dtype=object)
    if all(f"{name}_rest" in surface for name in measures):
        rest = surface.assign({name: surface[f"{name}_rest"] for name in measures})
        rest = rest.assign(entropy_uniform=surface["entropy_rest_uniform"])
        _name_looks(labels, rest.drop_vars(["position_uniform", "mass_uniform"], errors="ignore"))
    return labels.astype(str)


def _name_looks(labels: np.ndarray, surface: xr.Dataset) -> None:
    """Write where heads look over their labels."""
    found = {
        name: np.nan_to_num(array.transpose("layer", "head").values)
        for name, array in shares(surface).items()
    }
    chance = dict.fromkeys(found, np.zeros((len(labels), 1)))
    if "mass_uniform" in surface:
        chance = {
            name: np.nan_to_num(array.values)[:, None]
            for name, array in shares(surface, "_uniform").items()
        }

    def above(*names: str) -> np.ndarray:
        even = np.clip(sum(chance[name] for name in names), 0, 0.999)
        return np.asarray((sum(found[name] for name in names) - even) / (1 - even))

    if "entropy" in surface and "entropy_uniform" in surface:
        spread = (surface["entropy"] / surface["entropy_uniform"]).transpose("layer", "head").values
        if np.nanstd(spread) >= ALIKE:
            labels[(spread >= BROAD) & (spread < UNIFORM)] = BROADLY
    near_names = [name for name in found if name in POSITIONS.values()]
    near, resting = above(*near_names), above(*(name for name in found if name not in near_names))
    labels[(near > LEAST_SHARE) & (near >= resting)] = NEIGHBOURS
    labels[(resting > LEAST_SHARE) & (resting > near)] = DELIMITERS
    each = np.stack([above(name) for name in found])
    sharp = each.max(0) > LEAST_SHARE
    labels[sharp] = np.array(list(found), dtype=object)[each.argmax(0)][sharp]


def _name_relations(labels: np.ndarray, dependency: xr.Dataset) -> None:
    """Write over each label the relation that the head follows best, where it follows one."""
    margin = sure_margins(dependency).max("direction").values
    follows = margin.max(-1) >= LEAST_MARGIN
    labels[follows] = np.array(labels_of(dependency, "relation"), dtype=object)[margin.argmax(-1)][
        follows
    ]


def _sure(datasets: Mapping[str, xr.Dataset], group: str, measure: str) -> np.ndarray | None:
    """A measure of a group, `[layer, head]`, 0 where it does not pass its test; None where there is
    none."""
    if group not in datasets or measure not in datasets[group]:
        return None
    values = datasets[group][measure].transpose("layer", "head").values
    p = variable_of(datasets[group], f"{measure}_p_adjusted")
    certain = np.isfinite(values) if p is None else p.transpose("layer", "head").values < LEVEL
    return np.where(certain, np.nan_to_num(values), 0.0)
