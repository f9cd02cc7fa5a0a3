"""The claims of Pascual et al. 2021: from measured numbers to evidence for each sentence.

The rules, with their bounds, stand beside the sentences in `printed/pascual2021.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from scipy import stats as scipy_stats

from headwise.experiments.reproduction.estimates import (
    Estimate,
    Estimates,
    all_of,
    count_text,
    outcome_of,
)
from headwise.experiments.reproduction.printed import bounds_of
from headwise.experiments.reproduction.rules import Evidence, cannot_try
from headwise.experiments.reproduction.shared import head_values, layers_at_depth, layers_text

PAPER = "pascual2021"
FADING_PATTERNS = ("vertical", "diagonal", "vertical+diagonal")


# --- §6: contributions of the previous layer ------------------------------------------------------


def local_evidence(pearson: Estimates, spearman: Estimates, n_inputs: int) -> dict[str, Evidence]:
    """Return the evidence on correlations `[layer, head]` with contributions of the previous
    layer."""
    evidence = {}
    for key, correlation in (("local-pearson", pearson), ("local-spearman", spearman)):
        bounds = bounds_of(PAPER, key)
        of_all_heads = correlation.for_all()
        if key == "local-pearson":
            # "larger than 0.7": a head at the bound is an exception.
            n_low = of_all_heads.negated().count_above(-bounds["correlation"] - 1e-12)
        else:
            n_low = of_all_heads.count_below(bounds["correlation"])
        n_heads = correlation.n_known
        ours = (
            f"{count_text(n_low, n_heads)} heads are exceptions; lowest "
            f"{np.nanmin(correlation.value):.2f}"
        )
        nearly_all = n_low.at_most((1 - bounds["share"]) * n_heads)
        evidence[key] = Evidence(
            ours, n_low.at_most(bounds["heads"]), {"share": nearly_all}, {"inputs": n_inputs}
        )
    return evidence


# --- §7: past and future --------------------------------------------------------------------------


def position_evidence(
    centre: xr.DataArray, histogram: xr.DataArray, n_inputs: int
) -> dict[str, Evidence]:
    """Return the evidence on past and future.

    Parameters
    ----------
    centre : xr.DataArray
        The centre of mass `[layer, head]`, in tokens; it has no interval.
    histogram : xr.DataArray
        The mean weight `[layer, head, offset]`.
    n_inputs : int
        The inputs behind them.
    """
    sample = {"inputs": n_inputs}
    centres = head_values(centre)
    n_layers = len(centres)
    first = centres[list(layers_at_depth(1, 3, n_layers))]
    last = centres[list(layers_at_depth(9, 12, n_layers))]
    n_past = int((first < 0).sum())
    n_ahead = int((last > 0).sum())
    mean_first = float(np.nanmean(first))
    is_causal = not bool((histogram.sel(offset=histogram["offset"] > 0) > 0).any())
    if is_causal:
        why = "a causal model sees no later tokens"
        return dict.fromkeys(("past-first", "future-later", "negligible"), cannot_try(why))
    past_share = bounds_of(PAPER, "past-first")["share"]
    future_share = bounds_of(PAPER, "future-later")["share"]
    most_past = outcome_of(n_past > past_share * first.size)
    mean_past = outcome_of(mean_first < 0)
    return {
        "past-first": Evidence(
            f"{n_past} of {first.size} heads before 0, mean {mean_first:+.1f} tokens, in "
            f"{layers_text(layers_at_depth(1, 3, n_layers))}",
            all_of([most_past, mean_past]),
            {"mean": mean_past},
            sample,
        ),
        "future-later": Evidence(
            f"{n_ahead} of {last.size} heads behind 0 in "
            f"{layers_text(layers_at_depth(9, 12, n_layers))}",
            outcome_of(n_ahead > future_share * last.size),
            {},
            sample,
        ),
        "negligible": _negligible_evidence(histogram, sample),
    }


def _negligible_evidence(histogram: xr.DataArray, sample: Mapping[str, int]) -> Evidence:
    bounds = bounds_of(PAPER, "negligible")
    second = layers_at_depth(2, 2, histogram.sizes["layer"])[0]
    weight = histogram.isel(layer=second)
    ahead = weight.sel(offset=weight["offset"] > 0)
    share_ahead = (ahead.sum("offset") / weight.sum("offset")).values
    count = int((share_ahead < bounds["share"]).sum())
    ours = f"{count} heads of layer {second}; least {float(share_ahead.min()):.3f}"
    weaker = {"some": outcome_of(count >= 1)}
    return Evidence(ours, outcome_of(count >= bounds["heads"]), weaker, sample)


def language_evidence(
    centres_by_name: Mapping[str, np.ndarray], without_model: Sequence[str], n_inputs: int
) -> dict[str, Evidence]:
    """Return the evidence on three languages from the mean centre of mass `[layer]` of each."""
    parts = []
    past_then_future = []
    moves_ahead = []
    for name, centre in centres_by_name.items():
        n_third = max(1, len(centre) // 3)
        first = float(centre[:n_third].mean())
        last = float(centre[-n_third:].mean())
        parts.append(f"{name}: {first:+.1f}, then {last:+.1f}")
        past_then_future.append(outcome_of(first < 0 < last))
        moves_ahead.append(outcome_of(first < last))
    ours = "; ".join(parts)
    if without_model:
        why = f"no model of its own for {' and '.join(without_model)}"
        return {"languages": Evidence(ours, cannot=why)}
    return {
        "languages": Evidence(
            ours, all_of(past_then_future), {"ahead": all_of(moves_ahead)}, {"inputs": n_inputs}
        )
    }


# --- §8: centres of contributions -----------------------------------------------------------------


def uniform_evidence(
    of_attention: np.ndarray, of_input: np.ndarray, n_inputs: int
) -> dict[str, Evidence]:
    """Return the evidence on how far attention and input contributions lie off centre, from mean
    centres `[layer]`."""
    share = bounds_of(PAPER, "uniform")["share"]
    late = layers_at_depth(5, 12, len(of_attention))
    if late[0] == 0:
        return {"uniform": cannot_try("the model has too few layers")}
    attention_offset = np.abs(of_attention)
    input_offset = np.abs(of_input)
    late_attention = float(attention_offset[list(late)].mean())
    late_input = float(input_offset[list(late)].mean())
    early_attention = float(attention_offset[: late[0]].mean())
    early_input = float(input_offset[: late[0]].mean())
    ours = (
        f"attention {late_attention:.1f}, input {late_input:.1f} tokens off centre in "
        f"{layers_text(late)}; {early_attention:.1f} and {early_input:.1f} before"
    )
    much_nearer = outcome_of(input_offset.mean() < share * attention_offset.mean())
    # Both sides times the other denominator: a centre of attention at 0 divides by nothing.
    especially_late = outcome_of(late_input * early_attention < early_input * late_attention)
    weaker = {
        "late": outcome_of(late_input < share * late_attention),
        "nearer": outcome_of(late_input < late_attention),
    }
    printed = all_of([much_nearer, especially_late])
    return {"uniform": Evidence(ours, printed, weaker, {"inputs": n_inputs})}


# --- §9: contributions of the input ---------------------------------------------------------------


def far_evidence(pearson: Estimates, spearman: Estimates, n_inputs: int) -> dict[str, Evidence]:
    """Return the evidence on correlations `[layer, head]` with contributions of the input."""
    sample = {"inputs": n_inputs}
    n_layers = len(pearson.value)
    return {
        "decreases": _decrease_evidence(pearson, sample),
        "after-four": _after_four_evidence(pearson, layers_at_depth(5, 12, n_layers), sample),
        "last-four": _last_four_evidence(pearson, layers_at_depth(9, 12, n_layers), sample),
        "spearman-three": _spearman_evidence(spearman, sample),
    }


def _decrease_evidence(pearson: Estimates, sample: Mapping[str, int]) -> Evidence:
    n_layers = len(pearson.value)
    if n_layers < 4:
        return cannot_try("the model has fewer than four layers")
    bounds = bounds_of(PAPER, "decreases")
    medians = [pearson.at(layer).median() for layer in range(n_layers)]
    values = [median.value for median in medians]
    trend = float(scipy_stats.spearmanr(np.arange(n_layers), values).statistic)
    falls = outcome_of(trend < bounds["trend"])
    fifth = layers_at_depth(5, 5, n_layers)[0]
    is_quick = medians[fifth].minus(medians[0].times(bounds["quick"])).below(0)
    ours = (
        f"Spearman over layers {trend:.2f}; median {medians[0].text()} in layer 0, "
        f"{medians[fifth].text()} in layer {fifth}"
    )
    return Evidence(ours, all_of([falls, is_quick]), {"falls": falls}, sample)


def _after_four_evidence(pearson: Estimates, layers: range, sample: Mapping[str, int]) -> Evidence:
    bounds = bounds_of(PAPER, "after-four")
    late = pearson.at(list(layers)).for_all()
    count = late.count_below(bounds["correlation"])
    ours = f"{count_text(count, late.n_known)} heads in {layers_text(layers)}"
    return Evidence(ours, count.above(bounds["share"] * late.n_known), {}, sample)


def _last_four_evidence(pearson: Estimates, layers: range, sample: Mapping[str, int]) -> Evidence:
    bound = bounds_of(PAPER, "last-four")["correlation"]
    medians = [pearson.at(layer).median() for layer in layers]
    highest = max(medians, key=lambda median: median.value)
    together = pearson.at(list(layers)).median()
    ours = (
        f"largest median of a layer {highest.text()}, over all heads {together.text()}, in "
        f"{layers_text(layers)}"
    )
    every_layer = all_of(median.below(bound) for median in medians)
    return Evidence(ours, every_layer, {"together": together.below(bound)}, sample)


def _spearman_evidence(spearman: Estimates, sample: Mapping[str, int]) -> Evidence:
    bounds = bounds_of(PAPER, "spearman-three")
    third = layers_at_depth(3, 3, len(spearman.value))[0]
    in_third = spearman.at(third).median()
    in_last = spearman.at(-1).median()
    below_in_third = in_third.below(bounds["third"])
    below_in_last = in_last.below(bounds["last"])
    ours = f"{in_third.text()} in layer {third}, {in_last.text()} in the last"
    weaker = {"last": below_in_last, "third": below_in_third}
    return Evidence(ours, all_of([below_in_third, below_in_last]), weaker, sample)


# --- §9.1: patterns -------------------------------------------------------------------------------


def pattern_evidence(attribution: xr.Dataset) -> dict[str, Evidence]:
    """Return the evidence on patterns from the share of maps `pattern_share[source, layer,
    pattern]` with its interval."""
    names = [str(name) for name in attribution["pattern"].values]
    by_source: dict[str, dict[str, Estimates]] = {}
    for source in ("attention", "input"):
        by_source[source] = {}
        for name in names:
            by_source[source][name] = Estimates.of(
                attribution, "pattern_share", source=source, pattern=name
            )
    sample = {"classified inputs": int(attribution["pattern_share_n"].max())}
    return {
        "block-stays": _block_evidence(by_source, names, sample),
        "no-deep-block": _deep_block_evidence(by_source["input"]["block"], sample),
    }


def _block_evidence(
    by_source: Mapping[str, Mapping[str, Estimates]],
    names: Sequence[str],
    sample: Mapping[str, int],
) -> Evidence:
    share = bounds_of(PAPER, "block-stays")["share"]
    in_attention = {name: by_source["attention"][name].mean() for name in names}
    in_input = {name: by_source["input"][name].mean() for name in names}
    parts = []
    for name in names:
        parts.append(f"{name} {in_attention[name].text()} → {in_input[name].text()}")
    fades = []
    for name in FADING_PATTERNS:
        # A pattern that hardly occurs in attention has nothing to lose.
        if in_attention[name].value > 0 or in_input[name].value > 0:
            fades.append(in_input[name].minus(in_attention[name].times(share)).below(0))
    block_stays = in_input["block"].minus(in_attention["block"].times(share)).above(0)
    together_attention = _sum_of(in_attention)
    together_input = _sum_of(in_input)
    together_fade = together_input.minus(together_attention.times(share)).below(0)
    if not in_attention["block"].value and not in_input["block"].value:
        return cannot_try("no map of attention or contributions shows a block")
    weaker = {"together": all_of([together_fade, block_stays]), "block": block_stays}
    return Evidence(", ".join(parts), all_of([*fades, block_stays]), weaker, sample)


def _sum_of(shares: Mapping[str, Estimate]) -> Estimate:
    """Return the share of maps with any of the fading patterns."""
    value = sum(shares[name].value for name in FADING_PATTERNS)
    low = sum(shares[name].low for name in FADING_PATTERNS)
    high = sum(shares[name].high for name in FADING_PATTERNS)
    return Estimate(value, low, high)


def _deep_block_evidence(blocks: Estimates, sample: Mapping[str, int]) -> Evidence:
    n_layers = len(blocks.value)
    late = layers_at_depth(5, 12, n_layers)
    if late[0] == 0:
        return cannot_try("the model has too few layers")
    bound = bounds_of(PAPER, "no-deep-block")["share"]
    by_layer = [blocks.one(layer) for layer in late]
    highest = max(by_layer, key=lambda share: share.value)
    early_mean = blocks.at(slice(0, late[0])).mean()
    late_mean = blocks.at(list(late)).mean()
    fewer = late_mean.minus(early_mean).below(0)
    ours = (
        f"largest share of a layer {highest.text('.3f')} in {layers_text(late)}; mean "
        f"{late_mean.text('.3f')}, {early_mean.text('.3f')} before"
    )
    none = all_of(share.at_most(bound) for share in by_layer)
    return Evidence(ours, none, {"fewer": fewer}, sample)
