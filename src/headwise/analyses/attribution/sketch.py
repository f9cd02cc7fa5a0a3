"""Input contributions from a few random tangents per token: unbiased for squared norms, with
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

PILOT = 4  # tangents per token from which the error of more is foretold
ROUNDS = 4  # times that the error is looked at again, and more tangents are drawn where it is still too large
PRIOR = 4  # the row's mean relative variance counts as so many further observations of each token's
MARGIN = 1.1  # a foretold error is taken for this much larger: a variance from few tangents tends to come out small


@dataclass(frozen=True, slots=True, eq=False)
class Contributions:
    """How much of each token is in each head's output (Pascual et al. 2021, §4), receiving token
    first as in attention.

    `heads[example, layer, head, receiving, source]` = `‖∂O[l,h,j]/∂x_i‖ / Σ_k ‖∂O[l,h,j]/∂x_k‖`
    with x = E[0] (`input`) or E[l] (`previous_layer`): rows sum to one, padding is zero.
    `layers[example, layer, receiving, source]`, where asked for: the same of what leaves each
    layer, `E[l+1]`, from the input. For a sketch: `error`, `low`, `high` (standard error and 95 %
    interval of each share), `tangents[example]` per token, and `total_variation[example]`, the
    foretold median error of a row."""

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
    """How contributions are computed.

    Parameters
    ----------
    error : float, default 0.05
        For `sketch`: the wanted median total variation of a row.
    tangents : int, optional
        For `sketch`: the number of tangents per token, instead of choosing it by the error.
    seed : int, default 0
        For `sketch`: what its tangents are drawn by.
    memory : float, default 512
        MiB that the tangents under way may take; longer inputs are split into more parts, not
        refused.
    products : {"float32", "tf32", "half"}, default "float32"
        How tangents are multiplied: `tf32` (on a GPU), or kept and multiplied in half precision;
        the model's own values stay in IEEE float32. Errors in total variation: see docs/scale.md.
    compiled : bool, default False
        Let torch compile elementwise work on a GPU: a tenth faster, after some seconds at the first
        sentence. Elsewhere it changes nothing.
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
                f"`tangents` must be at least 2, or errors cannot be told; it is {self.tangents!r}."
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
    """Contributions of the input to every head's output by k random tangents per token.

    With u of independent signs, `E ‖J u‖² = ‖J‖²`; the mean s over k of them estimates the squared
    norm of a block, its square root the norm, and those of a row, divided by their sum, the
    contributions. Their errors follow from the spread of the k values: `log s` varies about as the
    logarithm of a χ² with `2k/r` degrees of freedom, r being the relative variance of one value (a
    token's own, drawn towards the mean of its row). The interval is one of the logit of the
    contribution, with Student's t (Welch).

    k is chosen for the wanted error, example by example, unless `options` say how many. Where so
    many tangents are needed that the exact computation is cheaper, that is done. The tangents of an
    example depend on the seed and on its position in the corpus, not on what it is batched with.
    """
    options = options or ContributionOptions()
    moments = _Moments(model, batch, layer_output, options.seed, options.memory)
    if options.tangents is not None:
        moments.draw(list(range(len(batch))), options.tangents)
        return moments.result({})
    moments.draw(list(range(len(batch))), min(PILOT, model.hidden))
    instead: dict[int, SquaredNorms] = {}
    for _ in range(ROUNDS):
        wanted = _wanted(moments, options.error, instead)
        if not wanted:
            break
        for more in sorted(set(wanted.values())):
            examples = [e for e, own in wanted.items() if own == more]
            if int(moments.count[examples[0]]) + more >= model.hidden:
                instead |= {
                    e: exact_squared_norms(
                        model, batch.select([e]), layer_output=layer_output, memory=options.memory
                    )
                    for e in examples
                }
            else:
                moments.draw(examples, more)
    return moments.result(instead)


def _wanted(moments: _Moments, error: float, done: Mapping[int, SquaredNorms]) -> dict[int, int]:
    """How many more tangents each example needs whose foretold median total variation is too
    large."""
    foretold, count = moments.result({}).total_variation, moments.count.tolist()
    assert foretold is not None
    large = {
        e: MARGIN * tv / error
        for e, tv in enumerate(foretold.tolist())
        if MARGIN * tv > error and e not in done
    }
    need = {e: math.ceil(count[e] * ratio**2) for e, ratio in large.items()}
    return {e: k - int(count[e]) for e, k in need.items() if k > count[e]}


class _Moments:
    """SquaredNormSums of `‖J u‖²` and of its square over the tangents drawn so far, for each example."""

    def __init__(
        self, model: HeadModel, batch: Batch, layer_output: bool, seed: int, memory: float
    ) -> None:
        self.model, self.batch, self.layer_output, self.seed, self.memory = (
            model,
            batch,
            layer_output,
            seed,
            memory,
        )
        self.generators = [
            torch.Generator().manual_seed(_seed(seed, row.index)) for row in batch.rows
        ]
        examples, n = batch.ids.shape
        self.heads = torch.zeros(
            2, examples, model.layers, model.heads, n, n, dtype=torch.float64, device=model.device
        )
        self.layers = torch.zeros_like(self.heads[0, :, :, 0])
        self.count = self.heads.new_zeros(examples)

    def draw(self, examples: list[int], k: int) -> None:
        """Push k more tangents for each token of these examples."""
        part = self.batch.select(examples)
        n, width = int(part.lengths.max()), self.model.hidden
        signs = torch.zeros(len(examples), k, n, width)
        for place, e in enumerate(examples):
            length = len(self.batch.rows[e])
            drawn = torch.randint(0, 2, (k, length, width), generator=self.generators[e])
            signs[place, :, :length] = drawn.float() * 2 - 1
        sums = SquaredNormSums(self.model, part, self.layer_output, moments=2)

        def some(start: int, stop: int) -> None:
            places = torch.arange(start, stop)
            sample, token = places // n, places % n
            tangents = torch.zeros(
                stop - start, len(examples), part.ids.shape[1], width, device=self.model.device
            )
            tangents[places - start, :, token] = (
                signs[:, sample, token].transpose(0, 1).to(self.model.device)
            )
            sums.add_tangents(tangents, token.to(self.model.device))

        for_each_chunk(some, k * n, tangents_per_chunk(self.model, part, self.memory), self.model)
        chosen = torch.as_tensor(examples, device=self.model.device)
        for power in range(2):
            self.heads[power].index_add_(0, chosen, sums.squares(power).heads)
        layers = sums.squares().layers
        if layers is not None:
            self.layers.index_add_(0, chosen, layers)
        self.count[chosen] += k

    def result(self, instead: dict[int, SquaredNorms]) -> Contributions:
        """Estimates so far; examples in `instead` are taken from their exact squares."""
        k = self.count
        mean = self.heads[0] / _wide(k, self.heads[0])
        spread = (self.heads[1] / _wide(k, mean) - mean**2) * _wide(k / (k - 1).clamp(min=1), mean)
        spread = spread.clamp(min=0)
        layers = self.layers / _wide(k, self.layers)
        exact = torch.zeros(len(self.batch), dtype=torch.bool, device=k.device)
        for e, squares in instead.items():
            n = squares.heads.shape[-1]
            mean[e, ..., :n, :n], spread[e] = squares.heads[0], 0
            if squares.layers is not None:
                layers[e, ..., :n, :n] = squares.layers[0]
            exact[e] = True
        shares, errors, low, high = intervals(
            mean, spread, k, token_pair_mask(self.batch)[:, None, None]
        )
        rows = 0.5 * math.sqrt(2 / math.pi) * errors.sum(-1)  # E|x| of a normal x is sd·√(2/π)
        rows = torch.where(self.batch.attention_mask[:, None, None, :], rows, torch.nan)
        variation = rows.flatten(1).nanmedian(-1).values
        tangents = torch.where(exact, self.model.hidden, k.long())
        own = normalised(layers.sqrt()) if self.layer_output else None
        return Contributions(shares, own, "input", "sketch", errors, low, high, tangents, variation)


def intervals(
    mean: Tensor, spread: Tensor, k: Tensor, real: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Contributions, standard errors and 95 % intervals from mean and variance of `‖J u‖²` over
    `k[example]` tangents.

    All are `[example, layer, head, receiving, source]`.
    """
    shares = normalised(mean.clamp(min=0).sqrt())
    moving = real & (mean > 0)
    relative = torch.where(moving, spread / mean.clamp(min=1e-300) ** 2, 0.0)
    row = relative.sum(-1, keepdim=True) / moving.sum(-1, keepdim=True).clamp(min=1)
    count = _wide(k, mean)
    relative = ((count - 1) * relative + PRIOR * row) / (count - 1 + PRIOR)
    # The variance of log √s: that of the logarithm of a χ² with 2k/r degrees of freedom, a quarter
    # of it for the root.
    half = count / relative.clamp(min=1e-12)
    own = torch.where(relative > 0, torch.special.polygamma(1, half) / 4, 0.0)
    parts = shares**2 * own
    rest = (1 - shares).clamp(min=1e-12)
    others = (parts.sum(-1, keepdim=True) - parts).clamp(min=0) / rest**2
    variance = own + others
    freedom = (count - 1).clamp(min=1)
    fourth = (shares**4 * own**2).sum(-1, keepdim=True) - shares**4 * own**2
    welch = variance**2 / ((own**2 + fourth.clamp(min=0) / rest**4) / freedom).clamp(min=1e-300)
    quantile = torch.from_numpy(
        np.asarray(special.stdtrit(welch.clamp(min=1).cpu().numpy(), 0.975))
    ).to(mean.device)
    reach = torch.where(variance > 0, quantile, 0.0) * variance.sqrt()
    middle = torch.logit(shares)
    low, high = torch.sigmoid(middle - reach), torch.sigmoid(middle + reach)
    low, high = torch.where(moving, low, shares), torch.where(moving, high, shares)
    return shares, shares * (1 - shares) * variance.sqrt(), low, high


def normalised(norms: Tensor) -> Tensor:
    """Rows divided by their sum; rows without any stay zero."""
    total = norms.sum(-1, keepdim=True)
    return torch.where(total > 0, norms / total, 0.0)


def _wide(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *(1,) * (like.ndim - 1))


def _seed(seed: int, index: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:7], "big")
