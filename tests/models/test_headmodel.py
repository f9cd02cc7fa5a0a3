"""One-line questions: attention and outputs with labels, the next token with a head disabled, text
generated without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_models import SUPPORTED, T5, VOCABULARY, build, word_tokenizer

from headwise.core.errors import HeadwiseError
from headwise.models import HeadModel, Mean, Patch

TEXT = "w1 w2 w3 w1"
DECODERS = (
    "llama",
    "gpt2",
    "mistral",
    "gptj",
    "gpt-neo",
    "bloom",
    "falcon",
    "gpt-oss",
    "gemma3",
    "qwen3",
    "opt",
)


def language_model(name: str) -> Any:
    """A tiny random decoder with its head; weights so large that its predictions are far apart."""
    config, _, arguments = SUPPORTED[name]
    torch.manual_seed(3)
    made = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, config)(**arguments)
    ).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    head = (
        made.get_output_embeddings()
    )  # its own, where it is that of the inputs: those repeat the last token
    head.weight = torch.nn.Parameter(torch.randn_like(head.weight))
    made.generation_config.eos_token_id = None  # none ends early
    return made


@pytest.fixture(scope="module")
def llama() -> HeadModel:
    return HeadModel.open(language_model("llama"), tokenizer=word_tokenizer())


def test_attention_has_tokens_as_labels(llama: HeadModel) -> None:
    traced = llama.trace(TEXT).attention
    assert traced is not None
    one = llama.attention(TEXT, "L1H2")
    assert one.dims == ("query", "key")
    assert one["query"].values.tolist() == ["[CLS]", "w1", "w2", "w3", "w1", "[SEP]"]
    # Below the requested layer the pass forms no weights, which may round in another way.
    np.testing.assert_allclose(one.values, traced[0, 1, 2].numpy(), rtol=0, atol=1e-6)
    assert one.sel(query="w3", key="w2").item() == one.values[3, 2]
    assert one.sel(key="w1").shape == (6, 2)  # it stands there twice
    assert llama.attention(TEXT, (1, 2)).equals(one)
    assert llama.attention(TEXT, "L1").isel(head=2).drop_vars("head").equals(one)
    several = llama.attention(TEXT, ["L2H0", (1, 2)])
    assert several.dims == ("head", "query", "key")
    assert several["head"].values.tolist() == ["L2H0", "L1H2"]
    assert several.sel(head="L1H2").drop_vars("head").equals(one)
    np.testing.assert_allclose(several.values[0], traced[0, 2, 0].numpy(), rtol=0, atol=1e-6)
    every = llama.attention(TEXT)
    assert every.dims == ("layer", "head", "query", "key")
    assert (every.values == traced[0].numpy()).all()
    assert (
        llama.attention(TEXT, "L1H2", interventions={"L1H2": "uniform"})
        .isel(query=1)
        .values[:2]
        .tolist()
        == [0.5] * 2
    )


def test_outputs_by_name(llama: HeadModel) -> None:
    traced = llama.trace(TEXT, {"outputs"}).outputs
    assert traced is not None
    one = llama.outputs(TEXT, "L2H3")
    assert one.dims == ("token", "dimension")
    np.testing.assert_allclose(one.values, traced[0, 2, 3].numpy(), rtol=1e-5, atol=1e-6)
    assert one.sel(token="w2").values.tolist() == one.values[2].tolist()
    assert llama.outputs(TEXT, ["L2H3", "L0H1"]).sel(head="L2H3").drop_vars("head").equals(one)
    assert not llama.outputs(TEXT, "L2H3", interventions={"L2H3": "zero"}).any()


def test_the_next_token_before_and_after(llama: HeadModel) -> None:
    change = {"L1H2": "zero", "L2": "uniform"}
    before = llama.forward(TEXT, logits=True).logits[0, -1]
    after = llama.forward(TEXT, interventions={(1, 2): "zero", 2: "uniform"}, logits=True).logits[
        0, -1
    ]
    assert (before - after).abs().max() > 0.01
    table = llama.effect(TEXT, change, top=3)
    assert {*before.topk(3).indices.tolist(), *after.topk(3).indices.tolist()} == set(table["id"])
    assert table["probability_before"].is_monotonic_decreasing
    assert table["token"].tolist() == [
        llama.tokenizer.convert_ids_to_tokens(i) for i in table["id"]
    ]
    ids = table["id"].tolist()
    for name, logits in (("before", before), ("after", after)):
        assert table[f"logit_{name}"].tolist() == pytest.approx(logits[ids].tolist(), rel=1e-6)
        assert table[f"probability_{name}"].tolist() == pytest.approx(
            logits.softmax(-1)[ids].tolist(), rel=1e-5
        )
    p, q = before.double().log_softmax(-1), after.double().log_softmax(-1)
    assert table.attrs["kl"] == pytest.approx((p.exp() * (p - q)).sum().item())
    named = llama.effect(TEXT, change, tokens=["w7", 9], position=2)
    assert named["id"].tolist() == [llama.tokenizer.convert_tokens_to_ids("w7"), 9]
    assert named.attrs["position"] == 2
    assert named["logit_before"][1] == pytest.approx(
        llama.forward(TEXT, logits=True).logits[0, 2, 9].item(), rel=1e-6
    )


def test_a_masked_model_is_asked_about_its_mask() -> None:
    config, _, arguments = SUPPORTED["bert"]
    made = transformers.BertForMaskedLM(getattr(transformers, config)(**arguments)).eval()
    model = HeadModel.open(made, tokenizer=word_tokenizer())
    table = model.effect("w1 [MASK] w3", {"L0H1": "zero"}, top=2)
    logits = model.forward("w1 [MASK] w3", logits=True).logits[0, 2]
    assert table["logit_before"].max() == pytest.approx(logits.max().item())
    with pytest.raises(HeadwiseError, match=r"The text has no \[MASK\] to predict"):
        model.effect("w1 w3", {"L0H1": "zero"})
    with pytest.raises(HeadwiseError, match="does not generate text"):
        model.generate("w1")


def whole_passes(model: HeadModel, ids: list[int], interventions: Any, new: list[int]) -> list[int]:
    """What whole forward passes without a cache say after the text and each beginning of what was
    generated."""
    texts = [[*ids, *new[:count]] for count in range(len(new))]
    logits = model.forward(texts, interventions=interventions, logits=True).logits
    return [int(logits[row, len(text) - 1].argmax()) for row, text in enumerate(texts)]


@pytest.mark.parametrize("name", DECODERS)
def test_generation_with_a_cache_is_that_of_whole_passes(name: str) -> None:
    own = language_model(name)
    prompt = [9, 14, 11, 30, 7]
    ids = torch.tensor([prompt])
    plain = own.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6, pad_token_id=1
    )
    model = HeadModel.open(own)
    vector = torch.linspace(-20, 20, model.d_head)
    cases: list[Any] = [{"L0": "zero", "L1": "uniform", "L2H1": Mean(vector)}, {"L0": "mean"}]
    for change in cases:
        got = model.generate(prompt, interventions=change, max_new_tokens=6, as_ids=True)
        assert got == whole_passes(model, prompt, change, got), change
        assert change is not cases[0] or got != plain[0, 5:].tolist()
    assert (
        model.generate(prompt, max_new_tokens=6, as_ids=True) == plain[0, 5:].tolist()
    )  # and nothing stays behind


def test_generated_text_and_options(llama: HeadModel) -> None:
    text = llama.generate(TEXT, interventions={"L1H2": "zero"}, max_new_tokens=4)
    ids = llama.generate(TEXT, interventions={"L1H2": "zero"}, max_new_tokens=4, as_ids=True)
    assert text == llama.tokenizer.decode(ids, skip_special_tokens=True)
    state = torch.random.get_rng_state()
    draws = [
        llama.generate(TEXT, max_new_tokens=6, as_ids=True, do_sample=True, seed=s)
        for s in (1, 1, 2)
    ]
    assert torch.equal(state, torch.random.get_rng_state())
    assert draws[0] == draws[1] != draws[2]


def test_an_encoder_decoder_generates_from_its_source() -> None:
    torch.manual_seed(0)
    own = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)).eval()
    own.generation_config.eos_token_id = None
    ids = torch.tensor([[9, 14, 11]])
    plain = own.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=5
    )
    for stack in ("encoder", "decoder", "cross"):
        with HeadModel.open(own, tokenizer=word_tokenizer(), stack=stack) as model:
            assert model.generate(ids, max_new_tokens=5, as_ids=True) == plain[0].tolist()
            changed = model.generate(
                "w4 w9 w6", max_new_tokens=5, as_ids=True, interventions={"L0": "zero"}
            )
            assert changed[0] == plain[0, 0]  # what the decoder starts from


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda m: m.attention([[5, 6], [7]], "L0H0"), "Pass one text at a time; 2 were given."),
        (lambda m: m.attention(TEXT, "L9H0"), "There is no head L9H0: the model has layers 0 to 2 and heads 0 to 3."),
        (lambda m: m.effect(TEXT, {"H1": "zero"}), "An intervention is given for a head ('L3H5' or (3, 5)) or a layer "
         "('L3' or 3), counted from 0; it was given for 'H1'."),
        (lambda m: m.effect(TEXT, ["L0H1"]), "Interventions are a mapping like {'L3H5': 'zero'}; they were given as a "
         "list."),
        (lambda m: m.effect(TEXT, {"L0H1": "zero", (0, 1): "mean"}), "Two interventions are given for 'L0H1', by name "
         "and by number; give one."),
        (lambda m: m.effect(TEXT, {}, tokens=["w1 w2"]), "'w1 w2' is not a single token (its pieces: 'w1', 'w2'); pass "
         "one that is, or ids."),
        (lambda m: m.effect(TEXT, {}, tokens=[VOCABULARY]), f"There is no token {VOCABULARY}: the model has ids 0 to "
         f"{VOCABULARY - 1}."),
        (lambda m: m.effect(TEXT, {}, position=6), "`position` must lie in the 6 tokens of the text; it is 6."),
        (lambda m: m.generate(TEXT, interventions={"L0H1": Patch(output=torch.zeros(6, 8))}), "The Patch of L0H1 fits "
         "one length, but generated text grows; use zero, uniform, mean or a Mean."),
        (lambda m: m.generate(TEXT, max_new_tokens=35), "The text of 6 tokens and 35 new ones are more than the 40 "
         "that LlamaForCausalLM takes; pass max_new_tokens of at most 34."),
        (lambda m: m.generate(TEXT, use_cache=False), "`use_cache` of transformers' generate is set by headwise; "
         "leave it out."),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_said(llama: HeadModel, ask: Any, sentence: str) -> None:
    with pytest.raises(HeadwiseError) as caught:
        ask(llama)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_one_head_is_read_as_in_a_whole_pass(name: str) -> None:
    """Every architecture: grouped keys, biases, sinks, caps, modules that form their weights."""
    config, model_class, arguments = SUPPORTED[name]
    model = HeadModel.open(build(config, model_class, arguments))
    ids = [9, 14, 11, 30, 7, 5]
    trace = model.trace([ids], {"attention", "outputs"})
    assert trace.attention is not None
    assert trace.outputs is not None
    heads = [(model.layers - 1, 1), (0, model.heads - 1)]
    maps = model.attention([ids], heads).values
    outputs = model.outputs([ids], heads).values
    for number, (layer, head) in enumerate(heads):
        expected_map = trace.attention[0, layer, head].numpy()
        expected_output = trace.outputs[0, layer, head].numpy()
        np.testing.assert_allclose(maps[number], expected_map, rtol=0, atol=2e-6)
        np.testing.assert_allclose(outputs[number], expected_output, rtol=1e-4, atol=2e-6)
    again = model.trace([ids]).attention  # a pass that was stopped leaves nothing behind
    assert again is not None
    assert torch.equal(again, trace.attention)


def test_a_pass_stops_after_the_requested_layer(llama: HeadModel) -> None:
    layers = llama.module.model.layers  # type: ignore[union-attr]
    calls: list[int] = []
    hooks = []
    for number, layer in enumerate(layers):
        hooks.append(layer.register_forward_pre_hook(lambda *_, n=number: calls.append(n)))
    llama.attention(TEXT, "L1H0")
    for hook in hooks:
        hook.remove()
    assert calls == [0, 1]


def test_from_pretrained_is_open() -> None:
    assert HeadModel.from_pretrained.__func__ is HeadModel.open.__func__  # type: ignore[attr-defined]
