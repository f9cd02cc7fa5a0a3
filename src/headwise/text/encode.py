"""Turn examples into rows of token ids, with the word, segment and token type of every token."""

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
from headwise.core.token_types import OTHER, SPECIAL_TYPES, TOKEN_TYPES, TYPE_NAMES
from headwise.stats.units import unit_key
from headwise.text.alignment import NO_SEGMENT, NO_WORD, aligned_words
from headwise.text.chat import render
from headwise.text.example import ROLES, Example
from headwise.text.readers.limits import reading

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

TOO_LONG_RULES = ("truncate", "skip")
# A text is tokenized only up to this many characters per token that the model takes.
CHARACTERS_PER_TOKEN = 100
NO_TYPE = -1  # of padding, which has no token type
CPU_LENGTH_RATIO = 0.7  # of the shortest to the longest row of a batch on a CPU
MIN_CPU_TOKENS = 128  # a batch of fewer reads the weights for too little work
# Decoders remove the space before the first subword, so that one is put before each.
ANCHOR = "a"
REPLACEMENT_CHARACTER = "\ufffd"  # what bytes that are no character decode to
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """An example as one row of token ids.

    `word[t]` is the index of token t's word: NO_WORD for special tokens, and for all tokens where
    the example has no words. `segment[t]` is 0 or 1, NO_SEGMENT for special tokens. `aligned` is
    False where the example has no words or some word has no token; word-level analyses skip and
    count such examples. A token that covers two words belongs to the one with most of its
    characters, so the other word may have no token of its own (see `every_word`).
    """

    index: int
    example: Example
    ids: np.ndarray  # int64 [token]
    # int64 [token]: the model's token_type_ids (segments), not the token types.
    types: np.ndarray
    word: np.ndarray  # int64 [token]
    segment: np.ndarray  # int64 [token]
    special: np.ndarray  # bool [token]
    token_type: np.ndarray  # int64 [token], positions in TYPE_NAMES
    truncated: bool
    aligned: bool
    # The text of each subword, without the tokenizer's marks for word starts or continuations.
    pieces: tuple[str, ...] = ()
    # The encoder's input, where this row is the decoder's.
    source: Encoded | None = None
    # Whether attention goes to the tokens of `source` (cross-attention).
    cross: bool = False
    # Returns the text of a token id.
    token_text: Callable[[int], str] = str
    # int64 [token], positions in ROLES; None where the example is no conversation.
    roles: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> list[str]:
        """Return the text of each token, with its leading space; ids where no tokenizer is
        known."""
        return [self.token_text(int(token)) for token in self.ids]

    def token_mask(self, name: str) -> np.ndarray:
        """Return which tokens are of a type (`cls`, `punct`, `other`), bool [token]."""
        is_of_type: np.ndarray = self.token_type == TYPE_NAMES.index(name)
        return is_of_type

    @property
    def cls(self) -> np.ndarray:
        """Which tokens open an input, bool [token]."""
        return self.token_mask("cls")

    @property
    def sep(self) -> np.ndarray:
        """Which tokens close a segment, bool [token]."""
        return self.token_mask("sep")

    @property
    def punct(self) -> np.ndarray:
        """Which tokens are full stops and commas, bool [token]."""
        return self.token_mask("punct")

    def role(self, name: str) -> np.ndarray:
        """Return which tokens have a role of a conversation (`user`, `template`), bool [token]."""
        if self.roles is None:
            return np.zeros(len(self), bool)
        has_role: np.ndarray = self.roles == ROLES.index(name)
        return has_role

    @property
    def word_count(self) -> int:
        """Return the largest word index plus one.

        In a truncated pair, words cut from the first segment count but have no token.
        """
        return int(self.word.max(initial=-1)) + 1

    @property
    def every_word(self) -> bool:
        """Whether every word of the example has a token of its own."""
        words_with_tokens = np.unique(self.word[self.word != NO_WORD])
        return self.aligned and len(words_with_tokens) == len(self.example.all_words)


class Encoder:
    """Encodes examples with one tokenizer.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        A fast tokenizer of transformers.
    max_length : int
        The maximum number of tokens of a row, special tokens included.
    overlong : {"truncate", "skip"}, default "truncate"
        What happens to longer rows: truncated at the end, the longer segment first, or skipped.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int, overlong: str = "truncate"
    ) -> None:
        one_of("overlong", overlong, TOO_LONG_RULES)
        if not getattr(tokenizer, "is_fast", False):
            name = type(tokenizer).__name__
            raise ModelError(f"{name} has no word ids or offsets; use the model's fast tokenizer.")
        if getattr(tokenizer, "truncation_side", "right") != "right":
            # Rows are always truncated at the end; the caller's tokenizer stays as it is.
            tokenizer = copy.deepcopy(tokenizer)
            tokenizer.truncation_side = "right"
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.overlong = overlong
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        # WordPiece (`##`) and BPE with `</w>` mark the place of a subword in its word, and their
        # decoders would turn the marks into spaces: such subwords are not decoded.
        if type(decoder).__name__ in ("WordPiece", "BPEDecoder"):
            decoder = None
        self._decoder = decoder
        self._special_ids = frozenset(tokenizer.all_special_ids)
        # Texts of tokens by id, each computed once.
        self._bare_texts: dict[int, str] = {}
        self._texts: dict[int, str] = {}

    def limited(self, max_length: int, overlong: str | None = None) -> Encoder:
        """Return an encoder with the same tokenizer and a lower limit.

        Parameters
        ----------
        max_length : int
            The maximum number of tokens; the limit of this encoder still holds.
        overlong : str, optional
            What happens to longer rows; default: as in this encoder.
        """
        lower_limit = min(max_length, self.max_length)
        return Encoder(self.tokenizer, lower_limit, overlong or self.overlong)

    @cached_property
    def _id_by_type(self) -> dict[str, int]:
        """The ids of the token types that are one special token, where the tokenizer has it."""
        id_by_type: dict[str, int] = {}
        for token_type in TOKEN_TYPES:
            for special_token in token_type.special_tokens:
                token_id = getattr(self.tokenizer, f"{special_token}_token_id")
                if token_id is None:
                    continue
                if token_id not in id_by_type.values():
                    id_by_type[token_type.name] = token_id
                break
        return id_by_type

    @property
    def cls_id(self) -> int | None:
        """The id of the opening token: cls, or beginning of sequence."""
        return self._id_by_type.get("cls")

    @cached_property
    def token_types(self) -> tuple[str, ...]:
        """The token types that this tokenizer has."""
        lacking = set(SPECIAL_TYPES) - set(self._id_by_type)
        return tuple(name for name in TYPE_NAMES if name not in lacking)

    @cached_property
    def splits_words(self) -> bool:
        """Whether a list of words gives the same tokens as the words joined by spaces.

        Byte-level tokenizers (GPT-2, RoBERTa) would join the words without a space: for those, the
        words are joined first and aligned by character offsets.
        """
        words = ["ab", "cd", "ef"]
        try:
            from_words = self.tokenizer(
                words, is_split_into_words=True, add_special_tokens=False, verbose=False
            )
        except Exception:  # some tokenizers do not accept words, with exceptions of many classes
            return False
        from_text = self.tokenizer(" ".join(words), add_special_tokens=False, verbose=False)
        return bool(from_words["input_ids"] == from_text["input_ids"])

    def piece_text(self, token: int) -> str:
        """Return the text of a token without the marks of its place in a word and without
        spaces."""
        if token not in self._bare_texts:
            piece = str(self.tokenizer.convert_ids_to_tokens(token) or "")
            bare_text = piece.removeprefix("##").lstrip("▁ĠĊ ").removesuffix("</w>").strip()
            self._bare_texts[token] = bare_text
        return self._bare_texts[token]

    def token_text(self, token: int) -> str:
        """Return the text of a token as it stands in running text, with the space before it.

        A token that is no character by itself (one byte of several) and subwords with other marks
        (`##ing`) are returned as the tokenizer writes them.
        """
        if token not in self._texts:
            piece = str(self.tokenizer.convert_ids_to_tokens(token) or "")
            if self._decoder is not None and token not in self._special_ids:
                decoded = str(self._decoder.decode([ANCHOR, piece]))
                text = decoded.removeprefix(ANCHOR)
                if decoded.startswith(ANCHOR) and text and REPLACEMENT_CHARACTER not in text:
                    piece = text
            self._texts[token] = piece
        return self._texts[token]

    def pieces_and_types(self, ids: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
        """Return the text of each token, and its type as a position in TYPE_NAMES."""
        pieces = tuple(self.piece_text(int(token)) for token in ids)
        token_type = np.full(len(ids), OTHER, dtype=np.int64)
        # From the last to the first: a token of two types counts as the first of them.
        for number in reversed(range(len(TOKEN_TYPES))):
            texts = TOKEN_TYPES[number].texts
            special_id = self._id_by_type.get(TOKEN_TYPES[number].name)
            if texts:
                token_type[[piece in texts for piece in pieces]] = number
            if special_id is not None:
                token_type[ids == special_id] = number
        return pieces, token_type

    def encode(self, example: Example, index: int = 0) -> Encoded | None:
        """Encode one example; None where it is too long and `overlong` is "skip".

        Of a text far longer than the model takes, only the beginning is tokenized: a book on one
        line would take half a minute and a gigabyte, only to be truncated.
        """
        conversation = None if example.messages is None else render(self.tokenizer, example)
        if conversation is not None:
            row = self.tokenizer(
                conversation.text,
                add_special_tokens=False,
                return_offsets_mapping=True,
                verbose=False,
            )
        else:
            row = self._tokenize(example, CHARACTERS_PER_TOKEN * self.max_length)
            if row is None:
                row = self._tokenize(example)
        assert row is not None  # a whole text is always tokenized
        ids = np.asarray(row["input_ids"], dtype=np.int64)
        if ids.size == 0:
            raise InputError(f"{example.where}: the text has no tokens; remove the empty row.")
        segment = np.array(
            [NO_SEGMENT if number is None else number for number in row.sequence_ids(0)],
            dtype=np.int64,
        )
        if conversation is not None:
            # The template writes its special tokens as text: the tokenizer does not mark them.
            is_special = np.isin(ids, self.tokenizer.all_special_ids)
            segment = np.where(is_special, NO_SEGMENT, segment)

        truncated = len(ids) > self.max_length
        if truncated and self.overlong == "skip":
            return None
        if truncated:
            kept_tokens = kept_places(segment, self.max_length)
        else:
            kept_tokens = np.arange(len(ids))
        ids = ids[kept_tokens]
        segment = segment[kept_tokens]
        special = segment == NO_SEGMENT

        # The words of a conversation move with its messages to where the template puts them.
        located = example if conversation is None else conversation.placed(example)
        word = np.full(len(ids), NO_WORD, dtype=np.int64)
        aligned = False
        if located.words is not None:
            word, aligned = aligned_words(located, row, kept_tokens, segment, self.splits_words)
        types = np.zeros_like(ids)
        if "token_type_ids" in row:
            types = np.asarray(row["token_type_ids"], dtype=np.int64)[kept_tokens]
        roles = None
        if conversation is not None:
            offsets = [row["offset_mapping"][token] for token in kept_tokens.tolist()]
            roles = conversation.roles(offsets, special)
        pieces, token_type = self.pieces_and_types(ids)
        return Encoded(
            index=index,
            example=example,
            ids=ids,
            types=types,
            word=word,
            segment=segment,
            special=special,
            token_type=token_type,
            truncated=truncated,
            aligned=aligned,
            pieces=pieces,
            token_text=self.token_text,
            roles=roles,
        )

    def _tokenize(self, example: Example, max_characters: int = 0) -> BatchEncoding | None:
        """Tokenize an example, or only the first `max_characters` of each segment.

        Returns None where the beginnings have too few tokens to replace the whole text.
        """
        words_apart = example.text is None and self.splits_words
        first: Any
        second: Any
        if example.text is not None:
            first = example.text
            second = example.pair
        else:
            first = list(example.words or ())
            second = None
            if example.words_pair is not None:
                second = list(example.words_pair)
            if not first:
                raise InputError(f"{example.where}: the example has no words.")
            if not words_apart:
                first = " ".join(first)
                if second is not None:
                    second = " ".join(second)
        first_cut = False
        second_cut = False
        if max_characters:
            whole_first, first = first, beginning_of(first, max_characters)
            whole_second, second = second, beginning_of(second, max_characters)
            first_cut = first is not whole_first
            second_cut = second is not whole_second
        with reading(example.where, "the tokenizer cannot read it"):
            row: BatchEncoding = self.tokenizer(
                first,
                second,
                is_split_into_words=words_apart,
                return_offsets_mapping=not words_apart,
                return_token_type_ids="token_type_ids" in self.tokenizer.model_input_names,
                verbose=False,
            )
        is_cut = first_cut or second_cut
        if is_cut and not self._enough_tokens(row, first_cut, second_cut):
            return None
        return row

    def _enough_tokens(self, row: BatchEncoding, first_cut: bool, second_cut: bool) -> bool:
        """Whether truncating a row of which a beginning was tokenized gives the same as truncating
        the whole text.

        Truncation shortens the longer segment first, so the cut segment must be the longer one,
        with enough tokens between the last one that is kept and the cut.
        """
        if first_cut and second_cut:
            return False
        segments: list[int | None] = row.sequence_ids(0)
        in_first = segments.count(0)
        in_second = segments.count(1)
        if first_cut:
            return in_first >= 2 * self.max_length and in_first > in_second
        return in_second >= 2 * self.max_length and in_second > in_first


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Encoded examples of similar length, padded on the right, on the model's device.

    Padding is False in `attention_mask`, and has NO_TYPE, NO_WORD and NO_SEGMENT.
    """

    rows: tuple[Encoded, ...]
    ids: Tensor  # int64 [example, token]
    # int64 [example, token]: the model's token_type_ids (segments), not the token types.
    types: Tensor
    attention_mask: Tensor  # bool [example, token]
    lengths: Tensor  # int64 [example]
    word: Tensor  # int64 [example, token]
    segment: Tensor  # int64 [example, token]
    special: Tensor  # bool [example, token]
    token_type: Tensor  # int64 [example, token], positions in TYPE_NAMES
    source: Batch | None = None  # the encoder's inputs, where these are the decoder's
    _memo: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def remember(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return what `compute` gives, computed once per batch: for values that all layers share."""
        if key not in self._memo:
            self._memo[key] = compute()
        value: Value = self._memo[key]
        return value

    def forget(self) -> None:
        """Drop the remembered values: a list of processed batches must not keep them."""
        self._memo.clear()

    @property
    def index(self) -> list[int]:
        """The positions of these examples in the corpus."""
        return [row.index for row in self.rows]

    @property
    def keys(self) -> Batch:
        """The tokens attention goes to: these, or in cross-attention those of the source."""
        if self.source is not None and self.rows[0].cross:
            return self.source
        return self

    @property
    def tokens(self) -> list[list[str]]:
        """The text of the tokens of each example, without padding."""
        return [row.tokens for row in self.rows]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.ids.device

    def token_mask(self, name: str) -> Tensor:
        """Return which tokens are of a type, bool [example, token].

        Parameters
        ----------
        name : str
            A token type (of `TYPE_NAMES`: `cls`, `punct`, `other`), `first` (the first token, whatever it
            is), or a role of a conversation (`system`, `user`, `assistant`, `tool`, `template`).
        """
        if name in ROLES:
            return self.remember(("role", name), lambda: self._role_mask(name))
        if name == "first":
            first = torch.zeros_like(self.attention_mask)
            first[:, 0] = True
            return first
        return self.token_type == TYPE_NAMES.index(name)

    @property
    def cls(self) -> Tensor:
        """Which tokens open an input, bool [example, token]."""
        return self.token_mask("cls")

    @property
    def sep(self) -> Tensor:
        """Which tokens close a segment, bool [example, token]."""
        return self.token_mask("sep")

    @property
    def punct(self) -> Tensor:
        """Which tokens are full stops and commas, bool [example, token]."""
        return self.token_mask("punct")

    def _role_mask(self, name: str) -> Tensor:
        mask = torch.zeros_like(self.attention_mask)
        for number, row in enumerate(self.rows):
            mask[number, : len(row)] = torch.from_numpy(row.role(name)).to(self.device)
        return mask

    def select(self, keep: Sequence[int]) -> Batch:
        """Return a batch of these examples only, with the same padding; `keep` may be empty."""
        positions = torch.as_tensor(list(keep), dtype=torch.long, device=self.device)
        tensors = {name: getattr(self, name)[positions] for name in _TENSORS}
        source = None if self.source is None else self.source.select(keep)
        return replace(self, rows=tuple(self.rows[i] for i in keep), source=source, **tensors)


def units_of(rows: Sequence[Encoded]) -> list[int]:
    """Return the unit of sampling of each example: its document, or the example itself."""
    return [unit_key(row.example.document, row.index) for row in rows]


def documents_of(rows: Sequence[Encoded]) -> list[int] | None:
    """Return the document of each example as a unit; None where some example has no document."""
    if any(row.example.document is None for row in rows):
        return None
    return units_of(rows)


# The padding value of each tensor; `ids` are padded with the tokenizer's own id.
PADDING = {
    "types": 0,
    "word": NO_WORD,
    "segment": NO_SEGMENT,
    "special": False,
    "token_type": NO_TYPE,
}
_TENSORS = ("ids", "attention_mask", "lengths", *PADDING)


def collate(
    rows: Sequence[Encoded], pad_id: int = 0, device: torch.device | str = "cpu", pad_to: int = 0
) -> Batch:
    """Pad rows to the longest of them, or to `pad_to` tokens, and stack them."""
    width = max(pad_to, max(len(row) for row in rows))
    lengths = torch.tensor([len(row) for row in rows])
    tensors = {"lengths": lengths, "attention_mask": torch.arange(width)[None] < lengths[:, None]}
    for name, fill in {"ids": pad_id, **PADDING}.items():
        dtype = bool if fill is False else np.int64
        padded = np.full((len(rows), width), fill, dtype=dtype)
        for number, row in enumerate(rows):
            padded[number, : len(row)] = getattr(row, name)
        tensors[name] = torch.from_numpy(padded)
    source_rows = [row.source for row in rows if row.source is not None]
    source = collate(source_rows, pad_id, device) if source_rows else None
    on_device = {name: tensor.to(device) for name, tensor in tensors.items()}
    return Batch(rows=tuple(rows), source=source, **on_device)


def batches(
    rows: Sequence[Encoded],
    max_tokens: int,
    pad_id: int = 0,
    device: torch.device | str = "cpu",
    *,
    min_length_ratio: float | None = None,
) -> list[Batch]:
    """Sort rows by length and group them into batches of at most `max_tokens` padded tokens.

    Parameters
    ----------
    rows : sequence of Encoded
        The examples.
    max_tokens : int
        The maximum number of tokens of a batch, padding included; a batch has at least one row.
    pad_id : int, default 0
        The id of padding tokens.
    device : torch.device or str, default "cpu"
        Where the batches are created.
    min_length_ratio : float, optional
        The minimum ratio of the shortest to the longest row of a batch, for work that padding
        makes expensive. Default: on a CPU 0.7 for batches of at least 128 tokens, elsewhere 0.
    """
    min_tokens = 0
    if min_length_ratio is None:
        # A CPU computes padding as slowly as tokens, and needs no large batches to be busy. Of
        # sentences in the order of a text more than half of a batch would be padding.
        on_cpu = torch.device(device).type == "cpu"
        min_length_ratio = CPU_LENGTH_RATIO if on_cpu else 0.0
        min_tokens = MIN_CPU_TOKENS
    result: list[Batch] = []
    group: list[Encoded] = []
    for row in sorted(rows, key=lambda row: (len(row), row.index)):
        # Rows come shortest first: this one is the longest of its batch.
        too_many_tokens = (len(group) + 1) * len(row) > max_tokens
        much_longer = bool(group) and len(group[0]) < min_length_ratio * len(row)
        large_enough = bool(group) and len(group) * len(group[-1]) >= min_tokens
        if group and (too_many_tokens or (much_longer and large_enough)):
            result.append(collate(group, pad_id, device))
            group = []
        group.append(row)
    if group:
        result.append(collate(group, pad_id, device))
    return result


# --- truncation: which tokens of a row, which words of a text are kept ---------------------------


def kept_places(segment: np.ndarray, longest: int) -> np.ndarray:
    """Return the positions of the tokens that a row truncated to `longest` tokens keeps.

    These are the special tokens and the beginning of each segment; the longer segment is shortened
    first. Tokenizers keep the same tokens, but they also build all overflowing parts, for a pair
    every combination of them, which takes gigabytes for two long texts.
    """
    first = np.flatnonzero(segment == 0)
    second = np.flatnonzero(segment == 1)
    special = np.flatnonzero(segment == NO_SEGMENT)
    budget = max(longest - len(special), 0)
    shorter_length = min(len(first), len(second))
    if 2 * shorter_length > budget:
        shorter_length = budget // 2
    longer_length = budget - shorter_length
    if len(first) > len(second):
        first = first[:longer_length]
        second = second[:shorter_length]
    else:
        first = first[:shorter_length]
        second = second[:longer_length]
    return np.sort(np.concatenate([special, first, second]))


def beginning_of(part: Any, longest: int) -> Any:
    """Return the first whole words of a text, or of a list of words, within a number of characters.

    The same object is returned where nothing needs to be removed.
    """
    if part is None:
        return None
    if isinstance(part, str):
        if len(part) <= longest:
            return part
        text_and_last_word = part[:longest].rsplit(None, 1)
        return text_and_last_word[0] if text_and_last_word else part
    length = 0
    for index, word in enumerate(part):
        length += len(word) + 1
        if length > longest:
            return part[: max(index, 1)]
    return part
