"""Hidden token attribution of planted heads in closed form: their layers are linear, and the
Jacobians are known matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwise.core.errors import ParameterError
from headwise.testing.planted import Planted
from headwise.text.encode import Encoded


def contributions(
    planted: Planted, row: Encoded | Sequence[int], types: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """Return what each token contributes to each head's output and to each layer's output, exactly
    (Pascual et al. 2021, §3).

    With `A` the known maps, `V` the value and `M = Σ_h W_h V_h` the value-and-output matrices of a
    layer, and `C = I − 11ᵀ/D` (all that is left of a layer norm), the Jacobians `J[l][j,i] =
    ∂E[l][j] / ∂E[0][i]` follow `J[l+1][j,i] = C (J[l][j,i] + Σ_hk A_h[j,k] M_h J[l][k,i])` for the
    BERT, and `J[l][j,i] + Σ_hk A_h[j,k] M_h C J[l][k,i]` for the GPT-2, whose norms come before
    the attention. A head's output has `Σ_k A[j,k] V_h J[l][k,i]` (with `C` before `J` for the
    GPT-2). Contributions are Frobenius norms of these blocks, divided by their sum over `i`.

    Only heads whose weights do not depend on the input have such a form: `uniform`, and rows with
    one target (the softmax is saturated there).

    Returns
    -------
    dict
        `previous_layer` and `input`: [layer, head, receiving, source], of a head's output by the
        tokens entering its layer and the model; `layer_previous` and `layer_input`: [layer,
        receiving, source], the same of the layer's output `E[l+1]`.
    """
    maps = planted.expected_map(row, types)
    _check_closed_form(planted, maps)
    n_tokens = maps.shape[-1]
    hidden = planted.values.shape[-1]
    identity_matrix = np.eye(hidden)
    centring = identity_matrix - 1 / hidden
    # GPT-2 normalises what its values read; BERT normalises the sum that leaves a layer.
    norm_before = centring if planted.causal else identity_matrix
    norm_after = identity_matrix if planted.causal else centring

    # Jacobians of the states that enter a layer, `[receiving, source, hidden, hidden]`: by
    # themselves, and by the embeddings.
    by_itself = np.zeros((n_tokens, n_tokens, hidden, hidden))
    by_itself[np.arange(n_tokens), np.arange(n_tokens)] = identity_matrix
    by_input = by_itself
    previous_layer = []
    input_ = []
    layer_previous = []
    layer_input = []
    for weights, values, outputs in zip(maps, planted.values, planted.outputs, strict=True):
        values = values @ norm_before
        previous_layer.append(_head_shares(weights, values, by_itself))
        input_.append(_head_shares(weights, values, by_input))
        leaving_by_itself = norm_after @ _after_attention(weights, outputs @ values, by_itself)
        leaving_by_input = norm_after @ _after_attention(weights, outputs @ values, by_input)
        layer_previous.append(_shares(leaving_by_itself))
        layer_input.append(_shares(leaving_by_input))
        by_input = leaving_by_input
    return {
        "previous_layer": np.stack(previous_layer),
        "input": np.stack(input_),
        "layer_previous": np.stack(layer_previous),
        "layer_input": np.stack(layer_input),
    }


def _check_closed_form(planted: Planted, maps: np.ndarray) -> None:
    """Reject rows on which a head's weights depend on the input."""
    for layer, names in enumerate(planted.behaviours):
        for head, name in enumerate(names):
            has_one_target = np.allclose(maps[layer, head].max(-1), 1)
            if name != "uniform" and not has_one_target:
                raise ParameterError(
                    f"'{name}' attends to several tokens here, and its weights depend on the "
                    "input: there is no closed form."
                )


def _head_shares(weights: np.ndarray, values: np.ndarray, jacobian: np.ndarray) -> np.ndarray:
    """Return the contributions to each head's output, `[head, receiving, source]`."""
    shares = []
    for head_weights, value in zip(weights, values, strict=True):
        shares.append(_shares(_mix(head_weights, value, jacobian)))
    return np.stack(shares)


def _after_attention(weights: np.ndarray, matrices: np.ndarray, jacobian: np.ndarray) -> np.ndarray:
    """Return the Jacobian of the residual stream after the attention of all heads."""
    change = np.zeros_like(jacobian)
    for head_weights, matrix in zip(weights, matrices, strict=True):
        change += _mix(head_weights, matrix, jacobian)
    change += jacobian
    return change


def _mix(weights: np.ndarray, matrix: np.ndarray, jacobian: np.ndarray) -> np.ndarray:
    """Return `Σ_k weights[j,k] · matrix · jacobian[k,i]` for all j, i."""
    mixed: np.ndarray = np.einsum("jk,kiab->jiab", weights, matrix @ jacobian, optimize=True)
    return mixed


def _shares(blocks: np.ndarray) -> np.ndarray:
    """Return the Frobenius norms of the blocks, `[receiving, source]`, as shares of each row."""
    norms = np.linalg.norm(blocks, axis=(2, 3))
    return np.asarray(norms / norms.sum(1, keepdims=True))
