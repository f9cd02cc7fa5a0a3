"""The demo grammar: English sentences of many kinds whose tree, word classes, coreference and
frames are known because they were made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from demo_corpus.clauses import Plan, Request, adverb, renegate, with_case
from demo_corpus.entities import Entity, article
from demo_corpus.lexicon import Verb, lexicon
from demo_corpus.sentences import ACCIDENTS, PERSON, SimpleSentences
from demo_corpus.trees import Node, Words

QUESTION_WORD = {"PronType": "Int"}


class Grammar(SimpleSentences):
    """Makes the sentences of one text, one after the other.

    Parameters
    ----------
    seed
        Says which text: the same string gives the same sentences everywhere.
    tense
        `past` or `present`, the tense of all main clauses; chosen by the seed where it is not
        given.
    """

    def sentence(self, kind: str) -> Node:
        """A sentence of a kind of `KINDS`, as the tree of its root."""
        self.cast.definite = 1.0 if kind in ASSUMING else 0.35
        root = KINDS[kind](self)
        mark = (
            "?"
            if any(
                node.features.get("PronType") == "Int" or node.lemma == "?" for node in root.left
            )
            else "."
        )
        root.left = [node for node in root.left if node.lemma != "?"]
        root.right.append(Node(mark, "PUNCT", "punct"))
        self.cast.next_sentence()
        self.reuse = 0.85
        return root

    # Clauses within clauses

    def embedded(self) -> Node:
        """ "Anna said that she had lost the key"."""
        outer = self.verb(lambda v: v.clause is not None and v.clause[0] == "that")
        subject = self.cast.choose(PERSON, self.reuse)
        plan = self.plan(outer, negative=0.1)
        if plan.tense == "present" and plan.aspect != "simple":
            plan = Plan("present", "perfect", plan.negation)
        if outer.lemma == "hope":
            plan = renegate(plan, None)
        root = self.clause(outer, plan, Request(fill={"subj": subject}, adjuncts=False))
        inner = self.verb(lambda v: v.clause is None, False)
        person = "person" in inner.subject.classes
        fill = {"subj": subject} if person and self.dice.chance(0.5) else {}
        mark = [Node("that", "SCONJ", "mark")] if self.dice.chance(0.7) else []
        aspects: tuple[str, ...] = (
            ("will",) if outer.lemma == "hope" else ("simple", "perfect", "will")
        )
        if (
            outer.lemma in ("notice", "discover", "know")
            and self.tense == "past"
            and "state" not in inner.flags
        ):
            aspects = ("perfect",)
        elif self.tense == "present" and "state" not in inner.flags:
            aspects = (
                ("will",)
                if outer.lemma == "hope"
                else ("will", "perfect")
                if "point" in inner.flags
                else ("progressive", "perfect", "will")
            )
        inside = self.clause(
            inner,
            self.plan(inner, aspects=aspects),
            Request("ccomp", fill=fill, opening=mark, adjuncts=False),
        )
        root.right.append(inside)
        self._link_clause(root, outer, inside)
        return root

    def infinitive(self) -> Node:
        """ "Anna wanted to sell the house", "Peter asked her to open the door"."""
        outer = self.verb(lambda v: v.clause is not None and v.clause[0] != "that")
        subject = self.cast.choose(outer.subject.classes, self.reuse)
        root = self.clause(outer, self.plan(outer), Request(fill={"subj": subject}, adjuncts=False))
        control = outer.clause is not None and outer.clause[0] == "obj-to"
        controller = next(
            n
            for n in (root.right if control else root.left)
            if n.relation == ("obj" if control else "nsubj")
        )
        agent = next((e for e in self.cast.now if e.name == controller.entity), subject)
        inner = self.verb(
            lambda v: (
                v.clause is None
                and bool(agent.classes & v.subject.classes)
                and not v.flags & {"state", "refl"}
                and v.lemma not in ACCIDENTS
            ),
            False,
        )
        inside = self.clause(
            inner,
            Plan(self.tense),
            Request("xcomp", "infinitive", controller=controller, agent=agent, adjuncts=False),
        )
        root.right.append(inside)
        self._link_clause(root, outer, inside)
        return root

    def _link_clause(self, root: Node, outer: Verb, inside: Node) -> None:
        if outer.frame and outer.clause:
            root.links.append((outer.frame, outer.clause[1], inside, True))

    def adverbial(self) -> Node:
        """ "Anna sold the house because it was old", "when Peter arrived, she was reading"."""
        main = self.verb(lambda v: v.clause is None and "person" in v.subject.classes)
        word = self.dice.pick(("because", "although", "when", "after", "before", "while", "until"))
        if word in ("because", "although"):
            root = self.clause(main, self.plan(main, negative=0.2), Request(adjuncts=False))
            root.right.append(self._reason(word))
            return root
        if word == "until" and main.flags & {"point", "state"}:
            word = "before"
        front = self.dice.chance(0.5) and word != "until"
        present = self.tense == "present"
        aspects = (
            ("will",)
            if present
            else ("progressive",)
            if word == "when" and not main.flags & {"point", "state"}
            else ("simple",)
        )
        if "state" in main.flags:
            main = self.verb(
                lambda v: (
                    v.clause is None and "person" in v.subject.classes and "state" not in v.flags
                )
            )
        sub = self.verb(
            lambda v: v.clause is None and "person" in v.subject.classes and "state" not in v.flags
        )
        slow = word == "while" and not sub.flags & {"point"}
        if word == "while" and not slow:
            word = "when"
        sub_plan = Plan(self.tense, "progressive" if slow else "simple")
        request = Request("advcl", opening=[Node(word, "SCONJ", "mark")], adjuncts=False)
        if word == "when":
            request.opening = [adverb("when")]
            request.opening[0].features = {"PronType": "Sub"}
        if front:
            inside = self.clause(sub, sub_plan, request)
            self.reuse = 0.85
            root = self.clause(
                main, self.plan(main, aspects=aspects, negative=0.1), Request(adjuncts=False)
            )
            root.left = [inside, Node(",", "PUNCT", "punct"), *root.left]
            return root
        root = self.clause(
            main, self.plan(main, aspects=aspects, negative=0.1), Request(adjuncts=False)
        )
        self.reuse = 0.85
        root.right.append(self.clause(sub, sub_plan, request))
        return root

    def _reason(self, word: str) -> Node:
        """A clause that says why, about somebody or something just mentioned."""
        about = [
            e
            for e in self.cast.now
            if e.noun and lexicon().adjectives_for(e.noun, predicative=True) and not e.speaker
        ]
        people = [e for e in self.cast.now if "person" in e.classes]
        mark = Node(word, "SCONJ", "mark")
        if people and (not about or self.dice.chance(0.4)):
            verb = self.verb(
                lambda v: v.lemma in ("need", "love", "trust", "admire", "fear"), False
            )
            fill = {"subj": self.dice.pick(people)}
            return self.clause(
                verb,
                Plan(self.tense, "simple", self._maybe_not()),
                Request("advcl", fill=fill, opening=[mark], adjuncts=False),
            )
        if not about:
            fill = {"subj": self.cast.choose(PERSON, 0.9)}
            return self.clause(
                self.verb(lambda v: v.lemma == "sleep", False),
                Plan(self.tense, "progressive"),
                Request("advcl", fill=fill, opening=[mark]),
            )
        root = self._adjective_clause(self.dice.pick(about), [mark])
        return root.as_("advcl")

    def _maybe_not(self) -> str | None:
        return self.dice.pick(("not", "n't")) if self.dice.chance(0.25) else None

    # Being

    def _adjective_clause(
        self, entity: Entity, opening: Sequence[Node] = (), inverted: bool = False
    ) -> Node:
        assert entity.noun is not None, "only nouns have adjectives that suit them"
        suitable = [
            a for a in lexicon().adjectives_for(entity.noun, True) if a not in entity.adjectives
        ] or lexicon().adjectives_for(entity.noun, True)
        subject = self.cast.refer(entity, "nsubj", "nom", plain=True)
        predicate = Node(self.dice.pick(suitable).lemma, "ADJ", features={"Degree": "Pos"})
        plan = Plan(self.tense, negation=None if inverted else self._maybe_not())
        if (
            self.dice.chance(0.5)
            and plan.negation is None
            and predicate.form not in ("enormous", "tiny", "wooden", "broken", "delicious")
        ):
            predicate.left = [
                adverb(self.dice.pick(("very", "quite", "extremely", "too", "rather")))
            ]
        return self.copular(subject, predicate, plan, inverted, opening)

    def _describable(self) -> Entity:
        """Something that adjectives suit: known from the sentence before, or new."""
        known = [
            e
            for e in self.cast.before
            if e.noun and lexicon().adjectives_for(e.noun, True) and not e.gone
        ]
        return (
            self.dice.pick(known)
            if known
            else self._noun_entity(frozenset({"sellable", "building", "readable", "food"}))
        )

    def description(self) -> Node:
        """ "The house is very old", "Anna was a famous painter", "Peter is in the garden"."""
        shape = self.dice.pick(("adjective", "adjective", "noun", "place"))
        if shape == "adjective":
            return self._adjective_clause(self._describable())
        subject_entity = self.cast.choose(PERSON, self.reuse)
        subject = self.cast.refer(subject_entity, "nsubj", "nom")
        plan = Plan(self.tense, negation=self._maybe_not())
        if shape == "place":
            self.used = [subject_entity]
            spot = self.place()
            return self.copular(subject, spot.as_("root"), plan)
        fitting = [
            n
            for n in lexicon().nouns_of(PERSON)
            if n.gender is None and n is not subject_entity.noun
        ]
        noun = self.dice.pick(fitting)
        plural = subject.plural
        predicate = Node(
            noun.plural if plural else noun.lemma,
            "NOUN",
            "root",
            noun.lemma,
            {"Number": "Plur" if plural else "Sing"},
        )
        adjective = Node(
            self.dice.pick(lexicon().adjectives_for(noun)).lemma,
            "ADJ",
            "amod",
            features={"Degree": "Pos"},
        )
        determiner = article(False, adjective.form, plural)
        predicate.left = [adjective] if plural else [determiner, adjective]
        return self.copular(subject, predicate, plan)

    def existence(self) -> Node:
        """ "There is an old lamp on the table"."""
        entity = self._noun_entity(frozenset({"thing", "animal"}))
        entity.owner = None
        plural = entity.pronoun == "they"
        subject = self.cast.refer(entity, "nsubj", "nom", pronoun=0, plain=True)
        if subject.left and subject.left[0].form == "the":
            subject.left = subject.left[1:]
            indefinite = article(False, next(subject.walk()).form, plural)
            subject.left = (
                subject.left if plural and entity.count > 1 else [indefinite, *subject.left]
            )
        furniture = self.dice.chance(0.5) and "animal" not in entity.classes
        if furniture:
            stand = self.cast.choose(frozenset({"table", "shelf", "desk"}), 0.3)
            where = with_case(self.cast.refer(stand, "obl", pronoun=0, plain=True), "on")
        else:
            self.used = [entity]
            where = self.place()
        form = {
            ("past", False): "was",
            ("past", True): "were",
            ("present", False): "is",
            ("present", True): "are",
        }[self.tense, plural]
        features = {
            "Mood": "Ind",
            "Number": "Plur" if plural else "Sing",
            "Person": "3",
            "VerbForm": "Fin",
        }
        root = Node(
            form,
            "VERB",
            "root",
            "be",
            features | {"Tense": "Past" if self.tense == "past" else "Pres"},
        )
        root.left = [Node("there", "PRON", "expl")]
        root.right = [subject, where]
        return root

    # Coordination

    def joined_nouns(self) -> Node:
        """ "Anna and her brother visited the museum"."""
        verb = self.verb(
            lambda v: (
                v.clause is None
                and "person" in v.subject.classes
                and "refl" not in v.flags
                and v.lemma != "meet"
            )
        )
        first = self.cast.choose(PERSON, self.reuse)
        second = self.cast.create(PERSON, owner=first if not first.speaker else None)
        subject = self.cast.refer(first, "nsubj", "nom", plain=True)
        other = self.cast.refer(second, "conj", "nom", pronoun=0, plain=True)
        other.left.insert(0, Node("and", "CCONJ", "cc"))
        subject.right.append(other)
        both = Entity(f"{first.name}+{second.name}", "they", mentioned=1)
        if not first.speaker:
            subject.group = both.name
            self.cast.now.append(both)
        root = self.clause(
            verb, self.plan(verb), Request(fill={"subj": subject}, avoid=(first, second))
        )
        if subject.group and self.dice.chance(0.5):
            verb2 = self.verb(
                lambda v: (
                    v.clause is None
                    and v.object is not None
                    and "person" in v.subject.classes
                    and "refl" not in v.flags
                ),
                False,
            )
            pronoun = self.cast.pronoun(both, "nsubj", "nom")
            pronoun.entity = both.name
            plan = self._plain(verb2, 0.3)
            more = self.clause(
                verb2,
                plan,
                Request("conj", fill={"subj": pronoun}, avoid=(first, second), adjuncts=False),
            )
            more.left = [
                Node(",", "PUNCT", "punct"),
                Node(self.dice.pick(("but", "and")), "CCONJ", "cc"),
                *more.left,
            ]
            root.right.append(more)
        return root

    def joined_verbs(self) -> Node:
        """ "Anna opened the box and read the letter"."""
        first = self.verb(
            lambda v: v.clause is None and "person" in v.subject.classes and "state" not in v.flags
        )
        subject = self.cast.choose(PERSON, self.reuse)
        tense_plan = self.plan(
            first, aspects=("simple",) if self.tense == "past" else ("perfect", "will"), negative=0
        )
        root = self.clause(first, tense_plan, Request(fill={"subj": subject}, adjuncts=False))
        second = self.verb(
            lambda v: (
                v.clause is None
                and "person" in v.subject.classes
                and not v.flags & {"state", "refl"}
            )
        )
        shared = next(node for node in root.left if node.relation == "nsubj")
        helper = Node(
            "x",
            "PRON",
            features={"Number": "Plur" if shared.plural else "Sing", "Person": str(shared.person)},
        )
        more = self.clause(
            second,
            tense_plan,
            Request("conj", fill={"subj": helper}, agent=subject, adjuncts=False),
        )
        more.left = [
            Node("and", "CCONJ", "cc"),
            *(n for n in more.left if n is not helper and n.upos != "AUX"),
        ]
        more.links = [
            (frame, element, shared if node is helper else node, core)
            for frame, element, node, core in more.links
        ]
        root.right.append(more)
        return root

    def joined_clauses(self) -> Node:
        """ "Anna sold the house, but Peter kept the key"."""
        first = self.verb(lambda v: v.clause is None)
        root = self.clause(first, self._plain(first, 0.05), Request(adjuncts=False))
        self.reuse = 0.7
        second = self.verb(lambda v: v.clause is None, False)
        more = self.clause(second, self._plain(second, 0.3), Request("conj", adjuncts=False))
        more.left = [
            Node(",", "PUNCT", "punct"),
            Node(self.dice.pick(("but", "and")), "CCONJ", "cc"),
            *more.left,
        ]
        root.right.append(more)
        return root

    # Questions and answers

    def polar_question(self) -> Node:
        """ "Did Anna buy the house?", "Is the house old?"."""
        if self.dice.chance(0.25):
            return self._ask(self._adjective_clause(self._describable(), inverted=True))
        verb = self.verb(lambda v: v.clause is None)
        you = (
            self.cast.speaker("you")
            if "person" in verb.subject.classes and self.dice.chance(0.2)
            else None
        )
        plan = self.plan(verb, negative=0.15)
        plan = renegate(plan, "n't" if plan.negation else None)
        return self._ask(
            self.clause(
                verb,
                plan,
                Request(inverted=True, fill={"subj": you} if you else {}, adjuncts=False),
            )
        )

    def _ask(self, root: Node) -> Node:
        root.left.insert(0, Node("?", "PUNCT", lemma="?"))  # read and taken out again by `sentence`
        return root

    def subject_question(self) -> Node:
        """ "Who bought the house?"."""
        verb = self.verb(
            lambda v: v.clause is None and "person" in v.subject.classes and "refl" not in v.flags
        )
        who = Node("who", "PRON", features={**QUESTION_WORD, "Number": "Sing"})
        return self.clause(
            verb, self.plan(verb, negative=0), Request(fill={"subj": who}, adjuncts=False)
        )

    def object_question(self) -> Node:
        """ "What did Anna buy?", "Who did Peter help?"."""
        verb = self.verb(
            lambda v: (
                v.clause is None
                and v.object is not None
                and v.recipient is None
                and "refl" not in v.flags
                and not v.particle
            )
        )
        assert verb.object is not None
        word = "who" if verb.object.classes & {"person", "animal", "kin"} else "what"
        request = Request(
            inverted=True,
            fill={"obj": Node(word, "PRON", features=dict(QUESTION_WORD))},
            fronted="obj",
            adjuncts=False,
        )
        return self.clause(verb, renegate(self.plan(verb), None), request)

    def adverb_question(self) -> Node:
        """ "Where did Anna hide the key?"."""
        verb = self.verb(
            lambda v: (
                v.clause is None
                and "state" not in v.flags
                and (v.oblique is None or not v.oblique[1].required)
            )
        )
        word = adverb(self.dice.pick(("when", "where", "why", "how")))
        word.features = dict(QUESTION_WORD)
        plan = self.plan(verb, negative=0)
        plan = Plan(
            plan.tense,
            "will"
            if plan.aspect in ("habit", "perfect") and plan.tense == "present"
            else plan.aspect,
        )
        return self.clause(
            verb, plan, Request(inverted=True, opening=[word], adjuncts=False, fill={"obl": None})
        )

    def spoken_aside(self) -> Node:
        """ "Well, the baker never sold the clock", "Yes, I remember the concert"."""
        verb = self.verb(lambda v: v.clause is None and "person" in v.subject.classes)
        word = self.dice.pick(("well", "yes", "no", "oh"))
        fill = {"subj": self.cast.speaker("I")} if self.dice.chance(0.4) else {}
        root = self.clause(
            verb,
            self.plan(verb, negative=1.0 if word == "no" else 0.1),
            Request(fill=fill, adjuncts=False),
        )
        root.left = [Node(word, "INTJ", "discourse"), Node(",", "PUNCT", "punct"), *root.left]
        return root


ASSUMING = frozenset(
    {
        "polar_question",
        "subject_question",
        "object_question",
        "adverb_question",
        "negated",
        "description",
        "negative_subject",
    }
)

KINDS: dict[str, Callable[[Grammar], Node]] = {
    "statement": Grammar.statement,
    "passive": Grammar.passive,
    "relative_subject": Grammar.relative_subject,
    "ditransitive": Grammar.ditransitive,
    "embedded": Grammar.embedded,
    "joined_nouns": Grammar.joined_nouns,
    "negated": Grammar.negated,
    "polar_question": Grammar.polar_question,
    "relative_object": Grammar.relative_object,
    "adverbial": Grammar.adverbial,
    "particle": Grammar.particle,
    "infinitive": Grammar.infinitive,
    "description": Grammar.description,
    "joined_verbs": Grammar.joined_verbs,
    "object_question": Grammar.object_question,
    "negative_subject": Grammar.negative_subject,
    "existence": Grammar.existence,
    "joined_clauses": Grammar.joined_clauses,
    "subject_question": Grammar.subject_question,
    "without": Grammar.without,
    "adverb_question": Grammar.adverb_question,
    "negative_object": Grammar.negative_object,
    "spoken_aside": Grammar.spoken_aside,
}


def read_off(roots: Sequence[Node]) -> Words:
    """Sentences in a row, with their annotations."""
    words = Words()
    for root in roots:
        words.add(root)
    return words
