"""Tables of hidden token attribution: what special tokens contribute to heads, and what heads gather
for them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headwise.analyses.attribution.contributions import SOURCES
from headwise.analyses.summaries import ranked_heads
from headwise.core.errors import ParameterError, unknown
from headwise.core.labels import head_name
from headwise.core.token_types import TYPE_NAMES
from headwise.plots import data
from headwise.plots.registry import table_of

MAIN_SOURCES = ("attention", *SOURCES)  # the sources that tables and figures compare
TOP = 6


def special_table(dataset: xr.Dataset, token_type: str = "sep", top: int = 12) -> pd.DataFrame:
    """Return what the heads that attend most to one type of token gather (Pascual et al. 2021,
    §9.1), a row for each head.

    Columns: the head, the share of its attention on tokens of that type, what those tokens
    contribute to its output from the layer below and from the input, what each receiving token
    contributes to itself, and what tokens that are neither special nor punctuation contribute from
    the input."""
    share = dataset["share"].sel(receiver="all")
    if token_type not in share["token_type"].values:
        raise ParameterError(
            unknown("token type", token_type, map(str, share["token_type"].values))
        )
    attention = share.sel(source="attention", token_type=token_type)
    columns = {
        f"attention on {token_type}": attention,
        f"from {token_type}, previous layer": share.sel(
            source="previous_layer", token_type=token_type
        ),
        f"from {token_type}, input": share.sel(source="input", token_type=token_type),
        "from itself, input": dataset["own"].sel(source="input"),
        "from other tokens, input": share.sel(source="input", token_type="other"),
    }
    layers = data.numbers(dataset, "layer")
    heads = data.numbers(dataset, "head")
    best = ranked_heads(attention.values)[:top]
    table: dict[str, list[Any]] = {
        "head": [head_name(layers[layer], heads[head]) for layer, head in best]
    }
    for name, values in columns.items():
        table[name] = [float(values[position]) for position in best]
    return pd.DataFrame(table)


@table_of(
    "attribution",
    name="special-heads",
    title="What the heads that attend most to each type of token gather",
    note="For each type of token the heads with the largest share of attention on it: that share, and the share of "
    "what such tokens contribute to the head's output, from the layer below and from the input; then what each "
    "token contributes to itself and what tokens that are neither special nor punctuation contribute.",
)
def special_heads(dataset: xr.Dataset) -> pd.DataFrame:
    """Return `special_table` of `[CLS]`, of separators and of punctuation in one table, as far as
    the model has them."""
    tables = []
    for token_type in TYPE_NAMES:
        if token_type == "other":
            continue
        table = special_table(dataset, token_type, TOP)
        if not len(table) or not table[f"attention on {token_type}"].any():
            continue  # the model has no such token
        shared_names = []
        for name in table:
            name = name.replace(f"on {token_type}", "on it")
            shared_names.append(name.replace(f"from {token_type}", "from it"))
        table.columns = shared_names
        table.insert(0, "token type", token_type)
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


@table_of(
    "attribution",
    name="special-layers",
    title="From which tokens each kind of token gathers, by layer",
    note="Means over the heads of a layer; rows sum to 1. Receivers: `cls` and `sep` are the special tokens "
    "themselves, `other` all the rest.",
)
def special_layers(dataset: xr.Dataset) -> pd.DataFrame:
    """Return the share of each token type, by layer, receiving token and source."""
    share = dataset["share"].mean("head", skipna=True)
    columns = [f"from {token_type}" for token_type in data.labels(dataset, "token_type")]
    layers = data.numbers(dataset, "layer")
    rows = []
    for layer, receiver, source in product(layers, ("cls", "sep", "other"), MAIN_SOURCES):
        shares = share.sel(layer=layer, receiver=receiver, source=source).values
        if not np.isfinite(shares).any():
            continue
        row = {"layer": layer, "receiver": receiver, "reading": source.replace("_", " ")}
        row.update(zip(columns, shares.astype(float).tolist(), strict=True))
        rows.append(row)
    return pd.DataFrame(rows)
