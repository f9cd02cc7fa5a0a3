"""Pairs of inputs that differ in what decides the answer: from a file, or from built-in templates;
as rows of tokens."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headwise.core.errors import InputError, ParameterError, unknown
from headwise.experiments.patching.templates import BUILTIN, PromptPair
from headwise.models import HeadModel
from headwise.text.encode import Encoded
from headwise.text.readers.files import on_disk
from headwise.text.readers.rows import json_rows

FIELDS = ("clean", "corrupted", "answer", "wrong")
MARKED = re.compile(r"\[\[(.+?)\]\]", re.DOTALL)
OVERSAMPLING = 8  # built-in pairs that are tried for each one that is asked for


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
        unit = row.get("unit", "")
        if not isinstance(unit, str):
            raise InputError(f"{where}: the field `unit` must be a text, or be left out.")
        fields = {name: row[name] for name in FIELDS}
        pairs.append(PromptPair(**fields, where=where, unit=unit))
    if not pairs:
        raise InputError(
            f"{path} holds no pairs; each line must be an object with {', '.join(FIELDS)}."
        )
    return pairs


def builtin_pairs(name: str, count: int, seed: int = 0) -> list[PromptPair]:
    """Return different pairs made by templates; fewer than `count` where the templates give no more.

    `agreement` (subject and verb), `names` (indirect objects), `greater-than` (years), `pronouns`
    (gender), `induction` (a repeated word), `docstring` (the next argument), `capitals`.

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


def choose_pairs(
    model: HeadModel,
    pairs: str | Path | Sequence[PromptPair],
    limit: int,
    seed: int,
    strict: bool | None,
) -> tuple[list[PromptPair], bool]:
    """Return the pairs that a user named, and whether one that cannot be used is an error (by
    default for all but built-in pairs).

    Parameters
    ----------
    model : HeadModel
        Whose tokenizer decides which built-in pairs can be used.
    pairs : str, Path or sequence of PromptPair
        A built-in set, a .jsonl file, or pairs.
    limit, seed : int
        The largest number of pairs; of the built-in templates.
    strict : bool, optional
        What the caller wants.
    """
    is_builtin = isinstance(pairs, str) and pairs in BUILTIN
    if strict is None:
        strict = not is_builtin
    if is_builtin:
        return usable_pairs(model, str(pairs), limit, seed), strict
    if isinstance(pairs, str | Path):
        # A name without an ending is meant as that of a set.
        if not Path(pairs).suffix and not Path(pairs).exists():
            raise ParameterError(unknown("set of pairs", str(pairs), BUILTIN))
        return read_pairs(pairs)[:limit], strict
    for number, pair in enumerate(pairs):
        if not isinstance(pair, PromptPair):
            raise ParameterError(
                f"`pairs` holds a {type(pair).__name__} at place {number}; give "
                "PromptPair(clean, corrupted, answer, wrong), a .jsonl file, or one of "
                f"{', '.join(BUILTIN)}."
            )
    return list(pairs), strict


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPair:
    """A pair as rows of tokens with the ids of both answers.

    `positions[t]` is the token of the corrupted input that stands where token t of the clean one
    does, −1 where none does. `unit` is that of the pair, or its own where it has none."""

    clean: Encoded
    corrupted: Encoded
    answer: int
    wrong: int
    positions: np.ndarray
    unit: str = ""


def encode_pairs(
    model: HeadModel, pairs: Sequence[PromptPair], strict: bool, *, marked: bool = False
) -> tuple[list[EncodedPair], int]:
    """Return pairs as tokens, and how many were left out; with `strict`, raise for one that cannot
    be used.

    Left out are pairs of unequal length, unless `marked` allows them to be aligned by their marks,
    and pairs whose answers begin with the same token.
    """
    encoded = []
    n_left_out = 0
    for index, pair in enumerate(pairs):
        tokens, reason = encode_pair(model, pair, index)
        if not reason and not marked and len(tokens.clean) != len(tokens.corrupted):
            reason = _unequal(tokens)
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
    clean_text, clean_spans = without_marks(pair.clean)
    corrupted_text, corrupted_spans = without_marks(pair.corrupted)
    clean = model.encode(clean_text, index)
    corrupted = model.encode(corrupted_text, index)
    reason = ""
    if clean_spans or corrupted_spans:
        clean_stretches = token_stretches(model, clean_text, clean_spans, len(clean))
        corrupted_stretches = token_stretches(
            model, corrupted_text, corrupted_spans, len(corrupted)
        )
        positions, reason = _aligned_by_marks(clean_stretches, corrupted_stretches)
    else:
        positions = np.arange(len(clean))
    # Without a unit a pair is one of its own. The first words differ, so that no name of a unit can
    # be that of a pair.
    unit = f"unit {pair.unit}" if pair.unit else f"pair {index}"
    tokens = EncodedPair(
        clean=clean,
        corrupted=corrupted,
        answer=first_token(model, pair.answer, pair.where),
        wrong=first_token(model, pair.wrong, pair.where),
        positions=positions,
        unit=unit,
    )
    if not clean_spans and len(clean) != len(corrupted):
        return tokens, _unequal(tokens)
    if reason:
        return tokens, reason
    if tokens.answer == tokens.wrong:
        return tokens, f"both answers begin with the same token ('{pair.answer}', '{pair.wrong}')"
    return tokens, ""


def _unequal(tokens: EncodedPair) -> str:
    return (
        f"the inputs have {len(tokens.clean)} and {len(tokens.corrupted)} tokens; they must have "
        "equally many"
    )


def without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without its marks `[[...]]`, and the marked stretches of characters.

    >>> without_marks("The [[keys]] are")
    ('The keys are', [(4, 8)])
    """
    plain = ""
    spans = []
    end = 0
    for match in MARKED.finditer(text):
        plain += text[end : match.start()]
        spans.append((len(plain), len(plain) + len(match[1])))
        plain += match[1]
        end = match.end()
    return plain + text[end:], spans


def token_stretches(
    model: HeadModel, text: str, spans: Sequence[tuple[int, int]], n_tokens: int
) -> list[range]:
    """Return the tokens of a text as stretches: unmarked, marked, unmarked, and so on."""
    offsets = model.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    bounds = [0]
    for start, stop in spans:
        inside = []
        for token, (first, last) in enumerate(offsets[:n_tokens]):
            # A token may begin with the space before the marked word.
            if last > start and first < stop and last > first:
                inside.append(token)
        bounds += [inside[0], inside[-1] + 1]
    bounds.append(n_tokens)
    return [range(start, stop) for start, stop in itertools.pairwise(bounds)]


def _aligned_by_marks(clean: list[range], corrupted: list[range]) -> tuple[np.ndarray, str]:
    """Return the token of the corrupted input for each of the clean one, and why there is none.

    Marked stretches are aligned at their ends: the last token of a name is where it is complete."""
    positions = np.full(clean[-1].stop, -1)
    if len(clean) != len(corrupted):
        return positions, (
            f"the inputs have {len(clean) // 2} and {len(corrupted) // 2} marked spans; they must "
            "have equally many"
        )
    for number, (stretch, other) in enumerate(zip(clean, corrupted, strict=True)):
        is_marked = number % 2 == 1
        if not is_marked and len(stretch) != len(other):
            return positions, (
                f"outside the marks the inputs differ: {len(stretch)} and {len(other)} tokens "
                f"{'before the first mark' if number == 0 else f'after mark {number // 2}'}"
            )
        n_shared = min(len(stretch), len(other))
        positions[stretch.stop - n_shared : stretch.stop] = np.arange(
            other.stop - n_shared, other.stop
        )
    return positions, ""


def first_token(model: HeadModel, text: str, where: str) -> int:
    """Return the first token of an answer; `where` names its pair in errors."""
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    for token_id in ids:
        # Tokenizers that write ▁ for a space put one before a text: before a text that begins with
        # a space it stands alone, and is not the answer.
        if model.encoder.piece_text(int(token_id)):
            return int(token_id)
    raise InputError(f"{where}: the answer '{text}' has no tokens.")
