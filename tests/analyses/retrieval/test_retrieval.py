"""Retrieval: prompts contain the needle, scores follow the definition, and the planted decoder's
induction head retrieves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import xarray as xr

from headwise import make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.retrieval import trials
from headwise.analyses.retrieval.analysis import Retrieval, score_interval
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.models import HeadModel
from headwise.plots import figures_for
from headwise.testing import planted_decoder, random_model
from headwise.text import Corpus
from headwise.text.example import Example

NEEDLE = ("word1 word2", "word3 word4 word5 word6 word7 word8", "word9")
OTHER_NEEDLES = (
    ("word10 word11", "word12 word13 word14 word15 word16 word17", "word18"),
    ("word5 word3", "word1 word8 word2 word7 word4 word6", "word9"),
)


@pytest.fixture(scope="module")
def planted() -> Iterator[tuple]:
    """The planted decoder, its opened model, and the result of the analysis on it."""
    decoder = planted_decoder(words=40, max_length=160)
    random = np.random.default_rng(0)
    examples = []
    for _ in range(12):
        words = [f"word{i}" for i in random.permutation(np.arange(20, 40))]
        examples.append(Example(text=" ".join(words)))
    corpus = Corpus.from_examples(examples, "hay")
    patch = pytest.MonkeyPatch()
    patch.setattr(trials, "NEEDLES", (NEEDLE, *OTHER_NEEDLES))
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer) as model:
        analysis = Retrieval(lengths=(64, 96), depths=2, needles=1)
        yield decoder, model, make_atlas(model, corpus, [analysis])["retrieval"]
    patch.undo()


@pytest.fixture(scope="module")
def hay() -> list[int]:
    return list(range(24, 44)) * 10


def test_the_planted_induction_head_retrieves(planted) -> None:
    decoder, _, dataset = planted
    assert dataset.attrs["trials_passed"] == 4
    np.testing.assert_allclose(dataset["emitted"].values, 1)
    np.testing.assert_allclose(dataset["passed"].values, 1)
    place = decoder.where("induction")
    scores = dataset["score"].values.copy()
    assert scores[place] == pytest.approx(1)
    assert dataset["score_p_adjusted"].values[place] < 0.05
    scores[place] = 0
    assert scores.max() == 0  # the duplicate head attends to the token before it


def test_trials_that_share_a_needle_are_one_unit(planted) -> None:
    """Four trials, of which the first and the last have the same needle."""
    decoder, _, dataset = planted
    assert (dataset.attrs["needles"], dataset.attrs["needles_passed"]) == (3, 3)
    assert dataset["score_low"].attrs["over"] == "needles"
    assert int(dataset["score_n"].values[decoder.where("induction")]) == 4


def test_one_needle_gives_no_interval(planted, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, model, _ = planted
    monkeypatch.setattr(trials, "NEEDLES", (NEEDLE,))
    hay = Corpus.from_examples([Example(text="word20 word21 word22 word23 word24")], "hay")
    analysis = Retrieval(lengths=(64,), depths=2, needles=1)
    dataset = make_atlas(model, hay, [analysis])["retrieval"]
    place = decoder.where("induction")
    assert dataset["score"].values[place] == pytest.approx(1)
    assert np.isnan(dataset["score_low"].values[place])
    assert np.isnan(dataset["score_p"].values[place])
    assert "no interval and no test" in analysis.summary(dataset)[0]


def test_significant_heads_and_summary_name_the_induction_head(planted) -> None:
    decoder, _, dataset = planted
    analysis = make_analysis("retrieval")
    significant = analysis.significant_heads(dataset)
    assert np.argwhere(significant.values).tolist() == [list(decoder.where("induction"))]
    layer, head = decoder.where("induction")
    passed, heads = analysis.summary(dataset)
    assert passed.startswith("4 of 4 trials passed")
    assert heads.startswith("1 heads score over 0.1")
    assert f"L{layer}H{head} 1.00" in heads


def test_prompts_contain_the_needle(planted, hay: list[int]) -> None:
    _, model, _ = planted
    trial = trials.make_trial(model, hay, 80, 0.5, 0)
    assert len(trial.prompt) == 80
    assert model.tokenizer.decode(trial.needle) == NEEDLE[1]
    lead = model.tokenizer("word1 word2", add_special_tokens=False)["input_ids"]
    assert trial.prompt[-2:] == lead
    assert trial.prompt[trial.places.start - 2 : trial.places.start] == lead


def test_depth_moves_the_needle_from_the_beginning_to_the_end(planted, hay: list[int]) -> None:
    _, model, _ = planted
    starts = []
    for depth in (0.0, 0.25, 1.0):
        trial = trials.make_trial(model, hay, 80, depth, 0)
        assert len(trial.prompt) == 80
        starts.append(trial.places.start)
    n_beginning = 0 if model.encoder.cls_id is None else 1
    assert starts[0] == n_beginning + 2  # right after the two words of the lead
    assert starts == sorted(set(starts))
    answer_and_question = 80 - starts[2]
    assert answer_and_question < 40


def test_needles_repeat_when_more_are_wanted(planted, hay: list[int]) -> None:
    _, model, _ = planted
    first = trials.make_trial(model, hay, 64, 0.5, 0)
    again = trials.make_trial(model, hay, 64, 0.5, len(trials.NEEDLES))
    assert first.prompt == again.prompt


def test_scores_follow_the_definition(planted, hay: list[int]) -> None:
    _, model, _ = planted
    trial = trials.make_trial(model, hay, 80, 0.5, 0)
    answer = [*trial.needle[:3], 5]
    attended = np.zeros((1, 2, 4), dtype=int)
    # The last token of the answer is not the needle token attended to there.
    attended[0, 0] = [trial.places[0], trial.places[1], 0, trial.places[3]]
    assert trials.retrieval_scores(trial, answer, attended)[0].tolist() == [2 / 6, 0]
    assert trials.emitted_share(trial, answer) == 0.5


def test_short_text_is_repeated_and_no_text_is_an_error(planted) -> None:
    _, model, _ = planted
    row = model.encode(Example(text="word20 word21 word22"), 0)
    ids = trials.unrelated_text(model, [row], 10)
    assert len(ids) >= 10
    assert ids[:3] == ids[3:6]
    with pytest.raises(InputError, match="no text to hide a needle in"):
        trials.unrelated_text(model, [], 10)


def test_a_prompt_needs_room_for_the_needle(planted, hay: list[int]) -> None:
    _, model, _ = planted
    with pytest.raises(InputError, match="no room for a needle and a question; raise `lengths`"):
        trials.make_trial(model, hay, 20, 0.5, 0)


@pytest.fixture(scope="module")
def failing() -> xr.Dataset:
    """The result of a random model, which cannot do the task."""
    module, tokenizer = random_model(causal=True, max_length=160)
    examples = [Example(text="the cat saw a dog near the old house")] * 20
    corpus = Corpus.from_examples(examples, "hay")
    analysis = Retrieval(lengths=(96, 5000), depths=1, needles=1)
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        return make_atlas(model, corpus, [analysis])["retrieval"]


def test_a_model_that_cannot_do_the_task_gets_no_scores(failing: xr.Dataset) -> None:
    assert failing["length"].values.tolist() == [96]  # 5000 tokens are too many for it
    assert failing["depth"].values.tolist() == [0.5]
    assert failing.attrs["trials_passed"] == 0
    assert failing["score"].isnull().all()
    assert failing["score_p"].isnull().all()
    analysis = make_analysis("retrieval")
    assert not analysis.significant_heads(failing).any()
    assert "cannot do this task" in analysis.summary(failing)[0]


def test_models_that_are_too_short_or_no_language_models_are_rejected() -> None:
    module, tokenizer = random_model(causal=True, max_length=64)
    corpus = Corpus.from_examples([Example(text="the cat saw a dog")] * 20, "hay")
    with (
        HeadModel.open(module, tokenizer=tokenizer) as model,
        pytest.raises(ModelError, match=r"too few for a needle.*set retrieval\.lengths"),
    ):
        make_atlas(model, corpus, [Retrieval(lengths=(96,))])
    module, tokenizer = random_model(causal=False)
    with (
        HeadModel.open(module, tokenizer=tokenizer) as model,
        pytest.raises(Exception, match="no language-modelling head"),
    ):
        make_atlas(model, corpus, [Retrieval(lengths=(64,))])


def test_figures(planted) -> None:
    _, _, dataset = planted
    names = []
    for spec in figures_for("retrieval"):
        names += [drawn.name for drawn in spec.draw(dataset)]
    assert names == ["heads", "trials"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lengths": (10,)}, "at least 32"),
        ({"lengths": ()}, "at least 32"),
        ({"lengths": "256"}, "at least 32|must be"),
        ({"depths": 0}, "`depths` must be at least 1"),
        ({"needles": 0}, "`needles` must be at least 1"),
    ],
)
def test_bad_parameters(parameters: dict, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Retrieval(**parameters)


def test_heads_that_rarely_score_have_an_interval_that_holds_the_truth() -> None:
    """24 trials of 12 needles, a score of 0.01 in the mean: by Student's t half of the intervals."""
    random = np.random.default_rng(0)
    needles = np.arange(24) % 12
    holds = []
    for _ in range(300):
        chance = random.beta(0.1, 9.9, (12, 4))[needles]
        scores = random.binomial(9, chance) / 9
        low, high = score_interval(scores, needles.tolist(), 9.0)
        holds.append(((low <= 0.01) & (high >= 0.01)).mean())
        assert (low <= scores.mean(0)).all()
        assert (high >= scores.mean(0)).all()
    assert np.mean(holds) > 0.93
    nothing = score_interval(np.zeros((24, 1)), needles.tolist(), 9.0)
    assert nothing[0][0] == 0
    assert 0.02 < nothing[1][0] < 0.4
