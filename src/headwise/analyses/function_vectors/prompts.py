"""Prompts that show a task by examples, with the right answers or with shuffled ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.models import HeadModel
from headwise.text.word_pairs import WordPair


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens, and the first token of its right answer."""

    ids: list[int]
    answer: int


@dataclass(frozen=True, slots=True)
class TaskPrompts:
    """The prompts of one task.

    Attributes
    ----------
    shown
        Examples with right answers, from which mean outputs are taken.
    shuffled
        Other queries, after the same kind of examples whose answers are shuffled.
    shown_again
        The queries of `shuffled` after examples with right answers.
    bare
        Queries without examples.
    """

    shown: list[Prompt]
    shuffled: list[Prompt]
    shown_again: list[Prompt]
    bare: list[Prompt]


def make_prompt(model: HeadModel, shots: Sequence[WordPair], pair: WordPair) -> Prompt | None:
    """Return a prompt with these examples and the first word of a pair as query; None where the
    answer does not begin with a token of its own, or the prompt is too long."""
    query, answer = pair
    tokenizer = model.encoder.tokenizer
    lines = [f"{source}: {target}" for source, target in shots]
    text = "\n".join([*lines, f"{query}:"])
    if not _opens_texts(tokenizer):
        text = f"\n{text}"
    ids = [int(token) for token in tokenizer(text)["input_ids"]]
    ids_with_answer = [int(token) for token in tokenizer(f"{text} {answer}")["input_ids"]]
    # Some tokenizers close a text.
    while ids and ids != ids_with_answer[: len(ids)]:
        if ids[-1] not in tokenizer.all_special_ids:
            return None
        ids.pop()
    is_too_long = len(ids) > model.max_length
    if not ids or is_too_long or len(ids_with_answer) <= len(ids):
        return None
    return Prompt(ids, ids_with_answer[len(ids)])


def _opens_texts(tokenizer: Any) -> bool:
    """Return whether the tokenizer puts a token of its own before a text.

    The first token of an input becomes a sink: most heads attend to it, and its hidden state says
    little of what it was. A query must not stand there, or a prompt without examples is hardly
    read: on SmolLM2 no vector gave a right antonym then, and 9 of 14 after a line break."""
    ids = tokenizer("word")["input_ids"]
    return bool(ids) and ids[0] in tokenizer.all_special_ids


def make_task_prompts(
    model: HeadModel, pairs: Sequence[WordPair], n_shots: int, n_prompts: int, seed: int
) -> TaskPrompts:
    """Return the prompts of a task.

    Parameters
    ----------
    model : HeadModel
        Its tokenizer makes the tokens.
    pairs : sequence
        The task: inputs and answers.
    n_shots : int
        Examples in a prompt.
    n_prompts : int
        Prompts of each kind.
    seed : int
        Of the choice of queries and examples.
    """
    random = np.random.default_rng(seed)
    order = [pairs[place] for place in random.permutation(len(pairs))]
    means_from = order[:n_prompts]
    tested_on = order[n_prompts : 2 * n_prompts]
    # Vectors are judged on queries that had no part in them, where there are any left.
    judged_on = order[2 * n_prompts : 4 * n_prompts] or tested_on
    shown = []
    for pair in means_from:
        prompt = make_prompt(model, _draw_shots(order, pair, n_shots, random), pair)
        if prompt is not None:
            shown.append(prompt)
    shuffled = []
    shown_again = []
    for pair in tested_on:
        shots = _draw_shots(order, pair, n_shots, random)
        right = make_prompt(model, shots, pair)
        wrong = make_prompt(model, _shuffle_answers(shots), pair)
        if right is not None and wrong is not None:
            shown_again.append(right)
            shuffled.append(wrong)
    bare = []
    for pair in judged_on:
        prompt = make_prompt(model, [], pair)
        if prompt is not None:
            bare.append(prompt)
    return TaskPrompts(shown=shown, shuffled=shuffled, shown_again=shown_again, bare=bare)


def _draw_shots(
    pairs: Sequence[WordPair], query: WordPair, n_shots: int, random: np.random.Generator
) -> list[WordPair]:
    """Return different pairs other than the query, none of which has its answer."""
    others = [pair for pair in pairs if pair[0] != query[0] and pair[1] != query[1]]
    places = random.choice(len(others), min(n_shots, len(others)), replace=False)
    return [others[place] for place in places]


def _shuffle_answers(shots: Sequence[WordPair]) -> list[WordPair]:
    """Return the examples with answers moved on by one: none keeps its own."""
    shuffled = []
    for place, (source, _) in enumerate(shots):
        shuffled.append((source, shots[(place + 1) % len(shots)][1]))
    return shuffled
