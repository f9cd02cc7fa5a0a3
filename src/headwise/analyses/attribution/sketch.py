"""Contributions of the input from a few random tangents per token: unbiased for squared norms, with
standard errors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special
from torch import Tensor

from headwise.analyses.attribution.forward import (
    DEFAULT_MEMORY,
    SquaredNorms,
    SquaredNormSums,
    exact_squared_norms,
    for_each_chunk,
    tangents_per_chunk,
)
from headwise.analyses.attribution.hooked_pass import token_pair_mask
from headwise.analyses.attribution.precision import PRODUCTS
from headwise.core.checks import check_types, one_of
from headwise.core.errors import ParameterError
from headwise.models import HeadModel
from headwise.text.encode import Batch

PILOT = 4  # tangents per token from which the error of more is predicted
ROUNDS = 4  # times the error is predicted again and more tangents are drawn if it is too large
PRIOR = 4  # the row's mean relative variance counts as this many observations of each token's
# A predicted error is taken to be this much larger: a variance from few tangents tends to be low.
MARGIN = 1.1


@dataclass(frozen=True, slots=True, eq=False)
class Contributions:
    """How much of each token is in each head's output (Pascual et al. 2021, §4).

    Attributes
    ----------
    heads : Tensor
        `[example, layer, head, receiving, source]` = `‖∂O[l,h,j]/∂x_i‖ / Σ_k ‖∂O[l,h,j]/∂x_k‖` with
        x = E[0] (`input`) or E[l] (`previous_layer`): rows sum to one, padding is zero.
    layers : Tensor, optional
        `[example, layer, receiving, source]`: the same of what leaves each layer, `E[l+1]`, from
        the input.
    source, method : str
        What was computed, and how.
    error, low, high : Tensor, optional
        Of a sketch: standard error and 95 % interval of each share in `heads`.
    tangents : Tensor, optional
        Of a sketch: tangents per token, `[example]`.
    total_variation : Tensor, optional
        Of a sketch: the predicted median error of a row, `[example]`.
    """

    heads: Tensor
    layers: Tensor | None
    source: str
    method: str
    error: Tensor | None = None
    low: Tensor | None = None
    high: Tensor | None = None
    tangents: Tensor | None = None
    total_variation: Tensor | None = None


@dataclass(frozen=True, slots=True)
class ContributionOptions:
    """Options of the computation of contributions.

    Parameters
    ----------
    error : float, default 0.05
        For `sketch`: the target for the median total variation of a row.
    tangents : int, optional
        For `sketch`: the number of tangents per token, instead of choosing it by the error.
    seed : int, default 0
        For `sketch`: the seed of its random tangents.
    memory : float, default 256
        MiB for the tangents in flight; longer inputs are split into more chunks, not rejected.
    products : {"float32", "tf32", "half"}, default "float32"
        How tangents are multiplied: `tf32` (on a GPU), or stored and multiplied in half precision;
        the model's own values stay in IEEE float32. Errors in total variation: see docs/scale.md.
    compiled : bool, default False
        Let torch compile elementwise operations on a GPU: a tenth faster, after some seconds at the
        first sentence. Elsewhere it changes nothing.
    """

    error: float = 0.05
    tangents: int | None = None
    seed: int = 0
    memory: float = DEFAULT_MEMORY
    products: str = "float32"
    compiled: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        one_of("products", self.products, PRODUCTS)
        if not 0 < self.error < 1:
            raise ParameterError(f"`error` must lie between 0 and 1; it is {self.error!r}.")
        if self.tangents is not None and self.tangents < 2:
            raise ParameterError(
                f"`tangents` must be at least 2, so that errors can be estimated; it is {self.tangents!r}."
            )
        if not self.memory > 0:
            raise ParameterError(
                f"`memory` must be a positive number of MiB; it is {self.memory!r}."
            )


def sketch(
    model: HeadModel,
    batch: Batch,
    options: ContributionOptions | None = None,
    *,
    layer_output: bool = False,
) -> Contributions:
    """Estimate the contributions of the input to every head's output by k random tangents per
    token.

    With u of independent signs, `E ‖J u‖² = ‖J‖²`; the mean s over k of them estimates the squared
    norm of a block, its square root the norm, and those of a row, divided by their sum, the
    contributions. Their errors follow from the spread of the k values: `log s` varies about as the
    logarithm of a χ² with `2k/r` degrees of freedom, r being the relative variance of one value (a
    token's own, shrunk towards the mean of its row). The interval is one of the logit of the
    contribution, with Student's t (Welch).

    k is chosen for the requested error, example by example, unless `options` fix it. Where so many
    tangents are needed that the exact computation is cheaper, that is done. The tangents of an
    example depend on the seed and on its position in the corpus, not on the rest of its batch.
    """
    options = options or ContributionOptions()
    moments = _SketchMoments(model, batch, layer_output, options.seed, options.memory)
    all_examples = list(range(len(batch)))
    if options.tangents is not None:
        moments.draw(all_examples, options.tangents)
        return moments.result({})
    moments.draw(all_examples, min(PILOT, model.hidden))
    exact: dict[int, SquaredNorms] = {}
    for _ in range(ROUNDS):
        missing = _missing_tangents(moments, options.error, exact)
        if not missing:
            break
        for n_missing in sorted(set(missing.values())):
            examples = [example for example, count in missing.items() if count == n_missing]
            if int(moments.count[examples[0]]) + n_missing < model.hidden:
                moments.draw(examples, n_missing)
                continue
            for example in examples:
                exact[example] = exact_squared_norms(
                    model,
                    batch.select([example]),
                    layer_output=layer_output,
                    memory=options.memory,
                )
    return moments.result(exact)


def _missing_tangents(
    moments: _SketchMoments, error: float, exact: Mapping[int, SquaredNorms]
) -> dict[int, int]:
    """Return how many more tangents each example needs whose predicted median total variation is
    too large."""
    predicted = moments.result({}).total_variation
    assert predicted is not None
    missing = {}
    for example, variation in enumerate(predicted.tolist()):
        if example in exact or not MARGIN * variation > error:
            continue
        # Errors fall as the root of the number of tangents.
        ratio = MARGIN * variation / error
        count = float(moments.count[example])
        needed = math.ceil(count * ratio**2)
        if needed > count:
            missing[example] = needed - int(count)
    return missing


class _SketchMoments:
    """Sums of `‖J u‖²` and of its square over the tangents drawn so far, for each example.

    Attributes
    ----------
    heads : Tensor
        `[power, example, layer, head, receiving, source]`.
    layers : Tensor
        `[example, layer, receiving, source]`: first powers, of what leaves each layer.
    count : Tensor
        Tangents per token, `[example]`.
    """

    def __init__(
        self, model: HeadModel, batch: Batch, layer_output: bool, seed: int, memory: float
    ) -> None:
        self.model = model
        self.batch = batch
        self.layer_output = layer_output
        self.memory = memory
        self.generators = []
        for row in batch.rows:
            self.generators.append(torch.Generator().manual_seed(_example_seed(seed, row.index)))
        n_examples, n = batch.ids.shape
        shape = (2, n_examples, model.layers, model.heads, n, n)
        self.heads = torch.zeros(shape, dtype=torch.float64, device=model.device)
        self.layers = torch.zeros_like(self.heads[0, :, :, 0])
        self.count = self.heads.new_zeros(n_examples)

    def draw(self, examples: list[int], k: int) -> None:
        """Push k more random tangents for each token of these examples."""
        device = self.model.device
        part = self.batch.select(examples)
        n = int(part.lengths.max())
        width = self.model.hidden
        signs = torch.zeros(len(examples), k, n, width)
        for row, example in enumerate(examples):
            length = len(self.batch.rows[example])
            shape = (k, length, width)
            bits = torch.randint(0, 2, shape, generator=self.generators[example])
            signs[row, :, :length] = bits.float() * 2 - 1
        sums = SquaredNormSums(self.model, part, self.layer_output, moments=2)

        def push_chunk(start: int, stop: int) -> None:
            numbers = torch.arange(start, stop)
            repeat = numbers // n
            token = numbers % n
            tangents = torch.zeros(
                stop - start, len(examples), part.ids.shape[1], width, device=device
            )
            chunk_signs = signs[:, repeat, token].transpose(0, 1)
            tangents[numbers - start, :, token] = chunk_signs.to(device)
            sums.add_tangents(tangents, token.to(device))

        chunk_size = tangents_per_chunk(self.model, part, self.memory)
        for_each_chunk(push_chunk, k * n, chunk_size, self.model)
        chosen = torch.as_tensor(examples, device=device)
        for power in range(2):
            self.heads[power].index_add_(0, chosen, sums.squared_norms(power).heads)
        layers = sums.squared_norms().layers
        if layers is not None:
            self.layers.index_add_(0, chosen, layers)
        self.count[chosen] += k

    def result(self, exact: Mapping[int, SquaredNorms]) -> Contributions:
        """Return the estimates so far; examples in `exact` take their exact squared norms."""
        k = self.count
        mean = self.heads[0] / _broadcast(k, self.heads[0])
        unbiased = _broadcast(k / (k - 1).clamp(min=1), mean)
        variance = (self.heads[1] / _broadcast(k, mean) - mean**2) * unbiased
        variance = variance.clamp(min=0)
        layers = self.layers / _broadcast(k, self.layers)
        is_exact = torch.zeros(len(self.batch), dtype=torch.bool, device=k.device)
        for example, squares in exact.items():
            n = squares.heads.shape[-1]
            mean[example, ..., :n, :n] = squares.heads[0]
            variance[example] = 0
            if squares.layers is not None:
                layers[example, ..., :n, :n] = squares.layers[0]
            is_exact[example] = True

        mask = token_pair_mask(self.batch)[:, None, None]
        shares, errors, low, high = share_intervals(mean, variance, k, mask)
        # Half the sum of absolute errors; E|x| of a normal x is sd · √(2/π).
        variation = 0.5 * math.sqrt(2 / math.pi) * errors.sum(-1)
        token_mask = self.batch.attention_mask[:, None, None, :]
        variation = torch.where(token_mask, variation, torch.nan)
        return Contributions(
            heads=shares,
            layers=normalise_rows(layers.sqrt()) if self.layer_output else None,
            source="input",
            method="sketch",
            error=errors,
            low=low,
            high=high,
            tangents=torch.where(is_exact, self.model.hidden, k.long()),
            total_variation=variation.flatten(1).nanmedian(-1).values,
        )


def share_intervals(
    mean: Tensor, variance: Tensor, k: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return contributions, standard errors and the ends of 95 % intervals.

    Parameters
    ----------
    mean, variance : Tensor
        Of `‖J u‖²` over the tangents, `[example, layer, head, receiving, source]`.
    k : Tensor
        Number of tangents, `[example]`.
    mask : Tensor
        False where a token is padding.
    """
    shares = normalise_rows(mean.clamp(min=0).sqrt())
    contributing = mask & (mean > 0)
    relative = torch.where(contributing, variance / mean.clamp(min=1e-300) ** 2, 0.0)
    n_contributing = contributing.sum(-1, keepdim=True).clamp(min=1)
    row_mean = relative.sum(-1, keepdim=True) / n_contributing
    count = _broadcast(k, mean)
    relative = ((count - 1) * relative + PRIOR * row_mean) / (count - 1 + PRIOR)
    # The variance of log √s: that of the logarithm of a χ² with 2k/r degrees of freedom, and a
    # quarter of it for the root.
    half_freedom = count / relative.clamp(min=1e-12)
    log_variance = torch.special.polygamma(1, half_freedom) / 4
    own = torch.where(relative > 0, log_variance, 0.0)

    # The logit of a share is log(own norm) − log(sum of the others): their variances add.
    weighted = shares**2 * own
    rest = (1 - shares).clamp(min=1e-12)
    others = (weighted.sum(-1, keepdim=True) - weighted).clamp(min=0) / rest**2
    logit_variance = own + others
    # Welch's degrees of freedom.
    freedom = (count - 1).clamp(min=1)
    fourth = shares**4 * own**2
    other_fourth = (fourth.sum(-1, keepdim=True) - fourth).clamp(min=0) / rest**4
    welch = logit_variance**2 / ((own**2 + other_fourth) / freedom).clamp(min=1e-300)
    quantile_array = special.stdtrit(welch.clamp(min=1).cpu().numpy(), 0.975)
    quantile = torch.from_numpy(np.asarray(quantile_array)).to(mean.device)
    deviation = logit_variance.sqrt()
    reach = torch.where(logit_variance > 0, quantile, 0.0) * deviation
    middle = torch.logit(shares)
    low = torch.where(contributing, torch.sigmoid(middle - reach), shares)
    high = torch.where(contributing, torch.sigmoid(middle + reach), shares)
    return shares, shares * (1 - shares) * deviation, low, high


def normalise_rows(norms: Tensor) -> Tensor:
    """Divide rows by their sum; rows of zeros stay zero."""
    total = norms.sum(-1, keepdim=True)
    return torch.where(total > 0, norms / total, 0.0)


def _broadcast(values: Tensor, like: Tensor) -> Tensor:
    """Return `values[example]` with as many dimensions as another tensor."""
    return values.view(-1, *(1,) * (like.ndim - 1))


def _example_seed(seed: int, index: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:7], "big")
