"""What a head does, as numbers and as a label.

Both are read from the groups of a result: scores from `surface`, `dependency` and `roles`, labels
from `surface` and `dependency`, and for decoders from `induction`, `retrieval` and `circuits`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from headwise.core.labels import SIGNIFICANCE_LEVEL, labels_of, variable_of

POSITIONS = {-1: "previous token", 0: "same token", 1: "next token"}
PREVIOUS = POSITIONS[-1]
SINK = "sink"
# The label by token type. The first token is a sink, unless it is an encoder's opening token.
TYPES = {"first": SINK, "cls": "to cls", "sep": "to sep", "punct": "to punct"}
NEIGHBOURS = "neighbours"
DELIMITERS = "delimiters"
BROAD_LABEL = "broad"
OTHER = "other"
INDUCTION = "induction"
DUPLICATE = "duplicate"
RETRIEVAL = "retrieval"
COPYING = "copying"
# The labels by measure on repeated sequences, from weak to strong.
REPEATS = {"previous": PREVIOUS, "duplicate": DUPLICATE, "prefix_matching": INDUCTION}

# Thresholds of the labels.
MIN_SHARE = 0.5  # of a head's attention on one target, after subtracting chance
MIN_MARGIN = 0.1  # of accuracy on a relation over the best baseline
MIN_REPEAT = 0.3  # of a head's attention on a repeated sequence
MIN_RETRIEVAL = 0.1  # of a needle's tokens (Wu et al. 2024)
MIN_COPYING = 0.5
# `broad`: entropy as a share of a uniform head's, whatever the length of the text. A head above the
# upper bound does not differ from a uniform one, which does nothing.
MIN_BROAD_ENTROPY = 0.8
MAX_BROAD_ENTROPY = 0.98
# Random weights give all heads the same share of that entropy: where the standard deviation over
# heads is smaller than this, no head is called broad.
MIN_ENTROPY_SPREAD = 0.05
# The cosine of the keys of two special tokens above which they count as the same.
SAME_KEYS = 0.95


def is_decoder(surface: xr.Dataset) -> bool:
    """Whether no head can look ahead."""
    return 1 in surface["offset"] and bool(surface["position"].sel(offset=1).isnull().all())


def special_token_note(surface: xr.Dataset) -> str:
    """Return in which layers no head can tell the opening from the closing token; empty if none.

    Parameters
    ----------
    surface : Dataset
        The group `surface`.
    """
    if "special_cosine" not in surface:
        return ""
    cosine = surface["special_cosine"]
    same = cosine.where(cosine > SAME_KEYS, drop=True)
    if not same.size:
        return ""
    layers = ", ".join(str(int(layer)) for layer in same["layer"].values)
    lowest = float(same.min())
    highest = float(same.max())
    return (
        f"In layers {layers} (counted from 0) the opening and the closing token have the same keys "
        f"(cosine {lowest:.3f} to {highest:.3f}): attention to cls and attention to sep cannot be "
        "told apart there."
    )


def attention_shares(surface: xr.Dataset, suffix: str = "") -> dict[str, xr.DataArray]:
    """Return the mean attention to each position and token type that labels are made of.

    An encoder's opening token is `to cls`, any other first token a `sink`: never both, because they
    are the same token.

    Parameters
    ----------
    surface : Dataset
        The group `surface`.
    suffix : str, default ""
        `_rest` for the attention excluding the first token, `_uniform` for a uniform head.

    Returns
    -------
    dict of DataArray
        `[layer, head]`, by label.
    """
    shares = {}
    for offset, label in POSITIONS.items():
        if offset in surface["offset"]:
            shares[label] = surface[f"position{suffix}"].sel(offset=offset, drop=True)
    for token_type, label in _label_by_token_type(surface).items():
        shares[label] = surface[f"mass{suffix}"].sel(token_type=token_type, drop=True)
    return shares


def _label_by_token_type(surface: xr.Dataset) -> dict[str, str]:
    """Return the labels of the token types that this result tells apart."""
    label_by_type = {}
    for token_type, label in TYPES.items():
        if token_type in surface["token_type"]:
            label_by_type[token_type] = label
    if "first" in label_by_type:
        has_cls = "cls" in label_by_type and bool(
            surface["mass"].sel(token_type="cls").notnull().any()
        )
        same_token = "first" if has_cls and not is_decoder(surface) else "cls"
        label_by_type.pop(same_token, None)
    elif is_decoder(surface):
        # An atlas from before the first token was a token type: a decoder's opening token is it.
        label_by_type["cls"] = SINK
    return label_by_type


def behaviour_scores(datasets: Mapping[str, xr.Dataset]) -> xr.DataArray:
    """Return how much of each behaviour a head shows, `[behaviour, layer, head]`.

    From `surface`: mean attention to the previous, same and next token, to `[CLS]` (or to the first
    token, `sink`), `[SEP]` and punctuation, and `broad`, one minus the mean largest weight. From
    `dependency`: for each relation, by how much the head beats the best baseline in its better
    direction, where it does so significantly (else 0). From `roles`: 1 where it has the role. A
    group that is missing is left out.
    """
    scores: dict[str, xr.DataArray] = {}
    if "surface" in datasets:
        surface = datasets["surface"]
        scores |= attention_shares(surface)
        scores[BROAD_LABEL] = 1 - surface["max_weight"]
    if "dependency" in datasets:
        margins = significant_margins(datasets["dependency"]).max("direction")
        for relation in labels_of(datasets["dependency"], "relation"):
            margin = margins.sel(relation=relation, drop=True)
            if relation != "all" and bool((margin > 0).any()):
                scores[f"relation {relation}"] = margin
    if "roles" in datasets:
        has_role = datasets["roles"]["has_role"]
        for role in labels_of(datasets["roles"], "role"):
            scores[f"role {role}"] = has_role.sel(role=role, drop=True).astype(float)
    if not scores:
        return xr.DataArray(
            np.zeros((0, 0, 0)),
            dims=("behaviour", "layer", "head"),
            coords={"behaviour": np.array([], dtype=str)},
        )
    arrays = [score.reset_coords(drop=True).transpose("layer", "head") for score in scores.values()]
    joined = xr.concat(arrays, dim="behaviour", coords="minimal", compat="override")
    return joined.assign_coords(behaviour=list(scores))


def best_baseline(dependency: xr.Dataset) -> xr.DataArray:
    """Return the accuracy that a head must beat on each relation, `[direction, relation]`.

    It is the best of all baselines, or in an older atlas the best offset."""
    if "bar" in dependency:
        return dependency["bar"]
    return dependency["baseline_possible"]


def significant_margins(dependency: xr.Dataset) -> xr.DataArray:
    """Return by how much each head beats the best baseline on each relation.

    `[direction, layer, head, relation]`: 0 where it does not beat it, or not significantly, and for
    `all`, which is not a relation."""
    margins = dependency["accuracy"] - best_baseline(dependency)
    significant = dependency["p_adjusted"] < SIGNIFICANCE_LEVEL
    counts = significant & (margins > 0) & (dependency["relation"] != "all")
    return margins.where(counts, 0.0).transpose("direction", "layer", "head", "relation")


def head_labels(datasets: Mapping[str, xr.Dataset], layers: int, heads: int) -> np.ndarray:
    """Return one label for what each head does, `[layer, head]`.

    The rules are applied from weak to strong, and later rules overwrite earlier ones:

    1. `other`;
    2. `copying`: the copying score of its weights is at least 0.5 (corrected p < 0.05);
    3. `broad`: its attention has from 0.8 to 0.98 of the entropy of uniform attention, in a model
       whose heads differ in entropy;
    4. `neighbours` or `delimiters`: the previous, same and next token together, or `[CLS]` (or the
       first token), `[SEP]` and punctuation together, get more than half of its attention; where
       both do, the larger of the two;
    5. a single position or token type that gets more than half of its attention; where several do,
       the one with the largest share;
    6. `previous token`, also where the previous token gets at least 0.3 of its attention on
       repeated sequences (corrected p < 0.05); this rule replaces only `other`, `copying`, `broad`
       and `neighbours`;
    7. the relation it follows with the largest margin over every baseline, at least 0.1 (corrected
       p < 0.05);
    8. `retrieval`: it copies at least 0.1 of a needle's tokens (corrected p < 0.05);
    9. `duplicate`, then `induction`: on repeated sequences the earlier occurrence, or the token
       after it, gets at least 0.3 of its attention (corrected p < 0.05).

    `headwise.atlas.describe` adds the label `antecedents`, which ranks between 6 and 7.

    In 4 and 5, the share that uniform attention would give is subtracted first: `(share - uniform)
    / (1 - uniform)`. In a short text, uniform attention gives every token a large share.
    """
    labels = np.full((layers, heads), OTHER, dtype=object)
    copying = _significant_values(datasets, "circuits", "ov_copying")
    if copying is not None:
        labels[copying >= MIN_COPYING] = COPYING
    if "surface" in datasets:
        _label_by_attention(labels, datasets["surface"])
    previous = _significant_values(datasets, "induction", "previous")
    if previous is not None:
        unspecific = np.isin(labels.astype(str), (OTHER, COPYING, BROAD_LABEL, NEIGHBOURS))
        labels[unspecific & (previous >= MIN_REPEAT)] = PREVIOUS
    if "dependency" in datasets:
        _label_by_relation(labels, datasets["dependency"])
    retrieval = _significant_values(datasets, "retrieval", "score")
    if retrieval is not None:
        labels[retrieval >= MIN_RETRIEVAL] = RETRIEVAL
    for measure, label in REPEATS.items():
        repeat_score = _significant_values(datasets, "induction", measure)
        # `previous token` is a weaker label, which was given above.
        if repeat_score is not None and label != PREVIOUS:
            labels[repeat_score >= MIN_REPEAT] = label
    return labels.astype(str)


def labels_without_first(surface: xr.Dataset) -> np.ndarray:
    """Return where the attention of each head goes excluding the first token, `[layer, head]`.

    `other` in an atlas that does not know."""
    measures = ("position", "mass", "entropy", "max_weight")
    labels = np.full(surface["max_weight"].shape, OTHER, dtype=object)
    if all(f"{name}_rest" in surface for name in measures):
        without_first = surface.assign({name: surface[f"{name}_rest"] for name in measures})
        without_first = without_first.assign(entropy_uniform=surface["entropy_rest_uniform"])
        # Chance is known with the first token only.
        without_first = without_first.drop_vars(
            ["position_uniform", "mass_uniform"], errors="ignore"
        )
        _label_by_attention(labels, without_first)
    return labels.astype(str)


def _label_by_attention(labels: np.ndarray, surface: xr.Dataset) -> None:
    """Replace the labels of heads whose attention goes to a known place."""
    shares = {}
    for name, share in attention_shares(surface).items():
        shares[name] = np.nan_to_num(share.transpose("layer", "head").values)
    chance = dict.fromkeys(shares, np.zeros((len(labels), 1)))
    if "mass_uniform" in surface:
        for name, share in attention_shares(surface, "_uniform").items():
            chance[name] = np.nan_to_num(share.values)[:, None]

    def above_chance(*names: str) -> np.ndarray:
        share = sum(shares[name] for name in names)
        uniform = np.clip(sum(chance[name] for name in names), 0, 0.999)
        return np.asarray((share - uniform) / (1 - uniform))

    if "entropy" in surface and "entropy_uniform" in surface:
        entropy_ratio = surface["entropy"] / surface["entropy_uniform"]
        relative_entropy = entropy_ratio.transpose("layer", "head").values
        if np.nanstd(relative_entropy) >= MIN_ENTROPY_SPREAD:
            is_broad = relative_entropy >= MIN_BROAD_ENTROPY
            is_broad &= relative_entropy < MAX_BROAD_ENTROPY
            labels[is_broad] = BROAD_LABEL

    near_names = [name for name in shares if name in POSITIONS.values()]
    delimiter_names = [name for name in shares if name not in near_names]
    near = above_chance(*near_names)
    delimiters = above_chance(*delimiter_names)
    labels[(near > MIN_SHARE) & (near >= delimiters)] = NEIGHBOURS
    labels[(delimiters > MIN_SHARE) & (delimiters > near)] = DELIMITERS

    single = np.stack([above_chance(name) for name in shares])
    has_single_target = single.max(0) > MIN_SHARE
    best_target = np.array(list(shares), dtype=object)[single.argmax(0)]
    labels[has_single_target] = best_target[has_single_target]


def _label_by_relation(labels: np.ndarray, dependency: xr.Dataset) -> None:
    """Replace the label of each head that follows a relation by the relation it follows best."""
    margins = significant_margins(dependency).max("direction").values
    follows = margins.max(-1) >= MIN_MARGIN
    relations = np.array(labels_of(dependency, "relation"), dtype=object)
    labels[follows] = relations[margins.argmax(-1)][follows]


def _significant_values(
    datasets: Mapping[str, xr.Dataset], group: str, measure: str
) -> np.ndarray | None:
    """Return a measure `[layer, head]`, 0 where it is not significant; None where it is missing."""
    if group not in datasets or measure not in datasets[group]:
        return None
    values = datasets[group][measure].transpose("layer", "head").values
    p_adjusted = variable_of(datasets[group], f"{measure}_p_adjusted")
    if p_adjusted is None:
        significant = np.isfinite(values)
    else:
        significant = p_adjusted.transpose("layer", "head").values < SIGNIFICANCE_LEVEL
    return np.where(significant, np.nan_to_num(values), 0.0)
