"""Relations from weights: a planted head is found with its exact share, every rank is that of a slow
computation, and random weights have no relation more often than the level allows."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise import make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.successors.circuits import (
    pair_tokens,
    random_turns,
    relations_in_tokens,
    word_vectors,
)
from headwise.core.errors import InputError, ParameterError
from headwise.models import HeadModel
from headwise.models.structure import find_structure
from headwise.plots import figures_for
from headwise.testing import planted_decoder, random_model
from headwise.text import Corpus
from headwise.text.example import Example
from headwise.text.word_pairs import RELATIONS, SEQUENCES, read_word_pairs

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from tiny_models import SUPPORTED, build

CORPUS = Corpus.from_examples([Example(text="word1 word2 word3")], "words")
N_WORDS = 12


def words_of(relations: dict[str, list[tuple[str, str]]]) -> list[str]:
    words: list[str] = []
    for pairs in relations.values():
        for pair in pairs:
            words += [word for word in pair if word not in words]
    return words


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory) -> str:
    """The words of the planted decoder in a circle, and the same pairs the other way round."""
    lines = ["# the words in a circle"]
    for number in range(N_WORDS):
        following = (number + 1) % N_WORDS
        lines.append(f"next\tword{number}\tword{following}")
        lines.append(f"previous\tword{following}\tword{number}")
    path = tmp_path_factory.mktemp("pairs") / "circle.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def decoder():
    """The planted decoder, whose copying head writes the next word instead of the word itself; of
    one word it writes a wrong one."""
    decoder = planted_decoder(words=N_WORDS, max_length=16)
    n_tokens = len(decoder.vocabulary)
    layer, head = decoder.where("copying")
    tokenizer = decoder.tokenizer
    ids = [tokenizer.convert_tokens_to_ids(f"word{number}") for number in range(N_WORDS)]
    projection = decoder.model.transformer.h[layer].attn.c_proj.weight  # [head · d_head, width]
    d_head = projection.shape[0] // 3
    said = 16 + 2 * n_tokens
    with torch.no_grad():
        block = projection[head * d_head : head * d_head + n_tokens, said : said + n_tokens]
        assert torch.equal(block, torch.eye(n_tokens))
        for number, token in enumerate(ids):
            following = ids[(number + 1) % N_WORDS] if number else ids[5]
            block[token] = 0
            block[token, following] = 1
    return decoder


@pytest.fixture(scope="module")
def atlas(decoder, pairs_file):
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer) as model:
        parameters = {"successors": {"pairs": pairs_file}}
        return make_atlas(model, CORPUS, ["successors"], parameters=parameters)


def test_the_planted_head_is_found_and_no_other(decoder, atlas) -> None:
    dataset = atlas["successors"]
    place = decoder.where("copying")
    following = dataset.sel(relation="next")
    for stream in ("after_mlp", "bare"):
        share = following["share"].sel(stream=stream).values
        assert share[place] == pytest.approx((N_WORDS - 1) / N_WORDS)
    significant = make_analysis("successors").significant_heads(dataset)
    expected = np.zeros((2, 3), bool)
    expected[place] = True
    # The induction head copies: it ranks the source first, and has no relation.
    for stream in ("after_mlp", "bare"):
        at_stream = significant.sel(stream=stream)
        assert np.array_equal(at_stream.sel(relation="next").values, expected)
        assert not at_stream.sel(relation="previous").values.any()
    assert float(following["chance"]) == pytest.approx(1 / N_WORDS)
    assert "days (0)" in dataset.attrs["relations_left_out"]
    assert np.isnan(dataset["share"].sel(relation="days").values).all()
    assert int(dataset["share_n"].sel(relation="days")) == 0


def test_summary_card_and_figures(atlas) -> None:
    dataset = atlas["successors"]
    lines = make_analysis("successors").summary(dataset)
    assert any(line.startswith("next: 1 heads") and "L1H1" in line for line in lines)
    table = atlas.describe().set_index("name")
    assert "next by weights 92 % of pairs (chance 8 %)" in table.loc["L1H1", "finds"]
    for figure in figures_for("successors"):
        figure.draw(dataset)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt-neox"])
def test_shares_are_those_of_a_slow_computation(name: str, tmp_path: Path) -> None:
    """Word by word, from the weights by their names and the model's own modules."""
    config, _, arguments = SUPPORTED[name]
    causal = {
        "gpt2": "GPT2LMHeadModel",
        "llama": "LlamaForCausalLM",
        "gemma2": "Gemma2ForCausalLM",
        "gpt-neox": "GPTNeoXForCausalLM",
    }
    module = build(config, causal[name], arguments)
    with torch.no_grad():
        for parameter_name, parameter in module.named_parameters():
            if parameter.ndim == 1 and "norm" in parameter_name.replace("ln_", "norm"):
                parameter.add_(torch.rand_like(parameter) * 0.5)
    with HeadModel.open(module) as model:
        structure = find_structure(model)
        tokens = [5, 9, 11, 20, 33]
        vectors = word_vectors(model, structure, tokens)
    bare = module.get_input_embeddings().weight[tokens]
    assert torch.equal(vectors["bare"], bare.detach())
    with torch.no_grad():
        entered = bare
        if name == "gemma2":
            entered = bare * bare.shape[1] ** 0.5
        if name == "gpt2":
            position = module.transformer.wpe.weight[3]
            first = module.transformer.h[0]
            after = entered + first.mlp(first.ln_2(entered + position))
        elif name == "gpt-neox":
            first = module.gpt_neox.layers[0]
            after = entered + first.mlp(first.post_attention_layernorm(entered))
        else:
            first = module.model.layers[0]
            if name == "llama":
                after = entered + first.mlp(first.post_attention_layernorm(entered))
            else:
                written = first.mlp(first.pre_feedforward_layernorm(entered))
                after = entered + first.post_feedforward_layernorm(written)
    assert torch.allclose(vectors["after_mlp"], after, rtol=1e-4, atol=1e-5)


def test_ranks_are_those_of_every_pair(decoder, atlas, pairs_file) -> None:
    """The share of every head, from its matrices one word at a time."""
    model = decoder.model
    tokenizer = decoder.tokenizer
    embedding = model.transformer.wte.weight.detach()
    output = model.lm_head.weight.detach()
    n_heads = 3
    width = embedding.shape[1]
    d_head = model.transformer.h[0].attn.c_proj.weight.shape[0] // n_heads
    gain = model.transformer.ln_f.weight[0]
    pairs = read_word_pairs(pairs_file)["next"]
    candidates = [tokenizer.convert_tokens_to_ids(f"word{number}") for number in range(N_WORDS)]
    candidates = sorted(candidates)
    for layer, head in np.ndindex(2, n_heads):
        attention = model.transformer.h[layer].attn
        columns = slice(2 * width + head * d_head, 2 * width + (head + 1) * d_head)
        value = attention.c_attn.weight.detach()[:, columns]
        projection = attention.c_proj.weight.detach()[head * d_head : (head + 1) * d_head]
        n_right = 0
        for source, target in pairs:
            vector = embedding[tokenizer.convert_tokens_to_ids(source)] * gain
            written = (vector - vector.mean()) @ value @ projection
            written = written - written.mean()
            scores = [float(output[candidate] @ written) for candidate in candidates]
            best = candidates[int(np.argmax(scores))]
            n_right += best == tokenizer.convert_tokens_to_ids(target)
        share = atlas["successors"]["share"].sel(stream="bare", relation="next")
        # Heads that write nothing the output reads give every word the same score up to rounding.
        if (layer, head) in (decoder.where("copying"), decoder.where("induction")):
            assert float(share[layer, head]) == pytest.approx(n_right / len(pairs))


def test_random_weights_have_no_relation() -> None:
    """At a level of 0.05, four models of twenty-four would be many."""
    words = words_of({**SEQUENCES, **RELATIONS})
    n_with = 0
    for seed in range(24):
        module, tokenizer = random_model(causal=True, layers=2, heads=3, words=words, seed=seed)
        with HeadModel.open(module, tokenizer=tokenizer) as model:
            parameters = {"successors": {"turns": 60}}
            dataset = make_atlas(model, CORPUS, ["successors"], parameters=parameters)["successors"]
        significant = make_analysis("successors").significant_heads(dataset)
        n_with += bool(significant.any())
    assert n_with <= 4  # binomial: more in 0.6 % of such tests


def test_turns_are_rotations_evenly_distributed() -> None:
    turns = random_turns(400, 5, 3)
    identity = turns @ turns.transpose(1, 2)
    assert torch.allclose(identity, torch.eye(5).expand_as(identity), atol=1e-5)
    # Every entry has mean 0 and variance 1/5.
    assert float(turns.mean(0).abs().max()) < 0.1
    assert torch.allclose(turns.square().mean(0), torch.full((5, 5), 0.2), atol=0.05)


def test_words_of_several_tokens_are_left_out() -> None:
    module, tokenizer = random_model(causal=True, words=["Monday", "Tuesday", "Wednesday"])
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        tokens = pair_tokens(model, SEQUENCES["days"])
        assert len(tokens) == 2
        all_tokens, relations = relations_in_tokens({"days": tokens})
        assert len(all_tokens) == 3
        assert relations["days"].chance == pytest.approx(1 / 3)
        dataset = make_atlas(model, CORPUS, ["successors"])["successors"]
    assert np.isnan(dataset["share"].values).all()
    assert "days (2)" in dataset.attrs["relations_left_out"]
    lines = make_analysis("successors").summary(dataset)
    assert lines[0] == "No head has a relation by its weights"


def test_damaged_lists_say_where(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("next\ta\tb\nnext\ta\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 2"):
        read_word_pairs(path)
    path.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(InputError, match="no word pairs"):
        read_word_pairs(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_word_pairs(tmp_path / "missing.tsv")
    with pytest.raises(ParameterError, match="`turns`"):
        make_analysis("successors", {"turns": 3})


def test_built_in_lists_have_no_repeated_sources() -> None:
    for name, pairs in {**SEQUENCES, **RELATIONS}.items():
        sources = [source for source, _ in pairs]
        assert len(set(sources)) == len(sources), name
        assert len(pairs) >= 7, name
