"""SentEval's classifier for all heads and penalties at once: minibatch softmax regression, each stopped early."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headwise.probes.settings import ProbeSettings


def fit_senteval(
    train: Tensor,
    train_labels: Tensor,
    held_out: Tensor,
    held_out_labels: Tensor,
    classes: int,
    settings: ProbeSettings,
) -> tuple[Tensor, Tensor]:
    """Train `head x penalty` classifiers together.

    Every classifier starts from the same weights and sees the same batches, as SentEval's would with one seed, so that
    each ends where it would have ended alone. One whose validation accuracy has not improved for long enough is frozen;
    a head whose classifiers are all frozen leaves the computation.

    Parameters
    ----------
    train, held_out : Tensor
        Features with a last column of ones, [head, example, size + 1].

    Returns
    -------
    weights [head, penalty, class, size + 1] at the best look, and validation accuracy [head, penalty] there.
    """
    heads, examples, size = train.shape
    by_example = train.transpose(
        0, 1
    ).contiguous()  # rows of a batch are then long and contiguous: gathering them is cheap
    penalties = torch.tensor(settings.penalties, dtype=train.dtype, device=train.device)
    shape = (heads, len(penalties), classes, size)
    weights = _initial(classes, size, settings.seed).to(train).expand(shape).clone()
    best_weights, best = weights.clone(), torch.full(shape[:2], -1.0, device=train.device)
    optimizer = _OPTIMIZERS[settings.optimizer](weights, settings.learning_rate)
    waited = torch.zeros(shape[:2], dtype=torch.int64, device=train.device)
    active = torch.ones(shape[:2], dtype=torch.bool, device=train.device)
    here = torch.arange(heads, device=train.device)  # the heads still in the computation
    order = np.random.RandomState(settings.seed)
    decay = penalties[None, :, None, None]
    limit = settings.tenacity + 1 if settings.tenacity_counts == "total" else settings.tenacity

    for _ in range(max(1, settings.max_epochs // settings.epoch_size)):
        for _ in range(settings.epoch_size):
            permutation = torch.from_numpy(order.permutation(examples)).to(train.device)
            for start in range(0, examples, settings.batch_size):
                rows = permutation[start : start + settings.batch_size]
                gradient = _gradient(by_example.index_select(0, rows).transpose(0, 1), train_labels[rows], weights)
                optimizer.step(weights, gradient.add_(weights * decay))
        accuracy = accuracies(held_out, held_out_labels, weights)
        better = (accuracy > best[here]) & active
        best[here] = torch.where(better, accuracy, best[here])
        chosen = better.nonzero(as_tuple=True)
        best_weights[here[chosen[0]], chosen[1]] = weights[chosen]
        waited = torch.where(better, 0 if settings.tenacity_counts == "consecutive" else waited, waited + 1)
        active = active & (waited < limit)
        staying = active.any(1)
        if not staying.any():
            break
        if not staying.all():
            here, by_example, held_out, weights = (
                here[staying],
                by_example[:, staying],
                held_out[staying],
                weights[staying],
            )
            active, waited = active[staying], waited[staying]
            optimizer.keep(staying)
    return best_weights, best


def _initial(classes: int, size: int, seed: int) -> Tensor:
    """What `torch.nn.Linear(size - 1, classes)` starts from after `torch.manual_seed(seed)`, bias as last column."""
    generator = torch.Generator().manual_seed(seed)
    bound = 1 / np.sqrt(max(size - 1, 1))
    weight = torch.empty(classes, size - 1).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(classes, 1).uniform_(-bound, bound, generator=generator)
    return torch.cat([weight, bias], -1)


def _gradient(batch: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy of softmax(X W^T), [head, penalty, class, size]."""
    heads, penalties, classes, size = weights.shape
    if classes == 2:
        # Two classes: both columns follow from the margin between them, at half the work.
        margin = torch.bmm(weights[:, :, 1] - weights[:, :, 0], batch.mT)
        error = margin.sigmoid_().sub_(labels.to(margin.dtype)).div_(len(labels))
        one = torch.bmm(error, batch)
        return torch.stack([-one, one], 2)
    scores = torch.bmm(weights.view(heads, penalties * classes, size), batch.mT).view(heads, penalties, classes, -1)
    error = scores.softmax(2)
    error.scatter_add_(
        2,
        labels.expand(heads, penalties, 1, -1),
        torch.full((), -1.0, device=error.device).expand(heads, penalties, 1, len(labels)),
    )
    error = error.div_(len(labels)).view(heads, penalties * classes, -1)
    return torch.bmm(error, batch).view(weights.shape)


def predictions(values: Tensor, weights: Tensor) -> Tensor:
    """The most probable class [head, penalty, example] of features [head, example, size]."""
    heads, penalties, classes, size = weights.shape
    step = max(1, 2**25 // max(1, heads * penalties * classes))
    out = []
    for start in range(0, values.shape[1], step):
        scores = torch.bmm(weights.reshape(heads, penalties * classes, size), values[:, start : start + step].mT)
        scores = scores.view(heads, penalties, classes, -1)
        out.append((scores[:, :, 1] > scores[:, :, 0]).long() if classes == 2 else scores.argmax(2))
    return torch.cat(out, -1)


def accuracies(values: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The share of right predictions [head, penalty]."""
    return (predictions(values, weights) == labels).float().mean(-1)


class _RMSprop:
    """torch.optim.RMSprop's step (alpha 0.99, eps 1e-8), for stacked weights."""

    def __init__(self, weights: Tensor, rate: float) -> None:
        self.rate, self.square = rate, torch.zeros_like(weights)

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        self.square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        weights.addcdiv_(gradient, self.square.sqrt().add_(1e-8), value=-self.rate)

    def keep(self, staying: Tensor) -> None:
        self.square = self.square[staying]


class _Adam:
    """torch.optim.Adam's step (betas 0.9 and 0.999, eps 1e-8), for stacked weights."""

    def __init__(self, weights: Tensor, rate: float) -> None:
        self.rate, self.time = rate, 0
        self.first, self.second = torch.zeros_like(weights), torch.zeros_like(weights)

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        self.time += 1
        self.first.mul_(0.9).add_(gradient, alpha=0.1)
        self.second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        scale = (self.second / (1 - 0.999**self.time)).sqrt_().add_(1e-8)
        weights.addcdiv_(self.first, scale, value=-self.rate / (1 - 0.9**self.time))

    def keep(self, staying: Tensor) -> None:
        self.first, self.second = self.first[staying], self.second[staying]


_OPTIMIZERS: dict[str, type[_RMSprop] | type[_Adam]] = {"rmsprop": _RMSprop, "adam": _Adam}
