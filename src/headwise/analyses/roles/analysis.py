"""Roles of heads as tested statements: how much more than average a head attends to the tokens a role names (Pande et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Observer, Paper, Shape, at_least, layer_head_coords, mean_variables, one_of
from headwise.analyses.roles import significance
from headwise.analyses.roles.sieves import Sieve, find_sieve, known_sieves, load_sieves, sieve_matrices
from headwise.core.errors import ParameterError
from headwise.models.view import Layer, Rows
from headwise.stats.accumulators import Moments, Records, State, Sums
from headwise.stats.corrections import CORRECTIONS
from headwise.text.encode import Batch

HEADS = ("layer", "head")
DIMS = (*HEADS, "role")


@dataclass(frozen=True)
class Roles(Observer):
    """Sieve bias of every head for every role, tested.

    For a token t whose sieve S(t) ∩ V(t) is not empty, `β(t) = (mean of A[t, j] over the sieve) / (mean of A[t, j] over V(t))`: 1 for uniform attention. The score of an input
    is the mean over those tokens; inputs without any are left out.

    - `bias[layer, head, role]`: mean score over inputs, with `bias_n` and a 95 % interval; `spread`, the standard deviation (ddof 1); `effect`, `(bias − τ) / spread`;
    - `p_value`: one-tailed z-test of H0 `mean ≤ τ`; `p_adjusted` corrected over heads × roles by `correction`, `p_holm` and `p_fdr` by Holm and by Benjamini-Hochberg;
      `bootstrap_p_value`, `bootstrap_p_adjusted`: the studentized bootstrap, for skewed scores; under `holm` the latter is corrected by the largest t of each resample (family-wise
      error as well, but not bounded by the number of resamples), and 1 for roles of fewer than 30 inputs;
    - `has_role`: `p_value < alpha`, as in the paper; `has_role_adjusted`: `p_adjusted < alpha`; `few[role]`: fewer than 30 inputs;
    - `ceiling[layer, role]`: the bias of a head that attends to its sieve alone, the mean of `|V(t)| / |S(t) ∩ V(t)|`. Where τ lies above it no head
      can have the role: that of `block` is `2n/(n − 3)` for `[CLS] a [SEP] b [SEP]`, whatever the lengths of a and b;
    - `tokens`, `tokens_empty`, `inputs_left_out[layer, role]`: tokens counted, tokens whose sieve is empty, inputs without any other;
    - `histogram[layer, head, role, bin]`: inputs by score, bins between `2^(k/4)`; `undecided`, an attribute: the share of p-values in (0.05, 0.95);
    - `sweep[threshold, role]`: heads with the role at other values of τ, `sweep_unskilled`, `sweep_undecided[threshold]`;
    - `overlap`, `jaccard`, `share[role, role_b]`: heads with both roles; over the union; over those of `role`. `overlap_p_value` (and adjusted): the overlap is larger than that of
      two random sets of these sizes; `overlap_in_layer_p_value`: with the number of heads of each role in each layer kept;
    - `spearman[role, role_b]`: rank correlation of mean scores across heads;
    - `per_layer[layer, role]`: heads with the role; `skills`, `coarse_skills[layer, head]`: how many of the paper's nine and of its four roles a head has;
      `multi_skilled[layer]`: heads with two or more of the nine.

    Attributes: `tau`, `tau_mean` (the mean it comes from), `tau_rule`, `unskilled` (share of heads with none of the four roles), `roles_not_computed` (the corpus or model lacks
    what they need), `matched_nothing` (roles whose sieve is empty on every input).

    Parameters
    ----------
    sieves
        Only these (a sequence, or names with commas between); all that are registered by default. `relation:NAME` is a sieve for any relation.
    tau
        The threshold; by default the paper's rule, `⌊mean of all scores of local, syntactic, block and delimiter over inputs and heads⌋ + 1`.
    alpha
        The level of the tests.
    correction
        What `p_adjusted` is: `holm`, `benjamini_hochberg` or `none`.
    bootstrap
        Resamples of the bootstrap; 0 leaves it out.
    plugin
        A Python file or module with sieves of your own.
    seed
        For the bootstrap.
    """

    sieves: tuple[str, ...] | str = ()
    tau: float | None = None
    alpha: float = 0.05
    correction: str = "holm"
    bootstrap: int = 1000
    plugin: str = ""
    seed: int = 0

    name: ClassVar[str] = "roles"
    title: ClassVar[str] = "Roles of heads, tested"
    paper: ClassVar[Paper] = Paper("pande2021", "Sieve bias score; Hypothesis testing; Fig 2-5")
    budget: ClassVar[int | None] = 1000

    def __post_init__(self) -> None:
        if self.tau is not None and (isinstance(self.tau, bool | str) or not 0 < self.tau < float("inf")):
            raise ParameterError(
                f"`tau` must be a number above 0, or nothing for the rule from the data; it is {self.tau!r}."
            )
        if not 0 < self.alpha < 1:
            raise ParameterError(f"`alpha` must lie between 0 and 1; it is {self.alpha!r}.")
        one_of("correction", self.correction, CORRECTIONS)
        at_least("bootstrap", self.bootstrap, 0)
        load_sieves(self.plugin)
        names = [sieve.name for sieve in self._chosen()]
        if self.tau is None and not set(names) & set(significance.COARSE):
            raise ParameterError(
                f"`tau` must be given where none of {', '.join(significance.COARSE)}, whose scores it comes from, is among the sieves."
            )

    def _chosen(self) -> tuple[Sieve, ...]:
        given = self.sieves.split(",") if isinstance(self.sieves, str) else list(self.sieves)
        names = list(dict.fromkeys(name.strip() for name in given if name.strip())) or _ordered(known_sieves())
        return tuple(find_sieve(name) for name in names)

    def missing(self, shape: Shape) -> dict[str, str]:
        found = {sieve.name: sieve.lacking(shape) for sieve in self._chosen()}
        return {f"role={name}": reason for name, reason in found.items() if reason}

    def refusal(self, shape: Shape) -> str | None:
        reasons = [sieve.lacking(shape) for sieve in self._chosen()]
        return "; ".join(dict.fromkeys(filter(None, reasons))) if all(reasons) else None

    # --- the pass ---------------------------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        roles = len(self._chosen())
        return State(
            bias=Moments(shape.layers, shape.heads, roles),
            ceiling=Moments(shape.layers, roles),
            scores=Records(shape.layers, shape.heads, roles),
            tokens=Sums(shape.layers, roles),
            empty=Sums(shape.layers, roles),
            left_out=Sums(shape.layers, roles),
        )

    def reduce(self, rows: Rows, batch: Batch) -> Mapping[str, Tensor]:
        shares = _shares(batch, self._chosen(), rows.start, rows.stop)
        weights = rows.weights
        if rows.sink is not None:  # the mean over V(t) is of what the tokens get
            weights = weights / (1 - rows.sink.unsqueeze(-1)).clamp(min=torch.finfo(weights.dtype).tiny)
        return shares.score(weights, rows.visible)

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        total, count = sums["total"], sums["count"]  # [example, head, role], [example, 1 or head, role]
        score = torch.where(count > 0, total / count, torch.nan)
        here = (layer.layer,)
        state.moments("bias").add(score, here)
        state.records("scores").add(batch.index, score, here)
        counted = count[:, 0]
        state.moments("ceiling").add_sums(sums["most"], counted, here)
        state.sums("tokens").add(counted.sum(0), here)
        state.sums("empty").add((batch.lengths[:, None] - counted).sum(0), here)
        state.sums("left_out").add((counted == 0).sum(0), here)

    # --- what comes of it -------------------------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        roles = [sieve.name for sieve in self._chosen()]
        absent = {name.removeprefix("role=") for name in self.missing(shape)}
        moments = state.moments("bias")
        variables = mean_variables(
            "bias", DIMS, moments, units="times the average", long_name="mean sieve bias over inputs"
        )
        variables |= mean_variables(
            "ceiling",
            ("layer", "role"),
            state.moments("ceiling"),
            units="times the average",
            long_name="bias of a head that attends to nothing else",
        )
        for name, part in (("tokens", "tokens"), ("tokens_empty", "empty"), ("inputs_left_out", "left_out")):
            variables[name] = xr.Variable(("layer", "role"), state.sums(part).total.numpy().astype(np.int64))
        tests, attrs = significance.tested(moments, state.records("scores").values, roles, self)
        variables |= tests
        coords: dict[str, Any] = layer_head_coords(shape) | significance.coordinates(roles)
        coords["about"] = ("role", np.array([sieve.about for sieve in self._chosen()]))
        attrs["roles_not_computed"] = ", ".join(sorted(absent))
        seen = moments.count.numpy().reshape(-1, len(roles)).max(0)
        attrs["matched_nothing"] = ", ".join(
            role for role, count in zip(roles, seen, strict=True) if not count and role not in absent
        )
        return xr.Dataset(variables, coords=coords, attrs=attrs)

    def headline(self, dataset: xr.Dataset) -> list[str]:
        has, attrs = dataset["has_role"], dataset.attrs
        heads = dataset.sizes["layer"] * dataset.sizes["head"]
        counts = {role: int(has.sel(role=role).sum()) for role in map(str, has["role"].values)}
        found = ", ".join(
            f"{role} {count}" for role, count in sorted(counts.items(), key=lambda item: -item[1]) if count
        )
        corrected = int(dataset["has_role_adjusted"].sum())
        origin = "given" if self.tau is not None else f"the mean score is {attrs['tau_mean']:.2f}"
        lines = [
            f"τ = {attrs['tau']:g} ({origin}); {attrs['inputs']:,} inputs, {heads} heads",
            f"Heads with the role, p < {self.alpha:g}: {found or 'none'}; {sum(counts.values())} in all, {corrected} after correction ({self.correction})",
        ]
        known = [role for role in significance.COARSE if role in counts and dataset["bias_n"].sel(role=role).any()]
        if known:
            lines.append(f"With none of {', '.join(known)}: {round(attrs['unskilled'] * heads)} heads")
        return lines

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        return {
            f"role={name}": "its sieve is empty on every input"
            for name in dataset.attrs["matched_nothing"].split(", ")
            if name
        }


def _ordered(names: Mapping[str, Any]) -> list[str]:
    """The paper's roles first, then all others as registered."""
    first = [name for name in dict.fromkeys((*significance.COARSE, *significance.FINE)) if name in names]
    return [*first, *(name for name in names if name not in first)]


class Shares:
    """The sieves of a block of rows, divided by their sizes: one product with the weights gives every head's sum of β for every role."""

    def __init__(self, sieves: Tensor) -> None:
        self.sieves = sieves  # bool [example, role, row, key]
        self._visible: Tensor | None = None
        self._parts: tuple[Tensor, Tensor, Tensor] | None = None

    def score(self, weights: Tensor, visible: Tensor) -> dict[str, Tensor]:
        """`total[example, head, role]`, the sum of β(t) over rows, and `count[example, 1 or head, role]`, the rows whose sieve is not empty;
        `most[example, role]`, the sum of the largest β(t) there could be."""
        examples, heads, rows, keys = weights.shape
        groups = (
            [slice(None)] if visible.shape[1] == 1 else [slice(h, h + 1) for h in range(heads)]
        )  # some models have a window of its own for each head
        totals, counts, mosts = [], [], []
        for group in groups:
            own = visible[:, group][:, 0]
            share, count, most = self._divided(own, keep=len(groups) == 1)
            flat = weights[:, group].reshape(examples, -1, rows * keys)
            totals.append(torch.bmm(flat, share.to(weights.dtype)).double())
            counts.append(count[:, None].double())
            mosts.append(most)
        return {"total": torch.cat(totals, 1), "count": torch.cat(counts, 1), "most": mosts[0]}

    def _divided(self, visible: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
        """`[example, row · key, role]`: |V(t)| / |S(t) ∩ V(t)| on the sieve, 0 elsewhere; kept for the next layer, which mostly sees the same keys."""
        if self._parts is not None and self._visible is not None and torch.equal(self._visible, visible):
            return self._parts
        inside = self.sieves & visible[:, None]
        size = inside.sum(-1)
        factor = visible.sum(-1)[:, None] / size.clamp(min=1)
        share = (inside * factor[..., None].float()).flatten(2).transpose(1, 2)
        parts = share, (size > 0).sum(-1), (factor * (size > 0)).double().sum(-1)
        if keep:
            self._visible, self._parts = visible, parts
        return parts


@lru_cache(maxsize=1)
def _shares(batch: Batch, sieves: tuple[Sieve, ...], start: int, stop: int) -> Shares:
    """The sieves depend on the batch, not on the layer: they are built once for all layers."""
    return Shares(sieve_matrices(sieves, batch, start, stop))
