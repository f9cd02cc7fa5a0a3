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
    are those of the whole circuits. `gain[width]` is that of the norm between what is written and
    the residual stream, None where there is none. They are kept on the CPU: those of all layers
    together are as large as the attention of the model."""

    writes: Tensor
    reads: dict[str, Tensor]
    gain: Tensor | None = None

    def reads_through(self, side: str, earlier: CompositionSides) -> Tensor:
        """Return what this layer reads of what the heads of an earlier layer write, before the norm
        after their projection: `[head, width, d]`.

        A gain belongs to neither head. Here it is on the side of what is read, so that what is
        written can be turned at random without it: of random weights with any gains, the null is
        exact. Between two norms, turned directions would forget on which dimensions the gains
        lie."""
        if earlier.gain is None:
            return self.reads[side]
        return self.reads[side] * earlier.gain[:, None]


def composition_sides(weights: LayerWeights) -> CompositionSides:
    """Return what a layer's heads write and read, rotated so that norms of thin products are norms
    of whole ones."""
    value_root = square_root(weights.value.transpose(1, 2) @ weights.value)
    written = weights.written()
    output_root = square_root(written @ written.transpose(1, 2))
    writes = value_root @ weights.output
    reads = {"value": weights.value @ output_root.transpose(1, 2)}
    if weights.query is not None and weights.key is not None:
        query_root = square_root(weights.query.transpose(1, 2) @ weights.query)
        key_root = square_root(weights.key.transpose(1, 2) @ weights.key)
        reads["query"] = weights.query @ key_root.transpose(1, 2)
        reads["key"] = weights.key @ query_root.transpose(1, 2)
    gain = None if weights.output_gain is None else weights.output_gain.cpu()
    return CompositionSides(writes.cpu(), {side: read.cpu() for side, read in reads.items()}, gain)


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
    is not later than a or one of them is zero; `writes[earlier head]`, `reads[side][earlier head,
    later head]`: spread of the spectra of what is written and read."""

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
    read_spread = {side: np.full((n_total, n_total), np.nan) for side in sides}
    norms = []
    spreads = []
    for layer in layers:
        norm, spread = norm_and_spread(layer.writes)
        norms.append(norm)
        spreads.append(spread)
    write_spread = torch.cat(spreads)

    for number, layer in enumerate(layers):
        later_heads = slice(number * n_heads, (number + 1) * n_heads)
        without_gain = {side: norm_and_spread(layer.reads[side]) for side in sides}
        for earlier_number, earlier in enumerate(layers[:number]):
            earlier_heads = slice(earlier_number * n_heads, (earlier_number + 1) * n_heads)
            writes = earlier.writes.to(device)
            for side in sides:
                reads = layer.reads_through(side, earlier)
                read_norm, spread = without_gain[side]
                if earlier.gain is not None:
                    read_norm, spread = norm_and_spread(reads)
                write_norm = norms[earlier_number][:, None]
                is_zero = (write_norm < NO_NORM) | (read_norm < NO_NORM)
                products = _squared_products(writes, reads.to(device))
                ratio = products / (write_norm * read_norm).clamp(min=TINY)
                squared[side][earlier_heads, later_heads] = torch.where(is_zero, torch.nan, ratio)
                read_spread[side][earlier_heads, later_heads] = spread
        report(number + 1, len(layers))
    return Composition(squared, write_spread.numpy(), read_spread)


def _squared_products(writes: Tensor, reads: Tensor) -> Tensor:
    """Return the squared norms `[earlier head, later head]` of the products of `writes[head, d,
    width]` and `reads[head, width, d]`."""
    n_earlier = len(writes)
    n_later = len(reads)
    together = reads.permute(1, 0, 2).flatten(1)  # [width, head · d]
    product = (writes.flatten(0, 1) @ together).view(n_earlier, writes.shape[1], n_later, -1)
    return product.square().sum((1, 3)).double().cpu()
