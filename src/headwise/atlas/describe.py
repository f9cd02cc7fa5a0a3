"""What each head does, in one line: a word for it, and behind the word what each analysis found,
with its number and what it is measured against."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import xarray as xr

from headwise.atlas import behaviours
from headwise.core.labels import head_name, labels_of

SHOWN_SHARE = 0.1  # smaller shares of attention are not worth a word
MOST_RELATIONS = 3
ANTECEDENTS = "antecedents"
FIRST = "first"
Cells = dict[tuple[int, ...], list[str]]  # what is said of a head, by (layer, head)
TOLD = ("does", "attention", "finds", "roles", "maps")  # what a card says first
COLUMNS = (
    "layer",
    "head",
    "name",
    "does",
    "kind",
    "best",
    "looks",
    "attention",
    "finds",
    "roles",
    "maps",
)
# What the words for heads have in common, and what each kind means to a reader.
KINDS = {
    "syntax": "on this dependency relation it beats every baseline (a fixed offset, uniform attention, the first word) "
    "by 10 points or more, after correction (of several relations, on the one with the largest margin); in bold, the "
    "best head for it",
    "coreference": "it finds antecedents 10 points or more above every rule it is measured against, string matching by "
    "sieves included, after correction",
    "repeats": "on random sequences written twice it gives 0.3 of its attention or more, after correction, to the "
    "token after the earlier occurrence (induct) or to the earlier occurrence (dupl)",
    "retrieval": "a tenth or more of a needle's tokens are copied from where it looks",
    "copying": "by its weights it writes the token that it reads",
    "position": "the previous, the same or the next token (near: the three together) gets more than half of its "
    "attention",
    "sink": "the first token, whatever it is, gets more than half of its attention: it rests; below, where the rest of "
    "its attention goes",
    "cls": "the opening token gets more than half of its attention",
    "sep": "the closing token gets more than half of its attention",
    "delimiters": "full stops and commas (stops), or these with the first and the closing token (delim), get more than "
    "half of its attention",
    "broad": "its attention has four fifths or more of the entropy of a uniform head, and is not uniform",
    "other": "none of these",
}
# Every word but the relations, which are words of the kind `syntax`: its kind, and how a grid
# writes it.
WORDS = {
    ANTECEDENTS: ("coreference", "antec."),
    "previous token": ("position", "prev"),
    "next token": ("position", "next"),
    "same token": ("position", "self"),
    behaviours.NEIGHBOURS: ("position", "near"),
    behaviours.SINK: ("sink", "sink"),
    behaviours.INDUCTION: ("repeats", "induct"),
    behaviours.DUPLICATE: ("repeats", "dupl"),
    behaviours.RETRIEVAL: ("retrieval", "retr"),
    behaviours.COPYING: ("copying", "copy"),
    "to cls": ("cls", "cls"),
    "to sep": ("sep", "sep"),
    "to punct": ("delimiters", "stops"),
    behaviours.DELIMITERS: ("delimiters", "delim"),
    behaviours.BROADLY: ("broad", "broad"),
    behaviours.OTHER: ("other", "–"),
}
SHORT = {word: short for word, (_, short) in WORDS.items()}
# Words for what a head was found to do, which no relation replaces.
FOUND = (behaviours.INDUCTION, behaviours.DUPLICATE, behaviours.RETRIEVAL)


def describe_heads(datasets: Mapping[str, xr.Dataset], layers: int, heads: int) -> pd.DataFrame:
    """One row for each head, from what there is of `surface`, `dependency`, `coreference`,
    `frames`, `roles`, `patterns`, `induction`, `retrieval` and `circuits`.

    Returns
    -------
    DataFrame
        `layer`, `head`, `name` (`L7H9`); `does`: one word. What the head finds comes first, for a
        head with nothing to find rests on delimiters or on the first token: what it does on
        repeated sequences, else the relation it follows best, else `antecedents`; where it finds
        nothing, where its attention goes (see `headwise.atlas.behaviours.head_labels`); `kind` of
        that word, one of `KINDS`; `best`: whether it is the best head of that relation; `looks`:
        where its attention goes, in one word (of a `sink`, where the rest of it goes); `attention`:
        the token types and neighbouring positions that get at least a tenth of its attention, each
        with its mean share (a token counts for its type and for its position, so shares of both
        sorts overlap), and of a head that rests on the first token the same without that; `finds`:
        up to three dependency relations on which the head beats every baseline by 10 points or
        more, antecedents where it beats every baseline by as much, frame elements where it stands
        out from the same words unlinked and from random heads, all after correction, with score and
        baseline; `roles`: the roles it has after correction; `maps`: the kind that more than half
        of its maps are of, by the lower end of the interval.
    """
    known = {
        name: datasets[name]
        for name, (_, needed) in FINDERS.items()
        if name in datasets and all(variable in datasets[name] for variable in needed)
    }
    labels = behaviours.head_labels(known, layers, heads)
    looks = behaviours.head_labels(
        {"surface": known["surface"]} if "surface" in known else {}, layers, heads
    )
    if "surface" in known:
        rests = (looks == behaviours.SINK) & (labels == behaviours.SINK)
        looks = np.where(rests, behaviours.rest_labels(known["surface"]), looks)
    cells = {name: FINDERS[name][0](dataset) for name, dataset in known.items()}
    # The same token by two names: of a decoder it is the first, of an encoder its opening token.
    decoder = "surface" in known and behaviours.is_decoder(known["surface"])
    twice, kept = (("cls", "delimiter"), "first") if decoder else (("first", "sink"), "cls")
    cells["roles"] = {
        place: [role for role in own if role not in twice or kept not in own]
        for place, own in cells.get("roles", {}).items()
    }
    best_heads = _best_heads(known["dependency"]) if "dependency" in known else {}
    rows = []
    for place in np.ndindex(layers, heads):
        found = {name: cells.get(name, {}).get(place, []) for name in FINDERS}
        does = str(labels[place])
        if (
            found["coreference"] and does in WORDS and does not in FOUND
        ):  # where it looks gives way to what it finds
            does = ANTECEDENTS
        best = best_heads.get(does) == place
        order = ("induction", "retrieval", "dependency", "coreference", "frames", "circuits")
        finds = [text for name in order for text in found[name]]
        texts = (found["surface"], finds, found["roles"], found["patterns"])
        kind, _ = WORDS.get(does, ("syntax", does))
        told = (does, kind, best, str(looks[place]), *map(", ".join, texts))
        rows.append((*place, head_name(*place), *told))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _attention(surface: xr.Dataset) -> Cells:
    planes = _planes(surface)
    rest = _planes(surface, "_rest") if "mass_rest" in surface else {}
    cells: Cells = {}
    for place in np.ndindex(*surface["max_weight"].shape):
        cells[place] = _shown(planes, place)
        if rest and FIRST in planes and planes[FIRST][place] > behaviours.LEAST_SHARE:
            left = ", ".join(_shown(rest, place)) or "spread"
            cells[place].append(f"without the first token: {left}")
    return cells


def _planes(surface: xr.Dataset, suffix: str = "") -> dict[str, np.ndarray]:
    """Shares of attention, `[layer, head]`, by the name a reader knows."""
    known = {
        words: FIRST if words == behaviours.SINK else name
        for name, words in behaviours.TYPES.items()
    }
    found = behaviours.shares(surface, suffix)
    return {
        known.get(name, name): array.transpose("layer", "head").values
        for name, array in found.items()
    }


def _shown(planes: Mapping[str, np.ndarray], place: tuple[int, ...]) -> list[str]:
    """The shares worth a word, the largest first; one that is not defined has no place."""
    shown = [
        (float(plane[place]), name) for name, plane in planes.items() if plane[place] >= SHOWN_SHARE
    ]
    return [f"{name} {share:.2f}" for share, name in sorted(shown, reverse=True)]


def _relations(dependency: xr.Dataset) -> Cells:
    """Up to three relations that each head follows, the largest margin first."""
    margins = behaviours.sure_margins(dependency)
    accuracy, margin = dependency["accuracy"].transpose(*margins.dims).values, margins.values
    baseline = behaviours.bar(dependency).transpose("direction", "relation").values
    called = np.full(baseline.shape, "offset", dtype=object)
    if "bar_name" in dependency:
        called = dependency["bar_name"].transpose("direction", "relation").values
    names = labels_of(dependency, "relation")
    cells: Cells = {}
    for layer, head in np.ndindex(*margin.shape[1:3]):
        own = margin[:, layer, head]
        for relation in np.argsort(-own.max(0), kind="stable")[:MOST_RELATIONS]:
            if own[:, relation].max() >= behaviours.LEAST_MARGIN:
                direction = int(own[:, relation].argmax())
                score, offset = (
                    accuracy[direction, layer, head, relation],
                    baseline[direction, relation],
                )
                rule = called[direction, relation]
                text = f"{names[relation]} {100 * score:.0f} % ({rule} {100 * offset:.0f} %)"
                cells.setdefault((layer, head), []).append(text)
    return cells


def _best_heads(dependency: xr.Dataset) -> dict[str, tuple[int, int]]:
    """The head that follows each relation best, where one does so significantly."""
    places = zip(
        dependency["best_layer"].values.tolist(),
        dependency["best_head"].values.tolist(),
        strict=True,
    )
    certain = (dependency["best_p_adjusted"] < behaviours.LEVEL).values
    names = labels_of(dependency, "relation")
    return {name: place for name, place, sure in zip(names, places, certain, strict=True) if sure}


def _antecedents(coreference: xr.Dataset) -> Cells:
    of_all = coreference.sel(mention_type="all")
    (accuracy,) = _by_head(of_all, "accuracy")
    rule = float(of_all["baseline_accuracy"].max())
    certain = (
        (of_all["p_adjusted"] < behaviours.LEVEL).all("baseline").transpose("layer", "head").values
    )
    found = certain & (np.nan_to_num(accuracy) - rule >= behaviours.LEAST_MARGIN)
    return _said(
        found, lambda at: f"{ANTECEDENTS} {100 * accuracy[at]:.0f} % (best rule {100 * rule:.0f} %)"
    )


def _repeats(induction: xr.Dataset) -> Cells:
    cells: Cells = {}
    for measure, word in reversed(behaviours.REPEATS.items()):
        if measure in induction and f"{measure}_p_adjusted" in induction:
            score, p = _by_head(induction, measure, f"{measure}_p_adjusted")
            told = _scored(
                f"{word} on repeats",
                score,
                (p < behaviours.LEVEL) & (score >= behaviours.LEAST_REPEAT),
            )
            for place, texts in told.items():
                cells.setdefault(place, []).extend(texts)
    return cells


def _retrieval(retrieval: xr.Dataset) -> Cells:
    (score,) = _by_head(retrieval, "score")
    return _scored(
        "retrieval of needles", score, np.nan_to_num(score) >= behaviours.LEAST_RETRIEVAL
    )


def _copying(circuits: xr.Dataset) -> Cells:
    score, p = _by_head(circuits, "ov_copying", "ov_copying_p_adjusted")
    return _scored(
        "copying by weights", score, (p < behaviours.LEVEL) & (score >= behaviours.LEAST_COPYING)
    )


def _frames(frames: xr.Dataset) -> Cells:
    score, expected, found = _by_head(frames, "score", "expected", "stands_out")
    return _said(
        found.astype(bool),
        lambda at: f"frame elements {score[at]:.2f} (expected {expected[at]:.2f})",
    )


def _roles(roles: xr.Dataset) -> Cells:
    names = labels_of(roles, "role")
    has = _by_head(roles, "has_role_adjusted")[0].astype(bool)
    cells = _said(has, lambda at: names[at[2]])
    if "has_role_rest" in roles:  # of heads that rest on the first token, what they are without it
        rest = _by_head(roles, "has_role_rest")[0].astype(bool) & ~has
        for place, found in _said(rest, lambda at: names[at[2]]).items():
            cells.setdefault(place, []).append(f"without the first token: {', '.join(found)}")
    return cells


def _maps(patterns: xr.Dataset) -> Cells:
    names = labels_of(patterns, "pattern")
    share, low = _by_head(patterns, "proportion", "proportion_low")
    return _said(
        np.nan_to_num(low) > behaviours.LEAST_SHARE,
        lambda at: f"{names[at[2]]} {100 * share[at]:.0f} %",
    )


def _by_head(dataset: xr.Dataset, *names: str) -> list[np.ndarray]:
    """Variables as `[layer, head, ...]`."""
    return [dataset[name].transpose("layer", "head", ...).values for name in names]


def _scored(words: str, score: np.ndarray, where: np.ndarray) -> Cells:
    return _said(where, lambda at: f"{words} {score[at]:.2f}")


def _said(where: np.ndarray, words: Callable[[tuple[int, ...]], str]) -> Cells:
    """The words for every place `[layer, head, ...]` where something was found, by head."""
    cells: Cells = {}
    for at in map(tuple, np.argwhere(where).tolist()):
        cells.setdefault((at[0], at[1]), []).append(words(at))
    return cells


# What is said of each group, and what must be in it; one without that (of another version, a part)
# is passed over.
BEST = ("best_layer", "best_head", "best_margin", "best_p_adjusted")
FINDERS: dict[str, tuple[Callable[[xr.Dataset], Cells], tuple[str, ...]]] = {
    "surface": (_attention, ("position", "mass", "max_weight")),
    "dependency": (_relations, ("accuracy", "p_adjusted", "baseline_possible", *BEST)),
    "coreference": (_antecedents, ("accuracy", "p_adjusted", "baseline_accuracy")),
    "frames": (_frames, ("score", "expected", "stands_out")),
    "roles": (_roles, ("has_role_adjusted",)),
    "patterns": (_maps, ("proportion", "proportion_low")),
    "induction": (_repeats, ("prefix_matching", "prefix_matching_p_adjusted")),
    "retrieval": (_retrieval, ("score",)),
    "circuits": (_copying, ("ov_copying", "ov_copying_p_adjusted")),
}
