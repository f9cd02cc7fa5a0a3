"""Figures 1 to 3: sieves, scores, p-values."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headwise.analyses.roles.sieves import find_sieve
from headwise.analyses.roles.sieves.tokens import token_axes
from headwise.analyses.roles.significance import COARSE_ROLES, undecided_share
from headwise.core.labels import head_name
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.pande2021 import claims
from headwise.experiments.reproduction.pande2021.tasks import RoleResults, role_results
from headwise.experiments.reproduction.schema import (
    EntryResult,
    ReportFigure,
    ReportRow,
    ReportTable,
)
from headwise.experiments.reproduction.shared import figures_of_task, registered_figures
from headwise.plots import style
from headwise.text import Example

# Two sentences with their trees, like the paper's own example.
WORDS = ("old", "dogs", "bark", "loudly", ".")
PAIR = ("cats", "hear", "the", "loud", "dogs", ".")
HEADS = (1, 2, -1, 2, 2, 6, -1, 9, 9, 6, 6)
RELATIONS = (
    "amod",
    "nsubj",
    "root",
    "advmod",
    "punct",
    "nsubj",
    "root",
    "det",
    "amod",
    "dobj",
    "punct",
)
DRAWN_SIEVES = ("block", "nsubj", "local", "amod", "delimiter")


def sieves(context: ReproductionContext) -> EntryResult:
    """Figure 1: the sieves of one input, for every token at once."""
    example = Example(words=WORDS, words_pair=PAIR, heads=HEADS, relations=RELATIONS)
    row = context.model.encoder.encode(example, 0)
    assert row is not None
    n_tokens = len(row)
    with style.context():
        figure = style.new_figure(style.PAGE, 2.1)
        axes = figure.subplots(1, len(DRAWN_SIEVES))
        for axis, name in zip(axes, DRAWN_SIEVES, strict=True):
            sieve = find_sieve(name).function(*token_axes(row))
            matrix = np.broadcast_to(sieve, (n_tokens, n_tokens))
            axis.imshow(matrix, cmap=style.SEQUENTIAL, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.set_title(name, loc="center", fontsize=style.SMALL)
        notes = [
            "Rows: attending tokens; columns: the tokens of the sieve",
            "No interval: sets of tokens",
        ]
        drawing = style.complete(figure, f"Sieves of: {' '.join(row.tokens)}", notes)
    caption = "Bright: the tokens of the sieve. The paper draws one token of each."
    return EntryResult(figures=[ReportFigure("sieves", "Sieves of one input", caption, drawing)])


def one_head(context: ReproductionContext) -> EntryResult:
    """Figure 2: the scores of the head whose test is least decided; means against tests."""
    results = role_results(context)
    rows = []
    n_skewed = 0
    n_scores = 0
    n_by_mean_only = 0
    for task_roles in results.tasks:
        roles = task_roles.roles
        task_skewed, task_scores = count_skewed_and_broad(roles)
        n_skewed += task_skewed
        n_scores += task_scores
        by_mean_only = int(roles["mean_only"].sum())
        n_by_mean_only += by_mean_only
        by_mean = int(roles["role_by_mean"].sum())
        by_test = int(roles["role_by_test"].sum())
        rows.append([task_roles.task, by_mean, by_test, by_mean_only])
    columns = ["task", "by mean over τ", "by test", "by mean alone"]
    first = results.tasks[0]  # the paper draws one head on one task
    return EntryResult(
        (),
        [ReportTable("Roles by mean and by test", columns, rows)],
        figures_of_task(first.task, registered_figures("roles", first.roles, "scores", "labels")),
        claims.score_evidence(
            claims.SkewCounts(n_skewed, n_scores, n_by_mean_only, fewest_inputs(results))
        ),
        results.deviations,
        results.inputs,
    )


def count_skewed_and_broad(roles: xr.Dataset) -> tuple[int, int]:
    """Count heads and coarse roles whose scores are skewed and broad over inputs, and all of them.

    Skewed: the mean lies above the median's bin. Broad: of the inputs a tenth lies at less than half
    of what another tenth reaches.
    """
    counts = roles["histogram"].transpose("layer", "head", "role", "bin").values
    bin_low = roles["bin_low"].values
    bin_high = np.append(bin_low[1:], bin_low[-1] * 2)
    n_inputs = counts.sum(-1)

    def bin_of(share: float) -> np.ndarray:
        """Return the bin in which a share of the inputs is reached."""
        is_below = np.cumsum(counts, -1) < share * n_inputs[..., None]
        return np.asarray(np.minimum(is_below.sum(-1), len(bin_low) - 1))

    mean = roles["bias"].transpose("layer", "head", "role").values
    is_skewed = mean > bin_high[bin_of(0.5)]
    # By the inner edges of both bins, so that the width of bins cannot make it broad.
    is_broad = bin_low[bin_of(0.9)] > 2 * bin_high[bin_of(0.1)]
    coarse = [index for index, role in enumerate(roles["role"].values) if role in COARSE_ROLES]
    is_known = n_inputs[..., coarse] > 0
    is_both = (is_skewed & is_broad)[..., coarse] & is_known
    return int(is_both.sum()), int(is_known.sum())


def fewest_inputs(results: RoleResults) -> int:
    """Return the smallest number of inputs of a task."""
    return min(int(task_roles.roles.attrs["inputs"]) for task_roles in results.with_trees)


def p_values(context: ReproductionContext) -> EntryResult:
    """Figure 3: the mean of all scores, τ, and the share of p-values that decide nothing."""
    results = role_results(context)
    means = {}
    taus = {}
    coarse_p_values = []
    table_rows = []
    for task_roles in results.with_trees:
        roles = task_roles.roles
        means[task_roles.task] = float(roles.attrs["tau_mean_paper"])
        taus[task_roles.task] = float(roles.attrs["tau"])
        coarse = [role for role in COARSE_ROLES if role in roles["role"]]
        coarse_p_values.append(roles["p_value"].sel(role=coarse).values.ravel())
        table_rows.append([task_roles.task, *least_decided(roles)])
    share_undecided = undecided_share(np.concatenate(coarse_p_values))
    mean = float(np.mean(list(means.values())))
    tau = float(np.floor(mean) + 1)
    mean_note = ", ".join(f"{task} {value:.2f}" for task, value in means.items())
    tau_note = ", ".join(f"{task} {value:g}" for task, value in taus.items())
    rows = [
        ReportRow("mean", mean, note=mean_note),
        ReportRow("tau", tau, note=f"each set of inputs has its own: {tau_note}"),
        ReportRow("undecided", 100 * share_undecided, note="local, syntactic, block and delimiter"),
    ]
    figures = []
    for task_roles in results.with_trees:
        task_figures = registered_figures("roles", task_roles.roles, "p-values")
        figures += figures_of_task(task_roles.task, task_figures)
    table = ReportTable(
        "Least decided head of each set of inputs",
        ["inputs", "head", "role", "mean bias", "p"],
        table_rows,
    )
    return EntryResult(
        rows,
        [table],
        figures,
        claims.bimodal_evidence(np.concatenate(coarse_p_values), fewest_inputs(results)),
        results.deviations,
        results.inputs,
    )


def least_decided(roles: xr.Dataset) -> list[object]:
    """Return the head and role whose p-value is nearest to one half, with mean bias and p."""
    p_value = roles["p_value"].transpose("layer", "head", "role").values
    distance = np.where(np.isfinite(p_value), np.abs(p_value - 0.5), np.inf)
    layer, head, role = np.unravel_index(int(np.argmin(distance)), p_value.shape)
    bias = roles["bias"].transpose("layer", "head", "role").values
    return [
        head_name(int(layer), int(head)),
        str(roles["role"].values[role]),
        float(bias[layer, head, role]),
        float(p_value[layer, head, role]),
    ]
