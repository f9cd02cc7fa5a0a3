"""Dependency trees in the making: nodes with ordered dependents, and their reading off as words
with annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headwise.text.example import ROOT, Example, FrameLink, Mention

T = TypeVar("T")

# What a mention consists of besides its head; prepositions, conjuncts and clauses above it are not
# part of it.
INSIDE_MENTION = frozenset(
    {
        "det",
        "amod",
        "nummod",
        "compound",
        "flat",
        "nmod",
        "nmod:poss",
        "acl:relcl",
        "acl",
        "advmod",
        "appos",
        "det:predet",
    }
)


@dataclass(eq=False, slots=True)
class Node:
    """A word with its dependents on either side, in order: every tree built of these is
    projective."""

    form: str
    upos: str
    relation: str = "root"
    lemma: str = ""
    features: dict[str, str] = field(default_factory=dict)
    left: list[Node] = field(default_factory=list)
    right: list[Node] = field(default_factory=list)
    entity: str | None = None  # the entity this noun phrase stands for
    group: str | None = None  # the entity it stands for together with its conjuncts
    links: list[tuple[str, str, Node, bool]] = field(
        default_factory=list
    )  # frame, element, filler, core: this word is the target

    def __post_init__(self) -> None:
        self.lemma = self.lemma or self.form

    def as_(self, relation: str) -> Node:
        """The same word in another function."""
        self.relation = relation
        return self

    def walk(self) -> Iterator[Node]:
        """The words of the subtree in the order they are spoken."""
        for node in self.left:
            yield from node.walk()
        yield self
        for node in self.right:
            yield from node.walk()

    @property
    def plural(self) -> bool:
        return self.features.get("Number") == "Plur" or any(
            node.relation == "conj" for node in self.right
        )

    @property
    def person(self) -> int:
        return int(self.features.get("Person", "3"))


@dataclass(slots=True)
class Words:
    """Sentences read off their trees, with everything known about each word; indices run through
    all of them."""

    forms: list[str] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    relations: list[str] = field(default_factory=list)
    upos: list[str] = field(default_factory=list)
    lemmas: list[str] = field(default_factory=list)
    features: list[dict[str, str]] = field(default_factory=list)
    sentences: list[int] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)
    frames: list[FrameLink] = field(default_factory=list)

    def add(self, root: Node) -> None:
        """Append a sentence."""
        base, nodes = len(self.forms), list(root.walk())
        place = {id(node): base + number for number, node in enumerate(nodes)}
        number = self.sentences[-1] + 1 if self.sentences else 0
        heads = {id(root): ROOT}
        for node in nodes:
            heads.update((id(child), place[id(node)]) for child in (*node.left, *node.right))
        for node in nodes:
            first = place[id(node)] == base
            self.forms.append(node.form[0].upper() + node.form[1:] if first else node.form)
            self.heads.append(heads[id(node)])
            self.relations.append(node.relation)
            self.upos.append(node.upos)
            self.lemmas.append(node.lemma)
            self.features.append(dict(sorted(node.features.items())))
            self.sentences.append(number)
        for node in nodes:
            self._annotate(node, place)

    def _annotate(self, node: Node, place: dict[int, int]) -> None:
        if node.entity is not None:
            inside = [node] + [
                word
                for child in node.left
                if child.relation in INSIDE_MENTION
                for word in child.walk()
            ]
            inside += [
                word
                for child in node.right
                if child.relation in INSIDE_MENTION | {"case"}
                for word in child.walk()
            ]
            self._mention(inside, node, node.entity, place)
        if node.group is not None:
            inside = [
                word for child in node.left if child.relation != "case" for word in child.walk()
            ]
            self._mention(
                [*inside, node, *(word for child in node.right for word in child.walk())],
                node,
                node.group,
                place,
            )
        for frame, element, filler, core in node.links:
            if id(filler) not in place:
                continue
            target = [place[id(node)]]
            target += [
                place[id(child)] for child in node.right[:1] if child.relation == "compound:prt"
            ]
            span = [place[id(word)] for word in filler.walk() if word.upos != "PUNCT"]
            self.frames.append(
                FrameLink(
                    frame, element, (target[0], target[-1] + 1), (min(span), max(span) + 1), core
                )
            )

    def _mention(self, inside: list[Node], head: Node, entity: str, place: dict[int, int]) -> None:
        span = [place[id(word)] for word in inside]
        self.mentions.append(Mention(min(span), max(span) + 1, entity, place[id(head)]))

    def example(
        self, split: int | None = None, label: str | None = None, origin: str = ""
    ) -> Example:
        """An example of one segment, or of two where `split` says how many words the first has.
        Mentions of entities that occur once are left out."""
        times: dict[str, int] = {}
        for mention in self.mentions:
            times[mention.entity] = times.get(mention.entity, 0) + 1
        kept = sorted(
            (m for m in self.mentions if times[m.entity] > 1), key=lambda m: (m.start, -m.end)
        )
        return Example(
            words=tuple(self.forms[:split]),
            words_pair=tuple(self.forms[split:]) if split is not None else None,
            heads=tuple(self.heads),
            relations=tuple(self.relations),
            upos=tuple(self.upos),
            lemmas=tuple(self.lemmas),
            features=tuple(self.features),
            sentences=tuple(self.sentences),
            mentions=tuple(kept),
            frames=tuple(self.frames),
            label=label,
            origin=origin,
        )


def chain(items: Sequence[T | None]) -> list[T]:
    """The items that are there."""
    return [item for item in items if item is not None]
