"""Trains networks that tell patterns apart: one by seed, or many at a time in processes of their
own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from labelled import Labelled, augmented, to_images
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from headwise.analyses.patterns.maps import CHANNELS
from headwise.analyses.patterns.network import CHUNK, PATTERNS, PatternNetwork


@dataclass(frozen=True)
class Settings:
    """How one network is trained."""

    widths: tuple[int, ...] = (12, 12, 24, 24, 48, 48, 64, 64)
    channels: tuple[int, ...] = (0, 1, 2)
    augment: bool = True
    epochs: int = 70
    batch: int = 64
    rate: float = 3e-3
    decay: float = 0.2
    dropout: float = 0.5
    smoothing: float = 0.05
    balance: float = 0.5  # exponent of inverse class frequency in the loss
    mixup: float = 0.0  # parameter of the Beta distribution by which two maps and their labels are blended; 0 for never
    average: float = 0.0  # decay of the running mean of the weights, which is what is kept; 0 for the last weights
    planted: float = 0.0  # planted maps in a batch for each labelled one
    votes: bool = False  # learn the shares of labellers' votes, not the label that counts


def fit(
    data: Labelled, settings: Settings, seed: int, planted: Labelled | None = None
) -> PatternNetwork:
    """One network trained on all of `data`, by seed; planted maps, drawn at random, go beside it
    into every batch."""
    device = data.labels.device
    torch.manual_seed(seed)
    network = PatternNetwork(settings.widths, dropout=settings.dropout).to(device)
    generator = torch.Generator(device=device).manual_seed(seed)
    counts = torch.bincount(data.labels, minlength=len(PATTERNS)).float().clamp(min=1)
    loss_of = nn.CrossEntropyLoss(
        weight=(counts.mean() / counts) ** settings.balance, label_smoothing=settings.smoothing
    )
    optimizer = torch.optim.AdamW(network.parameters(), settings.rate, weight_decay=settings.decay)
    steps = settings.epochs * max(len(data) // settings.batch, 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.rate, total_steps=steps + 1, pct_start=0.15
    )
    mask = channel_mask(settings.channels, device)
    mean = None
    if settings.average:
        mean = AveragedModel(
            network, multi_avg_fn=get_ema_multi_avg_fn(settings.average), use_buffers=True
        )
    beside = round(settings.batch * settings.planted) if planted is not None else 0
    for _ in range(settings.epochs):
        order = torch.randperm(len(data), generator=generator, device=device)
        for begin in range(0, len(data) - settings.batch + 1, settings.batch):
            parts = [_shown(data, order[begin : begin + settings.batch], settings, generator)]
            if planted is not None and beside:
                drawn = torch.randint(len(planted), (beside,), generator=generator, device=device)
                parts.append(_shown(planted, drawn, settings, generator))
            shown = torch.cat([images for images, _ in parts])
            labels = torch.cat([own for _, own in parts])
            shown = (shown * mask).contiguous(memory_format=torch.channels_last)
            loss = _loss(network, loss_of, shown, labels, settings.mixup, generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if mean is not None:
                mean.update_parameters(network)
    if mean is not None:
        network = cast(PatternNetwork, mean.module)
    with torch.no_grad():  # channels it was not shown must not count when it is shown them
        cast(nn.Conv2d, network.convolutions[0]).weight *= mask
    return network.eval()


def _shown(
    data: Labelled, index: Tensor, settings: Settings, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Images of some maps, made anew in small ways, and their labels or votes."""
    weights, lengths, causal = data.weights[index], data.lengths[index], data.causal[index]
    if settings.augment:
        weights, lengths = augmented(weights, lengths, causal, generator)
    return to_images(weights, lengths, causal), (data.votes if settings.votes else data.labels)[
        index
    ]


def _loss(
    network: nn.Module,
    loss_of: nn.Module,
    shown: Tensor,
    labels: Tensor,
    mixup: float,
    generator: torch.Generator,
) -> Tensor:
    """The loss on a batch, or on blends of its maps with each other."""
    if not mixup:
        return loss_of(network(shown), labels)
    partner = torch.randperm(len(labels), generator=generator, device=labels.device)
    drawn = int(torch.randint(2**31, (), generator=generator, device=labels.device))
    share = float(np.random.default_rng(drawn).beta(mixup, mixup))
    said = network(share * shown + (1 - share) * shown[partner])
    return share * loss_of(said, labels) + (1 - share) * loss_of(said, labels[partner])


def channel_mask(channels: Sequence[int], device: torch.device) -> Tensor:
    """1 for the channels that a network is shown."""
    mask = torch.zeros(len(CHANNELS), 1, 1, device=device)
    mask[list(channels)] = 1
    return mask


@torch.no_grad()
def predict(networks: Sequence[PatternNetwork], data: Labelled) -> np.ndarray:
    """Mean probabilities `[map, pattern]`."""
    parts = []
    for begin in range(0, len(data), CHUNK):
        here = slice(begin, begin + CHUNK)
        shown = to_images(data.weights[here], data.lengths[here], data.causal[here])
        parts.append(torch.stack([network(shown).softmax(-1) for network in networks]).mean(0))
    return torch.cat(parts).cpu().numpy()


@dataclass(frozen=True, eq=False)
class Task:
    """A network to train: on which of the labelled maps (by place), how, and by which seed."""

    keep: np.ndarray
    settings: Settings
    seed: int


def fit_all(
    data: Labelled, planted: Labelled, tasks: Sequence[Task], jobs: int = 1
) -> Iterator[PatternNetwork]:
    """The networks of all tasks in order, on the data's device; so small that several fit on one
    GPU at a time."""
    device = data.labels.device.type
    if jobs == 1:
        yield from (
            fit(data.select(task.keep), task.settings, task.seed, planted) for task in tasks
        )
        return
    # Where it can be, in forks of one process that has imported torch.
    context: Any = multiprocessing.get_context("spawn" if os.name == "nt" else "forkserver")
    if os.name != "nt":
        context.set_forkserver_preload(["headwise.analyses.patterns.network"])
    given = (data.arrays(), planted.arrays(), device)
    with ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=given) as pool:
        for task, state in zip(tasks, pool.map(_fitted, tasks), strict=True):
            network = PatternNetwork(task.settings.widths)
            network.load_state_dict(
                {name: torch.from_numpy(value) for name, value in state.items()}
            )
            yield network.to(device).eval()


_HERE: dict[str, Labelled] = {}


def _begin(data: dict[str, np.ndarray], planted: dict[str, np.ndarray], device: str) -> None:
    """In a process of the pool: the maps, once for all tasks."""
    torch.set_num_threads(1)
    _HERE.update(
        data=Labelled.of_arrays(data).to(device), planted=Labelled.of_arrays(planted).to(device)
    )


def _fitted(task: Task) -> dict[str, np.ndarray]:
    """A network's weights as arrays: tensors would pass from process to process by open files, of
    which few fit."""
    network = fit(_HERE["data"].select(task.keep), task.settings, task.seed, _HERE["planted"])
    return {name: value.cpu().numpy() for name, value in network.state_dict().items()}
