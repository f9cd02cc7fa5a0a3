"""Built-in sets of prompt pairs, made by templates from a seed.

Each set is a generator without end; `builtin_pairs` takes different pairs from it. `unit` names what
pairs have in common (the noun, the two people): pairs of one unit are not independent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from headwise.text.word_pairs import CAPITALS


@dataclass(frozen=True, slots=True)
class PromptPair:
    """A clean and a corrupted input, the answer that follows the clean one, and the one that
    follows the other.

    Both inputs must have the same number of tokens, or equally many marked spans, `[[...]]`, with
    equally many tokens between them. Answers are compared by their first token. `unit` is what
    intervals are taken over: pairs of one unit count as one observation."""

    clean: str
    corrupted: str
    answer: str
    wrong: str
    where: str = ""
    unit: str = ""


# fmt: off
# Each noun is one unit, and circuits are judged on half of the units. In most tokenizers a noun and
# its plural with -s are a token each; pairs in which they are not are left out.
SINGULARS = (
    "key", "dog", "book", "car", "tree", "house", "boy", "girl", "teacher", "student", "friend",
    "doctor", "picture", "letter", "road", "river", "cat", "bird", "horse", "flower", "table",
    "chair", "door", "window", "box", "ball", "boat", "ship", "train", "bridge", "garden", "king",
    "queen", "farmer", "driver", "player", "writer", "worker", "soldier", "artist", "singer",
    "lawyer", "nurse", "painter", "brother", "sister", "star", "cloud", "stone", "apple", "shoe",
    "hat", "bag", "cup", "toy", "song", "story", "island", "building", "machine", "engine",
    "computer", "phone", "camera",
)
IRREGULAR_PLURALS = {"box": "boxes", "story": "stories"}
NOUNS = tuple((noun, IRREGULAR_PLURALS.get(noun, f"{noun}s")) for noun in SINGULARS)
# fmt: on
PREPOSITIONS = ("near the", "behind the", "next to the", "in front of the")
VERBS = ((" is", " are"), (" was", " were"), (" has", " have"))
NAMES = (
    "Mary",
    "John",
    "Anna",
    "Peter",
    "Sarah",
    "Tom",
    "Emma",
    "James",
    "Alice",
    "David",
    "Laura",
    "Mark",
)
SCENES = (
    "When {a} and {b} went to the {place}, {giver} gave a {thing} to",
    "After {a} and {b} came home from the {place}, {giver} handed the {thing} to",
    "Then {a} and {b} had a long talk at the {place}, and {giver} passed a {thing} to",
)
PLACES = ("store", "school", "garden", "station", "office", "park")
THINGS = ("book", "letter", "ball", "drink", "ring", "key")
# fmt: off
EVENTS = (
    "war", "siege", "conflict", "voyage", "famine", "drought", "reign", "dispute", "trial",
    "rebellion", "project", "expedition", "revolution", "campaign", "occupation", "crisis",
    "journey", "partnership", "alliance", "blockade", "epidemic", "persecution", "exile",
    "marriage", "career", "experiment", "survey", "tour", "program", "construction", "festival",
    "negotiation", "investigation", "uprising", "strike", "depression", "boom", "truce",
    "embargo", "mission",
)
# fmt: on
MEN = ("John", "Peter", "Tom", "James", "David", "Mark", "Paul", "George", "Robert", "Michael")
WOMEN = ("Mary", "Anna", "Sarah", "Emma", "Alice", "Laura", "Jane", "Kate", "Lisa", "Susan")
PRONOUN_SCENES = (
    "{name} went to the shop because",
    "When {name} came home from work,",
    "{name} is a very good friend, and",
    "{name} was tired after the trip, so",
)
# fmt: off
LIST_WORDS = (
    "apple", "house", "river", "stone", "green", "music", "paper", "light", "water", "table",
    "window", "summer", "garden", "horse", "bread", "silver", "winter", "market", "bridge",
    "letter", "circle", "forest", "island", "doctor", "yellow", "camera", "planet", "engine",
    "button", "ticket", "rabbit", "pencil", "butter", "dragon", "castle", "flower", "basket",
    "mirror", "hammer", "orange",
)
# fmt: on
# fmt: off
ARGUMENTS = (
    "name", "path", "size", "value", "index", "file", "data", "key", "text", "count", "color",
    "width", "height", "label", "mode", "type", "node", "user", "date", "time", "url", "code",
    "state",
)
# fmt: on
DESCRIPTIONS = (
    "Load the given item and return it",
    "Return the result of the call",
    "Update the object in place",
    "Check the input and raise an error",
)
CAPITAL_SCENES = (
    "The capital of {country} is",
    "The capital city of {country} is called",
    "The government of {country} sits in its capital,",
)


def _agreement(random: np.random.Generator) -> Iterator[PromptPair]:
    """Yield pairs in which the verb agrees with the first noun, not with the one beside it."""
    while True:
        first, second = random.choice(len(NOUNS), 2, replace=False)
        subject = NOUNS[first]
        attractor = NOUNS[second]
        preposition = random.choice(PREPOSITIONS)
        verb = VERBS[random.integers(len(VERBS))]
        number = int(random.integers(2))  # of the clean subject: 0 singular, 1 plural
        attractor_number = int(random.integers(2))
        inputs = [f"The {noun} {preposition} {attractor[attractor_number]}" for noun in subject]
        yield PromptPair(
            clean=inputs[number],
            corrupted=inputs[1 - number],
            answer=verb[number],
            wrong=verb[1 - number],
            where="agreement",
            unit=subject[0],
        )


def _names(random: np.random.Generator) -> Iterator[PromptPair]:
    """Yield pairs in which what is given goes to the other of two people."""
    scenes = list(product(SCENES, PLACES, THINGS))
    while True:
        first, second = random.choice(len(NAMES), 2, replace=False)
        a = NAMES[first]
        b = NAMES[second]
        scene, place, thing = scenes[int(random.integers(len(scenes)))]
        clean = scene.format(a=a, b=b, place=place, thing=thing, giver=b)
        corrupted = scene.format(a=a, b=b, place=place, thing=thing, giver=a)
        yield PromptPair(clean, corrupted, f" {a}", f" {b}", "names", f"{a}, {b}")


def _greater_than(random: np.random.Generator) -> Iterator[PromptPair]:
    """Yield pairs in which an event ends in a later decade than it began (Hanna et al. 2023)."""
    while True:
        event = str(random.choice(EVENTS))
        century = int(random.integers(11, 20))
        decade = int(random.integers(3, 9))  # of the clean start
        year = int(random.integers(1, 9))
        sentence = "The {event} lasted from the year {century}{start} to the year {century}"
        starts = [f"{decade}{year}", f"{decade - 2}{year}"]
        inputs = []
        for start in starts:
            inputs.append(sentence.format(event=event, century=century, start=start))
        yield PromptPair(
            clean=inputs[0],
            corrupted=inputs[1],
            answer=f"{decade + 1}{year}",
            wrong=f"{decade - 1}{year}",
            where="greater-than",
            unit=event,
        )


def _pronouns(random: np.random.Generator) -> Iterator[PromptPair]:
    """Yield pairs in which a pronoun refers to a person's name."""
    pronouns = (" he", " she")
    while True:
        names = (str(random.choice(MEN)), str(random.choice(WOMEN)))
        scene = str(random.choice(PRONOUN_SCENES))
        gender = int(random.integers(2))  # of the clean name
        yield PromptPair(
            clean=scene.format(name=names[gender]),
            corrupted=scene.format(name=names[1 - gender]),
            answer=pronouns[gender],
            wrong=pronouns[1 - gender],
            where="pronouns",
            unit=f"{names[0]}, {names[1]}",
        )


def _induction(random: np.random.Generator) -> Iterator[PromptPair]:
    """Yield lists of random words that end with a word that has occurred before: what followed it
    there follows again.

    The corrupted list has the words before the two possible answers exchanged. The answers stay
    where they are, so only what precedes them tells which is right."""
    while True:
        words = [str(word) for word in random.choice(LIST_WORDS, 9, replace=False)]
        repeated, answer, exchanged, wrong, *others = words
        clean = [others[0], repeated, answer, others[1], others[2], exchanged, wrong, *others[3:]]
        corrupted = list(clean)
        corrupted[1] = exchanged
        corrupted[5] = repeated
        yield PromptPair(
            clean=" ".join([*clean, repeated]),
            corrupted=" ".join([*corrupted, repeated]),
            answer=f" {answer}",
            wrong=f" {wrong}",
            where="induction",
            unit=f"{repeated}, {exchanged}",
        )


def _docstring(random: np.random.Generator) -> Iterator[PromptPair]:
    """Yield functions whose docstring lists its arguments in order (Heimersheim & Janiak 2023)."""
    while True:
        names = [str(name) for name in random.choice(ARGUMENTS, 5, replace=False)]
        first, second, third, other, function = names
        described = str(random.choice(DESCRIPTIONS))
        inputs = []
        for name in (second, other):
            inputs.append(
                f"def {function}(self, {first}, {name}, {third}):\n"
                f'    """{described}.\n\n'
                f"    :param {first}: the {first}\n"
                "    :param"
            )
        unit = f"{second}, {other}"
        yield PromptPair(inputs[0], inputs[1], f" {second}", f" {other}", "docstring", unit)


def _capitals(random: np.random.Generator) -> Iterator[PromptPair]:
    """Yield pairs of countries whose capital is asked for."""
    while True:
        first, second = random.choice(len(CAPITALS), 2, replace=False)
        country, capital = CAPITALS[first]
        other_country, other_capital = CAPITALS[second]
        scene = str(random.choice(CAPITAL_SCENES))
        yield PromptPair(
            clean=scene.format(country=country),
            corrupted=scene.format(country=other_country),
            answer=f" {capital}",
            wrong=f" {other_capital}",
            where="capitals",
            unit=country,
        )


def capital_texts(count: int, seed: int) -> list[tuple[str, str]]:
    """Return different texts that ask for a capital, the country marked, with their answers."""
    texts = []
    for scene in CAPITAL_SCENES:
        for country, capital in CAPITALS:
            texts.append((scene.format(country=f"[[{country}]]"), f" {capital}"))
    order = np.random.default_rng(seed).permutation(len(texts))
    return [texts[number] for number in order[:count]]


BUILTIN: dict[str, Callable[[np.random.Generator], Iterator[PromptPair]]] = {
    "agreement": _agreement,
    "names": _names,
    "greater-than": _greater_than,
    "pronouns": _pronouns,
    "induction": _induction,
    "docstring": _docstring,
    "capitals": _capitals,
}
