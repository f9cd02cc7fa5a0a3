"""Direct contributions: they add up for every way a decoder is built, and are those of the planted
heads."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from headwise import make_atlas
from headwise.analyses.contract import make_analysis
from headwise.core.errors import ModelError, ParameterError
from headwise.models import HeadModel
from headwise.models.direct import Recorded, adds_up
from headwise.models.structure import find_structure
from headwise.plots import figures_for
from headwise.testing import planted_decoder, random_model
from headwise.text import Corpus
from headwise.text.example import Example

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from tiny_models import SUPPORTED, build, ids_batch

TEXTS = [
    "word1 word2 word3 word1 word2",
    "word4 word5 word4 word5",
    "word7 word8 word9 word7 word2 word8",
]
CORPUS = Corpus.from_examples([Example(text=text) for text in TEXTS], "words")
ADD_UP = [
    "gpt2",
    "gpt-neox",
    "opt",
    "phi",
    "llama",
    "qwen3",
    "gemma2",
    "gemma3",
    "olmo2",
    "cohere",
    "granite",
    "falcon",
]


@pytest.mark.parametrize("name", ADD_UP)
def test_parts_add_up(name: str) -> None:
    config, model_class, arguments = SUPPORTED[name]
    names = [
        model_class.replace("TextModel", "ForCausalLM").replace("Model", end)
        for end in ("ForCausalLM", "LMHeadModel")
    ]
    arguments = arguments | (
        {"residual_multiplier": 0.3, "logits_scaling": 4.0} if name == "granite" else {}
    )
    module = build(config, next(n for n in names if hasattr(transformers, n)), arguments)
    with torch.no_grad():
        for parameter in module.parameters():  # norms and biases that are not one and zero
            if parameter.ndim == 1:
                parameter.add_(torch.rand_like(parameter) * 0.5)
    with HeadModel.open(module) as model:
        structure = find_structure(model)
        batch = ids_batch()
        direct = Recorded(model, structure, batch).direct(torch.roll(batch.ids, -1, 1))
        logits = model.forward(batch, logits=True).logits
    assert adds_up(direct, batch.attention_mask) < 1e-5
    if structure.cap is not None:
        logits = torch.atanh(logits / structure.cap) * structure.cap
    own = logits - logits.mean(-1, keepdim=True)
    expected = own.gather(-1, torch.roll(batch.ids, -1, 1)[..., None])[..., 0]
    real = batch.attention_mask
    assert float((direct.total() - expected).abs()[real].max() / expected.abs()[real].max()) < 1e-4


def test_post_norm_is_refused_with_the_reason() -> None:
    module = build(SUPPORTED["gpt1"][0], "OpenAIGPTLMHeadModel", SUPPORTED["gpt1"][2])
    with (
        HeadModel.open(module, tokenizer=random_model(causal=True)[1]) as model,
        pytest.raises(ModelError, match="normalises the sum"),
    ):
        make_atlas(model, CORPUS, ["logits"])


@pytest.fixture(scope="module")
def decoder():
    return planted_decoder(words=12, max_length=16)


@pytest.fixture(scope="module")
def dataset(decoder):
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer) as model:
        return make_atlas(model, CORPUS, ["logits"])["logits"]


def test_planted_heads(decoder, dataset) -> None:
    assert dataset.attrs["adds_up"] < 1e-5
    loud, tokens = decoder.loudness, len(decoder.vocabulary)
    expected = {"copying": [], "induction": []}
    for text in TEXTS:
        ids = decoder.tokenizer(text)["input_ids"]
        maps = decoder.expected_map(ids)
        for name, factor in (("copying", 1), ("induction", 2)):
            own = []
            for i in range(len(ids) - 1):
                share = sum(
                    maps[decoder.where(name)][i, j] for j in range(len(ids)) if ids[j] == ids[i + 1]
                )
                own.append(factor * loud * (share - (1 - share) / (tokens - 1)))
            expected[name].append(np.mean(own))
    for name, values in expected.items():
        assert dataset["direct"].values[decoder.where(name)] == pytest.approx(
            np.mean(values), rel=1e-4
        )
    assert dataset["direct"].values[decoder.where("previous")] == pytest.approx(0, abs=1e-4)
    whole = sum(
        float(dataset[name].sum())
        for name in ("direct", "direct_other", "direct_bias", "direct_embedding", "direct_constant")
    )
    assert whole == pytest.approx(float(dataset["logit"]), rel=1e-4)


def test_against_a_token(decoder) -> None:
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer) as model:
        dataset = make_atlas(
            model, CORPUS, ["logits"], parameters={"logits": {"against": "word11"}}
        )["logits"]
        with pytest.raises(ParameterError, match="one token"):
            make_atlas(model, CORPUS, ["logits"], parameters={"logits": {"against": "word1 word2"}})
    ids = decoder.tokenizer(TEXTS[0])["input_ids"]
    logits = decoder.model(torch.tensor([ids])).logits[0].detach()
    other = decoder.tokenizer("word11", add_special_tokens=False)["input_ids"][0]
    first = np.mean([float(logits[i, ids[i + 1]] - logits[i, other]) for i in range(len(ids) - 1)])
    assert float(dataset["logit_n"]) == 3
    assert abs(float(dataset["logit"]) - first) < 5  # of the same order; exact below
    assert dataset.attrs["adds_up"] < 1e-5


def test_random_weights_are_nothing() -> None:
    random = np.random.default_rng(0)
    names = [
        "cat",
        "dog",
        "bird",
        "child",
        "saw",
        "heard",
        "near",
        "under",
        "tree",
        "house",
        "not",
        "he",
        "she",
        "it",
    ]
    corpus = Corpus.from_examples(
        [Example(text=" ".join(random.choice(names, 12))) for _ in range(24)], "random"
    )
    for seed in range(2):
        module, tokenizer = random_model(causal=True, layers=3, heads=4, seed=seed)
        with HeadModel.open(module, tokenizer=tokenizer) as model:
            dataset = make_atlas(model, corpus, ["logits"])["logits"]
        assert (dataset["specific_p_adjusted"] > 0.05).all()


def test_figures_and_summary(dataset) -> None:
    assert [one.name for spec in figures_for("logits") for one in spec.draw(dataset)] == [
        "heads",
        "layers",
    ]
    assert "Logit of the next token" in make_analysis("logits").summary(dataset)[0]
