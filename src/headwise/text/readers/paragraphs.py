"""Pairs of consecutive paragraphs of at most so many tokens, as BERT was trained on and as Clark et
al. feed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headwise.core.errors import InputError, ParameterError
from headwise.text.corpus import Notes
from headwise.text.example import Example
from headwise.text.readers.files import TextFile
from headwise.text.readers.rows import json_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Document = tuple[
    Iterable[tuple[str, str]], str | None
]  # its paragraphs, each with its place; what it is called


def paragraph_pairs(
    paragraphs: Iterable[str | tuple[str, str]],
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_tokens: int = 128,
    *,
    overlapping: bool = False,
    notes: Notes | None = None,
    document: str | None = None,
) -> Iterator[Example]:
    """Segments of two consecutive paragraphs of one document (Clark et al. 2019, §3: "at most 128
    tokens").

    `[CLS] a [SEP] b [SEP]` has at most `max_tokens` tokens: the longer paragraph is cut first, as
    in BERT's own preparation, and a cut falls between words.

    Parameters
    ----------
    paragraphs : iterable of str or (str, str)
        The paragraphs of one document in order, or (origin, paragraph).
    tokenizer : PreTrainedTokenizerBase, optional
        The fast tokenizer of the model the pairs are for; without one the pairs are left whole, and
        the encoder cuts them to the model's length.
    max_tokens : int, default 128
        The longest row, special tokens included.
    overlapping : bool, default False
        Whether each paragraph but the first and last stands in two pairs ((1,2), (2,3), ...) or in
        one ((1,2), (3,4),
        ...).
    notes : Counter of str, optional
        Where left-out paragraphs are counted.
    document : str, optional
        What the document is called.

    Examples
    --------
    >>> [(pair.text, pair.pair) for pair in paragraph_pairs(["One.", "Two.", "Three."], overlapping=True)]
    [('One.', 'Two.'), ('Two.', 'Three.')]
    """
    notes = notes if notes is not None else Counter()
    named = (item if isinstance(item, tuple) else ("", item) for item in paragraphs)
    kept = ((origin, text.strip()) for origin, text in named if text.strip())
    budget = (
        max_tokens - tokenizer.num_special_tokens_to_add(pair=True) if tokenizer is not None else 2
    )
    if budget < 2:
        raise ParameterError(
            f"`max_tokens` must leave room for a token of each paragraph; {max_tokens} does not."
        )
    for (origin, first), (_, second) in pairwise(kept) if overlapping else _two_by_two(kept, notes):
        if tokenizer is not None:
            first, second = _cut_pair(first, second, tokenizer, budget)
            if not first or not second:
                notes["pairs of paragraphs left out: no whole word fits"] += 1
                continue
        yield Example(text=first, pair=second, origin=origin, document=document)


def _two_by_two(
    items: Iterator[tuple[str, str]], notes: Notes
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    for item in items:
        partner = next(items, None)
        if partner is None:
            notes["last paragraphs of documents left out: no partner"] += 1
        else:
            yield item, partner


def _cut_pair(
    first: str, second: str, tokenizer: PreTrainedTokenizerBase, budget: int
) -> tuple[str, str]:
    rows = [_offsets(tokenizer, first), _offsets(tokenizer, second)]
    room_first, room_second = share(len(rows[0]), len(rows[1]), budget)
    first_cut, second_cut = cut(first, rows[0], room_first), cut(second, rows[1], room_second)
    # A piece may come out otherwise at a cut; tokenizing again settles it.
    while first_cut and second_cut:
        lengths = [len(_offsets(tokenizer, first_cut)), len(_offsets(tokenizer, second_cut))]
        if sum(lengths) <= budget:
            break
        if lengths[0] >= lengths[1]:
            first_cut = _drop_last_word(first_cut)
        else:
            second_cut = _drop_last_word(second_cut)
    return first_cut, second_cut


def share(first: int, second: int, budget: int) -> tuple[int, int]:
    """How many tokens each of two segments keeps when the longer is cut first until both fit.

    >>> share(10, 100, 50), share(80, 90, 51)
    ((10, 40), (26, 25))
    """
    if first + second <= budget:
        return first, second
    half = budget // 2
    if first <= half:
        return first, budget - first
    if second <= half:
        return budget - second, second
    return budget - half, half


def cut(text: str, offsets: list[tuple[int, int]], room: int) -> str:
    """The longest beginning of a text that ends with a word and has at most `room` tokens; within a
    word only where the text has no spaces at all."""
    if len(offsets) <= room:
        return text
    spaced = any(character.isspace() for character in text)
    for kept in range(room, 0, -1):
        end = offsets[kept - 1][1]
        if not spaced or text[end : end + 1].isspace() or text[end - 1 : end].isspace():
            return text[:end].rstrip()
    return ""


def _drop_last_word(text: str) -> str:
    head, _, _ = text.rpartition(" ")
    return head.rstrip()


def _offsets(tokenizer: PreTrainedTokenizerBase, text: str) -> list[tuple[int, int]]:
    row = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [(int(a), int(b)) for a, b in row["offset_mapping"]]


def read_pairs(
    documents: Callable[[TextFile], Iterable[Document]],
    files: Iterable[TextFile],
    notes: Notes,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_tokens: int = 128,
    overlapping: bool = False,
) -> Iterator[Example]:
    """Pairs of consecutive paragraphs of the documents in each file; the options are those of
    `paragraph_pairs`."""
    for file in files:
        for paragraphs, name in documents(file):
            yield from paragraph_pairs(
                paragraphs,
                tokenizer,
                max_tokens,
                overlapping=overlapping,
                notes=notes,
                document=name,
            )


def articles_in(file: TextFile) -> Iterator[Document]:
    """The articles of JSONL rows `{"title": ..., "paragraphs": [...]}`."""
    return (article(row, where) for where, row in json_rows(file))


def article(row: Mapping[str, Any], where: str) -> Document:
    """One article."""
    paragraphs, title = row.get("paragraphs"), row.get("title")
    if not isinstance(paragraphs, list) or not all(isinstance(p, str) for p in paragraphs):
        raise InputError(f"{where}: an article needs `paragraphs`, a list of texts.")
    return [(where, paragraph) for paragraph in paragraphs], title if isinstance(
        title, str
    ) and title else where
