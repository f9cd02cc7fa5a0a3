"""Function vectors: a planted head that carries a task is found and no other, patched runs are those
of a plain loop with hooks, and a model that cannot do a task has no scores."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from headwise import make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.function_vectors import analysis as module_under_test
from headwise.analyses.function_vectors.analysis import FunctionVectors
from headwise.analyses.function_vectors.prompts import (
    Prompt,
    TaskPrompts,
    make_prompt,
    make_task_prompts,
)
from headwise.analyses.function_vectors.runs import (
    function_vector,
    last_outputs,
    patched_probabilities,
)
from headwise.core.errors import ParameterError
from headwise.models import HeadModel
from headwise.models.structure import find_structure
from headwise.plots import figures_for
from headwise.testing import random_model
from headwise.text import Corpus
from headwise.text.example import Example
from headwise.text.word_pairs import RELATIONS

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from tiny_models import SUPPORTED, build

CORPUS = Corpus.from_examples([Example(text="word1 word2 word3")], "words")
CAUSAL = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gpt-neox": "GPTNeoXForCausalLM",
}


def tiny(name: str) -> torch.nn.Module:
    config, _, arguments = SUPPORTED[name]
    return build(config, CAUSAL[name], arguments)


@pytest.mark.parametrize("name", list(CAUSAL))
def test_patched_probabilities_are_those_of_a_plain_loop(name: str) -> None:
    """Head by head over the whole prompt, without a cache, by a hook of the test."""
    module = tiny(name)
    prompt = Prompt([5, 9, 11, 20, 33, 7], 13)
    with HeadModel.open(module) as model:
        structure = find_structure(model)
        generator = torch.Generator().manual_seed(0)
        outputs = torch.randn(model.layers, model.heads, model.d_head, generator=generator)
        fast = patched_probabilities(model, structure, prompt, outputs)
        with torch.no_grad():
            intact = module(input_ids=torch.tensor([prompt.ids])).logits[0, -1].softmax(-1)
        differs = 0
        for layer, head in np.ndindex(model.layers, model.heads):
            columns = slice(head * model.d_head, (head + 1) * model.d_head)

            def put_in(layer_module, args, columns=columns, value=outputs[layer, head]):
                joined = args[0].clone()
                joined[:, -1, columns] = value
                return (joined,)

            projection = structure.blocks[layer].projection
            handle = projection.register_forward_pre_hook(put_in)
            with torch.no_grad():
                logits = module(input_ids=torch.tensor([prompt.ids])).logits[0, -1]
            handle.remove()
            slow = float(logits.softmax(-1)[prompt.answer])
            assert fast[layer, head] == pytest.approx(slow, rel=1e-4, abs=1e-8)
            differs += abs(slow - float(intact[prompt.answer])) > 1e-7
        assert differs > 0


@pytest.mark.parametrize("name", list(CAUSAL))
def test_vector_is_what_the_heads_write(name: str) -> None:
    """All heads of a layer together, with the bias, are what the attention branch adds."""
    module = tiny(name)
    with HeadModel.open(module) as model:
        structure = find_structure(model)
        outputs = last_outputs(model, [Prompt([5, 9, 11, 20, 33, 7], 13)])
        block = structure.blocks[0]
        joined = outputs[0].flatten()
        with torch.no_grad():
            written = block.projection(joined[None, None])
            bias = block.projection(torch.zeros_like(joined)[None, None])
            if block.writing is None:
                expected = (written - bias)[0, 0]
            else:
                expected = block.writing.module(written)[0, 0]
        vector = function_vector(structure, outputs, [(0, head) for head in range(model.heads)])
    assert torch.allclose(vector, expected * block.factor, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def tested():
    """A random model with one head that writes the answer's direction after right examples.

    Of the prompts of its one task, those with right examples begin with token 5, the shuffled ones
    with token 6. The planted head attends to all tokens alike; its value is the direction of the
    answer where token 5 stands, and nothing elsewhere."""
    module, tokenizer = random_model(
        causal=True, layers=3, heads=2, words=[f"word{i}" for i in range(30)], seed=1
    )
    answer = 13
    width = module.config.n_embd
    d_head = width // 2
    with torch.no_grad():
        for block in module.transformer.h:
            block.attn.c_proj.weight.mul_(0.01)
            block.mlp.c_proj.weight.mul_(0.01)
        direction = torch.zeros(width)
        direction[: width // 2] = 1
        direction[width // 2 :] = -1
        direction = direction / direction.norm()
        embeddings = module.transformer.wte.weight
        positions = module.transformer.wpe.weight
        marker = embeddings[5] - embeddings[5].mean()
        marker = marker - (marker @ direction) * direction
        marker = marker / marker.norm()
        # No token points to the answer, and none but token 5 to the marker.
        for table in (embeddings, positions):
            table.sub_(torch.outer(table @ direction, direction))
            table.sub_(torch.outer(table @ marker, marker))
        embeddings[5] = 3 * marker
        module.lm_head.weight = torch.nn.Parameter(embeddings.clone())
        module.lm_head.weight[answer] = 12 * direction
        attention = module.transformer.h[1].attn
        columns = slice(2 * width + d_head, 2 * width + 2 * d_head)  # values of head 1
        attention.c_attn.weight[:, columns] = 0
        attention.c_attn.weight[:, 2 * width + d_head] = marker
        attention.c_attn.weight[:, d_head : 2 * d_head] = 0  # its queries: attention is uniform
        attention.c_proj.weight[d_head:] = 0
        attention.c_proj.weight[d_head] = 6 * direction
    return module, tokenizer, answer


def planted_prompts(answer: int) -> TaskPrompts:
    rng = np.random.default_rng(0)

    def prompts(first: int, count: int) -> list[Prompt]:
        made = []
        for _ in range(count):
            rest = rng.integers(14, 30, 5).tolist()
            made.append(Prompt([first, first, first, *rest], answer))
        return made

    return TaskPrompts(
        shown=prompts(5, 4),
        shuffled=prompts(6, 6),
        shown_again=prompts(5, 6),
        bare=prompts(7, 6),
    )


def test_the_planted_head_is_found_and_no_other(tested, monkeypatch) -> None:
    module, tokenizer, answer = tested
    monkeypatch.setattr(module_under_test, "RELATIONS", {"planted": RELATIONS["plural"]})
    monkeypatch.setattr(
        module_under_test, "make_task_prompts", lambda *arguments: planted_prompts(answer)
    )
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        parameters = {"function_vectors": {"vector_heads": 1}}
        atlas = make_atlas(model, CORPUS, ["function_vectors"], parameters=parameters)
    dataset = atlas["function_vectors"]
    assert dataset.attrs["tasks_done"] == 1
    assert float(dataset["accuracy"][0]) == 1
    assert float(dataset["shuffled_accuracy"][0]) == 0
    gain = dataset["gain"].values
    assert np.unravel_index(gain.argmax(), gain.shape) == (1, 1)
    assert gain[1, 1] > 0.5
    assert np.delete(gain.ravel(), 3).max() < 0.02
    assert float(dataset["gain_p_adjusted"].values[1, 1]) < 0.05
    assert float(dataset["vector_accuracy"][0]) == 1
    assert float(dataset["bare_accuracy"][0]) == 0
    assert float(dataset["random_accuracy"][0]) < 1
    table = atlas.describe().set_index("name")
    assert table.loc["L1H1", "does"] == "function vector"
    assert "function vector +" in table.loc["L1H1", "finds"]
    assert (table["does"] == "function vector").sum() == 1
    lines = make_analysis("function_vectors").summary(dataset)
    assert lines[0].startswith("1 of 1 tasks done")
    assert "L1H1" in lines[1]
    for figure in figures_for("function_vectors"):
        figure.draw(dataset)


def test_a_model_that_cannot_do_a_task_has_no_scores() -> None:
    """Random weights, with every word of the lists."""
    words = [":"]
    for pairs in RELATIONS.values():
        for pair in pairs:
            words += [word for word in pair if word not in words]
    for seed in range(3):
        module, tokenizer = random_model(causal=True, layers=2, heads=2, words=words, seed=seed)
        with HeadModel.open(module, tokenizer=tokenizer) as model:
            parameters = {"function_vectors": {"prompts": 3}}
            atlas = make_atlas(model, CORPUS, ["function_vectors"], parameters=parameters)
        dataset = atlas["function_vectors"]
        assert dataset.attrs["tasks_done"] == 0
        assert np.isnan(dataset["gain"].values).all()
        analysis = make_analysis("function_vectors")
        assert not analysis.significant_heads(dataset).values.any()
        assert "can do none of 8 tasks" in analysis.summary(dataset)[0]


def test_prompts_keep_queries_apart_and_answers_shuffled() -> None:
    words = [":"]
    for pair in RELATIONS["plural"]:
        words += pair
    module, tokenizer = random_model(causal=True, words=words)
    pairs = RELATIONS["plural"]
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        prompts = make_task_prompts(model, pairs, 5, 6, seed=2)
        single = make_prompt(model, pairs[:1], pairs[1])
    text = tokenizer.convert_ids_to_tokens(single.ids)
    assert [token for token in text if token not in tokenizer.all_special_tokens] == [
        "cat",
        ":",
        "cats",
        "dog",
        ":",
    ]
    assert tokenizer.convert_ids_to_tokens(single.answer) == "dogs"
    assert len(prompts.shown) == len(prompts.shuffled) == len(prompts.shown_again) == 6
    queries = [prompt.ids[-2] for prompt in prompts.shown]
    tested_queries = [prompt.ids[-2] for prompt in prompts.shuffled]
    judged_queries = [prompt.ids[-2] for prompt in prompts.bare]
    assert not set(queries) & set(tested_queries)
    assert not set(judged_queries) & {*queries, *tested_queries}
    for right, wrong in zip(prompts.shown_again, prompts.shuffled, strict=True):
        assert right.answer == wrong.answer
        assert sorted(right.ids) == sorted(wrong.ids)
        moved = [a != b for a, b in zip(right.ids, wrong.ids, strict=True)]
        assert sum(moved) == 5  # every answer moved, nothing else
        assert right.answer not in right.ids


def little_tokenizer(opening: str | None) -> PreTrainedTokenizerFast:
    """Return a tokenizer of words, colons and line breaks that opens texts with a token, or with
    none."""
    words = ["<unk>", "<s>", "\n", ":", "hot", "cold", "big", "small", "word"]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = Sequence([Split(Regex("\n|:"), "isolated"), Split(" ", "removed")])
    if opening is not None:
        tokenizer.post_processor = TemplateProcessing(
            f"{opening} $A", special_tokens=[(opening, 1)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")


@pytest.mark.parametrize(("opening", "first"), [(None, "\n"), ("<s>", "<s>")])
def test_no_query_is_the_first_token(opening: str | None, first: str) -> None:
    """The first token is a sink, whose hidden state says little of the word that stands there."""
    module, _ = random_model(causal=True, words=[f"word{i}" for i in range(9)])
    tokenizer = little_tokenizer(opening)
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        bare = make_prompt(model, [], ("hot", "cold"))
        shown = make_prompt(model, [("big", "small")], ("hot", "cold"))
    assert tokenizer.convert_ids_to_tokens(bare.ids) == [first, "hot", ":"]
    after_example = [first, "big", ":", "small", "\n", "hot", ":"]
    assert tokenizer.convert_ids_to_tokens(shown.ids) == after_example
    assert tokenizer.convert_ids_to_tokens(bare.answer) == "cold"


def test_the_layer_of_the_vector_can_be_chosen(tested, monkeypatch) -> None:
    """The planted head writes the answer's direction itself, so that the last layer does, too; in a
    model of three layers there is no fourth."""
    module, tokenizer, answer = tested
    monkeypatch.setattr(module_under_test, "RELATIONS", {"planted": RELATIONS["plural"]})
    monkeypatch.setattr(
        module_under_test, "make_task_prompts", lambda *arguments: planted_prompts(answer)
    )
    entries = []
    are_right_with = module_under_test.are_right_with

    def watched(model, entry, prompts, vector):
        entries.append(entry)
        return are_right_with(model, entry, prompts, vector)

    monkeypatch.setattr(module_under_test, "are_right_with", watched)
    parameters = {"vector_heads": 1, "vector_layer": 2}
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        atlas = make_atlas(
            model, CORPUS, ["function_vectors"], parameters={"function_vectors": parameters}
        )
        assert set(entries) == {module.transformer.h[2]}
        assert atlas["function_vectors"].attrs["vector_layer"] == 2
        assert float(atlas["function_vectors"]["vector_accuracy"][0]) == 1
        parameters["vector_layer"] = 3
        with pytest.raises(ParameterError, match="the model has layers 0 to 2"):
            make_atlas(
                model, CORPUS, ["function_vectors"], parameters={"function_vectors": parameters}
            )


def test_parameters_are_checked() -> None:
    for name, value in (("shots", 1), ("prompts", 0), ("vector_heads", 0), ("vector_layer", -1)):
        with pytest.raises(ParameterError, match=f"`{name}`"):
            FunctionVectors(**{name: value})
