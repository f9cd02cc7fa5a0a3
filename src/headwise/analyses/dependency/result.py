"""From counts of word pairs to accuracies with intervals, baselines, tests against the best of
them, and best heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.accuracy import (
    Places,
    accuracy_variables,
    argmax_heads,
    format_accuracy,
    held_out_variables,
    picking_note,
    shown_accuracy,
)
from headwise.analyses.dependency.arcs import PairRules
from headwise.analyses.summaries import align_columns, format_p_value
from headwise.core.labels import FEW
from headwise.stats.corrections import correct, correct_families
from headwise.stats.flips import sign_flip_test
from headwise.stats.intervals import share
from headwise.stats.picking import cross_fit
from headwise.stats.units import share_interval
from headwise.text.example import UPOS

# Baselines that know no syntax: the best fixed offset; uniform attention; attention on the first
# token alone. Of equally good ones the bar is the first in this order.
BASELINES = ("offset", "uniform", "first")
DIRECTIONS = ("dependent_to_head", "head_to_dependent")
DIMS = ("direction", "layer", "head", "relation")
DIRECTED = ("direction", "relation")
PAIR_UNITS = {"units": "share of pairs"}


@dataclass(frozen=True, slots=True, eq=False)
class PairTotals:
    """Counts of word pairs, for each unit (a document, or an example).

    Attributes
    ----------
    found : ndarray
        `[unit, direction, layer, head, relation]`: pairs that the head finds.
    possible : ndarray
        `[unit, direction, layer, relation]`: pairs that it could find.
    simple : ndarray
        `[unit, direction, relation, ...]`: the possible pairs by their true offset (bins
        −reach..reach and one for all beyond), then the pairs that each other baseline finds.
    lexical : ndarray
        `[unit, direction, relation, upos]`: the pairs that words of each part of speech, drawn at
        random, find on average.
    pairs : ndarray
        `[relation, bin]`: all pairs, by their true offset.
    """

    found: np.ndarray
    possible: np.ndarray
    simple: np.ndarray
    lexical: np.ndarray
    pairs: np.ndarray


def accuracy_dataset(totals: PairTotals, rules: PairRules, correction: str) -> xr.Dataset:
    """Return accuracies, baselines, tests and best heads.

    Parameters
    ----------
    totals : PairTotals
        For each unit.
    rules : PairRules
        The rules they were counted by.
    correction : str
        Over relations.
    """
    n_pairs = totals.pairs.sum(-1)
    possible = np.broadcast_to(totals.possible[:, :, :, None], totals.found.shape)
    variables: dict[str, Any] = accuracy_variables(DIMS, totals.found, possible)
    variables |= {
        "count": ("relation", n_pairs.astype(np.int64), {"long_name": "word pairs"}),
        "few": ("relation", n_pairs < FEW, {"long_name": f"fewer than {FEW} pairs"}),
    }
    variables |= _offset_variables(totals, rules)
    bar_variables, bar_hits = _bar(totals, rules)
    variables |= bar_variables
    variables |= _lexical_variables(totals, rules)

    p_value, p_family = _test_against_bar(totals, bar_hits)
    variables |= {
        "p_value": (
            DIMS,
            p_value,
            {
                "long_name": "finds more than the best baseline (bar): sign-flip test over units, "
                "one-tailed"
            },
        ),
        "p_family": (
            DIMS,
            p_family,
            {"long_name": "p_value corrected over heads and directions (max-T)"},
        ),
        "p_adjusted": (
            DIMS,
            _correct_over_relations(p_family, n_pairs, correction),
            {"long_name": f"p_family corrected over relations ({correction})"},
        ),
    }
    coords = {
        "direction": list(DIRECTIONS),
        "relation": list(rules.labels),
        "baseline_kind": list(BASELINES),
    }
    dataset = xr.Dataset(variables, coords=coords)
    dataset = dataset.assign(best_heads(dataset))
    # The bar is picked on the whole text, which favours it.
    fit = cross_fit(totals.found, possible, _has_enough(dataset), FEW // 2)
    bar_by_head = np.broadcast_to(bar_hits[:, :, None, None], totals.found.shape)
    return dataset.assign(held_out_variables(fit, totals.found, possible, bar_by_head, "relation"))


# --- baselines ------------------------------------------------------------------------------------


def _offset_variables(totals: PairTotals, rules: PairRules) -> dict[str, Any]:
    """Return the best fixed offset over all pairs, and over the pairs possible in a direction."""
    offsets = np.arange(-rules.reach, rules.reach + 1)
    n_pairs = totals.pairs.sum(-1)
    accuracy, best_bin = _best_offset(totals.pairs)
    # Pairs of each unit, in either direction: twice where a head can see both ways.
    of_unit = totals.simple[..., : rules.bins].sum(1).astype(float)
    times_counted = share(of_unit.sum((0, -1)), n_pairs)
    hits = np.take_along_axis(of_unit, best_bin[None, :, None], axis=-1)[..., 0]
    low, high = share_interval(hits / times_counted, of_unit.sum(-1) / times_counted)
    possible_by_offset = totals.simple.sum(0)[..., : rules.bins]
    n_possible = possible_by_offset.sum(-1)
    possible_accuracy, possible_bin = _best_offset(possible_by_offset)
    offset_attrs = {"long_name": "head − dependent", "units": "words"}
    return {
        "possible": (
            DIRECTED,
            n_possible.astype(np.int64),
            {"long_name": "word pairs a head could find"},
        ),
        "baseline": (
            "relation",
            accuracy,
            PAIR_UNITS | {"long_name": "best fixed offset over all pairs"},
        ),
        "baseline_low": ("relation", low),
        "baseline_high": ("relation", high),
        "baseline_offset": ("relation", np.where(n_pairs > 0, offsets[best_bin], 0), offset_attrs),
        "baseline_possible": (
            DIRECTED,
            possible_accuracy,
            PAIR_UNITS | {"long_name": "best fixed offset over possible pairs"},
        ),
        "baseline_possible_offset": (
            DIRECTED,
            np.where(n_possible > 0, offsets[possible_bin], 0),
            offset_attrs,
        ),
    }


def _best_offset(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of the commonest offset and its bin, over the last axis."""
    within_reach = counts[..., :-1]  # the last bin, all beyond, is no offset
    return share(within_reach.max(-1), counts.sum(-1)), within_reach.argmax(-1)


def _bar(totals: PairTotals, rules: PairRules) -> tuple[dict[str, Any], np.ndarray]:
    """Return the accuracy of every baseline and the best of them, the bar; and what the bar finds,
    `[unit, direction, relation]`."""
    possible_by_offset = totals.simple.sum(0)[..., : rules.bins]
    n_possible = possible_by_offset.sum(-1)
    _, best_bin = _best_offset(possible_by_offset)
    offset_hits = np.take_along_axis(totals.simple, best_bin[None, ..., None], axis=-1)[..., 0]
    other_hits = np.moveaxis(totals.simple[..., rules.bins :], -1, 0)
    hits = np.stack([offset_hits, *other_hits])  # [baseline, unit, direction, relation]
    total_hits = hits.sum(1)
    accuracy = share(total_hits, n_possible)
    best = total_hits.argmax(0)
    bar_hits = np.take_along_axis(hits, best[None, None], axis=0)[0]
    bar = np.take_along_axis(accuracy, best[None], axis=0)[0]
    is_possible = n_possible > 0
    variables = {
        "baseline_accuracy": (("baseline_kind", *DIRECTED), accuracy, PAIR_UNITS),
        "bar": (
            DIRECTED,
            np.where(is_possible, bar, np.nan),
            PAIR_UNITS | {"long_name": "the best of the baselines"},
        ),
        "bar_name": (DIRECTED, np.where(is_possible, np.array(BASELINES)[best], "")),
    }
    return variables, bar_hits


def _lexical_variables(totals: PairTotals, rules: PairRules) -> dict[str, Any]:
    """Return what the words find without their order; nothing where the corpus has no parts of
    speech."""
    hits = totals.lexical.sum(0)  # [direction, relation, upos]
    if not hits.any():
        return {}
    n_possible = totals.simple.sum(0)[..., : rules.bins].sum(-1)
    best = hits.argmax(-1)
    accuracy = share(hits.max(-1), n_possible)
    long_name = "a random word of the likeliest part of speech"
    return {
        "lexical": (DIRECTED, accuracy, PAIR_UNITS | {"long_name": long_name}),
        "lexical_upos": (DIRECTED, np.where(n_possible > 0, np.array(UPOS)[best], "")),
    }


# --- tests ----------------------------------------------------------------------------------------


def _test_against_bar(totals: PairTotals, bar_hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the p-values of every head against the bar, by itself and over the heads and
    directions of a relation; NaN where no pair was possible."""
    shape = totals.found.shape[1:]
    p_value = np.full(shape, np.nan)
    p_family = np.full(shape, np.nan)
    is_possible = np.broadcast_to(totals.possible.sum(0)[:, :, None] > 0, shape)
    for relation in range(shape[-1]):
        tested = is_possible[..., relation]
        if not tested.any():
            continue
        found = totals.found[..., relation].astype(np.float32)
        margin = found - bar_hits[:, :, None, None, relation]
        tests = sign_flip_test(margin[:, tested])
        p_value[..., relation][tested] = tests.p_value
        p_family[..., relation][tested] = tests.p_adjusted
    return p_value, p_family


def _correct_over_relations(
    p_family: np.ndarray, n_pairs: np.ndarray, correction: str
) -> np.ndarray:
    """Correct over the relations of 30 pairs or more; rarer ones are never significant.

    Where no relation has 30 pairs, all are corrected over."""
    has_enough = n_pairs >= FEW
    is_tested = has_enough | ~has_enough.any()
    adjusted = correct_families(np.where(is_tested, p_family, np.nan), correction)
    return np.where(is_tested | np.isnan(p_family), adjusted, 1.0)


# --- one head for each relation -------------------------------------------------------------------


def best_heads(dataset: xr.Dataset) -> dict[str, xr.Variable]:
    """Return for each relation the direction, layer and head with the highest accuracy; −1, `""`
    and NaN where there is none."""
    place, is_scored = argmax_heads(dataset["accuracy"].values, _has_enough(dataset))
    p_adjusted = np.where(is_scored, dataset["p_adjusted"].values[place], np.nan)
    variables = _head_variables(dataset, place, is_scored, "best")
    variables["best_p_adjusted"] = xr.Variable(("relation",), p_adjusted)
    return variables


def _has_enough(dataset: xr.Dataset) -> np.ndarray:
    """Return which heads may be best, `[direction, layer, head, relation]`."""
    # A decoder may see one pair in one direction and five hundred in the other: heads with fewer
    # than 30 pairs are best heads only where no head has more.
    n_tried = dataset["accuracy_n"].values
    most_tried = n_tried.reshape(-1, n_tried.shape[-1]).max(0, initial=0)
    return np.asarray(n_tried >= np.minimum(most_tried, FEW))


def given_head_variables(
    dataset: xr.Dataset, given: Mapping[str, tuple[int, ...]], prefix: str, correction: str
) -> dict[str, xr.Variable]:
    """Return the same for heads found on another text.

    `given` has (direction, layer, head) for some relations. Their p-values are corrected over those
    relations alone."""
    labels = [str(label) for label in dataset["relation"].values]
    places = [given.get(label, (0, 0, 0)) for label in labels]
    direction, layer, head = np.array(places, dtype=int).reshape(-1, 3).T
    place = (direction, layer, head, np.arange(len(labels)))
    is_given = np.array([label in given for label in labels])
    is_scored = is_given & (dataset["accuracy_n"].values[place] > 0)
    variables = _head_variables(dataset, place, is_scored, prefix)
    p_adjusted = correct(variables[f"{prefix}_p_value"].values, correction)
    variables[f"{prefix}_p_adjusted"] = xr.Variable(("relation",), p_adjusted)
    return variables


def _head_variables(
    dataset: xr.Dataset, place: Places, is_scored: np.ndarray, prefix: str
) -> dict[str, xr.Variable]:
    """Return what is known of one head for each relation, as variables `PREFIX_...`; −1, `""` and
    NaN where `is_scored` is False."""
    direction, layer, head, relation = place
    values: dict[str, np.ndarray] = {}
    for name in ("accuracy", "accuracy_low", "accuracy_high", "p_value"):
        values[name] = np.where(is_scored, dataset[name].values[place], np.nan)
    bar = dataset["bar"].values[direction, relation]
    bar_name = dataset["bar_name"].values[direction, relation]
    values["baseline"] = np.where(is_scored, bar, np.nan)
    values["baseline_name"] = np.where(is_scored, bar_name, "")
    values["direction"] = np.where(is_scored, np.array(DIRECTIONS)[direction], "")
    values["layer"] = np.where(is_scored, layer, -1)
    values["head"] = np.where(is_scored, head, -1)
    values["accuracy_n"] = np.where(is_scored, dataset["accuracy_n"].values[place], 0)
    values["margin"] = values["accuracy"] - values["baseline"]
    return {f"{prefix}_{name}": xr.Variable(("relation",), array) for name, array in values.items()}


def summary_lines(dataset: xr.Dataset, prefix: str) -> list[str]:
    """Return a line for each relation of 30 pairs, the commonest first: the head (`best` or
    `given`) against the bar."""
    order = np.argsort(-dataset["count"].values, kind="stable")
    ordered = dataset.isel(relation=order)
    is_scored = ordered[f"{prefix}_layer"].values >= 0
    has_enough = is_scored & (ordered[f"{prefix}_accuracy_n"].values >= FEW)
    shown = has_enough if has_enough.any() else is_scored
    rows = []
    baseline_variable = f"{prefix}_baseline"
    if shown_accuracy(dataset, prefix) == "best_heldout_accuracy":
        baseline_variable = "best_heldout_baseline"
    for relation in ordered["relation"].values[shown]:
        of_relation = ordered.sel(relation=relation)
        head, accuracy, count = format_accuracy(of_relation, prefix)
        direction = str(of_relation[f"{prefix}_direction"].values)
        baseline = str(of_relation[f"{prefix}_baseline_name"].values)
        if baseline == "offset":
            offset = int(of_relation["baseline_possible_offset"].sel(direction=direction))
            baseline += f" {offset:+d}"
        bar = f"{baseline} {100 * float(of_relation[baseline_variable]):.1f} %"
        p_value = format_p_value(float(of_relation[f"{prefix}_p_adjusted"]))
        arrow = direction.replace("_", " ")
        rows.append((str(relation), head, arrow, accuracy, count, bar, p_value))
    title = "Heads found elsewhere, on this text"
    notes = []
    if prefix == "best":
        title = "Best head of each relation"
        notes = picking_note(dataset, [row[1] for row in rows])
    units = f"{dataset.attrs['unit_count']:,} {dataset.attrs['units']}"
    return [
        f"{title}, against the best of offset, uniform attention and first word (over {units}):",
        *align_columns(rows),
        *notes,
    ]
