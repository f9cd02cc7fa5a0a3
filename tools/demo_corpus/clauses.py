"""Clauses of the demo grammar: a verb with its auxiliaries, its participants in their places, and
adjuncts, in any tense, voice and form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from demo_corpus.entities import Cast, Dice, Entity
from demo_corpus.lexicon import Slot, Verb
from demo_corpus.trees import Node, chain

Filler = Entity | Node | None

FINITE = {  # (present third singular, present otherwise, past)
    "have": ("has", "have", "had"),
    "do": ("does", "do", "did"),
    "will": ("will", "will", "would"),
    "can": ("can", "can", "could"),
    "must": ("must", "must", "must"),
    "should": ("should", "should", "should"),
}
MODALS = ("will", "can", "must", "should")
CONTRACTED = {"will": "wo", "can": "ca"}  # before "n't"
PARTICIPLES = {"be": ("been", "being"), "have": ("had", "having"), "do": ("done", "doing")}


@dataclass(frozen=True, slots=True)
class Plan:
    """Tense, aspect, polarity and voice of a clause. `aspect`: simple, habit, progressive, perfect,
    or a modal verb."""

    tense: str  # past or present
    aspect: str = "simple"
    negation: str | None = None  # not, n't or never
    passive: bool = False


def finite_form(lemma: str, plan_tense: str, person: int, plural: bool) -> str:
    """The finite form of an auxiliary: `is`, `had`, `will`."""
    if lemma == "be":
        if plan_tense == "past":
            return "were" if plural or person == 2 else "was"
        return "are" if plural or person == 2 else "am" if person == 1 else "is"
    third, other, past = FINITE[lemma]
    return past if plan_tense == "past" else third if person == 3 and not plural else other


def finite_features(tense: str, person: int, plural: bool) -> dict[str, str]:
    return {
        "Mood": "Ind",
        "Number": "Plur" if plural else "Sing",
        "Person": str(person),
        "Tense": "Past" if tense == "past" else "Pres",
        "VerbForm": "Fin",
    }


def auxiliaries(plan: Plan, inverted: bool, copula: bool = False) -> list[tuple[str, str]]:
    """The auxiliaries a plan asks for, as (lemma, relation); do-support where there is none to
    negate or to invert."""
    found: list[tuple[str, str]] = []
    if plan.aspect in MODALS:
        found.append((plan.aspect, "aux"))
    if plan.aspect == "perfect":
        found.append(("have", "aux"))
    if plan.aspect == "progressive":
        found.append(("be", "aux"))
    if plan.passive:
        found.append(("be", "aux:pass"))
    if copula:
        found.append(("be", "cop"))
    if not found and (inverted or plan.negation in ("not", "n't")):
        found.append(("do", "aux"))
    return found


def verb_group(
    verb: Verb | None, plan: Plan, person: int, plural: bool, inverted: bool = False
) -> tuple[list[Node], Node | None]:
    """The auxiliaries in order and the main verb in the form they ask of it; without a verb, a form
    of `be` as copula comes last."""
    wanted = auxiliaries(plan, inverted, copula=verb is None)
    nodes: list[Node] = []
    before: str | None = None  # what the word before asks for: base, participle, gerund
    for lemma, relation in wanted:
        if before is None:
            form, features = (
                finite_form(lemma, plan.tense, person, plural),
                finite_features(plan.tense, person, plural),
            )
            if lemma in MODALS:
                features = {"VerbForm": "Fin"}
        else:
            form, features = _nonfinite(lemma, PARTICIPLES.get(lemma, (lemma, lemma)), before)
        nodes.append(Node(form, "AUX", relation, lemma, features))
        before = {
            "have": "participle",
            "be": "participle" if relation == "aux:pass" else "gerund",
        }.get(lemma, "base")
    if verb is None:
        return nodes, None
    if before is None:
        form = (
            verb.past
            if plan.tense == "past"
            else verb.third
            if person == 3 and not plural
            else verb.lemma
        )
        features = finite_features(plan.tense, person, plural)
    else:
        form, features = _nonfinite(verb.lemma, (verb.participle, verb.gerund), before)
        if plan.passive:
            features["Voice"] = "Pass"
    return nodes, Node(form, "VERB", "root", verb.lemma, features)


def _nonfinite(lemma: str, forms: tuple[str, str], kind: str) -> tuple[str, dict[str, str]]:
    if kind == "participle":
        return forms[0], {"Tense": "Past", "VerbForm": "Part"}
    if kind == "gerund":
        return forms[1], {"Tense": "Pres", "VerbForm": "Part"}
    return lemma, {"VerbForm": "Inf"}


def adverb(form: str, relation: str = "advmod") -> Node:
    return Node(form, "ADV", relation)


def negation(form: str) -> Node:
    if form == "never":
        return adverb("never")
    return Node(form, "PART", "advmod", "not", {"Polarity": "Neg"})


def with_case(phrase: Node, preposition: str) -> Node:
    """The noun phrase after a preposition."""
    phrase.left.insert(0, Node(preposition, "ADP", "case"))
    return phrase


def time_phrase(dice: Dice, plan: Plan) -> Node | None:
    """When: a phrase that fits the tense."""
    if plan.tense == "past":
        options = (
            ["yesterday", "last night", "last week", "this morning", "on Sunday", "in 1987"]
            if plan.aspect == "simple"
            else []
        )
    else:
        options = {
            "habit": ["every morning", "every evening", "on Sundays"],
            "will": ["tomorrow", "next week", "on Friday"],
            "progressive": ["today", "now"],
        }.get(plan.aspect, [])
    if not options:
        return None
    first, _, last = dice.pick(options).partition(" ")
    if not last:
        return (
            adverb(first)
            if first == "now"
            else Node(first, "NOUN", "obl:unmarked", features={"Number": "Sing"})
        )
    if first in ("on", "in"):
        if last.isdigit():
            return with_case(
                Node(last, "NUM", "obl", features={"NumForm": "Digit", "NumType": "Card"}), first
            )
        plural = last.endswith("s")
        return with_case(
            Node(last, "PROPN", "obl", last.rstrip("s"), {"Number": "Plur" if plural else "Sing"}),
            first,
        )
    head = Node(last, "NOUN", "obl:unmarked", features={"Number": "Sing"})
    kinds = {
        "last": ("ADJ", "amod"),
        "next": ("ADJ", "amod"),
        "this": ("DET", "det"),
        "every": ("DET", "det"),
    }
    upos, relation = kinds[first]
    features = {"ADJ": {"Degree": "Pos"}, "DET": {"PronType": "Dem" if first == "this" else "Tot"}}[
        upos
    ]
    head.left.append(Node(first, upos, relation, features=dict(features)))
    return head


@dataclass(eq=False, slots=True)
class Request:
    """What is asked of a clause besides its verb and plan.

    `fill` gives participants by slot (subj, obj, iobj, obl): an entity, a ready phrase, or None for
    one left out. `fronted` names the slot whose phrase opens the clause (relative and question
    words). `controller` is the phrase understood as the subject of a clause without one."""

    relation: str = "root"
    form: str = "finite"  # finite, infinitive, gerund
    inverted: bool = False
    fill: Mapping[str, Filler] = ()  # type: ignore[assignment]
    fronted: str | None = None
    opening: Sequence[
        Node
    ] = ()  # what stands before everything else: a subordinator, an adverb, a question word
    controller: Node | None = None
    agent: Entity | None = None
    avoid: Sequence[Entity] = ()  # entities that take no further part
    agreement: tuple[int, bool] | None = (
        None  # person and plural, where the subject phrase itself does not tell
    )
    adjuncts: bool = True
    relative: Mapping[str, str] = ()  # type: ignore[assignment]  # slot whose noun gets a relative clause, and its kind


class Clauses:
    """Builds clauses about the people and things of one text."""

    def __init__(self, dice: Dice, cast: Cast) -> None:
        self.dice = dice
        self.cast = cast
        self.reuse = 0.2  # how readily known entities are spoken of again
        self.used: list[Entity] = []  # participants of the clause in the making

    def clause(self, verb: Verb, plan: Plan, request: Request | None = None) -> Node:
        """A clause as the tree of its verb."""
        request = request or Request()
        fill = dict(request.fill)
        outer, self.used = (
            self.used,
            [e for e in (*fill.values(), request.agent, *request.avoid) if isinstance(e, Entity)],
        )
        links: list[tuple[Slot, Node]] = []
        subject_slot = verb.object if plan.passive and verb.object else verb.subject
        subject_key = "obj" if plan.passive else "subj"
        subject = None
        agent = request.agent
        if request.form == "finite":
            filler = (
                fill.pop(subject_key)
                if subject_key in fill
                else self._choose(subject_slot, first=True)
            )
            self._consume(verb, plan, subject_key, filler)
            if isinstance(filler, Entity) and agent is None:
                agent = filler
            subject = self._phrase(
                filler,
                "nsubj:pass" if plan.passive else "nsubj",
                "nom",
                request.relative.get(subject_key) if request.relative else None,
            )
        shown = subject or request.controller
        if shown is not None:
            links.append((subject_slot, shown))
        person, plural = request.agreement or (
            (subject.person, subject.plural) if subject else (3, False)
        )
        left, head = self._verbal(verb, plan, request, subject, person, plural)
        fronted, right = self._complements(verb, plan, fill, request, agent, subject, links)
        if request.adjuncts:
            left, right = self._adjuncts(verb, plan, left, right)
        head.left = [*request.opening, *([fronted] if fronted else []), *left]
        head.right = right
        head.relation = request.relation
        if verb.frame is not None:
            head.links = [(verb.frame, slot.element, node, slot.core) for slot, node in links]
        self.used = outer
        return head

    def _verbal(
        self,
        verb: Verb,
        plan: Plan,
        request: Request,
        subject: Node | None,
        person: int,
        plural: bool,
    ) -> tuple[list[Node], Node]:
        """What stands between the opening of the clause and its verb, and the verb."""
        if request.form != "finite":
            infinitive = request.form == "infinitive"
            form = verb.lemma if infinitive else verb.gerund
            features = {"VerbForm": "Inf"} if infinitive else {"VerbForm": "Ger"}
            mark = [Node("to", "PART", "mark")] if infinitive else []
            return mark, Node(form, "VERB", request.relation, verb.lemma, features)
        helpers, head = verb_group(verb, plan, person, plural, request.inverted)
        assert head is not None, "a verb was given"
        return place_helpers(
            helpers, plan, subject, request.inverted, self._frequency(plan, request.adjuncts)
        ), head

    def _frequency(self, plan: Plan, adjuncts: bool) -> str | None:
        if plan.aspect == "habit" and plan.negation is None:
            return self.dice.pick(("often", "usually", "always", "sometimes", "rarely"))
        if (
            plan.aspect == "perfect"
            and adjuncts
            and plan.negation is None
            and self.dice.chance(0.3)
        ):
            return "already" if plan.tense == "past" else self.dice.pick(("already", "recently"))
        return None

    def _complements(
        self,
        verb: Verb,
        plan: Plan,
        fill: dict[str, Filler],
        request: Request,
        agent: Entity | None,
        subject: Node | None,
        links: list[tuple[Slot, Node]],
    ) -> tuple[Node | None, list[Node]]:
        """The fronted phrase, and what follows the verb in order."""
        fronted: Node | None = None
        right: list[Node] = []

        def realise(key: str, slot: Slot, relation: str) -> Node | None:
            nonlocal fronted
            filler = (
                fill.pop(key)
                if key in fill
                else self._choose(slot, own=key != "obj" or "noown" not in verb.flags)
            )
            self._consume(verb, plan, key, filler)
            phrase = self._phrase(
                filler, relation, "acc", request.relative.get(key) if request.relative else None
            )
            if phrase is not None:
                links.append((slot, phrase))
            if key == request.fronted:
                fronted, phrase = phrase, None
            return phrase

        particle = Node(verb.particle, "ADP", "compound:prt") if verb.particle else None
        ditransitive = verb.recipient is not None
        if ditransitive and verb.object and not plan.passive and "obj" not in fill:
            fill["obj"] = self._choose(verb.object, owned=False)
        double = (
            ditransitive
            and "pponly" not in verb.flags
            and not plan.passive
            and request.fronted != "iobj"
            and self.dice.chance(0.65)
        )
        if double and not self._object_would_be_pronoun(fill) and verb.recipient:
            right.append(realise("iobj", verb.recipient, "iobj"))  # type: ignore[arg-type]
        if verb.object is not None and not plan.passive:
            reflexive = (
                "refl" in verb.flags
                and "obj" not in fill
                and agent is not None
                and subject is not None
                and self.dice.chance(0.3)
            )
            if reflexive and agent is not None and agent.pronoun in ("she", "he", "I"):
                obj: Node | None = self.cast.pronoun(agent, "obj", "refl")
                assert obj is not None
                obj.entity = agent.name
                links.append((verb.object, obj))
            else:
                obj = realise("obj", verb.object, "obj")
            light = (
                obj is not None and sum(1 for _ in obj.walk()) <= 3
            )  # a heavy object goes after the particle, a pronoun never does
            after = obj is not None and (obj.upos == "PRON" or (light and self.dice.chance(0.35)))
            right += chain([obj, particle] if after else [particle, obj])
        elif particle:
            right.append(particle)
        if verb.recipient is not None and not any(
            node and node.relation == "iobj" for node in right
        ):
            phrase = realise("iobj", verb.recipient, "obl")
            right += [with_case(phrase, "to")] if phrase else []
        if verb.oblique is not None:
            preposition, slot = verb.oblique
            if slot.required or "obl" in fill or self.dice.chance(0.5):
                phrase = realise("obl", slot, "obl")
                right += [with_case(phrase, preposition)] if phrase else []
        if plan.passive and self.dice.chance(0.5) and fill.get("subj", True) is not None:
            phrase = realise("subj", verb.subject, "obl:agent")
            right += [with_case(phrase, "by")] if phrase else []
        return fronted, chain(right)

    def _object_would_be_pronoun(self, fill: Mapping[str, Filler]) -> bool:
        given = fill.get("obj", False)
        return (
            given is None
            or isinstance(given, Node)
            or (isinstance(given, Entity) and self.cast.pronoun_is_clear(given))
        )

    def _adjuncts(
        self, verb: Verb, plan: Plan, left: list[Node], right: list[Node]
    ) -> tuple[list[Node], list[Node]]:
        """Manner, place and time, not too many at once."""
        dice, left, right = self.dice, list(left), list(right)
        busy = any(node.relation == "obl" or node.relation == "acl:relcl" for node in right)
        if (
            verb.adverbs
            and dice.chance(0.35)
            and plan.negation is None
            and not any(node.upos == "ADV" for node in left)
        ):
            manner = adverb(dice.pick(verb.adverbs))
            early_ok = bool(right) and manner.form not in (
                "early",
                "late",
                "aloud",
                "soundly",
                "badly",
            )
            if manner.form in (
                "often",
                "recently",
                "finally",
                "suddenly",
                "immediately",
                "secretly",
            ) or (early_ok and dice.chance(0.4)):
                left.append(manner)
            else:
                right.append(manner)
        event = "state" not in verb.flags
        if (
            event
            and not busy
            and dice.chance(0.2)
            and verb.subject.classes & {"person", "animal"}
            and verb.object is not None
        ):
            right.append(self.place())
        when = (
            time_phrase(dice, plan)
            if event and plan.negation != "never" and dice.chance(0.3)
            else None
        )
        if when is not None and (
            when.lemma != "1987"
            or verb.lemma in ("build", "paint", "write", "buy", "sell", "steal", "destroy")
        ):
            right.append(when)
        return left, right

    def place(self) -> Node:
        """Where: "in the garden", "in Vienna"."""
        while True:
            spot = self.cast.choose(frozenset({"place", "city"}), reuse=0.1, but=self.used)
            preposition = spot.noun.place if spot.noun else "in"
            if preposition:
                return with_case(self.cast.refer(spot, "obl", pronoun=0, plain=True), preposition)

    def _choose(
        self, slot: Slot, first: bool = False, own: bool = True, owned: bool = True
    ) -> Entity:
        """Who or what fills a slot; `own`: it may belong to a participant, `owned`: it may belong
        to somebody."""
        owner = next(
            (
                e
                for e in self.used
                if own
                and owned
                and "person" in e.classes
                and e.mentioned
                and self.cast.pronoun_is_clear(e)
            ),
            None,
        )
        entity = self.cast.choose(
            slot.classes, self.reuse if first else self.reuse * 0.7, but=self.used, owner=owner
        )
        self.used.append(entity)
        if (
            owned
            and not entity.mentioned
            and entity.owner is None
            and entity.classes & {"thing", "vehicle"}
            and self.dice.chance(0.2)
        ):
            strangers = [e for e in self.cast.entities if e.speaker or e.pronoun == "they"]
            entity.owner = self.cast.choose(
                frozenset({"person"}), 0.5, but=[*self.used, *strangers]
            )  # "Peter borrowed Anna's guitar"
            self.used.append(entity.owner)
        return entity

    def _consume(self, verb: Verb, plan: Plan, key: str, filler: Filler) -> None:
        """What was eaten or destroyed takes no part in what follows."""
        if (
            key == "obj"
            and "gone" in verb.flags
            and plan.negation is None
            and isinstance(filler, Entity)
        ):
            filler.gone = True

    def _phrase(
        self, filler: Filler, relation: str, case: str, relative: str | None
    ) -> Node | None:
        if filler is None or isinstance(filler, Node):
            return filler.as_(relation) if filler is not None else None
        node = self.cast.refer(filler, relation, case, plain=bool(relative))
        if relative and node.upos == "NOUN":
            self.add_relative(node, filler, relative)
        return node

    def add_relative(self, node: Node, entity: Entity, kind: str) -> None:
        """A relative clause after a noun; the sentence grammar says which."""
        raise NotImplementedError

    def copular(
        self,
        subject: Node,
        predicate: Node,
        plan: Plan,
        inverted: bool = False,
        opening: Sequence[Node] = (),
    ) -> Node:
        """ "The house is old": the predicate heads the clause."""
        helpers, _ = verb_group(None, plan, subject.person, subject.plural)
        before = place_helpers(helpers, plan, subject.as_("nsubj"), inverted, None)
        predicate.left = [*opening, *before, *predicate.left]
        return predicate


def place_helpers(
    helpers: list[Node], plan: Plan, subject: Node | None, inverted: bool, frequency: str | None
) -> list[Node]:
    """Subject, auxiliaries, negation and adverbs of frequency in their order; a contraction changes
    the auxiliary it leans on."""
    first, rest = helpers[:1], helpers[1:]
    word = plan.negation
    if word == "n't" and (not first or first[0].form in ("am", "must", "should")):
        word = "not"
    if word == "n't":
        first[0].form = CONTRACTED.get(first[0].form, first[0].form)
    no = [negation(word)] if word else []
    often = [adverb(frequency)] if frequency else []
    who = [subject] if subject is not None else []
    if inverted:
        return (
            [*first, *no, *who, *often, *rest]
            if word == "n't"
            else [*first, *who, *no, *often, *rest]
        )
    return [*who, *first, *no, *often, *rest]


def renegate(plan: Plan, word: str | None) -> Plan:
    return replace(plan, negation=word)
