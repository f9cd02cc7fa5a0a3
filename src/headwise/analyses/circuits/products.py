"""Products of thin matrices: eigenvalues of whole circuits, and norms of compositions.

No matrix here is as large as the vocabulary, or as the square of the width for each head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.models.weights import LayerWeights

SIDES = ("query", "key", "value")
TOKENS_AT_ONCE = 2**14
NO_NORM = 1e-20  # a head whose squared norm is smaller writes or reads nothing
TINY = 1e-60


def gram(first: Tensor, second: Tensor) -> Tensor:
    """Return `firstᵀ second` over the vocabulary, `[width, width]`, summed block by block."""
    total = torch.zeros(first.shape[1], second.shape[1], dtype=torch.float64)
    for start in range(0, len(first), TOKENS_AT_ONCE):
        rows = slice(start, start + TOKENS_AT_ONCE)
        product = first[rows].float().T @ second[rows].float()
        total += product.double().cpu()
    return total.float()


@dataclass(frozen=True, slots=True, eq=False)
class CircuitScores:
    """`Σλ / Σ|λ|` of each head's circuit, its trace, and the norm of the whole circuit, `[head]`."""

    share: Tensor
    trace: Tensor
    norm: Tensor


def eigen_score(left: Tensor, middle: Tensor, right: Tensor) -> CircuitScores:
    """Return the scores of `left[head] · middle · right[head]`, each `d × d`.

    Its eigenvalues are those of the whole circuit.

    Parameters
    ----------
    left : Tensor
        `[head, d, width]`.
    middle : Tensor
        `[width, width]`.
    right : Tensor
        `[head, width, d]`.
    """
    middle_right = middle.to(right.device) @ right
    # Eigenvalues of many small matrices are computed faster on the CPU.
    products = (left @ middle_right).double().cpu()
    trace = products.diagonal(dim1=-2, dim2=-1).sum(-1)
    absolute_sum = torch.stack([_eigenvalues(product).abs().sum() for product in products])
    # ‖middle right left‖_F by Gram matrices of d × d.
    right_gram = (middle_right.transpose(1, 2) @ middle_right).double()
    left_gram = (left @ left.transpose(1, 2)).double()
    squared_norm = (right_gram * left_gram).sum((-1, -2))
    return CircuitScores(trace / absolute_sum, trace, squared_norm.clamp(min=0).sqrt().cpu())


def _eigenvalues(matrix: Tensor) -> Tensor:
    """Return the eigenvalues of a square matrix; NaN if they cannot be computed."""
    scale = matrix.abs().max()
    if not float(scale):
        return matrix.diagonal()
    # The algorithm may not converge for a matrix with very many equal eigenvalues; a little noise
    # separates them.
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=tuple(matrix.shape)))
    for strength in (0.0, 1e-12, 1e-9):
        try:
            eigenvalues: Tensor = torch.linalg.eigvals(matrix / scale + strength * noise) * scale
            return eigenvalues
        except RuntimeError:  # what torch raises where it does not converge
            continue
    return torch.full((len(matrix),), torch.nan, dtype=matrix.dtype)


def square_root(matrix: Tensor) -> Tensor:
    """Return R with `RᵀR = matrix`, for symmetric matrices without negative eigenvalues, `[head, d,
    d]`."""
    values, vectors = torch.linalg.eigh(matrix.double())
    root: Tensor = values.clamp(min=0).sqrt()[..., None] * vectors.transpose(-1, -2)
    return root.float()


@dataclass(frozen=True, slots=True, eq=False)
class CompositionSides:
    """One layer as it takes part in compositions.

    `writes[head, d, width]`, and `reads[side][head, width, d]`; the norms of products of the two
    are those of the whole circuits. They are kept on the CPU: those of all layers together are as
    large as the attention of the model."""

    writes: Tensor
    reads: dict[str, Tensor]


def composition_sides(weights: LayerWeights) -> CompositionSides:
    """Return what a layer's heads write and read, rotated so that norms of thin products are norms
    of whole ones."""
    value_root = square_root(weights.value.transpose(1, 2) @ weights.value)
    output_root = square_root(weights.output @ weights.output.transpose(1, 2))
    writes = value_root @ weights.output
    reads = {"value": weights.value @ output_root.transpose(1, 2)}
    if weights.query is not None and weights.key is not None:
        query_root = square_root(weights.query.transpose(1, 2) @ weights.query)
        key_root = square_root(weights.key.transpose(1, 2) @ weights.key)
        reads["query"] = weights.query @ key_root.transpose(1, 2)
        reads["key"] = weights.key @ query_root.transpose(1, 2)
    return CompositionSides(writes.cpu(), {side: read.cpu() for side, read in reads.items()})


def norm_and_spread(thin: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared norm of each head's matrix, and the sum of the squared shares of its
    squared singular values."""
    wide = thin if thin.shape[-2] <= thin.shape[-1] else thin.transpose(-1, -2)
    inner = (wide @ wide.transpose(-1, -2)).double()
    squared_norm = inner.diagonal(dim1=-2, dim2=-1).sum(-1)
    spread = inner.square().sum((-1, -2)) / squared_norm.clamp(min=TINY).square()
    return squared_norm, spread


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """Norms of the compositions of all pairs of heads.

    `squared[side][earlier head, later head]` is `‖M_b W_OV^a‖² / (‖M_b‖² ‖W_OV^a‖²)`, NaN where b
    is not later than a or one of them is zero; `writes`, `reads[side]`: spread of the spectra of
    each head."""

    squared: dict[str, np.ndarray]
    writes: np.ndarray
    reads: dict[str, np.ndarray]


def compose(
    layers: list[CompositionSides],
    report: Callable[[int, int], None],
    device: torch.device | str = "cpu",
) -> Composition:
    """Return the norms of all compositions of a head into a head of a later layer.

    The products are computed on `device`, layer by layer; `report(done, total)` is called after
    each."""
    n_heads = len(layers[0].writes)
    n_total = n_heads * len(layers)
    sides = [side for side in SIDES if all(side in layer.reads for layer in layers)]
    squared = {side: np.full((n_total, n_total), np.nan) for side in sides}
    read_spread = {side: torch.zeros(n_total, dtype=torch.float64) for side in sides}
    norms = []
    spreads = []
    for layer in layers:
        norm, spread = norm_and_spread(layer.writes)
        norms.append(norm)
        spreads.append(spread)
    write_norm = torch.cat(norms)
    write_spread = torch.cat(spreads)

    for number, layer in enumerate(layers):
        n_earlier = number * n_heads
        later_heads = slice(n_earlier, n_earlier + n_heads)
        products = _squared_products(layers[:number], layer, sides, device)
        for side in sides:
            read_norm, read_spread[side][later_heads] = norm_and_spread(layer.reads[side])
            earlier_norm = write_norm[:n_earlier, None]
            is_zero = (earlier_norm < NO_NORM) | (read_norm < NO_NORM)
            ratio = products[side] / (earlier_norm * read_norm).clamp(min=TINY)
            ratio = torch.where(is_zero, torch.nan, ratio)
            squared[side][:n_earlier, later_heads] = ratio.numpy()
        report(number + 1, len(layers))
    reads = {side: spread.numpy() for side, spread in read_spread.items()}
    return Composition(squared, write_spread.numpy(), reads)


def _squared_products(
    earlier_layers: list[CompositionSides],
    layer: CompositionSides,
    sides: list[str],
    device: torch.device | str,
) -> dict[str, Tensor]:
    """Return by side the squared norms `[earlier head, head]` of products with all earlier
    heads."""
    n_heads = len(layer.writes)
    reads = {}  # [width, head · d]
    products = {}
    for side in sides:
        reads[side] = layer.reads[side].permute(1, 0, 2).flatten(1).to(device)
        products[side] = torch.zeros(len(earlier_layers) * n_heads, n_heads, dtype=torch.float64)
    for number, earlier in enumerate(earlier_layers):
        writes = earlier.writes.to(device)  # [head, d, width]
        heads = slice(number * n_heads, (number + 1) * n_heads)
        for side in sides:
            product = (writes.flatten(0, 1) @ reads[side]).view(*writes.shape[:2], n_heads, -1)
            products[side][heads] = product.square().sum((1, 3)).double().cpu()
    return products
