"""The opening token: exact on the planted decoder, equal to a slow computation, with one added and
taken away."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise import make_atlas
from headwise.analyses.contract import make_analysis
from headwise.core.errors import InputError
from headwise.models import HeadModel
from headwise.plots import figures_for
from headwise.testing import planted_decoder, random_model
from headwise.text import Corpus
from headwise.text.example import Example
from slow_intervals import slow_mean_interval

TEXTS = [
    "cat dog bird child saw",
    "heard near under tree house not he",
    "she it and old small cat",
    "it",
    "he saw",
]


@pytest.fixture(scope="module")
def planted():
    return planted_decoder(words=30, max_length=40)


@pytest.fixture(scope="module")
def opening_token(planted):
    random = np.random.default_rng(0)
    texts = [" ".join(f"word{i}" for i in random.permutation(30)[: 12 + n % 3]) for n in range(6)]
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model:
        return make_atlas(model, Corpus.from_texts(texts), ["opening_token"])["opening_token"]


def test_the_planted_sink_rests_on_whatever_comes_first(planted, opening_token) -> None:
    assert opening_token.attrs["opening"] == 1
    for name in ("first_with", "first_without", "rate_with", "rate_without"):
        assert opening_token[name].values[planted.where("sink")] == pytest.approx(1, abs=1e-5)
    assert opening_token["change"].values[planted.where("sink")] == pytest.approx(0, abs=1e-5)
    # A token less to look at evenly: a head that attends alike gives each of the others more.
    assert opening_token["change"].values[planted.where("idle")] < 0


@pytest.mark.parametrize("adds", [True, False])
def test_a_slow_computation_agrees(adds: bool) -> None:
    module, tokenizer = random_model(causal=True, layers=2, heads=3, seed=2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3 if parameter.ndim > 1 else 1)
    opening = (
        tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    )
    assert tokenizer(TEXTS[0])["input_ids"][0] == opening
    if not adds:
        tokenizer.backend_tokenizer.post_processor = None  # type: ignore[assignment]
        assert tokenizer(TEXTS[0])["input_ids"][0] != opening
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        found = make_atlas(
            model,
            Corpus.from_texts(TEXTS),
            ["opening_token"],
            parameters={"opening_token": {"threshold": 0.25}},
        )["opening_token"]
        bare = [[i for i in tokenizer(text)["input_ids"] if i != opening] for text in TEXTS]
    assert found.attrs["opening"] == int(adds)
    module.set_attn_implementation("eager")
    ways: dict[str, list[np.ndarray]] = {
        "first_with": [],
        "first_without": [],
        "rate_with": [],
        "rate_without": [],
    }
    for ids in (one for one in bare if len(one) >= 3):
        for way, row in (("with", [opening, *ids]), ("without", ids)):
            maps = torch.stack(module(torch.tensor([row]), output_attentions=True).attentions)[
                :, 0, :, 1:, 0
            ]
            ways[f"first_{way}"].append(maps.detach().double().mean(-1).numpy())
            ways[f"rate_{way}"].append((maps > 0.25).double().mean(-1).numpy())
    for name, values in ways.items():
        np.testing.assert_allclose(found[name].values, np.mean(values, 0), rtol=1e-4, err_msg=name)
    change = np.array(ways["first_with"]) - np.array(ways["first_without"])
    np.testing.assert_allclose(found["change"].values, change.mean(0), atol=1e-5)
    low, high = slow_mean_interval(change)
    np.testing.assert_allclose(found["change_low"].values, low, rtol=1e-3)
    np.testing.assert_allclose(found["change_high"].values, high, rtol=1e-3)


def test_figures_and_headline(planted, opening_token) -> None:
    drawn = [one.name for spec in figures_for("opening_token") for one in spec.draw(opening_token)]
    assert drawn == ["heads", "change"]
    assert "with an opening token" in make_analysis("opening_token").summary(opening_token)[0]


def test_what_has_no_text_without_it_is_refused(planted) -> None:
    with (
        HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model,
        pytest.raises(InputError, match="shorter than 3 tokens"),
    ):
        make_atlas(model, Corpus.from_examples([Example(text="word1")]), ["opening_token"])
