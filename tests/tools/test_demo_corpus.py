"""The demo grammar: true trees, sound agreement, every phenomenon, the same examples everywhere,
and the shipped file made again."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from demo_corpus.entities import Dice
from demo_corpus.examples import demo_examples
from demo_corpus.grammar import KINDS, Grammar, read_off
from demo_corpus.lexicon import lexicon
from demo_corpus.tasks import TASKS, demo_probing, main_tense
from demo_corpus.write import SHIPPED, SHIPPED_TREES, main, packed
from headwise.core.errors import ParameterError
from headwise.text import open_corpus
from headwise.text.example import ROOT, Example

SIZE = 400
# Relations every prefix of a few hundred examples must hold, for each analysis to have something to
# find.
RELATIONS = {
    *(
        "root",
        "nsubj",
        "obj",
        "iobj",
        "amod",
        "advmod",
        "det",
        "case",
        "nmod",
        "nmod:poss",
        "obl",
        "obl:agent",
        "obl:unmarked",
        "aux",
        "aux:pass",
    ),
    *(
        "nsubj:pass",
        "cop",
        "acl:relcl",
        "mark",
        "ccomp",
        "xcomp",
        "advcl",
        "conj",
        "cc",
        "cc:preconj",
        "compound",
        "compound:prt",
        "punct",
        "discourse",
    ),
    *("expl", "flat", "nummod"),
}
PRONOUNS = {
    "she": "Fem",
    "her": "Fem",
    "herself": "Fem",
    "he": "Masc",
    "him": "Masc",
    "his": "Masc",
    "himself": "Masc",
}
UPOS = {
    "NOUN",
    "PROPN",
    "PRON",
    "VERB",
    "AUX",
    "DET",
    "ADJ",
    "ADV",
    "ADP",
    "PART",
    "CCONJ",
    "SCONJ",
    "NUM",
    "INTJ",
    "PUNCT",
}


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return demo_examples(SIZE)


def sentences(example: Example) -> Iterator[list[int]]:
    for number in range(max(example.sentences) + 1):
        yield [word for word, sentence in enumerate(example.sentences) if sentence == number]


def text(example: Example) -> str:
    return " ".join(example.all_words)


def dependents(example: Example, word: int, *relations: str) -> list[int]:
    return [
        d
        for d, head in enumerate(example.heads)
        if head == word and (not relations or example.relations[d] in relations)
    ]


def yield_of(example: Example, word: int) -> list[int]:
    found, stack = [], [word]
    while stack:
        here = stack.pop()
        found.append(here)
        stack += dependents(example, here)
    return sorted(found)


def test_trees(examples: list[Example]) -> None:
    for example in examples:
        for words in sentences(example):
            assert words == list(range(words[0], words[-1] + 1))
            roots = [w for w in words if example.heads[w] == ROOT]
            assert len(roots) == 1, text(example)
            assert all((example.relations[w] == "root") == (w in roots) for w in words)
            assert all(example.heads[w] in words for w in words if w not in roots), (
                "an arc leaves its sentence"
            )
            assert yield_of(example, roots[0]) == words


def test_trees_are_projective(examples: list[Example]) -> None:
    for example in examples:
        for word in range(len(example.all_words)):
            below = yield_of(example, word)
            assert below[-1] - below[0] + 1 == len(below), (
                f"{example.all_words[word]} in: {text(example)}"
            )


def test_relations_and_classes_fit(examples: list[Example]) -> None:
    classes = {
        "det": {"DET"},
        "amod": {"ADJ"},
        "case": {"ADP", "PART"},
        "aux": {"AUX"},
        "aux:pass": {"AUX"},
        "cop": {"AUX"},
        "cc": {"CCONJ"},
        "mark": {"SCONJ", "PART"},
        "punct": {"PUNCT"},
        "nummod": {"NUM"},
        "nsubj": {"NOUN", "PROPN", "PRON"},
        "obj": {"NOUN", "PROPN", "PRON"},
        "iobj": {"NOUN", "PROPN", "PRON"},
        "advmod": {"ADV", "PART"},
        "acl:relcl": {"VERB"},
        "xcomp": {"VERB"},
        "ccomp": {"VERB"},
        "compound:prt": {"ADP"},
    }
    for example in examples:
        assert set(example.upos) <= UPOS
        for word, relation in enumerate(example.relations):
            assert example.upos[word] in classes.get(relation, UPOS), (
                f"{relation} {example.all_words[word]}: {text(example)}"
            )
            if relation in ("det", "case", "aux", "aux:pass", "cop", "cc", "punct", "mark"):
                allowed = dependents(example, word)
                assert not allowed, (
                    f"a function word with dependents: {example.all_words[word]} in {text(example)}"
                )
        for verb, upos in enumerate(example.upos):
            if upos == "VERB":
                for relation in ("nsubj", "nsubj:pass", "obj", "iobj", "aux:pass", "compound:prt"):
                    assert len(dependents(example, verb, relation)) <= 1, (
                        f"two {relation}: {text(example)}"
                    )
                if dependents(example, verb, "nsubj:pass"):
                    assert example.features[verb].get("Voice") == "Pass"
                    assert dependents(example, verb, "aux:pass")
                    assert not dependents(example, verb, "obj", "nsubj")


def finite_parts(example: Example, clause: int) -> list[int]:
    group = [clause, *dependents(example, clause, "aux", "aux:pass", "cop")]
    return sorted(word for word in group if example.features[word].get("VerbForm") == "Fin")


def test_subject_and_verb_agree(examples: list[Example]) -> None:
    """Checked on the written forms, apart from the features the grammar itself used."""
    checked = 0
    for example in examples:
        for clause in range(len(example.all_words)):
            subjects = dependents(example, clause, "nsubj", "nsubj:pass")
            if not subjects:
                continue
            finite = finite_parts(example, clause)
            assert len(finite) == 1, (
                f"{len(finite)} finite words at '{example.all_words[clause]}': {text(example)}"
            )
            subject, form = subjects[0], example.all_words[finite[0]].lower()
            word = example.all_words[subject].lower()
            if example.features[subject].get("PronType") == "Rel":
                subject = example.heads[clause]
                word = example.all_words[subject].lower()
            joined = bool(dependents(example, subject, "conj")) and not dependents(
                example, subject, "cc:preconj"
            )
            plural = (
                joined
                or word in ("they", "we", "you", "none")
                or example.features[subject].get("Number") == "Plur"
            )
            singular_third = not plural and word != "i"
            message = f"{word} {form}: {text(example)}"
            if form in ("is", "was", "has", "does", "are", "were", "have", "do", "am"):
                assert (form in ("is", "has", "does")) == singular_third or form in ("was", "am"), (
                    message
                )
                assert (form == "am") <= (word == "i"), message
                assert (form == "was") <= (not plural), message
                assert (form == "were") <= plural, message
                checked += 1
            elif (
                example.upos[finite[0]] == "VERB" and example.features[finite[0]]["Tense"] == "Pres"
            ):
                assert form.endswith("s") == singular_third, message
                checked += 1
    assert checked > 200


def test_articles_fit_the_next_word(examples: list[Example]) -> None:
    vowels = {
        "honest",
        *[
            "old",
            "elderly",
            "expensive",
            "ancient",
            "enormous",
            "important",
            "interesting",
            "apple",
            "umbrella",
            "actress",
            "accordion",
            "ocarina",
        ],
    }
    vowels |= {
        "astrolabe",
        "apothecary",
        "ocelot",
        "oil",
        "opera",
        "island",
        "idea",
        "answer",
        "election",
        "orchestra",
        "elder",
        "uncle",
        "aunt",
        "iridescent",
        "extremely",
    }
    seen = Counter()
    for example in examples:
        words = [w.lower() for w in example.all_words]
        for word, following in itertools.pairwise(words):
            if word in ("a", "an"):
                assert (word == "an") == (following in vowels), f"{word} {following}"
                seen[word] += 1
            assert (word, following) not in {
                ("the", "the"),
                ("a", "the"),
                ("the", "a"),
                ("to", "to"),
            }
    assert seen["a"] > 100
    assert seen["an"] > 30


def test_pronouns_agree_with_their_antecedents(examples: list[Example]) -> None:
    """No entity is both she and he, names have the gender of their list, and reflexives mean the
    subject."""
    names = {name: gender for gender, list_ in lexicon().names.items() for name in list_}
    checked = 0
    for example in examples:
        genders: dict[str, set[str]] = {}
        for mention in example.mentions:
            word = example.all_words[mention.head]
            gender = names.get(word) or PRONOUNS.get(word.lower())
            genders.setdefault(mention.entity, set()).update({gender} if gender else set())
            if word.lower() in ("it", "its"):
                genders[mention.entity].add("Neut")
            if word.lower().endswith("self"):
                subject = dependents(example, example.heads[mention.head], "nsubj")[0]
                assert any(
                    m.head == subject and m.entity == mention.entity for m in example.mentions
                )
                checked += 1
        assert all(len(found) <= 1 for found in genders.values()), text(example)
        checked += sum(map(len, genders.values()))
    assert checked > 200


def test_mentions(examples: list[Example]) -> None:
    kinds = Counter()
    for example in examples:
        times = Counter(m.entity for m in example.mentions)
        assert all(count >= 2 for count in times.values()), "a singleton"
        spans = [(m.start, m.end) for m in example.mentions]
        assert len(set(spans)) == len(spans), "one stretch, two entities"
        heads: dict[str, set[int]] = {}
        for mention in example.mentions:
            assert 0 <= mention.start <= mention.head < mention.end <= len(example.all_words)
            assert example.upos[mention.head] in ("NOUN", "PROPN", "PRON")
            assert example.upos[mention.start] not in ("ADP", "CCONJ", "PUNCT", "VERB"), text(
                example
            )
            inside = set(range(mention.start, mention.end))
            assert all(example.heads[w] in inside for w in inside - {mention.head}), (
                "a mention is a connected stretch under its head"
            )
            assert mention.head not in heads.setdefault(mention.entity, set())
            heads[mention.entity].add(mention.head)
            kinds[example.upos[mention.head]] += 1
        for first, second in ((a, b) for a in spans for b in spans):
            crossing = first[0] < second[0] < first[1] < second[1]
            assert not crossing, text(example)
    assert min(kinds[kind] for kind in ("NOUN", "PROPN", "PRON")) > 100


def test_pairs_are_joined_by_coreference(examples: list[Example]) -> None:
    pairs = [example for example in examples if example.has_pair]
    for example in pairs:
        border = len(example.words)
        first = {m.entity for m in example.mentions if m.head < border}
        second = {m.entity for m in example.mentions if m.head >= border}
        assert first & second, text(example)
    content = ("NOUN", "PROPN", "VERB", "ADJ")

    def words_of(example: Example, low: int, high: int) -> set[str]:
        return {
            example.all_words[w].lower() for w in range(low, high) if example.upos[w] in content
        }

    same = sum(
        bool(words_of(e, 0, len(e.words)) & words_of(e, len(e.words), len(e.all_words)))
        for e in pairs
    )
    assert same > len(pairs) / 4


def test_frames(examples: list[Example]) -> None:
    verbs: dict[str, set[str]] = {}
    for verb in lexicon().verbs:
        if verb.frame:
            verbs.setdefault(verb.lemma, set()).add(verb.frame)
    distant = 0
    for example in examples:
        for link in example.frames:
            assert link.frame in verbs[example.lemmas[link.target[0]]]
            target, span = set(range(*link.target)), set(range(*link.span))
            assert not target & span, f"{link}: {text(example)}"
            sentence = {example.sentences[w] for w in target | span}
            assert len(sentence) == 1
            assert all(example.upos[w] != "PUNCT" for w in (link.span[0], link.span[1] - 1))
            distant += min(abs(i - j) for i in target for j in span) >= 2
    names = {link.frame for example in examples for link in example.frames}
    assert len(names) > 40
    assert {
        "Giving",
        "Commerce_buy",
        "Commerce_sell",
        "Perception_experience",
        "Self_motion",
        "Statement",
    } <= names
    assert distant > 200  # the papers look at links of at least two positions


def test_a_frame_by_hand() -> None:
    """In a double-object sentence the three elements of Giving are the subject, the object and the
    indirect object."""
    found = 0
    for number in range(200):
        example = read_off([Grammar(f"by hand {number}").sentence("ditransitive")]).example()
        links = {link.element: link for link in example.frames if link.frame == "Giving"}
        for element, relation in (("Donor", "nsubj"), ("Theme", "obj"), ("Recipient", "iobj")):
            words = (
                [
                    w
                    for w, r in enumerate(example.relations)
                    if r == relation and example.heads[w] == links[element].target[0]
                ]
                if links
                else []
            )
            for word in words:
                below = yield_of(example, word)
                assert links[element].span == (below[0], below[-1] + 1), text(example)
                found += relation == "iobj"
    assert found > 10


@pytest.mark.parametrize("size", [120, SIZE])
def test_everything_occurs(examples: list[Example], size: int) -> None:
    part = examples[:size]
    relations = Counter(r for e in part for r in e.relations)
    assert not [r for r in RELATIONS if not relations[r]]
    words = Counter(w.lower() for e in part for w in e.all_words)
    negation = [
        "not",
        "n't",
        "never",
        "nothing",
        "nobody",
        "no",
        "neither",
        "nor",
        "none",
        "without",
        "nowhere",
    ]
    assert (
        not [w for w in negation if not words[w]]
        if size == SIZE
        else sum(map(words.__getitem__, negation)) > 20
    )
    assert words["?"] > 10
    features = {(k, v) for e in part for f in e.features for k, v in f.items()}
    wanted = {
        ("Number", "Plur"),
        ("Gender", "Fem"),
        ("Gender", "Masc"),
        ("Gender", "Neut"),
        ("Person", "1"),
        ("Person", "3"),
        ("Tense", "Past"),
    }
    wanted |= {
        ("Tense", "Pres"),
        ("Case", "Nom"),
        ("Case", "Acc"),
        ("Case", "Gen"),
        ("PronType", "Prs"),
        ("PronType", "Rel"),
        ("PronType", "Int"),
    }
    assert wanted <= features
    assert {"who", "that", "'s", "by", "will", "had"} <= set(words)


def test_mix_is_fair_in_every_prefix(examples: list[Example]) -> None:
    for size in (10, 50, 100, SIZE):
        part = examples[:size]
        pairs = sum(e.has_pair for e in part)
        passages = sum(not e.has_pair and max(e.sentences) > 0 for e in part)
        assert (pairs, passages) == (size // 2, size // 10)
    assert {max(e.sentences) + 1 for e in examples if not e.has_pair} == {1, 3, 4, 5}
    labels = Counter(e.label for e in examples)
    assert set(labels) == {"past", "present"}
    assert min(labels.values()) > SIZE * 0.4


def test_label_is_the_tense_of_every_main_clause(examples: list[Example]) -> None:
    told = 0
    for example in examples:
        for words in sentences(example):
            start = words[0]
            alone = Example(
                words=tuple(example.all_words[w] for w in words),
                heads=tuple(
                    example.heads[w] - start if example.heads[w] != ROOT else ROOT for w in words
                ),
                upos=tuple(example.upos[w] for w in words),
                features=tuple(example.features[w] for w in words),
            )
            assert main_tense(alone) in (example.label, None), text(example)
            told += main_tense(alone) is not None
    assert told > SIZE


def test_same_everywhere(examples: list[Example]) -> None:
    assert demo_examples(100) == examples[:100]
    assert demo_examples(20, seed=1) != examples[:20]
    assert len({e.all_words for e in examples}) == SIZE, "an example comes twice"
    with pytest.raises(ParameterError, match="size"):
        demo_examples(0)


def test_the_shipped_file_is_made_again_to_the_byte(tmp_path: Path) -> None:
    """In another process, with another order of sets: whoever changes the grammar runs `python
    tools/demo_corpus` and commits the file."""
    out = tmp_path / "again.jsonl.bz2"
    environment = {"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)}
    tool = SHIPPED.parents[4] / "tools" / "demo_corpus"
    subprocess.run(
        [sys.executable, tool, "--out", out], check=True, env=environment, capture_output=True
    )
    assert out.read_bytes() == SHIPPED.read_bytes()
    assert SHIPPED.stat().st_size < 100_000


@pytest.mark.real
def test_the_real_part_is_made_again_from_the_treebank(shared: Path, tmp_path: Path) -> None:
    treebank = shared / "data" / "trees" / "en_ewt-ud-train.conllu.xz"
    main(["--treebank", str(treebank), "--out", str(tmp_path / "again.jsonl.bz2")])
    assert (tmp_path / "again.jsonl.bz2").read_bytes() == SHIPPED_TREES.read_bytes()
    assert SHIPPED_TREES.stat().st_size < 100_000
    assert "CC BY-SA 4.0" in (SHIPPED_TREES.parent / "LICENSE.md").read_text()


def test_what_is_written_is_read_back(examples: list[Example], tmp_path: Path) -> None:
    assert list(open_corpus(SHIPPED)) == [
        replace(e, origin=f"{SHIPPED}:{i + 1}") for i, e in enumerate(examples)
    ]
    main(
        [
            "--task",
            "bigram_shift",
            "--size",
            "6",
            "--seed",
            "2",
            "--out",
            str(tmp_path / "task.jsonl.bz2"),
        ]
    )
    read = list(open_corpus(tmp_path / "task.jsonl.bz2"))
    assert [(e.words, e.label) for e in read] == [
        (e.words, e.label) for e in demo_probing("bigram_shift", 6, 2)
    ]
    assert packed(examples[:5]) == packed(list(examples[:5]))
    with pytest.raises(SystemExit):
        main(["--size", "10"])  # the shipped file would no longer be what it is


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_starts_and_continues_a_text(kind: str) -> None:
    forms = set()
    for number in range(20):
        grammar = Grammar(f"{kind} {number}")
        words = read_off([grammar.sentence(kind), grammar.sentence(kind)])
        assert words.forms[0][0].isupper()
        assert words.forms[-1] in ".?"
        assert (words.forms[-1] == "?") == kind.endswith("question")
        words.example()  # checks heads, mentions and frames
        forms.add(tuple(words.forms))
    assert len(forms) > 17


def test_lexicon_is_large_and_multi_piece() -> None:
    words = lexicon()
    assert len(words.nouns) >= 60
    assert len({v.lemma for v in words.verbs}) >= 50
    assert len(words.adjectives) >= 40
    assert len({a for v in words.verbs for a in v.adverbs}) >= 30
    assert sum(map(len, words.names.values())) >= 40
    assert len({n.lemma for n in words.nouns}) == len(words.nouns)
    known = {c for n in words.nouns for c in n.classes} | {"city"}
    for verb in words.verbs:
        for slot in (verb.subject, verb.object, verb.recipient, verb.oblique and verb.oblique[1]):
            assert slot is None or slot.classes <= known, f"{verb.lemma}: {slot.classes - known}"
    for adjective in words.adjectives:
        assert adjective.classes <= known, adjective


# Probing tasks, each answer told anew from the words alone where that can be done


@pytest.mark.parametrize("task", TASKS)
def test_probing_tasks_are_balanced_and_fixed(task: str) -> None:
    examples = demo_probing(task, 40)
    labels = Counter(e.label for e in examples)
    assert set(labels) == set(TASKS[task].labels)
    assert max(labels.values()) - min(labels.values()) <= 1
    assert demo_probing(task, 12) == examples[:12]
    assert len({e.words for e in examples}) > 35


def test_probing_labels_are_true() -> None:
    for example in demo_probing("length", 40):
        low, high = map(int, example.label.split("-"))
        assert low <= len(example.words) <= high
    plurals = {n.plural for n in lexicon().nouns}
    for example in demo_probing("object_number", 40):
        root = example.heads.index(ROOT)
        (obj,) = dependents(example, root, "obj")
        assert (example.words[obj] in plurals | {"them", "us"}) == (example.label == "plural")
    for example in demo_probing("depth", 40):
        steps = []
        for word in range(len(example.words)):
            count = 0
            while example.heads[word] != ROOT:
                word, count = example.heads[word], count + 1
            steps.append(count)
        assert min(max(steps), 4) == int(example.label.rstrip("+"))


def sentence(kind: str, number: int) -> Example:
    return read_off([Grammar(f"moved {number}").sentence(kind)]).example()


def lowered(words: tuple[str, ...]) -> list[str]:
    return [word.lower() for word in words]


def test_shifted_bigrams_are_two_neighbours_swapped() -> None:
    shift = TASKS["bigram_shift"].label
    places = set()
    for number in range(60):
        before = sentence("statement", number)
        assert shift(before, "original", Dice("x")) in (None, Example(words=before.words))
        moved = shift(before, "shifted", Dice(f"{number}"))
        if moved is None:
            continue
        old, new = lowered(before.words), lowered(moved.words)
        different = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        assert len(different) == 2, moved.words
        first, second = different
        assert second == first + 1
        assert (old[first], old[second]) == (new[second], new[first])
        assert moved.words[0][0].isupper()
        assert new[-1] == "."
        places.add(first)
    assert len(places) > 3


def test_inverted_coordinations_are_the_clauses_swapped() -> None:
    invert = TASKS["coordination_inversion"].label
    for number in range(40):
        before = sentence("joined_clauses", number)
        assert invert(before, "original", Dice("x")) == Example(words=before.words)
        moved = invert(before, "inverted", Dice("x"))
        conjunct = dependents(before, before.heads.index(ROOT), "conj")[0]
        second = [
            w
            for w in yield_of(before, conjunct)
            if before.relations[w] not in ("punct", "cc") or before.heads[w] != conjunct
        ]
        first = [w for w in range(len(before.words) - 1) if w not in yield_of(before, conjunct)]
        old = lowered(before.words)
        joint = [w for w in yield_of(before, conjunct) if w not in second]
        assert [old[w].lower() for w in (*second, *joint, *first)] + ["."] == [
            w.lower() for w in moved.words
        ]


def test_unknown_task_is_named() -> None:
    with pytest.raises(ParameterError, match="Did you mean 'tense'"):
        demo_probing("tence")
