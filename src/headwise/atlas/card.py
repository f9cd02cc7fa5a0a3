"""The card of one head: all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import xarray as xr

from headwise.atlas.describe import TOLD, describe_heads
from headwise.atlas.tables import ITEM, LEADING_MEASURES, per_head
from headwise.core.display import NotebookDisplay, view_of
from headwise.core.errors import ParameterError
from headwise.core.labels import head_name

_SHOWN: dict[str, Any] = {
    "float_format": "{:.3f}".format,
    "formatters": dict.fromkeys(("n", "rank"), "{:,.0f}".format),
}


def _place(datasets: Mapping[str, xr.Dataset]) -> dict[str, str]:
    """What its layer may see, and whose keys and values it shares, where models differ in that."""
    names = {"layer_kind": "layer sees", "kv_group": "key/value group"}
    return {
        words: str(data[name].values)
        for name, words in names.items()
        for data in datasets.values()
        if name in data.coords and not data[name].ndim
    }


class HeadCard(NotebookDisplay):
    """One head: every measure of every analysis at its place, with count and interval, and its rank
    among all heads (1 is the highest).

    `does` says what it does in a word, with what was found; `short()` the measures in which it
    stands out; `table` has all measures; `datasets` everything, curves too, as labelled arrays."""

    def __init__(
        self, datasets: Mapping[str, xr.Dataset], size: tuple[int, int], layer: int, head: int
    ) -> None:
        self.name = head_name(layer, head)
        self.layer, self.head = layer, head
        self.datasets = {
            name: data.sel(layer=layer, head=head)
            for name, data in datasets.items()
            if {"layer", "head"} <= set(data.dims)
        }
        told = describe_heads(datasets, *size).set_index("name").loc[self.name]
        self.does = {name: told[name] for name in TOLD if told[name]}
        self.does |= _place(self.datasets)
        frame = per_head(datasets)
        ranks = frame.groupby(ITEM, sort=False)["value"].rank(ascending=False, method="min")
        here = (frame["layer"] == layer) & (frame["head"] == head)
        self.table = (
            frame[here]
            .assign(rank=ranks[here])
            .drop(columns=["layer", "head"])
            .reset_index(drop=True)
        )

    def __getitem__(self, key: tuple[str, str] | tuple[str, str, str]) -> float:
        """`card["surface", "entropy"]` or `card["surface", "mass", "sep"]`."""
        analysis, variable, *item = key
        rows = self.table[
            (self.table["analysis"] == analysis) & (self.table["variable"] == variable)
        ]
        if item:
            rows = rows[rows["item"] == str(item[0])]
        if len(rows) != 1:
            raise ParameterError(
                f"{key} names {len(rows)} values of head {self.name}; see .table for all."
            )
        return float(rows["value"].iloc[0])

    def __repr__(self) -> str:
        told = [f"{name}: {text}" for name, text in self.does.items()]
        short = self.short()
        if len(short):
            told.append(
                f"Where it ranks highest among all heads, of {len(self.table):,} numbers (`.table` has all):"
            )
            told.append(short.to_string(index=False, **_SHOWN))
        return "\n".join([f"<headwise head {self.name}>", *told])

    def _repr_html_(self) -> str:
        return str(view_of(self).html)

    def short(self, count: int = 10) -> pd.DataFrame:
        """The measures in which this head ranks highest among all heads, at most one label of each.

        Parameters
        ----------
        count : int, default 10
            At most so many.
        """
        rows = self.table[self.table["value"].notna() & (self.table["value"] != 0)]
        is_leading = []
        for group, variable in zip(rows["analysis"], rows["variable"], strict=True):
            is_leading.append(variable in LEADING_MEASURES.get(group, ()))
        ranked = rows[is_leading].sort_values("rank", kind="stable")
        best = ranked.drop_duplicates(["analysis", "variable"])
        return best.head(count).drop(columns=["n"])
