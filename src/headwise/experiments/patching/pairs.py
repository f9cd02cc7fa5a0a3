"""Pairs of inputs that differ in what decides the answer: from a file, or from built-in
templates."""

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
NOUNS = (
    ("key", "keys"),
    ("dog", "dogs"),
    ("book", "books"),
    ("car", "cars"),
    ("tree", "trees"),
    ("house", "houses"),
    ("boy", "boys"),
    ("girl", "girls"),
    ("teacher", "teachers"),
    ("student", "students"),
    ("friend", "friends"),
    ("doctor", "doctors"),
    ("picture", "pictures"),
    ("letter", "letters"),
    ("road", "roads"),
    ("river", "rivers"),
)
PREPOSITIONS = ("near the", "behind the", "next to the", "in front of the")
VERBS = ((" is", " are"), (" was", " were"), (" has", " have"))
NAMES = (
    "Mary",
    "John",
    "Anna",
    "Peter",
    "Sarah",
    "Tom",
    "Emma",
    "James",
    "Alice",
    "David",
    "Laura",
    "Mark",
)
SCENES = (
    "When {a} and {b} went to the {place}, {giver} gave a {thing} to",
    "After {a} and {b} came home from the {place}, {giver} handed the {thing} to",
    "Then {a} and {b} had a long talk at the {place}, and {giver} passed a {thing} to",
)
PLACES = ("store", "school", "garden", "station", "office", "park")
THINGS = ("book", "letter", "ball", "drink", "ring", "key")
OVERSAMPLING = 8  # built-in pairs that are tried for each one that is asked for


@dataclass(frozen=True, slots=True)
class PromptPair:
    """A clean and a corrupted input, the answer that follows the clean one, and the one that
    follows the other.

    Both inputs must have the same number of tokens; the answers are compared by their first token.
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
    """Read pairs from a JSONL file with `clean`, `corrupted`, `answer`, `wrong` in each row."""
    pairs = []
    for where, row in json_rows(on_disk(Path(path))):
        for name in FIELDS:
            if not isinstance(row.get(name), str):
                raise InputError(
                    f"{where}: the field `{name}` must be a text; a pair has {', '.join(FIELDS)}."
                )
        pairs.append(PromptPair(row["clean"], row["corrupted"], row["answer"], row["wrong"], where))
    if not pairs:
        raise InputError(
            f"{path} holds no pairs; each line must be an object with {', '.join(FIELDS)}."
        )
    return pairs


def _agreement(random: np.random.Generator) -> Iterator[PromptPair]:
    """Yield pairs in which the verb agrees with the first noun, not with the one beside it."""
    while True:
        first, second = random.choice(len(NOUNS), 2, replace=False)
        subject = NOUNS[first]
        attractor = NOUNS[second]
        preposition = random.choice(PREPOSITIONS)
        verb = VERBS[random.integers(len(VERBS))]
        number = int(random.integers(2))  # of the clean subject: 0 singular, 1 plural
        attractor_number = int(random.integers(2))
        inputs = [f"The {noun} {preposition} {attractor[attractor_number]}" for noun in subject]
        yield PromptPair(
            clean=inputs[number],
            corrupted=inputs[1 - number],
            answer=verb[number],
            wrong=verb[1 - number],
            where="agreement",
        )


def _names(random: np.random.Generator) -> Iterator[PromptPair]:
    """Yield pairs in which what is given goes to the other of two people."""
    scenes = list(product(SCENES, PLACES, THINGS))
    while True:
        first, second = random.choice(len(NAMES), 2, replace=False)
        a = NAMES[first]
        b = NAMES[second]
        scene, place, thing = scenes[int(random.integers(len(scenes)))]
        clean = scene.format(a=a, b=b, place=place, thing=thing, giver=b)
        corrupted = scene.format(a=a, b=b, place=place, thing=thing, giver=a)
        yield PromptPair(clean, corrupted, f" {a}", f" {b}", "names")


BUILTIN = {"agreement": _agreement, "names": _names}


def builtin_pairs(name: str, count: int, seed: int = 0) -> list[PromptPair]:
    """Return different pairs made by templates: `agreement` (subject and verb) or `names` (indirect
    objects); fewer than `count` where the templates give no more.

    >>> builtin_pairs("agreement", 1)[0].answer in {" is", " are", " was", " were", " has", " have"}
    True
    """
    if name not in BUILTIN:
        raise ParameterError(unknown("set of pairs", name, BUILTIN))
    pairs: dict[tuple[str, str, str], PromptPair] = {}
    for n_tried, pair in enumerate(BUILTIN[name](np.random.default_rng(seed))):
        pairs.setdefault((pair.clean, pair.corrupted, pair.answer), pair)
        if len(pairs) >= count or n_tried > 100 * count:
            return list(pairs.values())
    raise AssertionError("the templates never end")


def usable_pairs(model: HeadModel, name: str, count: int, seed: int = 0) -> list[PromptPair]:
    """Return built-in pairs up to the `count`-th that a model can be patched with.

    Which pairs can be used depends on the tokenizer. Those in between that cannot are returned too,
    so that `patch` counts them as left out.
    """
    pairs = builtin_pairs(name, OVERSAMPLING * count, seed)
    n_usable = 0
    for number, pair in enumerate(pairs, 1):
        _, reason = encode_pair(model, pair, number)
        if not reason:
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
    """Return pairs as tokens, and how many were left out; with `strict`, raise for one that cannot
    be used.

    Left out are pairs of unequal length, and pairs whose answers begin with the same token.
    """
    encoded = []
    n_left_out = 0
    for index, pair in enumerate(pairs):
        tokens, reason = encode_pair(model, pair, index)
        if not reason:
            encoded.append(tokens)
        elif strict:
            raise InputError(f"{pair.where}: {reason}.")
        else:
            n_left_out += 1
    if not encoded:
        raise InputError(
            "No pair can be used: all have inputs of unequal length or answers that begin alike."
        )
    return encoded, n_left_out


def encode_pair(model: HeadModel, pair: PromptPair, index: int) -> tuple[EncodedPair, str]:
    """Return a pair as tokens, and why it cannot be used ("" if it can)."""
    tokens = EncodedPair(
        clean=model.encode(pair.clean, index),
        corrupted=model.encode(pair.corrupted, index),
        answer=_first_token(model, pair.answer, pair),
        wrong=_first_token(model, pair.wrong, pair),
    )
    n_clean = len(tokens.clean)
    n_corrupted = len(tokens.corrupted)
    if n_clean != n_corrupted:
        return tokens, (
            f"the inputs have {n_clean} and {n_corrupted} tokens; they must have equally many"
        )
    if tokens.answer == tokens.wrong:
        return tokens, f"both answers begin with the same token ('{pair.answer}', '{pair.wrong}')"
    return tokens, ""


def _first_token(model: HeadModel, text: str, pair: PromptPair) -> int:
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    for token_id in ids:
        # Tokenizers that write ▁ for a space put one before a text: before a text that begins with
        # a space it stands alone, and is not the answer.
        if model.encoder.piece_text(int(token_id)):
            return int(token_id)
    raise InputError(f"{pair.where}: the answer '{text}' has no tokens.")
