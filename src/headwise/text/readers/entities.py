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
_PIECE = re.compile(r"[()|]|[^()|]+")


@dataclass(frozen=True, slots=True)
class Bracketed:
    """A marked stretch of words (end exclusive), with what stands behind its opening bracket."""

    start: int
    end: int
    entity: str
    opening: str


def bracketed(marks: Iterable[tuple[str, str]], limits: Limits = DEFAULT) -> Iterator[Bracketed]:
    """The stretches that brackets mark, in the order in which they close.

    Parameters
    ----------
    marks : iterable of (str, str)
        For each word, its marks (`""` for none) and where it stands, for messages.
    limits : Limits, optional
        The most marks.

    An entity may be open several times; the latest opened closes first. A bracket without its
    partner is refused with its line."""
    standing: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    count = 0
    for word, (text, where) in enumerate(marks):
        for body, opens, closes in _marks_in(text, where):
            count += opens
            limits.hold("max_marks", count, where)
            entity = entity_id(body)
            if opens and closes:
                yield Bracketed(word, word + 1, entity, body)
            elif opens:
                standing[entity].append((word, body, where))
            elif not standing[entity]:
                raise InputError(
                    f"{where}: the mention of entity {shown(entity)} ends here but begins nowhere."
                )
            else:
                start, opening, _ = standing[entity].pop()
                yield Bracketed(start, word + 1, entity, opening)
    for entity, left in standing.items():
        if left:
            raise InputError(
                f"{left[-1][2]}: the mention of entity {shown(entity)} begins here but ends nowhere."
            )


def _marks_in(text: str, where: str) -> Iterator[tuple[str, bool, bool]]:
    """The brackets of one word, from left to right: what stands in each, whether it opens, whether
    it closes."""
    pieces = _PIECE.findall(text)
    place = 0
    while place < len(pieces):
        if pieces[place] == "|":
            place += 1
            continue
        opens = pieces[place] == "("
        body, after = (*pieces[place + opens : place + opens + 2], "", "")[:2]
        closes = after == ")"
        if body in ("", "(", ")", "|") or not (opens or closes):
            raise InputError(
                f"{where}: '{shown(text)}' is not a list of brackets like (1, 1) or (1)."
            )
        yield body, opens, closes
        place += opens + 1 + closes


def entity_id(body: str) -> str:
    """What stands before the first dash: the entity's name (with the part of a split mention,
    `e5[1/2]`)."""
    return body.split("-", 1)[0]


def tree_head(start: int, end: int, heads: Sequence[int]) -> int:
    """The first word of a stretch whose own head lies outside it."""
    return TreeHeads(heads[start:end], start)(start, end)


class TreeHeads:
    """The head words of many stretches of one text: a stretch costs the logarithm of the words, not
    its length.

    Parameters
    ----------
    heads : sequence of int
        The head of each word.
    first : int, default 0
        The number of the first word in `heads`.
    """

    def __init__(self, heads: Sequence[int], first: int = 0) -> None:
        self.heads, self.first = heads, first
        self.size = 1 << max(len(heads) - 1, 0).bit_length()
        inside = len(heads) + first
        # A tree over the words: node n holds the smallest and the largest head below it, words are
        # the last nodes.
        self.low = [0] * self.size + [*heads] + [inside] * (self.size - len(heads))
        self.high = [0] * self.size + [*heads] + [-1] * (self.size - len(heads))
        for node in range(self.size - 1, 0, -1):
            self.low[node] = min(self.low[2 * node], self.low[2 * node + 1])
            self.high[node] = max(self.high[2 * node], self.high[2 * node + 1])

    def __call__(self, start: int, end: int, among: Collection[int] = ()) -> int:
        """The first word of `start..end` whose head lies outside, of those preferred where one is
        `among` them."""
        preferred = (word for word in sorted(among) if start <= word < end)
        found = next(
            (word for word in preferred if not start <= self.heads[word - self.first] < end), None
        )
        return self._top(start, end) if found is None else found

    def _top(self, start: int, end: int) -> int:
        """Up from the first word until a node to the right holds a head outside, then down to its
        first such word."""
        node = self.size + start - self.first
        while not (self.low[node] < start or self.high[node] >= end):
            while node & 1:  # a right child: what follows lies beside an ancestor
                node //= 2
            if not node:
                raise ValueError(f"the tree has a cycle within the words {start + 1} to {end}")
            node += 1
        while node < self.size:
            node *= 2
            node += not (self.low[node] < start or self.high[node] >= end)
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
        """The mentions of a document, by their place.

        The head of a mention is the one the mark names (`head`, CorefUD); else the word of the tree
        whose head lies outside the mention, of the smallest span (`minspan`, GUM) where it holds
        one; else the first word of the smallest span."""
        marks = ((_entity_of(column), where) for column, where in misc)
        tops = None if heads is None else TreeHeads(heads)
        found = []
        for item in bracketed(marks, limits):
            if "[" in item.entity:
                notes["mentions left out: in several parts"] += 1
                continue
            values = dict(zip(self.fields[1:], item.opening.split("-")[1:], strict=False))
            if values.get("link") in skip_links:
                notes[f"mentions left out: linked as {shown(values['link'])}"] += 1
                continue
            found.append(Mention(item.start, item.end, item.entity, _head(item, values, tops)))
        return in_order(found)


def in_order(mentions: Iterable[Mention]) -> tuple[Mention, ...]:
    """Mentions by their place, outer ones before those in them."""
    return tuple(sorted(mentions, key=lambda m: (m.start, -m.end, m.entity)))


def _entity_of(misc: str) -> str:
    return next(
        (part.removeprefix("Entity=") for part in misc.split("|") if part.startswith("Entity=")), ""
    )


def _head(item: Bracketed, values: dict[str, str], tops: TreeHeads | None) -> int | None:
    def places(name: str) -> list[int]:
        numbers = map(whole_number, values.get(name, "").split(","))
        return [
            item.start + n - 1 for n in numbers if n is not None and 1 <= n <= item.end - item.start
        ]

    named = places("head")
    if named:
        return named[0]
    smallest = places("minspan")
    if tops is not None:
        return tops(item.start, item.end, smallest)
    return smallest[0] if smallest else None
