"""Tables of hidden token attribution: what special tokens give to heads, and what heads gather for
them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import xarray as xr

from headwise.analyses.attribution.contributions import SOURCES
from headwise.analyses.summaries import ranked_heads
from headwise.core.errors import ParameterError, unknown
from headwise.core.labels import head_name
from headwise.plots import data
from headwise.plots.registry import table_of

SHOWN = ("attention", *SOURCES)  # the readings that tables and figures set side by side
LOOKED_AT = ("cls", "sep", "punct")  # token types that heads are known to park their attention on
TOP = 6


def special_table(dataset: xr.Dataset, token_type: str = "sep", top: int = 12) -> pd.DataFrame:
    """What the heads that look most at one type of token really gather (Pascual et al. 2021, §9.1),
    a row a head.

    Columns: the head, the share of its attention on tokens of that type, what those tokens
    contribute to its output from the layer below and from the input, what each receiving token
    contributes to itself, and what tokens that are neither special nor punctuation contribute from
    the input."""
    share = dataset["share"].sel(receiver="all")
    if token_type not in share["token_type"].values:
        raise ParameterError(
            unknown("token type", token_type, map(str, share["token_type"].values))
        )
    looked = share.sel(source="attention", token_type=token_type)
    layers, heads = data.numbers(dataset, "layer"), data.numbers(dataset, "head")
    places = ranked_heads(looked.values)[:top]
    columns = {
        f"attention on {token_type}": looked,
        f"from {token_type}, previous layer": share.sel(
            source="previous_layer", token_type=token_type
        ),
        f"from {token_type}, input": share.sel(source="input", token_type=token_type),
        "from itself, input": dataset["own"].sel(source="input"),
        "from other tokens, input": share.sel(source="input", token_type="other"),
    }
    names = [head_name(layers[layer], heads[head]) for layer, head in places]
    shares = {name: [float(values[place]) for place in places] for name, values in columns.items()}
    return pd.DataFrame({"head": names} | shares)


@table_of(
    "attribution",
    name="special-heads",
    title="What the heads that look most at each type of token gather",
    note="For each type of token the heads with the largest share of attention on it: that share, and the share of "
    "what such tokens contribute to the head's output, from the layer below and from the input; beside it what each "
    "token contributes to itself and what tokens that are neither special nor punctuation contribute.",
)
def special_heads(dataset: xr.Dataset) -> pd.DataFrame:
    """`special_table` of `[CLS]`, of separators and of punctuation in one table, as far as the
    model has them."""
    parts = []
    for kind in LOOKED_AT:
        table = special_table(dataset, kind, TOP)
        if not len(table) or not table[f"attention on {kind}"].any():
            continue  # the model has no such token
        table.columns = [
            name.replace(f"on {kind}", "on it").replace(f"from {kind}", "from it") for name in table
        ]
        table.insert(0, "token type", kind)
        parts.append(table)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


@table_of(
    "attribution",
    name="special-layers",
    title="From which tokens each kind of token gathers, by layer",
    note="Means over the heads of a layer; rows sum to 1. Receivers: `cls` and `sep` are the special tokens "
    "themselves, `other` all the rest.",
)
def special_layers(dataset: xr.Dataset) -> pd.DataFrame:
    """Contributions to and from special tokens apart: by layer, receiving token and reading, the
    share of each type."""
    share = dataset["share"].mean("head", skipna=True)
    types = [f"from {kind}" for kind in data.labels(dataset, "token_type")]
    rows = []
    for layer, receiver, source in product(
        data.numbers(dataset, "layer"), ("cls", "sep", "other"), SHOWN
    ):
        shares = share.sel(layer=layer, receiver=receiver, source=source).values
        if np.isfinite(shares).any():
            about = {"layer": layer, "receiver": receiver, "reading": source.replace("_", " ")}
            rows.append(about | dict(zip(types, shares.astype(float).tolist(), strict=True)))
    return pd.DataFrame(rows)
