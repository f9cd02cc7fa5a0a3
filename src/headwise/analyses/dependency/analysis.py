"""Heads that follow syntax: how often a head's most attended word is a word's syntactic head, for each relation.

Clark et al. 2019, §4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.accuracy import accuracy_variables, best_places, share
from headwise.analyses.contract import Observer, Paper, Shape, at_least, layer_head_coords, one_of
from headwise.analyses.dependency import noop
from headwise.analyses.dependency.arcs import ALL, SUBTYPES, UPOS, PairRules, Pairs, gather_pairs, labels_of
from headwise.core.errors import ParameterError, unknown
from headwise.models.view import Layer, Rows
from headwise.models.words import word_index, word_maps, word_visibility
from headwise.stats.accumulators import SparseSums, State, Sums
from headwise.stats.bootstrap import FEW
from headwise.stats.corrections import CORRECTIONS, correct
from headwise.stats.intervals import wilson_interval
from headwise.stats.tests import mcnemar_exact
from headwise.text.encode import Batch
from headwise.text.example import ROOT

DIRECTIONS = ("dependent_to_head", "head_to_dependent")
DIMS = ("direction", "layer", "head", "relation")


class PairCounts(SparseSums):
    """Sums over word pairs that know which labels and rules they are counted by."""

    def __init__(self, rules: PairRules, *shape: int) -> None:
        super().__init__(*shape)
        self.rules = rules

    def merge(self, other: Sums) -> None:
        if isinstance(other, PairCounts) and other.rules != self.rules:
            raise ValueError("counts of different relations or rules cannot merge")
        super().merge(other)


@dataclass(frozen=True)
class Dependency(Observer):
    """Single heads as parsers, §4.2 and Table 1.

    On word-level maps A (to a word: sum over pieces; from a word: mean; special tokens left out) the predicted head of
    a word d is

    - `dependent_to_head`: the other word that d attends to most, `argmax_{h ≠ d} A[d, h]`;
    - `head_to_dependent`: the other word that attends to d most, `argmax_{h ≠ d} A[h, d]`; ties go to the first word.

    `accuracy[direction, layer, head, relation]` is the share of pairs whose head is found, with `accuracy_n` and
    Wilson's 95 % interval `accuracy_low`, `accuracy_high`; relation `all` is the head's UAS over everything but roots
    and punctuation. Only pairs that a head could find count: a decoder's words see what stands before them, so
    `dependent_to_head` is scored on pairs whose head comes first, `head_to_dependent` on those whose dependent does;
    `possible[direction, relation]` says how many that leaves of `count[relation]`, and where it leaves none the
    accuracy is NaN.

    `baseline[relation]` is the best fixed offset over all pairs, `baseline_offset` that offset (head − dependent; 0
    where there is no pair); `baseline_possible[direction, relation]` and `baseline_possible_offset` the same over the
    pairs possible in that direction: the same number for an encoder.

    `p_value[direction, layer, head, relation]`: McNemar's exact one-tailed test that the head finds more than the best
    offset does. A fixed offset o is right just where the true offset is o, so counting found pairs by their true offset
    gives the pairs that only one of the two finds, with no record of single pairs. `p_adjusted` is corrected over all
    heads, directions and relations, since the best of them is picked. `best_direction`, `best_layer`, `best_head`,
    `best_accuracy`, `best_baseline`, `best_margin`, `best_p_value`, `best_p_adjusted[relation]`: the head with the
    highest accuracy (of those with 30 pairs, where there are any); `few[relation]`: under 30 pairs.

    The no-op reading (§3.2): `noop_with`, `noop_without[direction, layer, head, relation]` are mean attention to
    `[SEP]` (a decoder's first token) from words that have the relation (as dependents; for `head_to_dependent` as
    heads) and from those that do not, `noop_upos[layer, head, upos]` by part of speech, and `best_noop_with`,
    `best_noop_without[relation]`, `best_noop_upos[relation, group, upos]` those of each relation's best head.

    Parameters
    ----------
    relations : tuple of str or str, optional
        Only these (a sequence, or names with commas between); all that occur by default.
    subtypes : {"fold", "keep"}, default "fold"
        `fold` counts `nmod:poss` as `nmod`, `keep` apart.
    reach : int, default 10
        Offsets −reach..reach are tried for the baseline.
    with_root, with_punct : bool, default False
        Whether `all` counts roots (never found) and punctuation, as the authors' notebook does.
    poss_rule : bool, default False
        For possessors followed by `'s`, that mark's prediction counts in place of the word's own, as in the authors'
        notebook.
    correction : {"holm", "benjamini_hochberg", "none"}, default "holm"
        For the number of tests.
    noop : {"auto", "sep", "cls", "off"}, default "auto"
        The type of token that heads with nothing to do look at; `auto` is `sep`, for a decoder `cls` (its first token);
        `off` leaves the reading out.
    """

    relations: tuple[str, ...] | str = ()
    subtypes: str = "fold"
    reach: int = 10
    with_root: bool = False
    with_punct: bool = False
    poss_rule: bool = False
    correction: str = "holm"
    noop: str = "auto"

    name: ClassVar[str] = "dependency"
    title: ClassVar[str] = "Heads that follow syntax: dependency relations"
    paper: ClassVar[Paper] = Paper("clark2019", "§4.2, Table 1, Fig 5")
    requires: ClassVar[frozenset[str]] = frozenset({"words", "dependencies"})
    # Of equally good heads the first is the best one: all but its accuracy depends on the order of heads.
    order_dependent: ClassVar[frozenset[str]] = frozenset(
        f"best_{name}"
        for name in (
            *("direction", "layer", "head", "accuracy_n", "accuracy_low", "accuracy_high", "baseline", "margin"),
            *("p_value", "p_adjusted", "noop_with", "noop_without", "noop_upos"),
        )
    )

    def __post_init__(self) -> None:
        one_of("subtypes", self.subtypes, SUBTYPES)
        at_least("reach", self.reach, 1)
        one_of("correction", self.correction, CORRECTIONS)
        one_of("noop", self.noop, noop.TARGETS)

    def missing(self, shape: Shape) -> dict[str, str]:
        self._rules(shape)  # refuses relations that do not occur, before any work
        reason = noop.missing(self.noop, shape)
        return {"noop": reason} if reason else {}

    def _rules(self, shape: Shape) -> PairRules:
        known = labels_of(shape.relations, self.subtypes)
        given = self.relations.split(",") if isinstance(self.relations, str) else self.relations
        wanted = [name.strip() for name in given if name.strip() not in ("", ALL)] if self.relations else known
        for name in wanted:
            if name not in known:
                raise ParameterError(unknown("relation in this corpus", name, known))
        flags = (self.with_root, self.with_punct, self.poss_rule)
        return PairRules((ALL, *wanted), self.subtypes, *flags, self.reach, noop.resolve(self.noop, shape))

    # --- the pass ---------------------------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        rules = self._rules(shape)
        full = (len(DIRECTIONS), shape.layers, shape.heads, len(rules.labels), rules.bins)
        state = State(
            correct=PairCounts(rules, *full),
            possible=PairCounts(rules, *full),
            pairs=PairCounts(rules, len(rules.labels), rules.bins),
            examples=Sums(4),  # counted, not aligned, without a tree; words cut off
        )
        if self.noop != "off" and not noop.missing(self.noop, shape):
            state |= noop.start(shape, len(rules.labels))
        return state

    def reduce(self, rows: Rows, batch: Batch) -> Mapping[str, Tensor]:
        index = word_index(batch)
        resting = torch.stack([batch.kind(name) for name in noop.TYPES], -1)
        return {"maps": word_maps(rows, index, resting), "visible": word_visibility(rows, index)}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        counts = state["correct"]
        assert isinstance(counts, PairCounts)
        rules = counts.rules
        pairs = gather_pairs(batch, rules)
        if layer.layer == 0:
            state.sums("examples").add(torch.tensor([pairs.used, pairs.unaligned, pairs.bare, pairs.cut]))
            state.sums("pairs").add(_count(torch.ones(len(pairs.word), 1, device=batch.device), pairs, rules)[0])
        maps, resting = sums["maps"][..., : -len(noop.TYPES)], sums["maps"][..., -len(noop.TYPES) :]
        if not maps.shape[-1]:
            return
        for direction, (found, possible) in enumerate(score(maps, sums["visible"] > 0, pairs)):
            here = (direction, layer.layer)
            counts.add(_count(found, pairs, rules), here)
            state.sums("possible").add(_count(possible, pairs, rules).expand(maps.shape[1], -1, -1), here)
        if "noop_with" in state:
            noop.observe(state, resting[..., noop.TYPES.index(rules.noop)], layer.layer, batch, rules)

    # --- what comes of it -------------------------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        rules = self._rules(shape)
        found, possible, pairs = (state.sums(name).total.numpy() for name in ("correct", "possible", "pairs"))
        dataset = accuracy_dataset(found, possible, pairs, rules, self.correction)
        dataset = dataset.assign_coords(layer_head_coords(shape))
        if "noop_with" in state:
            dataset = dataset.merge(noop.dataset(state, dataset)).assign_coords(upos=list(UPOS))
        names = ("examples", "examples_unaligned", "examples_without_tree", "words_cut")
        attrs: dict[str, Any] = {n: int(x) for n, x in zip(names, state.sums("examples").total, strict=True)}
        attrs["noop_target"] = rules.noop
        if shape.causal:
            attrs["note"] = (
                "A decoder's words see only what stands before them: dependent_to_head is scored on pairs whose head "
                "comes first, head_to_dependent on pairs whose dependent comes first."
            )
        return dataset.assign_attrs(attrs)


def score(maps: Tensor, visible: Tensor, pairs: Pairs) -> list[tuple[Tensor, Tensor]]:
    """For both directions, `[pair, head]`: whether the head finds the pair, and `[pair, 1 or head]`: whether it could.

    Parameters
    ----------
    maps : Tensor
        `[example, head, from word, to word]`
    visible : Tensor
        Bool `[example, 1 or head, from word, to word]`
    pairs : Pairs
        Of the same batch.
    """
    size = maps.shape[-1]
    rooted = pairs.head == ROOT
    head = pairs.head.clamp(min=0)
    # Only words that some pair asks for are predicted, each once.
    asked, place = torch.unique(pairs.example * size + pairs.word, return_inverse=True)
    example, word = asked.div(size, rounding_mode="floor"), asked % size
    itself = torch.arange(size, device=maps.device) == word[:, None, None]
    out = []
    for rows, seen, given in (
        (maps[example, :, word], visible[example, :, word], visible[pairs.example, :, pairs.word, head]),
        (maps[example, :, :, word], visible[example, :, :, word], visible[pairs.example, :, head, pairs.word]),
    ):
        predicted = rows.masked_fill(~seen | itself, -1.0).argmax(-1)
        possible = given | rooted[:, None]  # a root that is counted can never be found, by any head
        found = (predicted[place] == pairs.head[:, None]) & possible & (pairs.word != pairs.head)[:, None]
        out.append((found, possible))
    return out


def _count(values: Tensor, pairs: Pairs, rules: PairRules) -> Tensor:
    """Sums of `values[pair, head]` by label and offset: `[head, label, bin]`."""
    out = torch.zeros(len(rules.labels) * rules.bins, values.shape[1], device=values.device)
    out.index_add_(0, pairs.label * rules.bins + pairs.bin, values.float())
    return out.T.reshape(-1, len(rules.labels), rules.bins)


def accuracy_dataset(
    found: np.ndarray, possible: np.ndarray, pairs: np.ndarray, rules: PairRules, correction: str
) -> xr.Dataset:
    """Accuracies, baselines, tests and best heads from counts by true offset.

    Parameters
    ----------
    found, possible : ndarray
        `[direction, layer, head, relation, bin]`: pairs found and pairs that could be; the bins are offsets
        −reach..reach and one for all beyond.
    pairs : ndarray
        `[relation, bin]`: all pairs.
    rules : PairRules
        By which they were counted.
    correction : str
        Of the p-values.
    """
    hits, tries, total = found.sum(-1), possible.sum(-1), pairs.sum(-1)
    baseline, place = _best_offset(pairs)
    baseline_low, baseline_high = wilson_interval(_at(pairs, place), total)
    # In a windowed layer fewer pairs are possible than in others; what "possible" means for a direction is the most any
    # head can see.
    roomiest = tries.reshape(len(DIRECTIONS), -1, len(rules.labels)).argmax(1)
    by_head = possible.reshape(len(DIRECTIONS), -1, *pairs.shape)
    by_direction = np.take_along_axis(by_head, roomiest[:, None, :, None], axis=1)[:, 0]
    in_all = by_direction.sum(-1)
    baseline_possible, place_possible = _best_offset(by_direction)
    # Every head is tested against the best offset on the very pairs it could find.
    head_baseline, own_place = _best_offset(possible)
    both = _at(found, own_place)
    p_value = np.where(tries > 0, mcnemar_exact(hits - both, _at(possible, own_place) - both), np.nan)
    offsets = np.arange(-rules.reach, rules.reach + 1)
    directed = ("direction", "relation")
    units, words = {"units": "share of pairs"}, {"long_name": "head − dependent", "units": "words"}
    corrected = f"p_value corrected over heads, directions and relations ({correction})"
    variables: dict[str, Any] = {
        **accuracy_variables(DIMS, hits, tries, "pairs"),
        "count": ("relation", total.astype(np.int64), {"long_name": "word pairs"}),
        "possible": (directed, in_all.astype(np.int64), {"long_name": "word pairs a head could find"}),
        "few": ("relation", total < FEW, {"long_name": f"fewer than {FEW} pairs"}),
        "baseline": ("relation", baseline, units | {"long_name": "best fixed offset over all pairs"}),
        "baseline_low": ("relation", baseline_low),
        "baseline_high": ("relation", baseline_high),
        "baseline_offset": ("relation", np.where(total > 0, offsets[place], 0), words),
        "baseline_possible": (
            directed,
            baseline_possible,
            units | {"long_name": "best fixed offset over possible pairs"},
        ),
        "baseline_possible_offset": (directed, np.where(in_all > 0, offsets[place_possible], 0), words),
        "p_value": (DIMS, p_value, {"long_name": "finds more than the best offset: McNemar, exact, one-tailed"}),
        "p_adjusted": (DIMS, correct(p_value, correction), {"long_name": corrected}),
    }
    dataset = xr.Dataset(variables, coords={"direction": list(DIRECTIONS), "relation": list(rules.labels)})
    return dataset.assign(best_heads(dataset, head_baseline))


def _best_offset(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The share of the commonest offset and its place, over the last axis, whose last entry (all beyond) is none."""
    return share(counts[..., :-1].max(-1), counts.sum(-1)), counts[..., :-1].argmax(-1)


def _at(counts: np.ndarray, place: np.ndarray) -> np.ndarray:
    return np.take_along_axis(counts, place[..., None], axis=-1)[..., 0]


def best_heads(dataset: xr.Dataset, head_baseline: np.ndarray) -> dict[str, xr.Variable]:
    """For each relation the direction, layer and head with the highest accuracy; −1, `""` and NaN where there is none.

    A decoder may see one pair in one direction and five hundred in the other: heads with fewer than 30 pairs are best
    heads only where no head has more.
    """
    tries = dataset["accuracy_n"].values
    enough = tries >= np.minimum(tries.reshape(-1, tries.shape[-1]).max(0, initial=0), FEW)
    place, scored = best_places(dataset["accuracy"].values, enough)
    direction, layer, head, _ = place
    names = ("accuracy", "accuracy_low", "accuracy_high", "p_value", "p_adjusted")
    values = {name: dataset[name].values for name in names} | {"baseline": head_baseline}
    out = {f"best_{name}": np.where(scored, array[place], np.nan) for name, array in values.items()}
    out |= {
        "best_direction": np.where(scored, np.array(DIRECTIONS)[direction], ""),
        "best_layer": np.where(scored, layer, -1),
        "best_head": np.where(scored, head, -1),
        "best_accuracy_n": np.where(scored, tries[place], 0),
        "best_margin": out["best_accuracy"] - out["best_baseline"],
    }
    return {name: xr.Variable(("relation",), array) for name, array in out.items()}
