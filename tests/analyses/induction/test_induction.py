"""Induction: exact on the planted decoder, nothing on random weights, equal to a slow
computation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import spearmanr

from headwise import make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.induction.analysis import Induction, draw_heads, offset_p_values
from headwise.analyses.induction.sequences import SecondHalfLoss, make_sequences
from headwise.models import HeadModel
from headwise.plots import figures_for
from headwise.testing import planted_decoder, random_model
from headwise.text import Corpus
from headwise.text.encode import collate
from headwise.text.example import Example
from headwise.text.synthetic import word_ids
from slow_intervals import slow_mean_interval

CORPUS = Corpus.from_examples([Example(text="word1 word2 word3")], "one")
SMALL = {"length": 16, "sequences": 6, "disable": 1, "draws": 2, "confirm": 3}


@pytest.fixture(scope="module")
def decoder():
    return planted_decoder(words=30, max_length=40)


@pytest.fixture(scope="module")
def dataset(decoder):
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer) as model:
        return make_atlas(model, CORPUS, ["induction"], parameters={"induction": SMALL})[
            "induction"
        ]


@pytest.mark.parametrize(
    ("measure", "head"),
    [("prefix_matching", "induction"), ("duplicate", "duplicate"), ("previous", "previous")],
)
def test_planted_heads_score_one_and_no_other_is_sure(decoder, dataset, measure, head) -> None:
    score, p = dataset[measure].values, dataset[f"{measure}_p_adjusted"].values
    place = decoder.where(head)
    assert score[place] == pytest.approx(1, abs=1e-4)
    assert p[place] < 0.01
    others = p.copy()
    others[place] = 1
    assert (others > 0.05).all()
    assert score[decoder.where("sink")] == pytest.approx(0, abs=1e-6)
    assert score[decoder.where("idle")] == pytest.approx(dataset["uniform"].values[1], rel=1e-4)


def test_copying_has_its_closed_form(decoder, dataset) -> None:
    assert dataset["copying"].values[decoder.where("copying")] == pytest.approx(
        decoder.loudness, rel=1e-4
    )
    assert dataset["copying"].values[decoder.where("induction")] == pytest.approx(
        2 * decoder.loudness, rel=1e-4
    )
    assert dataset["copying"].values[decoder.where("previous")] == pytest.approx(0, abs=1e-5)


def test_the_second_half_is_easier_because_of_the_induction_head(decoder, dataset) -> None:
    tokens, loud = len(decoder.vocabulary), decoder.loudness
    assert dataset.attrs["induces"] == 1
    assert dataset.attrs["disabled"] == "L1H0"
    # All others have the logit −L/(V−1) of copying and −2L/(V−1) of induction; the token itself L,
    # the next 2L.
    step = loud / (tokens - 1)
    logits = np.r_[2 * loud - step, loud - 2 * step, np.full(tokens - 2, -3 * step)]
    easy = np.log(np.exp(logits).sum()) - logits[0]
    # The first token of the second half follows one seen once, where the induction head rests and
    # copies the first.
    hard = np.log(np.exp(logits).sum()) + 3 * step
    assert dataset["loss"].values[1] == pytest.approx((15 * easy + hard) / 16, rel=1e-3)
    assert dataset.attrs["disabled_effect"] > dataset["drawn_effect"].values.max() + 1


def test_random_weights_are_nothing() -> None:
    for seed in range(3):
        module, tokenizer = random_model(causal=True, layers=3, heads=4, max_length=64, seed=seed)
        with torch.no_grad():
            for parameter in module.parameters():  # sharper than at initialisation
                parameter.mul_(3 if parameter.ndim > 1 else 1)
        with HeadModel.open(module, tokenizer=tokenizer) as model:
            dataset = make_atlas(model, CORPUS, ["induction"], parameters={"induction": SMALL})[
                "induction"
            ]
        for name in ("prefix_matching", "duplicate", "previous"):
            assert (dataset[f"{name}_p_adjusted"] > 0.05).all(), name
        assert "disabled_effect" not in dataset.attrs or not dataset.attrs["induces"]


def test_a_taste_for_a_place_or_a_little_more_than_chance_is_not_sure() -> None:
    """What random weights do: each of the three nulls stops one of these heads, and none the
    last."""
    random = np.random.default_rng(0)
    offsets = np.arange(30)
    uniform = 0.02
    little = np.where(offsets == 29, 1.2 * uniform, 0.9 * uniform)  # its own token, a little
    hill = uniform * np.linspace(
        0.2, 5.4, 30
    )  # a smooth liking for a distance that happens to be this one
    spiky = np.where(
        np.isin(offsets, (11, 29)), 4 * uniform, 0.2 * uniform
    )  # it likes another offset as well
    true = np.where(offsets == 29, 10 * uniform, 0.9 * uniform)
    profile = np.stack([np.append(one, one[27:29]) for one in (little, hill, spiky, true)])
    profile = profile[None, None] * random.normal(1, 0.02, (25, 1, 4, 32))
    values, controls = profile[..., 29], profile[..., [*range(2, 28), 30, 31]]
    sure = offset_p_values(values, controls, np.array([[2 * uniform]])) < 0.01
    assert sure.tolist() == [[False, False, False, True]]
    assert (
        offset_p_values(values, controls, np.array([[uniform]]))[0, 0] < 0.01
    )  # above chance it is


def test_a_slow_computation_agrees() -> None:
    module, tokenizer = random_model(causal=True, max_length=64)
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        dataset = make_atlas(model, CORPUS, ["induction"], parameters={"induction": SMALL})[
            "induction"
        ]
        repeated = make_sequences(model, 6, 16, 0)
    module.set_attn_implementation("eager")
    scores = {"prefix_matching": [], "duplicate": [], "previous": []}
    losses, beyond = [], []
    for row in repeated.rows:
        ids = row.ids.tolist()
        assert ids[0] == tokenizer.bos_token_id
        assert ids[1:17] == ids[17:]
        output = module(torch.tensor([ids]), output_attentions=True)
        maps = torch.stack(output.attentions)[:, 0].detach().numpy()
        beyond.append(np.mean([maps[:, :, i, i - 18] for i in range(19, 33)], axis=0))
        for name, back in (("prefix_matching", 15), ("duplicate", 16), ("previous", 1)):
            scores[name].append(np.mean([maps[:, :, i, i - back] for i in range(17, 33)], axis=0))
        logp = output.logits[0].log_softmax(-1)
        losses.append(
            [
                -np.mean([logp[i - 1, ids[i]].item() for i in half])
                for half in (range(1, 17), range(17, 33))
            ]
        )
    for name, values in scores.items():
        np.testing.assert_allclose(dataset[name].values, np.mean(values, 0), rtol=1e-4)
        low, high = slow_mean_interval(np.array(values))
        half = high - np.mean(values, 0)
        measured_half = dataset[f"{name}_high"].values - dataset[name].values
        np.testing.assert_allclose(measured_half, half, rtol=1e-2, atol=1e-7)
        np.testing.assert_allclose(dataset[f"{name}_low"].values, low, rtol=1e-2, atol=1e-7)
    np.testing.assert_allclose(dataset["loss"].values, np.mean(losses, 0), rtol=1e-4)
    np.testing.assert_allclose(
        dataset["profile"].sel(offset=-18).values, np.mean(beyond, 0), rtol=1e-4
    )


def test_draws_are_from_the_same_layers_and_others() -> None:
    best = [(2, 0), (2, 3), (5, 1)]
    drawn, _ = draw_heads(best, 6, 30, 0)
    for heads in drawn:
        assert sorted(layer for layer, _ in heads) == [2, 2, 5]
        assert not set(heads) & set(best)
        assert len(set(heads)) == 3
    assert draw_heads([(0, 0), (0, 1)], 3, 5, 0)[0] == []


def test_words_are_whole_words(decoder) -> None:
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer) as model:
        words = word_ids(model.encoder)
    assert len(words) == 30
    assert decoder.tokenizer.convert_ids_to_tokens(words.tolist())[0] == "word0"


def test_encoders_are_refused_and_figures_drawn(dataset) -> None:
    module, tokenizer = random_model(causal=False)
    with (
        HeadModel.open(module, tokenizer=tokenizer) as model,
        pytest.raises(Exception, match="decoder-only analysis"),
    ):
        make_atlas(model, CORPUS, ["induction"])
    drawn = [one.name for spec in figures_for("induction") for one in spec.draw(dataset)]
    assert drawn == ["heads", "copying", "profile", "disabled"]
    lines = make_analysis("induction").summary(dataset)
    assert any("L1H0 1.00" in line for line in lines)


def test_parameters() -> None:
    with pytest.raises(Exception, match="at least"):
        Induction(length=2)
    with pytest.raises(Exception, match="`least` must be"):
        Induction(least=-1)


def test_scores_are_compared_with_the_role_with_and_without_the_first_token() -> None:
    random = np.random.default_rng(0)
    scores, hidden, rare = random.uniform(size=(3, 6, 8))
    rest = scores + 0.3 * hidden
    dims = ("layer", "head")
    bias = np.stack([hidden, rare], -1)  # resting hides the role
    of_roles = {
        "bias": ((*dims, "role"), bias),
        "bias_rest": ((*dims, "role"), np.stack([rest, rare], -1)),
    }
    groups = {
        "induction": xr.Dataset({"prefix_matching": (dims, scores)}),
        "roles": xr.Dataset(of_roles, {"role": ["induction", "rare"]}),
    }
    attrs = Induction().extend(groups)["induction"].attrs
    assert attrs["role_r"] == pytest.approx(spearmanr(scores.ravel(), hidden.ravel())[0])
    assert attrs["role_rest_r"] == pytest.approx(spearmanr(scores.ravel(), rest.ravel())[0])
    assert attrs["control_rest_r"] == pytest.approx(spearmanr(scores.ravel(), rare.ravel())[0])
    assert attrs["role_rest_p"] < 0.01 < attrs["control_rest_p"]
    without = {"roles": groups["roles"].drop_vars("bias_rest"), "induction": groups["induction"]}
    assert "role_rest_r" not in Induction().extend(without)["induction"].attrs
    assert "role_r" not in Induction().extend({"induction": groups["induction"]})["induction"].attrs


@pytest.mark.parametrize("first_layer", [0, 1])
def test_shared_layers_and_chosen_logits_give_the_loss_of_whole_runs(first_layer) -> None:
    module, tokenizer = random_model(causal=True, layers=3, heads=4, seed=5)
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        repeated = make_sequences(model, 3, 6, seed=2)
        heads = [(1, 2), (2, 0)]
        compute = SecondHalfLoss(model, repeated, repeated.rows, first_layer)
        losses, _ = compute(heads)
        shared = [prefix is not None for prefix in compute._prefixes.values()]
        for number, row in enumerate(repeated.rows):
            batch = collate([row], model.pad_id, model.device)
            uniform = dict.fromkeys(heads, "uniform")
            logits = model.forward(batch, interventions=uniform, logits=True).logits[0].double()
            second = range(repeated.second.start, repeated.second.stop)
            ids = batch.ids[0].tolist()
            expected = [-float(logits[t - 1].log_softmax(-1)[ids[t]]) for t in second]
            assert losses["loss"][number] == pytest.approx(np.mean(expected), rel=1e-5)
    assert shared == [first_layer > 0]
