"""Conversations: rendered by a tokenizer's chat template, with the role that every character has in
them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headwise.core.errors import InputError, ModelError
from headwise.text.example import ROLES, Example

TEMPLATE = ROLES.index("template")
MARK = "\ue000{}\ue001"  # stands for a message's text while the template is looked at; of the private use area
MARKED = re.compile("\ue000(\\d+)\ue001")


@dataclass(frozen=True, slots=True)
class Part:
    """Where a message's text lies in a rendered conversation, and where it begins in the example's
    plain text."""

    role: int  # a place in ROLES
    start: int
    end: int
    plain: int
    length: int  # of the plain text


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the model reads it."""

    text: str
    parts: tuple[Part, ...]

    def roles(self, offsets: Sequence[tuple[int, int]], special: np.ndarray) -> np.ndarray:
        """The role of each token, as a place in ROLES: that of the message its characters are of;
        else the template's, as special tokens' always."""
        out = np.full(len(offsets), TEMPLATE, dtype=np.int64)
        for token, (start, end) in enumerate(offsets):
            for part in self.parts if not special[token] else ():
                if min(end, part.end) > max(start, part.start):
                    out[token] = part.role
                    break
        return out

    def placed(self, example: Example) -> Example:
        """The example with its words' places in the rendered text; words of what the template
        leaves out or changes have none."""
        if example.spans is None:
            return example
        spans = []
        for start, end in example.spans:
            part = next(
                (p for p in self.parts if p.plain <= start and end <= p.plain + p.length), None
            )
            spans.append(
                (0, 0)
                if part is None
                else (start - part.plain + part.start, end - part.plain + part.start)
            )
        return replace(example, spans=tuple(spans))


def render(tokenizer: Any, example: Example) -> Rendered:
    """The conversation of an example, by the tokenizer's template.

    The template is rendered twice, with the messages and with marks in their place: what lies
    between the marks is the template's own text, wherever the same words stand in a message."""
    messages = example.messages or ()
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"{example.where}: the tokenizer has no chat template, so a conversation cannot be rendered; give a model "
            "that has one, or `text` instead of `messages`."
        )
    text = _applied(tokenizer, example, [content for _, content in messages])
    marked = _applied(tokenizer, example, [MARK.format(place) for place in range(len(messages))])
    pieces = MARKED.split(marked)
    order = [int(place) for place in pieces[1::2]]
    plain = np.cumsum([0, *(len(content) + 1 for _, content in messages)]).tolist()
    pattern = "(.*?)".join(re.escape(piece) for piece in pieces[::2])
    found = re.fullmatch(_exact(pieces, order, messages), text, re.DOTALL) or re.fullmatch(
        pattern, text, re.DOTALL
    )
    if found is None:
        raise InputError(
            f"{example.where}: the chat template changes with what the messages say; it is not served."
        )
    parts = []
    for group, place in enumerate(order, start=1):
        role, content = messages[place]
        start, end = found.span(group)
        shift = (
            content.find(found[group]) if end > start else -1
        )  # most templates take spaces off the ends
        if shift < 0:
            parts.append(Part(ROLES.index(role), start, end, -1, 0))
        else:
            parts.append(Part(ROLES.index(role), start, end, plain[place] + shift, end - start))
    return Rendered(text, tuple(parts))


def _exact(pieces: Sequence[str], order: Sequence[int], messages: Sequence[tuple[str, str]]) -> str:
    """A pattern of the template's text with the messages as they are, or without the spaces at
    their ends."""
    said = [messages[place][1] for place in order]
    groups = [f"({re.escape(text)}|{re.escape(text.strip())})" for text in said]
    literal = [re.escape(piece) for piece in pieces[::2]]
    return "".join(part for pair in zip(literal, [*groups, ""], strict=True) for part in pair)


def _applied(tokenizer: Any, example: Example, contents: Sequence[str]) -> str:
    messages = [
        {"role": role, "content": content}
        for (role, _), content in zip(example.messages or (), contents, strict=True)
    ]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False))
    except (
        Exception
    ) as error:  # templates raise what they like: roles that do not alternate, no system message
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"{example.where}: the chat template refuses the conversation: {said}"
        ) from error
