"""The people and things a demo text is about, and how each is referred to at every point of it: by
name, description or pronoun."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from demo_corpus.lexicon import Adjective, Noun, indefinite_article, lexicon
from demo_corpus.trees import Node

T = TypeVar("T")

PRONOUNS = {  # (nominative, accusative, possessive, reflexive) and features
    "she": (("she", "her", "her", "herself"), {"Gender": "Fem", "Number": "Sing", "Person": "3"}),
    "he": (("he", "him", "his", "himself"), {"Gender": "Masc", "Number": "Sing", "Person": "3"}),
    "it": (("it", "it", "its", "itself"), {"Gender": "Neut", "Number": "Sing", "Person": "3"}),
    "they": (("they", "them", "their", "themselves"), {"Number": "Plur", "Person": "3"}),
    "I": (("I", "me", "my", "myself"), {"Number": "Sing", "Person": "1"}),
    "we": (("we", "us", "our", "ourselves"), {"Number": "Plur", "Person": "1"}),
    "you": (("you", "you", "your", "yourself"), {"Person": "2"}),
}
CASES = ("nom", "acc", "gen", "refl")
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 7: "seven", 12: "twelve"}


class Dice:
    """Choices that are the same on every machine and Python version: they use nothing but
    `Random.random`."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._random.random() * len(options))]

    def weighted(self, options: dict[T, float]) -> T:
        left = self._random.random() * sum(options.values())
        for option, weight in options.items():
            left -= weight
            if left < 0:
                return option
        return next(reversed(options))

    def shuffled(self, items: Iterable[T]) -> list[T]:
        return sorted(items, key=lambda _: self._random.random())


@dataclass(eq=False, slots=True)
class Entity:
    """Somebody or something the text speaks of."""

    name: str
    pronoun: str
    noun: Noun | None = None
    proper: tuple[str, ...] = ()
    adjectives: list[Adjective] = field(default_factory=list)
    compound: str | None = None
    count: int = 1
    owner: Entity | None = None
    gender_shown: bool = True  # False while nothing has told whether "the teacher" is a she or a he
    mentioned: int = 0
    gone: bool = False

    @property
    def classes(self) -> frozenset[str]:
        if self.noun is not None:
            return self.noun.classes | ({"person"} if "kin" in self.noun.classes else frozenset())
        return frozenset({"person"} if self.pronoun != "it" else {"city", "place"})

    @property
    def could_be(self) -> frozenset[str]:
        """The pronouns a reader may think stand for it."""
        return (
            frozenset({self.pronoun})
            if self.gender_shown or self.pronoun not in ("she", "he")
            else frozenset({"she", "he"})
        )

    @property
    def speaker(self) -> bool:
        return self.pronoun in ("I", "we", "you")

    @property
    def nameless(self) -> bool:
        """Whether only a pronoun can stand for it: speakers, and "Anna and Peter" taken
        together."""
        return self.noun is None and not self.proper


class Cast:
    """The entities of one text, who was just spoken of, and the noun phrases that refer to them."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.words = lexicon()
        self.entities: list[Entity] = []
        self.before: list[Entity] = []  # mentioned in the sentence before
        self.now: list[Entity] = []  # mentioned in this sentence so far
        self.definite = (
            0.35  # how readily something new is spoken of as known ("the"): more so in questions
        )

    def next_sentence(self) -> None:
        """A sentence has ended."""
        self.before, self.now = self.now, []

    # Choosing whom to speak of

    def choose(
        self,
        classes: frozenset[str],
        reuse: float,
        but: Sequence[Entity | None] = (),
        owner: Entity | None = None,
    ) -> Entity:
        """An entity of one of these classes: one already in play with probability `reuse`, else a
        new one."""
        known = [e for e in self.entities if e.classes & classes and e not in but and not e.gone]
        if known and self.dice.chance(reuse):
            recent = [e for e in known if e in self.before or e in self.now]
            return self.dice.pick(recent or known)
        return self.create(classes, owner)

    def create(self, classes: frozenset[str], owner: Entity | None = None) -> Entity:
        """A new entity of one of these classes."""
        dice = self.dice
        entity: Entity
        if "city" in classes and dice.chance(0.6 if len(classes) > 1 else 1):
            entity = Entity("", "it", proper=(self._fresh(self.words.cities),))
        elif "person" in classes and dice.chance(0.5):
            entity = self._named_person()
        elif "person" in classes and owner is not None and dice.chance(0.35):
            entity = self._described(self.words.nouns_of(frozenset({"kin"})), owner)
        else:
            options = self.words.nouns_of(classes - {"kin"})
            if owner is None or not options:
                options = options or self.words.nouns_of(classes)
            entity = self._described(options, owner)
        entity.name = f"e{len(self.entities)}"
        self.entities.append(entity)
        return entity

    def named(self) -> Entity:
        """A new person with a name."""
        entity = self._named_person()
        entity.name = f"e{len(self.entities)}"
        self.entities.append(entity)
        return entity

    def speaker(self, pronoun: str) -> Entity:
        """The one who speaks, or who is spoken to."""
        found = next((e for e in self.entities if e.pronoun == pronoun), None)
        if found is None:
            found = Entity(f"e{len(self.entities)}", pronoun)
            self.entities.append(found)
        return found

    def _fresh(self, options: Sequence[str]) -> str:
        used = {word for entity in self.entities for word in entity.proper}
        return self.dice.pick([option for option in options if option not in used])

    def _named_person(self) -> Entity:
        gender = self.dice.pick(("Fem", "Masc"))
        first = self._fresh(self.words.names[gender])
        proper = (first, self._fresh(self.words.surnames)) if self.dice.chance(0.2) else (first,)
        return Entity("", "she" if gender == "Fem" else "he", proper=proper)

    def _described(self, options: Sequence[Noun], owner: Entity | None) -> Entity:
        dice = self.dice
        used = {entity.noun for entity in self.entities}
        noun = dice.pick([option for option in options if option not in used] or list(options))
        person = bool({"person", "kin"} & noun.classes)
        plural = (
            dice.chance(0.15)
            and not {"kin", "place", "furniture", "org", "queen", "king", "topic", "event"}
            & noun.classes
        )
        pronoun = (
            "they"
            if plural
            else "it"
            if not person
            else {"Fem": "she", "Masc": "he"}.get(noun.gender or "") or dice.pick(("she", "he"))
        )
        entity = Entity(
            "", pronoun, noun=noun, gender_shown=not person or noun.gender is not None or plural
        )
        entity.count = (
            dice.pick([2, 3, 0] if person or "animal" in noun.classes else [*NUMBERS, 0, 0, 0])
            if plural
            else 1
        )
        taken = {adjective for other in self.entities for adjective in other.adjectives}
        suitable = [
            adjective for adjective in self.words.adjectives_for(noun) if adjective not in taken
        ]
        if suitable and "kin" not in noun.classes:
            wanted = dice.weighted({0: 0.45, 1: 0.42, 2: 0.13})
            by_rank = {adjective.rank: adjective for adjective in dice.shuffled(suitable)}
            entity.adjectives = sorted(
                list(by_rank.values())[:wanted], key=lambda adjective: adjective.rank
            )
        if noun.compounds and dice.chance(0.3):
            entity.compound = dice.pick(noun.compounds)
            entity.adjectives = [a for a in entity.adjectives if a.rank < 5][:1]
        ownable = (
            owner is not None
            and not {"person", "wild", "topic", "event", "river", "org"} & noun.classes
        )
        if "kin" in noun.classes or (ownable and dice.chance(0.25)):
            entity.owner = owner
        return entity

    # Referring to it

    def pronoun_is_clear(self, entity: Entity) -> bool:
        """Whether a pronoun can mean nobody else: in the sentence that names the entity, or else in
        it and the one before."""
        recent = self.now if entity in self.now else [*self.before, *self.now]
        return entity.nameless or (
            entity in recent
            and not any(entity.pronoun in e.could_be for e in recent if e is not entity)
        )

    def refer(
        self,
        entity: Entity,
        relation: str,
        case: str = "acc",
        pronoun: float = 0.7,
        plain: bool = False,
    ) -> Node:
        """A noun phrase for the entity that fits what the reader knows; `plain` forbids what would
        make it long."""
        again_here = (
            entity in self.now and pronoun > 0
        )  # the same words twice in one sentence would sound like two people
        if self.pronoun_is_clear(entity) and (
            entity.nameless or again_here or self.dice.chance(pronoun)
        ):
            node = self.pronoun(entity, relation, case)
        else:
            node = (
                self._proper(entity, relation)
                if entity.proper
                else self._nominal(entity, relation, plain)
            )
            if case == "gen":
                plural_s = node.form.endswith("s") and entity.pronoun == "they"
                node.right.append(Node("'" if plural_s else "'s", "PART", "case", "'s"))
        node.entity = entity.name
        entity.mentioned += 1
        self.now.append(entity)
        return node

    def pronoun(self, entity: Entity, relation: str, case: str) -> Node:
        forms, features = PRONOUNS[entity.pronoun]
        entity.gender_shown = True
        marks = {
            "nom": {"Case": "Nom"},
            "acc": {"Case": "Acc"},
            "gen": {"Case": "Gen", "Poss": "Yes"},
            "refl": {"Case": "Acc", "Reflex": "Yes"},
        }
        form = forms[CASES.index(case)]
        lemma = form if case in ("gen", "refl") else forms[0]
        return Node(form, "PRON", relation, lemma, {**features, **marks[case], "PronType": "Prs"})

    def _proper(self, entity: Entity, relation: str) -> Node:
        features = {"Number": "Sing"} | (
            {"Gender": "Fem" if entity.pronoun == "she" else "Masc"}
            if entity.pronoun != "it"
            else {}
        )
        first = Node(entity.proper[0], "PROPN", relation, features=features)
        if not entity.mentioned:
            first.right = [
                Node(word, "PROPN", "flat", features={"Number": "Sing"})
                for word in entity.proper[1:]
            ]
        return first

    def _nominal(self, entity: Entity, relation: str, plain: bool) -> Node:
        noun, dice = entity.noun, self.dice
        assert noun is not None, "an entity has a name or a noun"
        plural = entity.pronoun == "they"
        features = {"Number": "Plur" if plural else "Sing"} | (
            {"Gender": noun.gender} if noun.gender else {}
        )
        head = Node(noun.plural if plural else noun.lemma, "NOUN", relation, noun.lemma, features)
        again = entity.mentioned > 0
        adjectives = (
            entity.adjectives if not again or (dice.chance(0.2) and entity not in self.now) else []
        )
        modifiers = [
            self._adjective(adjective, alone=len(adjectives) == 1) for adjective in adjectives
        ]
        if entity.compound and not again:
            modifiers.append(Node(entity.compound, "NOUN", "compound", features={"Number": "Sing"}))
        if plural and entity.count > 1 and not again:
            number = NUMBERS[entity.count]
            modifiers.insert(
                0, Node(number, "NUM", "nummod", features={"NumForm": "Word", "NumType": "Card"})
            )
        determiner: Node | None
        if entity.owner is not None and ("kin" in noun.classes or not again):
            determiner = self.refer(entity.owner, "nmod:poss", "gen", plain=True)
        else:
            definite = again or self._first_definite(noun)
            following = next(modifiers[0].walk()).form if modifiers else head.form
            determiner = article(definite, following, plural)
            if plural and entity.count > 1 and not definite:
                determiner = None  # "two letters"
        head.left = [*([determiner] if determiner else []), *modifiers]
        if not plain and not again and entity.owner is None and noun.followers and dice.chance(0.5):
            follower = self._follower(noun, entity)
            if follower is not None:
                head.right.append(follower)
        return head

    def _first_definite(self, noun: Noun) -> bool:
        """Places and unique things come with `the` at once, most others with `a`."""
        unique = {"room", "river", "spot", "topic", "org", "queen", "king", "garden"}
        return self.dice.chance(
            max(
                self.definite,
                0.85 if noun.classes & unique else 0.5 if "person" in noun.classes else 0.0,
            )
        )

    def _adjective(self, adjective: Adjective, alone: bool) -> Node:
        node = Node(adjective.lemma, "ADJ", "amod", features={"Degree": "Pos"})
        if (
            alone
            and adjective.rank <= 2
            and self.dice.chance(0.08)
            and adjective.lemma not in ("enormous", "tiny", "terrible", "delicious")
        ):
            node.left = [Node(self.dice.pick(("very", "rather", "surprisingly")), "ADV", "advmod")]
        return node

    def _follower(self, noun: Noun, entity: Entity) -> Node | None:
        """A prepositional phrase that belongs to the noun: "a letter from Anna", "the key to the
        box"."""
        preposition, kind = self.dice.pick(noun.followers)
        if preposition == "from" and entity.owner is not None:
            return None
        other = self.choose(
            frozenset({kind}),
            reuse=0.3,
            but=[entity, entity.owner, *(e for e in self.entities if e.speaker)],
        )
        phrase = self.refer(other, "nmod", pronoun=0, plain=True)
        phrase.left.insert(0, Node(preposition, "ADP", "case"))
        return phrase


def article(definite: bool, following: str, plural: bool = False) -> Node:
    """`the`, `a`, `an`, or `some` before an indefinite plural."""
    if definite:
        return Node("the", "DET", "det", features={"Definite": "Def", "PronType": "Art"})
    if plural:
        return Node("some", "DET", "det", features={"PronType": "Ind"})
    return Node(
        indefinite_article(following), "DET", "det", "a", {"Definite": "Ind", "PronType": "Art"}
    )
