"""What notebooks show of an atlas, a head's card, a trace, and heads drawn on a sentence."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from markupsafe import Markup
from matplotlib.figure import Figure

from headwise.atlas import Atlas, HeadCard
from headwise.atlas.describe import CARD_COLUMNS, SHORT_LABELS
from headwise.atlas.representation import html_card
from headwise.core.errors import ParameterError, unknown
from headwise.core.labels import existing_heads, head_name
from headwise.models import HeadModel, Trace
from headwise.page.measures import Measure, head_measures
from headwise.page.sample import draw_all_maps, draw_heads, said_of, sample_of
from headwise.page.view import View
from headwise.plots import all_maps, figures_for, heatmap
from headwise.plots.labels import label_grid
from headwise.text.encode import Encoded
from headwise.text.example import Example

MOST_BYTES = 3_000_000  # of maps in a view; larger ones are shown as a picture alone
MOST_NUMBERS = 60_000  # of measures in a view of an atlas; a note says how many are left out
MOST_EXAMPLES = 4
FAMILY = "family"  # the group of a comparison by depth


@singledispatch
def view_of(thing: object) -> View:
    """Return the view of an atlas, a head's card or a trace."""
    raise ParameterError(
        f"A {type(thing).__name__} has no view; give an Atlas, a HeadCard or a Trace."
    )


@view_of.register
def _of_view(thing: View) -> View:
    return thing


@view_of.register
def _of_trace(trace: Trace) -> View:
    title = repr(trace)
    if trace.attention is None or trace.rows is None:
        return View(title, table=str(Markup("<pre>{}</pre>").format(title)))
    inputs = []
    for index, row in enumerate(trace.rows[:MOST_EXAMPLES]):
        keys = _keys_of(row)
        weights = trace.attention[index, :, :, : len(row), : len(keys)]
        inputs.append(
            _Input(
                row.tokens, keys.tokens, row.special, keys.special, weights.float().cpu().numpy()
            )
        )
    first = inputs[0]
    cross_keys = None
    if first.keys != first.tokens:
        cross_keys = first.keys
    note = ""
    if len(trace.rows) > len(inputs):
        note = f"{len(inputs)} of {len(trace.rows)} inputs are shown."

    def picture() -> Figure:
        return all_maps(first.weights, first.tokens, cross_keys)

    return _maps_view(title, inputs, None, picture, note)


def _keys_of(row: Encoded) -> Encoded:
    """Return the input that the tokens of a row attend to: the source in cross-attention."""
    if row.cross and row.source is not None:
        return row.source
    return row


@view_of.register
def _of_card(card: HeadCard) -> View:
    """Return a short card: the label and the measures that stand out, all else folded below."""
    group_tables = []
    for group, rows in card.table.groupby("analysis", sort=False):
        table = Markup(_html_table(rows.drop(columns="analysis")))
        summary = "<details><summary>{}: {} numbers</summary>{}</details>"
        group_tables.append(Markup(summary).format(group, len(rows), table))
    parts = (
        "{}<div>Where it ranks highest among all heads</div>{}"
        "<details><summary>all numbers</summary>{}</details>"
    )
    html = Markup(parts).format(
        Markup(html_card(f"Head {card.name}", card.does.items())),
        Markup(_html_table(card.short())),
        Markup("").join(group_tables),
    )
    return View(f"Head {card.name}", table=str(html))


def _html_table(frame: pd.DataFrame) -> str:
    """Return rows as HTML, with every cell escaped."""
    whole_number = "{:,.0f}".format
    html = frame.to_html(
        index=False,
        border=0,
        classes="hw-table",
        na_rep="",
        float_format="{:.3f}".format,
        formatters={"n": whole_number, "rank": whole_number},
    )
    return str(html)


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    """One text with the attention of every head on it."""

    tokens: list[str]
    keys: list[str]
    special: np.ndarray
    keys_special: np.ndarray
    weights: np.ndarray  # [layer, head, row, column]

    def data(self, places: Sequence[tuple[int, int]] | None) -> dict[str, Any]:
        """Return what the script draws: the maps of some heads (None: of all), packed as uint16."""
        weights = self.weights
        if places is not None:
            weights = np.stack([self.weights[place] for place in places])
        codes = np.rint(65535 * np.nan_to_num(weights).clip(0, 1)).astype("<u2")
        return {
            "tokens": self.tokens,
            "keys": self.keys,
            "special": [bool(is_special) for is_special in self.special],
            "keysSpecial": [bool(is_special) for is_special in self.keys_special],
            "maps": base64.b64encode(codes.tobytes()).decode("ascii"),
        }


def _maps_view(
    title: str,
    inputs: Sequence[_Input],
    places: Sequence[tuple[int, int]] | None,
    picture: Callable[[], Figure],
    note: str = "",
) -> View:
    layers, heads = inputs[0].weights.shape[:2]
    share_of_heads = 1.0
    if places is not None:
        share_of_heads = len(places) / (layers * heads)
    n_bytes = sum(2 * share_of_heads * text.weights.size for text in inputs)
    if n_bytes > MOST_BYTES:
        too_large = (
            "These maps are too large for an interactive view: name heads, or give a shorter text."
        )
        return View(title, picture=picture, note=f"{note} {too_large}".strip())
    data = {
        "kind": "maps",
        "layers": int(layers),
        "heads": int(heads),
        "places": None if places is None else [list(place) for place in places],
        "examples": [text.data(places) for text in inputs],
        "selected": "",
    }
    return View(title, data, picture, note=note)


def draw(
    model: HeadModel,
    text: str | Example,
    heads: Sequence[str | tuple[int, int]] = (),
    *,
    pair: str | None = None,
    what: str = "attention",
) -> View:
    """Draw heads on a sentence: tokens left and right, a line as dark as its weight.

    A notebook displays the view.

    Parameters
    ----------
    model : HeadModel
        The model.
    text : str or Example
        The sentence.
    heads : sequence of str or tuple, default ()
        Like `L7H9`; by default the maps of all heads.
    pair : str, optional
        A second sentence.
    what : str, default "attention"
        `attention`, or what tokens of the `previous_layer` or of the `input` contribute to each
        head's output, or another measure of mixing (see `headwise.page.sample.sample_of`).

    Returns
    -------
    View
        With `figure` (of matplotlib), `save("heads.svg")`, and `widget()`.
    """
    example = Example(text=text, pair=pair) if isinstance(text, str) else text
    names = [heads] if isinstance(heads, str) else heads
    places = existing_heads(names, model.layers, model.heads)
    row = model.encode(example)
    sample = sample_of(model, example, what, places or None)
    keys = sample.tokens if sample.keys is None else sample.keys
    drawn_input = _Input(sample.tokens, keys, row.special, _keys_of(row).special, sample.attention)

    def picture() -> Figure:
        if places:
            return draw_heads(sample, places, what=said_of(what))
        return draw_all_maps(sample, what)

    head_names = ", ".join(head_name(*place) for place in places) or "all heads"
    title = f"{what.replace('_', ' ')} of {head_names} of {model.name}"
    return _maps_view(title, [drawn_input], places or None, picture)


@view_of.register
def atlas_view(atlas: Atlas, measure: str = "") -> View:
    """Return the heads of an atlas with their labels, coloured by a measure, or one of its figures.

    Without a measure the label gives the colour; see `Atlas.plot`. Of a family it is the shares of
    labels by depth: its models have no grid in common."""
    if FAMILY in atlas and not measure:
        return _family_view(atlas)
    measures = head_measures(atlas)
    colour = None
    if measure:
        colour = _measure_named(measures, measure)
        if colour is None:
            return _figure_view(atlas, measure, measures)
    descriptions = atlas.describe()
    title = repr(atlas).partition("\n")[0].strip("<>")
    grid = (atlas.layers, atlas.heads)
    labels = [SHORT_LABELS.get(label, label) for label in descriptions["does"]]
    words = np.array(labels, dtype=object).reshape(grid)
    kinds = descriptions["kind"].to_numpy().reshape(grid)
    # The measure that gives the colour comes first, so that it is never left out.
    ranked = [item for item in measures if item is colour or item.kind == "value"]
    ranked.sort(key=lambda item: (item is not colour, not item.leading))
    most_measures = max(1, MOST_NUMBERS // max(1, atlas.layers * atlas.heads))
    data = {
        "kind": "atlas",
        "layers": atlas.layers,
        "heads": atlas.heads,
        "words": words.tolist(),
        "told": _card_rows(descriptions, grid),
        "measures": [_measure_data(item) for item in ranked[:most_measures]],
        "colour": "" if colour is None else colour.name,
        "selected": "",
    }
    note = ""
    if len(ranked) > most_measures:
        note = (
            f"{len(ranked) - most_measures} of {len(ranked)} measures are left out of this view; "
            "`atlas.to_dataframe()` has all."
        )
    if colour is None:
        return View(title, data, lambda: label_grid(words, kinds, title), note=note)
    return View(f"{colour.label} of {title}", data, lambda: _heatmap(colour), note=note)


def _family_view(atlas: Atlas) -> View:
    """Return the shares of labels by depth of all models of a family."""
    names = ", ".join(str(name) for name in atlas[FAMILY]["model"].values)
    for spec in figures_for(FAMILY):
        for drawn in spec.draw(atlas[FAMILY]):
            title = f"{drawn.title}: {names}"
            return View(title, picture=partial(getattr, drawn, "figure"), note=drawn.caption)
    title = f"No head of {names} has a significant label"
    return View(title, table=str(Markup("<p>{}.</p>").format(title)))


def _measure_named(measures: Sequence[Measure], name: str) -> Measure | None:
    for measure in measures:
        if measure.name == name:
            return measure
    return None


def _card_rows(descriptions: pd.DataFrame, grid: tuple[int, int]) -> list[list[list[list[str]]]]:
    """Return the rows of each head's card, `[name, text]`, by layer and head."""
    n_layers, n_heads = grid
    cards = []
    for description in descriptions.to_dict("records"):
        rows = [[name, str(description[name])] for name in CARD_COLUMNS if description[name]]
        cards.append(rows)
    return [cards[layer * n_heads : (layer + 1) * n_heads] for layer in range(n_layers)]


def _measure_data(measure: Measure) -> dict[str, Any]:
    """Return a measure as the script reads it, with five digits."""
    values = []
    for layer_values in measure.values.tolist():
        row = [float(f"{value:.5g}") if np.isfinite(value) else None for value in layer_values]
        values.append(row)
    return {
        "name": measure.name,
        "label": f"{measure.group}: {measure.label}",
        "unit": measure.unit,
        "values": values,
    }


def _heatmap(measure: Measure) -> Figure:
    notes = []
    if measure.n:
        # Not always examples: pairs, mentions ... Equal counts are named once.
        counts = " to ".join(f"{count:,}" for count in dict.fromkeys(measure.n))
        notes.append(f"n = {counts}")
    return heatmap(
        xr.DataArray(measure.values, dims=("layer", "head")),
        title=f"{measure.group}: {measure.label}",
        label=measure.label,
        unit=measure.unit,
        notes=notes,
    )


def _figure_view(atlas: Atlas, name: str, measures: Sequence[Measure]) -> View:
    """Return the view of a measure by its short name, or of a figure by the name of its file."""
    candidates = [measure for measure in measures if name in measure.asked]
    if len(candidates) == 1:
        return atlas_view(atlas, candidates[0].name)
    figure_names: list[str] = []
    for group, dataset in atlas.items():
        for spec in figures_for(group):
            prefix = f"{group}-{spec.name}"
            # Figures are drawn only where the name can be one of theirs: drawing takes seconds.
            if not name.startswith(prefix):
                if spec.applies(dataset):
                    figure_names.append(prefix)
                continue
            for drawn in spec.draw(dataset):
                figure_name = f"{group}-{drawn.name}"
                if figure_name == name:
                    picture = partial(getattr, drawn, "figure")
                    return View(drawn.title, picture=picture, note=drawn.caption)
                figure_names.append(figure_name)
    if candidates:
        candidate_names = ", ".join(measure.name for measure in candidates)
        raise ParameterError(
            f"'{name}' names {len(candidates)} measures: {candidate_names}; give one."
        )
    known = [measure.name for measure in measures] + figure_names
    raise ParameterError(unknown("measure or figure", name, known))
