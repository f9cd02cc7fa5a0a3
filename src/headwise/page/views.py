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
from headwise.core.labels import existing_heads
from headwise.models import HeadModel, Trace
from headwise.page.measures import Measure, head_measures
from headwise.page.sample import draw_all_maps, draw_heads, said_of, sample_of
from headwise.page.view import View
from headwise.plots import all_maps, figures_for, heatmap
from headwise.plots.labels import label_grid
from headwise.text.example import Example

MOST_BYTES = 3_000_000  # of maps in a view; beyond it, the picture alone
MOST_NUMBERS = (
    60_000  # of measures in a view of an atlas; those after it are left out, and that is said
)
MOST_EXAMPLES = 4


@singledispatch
def view_of(thing: object) -> View:
    """The view of an atlas, a head's card or a trace."""
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
    for place, row in enumerate(trace.rows[:MOST_EXAMPLES]):
        keys = row.source if row.cross and row.source is not None else row
        weights = trace.attention[place, :, :, : len(row), : len(keys)].float().cpu().numpy()
        inputs.append(_Input(row.tokens, keys.tokens, row.special, keys.special, weights))
    first = inputs[0]
    cross = first.keys if first.keys != first.tokens else None
    note = (
        f"{len(inputs)} of {len(trace.rows)} inputs are shown."
        if len(trace.rows) > len(inputs)
        else ""
    )
    return _maps_view(
        title, inputs, None, lambda: all_maps(first.weights, first.tokens, cross), note
    )


@view_of.register
def _of_card(card: HeadCard) -> View:
    """A short card: what the head does, the measures in which it stands out; everything else folded
    below."""
    short = card.short()
    folded = Markup("").join(
        Markup("<details><summary>{}: {} numbers</summary>{}</details>").format(
            group, len(rows), Markup(_table(rows.drop(columns="analysis")))
        )
        for group, rows in card.table.groupby("analysis", sort=False)
    )
    said = html_card(f"Head {card.name}", card.does.items())
    parts = "{}<div>Where it ranks highest among all heads</div>{}<details><summary>all numbers</summary>{}</details>"
    html = Markup(parts).format(Markup(said), Markup(_table(short)), folded)
    return View(f"Head {card.name}", table=str(html))


def _table(frame: pd.DataFrame) -> str:
    """Rows as HTML, every word of them escaped."""
    whole = dict.fromkeys(("n", "rank"), "{:,.0f}".format)
    look: dict[str, Any] = {
        "index": False,
        "border": 0,
        "classes": "hw-table",
        "na_rep": "",
        "formatters": whole,
    }
    return str(frame.to_html(float_format="{:.3f}".format, **look))


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    tokens: list[str]
    keys: list[str]
    special: np.ndarray
    keys_special: np.ndarray
    weights: np.ndarray  # [layer, head, row, column]

    def data(self, places: Sequence[tuple[int, int]] | None) -> dict[str, Any]:
        chosen = (
            self.weights if places is None else np.stack([self.weights[place] for place in places])
        )
        codes = np.rint(65535 * np.nan_to_num(chosen).clip(0, 1)).astype("<u2")
        return {
            "tokens": self.tokens,
            "keys": self.keys,
            "special": [bool(one) for one in self.special],
            "keysSpecial": [bool(one) for one in self.keys_special],
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
    share = 1.0 if places is None else len(places) / (layers * heads)
    if sum(2 * share * one.weights.size for one in inputs) > MOST_BYTES:
        more = (
            "These maps are too large for an interactive view: name heads, or give a shorter text."
        )
        return View(title, picture=picture, note=" ".join(filter(None, (note, more))))
    data = {
        "kind": "maps",
        "layers": int(layers),
        "heads": int(heads),
        "places": None if places is None else [list(place) for place in places],
        "examples": [one.data(places) for one in inputs],
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
    """Draw heads on a sentence: tokens left and right, a line as dark as its weight. Shows itself
    in a notebook.

    Parameters
    ----------
    model : HeadModel
        What runs.
    text : str or Example
        The sentence.
    heads : sequence of str or tuple, default ()
        Like `L7H9`; all maps at once where none is named.
    pair : str, optional
        A second sentence.
    what : str, default "attention"
        `attention`, or what tokens of the `previous_layer` or of the `input` contribute to each
        head's output, or another reading of mixing (see `headwise draw --help`).

    Returns
    -------
    View
        With `figure` (of matplotlib), `save("heads.svg")`, and `widget()`.
    """
    example = Example(text=text, pair=pair) if isinstance(text, str) else text
    places = existing_heads([heads] if isinstance(heads, str) else heads, model.layers, model.heads)
    row = model.encode(example)
    sample = sample_of(model, example, what, places or None)
    other = row.source if row.cross and row.source is not None else row
    keys = sample.tokens if sample.keys is None else sample.keys
    one = _Input(sample.tokens, keys, row.special, other.special, sample.attention)

    def picture() -> Figure:
        return (
            draw_heads(sample, places, what=said_of(what))
            if places
            else draw_all_maps(sample, what)
        )

    named = ", ".join(f"L{layer}H{head}" for layer, head in places) or "all heads"
    return _maps_view(
        f"{what.replace('_', ' ')} of {named} of {model.name}", [one], places or None, picture
    )


@view_of.register
def atlas_view(atlas: Atlas, measure: str = "") -> View:
    """The heads of an atlas with their words, coloured by a measure (by what they do where none is
    named), or one of the figures of its analyses; see `Atlas.plot`."""
    found = head_measures(atlas)
    colour = None
    if measure:
        colour = next((own for own in found if own.name == measure), None)
        if colour is None:
            return _figure_view(atlas, measure, found)
    told = atlas.describe()
    title = repr(atlas).partition("\n")[0].strip("<>")
    grid = (atlas.layers, atlas.heads)
    words = told["does"].map(lambda does: SHORT_LABELS.get(does, does)).to_numpy().reshape(grid)
    kinds = told["kind"].to_numpy().reshape(grid)
    room = max(1, MOST_NUMBERS // max(1, atlas.layers * atlas.heads))
    first = [own for own in found if own is colour or own.kind == "value"]
    first.sort(key=lambda own: (own is not colour, not own.leading))
    data = {
        "kind": "atlas",
        "layers": atlas.layers,
        "heads": atlas.heads,
        "words": words.tolist(),
        "told": _told(told, grid),
        "measures": [_measure(own) for own in first[:room]],
        "colour": "" if colour is None else colour.name,
        "selected": "",
    }
    note = ""
    if len(first) > room:
        left = f"{len(first) - room} of {len(first)} measures are left out of this view"
        note = f"{left}; `atlas.to_dataframe()` has all."
    if colour is None:
        return View(title, data, lambda: label_grid(words, kinds, title), note=note)
    return View(f"{colour.label} of {title}", data, lambda: _heatmap(colour), note=note)


def _told(told: pd.DataFrame, grid: tuple[int, int]) -> list[list[list[list[str]]]]:
    rows = [
        [[name, str(row[name])] for name in CARD_COLUMNS if row[name]]
        for row in told.to_dict("records")
    ]
    return [rows[layer * grid[1] : (layer + 1) * grid[1]] for layer in range(grid[0])]


def _measure(own: Measure) -> dict[str, Any]:
    values = [
        [float(f"{v:.5g}") if np.isfinite(v) else None for v in row] for row in own.values.tolist()
    ]
    return {
        "name": own.name,
        "label": f"{own.group}: {own.label}",
        "unit": own.unit,
        "values": values,
    }


def _heatmap(own: Measure) -> Figure:
    array = xr.DataArray(own.values, dims=("layer", "head"))
    counted = " to ".join(
        f"{count:,}" for count in dict.fromkeys(own.n or ())
    )  # examples, pairs, mentions ...
    notes = [f"n = {counted}"] if counted else []
    return heatmap(
        array, title=f"{own.group}: {own.label}", label=own.label, unit=own.unit, notes=notes
    )


def _figure_view(atlas: Atlas, name: str, found: Sequence[Measure]) -> View:
    """One of the figures that the analyses of an atlas have, by the name of its file."""
    asked = [own for own in found if name in own.asked]
    if len(asked) == 1:
        return atlas_view(atlas, asked[0].name)
    drawable: list[str] = []
    for group, dataset in atlas.items():
        for spec in figures_for(group):
            full = f"{group}-{spec.name}"
            if not name.startswith(full):
                drawable += [full] if spec.applies(dataset) else []
                continue
            for drawn in spec.draw(dataset):
                if f"{group}-{drawn.name}" == name:
                    return View(
                        drawn.title, picture=partial(getattr, drawn, "figure"), note=drawn.caption
                    )
                drawable.append(f"{group}-{drawn.name}")
    if asked:
        raise ParameterError(
            f"'{name}' names {len(asked)} measures: {', '.join(own.name for own in asked)}; give one."
        )
    raise ParameterError(
        unknown("measure or figure", name, [*(own.name for own in found), *drawable])
    )
