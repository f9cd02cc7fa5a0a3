"""Roles of heads, tested: how much more than average a head attends to what a role names (Pande et
al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import (
    Paper,
    Shape,
    at_least,
    layer_head_coords,
    mean_variables,
    one_of,
)
from headwise.analyses.items import ItemObserver, split_names
from headwise.analyses.nulls import RandomNull, above_random_variable, null_attributes, random_bound
from headwise.analyses.released import RELEASED, check_reading
from headwise.analyses.roles import significance
from headwise.analyses.roles.sieve_matrices import reduced, released_sieves
from headwise.analyses.roles.sieve_stats import asked_of, settled
from headwise.analyses.roles.sieves import Sieve, find_sieve, known_sieves, load_sieves
from headwise.analyses.roles.significance import (
    CEILING_SHARE,
    COARSE_ROLES,
    DIMS,
    FINE_ROLES,
    PAPER_RULE,
    SINK_SHARE,
    THRESHOLD_ROLES,
)
from headwise.core.errors import ParameterError
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.models.view import AttentionRows, Layer
from headwise.stats.accumulators import Moments, State, Sums
from headwise.stats.bootstrap import FEW
from headwise.stats.corrections import CORRECTIONS
from headwise.stats.records import Records
from headwise.text.encode import Batch

SAMPLED = 2048  # inputs whose scores are kept for the bootstrap and the histogram: memory does not grow with the corpus


@dataclass(frozen=True)
class Roles(RandomNull, ItemObserver):
    """Sieve bias of every head for every role, tested.

    For a token t whose sieve S(t) ∩ V(t) is not empty, `β(t) = (mean of A[t, j] over the sieve) /
    (mean of A[t, j] over V(t))`: 1 for uniform attention. The score of an input is the mean over
    those tokens; inputs without any are left out.

    - `bias[layer, head, role]`: mean score over inputs, with `bias_n` and a 95 % interval; `spread`, the standard
      deviation (ddof 1); `effect`, `(bias − τ) / spread`;
    - `p_value`: one-tailed z-test of H0 `mean ≤ τ`; `p_adjusted` corrected over heads × roles by `correction`, `p_holm`
      and `p_fdr` by Holm and by Benjamini-Hochberg; `bootstrap_p_value`, `bootstrap_p_adjusted`:
      the studentized bootstrap, for skewed scores; under `holm` the latter is corrected by the
      largest t of each resample (family-wise error as well, but not bounded by the number of
      resamples), and 1 for roles of fewer than 30 inputs;
    - `has_role`: `p_value < alpha`, 30 inputs or more, an effect of at least `min_effect` and a bias above
      `random_bound`; `has_role_adjusted`: the same with `p_adjusted`; `few[role]`: fewer than 30
      inputs, so that no head has the role. With `tau="paper"` the paper's bare rule: `p_value <
      alpha` (and 30 inputs);
    - `role_by_mean`, `role_by_test[layer, head, role]`: heads whose mean is over τ, and those that the bare test calls
      (30 inputs both); `mean_only[role]`: how many the mean calls and the test does not;
    - `random_bias[role]`: the mean bias of heads of random-weights models of the same shape, as sharp as this one, on
      the same inputs; `random_bound[role]`: what at `alpha` none of them passes in any role (see
      `headwise.stats.nulls.chance_bound`), at most three fifths of the way from 1 to the ceiling;
      `above_random[layer, head, role]`: `bias − random_bound`;
    - of decoders also the same with the first token left out, on which most heads rest: `bias_rest`, of rows without
      it, made to sum to one again (rows that leave less than 1e-4 do not count), with
      `bias_rest_spread`; `resting[layer, head]`: the mean attention of later tokens to the first.
      Of heads that rest (over half of it): `bias_rest_p`, `bias_rest_p_adjusted` (corrected over
      these heads × roles), and `has_role_rest`, by the rule of `has_role_adjusted`, against
      `bias_rest_bound[role]`;
    - `ceiling[layer, role]`: the bias of a head that attends to its sieve alone, the mean of `|V(t)| / |S(t) ∩ V(t)|`.
      Where τ lies above it no head can have the role: that of `block` is `2n/(n − 3)` for `[CLS] a
      [SEP] b [SEP]`, whatever the lengths of a and b;
    - `tokens`, `tokens_empty`, `inputs_left_out[layer, role]`: tokens counted, tokens whose sieve is empty, inputs
      without any other;
    - `histogram[layer, head, role, bin]`: inputs by score, bins between `2^(k/4)`; `undecided`, an attribute: the share
      of p-values in (0.05, 0.95);
    - `sweep[threshold, role]`: heads with the role at other values of τ, `sweep_unskilled`,
      `sweep_undecided[threshold]`;
    - `overlap`, `jaccard`, `share[role, role_b]`: heads with both roles; over the union; over those of `role`.
      `overlap_p_value` (and adjusted): the overlap is larger than that of two random sets of these
      sizes; `overlap_in_layer_p_value`: with the number of heads of each role in each layer kept;
    - `spearman[role, role_b]`: rank correlation of mean scores across heads;
    - `per_layer[layer, role]`: heads with the role; `skills`, `coarse_skills[layer, head]`: how many of the paper's
      nine and of its four roles a head has; `multi_skilled[layer]`: heads with two or more of the
      nine.

    The bootstrap and the histogram are of at most 2,048 inputs, a sample by their places in the
    corpus (`inputs_sampled`); everything else is of all (`inputs`).

    Attributes: `tau`, `tau_mean` (the mean it comes from), `tau_rule`, `unskilled` (share of heads
    with none of the four roles), `roles_not_computed` (the corpus or model lacks what they need),
    `matched_nothing` (roles whose sieve is empty on every input).

    Parameters
    ----------
    sieves : sequence of str or str, optional
        Only these (a string: names with commas between); all that are registered by default.
        `relation:NAME` is a sieve for any relation.
    tau : float or str, optional
        The threshold. By default `⌊mean of all scores of local, syntactic and block over inputs and
        heads⌋ + 1`, at least `tau_floor`: delimiters, which not every tokenizer has, do not move
        it. `paper`: the bare rule of the paper, whose mean has `delimiter` in it (kept as the
        attribute `tau_paper`), without floor, least effect and random-weights models. Random heads
        have a mean of about 1, so that this τ is 1 or 2 by chance.
    tau_floor : float, default 2
        The least τ that the rule gives.
    min_effect : float, default 0.1
        The least `effect` of a head that has a role.
    alpha : float, default 0.05
        The level of the tests.
    correction : str, default "holm"
        What `p_adjusted` is: `holm`, `benjamini_hochberg` or `none`.
    bootstrap : int, default 1000
        Resamples of the bootstrap; 0 leaves it out.
    random_models : int, optional
        Random-weights models beside the model. By default one to four, so many that they have 144
        heads, and none for models of more than 500 million parameters; 0 for none.
    plugin : str, optional
        A Python file or module with sieves of your own.
    seed : int, optional
        For the bootstrap; the run's by default.
    reading : {"paper", "released"}, default "paper"
        `released` computes what the authors' notebooks do (see `headwise.analyses.released`): the score
        of a block times the entropy of the row (special tokens have one too, and `ceiling` is not
        known), one token too many at the end of `local`, Student's t and ddof 0 (so in `spread`).

    Notes
    -----
    Question: Which roles (local, syntactic, block, delimiter, and their parts) does each head have,
    by a test?

    Assumes: Inputs are independent; a bias is a ratio of means, 1 for uniform attention.

    Traps: A bias can be no larger than `ceiling`, which grows with the length of inputs, and with
    it τ: shares of heads at different τ or lengths do not compare (`sweep` does). By the printed
    formula no head can be `block` at τ = 3 once n > 9. A role is no exclusive label: local and
    syntactic overlap beyond chance. Random heads may prefer one token that is in every input, which
    is why `cls`, `sep` and `delimiter` are held to random weights.

    Cost: The pass of the model, on a GPU inside its attention kernel for sieves that can be asked
    for, and a pass of one to four random-weights models (`benchmarks/bench_roles.py`,
    `benchmarks/bench_fused.py`)."""

    sieves: tuple[str, ...] | str = ()
    tau: float | str | None = None
    tau_floor: float = 2.0
    min_effect: float = 0.1
    alpha: float = 0.05
    correction: str = "holm"
    bootstrap: int = 1000
    random_models: int | None = None
    plugin: str = ""
    seed: int | None = None
    reading: str = "paper"

    name: ClassVar[str] = "roles"
    title: ClassVar[str] = "Roles of heads, tested"
    paper: ClassVar[Paper] = Paper("pande2021", "Sieve bias score; Hypothesis testing; Fig 2-5")
    units: ClassVar[Mapping[str, str]] = {
        "times the average": "spread random_bias random_bound above_random",
        "deviations above τ": "effect",
        "share of heads": "jaccard share sweep_unskilled",
        "share of p-values": "sweep_undecided",
        "correlation": "spearman",
    }
    budget: ClassVar[int | None] = 1000
    item_dim: ClassVar[str] = "role"
    unmatched_reason: ClassVar[str] = "its sieve is empty on every input"

    def __post_init__(self) -> None:
        rule = self.tau is None or self.tau == PAPER_RULE
        number = (
            self.tau
            if isinstance(self.tau, int | float) and not isinstance(self.tau, bool)
            else 0.0
        )
        if not rule and not 0 < number < float("inf"):
            raise ParameterError(
                f"`tau` must be a number above 0, `{PAPER_RULE}`, or nothing for the rule from the data; it is {self.tau!r}."
            )
        for name in ("tau_floor", "min_effect"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ParameterError(
                    f"`{name}` must be a number of at least 0; it is {getattr(self, name)!r}."
                )
        self.check_random_models()
        if not 0 < self.alpha < 1:
            raise ParameterError(f"`alpha` must lie between 0 and 1; it is {self.alpha!r}.")
        one_of("correction", self.correction, CORRECTIONS)
        at_least("bootstrap", self.bootstrap, 0)
        check_reading(self.reading)
        load_sieves(self.plugin)
        names = {sieve.name for sieve in self.chosen()}
        pooled = COARSE_ROLES if self.tau == PAPER_RULE else THRESHOLD_ROLES
        if rule and not names & set(pooled):
            raise ParameterError(
                f"`tau` must be given where none of {', '.join(pooled)}, whose scores it comes from, is among the "
                "sieves."
            )

    def chosen(self) -> tuple[Sieve, ...]:
        everything = dict.fromkeys(
            (*COARSE_ROLES, *FINE_ROLES, *known_sieves())
        )  # the paper's roles first
        found = tuple(map(find_sieve, split_names(self.sieves) or everything))
        return released_sieves(found) if self.reading == RELEASED else found

    # --- the pass ---------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        roles = len(self.chosen())
        # A role that is not asked of such a model has no inputs, even where its sieve is not empty.
        asked = Sums(roles)
        asked.add(torch.tensor([sieve.missing_reason(shape) is None for sieve in self.chosen()]))
        state = State(
            asked=asked,
            bias=Moments(shape.layers, shape.heads, roles),
            ceiling=Moments(shape.layers, roles),
            scores=Records(shape.layers, shape.heads, roles, at_most=SAMPLED),
            inputs=Sums(1),
            tokens=Sums(shape.layers, roles),
            empty=Sums(shape.layers, roles),
            left_out=Sums(shape.layers, roles),
        )
        if shape.causal and self.reading != RELEASED:  # the notebooks know of no such thing
            state["bias_rest"] = Moments(shape.layers, shape.heads, roles)
            state["resting"] = Moments(shape.layers, shape.heads)
        return state

    def reduce_rows(self, rows: AttentionRows, batch: Batch) -> Mapping[str, Tensor]:
        return reduced(self.chosen(), rows, batch, self.reading == RELEASED)

    def request(self, batch: Batch) -> StatsRequest | None:
        return None if self.reading == RELEASED else asked_of(self.chosen(), batch)

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        return settled(self.chosen(), answers, batch)

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        layers = slice(layer.layer, layer.layer + 1)
        self.update(state, {name: value[:, None] for name, value in sums.items()}, layers, batch)

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        asked = (state.sums("asked").total > 0).to(sums["count"].device, non_blocking=True)
        total, count = (
            sums["total"],
            sums["count"] * asked,
        )  # [example, layer, head, role], 1 for layers or heads alike
        score = torch.where(count > 0, total / count, torch.nan)
        here = (layers,)
        if layers.start == 0:
            state.sums("inputs").add(torch.tensor([len(batch)]))
        state.moments("bias").add(score, here)
        state.records("scores").add(batch.index, score, here)
        counted, most = (
            value[:, :, 0].expand(-1, score.shape[1], -1) for value in (count, sums["most"])
        )
        state.moments("ceiling").add_sums(most, counted, here)
        state.sums("tokens").add(counted.sum(0), here)
        state.sums("empty").add((batch.lengths[:, None, None] - counted).sum(0), here)
        state.sums("left_out").add((counted == 0).sum(0), here)
        if "bias_rest" in state and "total_rest" in sums:
            state.moments("bias_rest").add_sums(
                sums["total_rest"], sums["count_rest"] * asked, here
            )
            state.moments("resting").add_sums(sums["first"], sums["later"], here)

    # --- what comes of it -------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        roles = [sieve.name for sieve in self.chosen()]
        moments = state.moments("bias")
        units, of_layers = "times the average", ("layer", "role")
        variables = mean_variables(
            "bias", DIMS, moments, units=units, long_name="mean sieve bias over inputs"
        )
        most = "bias of a head that attends to nothing else"
        variables |= mean_variables(
            "ceiling", of_layers, state.moments("ceiling"), units=units, long_name=most
        )
        if self.reading == RELEASED and "block" in roles:  # an entropy has no such bound
            for name in ("ceiling", "ceiling_low", "ceiling_high"):
                variables[name].values[:, roles.index("block")] = np.nan
        for name, part in (
            ("tokens", "tokens"),
            ("tokens_empty", "empty"),
            ("inputs_left_out", "left_out"),
        ):
            variables[name] = xr.Variable(
                of_layers, state.sums(part).total.numpy().astype(np.int64)
            )
        tests, attrs = significance.tested(moments, state.records("scores"), roles, self)
        attrs |= {
            "inputs": int(state.sums("inputs").total[0]),
            "inputs_sampled": len(state.records("scores").index),
        }
        seen = moments.count.numpy().reshape(-1, len(roles)).max(0)
        attrs["roles_not_computed"] = ", ".join(
            sorted(name.removeprefix("role=") for name in self.missing_items(shape))
        )
        attrs["matched_nothing"] = ", ".join(self.matched_nothing(seen, shape))
        if "bias_rest" in state:
            rest = "mean sieve bias over inputs, the first token left out"
            variables |= mean_variables(
                "bias_rest", DIMS, state.moments("bias_rest"), units=units, long_name=rest
            )
            resting, first = state.moments("resting"), "attention of later tokens to the first"
            variables |= mean_variables(
                "resting", DIMS[:2], resting, units="share of attention", long_name=first
            )
            tests |= significance.tested_rest(
                state.moments("bias_rest"), resting, attrs["tau"], self
            )
        coords = layer_head_coords(shape) | significance.coordinates(roles)
        coords["about"] = ("role", np.array([sieve.about for sieve in self.chosen()]))
        return xr.Dataset(variables | tests, coords=coords, attrs=attrs)

    def reduced(self) -> Self:
        return replace(self, bootstrap=0)

    def random_count(self, heads: int, parameters: int) -> int:
        return (
            0
            if self.tau == PAPER_RULE and self.random_models is None
            else super().random_count(heads, parameters)
        )

    def apply_null(self, dataset: xr.Dataset, random_results: Sequence[xr.Dataset]) -> xr.Dataset:
        tests = dataset.sizes["layer"] * dataset.sizes["head"] * int((~dataset["few"]).sum())
        mean, bound = random_bound("bias", random_results, tests, self.alpha, tail="ratio")
        reached = 1 + CEILING_SHARE * (dataset["ceiling"].mean("layer").values - 1)
        bound = np.fmin(bound, reached)
        variables, attrs = significance.decided(dataset, self, bound)
        variables["random_bias"] = xr.Variable(
            "role", mean, {"long_name": "mean bias of random heads"}
        )
        variables["random_bound"] = xr.Variable(
            "role", bound, {"long_name": "bias that no random head passes"}
        )
        variables |= above_random_variable(dataset["bias"], bound)
        if "bias_rest" in dataset:
            tests = max(1, int(dataset["bias_rest_p"].notnull().sum()))
            bound = np.fmin(
                random_bound("bias_rest", random_results, tests, self.alpha, tail="ratio")[1],
                reached,
            )
            variables["has_role_rest"] = significance.decided_rest(dataset, self, bound)
            about = {"long_name": "bias that no random head passes, the first token left out"}
            variables["bias_rest_bound"] = xr.Variable("role", bound, about)
        return dataset.assign(variables).assign_attrs(attrs | null_attributes(random_results))

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        has = dataset["has_role_adjusted"]
        return has | dataset["has_role_rest"] if "has_role_rest" in dataset else has

    def summary(self, dataset: xr.Dataset) -> list[str]:
        has, attrs = dataset["has_role"], dataset.attrs
        heads = dataset.sizes["layer"] * dataset.sizes["head"]
        counts = {role: int(has.sel(role=role).sum()) for role in map(str, has["role"].values)}
        ordered = sorted(counts.items(), key=lambda item: -item[1])
        found = ", ".join(f"{role} {count}" for role, count in ordered if count)
        corrected = int(dataset["has_role_adjusted"].sum())
        paper = (
            f"; the paper's rule gives {attrs['tau_paper']:g}"
            if np.isfinite(attrs["tau_paper"])
            else ""
        )
        origin = attrs["tau_rule"] + paper
        lines = [
            f"τ = {attrs['tau']:g} ({origin}); {attrs['inputs']:,} inputs, {heads} heads",
            f"Heads with the role, p < {self.alpha:g}: {found or 'none'}; {sum(counts.values())} in all, "
            f"{corrected} after correction ({self.correction})",
        ]
        few = [
            r for r in counts if dataset["few"].sel(role=r) and dataset["bias_n"].sel(role=r).any()
        ]
        if "has_role_rest" in dataset:
            rests, rest = (
                int((dataset["resting"] > SINK_SHARE).sum()),
                dataset["has_role_rest"].sum(("layer", "head")),
            )
            found = ", ".join(
                f"{role} {int(n)}" for role, n in zip(counts, rest.values, strict=True) if n
            )
            lines.append(
                f"{rests} heads rest on the first token (over half of their attention); with it left out, after "
                f"correction: {found or 'none'}"
            )
        if few:
            lines.append(f"Fewer than {FEW} inputs, so never assigned: {', '.join(few)}")
        if attrs["random_models"]:
            bounds = zip(counts, dataset["random_bound"].values, strict=True)
            over = ", ".join(
                f"{role} {bound:.1f}" for role, bound in bounds if bound > attrs["tau"]
            )
            lines.append(
                f"Random heads of the same shape reach τ in no role{f' but {over}' if over else ''}"
            )
        known = [
            role
            for role in COARSE_ROLES
            if role in counts and dataset["bias_n"].sel(role=role).any()
        ]
        if known:
            lines.append(
                f"With none of {', '.join(known)}: {round(attrs['unskilled'] * heads)} heads"
            )
        return lines
