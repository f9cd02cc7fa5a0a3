"""Probing tasks in the manner of SentEval whose answers the demo grammar knows by construction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from demo_corpus.entities import Dice
from demo_corpus.grammar import KINDS, Grammar, read_off
from headwise.core.checks import at_least
from headwise.core.errors import ParameterError, unknown
from headwise.text.example import ROOT, Example

ATTEMPTS = (
    5000  # draws for one example of a wanted label; the rarest label comes about once in fifteen
)
DEPTHS = ("1", "2", "3", "4+")
LENGTHS = ((3, 6), (7, 9), (10, 12), (13, 99))


@dataclass(frozen=True, slots=True)
class Task:
    """Labels that are asked for in turn, and the function that gives a sentence its label (None:
    not of this task)."""

    labels: tuple[str, ...]
    label: Callable[[Example, str, Dice], Example | None]
    kinds: tuple[str, ...] = tuple(KINDS)


def demo_probing(task: str, size: int = 1000, seed: int = 0) -> list[Example]:
    """Sentences with the label of a probing task (Conneau et al. 2018, as used by Jo & Myaeng
    2020), the labels in turn and so balanced.

    Tasks: `length` (words in four bins), `tense` (of the main verb), `subject_number`,
    `object_number` (of the main clause), `depth` (edges from the root to the deepest word, four and
    more together), `bigram_shift` (two neighbouring words swapped or not), `coordination_inversion`
    (two joined clauses swapped or not). Where words were moved, the example has no annotations but
    its label. Example i depends on the task, i and the seed alone."""
    if task not in TASKS:
        raise ParameterError(unknown("demo probing task", task, TASKS))
    at_least("size", size, 1)
    return [_draw(task, number, seed) for number in range(size)]


def _draw(name: str, number: int, seed: int) -> Example:
    task = TASKS[name]
    wanted = task.labels[number % len(task.labels)]
    for attempt in range(ATTEMPTS):
        key = f"headwise-{name}/{seed}/{number}/{attempt}"
        dice = Dice(f"{key}/task")
        sentence = read_off([Grammar(key).sentence(dice.pick(task.kinds))]).example(
            origin=f"demo-{name}:{number + 1}"
        )
        found = task.label(sentence, wanted, dice)
        if found is not None:
            return replace(found, label=wanted)
    raise AssertionError(f"the demo grammar made no '{wanted}' for {name}")


def _root(example: Example) -> int:
    return (example.heads or ()).index(ROOT)


def _dependent(example: Example, relations: tuple[str, ...]) -> int | None:
    """The first dependent of the root in one of these relations."""
    root = _root(example)
    pairs = zip(example.heads or (), example.relations or (), strict=True)
    return next(
        (
            word
            for word, (head, relation) in enumerate(pairs)
            if head == root and relation in relations
        ),
        None,
    )


def _length(example: Example, wanted: str, dice: Dice) -> Example | None:
    low, high = next((low, high) for low, high in LENGTHS if low <= len(example.all_words) <= high)
    return example if f"{low}-{high}" == wanted else None


def main_tense(example: Example) -> str | None:
    """The tense of the main clause: of its finite verb, auxiliary or copula."""
    root, features = _root(example), example.features or ()
    candidates = [
        root,
        *(
            w
            for w, head in enumerate(example.heads or ())
            if head == root and (example.upos or ())[w] == "AUX"
        ),
    ]
    found = next(
        (
            features[w]["Tense"]
            for w in sorted(candidates)
            if features[w].get("VerbForm") == "Fin" and "Tense" in features[w]
        ),
        None,
    )
    return {"Past": "past", "Pres": "present", None: None}[found]


def _tense(example: Example, wanted: str, dice: Dice) -> Example | None:
    return example if main_tense(example) == wanted else None


def _number_of(relations: tuple[str, ...]) -> Callable[[Example, str, Dice], Example | None]:
    def label(example: Example, wanted: str, dice: Dice) -> Example | None:
        word = _dependent(example, relations)
        if word is None or (example.upos or ())[word] not in ("NOUN", "PROPN", "PRON"):
            return None
        joined = any(
            r == "conj" and h == word
            for h, r in zip(example.heads or (), example.relations or (), strict=True)
        )
        number = (example.features or ())[word].get("Number")
        return (
            example
            if not joined and number == {"singular": "Sing", "plural": "Plur"}[wanted]
            else None
        )

    return label


def tree_depth(heads: tuple[int, ...]) -> int:
    """Edges from the root to the deepest word."""

    def above(word: int) -> int:
        return 0 if heads[word] == ROOT else 1 + above(heads[word])

    return max(map(above, range(len(heads))))


def _depth(example: Example, wanted: str, dice: Dice) -> Example | None:
    return (
        example if DEPTHS[min(tree_depth(example.heads or ()), len(DEPTHS)) - 1] == wanted else None
    )


def _lowered(example: Example) -> list[str]:
    """The words with the capital of the sentence's beginning undone."""
    words, upos = list(example.all_words), example.upos or ()
    if upos[0] != "PROPN" and words[0] != "I":
        words[0] = words[0][0].lower() + words[0][1:]
    return words


def _words_only(words: list[str], origin: str) -> Example:
    return Example(words=(words[0][0].upper() + words[0][1:], *words[1:]), origin=origin)


def _bigram_shift(example: Example, wanted: str, dice: Dice) -> Example | None:
    words, upos = _lowered(example), example.upos or ()
    places = [
        i
        for i in range(len(words) - 1)
        if "PUNCT" not in upos[i : i + 2] and words[i] != words[i + 1]
    ]
    if len(words) < 5 or not places:
        return None
    if wanted == "shifted":
        place = dice.pick(places)
        words[place], words[place + 1] = words[place + 1], words[place]
    return _words_only(words, example.origin)


def _coordination_inversion(example: Example, wanted: str, dice: Dice) -> Example | None:
    words, relations = _lowered(example), example.relations or ()
    conjunct = _dependent(example, ("conj",))
    if conjunct is None:
        return None
    comma = next(
        (
            w
            for w, head in enumerate(example.heads or ())
            if head == conjunct and relations[w] == "punct"
        ),
        None,
    )
    if comma is None:
        return None
    first, joint, second, end = (
        words[:comma],
        words[comma : comma + 2],
        words[comma + 2 : -1],
        words[-1:],
    )
    if wanted == "inverted":
        first, second = second, first
    return _words_only([*first, *joint, *second, *end], example.origin)


TASKS: dict[str, Task] = {
    "length": Task(tuple(f"{low}-{high}" for low, high in LENGTHS), _length),
    "tense": Task(("past", "present"), _tense),
    "subject_number": Task(("singular", "plural"), _number_of(("nsubj", "nsubj:pass"))),
    "object_number": Task(("singular", "plural"), _number_of(("obj",))),
    "depth": Task(DEPTHS, _depth),
    "bigram_shift": Task(("original", "shifted"), _bigram_shift),
    "coordination_inversion": Task(
        ("original", "inverted"), _coordination_inversion, kinds=("joined_clauses", "joined_nouns")
    ),
}
