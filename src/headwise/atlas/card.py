"""The card of one head: all its measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import xarray as xr

from headwise.atlas.describe import CARD_COLUMNS, describe_heads
from headwise.atlas.tables import ITEM, LEADING_MEASURES, per_head
from headwise.core.display import NotebookDisplay, view_of
from headwise.core.errors import ParameterError, similar_names
from headwise.core.labels import head_name

_TABLE_FORMAT: dict[str, Any] = {
    "float_format": "{:.3f}".format,
    "formatters": dict.fromkeys(("n", "rank"), "{:,.0f}".format),
}


class HeadCard(NotebookDisplay):
    """One head: every measure of every analysis, with count, interval and rank among all heads.

    `does` has its label and what was measured; `short()` the measures in which it stands out;
    `table` all measures (rank 1 is the highest); `datasets` everything, curves too, as labelled
    arrays.
    """

    def __init__(
        self, datasets: Mapping[str, xr.Dataset], size: tuple[int, int], layer: int, head: int
    ) -> None:
        self.name = head_name(layer, head)
        self.layer = layer
        self.head = head
        self.datasets = {}
        for group, dataset in datasets.items():
            if {"layer", "head"} <= set(dataset.dims):
                self.datasets[group] = dataset.sel(layer=layer, head=head)
        description = describe_heads(datasets, *size).set_index("name").loc[self.name]
        self.does = {name: description[name] for name in CARD_COLUMNS if description[name]}
        self.does |= _layer_facts(self.datasets)
        all_heads = per_head(datasets)
        ranks = all_heads.groupby(ITEM, sort=False)["value"].rank(ascending=False, method="min")
        is_this_head = (all_heads["layer"] == layer) & (all_heads["head"] == head)
        table = all_heads[is_this_head].assign(rank=ranks[is_this_head])
        self.table = table.drop(columns=["layer", "head"]).reset_index(drop=True)

    def __getitem__(self, key: tuple[str, str] | tuple[str, str, str]) -> float:
        """`card["surface", "entropy"]` or `card["surface", "mass", "sep"]`."""
        analysis, variable, *item = key
        rows = self.table[
            (self.table["analysis"] == analysis) & (self.table["variable"] == variable)
        ]
        if item:
            rows = rows[rows["item"] == str(item[0])]
        if len(rows) != 1:
            raise ParameterError(self._explain(key, len(rows)))
        return float(rows["value"].iloc[0])

    def _explain(self, key: tuple[str, ...], n_values: int) -> str:
        """Return why a key does not name exactly one value."""
        sentence = f"{key} names {n_values} values of head {self.name}; see .table for all."
        names = set()
        for row in self.table[ITEM].itertuples(index=False):
            names.add(".".join(part for part in map(str, row) if part))
        similar = similar_names(".".join(map(str, key)), sorted(names))
        if n_values == 0 and similar:
            keys = " or ".join(str(tuple(name.split(".", 2))) for name in similar)
            sentence += f" Did you mean {keys}?"
        return sentence

    def __repr__(self) -> str:
        lines = [f"<headwise head {self.name}>"]
        lines += [f"{name}: {text}" for name, text in self.does.items()]
        short = self.short()
        if len(short):
            lines.append(
                f"Where it ranks highest among all heads, of {len(self.table):,} numbers "
                "(`.table` has all):"
            )
            lines.append(short.to_string(index=False, **_TABLE_FORMAT))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return str(view_of(self).html)

    def short(self, count: int = 10) -> pd.DataFrame:
        """Return the measures in which this head ranks highest, at most one item of each.

        Parameters
        ----------
        count : int, default 10
            The most rows to return.
        """
        rows = self.table[self.table["value"].notna() & (self.table["value"] != 0)]
        is_leading = []
        for group, variable in zip(rows["analysis"], rows["variable"], strict=True):
            is_leading.append(variable in LEADING_MEASURES.get(group, ()))
        ranked = rows[is_leading].sort_values("rank", kind="stable")
        best = ranked.drop_duplicates(["analysis", "variable"])
        return best.head(count).drop(columns=["n"])


def _layer_facts(datasets: Mapping[str, xr.Dataset]) -> dict[str, str]:
    """Return what the layer may attend to and whose keys the head shares, where models differ."""
    facts = {}
    for coordinate, name in (("layer_kind", "layer sees"), ("kv_group", "key/value group")):
        for dataset in datasets.values():
            if coordinate in dataset.coords and not dataset[coordinate].ndim:
                facts[name] = str(dataset[coordinate].values)
    return facts
