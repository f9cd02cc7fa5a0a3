"""Whatever a caller has as input to a model, as rows of tokens: texts, examples, token ids, what a
tokenizer gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from headwise.core.errors import InputError, ParameterError
from headwise.text.alignment import NO_WORD
from headwise.text.encode import Encoded, Encoder
from headwise.text.example import UNFIT, Example
from headwise.text.synthetic import synthetic_row
from headwise.text.truncation import NO_SEGMENT

Input = Any  # a text, an Example, an Encoded, token ids (list, array, tensor), a BatchEncoding, or several of the first
WANTED = "give a text, an Example, token ids (whole numbers, or a tensor [example, token]) or what a tokenizer gives"
Encode = Callable[[Example | str, int], Encoded]


def input_rows(
    given: Input, mask: Any, encode: Encode, encoder: Encoder | None, vocabulary: int | None
) -> list[Encoded]:
    """The rows of an input.

    Parameters
    ----------
    given : Input
        One input, or several.
    mask : array or Tensor, optional
        Of token ids: which are real, `[token]` or `[example, token]`; padding must be on the right.
    encode : callable
        Makes the row of an example or a text.
    encoder : Encoder, optional
        Whose tokenizer the token ids are of.
    vocabulary : int, optional
        How many token ids the model has.
    """
    make = _IdRows(encoder, vocabulary)
    if isinstance(given, Mapping) or hasattr(
        given, "input_ids"
    ):  # a tokenizer's BatchEncoding is a UserDict
        if "input_ids" not in given:
            keys = ", ".join(f"`{key}`" for key in given) or "nothing"
            raise InputError(f"A mapping given as input needs `input_ids`; it has {keys}.")
        mask = given.get("attention_mask") if mask is None else mask
        return make.rows(given["input_ids"], mask, given.get("token_type_ids"))
    if _is_array(given):
        return make.rows(given, mask)
    single = isinstance(given, Example | str | Encoded)
    if not single:
        if not isinstance(given, Iterable):
            raise InputError(f"A {type(given).__name__} is no input; {WANTED}.")
        given = list(given)
    if not single and given and all(_is_whole(item) or _is_ids(item) for item in given):
        return make.rows(given, mask)
    if mask is not None:
        raise ParameterError("`mask` says which token ids are real; it is not taken with texts.")
    rows = []
    for place, item in enumerate([given] if single else given):
        if isinstance(item, Encoded):
            rows.append(item)
        elif isinstance(item, Example | str):
            rows.append(encode(item, place))
        elif _is_ids(item):
            rows += make.rows([item], None, start=place)
        else:
            raise InputError(f"A {type(item).__name__} (place {place}) is no input; {WANTED}.")
    if not rows:
        raise InputError("A batch needs at least one example.")
    return rows


class _IdRows:
    """Makes rows of token ids."""

    def __init__(self, encoder: Encoder | None, vocabulary: int | None) -> None:
        self.encoder, self.vocabulary = encoder, vocabulary

    def rows(
        self, given: Any, mask: Any = None, types: Any = None, start: int = 0
    ) -> list[Encoded]:
        ids = _plain(given, "token ids")
        masks, kinds = (
            _like(mask, ids, "the attention mask", 1),
            _like(types, ids, "`token_type_ids`", 0),
        )
        each = zip(ids, masks, kinds, strict=True)
        return [self._row(*parts, index) for index, parts in enumerate(each, start)]

    def _row(self, ids: np.ndarray, mask: np.ndarray, types: np.ndarray, index: int) -> Encoded:
        where = f"Row {index} of token ids"
        attention_mask = mask.astype(bool)
        if not attention_mask.any() or (np.diff(attention_mask.astype(int)) > 0).any():
            side = "is padded on the left or inside" if attention_mask.any() else "is all padding"
            raise InputError(
                f"{where} {side}: give rows padded on the right (tokenizer.padding_side = 'right')."
            )
        ids, types = ids[attention_mask], types[attention_mask]
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or (self.vocabulary is not None and highest >= self.vocabulary):
            known = (
                "none is below 0"
                if lowest < 0
                else f"the model has ids 0 to {(self.vocabulary or 0) - 1}"
            )
            raise InputError(
                f"{where} has the id {lowest if lowest < 0 else highest}, but {known}."
            )
        if self.encoder is None:
            none, no = np.full(len(ids), NO_WORD, dtype=np.int64), np.zeros(len(ids), dtype=bool)
            example = Example(text=" ".join(map(str, ids)), origin=where)
            return Encoded(
                index, example, ids, types, none, np.zeros_like(ids), no, no, no, no, False, False
            )
        row = synthetic_row(self.encoder, ids, index)
        example = Example(
            text=UNFIT.sub("\ufffd", str(self.encoder.tokenizer.decode(ids.tolist()))), origin=where
        )
        # A second segment, where the model knows segments, has token type 1 (BERT and its kin).
        segment = np.where(row.special, NO_SEGMENT, (types > 0).astype(np.int64))
        return replace(row, example=example, types=types, segment=segment)


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_ids(value: object) -> bool:
    """Whether this is one row of token ids."""
    if _is_array(value):
        return True
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(_is_whole(item) for item in value)
    )


def _plain(given: Any, what: str) -> list[np.ndarray]:
    """Rows of whole numbers from a row, several rows, or a tensor of either."""
    if (
        isinstance(given, Sequence)
        and given
        and not all(isinstance(item, int | np.integer) for item in given)
    ):
        return [row for item in given for row in _plain(item, what)]
    values = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if values.size == 0:
        raise InputError(
            "A batch needs at least one example, and every row of token ids at least one token."
        )
    if values.ndim not in (1, 2) or values.dtype.kind not in "iub":
        shape = list(values.shape)
        raise InputError(f"{what[0].upper()}{what[1:]} are whole numbers [token] or [example, token]; {shape} of "
                         f"{values.dtype} were given.")  # fmt: skip
    if values.dtype.kind == "b" and what == "token ids":
        raise InputError(
            "Token ids are whole numbers; true and false were given: is this an attention mask?"
        )
    return list(np.atleast_2d(values.astype(np.int64)))


def _like(given: Any, ids: list[np.ndarray], what: str, default: int) -> list[np.ndarray]:
    """Numbers that go with token ids, of the same shape."""
    if given is None:
        return [np.full_like(row, default) for row in ids]
    rows = _plain(given, what)
    if [len(row) for row in rows] != [len(row) for row in ids]:
        raise InputError(
            f"{what[0].upper()}{what[1:]} must have the shape of the token ids: one row of numbers for each of the "
            f"{len(ids)} rows, as long as it."
        )
    return rows
