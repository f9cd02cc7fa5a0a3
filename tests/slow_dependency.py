"""Dependency accuracies and no-op readings the slow way: plain loops over sentences, words and
pairs of words; what is done for one head is done for all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from headwise.text.encode import Encoded

SIMPLE = ("uniform", "first")


@dataclass
class Slow:
    """`found` and `tried` count pairs by (direction, layer, head, relation); `offsets` all pairs by
    relation and offset; `noop` lists example means [layer, head]."""

    found: Counter = field(default_factory=Counter)
    tried: Counter = field(default_factory=Counter)
    offsets: dict = field(default_factory=lambda: defaultdict(Counter))
    # Of each pair by (direction, layer, head, relation): its sentence, its offset, whether it is
    # found.
    outcomes: dict = field(default_factory=lambda: defaultdict(list))
    noop: dict = field(default_factory=lambda: defaultdict(list))


def word_map(maps: np.ndarray, row: Encoded) -> np.ndarray:
    """Sum over the pieces of the word attended to, mean over the pieces of the word that attends:
    of one map or, with dims before the last two, of many."""
    words = sorted(set(row.word[row.word >= 0].tolist()))
    pieces = {w: [t for t in range(len(row.word)) if row.word[t] == w] for w in words}
    out = np.zeros((*maps.shape[:-2], len(words), len(words)), dtype=np.result_type(maps, float))
    for a in words:
        for b in words:
            out[..., a, b] = sum(sum(maps[..., i, j] for j in pieces[b]) for i in pieces[a]) / len(
                pieces[a]
            )
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
        every_label |= {
            r if keep_subtypes else r.split(":")[0]
            for r in row.example.relations or ()
            if r != "root"
        }
    for sentence, (given, row) in enumerate(zip(maps, rows, strict=True)):
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
                d + 1
                if poss_rule
                and full in ("poss", "nmod:poss")
                and d + 1 < count
                and words[d + 1] == "'s"
                else d
            )
            for label in labels:
                out.offsets[label][None if h is None else h - source] += 1
        simple_level = word_map(_simple(row, causal), row)[None]  # the same in every layer
        levels = (word_map(given, row), simple_level)  # [layer, head, word, word] each
        pieces = {w: [t for t in range(len(row.word)) if row.word[t] == w] for w in range(count)}
        mass = {
            w: sum(given[:, :, t, getattr(row, target)].sum(-1) for t in own) / len(own)
            for w, own in pieces.items()
        }
        _no_op(out, mass, example, pairs, every_label)
        for direction in ("dependent_to_head", "head_to_dependent"):
            predicted: dict[int, np.ndarray | None] = {}
            for d in range(count):
                # A decoder's word sees those before it.
                away = direction == "dependent_to_head"
                others = [
                    w for w in range(count) if w != d and (not causal or (w < d if away else w > d))
                ]
                said = []
                for level in levels if others else ():
                    weight = [level[:, :, d, w] if away else level[:, :, w, d] for w in others]
                    # The first of equals.
                    said.append(
                        np.broadcast_to(
                            np.array(others)[np.argmax(weight, 0)], (len(given), level.shape[1])
                        )
                    )
                predicted[d] = np.concatenate(said, 1) if said else None
            for d, h, labels, full in pairs:
                source = (
                    d + 1
                    if poss_rule
                    and full in ("poss", "nmod:poss")
                    and d + 1 < count
                    and words[d + 1] == "'s"
                    else d
                )
                if (
                    causal
                    and h is not None
                    and (h > source if direction == "dependent_to_head" else h < source)
                ):
                    continue
                offset = None if h is None else h - source
                for layer, head in np.ndindex(len(given), given.shape[1] + len(SIMPLE)):
                    named = predicted[source]
                    right = h is not None and named is not None and bool(named[layer, head] == h)
                    simple = head - given.shape[1]  # the last are no heads
                    for label in labels:
                        key = (direction, layer, head if simple < 0 else SIMPLE[simple], label)
                        out.outcomes[key].append((sentence, offset, right))
                        if simple < 0:
                            out.tried[key] += 1
                            out.found[key] += right
    return out


def _no_op(
    out: Slow, mass: dict[int, np.ndarray], example: object, pairs: list, every_label: set[str]
) -> None:
    """`mass` has what each word puts on the target, [layer, head]."""
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
                    out.noop[group, direction, label].append(np.mean([mass[w] for w in members], 0))
                for tag in set(upos or ()):
                    tagged = [w for w in members if upos[w] == tag]
                    if tagged:
                        out.noop[group, direction, label, tag].append(
                            np.mean([mass[w] for w in tagged], 0)
                        )
    for tag in set(upos or ()):
        out.noop["upos", tag].append(np.mean([mass[w] for w in mass if upos[w] == tag], 0))


def _simple(row: Encoded, causal: bool) -> np.ndarray:
    """Two heads that know nothing, `[2, query, key]`: uniform attention, and all of it on the first
    token. In fractions: what ties must tie."""
    n = len(row.word)
    even = [
        [
            Fraction(1, i + 1 if causal else n) if j <= i or not causal else Fraction()
            for j in range(n)
        ]
        for i in range(n)
    ]
    first = [[Fraction(j == 0) for j in range(n)] for _ in range(n)]
    return np.array([even, first], dtype=object)


def differences(
    slow: Slow, key: tuple, sentences: int, reach: int
) -> tuple[np.ndarray, float, str]:
    """What the head finds more than the best baseline does in each sentence, that baseline's
    accuracy, and its name.

    Of equal ones the bar is the first in the order offset, uniform, first; of equal offsets the
    lowest."""
    own = slow.outcomes[key]
    counts = Counter(offset for _, offset, _ in own)
    best = max(range(-reach, reach + 1), key=lambda o: (counts[o], -o))
    ways = {"offset": [offset == best for _, offset, _ in own]}
    for name in SIMPLE:
        ways[name] = [right for _, _, right in slow.outcomes[*key[:2], name, key[3]]]
    bar = max(ways, key=lambda name: sum(ways[name]))
    out = np.zeros(sentences)
    for (sentence, _, right), simple in zip(own, ways[bar], strict=True):
        out[sentence] += right - simple
    return out, sum(ways[bar]) / len(own), bar
