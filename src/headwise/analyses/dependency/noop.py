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
    UPOS,
    PairRules,
    has_tree,
    relation_members,
    upos_members,
)
from headwise.models.words import word_index
from headwise.stats.accumulators import Moments, SparseSums, State
from headwise.stats.intervals import share
from headwise.text.encode import Batch

TARGETS = ("auto", "sep", "cls", "first", "off")
TYPES = ("sep", "cls", "first")
GROUPS = ("with", "without")
DIMS = ("direction", "layer", "head", "relation")


def resolve(target: str, shape: Shape) -> str:
    """The type of token meant by `auto`: `[SEP]`, and the first token for a decoder, whose text has
    no end yet."""
    return target if target != "auto" else "first" if shape.causal else "sep"


def missing(target: str, shape: Shape) -> str | None:
    """Why this reading cannot be had, or None."""
    target = resolve(target, shape)
    if target in ("off", "first") or target in shape.token_types:
        return None
    other = next((name for name in TYPES if name in shape.token_types), "first")
    return f"the tokenizer has no {target} token; set noop={other}"


def start(shape: Shape, labels: int) -> State:
    """Means over examples for each group of words, and sums by part of speech, of which the best
    heads' means are made.

    Words without a relation are nearly all words of a part of speech: what is summed for them is
    only by how much their mean differs from that of all its words, in the few examples where it
    does (`cross_without`); likewise for the number of examples."""
    heads = (shape.layers, shape.heads)
    state = State({f"noop_{group}": Moments(2, *heads, labels) for group in GROUPS})
    state["noop_upos"] = Moments(*heads, len(UPOS))
    for group in GROUPS:
        state[f"cross_{group}"] = SparseSums(2, *heads, labels, len(UPOS))
        state[f"cross_{group}_n"] = SparseSums(2, labels, len(UPOS))
    return state


def _members(batch: Batch, rules: PairRules) -> tuple[Tensor, Tensor, Tensor]:
    """Of trees: words by relation `[direction, example, word, label]`, by part of speech `[example,
    word, upos]`, and all words `[example, word]`."""
    used = torch.tensor([row.aligned and has_tree(row) for row in batch.rows], device=batch.device)
    words = word_index(batch).present & used[:, None]
    return relation_members(batch, rules), upos_members(batch) * words[..., None], words.float()


def observe(state: State, mass: Tensor, layer: int, batch: Batch, rules: PairRules) -> None:
    """Take in the mass `[example, head, word]` that words put on the target."""
    relation, upos, words = batch.remember(("noop", rules), lambda: _members(batch, rules))
    by_upos = torch.einsum("bhw,bwu->bhu", mass, upos)
    upos_count = upos.sum(1)
    state.moments("noop_upos").add(_mean(by_upos, upos_count[:, None]), (layer,))
    total, count = torch.einsum("bhw,bw->bh", mass, words), words.sum(1)
    for direction in range(2):
        member = relation[direction]
        here = (direction, layer)
        own, own_count = torch.einsum("bhw,bwr->bhr", mass, member), member.sum(1)
        state.moments("noop_with").add(_mean(own, own_count[:, None]), here)
        state.moments("noop_without").add(
            _mean(total[..., None] - own, (count[:, None] - own_count)[:, None]), here
        )
        joint = torch.einsum("bwr,bwu->bwru", member, upos)
        cross = torch.einsum("bhw,bwru->bhru", mass, joint)
        cross_count = joint.sum(1)[:, None]
        rest, rest_count = by_upos[:, :, None] - cross, upos_count[:, None, None] - cross_count
        rest_mean = torch.where(rest_count > 0, rest / rest_count.clamp(min=1), 0.0)
        everyone = (by_upos / upos_count[:, None].clamp(min=1))[:, :, None]
        state.sums("cross_with").add((cross / cross_count.clamp(min=1)).sum(0), here)
        state.sums("cross_without").add(
            torch.where(cross_count > 0, rest_mean - everyone, 0.0).sum(0), here
        )
        if layer == 0:
            some = cross_count[:, 0] > 0
            state.sums("cross_with_n").add(some.double().sum(0), (direction,))
            state.sums("cross_without_n").add(
                -(some & (rest_count[:, 0] == 0)).double().sum(0), (direction,)
            )


def _mean(total: Tensor, count: Tensor) -> Tensor:
    """Means within examples; NaN, and so left out, where an example has no such word."""
    # Differences of sums may be a hair below zero.
    return torch.where(count > 0, (total / count.clamp(min=1)).clamp(min=0.0), torch.nan)


def dataset(state: State, scores: xr.Dataset) -> xr.Dataset:
    """The readings of every head, and those of the best head of each relation."""
    units = {"units": "share of attention"}
    variables: dict[str, Any] = {}
    for group in GROUPS:
        variables |= mean_variables(f"noop_{group}", DIMS, state.moments(f"noop_{group}"), **units)
    variables |= mean_variables(
        "noop_upos", ("layer", "head", "upos"), state.moments("noop_upos"), **units
    )
    relations = scores.sizes["relation"]
    scored = scores["best_layer"].values >= 0
    chosen = (scores["best_direction"].values == scores["direction"].values[1]).astype(int)
    layer, head = (
        np.maximum(scores["best_layer"].values, 0),
        np.maximum(scores["best_head"].values, 0),
    )
    place = (chosen, layer, head, np.arange(relations))
    everyone = state.moments("noop_upos")
    everyone_n = everyone.count.numpy()[layer, head]
    means, counts = [], []
    for group in GROUPS:
        for suffix in ("", "_n", "_low", "_high"):
            values = variables[f"noop_{group}{suffix}"].values[place]
            best = np.where(scored, values, 0 if suffix == "_n" else np.nan)
            variables[f"best_noop_{group}{suffix}"] = xr.Variable(
                ("relation",), best, units if not suffix else {}
            )
        count = state.sums(f"cross_{group}_n").total.numpy()[chosen, np.arange(relations)]
        total = state.sums(f"cross_{group}").total.numpy()[place]
        if group == "without":
            count = count + everyone_n
            total = total + everyone.mean.numpy()[layer, head] * everyone_n
        counts.append(np.where(scored[:, None], count, 0))
        means.append(share(total, counts[-1]))
    upos, upos_n = np.stack(means, 1), np.stack(counts, 1).astype(np.int64)
    dims = ("relation", "group", "upos")
    variables["best_noop_upos"] = xr.Variable(dims, upos.astype(np.float32), units)
    variables["best_noop_upos_n"] = xr.Variable(dims, upos_n)
    return xr.Dataset(variables, coords={"group": list(GROUPS)})
