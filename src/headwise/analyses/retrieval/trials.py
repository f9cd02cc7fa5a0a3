"""Needles in unrelated text: prompts, greedy decoding, and where heads look while the needle is
said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.core.errors import InputError, ModelError
from headwise.models import HeadModel
from headwise.models.view import AttentionRows, Watcher
from headwise.text.encode import Encoded, collate
from headwise.text.synthetic import synthetic_row

# What the needle begins with, which the answer is given too; what is to be found; and the question.
NEEDLES = (
    (
        "The old sailor hid his",
        "silver compass and seven green marbles under the wooden bridge",
        "What did the old sailor hide, and where?",
    ),
    (
        "For her birthday, the queen asked for",
        "a purple bicycle with three wheels and a basket full of lemons",
        "What did the queen ask for?",
    ),
    (
        "The password of the tower is",
        "yellow elephants never drink cold coffee on a Sunday morning",
        "What is the password of the tower?",
    ),
    (
        "Every evening the baker feeds",
        "two grey foxes with warm bread and honey behind the church",
        "Whom does the baker feed every evening?",
    ),
)
EXTRA = 4  # tokens decoded beyond the needle's
SHORTEST = 32  # tokens of a prompt


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A prompt and where in it the tokens stand that are to be said."""

    prompt: list[int]
    places: range

    @property
    def needle(self) -> list[int]:
        return [self.prompt[place] for place in self.places]


def hay_of(model: HeadModel, rows: Iterable[Encoded], tokens: int) -> list[int]:
    """At least so many tokens of the corpus's own text; it is repeated where it is too short."""
    found: list[int] = []
    for row in rows:
        example = row.example
        text = example.text if example.text is not None else " ".join(example.all_words)
        found += _ids(model, text.strip() + " ")
        if len(found) >= tokens:
            return found
    if not found:
        raise InputError("The corpus has no text to hide a needle in.")
    return found * (tokens // len(found) + 1)


def make_trial(model: HeadModel, hay: list[int], length: int, depth: float, needle: int) -> Trial:
    """A prompt of `length` tokens with the needle at this depth (0: at the beginning, 1: at the
    end)."""
    lead, said, question = NEEDLES[needle % len(NEEDLES)]
    start, whole = _ids(model, lead), _ids(model, f"{lead} {said}")
    if whole[: len(start)] != start:
        raise ModelError(
            f"The tokenizer of {model.name} joins words, so the needle has no tokens of its own."
        )
    stop = _ids(model, f"{lead} {said}.")[len(whole) :]
    opening = [] if model.encoder.cls_id is None else [model.encoder.cls_id]
    tail = _ids(model, f"\n\nQuestion: {question}\nAnswer: {lead}")
    room = length - len(opening) - len(whole) - len(stop) - len(tail)
    if room < 8:
        raise InputError(
            f"A prompt of {length} tokens has no room for a needle and a question; raise `lengths`."
        )
    cut = round(depth * room)
    prompt = [*opening, *hay[:cut], *whole, *stop, *hay[cut:room], *tail]
    first = len(opening) + cut + len(start)
    return Trial(prompt, range(first, first + len(whole) - len(start)))


def _ids(model: HeadModel, text: str) -> list[int]:
    return [
        int(i) for i in model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    ]


def said_at_most(model: HeadModel) -> int:
    """Tokens that must be free after a prompt."""
    return max(len(_ids(model, said)) for _, said, _ in NEEDLES) + EXTRA


class ArgmaxWatcher(Watcher):
    """Keeps where each head looks most from the last rows."""

    needs = frozenset({"attention"})

    def __init__(self, first: int) -> None:
        self.first = first
        self.most: dict[int, list[np.ndarray]] = {}

    def on_rows(self, rows: AttentionRows) -> None:
        start = max(self.first, rows.start)
        if start < rows.stop:
            own = rows.weights[0, :, start - rows.start :].argmax(-1)
            self.most.setdefault(rows.layer, []).append(own.cpu().numpy())


def say(model: HeadModel, trial: Trial) -> list[int]:
    """What the model says after the prompt, greedily, as far as the needle is long and a little
    more."""
    count = min(len(trial.places) + EXTRA, model.max_length - len(trial.prompt))
    said: list[int] = model.generate(trial.prompt, max_new_tokens=count, as_ids=True, num_beams=1)
    return said


def looked(model: HeadModel, trial: Trial, said: list[int]) -> np.ndarray:
    """Where each head looks most when each token is about to be said, int `[layer, head, step]`."""
    row = synthetic_row(model.encoder, [*trial.prompt, *said[:-1]])
    watch = ArgmaxWatcher(len(trial.prompt) - 1)
    model.forward(collate([row], model.pad_id, model.device), watch)
    return np.stack([np.concatenate(watch.most[layer], -1) for layer in range(model.layers)])


def scored(trial: Trial, said: list[int], most: np.ndarray) -> np.ndarray:
    """Of each head, the share of the needle's tokens at which it looked while that very token was
    said."""
    hits = np.zeros((*most.shape[:2], len(trial.places)), dtype=bool)
    for step, token in enumerate(said):
        for number, place in enumerate(trial.places):
            if trial.prompt[place] == token:
                hits[..., number] |= most[..., step] == place
    return np.asarray(hits.mean(-1))


def emitted(trial: Trial, said: list[int]) -> float:
    """The share of the needle's tokens that were said."""
    return float(np.mean([token in said for token in trial.needle]))


def try_one(model: HeadModel, trial: Trial) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A trial as a piece: `emitted`, and `score[layer, head]` where at least half of the needle was
    said."""
    said = say(model, trial)
    share = emitted(trial, said)
    score = np.full((model.layers, model.heads), np.nan)
    if share >= 0.5:
        score = scored(trial, said, looked(model, trial, said))
    return {"score": score, "emitted": np.array(share)}, {}
