"""§3: positions, token types, entropies, gradients; Figures 2 to 4."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headwise.core.labels import head_name
from headwise.experiments.reproduction.clark2019.corpora import segments
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.schema import (
    EntryResult,
    NotRunError,
    ReportRow,
    Verdict,
)
from headwise.experiments.reproduction.shared import (
    best_head,
    layer_table,
    layers_at_depth,
    layers_text,
    not_tried,
    registered_figures,
)

HALF = 0.5
LITTLE_ATTENTION = 0.1  # to the current token (§3.1)
NEARLY_ALL = 0.9  # of the attention of [SEP] (§3.2)
BROADEST_SHARE = 0.1  # of the heads, by entropy (§3.3)
BROAD_MAX_WEIGHT = 0.1  # on a single token by a broad head (§3.3)
OFFSETS = {"previous": -1, "next": 1}
TOKEN_TYPES = ("cls", "sep", "punct", "other")
N_GRADIENT_QUICK = 24


def _surface(context: ReproductionContext) -> tuple[xr.Dataset, dict[str, str], list[str]]:
    corpus, inputs, deviations = segments(context)
    surface = context.run_analysis(corpus, context.analysis("surface"))
    return surface, inputs, deviations


# --- §3.1 -----------------------------------------------------------------------------------------


def positions(context: ReproductionContext) -> EntryResult:
    """§3.1: heads that attend to the previous, the current and the next token."""
    surface, inputs, deviations = _surface(context)
    rows, verdicts = neighbour_heads(surface["position"])
    figures = registered_figures("surface", surface, "positions")
    return EntryResult(
        rows, figures=figures, verdicts=verdicts, deviations=deviations, inputs=inputs
    )


def neighbour_heads(position: xr.DataArray) -> tuple[list[ReportRow], dict[str, Verdict]]:
    """Count the heads with over half of their attention on a neighbour, and judge the claims.

    Parameters
    ----------
    position : xr.DataArray
        Mean attention `[layer, head, offset]` to the offsets -1, 0 and 1.
    """
    rows = []
    verdicts = {}
    neighbour_layers: list[int] = []
    for name, offset in OFFSETS.items():
        attention = position.sel(offset=offset)
        if not bool(attention.notnull().any()):
            verdicts[name] = not_tried("a causal model sees no next token")
            continue
        values = attention.values
        heads = [(int(layer), int(head)) for layer, head in np.argwhere(values > HALF)]
        neighbour_layers += [layer for layer, _ in heads]
        note = ", ".join(f"{head_name(*head)} {values[head]:.2f}" for head in heads)
        if not heads:
            highest = best_head(values)
            note = f"highest: {head_name(*highest)} {values[highest]:.2f}"
        rows.append(ReportRow(name, len(heads), note=note))
        verdicts[name] = Verdict(f"{len(heads)} heads ({note})", len(heads) > 0)
    verdicts["earlier"] = earlier_verdict(neighbour_layers, position.sizes["layer"])
    share = float((position.sel(offset=0) < LITTLE_ATTENTION).mean())
    verdicts["current"] = Verdict(f"{100 * share:.0f} % of the heads", share > HALF)
    return rows, verdicts


def earlier_verdict(neighbour_layers: list[int], n_layers: int) -> Verdict:
    """Judge whether most heads that attend to a neighbour lie in the first half of the layers."""
    count = len(neighbour_layers)
    if not count:
        return not_tried("no head puts over half on a neighbour")
    n_early = sum(layer < n_layers / 2 for layer in neighbour_layers)
    return Verdict(f"{n_early} of {count} lie in the first half", n_early > count / 2)


# --- §3.2 -----------------------------------------------------------------------------------------


def token_types(context: ReproductionContext) -> EntryResult:
    """Figure 2: mean attention to each token type, from all tokens and from separators."""
    surface, inputs, deviations = _surface(context)
    by_layer = surface["mass"].mean("head")
    from_sep = surface["mass_from_sep"].mean("head")
    present_types = []
    for token_type in TOKEN_TYPES:
        if bool(by_layer.sel(token_type=token_type).notnull().any()):
            present_types.append(token_type)
    columns = {}
    for token_type in present_types:
        columns[f"to {token_type}"] = by_layer.sel(token_type=token_type).values
    if "sep" in present_types:
        for token_type in present_types:
            columns[f"from sep to {token_type}"] = from_sep.sel(token_type=token_type).values
    note = "The paper prints no numbers beside the figure."
    table = layer_table("Mean over the heads of a layer", columns, note)
    return EntryResult(
        tables=[table],
        figures=registered_figures("surface", surface, "token-types"),
        verdicts=token_type_verdicts(by_layer, from_sep, present_types),
        deviations=deviations,
        inputs=inputs,
    )


def token_type_verdicts(
    by_layer: xr.DataArray, from_sep: xr.DataArray, present_types: list[str]
) -> dict[str, Verdict]:
    """Judge the claims of §3.2 on mean attention `[layer, token_type]`, from all tokens and from
    separators."""
    n_layers = by_layer.sizes["layer"]
    middle = layers_at_depth(6, 10, n_layers)
    verdicts = {}
    if "sep" in present_types:
        to_sep = float(by_layer.sel(token_type="sep").isel(layer=list(middle)).mean())
        sep_to_sep = float(from_sep.sel(token_type="sep").isel(layer=list(middle)).mean())
        verdicts["sep-half"] = Verdict(f"{to_sep:.2f} in {layers_text(middle)}", to_sep > HALF)
        verdicts["sep-self"] = Verdict(
            f"{sep_to_sep:.2f} in {layers_text(middle)}", sep_to_sep > NEARLY_ALL
        )
    if {"cls", "sep", "punct"} <= set(present_types):
        mean_layer = {}
        for token_type in ("cls", "sep", "punct"):
            mass = by_layer.sel(token_type=token_type)
            mean_layer[token_type] = float((mass * np.arange(n_layers)).sum() / mass.sum())
        ours = ", ".join(f"{name} {layer:.1f}" for name, layer in mean_layer.items())
        in_order = mean_layer["cls"] < mean_layer["sep"] < mean_layer["punct"]
        verdicts["early-cls"] = Verdict(f"mean layers: {ours}", in_order)
    return verdicts


def gradients(context: ReproductionContext) -> EntryResult:
    """Figure 3: size of the gradient of the masked-LM loss with respect to attention, by token
    type."""
    corpus, inputs, deviations = segments(context, quick_size=N_GRADIENT_QUICK)
    gradient = context.run_analysis(corpus, context.analysis("gradient"))
    mean = gradient["importance"].mean("head")
    to_sep = mean.sel(token_type="sep").values
    columns = {
        "sep": to_sep,
        ". and ,": mean.sel(token_type="punct").values,
        "other": gradient["importance_paper_other"].mean("head").values,
    }
    table = layer_table("Mean |d loss / d attention| over the heads of a layer", columns)
    deviations.append(
        "15 % of the tokens are masked by seed; the paper does not say how its loss was taken."
    )
    return EntryResult(
        tables=[table],
        figures=registered_figures("gradient", gradient, "importance"),
        verdicts=gradient_verdicts(to_sep),
        deviations=deviations,
        inputs=inputs,
    )


def gradient_verdicts(to_sep: np.ndarray) -> dict[str, Verdict]:
    """Judge whether the gradient `[layer]` for attention to [SEP] at least halves from layer 5."""
    late = layers_at_depth(5, 12, len(to_sep))
    n_early = late[0]
    if not np.isfinite(to_sep).any() or n_early == 0:
        return {}
    before = float(to_sep[:n_early].mean())
    after = float(to_sep[list(late)].mean())
    ours = f"{after:.2g} in {layers_text(late)}, {before:.2g} before"
    return {"sep-gradient": Verdict(ours, after < before / 2)}


# --- §3.3 -----------------------------------------------------------------------------------------


def entropies(context: ReproductionContext) -> EntryResult:
    """Figure 4: how broadly heads attend."""
    surface, inputs, deviations = _surface(context)
    entropy = surface["entropy"]
    from_cls = surface["entropy_from_cls"]
    uniform = surface["entropy_uniform"].values
    if not bool(entropy.notnull().any()):
        raise NotRunError("no row of this corpus has an entropy")
    verdicts = broad_head_verdicts(entropy.values, surface["max_weight"].values)
    verdicts["cls-last"] = cls_entropy_verdict(from_cls.values, entropy.values)
    rows = []
    if bool(from_cls.notnull().any()):
        note = f"mean over the last layer's heads; uniform: {float(uniform[-1]):.2f}"
        rows.append(ReportRow("cls-entropy", float(from_cls[-1].mean()), note=note))
    columns = {
        "from all tokens": entropy.mean("head").values,
        "from [CLS]": from_cls.mean("head").values,
        "uniform": uniform,
        "broadest head": entropy.max("head").values,
    }
    table = layer_table("Mean entropy over the heads of a layer (nats)", columns)
    figures = registered_figures("surface", surface, "entropy")
    return EntryResult(rows, [table], figures, verdicts, deviations, inputs)


def broad_head_verdicts(entropy: np.ndarray, max_weight: np.ndarray) -> dict[str, Verdict]:
    """Judge the claims on broad heads from entropy and largest weight, `[layer, head]`."""
    broadest = best_head(entropy)
    is_broad = entropy >= np.quantile(entropy, 1 - BROADEST_SHARE)
    median_max_weight = float(np.median(max_weight[is_broad]))
    highest = float(np.nanmax(entropy))
    return {
        "broad-low": Verdict(
            f"{head_name(*broadest)}, {highest:.2f} nats", broadest[0] < len(entropy) / 2
        ),
        "broad-tenth": Verdict(
            f"{median_max_weight:.2f}, over {int(is_broad.sum())} heads",
            median_max_weight <= BROAD_MAX_WEIGHT,
        ),
    }


def cls_entropy_verdict(from_cls: np.ndarray, entropy: np.ndarray) -> Verdict:
    """Judge whether [CLS] attends more broadly than all tokens in the last layer, `[layer,
    head]`."""
    if not np.isfinite(from_cls).any():
        return not_tried("the model has no [CLS] that sees other tokens")
    last_from_cls = float(np.nanmean(from_cls[-1]))
    last_from_all = float(np.nanmean(entropy[-1]))
    ours = f"{last_from_cls:.2f} from [CLS], {last_from_all:.2f} from all tokens in the last layer"
    return Verdict(ours, last_from_cls > last_from_all)
