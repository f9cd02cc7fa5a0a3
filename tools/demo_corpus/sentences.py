"""Simple sentences of the demo grammar: statements, passives, negation in its many forms, and
relative clauses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from demo_corpus.clauses import Clauses, Plan, Request, adverb
from demo_corpus.entities import Cast, Dice, Entity, article
from demo_corpus.lexicon import Noun, Verb, lexicon
from demo_corpus.trees import Node

PERSON = frozenset({"person"})
RELATIVE_PRONOUN = {"PronType": "Rel"}
NEGATIVE = {"Number": "Sing", "PronType": "Neg"}
ACCIDENTS = frozenset({"lose", "forget", "notice", "break", "find", "steal", "discover", "receive"})


class SimpleSentences(Clauses):
    """Makes the simple sentences of one text.

    Parameters
    ----------
    seed
        Says which text: the same string gives the same sentences everywhere.
    tense
        `past` or `present`, the tense of all main clauses; chosen by the seed where it is not
        given.
    """

    def __init__(self, seed: str, tense: str | None = None) -> None:
        dice = Dice(seed)
        super().__init__(dice, Cast(dice))
        self.tense = tense or dice.pick(("past", "present"))
        self.spoken: set[str] = set()  # verbs already used in this text

    # Verbs and tenses

    def verb(self, accept: Callable[[Verb], bool], known: bool = True) -> Verb:
        """A verb not used yet; where the text has people and things already, one that can speak of
        them."""
        options = [v for v in lexicon().verbs if accept(v) and v.lemma not in self.spoken] or [
            v for v in lexicon().verbs if accept(v)
        ]
        recent = [e for e in self.cast.before if not e.gone]
        if known and recent:
            fitting = [v for v in options if any(e.classes & v.subject.classes for e in recent)]
            both = [
                v for v in fitting if v.object and any(e.classes & v.object.classes for e in recent)
            ]
            options = (both if both and self.dice.chance(0.6) else fitting) or options
        found = self.dice.pick(options)
        self.spoken.add(found.lemma)
        return found

    def plan(
        self,
        verb: Verb,
        tense: str | None = None,
        aspects: Sequence[str] | None = None,
        negative: float = 0.1,
    ) -> Plan:
        """A tense and aspect in which the verb sounds natural."""
        tense = tense or self.tense
        static, point = "state" in verb.flags, bool(verb.flags & {"point", "state"})
        accident = verb.lemma in ACCIDENTS
        if tense == "past" and static:
            weights = {"simple": 1.0}
        elif tense == "past":
            weights = {
                "simple": 0.8,
                "perfect": 0.06,
                "progressive": 0.0 if point else 0.13,
                "can": 0.0 if accident else 0.04,
            }
        elif static:
            weights = {"simple": 1.0}
        else:
            weights = {
                "habit": 0.45 if "habit" in verb.flags else 0.0,
                "progressive": 0.0 if point else 0.2,
                "perfect": 0.3,
            }
            weights |= {"will": 0.25} | (
                {} if accident else {"can": 0.08, "must": 0.06, "should": 0.06}
            )
        if aspects is not None:
            weights = {a: weights.get(a, 0.0) or 1e-3 for a in aspects}
        aspect = self.dice.weighted(weights)
        word = (
            self.dice.weighted({"not": 0.4, "n't": 0.4, "never": 0.2})
            if self.dice.chance(negative)
            else None
        )
        if word == "never" and aspect == "progressive":
            word = "not"
        return Plan(tense, aspect, word)

    def _plain(self, verb: Verb, negative: float) -> Plan:
        """A plan for a clause beside another one."""
        return self.plan(
            verb,
            aspects=("simple",)
            if self.tense == "past" or "state" in verb.flags
            else ("perfect", "will"),
            negative=negative,
        )

    # Statements

    def statement(self) -> Node:
        verb = self.verb(lambda v: v.clause is None)
        plan = self.plan(verb)
        request = Request(
            fill={"subj": self.cast.speaker(self.dice.pick(("I", "we")))}
            if self._first_person(verb)
            else {}
        )
        root = self.clause(verb, plan, request)
        if self.dice.chance(0.12):
            word = self.dice.pick(("perhaps", "apparently", "fortunately", "unfortunately"))
            comma = [Node(",", "PUNCT", "punct")] if word != "perhaps" else []
            root.left = [adverb(word), *comma, *root.left]
        return root

    def _first_person(self, verb: Verb) -> bool:
        speaks = any(e.speaker for e in self.cast.entities)
        return "person" in verb.subject.classes and self.dice.chance(
            0.5 if speaks else 0.12 if not self.cast.entities else 0.03
        )

    def passive(self) -> Node:
        verb = self.verb(
            lambda v: (
                v.object is not None and v.clause is None and not v.flags & {"nopass", "state"}
            )
        )
        plan = self.plan(
            verb,
            aspects=("simple", "perfect")
            if self.tense == "past"
            else ("perfect", "will", "must", "simple"),
        )
        if plan.tense == "present" and plan.aspect == "simple" and "state" not in verb.flags:
            plan = Plan("present", "perfect", plan.negation)
        return self.clause(verb, Plan(plan.tense, plan.aspect, plan.negation, passive=True))

    def ditransitive(self) -> Node:
        verb = self.verb(lambda v: v.recipient is not None)
        return self.clause(verb, self.plan(verb))

    def particle(self) -> Node:
        verb = self.verb(lambda v: v.particle is not None)
        return self.clause(verb, self.plan(verb))

    def negated(self) -> Node:
        verb = self.verb(lambda v: v.clause is None)
        return self.clause(verb, self.plan(verb, negative=1.0))

    def negative_subject(self) -> Node:
        """ "Nobody opened the box", "no lawyer trusted her", "neither Anna nor Peter slept", "none
        of the soldiers laughed"."""
        verb = self.verb(
            lambda v: v.clause is None and "person" in v.subject.classes and "refl" not in v.flags
        )
        plan = self.plan(verb, negative=0)
        if plan.aspect == "habit":
            plan = Plan("present", "perfect")
        shape = self.dice.pick(("nobody", "no", "neither", "none"))
        if shape == "nobody":
            subject = Node("nobody", "PRON", features=dict(NEGATIVE))
        elif shape == "no":
            noun = self._person_noun()
            subject = Node(noun.lemma, "NOUN", features={"Number": "Sing"})
            subject.left = [Node("no", "DET", "det", features={"PronType": "Neg"})]
        elif shape == "neither":
            first, second = self.cast.named(), self.cast.named()
            subject = self.cast.refer(first, "nsubj", "nom", plain=True)
            subject.left.insert(0, Node("neither", "CCONJ", "cc:preconj"))
            other = self.cast.refer(second, "conj", "nom", pronoun=0, plain=True)
            other.left.insert(0, Node("nor", "CCONJ", "cc"))
            subject.right.append(other)
            return self.clause(
                verb,
                plan,
                Request(fill={"subj": subject}, avoid=(first, second), agreement=(3, False)),
            )
        else:
            noun = self._person_noun()
            group = Node(noun.plural, "NOUN", "nmod", noun.lemma, {"Number": "Plur"})
            the = article(True, noun.plural)
            group.left = [Node("of", "ADP", "case"), the]
            subject = Node("none", "NOUN", features={"Number": "Sing"}, right=[group])
            return self.clause(verb, plan, Request(fill={"subj": subject}, agreement=(3, True)))
        return self.clause(verb, plan, Request(fill={"subj": subject}))

    def negative_object(self) -> Node:
        """ "Peter saw nothing", "Anna traveled nowhere" (the words of the papers' lists that are
        neither verb nor subject)."""
        if self.dice.chance(0.25):
            travel = lexicon().verb("travel")
            root = self.clause(
                travel, self.plan(travel, negative=0), Request(fill={"obl": None}, adjuncts=False)
            )
            root.right.append(adverb("nowhere"))
            return root
        verb = self.verb(
            lambda v: (
                v.lemma
                in (
                    "see",
                    "hear",
                    "buy",
                    "find",
                    "eat",
                    "write",
                    "steal",
                    "read",
                    "explain",
                    "bring",
                )
                and v.clause is None
            )
        )
        nothing = Node("nothing", "PRON", features=dict(NEGATIVE))
        root = self.clause(
            verb, self.plan(verb, negative=0), Request(fill={"obj": nothing}, adjuncts=False)
        )
        if self.dice.chance(0.5):
            root.right.append(self.place())
        return root

    def without(self) -> Node:
        """ "Anna left the house without closing the door"."""
        verb = self.verb(
            lambda v: (
                v.object is not None
                and v.clause is None
                and "state" not in v.flags
                and "person" in v.subject.classes
            )
        )
        subject = self.cast.choose(PERSON, self.reuse)
        root = self.clause(
            verb, self.plan(verb, negative=0), Request(fill={"subj": subject}, adjuncts=False)
        )
        second = self.verb(
            lambda v: (
                v.clause is None
                and v.lemma
                in (
                    "open",
                    "close",
                    "thank",
                    "notice",
                    "read",
                    "smile",
                    "laugh",
                    "see",
                    "help",
                    "explain",
                )
            )
        )
        word = self.dice.pick(("without", "without", "before", "after"))
        opening = [Node(word, "SCONJ", "mark")]
        controller = next(node for node in root.left if node.relation == "nsubj")
        request = Request(
            "advcl", "gerund", opening=opening, controller=controller, agent=subject, adjuncts=False
        )
        root.right.append(self.clause(second, Plan(self.tense), request))
        return root

    def _person_noun(self) -> Noun:
        return self.dice.pick(
            [n for n in lexicon().nouns_of(PERSON) if n.lemma not in ("king", "queen")]
        )

    # Relative clauses

    def relative_subject(self) -> Node:
        verb = self.verb(
            lambda v: v.clause is None and bool(v.subject.classes & {"person", "animal"})
        )
        subject = self._noun_entity(verb.subject.classes - {"kin", "org"})
        return self.clause(
            verb,
            self.plan(verb),
            Request(fill={"subj": subject}, relative={"subj": "subject"}, adjuncts=False),
        )

    def relative_object(self) -> Node:
        verb = self.verb(
            lambda v: (
                v.clause is None
                and v.object is not None
                and bool(v.object.classes & {"thing", "sellable", "readable", "small", "person"})
            )
        )
        assert verb.object is not None
        obj = self._noun_entity(verb.object.classes - {"kin"})
        return self.clause(
            verb,
            self.plan(verb),
            Request(fill={"obj": obj}, relative={"obj": "object"}, adjuncts=False),
        )

    def _noun_entity(self, classes: frozenset[str]) -> Entity:
        while True:
            entity = self.cast.create(classes - {"city"})
            if entity.noun is not None:
                return entity

    def add_relative(self, node: Node, entity: Entity, kind: str) -> None:
        """ "the painter who sold the house", "the letter that Anna had written", "the letter Anna
        had written"."""
        person = "person" in entity.classes
        tense = "past" if self.tense == "past" or self.dice.chance(0.6) else "present"
        if kind == "subject":
            verb = self.verb(
                lambda v: (
                    v.clause is None
                    and v.oblique is None
                    and bool(entity.classes & v.subject.classes)
                    and not v.flags & {"refl", "gone"}
                ),
                False,
            )
            word = Node("who", "PRON", features=dict(RELATIVE_PRONOUN)) if person else self._that()
            fill, fronted = {"subj": word}, None
            opening: list[Node] = []
        else:
            verb = self.verb(
                lambda v: (
                    v.object is not None
                    and v.clause is None
                    and not v.flags & {"gone", "refl"}
                    and v.recipient is None
                    and (v.oblique is None or not v.oblique[1].required)
                    and bool(entity.classes & v.object.classes)
                    and "person" in v.subject.classes
                ),
                False,
            )
            fill = {
                "obj": (self._whom() if person else self._that())
                if self.dice.chance(0.65)
                else None,
                "obl": None,
            }  # type: ignore[dict-item]
            fronted, opening = "obj", []
        plan = self.plan(
            verb,
            tense,
            ("simple", "perfect") if tense == "past" or "state" in verb.flags else ("perfect",),
            negative=0.06,
        )
        if "state" in verb.flags:
            plan = Plan(tense, "simple", plan.negation)
        request = Request(
            "acl:relcl",
            fill=fill,
            fronted=fronted,
            opening=opening,
            agent=entity,
            avoid=tuple(self.used),
            adjuncts=False,
        )
        if kind == "subject":
            request.agreement = (3, entity.pronoun == "they")
        node.right.append(self.clause(verb, plan, request))

    def _whom(self) -> Node:
        return Node("whom", "PRON", lemma="who", features=dict(RELATIVE_PRONOUN))

    def _that(self) -> Node:
        return Node("that", "PRON", features=dict(RELATIVE_PRONOUN))
