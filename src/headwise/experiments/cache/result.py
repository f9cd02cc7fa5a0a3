"""From distant attention and losses with short heads to labelled arrays and a recommendation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.papers import reference
from headwise.core.labels import SIGNIFICANCE_LEVEL
from headwise.experiments.cache.options import CacheOptions
from headwise.models import HeadModel
from headwise.models.kv_cache import CachePattern
from headwise.models.short_context import by_group
from headwise.stats.flips import sign_flip_test
from headwise.stats.intervals import sample_interval
from headwise.stats.units import share_interval

UNIFORM = "uniform window"
HEADS = ("layer", "kv_head")


@dataclass(frozen=True, slots=True, eq=False)
class CacheMeasurements:
    """What a study has measured.

    `distant`, `error` `[text, layer, head]` on the texts that rank; `patterns` by ranking and share
    (whole heads and window); `rises`, `divergences` `[text, pattern]` on the texts that judge, and
    `gain[text]` of the intact model there;
    `random_rises [text, draw]` and `random_found[needle, draw]` at the share `compared`, perhaps on the first texts
    and needles only; `found[needle, 1 + pattern]`, the intact model first, and `needle_tokens`, how
    many tokens a needle has on average; `rankings` by name `[text (or sequence, needle), layer,
    key/value head]`."""

    model: HeadModel
    options: CacheOptions
    sliding: Mapping[int, int]
    distant: np.ndarray
    error: np.ndarray
    patterns: Mapping[tuple[str, float], tuple[np.ndarray, int]]
    rises: np.ndarray
    divergences: np.ndarray
    gain: np.ndarray
    recommended: float
    compared: float
    random_rises: np.ndarray | None
    found: np.ndarray | None
    random_found: np.ndarray | None
    needle_tokens: float
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
        by_kv_head = by_group(values, model.kv_heads)
        variables |= _mean_over_texts(name, by_kv_head, HEADS, long_name)
        variables |= _mean_over_texts(
            f"head_{name}", values, ("layer", "head"), f"{long_name}, of each query head"
        )
    chosen = _recommended_pattern(measured)
    variables["whole"] = (HEADS, chosen)
    for name, scores in measured.rankings.items():
        variables |= _mean_over_texts(score_name(name), scores, HEADS, f"score by {name}")

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
        "shares": shares,
        "ranking_texts": len(measured.error),
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
    attributes["compared_share"] = measured.compared
    if measured.random_rises is not None:
        drawn = measured.random_rises.mean(0)
        variables["random_loss_rise"] = ("draw", drawn)
        attributes["random_loss_rise"] = float(drawn.mean())
        attributes["random_texts"] = len(measured.random_rises)
    _add_comparisons(attributes, measured, names)
    if measured.found is not None:
        _add_needles(variables, attributes, measured, names, rankings, shares)
    needs_context = chosen & _ranking_is_supported(measured, names, attributes)
    needs_context[list(measured.sliding)] = False
    groups = np.array(model.kv_groups)
    variables["needs_context"] = (HEADS, needs_context)
    variables["head_needs_context"] = (
        ("layer", "head"),
        needs_context[:, groups],
        {"long_name": "whole in the pattern, where texts that did not rank the heads support it"},
    )
    variables["head_is_short"] = (
        ("layer", "head"),
        ~chosen[:, groups],
        {
            "long_name": f"keeps the first {options.sink} and the last {options.window} tokens only "
            "in the pattern"
        },
    )
    coords: dict[str, Any] = {
        "layer": np.arange(model.layers),
        "head": np.arange(model.heads),
        "kv_group": ("head", groups),
        "kv_head": np.arange(model.kv_heads),
        "ranking": rankings,
        "share": shares,
    }
    return xr.Dataset(variables, coords, attributes)


def score_name(ranking: str) -> str:
    """Return the name of the variable that has the scores of a ranking."""
    return f"score_{ranking.replace(' ', '_')}"


def _mean_over_texts(
    name: str, values: np.ndarray, dims: tuple[str, ...], long_name: str
) -> dict[str, Any]:
    """Return the mean over texts with its count and 95 % interval."""
    count = len(values)
    mean, low, high = sample_interval(values)
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


def _ranking_is_supported(
    measured: CacheMeasurements, names: list[tuple[str, float]], attributes: Mapping[str, Any]
) -> bool:
    """Return whether the whole heads of the pattern may be said to need the whole context.

    Making them short like all others must cost something on the texts that judge (the interval of
    the difference excludes 0), and random choices of as many heads must do worse, where there are
    enough different choices to tell. And the model must predict text at all, better than tokens drawn
    from the same text: a model of random weights also spreads its attention far, and its loss moves
    with whatever is changed."""
    ranking = next(iter(measured.rankings))
    chosen = (ranking, measured.recommended)
    none = (ranking, 0.0)
    if chosen not in names or none not in names:
        return False
    saved = measured.rises[:, names.index(none)] - measured.rises[:, names.index(chosen)]
    _, low, _ = sample_interval(saved[:, None])
    _, gain_low, _ = sample_interval(measured.gain[:, None])
    if not (low[0] > 0 and gain_low[0] > 0):
        return False
    whole, _ = measured.patterns[chosen]
    n_free = measured.model.layers * measured.model.kv_heads
    n_free -= len(measured.sliding) * measured.model.kv_heads
    n_chosen = int(whole.sum()) - (whole.size - n_free)
    if comb(n_free, n_chosen) < 1 / SIGNIFICANCE_LEVEL:
        return True
    return bool(attributes.get("random_p", 1.0) < SIGNIFICANCE_LEVEL)


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
    by_pattern = np.full((len(measured.found), len(rankings), len(shares)), np.nan)
    for place, (ranking, share) in enumerate(names):
        column = measured.found[:, 1 + place]
        by_pattern[:, rankings.index(ranking), shares.index(share)] = column
    variables |= _mean_over_texts(
        "needle", by_pattern, ("ranking", "share"), "share of a needle's tokens predicted"
    )
    # Many needles are found whole or not at all: Student's t has no width where all are. Tokens are
    # trials, and needles the units.
    tokens = np.full(by_pattern.shape, measured.needle_tokens)
    low, high = share_interval(by_pattern * tokens, tokens)
    is_measured = ~np.isnan(by_pattern).any(0)
    for name, end in (("needle_low", low), ("needle_high", high)):
        variables[name] = (("ranking", "share"), np.where(is_measured, end, np.nan))
    if measured.random_found is not None:
        variables["random_needle"] = ("draw", measured.random_found.mean(0))
        attributes["random_needles"] = len(measured.random_found)


def _add_comparisons(
    attributes: dict[str, Any], measured: CacheMeasurements, names: list[tuple[str, float]]
) -> None:
    """Add p-values at the share `compared`: the ranking against random choices of as many heads, and
    against a uniform window of the same memory, on texts and on needles.

    Against draws it is the share of choices at least as good, the ranking's own among them; against
    the uniform window a sign-flip test, one-sided, with texts (needles) as units."""
    ranking = next(iter(measured.rankings))
    if (ranking, measured.compared) not in names:
        return
    own = names.index((ranking, measured.compared))
    uniform = names.index((UNIFORM, measured.compared))
    rises = measured.rises
    attributes["uniform_p"] = float(
        sign_flip_test((rises[:, uniform] - rises[:, own])[:, None]).p_value[0]
    )
    if measured.random_rises is not None:
        drawn = measured.random_rises.mean(0)
        # On the same texts: random choices may have been judged on some of them only.
        own_rise = rises[: len(measured.random_rises), own].mean()
        n_as_good = int((drawn <= own_rise).sum())
        attributes["own_loss_rise"] = float(own_rise)
        attributes["random_p"] = (1 + n_as_good) / (1 + len(drawn))
    if measured.found is None:
        return
    found = measured.found[:, 1:]  # without the intact model
    attributes["uniform_needle_p"] = float(
        sign_flip_test((found[:, own] - found[:, uniform])[:, None]).p_value[0]
    )
    if measured.random_found is not None:
        drawn = measured.random_found.mean(0)
        n_as_good = int((drawn >= found[: len(measured.random_found), own].mean()).sum())
        attributes["random_needle_p"] = (1 + n_as_good) / (1 + len(drawn))


def describe_recommendation(dataset: xr.Dataset) -> list[str]:
    """Return what a user should know of the recommended pattern, as sentences."""
    facts = dataset.attrs
    share = facts["recommended_share"]
    lines = []
    ranking = str(dataset["ranking"].values[0])
    if share == 1.0:
        rises = dataset["loss_rise"].sel(ranking=ranking)
        is_asked_for = bool((rises.where(rises["share"] < 1) <= facts["at_most"]).any())
        if is_asked_for:
            lines.append("All heads stay whole, as `keep` says.")
        else:
            lines.append(
                f"No pattern that was tried keeps the rise of the loss below {facts['at_most']:g} "
                "nats per token: all heads stay whole."
            )
    else:
        n_whole = int(dataset["whole"].values.sum())
        saved = 1 - facts["recommended_bytes_per_token"] / facts["whole_bytes_per_token"]
        at_share = dataset.sel(ranking=ranking, share=share)
        lines.append(
            f"{n_whole} of {dataset['whole'].size} key/value heads whole, the others "
            f"{facts['sink']} + {facts['window']} tokens: the cache of a text of {facts['length']} "
            f"tokens is {100 * saved:.0f} % smaller, the loss rises by "
            f"{facts['recommended_loss_rise']:+.4f} nats per token "
            f"({float(at_share['loss_rise_low']):+.4f} to "
            f"{float(at_share['loss_rise_high']):+.4f}) on {facts['judging_texts']} other texts."
        )
        if "needle" in dataset:
            lines.append(
                f"Tokens of {facts['needles']} needles predicted: "
                f"{100 * float(at_share['needle']):.0f} %, with all heads whole "
                f"{100 * facts['intact_needle']:.0f} %."
            )
    if not facts.get("documents_apart", False):
        lines.append(
            "The corpus has fewer than four long documents, so that texts which rank and texts which "
            "judge are of the same ones: on other documents the loss may rise more, and the "
            "intervals may be too short."
        )
    return [*lines, *_describe_comparisons(dataset)]


def _describe_comparisons(dataset: xr.Dataset) -> list[str]:
    """Return how the ranking does against random choices and the uniform window."""
    facts = dataset.attrs
    if "uniform_p" not in facts:
        return []
    compared = facts["compared_share"]
    ranking = str(dataset["ranking"].values[0])
    own = dataset.sel(ranking=ranking, share=compared)
    uniform = dataset.sel(ranking=UNIFORM, share=compared)
    # Where nothing is left to choose at the recommended share, another one is compared.
    where = ""
    if compared != facts["recommended_share"]:
        where = f" with {100 * compared:g} % of the heads whole ({float(own['loss_rise']):+.4f})"
    lines = []
    if "random_p" in facts:
        on_texts = ""
        if facts["random_texts"] < facts["judging_texts"]:
            on_texts = (
                f", on {facts['random_texts']} of these texts, where the ranking has "
                f"{facts['own_loss_rise']:+.4f}"
            )
        line = (
            f"As many heads chosen at random{where}{on_texts}: {facts['random_loss_rise']:+.4f} "
            f"(test that the ranking is better: p {facts['random_p']:.2g})"
        )
        if "random_needle_p" in facts:
            needles = 100 * float(dataset["random_needle"].mean())
            line += f", needles {needles:.0f} % (p {facts['random_needle_p']:.2g})"
        lines.append(line + ".")
        if facts["random_p"] >= SIGNIFICANCE_LEVEL:
            lines.append(
                f"By the loss, the ranking ({ranking}) is not significantly better than chance."
            )
    line = (
        f"A uniform window of the same memory{where}: {float(uniform['loss_rise']):+.4f} "
        f"(test that the ranking is better: p {facts['uniform_p']:.2g})"
    )
    if "needle" in dataset:
        needles = 100 * float(uniform["needle"])
        line += f", needles {needles:.0f} % (p {facts['uniform_needle_p']:.2g})"
    lines.append(line + ".")
    others = _describe_other_rankings(dataset, where)
    return [*lines, others] if others else lines


def _describe_other_rankings(dataset: xr.Dataset, where: str) -> str:
    """Return what the heads that other rankings choose cost on the same texts, the lowest loss first:
    no ranking is best for every share and purpose."""
    at_share = dataset.sel(share=dataset.attrs["compared_share"])
    chosen = str(dataset["ranking"].values[0])
    others = [str(name) for name in dataset["ranking"].values if name not in (chosen, UNIFORM)]
    others.sort(key=lambda name: float(at_share["loss_rise"].sel(ranking=name)))
    parts = []
    for name in others:
        values = at_share.sel(ranking=name)
        part = f"{name} {float(values['loss_rise']):+.4f}"
        if "needle" in dataset:
            part += f", needles {100 * float(values['needle']):.0f} %"
        parts.append(part)
    if not parts:
        return ""
    return f"As many heads by other rankings{where}: {'; '.join(parts)}."
