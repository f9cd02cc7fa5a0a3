"""From an example to token ids, with every token's word, segment and kind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from headwise.core.checks import one_of
from headwise.core.errors import InputError, ModelError
from headwise.stats.units import unit_key
from headwise.text.alignment import NO_WORD, aligned_words
from headwise.text.chat import render
from headwise.text.example import ROLES, Example
from headwise.text.pieces import Pieces
from headwise.text.readers.limits import reading
from headwise.text.truncation import NO_SEGMENT, beginning_of, kept_places

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

TOO_LONG_RULES = ("truncate", "skip")
FAR = 100  # characters a token of a text that is read only to be cut; see `Encoder.encode`
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """An example as one row of token ids.

    `word[t]` is the index of token t's word (NO_WORD for special tokens, and everywhere where no
    words are known), `segment[t]` 0 or 1 (NO_SEGMENT for special tokens). `aligned` is False where
    no words are known, or some word's characters are in no token: word-level analyses leave such an
    example out and count it. A token on two words is of the one that most of its characters are of;
    the other may have none (`every_word`)."""

    index: int
    example: Example
    ids: np.ndarray  # int64 [token]
    types: np.ndarray  # int64 [token], the model's token_type_ids
    word: np.ndarray  # int64 [token]
    segment: np.ndarray  # int64 [token]
    special: np.ndarray  # bool [token]
    cls: np.ndarray  # bool [token]
    sep: np.ndarray  # bool [token]
    punct: np.ndarray  # bool [token]
    truncated: bool
    aligned: bool
    pieces: tuple[
        str, ...
    ] = ()  # the text of each token, without the marks that say where it stands in a word
    source: Encoded | None = None  # what the encoder reads, where this is what its decoder reads
    cross: bool = False  # whether the tokens of `source` are the keys
    spell: Callable[[int], str] = str  # what a token id says
    roles: np.ndarray | None = (
        None  # int64 [token], places in ROLES; None where it is no conversation
    )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> list[str]:
        """What each token says, with the space before it where the tokenizer has it so; its id
        where no tokenizer is known."""
        return [self.spell(int(token)) for token in self.ids]

    def role(self, name: str) -> np.ndarray:
        """Bool [token]: the tokens of a role (`user`, `template`); none where it is no
        conversation."""
        found: np.ndarray = (
            np.zeros(len(self), bool) if self.roles is None else self.roles == ROLES.index(name)
        )
        return found

    @property
    def word_count(self) -> int:
        """One more than the largest word index here. In a cut pair the words cut off the first
        segment lie below it and have no token."""
        return int(self.word.max(initial=-1)) + 1

    @property
    def every_word(self) -> bool:
        """Whether every word of the example has a token of its own."""
        return self.aligned and len(np.unique(self.word[self.word != NO_WORD])) == len(
            self.example.all_words
        )


class Encoder:
    """Turns examples into token rows with one tokenizer.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        A fast tokenizer of transformers.
    max_length : int
        The longest row the model takes; special tokens count.
    overlong : {"truncate", "skip"}, default "truncate"
        What happens to longer rows: they are cut at the end, of the longer segment first, or left
        out.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int, overlong: str = "truncate"
    ) -> None:
        one_of("overlong", overlong, TOO_LONG_RULES)
        if not getattr(tokenizer, "is_fast", False):
            name = type(tokenizer).__name__
            raise ModelError(
                f"{name} gives no word ids or offsets; use the model's fast tokenizer."
            )
        if (
            getattr(tokenizer, "truncation_side", "right") != "right"
        ):  # words are lost at the end, as the policy says
            tokenizer = copy.deepcopy(tokenizer)
            tokenizer.truncation_side = "right"
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.overlong = overlong
        self._pieces = Pieces(tokenizer)

    def limited(self, max_length: int, overlong: str | None = None) -> Encoder:
        """An encoder with the same tokenizer and another limit (never above this one's); this one
        stays as it is.

        Parameters
        ----------
        max_length : int
            The longest row it gives.
        overlong : str, optional
            What it does with longer ones; by default what this one does.
        """
        return Encoder(self.tokenizer, min(max_length, self.max_length), overlong or self.overlong)

    @cached_property
    def cls_id(self) -> int | None:
        """The id of the token that opens an input: cls, or beginning of sequence."""
        return _first(self.tokenizer.cls_token_id, self.tokenizer.bos_token_id)

    @cached_property
    def sep_id(self) -> int | None:
        """The id of the token that closes a segment: sep, or end of sequence; None where it opens
        inputs too (GPT-2)."""
        found = _first(self.tokenizer.sep_token_id, self.tokenizer.eos_token_id)
        return None if found == self.cls_id else found

    @cached_property
    def token_types(self) -> tuple[str, ...]:
        """The token types this tokenizer really has."""
        has = {
            "cls": self.cls_id is not None,
            "sep": self.sep_id is not None,
            "punct": True,
            "other": True,
        }
        return tuple(name for name, present in has.items() if present)

    @cached_property
    def splits_words(self) -> bool:
        """Whether words given apart come out as they do in a text with spaces. Byte-level
        tokenizers (GPT-2, RoBERTa) would glue them together: for those the words are joined by
        spaces and aligned by offsets."""
        probe = ["ab", "cd", "ef"]
        try:
            apart = self.tokenizer(
                probe, is_split_into_words=True, add_special_tokens=False, verbose=False
            )
        except Exception:  # some refuse words altogether
            return False
        together = self.tokenizer(" ".join(probe), add_special_tokens=False, verbose=False)
        return bool(apart["input_ids"] == together["input_ids"])

    def piece_text(self, token: int) -> str:
        """The text of one token, without the marks that say where it stands in a word."""
        return self._pieces.bare(token)

    def token_text(self, token: int) -> str:
        """The text of one token as it stands in a text, with the space before it."""
        return self._pieces.text(token)

    def kinds(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
        """Which tokens are cls, sep, punct, by their ids alone; and the pieces."""
        pieces = tuple(self.piece_text(int(i)) for i in ids)
        cls = ids == self.cls_id if self.cls_id is not None else np.zeros(len(ids), dtype=bool)
        sep = ids == self.sep_id if self.sep_id is not None else np.zeros(len(ids), dtype=bool)
        punct = np.array([piece in (".", ",") for piece in pieces], dtype=bool) & ~cls & ~sep
        return cls, sep, punct, pieces

    def encode(self, example: Example, index: int = 0) -> Encoded | None:
        """The example as a row of tokens; None where it is too long and the policy is `skip`.

        Of a text far longer than the model takes only a beginning is tokenized, twice what is kept
        at least: a book on one line would take half a minute and a gigabyte, to be thrown away."""
        chat = None if example.messages is None else render(self.tokenizer, example)
        if chat is not None:
            row = self.tokenizer(
                chat.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
        else:
            row = self._tokenize(example, FAR * self.max_length) or self._tokenize(example)
        assert row is not None  # of a whole text
        ids = np.asarray(row["input_ids"], dtype=np.int64)
        if ids.size == 0:
            raise InputError(f"{example.where}: the text has no tokens; remove the empty row.")
        segment = np.array(
            [NO_SEGMENT if s is None else s for s in row.sequence_ids(0)], dtype=np.int64
        )
        if chat is not None:
            segment = np.where(np.isin(ids, self.tokenizer.all_special_ids), NO_SEGMENT, segment)
        truncated = len(ids) > self.max_length
        if truncated and self.overlong == "skip":
            return None
        keep = kept_places(segment, self.max_length) if truncated else np.arange(len(ids))
        ids, segment = ids[keep], segment[keep]
        special = segment == NO_SEGMENT
        placed = example if chat is None else chat.placed(example)
        word, aligned = aligned_words(placed, row, keep, segment, self.splits_words)
        types = np.zeros_like(ids)
        if "token_type_ids" in row:
            types = np.asarray(row["token_type_ids"], dtype=np.int64)[keep]
        cls, sep, punct, pieces = self.kinds(ids)
        kinds = (special, cls, sep, punct, truncated, aligned, pieces)
        roles = (
            None
            if chat is None
            else chat.roles([row["offset_mapping"][place] for place in keep.tolist()], special)
        )
        return Encoded(
            index, example, ids, types, word, segment, *kinds, spell=self.token_text, roles=roles
        )

    def _tokenize(self, example: Example, beginning: int = 0) -> BatchEncoding | None:
        """The tokens of an example, or of the beginnings of its segments of so many characters;
        None where these give too few tokens to stand for the whole."""
        apart = example.text is None and self.splits_words
        first: Any
        second: Any
        if example.text is not None:
            first, second = example.text, example.pair
        else:
            first, second = list(example.words or ()), list(example.words_pair or ())
            if not first:
                raise InputError(f"{example.where}: the example has no words.")
            if not apart:
                first, second = " ".join(first), " ".join(second)
        whole = first, second
        if beginning:
            first, second = beginning_of(first, beginning), beginning_of(second, beginning)
        with reading(
            example.where, "the tokenizer cannot read it"
        ):  # tokenizers raise bare exceptions of many kinds
            row: BatchEncoding = self.tokenizer(
                first,
                second if example.has_pair else None,
                is_split_into_words=apart,
                return_offsets_mapping=not apart,
                return_token_type_ids="token_type_ids" in self.tokenizer.model_input_names,
                verbose=False,
            )
        return (
            row if self._stands_for(row, (first is not whole[0], second is not whole[1])) else None
        )

    def _stands_for(self, row: BatchEncoding, cut: tuple[bool, bool]) -> bool:
        """Whether what is kept of a row whose segments were cut is what would be kept of the whole:
        enough tokens must lie between the last that is kept and the cut, and the longer segment,
        which is shortened first, must be the same."""
        if not any(cut):
            return True
        count = [row.sequence_ids(0).count(part) for part in (0, 1)]
        longer, other = count if cut[0] else reversed(count)
        return not all(cut) and longer >= 2 * self.max_length and longer > other


def _first(*values: int | None) -> int | None:
    return next((v for v in values if v is not None), None)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of similar length, padded on the right, on the model's device. Padding is False in
    `attention_mask` and in every token type, and NO_WORD and NO_SEGMENT."""

    rows: tuple[Encoded, ...]
    ids: Tensor  # int64 [example, token]
    types: Tensor  # int64 [example, token]
    attention_mask: Tensor  # bool [example, token]
    lengths: Tensor  # int64 [example]
    word: Tensor  # int64 [example, token]
    segment: Tensor  # int64 [example, token]
    special: Tensor  # bool [example, token]
    cls: Tensor  # bool [example, token]
    sep: Tensor  # bool [example, token]
    punct: Tensor  # bool [example, token]
    source: Batch | None = None  # what the encoder reads, where this is what its decoder reads
    _memo: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def remember(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gives, made once for this batch: what is the same in every layer. It dies
        with the batch."""
        if key not in self._memo:
            self._memo[key] = make()
        made: Made = self._memo[key]
        return made

    def forget(self) -> None:
        """Drop what was remembered, once the batch has been seen: a list of batches must not keep
        it all."""
        self._memo.clear()

    @property
    def index(self) -> list[int]:
        """The positions of these examples in the corpus."""
        return [row.index for row in self.rows]

    @property
    def keys(self) -> Batch:
        """The tokens that attention looks at: these, or in cross-attention those of the source."""
        return self.source if self.source is not None and self.rows[0].cross else self

    @property
    def tokens(self) -> list[list[str]]:
        """What the tokens of each example say, without padding."""
        return [row.tokens for row in self.rows]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.ids.device

    def kind(self, name: str) -> Tensor:
        """Bool [example, token]: tokens of a type (`cls`, `sep`, `punct`, `other`), or the `first`,
        whatever it is; of a role in a conversation (`system`, `user`, `assistant`, `tool`,
        `template`)."""
        if name in ROLES:
            return self.remember(("role", name), lambda: self._of_role(name))
        if name == "first":
            first = torch.zeros_like(self.attention_mask)
            first[:, 0] = True
            return first
        if name == "other":
            return self.attention_mask & ~(self.cls | self.sep | self.punct)
        return {"cls": self.cls, "sep": self.sep, "punct": self.punct}[name]

    def _of_role(self, name: str) -> Tensor:
        out = torch.zeros_like(self.attention_mask)
        for number, row in enumerate(self.rows):
            out[number, : len(row)] = torch.from_numpy(row.role(name)).to(self.device)
        return out

    def select(self, keep: Sequence[int]) -> Batch:
        """Only these examples, with the same padding."""
        chosen = torch.as_tensor(
            list(keep), dtype=torch.long, device=self.device
        )  # none is possible too
        tensors = {name: getattr(self, name)[chosen] for name in _TENSORS}
        source = None if self.source is None else self.source.select(keep)
        return replace(self, rows=tuple(self.rows[i] for i in keep), source=source, **tensors)


def units_of(rows: Sequence[Encoded]) -> list[int]:
    """The unit of sampling that each example is of: its document, or the example itself where it
    has none."""
    return [unit_key(row.example.document, row.index) for row in rows]


def documents_of(rows: Sequence[Encoded]) -> list[int] | None:
    """The same where every example is of a document, else None."""
    return None if any(row.example.document is None for row in rows) else units_of(rows)


# What padding holds in each tensor that is padded rows; the padding of `ids` is the tokenizer's.
PADDING = {
    "types": 0,
    "word": NO_WORD,
    "segment": NO_SEGMENT,
    "special": False,
    "cls": False,
    "sep": False,
    "punct": False,
}
_TENSORS = ("ids", "attention_mask", "lengths", *PADDING)


def collate(
    rows: Sequence[Encoded], pad_id: int = 0, device: torch.device | str = "cpu", pad_to: int = 0
) -> Batch:
    """Pad rows to the longest of them (or to `pad_to`)."""
    width = max(pad_to, max(len(row) for row in rows))
    lengths = torch.tensor([len(row) for row in rows])
    tensors = {"lengths": lengths, "attention_mask": torch.arange(width)[None] < lengths[:, None]}
    for name, fill in {"ids": pad_id, **PADDING}.items():
        padded = np.full((len(rows), width), fill, dtype=bool if fill is False else np.int64)
        for i, row in enumerate(rows):
            padded[i, : len(row)] = getattr(row, name)
        tensors[name] = torch.from_numpy(padded)
    given = [row.source for row in rows if row.source is not None]
    source = collate(given, pad_id, device) if given else None
    return Batch(
        rows=tuple(rows),
        source=source,
        **{name: tensor.to(device) for name, tensor in tensors.items()},
    )


def batches(
    rows: Sequence[Encoded],
    max_tokens: int,
    pad_id: int = 0,
    device: torch.device | str = "cpu",
    *,
    alike: float = 0.0,
) -> list[Batch]:
    """Rows sorted by length and cut into batches of at most `max_tokens` padded tokens (at least
    one row each).

    With `alike` no row is shorter than that share of the longest beside it, for work that padding
    makes much dearer."""
    out: list[Batch] = []
    group: list[Encoded] = []
    for row in sorted(rows, key=lambda row: (len(row), row.index)):
        if group and ((len(group) + 1) * len(row) > max_tokens or len(group[0]) < alike * len(row)):
            out.append(collate(group, pad_id, device))
            group = []
        group.append(row)
    return [*out, collate(group, pad_id, device)] if group else out
