"""SentEval's classifier for all heads and penalties at once: minibatch softmax regression with
early stopping for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.probes.settings import ProbeSettings

OPTIMIZERS: dict[str, Any] = {"rmsprop": torch.optim.RMSprop, "adam": torch.optim.Adam}
SCORES_AT_ONCE = 2**25  # class scores formed at once when predicting


def fit_senteval(
    train: Tensor,
    train_labels: Tensor,
    held_out: Tensor,
    held_out_labels: Tensor,
    n_classes: int,
    settings: ProbeSettings,
) -> tuple[Tensor, Tensor]:
    """Train the classifiers of all heads and penalties together.

    Every classifier starts from the same weights and sees the same batches, as SentEval's would
    with one seed, so that each ends where it would have ended alone. A classifier whose validation
    accuracy stops improving is frozen; a head whose classifiers are all frozen leaves the
    computation.

    Parameters
    ----------
    train, held_out : Tensor
        Features with a last column of ones, `[head, example, size + 1]`.
    train_labels, held_out_labels : Tensor
        Class numbers, `[example]`.
    n_classes : int
        Number of classes.
    settings : ProbeSettings
        Optimizer, batches and early stopping.

    Returns
    -------
    weights, accuracy
        Weights `[head, penalty, class, size + 1]` at the best check of validation, and the accuracy
        `[head, penalty]` there.
    """
    n_heads, n_examples, size = train.shape
    # Examples first: the rows of a batch are then long, and gathering them is cheap.
    by_example = train.transpose(0, 1).contiguous()
    penalties = torch.tensor(settings.penalties, dtype=train.dtype, device=train.device)
    decay = penalties[None, :, None, None]
    shape = (n_heads, len(penalties), n_classes, size)
    weights = _initial_weights(n_classes, size, settings.seed).to(train).expand(shape).clone()
    optimizer = OPTIMIZERS[settings.optimizer]([weights], lr=settings.learning_rate)
    batch_order = np.random.RandomState(settings.seed)

    best_weights = weights.clone()
    best_accuracy = torch.full(shape[:2], -1.0, device=train.device)
    checks_without_gain = torch.zeros(shape[:2], dtype=torch.int64, device=train.device)
    active = torch.ones(shape[:2], dtype=torch.bool, device=train.device)
    remaining = torch.arange(n_heads, device=train.device)  # heads still in the computation
    if settings.tenacity_counts == "total":
        most_checks = settings.tenacity + 1
    else:
        most_checks = settings.tenacity

    for _ in range(max(1, settings.max_epochs // settings.epoch_size)):
        for _ in range(settings.epoch_size):
            permutation = torch.from_numpy(batch_order.permutation(n_examples)).to(train.device)
            for start in range(0, n_examples, settings.batch_size):
                rows = permutation[start : start + settings.batch_size]
                batch = by_example.index_select(0, rows).transpose(0, 1)
                gradient = _loss_gradient(batch, train_labels[rows], weights)
                weights.grad = gradient.add_(weights * decay)
                optimizer.step()

        accuracy = accuracies(held_out, held_out_labels, weights)
        improved = (accuracy > best_accuracy[remaining]) & active
        best_accuracy[remaining] = torch.where(improved, accuracy, best_accuracy[remaining])
        head, penalty = improved.nonzero(as_tuple=True)
        best_weights[remaining[head], penalty] = weights[head, penalty]

        after_gain = torch.zeros_like(checks_without_gain)
        if settings.tenacity_counts == "total":
            after_gain = checks_without_gain
        checks_without_gain = torch.where(improved, after_gain, checks_without_gain + 1)
        active = active & (checks_without_gain < most_checks)
        staying = active.any(1)
        if not staying.any():
            break
        if not staying.all():
            remaining = remaining[staying]
            held_out = held_out[staying]
            active = active[staying]
            checks_without_gain = checks_without_gain[staying]
            by_example = by_example[:, staying]
            weights = _keep_heads(optimizer, staying)
    return best_weights, best_accuracy


def _initial_weights(n_classes: int, size: int, seed: int) -> Tensor:
    """Return what `torch.nn.Linear(size - 1, n_classes)` starts from after
    `torch.manual_seed(seed)`, the bias as last column."""
    generator = torch.Generator().manual_seed(seed)
    bound = 1 / np.sqrt(max(size - 1, 1))
    weight = torch.empty(n_classes, size - 1).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(n_classes, 1).uniform_(-bound, bound, generator=generator)
    return torch.cat([weight, bias], -1)


def _loss_gradient(batch: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of the mean cross-entropy of softmax(X W^T), `[head, penalty, class,
    size]`."""
    n_heads, n_penalties, n_classes, size = weights.shape
    if n_classes == 2:
        # Both columns follow from the margin between them, at half the work.
        margin = torch.bmm(weights[:, :, 1] - weights[:, :, 0], batch.mT)
        error = margin.sigmoid_().sub_(labels.to(margin.dtype)).div_(len(labels))
        second_class = torch.bmm(error, batch)
        return torch.stack([-second_class, second_class], 2)
    flat_weights = weights.view(n_heads, n_penalties * n_classes, size)
    scores = torch.bmm(flat_weights, batch.mT).view(n_heads, n_penalties, n_classes, -1)
    error = scores.softmax(2)
    index = labels.expand(n_heads, n_penalties, 1, -1)
    error.scatter_add_(2, index, error.new_full((), -1.0).expand(index.shape))
    error = error.div_(len(labels)).view(n_heads, n_penalties * n_classes, -1)
    return torch.bmm(error, batch).view(weights.shape)


def predictions(values: Tensor, weights: Tensor) -> Tensor:
    """Return the most probable class, `[head, penalty, example]`, of features `[head, example,
    size]`."""
    n_heads, n_penalties, n_classes, size = weights.shape
    flat_weights = weights.reshape(n_heads, n_penalties * n_classes, size)
    step = max(1, SCORES_AT_ONCE // max(1, n_heads * n_penalties * n_classes))
    chunks = []
    for start in range(0, values.shape[1], step):
        scores = torch.bmm(flat_weights, values[:, start : start + step].mT)
        scores = scores.view(n_heads, n_penalties, n_classes, -1)
        if n_classes == 2:
            chunks.append((scores[:, :, 1] > scores[:, :, 0]).long())
        else:
            chunks.append(scores.argmax(2))
    return torch.cat(chunks, -1)


def accuracies(values: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the share of correct predictions, `[head, penalty]`."""
    return (predictions(values, weights) == labels).float().mean(-1)


def _keep_heads(optimizer: torch.optim.Optimizer, staying: Tensor) -> Tensor:
    """Return the weights of the heads that stay, with the optimizer's state reduced to them."""
    group = optimizer.param_groups[0]
    (weights,) = group["params"]
    reduced: Tensor = weights[staying]
    reduced_state = {}
    for name, value in optimizer.state.pop(weights).items():
        # Running averages have the shape of the weights; the step count does not.
        reduced_state[name] = value[staying] if value.shape == weights.shape else value
    optimizer.state[reduced] = reduced_state
    group["params"] = [reduced]
    return reduced
