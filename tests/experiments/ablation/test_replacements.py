"""What stands in for a disabled head, the share of attention on the first token, and the interval
of the mean head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from headwise.core.errors import InputError, ParameterError
from headwise.experiments.ablation import (
    AblationOptions,
    ScoredLanguageModel,
    ablate_scored_model,
    evaluate,
    single_heads,
)
from headwise.experiments.ablation.importance import sink_share
from headwise.experiments.ablation.replacements import corpus_means, resolve_method
from headwise.models import HeadModel
from headwise.models.interventions import Intervention, Mean, Patch
from headwise.stats.intervals import sample_interval
from headwise.stats.paired import paired_differences
from headwise.testing.toy import toy_examples, toy_folder
from headwise.text import Corpus


def subject_of(
    path: Path, count: int = 9, causal: bool = True, batch_tokens: int = 60
) -> ScoredLanguageModel:
    model = HeadModel.open(
        toy_folder(path / f"toy-{causal}", causal=causal, layers=2, heads=3), device="cpu"
    )
    corpus = Corpus.from_examples(toy_examples(count))
    return ScoredLanguageModel(model, corpus, batch_tokens=batch_tokens)


def losses(
    subject: ScoredLanguageModel, number: int, place: tuple[int, int], what: Intervention
) -> np.ndarray:
    """The loss of each example of a batch with one head changed by hand."""
    batch = subject.batches[number]
    output = subject.model.forward(batch, interventions={place: what}, logits=True)
    return np.asarray(subject.token_losses(output.logits, batch))


def test_heads_are_replaced_by_their_mean_over_the_corpus(tmp_path: Path) -> None:
    subject = subject_of(tmp_path)
    tokens = [
        row[:, : int(length)].transpose(0, 1)  # token, head, d_head
        for batch in subject.batches
        for row, length in zip(
            subject.model.trace(batch, {"outputs"}).outputs[:, 1], batch.lengths, strict=True
        )  # type: ignore[index]
    ]
    mean = torch.cat(tokens).mean(0)
    torch.testing.assert_close(corpus_means(subject)[1].float(), mean, atol=1e-5, rtol=1e-4)
    found = evaluate(subject, single_heads(2, 3), "corpus_mean")
    for number, batch in enumerate(subject.batches):
        by_hand = losses(subject, number, (1, 2), Mean(mean[2]))
        np.testing.assert_allclose(found.values[5, subject.places(batch)], by_hand, atol=1e-5)


def test_heads_are_given_what_they_gave_on_another_input(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, batch_tokens=24)
    assert {len(batch) for batch in subject.batches} >= {
        1,
        2,
    }  # one input alone takes from another batch
    found = evaluate(subject, single_heads(2, 3), "resample", seed=4)
    assert np.array_equal(
        found.values, evaluate(subject, single_heads(2, 3), "resample", seed=4, share=False).values
    )
    for number, batch in enumerate(subject.batches):
        if len(batch) != 2:
            continue
        own = subject.model.trace(batch, {"outputs"}).outputs
        assert own is not None
        other = torch.zeros_like(own[:, 1, 2])
        for mine, its in ((0, 1), (1, 0)):
            for token in range(other.shape[1]):
                other[mine, token] = own[its, 1, 2, token % int(batch.lengths[its])]
        by_hand = losses(subject, number, (1, 2), Patch(output=other))
        np.testing.assert_allclose(found.values[5, subject.places(batch)], by_hand, atol=1e-5)
    with pytest.raises(InputError, match="at least two examples"):
        evaluate(subject_of(tmp_path / "one", count=1), single_heads(2, 3), "resample")


@pytest.mark.parametrize(("causal", "way"), [(True, "zero"), (False, "uniform")])
def test_causal_models_are_zeroed_unless_said(tmp_path: Path, causal: bool, way: str) -> None:
    subject = subject_of(tmp_path, causal=causal)
    found = ablate_scored_model(
        subject, AblationOptions(importance=False, sinks=False, layers=False)
    )
    assert found.attrs["how"] == way == resolve_method("auto", subject.model)
    named = ablate_scored_model(
        subject, AblationOptions(how=way, importance=False, sinks=False, layers=False)
    )
    assert np.array_equal(found.difference, named.difference)
    with pytest.raises(ParameterError, match="noise"):
        evaluate(subject, [], "noise")


def test_the_share_of_the_first_token(tmp_path: Path) -> None:
    subject = subject_of(tmp_path)
    each = []
    for batch in subject.batches:
        maps = subject.model.trace(batch).attention
        assert maps is not None
        for one, length in zip(maps, batch.lengths.tolist(), strict=True):
            each.append([float(one[1, 2, i, 0]) for i in range(1, length)])
    found = sink_share(subject)
    assert found["mean"].shape == (2, 3)
    assert found["mean"][1, 2] == pytest.approx(np.mean([np.mean(rows) for rows in each]), abs=1e-6)
    assert (found["n"] == 9).all()
    assert (found["low"] <= found["mean"]).all()
    dataset = ablate_scored_model(subject, AblationOptions(importance=False, layers=False))
    np.testing.assert_allclose(dataset["sink_share"], found["mean"])


def test_the_mean_head_has_its_interval_over_examples() -> None:
    """Heads that do the same harm: an interval over heads would have no width, and be sure of what
    no test set told."""
    random = np.random.default_rng(0)
    baseline = random.normal(2, 1, 80)
    harm = random.normal(0.1, 1, 80)
    alike = paired_differences("loss", baseline, baseline + np.repeat(harm[None], 12, 0), None)
    assert (alike.mean_low, alike.mean_high) == pytest.approx((alike.low[0], alike.high[0]))
    assert alike.mean_high - alike.mean_low > 0.3
    values = baseline + random.normal(0.1, 1, (12, 80))
    found = paired_differences("loss", baseline, values, None)
    of_mean_head = (values - baseline).mean(0)
    _, low, high = sample_interval(of_mean_head)
    assert (found.mean_low, found.mean_high) == pytest.approx((float(low), float(high)))
    # Student's t, but for the end on the side of the longer tail.
    interval = scipy_stats.ttest_1samp(of_mean_head, 0.0).confidence_interval()
    assert scipy_stats.skew(of_mean_head) > 0
    assert found.mean_low == pytest.approx(interval.low)
    assert interval.high < found.mean_high < interval.high + 0.01
