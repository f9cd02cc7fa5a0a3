"""Small made-up datasets of the shapes that surface and offsets give, for the tests of figures and
page."""

from __future__ import annotations

import numpy as np
import xarray as xr

TOKENS = [
    "[CLS]",
    "the",
    "old",
    "dog",
    "that",
    "my",
    "sister",
    "found",
    "chased",
    "three",
    "cats",
    ".",
    "[SEP]",
    "it",
    "was",
    "tired",
    ",",
    "they",
    "ran",
    "off",
    ".",
    "[SEP]",
]


def _mean(name: str, dims: tuple[str, ...], values: np.ndarray, n: int) -> dict[str, xr.Variable]:
    half = 0.02 + 0.05 * np.sqrt(np.clip(values, 0, 1) * (1 - np.clip(values, 0, 1)))
    count = np.where(np.isnan(values), 0, n)
    return {
        name: xr.Variable(dims, values.astype(np.float32)),
        f"{name}_n": xr.Variable(dims, count),
        f"{name}_low": xr.Variable(dims, (values - half).astype(np.float32)),
        f"{name}_high": xr.Variable(dims, (values + half).astype(np.float32)),
    }


def surface(
    layers: int = 12, heads: int = 12, *, causal: bool = False, n: int = 200, seed: int = 0
) -> xr.Dataset:
    """A surface dataset; a causal one has no sep and no entropy from cls, as a decoder without an
    end token."""
    rng = np.random.default_rng(seed)
    depth = np.linspace(0, 1, layers)[:, None]
    sep = np.clip(
        rng.beta(2, 3, (layers, heads)) * (0.2 + 1.6 * np.exp(-((depth - 0.6) ** 2) / 0.08)),
        0,
        0.97,
    )
    cls = (1 - sep) * rng.beta(1, 6, (layers, heads)) * (1.4 - depth)
    punct = (1 - sep - cls) * rng.beta(1, 9, (layers, heads))
    types = np.stack([cls, cls, sep, punct, 1 - sep - cls - punct], -1)
    sharper = np.stack(
        [cls * 0.1, cls * 0.1, 1 - 0.1 * (1 - sep) * 4, punct * 0.1, 0.3 * (1 - sep)], -1
    )
    if causal:
        types[..., 2] = np.nan
        sharper[:] = np.nan
    rest = types / (1 - cls)[..., None]
    rest[..., :2] = 0
    position = np.clip(rng.dirichlet([0.35, 0.3, 0.35, 1.8], (layers, heads))[..., :3], 0.002, 1)
    if causal:
        position[..., 2] = np.nan
    entropy = np.clip(4.6 * rng.beta(3, 2, (layers, heads)) * (0.8 + 0.2 * depth), 0.1, 4.6)
    first = (
        np.full((layers, heads), np.nan)
        if causal
        else np.clip(entropy * rng.normal(0.95, 0.1, (layers, heads)), 0, 4.7)
    )
    dims = ("layer", "head", "token_type")
    variables = {
        **_mean("position", ("layer", "head", "offset"), position, n),
        **_mean("mass", dims, types, n),
        **_mean("mass_from_sep", dims, sharper, n),
        **_mean("mass_from_other", dims, types * 0.98, n),
        **_mean("mass_rest", dims, rest, n),
        **_mean("position_rest", ("layer", "head", "offset"), position, n),
        **_mean("entropy", ("layer", "head"), entropy, n),
        **_mean("entropy_rest", ("layer", "head"), entropy * 0.95, n),
        **_mean("max_weight_rest", ("layer", "head"), np.clip(1.1 - entropy / 4.6, 0.05, 0.98), n),
        "entropy_rest_uniform": xr.Variable(("layer",), np.full(layers, 4.7, np.float32)),
        **_mean("entropy_from_cls", ("layer", "head"), first, n),
        **_mean("max_weight", ("layer", "head"), np.clip(1.1 - entropy / 4.6, 0.05, 0.98), n),
        "entropy_uniform": xr.Variable(("layer",), np.full(layers, 4.72, np.float32)),
    }
    coords = {
        "layer": np.arange(layers),
        "head": np.arange(heads),
        "offset": [-1, 0, 1],
        "token_type": ["first", "cls", "sep", "punct", "other"],
    }
    return xr.Dataset(variables, coords, {"model": "tiny-bert", "corpus": "made-up sentences"})


def offsets(
    layers: int = 12,
    heads: int = 12,
    *,
    causal: bool = False,
    sources: int = 2,
    reach: int = 20,
    n: int = 200,
    seed: int = 0,
) -> xr.Dataset:
    """An offsets dataset with up to three sources; the last layer's last head has no numbers."""
    rng = np.random.default_rng(seed)
    o = np.arange(-reach, reach + 1)
    names = ["attention", "previous_layer", "input"]
    middle = rng.normal(0, 1.6, (3, layers, heads, 1)).round()
    spread = rng.uniform(0.4, 6, (3, layers, heads, 1))
    histogram = np.exp(-np.abs(o - middle) / spread) / spread / 2 + 0.004
    if causal:
        histogram[..., o > 0] = np.nan
    histogram[sources:] = np.nan
    histogram[:, -1, -1] = np.nan
    filled = np.nan_to_num(histogram)
    with np.errstate(invalid="ignore"):
        centre = (filled * o).sum(-1) / np.where(filled.sum(-1) > 0, filled.sum(-1), np.nan)
    variables = {
        **_mean("histogram", ("source", "layer", "head", "offset"), histogram, n),
        **_mean("mean_distance", ("source", "layer", "head"), np.abs(centre) + 0.5, n),
        "centre": xr.Variable(("source", "layer", "head"), centre),
    }
    coords = {"source": names, "layer": np.arange(layers), "head": np.arange(heads), "offset": o}
    return xr.Dataset(variables, coords, {"model": "tiny-bert", "corpus": "made-up sentences"})


def attention(layers: int, heads: int, tokens: int, *, seed: int = 0) -> np.ndarray:
    """Maps `[layer, head, query, key]` of plain shapes: diagonals, columns, blocks, even ones."""
    rng = np.random.default_rng(seed)
    i, j = np.indices((tokens, tokens))
    kinds = [
        4.0 * (j == i - 1), 4.0 * (j == i + 1), 5.0 * (j == tokens - 1), 4.5 * (j == 0),
        2.5 * ((i < tokens // 2) == (j < tokens // 2)), 0.0 * i, -0.5 * np.abs(i - j),
    ]  # fmt: skip
    scores = np.array(
        [
            [
                kinds[rng.integers(len(kinds))] + rng.normal(0, 0.6, (tokens, tokens))
                for _ in range(heads)
            ]
            for _ in range(layers)
        ]
    )
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True)
