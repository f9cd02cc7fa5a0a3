"""Entity marks as brackets: `(1`, `1)`, `(1)`, in GUM's `Entity=` and in the coreference columns of CoNLL files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from headwise.core.errors import InputError
from headwise.text.corpus import Notes
from headwise.text.example import Mention

_MARK = re.compile(r"\((?P<single>[^()|]+)\)|\((?P<open>[^()|]+)|(?P<close>[^()|]+)\)")


@dataclass(frozen=True, slots=True)
class Bracketed:
    """A marked stretch of words (end exclusive), with what stands behind its opening bracket."""

    start: int
    end: int
    entity: str
    opening: str


def bracketed(marks: Iterable[tuple[str, str]]) -> Iterator[Bracketed]:
    """The stretches that brackets mark, in the order in which they close.

    Parameters
    ----------
    marks : iterable of (str, str)
        For each word, its marks (`""` for none) and where it stands, for messages.

    An entity may be open several times; the latest opened closes first. A bracket without its partner is refused with
    its line.
    """
    standing: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    where = ""
    for word, (text, where) in enumerate(marks):
        rest = _MARK.sub("", text).strip("|")
        if rest:
            raise InputError(f"{where}: '{text}' is not a list of brackets like (1, 1) or (1).")
        for match in _MARK.finditer(text):
            if match["single"] is not None:
                yield Bracketed(word, word + 1, entity_id(match["single"]), match["single"])
            elif match["open"] is not None:
                standing[entity_id(match["open"])].append((word, match["open"], where))
            else:
                entity = entity_id(match["close"])
                if not standing[entity]:
                    raise InputError(f"{where}: the mention of entity {entity} ends here but begins nowhere.")
                start, opening, _ = standing[entity].pop()
                yield Bracketed(start, word + 1, entity, opening)
    for entity, left in standing.items():
        if left:
            raise InputError(f"{left[-1][2]}: the mention of entity {entity} begins here but ends nowhere.")


def entity_id(body: str) -> str:
    """What stands before the first dash: the entity's name (with the part of a split mention, `e5[1/2]`)."""
    return body.split("-", 1)[0]


def tree_head(start: int, end: int, heads: Sequence[int], among: Collection[int] = ()) -> int:
    """The word of a stretch whose own head lies outside it: the first such word, of those preferred where one is
    `among` them."""
    tops = [word for word in range(start, end) if not start <= heads[word] < end]
    return next((word for word in tops if word in among), tops[0])


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
    ) -> tuple[Mention, ...]:
        """The mentions of a document, by their place.

        The head of a mention is the one the mark names (`head`, CorefUD); else the word of the tree whose head lies
        outside the mention, of the smallest span (`minspan`, GUM) where it holds one; else the first word of the
        smallest span.
        """
        marks = ((_entity_of(column), where) for column, where in misc)
        found = []
        for item in bracketed(marks):
            if "[" in item.entity:
                notes["mentions left out: in several parts"] += 1
                continue
            values = dict(zip(self.fields[1:], item.opening.split("-")[1:], strict=False))
            if values.get("link") in skip_links:
                notes[f"mentions left out: linked as {values['link']}"] += 1
                continue
            found.append(Mention(item.start, item.end, item.entity, _head(item, values, heads)))
        return in_order(found)


def in_order(mentions: Iterable[Mention]) -> tuple[Mention, ...]:
    """Mentions by their place, outer ones before those in them."""
    return tuple(sorted(mentions, key=lambda m: (m.start, -m.end, m.entity)))


def _entity_of(misc: str) -> str:
    return next((part.removeprefix("Entity=") for part in misc.split("|") if part.startswith("Entity=")), "")


def _head(item: Bracketed, values: dict[str, str], heads: Sequence[int] | None) -> int | None:
    def places(name: str) -> list[int]:
        numbers = [int(n) for n in values.get(name, "").split(",") if n.isdecimal()]
        return [item.start + n - 1 for n in numbers if 1 <= n <= item.end - item.start]

    named = places("head")
    if named:
        return named[0]
    smallest = places("minspan")
    if heads is not None:
        return tree_head(item.start, item.end, heads, smallest)
    return smallest[0] if smallest else None
