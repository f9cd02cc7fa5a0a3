"""The page of a family of models: plain data in, one HTML file with all grids side by side out."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from markupsafe import Markup

from headwise.atlas.describe import LABEL_CATEGORIES
from headwise.page.data import data_text
from headwise.page.track import embedded_figures
from headwise.page.write import page_environment
from headwise.stats.depth import DRAWS

DIFFERENCE_COLUMNS = (
    "label",
    "model",
    "other model",
    "share",
    "other share",
    "p of shares",
    "mean depth",
    "other depth",
    "p of depths",
)
PAIR_COLUMNS = (
    "model",
    "other model",
    "matched heads",
    "depth distance",
    "in random order",
    "corrected p",
)


def render_family(
    result: Mapping[str, xr.Dataset],
    differences: list[tuple[Any, ...]],
    figures: Path,
) -> str:
    """Return the page as a string, with its figures embedded.

    Parameters
    ----------
    result : Atlas
        The result of `headwise.compare` by depth.
    differences : list of tuple
        The rows of `headwise.experiments.family.differences`.
    figures : Path
        The folder that the figures lie in as SVG, `family-NAME.svg`.
    """
    family = result["family"]
    names = [str(name) for name in family["model"].values]
    script = (Path(__file__).parent / "assets" / "family.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    data = _page_data(result)
    facts = [
        ("Models", str(len(names))),
        ("Heads", " + ".join(f"{count:,}" for count in family["total_heads"].values)),
        ("Labels", str(family.sizes["label"])),
        ("Matched pairs of heads", str(result["family_matches"].sizes["match"])),
        ("Labels from", str(family.attrs.get("groups", ""))),
    ]
    corpora = list(dict.fromkeys(str(corpus) for corpus in family["corpus"].values))
    return (
        page_environment()
        .get_template("family.html")
        .render(
            brand="models side by side",
            title="What heads do in models of different shapes",
            subtitle=" · ".join(names),
            facts=facts,
            files=[],
            figures=embedded_figures("family", figures),
            same_corpus=len(corpora) == 1,
            corpora=corpora,
            columns=DIFFERENCE_COLUMNS,
            rows=differences,
            pair_columns=PAIR_COLUMNS,
            pair_rows=_pair_rows(family, names),
            share_columns=("label", *names),
            share_rows=_share_rows(family),
            draws=f"{DRAWS:,}",
            correction=family.attrs["correction"].replace("_", " "),
            n_tested=int(family["share_difference_p"].notnull().sum()),
            n_depth_tested=int(family["depth_difference_p"].notnull().sum()),
            least_layers=family.attrs["least_layers"],
            data=data,
            data_text=Markup(data_text(data)),
            script=Markup(script),
            script_hash=Markup(f"sha256-{digest}"),
        )
    )


def _pair_rows(family: xr.Dataset, names: list[str]) -> list[tuple[Any, ...]]:
    rows = []
    for first, second in combinations(range(len(names)), 2):
        pair = family.isel(model=first, other=second)
        rows.append(
            (
                names[first],
                names[second],
                int(pair["matched"]),
                float(pair["depth_distance"]),
                float(pair["depth_distance_random"]),
                float(pair["depth_distance_p_adjusted"]),
            )
        )
    return rows


def _share_rows(family: xr.Dataset) -> list[tuple[Any, ...]]:
    """Return the share of heads with each label in every model, with count and interval."""
    rows = []
    for label in family["label"].values:
        cells: list[Any] = [str(label)]
        of_label = family.sel(label=label)
        for number in range(family.sizes["model"]):
            cell = of_label.isel(model=number)
            if not bool(cell["applies"]):
                cells.append(None)
                continue
            low = 100 * float(cell["total_share_low"])
            high = 100 * float(cell["total_share_high"])
            cells.append(
                f"{100 * float(cell['total_share']):.1f} % ({low:.1f} to {high:.1f}; "
                f"{int(cell['total_count'])} of {int(cell['total_heads'])})"
            )
        rows.append(tuple(cells))
    return rows


def _page_data(result: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """Return what the script reads: the label of every head, and the matched heads."""
    family = result["family"]
    heads = result["family_heads"]
    models = []
    for number, name in enumerate(family["model"].values):
        layers = int(family["layers"].values[number])
        n_heads = int(family["heads"].values[number])
        of_model = heads.isel(model=number, layer=slice(layers), head=slice(n_heads))
        model = {"name": str(name), "layers": layers, "heads": n_heads}
        for variable, key in (("label", "labels"), ("category", "categories"), ("why", "why")):
            values: np.ndarray = of_model[variable].transpose("layer", "head").values
            model[key] = values.ravel().tolist()
        models.append(model)
    table = result["family_matches"]
    names = [str(name) for name in family["model"].values]
    matched = []
    for number in range(table.sizes["match"]):
        row = table.isel(match=number)
        matched.append(
            [
                names.index(str(row["model"].values)),
                str(row["head"].values),
                names.index(str(row["other"].values)),
                str(row["head_other"].values),
            ]
        )
    present = {str(category) for category in np.unique(heads["category"].values)} - {""}
    return {
        "models": models,
        "matches": matched,
        "labels": [str(label) for label in family["label"].values],
        "categories": [category for category in LABEL_CATEGORIES if category in present],
    }
