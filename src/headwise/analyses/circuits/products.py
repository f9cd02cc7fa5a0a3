"""Products of thin matrices: eigenvalues of whole circuits, and norms of compositions, without
anything as large as the vocabulary or the square of the width for each head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.models.weights import LayerWeights

SIDES = ("query", "key", "value")
ROWS = 2**14  # of the vocabulary at a time


def gram(first: Tensor, second: Tensor) -> Tensor:
    """`firstᵀ second` over the vocabulary, `[width, width]`, in pieces."""
    out = torch.zeros(first.shape[1], second.shape[1], dtype=torch.float64)
    for start in range(0, len(first), ROWS):
        out += (
            (first[start : start + ROWS].float().T @ second[start : start + ROWS].float())
            .double()
            .cpu()
        )
    return out.float()


@dataclass(frozen=True, slots=True, eq=False)
class CircuitScores:
    """`Σλ / Σ|λ|` of each head's circuit, its trace, and the norm of what the trace is of,
    `[head]`."""

    share: Tensor
    trace: Tensor
    norm: Tensor


def eigen_score(left: Tensor, middle: Tensor, right: Tensor) -> CircuitScores:
    """Of `left[head] · middle · right[head]`, each `d × d`: its eigenvalues are those of the whole
    circuit.

    Parameters
    ----------
    left : Tensor
        `[head, d, width]`.
    middle : Tensor
        `[width, width]`.
    right : Tensor
        `[head, width, d]`.
    """
    half = middle.to(right.device) @ right
    small = (
        (left @ half).double().cpu()
    )  # where eigenvalues of many small matrices are quicker found
    trace = small.diagonal(dim1=-2, dim2=-1).sum(-1)
    share = trace / torch.stack([_eigenvalues(own).abs().sum() for own in small])
    # ‖middle right left‖_F by Gram matrices of d × d.
    norm = ((half.transpose(1, 2) @ half).double() * (left @ left.transpose(1, 2)).double()).sum(
        (-1, -2)
    )
    return CircuitScores(share, trace, norm.clamp(min=0).sqrt().cpu())


def _eigenvalues(matrix: Tensor) -> Tensor:
    """The eigenvalues of a square matrix; one with very many equal ones may need a nudge to be
    taken apart."""
    size = matrix.abs().max()
    if not float(size):
        return matrix.diagonal()
    nudge = torch.from_numpy(np.random.default_rng(0).normal(size=tuple(matrix.shape)))
    for strength in (0.0, 1e-12, 1e-9):
        try:
            found: Tensor = torch.linalg.eigvals(matrix / size + strength * nudge) * size
            return found
        except RuntimeError:  # what torch raises where it does not converge
            continue
    return torch.full((len(matrix),), torch.nan, dtype=matrix.dtype)


def square_root(matrix: Tensor) -> Tensor:
    """R with `RᵀR = matrix`, for symmetric matrices without negative eigenvalues, `[head, d,
    d]`."""
    values, vectors = torch.linalg.eigh(matrix.double())
    root: Tensor = values.clamp(min=0).sqrt()[..., None] * vectors.transpose(-1, -2)
    return root.float()


@dataclass(frozen=True, slots=True, eq=False)
class CompositionSides:
    """One layer as it takes part in compositions: `writes[head, d, width]`, and `reads[side][head,
    width, d]`; the norms of products of the two are those of the whole circuits. They are kept on
    the CPU: those of all layers together are as large as the attention of the model."""

    writes: Tensor
    reads: dict[str, Tensor]


def sides(weights: LayerWeights) -> CompositionSides:
    """What a layer's heads write and read, turned so that norms of thin products are norms of whole
    ones."""
    own = square_root(weights.value.transpose(1, 2) @ weights.value)
    reads = {
        "value": weights.value
        @ square_root(weights.output @ weights.output.transpose(1, 2)).transpose(1, 2)
    }
    if weights.query is not None and weights.key is not None:
        by_query = square_root(weights.query.transpose(1, 2) @ weights.query)
        by_key = square_root(weights.key.transpose(1, 2) @ weights.key)
        reads |= {
            "query": weights.query @ by_key.transpose(1, 2),
            "key": weights.key @ by_query.transpose(1, 2),
        }
    return CompositionSides(
        (own @ weights.output).cpu(), {side: read.cpu() for side, read in reads.items()}
    )


def spread(thin: Tensor) -> tuple[Tensor, Tensor]:
    """Squared norm of each head's matrix, and the sum of the squared shares of its squared singular
    values."""
    small = thin if thin.shape[-2] <= thin.shape[-1] else thin.transpose(-1, -2)
    inner = (small @ small.transpose(-1, -2)).double()
    norm = inner.diagonal(dim1=-2, dim2=-1).sum(-1)
    return norm, inner.square().sum((-1, -2)) / norm.clamp(min=1e-60).square()


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """For each side, `squared[earlier head, later head]`: `‖M_b W_OV^a‖² / (‖M_b‖² ‖W_OV^a‖²)`, NaN
    where b is not later than a or one of them is nothing; `writes`, `reads[side]`: spread of the
    spectra of each head."""

    squared: dict[str, np.ndarray]
    writes: np.ndarray
    reads: dict[str, np.ndarray]


def compose(
    layers: list[CompositionSides],
    report: Callable[[int, int], None],
    device: torch.device | str = "cpu",
) -> Composition:
    """Norms of all compositions of a head into a head of a later layer, multiplied on a device,
    layer by layer."""
    heads = len(layers[0].writes)
    total = heads * len(layers)
    known = [side for side in SIDES if all(side in layer.reads for layer in layers)]
    squared = {side: np.full((total, total), np.nan) for side in known}
    spreads = [spread(layer.writes) for layer in layers]
    norms, writes = (torch.cat([own[part] for own in spreads]) for part in (0, 1))
    reads = {side: torch.zeros(total, dtype=torch.float64) for side in known}
    for later, layer in enumerate(layers):
        here = slice(later * heads, (later + 1) * heads)
        found = {side: torch.zeros(later * heads, heads, dtype=torch.float64) for side in known}
        joined = {
            side: layer.reads[side].permute(1, 0, 2).flatten(1).to(device) for side in known
        }  # width, head · d
        for place, earlier in enumerate(layers[:later]):
            before = earlier.writes.to(device)  # head, d, width
            for side in known:
                product = (before.flatten(0, 1) @ joined[side]).view(*before.shape[:2], heads, -1)
                found[side][place * heads : (place + 1) * heads] = (
                    product.square().sum((1, 3)).double().cpu()
                )
        for side in known:
            norm, reads[side][here] = spread(layer.reads[side])
            sizes = norms[: later * heads, None] * norm
            nothing = (norms[: later * heads, None] < 1e-20) | (norm < 1e-20)
            ratio = torch.where(nothing, torch.nan, found[side] / sizes.clamp(min=1e-60))
            squared[side][: later * heads, here] = ratio.numpy()
        report(later + 1, len(layers))
    return Composition(
        squared, writes.numpy(), {side: values.numpy() for side, values in reads.items()}
    )
