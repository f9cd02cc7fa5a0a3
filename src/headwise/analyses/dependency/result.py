"""From counts of word pairs to accuracies with intervals, baselines, tests against the best of
them, and best heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.accuracy import Places, accuracy_variables, argmax_heads, format_accuracy
from headwise.analyses.dependency.arcs import PairRules
from headwise.analyses.summaries import align_columns, format_p_value
from headwise.core.labels import FEW
from headwise.stats.corrections import correct, correct_families
from headwise.stats.flips import sign_flip_test
from headwise.stats.intervals import share, wilson_interval

# Ways that know no syntax: the best fixed offset; attention spread evenly; attention on the first
# token alone. Of equally good ones the bar is the first in this order.
BASELINES = ("offset", "uniform", "first")
DIRECTIONS = ("dependent_to_head", "head_to_dependent")
DIMS = ("direction", "layer", "head", "relation")


@dataclass(frozen=True, slots=True, eq=False)
class PairTotals:
    """Word pairs, for each unit (a document, or an example).

    `found[unit, direction, layer, head, relation]` and `possible[unit, direction, layer,
    relation]`: pairs found and pairs that could be; `simple[unit, direction, relation, ...]`: pairs
    that could be by their true offset (bins −reach..reach and one for all beyond), then pairs that
    each other baseline finds; `pairs[relation, bin]`: all pairs."""

    found: np.ndarray
    possible: np.ndarray
    simple: np.ndarray
    pairs: np.ndarray


def accuracy_dataset(counts: PairTotals, rules: PairRules, correction: str) -> xr.Dataset:
    """Accuracies, baselines, tests and best heads from counts.

    Parameters
    ----------
    counts : PairTotals
        For each unit.
    rules : PairRules
        By which they were counted.
    correction : str
        Over relations.
    """
    total = counts.pairs.sum(-1)
    baseline, place = _best_offset(counts.pairs)
    right = np.take_along_axis(counts.pairs, place[..., None], axis=-1)[..., 0]
    baseline_low, baseline_high = wilson_interval(right, total)
    by_offset = counts.simple.sum(0)[..., : rules.bins]
    in_all = by_offset.sum(-1)
    baseline_possible, place_possible = _best_offset(by_offset)
    # What each baseline finds, for each unit: [baseline, unit, direction, relation].
    offset_hits = np.take_along_axis(counts.simple, place_possible[None, ..., None], axis=-1)[
        ..., 0
    ]
    simple = np.stack([offset_hits, *np.moveaxis(counts.simple[..., rules.bins :], -1, 0)])
    simple_accuracy = share(simple.sum(1), in_all)
    bar_place = simple.sum(1).argmax(0)
    bar_hits = np.take_along_axis(simple, bar_place[None, None], axis=0)[0]
    bar = np.where(
        in_all > 0, np.take_along_axis(simple_accuracy, bar_place[None], axis=0)[0], np.nan
    )
    p_value, p_family = _tests(counts, bar_hits)
    offsets = np.arange(-rules.reach, rules.reach + 1)
    directed = ("direction", "relation")
    units, words = {"units": "share of pairs"}, {"long_name": "head − dependent", "units": "words"}
    tested = "finds more than the best baseline (bar): sign-flip test over units, one-tailed"
    variables: dict[str, Any] = {
        **accuracy_variables(
            DIMS, counts.found, np.broadcast_to(counts.possible[:, :, :, None], counts.found.shape)
        ),
        "count": ("relation", total.astype(np.int64), {"long_name": "word pairs"}),
        "possible": (
            directed,
            in_all.astype(np.int64),
            {"long_name": "word pairs a head could find"},
        ),
        "few": ("relation", total < FEW, {"long_name": f"fewer than {FEW} pairs"}),
        "baseline": (
            "relation",
            baseline,
            units | {"long_name": "best fixed offset over all pairs"},
        ),
        "baseline_low": ("relation", baseline_low),
        "baseline_high": ("relation", baseline_high),
        "baseline_offset": ("relation", np.where(total > 0, offsets[place], 0), words),
        "baseline_possible": (
            directed,
            baseline_possible,
            units | {"long_name": "best fixed offset over possible pairs"},
        ),
        "baseline_possible_offset": (
            directed,
            np.where(in_all > 0, offsets[place_possible], 0),
            words,
        ),
        "baseline_accuracy": (("baseline_kind", *directed), simple_accuracy, units),
        "bar": (directed, bar, units | {"long_name": "the best of the baselines"}),
        "bar_name": (directed, np.where(in_all > 0, np.array(BASELINES)[bar_place], "")),
        "p_value": (DIMS, p_value, {"long_name": tested}),
        "p_family": (
            DIMS,
            p_family,
            {"long_name": "p_value corrected over heads and directions (max-T)"},
        ),
        "p_adjusted": (
            DIMS,
            _over_relations(p_family, total, correction),
            {"long_name": f"p_family corrected over relations ({correction})"},
        ),
    }
    coords = {
        "direction": list(DIRECTIONS),
        "relation": list(rules.labels),
        "baseline_kind": list(BASELINES),
    }
    dataset = xr.Dataset(variables, coords=coords)
    return dataset.assign(best_heads(dataset))


def _tests(counts: PairTotals, bar_hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p of every head against the bar, by itself and over the heads and directions of a relation;
    NaN where no pair was possible. `bar_hits[unit, direction, relation]`."""
    shape = counts.found.shape[1:]
    p_value, p_family = np.full(shape, np.nan), np.full(shape, np.nan)
    tried = np.broadcast_to(counts.possible.sum(0)[:, :, None] > 0, shape)
    for relation in range(shape[-1]):
        own = tried[..., relation]
        if not own.any():
            continue
        found = (
            counts.found[..., relation].astype(np.float32) - bar_hits[:, :, None, None, relation]
        )
        tests = sign_flip_test(found[:, own])
        p_value[..., relation][own], p_family[..., relation][own] = tests.p_value, tests.p_adjusted
    return p_value, p_family


def _over_relations(p_family: np.ndarray, total: np.ndarray, correction: str) -> np.ndarray:
    """Corrected over the relations of 30 pairs (or all, where none has so many); rarer ones are
    never called."""
    tested = (total >= FEW) | ~(total >= FEW).any()
    adjusted = correct_families(np.where(tested, p_family, np.nan), correction)
    return np.where(tested | np.isnan(p_family), adjusted, 1.0)


def _best_offset(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The share of the commonest offset and its place, over the last axis, whose last entry (all
    beyond) is none."""
    return share(counts[..., :-1].max(-1), counts.sum(-1)), counts[..., :-1].argmax(-1)


def best_heads(dataset: xr.Dataset) -> dict[str, xr.Variable]:
    """For each relation the direction, layer and head with the highest accuracy; −1, `""` and NaN
    where there is none.

    A decoder may see one pair in one direction and five hundred in the other: heads with fewer than
    30 pairs are best heads only where no head has more."""
    tries = dataset["accuracy_n"].values
    enough = tries >= np.minimum(tries.reshape(-1, tries.shape[-1]).max(0, initial=0), FEW)
    place, scored = argmax_heads(dataset["accuracy"].values, enough)
    return _described(dataset, place, scored, "best") | {
        "best_p_adjusted": xr.Variable(
            ("relation",), np.where(scored, dataset["p_adjusted"].values[place], np.nan)
        )
    }


def heads_at(
    dataset: xr.Dataset, given: Mapping[str, tuple[int, ...]], name: str, correction: str
) -> dict[str, xr.Variable]:
    """The same for heads that were found elsewhere: `given` has (direction, layer, head) for some
    relations. Their p-values are corrected over those relations alone."""
    labels = [str(label) for label in dataset["relation"].values]
    places = np.array([given.get(label, (0, 0, 0)) for label in labels], dtype=int).reshape(-1, 3)
    place = (*places.T, np.arange(len(labels)))
    scored = np.array([label in given for label in labels]) & (
        dataset["accuracy_n"].values[place] > 0
    )
    out = _described(dataset, place, scored, name)
    p_adjusted = correct(out[f"{name}_p_value"].values, correction)
    return out | {f"{name}_p_adjusted": xr.Variable(("relation",), p_adjusted)}


def _described(
    dataset: xr.Dataset, place: Places, scored: np.ndarray, name: str
) -> dict[str, xr.Variable]:
    """What is known of one head for each relation, under `name_...`; −1, `""` and NaN where
    `scored` is False."""
    direction, layer, head, relation = place
    names = ("accuracy", "accuracy_low", "accuracy_high", "p_value")
    out = {key: np.where(scored, dataset[key].values[place], np.nan) for key in names}
    out["baseline"] = np.where(scored, dataset["bar"].values[direction, relation], np.nan)
    out |= {
        "baseline_name": np.where(scored, dataset["bar_name"].values[direction, relation], ""),
        "direction": np.where(scored, np.array(DIRECTIONS)[direction], ""),
        "layer": np.where(scored, layer, -1),
        "head": np.where(scored, head, -1),
        "accuracy_n": np.where(scored, dataset["accuracy_n"].values[place], 0),
        "margin": out["accuracy"] - out["baseline"],
    }
    return {f"{name}_{key}": xr.Variable(("relation",), array) for key, array in out.items()}


def headline(dataset: xr.Dataset, name: str) -> list[str]:
    """A line for each relation of 30 pairs, the commonest first: the head (`best` or `given`)
    against the bar."""
    at = dataset.isel(relation=np.argsort(-dataset["count"].values, kind="stable"))
    known = at["relation"].values[
        (at[f"{name}_layer"].values >= 0) & (at[f"{name}_accuracy_n"].values >= FEW)
    ]
    rows = []
    for relation in known if len(known) else at["relation"].values[at[f"{name}_layer"].values >= 0]:
        one = at.sel(relation=relation)
        head, accuracy, count = format_accuracy(one, name)
        direction = str(one[f"{name}_direction"].values)
        way = str(one[f"{name}_baseline_name"].values)
        if way == "offset":
            way += f" {int(one['baseline_possible_offset'].sel(direction=direction)):+d}"
        bar, p = (
            f"{way} {100 * float(one[f'{name}_baseline']):.1f} %",
            format_p_value(float(one[f"{name}_p_adjusted"])),
        )
        rows.append((str(relation), head, direction.replace("_", " "), accuracy, count, bar, p))
    title = (
        "Best head of each relation" if name == "best" else "Heads found elsewhere, on this text"
    )
    over = f"{dataset.attrs['unit_count']:,} {dataset.attrs['units']}"
    return [
        f"{title}, against the best of offset, even attention and first word (over {over}):",
        *align_columns(rows),
    ]
