"""Entity marks as brackets: `(1`, `1)`, `(1)`, in GUM's `Entity=` and in the coreference columns of
CoNLL files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import Mention
from headwise.text.readers.limits import Limits, shown, whole_number

DEFAULT = Limits()
_SYMBOL = re.compile(r"[()|]|[^()|]+")


@dataclass(frozen=True, slots=True)
class Bracketed:
    """A marked stretch of words (end exclusive), with the text after its opening bracket."""

    start: int
    end: int
    entity: str
    opening: str


def bracketed(marks: Iterable[tuple[str, str]], limits: Limits = DEFAULT) -> Iterator[Bracketed]:
    """Yield the stretches that brackets mark, in the order in which they close.

    Parameters
    ----------
    marks : iterable of (str, str)
        For each word, its marks (`""` for none) and where it stands, for messages.
    limits : Limits, optional
        The greatest number of marks.

    An entity may be open several times; the one opened last closes first. A bracket without its
    partner raises `InputError` with its line.
    """
    open_marks: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    count = 0
    for word, (text, where) in enumerate(marks):
        for body, opens, closes in _marks_in(text, where):
            count += opens
            limits.hold("max_marks", count, where)
            entity = entity_id(body)
            if opens and closes:
                yield Bracketed(word, word + 1, entity, body)
            elif opens:
                open_marks[entity].append((word, body, where))
            elif not open_marks[entity]:
                raise InputError(
                    f"{where}: the mention of entity {shown(entity)} ends here but begins nowhere."
                )
            else:
                start, opening, _ = open_marks[entity].pop()
                yield Bracketed(start, word + 1, entity, opening)
    for entity, unclosed in open_marks.items():
        if unclosed:
            _, _, where = unclosed[-1]
            raise InputError(
                f"{where}: the mention of entity {shown(entity)} begins here but ends nowhere."
            )


def _marks_in(text: str, where: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield the brackets of one word, from left to right: the text of each, whether it opens a
    mention, whether it closes one."""
    symbols = _SYMBOL.findall(text)
    index = 0
    while index < len(symbols):
        if symbols[index] == "|":
            index += 1
            continue
        opens = symbols[index] == "("
        if opens:
            index += 1
        body = symbols[index] if index < len(symbols) else ""
        index += 1
        closes = index < len(symbols) and symbols[index] == ")"
        if closes:
            index += 1
        if body in ("", "(", ")", "|") or not (opens or closes):
            raise InputError(
                f"{where}: '{shown(text)}' is not a list of brackets like (1, 1) or (1)."
            )
        yield body, opens, closes


def entity_id(body: str) -> str:
    """Return the entity's name, the text before the first dash (with the part of a split mention,
    `e5[1/2]`)."""
    return body.split("-", 1)[0]


def tree_head(start: int, end: int, heads: Sequence[int]) -> int:
    """Return the first word of a stretch whose own head lies outside it."""
    return TreeHeads(heads[start:end], start)(start, end)


class TreeHeads:
    """The head words of many stretches of one text.

    A lookup costs the logarithm of the number of words, whatever the length of the stretch.

    Parameters
    ----------
    heads : sequence of int
        The head of each word.
    first : int, default 0
        The number of the first word in `heads`.
    """

    def __init__(self, heads: Sequence[int], first: int = 0) -> None:
        self.heads = heads
        self.first = first
        # A segment tree: node n holds the smallest and the largest head below it, its children are
        # 2n and 2n + 1, and the words are the last `size` nodes.
        self.size = 1 << max(len(heads) - 1, 0).bit_length()
        n_padding = self.size - len(heads)
        self.low = [0] * self.size + [*heads] + [len(heads) + first] * n_padding
        self.high = [0] * self.size + [*heads] + [-1] * n_padding
        for node in range(self.size - 1, 0, -1):
            self.low[node] = min(self.low[2 * node], self.low[2 * node + 1])
            self.high[node] = max(self.high[2 * node], self.high[2 * node + 1])

    def __call__(self, start: int, end: int, among: Collection[int] = ()) -> int:
        """Return the first word of `start..end` whose head lies outside; one of the words `among`
        which to prefer where any qualifies."""
        for word in sorted(among):
            if not start <= word < end:
                continue
            head = self.heads[word - self.first]
            if not start <= head < end:
                return word
        return self._first_with_head_outside(start, end)

    def _first_with_head_outside(self, start: int, end: int) -> int:
        """Search to the right for a node that has a head outside, then descend to its first one."""
        node = self.size + start - self.first
        while not (self.low[node] < start or self.high[node] >= end):
            while node & 1:  # a right child: the next words are below the sibling of an ancestor
                node //= 2
            if not node:
                raise ValueError(f"the tree has a cycle within the words {start + 1} to {end}")
            node += 1
        while node < self.size:
            node *= 2
            left_has_head_outside = self.low[node] < start or self.high[node] >= end
            if not left_has_head_outside:
                node += 1
        return node - self.size + self.first


class EntityMarks:
    """GUM's and CorefUD's `Entity=` marks, with the fields that `# global.Entity` declares."""

    def __init__(self, declared: str) -> None:
        self.fields = declared.split("-")

    def mentions(
        self,
        misc: Iterable[tuple[str, str]],
        heads: Sequence[int] | None,
        notes: Notes,
        skip_links: Collection[str] = (),
        limits: Limits = DEFAULT,
    ) -> tuple[Mention, ...]:
        """Return the mentions of a document, in their order in the text.

        The head of a mention is the one that the mark names (`head`, CorefUD); otherwise the word
        whose head in the tree lies outside the mention, preferably within the smallest span
        (`minspan`, GUM); otherwise the first word of the smallest span.

        Parameters
        ----------
        misc : iterable of (str, str)
            For each word, its last column and where it stands.
        heads : sequence of int or None
            The head of each word; None without a tree.
        notes : Notes
            Counts the mentions that are left out.
        skip_links : collection of str, default ()
            Mentions with one of these links are left out.
        limits : Limits, optional
            The greatest number of marks.
        """
        marks = ((_entity_of(column), where) for column, where in misc)
        tree_heads = None if heads is None else TreeHeads(heads)
        mentions = []
        for item in bracketed(marks, limits):
            if "[" in item.entity:
                notes["mentions left out: in several parts"] += 1
                continue
            values = dict(zip(self.fields[1:], item.opening.split("-")[1:], strict=False))
            if values.get("link") in skip_links:
                notes[f"mentions left out: linked as {shown(values['link'])}"] += 1
                continue
            head = _head(item, values, tree_heads)
            mentions.append(Mention(item.start, item.end, item.entity, head))
        return in_order(mentions)


def in_order(mentions: Iterable[Mention]) -> tuple[Mention, ...]:
    """Return mentions in their order in the text, outer ones before those in them."""

    def position(mention: Mention) -> tuple[int, int, str]:
        return mention.start, -mention.end, mention.entity

    return tuple(sorted(mentions, key=position))


def _entity_of(misc: str) -> str:
    """Return the entity marks in the last column of a word; "" without any."""
    for attribute in misc.split("|"):
        if attribute.startswith("Entity="):
            return attribute.removeprefix("Entity=")
    return ""


def _head(item: Bracketed, values: dict[str, str], tree_heads: TreeHeads | None) -> int | None:
    """Return the head word of a mention; see `EntityMarks.mentions`."""
    named_heads = _words_named(item, values.get("head", ""))
    if named_heads:
        return named_heads[0]
    smallest_span = _words_named(item, values.get("minspan", ""))
    if tree_heads is not None:
        return tree_heads(item.start, item.end, smallest_span)
    return smallest_span[0] if smallest_span else None


def _words_named(item: Bracketed, numbers: str) -> list[int]:
    """Return the words that a list like `1,2` names, counted from 1 within the mention."""
    words = []
    for text in numbers.split(","):
        number = whole_number(text)
        if number is not None and 1 <= number <= item.end - item.start:
            words.append(item.start + number - 1)
    return words
