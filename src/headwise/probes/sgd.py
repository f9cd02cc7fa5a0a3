"""SentEval's classifier for all heads and penalties at once: minibatch softmax regression, each
stopped early."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.probes.settings import ProbeSettings

OPTIMIZERS: dict[str, Any] = {"rmsprop": torch.optim.RMSprop, "adam": torch.optim.Adam}


def fit_senteval(
    train: Tensor,
    train_labels: Tensor,
    held_out: Tensor,
    held_out_labels: Tensor,
    classes: int,
    settings: ProbeSettings,
) -> tuple[Tensor, Tensor]:
    """Train `head x penalty` classifiers together.

    Every classifier starts from the same weights and sees the same batches, as SentEval's would
    with one seed, so that each ends where it would have ended alone. One whose validation accuracy
    has not improved for long enough is frozen; a head whose classifiers are all frozen leaves the
    computation.

    Parameters
    ----------
    train, held_out : Tensor
        Features with a last column of ones, [head, example, size + 1].

    Returns
    -------
    weights [head, penalty, class, size + 1] at the best look, and validation accuracy [head,
    penalty] there."""
    heads, examples, size = train.shape
    by_example = train.transpose(
        0, 1
    ).contiguous()  # rows of a batch are then long: gathering them is cheap
    penalties = torch.tensor(settings.penalties, dtype=train.dtype, device=train.device)
    shape = (heads, len(penalties), classes, size)
    weights = _initial(classes, size, settings.seed).to(train).expand(shape).clone()
    best_weights, best = weights.clone(), torch.full(shape[:2], -1.0, device=train.device)
    optimizer = OPTIMIZERS[settings.optimizer]([weights], lr=settings.learning_rate)
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
                gradient = _gradient(
                    by_example.index_select(0, rows).transpose(0, 1), train_labels[rows], weights
                )
                weights.grad = gradient.add_(weights * decay)
                optimizer.step()
        accuracy = accuracies(held_out, held_out_labels, weights)
        better = (accuracy > best[here]) & active
        best[here] = torch.where(better, accuracy, best[here])
        chosen = better.nonzero(as_tuple=True)
        best_weights[here[chosen[0]], chosen[1]] = weights[chosen]
        waited = torch.where(
            better, 0 if settings.tenacity_counts == "consecutive" else waited, waited + 1
        )
        active = active & (waited < limit)
        staying = active.any(1)
        if not staying.any():
            break
        if not staying.all():
            here, held_out, active, waited = (
                each[staying] for each in (here, held_out, active, waited)
            )
            by_example, weights = by_example[:, staying], _kept(optimizer, staying)
    return best_weights, best


def _initial(classes: int, size: int, seed: int) -> Tensor:
    """What `torch.nn.Linear(size - 1, classes)` starts from after `torch.manual_seed(seed)`, bias
    as last column."""
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
    scores = torch.bmm(weights.view(heads, penalties * classes, size), batch.mT).view(
        heads, penalties, classes, -1
    )
    error = scores.softmax(2)
    index = labels.expand(heads, penalties, 1, -1)
    error.scatter_add_(2, index, error.new_full((), -1.0).expand(index.shape))
    error = error.div_(len(labels)).view(heads, penalties * classes, -1)
    return torch.bmm(error, batch).view(weights.shape)


def predictions(values: Tensor, weights: Tensor) -> Tensor:
    """The most probable class [head, penalty, example] of features [head, example, size]."""
    heads, penalties, classes, size = weights.shape
    step = max(1, 2**25 // max(1, heads * penalties * classes))
    out = []
    for start in range(0, values.shape[1], step):
        scores = torch.bmm(
            weights.reshape(heads, penalties * classes, size), values[:, start : start + step].mT
        )
        scores = scores.view(heads, penalties, classes, -1)
        out.append((scores[:, :, 1] > scores[:, :, 0]).long() if classes == 2 else scores.argmax(2))
    return torch.cat(out, -1)


def accuracies(values: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The share of right predictions [head, penalty]."""
    return (predictions(values, weights) == labels).float().mean(-1)


def _kept(optimizer: torch.optim.Optimizer, staying: Tensor) -> Tensor:
    """The weights of the heads that stay; the optimizer goes on with them where it is."""
    group = optimizer.param_groups[0]
    (weights,) = group["params"]
    fewer: Tensor = weights[staying]
    state = optimizer.state.pop(weights)
    optimizer.state[fewer] = {
        name: value[staying] if value.shape == weights.shape else value
        for name, value in state.items()
    }
    group["params"] = [fewer]
    return fewer
