"""§3: positions, token types, entropies, gradients; Figures 2 to 4."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headwise.atlas.behaviours import special_token_note
from headwise.experiments.reproduction.clark2019 import claims
from headwise.experiments.reproduction.clark2019.corpora import segments
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.schema import (
    EntryResult,
    NotRunError,
    ReportRow,
)
from headwise.experiments.reproduction.shared import (
    head_values,
    layer_table,
    registered_figures,
)

HALF = 0.5  # of a head's attention, on a neighbour (§3.1)
TYPES_OF_PAPER = ("cls", "sep", "punct", "other")
N_GRADIENT_QUICK = 24


def _surface(context: ReproductionContext) -> tuple[xr.Dataset, dict[str, str], list[str]]:
    corpus, inputs, deviations = segments(context)
    surface = context.run_analysis(corpus, context.analysis("surface"))
    return surface, inputs, deviations


# --- §3.1 -----------------------------------------------------------------------------------------


def positions(context: ReproductionContext) -> EntryResult:
    """§3.1: heads that attend to the previous, the current and the next token."""
    surface, inputs, deviations = _surface(context)
    rows = []
    for name, offset in claims.OFFSETS.items():
        attention = head_values(surface["position"].sel(offset=offset))
        if np.isfinite(attention).any():
            heads = claims.heads_above(attention, HALF)
            rows.append(ReportRow(name, len(heads), note=claims.heads_text(attention, heads)))
    return EntryResult(
        rows,
        figures=registered_figures("surface", surface, "positions"),
        evidence=claims.neighbour_evidence(surface),
        deviations=deviations,
        inputs=inputs,
    )


# --- §3.2 -----------------------------------------------------------------------------------------


def token_types(context: ReproductionContext) -> EntryResult:
    """Figure 2: mean attention to each token type, from all tokens and from separators."""
    surface, inputs, deviations = _surface(context)
    by_layer = surface["mass"].mean("head")
    from_sep = surface["mass_from_sep"].mean("head")
    present_types = []
    for token_type in TYPES_OF_PAPER:
        if bool(by_layer.sel(token_type=token_type).notnull().any()):
            present_types.append(token_type)
    columns = {}
    for token_type in present_types:
        columns[f"to {token_type}"] = by_layer.sel(token_type=token_type).values
    if "sep" in present_types:
        for token_type in present_types:
            columns[f"from sep to {token_type}"] = from_sep.sel(token_type=token_type).values
    note_on_keys = special_token_note(surface)
    same_tokens = [note_on_keys] if note_on_keys else []
    note = "The paper prints no numbers beside the figure."
    table = layer_table("Mean over the heads of a layer", columns, note)
    return EntryResult(
        tables=[table],
        figures=registered_figures("surface", surface, "token-types"),
        evidence=claims.token_type_evidence(surface),
        deviations=[*deviations, *same_tokens],
        inputs=inputs,
    )


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
        evidence=claims.gradient_evidence(gradient),
        deviations=deviations,
        inputs=inputs,
    )


# --- §3.3 -----------------------------------------------------------------------------------------


def entropies(context: ReproductionContext) -> EntryResult:
    """Figure 4: how broadly heads attend."""
    surface, inputs, deviations = _surface(context)
    entropy = surface["entropy"]
    from_cls = surface["entropy_from_cls"]
    uniform = surface["entropy_uniform"].values
    if not bool(entropy.notnull().any()):
        raise NotRunError("no row of this corpus has an entropy")
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
    evidence = claims.entropy_evidence(surface)
    return EntryResult(rows, [table], figures, evidence, deviations, inputs)
