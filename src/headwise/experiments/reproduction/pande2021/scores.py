"""Figures 1 to 3: sieves, scores, p-values."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headwise.analyses.roles.sieves import find_sieve
from headwise.analyses.roles.sieves.tokens import token_axes
from headwise.analyses.roles.significance import COARSE_ROLES, undecided_share
from headwise.core.labels import head_name
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.pande2021.tasks import found
from headwise.experiments.reproduction.schema import Outcome, Picture, Row, Table, Verdict
from headwise.experiments.reproduction.shared import pictures
from headwise.plots import style
from headwise.text import Example

# Two sentences with their trees, as the paper's own example has them.
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
SHOWN = ("block", "nsubj", "local", "amod", "delimiter")


def sieves(bench: Bench) -> Outcome:
    """Figure 1: the sieves of one input, for every token at once."""
    example = Example(words=WORDS, words_pair=PAIR, heads=HEADS, relations=RELATIONS)
    row = bench.model.encoder.encode(example, 0)
    assert row is not None
    with style.context():
        fig = style.new_figure(style.PAGE, 2.1)
        for ax, name in zip(fig.subplots(1, len(SHOWN)), SHOWN, strict=True):
            matrix = np.broadcast_to(
                find_sieve(name).function(*token_axes(row)), (len(row), len(row))
            )
            ax.imshow(matrix, cmap=style.SEQUENTIAL, interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.set_title(name, loc="center", fontsize=style.SMALL)
        notes = [
            "Rows: the token that looks; columns: what it should look at",
            "No interval: sets of tokens",
        ]
        drawn = style.complete(fig, f"Sieves of: {' '.join(row.tokens)}", notes)
    caption = "Bright: the tokens of the sieve. The paper draws one token of each."
    return Outcome(pictures=[Picture("sieves", "Sieves of one input", caption, drawn)])


def one_head(bench: Bench) -> Outcome:
    """Figure 2: the scores of the head whose test is least decided; means against tests."""
    all_found = found(bench)
    rows, skewed, known, only = [], 0, 0, 0
    for one in all_found.tasks:
        roles = one.roles
        above, count = _skewed(roles)
        skewed, known = skewed + above, known + count
        mean_only = int(roles["mean_only"].sum())
        only += mean_only
        rows.append(
            [
                one.task,
                int(roles["role_by_mean"].sum()),
                int(roles["role_by_test"].sum()),
                mean_only,
            ]
        )
    claims = {
        "skewed": Verdict(f"{skewed} of {known} heads and roles", skewed > known / 2),
        "averages": Verdict(f"{only} roles of heads, over all tasks", only > 0),
    }
    table = Table(
        "Roles by mean and by test", ["task", "by mean over τ", "by test", "by mean alone"], rows
    )
    first = all_found.tasks[0]
    drawn = pictures("roles", first.roles, "scores", "labels")
    return Outcome((), [table], drawn, claims, all_found.differs, all_found.seen)


def _skewed(roles: xr.Dataset) -> tuple[int, int]:
    """Heads and coarse roles whose mean lies above their median's bin, and all of them."""
    counts = roles["histogram"].transpose("layer", "head", "role", "bin").values
    low = roles["bin_low"].values
    high = np.append(low[1:], low[-1] * 2)
    chosen = [i for i, role in enumerate(roles["role"].values) if role in COARSE_ROLES]
    total = counts.sum(-1)
    place = (np.cumsum(counts, -1) < total[..., None] / 2).sum(-1)
    middle = (low[place] + high[place]) / 2
    mean = roles["bias"].transpose("layer", "head", "role").values
    known = total[..., chosen] > 0
    return int(((mean > middle)[..., chosen] & known).sum()), int(known.sum())


def p_values(bench: Bench) -> Outcome:
    """Figure 3: the mean of all scores, τ, and the share of p-values that decide nothing."""
    all_found = found(bench)
    every = [*all_found.tasks, *([all_found.trees] if all_found.trees else [])]
    means = {one.task: float(one.roles.attrs["tau_mean_paper"]) for one in every}
    taus = {one.task: float(one.roles.attrs["tau"]) for one in every}
    coarse = [
        one.roles["p_value"].sel(role=[r for r in COARSE_ROLES if r in one.roles["role"]]).values
        for one in every
    ]
    between = undecided_share(np.concatenate([values.ravel() for values in coarse]))
    tau = float(np.floor(np.mean(list(means.values()))) + 1)
    rows = [
        Row(
            "mean",
            float(np.mean(list(means.values()))),
            note=", ".join(f"{t} {m:.2f}" for t, m in means.items()),
        ),
        Row(
            "tau",
            tau,
            note="each set of inputs has its own: "
            + ", ".join(f"{t} {x:g}" for t, x in taus.items()),
        ),
        Row("undecided", 100 * between, note="local, syntactic, block and delimiter"),
    ]
    claims = {"bimodal": Verdict(f"{100 * between:.1f} %", between <= 0.05)}
    table = Table(
        "Least decided head of each set of inputs",
        ["inputs", "head", "role", "mean bias", "p"],
        [[one.task, *_least(one.roles)] for one in every],
    )
    drawn = pictures("roles", all_found.tasks[0].roles, "p-values")
    return Outcome(rows, [table], drawn, claims, all_found.differs, all_found.seen)


def _least(roles: xr.Dataset) -> list[object]:
    p = roles["p_value"].transpose("layer", "head", "role").values
    layer, head, role = np.unravel_index(
        int(np.argmin(np.where(np.isfinite(p), np.abs(p - 0.5), np.inf))), p.shape
    )
    bias = roles["bias"].transpose("layer", "head", "role").values[layer, head, role]
    return [
        head_name(int(layer), int(head)),
        str(roles["role"].values[role]),
        float(bias),
        float(p[layer, head, role]),
    ]
