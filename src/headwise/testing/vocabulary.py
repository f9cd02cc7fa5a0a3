"""A small tokenizer made in code, and the colours by which few dimensions distinguish many words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headwise.core.errors import ParameterError
from headwise.text.example import Example

BIDIRECTIONAL_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CAUSAL_SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
TOKEN_TYPES = ("ordinary", "pad", "cls", "sep")
_WORDS = """
the a cat dog bird child teach|er gar|den|er saw heard sleep|s sing|s run|s old small happi|ly
near under tree house not he she it and ? . ,
"""
DEFAULT_WORDS = tuple(_WORDS.split())
PIECE_BREAK = "|"

T = TypeVar("T")

_SPLIT = pre_tokenizers.Sequence(
    [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(r"[.,!?;:]"), "isolated")]
)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Token ids of a planted model and what its heads can know of each.

    Attributes
    ----------
    tokenizer : PreTrainedTokenizerFast
        The tokenizer.
    token_type : tuple of str
        One of `TOKEN_TYPES` for each id.
    token_colour : tuple of int
        A small number for each id, different for any two that occur in one example: a code of few
        dimensions distinguishes them there.
    word_of : mapping of int to str
        The word a piece belongs to, for pieces of one word only.
    word_colour : mapping of str to int
        As `token_colour`, of words.
    tables : mapping
        For each table, which word each word points at.
    relation : mapping of str to str
        The relation of each word.
    """

    tokenizer: PreTrainedTokenizerFast
    token_type: tuple[str, ...]
    token_colour: tuple[int, ...]
    word_of: Mapping[int, str]
    word_colour: Mapping[str, int]
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    relation: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token_type)


def make_vocabulary(
    words: Sequence[str] | None,
    examples: Sequence[Example] | None,
    tables: Mapping[str, Mapping[str, str]],
    relation: Mapping[str, str],
    causal: bool,
) -> Vocabulary:
    """Return the tokenizer and the colours for these words and those of these examples.

    Without examples, any two words may occur together. With them, only words that occur together in
    one example get different colours, so that large corpora need few dimensions.

    Parameters
    ----------
    words : sequence of str, optional
        Words; `|` marks where one breaks into pieces. Default: those of the examples, and
        `DEFAULT_WORDS` without examples.
    examples : sequence of Example, optional
        Examples whose words are added.
    tables : mapping
        For each table, which word each word points at.
    relation : mapping of str to str
        The relation of each word.
    causal : bool
        Use the special tokens of a decoder instead of those of an encoder.
    """
    specials = CAUSAL_SPECIALS if causal else BIDIRECTIONAL_SPECIALS
    words_of_examples = [_words_of(example) for example in examples or ()]
    pieces = _pieces_by_word(words, words_of_examples)
    ids: dict[str, int] = {}
    for special in specials:
        ids.setdefault(special, len(ids))
    for word_pieces in pieces.values():
        for piece in word_pieces:
            ids.setdefault(piece, len(ids))
    tokenizer = _tokenizer(ids, causal)
    _check_pieces(tokenizer, pieces)
    _check_tables(tables, pieces)

    word_of, shared_ids = _words_by_piece(pieces, ids)
    for table in tables.values():
        for word in (*table, *table.values()):
            if any(ids[piece] in shared_ids for piece in pieces[word]):
                raise ParameterError(
                    f"`tables`: a piece of '{word}' is a piece of another word too, so the word "
                    "cannot be told by it."
                )

    groups = _cooccurring_words(pieces, words_of_examples)
    token_groups = []
    for group in groups:
        piece_ids = [ids[piece] for word in group for piece in pieces[word]]
        token_groups.append([*range(len(specials)), *piece_ids])
    token_colours = _colours(token_groups)
    word_colours: dict[str, int] = {}
    if tables:
        word_colours = _colours([_with_targets(group, tables) for group in groups])

    token_types = ["ordinary"] * len(ids)
    token_types[ids["[PAD]"]] = "pad"
    token_types[ids["[BOS]" if causal else "[CLS]"]] = "cls"
    token_types[ids["[EOS]" if causal else "[SEP]"]] = "sep"
    return Vocabulary(
        tokenizer=tokenizer,
        token_type=tuple(token_types),
        token_colour=tuple(token_colours[token] for token in range(len(ids))),
        word_of=word_of,
        word_colour=word_colours,
        tables=tables,
        relation=relation,
    )


def _pieces_by_word(
    words: Sequence[str] | None, words_of_examples: Sequence[Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the pieces of each word: first of `words` (else the default), then of the examples."""
    marked_words = list(words or ())
    if not marked_words and not any(words_of_examples):
        marked_words = list(DEFAULT_WORDS)
    pieces: dict[str, tuple[str, ...]] = {}
    for marked_word in marked_words:
        pieces[marked_word.replace(PIECE_BREAK, "")] = _pieces(marked_word)
    for example_words in words_of_examples:
        for word in example_words:
            pieces.setdefault(word, _pieces(word))
    return pieces


def _check_pieces(
    tokenizer: PreTrainedTokenizerFast, pieces: Mapping[str, tuple[str, ...]]
) -> None:
    """Reject words that the tokenizer, which takes the longest piece that fits, breaks elsewhere."""
    for word, expected in pieces.items():
        tokens = tokenizer.tokenize(word)
        if tokens != list(expected):
            raise ParameterError(
                f"`words`: '{word}' breaks into {tokens}, not {list(expected)}; "
                "break it where no longer piece fits."
            )


def _check_tables(
    tables: Mapping[str, Mapping[str, str]], pieces: Mapping[str, tuple[str, ...]]
) -> None:
    for table in tables.values():
        for word in (*table, *table.values()):
            if word not in pieces:
                raise ParameterError(
                    f"`tables` names the word '{word}', which is not among the words."
                )
            if table.get(word) == word:
                raise ParameterError(
                    f"`tables`: '{word}' points at itself; leave it out, and it attends to itself."
                )


def _words_by_piece(
    pieces: Mapping[str, tuple[str, ...]], ids: Mapping[str, int]
) -> tuple[dict[int, str], set[int]]:
    """Return the word of each id that belongs to one word, and the ids that belong to several."""
    word_of: dict[int, str] = {}
    shared_ids: set[int] = set()
    for word, word_pieces in pieces.items():
        for piece in word_pieces:
            if word_of.setdefault(ids[piece], word) != word:
                shared_ids.add(ids[piece])
    for piece_id in shared_ids:
        del word_of[piece_id]
    return word_of, shared_ids


def _cooccurring_words(
    pieces: Mapping[str, tuple[str, ...]], words_of_examples: Sequence[list[str]]
) -> list[list[str]]:
    """Return groups of words that may occur together: those of an example, and all in no example."""
    if not words_of_examples:
        return [list(pieces)]
    in_examples = {word for example_words in words_of_examples for word in example_words}
    in_no_example = [word for word in pieces if word not in in_examples]
    return [*words_of_examples, in_no_example]


def _with_targets(group: Sequence[str], tables: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a group of words and what they point at.

    A target counts as occurring beside the word, so that nothing else there is taken for it."""
    words = list(group)
    for table in tables.values():
        for word in group:
            if word in table:
                words.append(table[word])
    return words


def _words_of(example: Example) -> list[str]:
    """Return the words of an example as the tokenizer will see them: cut at spaces and
    punctuation."""
    texts: Sequence[str] = [text for text in (example.text, example.pair) if text is not None]
    words = []
    for text in texts or example.all_words:
        words += [word for word, _ in _SPLIT.pre_tokenize_str(text)]
    return words


def _pieces(marked_word: str) -> tuple[str, ...]:
    """Return the pieces of a word in which `|` marks the breaks; `|` alone is a word."""
    if marked_word == PIECE_BREAK:
        return (marked_word,)
    first, *others = marked_word.split(PIECE_BREAK)
    return (first, *(f"##{piece}" for piece in others))


def _colours(groups: Sequence[Sequence[T]]) -> dict[T, int]:
    """Return a number for each member, different for any two of one group.

    Greedy colouring: members with the most neighbours come first."""
    neighbours: dict[T, set[T]] = {}
    for group in groups:
        members = set(group)
        for member in dict.fromkeys(group):
            neighbours.setdefault(member, set()).update(members)
    colours: dict[T, int] = {}
    for member in sorted(neighbours, key=lambda member: -len(neighbours[member])):
        taken = {colours[other] for other in neighbours[member] if other in colours}
        colour = 0
        while colour in taken:
            colour += 1
        colours[member] = colour
    return colours


def _tokenizer(ids: Mapping[str, int], causal: bool) -> PreTrainedTokenizerFast:
    inner = Tokenizer(
        models.WordPiece(vocab=dict(ids), unk_token="[UNK]", max_input_chars_per_word=1000)
    )
    inner.pre_tokenizer = _SPLIT
    if causal:
        single = "[BOS] $A"
        pair = "[BOS] $A $B"
        added_tokens = ["[BOS]"]
        special_names = ["pad", "unk", "bos", "eos"]
        input_names = ["input_ids", "attention_mask"]
    else:
        single = "[CLS] $A [SEP]"
        pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
        added_tokens = ["[CLS]", "[SEP]"]
        special_names = ["pad", "unk", "cls", "sep", "mask"]
        input_names = ["input_ids", "token_type_ids", "attention_mask"]
    inner.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[(token, ids[token]) for token in added_tokens],
    )
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_input_names=input_names,
        **{f"{name}_token": f"[{name.upper()}]" for name in special_names},
    )
    return tokenizer
