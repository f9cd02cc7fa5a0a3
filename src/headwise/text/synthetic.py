"""Rows of token ids that come from no text: what an analysis makes for itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwise.text.alignment import NO_WORD
from headwise.text.encode import Encoded, Encoder
from headwise.text.example import Example
from headwise.text.truncation import NO_SEGMENT


def synthetic_row(encoder: Encoder, ids: Sequence[int] | np.ndarray, index: int = 0) -> Encoded:
    """Token ids as a row, as if a text had given them; tokens that open or close inputs are
    special.

    Parameters
    ----------
    encoder : Encoder
        Whose tokenizer the ids are of.
    ids : sequence of int
        The tokens, special ones included.
    index : int, default 0
        The row's number.
    """
    token_ids = np.asarray(ids, dtype=np.int64)
    is_cls, is_sep, is_punct, pieces = encoder.token_type_masks(token_ids)
    is_special = is_cls | is_sep
    return Encoded(
        index=index,
        example=Example(text=" ".join(pieces), origin=f"made:{index}"),
        ids=token_ids,
        types=np.zeros(len(token_ids), dtype=np.int64),
        word=np.full(len(token_ids), NO_WORD, dtype=np.int64),
        segment=np.where(is_special, NO_SEGMENT, 0),
        special=is_special,
        cls=is_cls,
        sep=is_sep,
        punct=is_punct,
        truncated=False,
        aligned=False,
        pieces=pieces,
        token_text=encoder.token_text,
    )


def word_ids(encoder: Encoder) -> np.ndarray:
    """The ids of whole words of a vocabulary: letters (and digits after a letter) that begin a
    word, sorted.

    Where the tokenizer marks beginnings of words (Ġ, ▁) those that have the mark, else those
    without the mark of a continuation (##); where it has no such words at all, everything but
    special tokens."""
    special = set(encoder.tokenizer.all_special_ids)
    pieces = {i: piece for piece, i in encoder.tokenizer.get_vocab().items() if i not in special}
    marked = [i for i, piece in pieces.items() if piece[:1] in "Ġ▁" and _is_word(piece[1:])]
    plain = [
        i
        for i, piece in pieces.items()
        if not piece.startswith("##") and _is_word(piece.removesuffix("</w>"))
    ]
    return np.array(sorted(marked or plain or pieces), dtype=np.int64)


def _is_word(text: str) -> bool:
    return len(text) > 1 and text.isalnum() and text[0].isalpha()
