"""Every sieve, feature and pair again in plain loops over tokens: no broadcasting, none of the
library's own code for them."""

from __future__ import annotations

from collections.abc import Callable

from headwise.text.encode import Encoded

NEGATIONS = [
    "neither", "nor", "not", "never", "none", "don't", "won't", "didn't", "hadn't", "haven't", "can't", "isn't",
    "wasn't", "shouldn't", "couldn't", "nothing", "nowhere",
]  # fmt: skip
SYNTAX = {
    "syntactic": ["nsubj", "dobj", "obj", "amod", "advmod"],
    "nsubj": ["nsubj"],
    "dobj": ["obj", "dobj"],
    "amod": ["amod"],
    "advmod": ["advmod"],
}
Look = Callable[[Encoded, int, int], bool]


def word_of(row: Encoded, t: int) -> int | None:
    return int(row.word[t]) if row.aligned and row.word[t] >= 0 else None


def linked(row: Encoded, a: int, b: int, names: list[str]) -> bool:
    wa, wb, example = word_of(row, a), word_of(row, b), row.example
    if wa is None or wb is None or example.heads is None or wa == wb:
        return False
    up = example.heads[wa] == wb and example.relations[wa].split(":")[0] in names
    down = example.heads[wb] == wa and example.relations[wb].split(":")[0] in names
    return up or down


def rarest(row: Encoded) -> int:
    return max(int(row.ids[t]) for t in range(len(row)) if not row.special[t])


def in_sieve(name: str, row: Encoded, i: int, j: int) -> bool:
    """Whether token i in this role should look at token j."""
    if name in SYNTAX:
        return linked(row, i, j, SYNTAX[name])
    if name == "local":
        return i - 2 <= j <= i + 2
    if name == "local:prev":
        return j in (i - 1, i - 2)
    if name == "local:next":
        return j in (i + 1, i + 2)
    if name == "block":
        return (
            row.example.has_pair
            and not row.special[i]
            and not row.special[j]
            and row.segment[i] == row.segment[j]
        )
    if name == "delimiter":
        return bool(row.cls[j]) or bool(row.sep[j])
    if name in ("cls", "sep"):
        return bool(getattr(row, name)[j])
    if name == "first":
        return j == 0
    if name == "rare":
        return not row.special[j] and int(row.ids[j]) == rarest(row)
    if name.startswith("same_word"):
        same = row.ids[i] == row.ids[j] and i != j and not row.special[i]
        return bool(same and (name == "same_word" or row.segment[i] != row.segment[j]))
    if name == "siblings":
        return word_of(row, i) is not None and word_of(row, i) == word_of(row, j) and i != j
    if name == "previous":
        return j == i - 1
    if name == "duplicate":
        return j < i and row.ids[i] == row.ids[j] and not row.special[i]
    if name == "induction":
        return 0 < j <= i and row.ids[j - 1] == row.ids[i] and not row.special[i]
    if name == "sink":
        return j == 0 and i > 0
    if name == "question_mark":
        return row.pieces[j] == "?"
    raise AssertionError(f"no slow version of the sieve {name}: write one")


def has_feature(name: str, row: Encoded, t: int) -> bool:
    """Whether token t is of this feature."""
    if name in ("cls", "sep", "punct"):
        return bool(getattr(row, name)[t])
    word, example = word_of(row, t), row.example
    if word is None:
        return False
    if name in ("noun", "verb", "pronoun"):
        return (
            example.upos is not None
            and example.upos[word] == {"noun": "NOUN", "verb": "VERB", "pronoun": "PRON"}[name]
        )
    if name in ("subject", "object"):
        wanted = ("nsubj", "nsubjpass") if name == "subject" else ("obj", "dobj")
        return example.relations is not None and example.relations[word].split(":")[0] in wanted
    if name == "negation":
        segment = example.words if word < len(example.words) else example.words_pair
        local = word if word < len(example.words) else word - len(example.words)
        forms = [w.lower().replace("\u2019", "'") for w in segment]
        for start in range(max(0, local - 2), local + 1):
            for stop in range(local + 1, min(len(forms), start + 3) + 1):
                joined = "".join(forms[start:stop])
                if joined in NEGATIONS and (stop - start == 1 or "'" in joined):
                    return True
        return False
    raise AssertionError(f"no slow version of the feature {name}: write one")


def is_pair(name: str, row: Encoded, i: int, j: int) -> bool:
    """Whether the tokens i and j are a pair of this kind."""
    a, b, example = word_of(row, i), word_of(row, j), row.example
    if a is None or b is None or a == b or row.segment[i] != row.segment[j]:
        return False
    if example.sentences is not None and example.sentences[a] != example.sentences[b]:
        return False
    source, target = name.split("->")
    if "verb" in (source, target):
        if example.heads is None:
            return False
        verb, subject = (a, b) if source == "verb" else (b, a)
        return example.heads[subject] == verb and example.relations[subject].split(":")[0] in (
            "nsubj",
            "nsubjpass",
        )
    return has_feature(source, row, i) and has_feature(target, row, j)
