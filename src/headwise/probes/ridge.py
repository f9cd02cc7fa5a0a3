"""Closed forms: ridge regression for all heads and penalties from one decomposition, and greedy
selection of heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import ParameterError
from headwise.probes.features import Features, Scaler, gram_matrix, load
from headwise.text.tasks import Split


def fit_ridge(train: Tensor, targets: Tensor, penalties: Sequence[float]) -> Tensor:
    """Minimise `mean |y - XW|^2 + penalty |W|^2` for `head x penalty` regressions together; the
    bias is not penalised.

    Parameters
    ----------
    train : Tensor
        Features without a column of ones, [head, example, size].
    targets : Tensor
        [example, column].

    Returns
    -------
    weights [head, penalty, column, size + 1], the bias last.
    """
    examples = train.shape[1]
    mean = train.mean(1, keepdim=True)
    centred = train - mean
    level = targets.mean(0)
    gram = gram_matrix(centred) / examples
    moment = (centred.mT @ (targets - level)).double() / examples
    values, vectors = torch.linalg.eigh(gram)
    rotated = vectors.mT @ moment
    ridge = torch.tensor(list(penalties), dtype=torch.float64, device=train.device)
    shrunk = rotated[:, None] / (values.clamp(min=0)[:, None] + ridge[None, :, None])[..., None]
    weights = (vectors[:, None] @ shrunk).mT
    # The bias of every column: its mean level minus what the mean vector already gives.
    bias = level.double()[:, None] - weights @ mean.double().mT[:, None]
    return torch.cat([weights, bias], -1).to(train.dtype)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    return torch.nn.functional.one_hot(labels, classes).float()


@dataclass(frozen=True, slots=True)
class GreedyOptions:
    """How heads are chosen: how many, among which (all by default), by ridge regression with which
    penalty, where."""

    steps: int
    penalty: float = 1e-2
    candidates: Sequence[int] | None = None
    standardize: bool = True
    device: str = "cpu"


def greedy_heads(
    features: Features,
    split: Split,
    targets: np.ndarray,
    score: Callable[[Tensor], Tensor],
    options: GreedyOptions,
) -> tuple[list[int], list[float]]:
    """Choose heads one after the other: each time the one that, beside those already chosen, scores
    best on validation.

    Every candidate set is fitted in closed form. After a choice the normal equations of all other
    heads are reduced by the chosen block (a Schur complement), so that a step costs about as much
    as one product of the Gram matrix with one head, however many heads are chosen already. Ties go
    to the lowest index.

    Parameters
    ----------
    features : Features
        The vectors of the heads.
    split : Split
        Its training rows fit, its validation rows choose.
    targets : ndarray
        `[example, column]` of the training rows, to regress on.
    score : callable
        Takes predictions `[candidate, validation example, column]`, returns a score `[candidate]`.
    options : GreedyOptions
        How many heads, among which, with which penalty.

    Returns
    -------
    chosen, scores
        The chosen units in order, and the validation score after each choice.
    """
    candidates, steps, device = options.candidates, options.steps, options.device
    pool = list(range(features.units)) if candidates is None else sorted(int(c) for c in candidates)
    if not 1 <= steps <= len(pool):
        raise ParameterError(
            f"Between 1 and {len(pool)} heads can be chosen; {steps} were asked for."
        )
    size, count = features.size, len(pool)
    train, validation = [], []
    for unit in pool:
        raw = load(features, unit, unit + 1, split.train, device)
        scaler = Scaler(raw, options.standardize)
        scaled = scaler(raw)[0].double()
        mean = scaled.mean(0)
        train.append(scaled - mean)
        validation.append(
            scaler(load(features, unit, unit + 1, split.validation, device))[0].double() - mean
        )
    x, v = torch.cat(train, 1), torch.cat(validation, 1)  # [example, count * size]
    del train, validation
    y = torch.as_tensor(targets, dtype=torch.float64, device=device)
    level = y.mean(0)
    gram = x.T @ x / len(x)
    gram.diagonal().add_(options.penalty)
    moment = x.T @ (y - level) / len(x)
    fitted = level.expand(len(v), -1).clone()
    left = torch.ones(count, dtype=torch.bool, device=device)
    chosen: list[int] = []
    scores: list[float] = []
    for _ in range(steps):
        blocks = (
            gram.view(count, size, count, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        )  # candidate, size, size
        solved = torch.linalg.solve(blocks[left], moment.view(count, size, -1)[left])
        parts = v.view(len(v), count, size)[:, left].transpose(0, 1) @ solved
        found = score(fitted[None] + parts)
        best = int(torch.argmax(found))
        index = int(left.nonzero()[best, 0])
        chosen.append(pool[index])
        scores.append(float(found[best]))
        fitted += parts[best]
        block = slice(index * size, (index + 1) * size)
        share = torch.linalg.solve(gram[block, block].clone(), gram[block])  # [size, count * size]
        moment -= share.T @ moment[block].clone()
        v -= v[:, block].clone() @ share
        gram -= gram[:, block].clone() @ share
        # The chosen head has nothing left to give; an identity keeps later solves regular.
        gram[block] = 0.0
        gram[:, block] = 0.0
        gram[block, block] = torch.eye(size, dtype=gram.dtype, device=device)
        left[index] = False
    return chosen, scores
