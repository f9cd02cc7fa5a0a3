"""Needles in unrelated text: prompts, greedy decoding, and the keys that heads attend to while the
needle is said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.core.errors import InputError, ModelError
from headwise.models import HeadModel
from headwise.models.view import AttentionRows, Watcher
from headwise.text.encode import Encoded, collate
from headwise.text.synthetic import synthetic_row

# The beginning of the needle, with which the answer begins too; what is to be found; the question.
NEEDLES = (
    (
        "The old sailor hid his",
        "silver compass and seven green marbles under the wooden bridge",
        "What did the old sailor hide, and where?",
    ),
    (
        "The lighthouse is guarded by",
        "a blind cat called Admiral and six wooden soldiers",
        "By whom is the lighthouse guarded?",
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
    (
        "In the attic the twins found",
        "a broken violin wrapped in blue newspaper and red string",
        "What did the twins find in the attic?",
    ),
    (
        "The wizard's favourite soup contains",
        "eleven turnips, a silver spoon and half a lemon tree",
        "What does the wizard's favourite soup contain?",
    ),
    (
        "On the third shelf stands",
        "a glass turtle filled with green sand and tiny keys",
        "What stands on the third shelf?",
    ),
    (
        "The captain's parrot only says",
        "never trust a Tuesday that smells of fresh paint",
        "What does the captain's parrot say?",
    ),
    (
        "To open the cellar, one needs",
        "a copper whistle, two candles and a very patient goat",
        "What does one need to open the cellar?",
    ),
    (
        "The gardener planted along the wall",
        "nine purple cabbages between rows of plastic flamingos",
        "What did the gardener plant along the wall?",
    ),
    (
        "My grandmother keeps in her piano",
        "forty letters from a dentist who lived in Peru",
        "What does my grandmother keep in her piano?",
    ),
    (
        "The winner of the race received",
        "an orange umbrella with wooden teeth and a brass bell",
        "What did the winner of the race receive?",
    ),
    (
        "Under the town hall there is",
        "a frozen lake where retired postmen go skating at night",
        "What is under the town hall?",
    ),
    (
        "The painter mixed her last colour from",
        "crushed walnuts, rainwater and the ink of an old map",
        "From what did the painter mix her last colour?",
    ),
    (
        "The smallest house of the village belongs to",
        "a tailor who sews hats for nervous horses",
        "To whom does the smallest house of the village belong?",
    ),
    (
        "At noon the clock of the station plays",
        "a slow tango about potatoes and broken bicycles",
        "What does the clock of the station play at noon?",
    ),
    (
        "The professor carries in his left pocket",
        "a dried starfish and seventeen yellow buttons",
        "What does the professor carry in his left pocket?",
    ),
    (
        "The train to the mountains is pulled by",
        "twelve white oxen with lanterns on their horns",
        "By what is the train to the mountains pulled?",
    ),
    (
        "The fisherman traded his boat for",
        "a marble bathtub and three jars of plum jam",
        "For what did the fisherman trade his boat?",
    ),
    (
        "On her way home the nurse always passes",
        "a bakery that sells only square doughnuts and chess sets",
        "What does the nurse always pass on her way home?",
    ),
    (
        "The recipe ends with the words",
        "stir the moonlight twice and serve it on warm slate",
        "With what words does the recipe end?",
    ),
    (
        "The mayor wrote his speech on",
        "the back of a giant leaf with a burnt match",
        "On what did the mayor write his speech?",
    ),
    (
        "Behind the waterfall the children hid",
        "a tin drum, four magnets and a map of Belgium",
        "What did the children hide behind the waterfall?",
    ),
)
EXTRA_TOKENS = 4  # tokens decoded beyond the needle's
SHORTEST = 32  # tokens of a prompt
MIN_HAY = 8  # tokens of unrelated text in a prompt
PASSED = 0.5  # a trial counts if at least this share of the needle was said


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A prompt, and the positions of the tokens in it that are to be said."""

    prompt: list[int]
    places: range

    @property
    def needle(self) -> list[int]:
        """The tokens that are to be said."""
        return [self.prompt[place] for place in self.places]


def unrelated_text(model: HeadModel, rows: Iterable[Encoded], tokens: int) -> list[int]:
    """Return at least so many tokens of the corpus; it is repeated if it is too short."""
    ids: list[int] = []
    for row in rows:
        example = row.example
        text = example.text if example.text is not None else " ".join(example.all_words)
        ids += _token_ids(model, text.strip() + " ")
        if len(ids) >= tokens:
            return ids
    if not ids:
        raise InputError("The corpus has no text to hide a needle in.")
    return ids * (tokens // len(ids) + 1)


def needle_number(trial: int) -> int:
    """Return the needle of a trial: each has its own, until all are used."""
    return trial % len(NEEDLES)


def make_trial(model: HeadModel, hay: list[int], length: int, depth: float, needle: int) -> Trial:
    """Return a prompt of `length` tokens with the needle at this depth (0: at the beginning, 1: at
    the end)."""
    lead, answer, question = NEEDLES[needle_number(needle)]
    lead_ids = _token_ids(model, lead)
    needle_ids = _token_ids(model, f"{lead} {answer}")
    if needle_ids[: len(lead_ids)] != lead_ids:
        raise ModelError(
            f"The tokenizer of {model.name} joins words, so the needle has no tokens of its own."
        )
    full_stop = _token_ids(model, f"{lead} {answer}.")[len(needle_ids) :]
    beginning = [] if model.encoder.cls_id is None else [model.encoder.cls_id]
    ending = _token_ids(model, f"\n\nQuestion: {question}\nAnswer: {lead}")
    n_hay = length - len(beginning) - len(needle_ids) - len(full_stop) - len(ending)
    if n_hay < MIN_HAY:
        raise InputError(
            f"A prompt of {length} tokens has no room for a needle and a question; raise `lengths`."
        )
    cut = round(depth * n_hay)
    prompt = [*beginning, *hay[:cut], *needle_ids, *full_stop, *hay[cut:n_hay], *ending]
    first = len(beginning) + cut + len(lead_ids)
    return Trial(prompt, range(first, first + len(needle_ids) - len(lead_ids)))


def _token_ids(model: HeadModel, text: str) -> list[int]:
    encoding = model.tokenizer(text, add_special_tokens=False, verbose=False)
    return [int(token) for token in encoding["input_ids"]]


def max_answer_tokens(model: HeadModel) -> int:
    """Return how many tokens must be free after a prompt."""
    longest = max(len(_token_ids(model, answer)) for _, answer, _ in NEEDLES)
    return longest + EXTRA_TOKENS


class ArgmaxWatcher(Watcher):
    """Records which key each head attends to most, from row `first` on."""

    needs = frozenset({"attention"})

    def __init__(self, first: int) -> None:
        self.first = first
        self.most: dict[int, list[np.ndarray]] = {}

    def on_rows(self, rows: AttentionRows) -> None:
        start = max(self.first, rows.start)
        if start < rows.stop:
            most = rows.weights[0, :, start - rows.start :].argmax(-1)
            self.most.setdefault(rows.layer, []).append(most.cpu().numpy())


def generate_answer(model: HeadModel, trial: Trial) -> list[int]:
    """Return the greedy continuation of the prompt, a little longer than the needle."""
    n_tokens = min(len(trial.places) + EXTRA_TOKENS, model.max_length - len(trial.prompt))
    answer: list[int] = model.generate(
        trial.prompt, max_new_tokens=n_tokens, as_ids=True, num_beams=1
    )
    return answer


def attended_keys(model: HeadModel, trial: Trial, answer: list[int]) -> np.ndarray:
    """Return which key each head attends to most when each token is about to be said, int
    `[layer, head, step]`."""
    row = synthetic_row(model.encoder, [*trial.prompt, *answer[:-1]])
    watcher = ArgmaxWatcher(len(trial.prompt) - 1)
    model.forward(collate([row], model.pad_id, model.device), watcher)
    layers = [np.concatenate(watcher.most[layer], -1) for layer in range(model.layers)]
    return np.stack(layers)


def retrieval_scores(trial: Trial, answer: list[int], attended: np.ndarray) -> np.ndarray:
    """Return of each head the share of the needle's tokens that it attended to most while that very
    token was said."""
    hits = np.zeros((*attended.shape[:2], len(trial.places)), dtype=bool)
    for step, token in enumerate(answer):
        for number, place in enumerate(trial.places):
            if trial.prompt[place] == token:
                hits[..., number] |= attended[..., step] == place
    return np.asarray(hits.mean(-1))


def mean_needle_tokens(trials: Sequence[Trial]) -> float:
    """Return how many tokens are to be said on average; 1 without trials."""
    return float(np.mean([len(trial.places) for trial in trials])) if trials else 1.0


def emitted_share(trial: Trial, answer: list[int]) -> float:
    """Return the share of the needle's tokens that were said."""
    return float(np.mean([token in answer for token in trial.needle]))


def run_trial(model: HeadModel, trial: Trial) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return `emitted`, and `score[layer, head]` if the trial was passed (else NaN), as arrays of a
    checkpoint."""
    answer = generate_answer(model, trial)
    emitted = emitted_share(trial, answer)
    score = np.full((model.layers, model.heads), np.nan)
    if emitted >= PASSED:
        score = retrieval_scores(trial, answer, attended_keys(model, trial, answer))
    return {"score": score, "emitted": np.array(emitted)}, {}
