"""The check on random weights: no significant heads there, and an analysis that has some fails."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from transformers import LlamaConfig, LlamaForCausalLM

from headwise.analyses.contract import make_analysis
from headwise.testing import RandomRuns, check_random_models, random_calls, random_model
from headwise.testing.levels import (
    OF_DECODERS,
    TESTED,
    HeadGain,
    level_examples,
    sharpen_weights,
)
from headwise.text.demo import demo_examples


@pytest.fixture(scope="module")
def calls():
    """A network looks at every map for `patterns`: it sees fewer examples."""
    examples = level_examples()
    rest = [name for name in TESTED if name != "patterns"]
    found = []
    for names, seed, gains, causal in (
        (rest, 3, (1.0, 6.0), False),
        ([*rest, *OF_DECODERS], 2, (1.0,), True),
    ):
        runs = RandomRuns(seeds=(seed,), gains=gains, causal=causal, layers=2, heads=4)
        parts = [
            random_calls(names, examples[:70], runs),
            random_calls(["patterns"], examples[:24], runs),
        ]
        found.append(pd.concat(parts))
    return found


def test_no_head_is_significant_on_random_weights(calls) -> None:
    """The quick form of `benchmarks/random_models.py`."""
    assert set(calls[0]["analysis"]) == set(TESTED)
    assert set(calls[1]["analysis"]) == {*TESTED, *OF_DECODERS}
    assert (calls[0]["heads"] == 8).all()
    for found in calls:
        check_random_models(found)
        assert found["significant"].sum() == 0, found[found["significant"] > 0].to_string()


def test_the_paper_s_bare_rule_gives_random_heads_roles_and_fails() -> None:
    """Its τ is 1 or 2 by chance, and one head in a few random models is above it: what the check is
    for."""
    bare = make_analysis(
        "roles", {"tau": "paper", "bootstrap": 0, "sieves": "local,cls,delimiter,first,sep"}
    )
    found = random_calls(
        [bare], demo_examples(40), RandomRuns(seeds=(0, 1, 2), gains=(6.0,), layers=2, heads=4)
    )
    assert (found["significant"] > 0).sum() >= 2
    assert found["what"].str.contains(r"^L\dH\d ").sum() >= 2
    with pytest.raises(
        AssertionError,
        match=r"roles has significant heads in \d of 3 random-weights models: L\dH\d",
    ):
        check_random_models(found)


def test_significant_heads_of_an_analysis() -> None:
    p = xr.DataArray([[0.01, 0.5]], dims=("layer", "head"))
    analysis = make_analysis("dependency")
    assert analysis.significant_heads(xr.Dataset({"p_adjusted": p})).values.tolist() == [
        [True, False]
    ]
    assert analysis.significant_heads(xr.Dataset({"accuracy": p})) is None
    assert make_analysis("surface").significant_heads(xr.Dataset({"entropy": p})) is None
    both = xr.DataArray([[[0.01, 0.01]], [[0.01, 0.5]]], dims=("baseline", "layer", "head"))
    assert make_analysis("coreference").significant_heads(
        xr.Dataset({"p_adjusted": both})
    ).values.tolist() == [[True, False]]


@pytest.mark.parametrize("causal", [False, True])
def test_a_gain_by_head_multiplies_query_and_key_of_each_head(causal: bool) -> None:
    """BERT has matrices of their own, GPT-2 one for query, key and value."""
    model, _ = random_model(causal=causal, layers=2, heads=3, d_head=4)
    before = {}
    for name, parameter in model.named_parameters():
        before[name] = parameter.detach().clone().numpy()
    sharpen_weights(model, HeadGain(1.0, 3.0, rising=True))
    by_dim = np.repeat([1.0, 2.0, 3.0], 4)
    for name, parameter in model.named_parameters():
        expected = np.ones(1)
        if ".1." in name and (".query." in name or ".key." in name):
            expected = by_dim
        elif ".1." in name and ".c_attn." in name:
            expected = np.concatenate([by_dim, by_dim, np.ones(12)])
        if not causal and parameter.ndim == 2:
            expected = expected[:, None]
        np.testing.assert_allclose(parameter.detach().numpy(), before[name] * expected, rtol=1e-6)


def test_a_gain_by_head_multiplies_scores_of_heads_that_share_keys() -> None:
    """Four heads on two keys: a head's scores are multiplied by the square of its own factor."""
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
    )
    torch.manual_seed(0)
    module = LlamaForCausalLM(config).eval()
    ids = torch.arange(6)[None]
    hidden = module.model.embed_tokens(ids)

    def scores() -> torch.Tensor:
        attention = module.model.layers[0].self_attn
        query = attention.q_proj(hidden).unflatten(-1, (4, 4)).transpose(1, 2)
        key = attention.k_proj(hidden).unflatten(-1, (2, 4)).transpose(1, 2)
        return query @ key.repeat_interleave(2, dim=1).transpose(-1, -2)

    with torch.no_grad():
        for bias in ("q_proj.bias", "k_proj.bias"):
            module.get_parameter(f"model.layers.0.self_attn.{bias}").normal_()
        before = scores()
        sharpen_weights(module, HeadGain(1.0, 4.0))
        factors = torch.tensor([1.0, 2.0, 3.0, 4.0]).square()
        torch.testing.assert_close(scores(), before * factors[:, None, None])
