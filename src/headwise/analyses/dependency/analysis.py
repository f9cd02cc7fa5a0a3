"""Heads that follow syntax: how often a head's most attended word is a word's syntactic head, for each relation (Clark et al. 2019, §4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Observer, Paper, Shape, at_least, layer_head_coords, one_of
from headwise.analyses.dependency import noop
from headwise.analyses.dependency.arcs import ALL, SUBTYPES, UPOS, Pairs, Settings, gather_pairs, labels_of
from headwise.core.errors import ParameterError, unknown
from headwise.models.view import Layer, Rows
from headwise.models.words import word_index, word_maps, word_visibility
from headwise.stats.accumulators import State, Sums
from headwise.stats.corrections import CORRECTIONS, correct
from headwise.stats.intervals import wilson_interval
from headwise.stats.sparse import SparseSums
from headwise.stats.tests import FEW, mcnemar_exact
from headwise.text.encode import Batch
from headwise.text.example import ROOT

DIRECTIONS = ("dependent_to_head", "head_to_dependent")
DIMS = ("direction", "layer", "head", "relation")


class PairCounts(SparseSums):
    """Sums over word pairs that know which labels and settings they are counted by."""

    def __init__(self, settings: Settings, *shape: int) -> None:
        super().__init__(*shape)
        self.settings = settings

    def merge(self, other: Sums) -> None:
        if isinstance(other, PairCounts) and other.settings != self.settings:
            raise ValueError("counts of different relations or settings cannot merge")
        super().merge(other)


@dataclass(frozen=True)
class Dependency(Observer):
    """Single heads as parsers, §4.2 and Table 1.

    On word-level maps A (to a word: sum over pieces; from a word: mean; special tokens left out) the predicted head of a word d is

    - `dependent_to_head`: the other word that d attends to most, `argmax_{h ≠ d} A[d, h]`;
    - `head_to_dependent`: the other word that attends to d most, `argmax_{h ≠ d} A[h, d]`; ties go to the first word.

    `accuracy[direction, layer, head, relation]` is the share of pairs whose head is found, with `accuracy_n` and Wilson's 95 % interval `accuracy_low`, `accuracy_high`;
    relation `all` is the head's UAS over everything but roots and punctuation. Only pairs that a head could find count: a decoder's words see what stands before them, so
    `dependent_to_head` is scored on pairs whose head comes first, `head_to_dependent` on those whose dependent does; `possible[direction, relation]` says how many
    that leaves of `count[relation]`, and where it leaves none the accuracy is NaN.

    `baseline[relation]` is the best fixed offset over all pairs, `baseline_offset` that offset (head − dependent; 0 where there is no pair);
    `baseline_possible[direction, relation]` and `baseline_possible_offset` the same over the pairs possible in that direction: the same number for an encoder.

    `p_value[direction, layer, head, relation]`: McNemar's exact one-tailed test that the head finds more than the best offset does. A fixed offset o is right just where
    the true offset is o, so counting found pairs by their true offset gives the pairs that only one of the two finds, with no record of single pairs.
    `p_adjusted` is corrected over all heads, directions and relations, since the best of them is picked. `best_direction`, `best_layer`, `best_head`, `best_accuracy`,
    `best_baseline`, `best_margin`, `best_p_value`, `best_p_adjusted[relation]`: the head with the highest accuracy (of those with 30 pairs, where there are any);
    `few[relation]`: under 30 pairs.

    The no-op reading (§3.2): `noop_with`, `noop_without[direction, layer, head, relation]` are mean attention to `[SEP]` (a decoder's first token) from words that have the
    relation (as dependents; for `head_to_dependent` as heads) and from those that do not, `noop_upos[layer, head, upos]` by part of speech, and
    `best_noop_with`, `best_noop_without[relation]`, `best_noop_upos[relation, group, upos]` those of each relation's best head.

    Parameters
    ----------
    relations
        Only these (a sequence, or names with commas between); all that occur by default.
    subtypes
        `fold` counts `nmod:poss` as `nmod`, `keep` apart.
    reach
        Offsets −reach..reach are tried for the baseline.
    with_root, with_punct
        Whether `all` counts roots (never found) and punctuation, as the authors' notebook does.
    poss_rule
        For possessors followed by `'s`, that mark's prediction counts in place of the word's own, as in the authors' notebook.
    correction
        `holm`, `benjamini_hochberg` or `none`.
    noop
        The type of token that heads with nothing to do look at: `sep` or `cls`; `auto` is `sep`, for a decoder `cls` (its first token); `off` leaves the reading out.
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
            *(
                "direction",
                "layer",
                "head",
                "accuracy_n",
                "accuracy_low",
                "accuracy_high",
                "baseline",
                "margin",
                "p_value",
                "p_adjusted",
            ),
            *("noop_with", "noop_without", "noop_upos"),
        )
    )

    def __post_init__(self) -> None:
        one_of("subtypes", self.subtypes, SUBTYPES)
        at_least("reach", self.reach, 1)
        one_of("correction", self.correction, CORRECTIONS)
        one_of("noop", self.noop, noop.TARGETS)

    def missing(self, shape: Shape) -> dict[str, str]:
        self._settings(shape)  # refuses relations that do not occur, before any work
        reason = noop.missing(self.noop, shape)
        return {"noop": reason} if reason else {}

    def _settings(self, shape: Shape) -> Settings:
        known = labels_of(shape.relations, self.subtypes)
        given = (
            [name.strip() for name in self.relations.split(",")]
            if isinstance(self.relations, str)
            else list(self.relations)
        )
        wanted = [name for name in given if name and name != ALL] if self.relations else known
        for name in wanted:
            if name not in known:
                raise ParameterError(unknown("relation in this corpus", name, known))
        return Settings(
            (ALL, *wanted),
            self.subtypes,
            self.with_root,
            self.with_punct,
            self.poss_rule,
            self.reach,
            noop.resolve(self.noop, shape),
        )

    # --- the pass ---------------------------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        settings = self._settings(shape)
        full = (len(DIRECTIONS), shape.layers, shape.heads, len(settings.labels), settings.bins)
        state = State(
            correct=PairCounts(settings, *full),
            possible=PairCounts(settings, *full),
            pairs=PairCounts(settings, len(settings.labels), settings.bins),
            examples=Sums(4),  # counted, not aligned, without a tree; words cut off
        )
        if self.noop != "off" and not noop.missing(self.noop, shape):
            state |= noop.start(shape, len(settings.labels))
        return state

    def reduce(self, rows: Rows, batch: Batch) -> Mapping[str, Tensor]:
        index = word_index(batch)
        resting = torch.stack([batch.kind(name) for name in noop.TYPES], -1)
        return {"maps": word_maps(rows, index, resting), "visible": word_visibility(rows, index)}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        counts = state["correct"]
        assert isinstance(counts, PairCounts)
        settings = counts.settings
        pairs = gathered(batch, settings)
        if layer.layer == 0:
            state.sums("examples").add(torch.tensor([pairs.used, pairs.unaligned, pairs.bare, pairs.cut]))
            state.sums("pairs").add(_count(torch.ones(len(pairs.word), 1, device=batch.device), pairs, settings)[0])
        maps, resting = sums["maps"].split([sums["maps"].shape[-1] - len(noop.TYPES), len(noop.TYPES)], -1)
        if not maps.shape[-1]:
            return
        for direction, (found, possible) in enumerate(score(maps, sums["visible"] > 0, pairs)):
            here = (direction, layer.layer)
            counts.add(_count(found, pairs, settings), here)
            state.sums("possible").add(_count(possible, pairs, settings).expand(maps.shape[1], -1, -1), here)
        if "noop_with" in state:
            noop.observe(state, resting[..., noop.TYPES.index(settings.noop)], layer.layer, batch, settings)

    # --- what comes of it -------------------------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        settings = self._settings(shape)
        correct_by_offset = state.sums("correct").total.numpy()
        possible_by_offset = state.sums("possible").total.numpy()
        pairs = state.sums("pairs").total.numpy()
        dataset = accuracy_dataset(correct_by_offset, possible_by_offset, pairs, settings, self.correction)
        dataset = dataset.assign_coords(layer_head_coords(shape))
        if "noop_with" in state:
            dataset = dataset.merge(noop.dataset(state, dataset)).assign_coords(upos=list(UPOS))
        used, unaligned, bare, cut = (int(x) for x in state.sums("examples").total)
        attrs: dict[str, Any] = {
            "examples": used,
            "examples_unaligned": unaligned,
            "examples_without_tree": bare,
            "words_cut": cut,
        }
        attrs["noop_target"] = settings.noop
        if shape.causal:
            attrs["note"] = (
                "A decoder's words see only what stands before them: dependent_to_head is scored on pairs whose head comes first, "
                "head_to_dependent on pairs whose dependent comes first."
            )
        return dataset.assign_attrs(attrs)


@lru_cache(maxsize=4)
def gathered(batch: Batch, settings: Settings) -> Pairs:
    """The pairs of a batch, kept for as long as its layers are looked at."""
    return gather_pairs(batch, settings)


def score(maps: Tensor, visible: Tensor, pairs: Pairs) -> list[tuple[Tensor, Tensor]]:
    """For both directions, `[pair, head]`: whether the head finds the pair, and `[pair, 1 or head]`: whether it could.

    Parameters
    ----------
    maps
        `[example, head, from word, to word]`
    visible
        Bool `[example, 1 or head, from word, to word]`
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


def _count(values: Tensor, pairs: Pairs, settings: Settings) -> Tensor:
    """Sums of `values[pair, head]` by label and offset: `[head, label, bin]`."""
    out = torch.zeros(len(settings.labels) * settings.bins, values.shape[1], device=values.device)
    out.index_add_(0, pairs.label * settings.bins + pairs.bin, values.float())
    return out.T.reshape(-1, len(settings.labels), settings.bins)


def accuracy_dataset(
    found: np.ndarray, possible: np.ndarray, pairs: np.ndarray, settings: Settings, correction: str
) -> xr.Dataset:
    """Accuracies, baselines, tests and best heads from counts by true offset.

    Parameters
    ----------
    found, possible
        `[direction, layer, head, relation, bin]`: pairs found and pairs that could be; the bins are offsets −reach..reach and one for all beyond.
    pairs
        `[relation, bin]`: all pairs.
    """
    offsets = np.arange(-settings.reach, settings.reach + 1)
    hits, tries = found.sum(-1), possible.sum(-1)
    total = pairs.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        accuracy = np.where(tries > 0, hits / tries, np.nan)
    low, high = wilson_interval(hits, tries)
    baseline, place = _best_offset(pairs)
    # In a windowed layer fewer pairs are possible than in others; what "possible" means for a direction is the most any head can see.
    roomiest = tries.reshape(len(DIRECTIONS), -1, len(settings.labels)).argmax(1)
    by_direction = np.take_along_axis(
        possible.reshape(len(DIRECTIONS), -1, *pairs.shape), roomiest[:, None, :, None], axis=1
    )[:, 0]
    baseline_possible, place_possible = _best_offset(by_direction)
    # Every head is tested against the best offset on the very pairs it could find.
    head_baseline, own_place = _best_offset(possible)
    both = np.take_along_axis(found, own_place[..., None], axis=-1)[..., 0]
    only_baseline = np.take_along_axis(possible, own_place[..., None], axis=-1)[..., 0] - both
    p_value = np.where(tries > 0, mcnemar_exact(hits - both, only_baseline), np.nan)
    p_adjusted = correct(p_value, correction)
    share = {"units": "share of pairs"}
    variables: dict[str, Any] = {
        "accuracy": (DIMS, accuracy.astype(np.float32), share),
        "accuracy_n": (DIMS, tries.astype(np.int64), {"long_name": "pairs behind accuracy"}),
        "accuracy_low": (DIMS, low.astype(np.float32), {"long_name": "lower end of Wilson's 95 % interval"}),
        "accuracy_high": (DIMS, high.astype(np.float32), {"long_name": "upper end of Wilson's 95 % interval"}),
        "count": ("relation", total.astype(np.int64), {"long_name": "word pairs"}),
        "possible": (
            ("direction", "relation"),
            by_direction.sum(-1).astype(np.int64),
            {"long_name": "word pairs a head could find"},
        ),
        "few": ("relation", total < FEW, {"long_name": f"fewer than {FEW} pairs"}),
        "baseline": ("relation", baseline, share | {"long_name": "best fixed offset over all pairs"}),
        "baseline_offset": (
            "relation",
            np.where(total > 0, offsets[place], 0),
            {"long_name": "head − dependent", "units": "words"},
        ),
        "baseline_possible": (
            ("direction", "relation"),
            baseline_possible,
            share | {"long_name": "best fixed offset over possible pairs"},
        ),
        "baseline_possible_offset": (
            ("direction", "relation"),
            np.where(by_direction.sum(-1) > 0, offsets[place_possible], 0),
            {"long_name": "head − dependent", "units": "words"},
        ),
        "p_value": (DIMS, p_value, {"long_name": "finds more than the best offset: McNemar, exact, one-tailed"}),
        "p_adjusted": (
            DIMS,
            p_adjusted,
            {"long_name": f"p_value corrected over heads, directions and relations ({correction})"},
        ),
    }
    baseline_low, baseline_high = wilson_interval(np.take_along_axis(pairs, place[:, None], axis=-1)[:, 0], total)
    variables |= {"baseline_low": ("relation", baseline_low), "baseline_high": ("relation", baseline_high)}
    dataset = xr.Dataset(variables, coords={"direction": list(DIRECTIONS), "relation": list(settings.labels)})
    return dataset.assign(best_heads(dataset, head_baseline))


def _best_offset(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The share of the commonest offset and its place, over the last axis (whose last entry, all that is further away, is no offset)."""
    total = counts.sum(-1)
    place = counts[..., :-1].argmax(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, counts[..., :-1].max(-1) / total, np.nan), place


def best_heads(dataset: xr.Dataset, head_baseline: np.ndarray) -> dict[str, xr.Variable]:
    """For each relation the direction, layer and head with the highest accuracy (the first of equals); −1, `""` and NaN where nothing could be scored.

    A decoder may see one pair in one direction and five hundred in the other: heads with fewer than 30 pairs are best heads only where no head has more.
    """
    accuracy, tries = dataset["accuracy"].values, dataset["accuracy_n"].values
    directions, layers, heads, relations = accuracy.shape
    enough = tries >= np.minimum(tries.reshape(-1, relations).max(0, initial=0), FEW)
    flat = np.where(np.isnan(accuracy) | ~enough, -1.0, accuracy).reshape(-1, relations)
    best = flat.argmax(0)
    scored = flat.max(0, initial=-1.0) >= 0
    direction, layer, head = np.unravel_index(best, (directions, layers, heads))
    place = (direction, layer, head, np.arange(relations))

    def at(values: np.ndarray) -> np.ndarray:
        return np.where(scored, values[place], np.nan)

    out: dict[str, Any] = {
        "best_direction": np.where(scored, np.array(DIRECTIONS)[direction], ""),
        "best_layer": np.where(scored, layer, -1),
        "best_head": np.where(scored, head, -1),
        "best_baseline": at(head_baseline),
    }
    names = ("accuracy", "accuracy_low", "accuracy_high", "p_value", "p_adjusted")
    out |= {f"best_{name}": at(dataset[name].values) for name in names}
    out["best_accuracy_n"] = np.where(scored, dataset["accuracy_n"].values[place], 0)
    out["best_margin"] = out["best_accuracy"] - out["best_baseline"]
    return {name: xr.Variable(("relation",), values) for name, values in out.items()}
