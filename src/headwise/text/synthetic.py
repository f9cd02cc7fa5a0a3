"""Synthetic rows of token ids, which analyses build without a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwise.core.token_types import SPECIAL_TYPES, TYPE_NAMES
from headwise.text.alignment import NO_SEGMENT, NO_WORD
from headwise.text.encode import Encoded, Encoder
from headwise.text.example import Example


def synthetic_row(encoder: Encoder, ids: Sequence[int] | np.ndarray, index: int = 0) -> Encoded:
    """Return token ids as a row, as if it came from a text; tokens that open or close inputs are
    special.

    Parameters
    ----------
    encoder : Encoder
        The encoder whose tokenizer the ids belong to.
    ids : sequence of int
        The tokens, special ones included.
    index : int, default 0
        The row's number.
    """
    token_ids = np.asarray(ids, dtype=np.int64)
    pieces, token_type = encoder.pieces_and_types(token_ids)
    is_special = np.isin(token_type, [TYPE_NAMES.index(name) for name in SPECIAL_TYPES])
    return Encoded(
        index=index,
        example=Example(text=" ".join(pieces), origin=f"made:{index}"),
        ids=token_ids,
        types=np.zeros(len(token_ids), dtype=np.int64),
        word=np.full(len(token_ids), NO_WORD, dtype=np.int64),
        segment=np.where(is_special, NO_SEGMENT, 0),
        special=is_special,
        token_type=token_type,
        truncated=False,
        aligned=False,
        pieces=pieces,
        token_text=encoder.token_text,
    )


def word_ids(encoder: Encoder) -> np.ndarray:
    """Return the sorted ids of whole words of a vocabulary: letters, then letters or digits.

    Where the tokenizer marks beginnings of words (Ġ, ▁), these are the pieces with the mark;
    otherwise those without the mark of a continuation (##). A vocabulary without such words gives
    everything but special tokens.
    """
    special_ids = set(encoder.tokenizer.all_special_ids)
    piece_of_id = {}
    marked_as_beginning = []
    not_marked_as_continuation = []
    for piece, token_id in encoder.tokenizer.get_vocab().items():
        if token_id in special_ids:
            continue
        piece_of_id[token_id] = piece
        if piece[:1] in "Ġ▁" and _is_word(piece[1:]):
            marked_as_beginning.append(token_id)
        if not piece.startswith("##") and _is_word(piece.removesuffix("</w>")):
            not_marked_as_continuation.append(token_id)
    ids = marked_as_beginning or not_marked_as_continuation or list(piece_of_id)
    return np.array(sorted(ids), dtype=np.int64)


def _is_word(text: str) -> bool:
    return len(text) > 1 and text.isalnum() and text[0].isalpha()
