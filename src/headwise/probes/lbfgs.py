"""Logistic regression to convergence for all heads and penalties at once: batched L-BFGS,
preconditioned by a bound on the curvature."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.probes.features import gram_matrix
from headwise.probes.settings import ProbeSettings

HISTORY = 8  # pairs of steps and gradient changes kept
MAX_BACKTRACKS = 20
REFRESH_EVERY = 20  # iterations after which the curvature is computed anew at the current weights
# Below this penalty the gradient must be smaller than `tolerance`: the loss that is left to gain
# is up to |gradient|² / (2 · penalty).
STRONG_PENALTY = 1e-2


@dataclass(slots=True)
class _Pair:
    """One pair of the L-BFGS history: step `s`, gradient change `y`, and `1 / (s · y)`, which is 0
    for classifiers without positive curvature."""

    step: Tensor
    change: Tensor
    inverse: Tensor

    def keep(self, heads: Tensor) -> _Pair:
        return _Pair(self.step[heads], self.change[heads], self.inverse[heads])


def fit_lbfgs(
    train: Tensor, labels: Tensor, n_classes: int, settings: ProbeSettings
) -> tuple[Tensor, Tensor]:
    """Minimise `mean cross-entropy + penalty / 2 * |W|^2` for all heads and penalties together;
    biases are not penalised.

    The optimum is that of scikit-learn's `LogisticRegression(C=1 / (n * penalty))`: softmax over
    all classes, and for two classes one weight vector.

    Parameters
    ----------
    train : Tensor
        Features with a last column of ones, `[head, example, size + 1]`.
    labels : Tensor
        Class numbers, `[example]`.
    n_classes : int
        Number of classes.
    settings : ProbeSettings
        Penalties, tolerance and the most iterations.

    Returns
    -------
    weights, converged
        Weights `[head, penalty, class, size + 1]`, and whether each classifier converged, `[head,
        penalty]`.
    """
    n_heads, _, size = train.shape
    n_columns = 1 if n_classes == 2 else n_classes
    penalties = torch.tensor(settings.penalties, dtype=train.dtype, device=train.device)
    problem = _LogisticProblem(train, labels, n_columns, penalties)
    shape = (n_heads, len(settings.penalties), n_columns, size)
    final = torch.zeros(shape, dtype=train.dtype, device=train.device)
    converged = torch.zeros(shape[:2], dtype=torch.bool, device=train.device)
    tolerance_share = (penalties / STRONG_PENALTY).clamp(1e-4, 1.0).sqrt()
    tolerance = (settings.tolerance * tolerance_share)[None]

    remaining = torch.arange(n_heads, device=train.device)  # heads still in the computation
    weights = final.clone()
    loss, gradient = problem.evaluate(weights)
    history: deque[_Pair] = deque(maxlen=HISTORY)
    scale = torch.ones(shape[:2], dtype=train.dtype, device=train.device)
    stuck = torch.zeros_like(converged)

    for iteration in range(settings.max_iterations):
        small_gradient = gradient.abs().amax((2, 3)) <= tolerance
        finished = small_gradient | stuck
        leaving = finished.all(1)
        if leaving.any():
            final[remaining[leaving]] = weights[leaving]
            converged[remaining[leaving]] = small_gradient[leaving]
            staying = ~leaving
            if not staying.any():
                return _weights_of_all_classes(final, n_classes), converged
            remaining = remaining[staying]
            weights = weights[staying]
            loss = loss[staying]
            gradient = gradient[staying]
            scale = scale[staying]
            stuck = stuck[staying]
            finished = finished[staying]
            history = deque((pair.keep(staying) for pair in history), maxlen=HISTORY)
            problem = problem.keep(staying)
        if iteration and iteration % REFRESH_EVERY == 0:
            problem.refresh(weights)
            history.clear()
            scale = torch.ones_like(scale)

        direction = _descent_direction(gradient, history, scale, problem)
        slope = (direction * gradient).sum((2, 3))
        # Rounding or an outdated history can give a direction that does not descend; the
        # preconditioned gradient always does.
        ascending = slope >= 0
        if ascending.any():
            steepest = -problem.precondition(gradient)
            direction = torch.where(ascending[..., None, None], steepest, direction)
            slope = (direction * gradient).sum((2, 3))

        # Backtracking line search (Armijo), each classifier with its own step length.
        length = torch.ones_like(loss).masked_fill(finished, 0.0)
        accepted = finished.clone()
        slack = 1e-6 * loss.abs() if train.dtype == torch.float32 else 0.0
        for _ in range(MAX_BACKTRACKS):
            new_weights = weights + length[..., None, None] * direction
            new_loss, new_gradient = problem.evaluate(new_weights)
            accepted = accepted | (new_loss <= loss + 1e-4 * length * slope + slack)
            if accepted.all():
                break
            length = torch.where(accepted, length, length / 2)
        failed = ~accepted
        if failed.any():
            # No step reduces the loss at this precision: such a classifier stays where it is.
            stuck = stuck | failed
            unchanged = failed[..., None, None]
            new_weights = torch.where(unchanged, weights, new_weights)
            new_gradient = torch.where(unchanged, gradient, new_gradient)
            new_loss = torch.where(failed, loss, new_loss)

        step = new_weights - weights
        change = new_gradient - gradient
        curvature = (step * change).sum((2, 3))
        usable = curvature > 1e-10 * (step * step).sum((2, 3))
        inverse = torch.where(usable, 1 / torch.where(usable, curvature, 1.0), 0.0)
        history.append(_Pair(step, change, inverse))
        norm = (change * problem.precondition(change)).sum((2, 3))
        scale = torch.where(usable & (norm > 0), curvature / norm.clamp(min=1e-30), scale)
        weights = new_weights
        loss = new_loss
        gradient = new_gradient
    final[remaining] = weights
    converged[remaining] = gradient.abs().amax((2, 3)) <= tolerance
    return _weights_of_all_classes(final, n_classes), converged


def _descent_direction(
    gradient: Tensor, history: deque[_Pair], scale: Tensor, problem: _LogisticProblem
) -> Tensor:
    """Return the quasi-Newton direction by the two-loop recursion (Nocedal & Wright, Alg. 7.4)."""
    q = gradient.clone()
    factors = []
    for pair in reversed(history):
        factor = pair.inverse * (pair.step * q).sum((2, 3))
        q -= factor[..., None, None] * pair.change
        factors.append(factor)
    q = scale[..., None, None] * problem.precondition(q)
    for pair, factor in zip(history, reversed(factors), strict=True):
        correction = pair.inverse * (pair.change * q).sum((2, 3))
        q += (factor - correction)[..., None, None] * pair.step
    return -q


class _LogisticProblem:
    """Loss and gradient of all classifiers of some heads, and the inverse of a curvature matrix as
    preconditioner.

    Parameters
    ----------
    train : Tensor
        Features with a last column of ones, `[head, example, size]`.
    labels : Tensor
        Class numbers, `[example]`.
    n_columns : int
        Weight vectors of a classifier: one for two classes, else one for each class.
    penalties : Tensor
        `[penalty]`.
    inverse : Tensor, optional
        The preconditioner `[head, penalty, size, size]`; by default computed from `train`.
    """

    def __init__(
        self,
        train: Tensor,
        labels: Tensor,
        n_columns: int,
        penalties: Tensor,
        inverse: Tensor | None = None,
    ) -> None:
        self.train = train
        self.labels = labels
        self.n_columns = n_columns
        self.penalties = penalties
        self.targets = labels.to(train.dtype) if n_columns == 1 else labels
        self.inverse = self._inverse_bound() if inverse is None else inverse

    def keep(self, heads: Tensor) -> _LogisticProblem:
        return _LogisticProblem(
            self.train[heads], self.labels, self.n_columns, self.penalties, self.inverse[heads]
        )

    def precondition(self, vector: Tensor) -> Tensor:
        return vector @ self.inverse

    def _inverse_bound(self) -> Tensor:
        """Return `(a X'X / n + penalty)^-1`: the Hessian if every example had the variance `a`."""
        n_examples = self.train.shape[1]
        if self.n_columns == 1:
            share = self.targets.mean()
            variance = (share * (1 - share)).clamp(min=1e-3).double()
        else:
            shares = torch.bincount(self.labels, minlength=self.n_columns).double() / n_examples
            variance = (shares * (1 - shares)).mean().clamp(min=1e-6)
        gram = gram_matrix(self.train)[:, None]
        return self._invert(gram / n_examples * variance)

    def refresh(self, weights: Tensor) -> None:
        """Compute the curvature at the current weights: Newton's for two classes, one matrix shared
        by all classes where there are more.

        Far from the start most examples are classified with near certainty and contribute almost no
        curvature; the first bound then makes progress slow.
        """
        n_heads, n_penalties, n_columns, size = weights.shape
        flat_weights = weights.reshape(n_heads, n_penalties * n_columns, size)
        scores = torch.bmm(flat_weights, self.train.mT)
        shape = (n_heads, n_penalties, n_columns, -1)
        if n_columns == 1:
            probabilities = scores.sigmoid()
        else:
            probabilities = scores.view(shape).softmax(2)
        variance = (probabilities * (1 - probabilities)).view(shape).mean(2)
        # Filled and divided in place: matrices for all heads and penalties are the largest of all.
        curvature = torch.empty(
            (n_heads, n_penalties, size, size), dtype=torch.float64, device=weights.device
        )
        for head, features in enumerate(self.train):
            for penalty, deviation in enumerate(variance[head].sqrt()):
                weighted = features * deviation[:, None]
                curvature[head, penalty] = gram_matrix(weighted[None])[0]
        curvature /= self.train.shape[1]
        self.inverse = self._invert(curvature)

    def _invert(self, gram: Tensor) -> Tensor:
        """Return `(gram + penalty)^-1`, `[head, penalty, size, size]`; the bias is not penalised."""
        size = gram.shape[-1]
        ones = torch.ones(size, dtype=torch.float64, device=gram.device)
        ridge = self.penalties.double()[:, None] * ones
        ridge[:, -1] = 0.0
        level = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None].clamp(min=1e-12)
        # Features that are constant or copies of others leave the matrix singular; a small multiple
        # of its mean diagonal makes it regular.
        for jitter in (1e-7, 1e-5, 1e-3):
            regular = gram.expand(-1, len(self.penalties), -1, -1).clone()
            regular.diagonal(dim1=-2, dim2=-1).add_(ridge + jitter * level)
            factor, failures = torch.linalg.cholesky_ex(regular)
            del regular
            if not failures.any():
                break
        return torch.cholesky_inverse(factor).to(self.train.dtype)

    def evaluate(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss `[head, penalty]` and its gradient `[head, penalty, column, size]`."""
        n_heads, n_penalties, n_columns, size = weights.shape
        n_examples = self.train.shape[1]
        flat_weights = weights.reshape(n_heads, n_penalties * n_columns, size)
        scores = torch.bmm(flat_weights, self.train.mT)
        if n_columns == 1:
            loss = (torch.nn.functional.softplus(scores) - scores * self.targets).mean(-1)
            error = scores.sigmoid_().sub_(self.targets).div_(n_examples)
        else:
            scores = scores.view(n_heads, n_penalties, n_columns, n_examples)
            index = self.labels.expand(n_heads, n_penalties, 1, n_examples)
            log_probabilities = scores.log_softmax(2)
            loss = -log_probabilities.gather(2, index)[:, :, 0].mean(-1)
            error = log_probabilities.exp_()
            error.scatter_add_(2, index, error.new_full((), -1.0).expand(index.shape))
            error = error.div_(n_examples).view(n_heads, n_penalties * n_columns, n_examples)
        gradient = torch.bmm(error, self.train).view(weights.shape)

        penalised = weights.clone()
        penalised[..., -1] = 0.0  # the bias
        decay = self.penalties[None, :, None, None]
        penalty_loss = 0.5 * (decay * penalised * penalised).sum((2, 3))
        return loss.view(n_heads, n_penalties) + penalty_loss, gradient + decay * penalised


def _weights_of_all_classes(weights: Tensor, n_classes: int) -> Tensor:
    """Return one weight vector for each class; with two classes the first one's is zero."""
    if n_classes == 2:
        return torch.cat([torch.zeros_like(weights), weights], 2)
    return weights
