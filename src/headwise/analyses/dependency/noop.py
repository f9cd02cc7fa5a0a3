"""The no-op reading of heads: attention to `[SEP]` from words that have a head's relation, and from
words that do not.

Clark et al. 2019, §3.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Shape, mean_variables
from headwise.analyses.dependency.arcs import (
    PairRules,
    has_tree,
    relation_members,
    upos_members,
)
from headwise.models.words import word_index
from headwise.stats.accumulators import Moments, SparseSums, State
from headwise.stats.intervals import share
from headwise.text.encode import Batch
from headwise.text.example import UPOS

TARGETS = ("auto", "sep", "cls", "first", "off")
NOOP_TYPES = ("sep", "cls", "first")
GROUPS = ("with", "without")
DIMS = ("direction", "layer", "head", "relation")
UNITS = {"units": "share of attention"}


def resolve(target: str, shape: Shape) -> str:
    """Return the token type that `auto` stands for: `[SEP]`, or the first token of a decoder."""
    if target != "auto":
        return target
    # Nothing closes the text of a decoder, so that it has no [SEP] to attend to.
    return "first" if shape.causal else "sep"


def missing_reason(target: str, shape: Shape) -> str | None:
    """Return why this reading cannot be computed, or None."""
    token_type = resolve(target, shape)
    if token_type in ("off", "first") or token_type in shape.token_types:
        return None
    alternative = "first"
    for name in NOOP_TYPES:
        if name in shape.token_types:
            alternative = name
            break
    return f"the tokenizer has no {token_type} token; set noop={alternative}"


def start(shape: Shape, n_labels: int) -> State:
    """Return an empty state: means over examples for each group of words, and sums by part of
    speech for the best heads."""
    heads = (shape.layers, shape.heads)
    state = State({f"noop_{group}": Moments(2, *heads, n_labels) for group in GROUPS})
    state["noop_upos"] = Moments(*heads, len(UPOS))
    # Words without a relation are nearly all words of a part of speech. What is summed for them is
    # only by how much their mean differs from that of all words of this part of speech, in the few
    # examples where it does (`cross_without`); likewise for the number of examples.
    for group in GROUPS:
        state[f"cross_{group}"] = SparseSums(2, *heads, n_labels, len(UPOS))
        state[f"cross_{group}_n"] = SparseSums(2, n_labels, len(UPOS))
    return state


def _members(batch: Batch, rules: PairRules) -> tuple[Tensor, Tensor, Tensor]:
    """Return the words of trees: by relation `[direction, example, word, label]`, by part of speech
    `[example, word, upos]`, and all `[example, word]`."""
    has_words = [row.aligned and has_tree(row) for row in batch.rows]
    is_used = torch.tensor(has_words, device=batch.device)
    words = word_index(batch).present & is_used[:, None]
    return relation_members(batch, rules), upos_members(batch) * words[..., None], words.float()


def observe(state: State, mass: Tensor, layer: int, batch: Batch, rules: PairRules) -> None:
    """Add the mass `[example, head, word]` that words put on the target."""
    relation, upos, words = batch.remember(("noop", rules), lambda: _members(batch, rules))
    upos_mass = torch.einsum("bhw,bwu->bhu", mass, upos)
    upos_count = upos.sum(1)
    state.moments("noop_upos").add(_example_mean(upos_mass, upos_count[:, None]), (layer,))
    all_mass = torch.einsum("bhw,bw->bh", mass, words)
    all_count = words.sum(1)
    for direction in range(2):
        member = relation[direction]
        where = (direction, layer)
        with_mass = torch.einsum("bhw,bwr->bhr", mass, member)
        with_count = member.sum(1)
        without_mass = all_mass[..., None] - with_mass
        without_count = all_count[:, None] - with_count
        state.moments("noop_with").add(_example_mean(with_mass, with_count[:, None]), where)
        state.moments("noop_without").add(
            _example_mean(without_mass, without_count[:, None]), where
        )

        # The same by relation and part of speech, [example, head, label, upos].
        joint = torch.einsum("bwr,bwu->bwru", member, upos)
        cross_mass = torch.einsum("bhw,bwru->bhru", mass, joint)
        cross_count = joint.sum(1)[:, None]
        cross_mean = cross_mass / cross_count.clamp(min=1)
        other_mass = upos_mass[:, :, None] - cross_mass
        other_count = upos_count[:, None, None] - cross_count
        other_mean = torch.where(other_count > 0, other_mass / other_count.clamp(min=1), 0.0)
        upos_mean = (upos_mass / upos_count[:, None].clamp(min=1))[:, :, None]
        difference = torch.where(cross_count > 0, other_mean - upos_mean, 0.0)
        state.sums("cross_with").add(cross_mean.sum(0), where)
        state.sums("cross_without").add(difference.sum(0), where)
        if layer == 0:
            has_relation = cross_count[:, 0] > 0
            has_no_others = has_relation & (other_count[:, 0] == 0)
            state.sums("cross_with_n").add(has_relation.double().sum(0), (direction,))
            state.sums("cross_without_n").add(-has_no_others.double().sum(0), (direction,))


def _example_mean(total: Tensor, count: Tensor) -> Tensor:
    """Return means within examples; NaN, and so left out, where an example has no such word."""
    # Differences of sums may be a hair below zero.
    mean = (total / count.clamp(min=1)).clamp(min=0.0)
    return torch.where(count > 0, mean, torch.nan)


def result(state: State, scores: xr.Dataset) -> xr.Dataset:
    """Return the readings of every head, and those of the best head of each relation."""
    variables: dict[str, Any] = {}
    for group in GROUPS:
        variables |= mean_variables(f"noop_{group}", DIMS, state.moments(f"noop_{group}"), **UNITS)
    variables |= mean_variables(
        "noop_upos", ("layer", "head", "upos"), state.moments("noop_upos"), **UNITS
    )
    return xr.Dataset(
        variables | _best_head_variables(state, scores, variables), coords={"group": list(GROUPS)}
    )


def _best_head_variables(
    state: State, scores: xr.Dataset, of_all_heads: dict[str, Any]
) -> dict[str, xr.Variable]:
    """Return the readings of the best head of each relation."""
    relation = np.arange(scores.sizes["relation"])
    is_scored = scores["best_layer"].values >= 0
    second_direction = scores["direction"].values[1]
    direction = (scores["best_direction"].values == second_direction).astype(int)
    layer = np.maximum(scores["best_layer"].values, 0)
    head = np.maximum(scores["best_head"].values, 0)
    place = (direction, layer, head, relation)
    all_words = state.moments("noop_upos")
    all_words_n = all_words.count.numpy()[layer, head]

    variables: dict[str, xr.Variable] = {}
    means = []
    counts = []
    for group in GROUPS:
        for suffix in ("", "_n", "_low", "_high"):
            values = of_all_heads[f"noop_{group}{suffix}"].values[place]
            best = np.where(is_scored, values, 0 if suffix == "_n" else np.nan)
            attrs = UNITS if suffix == "" else {}
            variables[f"best_noop_{group}{suffix}"] = xr.Variable(("relation",), best, attrs)
        count = state.sums(f"cross_{group}_n").total.numpy()[direction, relation]
        total = state.sums(f"cross_{group}").total.numpy()[place]
        if group == "without":
            # The state holds differences from all words of a part of speech, see `start`.
            count = count + all_words_n
            total = total + all_words.mean.numpy()[layer, head] * all_words_n
        count = np.where(is_scored[:, None], count, 0)
        counts.append(count)
        means.append(share(total, count))
    dims = ("relation", "group", "upos")
    upos_mean = np.stack(means, 1).astype(np.float32)
    upos_count = np.stack(counts, 1).astype(np.int64)
    variables["best_noop_upos"] = xr.Variable(dims, upos_mean, UNITS)
    variables["best_noop_upos_n"] = xr.Variable(dims, upos_count)
    return variables
