"""Hidden token attribution of planted heads in closed form: linear layers, whose Jacobians are
known matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwise.core.errors import ParameterError
from headwise.testing.planted import Planted
from headwise.text.encode import Encoded


def contributions(
    planted: Planted, row: Encoded | Sequence[int], types: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """What each token contributes to each head's output and to each layer's output, exactly
    (Pascual et al. 2021, §3).

    With `A` the known maps, `V` the value and `M = Σ_h W_h V_h` the value-and-output matrices of a
    layer, and `C = I − 11ᵀ/D` (all that is left of a layer norm), the Jacobians `J[l][j,i] =
    ∂E[l][j] / ∂E[0][i]` follow `J[l+1][j,i] = C (J[l][j,i] + Σ_hk A_h[j,k] M_h J[l][k,i])` for the
    BERT, and `J[l][j,i] + Σ_hk A_h[j,k] M_h C J[l][k,i]` for the GPT-2, whose norms stand before
    the attention. A head's output has `Σ_k A[j,k] V_h J[l][k,i]` (with `C` before `J` for the
    GPT-2). Contributions are Frobenius norms of these blocks, divided by their sum over `i`.

    Only heads whose weights do not move with the input have such a form: `uniform`, and rows with
    one target (the softmax is saturated there).

    Returns
    -------
    dict
        `previous_layer` and `input`: [layer, head, receiving, source], of a head's output by the
        tokens entering its layer and the model; `layer_previous` and `layer_input`: [layer,
        receiving, source], the same of the layer's output `E[l+1]`.
    """
    maps = planted.expected_map(row, types)
    for name in {name for layer in planted.behaviours for name in layer} - {"uniform"}:
        layer, head = planted.where(name)[0]
        if not np.allclose(maps[layer, head].max(-1), 1):
            raise ParameterError(
                f"'{name}' spreads over several tokens here, and its weights move with the input: "
                "there is no closed form."
            )
    n, width = maps.shape[-1], planted.values.shape[-1]
    centre = np.eye(width) - 1 / width
    before = (
        centre if planted.causal else np.eye(width)
    )  # the norm between the stream and the values
    after = (
        np.eye(width) if planted.causal else centre
    )  # the norm between the layer's sum and the stream
    jacobian = np.zeros((n, n, width, width))
    jacobian[np.arange(n), np.arange(n)] = np.eye(width)
    identity = jacobian
    found: dict[str, list[np.ndarray]] = {
        "previous_layer": [],
        "input": [],
        "layer_previous": [],
        "layer_input": [],
    }
    for weights, values, outputs in zip(maps, planted.values, planted.outputs, strict=True):
        reads = values @ before
        for name, stream in (("previous_layer", identity), ("input", jacobian)):
            found[name].append(
                np.stack([_shares(_mix(a, v, stream)) for a, v in zip(weights, reads, strict=True)])
            )
        steps = []
        for stream in (identity, jacobian):
            moved = sum(
                _mix(a, o @ v, stream) for a, o, v in zip(weights, outputs, reads, strict=True)
            )
            steps.append(after @ (stream + moved))
        found["layer_previous"].append(_shares(steps[0]))
        found["layer_input"].append(_shares(steps[1]))
        jacobian = steps[1]
    return {name: np.stack(layers) for name, layers in found.items()}


def _mix(weights: np.ndarray, matrix: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """`Σ_k weights[j,k] · matrix · stream[k,i]` for all j, i."""
    mixed: np.ndarray = np.einsum("jk,kiab->jiab", weights, matrix @ stream, optimize=True)
    return mixed


def _shares(blocks: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(blocks, axis=(2, 3))
    return np.asarray(norms / norms.sum(1, keepdims=True))
