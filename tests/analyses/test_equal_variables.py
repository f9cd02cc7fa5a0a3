"""Variables that are defined alike in several analyses have the same values in one atlas."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from headwise import make_atlas
from headwise.atlas import Atlas
from headwise.models import HeadModel
from headwise.testing import planted_decoder, random_model
from headwise.text import Corpus, open_corpus

ANALYSES = ["surface", "sinks", "opening_token", "roles"]
MIN_TOKENS = 3  # `sinks` leaves out shorter inputs, `surface` does not

# Pairs of variables, as group and name.
EQUAL = [
    (("sinks", "rest_entropy"), ("surface", "entropy_rest")),
    (("sinks", "rest_largest"), ("surface", "max_weight_rest")),
    (("sinks", "rest_mass"), ("surface", "mass_rest")),
    (("sinks", "first"), ("opening_token", "first_with")),
    (("sinks", "rate"), ("opening_token", "rate_with")),
    (("sinks", "first"), ("roles", "resting")),
]


def real_text(model: HeadModel) -> Corpus:
    """Sentences of the built-in corpus that are long enough for every analysis."""
    examples = []
    for example in open_corpus(limit=24):
        if len(model.encode(example.text)) > MIN_TOKENS:
            examples.append(example)
    return Corpus.from_texts([example.text for example in examples])


def planted() -> tuple[object, object]:
    decoder = planted_decoder(words=30, max_length=64)
    return decoder.model, decoder.tokenizer


def sharp_random() -> tuple[object, object]:
    """Random weights, so sharp that some rows leave between 1e-6 and 1e-4 to other tokens."""
    module, tokenizer = random_model(causal=True, layers=3, heads=4, max_length=64)
    for name, parameter in module.named_parameters():
        if "c_attn.weight" in name:
            parameter.data.mul_(6)
    return module, tokenizer


@pytest.fixture(scope="module", params=[planted, sharp_random], ids=["planted", "random"])
def atlas(request: pytest.FixtureRequest) -> Atlas:
    module, tokenizer = request.param()
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        return make_atlas(model, real_text(model), ANALYSES, full=True)


def values_of(atlas: Atlas, group: str, name: str, like: xr.DataArray | None = None) -> np.ndarray:
    variable = atlas[group][name]
    if like is not None and "token_type" in like.dims:
        variable = variable.sel(token_type=like["token_type"].values)
    return np.asarray(variable.values)


@pytest.mark.parametrize(("first", "second"), EQUAL, ids=lambda pair: ".".join(pair))
def test_variables_defined_alike_are_equal(
    atlas: Atlas, first: tuple[str, str], second: tuple[str, str]
) -> None:
    expected = values_of(atlas, *first)
    found = values_of(atlas, *second, like=atlas[first[0]][first[1]])
    known = np.isfinite(found)  # a token type that the corpus lacks is NaN in `surface` alone
    if first[1] != "rest_mass":
        np.testing.assert_array_equal(known, np.isfinite(expected))
    assert known.any()
    np.testing.assert_allclose(found[known], expected[known], rtol=1e-5, atol=1e-6)


def test_the_rows_counted_are_the_same(atlas: Atlas) -> None:
    """The number of examples behind each mean, which depends on the threshold too."""
    np.testing.assert_array_equal(
        atlas["sinks"]["rest_entropy_n"], atlas["surface"]["entropy_rest_n"]
    )
