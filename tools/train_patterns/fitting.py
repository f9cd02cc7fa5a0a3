"""Train networks that classify patterns: one by seed, or many at a time in separate processes."""

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
    # Parameter of the Beta distribution by which two maps and their labels are blended; 0: never.
    mixup: float = 0.0
    # Decay of the running mean of the weights, which is kept; 0: keep the last weights.
    average: float = 0.0
    planted: float = 0.0  # planted maps in a batch for each labelled one
    votes: bool = False  # learn the shares of labellers' votes, not the label that counts


def fit(
    data: Labelled, settings: Settings, seed: int, planted: Labelled | None = None
) -> PatternNetwork:
    """Return a network trained on all of `data`, by seed; planted maps, drawn at random, are added
    to every batch."""
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
    running_mean = None
    if settings.average:
        running_mean = AveragedModel(
            network, multi_avg_fn=get_ema_multi_avg_fn(settings.average), use_buffers=True
        )
    n_planted = round(settings.batch * settings.planted) if planted is not None else 0
    for _ in range(settings.epochs):
        order = torch.randperm(len(data), generator=generator, device=device)
        for start in range(0, len(data) - settings.batch + 1, settings.batch):
            batch = order[start : start + settings.batch]
            images, targets = _training_images(data, batch, settings, generator)
            if planted is not None and n_planted:
                drawn = torch.randint(
                    len(planted), (n_planted,), generator=generator, device=device
                )
                planted_images, planted_targets = _training_images(
                    planted, drawn, settings, generator
                )
                images = torch.cat([images, planted_images])
                targets = torch.cat([targets, planted_targets])
            images = (images * mask).contiguous(memory_format=torch.channels_last)
            loss = _loss(network, loss_of, images, targets, settings.mixup, generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if running_mean is not None:
                running_mean.update_parameters(network)
    if running_mean is not None:
        network = cast(PatternNetwork, running_mean.module)
    # Channels that were masked in training must not count later.
    with torch.no_grad():
        cast(nn.Conv2d, network.convolutions[0]).weight *= mask
    return network.eval()


def _training_images(
    data: Labelled, index: Tensor, settings: Settings, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return images of some maps, augmented, and their labels or votes."""
    weights = data.weights[index]
    lengths = data.lengths[index]
    causal = data.causal[index]
    if settings.augment:
        weights, lengths = augmented(weights, lengths, causal, generator)
    targets = data.votes if settings.votes else data.labels
    return to_images(weights, lengths, causal), targets[index]


def _loss(
    network: nn.Module,
    loss_of: nn.Module,
    images: Tensor,
    targets: Tensor,
    mixup: float,
    generator: torch.Generator,
) -> Tensor:
    """Return the loss on a batch, or on blends of its maps with each other."""
    if not mixup:
        return loss_of(network(images), targets)
    partner = torch.randperm(len(targets), generator=generator, device=targets.device)
    seed = int(torch.randint(2**31, (), generator=generator, device=targets.device))
    share = float(np.random.default_rng(seed).beta(mixup, mixup))
    logits = network(share * images + (1 - share) * images[partner])
    return share * loss_of(logits, targets) + (1 - share) * loss_of(logits, targets[partner])


def channel_mask(channels: Sequence[int], device: torch.device) -> Tensor:
    """Return a mask that is 1 for the channels that a network sees."""
    mask = torch.zeros(len(CHANNELS), 1, 1, device=device)
    mask[list(channels)] = 1
    return mask


@torch.no_grad()
def predict(networks: Sequence[PatternNetwork], data: Labelled) -> np.ndarray:
    """Return the mean probabilities of the networks, `[map, pattern]`."""
    parts = []
    for start in range(0, len(data), CHUNK):
        chunk = slice(start, start + CHUNK)
        images = to_images(data.weights[chunk], data.lengths[chunk], data.causal[chunk])
        of_networks = torch.stack([network(images).softmax(-1) for network in networks])
        parts.append(of_networks.mean(0))
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
    """Yield the networks of all tasks in order, on the data's device.

    They are so small that several can be trained on one GPU at a time."""
    device = data.labels.device.type
    if jobs == 1:
        for task in tasks:
            yield fit(data.select(task.keep), task.settings, task.seed, planted)
        return
    # If possible, in forks of one process that has imported torch.
    context: Any = multiprocessing.get_context("spawn" if os.name == "nt" else "forkserver")
    if os.name != "nt":
        context.set_forkserver_preload(["headwise.analyses.patterns.network"])
    maps = (data.arrays(), planted.arrays(), device)
    with ProcessPoolExecutor(jobs, context, initializer=_start_worker, initargs=maps) as pool:
        for task, arrays in zip(tasks, pool.map(_fit_in_worker, tasks), strict=True):
            state = {name: torch.from_numpy(array) for name, array in arrays.items()}
            network = PatternNetwork(task.settings.widths)
            network.load_state_dict(state)
            yield network.to(device).eval()


# The maps of a worker process, sent once for all tasks.
_WORKER_MAPS: dict[str, Labelled] = {}


def _start_worker(data: dict[str, np.ndarray], planted: dict[str, np.ndarray], device: str) -> None:
    torch.set_num_threads(1)
    _WORKER_MAPS["data"] = Labelled.of_arrays(data).to(device)
    _WORKER_MAPS["planted"] = Labelled.of_arrays(planted).to(device)


def _fit_in_worker(task: Task) -> dict[str, np.ndarray]:
    """Return the weights of a network as arrays.

    Tensors would be sent between processes by open files, of which few are allowed."""
    data = _WORKER_MAPS["data"].select(task.keep)
    network = fit(data, task.settings, task.seed, _WORKER_MAPS["planted"])
    return {name: value.cpu().numpy() for name, value in network.state_dict().items()}
