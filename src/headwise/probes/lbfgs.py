"""Logistic regression to convergence for all heads and penalties at once: batched L-BFGS from a
curvature bound."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from headwise.probes.features import gram_matrix
from headwise.probes.settings import ProbeSettings

_HISTORY = 8
_BACKTRACKS = 20
_FRESH = 20  # iterations after which the curvature is taken anew, where the weights then are
_STRONG = 1e-2  # penalties below it need smaller gradients: what is left to gain is |gradient|² / (2 · penalty) at most


def fit_lbfgs(
    train: Tensor, labels: Tensor, classes: int, settings: ProbeSettings
) -> tuple[Tensor, Tensor]:
    """Minimise `mean cross-entropy + penalty / 2 * |W|^2` for `head x penalty` classifiers
    together; biases go free.

    The optimum is that of scikit-learn's `LogisticRegression(C=1 / (n * penalty))`: softmax over
    all classes, and for two classes one weight vector. `train` has a last column of ones, [head,
    example, size + 1].

    Returns
    -------
    weights [head, penalty, class, size + 1] and whether each classifier converged [head, penalty].
    """
    heads, _, size = train.shape
    columns = 1 if classes == 2 else classes
    problem = _Problem(
        train,
        labels,
        columns,
        torch.tensor(settings.penalties, dtype=train.dtype, device=train.device),
    )
    shape = (heads, len(settings.penalties), columns, size)
    final = torch.zeros(shape, dtype=train.dtype, device=train.device)
    converged = torch.zeros(shape[:2], dtype=torch.bool, device=train.device)
    here = torch.arange(heads, device=train.device)  # the heads still in the computation
    weights = final.clone()
    value, gradient = problem.evaluate(weights)
    history: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=_HISTORY)
    scale = torch.ones(shape[:2], dtype=train.dtype, device=train.device)
    stuck = torch.zeros_like(converged)
    share = (problem.penalties / _STRONG).clamp(1e-4, 1.0).sqrt()
    small = (settings.tolerance * share)[
        None
    ]  # the gradient of a classifier that is done, by penalty

    for iteration in range(settings.max_iterations):
        done = gradient.abs().amax((2, 3)) <= small
        finished = done | stuck
        leaving = finished.all(1)
        if leaving.any():
            final[here[leaving]], converged[here[leaving]] = weights[leaving], done[leaving]
            keep = ~leaving
            if not keep.any():
                return _full(final, classes), converged
            here, weights, value, gradient, scale, stuck = (
                x[keep] for x in (here, weights, value, gradient, scale, stuck)
            )
            finished = finished[keep]
            history = deque([(s[keep], y[keep], r[keep]) for s, y, r in history], maxlen=_HISTORY)
            problem = problem.keep(keep)
        if iteration and iteration % _FRESH == 0:
            problem.refresh(weights)
            history.clear()
            scale = torch.ones_like(scale)
        direction = _direction(gradient, history, scale, problem)
        slope = (direction * gradient).sum((2, 3))
        # Without descent (rounding, a stale history) the preconditioned gradient is always one.
        lost = slope >= 0
        if lost.any():
            direction = torch.where(
                lost[..., None, None], -problem.precondition(gradient), direction
            )
            slope = (direction * gradient).sum((2, 3))
        length = torch.ones_like(value).masked_fill(finished, 0.0)
        accepted = finished.clone()
        slack = 1e-6 * value.abs() if train.dtype == torch.float32 else 0.0
        for _ in range(_BACKTRACKS):
            new_weights = weights + length[..., None, None] * direction
            new_value, new_gradient = problem.evaluate(new_weights)
            accepted = accepted | (new_value <= value + 1e-4 * length * slope + slack)
            if accepted.all():
                break
            length = torch.where(accepted, length, length / 2)
        failed = ~accepted
        if failed.any():
            # No step down is left at this precision: such a classifier stays where it is.
            stuck = stuck | failed
            held = failed[..., None, None]
            new_weights = torch.where(held, weights, new_weights)
            new_gradient = torch.where(held, gradient, new_gradient)
            new_value = torch.where(failed, value, new_value)
        step, change = new_weights - weights, new_gradient - gradient
        curvature = (step * change).sum((2, 3))
        usable = curvature > 1e-10 * (step * step).sum((2, 3))
        inverse = torch.where(usable, 1 / torch.where(usable, curvature, 1.0), 0.0)
        history.append((step, change, inverse))
        norm = (change * problem.precondition(change)).sum((2, 3))
        scale = torch.where(usable & (norm > 0), curvature / norm.clamp(min=1e-30), scale)
        weights, value, gradient = new_weights, new_value, new_gradient
    final[here], converged[here] = weights, gradient.abs().amax((2, 3)) <= small
    return _full(final, classes), converged


def _direction(
    gradient: Tensor,
    history: deque[tuple[Tensor, Tensor, Tensor]],
    scale: Tensor,
    problem: _Problem,
) -> Tensor:
    """The two-loop recursion; a pair of a classifier without positive curvature has inverse 0 and
    is passed over."""
    q = gradient.clone()
    factors = []
    for step, change, inverse in reversed(history):
        factor = inverse * (step * q).sum((2, 3))
        q -= factor[..., None, None] * change
        factors.append(factor)
    q = scale[..., None, None] * problem.precondition(q)
    for (step, change, inverse), factor in zip(history, reversed(factors), strict=True):
        back = inverse * (change * q).sum((2, 3))
        q += (factor - back)[..., None, None] * step
    return -q


class _Problem:
    """Loss and gradient of all classifiers of some heads, and the bound on their curvature."""

    def __init__(
        self,
        train: Tensor,
        labels: Tensor,
        columns: int,
        penalties: Tensor,
        inverse: Tensor | None = None,
    ) -> None:
        self.train, self.labels, self.columns, self.penalties = train, labels, columns, penalties
        self.targets = labels.to(train.dtype) if columns == 1 else labels
        self.inverse = self._inverse_bound() if inverse is None else inverse

    def keep(self, heads: Tensor) -> _Problem:
        return _Problem(
            self.train[heads], self.labels, self.columns, self.penalties, self.inverse[heads]
        )

    def precondition(self, vector: Tensor) -> Tensor:
        return vector @ self.inverse

    def _inverse_bound(self) -> Tensor:
        """`(a X'X / n + penalty)^-1` [head, penalty, size, size]: the Hessian with one variance `a`
        for all."""
        examples = self.train.shape[1]
        if self.columns == 1:
            share = self.targets.mean()
            variance = (share * (1 - share)).clamp(min=1e-3).double()
        else:
            share = torch.bincount(self.labels, minlength=self.columns).double() / examples
            variance = (share * (1 - share)).mean().clamp(min=1e-6)
        return self._inverse(gram_matrix(self.train)[:, None] / examples * variance)

    def refresh(self, weights: Tensor) -> None:
        """Take the curvature where the weights are: Newton's for two classes, one for all classes
        where there are more.

        Far from the start most examples are sure and have next to none: the first bound then leads
        nowhere fast."""
        heads, penalties, columns, size = weights.shape
        scores = torch.bmm(weights.reshape(heads, penalties * columns, size), self.train.mT)
        shape = (heads, penalties, columns, -1)
        shares = scores.sigmoid() if columns == 1 else scores.view(shape).softmax(2)
        variance = (shares * (1 - shares)).view(shape).mean(2)  # head, penalty, example
        grams = [
            torch.stack([gram_matrix((unit * root[:, None])[None])[0] for root in own.sqrt()])
            for unit, own in zip(self.train, variance, strict=True)
        ]
        self.inverse = self._inverse(torch.stack(grams) / self.train.shape[1])

    def _inverse(self, gram: Tensor) -> Tensor:
        """`(gram + penalty)^-1` [head, penalty, size, size]; the bias is not penalised."""
        size = gram.shape[-1]
        ridge = self.penalties.double()[:, None] * torch.ones(
            size, dtype=torch.float64, device=gram.device
        )
        ridge[:, -1] = 0.0
        level = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None].clamp(min=1e-12)
        # Features that are constant or copies of others leave the matrix singular: a small multiple
        # of its size mends that.
        for jitter in (1e-7, 1e-5, 1e-3):
            factor, failed = torch.linalg.cholesky_ex(
                gram + torch.diag_embed(ridge + jitter * level)
            )
            if not failed.any():
                break
        return torch.cholesky_inverse(factor).to(self.train.dtype)

    def evaluate(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Loss [head, penalty] and gradient [head, penalty, column, size]."""
        heads, penalties, columns, size = weights.shape
        examples = self.train.shape[1]
        scores = torch.bmm(weights.reshape(heads, penalties * columns, size), self.train.mT)
        if columns == 1:
            loss = (torch.nn.functional.softplus(scores) - scores * self.targets).mean(-1)
            error = scores.sigmoid_().sub_(self.targets).div_(examples)
        else:
            scores = scores.view(heads, penalties, columns, examples)
            index = self.labels.expand(heads, penalties, 1, examples)
            logs = scores.log_softmax(2)
            loss = -logs.gather(2, index)[:, :, 0].mean(-1)
            error = logs.exp_()
            error.scatter_add_(2, index, error.new_full((), -1.0).expand(index.shape))
            error = error.div_(examples).view(heads, penalties * columns, examples)
        gradient = torch.bmm(error, self.train).view(weights.shape)
        penalised = weights.clone()
        penalised[..., -1] = 0.0
        decay = self.penalties[None, :, None, None]
        size_of = 0.5 * (decay * penalised * penalised).sum((2, 3))
        return loss.view(heads, penalties) + size_of, gradient + decay * penalised


def _full(weights: Tensor, classes: int) -> Tensor:
    """One weight vector for each class: with two classes the first one's is zero."""
    return torch.cat([torch.zeros_like(weights), weights], 2) if classes == 2 else weights
