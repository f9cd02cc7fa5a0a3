"""From scores of heads on inputs to roles: τ, tests, corrections, other thresholds, overlaps.

The same is done without the first token for heads whose attention mostly sinks there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from headwise.analyses.released import RELEASED
from headwise.stats.accumulators import Moments
from headwise.stats.bootstrap import FEW, bootstrap_family_test
from headwise.stats.corrections import benjamini_hochberg, correct, holm
from headwise.stats.correlation import correlation
from headwise.stats.intervals import share
from headwise.stats.records import Records
from headwise.stats.tests import (
    jaccard,
    overlap_counts,
    overlap_test,
    stratified_overlap_test,
    z_test,
)

if TYPE_CHECKING:
    from headwise.analyses.roles.analysis import Roles

# The paper's four roles, and the nine of its Fig 5.
COARSE_ROLES = ("local", "syntactic", "block", "delimiter")
FINE_ROLES = (
    "nsubj",
    "dobj",
    "amod",
    "advmod",
    "cls",
    "sep",
    "block",
    "local:prev",
    "local:next",
)
# τ is computed from the scores of these roles, which do not depend on the tokenizer.
THRESHOLD_ROLES = ("local", "syntactic", "block")
PAPER_RULE = "paper"  # value of `tau`: the bare rule of the paper
# A head that goes this share of the way from uniform attention to the ceiling has the role, even if
# random heads go further.
CEILING_SHARE = 0.6
SINK_SHARE = 0.5  # a head with more of its attention on the first token is tested without it
THRESHOLDS = np.arange(1.0, 10.01, 0.5)
EDGES = np.concatenate([[0.0], 2.0 ** (np.arange(-16, 33) / 4), [np.inf]])
ROUNDING = 1e-5  # scores whose relative difference is smaller differ by rounding only
DIMS = ("layer", "head", "role")
ROLE_PAIR = ("role", "role_b")

Variables = dict[str, xr.Variable]


def coordinates(roles: Sequence[str]) -> dict[str, Any]:
    """Return the labels of all dimensions but layer and head."""
    return {
        "role": np.array(roles),
        "role_b": np.array(roles),
        "threshold": THRESHOLDS,
        "bin": np.arange(len(EDGES) - 1),
        "bin_low": ("bin", EDGES[:-1]),
    }


def named_variables(
    dims: tuple[str, ...], values: Mapping[str, tuple[np.ndarray, str]]
) -> Variables:
    """Return variables of these dimensions from `{name: (values, long name)}`."""
    variables = {}
    for name, (array, long_name) in values.items():
        variables[name] = xr.Variable(dims, array, {"long_name": long_name})
    return variables


# --- tests ----------------------------------------------------------------------------------------


def tests_of_scores(
    moments: Moments, records: Records, roles: Sequence[str], analysis: Roles
) -> tuple[Variables, dict[str, Any]]:
    """Test the scores of every head and role against τ.

    Parameters
    ----------
    moments : Moments
        Of the scores of all inputs, `[layer, head, role]`.
    records : Records
        The scores of a sample of inputs, `[example, layer, head, role]`, for bootstrap and
        histogram.
    roles : sequence of str
    analysis : Roles
        Its parameters.

    Returns
    -------
    variables, attributes
    """
    alpha = analysis.alpha
    correction = analysis.correction
    released = analysis.reading == RELEASED
    count = moments.count.numpy()
    mean = np.where(count > 0, moments.mean.numpy(), np.nan)
    variance = moments.variance()
    if released:
        # The released code divides by the count (ddof 0).
        variance = variance * ((count - 1) / np.maximum(count, 1))
    tau, tau_attributes = choose_threshold(mean, count, roles, analysis)
    mean, variance = remove_rounding(mean, variance, tau)
    spread = np.sqrt(variance)
    p_value = z_test(mean, variance, count, tau, student=released).p_value

    test_name = "Student's t-test" if released else "z-test"
    ddof = 0 if released else 1
    tests = {
        "spread": (
            spread.astype(np.float32),
            f"standard deviation of the scores over inputs (ddof {ddof})",
        ),
        "effect": (share(mean - tau, spread).astype(np.float32), "(bias − τ) / spread"),
        "p_value": (p_value, f"one-tailed {test_name} of mean ≤ τ"),
        "p_adjusted": (
            correct(p_value, correction),
            f"p_value corrected over heads and roles ({correction})",
        ),
        "p_holm": (holm(p_value), "p_value corrected by Holm (family-wise error)"),
        "p_fdr": (
            benjamini_hochberg(p_value),
            "p_value corrected by Benjamini and Hochberg (false discoveries)",
        ),
    }
    if analysis.bootstrap:
        tests |= _bootstrap_tests(records, mean, variance, tau, analysis)

    variables = named_variables(DIMS, tests)
    few = count.reshape(-1, len(roles)).max(0) < FEW
    variables |= named_variables(("role",), {"few": (few, f"fewer than {FEW} inputs")})
    variables |= roles_by_mean(mean, count, p_value, tau, alpha)
    histogram = score_histogram(records.values)
    variables |= named_variables((*DIMS, "bin"), {"histogram": (histogram, "inputs by score")})

    dataset = xr.Dataset(
        variables | {"bias": xr.Variable(DIMS, mean), "bias_n": xr.Variable(DIMS, count)},
        coords={"role": np.array(roles)},
        attrs={"tau": tau},
    )
    no_bound = np.full(len(roles), np.nan)
    role_variables, role_attributes = assign_roles(dataset, analysis, no_bound)
    variables |= role_variables
    attributes = {
        "tau": tau,
        **tau_attributes,
        "alpha": alpha,
        "undecided": undecided_share(p_value),
        "inputs": len(records.values),
        "random_models": 0,
        **role_attributes,
    }
    if {"local", "syntactic"} <= set(roles):
        ranks = variables["spearman"].values
        attributes["spearman_local_syntactic"] = float(
            ranks[roles.index("local"), roles.index("syntactic")]
        )
    return variables, attributes


def _bootstrap_tests(
    records: Records, mean: np.ndarray, variance: np.ndarray, tau: float, analysis: Roles
) -> dict[str, tuple[np.ndarray, str]]:
    """Test the sampled scores by the studentized bootstrap."""
    scores = records.values
    constant = variance == 0
    if constant.any():
        # Scores that differ by rounding only count as equal.
        scores = np.where(constant & ~np.isnan(scores), mean, scores)
    p_value, p_family = bootstrap_family_test(
        scores, tau, analysis.bootstrap, analysis.seed or 0, records.units
    )
    if analysis.correction == "holm":
        # Family-wise as well, but not bounded by the number of resamples.
        p_adjusted = p_family
        method = "largest t of each resample over heads and roles"
    else:
        p_adjusted = correct(p_value, analysis.correction)
        method = analysis.correction
    return {
        "bootstrap_p_value": (p_value, "studentized bootstrap of mean ≤ τ"),
        "bootstrap_p_adjusted": (
            p_adjusted,
            f"bootstrap_p_value corrected over heads and roles ({method})",
        ),
    }


def choose_threshold(
    mean: np.ndarray, count: np.ndarray, roles: Sequence[str], analysis: Roles
) -> tuple[float, dict[str, Any]]:
    """Return τ, and the attributes that say how it was chosen."""
    mean_of_four = pooled_mean(mean, count, roles, COARSE_ROLES)
    mean_of_three = pooled_mean(mean, count, roles, THRESHOLD_ROLES)
    tau_of_paper = float(np.floor(mean_of_four) + 1)
    attributes: dict[str, Any] = {
        "tau_mean": mean_of_three,
        "tau_mean_paper": mean_of_four,
        "tau_paper": tau_of_paper,
    }
    if analysis.tau == PAPER_RULE:
        tau = tau_of_paper
        rule = _rule_text(roles, COARSE_ROLES)
    elif analysis.tau is not None:
        tau = float(analysis.tau)
        rule = "given"
    else:
        tau = float(np.fmax(np.floor(mean_of_three) + 1, analysis.tau_floor))
        rule = f"{_rule_text(roles, THRESHOLD_ROLES)}, at least {analysis.tau_floor:g}"
    return tau, attributes | {"tau_rule": rule}


def _rule_text(roles: Sequence[str], pooled: Sequence[str]) -> str:
    names = ", ".join(role for role in pooled if role in roles)
    return f"floor(mean of all scores of {names}) + 1"


def pooled_mean(
    mean: np.ndarray, count: np.ndarray, roles: Sequence[str], pooled: Sequence[str]
) -> float:
    """Return the mean of all scores of these roles, over inputs and heads; NaN if there are
    none."""
    places = _places(roles, pooled)
    weight = count[..., places]
    if not weight.sum():
        return float("nan")
    total = np.where(weight > 0, mean[..., places] * weight, 0.0).sum()
    return float(total / weight.sum())


def _places(roles: Sequence[str], chosen: Sequence[str]) -> list[int]:
    return [place for place, role in enumerate(roles) if role in chosen]


def remove_rounding(
    mean: np.ndarray, variance: np.ndarray, tau: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances without differences that are rounding.

    A uniform head has a bias of 1 on every input and must not be significantly above 1."""
    tolerance = ROUNDING * np.maximum(np.abs(mean), 1.0)
    variance = np.where(np.sqrt(variance) <= tolerance, 0.0, variance)
    is_tau = (variance == 0) & (np.abs(mean - tau) <= tolerance)
    return np.where(is_tau, tau, mean), np.where(np.isnan(mean), np.nan, variance)


def score_histogram(scores: np.ndarray) -> np.ndarray:
    """Return how many inputs have a score in each bin, `[layer, head, role, bin]`."""
    shape = scores.shape[1:]
    counts = np.zeros((int(np.prod(shape)), len(EDGES) - 1), dtype=np.int32)
    for row in scores.reshape(len(scores), len(counts)):
        scored = np.flatnonzero(~np.isnan(row))
        bins = np.searchsorted(EDGES, row[scored], side="right") - 1
        counts[scored, bins] += 1
    return counts.reshape(*shape, -1)


def undecided_share(p_value: np.ndarray) -> float:
    """Return the share of p-values strictly between 0.05 and 0.95 (1.8 % in the paper)."""
    known = p_value[~np.isnan(p_value)]
    if not known.size:
        return float("nan")
    return float(((known > 0.05) & (known < 0.95)).mean())


# --- who has which role ---------------------------------------------------------------------------


def assign_roles(
    dataset: xr.Dataset, analysis: Roles, random_bound: np.ndarray
) -> tuple[Variables, dict[str, Any]]:
    """Decide which heads have which roles, and count and compare them.

    Parameters
    ----------
    dataset : Dataset
        Tests, effects and counts, with the attribute `tau`.
    analysis : Roles
        Its parameters.
    random_bound : array
        `[role]`, the largest bias of random heads; NaN where it is not known.
    """
    tau = float(dataset.attrs["tau"])
    alpha = analysis.alpha
    roles = [str(role) for role in dataset["role"].values]
    mean = dataset["bias"].transpose(*DIMS).values
    count = dataset["bias_n"].transpose(*DIMS).values
    variance = np.square(dataset["spread"].transpose(*DIMS).values.astype(float))
    eligible = eligible_heads(tau, mean, variance, count, analysis, random_bound)
    has_role_adjusted = eligible & (dataset["p_adjusted"].values < alpha)
    # One rule for every figure, count and label: after correction. The paper's bare rule has none.
    has_role = has_role_adjusted
    tested = "p_adjusted"
    conditions = f"{FEW} inputs or more"
    if analysis.tau == PAPER_RULE:
        has_role = eligible & (dataset["p_value"].values < alpha)
        tested = "p_value"
    else:
        conditions += f", an effect of {analysis.min_effect:g} or more, above random heads"
    variables = named_variables(
        DIMS,
        {
            "has_role": (has_role, f"{tested} < {alpha}, {conditions}"),
            "has_role_adjusted": (has_role_adjusted, f"p_adjusted < {alpha}, {conditions}"),
        },
    )
    variables |= overlap_variables(has_role, mean)
    variables |= layer_counts(has_role, roles)
    variables |= sweep_thresholds(mean, variance, count, analysis, random_bound, roles)
    unskilled = float((variables["coarse_skills"].values == 0).mean())
    return variables, {"unskilled": unskilled}


def eligible_heads(
    tau: float,
    mean: np.ndarray,
    variance: np.ndarray,
    count: np.ndarray,
    analysis: Roles,
    random_bound: np.ndarray | float,
) -> np.ndarray:
    """Return which heads can have a role at this τ, apart from the test.

    They have 30 inputs or more and, unless the bare rule of the paper is used, a large enough
    effect and a bias above that of random heads."""
    enough_inputs = count >= FEW
    if analysis.tau == PAPER_RULE:
        return enough_inputs
    large_effect = mean - tau >= analysis.min_effect * np.sqrt(variance)
    # Negated, so that an unknown bound (NaN) excludes nobody.
    above_random = ~(mean <= random_bound)
    return np.asarray(enough_inputs & above_random & large_effect)


def roles_at_threshold(
    tau: float,
    mean: np.ndarray,
    variance: np.ndarray,
    count: np.ndarray,
    analysis: Roles,
    random_bound: np.ndarray | float = np.nan,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the p-values at this τ, and which heads have which role by them, after correction
    (with the paper's bare rule, without)."""
    tested_mean, tested_variance = remove_rounding(mean, variance, tau)
    student = analysis.reading == RELEASED
    p_value = z_test(tested_mean, tested_variance, count, tau, student=student).p_value
    eligible = eligible_heads(tau, mean, variance, count, analysis, random_bound)
    tested = p_value
    if analysis.tau != PAPER_RULE:
        tested = correct(p_value, analysis.correction)
    return p_value, eligible & (tested < analysis.alpha)


def sweep_thresholds(
    mean: np.ndarray,
    variance: np.ndarray,
    count: np.ndarray,
    analysis: Roles,
    random_bound: np.ndarray,
    roles: Sequence[str],
) -> Variables:
    """Return how many heads would have each role at other values of τ."""
    coarse = _places(roles, COARSE_ROLES)
    heads = []
    unskilled = []
    undecided = []
    for tau in THRESHOLDS:
        p_value, has_role = roles_at_threshold(
            float(tau), mean, variance, count, analysis, random_bound
        )
        heads.append(has_role.sum((0, 1)))
        unskilled.append((~has_role[..., coarse].any(-1)).mean())
        undecided.append(undecided_share(p_value))
    by_role = {"sweep": (np.array(heads), "heads with the role at this τ")}
    shares = {
        "sweep_unskilled": (
            np.array(unskilled),
            "share of heads with none of the four roles at this τ",
        ),
        "sweep_undecided": (np.array(undecided), "share of p-values in (0.05, 0.95) at this τ"),
    }
    variables = named_variables(("threshold", "role"), by_role)
    return variables | named_variables(("threshold",), shares)


def roles_by_mean(
    mean: np.ndarray, count: np.ndarray, p_value: np.ndarray, tau: float, alpha: float
) -> Variables:
    """Return roles by a mean over τ alone, by the test alone, and how often they differ.

    A head with a role by its mean but not by the test is what the paper warns of."""
    enough_inputs = count >= FEW
    by_mean = enough_inputs & (mean > tau)
    by_test = enough_inputs & (p_value < alpha)
    heads = {
        "role_by_mean": (by_mean, f"mean bias over τ, {FEW} inputs or more"),
        "role_by_test": (by_test, f"p_value < {alpha}, {FEW} inputs or more, whatever the effect"),
    }
    mean_only = (by_mean & ~by_test).sum((0, 1))
    long_name = "heads that have the role by their mean but not by the test"
    variables = named_variables(DIMS, heads)
    return variables | named_variables(("role",), {"mean_only": (mean_only, long_name)})


# --- heads whose attention sinks on the first token -----------------------------------------------


def tests_without_first(
    moments: Moments, sink_moments: Moments, tau: float, analysis: Roles
) -> Variables:
    """Test the bias without the first token, of heads with most of their attention there.

    `moments` are those of `bias_rest[layer, head, role]`, `sink_moments` those of the attention to
    the first token, `[layer, head]`. p-values are NaN for all other heads.
    """
    count = moments.count.numpy()
    mean = np.where(count > 0, moments.mean.numpy(), np.nan)
    mean, variance = remove_rounding(mean, moments.variance(), tau)
    is_sink_head = (sink_moments.mean.numpy() > SINK_SHARE)[..., None]
    p_value = np.where(is_sink_head, z_test(mean, variance, count, tau).p_value, np.nan)
    variables = named_variables(
        DIMS,
        {
            "bias_rest_spread": (
                np.sqrt(variance).astype(np.float32),
                "standard deviation of the scores behind bias_rest",
            ),
            "bias_rest_p": (
                p_value,
                "one-tailed z-test of mean ≤ τ, excluding the first token; heads with a sink",
            ),
            "bias_rest_p_adjusted": (
                correct(p_value, analysis.correction),
                f"bias_rest_p corrected over heads with a sink and roles ({analysis.correction})",
            ),
        },
    )
    bias = {"bias_rest": xr.Variable(DIMS, mean), "bias_rest_n": xr.Variable(DIMS, count)}
    dataset = xr.Dataset(variables | bias, attrs={"tau": tau})
    no_bound = np.full(mean.shape[-1], np.nan)
    variables["has_role_rest"] = assign_roles_without_first(dataset, analysis, no_bound)
    return variables


def assign_roles_without_first(
    dataset: xr.Dataset, analysis: Roles, random_bound: np.ndarray
) -> xr.Variable:
    """Decide which heads have which role without the first token, by the rule for all heads.

    `random_bound[role]` is the largest bias of random heads; NaN where it is not known."""
    mean = dataset["bias_rest"].transpose(*DIMS).values
    count = dataset["bias_rest_n"].transpose(*DIMS).values
    spread = dataset["bias_rest_spread"].transpose(*DIMS).values
    p_adjusted = dataset["bias_rest_p_adjusted"].transpose(*DIMS).values
    tau = float(dataset.attrs["tau"])
    variance = np.square(spread.astype(float))
    eligible = eligible_heads(tau, mean, variance, count, analysis, random_bound)
    long_name = (
        "as has_role_adjusted, of heads with a sink, excluding the first token: "
        f"bias_rest_p_adjusted < {analysis.alpha}"
    )
    return xr.Variable(DIMS, eligible & (p_adjusted < analysis.alpha), {"long_name": long_name})


# --- overlaps and counts --------------------------------------------------------------------------


def overlap_variables(has_role: np.ndarray, mean: np.ndarray) -> Variables:
    """Return how often roles go together on the same heads, and how their scores correlate."""
    counts = overlap_counts(has_role)
    heads_of_role = np.diag(counts)
    p_overlap = overlap_test(has_role)
    p_in_layer = stratified_overlap_test(has_role)
    scores = mean.reshape(-1, mean.shape[-1]).T  # [role, head of all layers]
    ranks = correlation(scores[:, None], scores[None], "spearman")
    is_pair = ~np.eye(len(heads_of_role), dtype=bool)
    p_rank = np.where(is_pair, ranks.p_value, np.nan)
    over_pairs = "corrected over pairs of roles (holm)"
    variables = {
        "overlap": (counts, "heads with both roles"),
        "jaccard": (jaccard(counts), "heads with both roles over heads with either"),
        "share": (
            share(counts, heads_of_role[:, None]),
            "share of the heads of `role` that also have `role_b`",
        ),
        "overlap_p_value": (
            p_overlap,
            "P(overlap at least this large) for random sets of these sizes",
        ),
        "overlap_p_adjusted": (_adjust_pairs(p_overlap), over_pairs),
        "overlap_in_layer_p_value": (
            p_in_layer,
            "the same with the number of heads of each role in each layer kept",
        ),
        "overlap_in_layer_p_adjusted": (_adjust_pairs(p_in_layer), over_pairs),
        "spearman": (ranks.r, "rank correlation of the mean scores across heads"),
        "spearman_p_value": (p_rank, "two-sided"),
        "spearman_p_adjusted": (_adjust_pairs(p_rank), over_pairs),
    }
    return named_variables(ROLE_PAIR, variables)


def _adjust_pairs(p: np.ndarray) -> np.ndarray:
    """Correct a symmetric table over its pairs by Holm, each pair counted once."""
    above_diagonal = np.triu(np.ones(p.shape, dtype=bool), 1)
    adjusted = holm(np.where(above_diagonal, p, np.nan))
    return np.where(np.isnan(adjusted), adjusted.T, adjusted)


def layer_counts(has_role: np.ndarray, roles: Sequence[str]) -> Variables:
    """Return how many heads of each layer have each role, and how many roles each head has."""
    fine_count = has_role[..., _places(roles, FINE_ROLES)].sum(-1)
    coarse_count = has_role[..., _places(roles, COARSE_ROLES)].sum(-1)
    per_layer = {"per_layer": (has_role.sum(1), "heads with the role")}
    per_head = {
        "skills": (fine_count, "how many of the nine roles of Fig 5 the head has"),
        "coarse_skills": (coarse_count, f"how many of {', '.join(COARSE_ROLES)} the head has"),
    }
    multi_skilled = (fine_count > 1).sum(1)
    several = {"multi_skilled": (multi_skilled, "heads with two or more of the nine roles")}
    variables = named_variables(("layer", "role"), per_layer)
    variables |= named_variables(("layer", "head"), per_head)
    return variables | named_variables(("layer",), several)
