"""The page of a comparison: the label of each head in every model, and the largest changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headwise.atlas import Atlas
from headwise.core.labels import SIGNIFICANCE_LEVEL, head_name
from headwise.page.measures import Measure, head_measures

CHANGE = "change"  # the group that an atlas of a comparison has
WORDS = "change_words"  # the group with the labels of all models
MOST_ROWS = 40  # of the table of changes
COLUMNS = (
    "head",
    "measure",
    "model",
    "before",
    "after",
    "change",
    "95 % interval",
    "corrected p",
    "of the spread",
)


def models_of(atlas: Mapping[str, xr.Dataset]) -> list[str]:
    """Return the models of a comparison, the reference first."""
    change = atlas[CHANGE]
    return [str(change.attrs.get("reference_model", "?")), *map(str, change["model"].values)]


def changed_most(atlas: Atlas) -> tuple[list[tuple[Any, ...]], str]:
    """Return the significant changes of heads, the largest first, and a note on how to read them.

    A change is significant if its corrected p-value is below 0.05. Its size is its share of the
    spread (standard deviation) of the measure over the heads of the reference model.

    Returns
    -------
    rows : list of tuple
        The cells of `COLUMNS`, for at most `MOST_ROWS` changes.
    note : str
        What the rows are.
    """
    measures = head_measures(atlas)
    by_name = {measure.name: measure for measure in measures}
    rows: list[tuple[Any, ...]] = []
    for measure in measures:
        is_change = measure.variable.endswith("_change") and measure.kind == "value"
        if is_change and measure.p is not None:
            rows += _significant_changes(measure, by_name, models_of(atlas)[0])
    rows.sort(key=lambda row: -row[-1])
    rows = _without_duplicates(rows)
    if len(rows) > MOST_ROWS:
        note = (
            f"{len(rows)} changes of single heads are significant (corrected p below {SIGNIFICANCE_LEVEL}); "
            f"the largest {MOST_ROWS} are here"
        )
    else:
        note = (
            f"The significant changes of single heads (corrected p below {SIGNIFICANCE_LEVEL}), the largest "
            "first"
        )
    note += (
        ", as shares of the standard deviation of the measure over the heads of the first model."
    )
    cells = []
    for *texts, share_of_spread in rows[:MOST_ROWS]:
        cells.append((*texts, f"{share_of_spread:.2f}"))
    return cells, note


def _without_duplicates(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return each change once, also where several measures show it with the same numbers.

    The first token of a decoder is its `cls` too."""
    unique: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in rows:
        head, _, *numbers, _ = row
        unique.setdefault((head, *numbers), row)
    return list(unique.values())


def _significant_changes(
    change: Measure, by_name: Mapping[str, Measure], reference: str
) -> list[tuple[Any, ...]]:
    """Return a row of `COLUMNS` for each head with a significant change; its size is a number."""
    base = change.variable.removesuffix("_change")
    mean_name = ".".join((change.group, f"{base}_mean", *change.item))
    before = by_name.get(f"{mean_name}.{reference}")
    after = by_name.get(f"{mean_name}.{change.model}")
    if before is None or after is None or change.p is None:
        return []
    group = change.group.removeprefix("change_")
    label = f"{group} {base.replace('_', ' ')} {' '.join(change.item)}".strip()
    spread = float(np.nanstd(before.values))
    significant = (change.p < SIGNIFICANCE_LEVEL) & np.isfinite(change.values)
    rows: list[tuple[Any, ...]] = []
    for layer, head in np.argwhere(significant).tolist():
        place = (layer, head)
        interval = ""
        if change.low is not None and change.high is not None:
            interval = f"{change.low[place]:.3f} to {change.high[place]:.3f}"
        numbers = [
            f"{before.values[place]:.3f}",
            f"{after.values[place]:.3f}",
            f"{change.values[place]:.3f}",
            interval,
            f"{change.p[place]:.2g}",
        ]
        share_of_spread = 0.0
        if spread:
            share_of_spread = abs(float(change.values[place])) / spread
        rows.append(
            (
                head_name(layer, head),
                label,
                change.model,
                *(number.replace("-", "−") for number in numbers),
                share_of_spread,
            )
        )
    return rows


def words_of(words: xr.Dataset) -> pd.DataFrame:
    """Return the table of `Atlas.describe` for a comparison.

    It has the labels of the first model; `below` is the first different label among the other
    models (empty if there is none), and `models` says what the head does in each model."""
    models = [str(name) for name in words["model_all"].values]
    texts = {}
    for name in ("does", "kind", "attention"):
        texts[name] = words[name].transpose("model_all", "layer", "head").values
    rows = []
    for layer, head in np.ndindex(*texts["does"].shape[1:]):
        labels = [str(label) for label in texts["does"][:, layer, head]]
        different = ""
        for label in labels[1:]:
            if label != labels[0]:
                different = label
                break
        descriptions = {}
        for index, model in enumerate(models):
            attention = str(texts["attention"][index, layer, head])
            descriptions[model] = ": ".join(filter(None, (labels[index], attention)))
        rows.append(
            {
                "layer": layer,
                "head": head,
                "name": head_name(layer, head),
                "does": labels[0],
                "kind": str(texts["kind"][0, layer, head]),
                "best": False,
                "also": "",
                "why": "",
                "looks": different or labels[0],
                "below": different,
                "models": descriptions,
                "attention": "",
                "finds": "",
                "roles": "",
                "maps": "",
            }
        )
    return pd.DataFrame(rows)
