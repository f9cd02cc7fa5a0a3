"""Turn the inputs of a caller into rows of tokens: texts, examples, token ids, the output of a
tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from headwise.core.errors import InputError, ParameterError
from headwise.core.token_types import OTHER
from headwise.text.alignment import NO_SEGMENT, NO_WORD
from headwise.text.encode import Encoded, Encoder
from headwise.text.example import UNFIT, Example
from headwise.text.synthetic import synthetic_row

# A text, an Example, an Encoded, token ids (list, array, tensor), a BatchEncoding, or several of
# the first.
Input = Any
EXPECTED = (
    "give a text, an Example, token ids (whole numbers, or a tensor [example, token]) or what a "
    "tokenizer gives"
)
Encode = Callable[[Example | str, int], Encoded]


def input_rows(
    inputs: Input, mask: Any, encode: Encode, encoder: Encoder | None, vocabulary: int | None
) -> list[Encoded]:
    """Return the rows of one input or several.

    Parameters
    ----------
    inputs : Input
        One input, or several.
    mask : array or Tensor, optional
        The attention mask of token ids, `[token]` or `[example, token]`; padding must be on the
        right.
    encode : callable
        Makes the row of an example or a text.
    encoder : Encoder, optional
        Whose tokenizer the token ids are of.
    vocabulary : int, optional
        How many token ids the model has.
    """
    id_rows = _IdRows(encoder, vocabulary)
    is_mapping = isinstance(inputs, Mapping) or hasattr(inputs, "input_ids")
    if is_mapping:  # a tokenizer's BatchEncoding is a UserDict, which is no Mapping
        if "input_ids" not in inputs:
            keys = ", ".join(f"`{key}`" for key in inputs) or "nothing"
            raise InputError(f"A mapping given as input needs `input_ids`; it has {keys}.")
        if mask is None:
            mask = inputs.get("attention_mask")
        return id_rows.rows(inputs["input_ids"], mask, inputs.get("token_type_ids"))
    if _is_array(inputs):
        return id_rows.rows(inputs, mask)
    if isinstance(inputs, Example | str | Encoded):
        items: list[Any] = [inputs]
    elif isinstance(inputs, Iterable):
        items = list(inputs)
        if items and all(_is_whole_number(item) or _is_ids(item) for item in items):
            return id_rows.rows(items, mask)
    else:
        raise InputError(f"A {type(inputs).__name__} is no input; {EXPECTED}.")
    if mask is not None:
        raise ParameterError("`mask` says which token ids are real; it is not taken with texts.")
    rows: list[Encoded] = []
    for place, item in enumerate(items):
        if isinstance(item, Encoded):
            rows.append(item)
        elif isinstance(item, Example | str):
            rows.append(encode(item, place))
        elif _is_ids(item):
            rows += id_rows.rows([item], None, start=place)
        else:
            raise InputError(f"A {type(item).__name__} (place {place}) is no input; {EXPECTED}.")
    if not rows:
        raise InputError("A batch needs at least one example.")
    return rows


class _IdRows:
    """Makes rows of token ids."""

    def __init__(self, encoder: Encoder | None, vocabulary: int | None) -> None:
        self.encoder = encoder
        self.vocabulary = vocabulary

    def rows(self, ids: Any, mask: Any = None, types: Any = None, start: int = 0) -> list[Encoded]:
        """Return the rows of token ids, numbered from `start`."""
        id_rows = _number_rows(ids, "token ids")
        mask_rows = _rows_like(mask, id_rows, "the attention mask", 1)
        type_rows = _rows_like(types, id_rows, "`token_type_ids`", 0)
        rows = []
        for number, row_ids in enumerate(id_rows):
            rows.append(self._row(row_ids, mask_rows[number], type_rows[number], start + number))
        return rows

    def _row(self, ids: np.ndarray, mask: np.ndarray, types: np.ndarray, index: int) -> Encoded:
        origin = f"Row {index} of token ids"
        attention_mask = mask.astype(bool)
        if not attention_mask.any():
            raise InputError(_padding_message(origin, "is all padding"))
        if (np.diff(attention_mask.astype(int)) > 0).any():
            raise InputError(_padding_message(origin, "is padded on the left or inside"))
        ids = ids[attention_mask]
        types = types[attention_mask]
        lowest = int(ids.min())
        highest = int(ids.max())
        if lowest < 0:
            raise InputError(f"{origin} has the id {lowest}, but none is below 0.")
        if self.vocabulary is not None and highest >= self.vocabulary:
            raise InputError(
                f"{origin} has the id {highest}, but the model has ids 0 to {self.vocabulary - 1}."
            )
        if self.encoder is None:
            no_word = np.full(len(ids), NO_WORD, dtype=np.int64)
            example = Example(text=" ".join(map(str, ids)), origin=origin)
            return Encoded(
                index=index,
                example=example,
                ids=ids,
                types=types,
                word=no_word,
                segment=np.zeros_like(ids),
                special=np.zeros(len(ids), dtype=bool),
                token_type=np.full(len(ids), OTHER),
                truncated=False,
                aligned=False,
            )
        row = synthetic_row(self.encoder, ids, index)
        decoded = str(self.encoder.tokenizer.decode(ids.tolist()))
        example = Example(text=UNFIT.sub("\ufffd", decoded), origin=origin)
        # A second segment, if the model knows segments, has token type 1 (BERT and its kin).
        segment = np.where(row.special, NO_SEGMENT, (types > 0).astype(np.int64))
        return replace(row, example=example, types=types, segment=segment)


def _padding_message(origin: str, problem: str) -> str:
    return f"{origin} {problem}: give rows padded on the right (tokenizer.padding_side = 'right')."


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _is_whole_number(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_ids(value: object) -> bool:
    """Return whether this is one row of token ids."""
    if _is_array(value):
        return True
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(_is_whole_number(item) for item in value)


def _number_rows(values: Any, name: str) -> list[np.ndarray]:
    """Return rows of whole numbers from a row, several rows, or a tensor of either."""
    if isinstance(values, Sequence) and values:
        is_one_row = all(isinstance(item, int | np.integer) for item in values)
        if not is_one_row:
            rows = []
            for item in values:
                rows += _number_rows(item, name)
            return rows
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.size == 0:
        raise InputError(
            "A batch needs at least one example, and every row of token ids at least one token."
        )
    if array.ndim not in (1, 2) or array.dtype.kind not in "iub":
        raise InputError(
            f"{_capitalised(name)} are whole numbers [token] or [example, token]; "
            f"{list(array.shape)} of {array.dtype} were given."
        )
    if array.dtype.kind == "b" and name == "token ids":
        raise InputError(
            "Token ids are whole numbers; true and false were given: is this an attention mask?"
        )
    return list(np.atleast_2d(array.astype(np.int64)))


def _rows_like(values: Any, ids: list[np.ndarray], name: str, default: int) -> list[np.ndarray]:
    """Return numbers that go with token ids, in the same shape."""
    if values is None:
        return [np.full_like(row, default) for row in ids]
    rows = _number_rows(values, name)
    if [len(row) for row in rows] != [len(row) for row in ids]:
        raise InputError(
            f"{_capitalised(name)} must have the shape of the token ids: one row of numbers for "
            f"each of the {len(ids)} rows, as long as it."
        )
    return rows


def _capitalised(name: str) -> str:
    return name[0].upper() + name[1:]
