"""A small tokenizer made in code, and the colours that let few dimensions tell many words apart."""

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
KINDS = ("ordinary", "pad", "cls", "sep")
_WORDS = """
the a cat dog bird child teach|er gar|den|er saw heard sleep|s sing|s run|s old small happi|ly near under tree house not
he she it and ? . ,
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

    `token_colour[id]` and `word_colour[word]` are small numbers, different for any two that stand
    in one example: a code of few dimensions tells them apart there. `word_of[id]` is the word a
    piece belongs to, for pieces of one word only."""

    tokenizer: PreTrainedTokenizerFast
    kind: tuple[str, ...]  # of each id
    token_colour: tuple[int, ...]  # of each id
    word_of: Mapping[int, str]
    word_colour: Mapping[str, int]
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    relation: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)


def make_vocabulary(
    words: Sequence[str] | None,
    examples: Sequence[Example] | None,
    tables: Mapping[str, Mapping[str, str]],
    relation: Mapping[str, str],
    causal: bool,
) -> Vocabulary:
    """The tokenizer and colours for these words (`|` marks where one breaks into pieces) and those
    of these examples.

    Without examples, any two words may stand together; with them, only what stands together in one
    gets different colours, so that large corpora need few dimensions."""
    specials = CAUSAL_SPECIALS if causal else BIDIRECTIONAL_SPECIALS
    seen = [_words_of(example) for example in examples or ()]
    marked = list(dict.fromkeys(words or (w for group in seen for w in group))) or list(
        DEFAULT_WORDS
    )
    pieces = {word.replace(PIECE_BREAK, ""): _pieces(word) for word in marked}
    for word in (w for group in seen for w in group):
        pieces.setdefault(word, _pieces(word))
    ids: dict[str, int] = {}
    for piece in (*specials, *(p for parts in pieces.values() for p in parts)):
        ids.setdefault(piece, len(ids))
    tokenizer = _tokenizer(ids, causal)
    for word, parts in pieces.items():
        found = tokenizer.tokenize(word)
        if found != list(parts):
            raise ParameterError(
                f"`words`: '{word}' breaks into {found}, not {list(parts)}; break it where no longer piece fits."
            )
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

    placed = {word for group in seen for word in group}
    groups = [*seen, [word for word in pieces if word not in placed]] if seen else [list(pieces)]
    # What a word points at counts as standing beside it, so that nothing else there is taken for
    # it.
    word_groups = [
        [*group, *(t[w] for t in tables.values() for w in group if w in t)] for group in groups
    ]
    token_groups = [
        [*range(len(specials)), *(ids[p] for w in group for p in pieces[w])] for group in groups
    ]
    token_colours = _colours(token_groups)
    word_of: dict[int, str] = {}
    shared: set[int] = set()
    for word, parts in pieces.items():
        for piece in parts:
            if word_of.setdefault(ids[piece], word) != word:
                shared.add(ids[piece])
    for piece_id in shared:
        del word_of[piece_id]
    for table in tables.values():
        for word in (*table, *table.values()):
            if any(ids[p] in shared for p in pieces[word]):
                raise ParameterError(
                    f"`tables`: a piece of '{word}' is a piece of another word too, so the word cannot be told by it."
                )
    kinds = dict.fromkeys(range(len(ids)), "ordinary")
    kinds[ids["[PAD]"]] = "pad"
    kinds[ids["[BOS]" if causal else "[CLS]"]] = "cls"
    kinds[ids["[EOS]" if causal else "[SEP]"]] = "sep"
    return Vocabulary(
        tokenizer=tokenizer,
        kind=tuple(kinds[i] for i in range(len(ids))),
        token_colour=tuple(token_colours[i] for i in range(len(ids))),
        word_of=word_of,
        word_colour=_colours(word_groups) if tables else {},
        tables=tables,
        relation=relation,
    )


def _words_of(example: Example) -> list[str]:
    """The words of an example as the tokenizer will see them: cut at spaces and punctuation."""
    texts = [text for text in (example.text, example.pair) if text is not None]
    return [
        piece for part in texts or example.all_words for piece, _ in _SPLIT.pre_tokenize_str(part)
    ]


def _pieces(word: str) -> tuple[str, ...]:
    first, *rest = word.split(PIECE_BREAK) if word != PIECE_BREAK else [word]
    return (first, *(f"##{piece}" for piece in rest))


def _colours(groups: Sequence[Sequence[T]]) -> dict[T, int]:
    """Greedy colouring: members of one group get different numbers; the most frequent are served
    first."""
    neighbours: dict[T, set[T]] = {}
    for group in groups:
        members = set(group)
        for member in dict.fromkeys(group):
            neighbours.setdefault(member, set()).update(members)
    colours: dict[T, int] = {}
    for member in sorted(neighbours, key=lambda m: -len(neighbours[m])):
        taken = {colours[n] for n in neighbours[member] if n in colours}
        colours[member] = next(c for c in range(len(taken) + 1) if c not in taken)
    return colours


def _tokenizer(ids: Mapping[str, int], causal: bool) -> PreTrainedTokenizerFast:
    inner = Tokenizer(
        models.WordPiece(vocab=dict(ids), unk_token="[UNK]", max_input_chars_per_word=1000)
    )
    inner.pre_tokenizer = _SPLIT
    single, pair = (
        ("[BOS] $A", "[BOS] $A $B") if causal else ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    )
    used = [(token, ids[token]) for token in (("[BOS]",) if causal else ("[CLS]", "[SEP]"))]
    inner.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=used
    )
    names = ("pad", "unk", "bos", "eos") if causal else ("pad", "unk", "cls", "sep", "mask")
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_input_names=["input_ids", *([] if causal else ["token_type_ids"]), "attention_mask"],
        **{f"{name}_token": f"[{name.upper()}]" for name in names},
    )
    return made
