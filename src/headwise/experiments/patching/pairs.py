"""Pairs of inputs that differ in what decides the answer: from a file, or from templates of our
own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from headwise.core.errors import InputError, ParameterError, unknown
from headwise.models import HeadModel
from headwise.text.encode import Encoded
from headwise.text.readers.files import on_disk
from headwise.text.readers.rows import json_rows

FIELDS = ("clean", "corrupted", "answer", "wrong")
_NOUNS = """
key keys|dog dogs|book books|car cars|tree trees|house houses|boy boys|girl girls|teacher teachers|student students
friend friends|doctor doctors|picture pictures|letter letters|road roads|river rivers
"""
NOUNS = tuple(
    tuple(pair.split()) for line in _NOUNS.strip().split("\n") for pair in line.split("|")
)
BESIDE = ("near the", "behind the", "next to the", "in front of the")
VERBS = ((" is", " are"), (" was", " were"), (" has", " have"))
_NAMES = "Mary John Anna Peter Sarah Tom Emma James Alice David Laura Mark"
NAMES = tuple(_NAMES.split())
SCENES = (
    "When {a} and {b} went to the {place}, {giver} gave a {thing} to",
    "After {a} and {b} came home from the {place}, {giver} handed the {thing} to",
    "Then {a} and {b} had a long talk at the {place}, and {giver} passed a {thing} to",
)
PLACES = ("store", "school", "garden", "station", "office", "park")
OVERSAMPLING = 8  # built-in pairs that are tried for each one that is asked for
THINGS = ("book", "letter", "ball", "drink", "ring", "key")


@dataclass(frozen=True, slots=True)
class PromptPair:
    """A clean and a corrupted input, the answer that follows the clean one, and the one that
    follows the other.

    Both inputs must have the same number of tokens; the answers are told by their first token.
    """

    clean: str
    corrupted: str
    answer: str
    wrong: str
    where: str = ""


def distinct_pairs(pairs: Sequence[PromptPair]) -> list[PromptPair]:
    """Return the pairs without repetitions: a pair that occurs twice is one observation."""
    first_of_each: dict[tuple[str, str, str, str], PromptPair] = {}
    for pair in pairs:
        first_of_each.setdefault((pair.clean, pair.corrupted, pair.answer, pair.wrong), pair)
    return list(first_of_each.values())


def read_pairs(path: str | Path) -> list[PromptPair]:
    """Pairs from a JSONL file with `clean`, `corrupted`, `answer`, `wrong` in each row."""
    found = []
    for where, row in json_rows(on_disk(Path(path))):
        lacking = [name for name in FIELDS if not isinstance(row.get(name), str)]
        if lacking:
            raise InputError(
                f"{where}: the field `{lacking[0]}` must be a text; a pair has {', '.join(FIELDS)}."
            )
        found.append(PromptPair(row["clean"], row["corrupted"], row["answer"], row["wrong"], where))
    if not found:
        raise InputError(
            f"{path} holds no pairs; each line must be an object with {', '.join(FIELDS)}."
        )
    return found


def _agreement(random: np.random.Generator) -> Iterator[PromptPair]:
    """The verb agrees with the first noun, not with the one beside it."""
    while True:
        own, other = (NOUNS[i] for i in random.choice(len(NOUNS), 2, replace=False))
        beside, verb, plural = (
            random.choice(BESIDE),
            VERBS[random.integers(len(VERBS))],
            int(random.integers(2)),
        )
        tail = f"{beside} {other[int(random.integers(2))]}"
        inputs = [f"The {noun} {tail}" for noun in own]
        yield PromptPair(
            inputs[plural], inputs[1 - plural], verb[plural], verb[1 - plural], "agreement"
        )


def _names(random: np.random.Generator) -> Iterator[PromptPair]:
    """What is given goes to the other of two people."""
    scenes = list(product(SCENES, PLACES, THINGS))
    while True:
        a, b = (NAMES[i] for i in random.choice(len(NAMES), 2, replace=False))
        scene, place, thing = scenes[int(random.integers(len(scenes)))]
        inputs = [scene.format(a=a, b=b, place=place, thing=thing, giver=giver) for giver in (b, a)]
        yield PromptPair(inputs[0], inputs[1], f" {a}", f" {b}", "names")


BUILTIN = {"agreement": _agreement, "names": _names}


def builtin_pairs(name: str, count: int, seed: int = 0) -> list[PromptPair]:
    """So many different pairs made by templates: `agreement` (subject and verb) or `names`
    (indirect objects).

    >>> builtin_pairs("agreement", 1)[0].answer in {" is", " are", " was", " were", " has", " have"}
    True
    """
    if name not in BUILTIN:
        raise ParameterError(unknown("set of pairs", name, BUILTIN))
    found: dict[tuple[str, str, str], PromptPair] = {}
    for tried, pair in enumerate(BUILTIN[name](np.random.default_rng(seed))):
        found.setdefault((pair.clean, pair.corrupted, pair.answer), pair)
        if len(found) >= count or tried > 100 * count:
            return list(found.values())
    raise AssertionError("the templates never end")


def usable_pairs(model: HeadModel, name: str, count: int, seed: int = 0) -> list[PromptPair]:
    """Return built-in pairs up to the `count`-th that a model can be patched with.

    Which pairs can be used depends on the tokenizer. Those in between that cannot are returned too,
    so that `patch(..., strict=False)` counts them as left out.
    """
    pairs = builtin_pairs(name, OVERSAMPLING * count, seed)
    n_usable = 0
    for number, pair in enumerate(pairs, 1):
        if not encode_pair(model, pair, number)[1]:
            n_usable += 1
        if n_usable == count:
            return pairs[:number]
    return pairs


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPair:
    """A pair as rows of tokens with the ids of both answers."""

    clean: Encoded
    corrupted: Encoded
    answer: int
    wrong: int


def encode_pairs(
    model: HeadModel, pairs: list[PromptPair], strict: bool
) -> tuple[list[EncodedPair], int]:
    """Pairs as tokens, and how many were left out; with `strict` one that cannot be used is refused
    instead.

    Left out are pairs of unequal length, and pairs whose answers begin with the same token.
    """
    found, left_out = [], 0
    for index, pair in enumerate(pairs):
        rows, reason = encode_pair(model, pair, index)
        if reason and strict:
            raise InputError(f"{pair.where}: {reason}.")
        if reason:
            left_out += 1
        else:
            found.append(rows)
    if not found:
        raise InputError(
            "No pair can be used: all have inputs of unequal length or answers that begin alike."
        )
    return found, left_out


def encode_pair(model: HeadModel, pair: PromptPair, index: int) -> tuple[EncodedPair, str]:
    """Return a pair as tokens, and why it cannot be used ("" if it can)."""
    rows = EncodedPair(
        clean=model.encode(pair.clean, index),
        corrupted=model.encode(pair.corrupted, index),
        answer=_first(model, pair.answer, pair),
        wrong=_first(model, pair.wrong, pair),
    )
    if len(rows.clean) != len(rows.corrupted):
        return rows, (
            f"the inputs have {len(rows.clean)} and {len(rows.corrupted)} tokens; they must have "
            "equally many"
        )
    if rows.answer == rows.wrong:
        return rows, f"both answers begin with the same token ('{pair.answer}', '{pair.wrong}')"
    return rows, ""


def _first(model: HeadModel, text: str, pair: PromptPair) -> int:
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    # Tokenizers that write ▁ for a space put one before a text; with a space it would stand alone.
    pieces = [i for i in ids if model.encoder.piece_text(int(i))]
    if not pieces:
        raise InputError(f"{pair.where}: the answer '{text}' has no tokens.")
    return int(pieces[0])
