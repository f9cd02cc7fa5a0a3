"""Render conversations by a tokenizer's chat template, with the role of every character."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headwise.core.errors import InputError, ModelError
from headwise.text.example import ROLES, Example
from headwise.text.template_limits import (
    MAX_CHARACTERS,
    MAX_MEMORY,
    MAX_SECONDS,
    TemplateLimitError,
    limited,
)

TEMPLATE = ROLES.index("template")
# Stands for the content of a message while the template is looked at: private-use characters around
# a digest of template and messages, which no template can write, and the number of the message.
PLACEHOLDER = "\ue000{digest}-{number}\ue001"
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """Where the content of a message is in a rendered conversation, and in the example's text."""

    role: int  # position in ROLES
    start: int
    end: int
    text_start: int  # in the text of the example; -1 where the template changed the content
    text_length: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the model reads it."""

    text: str
    messages: tuple[MessageSpan, ...]

    def roles(self, offsets: Sequence[Span], special: np.ndarray) -> np.ndarray:
        """Return the role of each token, as a position in ROLES.

        A token has the role of the message that its characters belong to, else `template`; special
        tokens always have `template`.
        """
        roles = np.full(len(offsets), TEMPLATE, dtype=np.int64)
        # Tokens and messages both go forward: each message is passed once.
        spans = sorted(self.messages, key=lambda message: message.start)
        current = 0
        for token, (start, end) in enumerate(offsets):
            while current < len(spans) and spans[current].end <= start:
                current += 1
            if special[token] or current == len(spans):
                continue
            # An empty message can stand before the one that the token belongs to.
            for message in spans[current:]:
                if message.start >= end:
                    break
                if min(end, message.end) > max(start, message.start):
                    roles[token] = message.role
                    break
        return roles

    def placed(self, example: Example) -> Example:
        """Return the example with the spans of its words in the rendered text.

        Words of messages that the template leaves out or changes get an empty span.
        """
        if example.spans is None:
            return example
        spans = []
        for start, end in example.spans:
            message = self._message_of(start, end)
            if message is None:
                spans.append((0, 0))
            else:
                shift = message.start - message.text_start
                spans.append((start + shift, end + shift))
        return replace(example, spans=tuple(spans))

    def _message_of(self, start: int, end: int) -> MessageSpan | None:
        for message in self.messages:
            if message.text_start <= start and end <= message.text_start + message.text_length:
                return message
        return None


def render(tokenizer: Any, example: Example) -> Rendered:
    """Render the conversation of an example by the tokenizer's chat template.

    The template is rendered twice, with the messages and with placeholders: the text between the
    placeholders is the template's own, even where a message contains the same words.
    """
    messages = example.messages or ()
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"{example.where}: the tokenizer has no chat template, so a conversation cannot be "
            "rendered; use a model that has one, or `text` instead of `messages`."
        )
    contents = [content for _, content in messages]
    text = _apply_template(tokenizer, example, contents)
    hashed = "\0".join([str(tokenizer.chat_template), *contents])
    digest = hashlib.sha256(hashed.encode(errors="replace")).hexdigest()[:24]
    placeholders = []
    for number in range(len(messages)):
        placeholders.append(PLACEHOLDER.format(digest=digest, number=number))
    with_placeholders = _apply_template(tokenizer, example, placeholders)
    # A template may cut a placeholder, or count in it: only whole ones of ours are taken.
    numbers = "|".join(str(number) for number in reversed(range(len(messages))))
    parts = re.split(f"\ue000{digest}-({numbers})\ue001", with_placeholders)
    template_parts = parts[::2]
    order = [int(number) for number in parts[1::2]]
    ordered_contents = [contents[number] for number in order]
    spans = locate_contents(text, template_parts, ordered_contents)
    if spans is None:
        raise InputError(
            f"{example.where}: the chat template changes with the content of the messages; it is "
            "not supported."
        )
    # The text of the example is the contents with a line feed between them.
    text_starts = np.cumsum([0, *(len(content) + 1 for content in contents)]).tolist()
    message_spans = []
    for number, (start, end) in zip(order, spans, strict=True):
        role, content = messages[number]
        # Most templates strip the content: it starts somewhat later in the example's text.
        shift = content.find(text[start:end]) if end > start else -1
        if shift < 0:
            message_spans.append(MessageSpan(ROLES.index(role), start, end, -1, 0))
        else:
            text_start = text_starts[number] + shift
            message_spans.append(
                MessageSpan(ROLES.index(role), start, end, text_start, end - start)
            )
    return Rendered(text, tuple(message_spans))


def locate_contents(
    text: str, template_parts: Sequence[str], contents: Sequence[str]
) -> list[Span] | None:
    """Return the span of each content in a rendered conversation; None where it does not fit.

    The text must be the template's parts with one content between each two, as written or
    stripped, or failing that with any text between them. Time is linear in the length of the text.

    Parameters
    ----------
    text : str
        The rendered conversation.
    template_parts : sequence of str
        The template's own text before, between and after the contents.
    contents : sequence of str
        The contents in the order of the template.

    Examples
    --------
    >>> locate_contents("<a>hi</a><a>ho</a>", ["<a>", "</a><a>", "</a>"], [" hi ", "ho"])
    [(3, 5), (12, 14)]
    """
    exact = _locate_exactly(text, template_parts, contents)
    if exact is not None:
        return exact
    return _locate_between(text, template_parts)


def _locate_exactly(
    text: str, template_parts: Sequence[str], contents: Sequence[str]
) -> list[Span] | None:
    """Locate contents that stand in the text as written, or stripped."""
    if not text.startswith(template_parts[0]):
        return None
    # Where a content can start, and the spans that lead there. A content as written and stripped
    # may both fit; positions are kept once, so that choices do not multiply.
    reached: dict[int, list[Span]] = {len(template_parts[0]): []}
    for content, following in zip(contents, template_parts[1:], strict=True):
        next_reached: dict[int, list[Span]] = {}
        for start, spans in reached.items():
            for candidate in dict.fromkeys((content, content.strip())):
                end = start + len(candidate)
                if text.startswith(candidate, start) and text.startswith(following, end):
                    next_reached.setdefault(end + len(following), [*spans, (start, end)])
        reached = next_reached
    return reached.get(len(text))


def _locate_between(text: str, template_parts: Sequence[str]) -> list[Span] | None:
    """Locate contents that the template changed: whatever is between its own parts."""
    first, *following_parts = template_parts
    if not text.startswith(first):
        return None
    spans: list[Span] = []
    start = len(first)
    for number, following in enumerate(following_parts):
        if number == len(following_parts) - 1:
            end = len(text) - len(following)
            if end < start or not text.endswith(following):
                return None
        else:
            end = text.find(following, start)
            if end < 0:
                return None
        spans.append((start, end))
        start = end + len(following)
    return spans if start == len(text) else None


def _apply_template(tokenizer: Any, example: Example, contents: Sequence[str]) -> str:
    messages = []
    for (role, _), content in zip(example.messages or (), contents, strict=True):
        messages.append({"role": role, "content": content})
    try:
        with limited():
            text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    except (TemplateLimitError, MemoryError):
        raise ModelError(
            f"{example.where}: the chat template took more than {MAX_SECONDS:.0f} seconds or "
            f"{MAX_MEMORY >> 20:,} MiB for one conversation; it is damaged or hostile, use another "
            "tokenizer."
        ) from None
    except Exception as error:
        # Templates raise errors of their own: roles that do not alternate, no system message.
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{example.where}: the chat template rejects the conversation: {reason}"
        ) from error
    if len(text) > MAX_CHARACTERS:
        raise ModelError(
            f"{example.where}: the chat template makes {len(text):,} characters of one "
            f"conversation, more than {MAX_CHARACTERS:,}; it is damaged or hostile, use another "
            "tokenizer."
        )
    return text
