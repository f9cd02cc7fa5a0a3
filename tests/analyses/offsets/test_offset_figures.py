"""Figures of relative positions: the printed range, chosen layers, languages in one panel, and
nothing beside attention that was measured on other inputs."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import synthetic
from headwise.analyses.offsets.figures import (
    centre_lines,
    centre_of_mass,
    histogram_grid,
    histogram_wide,
    same_inputs,
)
from headwise.core.errors import ParameterError
from headwise.plots import style


def measured(few: int) -> xr.Dataset:
    dataset = synthetic.offsets(4, 3, sources=3, reach=70)
    counts = np.full((3, 4, 3), 400)
    counts[1:] = few
    return dataset.assign(mean_offset_n=(("source", "layer", "head"), counts))


def test_sources_of_other_inputs_are_not_drawn_beside_attention() -> None:
    assert list(same_inputs(measured(12))["source"].values) == ["attention"]
    assert list(same_inputs(measured(400))["source"].values) == [
        "attention",
        "previous_layer",
        "input",
    ]
    with style.context():
        legends = [
            [text.get_text() for text in centre_of_mass(measured(few)).legends[0].get_texts()]
            for few in (12, 400)
        ]
    assert [len(legend) for legend in legends] == [1, 3]


def test_the_printed_range_and_chosen_layers() -> None:
    with style.context():
        told = [text.get_text() for text in histogram_wide(measured(12)).legends[0].get_texts()]
        part = histogram_grid(measured(12), layers=[1, 3])
    assert told[0] == "before the token (−63 to −1)"
    assert told[2] == "after the token (1 to 63)"
    assert [tick.get_text() for tick in part.axes[0].get_yticklabels()] == ["1", "3"]
    with pytest.raises(ParameterError, match="`layers` must name layers from 0 to 3"):
        histogram_grid(measured(12), layers=[4])


def test_languages_stand_in_one_panel() -> None:
    datasets = {"English": measured(12), "German": synthetic.offsets(4, 3, seed=1)}
    with style.context():
        figure = centre_lines(datasets)
    lines = {
        line.get_label(): line.get_ydata()
        for line in figure.axes[0].lines
        if line.get_label() in datasets
    }
    for name, dataset in datasets.items():
        np.testing.assert_allclose(
            lines[name], np.nanmean(dataset["centre"].sel(source="attention").values, 1)
        )
    with pytest.raises(ParameterError, match="`datasets` must name"):
        centre_lines({})
