"""§3: positions, token types, entropies, gradients; Figures 2 to 4."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headwise.core.labels import head_name
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.clark2019.corpora import segments
from headwise.experiments.reproduction.schema import NotRunError, Outcome, Row, Verdict
from headwise.experiments.reproduction.shared import (
    best_head,
    depth,
    layer_table,
    pictures,
    untried,
    words,
)

HALF, LITTLE, TENTH = 0.5, 0.1, 0.1


def _surface(bench: Bench) -> tuple[xr.Dataset, dict[str, str], list[str]]:
    corpus, seen, differs = segments(bench)
    return bench.watch(corpus, bench.analysis("surface")), seen, differs


def positions(bench: Bench) -> Outcome:
    """§3.1: heads that look at the previous, the same and the next token."""
    found, seen, differs = _surface(bench)
    position = found["position"]
    layers = found.sizes["layer"]
    rows, over, verdicts = [], {}, {}
    for name, offset in (("previous", -1), ("next", 1)):
        own = position.sel(offset=offset)
        if not bool(own.notnull().any()):
            verdicts[name] = untried("a causal model sees no next token")
            continue
        over[name] = [(int(a), int(b)) for a, b in np.argwhere(own.values > HALF)]
        named = [f"{head_name(*one)} {own.values[one]:.2f}" for one in over[name]]
        best = best_head(own.values)
        note = ", ".join(named) or f"highest: {head_name(*best)} {own.values[best]:.2f}"
        rows.append(Row(name, len(named), note=note))
        verdicts[name] = Verdict(f"{len(named)} heads ({note})", len(named) > 0)
    where = [layer for heads in over.values() for layer, _ in heads]
    early = sum(layer < layers / 2 for layer in where)
    verdicts["earlier"] = untried("no head puts over half on a neighbour")
    if where:
        verdicts["earlier"] = Verdict(
            f"{early} of {len(where)} lie in the first half", early > len(where) / 2
        )
    little = float((position.sel(offset=0) < LITTLE).mean())
    verdicts["current"] = Verdict(f"{100 * little:.0f} % of the heads", little > 0.5)
    drawn = pictures("surface", found, "positions")
    return Outcome(rows, pictures=drawn, claims=verdicts, differs=differs, seen=seen)


def token_types(bench: Bench) -> Outcome:
    """Figure 2: mean attention to each kind of token, from all tokens and from separators."""
    found, seen, differs = _surface(bench)
    by_layer = found["mass"].mean("head")
    kinds = [
        k
        for k in ("cls", "sep", "punct", "other")
        if bool(by_layer.sel(token_type=k).notnull().any())
    ]
    from_sep = found["mass_from_sep"].mean("head")
    middle = depth(6, 10, found.sizes["layer"])
    verdicts = {}
    if "sep" in kinds:
        share = float(by_layer.sel(token_type="sep").isel(layer=list(middle)).mean())
        itself = float(from_sep.sel(token_type="sep").isel(layer=list(middle)).mean())
        verdicts["sep-half"] = Verdict(f"{share:.2f} in {words(middle)}", share > HALF)
        verdicts["sep-self"] = Verdict(f"{itself:.2f} in {words(middle)}", itself > 0.9)
    if {"cls", "sep", "punct"} <= set(kinds):
        layer = np.arange(found.sizes["layer"])
        mean = {
            k: float((by_layer.sel(token_type=k) * layer).sum() / by_layer.sel(token_type=k).sum())
            for k in kinds
        }
        told = ", ".join(f"{k} {mean[k]:.1f}" for k in ("cls", "sep", "punct"))
        verdicts["early-cls"] = Verdict(
            f"mean layers: {told}", mean["cls"] < mean["sep"] < mean["punct"]
        )
    columns = {f"to {k}": by_layer.sel(token_type=k).values for k in kinds}
    if "sep" in kinds:
        columns |= {f"from sep to {k}": from_sep.sel(token_type=k).values for k in kinds}
    table = layer_table(
        "Mean over the heads of a layer", columns, "The paper prints no numbers beside the figure."
    )
    drawn = pictures("surface", found, "token-types")
    return Outcome(tables=[table], pictures=drawn, claims=verdicts, differs=differs, seen=seen)


def gradients(bench: Bench) -> Outcome:
    """Figure 3: size of the gradient of the masked-LM loss with respect to attention, by kind of
    token."""
    corpus, seen, differs = segments(bench, quick=24)
    found = bench.watch(corpus, bench.analysis("gradient"))
    mean = found["importance"].mean("head")
    other = found["importance_paper_other"].mean("head")
    late = depth(5, 12, found.sizes["layer"])
    early = range(late[0])
    sep = mean.sel(token_type="sep").values
    verdicts = {}
    if np.isfinite(sep).any() and len(early):
        before, after = float(sep[list(early)].mean()), float(sep[list(late)].mean())
        told = f"{after:.2g} in {words(late)}, {before:.2g} before"
        verdicts["sep-gradient"] = Verdict(told, after < before / 2)
    columns = {"sep": sep, ". and ,": mean.sel(token_type="punct").values, "other": other.values}
    table = layer_table("Mean |d loss / d attention| over the heads of a layer", columns)
    differs.append(
        "15 % of the tokens are masked by seed; the paper does not say how its loss was taken."
    )
    drawn = pictures("gradient", found, "importance")
    return Outcome(tables=[table], pictures=drawn, claims=verdicts, differs=differs, seen=seen)


def entropies(bench: Bench) -> Outcome:
    """Figure 4: how broadly heads attend."""
    found, seen, differs = _surface(bench)
    entropy, from_cls = found["entropy"], found["entropy_from_cls"]
    layers = found.sizes["layer"]
    if not bool(entropy.notnull().any()):
        raise NotRunError("no row of this corpus has an entropy")
    top = best_head(entropy.values)
    broad = entropy.values >= np.quantile(entropy.values, 1 - TENTH)
    largest = float(np.median(found["max_weight"].values[broad]))
    verdicts = {
        "broad-low": Verdict(
            f"{head_name(*top)}, {float(entropy.max()):.2f} nats", top[0] < layers / 2
        ),
        "broad-tenth": Verdict(f"{largest:.2f}, over {int(broad.sum())} heads", largest <= TENTH),
    }
    rows = []
    if bool(from_cls.notnull().any()):
        last, same = float(from_cls[-1].mean()), float(entropy[-1].mean())
        told = f"{last:.2f} from [CLS], {same:.2f} from all tokens in the last layer"
        verdicts["cls-last"] = Verdict(told, last > same)
        uniform = float(found["entropy_uniform"][-1])
        rows.append(
            Row(
                "cls-entropy",
                last,
                note=f"mean over the last layer's heads; uniform: {uniform:.2f}",
            )
        )
    else:
        verdicts["cls-last"] = untried("the model has no [CLS] that sees other tokens")
    columns = {
        "from all tokens": entropy.mean("head").values,
        "from [CLS]": from_cls.mean("head").values,
        "uniform": found["entropy_uniform"].values,
        "broadest head": entropy.max("head").values,
    }
    table = layer_table("Mean entropy over the heads of a layer (nats)", columns)
    drawn = pictures("surface", found, "entropy")
    return Outcome(rows, [table], drawn, verdicts, differs, seen)
