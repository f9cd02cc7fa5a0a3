"""Figures of `gradient`, `coreference` and `tree_probe`: drawn from real runs on tiny models,
saying what they must."""

from __future__ import annotations

from functools import cache

import pytest
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.text import Text

from headwise import Corpus, HeadModel, make_atlas, plots
from headwise.testing import random_model
from headwise.testing.corpora import battery_examples

NAMES = {
    "gradient": ["importance", "heads"],
    "coreference": ["antecedents", "heads"],
    "tree_probe": ["uas", "weights"],
}


@cache
def dataset(group: str, causal: bool) -> xr.Dataset:
    module, tokenizer = random_model(causal=causal)
    model = HeadModel.open(module, tokenizer=tokenizer)
    parameters = (
        {"tree_probe": {"epochs": 1, "learning_rate": 0.01}} if group == "tree_probe" else {}
    )
    corpus = Corpus.from_examples(battery_examples(3))
    made = make_atlas(model, corpus, [group], parameters=parameters, full=True)
    return made[group].assign_attrs(model="tiny", corpus="made-up sentences")


def texts(figure: Figure) -> str:
    return "\n".join(
        text.get_text() for text in figure.findobj(Text) if text.get_visible()
    ).replace("\n", " ")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("group", NAMES)
def test_figures_say_what_they_show(
    group: str, causal: bool, request: pytest.FixtureRequest
) -> None:
    if causal:  # where all has room is found for the encoder
        request.getfixturevalue("only_svg")
    data = dataset(group, causal)
    specs = plots.figures_for(group)
    assert [spec.name for spec in specs] == NAMES[group]
    for spec in specs:
        (one,) = spec.draw(data)
        said = texts(one.figure)
        assert "tiny on made-up sentences" in said
        assert "interval" in said.lower()
        assert "$" not in said
        assert "n = " in said or spec.name == "weights"
        assert one.figure.get_size_inches()[0] <= 7.01


def test_what_the_figures_name() -> None:
    data = dataset("coreference", False)
    best = data.sel(mention_type="all")
    said = texts(plots.figures_for("coreference")[0].draw(data)[0].figure)
    assert f"L{int(best['best_layer'])}H{int(best['best_head'])}, best head overall" in said
    assert "proper" not in said  # there is no name in this corpus
    assert f"n = {int(best['count'])} mentions" in said
    assert "masked tokens predicted" in texts(
        plots.figures_for("gradient")[0].draw(dataset("gradient", False))[0].figure
    )
    probe = dataset("tree_probe", False)
    said = texts(plots.figures_for("tree_probe")[0].draw(probe)[0].figure)
    assert f"{100 * float(probe['uas'].sel(probe='right_branching')):.1f} %" in said


def test_nothing_scored_draws_nothing() -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    lone = [e for e in battery_examples() if not e.has_pair][:1]
    data = make_atlas(model, Corpus.from_examples(lone), ["coreference"])["coreference"]
    assert [drawn for spec in plots.figures_for("coreference") for drawn in spec.draw(data)] == []
