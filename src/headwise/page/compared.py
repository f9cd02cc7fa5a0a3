"""What the page of a comparison shows beside the measures: each head's word in every model, and
what changed most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headwise.atlas import Atlas
from headwise.core.labels import head_name
from headwise.page.measures import Measure, head_measures

WORDS = "change_words"
LEVEL = 0.05
MOST_ROWS = 40
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
    """The models of a comparison, the one the others are held against first; none in other
    atlases."""
    if "change" not in atlas:
        return []
    change = atlas["change"]
    return [str(change.attrs.get("reference_model", "?")), *map(str, change["model"].values)]


def changed_most(atlas: Atlas) -> tuple[list[tuple[Any, ...]], str]:
    """Return the significant changes (corrected p < 0.05) of heads, the largest first, as shares of the spread
    (standard deviation) that the measure has over the heads of the reference model: rows of
    `COLUMNS`, and how to read them."""
    found = head_measures(atlas)
    by_name = {measure.name: measure for measure in found}
    rows: list[tuple[Any, ...]] = []
    for measure in found:
        if (
            measure.variable.endswith("_change")
            and measure.kind == "value"
            and measure.p is not None
        ):
            rows += _rows(measure, by_name, models_of(atlas)[0])
    rows.sort(key=lambda row: -row[-1])
    rows = _once(rows)
    note = f"The significant changes of single heads (corrected p below {LEVEL}), the largest first"
    if len(rows) > MOST_ROWS:
        count = f"{len(rows)} changes of single heads are significant (corrected p below {LEVEL})"
        note = f"{count}; the largest {MOST_ROWS} are here"
    note += (
        ", as shares of the standard deviation of the measure over the heads of the first model."
    )
    shown = [(*row[:-1], f"{row[-1]:.2f}") for row in rows[:MOST_ROWS]]
    return shown, note


def _once(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A change that several measures show with the same numbers is one: a decoder's first token is
    its `cls` too."""
    kept: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in rows:
        kept.setdefault((row[0], *row[2:-1]), row)
    return list(kept.values())


def _rows(
    measure: Measure, by_name: Mapping[str, Measure], reference: str
) -> list[tuple[Any, ...]]:
    base = measure.variable.removesuffix("_change")
    before, after = (
        by_name.get(".".join((measure.group, f"{base}_mean", *measure.item, model)))
        for model in (reference, measure.model)
    )
    if before is None or after is None or measure.p is None:
        return []
    spread = float(np.nanstd(before.values))
    rows: list[tuple[Any, ...]] = []
    for layer, head in np.argwhere((measure.p < LEVEL) & np.isfinite(measure.values)).tolist():
        at = layer, head
        ends = (
            ""
            if measure.low is None or measure.high is None
            else f"{measure.low[at]:.3f} to {measure.high[at]:.3f}"
        )
        p = f"{measure.p[at]:.2g}"
        label = f"{measure.group.removeprefix('change_')} {base.replace('_', ' ')} {' '.join(measure.item)}".strip()
        far = abs(float(measure.values[at])) / spread if spread else 0.0
        told = (f"{one.values[at]:.3f}" for one in (before, after, measure))
        rows.append(
            (
                head_name(*at),
                label,
                measure.model,
                *(text.replace("-", "−") for text in (*told, ends, p)),
                far,
            )
        )
    return rows


def words_of(words: xr.Dataset) -> pd.DataFrame:
    """The table of `Atlas.describe` for a comparison: the word of the first model, in `below` that
    of the first other model that has another (none of them: nothing); what each model's head does
    is in `models`."""
    names = [str(name) for name in words["model_all"].values]
    told = {
        name: words[name].transpose("model_all", "layer", "head").values
        for name in ("does", "kind", "attention")
    }
    rows = []
    for layer, head in np.ndindex(*told["does"].shape[1:]):
        own = [str(text) for text in told["does"][:, layer, head]]
        other = next((text for text in own[1:] if text != own[0]), "")
        each = {
            name: ": ".join(filter(None, (own[i], str(told["attention"][i, layer, head]))))
            for i, name in enumerate(names)
        }
        place = {"layer": layer, "head": head, "name": head_name(layer, head)}
        said = {"does": own[0], "kind": str(told["kind"][0, layer, head]), "best": False}
        said |= {"looks": other or own[0], "below": other}
        rows.append(
            {
                **place,
                **said,
                "models": each,
                **dict.fromkeys(("attention", "finds", "roles", "maps"), ""),
            }
        )
    return pd.DataFrame(rows)
