"""The labelled arrays of an ablation: scores, differences with tests, importance, and how effects
go with roles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from headwise.analyses.papers import reference
from headwise.core.labels import head_name, labels_of
from headwise.experiments.ablation.scored_models import ScoredModel
from headwise.experiments.ablation.sets import Heads
from headwise.experiments.ablation.significance import PairedComparison, paired_differences
from headwise.stats.corrections import correct
from headwise.stats.correlation import correlation

if TYPE_CHECKING:
    from headwise.experiments.ablation.run import AblationOptions, Evaluation


BESIDE = {
    "importance": "first-order importance (Michel et al. 2019)",
    "sink_share": "share of attention that goes to the first token, from all later ones",
}


def ablation_dataset(
    subject: ScoredModel,
    evaluation: Evaluation,
    heads: Sequence[tuple[int, int]],
    sets: Mapping[str, Heads],
    options: AblationOptions,
    beside: Mapping[str, Mapping[str, np.ndarray]],
    atlas: Mapping[str, xr.Dataset] | None,
) -> xr.Dataset:
    """The group `ablation` of an atlas; rows of `evaluation.values` are single heads, then layers,
    then sets, and `beside` are means over examples of every head (`importance`, `sink_share`)."""
    size, correction = (subject.model.layers, subject.model.heads), options.correction
    scores = {
        name: np.array([subject.score(row)[name] for row in evaluation.values])
        for name in subject.metrics
    }
    baseline = subject.score(evaluation.baseline)
    coords: dict[str, Any] = {"layer": np.arange(size[0]), "head": np.arange(size[1])}
    variables: dict[str, xr.Variable] = {}
    cut = (len(heads), len(heads) + (size[0] if options.layers else 0))
    parts = {"": slice(0, cut[0]), "layer_": slice(*cut), "set_": slice(cut[1], None)}
    dims: dict[str, tuple[str, ...]] = {
        "": ("layer", "head"),
        "layer_": ("layer",),
        "set_": ("set",),
    }
    place = tuple(np.array(heads).T) if heads else None
    if sets:
        coords["set"] = np.array(list(sets))
        named = [",".join(head_name(*place) for place in found) for found in sets.values()]
        coords["set_heads"] = ("set", np.array(named))

    def add(name: str, part: str, values: np.ndarray, **attrs: Any) -> None:
        if part == "":
            whole = np.full(size, np.nan)
            whole[place] = values
            values = whole
        variables[f"{part}{name}"] = xr.Variable(dims[part], values, attrs)

    for part, rows in parts.items():
        said = evaluation.values[rows]
        if not len(said):
            continue
        for name in subject.metrics:
            own = "score" if name == subject.metric else f"score_{name}"
            add(own, part, scores[name][rows], metric=name, baseline=baseline[name])
        found = paired_differences(
            subject.metric, evaluation.baseline, said, subject.truth, options.seed
        )
        _add_tests(add, part, found, correction, subject.examples)
        if part == "":
            together = found
    attrs = _attributes(subject, evaluation, baseline, options)
    for name, values in beside.items():
        for suffix, key in (("", "mean"), ("_low", "low"), ("_high", "high"), ("_n", "n")):
            variables[f"{name}{suffix}"] = xr.Variable(
                ("layer", "head"), values[key], {"long_name": BESIDE[name]}
            )
    if "difference" in variables:
        attrs |= _over_heads(variables, together, subject.higher_better)
        harm = variables["difference"].values * (-1 if subject.higher_better else 1)
        for method in ("pearson", "spearman") if "importance" in beside and len(heads) > 3 else ():
            both = correlation(beside["importance"]["mean"].ravel(), harm.ravel(), method)
            if np.isfinite(both.r):  # not where every head does the same harm
                attrs |= {
                    f"importance_{method}": float(both.r),
                    f"importance_{method}_p": float(both.p_value),
                }
        if atlas is not None and "roles" in atlas:
            _add_roles(variables, coords, atlas["roles"], harm, correction)
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _add_tests(add: Any, part: str, found: PairedComparison, correction: str, n: int) -> None:
    add("difference", part, found.difference, long_name="score minus baseline")
    add("difference_low", part, found.low, long_name="lower end of the 95 % interval of difference")
    add(
        "difference_high",
        part,
        found.high,
        long_name="upper end of the 95 % interval of difference",
    )
    add(
        "difference_n",
        part,
        np.full(len(found.difference), float(n)),
        long_name="examples behind difference",
    )
    add("p_value", part, found.p_value, test=found.test)
    add("p_adjusted", part, correct(found.p_value, correction), correction=correction)


def _attributes(
    subject: ScoredModel,
    evaluation: Evaluation,
    baseline: Mapping[str, float],
    options: AblationOptions,
) -> dict[str, Any]:
    return {
        "title": "What disabling heads does to the score",
        **reference("kovaleva2019").attributes("§4.6, Fig 8-9"),
        "baseline": baseline[subject.metric],
        "baseline_all": json.dumps(baseline),
        "metric": subject.metric,
        "higher_better": int(subject.higher_better),
        "how": options.how,
        "correction": options.correction,
        "examples": subject.examples,
        "prefix_shared": int(evaluation.shared),
        "note": evaluation.note,
        "parameters": json.dumps({"how": options.how, "correction": options.correction}),
    }


def _over_heads(
    variables: Mapping[str, xr.Variable], found: PairedComparison, higher_better: bool
) -> dict[str, Any]:
    """What disabling a random head does, with its interval over examples (the heads are all there
    are), and how many heads the model is better without."""
    change = variables["difference"].values
    known = change[np.isfinite(change)]
    gain = known if higher_better else -known
    sure = variables["p_adjusted"].values[np.isfinite(change)] < 0.05
    return {
        "heads_disabled": len(known),
        "mean_difference": float(known.mean()),
        "mean_difference_low": found.mean_low,
        "mean_difference_high": found.mean_high,
        "improving": int((gain > 0).sum()),
        "improving_significant": int(((gain > 0) & sure).sum()),
        "harming": int((gain < 0).sum()),
        "harming_significant": int(((gain < 0) & sure).sum()),
    }


def _add_roles(
    variables: dict[str, xr.Variable],
    coords: dict[str, Any],
    roles: xr.Dataset,
    harm: np.ndarray,
    correction: str,
) -> None:
    """Spearman's correlation over heads between the harm of disabling a head and its bias to each
    role, corrected over roles."""
    if (roles.sizes.get("layer"), roles.sizes.get("head")) != harm.shape or "bias" not in roles:
        return
    bias = roles["bias"].transpose("role", "layer", "head").values
    found = correlation(
        bias.reshape(len(bias), -1),
        np.broadcast_to(harm.ravel(), (len(bias), harm.size)),
        "spearman",
    )
    coords["role"] = np.array(labels_of(roles, "role"))
    text = "correlation over heads of the harm of disabling and the bias to the role"
    values = {"": found.r, "_low": found.low, "_high": found.high, "_p": found.p_value}
    for suffix, value in {**values, "_p_adjusted": correct(found.p_value, correction)}.items():
        variables[f"role_correlation{suffix}"] = xr.Variable(("role",), value, {"long_name": text})
