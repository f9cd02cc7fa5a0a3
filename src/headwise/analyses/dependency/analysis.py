"""Heads that follow syntax: how often a head's most attended word is a word's syntactic head, for
each relation.

Clark et al. 2019, §4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.accuracy import parse_heads
from headwise.analyses.contract import Observer, Paper, Shape, at_least, layer_head_coords, one_of
from headwise.analyses.dependency import noop
from headwise.analyses.dependency.arcs import (
    ALL,
    SUBTYPES,
    PairRules,
    WordPairs,
    gather_pairs,
    relation_labels,
    upos_members,
)
from headwise.analyses.dependency.result import (
    BASELINES,
    DIRECTIONS,
    PairTotals,
    accuracy_dataset,
    given_head_variables,
    summary_lines,
)
from headwise.analyses.released import PAPER, RELEASED, VARIANTS
from headwise.core.errors import ParameterError, unknown
from headwise.models.view import AttentionRows, Layer
from headwise.models.words import simple_maps, word_index, word_maps, word_visibility
from headwise.stats.accumulators import State, Sums
from headwise.stats.corrections import CORRECTIONS
from headwise.stats.units import UnitSums, default_max_units
from headwise.text.encode import Batch, units_of
from headwise.text.example import ROOT, UPOS

# Attributes: examples counted, left out because words and pieces do not align, or without a tree,
# and words cut off at the end of a long example.
EXAMPLE_COUNTS = ("examples", "examples_unaligned", "examples_without_tree", "words_cut")


class PairCounts(UnitSums):
    """Sums over word pairs for each document or example, with the rules they are counted by."""

    def __init__(self, rules: PairRules, *shape: int) -> None:
        super().__init__(*shape, dtype=torch.int32)
        self.rules = rules

    def merge(self, other: UnitSums) -> None:
        if isinstance(other, PairCounts) and other.rules != self.rules:
            raise ValueError("counts of different relations or rules cannot merge")
        super().merge(other)


@dataclass(frozen=True)
class Dependency(Observer):
    """Score single heads as parsers (§4.2 and Table 1).

    On word-level maps A (to a word: sum over pieces; from a word: mean; special tokens left out)
    the predicted head of a word d is

    - `dependent_to_head`: the other word that d attends to most, `argmax_{h ≠ d} A[d, h]`;
    - `head_to_dependent`: the other word that attends to d most, `argmax_{h ≠ d} A[h, d]`; ties go
      to the first word.

    `accuracy[direction, layer, head, relation]` is the share of pairs whose head is found, with
    `accuracy_n` and a 95 % interval `accuracy_low`, `accuracy_high` (Wilson's, with the effective
    number of pairs: those of one document, or of one sentence where no documents are known, are
    not independent; the attribute `units` says which); relation `all` is the head's UAS over everything
    but roots and punctuation. Only pairs that a head could find count: a decoder's words see what
    stands before them, so `dependent_to_head` is scored on pairs whose head comes first,
    `head_to_dependent` on those whose dependent does; `possible[direction, relation]` says how many
    that leaves of `count[relation]`, and where it leaves none the accuracy is NaN.

    `baseline[relation]` is the best fixed offset over all pairs, `baseline_offset` that offset
    (head − dependent; the lowest of equals; 0 where there is no pair);
    `baseline_possible[direction, relation]` and `baseline_possible_offset` the same over the pairs
    possible in that direction: the same number for an encoder.

    Two more baselines know no syntax: `uniform`, uniform attention to the visible tokens, which
    finds the word of most pieces (and of words that attend to d: the first), and `first`, attention
    on the first token alone (a sink). `baseline_accuracy[baseline, direction, relation]` has all
    three on the pairs possible in a direction; `bar[direction, relation]` is the best of them,
    `bar_name` which that is: of equals the first in the order `offset`, `uniform`, `first`. A head
    is compared with the bar.

    `lexical[direction, relation]` (corpora with parts of speech) is what is found without the order
    of words: a word drawn from all visible words of the part of speech that most often is the
    answer, `lexical_upos` which that is. A head that links words by what they are, wherever they
    stand, finds as much.

    `p_value[direction, layer, head, relation]`: the sign-flip test, one-tailed, that the head finds
    more than the bar does, with documents (or sentences) as units. `p_family` is corrected over the
    heads and directions of a relation (max-T over the same flips, since the best of them is
    picked), `p_adjusted` over the relations too: for the best of each relation by `correction`, for
    all others by their number; relations of fewer than 30 pairs are never significant (p = 1) and do
    not count. `best_direction`, `best_layer`, `best_head`, `best_accuracy`, `best_baseline` (the bar),
    `best_baseline_name`, `best_margin`, `best_p_value`, `best_p_adjusted[relation]`: the head with
    the highest accuracy (of those with 30 pairs, where there are any); `few[relation]`: under 30
    pairs.

    The best of many is flattered on the text it was picked on. `best_heldout_accuracy[relation]`
    (with count and interval) picks the head on one half of the documents (or sentences) and scores
    it on the other, and the reverse; `best_heldout_baseline` and `best_heldout_margin` (with
    interval) are on the same pairs, `best_heldout_same` says whether both halves pick the same
    head. Summaries, figures and reports show these.

    The no-op reading (§3.2): `noop_with`, `noop_without[direction, layer, head, relation]` are mean
    attention to `[SEP]` (a decoder's first token) from words that have the relation (as dependents;
    for `head_to_dependent` as heads) and from those that do not, `noop_upos[layer, head, upos]` by
    part of speech, and `best_noop_with`, `best_noop_without[relation]`, `best_noop_upos[relation,
    group, upos]` those of each relation's best head.

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
        For possessors followed by `'s`, that mark's prediction counts in place of the word's own,
        as in the authors' notebook.
    correction : {"holm", "benjamini_hochberg", "none"}, default "holm"
        For the number of relations.
    noop : {"auto", "sep", "cls", "first", "off"}, default "auto"
        The token type that heads with nothing to do attend to; `auto` is `sep`, of a decoder
        `first`; `off` leaves the reading out.
    heads : tuple of str or str, optional
        Heads found on another text, to be tested on this one: `relation head direction`, as
        `headwise.analyses.accuracy.best_heads_parameter` gives them from a result .
        Nothing is picked here, so `given_p_adjusted` is corrected over relations alone:
        `given_direction`, `given_layer`, `given_head`, `given_accuracy` (with count and interval),
        `given_baseline`, `given_baseline_name`, `given_margin`, `given_p_value`,
        `given_p_adjusted[relation]`.
    reading : {"paper", "released"}, default "paper"
        `released` computes what the authors' code does (see `headwise.analyses.released`): attention
        from a word is that of its first piece, and `with_root`, `with_punct` and `poss_rule` hold.

    Notes
    -----
    Question: Which single heads follow a syntactic relation better than any rule that knows no
    syntax?

    Assumes: The trees are right, and words can be laid on tokens. A head follows a relation if its
    largest weight says the answer: how much weight lies there does not count.

    Pitfalls: `best_accuracy` is of the head picked on the text it is scored on and flattered;
    `best_heldout_accuracy` and the corrected p-value are not. `heads` tests heads on other text. An
    accuracy says
    nothing without the bar: most determiners stand right before their noun. A parser's trees bring
    the parser's habits with them. Of decoders only pairs they can see are scored, so their
    accuracies are not those of an encoder.

    Cost: The pass of the model, and reductions to words (`benchmarks/bench_dependency.py`).
    """

    relations: tuple[str, ...] | str = ()
    subtypes: str = "fold"
    reach: int = 10
    with_root: bool = False
    with_punct: bool = False
    poss_rule: bool = False
    correction: str = "holm"
    noop: str = "auto"
    heads: tuple[str, ...] | str = ()
    reading: str = PAPER

    name: ClassVar[str] = "dependency"
    title: ClassVar[str] = "Heads that follow syntax: dependency relations"
    paper: ClassVar[Paper] = Paper("clark2019", "§4.2, Table 1, Fig 5")
    units: ClassVar[Mapping[str, str]] = {
        "share of pairs": "best_accuracy best_baseline best_margin best_heldout_accuracy "
        "best_heldout_baseline best_heldout_margin"
    }
    requires: ClassVar[frozenset[str]] = frozenset({"words", "dependencies"})
    # Of equally good heads the first is the best: all but its accuracy depends on the order of heads.
    order_dependent: ClassVar[frozenset[str]] = frozenset(
        {
            "best_direction",
            "best_layer",
            "best_head",
            "best_accuracy_n",
            "best_accuracy_low",
            "best_accuracy_high",
            "best_baseline",
            "best_margin",
            "best_baseline_name",
            "best_p_value",
            "best_p_adjusted",
            "best_heldout_accuracy",
            "best_heldout_accuracy_n",
            "best_heldout_accuracy_low",
            "best_heldout_accuracy_high",
            "best_heldout_baseline",
            "best_heldout_margin",
            "best_heldout_margin_n",
            "best_heldout_margin_low",
            "best_heldout_margin_high",
            "best_heldout_same",
            "best_noop_with",
            "best_noop_without",
            "best_noop_upos",
        }
    )

    def __post_init__(self) -> None:
        one_of("subtypes", self.subtypes, SUBTYPES)
        at_least("reach", self.reach, 1)
        one_of("correction", self.correction, CORRECTIONS)
        one_of("reading", self.reading, VARIANTS)
        one_of("noop", self.noop, noop.TARGETS)
        parse_heads(self.heads, directions=DIRECTIONS)

    def missing_items(self, shape: Shape) -> dict[str, str]:
        # Both reject bad parameters before any work: heads that the model does not have, and
        # relations that do not occur.
        parse_heads(self.heads, shape, DIRECTIONS)
        self._rules(shape)
        reason = noop.missing_reason(self.noop, shape)
        return {"noop": reason} if reason else {}

    def _rules(self, shape: Shape) -> PairRules:
        known = relation_labels(shape.relations, self.subtypes)
        released = self.reading == RELEASED
        return PairRules(
            labels=(ALL, *self._chosen_relations(known)),
            subtypes=self.subtypes,
            with_root=self.with_root or released,
            with_punct=self.with_punct or released,
            poss_rule=self.poss_rule or released,
            reach=self.reach,
            noop=noop.resolve(self.noop, shape),
            causal=shape.causal,
        )

    def _chosen_relations(self, known: list[str]) -> list[str]:
        if not self.relations:
            return known
        names = self.relations
        if isinstance(names, str):
            names = tuple(names.split(","))
        chosen = [name.strip() for name in names if name.strip() not in ("", ALL)]
        for name in chosen:
            if name not in known:
                raise ParameterError(unknown("relation in this corpus", name, known))
        return chosen

    # --- the pass ---------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        rules = self._rules(shape)
        n_directions = len(DIRECTIONS)
        n_labels = len(rules.labels)
        # Pairs that could be found, by their true offset, and pairs that each other baseline finds.
        n_simple = rules.bins + len(BASELINES) - 1
        max_units = default_max_units(n_directions, shape.layers, shape.heads, n_labels)
        state = State(
            correct=PairCounts(rules, n_directions, shape.layers, shape.heads, n_labels),
            possible=UnitSums(
                n_directions, shape.layers, n_labels, dtype=torch.int32, max_units=max_units
            ),
            simple=UnitSums(
                n_directions, n_labels, n_simple, dtype=torch.int32, max_units=max_units
            ),
            lexical=UnitSums(n_directions, n_labels, len(UPOS), max_units=max_units),
            pairs=Sums(n_labels, rules.bins),
            examples=Sums(len(EXAMPLE_COUNTS)),
        )
        if self.noop != "off" and not noop.missing_reason(self.noop, shape):
            state |= noop.start(shape, n_labels)
        return state

    def reduce_rows(self, rows: AttentionRows, batch: Batch) -> Mapping[str, Tensor]:
        # The released code takes the attention from a word's first piece.
        index = replace(word_index(batch), leading=self.reading == RELEASED)
        noop_tokens = torch.stack([batch.token_mask(name) for name in noop.NOOP_TYPES], -1)
        return {
            "maps": word_maps(rows, index, noop_tokens),
            "visible": word_visibility(rows, index),
        }

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        correct = state["correct"]
        assert isinstance(correct, PairCounts)
        rules = correct.rules
        pairs = gather_pairs(batch, rules)
        units = batch.remember("units", lambda: units_of(batch.rows))
        if layer.layer == 0:
            state.sums("examples").add(
                torch.tensor([pairs.used, pairs.unaligned, pairs.bare, pairs.cut])
            )
            _observe_baselines(state, batch, pairs, rules, units)
        # The last columns are the mass on the token types of the no-op reading.
        n_types = len(noop.NOOP_TYPES)
        maps = sums["maps"][..., :-n_types]
        noop_mass = sums["maps"][..., -n_types:]
        if not maps.shape[-1]:
            return
        scores = find_heads(maps, sums["visible"] > 0, pairs)
        for direction, (found, possible) in enumerate(scores):
            where = (direction, layer.layer)
            correct.add(units, _count_by_label(found, pairs, rules, len(batch)), where)
            possible_count = _count_by_label(possible, pairs, rules, len(batch))[:, 0]
            state.by_unit("possible").add(units, possible_count, where)
        if "noop_with" in state:
            mass = noop_mass[..., noop.NOOP_TYPES.index(rules.noop)]
            noop.observe(state, mass, layer.layer, batch, rules)

    # --- the result -------------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        rules = self._rules(shape)
        totals = PairTotals(
            found=state.by_unit("correct").totals,
            possible=state.by_unit("possible").totals,
            simple=state.by_unit("simple").totals,
            lexical=state.by_unit("lexical").totals,
            pairs=state.sums("pairs").total.numpy(),
        )
        dataset = accuracy_dataset(totals, rules, self.correction)
        dataset = dataset.assign_coords(layer_head_coords(shape))
        if self.heads:
            given_heads = parse_heads(self.heads, shape, DIRECTIONS)
            dataset = dataset.assign(
                given_head_variables(dataset, given_heads, "given", self.correction)
            )
        if "noop_with" in state:
            noop_dataset = noop.result(state, dataset)
            dataset = dataset.merge(noop_dataset).assign_coords(upos=list(UPOS))
        example_counts = state.sums("examples").total
        attrs: dict[str, Any] = {
            name: int(count) for name, count in zip(EXAMPLE_COUNTS, example_counts, strict=True)
        }
        attrs |= {
            "noop_target": rules.noop,
            "units": state.by_unit("correct").unit_name,
            "unit_count": len(totals.found),
        }
        if shape.causal:
            attrs["note"] = (
                "A decoder's words see only what stands before them: dependent_to_head is scored "
                "on pairs whose head comes first, head_to_dependent on pairs whose dependent comes "
                "first."
            )
        return dataset.assign_attrs(attrs)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        return summary_lines(dataset, "given" if "given_layer" in dataset else "best")


def find_heads(maps: Tensor, visible: Tensor, pairs: WordPairs) -> list[tuple[Tensor, Tensor]]:
    """Score the pairs in both directions.

    Parameters
    ----------
    maps : Tensor
        `[example, head, from word, to word]`
    visible : Tensor
        Bool `[example, 1 or head, from word, to word]`
    pairs : WordPairs
        Of the same batch.

    Returns
    -------
    list of (Tensor, Tensor)
        For each direction `[pair, head]`, whether the head finds the pair, and
        `[pair, 1 or head]`, whether it could.
    """
    n_words = maps.shape[-1]
    is_root = pairs.head == ROOT
    head_or_zero = pairs.head.clamp(min=0)
    # Several pairs may concern one word: each word is predicted once.
    word_key, place_of_pair = torch.unique(
        pairs.example * n_words + pairs.word, return_inverse=True
    )
    example = word_key.div(n_words, rounding_mode="floor")
    word = word_key % n_words
    is_itself = torch.arange(n_words, device=maps.device) == word[:, None, None]

    def score(weights: Tensor, candidates: Tensor, head_visible: Tensor) -> tuple[Tensor, Tensor]:
        predicted = weights.masked_fill(~candidates | is_itself, -1.0).argmax(-1)
        # A root that is counted can never be found, by any head.
        possible = head_visible | is_root[:, None]
        is_head = predicted[place_of_pair] == pairs.head[:, None]
        other_word = (pairs.word != pairs.head)[:, None]
        return is_head & possible & other_word, possible

    dependent_to_head = score(
        maps[example, :, word],
        visible[example, :, word],
        visible[pairs.example, :, pairs.word, head_or_zero],
    )
    head_to_dependent = score(
        maps[example, :, :, word],
        visible[example, :, :, word],
        visible[pairs.example, :, head_or_zero, pairs.word],
    )
    return [dependent_to_head, head_to_dependent]


def _observe_baselines(
    state: State, batch: Batch, pairs: WordPairs, rules: PairRules, units: list[int]
) -> None:
    """Count all pairs by their offset, and what the baselines find; both need no model."""
    offset = torch.nn.functional.one_hot(pairs.bin, rules.bins).to(batch.device)
    state.sums("pairs").add(_count_by_label(offset, pairs, rules, len(batch)).sum(0).T)
    if not word_index(batch).count:
        return
    maps, visible = simple_maps(batch, rules.causal)
    for direction, (found, possible) in enumerate(find_heads(maps, visible, pairs)):
        columns = torch.cat([offset * possible[:, :1], found], 1)
        counts = _count_by_label(columns, pairs, rules, len(batch))
        state.by_unit("simple").add(units, counts.transpose(1, 2), (direction,))
        from_word = visible[:, 0] if direction == 0 else visible[:, 0].transpose(1, 2)
        hits = lexical_hits(from_word, upos_members(batch), pairs)
        counts = _count_by_label(hits, pairs, rules, len(batch))
        state.by_unit("lexical").add(units, counts.transpose(1, 2), (direction,))


def lexical_hits(visible: Tensor, upos: Tensor, pairs: WordPairs) -> Tensor:
    """Return the chance that a word drawn from all visible words of a part of speech is the one to
    find, `[pair, upos]`; 0 where that has another part of speech, or cannot be seen.

    It knows the words and not their order, so that it finds as much in shuffled text.

    Parameters
    ----------
    visible : Tensor
        Bool `[example, word, candidate]`.
    upos : Tensor
        From `upos_members`.
    pairs : WordPairs
        Of the same batch.
    """
    candidates = visible[pairs.example, pairs.word].to(upos.dtype)
    is_itself = torch.nn.functional.one_hot(pairs.word, candidates.shape[-1])
    candidates = candidates * (1 - is_itself)
    n_candidates = torch.bmm(candidates[:, None], upos[pairs.example])[:, 0]
    target = pairs.head.clamp(min=0)
    is_seen = candidates.gather(1, target[:, None]) * (pairs.head != ROOT)[:, None]
    is_target = upos[pairs.example, target]
    return is_target * is_seen / n_candidates.clamp(min=1)


def _count_by_label(values: Tensor, pairs: WordPairs, rules: PairRules, examples: int) -> Tensor:
    """Sum `values[pair, column]` by example and label: `[example, column, label]`."""
    n_labels = len(rules.labels)
    sums = torch.zeros(examples * n_labels, values.shape[1], device=values.device)
    sums.index_add_(0, pairs.example * n_labels + pairs.label, values.float())
    return sums.reshape(examples, n_labels, -1).transpose(1, 2)
