"""Offsets: every variable follows its definition, on maps computed by plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from headwise import Corpus, HeadModel, make_atlas
from headwise.analyses.offsets.analysis import Offsets
from headwise.core.errors import ParameterError
from headwise.testing import eager_maps, random_model
from headwise.testing.corpora import battery_examples


@pytest.fixture(scope="module", params=[False, True], ids=["encoder", "decoder"])
def model(request: pytest.FixtureRequest) -> HeadModel:
    module, tokenizer = random_model(causal=request.param)
    return HeadModel.open(module, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_examples(battery_examples())


@pytest.fixture(scope="module")
def maps(model: HeadModel, corpus: Corpus) -> list[np.ndarray]:
    """The maps `[layer, head, query, key]` of every example."""
    all_maps = []
    for index, example in enumerate(corpus):
        (map_of_row,) = eager_maps(model, [model.encode(example, index)])
        all_maps.append(np.asarray(map_of_row, dtype=float))
    return all_maps


def offsets_dataset(model: HeadModel, corpus: Corpus, **parameters: object) -> xr.Dataset:
    dataset = make_atlas(model, corpus, ["offsets"], parameters={"offsets": parameters})["offsets"]
    return dataset.sel(source="attention")


def visible_pairs(model: HeadModel, length: int) -> list[tuple[int, int]]:
    is_causal = model.causal
    return [(i, j) for i in range(length) for j in range(length) if j <= i or not is_causal]


def expected_histogram(
    model: HeadModel, maps: list[np.ndarray], reach: int
) -> dict[int, np.ndarray]:
    """Mean weight `[layer, head]` at each offset, every visible pair alike."""
    totals: dict[int, np.ndarray] = {}
    counts: dict[int, int] = {}
    for weights in maps:
        for i, j in visible_pairs(model, weights.shape[-1]):
            offset = j - i
            if abs(offset) <= reach:
                totals[offset] = totals.get(offset, 0) + weights[..., i, j]
                counts[offset] = counts.get(offset, 0) + 1
    return {offset: totals[offset] / counts[offset] for offset in totals}


def test_histogram_and_centre_follow_the_definition(
    model: HeadModel, corpus: Corpus, maps: list[np.ndarray]
) -> None:
    dataset = offsets_dataset(model, corpus)
    longest = max(weights.shape[-1] for weights in maps)
    expected = expected_histogram(model, maps, longest)
    for offset in map(int, dataset["offset"].values):
        histogram = dataset["histogram"].sel(offset=offset).transpose("layer", "head").values
        if offset in expected:
            np.testing.assert_allclose(histogram, expected[offset], atol=1e-5)
        else:
            assert np.isnan(histogram).all()  # no visible pair has this offset
    total = sum(expected.values())
    moment = sum(offset * mean for offset, mean in expected.items())
    centre = dataset["centre"].transpose("layer", "head").values
    np.testing.assert_allclose(centre, moment / total, atol=1e-4)


def test_mean_offset_and_distance_are_means_over_rows_then_examples(
    model: HeadModel, corpus: Corpus, maps: list[np.ndarray]
) -> None:
    dataset = offsets_dataset(model, corpus)
    mean_offsets = []
    mean_distances = []
    for weights in maps:
        position = np.arange(weights.shape[-1])
        offset = position[None] - position[:, None]
        mean_offsets.append((weights * offset).sum(-1).mean(-1))
        mean_distances.append((weights * np.abs(offset)).sum(-1).mean(-1))
    for name, values in (("mean_offset", mean_offsets), ("mean_distance", mean_distances)):
        computed = dataset[name].transpose("layer", "head").values
        np.testing.assert_allclose(computed, np.mean(values, axis=0), rtol=1e-4, atol=1e-5)
        assert (dataset[f"{name}_n"] == len(maps)).all()
        assert (dataset[f"{name}_low"] <= dataset[name]).all()
        assert (dataset[name] <= dataset[f"{name}_high"]).all()


def test_mass_beyond_the_reach_is_counted_apart(
    model: HeadModel, corpus: Corpus, maps: list[np.ndarray]
) -> None:
    dataset = offsets_dataset(model, corpus, reach=2)
    offsets = [-2, -1, 0] if model.causal else [-2, -1, 0, 1, 2]
    assert dataset["offset"].values.tolist() == offsets
    beyond_of_examples = []
    for weights in maps:
        position = np.arange(weights.shape[-1])
        is_beyond = np.abs(position[None] - position[:, None]) > 2
        beyond_of_examples.append((weights * is_beyond).sum(-1).mean(-1))
    beyond = dataset["beyond"].transpose("layer", "head").values
    np.testing.assert_allclose(beyond, np.mean(beyond_of_examples, axis=0), atol=1e-5)


def test_weighting_by_tokens_counts_every_row_once(
    model: HeadModel, corpus: Corpus, maps: list[np.ndarray]
) -> None:
    dataset = offsets_dataset(model, corpus, weighting="tokens")
    total = 0.0
    n_rows = 0
    for weights in maps:
        position = np.arange(weights.shape[-1])
        total = total + (weights * (position[None] - position[:, None])).sum((-1, -2))
        n_rows += weights.shape[-1]
    mean_offset = dataset["mean_offset"].transpose("layer", "head").values
    np.testing.assert_allclose(mean_offset, total / n_rows, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"reach": 0}, "`reach` must be at least 1"),
        ({"weighting": "words"}, "`weighting`|weighting"),
    ],
)
def test_bad_parameters(parameters: dict, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Offsets(**parameters)
