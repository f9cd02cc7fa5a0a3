"""The page of a series of models: plain data in, one HTML file with a slider over steps out."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from markupsafe import Markup

from headwise.page.data import data_text
from headwise.page.write import page_environment
from headwise.plots.registry import figures_for

MOST_VALUES = 600_000  # numbers of all measures on the page; with more, only the shown measures
TABLE_COLUMNS = (
    "head",
    "behaviour",
    "born after",
    "by",
    "95 % interval",
    "before",
    "after",
    "explained",
    "corrected p",
    "last label",
)


def render_track(dataset: xr.Dataset, births: pd.DataFrame, figures: Path) -> str:
    """Return the page as a string, with its figures embedded.

    Parameters
    ----------
    dataset : Dataset
        The result of `headwise.track`.
    births : DataFrame
        The table of `headwise.experiments.track.births`.
    figures : Path
        The folder that the figures lie in as SVG, `track-NAME.svg`.
    """
    script = (Path(__file__).parent / "assets" / "track.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    steps = dataset["step"].values
    data = _page_data(dataset, births)
    facts = [
        ("Models", str(len(steps))),
        ("Steps", f"{steps[0]:,g} to {steps[-1]:,g}"),
        ("Heads", str(dataset.sizes["layer"] * dataset.sizes["head"])),
        ("Measures", str(dataset.sizes["measure"])),
        ("Births", str(len(births))),
        ("Examples", f"{dataset.attrs['examples']} ({dataset.attrs['corpus']})"),
    ]
    return (
        page_environment()
        .get_template("track.html")
        .render(
            brand="heads over training",
            title="What each head does over training",
            subtitle=f"{_short(dataset, 0)} … {_short(dataset, -1)}",
            facts=facts,
            files=[("track.nc", "track.nc")],
            figures=embedded_figures("track", figures),
            columns=TABLE_COLUMNS,
            rows=_rows(births),
            random_models=dataset.attrs["random_models"],
            least=f"{dataset.attrs['least']:g}",
            n_steps=len(steps),
            data=data,
            data_text=Markup(data_text(data)),
            script=Markup(script),
            script_hash=Markup(f"sha256-{digest}"),
        )
    )


def _short(dataset: xr.Dataset, index: int) -> str:
    """Return the name of a model without the folders it lies in."""
    return Path(str(dataset["model"].values[index])).name


def embedded_figures(group: str, folder: Path) -> list[dict[str, str]]:
    """Return the figures of a group that were drawn into a folder, with their SVG as an address."""
    figures = []
    for spec in figures_for(group):
        path = folder / f"{group}-{spec.name}.svg"
        if path.is_file():
            encoded = base64.b64encode(path.read_bytes()).decode("ascii")
            address = f"data:image/svg+xml;base64,{encoded}"
            figures.append({"title": spec.title, "caption": spec.caption, "address": address})
    return figures


def _rows(births: pd.DataFrame) -> list[tuple[Any, ...]]:
    rows = []
    for birth in births.to_dict("records"):
        rows.append(
            (
                birth["head"],
                birth["behaviour"],
                birth["born_after"],
                birth["born_by"],
                f"{birth['earliest']:,g} to {birth['latest']:,g}",
                birth["before"],
                birth["after"],
                f"{100 * birth['share']:.0f} %",
                birth["p"],
                birth["label"],
            )
        )
    return rows


def _page_data(dataset: xr.Dataset, births: pd.DataFrame) -> dict[str, Any]:
    """Return what the script reads: values by measure, step and head, labels, loss, births."""
    shown = [str(name) for name in np.atleast_1d(dataset.attrs["shown"])]
    names = shown
    if dataset["value"].size <= MOST_VALUES:
        names = shown + [str(name) for name in dataset["measure"].values if str(name) not in shown]
    behaviour_of = dict(zip(births["measure"], births["behaviour"], strict=True))
    measures = []
    for name in names:
        values = dataset["value"].sel(measure=name).transpose("step", "layer", "head").values
        by_step = values.reshape(len(values), -1).astype(float)
        title = name
        if behaviour_of.get(name, name) != name:
            title = f"{behaviour_of[name]} ({name})"
        measures.append({"name": name, "title": title, "values": _rounded(by_step)})
    labels = dataset["label"].transpose("step", "layer", "head").values
    categories = dataset["category"].transpose("step", "layer", "head").values
    n_steps = dataset.sizes["step"]
    return {
        "steps": dataset["step"].values.tolist(),
        "models": [str(name) for name in dataset["model"].values],
        "layers": dataset.sizes["layer"],
        "heads": dataset.sizes["head"],
        "measures": measures,
        "labels": labels.reshape(n_steps, -1).tolist(),
        "categories": categories.reshape(n_steps, -1).tolist(),
        "loss": _rounded(dataset["loss"].values.astype(float)[None])[0],
        "births": births[["head", "measure", "behaviour", "born_by"]].to_dict("records"),
    }


def _rounded(values: np.ndarray) -> list[list[float | None]]:
    """Return values with four digits after the point; None where there is none."""
    rows: list[list[float | None]] = []
    for row in values:
        rows.append([round(float(value), 4) if np.isfinite(value) else None for value in row])
    return rows
