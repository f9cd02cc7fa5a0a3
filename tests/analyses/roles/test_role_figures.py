"""Figures of roles, features, pairs and frames: what they draw is what the dataset says, for real
results of small models and made ones."""

from __future__ import annotations

import re

import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from headwise import Corpus, HeadModel, make_atlas, plots
from headwise.analyses.features.figures import from_cls, special_tokens
from headwise.analyses.frames.figures import frame_annotation, frame_heads
from headwise.analyses.roles.figures import role_grid, upset, venn
from headwise.analyses.roles.significance import COARSE_ROLES, FINE_ROLES
from headwise.core.errors import ParameterError
from headwise.plots import style
from headwise.testing import eager_maps, random_model
from headwise.testing.corpora import battery_examples
from headwise.text.example import Example

GROUPS = ("roles", "features", "token_pairs", "frames")


def texts(figure: Figure) -> str:
    return "\n".join(
        text.get_text() for text in figure.findobj(Text) if text.get_visible()
    ).replace("\n", " ")


@pytest.fixture(scope="module", params=[False, True], ids=["encoder", "decoder"])
def atlas(request: pytest.FixtureRequest) -> dict[str, xr.Dataset]:
    module, tokenizer = random_model(causal=request.param)
    model = HeadModel.open(module, tokenizer=tokenizer)
    parameters = {
        "frames": {"min_distance": 1, "max_words": 40, "permutations": 20, "core": False},
        "roles": {"bootstrap": 50, "random_models": 1},
        "token_pairs": {"random_models": 1},
    }
    computed = make_atlas(
        model, Corpus.from_examples(battery_examples()), list(GROUPS), parameters=parameters
    )
    return {
        name: computed[name].assign_attrs(model="tiny-bert", corpus="made-up sentences")
        for name in GROUPS
    }


@pytest.mark.parametrize("group", GROUPS)
def test_figures_say_what_they_show(
    atlas: dict[str, xr.Dataset], group: str, request: pytest.FixtureRequest
) -> None:
    if "decoder" in request.node.name:  # where all has room is found for the encoder
        request.getfixturevalue("only_svg")
    drawn = [one for spec in plots.figures_for(group) for one in spec.draw(atlas[group])]
    assert drawn
    for one in drawn:
        text_of_figure = texts(one.figure)
        assert re.search(r"n = \d", text_of_figure), one.name
        assert "interval" in text_of_figure, one.name
        assert "tiny-bert on made-up sentences" in text_of_figure, one.name
        width, height = one.figure.get_size_inches()
        assert width <= style.PAGE + 1e-6
        assert height <= 9.5
        assert (
            min(
                t.get_fontsize()
                for t in one.figure.findobj(Text)
                if t.get_visible() and t.get_text()
            )
            >= style.SMALL
        )
        assert one.caption
        assert one.paper


def roles_dataset(layers: int = 4, heads: int = 5, seed: int = 0) -> xr.Dataset:
    """A dataset of roles with random decisions."""
    rng = np.random.default_rng(seed)
    roles = list(dict.fromkeys([*COARSE_ROLES, *FINE_ROLES]))
    has = rng.random((layers, heads, len(roles))) < 0.4
    bias = np.where(has, 5.0, 1.0)
    return xr.Dataset(
        {
            "bias": (("layer", "head", "role"), bias),
            "bias_n": (("layer", "head", "role"), np.full(bias.shape, 50)),
            "has_role": (("layer", "head", "role"), has),
            "ceiling": (("layer", "role"), np.full((layers, len(roles)), 9.0)),
        },
        {"layer": range(layers), "head": range(heads), "role": roles},
        {"tau": 3.0},
    )


@pytest.mark.parametrize(("layers", "heads"), [(4, 5), (1, 2), (24, 16)])
def test_the_grid_has_a_small_square_for_each_role_of_each_head(
    layers: int, heads: int, not_laid_out: None
) -> None:
    dataset = roles_dataset(layers, heads)
    figure = role_grid(dataset)
    big, *small = [c for c in figure.axes[0].collections if isinstance(c, PatchCollection)]
    assert len(big.get_paths()) == layers * heads
    for role, patches in zip(FINE_ROLES, small, strict=True):
        has = dataset["has_role"].sel(role=role)
        assert len(patches.get_paths()) == int(has.sum())
        assert f"{role} ({int(has.sum())})" in texts(figure)
    # sorted within the layer: the number of small squares never rises from one rank to the next
    counts = np.zeros((layers, heads), dtype=int)
    for patches in small:
        for path in patches.get_paths():
            x, y = path.vertices[:4].mean(0)
            counts[round(y), round(x)] += 1
    assert (np.diff(counts, axis=1) <= 0).all()
    assert (
        counts.sum(1).tolist()
        == dataset["has_role"].sel(role=list(FINE_ROLES)).sum(["head", "role"]).values.tolist()
    )


def test_venn_and_upset_count_every_head_once(not_laid_out: None) -> None:
    dataset = roles_dataset(6, 6)
    members = dataset["has_role"].sel(role=list(COARSE_ROLES)).values.reshape(-1, 4)
    labels = [text.get_text() for text in venn(dataset).axes[0].texts]
    inside = sum(int(t) for t in labels if t.isdigit())
    outside = int(re.search(r"none of the four: (\d+) of 36 heads", " ".join(labels))[1])
    assert inside + outside == 36
    assert outside == (~members.any(1)).sum()
    assert "local\n" + str(members[:, 0].sum()) in labels
    figure = upset(dataset)
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    assert sum(heights) == 36
    assert heights == sorted(heights, reverse=True)
    _, counts = np.unique(members, axis=0, return_counts=True)
    assert sorted(heights) == sorted(counts)
    assert len(upset(dataset, most=2).axes[0].patches) == 2
    (none,) = [text for text in figure.axes[0].texts if text.get_text() == "none"]
    assert heights[round(none.get_position()[0])] == outside


def test_every_number_of_the_venn_lies_in_its_region_and_every_name_outside() -> None:
    dataset = roles_dataset(8, 8, seed=2)
    members = dataset["has_role"].sel(role=list(COARSE_ROLES)).values.reshape(-1, 4)
    ax = venn(dataset).axes[0]
    outlines = [patch for patch in ax.patches if not patch.get_fill()]
    seen = set()
    for text in ax.texts:
        covering = tuple(
            bool(patch.contains_point(ax.transData.transform(text.get_position())))
            for patch in outlines
        )
        if text.get_text().isdigit():
            assert int(text.get_text()) == (members == covering).all(1).sum()
            seen.add(covering)
        else:
            assert not any(covering), text.get_text()
    assert len(seen) == 15


def test_the_legend_of_the_grid_lies_as_the_small_squares_do() -> None:
    figure = role_grid(roles_dataset())
    figure.draw_without_rendering()  # only then a legend has a place
    placed = {
        text.get_text().split(" ")[0]: text.get_window_extent()
        for text in figure.legends[0].get_texts()
    }
    rows = [list(FINE_ROLES)[start : start + 3] for start in (0, 3, 6)]
    for row in rows:
        assert placed[row[0]].x0 < placed[row[1]].x0 < placed[row[2]].x0
        assert placed[row[0]].y0 == pytest.approx(placed[row[2]].y0, abs=1)
    assert placed["nsubj"].y0 > placed["advmod"].y0 > placed["block"].y0


def test_counts_are_of_the_roles_that_are_shown(not_laid_out: None) -> None:
    dataset = roles_dataset()
    dataset["bias_n"].loc[{"role": "sep"}] = 7
    assert "n = 50 inputs" in texts(venn(dataset))
    assert "n = 7 to 50 inputs" in texts(role_grid(dataset))


def test_missing_and_unreachable_roles_are_named(not_laid_out: None) -> None:
    dataset = roles_dataset()
    dataset["bias"].loc[{"role": "syntactic"}] = np.nan
    dataset["ceiling"].loc[{"role": "block"}] = 2.1
    text_of_figure = texts(venn(dataset))
    assert (
        "Not computed, for this corpus or model lacks what they need: syntactic" in text_of_figure
    )
    assert "syntactic not computed" in text_of_figure  # not: none
    assert "lacks what they need: syntactic" in texts(upset(dataset))
    assert "No head can have block at this τ" in text_of_figure
    dataset["bias"][:] = np.nan
    with pytest.raises(ParameterError, match="nothing can be drawn"):
        upset(dataset)


def test_several_tasks_side_by_side(atlas: dict[str, xr.Dataset]) -> None:
    features = atlas["features"]
    if not np.isfinite(features["from_cls"]).any():
        pytest.skip("a decoder has no [CLS] to look from")
    figure = from_cls({"MRPC": features, "RTE": features, "SST-2": features})
    assert "(c) SST-2" in texts(figure)
    assert len({ax.images[0].get_clim() for ax in figure.axes if ax.images}) == 1
    with pytest.raises(ParameterError, match="empty"):
        from_cls({})
    plain = features.drop_attrs(deep=False)
    assert (
        texts(from_cls(plain)).count(", n =") == 0
    )  # nothing stands before the comma where model and corpus are not known
    tasks = {"MRPC": features, "RTE": features, "SST-2": features, "QNLI": features}
    figure = special_tokens(tasks)
    panels = [ax for ax in figure.axes if ax.images]
    assert [ax.get_title(loc="left").split(") ")[1] for ax in panels] == [
        f"{task}: [{kind}]" for kind in ("SEP", "CLS") for task in tasks
    ]
    assert len({round(ax.get_position().y0, 3) for ax in panels}) == 2
    np.testing.assert_allclose(
        panels[5].images[0].get_array(), features["attention"].sel(feature="cls")
    )
    with pytest.raises(ParameterError, match="at least one dataset"):
        special_tokens({})


def test_frame_drawings(atlas: dict[str, xr.Dataset], not_laid_out: None) -> None:
    example = battery_examples()[0]
    text_of_figure = texts(frame_annotation(example))
    assert "Perception" in text_of_figure
    assert "Phenomenon" in text_of_figure
    with pytest.raises(ParameterError, match="no frame links"):
        frame_annotation(Example(words=("a",)))
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    row = model.encode(example, 0)
    (maps,) = eager_maps(model, [row])
    figure = frame_heads(atlas["frames"], row.pieces, maps, [4], [5, 6])
    best = np.unravel_index(int(np.nanargmax(atlas["frames"]["score"])), (2, 3))
    assert f"L{best[0]}H{best[1]}" in texts(figure)
    with pytest.raises(ParameterError, match="`maps` must be"):
        frame_heads(atlas["frames"], ["a"], maps, [0], [0])
