"""What of each token is really in a head's output: hidden token attribution beside attention
(Pascual et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import xarray as xr

from headwise.analyses.attribution.contributions import METHODS, SOURCES
from headwise.analyses.attribution.forward import DEFAULT_MEMORY
from headwise.analyses.attribution.hooked_pass import check_supported, in_float32
from headwise.analyses.attribution.mixing_methods import MIXING_METHODS
from headwise.analyses.attribution.precision import PRODUCTS
from headwise.analyses.attribution.sketch import ContributionOptions
from headwise.analyses.attribution.state import AttributionState, widen_offsets
from headwise.analyses.contract import (
    WEIGHTINGS,
    Experiment,
    ExperimentContext,
    Paper,
    Shape,
    at_least,
    one_of,
    relative_cost,
)
from headwise.analyses.summaries import top_heads
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.core.labels import FEW
from headwise.text.encode import Encoded, batches

BATCH_TOKENS = 256
ALIKE = 0.85  # rows in a batch have at least so much of its longest's length: work grows with its square, padding's too
SAMPLE_TOKENS = 24  # the longest input whose maps are kept whole, for the figures


@dataclass(frozen=True)
class Attribution(Experiment):
    """How much each token contributes to a head's output, and how far attention tells it (Pascual
    et al. 2021, §4-9).

    The contribution of token i to token j at a head is `‖∂O[l,h,j]/∂x_i‖ / Σ_k ‖∂O[l,h,j]/∂x_k‖`
    (Frobenius norms of Jacobian blocks), x being what enters the head's own layer
    (`previous_layer`) or the model (`input`). Beside them stand other readings of mixing
    (`readings`; `docs/attribution.md`): `rollout` and `flow` (attention trace_for_mixing back to the input,
    Abnar & Zuidema 2020), `norm` (norms of weighted values, Kobayashi et al. 2020, 2021),
    `value_zeroing` (Mohebbi et al. 2023), `chefer` (gradient-weighted attention, Chefer et al.
    2021). With `source` one of `attention`, `previous_layer`, `input` and these:

    - `pearson`, `spearman[source, layer, head]`: correlation of attention with that reading, row by row over the tokens
      a row may see, then over rows and examples (Fig 1, 6); rows of fewer than three tokens and
      rows where one side is constant are left out and counted in `rows_left_out`; NaN for
      `attention` itself;
    - `agreement[source, layer, head]`: Spearman's correlation of that reading with the contribution of the input;
      `between[source, source_b, layer]`: the same of every two readings, over the heads of a layer;
    - `histogram[source, layer, head, offset]`, `centre[source, layer, head]` and what else `offsets` gives, on these
      examples (Fig 2-5); `previous_layer` and `input` are added to the group `offsets` of the same
      atlas;
    - `share[source, layer, head, receiver, token_type]`: what tokens of each type contribute to receiving tokens of
      each kind (`all`, `cls`, `sep`, `other`): what heads that look at separators really gather
      (§9.1); `own[source, layer, head]`: what a token contributes to itself;
    - `layer_own`, `layer_own_largest[layer]`: how much of a token is still in its own hidden state after each layer,
      and how often it is the largest part (the original form, on the layer's output);
    - `mixed_own`, `mixed_distance[layer_source, layer]`: of what leaves a layer in the place of a token, the share that
      is the token's own and the mean distance of all, by every reading that says so (attention: the
      mean of its heads); `mixed_between[layer_source, layer_source_b, layer]`: Spearman's
      correlation of every two;
    - `pattern_share[source, layer, pattern]`, for `attention` and `input`: the share of heads whose map shows each of
      the five patterns (§9.1: which persist globally);
    - `sample_*[layer, head, token, source_token]`: the maps of one input, for figures 7 and 12-23.

    Parameters
    ----------
    method : {"sketch", "exact", "reverse"}, default "sketch"
        Random tangents (fast, with a stated error), forward mode, or autograd (very slow).
    error : float, default 0.08
        For `sketch`: the wanted median total variation between estimated and true rows.
    length : int or str, default "d_head"
        Longest input in tokens: `d_head` (default: there attention is identifiable), `all`, or a
        number. Longer inputs are left out and counted.
    memory : float, default 512
        MiB that tangents may take.
    weighting : {"examples", "tokens"}, default "examples"
        What weighs alike in means; the paper's is `tokens`.
    patterns : int, default 6
        So many examples have the maps of all heads, of attention and of the input's contribution,
        sorted into the five patterns; 0 for none.
    readings : tuple of str, default ("rollout", "norm")
        Which other readings stand beside. `rollout` and `norm` cost little. `value_zeroing` takes,
        for each input, as many passes as it has tokens times heads; `chefer` a gradient for each
        token; `flow` a maximum flow for each pair of tokens and layer, about half a millisecond
        each, and again for each head where an input takes at most 100,000.
    products : {"float32", "tf32", "half"}, default "float32"
        How tangents are multiplied: in IEEE float32, in tf32 (on a GPU), or kept and multiplied in
        half precision.
    compiled : bool, default False
        Let torch compile layer norms on a GPU: a tenth faster over many inputs.
    seed : int, optional
        What the tangents of a sketch are drawn by; the run's seed where none is given.

    Notes
    -----
    Question: What do heads really gather, from the layer below and from the input, and how far does
    attention tell it?

    Assumes: First order: how much a token's vector would change the head's output if it changed a
    little. Inputs longer than `d_head` are left out, since there attention is not identifiable.

    Traps: A contribution has no sign and no meaning: it says how much, not what. `previous_layer`
    and `input` answer different questions, and so do the other readings (`docs/attribution.md` has
    the traps of each). A sketch has an error, which is stated; differences below it are none. Few
    examples make wide intervals.

    Cost: `exact` takes tokens × width tangents through the model for each input, `sketch` some tens
    for each token (`benchmarks/bench_attribution.py`, `benchmarks/gpu_attribution.py`)."""

    method: str = "sketch"
    error: float = 0.08
    length: int | str = "d_head"
    memory: float = DEFAULT_MEMORY
    weighting: str = "examples"
    patterns: int = 6
    readings: tuple[str, ...] = ("rollout", "norm")
    products: str = "float32"
    compiled: bool = False
    seed: int | None = None

    name: ClassVar[str] = "attribution"
    title: ClassVar[str] = (
        "What heads gather: contributions of tokens, from the layer below and from the input"
    )
    paper: ClassVar[Paper] = Paper(
        "pascual2021",
        "§4-9, Fig 1-7",
        ("abnar2020", "kobayashi2020", "kobayashi2021", "mohebbi2023", "chefer2021"),
    )
    units: ClassVar[Mapping[str, str]] = {
        "correlation": "pearson spearman agreement between mixed_between",
        "share of contribution": "own share layer_own mixed_own sample_attention sample_previous_layer "
        "sample_input sample_layer",
        "share of tokens": "layer_own_largest",
        "share of heads": "pattern_share",
        "tokens": "mixed_distance",
    }
    budget: ClassVar[int | None] = 12

    def max_examples(self, shape: Shape) -> int | None:
        # Every layer is followed through all the layers below it.
        return max(4, int(12 / (relative_cost(shape) * max(1, shape.layers / 12))))

    def __post_init__(self) -> None:
        one_of("method", self.method, METHODS)
        one_of("products", self.products, PRODUCTS)
        one_of("weighting", self.weighting, WEIGHTINGS)
        ContributionOptions(error=self.error, memory=self.memory)
        at_least("patterns", self.patterns, 0)
        for reading in self.readings:
            one_of("readings", reading, tuple(MIXING_METHODS))
        if len(set(self.readings)) < len(self.readings):
            raise ParameterError(f"`readings` names one twice: {', '.join(self.readings)}.")
        number = type(self.length) is int and self.length >= 2
        if self.length not in ("d_head", "all") and not number:
            raise ParameterError(
                f"`length` must be d_head, all, or a number of tokens from 2 on; it is {self.length!r}."
            )

    def limit(self, shape: Shape) -> int:
        """The longest input that is taken, in tokens."""
        longest = {"d_head": shape.d_head, "all": shape.max_length}.get(str(self.length))
        return int(self.length) if longest is None else longest

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        rows, left_out = self._choose(bench)
        if not rows:
            raise InputError(
                f"None of the {sum(left_out.values())} inputs has from 2 to {self.limit(bench.shape)} tokens; "
                "set attribution.length to `all` or a larger number."
            )
        with ExitStack() as stack:
            try:
                model = stack.enter_context(in_float32(bench.model))
                check_supported(model)
            except ModelError as error:
                raise ModelError(f"attribution: {error}") from error
            gathered = AttributionState(model, bench.shape, self, rows)
            groups = batches(rows, BATCH_TOKENS, model.pad_id, model.device, alike=ALIKE)
            done = gathered.resume(bench.store)
            sample = self._sample(rows)
            for number, batch in enumerate(groups):
                if number >= done:
                    gathered.observe(batch, sample)
                    gathered.save(bench.store, number + 1)
                bench.progress("attribution", sum(len(g) for g in groups[: number + 1]), len(rows))
            dataset = gathered.dataset()
        return dataset.assign_attrs(
            dataset.attrs | self._attributes(bench, gathered, len(rows), left_out)
        )

    def _choose(self, bench: ExperimentContext) -> tuple[list[Encoded], dict[str, int]]:
        """The first examples short enough, as many as the budget allows; and how many were passed
        over."""
        rows: list[Encoded] = []
        left_out = {"longer": 0, "one_token": 0}
        following = 0  # an example that is not among the rows did not even fit the model
        for row in bench.rows:
            if bench.limit is not None and len(rows) >= bench.limit:
                break
            left_out["longer"] += row.index - following
            following = row.index + 1
            if len(row) > self.limit(bench.shape):
                left_out["longer"] += 1
            elif len(row) < 2:
                left_out["one_token"] += 1
            else:
                rows.append(row)
        else:
            left_out["longer"] += sum(1 for _ in bench.corpus) - following
        return rows, left_out

    def _sample(self, rows: list[Encoded]) -> int | None:
        """The example that is drawn whole: the longest that is readable on a page, pairs before
        single texts."""
        fitting = [row for row in rows if len(row) <= SAMPLE_TOKENS]
        return (
            max(fitting, key=lambda row: (row.example.has_pair, len(row), -row.index)).index
            if fitting
            else None
        )

    def _attributes(
        self,
        bench: ExperimentContext,
        gathered: AttributionState,
        examples: int,
        left_out: Mapping[str, int],
    ) -> dict[str, Any]:
        longest = self.limit(bench.shape)
        rules = {
            "d_head": " (d_head, where attention is identifiable; set `length` to lift it)",
            "all": " (no rule)",
        }
        why = rules.get(str(self.length), "")
        half = torch.finfo(bench.model.dtype).bits < 32
        precision = str(bench.model.dtype).removeprefix("torch.")
        facts = {
            "examples": examples,
            "length_rule": f"inputs of at most {longest} tokens{why}",
            "left_out_longer": left_out["longer"],
            "left_out_one_token": left_out["one_token"],
            "computed_in": "float32, from weights in half precision" if half else precision,
            "method": self.method,
        }
        if self.method == "sketch":
            tangents, variation = gathered.state.moments("sketch").mean.tolist()
            facts |= {
                "tangents_per_token": round(tangents, 2),
                "total_variation": round(variation, 4),
            }
        return facts | gathered.notes

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        """The inputs that were passed over, counted and with the reason: screen and page say the
        length rule too."""
        longer, single = (
            int(dataset.attrs.get(f"left_out_{why}", 0)) for why in ("longer", "one_token")
        )
        rule = str(dataset.attrs.get("length_rule", ""))
        found = {f"{_inputs(longer)} too long": f"it takes {rule}"} if longer else {}
        return found | (
            {f"{_inputs(single)} of one token": "all of it comes from that token"} if single else {}
        )

    def summary(self, dataset: xr.Dataset) -> list[str]:
        few = f", fewer than {FEW}: rough" if dataset.attrs["examples"] < FEW else ""
        lines = [f"Over {_inputs(dataset.attrs['examples'])}{few}:"]
        for source, what in (("previous_layer", "the previous layer"), ("input", "the input")):
            one = dataset.sel(source=source)
            by_layer = " ".join(
                f"{float(value):.2f}" for value in one["pearson"].median("head").values
            )
            flat = one["pearson"].values
            lines += [
                f"Attention against contributions of {what}: Pearson over 0.7 for {int((flat > 0.7).sum())} of "
                f"{int(one['pearson'].notnull().sum())} heads; median by layer {by_layer}",
                f"  least alike: {top_heads(one.assign(least=-one['pearson']), 'least').replace(' -', ' ')}",
            ]
        agreed = dataset["agreement"].mean(("layer", "head")).dropna("source")
        told = [
            f"{source} {value:.2f}"
            for source, value in zip(agreed["source"].values, agreed.values, strict=True)
        ]
        return [
            *lines,
            f"Rank correlation with the contribution of the input, mean over heads: {', '.join(told)}",
        ]

    def extend(self, datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
        """Give the group `offsets` its sources `previous_layer` and `input`."""
        found = dict(datasets)
        if "offsets" in found and self.name in found:
            found["offsets"] = widen_offsets(
                found["offsets"], found[self.name].sel(source=list(SOURCES))
            )
        return found


def _inputs(count: int) -> str:
    return "1 input" if count == 1 else f"{count:,} inputs"
