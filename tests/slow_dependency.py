"""Dependency accuracies and no-op readings the slow way: plain loops, one sentence and one head at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import comb

import numpy as np

from headwise.text.encode import Encoded


@dataclass
class Slow:
    """`found` and `tried` count pairs by (direction, layer, head, relation); `offsets` all pairs by relation and
    offset; `noop` lists example means."""

    found: Counter = field(default_factory=Counter)
    tried: Counter = field(default_factory=Counter)
    offsets: dict = field(default_factory=lambda: defaultdict(Counter))
    outcomes: dict = field(
        default_factory=lambda: defaultdict(list)
    )  # of each pair: its offset, and whether it is found
    noop: dict = field(default_factory=lambda: defaultdict(list))


def word_map(map_: np.ndarray, row: Encoded) -> np.ndarray:
    """Sum over the pieces of the word attended to, mean over the pieces of the word that attends."""
    words = sorted(set(row.word[row.word >= 0].tolist()))
    pieces = {w: [t for t in range(len(row.word)) if row.word[t] == w] for w in words}
    out = np.zeros((len(words), len(words)))
    for a in words:
        for b in words:
            out[a, b] = sum(sum(map_[i, j] for j in pieces[b]) for i in pieces[a]) / len(pieces[a])
    return out


def slow_dependency(
    maps: Sequence[np.ndarray],
    rows: Sequence[Encoded],
    *,
    causal: bool = False,
    keep_subtypes: bool = False,
    with_root: bool = False,
    with_punct: bool = False,
    poss_rule: bool = False,
    reach: int = 10,
    target: str = "sep",
) -> Slow:
    out = Slow()
    every_label = {"all"}
    for row in rows:
        every_label |= {r if keep_subtypes else r.split(":")[0] for r in row.example.relations or () if r != "root"}
    for attention, row in zip(maps, rows, strict=True):
        example = row.example
        assert example.heads is not None
        assert example.relations is not None
        words = example.all_words
        count = len(words)
        pairs = []
        for d in range(count):
            h, full = example.heads[d], example.relations[d]
            label = full if keep_subtypes else full.split(":")[0]
            if h < 0:
                if with_root:
                    pairs.append((d, None, ["all"], full))
                continue
            labels = [label] + (["all"] if with_punct or not label.startswith("punct") else [])
            pairs.append((d, h, labels, full))
        for d, h, labels, full in pairs:
            source = (
                d + 1 if poss_rule and full in ("poss", "nmod:poss") and d + 1 < count and words[d + 1] == "'s" else d
            )
            for label in labels:
                out.offsets[label][None if h is None else h - source] += 1
        for layer in range(attention.shape[0]):
            for head in range(attention.shape[1]):
                level = word_map(attention[layer, head], row)
                sep_mass = {
                    w: float(
                        np.mean(
                            [
                                attention[layer, head, t, getattr(row, target)].sum()
                                for t in range(len(row.word))
                                if row.word[t] == w
                            ]
                        )
                    )
                    for w in range(count)
                }
                _no_op(out, layer, head, sep_mass, example, pairs, every_label)
                for direction in ("dependent_to_head", "head_to_dependent"):
                    predicted = {}
                    for d in range(count):
                        # A decoder's word sees those before it.
                        if direction == "dependent_to_head":
                            weight = {w: level[d, w] for w in range(count) if w != d and (not causal or w < d)}
                        else:
                            weight = {w: level[w, d] for w in range(count) if w != d and (not causal or w > d)}
                        top = max(weight.values(), default=None)
                        predicted[d] = min((w for w in weight if weight[w] == top), default=None)
                    for d, h, labels, full in pairs:
                        source = (
                            d + 1
                            if poss_rule and full in ("poss", "nmod:poss") and d + 1 < count and words[d + 1] == "'s"
                            else d
                        )
                        if (
                            causal
                            and h is not None
                            and (h > source if direction == "dependent_to_head" else h < source)
                        ):
                            continue
                        right = h is not None and predicted[source] == h
                        offset = None if h is None else h - source
                        for label in labels:
                            key = (direction, layer, head, label)
                            out.tried[key] += 1
                            out.found[key] += right
                            out.outcomes[key].append((offset, right))
    return out


def _no_op(
    out: Slow, layer: int, head: int, mass: dict[int, float], example: object, pairs: list, every_label: set[str]
) -> None:
    upos = getattr(example, "upos", None)
    for direction in ("dependent_to_head", "head_to_dependent"):
        for label in every_label:
            own = {
                (d if direction == "dependent_to_head" else h)
                for d, h, labels, _ in pairs
                if label in labels and h is not None
            }
            for group, members in (("with", own), ("without", set(mass) - own)):
                if members:
                    out.noop[group, direction, layer, head, label].append(np.mean([mass[w] for w in members]))
                for tag in set(upos or ()):
                    tagged = [w for w in members if upos[w] == tag]
                    if tagged:
                        out.noop[group, direction, layer, head, label, tag].append(np.mean([mass[w] for w in tagged]))
    for tag in set(upos or ()):
        out.noop["upos", layer, head, tag].append(np.mean([mass[w] for w in mass if upos[w] == tag]))


def exact_p(outcomes: list[tuple[int | None, bool]], reach: int) -> float:
    """Against the best fixed offset: P(X ≥ pairs that only the head finds) for a fair coin thrown for each pair that
    only one of the two finds."""
    counts = Counter(offset for offset, _ in outcomes)
    best = max(range(-reach, reach + 1), key=lambda o: (counts[o], -o))
    only_head = sum(right and offset != best for offset, right in outcomes)
    n = only_head + sum(not right and offset == best for offset, right in outcomes)
    return sum(comb(n, k) for k in range(only_head, n + 1)) / 2**n
