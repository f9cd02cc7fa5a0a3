"""Roles of heads, tested: how much more than average a head attends to what a role names (Pande et
al. 2021)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from headwise.analyses.released import RELEASED, VARIANTS
from headwise.analyses.roles import significance
from headwise.analyses.roles.matrix_bias import bias_sums, released_sieves
from headwise.analyses.roles.sieve_stats import bias_sums_from_stats, request_sieves
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

# Inputs whose scores are kept for bootstrap and histogram: memory does not grow with the corpus.
MAX_SAMPLED_INPUTS = 2048
BIAS_UNITS = "times the average"


@dataclass(frozen=True)
class Roles(RandomNull, ItemObserver):
    """Compute and test the sieve bias of every head for every role.

    For a token t whose sieve S(t) ∩ V(t) is not empty, `β(t) = (mean of A[t, j] over the sieve) /
    (mean of A[t, j] over V(t))`: 1 for uniform attention. The score of an input is the mean over
    those tokens; inputs without any are left out.

    - `bias[layer, head, role]`: mean score over inputs, with `bias_n` and a 95 % interval;
      `spread`, the standard deviation (ddof 1); `effect`, `(bias − τ) / spread`;
    - `p_value`: one-tailed z-test of H0 `mean ≤ τ`; `p_adjusted` corrected over heads × roles by
      `correction`, `p_holm` and `p_fdr` by Holm and by Benjamini-Hochberg; `bootstrap_p_value`,
      `bootstrap_p_adjusted`: the studentized bootstrap, for skewed scores; under `holm` the latter
      is corrected by the largest t of each resample (family-wise error as well, but not bounded by
      the number of resamples), and 1 for roles of fewer than 30 inputs;
    - `has_role`: `p_adjusted < alpha`, 30 inputs or more, an effect of at least `min_effect` and a
      bias above `random_bound`: the rule of all figures, counts and labels; `few[role]`: fewer than
      30 inputs, so that no head has the role. With `tau="paper"` the paper's bare rule: `p_value <
      alpha` (and 30 inputs); `has_role_adjusted` is after correction in either case;
    - `role_by_mean`, `role_by_test[layer, head, role]`: heads whose mean is over τ, and heads with
      a significant bare test (30 inputs both); `mean_only[role]`: heads by the mean that are not
      confirmed by the test;
    - `random_bias[role]`: the mean bias of heads of random-weights models of the same shape, as
      sharp as this one, on the same inputs; `random_bound[role]`: the bias that none of them passes
      in any role at level `alpha` (see `headwise.stats.nulls.chance_bound`), at most three fifths
      of the way from 1 to the ceiling; `above_random[layer, head, role]`: `bias − random_bound`;
    - for decoders also the same without the first token, the sink of most heads: `bias_rest`, of
      rows without it, scaled to sum to one (rows that leave less than 1e-4 do not count), with
      `bias_rest_spread`; `resting[layer, head]`: the mean attention of later tokens to the first.
      For heads with a sink (over half of their attention): `bias_rest_p`, `bias_rest_p_adjusted`
      (corrected over these heads × roles), and `has_role_rest`, by the rule of
      `has_role_adjusted`, against `bias_rest_bound[role]`;
    - `ceiling[layer, role]`: the bias of a head that attends to its sieve alone, the mean of
      `|V(t)| / |S(t) ∩ V(t)|`. Where τ lies above it no head can have the role: that of `block` is
      `2n/(n − 3)` for `[CLS] a [SEP] b [SEP]`, whatever the lengths of a and b;
    - `tokens`, `tokens_empty`, `inputs_left_out[layer, role]`: tokens counted, tokens whose sieve
      is empty, inputs without any other;
    - `histogram[layer, head, role, bin]`: inputs by score, bins between `2^(k/4)`; `undecided`, an
      attribute: the share of p-values in (0.05, 0.95);
    - `sweep[threshold, role]`: heads with the role at other values of τ, `sweep_unskilled`,
      `sweep_undecided[threshold]`;
    - `overlap`, `jaccard`, `share[role, role_b]`: heads with both roles; over the union; over those
      of `role`. `overlap_p_value` (and adjusted): the overlap is larger than that of two random
      sets of these sizes; `overlap_in_layer_p_value`: with the number of heads of each role in each
      layer kept;
    - `spearman[role, role_b]`: rank correlation of mean scores across heads;
    - `per_layer[layer, role]`: heads with the role; `skills`, `coarse_skills[layer, head]`: how
      many of the paper's nine and of its four roles a head has; `multi_skilled[layer]`: heads with
      two or more of the nine.

    Bootstrap and histogram use at most 2,048 inputs, a sample by their places in the corpus
    (`inputs_sampled`); everything else uses all (`inputs`).

    Attributes: `tau`, `tau_mean` (the mean it comes from), `tau_rule`, `unskilled` (share of heads
    with none of the four roles), `roles_not_computed` (the corpus or model lacks what they need),
    `matched_nothing` (roles without any token pair in the corpus).

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

    Pitfalls: A bias can be no larger than `ceiling`, which grows with the length of inputs, and
    with it τ: shares of heads at different τ or lengths do not compare (`sweep` does). By the
    printed formula no head can be `block` at τ = 3 once n > 9. A role is no exclusive label: local
    and syntactic overlap beyond chance. Random heads may prefer one token that is in every input,
    which is why `cls`, `sep` and `delimiter` are compared with random weights.

    Cost: The pass of the model, on a GPU inside its attention kernel for sieves of a known form,
    and a pass of one to four random-weights models (`benchmarks/bench_roles.py`,
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
    unmatched_reason: ClassVar[str] = "no token pairs of this type in the corpus"

    def __post_init__(self) -> None:
        self._check_numbers()
        self.check_random_models()
        one_of("correction", self.correction, CORRECTIONS)
        at_least("bootstrap", self.bootstrap, 0)
        one_of("reading", self.reading, VARIANTS)
        load_sieves(self.plugin)
        if self.tau is None or self.tau == PAPER_RULE:
            pooled = COARSE_ROLES if self.tau == PAPER_RULE else THRESHOLD_ROLES
            names = {sieve.name for sieve in self.chosen()}
            if not names & set(pooled):
                raise ParameterError(
                    f"`tau` is computed from the scores of {', '.join(pooled)}, and none of these "
                    "is among the sieves: set `tau`."
                )

    def _check_numbers(self) -> None:
        if self.tau is not None and self.tau != PAPER_RULE:
            is_number = isinstance(self.tau, int | float) and not isinstance(self.tau, bool)
            if not is_number or not 0 < self.tau < float("inf"):  # type: ignore[operator]
                raise ParameterError(
                    f"`tau` must be a number above 0, `{PAPER_RULE}`, or None for the rule from "
                    f"the data; it is {self.tau!r}."
                )
        for name in ("tau_floor", "min_effect"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ParameterError(f"`{name}` must be a number of at least 0; it is {value!r}.")
        if not 0 < self.alpha < 1:
            raise ParameterError(f"`alpha` must lie between 0 and 1; it is {self.alpha!r}.")

    def chosen(self) -> tuple[Sieve, ...]:
        """Return the sieves to compute; by default all, the roles of the paper first."""
        names = split_names(self.sieves)
        if not names:
            names = list(dict.fromkeys((*COARSE_ROLES, *FINE_ROLES, *known_sieves())))
        sieves = tuple(find_sieve(name) for name in names)
        return released_sieves(sieves) if self.reading == RELEASED else sieves

    # --- the pass ---------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        sieves = self.chosen()
        n_roles = len(sieves)
        # A role that is not computed for such a model gets no inputs, even if its sieve holds some
        # tokens.
        is_computed = Sums(n_roles)
        is_computed.add(torch.tensor([sieve.missing_reason(shape) is None for sieve in sieves]))
        state = State(
            asked=is_computed,
            bias=Moments(shape.layers, shape.heads, n_roles),
            ceiling=Moments(shape.layers, n_roles),
            scores=Records(shape.layers, shape.heads, n_roles, at_most=MAX_SAMPLED_INPUTS),
            inputs=Sums(1),
            tokens=Sums(shape.layers, n_roles),
            empty=Sums(shape.layers, n_roles),
            left_out=Sums(shape.layers, n_roles),
        )
        # The authors' notebooks compute nothing without the first token.
        if shape.causal and self.reading != RELEASED:
            state["bias_rest"] = Moments(shape.layers, shape.heads, n_roles)
            state["resting"] = Moments(shape.layers, shape.heads)
        return state

    def reduce_rows(self, rows: AttentionRows, batch: Batch) -> Mapping[str, Tensor]:
        return bias_sums(self.chosen(), rows, batch, self.reading == RELEASED)

    def request(self, batch: Batch) -> StatsRequest | None:
        if self.reading == RELEASED:
            return None
        return request_sieves(self.chosen(), batch)

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        return bias_sums_from_stats(self.chosen(), answers, batch)

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        layers = slice(layer.layer, layer.layer + 1)
        self.update(state, {name: value[:, None] for name, value in sums.items()}, layers, batch)

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        device = sums["count"].device
        is_computed = (state.sums("asked").total > 0).to(device, non_blocking=True)
        # [example, layer, head, role]; 1 layer or 1 head where all are the same
        count = sums["count"] * is_computed
        score = torch.where(count > 0, sums["total"] / count, torch.nan)
        where = (layers,)
        if layers.start == 0:
            state.sums("inputs").add(torch.tensor([len(batch)]))
        state.moments("bias").add(score, where)
        state.records("scores").add(batch.index, score, where)

        n_layers = score.shape[1]
        layer_count = count[:, :, 0].expand(-1, n_layers, -1)
        layer_max_bias = sums["max_bias"][:, :, 0].expand(-1, n_layers, -1)
        state.moments("ceiling").add_sums(layer_max_bias, layer_count, where)
        state.sums("tokens").add(layer_count.sum(0), where)
        state.sums("empty").add((batch.lengths[:, None, None] - layer_count).sum(0), where)
        state.sums("left_out").add((layer_count == 0).sum(0), where)
        if "bias_rest" in state and "total_rest" in sums:
            state.moments("bias_rest").add_sums(
                sums["total_rest"], sums["count_rest"] * is_computed, where
            )
            state.moments("resting").add_sums(sums["first"], sums["later"], where)

    # --- the result -------------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        sieves = self.chosen()
        roles = [sieve.name for sieve in sieves]
        bias = state.moments("bias")
        scores = state.records("scores")
        variables = mean_variables(
            "bias", DIMS, bias, units=BIAS_UNITS, long_name="mean sieve bias over inputs"
        )
        variables |= mean_variables(
            "ceiling",
            ("layer", "role"),
            state.moments("ceiling"),
            units=BIAS_UNITS,
            long_name="bias of a head that attends to nothing else",
        )
        if self.reading == RELEASED and "block" in roles:
            # Released scores of `block` are multiplied by an entropy, which has no such bound.
            for name in ("ceiling", "ceiling_low", "ceiling_high"):
                variables[name].values[:, roles.index("block")] = np.nan
        state_names = {"tokens": "tokens", "tokens_empty": "empty", "inputs_left_out": "left_out"}
        for name, state_name in state_names.items():
            counts = state.sums(state_name).total.numpy().astype(np.int64)
            variables[name] = xr.Variable(("layer", "role"), counts)

        tests, attrs = significance.tests_of_scores(bias, scores, roles, self)
        variables |= tests
        if "bias_rest" in state:
            variables |= self._variables_without_first(state, attrs["tau"])
        inputs_per_role = bias.count.numpy().reshape(-1, len(roles)).max(0)
        not_computed = [name.removeprefix("role=") for name in self.missing_items(shape)]
        attrs |= {
            "inputs": int(state.sums("inputs").total[0]),
            "inputs_sampled": len(scores.index),
            "roles_not_computed": ", ".join(sorted(not_computed)),
            "matched_nothing": ", ".join(self.matched_nothing(inputs_per_role, shape)),
        }
        coords = layer_head_coords(shape) | significance.coordinates(roles)
        coords["about"] = ("role", np.array([sieve.about for sieve in sieves]))
        return xr.Dataset(variables, coords=coords, attrs=attrs)

    def _variables_without_first(self, state: State, tau: float) -> dict[str, xr.Variable]:
        """Return bias and tests without the first token, for decoders."""
        bias = state.moments("bias_rest")
        sink = state.moments("resting")
        variables = mean_variables(
            "bias_rest",
            DIMS,
            bias,
            units=BIAS_UNITS,
            long_name="mean sieve bias over inputs, excluding the first token",
        )
        variables |= mean_variables(
            "resting",
            DIMS[:2],
            sink,
            units="share of attention",
            long_name="attention of later tokens to the first",
        )
        return variables | significance.tests_without_first(bias, sink, tau, self)

    # --- beside random-weights models -------------------------------------------------------------

    def reduced(self) -> Self:
        return replace(self, bootstrap=0)

    def random_count(self, heads: int, parameters: int) -> int:
        # The bare rule of the paper knows no random models; they can still be set explicitly.
        if self.tau == PAPER_RULE and self.random_models is None:
            return 0
        return super().random_count(heads, parameters)

    def apply_null(self, dataset: xr.Dataset, random_results: Sequence[xr.Dataset]) -> xr.Dataset:
        n_heads = dataset.sizes["layer"] * dataset.sizes["head"]
        n_tests = n_heads * int((~dataset["few"]).sum())
        mean, bound = random_bound("bias", random_results, n_tests, self.alpha, tail="ratio")
        largest_bound = 1 + CEILING_SHARE * (dataset["ceiling"].mean("layer").values - 1)
        bound = np.fmin(bound, largest_bound)
        variables, attrs = significance.assign_roles(dataset, self, bound)
        variables["random_bias"] = xr.Variable(
            "role", mean, {"long_name": "mean bias of random heads"}
        )
        variables["random_bound"] = xr.Variable(
            "role", bound, {"long_name": "bias that no random head passes"}
        )
        variables |= above_random_variable(dataset["bias"], bound)
        if "bias_rest" in dataset:
            n_tests = max(1, int(dataset["bias_rest_p"].notnull().sum()))
            _, bound = random_bound("bias_rest", random_results, n_tests, self.alpha, tail="ratio")
            bound = np.fmin(bound, largest_bound)
            variables["has_role_rest"] = significance.assign_roles_without_first(
                dataset, self, bound
            )
            long_name = "bias that no random head passes, excluding the first token"
            variables["bias_rest_bound"] = xr.Variable("role", bound, {"long_name": long_name})
        return dataset.assign(variables).assign_attrs(attrs | null_attributes(random_results))

    # --- summary ----------------------------------------------------------------------------------

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        has_role = dataset["has_role_adjusted"]
        if "has_role_rest" in dataset:
            has_role = has_role | dataset["has_role_rest"]
        return has_role

    def summary(self, dataset: xr.Dataset) -> list[str]:
        attrs = dataset.attrs
        roles = [str(role) for role in dataset["role"].values]
        n_heads = dataset.sizes["layer"] * dataset.sizes["head"]
        has_inputs = (dataset["bias_n"] > 0).any(("layer", "head")).values

        tau_origin = attrs["tau_rule"]
        if np.isfinite(attrs["tau_paper"]):
            tau_origin += f"; the paper's rule gives {attrs['tau_paper']:g}"
        heads_of_role = _count_heads(dataset["has_role"])
        by_count = sorted(heads_of_role.items(), key=lambda item: -item[1])
        tested = f"p < {self.alpha:g} after correction ({self.correction})"
        if self.tau == significance.PAPER_RULE:
            tested = f"p < {self.alpha:g} without correction (the paper's rule)"
        lines = [
            f"τ = {attrs['tau']:g} ({tau_origin}); {attrs['inputs']:,} inputs, {n_heads} heads",
            f"Heads with the role, {tested}: {_format_counts(by_count)}; "
            f"{sum(heads_of_role.values())} in all",
        ]
        if "has_role_rest" in dataset:
            n_sink_heads = int((dataset["resting"] > SINK_SHARE).sum())
            without_first = _count_heads(dataset["has_role_rest"])
            lines.append(
                f"{n_sink_heads} heads have a sink on the first token (over half of their "
                "attention); excluding it, after correction: "
                f"{_format_counts(without_first.items())}"
            )
        few = [
            role
            for place, role in enumerate(roles)
            if dataset["few"].values[place] and has_inputs[place]
        ]
        if few:
            lines.append(f"Fewer than {FEW} inputs, so never assigned: {', '.join(few)}")
        if attrs["random_models"]:
            above_tau = []
            for role, bound in zip(roles, dataset["random_bound"].values, strict=True):
                if bound > attrs["tau"]:
                    above_tau.append(f"{role} {bound:.1f}")
            exceptions = f" but {', '.join(above_tau)}" if above_tau else ""
            lines.append(f"Random heads of the same shape reach τ in no role{exceptions}")
        coarse = [role for role in COARSE_ROLES if role in roles and has_inputs[roles.index(role)]]
        if coarse:
            n_unskilled = round(attrs["unskilled"] * n_heads)
            lines.append(f"With none of {', '.join(coarse)}: {n_unskilled} heads")
        return lines


def _count_heads(has_role: xr.DataArray) -> dict[str, int]:
    """Return how many heads have each role."""
    counts = has_role.sum(("layer", "head"))
    return {str(role): int(counts.sel(role=role)) for role in has_role["role"].values}


def _format_counts(counts: Iterable[tuple[str, int]]) -> str:
    """Return "local 3, block 1" for the roles that some head has, or "none"."""
    return ", ".join(f"{role} {count}" for role, count in counts if count) or "none"
