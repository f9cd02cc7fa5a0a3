"""The token types: how their tokens are recognised, and how they are named and drawn.

A new type is one entry of `TOKEN_TYPES`. Encoding marks its tokens; `surface`, `sinks`, `gradient`,
`features` and `attribution` count attention to it; figures, the page and the explorer show it.

`first` (the first token of a text, whatever it is) is not in the table: it is a place and not a
kind of token, and overlaps with the types. `Batch.token_mask` knows both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenType:
    """One type of tokens.

    A type is a special token of the tokenizer (`special_tokens`) or every token with one of some
    texts (`texts`).
    """

    name: str  # on the dim `token_type` of an atlas, in sieves and in `token_mask`
    phrase: str  # in sentences and legends
    # Of the tokenizer (`cls` for its `cls_token_id`): the first of these that it has.
    special_tokens: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()  # without the marks of a token's place in its word
    colour: str = ""  # a category of labels (`LABEL_CATEGORIES`), in whose colour it is drawn
    marker: str = "D"  # in scatter plots, as matplotlib names it
    # The label of heads that attend to it. A type without one takes no part in labels, so that a
    # new type leaves those of all heads as they are.
    label: str = ""


# A token of two types counts as the first of them: GPT-2 has one token for both ends of a text,
# which is the opening token.
TOKEN_TYPES = (
    TokenType(
        "cls",
        "the opening token",
        special_tokens=("cls", "bos"),
        colour="cls",
        marker="o",
        label="to cls",
    ),
    TokenType(
        "sep",
        "the closing token",
        special_tokens=("sep", "eos"),
        colour="sep",
        marker="s",
        label="to sep",
    ),
    TokenType(
        "punct",
        "full stops and commas",
        texts=(".", ","),
        colour="delimiters",
        marker="^",
        label="to punct",
    ),
)
# Rows and batches hold the type of each token as a number: its position in TYPE_NAMES.
TYPE_NAMES = (*(token_type.name for token_type in TOKEN_TYPES), "other")
OTHER = TYPE_NAMES.index("other")  # the number of tokens of no type of the table
SPECIAL_TYPES = tuple(token_type.name for token_type in TOKEN_TYPES if token_type.special_tokens)
