"""Figures of one input: the line drawing of a head, and all maps on a page."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.text import Text

import synthetic
from headwise import plots
from headwise.core.errors import ParameterError
from headwise.plots import style

TOKENS = ["[CLS]", "costs", "$5", "$6", "[SEP]"]


def lines(figure, axes: int = 0) -> dict[tuple[int, int], tuple[float, ...]]:
    """(query, key) to rgba of each line drawn; the left end stands at x = 0."""
    collection = next(c for c in figure.axes[axes].collections if isinstance(c, LineCollection))
    ends = [tuple(map(tuple, segment)) for segment in collection.get_segments()]
    assert all(a[0] == 0 and b[0] == 1 for a, b in ends)
    return {
        (int(a[1]), int(b[1])): tuple(colour)
        for (a, b), colour in zip(ends, collection.get_colors(), strict=True)
    }


def test_a_line_per_weight_from_query_left_to_key_right_as_dark_as_the_weight() -> None:
    weights = np.zeros((5, 5))
    weights[1, 3], weights[4, 0], weights[2, 2] = 0.75, 0.25, 0.001
    figure = plots.draw_head(weights, TOKENS)
    drawn = lines(figure)
    assert {pair: colour[3] for pair, colour in drawn.items()} == {(1, 3): 0.75, (4, 0): 0.25}
    assert figure.axes[0].get_ylim()[0] > figure.axes[0].get_ylim()[1]  # the first token at the top
    left = [t.get_text() for t in figure.axes[0].texts if t.get_position()[0] < 0]
    right = [t.get_text() for t in figure.axes[0].texts if t.get_position()[0] > 1]
    assert left == right == TOKENS


def test_chosen_words_are_coloured_and_others_grey() -> None:
    weights = np.full((5, 5), 0.2)
    drawn = lines(plots.draw_head(weights, TOKENS, highlight={1: style.BLUE}))
    assert drawn[1, 4][:3] == pytest.approx(to_rgb(style.BLUE))
    assert drawn[1, 4][3] == pytest.approx(0.2)
    assert len(set(drawn[2, 4][:3])) == 1
    drawn = lines(plots.draw_head(weights, TOKENS, highlight=[4], side="to"))
    assert drawn[2, 4][:3] == pytest.approx(to_rgb(style.VERMILION))
    assert len(set(drawn[4, 2][:3])) == 1


def test_several_heads_nan_and_odd_tokens() -> None:
    rng = np.random.default_rng(0)
    heads = {f"L{i}H0": rng.dirichlet(np.ones(5), 5) for i in range(4)}
    heads["L0H0"][2] = np.nan
    figure = plots.draw_head(
        heads, ["ein\nZeilenende", "x" * 90, "的", "$5", "$6"], title="Costs $5 $6"
    )
    assert [axes.get_title() for axes in figure.axes] == list(heads)
    assert all(query != 2 for query, _ in lines(figure))
    for format in ("svg", "png"):
        assert plots.figure_bytes(figure, format) == plots.figure_bytes(figure, format)
    assert figure.get_figwidth() <= 7.01
    assert max(len(t.get_text()) for t in figure.axes[0].texts) <= 24


def test_wrong_shapes_and_positions_are_refused() -> None:
    with pytest.raises(ParameterError, match="5 queries by 5 keys"):
        plots.draw_head(np.zeros((4, 5)), TOKENS)
    with pytest.raises(ParameterError, match="positions from 0 to 4"):
        plots.draw_head(np.zeros((5, 5)), TOKENS, highlight=[5])
    with pytest.raises(ParameterError, match="`side`"):
        plots.draw_head(np.zeros((5, 5)), TOKENS, side="left")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="empty"):
        plots.draw_head({}, TOKENS)
    with pytest.raises(ParameterError, match="22 keys"):
        plots.all_maps(np.zeros((2, 2, 4, 4)), synthetic.TOKENS)


@pytest.mark.parametrize(("layers", "heads"), [(3, 5), (1, 1), (24, 16)])
def test_each_map_stands_in_its_row_and_column(layers: int, heads: int) -> None:
    maps = synthetic.attention(layers, heads, 22)
    figure = plots.all_maps(maps, synthetic.TOKENS)
    mosaic = figure.axes[0].images[0].get_array()
    pitch = 22 + 2
    for layer, head in ((0, 0), (layers - 1, heads - 1), (layers // 2, heads // 3)):
        part = mosaic[layer * pitch : layer * pitch + 22, head * pitch : head * pitch + 22]
        assert np.array_equal(part, maps[layer, head])
    assert mosaic.shape == (layers * pitch - 2, heads * pitch - 2)
    assert mosaic.mask[22:24].all() or layers == 1
    assert figure.axes[0].get_ylim()[0] > figure.axes[0].get_ylim()[1]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [
        str(i) for i in range(layers)
    ]
    assert figure.get_figwidth() <= 7
    assert figure.get_figheight() <= 9.8
    said = " ".join(t.get_text() for t in figure.findobj(Text)).replace("\n", " ")
    assert "One input of 22 tokens" in said
    assert "[CLS] the old dog" in said


def test_long_inputs_list_their_first_tokens_and_count_the_rest() -> None:
    figure = plots.all_maps(synthetic.attention(2, 2, 300), [f"word{i}" for i in range(300)])
    note = figure.get_supxlabel()
    assert "word0" in note
    kept = note.split("…")[0].split("Tokens: ")[1].split()
    assert f"and {300 - len(kept)} more" in note.replace("\n", " ")
