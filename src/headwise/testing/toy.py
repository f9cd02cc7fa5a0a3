"""A task that a tiny model learns in seconds (one word of a text tells its label), and folders of
tiny models for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headwise.models.loading import quiet
from headwise.testing.models import random_model
from headwise.text.example import Example
from headwise.text.tasks import Task

WORDS = ("good", "bad", "film", "the", "a", "was", "very", "book", "plot", "actor")
LABEL_WORDS = {"0": "bad", "1": "good"}


def toy_examples(
    count: int, seed: int = 0, pairs: bool = False, regression: bool = False
) -> tuple[Example, ...]:
    """Return texts of four to ten words of which one tells the label.

    Parameters
    ----------
    count : int
        How many.
    seed : int, default 0
        For the words.
    pairs : bool, default False
        Add a second text, which tells nothing.
    regression : bool, default False
        Labels are numbers around 0.5 and 3.5 instead of "0" and "1".
    """
    random = np.random.default_rng(seed)
    examples = []
    for index in range(count):
        words = list(random.choice(WORDS[2:], random.integers(3, 9)))
        label = str(index % 2)
        place = int(random.integers(len(words)))
        words.insert(place, LABEL_WORDS[label])
        second_text = None
        if pairs:
            second_text = " ".join(random.choice(WORDS[2:], 3))
        value: str | float = label
        if regression:
            value = 3.0 * int(label) + float(random.random())
        text = " ".join(words)
        examples.append(
            Example(text=text, pair=second_text, label=value, origin=f"toy:{index + 1}")
        )
    return tuple(examples)


def toy_task(count: int = 64, *, pairs: bool = False, regression: bool = False) -> Task:
    """Return the toy task with `count` examples in each part."""
    train = toy_examples(count, 1, pairs, regression)
    dev = toy_examples(count, 2, pairs, regression)
    metrics = ("pearson", "spearman") if regression else ("accuracy", "f1")
    return Task.of_parts("toy", train, dev, metrics)


def toy_folder(
    path: str | Path,
    *,
    causal: bool = False,
    layers: int = 3,
    heads: int = 4,
    d_head: int = 8,
    seed: int = 0,
) -> Path:
    """Save a tiny random BERT (or, causal, GPT-2) with its tokenizer and return the folder."""
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
