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
from headwise.explore.explorer import CACHED_PASSES, LONGEST_TEXT
from headwise.text.example import Example

TEXT = "the cat saw the dog"


def maps(answer: dict, kind: str = "maps") -> np.ndarray:
    raw = base64.b64decode(answer[kind])
    return np.frombuffer(raw, np.uint8 if kind == "maps" else "<f4").reshape(answer["shape"])


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_all_heads_and_one_of_them(name: str, request: pytest.FixtureRequest) -> None:
    model: HeadModel = request.getfixturevalue(name)
    explorer = Explorer([model])
    question = Question(TEXT)
    answer = explorer.all_heads(question)
    true = model.attention(TEXT)
    assert answer["tokens"] == list(true["query"].values)
    assert np.abs((maps(answer) / 255.0) ** 2 - true.values).max() < 0.005
    head = explorer.head(question, "L1H1")
    np.testing.assert_allclose(maps(head, "weights"), true.values[1, 1], atol=1e-6)
    assert head["before"] is None
    assert answer["moved"] is None
    assert sum(answer["special"]) == (
        2 if name == "encoder" else int(model.batch(TEXT).special.sum())
    )


def test_a_disabled_head_changes_later_heads_and_the_prediction(decoder: HeadModel) -> None:
    explorer = Explorer([decoder])
    question = Question(TEXT, disabled=("L0H1",), how="zero")
    answer = explorer.all_heads(question)
    truth = decoder.attention(TEXT, interventions={"L0H1": "zero"})
    before = decoder.attention(TEXT)
    assert np.abs((maps(answer) / 255.0) ** 2 - truth.values).max() < 0.005
    moved = 0.5 * np.abs(truth.values - before.values).sum(-1).mean(-1)
    np.testing.assert_allclose(answer["moved"], moved, atol=1e-4)
    assert moved[0].max() == 0
    assert moved[1].min() > 0
    head = explorer.head(question, "L1H0")
    np.testing.assert_allclose(maps(head, "weights"), truth.values[1, 0], atol=1e-6)
    np.testing.assert_allclose(maps(head, "before"), before.values[1, 0], atol=1e-6)
    table = decoder.effect(TEXT, {"L0H1": "zero"}, top=8)
    row_of_token = {row["token"]: row for row in answer["predictions"]["rows"]}
    assert set(row_of_token) == set(table["token"])
    for _, row in table.iterrows():
        assert row_of_token[row["token"]]["before"] == pytest.approx(
            row["probability_before"], abs=1e-5
        )
        assert row_of_token[row["token"]]["now"] == pytest.approx(
            row["probability_after"], abs=1e-5
        )
    assert answer["predictions"]["kl"] == pytest.approx(table.attrs["kl"], abs=1e-4)


def test_the_next_token_is_predicted_at_any_position(decoder: HeadModel) -> None:
    answer = Explorer([decoder]).all_heads(Question(TEXT, position=2, top=3))
    table = decoder.effect(TEXT, {}, position=2, top=3)
    assert [row["token"] for row in answer["predictions"]["rows"]] == list(table["token"])
    assert answer["predictions"]["position"] == 2


def test_a_token_is_masked_by_a_click_or_in_the_text(encoder: HeadModel) -> None:
    explorer = Explorer([encoder])
    mask = encoder.tokenizer.mask_token
    assert mask in explorer.all_heads(Question(TEXT))["predictions"]["why"]
    clicked = explorer.all_heads(Question(TEXT, mask=2))
    written = explorer.all_heads(Question(f"the {mask} saw the dog"))
    assert clicked["tokens"][2] == mask
    assert clicked["predictions"] == written["predictions"]
    assert clicked["predictions"]["position"] == 2
    assert clicked["maps"] == written["maps"]


@pytest.mark.parametrize("how", ["zero", "uniform", "mean"])
def test_what_heads_add_to_a_logit_adds_up_also_with_heads_disabled(
    decoder: HeadModel, how: str
) -> None:
    explorer = Explorer([decoder])
    for disabled in ((), ("L0H1", "L1H2")):
        question = Question(TEXT, disabled=disabled, how=how)
        token = explorer.all_heads(question)["predictions"]["rows"][0]["id"]
        parts = explorer.logit(question, token)
        logits = decoder.forward(TEXT, interventions=dict.fromkeys(disabled, how), logits=True)
        last = logits.logits[0, -1]
        assert parts["logit"] == pytest.approx(float(last[token] - last.mean()), abs=1e-4)
        total = np.sum(parts["heads"]) + parts["embedding"] + parts["feed_forward"]
        assert total + parts["constant"] == pytest.approx(parts["logit"], abs=1e-4)
        if disabled and how == "zero":
            assert parts["heads"][0][1] == 0
            assert parts["heads"][1][2] == 0
    with pytest.raises(ParameterError, match="token id from 0"):
        explorer.logit(question, 10**6)


def test_only_decoders_have_direct_parts_and_write(encoder: HeadModel) -> None:
    explorer = Explorer([encoder])
    assert explorer.state()["models"][0]["writes"] is False
    assert explorer.all_heads(Question(TEXT))["sinks"] is None
    with pytest.raises(ModelError, match="decoder-only"):
        explorer.logit(Question(TEXT), 5)
    with pytest.raises(ModelError, match="writes no text"):
        explorer.write(Question(TEXT))
    with pytest.raises(ParameterError, match="leave `written` out"):
        explorer.all_heads(Question(TEXT, written=(5,)))


@pytest.mark.parametrize(
    ("disabled", "how"), [((), "zero"), (("L0H0",), "zero"), (("L1H1",), "mean")]
)
def test_each_step_of_what_is_written_is_a_pass_over_all_before_it(
    decoder: HeadModel, disabled: tuple[str, ...], how: str
) -> None:
    explorer = Explorer([decoder])
    question = Question("the cat", disabled=disabled, how=how, top=1)
    written = explorer.write(question, 4)
    interventions = dict.fromkeys(disabled, how)
    prompt = decoder.encode("the cat").ids.tolist()
    assert len(written["ids"]) == 4
    assert written["tokens"] == [decoder.encoder.token_text(i) or "·" for i in written["ids"]]
    for step, token in enumerate(written["ids"]):
        before = tuple(written["ids"][:step])
        answer = explorer.all_heads(
            Question("the cat", disabled=disabled, how=how, top=50, written=before)
        )
        likeliest = max(answer["predictions"]["rows"], key=lambda row: row["now"])
        assert likeliest["id"] == token
        ids = [*prompt, *before]
        truth = decoder.trace([ids], interventions=interventions).attention
        assert truth is not None
        np.testing.assert_allclose((maps(answer) / 255.0) ** 2, truth[0].numpy(), atol=0.005)
        assert len(answer["tokens"]) == len(ids)


def test_a_full_text_leaves_no_room_to_write(decoder: HeadModel) -> None:
    explorer = Explorer([decoder])
    with pytest.raises(InputError, match="shorten it"):
        explorer.write(Question("the cat " * 400))
    limit = explorer.state()["models"][0]["tokens"]
    almost = Question("cat " * (limit - 4))
    assert len(explorer.write(almost, 50)["ids"]) <= 4
    with pytest.raises(ParameterError, match="at most"):
        explorer.all_heads(Question("the cat " * 400, written=(5,)))
    with pytest.raises(ParameterError, match="`tokens` must be at least 1"):
        explorer.write(almost, 0)


def test_sinks_are_heads_with_most_attention_on_the_first_token(decoder: HeadModel) -> None:
    answer = Explorer([decoder]).all_heads(Question(TEXT))
    to_first = decoder.attention(TEXT).values[:, :, 1:, 0].mean(-1)
    assert answer["sinks"] == (to_first > 0.5).tolist()


def test_attribution_of_a_click(encoder: HeadModel) -> None:
    explorer = Explorer([encoder])
    question = Question(TEXT)
    for source in ("input", "previous_layer"):
        attribution = explorer.attribution(question, "L1H0", 3, source)
        whole = contributions(encoder, TEXT, source).heads[0, 1, 0, 3]
        np.testing.assert_allclose(attribution["contribution"], whole.numpy(), atol=1e-5)
    np.testing.assert_allclose(
        attribution["attention"], encoder.attention(TEXT, "L1H0").values[3], atol=1e-6
    )
    other = explorer.attribution(Question(TEXT, disabled=("L0H0", "L0H1")), "L1H0", 3)
    assert np.abs(np.array(other["contribution"]) - attribution["contribution"]).max() > 1e-3


def test_pairs_and_two_models(encoder: HeadModel, decoder: HeadModel) -> None:
    explorer = Explorer([encoder, decoder])
    answer = explorer.all_heads(Question("the cat", "saw the dog"))
    assert answer["tokens"] == encoder.batch(Example(text="the cat", pair="saw the dog")).tokens[0]
    other = explorer.all_heads(Question(TEXT, model=1))
    np.testing.assert_allclose(
        (maps(other) / 255.0) ** 2, decoder.attention(TEXT).values, atol=0.005
    )
    assert [model["predicts"] for model in explorer.state()["models"]] == ["masked", "causal"]


def test_labels_come_from_the_atlas_of_this_model(encoder: HeadModel, decoder: HeadModel) -> None:
    entropy = xr.DataArray(np.ones((2, 3)), dims=("layer", "head"))
    surface = {"surface": xr.Dataset({"entropy": entropy})}
    atlas = Atlas(surface, {"model": encoder.identity()})
    explorer = Explorer([encoder, decoder], atlas)
    assert explorer.state()["models"][0]["labels"][1][1]["does"] == atlas.describe().loc[4, "does"]
    assert explorer.state()["models"][1]["labels"] is None
    assert not explorer.notes
    assert "other weights" in Explorer([decoder], atlas).notes[0]
    wrong = Atlas({"surface": xr.Dataset({"entropy": entropy[:1]})})
    with pytest.raises(ParameterError, match="1 layers of 3 heads"):
        Explorer([encoder], wrong)


def test_long_texts_are_truncated_and_the_cache_stays_small(encoder: HeadModel) -> None:
    explorer = Explorer([encoder])
    limit = explorer.state()["models"][0]["tokens"]
    answer = explorer.all_heads(Question("the cat " * 400))
    assert answer["truncated"]
    assert len(answer["tokens"]) == limit
    for number in range(CACHED_PASSES + 5):
        explorer.all_heads(Question("cat " * (number + 1)))
    assert len(explorer._cache) == CACHED_PASSES


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
    with pytest.raises((InputError, ParameterError), match=words) as raised:
        Explorer([encoder]).all_heads(Question(**wrong))
    assert isinstance(raised.value, HeadwiseError)


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
        explorer = Explorer([model])
        example = Example(text="the cat saw", pair="a dog")
        state = explorer.state()["models"][0]
        if stack == "encoder":
            assert (state["needs_pair"], state["predicts"]) == (False, None)
            assert (
                "opened without"
                in explorer.all_heads(Question("the cat saw"))["predictions"]["why"]
            )
            return
        assert (state["needs_pair"], state["predicts"], state["attributes"]) == (
            True,
            "causal",
            stack != "cross",
        )
        answer = explorer.all_heads(Question("the cat saw", "a dog", disabled=("L0H1",)))
        true = model.trace(example, interventions={"L0H1": "zero"}).attention
        assert true is not None
        np.testing.assert_allclose((maps(answer) / 255.0) ** 2, true[0].numpy(), atol=0.005)
        assert (answer["keys"] is None) == (stack == "decoder")
        assert len(answer["keys_special"]) == answer["shape"][3]
        assert answer["predictions"]["rows"]
        with pytest.raises(InputError, match="target"):
            explorer.all_heads(Question("the cat saw"))
        if stack == "cross":
            with pytest.raises(ModelError, match="cross-attention"):
                explorer.attribution(Question("the cat saw", "a dog"), "L0H0", 0)
        else:
            attribution = explorer.attribution(Question("the cat saw", "a dog"), "L1H0", 1)
            np.testing.assert_allclose(
                attribution["contribution"],
                contributions(model, example).heads[0, 1, 0, 1],
                atol=1e-5,
            )
