"""A task that a tiny model learns in seconds: one word of a text tells its label; and folders of
tiny models for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headwise.models.loading import quiet
from headwise.testing.models import random_model
from headwise.text.example import Example
from headwise.text.tasks import Task

WORDS = ("good", "bad", "film", "the", "a", "was", "very", "book", "plot", "actor")
TELLING = {"0": "bad", "1": "good"}


def toy_examples(
    count: int, seed: int = 0, pairs: bool = False, regression: bool = False
) -> tuple[Example, ...]:
    """Texts of four to ten words of which one tells the label, by the word or, for a regression,
    about 0.5 or 3.5."""
    random = np.random.default_rng(seed)
    found = []
    for index in range(count):
        words = list(random.choice(WORDS[2:], random.integers(3, 9)))
        label = str(index % 2)
        place = int(random.integers(len(words)))
        words.insert(place, TELLING[label])
        second = " ".join(random.choice(WORDS[2:], 3)) if pairs else None
        value = 3.0 * int(label) + float(random.random()) if regression else label
        found.append(
            Example(text=" ".join(words), pair=second, label=value, origin=f"toy:{index + 1}")
        )
    return tuple(found)


def toy_task(count: int = 64, *, pairs: bool = False, regression: bool = False) -> Task:
    """The toy task with `count` examples in each part."""
    train, dev = (toy_examples(count, seed, pairs, regression) for seed in (1, 2))
    return Task.of_parts(
        "toy", train, dev, ("pearson", "spearman") if regression else ("accuracy", "f1")
    )


def toy_folder(
    path: str | Path,
    *,
    causal: bool = False,
    layers: int = 3,
    heads: int = 4,
    d_head: int = 8,
    seed: int = 0,
) -> Path:
    """A tiny random BERT (or, causal, GPT-2) with its tokenizer as an ordinary folder."""
    model, tokenizer = random_model(
        causal=causal,
        layers=layers,
        heads=heads,
        d_head=d_head,
        words=WORDS,
        max_length=32,
        seed=seed,
    )
    with quiet():
        model.save_pretrained(path)  # type: ignore[operator]
    tokenizer.save_pretrained(path)
    return Path(path)
