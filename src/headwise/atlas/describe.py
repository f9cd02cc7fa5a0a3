"""What each head does, in one line: a word for it, and behind the word what each analysis found, with its number and what it is measured against."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr

from headwise.core.behaviours import (
    BROADLY,
    DELIMITERS,
    LEAST_MARGIN,
    LEAST_SHARE,
    LEVEL,
    NEIGHBOURS,
    OTHER,
    POSITIONS,
    TYPES,
    behaviour_scores,
    head_labels,
)
from headwise.core.labels import head_name, labels_of

SHOWN_SHARE = 0.1  # smaller shares of attention are not worth a word
MOST_RELATIONS = 3
ANTECEDENTS = "antecedents"
COLUMNS = ("layer", "head", "name", "does", "kind", "best", "looks", "attention", "finds", "roles", "maps")
# What is read of each group; a group without all of it (an atlas of another version, a part of one) is passed over.
NEEDS = {
    "surface": ("position", "mass", "max_weight"),
    "dependency": (
        "accuracy",
        "p_adjusted",
        "baseline_possible",
        "best_layer",
        "best_head",
        "best_margin",
        "best_p_adjusted",
    ),
    "coreference": ("accuracy", "p_adjusted", "baseline_accuracy"),
    "frames": ("score", "expected", "p_adjusted"),
    "roles": ("has_role_adjusted",),
    "patterns": ("proportion",),
}
# What the words for heads have in common, and what each kind means to a reader.
KINDS = {
    "syntax": "on this dependency relation it beats the best fixed offset by 10 points or more, after correction; in bold, the best head for it",
    "coreference": "it finds antecedents 10 points or more above every rule it is measured against, string matching by sieves included, after correction",
    "position": "the previous, the same or the next token (near: the three together) gets more than half of its attention",
    "cls": "the opening token gets more than half of its attention",
    "sep": "the closing token gets more than half of its attention",
    "delimiters": "full stops and commas (stops), or these with the opening and closing token (delim), get more than half of its attention",
    "broad": "no token gets more than a tenth of its attention on average",
    "other": "none of these",
}
SHORT = {
    ANTECEDENTS: "antec.",
    "previous token": "prev",
    "next token": "next",
    "same token": "self",
    NEIGHBOURS: "near",
    "to cls": "cls",
    "to sep": "sep",
    "to punct": "stops",
    DELIMITERS: "delim",
    BROADLY: "broad",
    OTHER: "–",
}
_KIND_OF = {
    ANTECEDENTS: "coreference",
    **dict.fromkeys((*POSITIONS.values(), NEIGHBOURS), "position"),
    **dict.fromkeys((DELIMITERS, "to punct"), "delimiters"),
    "to cls": "cls",
    "to sep": "sep",
    BROADLY: "broad",
    OTHER: "other",
}


def describe_heads(datasets: Mapping[str, xr.Dataset], layers: int, heads: int) -> pd.DataFrame:
    """One row for each head, from what there is of `surface`, `dependency`, `coreference`, `frames`, `roles` and `patterns`.

    Returns
    -------
    DataFrame
        `layer`, `head`, `name` (`L7H9`);
        `does`: one word. What the head finds comes first, for a head with nothing to find rests on delimiters: the relation it is the best head of, else the one
        it follows best, else `antecedents`; where it finds nothing, where its attention goes (see `headwise.core.behaviours.head_labels`);
        `kind` of that word, one of `KINDS`; `best`: whether it is the best head of that relation; `looks`: where its attention goes, in one word;
        `attention`: the token types and neighbouring positions that get at least a tenth of its attention, each with its mean share (a token counts for its
        type and for its position, so shares of both sorts overlap);
        `finds`: up to three dependency relations on which the head beats the best fixed offset by 10 points or more, antecedents where it beats every
        baseline by as much, frame elements where it beats words at the same distance, all after correction, with
        score and baseline;
        `roles`: the roles it has after correction; `maps`: the kind that more than half of its maps are of.
    """
    datasets = {
        name: datasets[name]
        for name, needed in NEEDS.items()
        if name in datasets and all(n in datasets[name] for n in needed)
    }
    labels = head_labels(datasets, layers, heads)
    looks = head_labels({name: data for name, data in datasets.items() if name == "surface"}, layers, heads)
    relations = _relations(datasets.get("dependency"), layers, heads)
    antecedents = _antecedents(datasets.get("coreference"), layers, heads)
    cells = {
        "attention": _attention(datasets.get("surface"), layers, heads),
        "frames": _frames(datasets.get("frames"), layers, heads),
        "roles": _roles(datasets.get("roles"), layers, heads),
        "maps": _maps(datasets.get("patterns"), layers, heads),
    }
    rows = []
    for layer, head in np.ndindex(layers, heads):
        label = str(labels[layer, head])
        best = label not in _KIND_OF  # then it is a relation
        followed, referred = relations[layer][head], antecedents[layer][head]
        does = label if best else followed[0][0] if followed else ANTECEDENTS if referred else label
        finds = [text for _, text in followed] + referred + cells["frames"][layer][head]
        texts = [
            ", ".join(part)
            for part in (
                cells["attention"][layer][head],
                finds,
                cells["roles"][layer][head],
                cells["maps"][layer][head],
            )
        ]
        rows.append(
            (
                layer,
                head,
                head_name(layer, head),
                does,
                _KIND_OF.get(does, "syntax"),
                best,
                str(looks[layer, head]),
                *texts,
            )
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _empty(layers: int, heads: int) -> list[list[list[str]]]:
    return [[[] for _ in range(heads)] for _ in range(layers)]


def _attention(surface: xr.Dataset | None, layers: int, heads: int) -> list[list[list[str]]]:
    out = _empty(layers, heads)
    if surface is None:
        return out
    scores = behaviour_scores({"surface": surface})
    wanted = {f"to {name}": name for name in TYPES} | {name: name for name in POSITIONS.values()}
    names = [str(name) for name in scores["behaviour"].values]
    for layer, head in np.ndindex(layers, heads):
        shares = [
            (float(scores.values[place, layer, head]), wanted[name])
            for place, name in enumerate(names)
            if name in wanted
        ]
        shown = [
            one for one in shares if one[0] >= SHOWN_SHARE
        ]  # before they are sorted: a share that is not defined has no place
        out[layer][head] = [f"{name} {share:.2f}" for share, name in sorted(shown, reverse=True)]
    return out


def _relations(dependency: xr.Dataset | None, layers: int, heads: int) -> list[list[list[tuple[str, str]]]]:
    """Up to three relations that each head follows, the largest margin first: the name, and the finding in words."""
    out: list[list[list[tuple[str, str]]]] = [[[] for _ in range(heads)] for _ in range(layers)]
    if dependency is None:
        return out
    order = ("direction", "layer", "head", "relation")
    accuracy, p = (dependency[name].transpose(*order).values for name in ("accuracy", "p_adjusted"))
    baseline = dependency["baseline_possible"].transpose("direction", "relation").values
    names = labels_of(dependency, "relation")
    margin = np.nan_to_num(np.where(p < LEVEL, accuracy - baseline[:, None, None], 0.0))
    margin[..., [name == "all" for name in names]] = 0
    for layer, head in np.ndindex(layers, heads):
        best = margin[:, layer, head].max(0)
        for place in np.argsort(-best, kind="stable")[:MOST_RELATIONS]:
            if best[place] >= LEAST_MARGIN:
                direction = int(margin[:, layer, head, place].argmax())
                own, offset = accuracy[direction, layer, head, place], baseline[direction, place]
                out[layer][head].append(
                    (names[place], f"{names[place]} {100 * own:.0f} % (offset {100 * offset:.0f} %)")
                )
    return out


def _antecedents(coreference: xr.Dataset | None, layers: int, heads: int) -> list[list[list[str]]]:
    out = _empty(layers, heads)
    if coreference is not None:
        of_all = coreference.sel(mention_type="all")
        accuracy = of_all["accuracy"].transpose("layer", "head").values
        rule = float(of_all["baseline_accuracy"].max())
        certain = (of_all["p_adjusted"] < LEVEL).all("baseline").transpose("layer", "head").values
        for layer, head in np.argwhere(certain & (np.nan_to_num(accuracy) - rule >= LEAST_MARGIN)):
            out[layer][head].append(f"{ANTECEDENTS} {100 * accuracy[layer, head]:.0f} % (best rule {100 * rule:.0f} %)")
    return out


def _frames(frames: xr.Dataset | None, layers: int, heads: int) -> list[list[list[str]]]:
    out = _empty(layers, heads)
    if frames is not None:
        score, expected, p = (
            frames[name].transpose("layer", "head").values for name in ("score", "expected", "p_adjusted")
        )
        for layer, head in np.argwhere(p < LEVEL):
            out[layer][head].append(f"frame elements {score[layer, head]:.2f} (expected {expected[layer, head]:.2f})")
    return out


def _roles(roles: xr.Dataset | None, layers: int, heads: int) -> list[list[list[str]]]:
    out = _empty(layers, heads)
    if roles is not None:
        has, names = (
            roles["has_role_adjusted"].transpose("layer", "head", "role").values.astype(bool),
            labels_of(roles, "role"),
        )
        for layer, head, role in np.argwhere(has):
            out[layer][head].append(names[role])
    return out


def _maps(patterns: xr.Dataset | None, layers: int, heads: int) -> list[list[list[str]]]:
    out = _empty(layers, heads)
    if patterns is not None:
        share, names = (
            patterns["proportion"].transpose("layer", "head", "pattern").values,
            labels_of(patterns, "pattern"),
        )
        for layer, head, pattern in np.argwhere(np.nan_to_num(share) > LEAST_SHARE):
            out[layer][head].append(f"{names[pattern]} {100 * share[layer, head, pattern]:.0f} %")
    return out
