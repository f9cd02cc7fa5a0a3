"""Retrieval: prompts hold the needle, scores are by the definition, the planted decoder's induction
head retrieves."""

from __future__ import annotations

import numpy as np
import pytest

from headwise import make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.retrieval import trials
from headwise.analyses.retrieval.analysis import Retrieval
from headwise.core.errors import ParameterError
from headwise.models import HeadModel
from headwise.plots import figures_for
from headwise.testing import planted_decoder, random_model
from headwise.text import Corpus
from headwise.text.example import Example

NEEDLE = ("word1 word2", "word3 word4 word5 word6 word7 word8", "word9")


@pytest.fixture(scope="module")
def found():
    made = planted_decoder(words=40, max_length=160)
    random = np.random.default_rng(0)
    texts = [" ".join(f"word{i}" for i in random.permutation(np.arange(20, 40))) for _ in range(12)]
    corpus = Corpus.from_examples([Example(text=t) for t in texts], "hay")
    patch = pytest.MonkeyPatch()
    patch.setattr(trials, "NEEDLES", (NEEDLE,))
    with HeadModel.open(made.model, tokenizer=made.tokenizer) as model:
        asked = Retrieval(lengths=(64, 96), depths=2, needles=1)
        yield made, model, make_atlas(model, corpus, [asked])["retrieval"]
    patch.undo()


def test_the_planted_induction_head_retrieves(found) -> None:
    made, _, dataset = found
    assert dataset.attrs["trials_passed"] == 4
    np.testing.assert_allclose(dataset["emitted"].values, 1)
    scores = dataset["score"].values.copy()
    assert scores[made.where("induction")] == pytest.approx(1)
    assert dataset["score_p_adjusted"].values[made.where("induction")] < 0.05
    scores[made.where("induction")] = 0
    assert scores.max() == 0  # the duplicate head looks at the token before it


def test_prompts_and_scores_by_the_definition(found) -> None:
    _, model, _ = found
    trial = trials.make_trial(model, list(range(24, 44)) * 10, 80, 0.5, 0)
    assert len(trial.prompt) == 80
    assert model.tokenizer.decode(trial.needle) == NEEDLE[1]
    lead = model.tokenizer("word1 word2", add_special_tokens=False)["input_ids"]
    assert trial.prompt[-2:] == lead
    assert trial.prompt[trial.places.start - 2 : trial.places.start] == lead
    said = [*trial.needle[:3], 5]
    most = np.zeros((1, 2, 4), dtype=int)
    most[0, 0] = [
        trial.places[0],
        trial.places[1],
        0,
        trial.places[3],
    ]  # the last said is no needle token there
    assert trials.scored(trial, said, most)[0].tolist() == [2 / 6, 0]
    assert trials.emitted(trial, said) == 0.5


def test_a_model_that_cannot_gets_no_scores() -> None:
    module, tokenizer = random_model(causal=True, max_length=160)
    corpus = Corpus.from_examples(
        [Example(text="the cat saw a dog near the old house")] * 20, "hay"
    )
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        dataset = make_atlas(model, corpus, [Retrieval(lengths=(96, 5000), depths=1, needles=1)])[
            "retrieval"
        ]
    assert dataset["length"].values.tolist() == [96]
    assert dataset.attrs["trials_passed"] == 0
    assert dataset["score"].isnull().all()
    assert "cannot do this task" in make_analysis("retrieval").summary(dataset)[0]


def test_figures_and_parameters(found) -> None:
    assert [one.name for spec in figures_for("retrieval") for one in spec.draw(found[2])] == [
        "heads",
        "trials",
    ]
    with pytest.raises(ParameterError, match="at least 32"):
        Retrieval(lengths=(10,))
