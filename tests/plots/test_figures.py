"""Every registered figure: drawn for several shapes of model, saying what it must, and saved to the
same bytes twice."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

import synthetic
from headwise import plots
from headwise.analyses.offsets import figures as offset_figures
from headwise.analyses.surface import figures as surface_figures
from headwise.core.errors import OutputError, ParameterError
from headwise.plots import style

SHAPES = [
    (4, 3, False),
    (1, 4, False),
    (2, 1, True),
    *(
        pytest.param(*shape, marks=pytest.mark.slow)
        for shape in [(12, 12, False), (30, 9, True), (24, 16, False)]
    ),
]
LAID_OUT = (24, 16)  # the fullest; what is said does not depend on where it finds room
MADE = {"surface": synthetic.surface, "offsets": synthetic.offsets}
# Figures of conversations need roles, which made-up sentences have not: tests of surface draw them.
ALL = [
    (group, spec.name)
    for group in MADE
    for spec in plots.figures_for(group)
    if spec.name != "roles"
]


def spec_of(group: str, name: str) -> plots.FigureSpec:
    return next(spec for spec in plots.figures_for(group) if spec.name == name)


def texts(figure: Figure) -> str:
    return "\n".join(
        text.get_text() for text in figure.findobj(Text) if text.get_visible()
    ).replace("\n", " ")


def test_all_figures_of_the_two_groups_are_registered() -> None:
    assert [spec.name for spec in plots.figures_for("surface")] == [
        "token-types",
        "roles",
        "positions",
        "entropy",
        "max-weight",
        "heads",
    ]
    assert [spec.name for spec in plots.figures_for("offsets")] == [
        "histogram",
        "histogram-wide",
        "centre",
        "distance",
    ]
    assert plots.figures_for("no such group") == []


@pytest.mark.parametrize(("layers", "heads", "causal"), SHAPES)
@pytest.mark.parametrize(("group", "name"), ALL)
def test_figures_say_what_they_show(
    group: str, name: str, layers: int, heads: int, causal: bool, request: pytest.FixtureRequest
) -> None:
    if (layers, heads) != LAID_OUT:
        request.getfixturevalue("only_svg")
    dataset = MADE[group](layers, heads, causal=causal, n=137)
    drawn = spec_of(group, name).draw(dataset)
    assert drawn
    for one in drawn:
        said = texts(one.figure)
        assert "n = 137 examples" in said
        assert "interval" in said
        assert "tiny-bert on made-up sentences" in said
        assert "layer" in said
        width, height = one.figure.get_size_inches()
        assert width <= style.PAGE + 1e-6
        assert height <= 9.5
        sizes = [
            text.get_fontsize()
            for text in one.figure.findobj(Text)
            if text.get_visible() and text.get_text()
        ]
        assert min(sizes) >= style.SMALL
        assert one.caption
        assert one.paper


@pytest.mark.usefixtures("only_svg")
@pytest.mark.parametrize(
    ("group", "name", "unit"),
    [
        ("surface", "entropy", "nats"),
        ("surface", "token-types", "share of 1"),
        ("offsets", "centre", "tokens"),
        ("offsets", "histogram", "share of 1"),
    ],
)
def test_figures_name_their_unit(group: str, name: str, unit: str) -> None:
    assert unit in texts(spec_of(group, name).draw(MADE[group](3, 4))[0].figure)


def points(figure: Figure, axes: int = 0) -> list[np.ndarray]:
    return [
        np.asarray(c.get_offsets())
        for c in figure.axes[axes].collections
        if isinstance(c, PathCollection)
    ]


def test_every_head_is_one_point_at_its_layer_and_value() -> None:
    dataset = synthetic.surface(5, 4)
    figure = surface_figures.token_types(dataset)
    assert len(figure.axes) == 3
    for axes, variable in enumerate(("mass", "mass_from_sep", "mass_from_other")):
        values = dataset[variable].sel(token_type=["cls", "sep", "punct", "other"]).values
        for kind, seen in enumerate(points(figure, axes)):
            assert np.array_equal(np.round(seen[:, 0]), np.repeat(np.arange(5), 4))
            assert seen[:, 1] == pytest.approx(values[..., kind].ravel())


def test_the_line_is_the_mean_over_heads_and_the_bars_are_the_interval() -> None:
    dataset = synthetic.surface(5, 4)
    dataset["max_weight"][2, 1] = np.nan
    dataset["max_weight"][4] = np.nan
    axes = surface_figures.max_weight(dataset).axes[0]
    line = axes.lines[-1].get_ydata()
    values = dataset["max_weight"].values
    assert line[:4] == pytest.approx(
        [np.mean([v for v in row if not np.isnan(v)]) for row in values[:4]]
    )
    assert np.isnan(line[4])
    bars = next(c for c in axes.collections if isinstance(c, LineCollection)).get_segments()
    assert len(bars) == 20
    assert np.array(bars)[:, 0, 1] == pytest.approx(dataset["max_weight_low"].values.ravel())
    assert np.array(bars)[:, 1, 1] == pytest.approx(dataset["max_weight_high"].values.ravel())


def test_the_best_head_of_each_position_is_named() -> None:
    dataset = synthetic.surface(4, 6)
    dataset["position"][:] = 0.1
    dataset["position"][3, 5, 0] = 0.9
    dataset["position"][1, 2, 2] = 0.8
    said = texts(surface_figures.positions(dataset))
    assert "L3H5" in said
    assert "L1H2" in said


@pytest.mark.usefixtures("only_svg")
def test_entropy_draws_the_uniform_reference_where_it_is_known() -> None:
    dataset = synthetic.surface(3, 4)
    assert "uniform attention: 4.72 nats" in texts(surface_figures.entropy(dataset))
    bare = dataset.drop_vars("entropy_uniform")
    assert "uniform attention:" not in texts(surface_figures.entropy(bare))
    layered = bare.assign(entropy_uniform=("layer", [4.0, 3.0, 2.0]))
    figure = surface_figures.entropy(layered)
    assert "uniform attention: by layer" in texts(figure)
    stairs = next(patch for patch in figure.axes[0].patches if hasattr(patch, "get_data"))
    assert list(stairs.get_data().values) == [4.0, 3.0, 2.0]


def test_a_logarithmic_axis_has_plain_numbers() -> None:
    with style.context():
        figure = style.new_figure(3, 2)
        ax = figure.subplots()
        ax.plot([0, 1, 2], [0.5, 30, 2000])
        style.log_axis(ax.yaxis)
        style.finish(figure)
        assert ax.get_yscale() == "log"
        assert {"1", "10", "100", "1000"} <= {tick.get_text() for tick in ax.get_yticklabels()}
    assert "$" not in texts(figure)


def test_a_finished_figure_is_drawn_once_when_it_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = surface_figures.max_weight(synthetic.surface(3, 4))
    drawn: list[int] = []
    monkeypatch.setattr(figure.axes[0], "draw", lambda renderer: drawn.append(1))
    plots.figure_bytes(figure, "svg")
    assert len(drawn) == 1


@pytest.mark.usefixtures("only_svg")
def test_what_a_decoder_lacks_is_left_out() -> None:
    dataset = synthetic.surface(3, 4, causal=True)
    figure = surface_figures.entropy(dataset)
    assert len(figure.axes) == 2
    assert "the first token left out" in texts(figure)
    figure = surface_figures.token_types(dataset)
    assert len(figure.axes) == 1
    assert "first: the first token" in texts(figure)
    drawn = (figure, surface_figures.entropy(dataset), surface_figures.heads(dataset))
    assert not any(word in texts(one) for one in drawn for word in ("cls", "sep:", "sep tokens"))
    assert "first token left out: to the previous" in texts(surface_figures.heads(dataset))
    encoder = synthetic.surface(3, 4)
    assert "first:" not in texts(
        surface_figures.token_types(encoder)
    )  # it is the same token as cls
    assert "left out" not in texts(surface_figures.heads(encoder))
    before = encoder.sel(token_type=["cls", "sep", "punct", "other"]).drop_vars(
        ["mass_rest", "position_rest"]
    )
    assert "cls: the opening" in texts(surface_figures.token_types(before))
    assert surface_figures.heads(before)
    assert "after the token" not in texts(
        offset_figures.histogram_grid(synthetic.offsets(3, 4, causal=True))
    )


def test_a_figure_without_numbers_is_not_drawn() -> None:
    dataset = synthetic.surface(3, 4)
    dataset["entropy"][:] = np.nan
    assert spec_of("surface", "entropy").draw(dataset) == []
    assert spec_of("surface", "entropy").draw(xr.Dataset()) == []


@pytest.mark.usefixtures("only_svg")
def test_one_histogram_figure_per_source_that_has_numbers() -> None:
    drawn = spec_of("offsets", "histogram").draw(synthetic.offsets(2, 3, sources=2))
    assert [one.name for one in drawn] == ["histogram-attention", "histogram-previous-layer"]
    assert "attention" in texts(drawn[0].figure)
    assert "contribution of the previous layer" in texts(drawn[1].figure)
    with pytest.raises(ParameterError, match="attention, previous_layer"):
        offset_figures.histogram_grid(synthetic.offsets(2, 3, sources=2), source="input")


def test_histogram_bars_stand_in_their_cell_at_their_offset() -> None:
    dataset = synthetic.offsets(3, 4, sources=1)
    dataset["histogram"][:] = 0.0
    dataset["histogram"].loc[{"layer": 1, "head": 2, "offset": -3}] = 0.5
    figure = offset_figures.histogram_grid(dataset, window=5)
    before = next(c for c in figure.axes[0].collections if isinstance(c, PolyCollection))
    raised = [path.vertices for path in before.get_paths() if np.ptp(path.vertices[:, 1]) > 0.1]
    assert len(raised) == 1
    top = raised[0][raised[0][:, 1] < raised[0][:, 1].max() - 0.1]
    slot = 0.92 / 11  # eleven offsets, −5 to 5, in a cell of 0.92
    assert top[:, 0].min() == pytest.approx(2 - 0.46 + 2 * slot)
    assert top[:, 0].max() == pytest.approx(2 - 0.46 + 3 * slot)
    assert raised[0][:, 1].max() == pytest.approx(
        1.97
    )  # the floor of layer 1; the axis points down
    low, high = figure.axes[0].get_ylim()
    assert low > high
    assert ".50" in texts(figure)


@pytest.mark.usefixtures("only_svg")
def test_centre_of_several_models_side_by_side_on_one_scale() -> None:
    made = {
        "English": synthetic.offsets(3, 4, seed=1, n=10),
        "Arabic": synthetic.offsets(6, 2, seed=2, n=20),
    }
    figure = offset_figures.centre_of_mass(made)
    assert len(figure.axes) == 2
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    said = texts(figure)
    assert "English: tiny-bert on made-up sentences, n = 10 examples" in said
    assert "Arabic: tiny-bert on made-up sentences, n = 20 examples" in said
    for axes, dataset in enumerate(made.values()):
        values = dataset["centre"].values[0]
        assert points(figure, axes)[0][:, 1] == pytest.approx(values[np.isfinite(values)])
    with pytest.raises(ParameterError, match="empty"):
        offset_figures.centre_of_mass({})


@pytest.mark.parametrize(("group", "name"), [("surface", "positions"), ("offsets", "histogram")])
def test_saving_gives_three_formats_and_the_same_bytes(
    group: str, name: str, tmp_path: Path
) -> None:
    dataset = MADE[group](2, 2)
    for folder in ("a", "b"):
        figure = spec_of(group, name).draw(dataset)[0].figure
        with matplotlib.rc_context(
            {"font.size": 30 if folder == "b" else 10}
        ):  # a user's settings do not matter
            written = plots.save_figure(figure, tmp_path / folder, name)
    assert [path.suffix for path in written] == [".svg", ".pdf", ".png"]
    for path in written:
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()
    again = plots.save_figure(figure, tmp_path / "c", name)
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in written]
    svg = (tmp_path / "a" / f"{name}.svg").read_text()
    assert "<dc:date>" not in svg
    assert b"CreationDate" not in (tmp_path / "a" / f"{name}.pdf").read_bytes()


def test_bytes_do_not_depend_on_the_process(tmp_path: Path) -> None:
    code = (
        "import sys, hashlib; sys.path.insert(0, sys.argv[1]); import synthetic; from headwise import plots;"
        "from headwise.analyses.surface import figures; f = figures.entropy(synthetic.surface(2, 3));"
        "print([hashlib.sha256(plots.figure_bytes(f, k)).hexdigest() for k in ('svg', 'pdf', 'png')])"
    )
    source = str(Path(plots.__file__).parents[2])
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command = [sys.executable, "-c", code, str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source}
    there = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout
    figure = surface_figures.entropy(synthetic.surface(2, 3))
    here = [
        hashlib.sha256(plots.figure_bytes(figure, kind)).hexdigest()
        for kind in ("svg", "pdf", "png")
    ]
    assert there.strip() == str(here)


def test_settings_outside_stay_as_they_were() -> None:
    before = dict(matplotlib.rcParams)
    surface_figures.max_weight(synthetic.surface(2, 2))
    assert dict(matplotlib.rcParams) == before
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )


def test_saving_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        plots.save_figure(Figure(), tmp_path / "file", "x")
    with pytest.raises(ParameterError, match="svg, pdf, png"):
        plots.save_figure(Figure(), tmp_path, "x", formats=["gif"])


def test_a_new_figure_is_found_by_its_group_and_its_name_is_its_own() -> None:
    from headwise.plots import registry

    def draw(dataset: xr.Dataset) -> Figure:
        return Figure()

    def other(dataset: xr.Dataset) -> Figure:
        return Figure()

    mark = plots.figure("made-up", name="one", title="One", caption="c", needs=("x",))
    try:
        mark(draw)
        assert [spec.title for spec in plots.figures_for("made-up")] == ["One"]
        mark(draw)  # reloading a module is no clash
        with pytest.raises(ParameterError, match="Two figures"):
            mark(other)
        assert plots.figures_for("made-up")[0].draw(xr.Dataset({"x": 1.0}))[0].name == "one"
    finally:
        registry._FIGURES.pop(("made-up", "one"), None)


def test_missing_variables_are_named() -> None:
    with pytest.raises(ParameterError, match=r"no variable 'max_weight'.*Did you mean"):
        surface_figures.max_weight(synthetic.surface(2, 2).drop_vars("max_weight"))


def test_two_figures_or_tables_of_one_name_are_refused_and_the_same_one_again_is_not() -> None:
    from headwise.plots import registry

    def first(dataset: xr.Dataset) -> Figure:
        return Figure()

    def second(dataset: xr.Dataset) -> Figure:
        return Figure()

    try:
        for function in (first, first):  # a cell that is run twice
            plots.figure("made_up", name="one", title="One", caption="")(function)
        with pytest.raises(ParameterError, match="Two figures of group 'made_up' are called 'one'"):
            plots.figure("made_up", name="one", title="Two", caption="")(second)
        assert [spec.title for spec in plots.figures_for("made_up")] == ["One"]
        registry.table_of("made_up", name="one", title="One")(first)  # type: ignore[type-var]
        with pytest.raises(ParameterError, match="Two tables of group 'made_up' are called 'one'"):
            registry.table_of("made_up", name="one", title="Two")(second)  # type: ignore[type-var]
    finally:
        registry._FIGURES.pop(("made_up", "one"), None)
        registry._TABLES.pop(("made_up", "one"), None)
