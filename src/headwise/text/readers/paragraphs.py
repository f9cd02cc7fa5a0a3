"""Read pairs of consecutive paragraphs, as in BERT's training and in Clark et al. 2019."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headwise.core.errors import InputError, ParameterError
from headwise.text.corpus import Notes
from headwise.text.example import Example
from headwise.text.readers.files import TextFile
from headwise.text.readers.limits import BlankRowError
from headwise.text.readers.rows import json_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The paragraphs of a document, each with file and line, and its name.
Document = tuple[Iterable[tuple[str, str]], str | None]


def paragraph_pairs(
    paragraphs: Iterable[str | tuple[str, str]],
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_tokens: int = 128,
    *,
    overlapping: bool = False,
    notes: Notes | None = None,
    document: str | None = None,
) -> Iterator[Example]:
    """Yield pairs of consecutive paragraphs of one document (Clark et al. 2019, §3: "at most 128
    tokens").

    `[CLS] a [SEP] b [SEP]` has at most `max_tokens` tokens: the longer paragraph is truncated
    first, as in BERT's own preprocessing, between words.

    Parameters
    ----------
    paragraphs : iterable of str or (str, str)
        The paragraphs of one document in order, or (origin, paragraph).
    tokenizer : PreTrainedTokenizerBase, optional
        The fast tokenizer of the model; without one pairs are not truncated here.
    max_tokens : int, default 128
        The maximum number of tokens, special tokens included.
    overlapping : bool, default False
        Whether pairs overlap ((1, 2), (2, 3), ...) or not ((1, 2), (3, 4), ...).
    notes : Counter of str, optional
        Counts paragraphs that are left out.
    document : str, optional
        The name of the document.

    Examples
    --------
    >>> pairs = paragraph_pairs(["One.", "Two.", "Three."], overlapping=True)
    >>> [(pair.text, pair.pair) for pair in pairs]
    [('One.', 'Two.'), ('Two.', 'Three.')]
    """
    if notes is None:
        notes = Counter()
    max_text_tokens = 2
    if tokenizer is not None:
        max_text_tokens = max_tokens - tokenizer.num_special_tokens_to_add(pair=True)
    if max_text_tokens < 2:
        raise ParameterError(
            f"`max_tokens` must allow at least one token of each paragraph; {max_tokens} does not."
        )
    located = _located(paragraphs)
    pairs = pairwise(located) if overlapping else _two_by_two(located, notes)
    for (origin, first), (_, second) in pairs:
        if tokenizer is not None:
            first, second = _cut_pair(first, second, tokenizer, max_text_tokens)
            if not first or not second:
                notes["pairs of paragraphs left out: no whole word fits"] += 1
                continue
        yield Example(text=first, pair=second, origin=origin, document=document)


def _located(paragraphs: Iterable[str | tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the paragraphs that are not blank, stripped, each with where it is."""
    for item in paragraphs:
        origin, text = item if isinstance(item, tuple) else ("", item)
        if text.strip():
            yield origin, text.strip()


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
    first: str, second: str, tokenizer: PreTrainedTokenizerBase, max_tokens: int
) -> tuple[str, str]:
    """Truncate two texts to `max_tokens` tokens in all."""
    first_offsets = _offsets(tokenizer, first)
    second_offsets = _offsets(tokenizer, second)
    n_first, n_second = share(len(first_offsets), len(second_offsets), max_tokens)
    first_cut = cut(first, first_offsets, n_first)
    second_cut = cut(second, second_offsets, n_second)
    # The last word may be tokenized differently after the cut: count again until both fit.
    while first_cut and second_cut:
        n_first = len(_offsets(tokenizer, first_cut))
        n_second = len(_offsets(tokenizer, second_cut))
        if n_first + n_second <= max_tokens:
            break
        if n_first >= n_second:
            first_cut = _drop_last_word(first_cut)
        else:
            second_cut = _drop_last_word(second_cut)
    return first_cut, second_cut


def share(first: int, second: int, budget: int) -> tuple[int, int]:
    """Return how many tokens each of two segments keeps if the longer is truncated first.

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
    """Return the longest beginning of a text with at most `room` tokens that ends at a word
    boundary; a text without spaces is cut anywhere."""
    if len(offsets) <= room:
        return text
    has_spaces = any(character.isspace() for character in text)
    for n_tokens in range(room, 0, -1):
        end = offsets[n_tokens - 1][1]
        at_boundary = text[end : end + 1].isspace() or text[end - 1 : end].isspace()
        if at_boundary or not has_spaces:
            return text[:end].rstrip()
    return ""


def _drop_last_word(text: str) -> str:
    head, _, _ = text.rpartition(" ")
    return head.rstrip()


def _offsets(tokenizer: PreTrainedTokenizerBase, text: str) -> list[tuple[int, int]]:
    row = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [(int(start), int(end)) for start, end in row["offset_mapping"]]


def read_pairs(
    documents: Callable[[TextFile], Iterable[Document]],
    files: Iterable[TextFile],
    notes: Notes,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_tokens: int = 128,
    overlapping: bool = False,
) -> Iterator[Example]:
    """Read pairs of consecutive paragraphs of the documents in each file; the options are those
    of `paragraph_pairs`."""
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
    """Yield the articles of JSONL rows `{"title": ..., "paragraphs": [...]}`."""
    for where, row in json_rows(file):
        document = file.walk.attempt(partial(article, row, where))
        if document is not None:
            yield document


def article(row: Mapping[str, Any], where: str) -> Document:
    """Return one article as a document, named by its title or else by where it is."""
    paragraphs = row.get("paragraphs")
    if paragraphs is None and "paragraphs" in row:
        raise BlankRowError(f"{where}: `paragraphs` is null.")
    if not isinstance(paragraphs, list) or not all(isinstance(text, str) for text in paragraphs):
        raise InputError(f"{where}: an article needs `paragraphs`, a list of texts.")
    if not any(text.strip() for text in paragraphs):
        raise BlankRowError(f"{where}: `paragraphs` has no text.")
    title = row.get("title")
    name = title if isinstance(title, str) and title else where
    return [(where, paragraph) for paragraph in paragraphs], name
