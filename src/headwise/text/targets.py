"""Encode the inputs of the decoder of an encoder-decoder: the target shifted by one, with its
source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from headwise.core.errors import InputError
from headwise.text.encode import PADDING, Encoded, Encoder
from headwise.text.example import ROOT, Example

Shift = Callable[[np.ndarray], np.ndarray]
COLUMNS = ("spans", "relations", "upos", "lemmas", "features", "sentences")


class TargetEncoder(Encoder):
    """Encodes pairs for the decoder of an encoder-decoder: first the source, then the target.

    A row is the decoder's input: the tokens of the target shifted one position to the right, after
    the start token and without the last one. `row.source` is the encoder's input.

    Parameters
    ----------
    encoder : Encoder
        Its tokenizer and limits are used for both rows.
    shift : callable
        Turns the token ids of a target into the decoder's input, as the model does.
    cross : bool, default False
        Whether attention goes to the tokens of the source.
    """

    def __init__(self, encoder: Encoder, shift: Shift, cross: bool = False) -> None:
        super().__init__(encoder.tokenizer, encoder.max_length, encoder.overlong)
        self.shift = shift
        self.cross = cross

    def limited(self, max_length: int, overlong: str | None = None) -> Encoder:
        return TargetEncoder(super().limited(max_length, overlong), self.shift, self.cross)

    def encode(self, example: Example, index: int = 0) -> Encoded | None:
        if not example.has_pair:
            raise InputError(
                f"{example.where}: the decoder of an encoder-decoder needs a source and a target, "
                "and there is no target; use pairs (fields `source` and `target`, or name two "
                'fields with `text_field`), or analyse the encoder (stack="encoder").',
                option="text_field",
            )
        source = super().encode(half(example, second=False), index)
        with _as_target(self.tokenizer):
            target = super().encode(half(example, second=True), index)
        if source is None or target is None:
            return None
        return self._shifted(target, source)

    def _shifted(self, target: Encoded, source: Encoded) -> Encoded:
        ids = self.shift(target.ids)
        start_pieces, start_type = self.pieces_and_types(ids[:1])
        start_values = PADDING | {"special": True, "token_type": start_type[0]}
        shifted: dict[str, Any] = {}
        for name, start_value in start_values.items():
            values = getattr(target, name)
            shifted[name] = np.concatenate([np.array([start_value], values.dtype), values[:-1]])
        return replace(
            target,
            ids=ids,
            **shifted,
            truncated=target.truncated or source.truncated,
            # The last token is left out: unless it is a special token, the last word is incomplete.
            aligned=target.aligned and bool(target.special[-1]),
            pieces=(*start_pieces, *target.pieces[:-1]),
            source=source,
            cross=self.cross,
        )


def half(example: Example, *, second: bool) -> Example:
    """Return one segment of a pair as an example, with the annotations that lie within it."""
    n_first = len(example.words or ())
    if second:
        text = example.pair
        words = example.words_pair
        start = n_first
        stop = len(example.all_words)
    else:
        text = example.text
        words = example.words
        start = 0
        stop = n_first
    annotations: dict[str, Any] = {"words": None if words is None else tuple(words)}
    if words is not None and example.words is not None:
        annotations |= _annotations_within(example, start, stop)
    if text is not None and annotations.get("spans") is None:
        annotations = {"words": None}  # words without spans cannot be aligned with the text
    return Example(
        text=text,
        label=example.label,
        origin=example.origin,
        scheme=example.scheme,
        document=example.document,
        **annotations,
    )


def _annotations_within(example: Example, start: int, stop: int) -> dict[str, Any]:
    """Return the annotations of the words `start..stop`, with indices relative to `start`."""
    annotations: dict[str, Any] = {}
    for name in COLUMNS:
        column = getattr(example, name)
        if column is not None:
            annotations[name] = column[start:stop]
    if example.heads is not None:
        heads = example.heads[start:stop]
        if all(head == ROOT or start <= head < stop for head in heads):
            annotations["heads"] = tuple(ROOT if head == ROOT else head - start for head in heads)
    if example.mentions is not None:
        inside = []
        for mention in example.mentions:
            if start <= mention.start and mention.end <= stop:
                inside.append(mention.moved(-start))
        annotations["mentions"] = tuple(inside)
    return annotations


@contextmanager
def _as_target(tokenizer: Any) -> Iterator[None]:
    """Switch the tokenizer to targets, where it treats them differently (Marian, mBART)."""
    switch_to_target = getattr(tokenizer, "_switch_to_target_mode", None)
    switch_back = getattr(tokenizer, "_switch_to_input_mode", None)
    if switch_to_target is None or switch_back is None:
        yield
        return
    switch_to_target()
    try:
        yield
    finally:
        switch_back()
