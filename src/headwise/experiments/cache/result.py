"""From distant attention and losses with short heads to labelled arrays and a recommendation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.papers import reference
from headwise.experiments.cache.options import CacheOptions
from headwise.models import HeadModel
from headwise.models.kv_cache import CachePattern
from headwise.stats.intervals import mean_interval

HEADS = ("layer", "kv_head")


@dataclass(frozen=True, slots=True, eq=False)
class CacheMeasurements:
    """What a study has measured.

    `distant`, `error` `[text, layer, key/value head]`; `patterns` by ranking and share (whole heads
    and window); `rises`, `divergences` `[text, pattern]` on the texts that judge; `random_rises
    [text, draw]` at the recommended share; `found[needle, 1 + pattern + draw]`, the intact model
    first."""

    model: HeadModel
    options: CacheOptions
    sliding: Mapping[int, int]
    distant: np.ndarray
    error: np.ndarray
    n_ranking_texts: int
    patterns: Mapping[tuple[str, float], tuple[np.ndarray, int]]
    rises: np.ndarray
    divergences: np.ndarray
    recommended: float
    random_rises: np.ndarray | None
    found: np.ndarray | None
    rankings: Mapping[str, np.ndarray]
    length: int


def cache_dataset(measured: CacheMeasurements) -> xr.Dataset:
    """Return all variables and attributes of a study; see `cache`."""
    model = measured.model
    options = measured.options
    names = list(measured.patterns)
    rankings = list(dict.fromkeys(ranking for ranking, _ in names))
    shares = sorted({share for _, share in names})
    variables: dict[str, Any] = {}
    for name, values, long_name in (
        ("distant", measured.distant, "attention beyond sink and window"),
        ("output_error", measured.error, "relative loss of the output without distant tokens"),
    ):
        variables |= _mean_over_texts(name, values, HEADS, long_name)
    variables["whole"] = (HEADS, _recommended_pattern(measured))
    for name, scores in measured.rankings.items():
        variables[f"score_{name.replace(' ', '_')}"] = (HEADS, scores)

    curve_dims = ("ranking", "share")
    shape = (len(rankings), len(shares))
    for name, values, long_name in (
        ("loss_rise", measured.rises, "rise of the loss, nats per token"),
        ("divergence", measured.divergences, "divergence from the intact model, nats"),
    ):
        ordered = np.full((len(values), *shape), np.nan)
        for place, (ranking, share) in enumerate(names):
            ordered[:, rankings.index(ranking), shares.index(share)] = values[:, place]
        variables |= _mean_over_texts(name, ordered, curve_dims, long_name)

    # Keys and values of all heads, in the precision of the model.
    value_bytes = 2 * model.d_head * model.kv_heads * model.layers * _bytes_of(model)
    per_token = []
    for share in shares:
        whole, window = measured.patterns[rankings[0], share]
        pattern = CachePattern(whole, options.sink, window, dict(measured.sliding))
        per_token.append(value_bytes * pattern.tokens_held(measured.length) / measured.length)
    variables["bytes_per_token"] = ("share", np.array(per_token))

    attributes: dict[str, Any] = {
        "title": "Cache: which key/value heads need the whole context",
        "paper": reference("xiao2024").short,
        "citation": reference("xiao2024").citation,
        "model": model.name,
        "sink": options.sink,
        "window": options.window,
        "length": measured.length,
        "ranking_texts": measured.n_ranking_texts,
        "judging_texts": len(measured.rises),
        "whole_bytes_per_token": float(value_bytes),
        "recommended_share": measured.recommended,
        "at_most": options.at_most,
        "sliding_layers": list(measured.sliding) or np.zeros(0, int),
        "sliding_sizes": list(measured.sliding.values()) or np.zeros(0, int),
    }
    at_recommended: int | None = None
    if measured.recommended in shares:
        at_recommended = shares.index(measured.recommended)
    rise = variables["loss_rise"][1][0]
    attributes["recommended_loss_rise"] = (
        0.0 if at_recommended is None else float(rise[at_recommended])
    )
    attributes["recommended_bytes_per_token"] = float(
        value_bytes if at_recommended is None else per_token[at_recommended]
    )
    if measured.random_rises is not None and at_recommended is not None:
        drawn = measured.random_rises.mean(0)
        variables["random_loss_rise"] = ("draw", drawn)
        n_as_good = int((drawn <= rise[at_recommended]).sum())
        attributes["random_loss_rise"] = float(drawn.mean())
        attributes["random_p"] = (1 + n_as_good) / (1 + len(drawn))
    if measured.found is not None:
        _add_needles(variables, attributes, measured, names, rankings, shares)
    coords = {
        "layer": np.arange(model.layers),
        "kv_head": np.arange(model.kv_heads),
        "ranking": rankings,
        "share": shares,
    }
    return xr.Dataset(variables, coords, attributes)


def _mean_over_texts(
    name: str, values: np.ndarray, dims: tuple[str, ...], long_name: str
) -> dict[str, Any]:
    """Return the mean over texts with its count and 95 % interval."""
    count = len(values)
    mean = values.mean(0)
    variance = values.var(0, ddof=1)
    low, high = mean_interval(mean, variance, np.full(mean.shape, count))
    return {
        name: (dims, mean, {"long_name": long_name}),
        f"{name}_n": (dims, np.full(mean.shape, count)),
        f"{name}_low": (dims, low),
        f"{name}_high": (dims, high),
    }


def _recommended_pattern(measured: CacheMeasurements) -> np.ndarray:
    if measured.recommended == 1.0:
        return np.ones((measured.model.layers, measured.model.kv_heads), bool)
    ranking = next(iter(measured.rankings))
    whole, _ = measured.patterns[ranking, measured.recommended]
    return whole


def _bytes_of(model: HeadModel) -> int:
    return int(model.dtype.itemsize)


def _add_needles(
    variables: dict[str, Any],
    attributes: dict[str, Any],
    measured: CacheMeasurements,
    names: list[tuple[str, float]],
    rankings: list[str],
    shares: list[float],
) -> None:
    """Add the share of needles that is still predicted, by ranking and share."""
    assert measured.found is not None
    found = measured.found.mean(0)
    attributes["needles"] = len(measured.found)
    attributes["intact_needle"] = float(found[0])
    by_pattern = np.full((len(rankings), len(shares)), np.nan)
    for place, (ranking, share) in enumerate(names):
        by_pattern[rankings.index(ranking), shares.index(share)] = found[1 + place]
    variables["needle"] = (("ranking", "share"), by_pattern)
    random = found[1 + len(names) :]
    if len(random):
        variables["random_needle"] = ("draw", random)


def describe_recommendation(dataset: xr.Dataset) -> list[str]:
    """Return what a user should know of the recommended pattern, as sentences."""
    facts = dataset.attrs
    share = facts["recommended_share"]
    n_whole = int(dataset["whole"].values.sum())
    saved = 1 - facts["recommended_bytes_per_token"] / facts["whole_bytes_per_token"]
    if share == 1.0:
        return [
            f"No pattern that was tried keeps the rise of the loss below {facts['at_most']:g} nats "
            "per token: all heads stay whole."
        ]
    lines = [
        f"{n_whole} of {dataset['whole'].size} key/value heads whole, the others {facts['sink']} + "
        f"{facts['window']} tokens: the cache of a text of {facts['length']} tokens is "
        f"{100 * saved:.0f} % smaller, the loss rises by {facts['recommended_loss_rise']:+.4f} nats "
        f"per token on {facts['judging_texts']} other texts."
    ]
    if "random_p" in facts:
        lines.append(
            f"As many heads chosen at random: {facts['random_loss_rise']:+.4f} (p "
            f"{facts['random_p']:.2g})."
        )
    if "needle" in dataset:
        ranking = str(dataset["ranking"].values[0])
        found = float(dataset["needle"].sel(ranking=ranking, share=share))
        lines.append(
            f"Tokens of {facts['needles']} needles predicted: {100 * found:.0f} %, with all heads "
            f"whole {100 * facts['intact_needle']:.0f} %."
        )
    return lines
