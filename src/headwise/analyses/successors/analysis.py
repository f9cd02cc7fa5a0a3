"""Relations from weights: which heads turn a word into the next, its plural, its capital."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from headwise.analyses.circuits.analysis import unembedding_of
from headwise.analyses.contract import (
    ExperimentContext,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
)
from headwise.analyses.direct_logits import DirectLogitExperiment
from headwise.analyses.successors.circuits import (
    TokenRelation,
    pair_tokens,
    random_turns,
    rank_targets,
    relations_in_tokens,
    surprise,
    word_vectors,
)
from headwise.analyses.summaries import format_heads, ranked_heads
from headwise.core.labels import SIGNIFICANCE_LEVEL
from headwise.models import HeadModel
from headwise.models.weights import head_weights
from headwise.stats.intervals import wilson_interval
from headwise.text.word_pairs import RELATIONS, SEQUENCES, WordPair, read_word_pairs

STREAMS = ("after_mlp", "bare")
SUCCESSOR = "successor"  # all sequences together
MIN_PAIRS = 5  # of a relation: with fewer, nothing is said of it
VARIABLES = ("share", "share_low", "share_high", "among_all")
DIMS = ("stream", "layer", "head", "relation")


@dataclass(frozen=True)
class Successors(DirectLogitExperiment):
    """Find the heads whose OV circuit turns a word into another one by a relation: the next day,
    number or letter, the plural, the past tense, the opposite, the capital.

    No text is read. What stands for a word goes through a head's value and output matrices and the
    output matrix of the model (`circuits`), which gives a score to every word of the relation,
    sources and targets; a pair is right where its target has the highest. A copying head ranks the
    source itself first, and is wrong.

    - `share[stream, layer, head, relation]`: share of pairs that are right, with count and 95 %
      interval (Wilson, over pairs). Streams: `after_mlp`, the embedding after the first MLP (Gould
      et al. 2023), and `bare`, the embedding alone. The relation `successor` has the pairs of all
      sequences (days, months, numbers, number words, ordinals, letters), each ranked within its
      own;
    - `among_all`: share of pairs whose target ranks first among the words of all relations;
    - `p_value`: share of random turns (a rotation between what the head reads and what it writes)
      with as many right pairs; `p_adjusted`: corrected over heads, relations and streams, by the
      most surprising head of each turn: exact for random weights;
    - `chance[relation]`: share of pairs that a random choice gets right.

    Relations of which fewer than five pairs are single tokens of the model are NaN (attribute
    `relations_left_out`).

    Parameters
    ----------
    pairs : str, default ""
        A file with further relations: relation, source and target in each line, with tabs between
        them.
    turns : int, default 200
        Random turns.
    seed : int, optional
        Of the turns; default: that of the run.

    Notes
    -----
    Question: Which heads turn a word into the next one, its plural or its capital, by their
    weights?

    Assumes: Words are single tokens. Norms are folded in by their gain alone, and biases are left
    out, as in `circuits`; what the first MLP makes of a word is computed without what the heads of
    the first layer write.

    Pitfalls: Weights say what a head would do with a word that it attends to, not that it attends
    to one. The ranking is within the words of a relation: among all words others may rank higher
    (`among_all`).

    Cost: No text: the words of the lists once through the model, and small matrices for every head
    and turn.
    """

    pairs: str = ""
    turns: int = 200
    seed: int | None = None

    name: ClassVar[str] = "successors"
    title: ClassVar[str] = "Successors and other relations, from weights"
    paper: ClassVar[Paper] = Paper(
        "gould2023", "Successor heads; relations: Elhelo & Geva 2024", more=("elhelo2024",)
    )
    units: ClassVar[Mapping[str, str]] = {"share of pairs": "share among_all chance"}
    # Measured on SmolLM2-135M and on a decoder of 268 M parameters: 115 and 200.
    typical_passes: ClassVar[float] = 150.0

    def __post_init__(self) -> None:
        at_least("turns", self.turns, 20)

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model = bench.model
        structure = self.structure_to_logits(model)
        tokens_by_relation, left_out = self._usable_relations(model)
        all_tokens, relations = relations_in_tokens(tokens_by_relation)
        counts = _Counts(relations, bench.shape, self.turns)
        if not relations:
            return counts.dataset(left_out)
        vectors = word_vectors(model, structure, all_tokens)
        assert structure.head is not None
        assert structure.final is not None
        unembedding = unembedding_of(structure.head, structure.final, all_tokens)
        turns = random_turns(self.turns, model.d_head, self.seed or 0)

        for layer, weights in enumerate(head_weights(model, structure)):
            for number, stream in enumerate(STREAMS):
                ranks = rank_targets(weights, vectors[stream], unembedding, relations, turns)
                for name in relations:
                    counts.right[name][number, layer] = ranks.right[name]
                    counts.turned[name][:, number, layer] = ranks.turned[name]
                    counts.among_all[name][number, layer] = ranks.among_all[name]
            bench.progress("relations", layer + 1, model.layers)
        sequences = [name for name in SEQUENCES if name in relations]
        if len(sequences) > 1:
            counts.pool(SUCCESSOR, sequences)
        return counts.dataset(left_out)

    def _usable_relations(
        self, model: HeadModel
    ) -> tuple[dict[str, list[tuple[int, int]]], dict[str, int]]:
        """Return the pairs of tokens of each relation; and of the relations of which the model's
        tokenizer leaves too few, how many."""
        lists: dict[str, list[WordPair]] = {**SEQUENCES, **RELATIONS}
        if self.pairs:
            lists |= read_word_pairs(self.pairs)
        usable = {}
        left_out = {}
        for name, pairs in lists.items():
            tokens = pair_tokens(model, pairs)
            if len(tokens) >= MIN_PAIRS:
                usable[name] = tokens
            else:
                left_out[name] = len(tokens)
        return usable, left_out

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["p_adjusted"] < SIGNIFICANCE_LEVEL

    def summary(self, dataset: xr.Dataset) -> list[str]:
        after_mlp = dataset.sel(stream="after_mlp")
        lines = []
        for relation in dataset["relation"].values:
            of_relation = after_mlp.sel(relation=relation)
            share = of_relation["share"].transpose("layer", "head").values
            p_adjusted = of_relation["p_adjusted"].transpose("layer", "head").values
            heads = ranked_heads(share, p_adjusted < SIGNIFICANCE_LEVEL)
            if heads:
                lines.append(
                    f"{relation}: {len(heads)} heads (corrected p < {SIGNIFICANCE_LEVEL:g}), most: "
                    f"{format_heads(share, heads[:3])} (chance {float(of_relation['chance']):.2f}, "
                    f"{int(of_relation['share_n'])} pairs)"
                )
        if not lines:
            lines.append("No head has a relation by its weights")
        too_few = dataset.attrs["relations_left_out"]
        if too_few:
            lines.append(
                f"Left out, with fewer than {MIN_PAIRS} pairs that are single tokens: {too_few}"
            )
        return lines


class _Counts:
    """Right pairs of all heads by relation: `right[stream, layer, head]`, `turned[draw, stream,
    layer, head]`, `among_all[stream, layer, head]`."""

    def __init__(self, relations: Mapping[str, TokenRelation], shape: Shape, draws: int) -> None:
        self.shape = shape
        size = (len(STREAMS), shape.layers, shape.heads)
        self.n_pairs = {name: relation.n_pairs for name, relation in relations.items()}
        self.chance = {name: relation.chance for name, relation in relations.items()}
        self.right = {name: np.zeros(size, int) for name in relations}
        self.turned = {name: np.zeros((draws, *size), int) for name in relations}
        self.among_all = {name: np.zeros(size, int) for name in relations}

    def pool(self, name: str, parts: list[str]) -> None:
        """Add a relation that has the pairs of several others."""
        n_pairs = sum(self.n_pairs[part] for part in parts)
        expected = sum(self.n_pairs[part] * self.chance[part] for part in parts)
        self.chance[name] = expected / n_pairs
        self.n_pairs[name] = n_pairs
        for counts in (self.right, self.turned, self.among_all):
            counts[name] = np.sum([counts[part] for part in parts], axis=0)

    def dataset(self, left_out: Mapping[str, int]) -> xr.Dataset:
        """Return shares with intervals and tests; NaN for relations with too few pairs."""
        coords = layer_head_coords(self.shape) | {"stream": list(STREAMS)}
        too_few = ", ".join(f"{name} ({number})" for name, number in left_out.items())
        variables = self._tested_shares() if self.right else {}
        names = [*self.right, *left_out]
        computed = xr.Dataset(variables, coords | {"relation": list(self.right)})
        if not self.right:
            empty = np.full((len(STREAMS), self.shape.layers, self.shape.heads, 0), np.nan)
            for name in (*VARIABLES, "p_value", "p_adjusted"):
                computed[name] = (DIMS, empty)
            computed["chance"] = ("relation", np.zeros(0))
            computed["share_n"] = ("relation", np.zeros(0, int))
        counts = computed["share_n"].reindex(relation=names, fill_value=0)
        dataset = computed.drop_vars("share_n").reindex(relation=names)
        dataset["share_n"] = counts
        dataset.attrs["relations_left_out"] = too_few
        return dataset

    def _tested_shares(self) -> dict[str, Any]:
        """Return shares with intervals and tests, of the relations that have pairs."""
        names = list(self.right)
        n_pairs = np.array([self.n_pairs[name] for name in names])
        surprises = []
        turned_surprises = []
        for name in names:
            pairs_and_chance = (self.n_pairs[name], self.chance[name])
            surprises.append(surprise(self.right[name], *pairs_and_chance))
            turned_surprises.append(surprise(self.turned[name], *pairs_and_chance))
        observed = np.stack(surprises, -1)  # stream, layer, head, relation
        turned = np.stack(turned_surprises, -1)  # draw, stream, layer, head, relation
        n_draws = len(turned)
        # Counts are whole numbers: ties with a turned circuit count against the head.
        p_value = (1 + (turned >= observed - 1e-9).sum(0)) / (1 + n_draws)
        most = turned.reshape(n_draws, -1).max(1)
        n_above = n_draws - np.searchsorted(np.sort(most), observed - 1e-9, side="left")
        p_adjusted = (1 + n_above) / (1 + n_draws)

        right = np.stack([self.right[name] for name in names], -1)
        among_all = np.stack([self.among_all[name] for name in names], -1)
        low, high = wilson_interval(right, np.broadcast_to(n_pairs, right.shape))
        return {
            "share": (DIMS, right / n_pairs),
            "share_n": ("relation", n_pairs),
            "share_low": (DIMS, low, {"over": "pairs"}),
            "share_high": (DIMS, high, {"over": "pairs"}),
            "among_all": (DIMS, among_all / n_pairs),
            "p_value": (DIMS, p_value),
            "p_adjusted": (DIMS, np.maximum(p_adjusted, p_value)),
            "chance": ("relation", [self.chance[name] for name in names]),
        }
