"""How much of each token is in a head's output: hidden token attribution compared with attention
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
from headwise.analyses.attribution.hooked_pass import check_supported
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
from headwise.models.float32 import in_float32
from headwise.text.encode import Encoded, batches

BATCH_TOKENS = 256
# Rows of a batch have at least this share of the length of its longest: work grows with the square
# of the length, padding included.
SIMILAR_LENGTH = 0.85
SAMPLE_TOKENS = 24  # the longest input whose maps are kept whole, for the figures
MIN_EXAMPLES = 4
HIGH_CORRELATION = 0.7
# What an input costs is counted for a sentence of the built-in corpus, of so many tokens. Most
# sketches end with so many tangents for each token.
TYPICAL_TOKENS = 24
TYPICAL_TANGENTS = 4
# Multiplications for a layer's own input take so many times as long as others: after each product
# come norms, rotary positions and sums over dimensions (1.0 GPT-2, 2.1 Gemma 3, 2.5 SmolLM2).
WITHIN_LAYER = 2


def work_per_input(shape: Shape) -> float:
    """Return the work for a typical input, roughly, in multiplications of products with weights.

    Tangents of the input pass all weights of all layers, some for each token. Those of a layer's own
    input, one for each of its dimensions, pass the weights of queries, keys and values, once for
    each token, or once for all where every token has the same Jacobian. Where only the weights of
    attention are seen, each moves one token of the whole input.
    """
    # Where they are not known, a layer is taken to have the weights of twelve matrices, as in BERT.
    layer_weights = shape.extras.get("layer_weights") or 12 * shape.hidden**2
    through_layers = TYPICAL_TANGENTS * TYPICAL_TOKENS**2 * layer_weights
    # A norm or rotary positions before the scores give every token a Jacobian of its own. Encoders
    # in the manner of BERT have neither; decoders have a norm. Where an encoder has one (T5, mBART,
    # ESM), no config says so: its inputs cost about four times what is counted here.
    tokens = 1
    if shape.causal or shape.extras.get("rotary", False):
        tokens = TYPICAL_TOKENS
    if shape.extras.get("forms_weights", False):
        tokens = TYPICAL_TOKENS**2
    n_kv_heads = len(set(shape.kv_groups)) or shape.heads
    width = (shape.heads + 2 * n_kv_heads) * shape.d_head
    within_layer = tokens * shape.hidden**2 * width
    return float(shape.layers * (through_layers + WITHIN_LAYER * within_layer))


# The model whose cost is the unit: BERT base.
BERT = Shape(
    layers=12,
    heads=12,
    d_head=64,
    hidden=768,
    causal=False,
    max_length=512,
    token_types=(),
)


@dataclass(frozen=True)
class Attribution(Experiment):
    """How much each token contributes to a head's output, and how well attention predicts that
    (Pascual et al. 2021, §4-9).

    The contribution of token i to token j at a head is `‖∂O[l,h,j]/∂x_i‖ / Σ_k ‖∂O[l,h,j]/∂x_k‖`
    (Frobenius norms of Jacobian blocks), x being what enters the head's own layer
    (`previous_layer`) or the model (`input`). Other measures of mixing can be computed too
    (`readings`; `docs/attribution.md`): `rollout` and `flow` (attention traced back to the input,
    Abnar & Zuidema 2020), `norm` (norms of weighted values, Kobayashi et al. 2020, 2021),
    `value_zeroing` (Mohebbi et al. 2023), `chefer` (gradient-weighted attention, Chefer et al.
    2021). With `source` one of `attention`, `previous_layer`, `input` and these:

    - `pearson`, `spearman[source, layer, head]`: correlation of attention with that source, row by row over the tokens
      a row may attend to, then over rows and examples (Fig 1, 6); rows of fewer than three tokens and
      rows where one side is constant are left out and counted in `rows_left_out`; NaN for
      `attention` itself;
    - `agreement[source, layer, head]`: Spearman's correlation of that source with the contribution of the input;
      `between[source, source_b, layer]`: the same of every two sources, over the heads of a layer;
    - `histogram[source, layer, head, offset]`, `centre[source, layer, head]` and the other
      variables of `offsets`, on these examples (Fig 2-5); `previous_layer` and `input` are added to
      the group `offsets` of the same atlas;
    - `share[source, layer, head, receiver, token_type]`: what tokens of each type contribute to
      receiving tokens of each type (`all`, `cls`, `sep`, `other`): what heads that attend to
      separators gather (§9.1); `own[source, layer, head]`: what a token contributes to itself;
    - `layer_own`, `layer_own_largest[layer]`: how much of a token is still in its own hidden state after each layer,
      and how often it is the largest part (the original form, on the layer's output);
    - `mixed_own`, `mixed_distance[layer_source, layer]`: of what leaves a layer at a token's position, the share that
      is the token's own and the mean distance of all, by every source that defines it (attention:
      the mean of its heads); `mixed_between[layer_source, layer_source_b, layer]`: Spearman's
      correlation of every two;
    - `pattern_share[source, layer, pattern]`, for `attention` and `input`: the share of heads whose map shows each of
      the five patterns (§9.1: which persist globally);
    - `sample_*[layer, head, token, source_token]`: the maps of one input, for figures 7 and 12-23.

    Parameters
    ----------
    method : {"sketch", "exact", "reverse"}, default "sketch"
        Random tangents (fast, with a stated error), forward mode, or autograd (very slow).
    error : float, default 0.08
        For `sketch`: the target for the median total variation between estimated and true rows.
    length : int or str, default "d_head"
        Longest input in tokens: `d_head` (up to it attention is identifiable), `all`, or a number.
        Longer inputs are left out and counted.
    memory : float, default 256
        MiB for tangents in flight. More is hardly faster on a CPU (at most 6 % in our
        measurements); give a GPU some thousands.
    weighting : {"examples", "tokens"}, default "examples"
        What has equal weight in means; the paper uses `tokens`.
    patterns : int, default 6
        For this many examples the maps of all heads, of attention and of the input's contribution,
        are classified by pattern; 0 for none.
    readings : tuple of str, default ("rollout", "norm")
        The other measures to compute. `rollout` and `norm` cost little. `value_zeroing` takes, for
        each input, as many passes as it has tokens times heads; `chefer` a gradient for each
        token; `flow` a maximum flow for each pair of tokens and layer, about half a millisecond
        each, and again for each head where an input takes at most 100,000.
    products : {"float32", "tf32", "half"}, default "float32"
        How tangents are multiplied: in IEEE float32, in tf32 (on a GPU), or stored and multiplied
        in half precision.
    compiled : bool, default False
        Let torch compile layer norms on a GPU: a tenth faster over many inputs.
    seed : int, optional
        Of the random tangents of a sketch; by default the run's.

    Notes
    -----
    Question: What do heads gather, from the layer below and from the input, and how well does
    attention predict it?

    Assumes: First order: how much a token's vector would change the head's output if it changed a
    little. Inputs longer than `d_head` are left out, since there attention is not identifiable.

    Pitfalls: A contribution has no sign and no meaning: it says how much, not what.
    `previous_layer` and `input` answer different questions, and so do the other measures
    (`docs/attribution.md` has the pitfalls of each). A sketch has an error, which is reported;
    ignore differences below it. Few examples make wide intervals.

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
    depth_power: ClassVar[float | None] = 0.95
    typical_passes: ClassVar[float] = 130.0

    def max_examples(self, shape: Shape) -> int | None:
        cost = max(relative_cost(shape), work_per_input(shape) / work_per_input(BERT))
        assert self.budget is not None
        return max(MIN_EXAMPLES, int(self.budget / cost))

    def __post_init__(self) -> None:
        one_of("method", self.method, METHODS)
        one_of("products", self.products, PRODUCTS)
        one_of("weighting", self.weighting, WEIGHTINGS)
        ContributionOptions(error=self.error, memory=self.memory)  # checks both
        at_least("patterns", self.patterns, 0)
        for method in self.readings:
            one_of("readings", method, tuple(MIXING_METHODS))
        if len(set(self.readings)) < len(self.readings):
            raise ParameterError(f"`readings` names one twice: {', '.join(self.readings)}.")
        is_number = type(self.length) is int and self.length >= 2
        if self.length not in ("d_head", "all") and not is_number:
            raise ParameterError(
                "`length` must be d_head, all, or a number of tokens of at least 2; it is "
                f"{self.length!r}."
            )

    def limit(self, shape: Shape) -> int:
        """Return the length of the longest input that is used, in tokens."""
        if self.length == "d_head":
            return shape.d_head
        if self.length == "all":
            return shape.max_length
        return int(self.length)

    def perform(self, context: ExperimentContext) -> xr.Dataset:
        rows, left_out = self._choose_inputs(context)
        if not rows:
            raise InputError(
                f"None of the {sum(left_out.values())} inputs has from 2 to "
                f"{self.limit(context.shape)} tokens; set attribution.length to `all` or a larger "
                "number."
            )
        with ExitStack() as stack:
            try:
                model = stack.enter_context(in_float32(context.model))
                check_supported(model)
            except ModelError as error:
                raise ModelError(f"attribution: {error}") from error
            state = AttributionState(model, context.shape, self, rows)
            groups = batches(
                rows, BATCH_TOKENS, model.pad_id, model.device, min_length_ratio=SIMILAR_LENGTH
            )
            n_batches_done = state.resume(context.store)
            sample = self._sample(rows)
            n_done = 0
            for number, batch in enumerate(groups):
                if number >= n_batches_done:
                    state.observe(batch, sample)
                    state.save(context.store, number + 1)
                n_done += len(batch)
                context.progress("attribution", n_done, len(rows))
            dataset = state.dataset()
        attributes = self._attributes(context, state, len(rows), left_out)
        return dataset.assign_attrs(dataset.attrs | attributes)

    def _choose_inputs(self, context: ExperimentContext) -> tuple[list[Encoded], dict[str, int]]:
        """Return the first inputs short enough, as many as the budget allows, and how many were
        left out."""
        rows: list[Encoded] = []
        left_out = {"longer": 0, "one_token": 0}
        next_index = 0
        for row in context.rows:
            if context.limit is not None and len(rows) >= context.limit:
                break
            # Examples missing among the rows did not even fit the model.
            left_out["longer"] += row.index - next_index
            next_index = row.index + 1
            if len(row) > self.limit(context.shape):
                left_out["longer"] += 1
            elif len(row) < 2:
                left_out["one_token"] += 1
            else:
                rows.append(row)
        else:
            n_examples = sum(1 for _ in context.corpus)
            left_out["longer"] += n_examples - next_index
        return rows, left_out

    def _sample(self, rows: list[Encoded]) -> int | None:
        """Return the index of the example that figures show whole: the longest that fits a page,
        pairs before single texts."""
        readable = [row for row in rows if len(row) <= SAMPLE_TOKENS]
        if not readable:
            return None
        best = max(readable, key=lambda row: (row.example.has_pair, len(row), -row.index))
        return best.index

    def _attributes(
        self,
        context: ExperimentContext,
        state: AttributionState,
        n_examples: int,
        left_out: Mapping[str, int],
    ) -> dict[str, Any]:
        rule = f"inputs of at most {self.limit(context.shape)} tokens"
        if self.length == "d_head":
            rule += " (d_head, where attention is identifiable; set `length` to lift it)"
        elif self.length == "all":
            rule += " (no rule)"
        dtype = context.model.dtype
        precision = str(dtype).removeprefix("torch.")
        if torch.finfo(dtype).bits < 32:
            precision = "float32, from weights in half precision"
        attributes = {
            "examples": n_examples,
            "length_rule": rule,
            "left_out_longer": left_out["longer"],
            "left_out_one_token": left_out["one_token"],
            "computed_in": precision,
            "method": self.method,
        }
        if self.method == "sketch":
            tangents, variation = state.state.moments("sketch").mean.tolist()
            attributes["tangents_per_token"] = round(tangents, 2)
            attributes["total_variation"] = round(variation, 4)
        return attributes | state.notes

    def unmatched(self, dataset: xr.Dataset) -> dict[str, str]:
        """Return the inputs that were left out, counted, with the reason."""
        n_longer = int(dataset.attrs.get("left_out_longer", 0))
        n_single = int(dataset.attrs.get("left_out_one_token", 0))
        reasons = {}
        if n_longer:
            rule = dataset.attrs.get("length_rule", "")
            reasons[f"{_inputs(n_longer)} too long"] = f"it takes {rule}"
        if n_single:
            reasons[f"{_inputs(n_single)} of one token"] = "all of it comes from that token"
        return reasons

    def summary(self, dataset: xr.Dataset) -> list[str]:
        n_examples = dataset.attrs["examples"]
        first_line = f"Over {_inputs(n_examples)}"
        if n_examples < FEW:
            first_line += f", fewer than {FEW}: rough"
        lines = [f"{first_line}:"]
        for source, description in (
            ("previous_layer", "the previous layer"),
            ("input", "the input"),
        ):
            lines += _correlation_lines(dataset.sel(source=source), description)
        agreement = dataset["agreement"].mean(("layer", "head")).dropna("source")
        by_source = []
        for source, value in zip(agreement["source"].values, agreement.values, strict=True):
            by_source.append(f"{source} {value:.2f}")
        lines.append(
            "Rank correlation with the contribution of the input, mean over heads: "
            f"{', '.join(by_source)}"
        )
        return lines

    def extend(self, datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
        """Add the sources `previous_layer` and `input` to the group `offsets`."""
        extended = dict(datasets)
        if "offsets" in extended and self.name in extended:
            added = extended[self.name].sel(source=list(SOURCES))
            extended["offsets"] = widen_offsets(extended["offsets"], added)
        return extended


def _correlation_lines(dataset: xr.Dataset, description: str) -> list[str]:
    """Return how attention correlates with one source, in two lines."""
    pearson = dataset["pearson"]
    n_high = int((pearson.values > HIGH_CORRELATION).sum())
    n_heads = int(pearson.notnull().sum())
    medians = " ".join(f"{float(value):.2f}" for value in pearson.median("head").values)
    lowest = top_heads(dataset.assign(least=-pearson), "least").replace(" -", " ")
    return [
        f"Attention against contributions of {description}: Pearson over {HIGH_CORRELATION} for "
        f"{n_high} of {n_heads} heads; median by layer {medians}",
        f"  least alike: {lowest}",
    ]


def _inputs(count: int) -> str:
    return "1 input" if count == 1 else f"{count:,} inputs"
