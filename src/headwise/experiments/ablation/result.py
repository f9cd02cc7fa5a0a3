"""The labelled arrays of an ablation: scores, differences with tests, importance, and the
correlation of effects with roles."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from headwise.analyses.papers import reference
from headwise.core.labels import SIGNIFICANCE_LEVEL, head_name, labels_of
from headwise.experiments.ablation.options import AblationOptions, Heads
from headwise.experiments.ablation.scored_models import ScoredModel
from headwise.stats.corrections import correct
from headwise.stats.correlation import correlation
from headwise.stats.paired import PairedComparison, paired_differences

if TYPE_CHECKING:
    from headwise.experiments.ablation.run import Evaluation

LONG_NAMES = {
    "importance": "first-order importance (Michel et al. 2019)",
    "sink_share": "share of attention that goes to the first token, from all later ones",
}
HEADS = ("layer", "head")


def ablation_dataset(
    scored: ScoredModel,
    evaluation: Evaluation,
    heads: Sequence[tuple[int, int]],
    sets: Mapping[str, Heads],
    options: AblationOptions,
    means: Mapping[str, Mapping[str, np.ndarray]],
    atlas: Mapping[str, xr.Dataset] | None,
) -> xr.Dataset:
    """Return the group `ablation` of an atlas.

    Parameters
    ----------
    scored : ScoredModel
        The model with what it is scored on.
    evaluation : Evaluation
        The rows of its values are single heads, then layers, then sets.
    heads : sequence of (layer, head)
        The single heads that were disabled.
    sets : mapping of str to list of (layer, head)
        The sets that were disabled, by name.
    options : AblationOptions
        What was disabled, and how.
    means : mapping
        Means over examples of every head (`importance`, `sink_share`).
    atlas : mapping of str to Dataset, optional
        Where it has `roles`, the harm of disabling heads is correlated with them.
    """
    builder = AblationBuilder(scored, evaluation, heads, sets, options)
    builder.add_single_heads()
    builder.add_layers()
    builder.add_sets()
    for name, values in means.items():
        builder.add_mean(name, values)
    if "importance" in means:
        builder.add_importance_correlation(means["importance"]["mean"])
    if atlas is not None and "roles" in atlas:
        builder.add_role_correlation(atlas["roles"])
    return xr.Dataset(builder.variables, coords=builder.coords, attrs=builder.attributes)


class AblationBuilder:
    """Collects variables, coordinates and attributes of the group `ablation`."""

    def __init__(
        self,
        scored: ScoredModel,
        evaluation: Evaluation,
        heads: Sequence[tuple[int, int]],
        sets: Mapping[str, Heads],
        options: AblationOptions,
    ) -> None:
        self.scored = scored
        self.evaluation = evaluation
        self.heads = heads
        self.sets = sets
        self.options = options
        self.size = (scored.model.layers, scored.model.heads)
        self.baseline = scored.score(evaluation.baseline)
        self.units = scored.units
        self.variables: dict[str, xr.Variable] = {}
        self.coords: dict[str, Any] = {
            "layer": np.arange(self.size[0]),
            "head": np.arange(self.size[1]),
        }
        self.attributes: dict[str, Any] = {
            "title": "What disabling heads does to the score",
            **reference("kovaleva2019").attributes("§4.6, Fig 8-9"),
            "baseline": self.baseline[scored.metric],
            "baseline_all": json.dumps(self.baseline),
            "metric": scored.metric,
            "higher_better": int(scored.higher_better),
            "how": options.how,
            "correction": options.correction,
            "examples": scored.examples,
            "units": "examples" if self.units is None else "documents",
            "prefix_shared": int(evaluation.shared),
            "note": evaluation.note,
            "parameters": json.dumps({"how": options.how, "correction": options.correction}),
        }

    def add_single_heads(self) -> None:
        """Add `score`, `difference` and its tests, NaN for heads that were not disabled."""
        values = self.evaluation.values[: len(self.heads)]
        if not len(values):
            return
        places = tuple(np.array(self.heads).T)

        def add(name: str, by_head: np.ndarray, attributes: dict[str, Any]) -> None:
            grid = np.full(self.size, np.nan)
            grid[places] = by_head
            self.variables[name] = xr.Variable(HEADS, grid, attributes)

        comparison = self._add_scores_and_tests(values, add)
        self._add_counts(comparison)

    def add_layers(self) -> None:
        """Add `layer_score`, `layer_difference` and its tests."""
        if not self.options.layers:
            return
        first = len(self.heads)
        values = self.evaluation.values[first : first + self.size[0]]

        def add(name: str, by_layer: np.ndarray, attributes: dict[str, Any]) -> None:
            self.variables[f"layer_{name}"] = xr.Variable(("layer",), by_layer, attributes)

        self._add_scores_and_tests(values, add)

    def add_sets(self) -> None:
        """Add `set_score`, `set_difference` and its tests, and the heads of each set."""
        if not self.sets:
            return
        values = self.evaluation.values[-len(self.sets) :]
        heads_of_sets = []
        for heads in self.sets.values():
            heads_of_sets.append(",".join(head_name(*head) for head in heads))
        self.coords["set"] = np.array(list(self.sets))
        self.coords["set_heads"] = ("set", np.array(heads_of_sets))

        def add(name: str, by_set: np.ndarray, attributes: dict[str, Any]) -> None:
            self.variables[f"set_{name}"] = xr.Variable(("set",), by_set, attributes)

        self._add_scores_and_tests(values, add)

    def _add_scores_and_tests(
        self,
        values: np.ndarray,
        add: Callable[[str, np.ndarray, dict[str, Any]], None],
    ) -> PairedComparison:
        """Add the scores of conditions and their differences to the baseline with tests."""
        scored = self.scored
        scores = [scored.score(row) for row in values]
        for metric in scored.metrics:
            name = "score" if metric == scored.metric else f"score_{metric}"
            by_condition = np.array([score[metric] for score in scores])
            add(name, by_condition, {"metric": metric, "baseline": self.baseline[metric]})
        comparison = paired_differences(
            scored.metric, self.evaluation.baseline, values, scored.truth, self.units
        )
        n_examples = np.full(len(values), float(scored.examples))
        p_adjusted = correct(comparison.p_value, self.options.correction)
        add("difference", comparison.difference, {"long_name": "score minus baseline"})
        interval = "end of the 95 % interval of difference"
        add("difference_low", comparison.low, {"long_name": f"lower {interval}"})
        add("difference_high", comparison.high, {"long_name": f"upper {interval}"})
        add("difference_n", n_examples, {"long_name": "examples behind difference"})
        add("p_value", comparison.p_value, {"test": comparison.test})
        add("p_adjusted", p_adjusted, {"correction": self.options.correction})
        return comparison

    def _add_counts(self, comparison: PairedComparison) -> None:
        """Add what disabling a random head does, with its interval over examples (the heads are
        all there are), and how many heads the model is better and worse without."""
        difference = self.variables["difference"].values
        known = difference[np.isfinite(difference)]
        gain = known if self.scored.higher_better else -known
        significant = (
            self.variables["p_adjusted"].values[np.isfinite(difference)] < SIGNIFICANCE_LEVEL
        )
        self.attributes |= {
            "heads_disabled": len(known),
            "mean_difference": float(known.mean()),
            "mean_difference_low": comparison.mean_low,
            "mean_difference_high": comparison.mean_high,
            "improving": int((gain > 0).sum()),
            "improving_significant": int(((gain > 0) & significant).sum()),
            "harming": int((gain < 0).sum()),
            "harming_significant": int(((gain < 0) & significant).sum()),
        }

    def add_mean(self, name: str, summary: Mapping[str, np.ndarray]) -> None:
        """Add a mean over examples of every head, with its interval and count."""
        for suffix, key in (("", "mean"), ("_low", "low"), ("_high", "high"), ("_n", "n")):
            attributes = {"long_name": LONG_NAMES[name]}
            self.variables[f"{name}{suffix}"] = xr.Variable(HEADS, summary[key], attributes)

    def _harm(self) -> np.ndarray:
        """Return how much worse the model is without each head."""
        sign = -1 if self.scored.higher_better else 1
        return self.variables["difference"].values * sign

    def add_importance_correlation(self, importance: np.ndarray) -> None:
        """Add the correlation over heads of first-order importance and the harm of disabling."""
        if "difference" not in self.variables or len(self.heads) <= 3:
            return
        for method in ("pearson", "spearman"):
            agreement = correlation(importance.ravel(), self._harm().ravel(), method)
            # It is NaN where disabling every head does the same harm.
            if np.isfinite(agreement.r):
                self.attributes[f"importance_{method}"] = float(agreement.r)
                self.attributes[f"importance_{method}_p"] = float(agreement.p_value)

    def add_role_correlation(self, roles: xr.Dataset) -> None:
        """Add Spearman's correlation over heads between the harm of disabling a head and its bias
        to each role, corrected over roles."""
        if "difference" not in self.variables or "bias" not in roles:
            return
        if (roles.sizes.get("layer"), roles.sizes.get("head")) != self.size:
            return
        harm = self._harm()
        bias = roles["bias"].transpose("role", "layer", "head").values
        by_role = correlation(
            bias.reshape(len(bias), -1),
            np.broadcast_to(harm.ravel(), (len(bias), harm.size)),
            "spearman",
        )
        self.coords["role"] = np.array(labels_of(roles, "role"))
        text = "correlation over heads of the harm of disabling and the bias to the role"
        values = {
            "": by_role.r,
            "_low": by_role.low,
            "_high": by_role.high,
            "_p": by_role.p_value,
            "_p_adjusted": correct(by_role.p_value, self.options.correction),
        }
        for suffix, value in values.items():
            variable = xr.Variable(("role",), value, {"long_name": text})
            self.variables[f"role_correlation{suffix}"] = variable
