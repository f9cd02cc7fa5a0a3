"""Rows of a decoder that reads a source: the target shifted by one, as the model does it, with the
source beside it."""

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
    """Encodes pairs for the decoder of an encoder-decoder: the first text is the source, the second
    the target.

    The row is what the decoder reads: the target's tokens moved one place to the right behind the
    token it starts from, the last one left out. `row.source` is the row that the encoder reads.

    Parameters
    ----------
    encoder : Encoder
        Whose tokenizer and limits both rows have.
    shift : callable
        Token ids of a target to those the decoder reads, as the model makes them.
    cross : bool, default False
        Whether the source's tokens are the keys that attention looks at.
    """

    def __init__(self, encoder: Encoder, shift: Shift, cross: bool = False) -> None:
        super().__init__(encoder.tokenizer, encoder.max_length, encoder.overlong)
        self.shift, self.cross = shift, cross

    def limited(self, max_length: int, overlong: str | None = None) -> Encoder:
        return TargetEncoder(super().limited(max_length, overlong), self.shift, self.cross)

    def encode(self, example: Example, index: int = 0) -> Encoded | None:
        if not example.has_pair:
            raise InputError(
                f"{example.where}: a decoder that reads a source needs its target too, and there is none; give pairs "
                "(fields source and target, or --text-field SOURCE,TARGET), or look at the encoder (--stack encoder)."
            )
        source = super().encode(half(example, second=False), index)
        with _as_target(self.tokenizer):
            target = super().encode(half(example, second=True), index)
        if source is None or target is None:
            return None
        return self._shifted(target, source)

    def _shifted(self, target: Encoded, source: Encoded) -> Encoded:
        ids = self.shift(target.ids)
        first = int(ids[0])
        opening = PADDING | {
            "special": True,
            "cls": first == self.cls_id,
            "sep": first == self.sep_id,
        }
        moved: dict[str, Any] = {
            name: np.concatenate(
                [np.array([value], getattr(target, name).dtype), getattr(target, name)[:-1]]
            )
            for name, value in opening.items()
        }
        return replace(
            target,
            ids=ids,
            **moved,
            truncated=target.truncated or source.truncated,
            # Where the target ends in no token of its own kind, its last word is what is left out.
            aligned=target.aligned and bool(target.special[-1]),
            pieces=(self.piece_text(first), *target.pieces[:-1]),
            source=source,
            cross=self.cross,
        )


def half(example: Example, *, second: bool) -> Example:
    """One segment of a pair as an example of its own, with the annotations that lie within it."""
    count = len(example.words or ())
    start, stop = (count, len(example.all_words)) if second else (0, count)
    text, words = (example.pair, example.words_pair) if second else (example.text, example.words)
    known = words is not None and example.words is not None
    kept: dict[str, Any] = {"words": tuple(words) if words is not None else None}
    for name in COLUMNS:
        column = getattr(example, name)
        kept[name] = column[start:stop] if known and column is not None else None
    if known and example.heads is not None:
        heads = example.heads[start:stop]
        if all(head == ROOT or start <= head < stop for head in heads):
            kept["heads"] = tuple(head if head == ROOT else head - start for head in heads)
    if known and example.mentions is not None:
        inside = [m for m in example.mentions if start <= m.start and m.end <= stop]
        kept["mentions"] = tuple(mention.moved(-start) for mention in inside)
    if text is not None and kept["spans"] is None:
        kept = {"words": None}
    about = {name: getattr(example, name) for name in ("label", "origin", "scheme", "document")}
    return Example(text=text, **kept, **about)


@contextmanager
def _as_target(tokenizer: Any) -> Iterator[None]:
    """The tokenizer as it treats targets, where it treats them apart (Marian, mBART)."""
    there, back = (
        getattr(tokenizer, f"_switch_to_{mode}_mode", None) for mode in ("target", "input")
    )
    if there is None or back is None:
        yield
        return
    there()
    try:
        yield
    finally:
        back()
