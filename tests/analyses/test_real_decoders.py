"""The questions for decoders on real models: SmolLM2-135M where HEADWISE_SMOLLM2 names its folder,
and stories15M."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise import make_atlas
from headwise.models import HeadModel
from headwise.models.direct import Recorded, adds_up
from headwise.models.structure import find_structure

TEXTS = [
    "The keys near the old door are",
    "Once upon a time there was a little girl who lived near the sea.",
]


@pytest.fixture(scope="module")
def smollm2():
    folder = os.environ.get("HEADWISE_SMOLLM2")
    if not folder or not Path(folder).is_dir():
        pytest.skip("HEADWISE_SMOLLM2 does not point at SmolLM2-135M")
    with HeadModel.open(folder, device="cpu") as model:
        yield model


def check_parts(model: HeadModel) -> None:
    batch = model.batch(TEXTS)
    direct = Recorded(model, find_structure(model), batch).direct(torch.roll(batch.ids, -1, 1))
    assert adds_up(direct, batch.attention_mask) < 1e-4


@pytest.mark.real
def test_the_parts_of_stories_add_up(stories: Path) -> None:
    with HeadModel.open(stories, device="cpu") as model:
        check_parts(model)


@pytest.mark.real
@pytest.mark.slow
def test_smollm2_has_induction_heads(smollm2: HeadModel) -> None:
    check_parts(smollm2)
    small = {"sequences": 4, "draws": 3, "confirm": 2}
    found = make_atlas(smollm2, analyses=["induction"], limit=2, parameters={"induction": small})[
        "induction"
    ]
    assert found.attrs["gain"] > 5
    assert found["prefix_matching"].values[18, 6] > 0.7  # L18H6
    assert found["prefix_matching_p_adjusted"].values[18, 6] < 0.05
    assert found.attrs["disabled_effect"] > found["drawn_effect"].values.max()


@pytest.mark.real
@pytest.mark.slow
def test_previous_token_heads_compose_into_the_induction_head(smollm2: HeadModel) -> None:
    found = make_atlas(smollm2, analyses=["circuits"], limit=2)["circuits"]
    into = found["composition"].sel(side="key", head_b="L18H6")
    order = np.argsort(-np.nan_to_num(into.values, nan=-1.0))
    assert {str(into["head_a"].values[i]) for i in order[:2]} == {"L16H0", "L17H8"}
    assert (
        float(found["composition_p_adjusted"].sel(side="key", head_a="L16H0", head_b="L18H6"))
        < 1e-6
    )
