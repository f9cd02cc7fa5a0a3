"""The explorer's answers are what the model says, before and after heads are disabled."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import xarray as xr
from transformers import T5Config, T5ForConditionalGeneration

from headwise import Atlas, HeadModel
from headwise.analyses.attribution.contributions import contributions
from headwise.core.errors import HeadwiseError, InputError, ModelError, ParameterError
from headwise.explore import Explorer, Question
from headwise.explore.explorer import KEPT, LONGEST_TEXT
from headwise.text.example import Example

TEXT = "the cat saw the dog"


def maps(answer: dict, kind: str = "maps") -> np.ndarray:
    raw = base64.b64decode(answer[kind])
    return np.frombuffer(raw, np.uint8 if kind == "maps" else "<f4").reshape(answer["shape"])


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_all_heads_and_one_of_them(name: str, request: pytest.FixtureRequest) -> None:
    model: HeadModel = request.getfixturevalue(name)
    explorer, asked = Explorer([model]), Question(TEXT)
    seen = explorer.look(asked)
    true = model.attention(TEXT)
    assert seen["tokens"] == list(true["query"].values)
    assert np.abs((maps(seen) / 255.0) ** 2 - true.values).max() < 0.005
    head = explorer.head(asked, "L1H1")
    np.testing.assert_allclose(maps(head, "weights"), true.values[1, 1], atol=1e-6)
    assert head["before"] is None
    assert seen["moved"] is None
    assert sum(seen["special"]) == (
        2 if name == "encoder" else int(model.batch(TEXT).special.sum())
    )


def test_a_disabled_head_changes_later_heads_and_the_prediction(decoder: HeadModel) -> None:
    explorer = Explorer([decoder])
    off = Question(TEXT, disabled=("L0H1",), how="zero")
    seen = explorer.look(off)
    truth = decoder.attention(TEXT, interventions={"L0H1": "zero"})
    before = decoder.attention(TEXT)
    assert np.abs((maps(seen) / 255.0) ** 2 - truth.values).max() < 0.005
    moved = 0.5 * np.abs(truth.values - before.values).sum(-1).mean(-1)
    np.testing.assert_allclose(seen["moved"], moved, atol=1e-4)
    assert moved[0].max() == 0
    assert moved[1].min() > 0
    head = explorer.head(off, "L1H0")
    np.testing.assert_allclose(maps(head, "weights"), truth.values[1, 0], atol=1e-6)
    np.testing.assert_allclose(maps(head, "before"), before.values[1, 0], atol=1e-6)
    table = decoder.effect(TEXT, {"L0H1": "zero"}, top=8)
    found = {row["token"]: row for row in seen["predictions"]["rows"]}
    assert set(found) == set(table["token"])
    for _, row in table.iterrows():
        assert found[row["token"]]["before"] == pytest.approx(row["probability_before"], abs=1e-5)
        assert found[row["token"]]["now"] == pytest.approx(row["probability_after"], abs=1e-5)
    assert seen["predictions"]["kl"] == pytest.approx(table.attrs["kl"], abs=1e-4)


def test_the_next_token_is_told_anywhere(decoder: HeadModel) -> None:
    seen = Explorer([decoder]).look(Question(TEXT, position=2, top=3))
    table = decoder.effect(TEXT, {}, position=2, top=3)
    assert [row["token"] for row in seen["predictions"]["rows"]] == list(table["token"])
    assert seen["predictions"]["position"] == 2


def test_a_token_is_masked_by_a_click_or_in_the_text(encoder: HeadModel) -> None:
    explorer, mask = Explorer([encoder]), encoder.tokenizer.mask_token
    assert mask in explorer.look(Question(TEXT))["predictions"]["why"]
    clicked = explorer.look(Question(TEXT, mask=2))
    written = explorer.look(Question(f"the {mask} saw the dog"))
    assert clicked["tokens"][2] == mask
    assert clicked["predictions"] == written["predictions"]
    assert clicked["predictions"]["position"] == 2
    assert clicked["maps"] == written["maps"]


def test_attribution_of_a_click(encoder: HeadModel) -> None:
    explorer, asked = Explorer([encoder]), Question(TEXT)
    for source in ("input", "previous_layer"):
        got = explorer.attribution(asked, "L1H0", 3, source)
        whole = contributions(encoder, TEXT, source).heads[0, 1, 0, 3]
        np.testing.assert_allclose(got["contribution"], whole.numpy(), atol=1e-5)
    np.testing.assert_allclose(
        got["attention"], encoder.attention(TEXT, "L1H0").values[3], atol=1e-6
    )
    other = explorer.attribution(Question(TEXT, disabled=("L0H0", "L0H1")), "L1H0", 3)
    assert np.abs(np.array(other["contribution"]) - got["contribution"]).max() > 1e-3


def test_pairs_and_two_models(encoder: HeadModel, decoder: HeadModel) -> None:
    explorer = Explorer([encoder, decoder])
    seen = explorer.look(Question("the cat", "saw the dog"))
    assert seen["tokens"] == encoder.batch(Example(text="the cat", pair="saw the dog")).tokens[0]
    other = explorer.look(Question(TEXT, model=1))
    np.testing.assert_allclose(
        (maps(other) / 255.0) ** 2, decoder.attention(TEXT).values, atol=0.005
    )
    assert [model["predicts"] for model in explorer.state()["models"]] == ["masked", "causal"]


def test_words_come_from_the_atlas_of_this_model(encoder: HeadModel, decoder: HeadModel) -> None:
    entropy = xr.DataArray(np.ones((2, 3)), dims=("layer", "head"))
    surface = {"surface": xr.Dataset({"entropy": entropy})}
    own = Atlas(surface, {"model": encoder.identity()})
    explorer = Explorer([encoder, decoder], own)
    assert explorer.state()["models"][0]["words"][1][1]["does"] == own.describe().loc[4, "does"]
    assert explorer.state()["models"][1]["words"] is None
    assert not explorer.notes
    assert "other weights" in Explorer([decoder], own).notes[0]
    wrong = Atlas({"surface": xr.Dataset({"entropy": entropy[:1]})})
    with pytest.raises(ParameterError, match="1 layers of 3 heads"):
        Explorer([encoder], wrong)


def test_long_texts_are_cut_and_little_is_kept(encoder: HeadModel) -> None:
    explorer = Explorer([encoder])
    limit = explorer.state()["models"][0]["tokens"]
    seen = explorer.look(Question("the cat " * 400))
    assert seen["truncated"]
    assert len(seen["tokens"]) == limit
    for number in range(KEPT + 5):
        explorer.look(Question("cat " * (number + 1)))
    assert len(explorer._kept) == KEPT


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"text": "  "}, "empty"),
        ({"text": "a" * (LONGEST_TEXT + 1)}, "longer than"),
        ({"text": TEXT, "pair": "a" * (LONGEST_TEXT + 1)}, "longer than"),
        ({"text": TEXT, "how": "off"}, "`how` must be one of"),
        ({"text": TEXT, "top": 10**6}, "at most"),
        ({"text": TEXT, "disabled": "L0H0"}, "`disabled` must be a list"),
        ({"text": TEXT, "disabled": ["L9H0"]}, "no head L9H0"),
        ({"text": TEXT, "disabled": ["L" + "9" * 5000 + "H0"]}, "A head is named like"),
        ({"text": TEXT, "mask": 99}, "`mask` must be one of the 7"),
        ({"text": TEXT, "model": 3}, "no model 3"),
        ({"text": TEXT, "model": -1}, "no model -1"),
        ({"text": "\ud800"}, "`text` must be a text"),
    ],
)
def test_wrong_questions_are_one_sentence(encoder: HeadModel, wrong: dict, words: str) -> None:
    with pytest.raises((InputError, ParameterError), match=words) as told:
        Explorer([encoder]).look(Question(**wrong))
    assert isinstance(told.value, HeadwiseError)


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
def test_an_encoder_decoder_reads_source_and_target(stack: str, encoder: HeadModel) -> None:
    tokenizer = encoder.tokenizer
    sizes = {
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 16,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 2,
    }
    ids = {
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "vocab_size": len(tokenizer),
    }
    module = T5ForConditionalGeneration(T5Config(**sizes, **ids)).eval()
    with HeadModel.open(module, tokenizer=tokenizer, stack=stack) as model:
        explorer, example = Explorer([model]), Example(text="the cat saw", pair="a dog")
        told = explorer.state()["models"][0]
        if stack == "encoder":
            assert (told["needs_pair"], told["predicts"]) == (False, None)
            assert "opened without" in explorer.look(Question("the cat saw"))["predictions"]["why"]
            return
        assert (told["needs_pair"], told["predicts"], told["attributes"]) == (
            True,
            "causal",
            stack != "cross",
        )
        seen = explorer.look(Question("the cat saw", "a dog", disabled=("L0H1",)))
        true = model.trace(example, interventions={"L0H1": "zero"}).attention
        assert true is not None
        np.testing.assert_allclose((maps(seen) / 255.0) ** 2, true[0].numpy(), atol=0.005)
        assert (seen["keys"] is None) == (stack == "decoder")
        assert len(seen["keys_special"]) == seen["shape"][3]
        assert seen["predictions"]["rows"]
        with pytest.raises(InputError, match="target"):
            explorer.look(Question("the cat saw"))
        if stack == "cross":
            with pytest.raises(ModelError, match="cross-attention"):
                explorer.attribution(Question("the cat saw", "a dog"), "L0H0", 0)
        else:
            got = explorer.attribution(Question("the cat saw", "a dog"), "L1H0", 1)
            np.testing.assert_allclose(
                got["contribution"], contributions(model, example).heads[0, 1, 0, 1], atol=1e-5
            )
