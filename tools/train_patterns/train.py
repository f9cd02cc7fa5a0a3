"""Trains the classifier of maps and scores it: folds over heads for choosing, a whole model held out for the figures that are reported.

Usage: python -m headwise.analyses.patterns.train FOLDER [--out WEIGHTS] [--report RESULTS.json]; FOLDER holds maps.npz, maps.csv and labels.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from headwise.analyses.patterns.maps import images, shrink, shrink_visible
from headwise.analyses.patterns.network import PATTERNS, PatternClassifier, PatternNetwork
from headwise.analyses.patterns.store import read_labels, read_maps
from headwise.analyses.patterns.typical import pick_typical, save_typical
from headwise.core.errors import InputError

HELD_OUT = "all-MiniLM-L6-v2"
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled maps, padded to one width: `weights[map, n, n]`, their lengths, labels (index into PATTERNS), and where each comes from."""

    weights: Tensor
    lengths: Tensor
    causal: Tensor
    labels: Tensor
    model: np.ndarray
    head: np.ndarray  # model, layer and head in one string: the unit that folds and resamples keep together
    drawn: np.ndarray
    names: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, keep: np.ndarray) -> Labelled:
        index = torch.as_tensor(np.flatnonzero(keep) if keep.dtype == bool else keep, device=self.labels.device)
        plain = index.cpu().numpy()
        tensors = (getattr(self, name)[index] for name in ("weights", "lengths", "causal", "labels"))
        return Labelled(*tensors, *(getattr(self, name)[plain] for name in ("model", "head", "drawn", "names")))

    def to(self, device: str) -> Labelled:
        return replace(
            self, **{name: getattr(self, name).to(device) for name in ("weights", "lengths", "causal", "labels")}
        )


def load_labelled(folder: Path, round: int = 1, labeller: str | None = None) -> Labelled:
    """Maps with the labels of one pass of one labeller: the first in the table where none is named, so that a second opinion makes no map count twice."""
    maps = read_maps(folder / "maps.npz")
    with (folder / "maps.csv").open(newline="", encoding="utf-8") as file:
        origin = {row["id"]: row for row in csv.DictReader(file)}
    labels = [label for label in read_labels(folder / "labels.csv", maps) if label.round == round]
    if labeller is None and labels:
        labeller = labels[0].labeller
    labels = [label for label in labels if label.labeller == labeller]
    if not labels:
        whose = "" if labeller is None else f" of '{labeller}'"
        raise InputError(
            f"{folder / 'labels.csv'} has no labels{whose} in pass {round}; name a labeller and a pass that are in it."
        )
    unknown = [label.id for label in labels if label.id not in origin]
    if unknown:
        raise InputError(f"{folder / 'maps.csv'} says nothing of the labelled map '{unknown[0]}'.")
    width = max(len(maps[label.id]) for label in labels)
    weights = torch.zeros(len(labels), width, width)
    for k, label in enumerate(labels):
        own = torch.from_numpy(maps[label.id])
        weights[k, : len(own), : len(own)] = own / own.sum(-1, keepdim=True).clamp(min=1e-9)
    rows = [origin[label.id] for label in labels]
    return Labelled(
        weights,
        torch.tensor([len(maps[label.id]) for label in labels]),
        torch.tensor([row["causal"] == "1" for row in rows]),
        torch.tensor([PATTERNS.index(label.label) for label in labels]),
        np.array([row["model"] for row in rows]),
        np.array([f"{row['model']} L{row['layer']}H{row['head']}" for row in rows]),
        np.array([row["drawn"] for row in rows]),
        np.array([label.id for label in labels]),
    )


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


def visible_of(lengths: Tensor, causal: Tensor, width: int) -> Tensor:
    """V(i) as bool `[map, 1, width, width]`."""
    place = torch.arange(width, device=lengths.device)
    real = place[None] < lengths[:, None]
    square = real[:, :, None] & real[:, None, :]
    ahead = place[None, :] > place[:, None]
    return (square & ~(ahead[None] & causal[:, None, None]))[:, None]


def to_images(weights: Tensor, lengths: Tensor, causal: Tensor) -> Tensor:
    """`[map, n, n]`, padded, to `[map, channel, SIZE, SIZE]`."""
    visible = visible_of(lengths, causal, weights.shape[-1])
    return images(shrink(weights[:, None] * visible, lengths), shrink_visible(visible, lengths), lengths)[:, 0]


def augmented(weights: Tensor, lengths: Tensor, causal: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same maps otherwise: tokens left out, both axes turned round (encoders), weights sharpened or flattened, noise; what a labeller sees stays the same kind.

    Tokens that many others attend to are never left out: they may be what makes a map vertical.
    """
    count, width = weights.shape[0], weights.shape[-1]
    device = weights.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    place = torch.arange(width, device=device)[None]
    real = place < lengths[:, None]
    turn = (uniform(count) < 0.5) & ~causal
    order = torch.where(turn[:, None] & real, lengths[:, None] - 1 - place, place.expand(count, -1))
    column = (weights.sum(-2) / lengths[:, None]).gather(-1, order)
    share = uniform(count, 1) * 0.25 * (uniform(count, 1) < 0.7) * (lengths[:, None] > 10)
    keep = real & ((uniform(count, width) >= share) | (column > 2.0 / lengths[:, None]) | (place == 0))
    fresh = keep.sum(-1)
    order = order.gather(-1, torch.argsort(~keep, dim=-1, stable=True))
    weights = weights.gather(-2, order[:, :, None].expand_as(weights)).gather(-1, order[:, None, :].expand_as(weights))
    visible = visible_of(fresh, causal, width)[:, 0]
    # sharpen or flatten, noise
    power = 0.8 + 0.45 * uniform(count, 1, 1)
    noise = torch.exp(0.3 * uniform(count, 1, 1) * torch.randn(weights.shape, generator=generator, device=device))
    weights = weights.clamp(min=0) ** power * noise * visible
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)
    blend = 0.08 * uniform(count, 1, 1) * (uniform(count, 1, 1) < 0.5)
    weights = (1 - blend) * weights + blend * visible / visible.sum(-1, keepdim=True).clamp(min=1)
    return weights * visible, fresh


def fit(data: Labelled, settings: Settings, seed: int) -> PatternNetwork:
    """One network trained on all of `data`, by seed."""
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
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.rate, total_steps=steps + 1, pct_start=0.15)
    mask = channel_mask(settings.channels, device)
    mean = None
    if settings.average:
        mean = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(settings.average), use_buffers=True)
    plain = to_images(data.weights, data.lengths, data.causal)
    for _ in range(settings.epochs):
        order = torch.randperm(len(data), generator=generator, device=device)
        for begin in range(0, len(data) - settings.batch + 1, settings.batch):
            index = order[begin : begin + settings.batch]
            if settings.augment:
                weights, lengths = augmented(data.weights[index], data.lengths[index], data.causal[index], generator)
                shown = to_images(weights, lengths, data.causal[index])
            else:
                shown = plain[index]
            shown = (shown * mask).contiguous(memory_format=torch.channels_last)
            with torch.autocast(
                device.type, torch.bfloat16, enabled=device.type == "cpu"
            ):  # half the time there, and no worse
                loss = _loss(network, loss_of, shown, data.labels[index], settings.mixup, generator)
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


def _loss(
    network: nn.Module, loss_of: nn.Module, shown: Tensor, labels: Tensor, mixup: float, generator: torch.Generator
) -> Tensor:
    """The loss on a batch, or on blends of its maps with each other."""
    if not mixup:
        return loss_of(network(shown), labels)
    partner = torch.randperm(len(labels), generator=generator, device=labels.device)
    share = float(
        np.random.default_rng(int(torch.randint(2**31, (), generator=generator, device=labels.device))).beta(
            mixup, mixup
        )
    )
    said = network(share * shown + (1 - share) * shown[partner])
    return share * loss_of(said, labels) + (1 - share) * loss_of(said, labels[partner])


def channel_mask(channels: Sequence[int], device: Any) -> Tensor:
    mask = torch.zeros(5, 1, 1, device=device)
    mask[list(channels)] = 1
    return mask


@torch.no_grad()
def predict(networks: Sequence[PatternNetwork], data: Labelled) -> np.ndarray:
    """Mean probabilities `[map, pattern]`."""
    shown = to_images(data.weights, data.lengths, data.causal)
    return torch.stack([network(shown).softmax(-1) for network in networks]).mean(0).cpu().numpy()


def head_folds(data: Labelled, folds: int = FOLDS, seed: int = 0) -> np.ndarray:
    """A fold number for each map; all maps of a head share it."""
    heads = sorted(set(data.head))
    fold = dict(zip(np.random.default_rng(seed).permutation(heads), np.arange(len(heads)) % folds, strict=True))
    return np.array([fold[head] for head in data.head])


def confusion(truth: np.ndarray, said: np.ndarray) -> np.ndarray:
    """Counts `[true, said]`."""
    table = np.zeros((len(PATTERNS), len(PATTERNS)), dtype=int)
    np.add.at(table, (truth, said), 1)
    return table


def f1_scores(table: np.ndarray) -> np.ndarray:
    """F1 of each class from counts `[..., true, said]`; NaN for a class that neither occurs nor is said."""
    hit = np.diagonal(table, axis1=-2, axis2=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(table.sum(-1) + table.sum(-2) > 0, 2 * hit / (table.sum(-1) + table.sum(-2)), np.nan)


def score(truth: np.ndarray, said: np.ndarray, head: np.ndarray, repeats: int = 2000, seed: int = 0) -> dict[str, Any]:
    """F1 per class, macro F1 over the classes that occur, and accuracy, each with a percentile-bootstrap interval over heads (whose maps resemble each other)."""
    _, group = np.unique(head, return_inverse=True)
    tables = np.zeros((group.max() + 1, len(PATTERNS), len(PATTERNS)))
    np.add.at(tables, (group, truth, said), 1)
    draws = np.random.default_rng(seed).multinomial(len(tables), np.full(len(tables), 1 / len(tables)), size=repeats)
    resampled = np.einsum("rg,gcd->rcd", draws, tables)
    whole = tables.sum(0)
    occurs = whole.sum(-1) > 0

    def measures(table: np.ndarray) -> np.ndarray:
        f1 = f1_scores(table)
        accuracy = np.diagonal(table, axis1=-2, axis2=-1).sum(-1) / table.sum((-2, -1))
        return np.concatenate([f1, np.nanmean(f1[..., occurs], -1, keepdims=True), accuracy[..., None]], -1)

    with warnings.catch_warnings():  # a class that never occurs is NaN throughout, and shown so
        warnings.simplefilter("ignore", RuntimeWarning)
        point, (low, high) = measures(whole), np.nanpercentile(measures(resampled), [2.5, 97.5], axis=0)
    names = [*PATTERNS, "macro F1", "accuracy"]
    out: dict[str, Any] = {
        name: [round(float(v), 3) for v in (point[k], low[k], high[k])] for k, name in enumerate(names)
    }
    return out | {
        "n": len(truth),
        "per class": whole.sum(-1).astype(int).tolist(),
        "confusion": whole.astype(int).tolist(),
    }


def cross_validate(data: Labelled, settings: Settings, seeds: Sequence[int] = (0,)) -> np.ndarray:
    """Out-of-fold probabilities `[map, pattern]`: every map judged by networks that never saw its head."""
    fold = head_folds(data)
    out = np.zeros((len(data), len(PATTERNS)))
    for k in range(FOLDS):
        networks = [fit(data.select(fold != k), settings, seed) for seed in seeds]
        out[fold == k] = predict(networks, data.select(fold == k))
    return out


def write_typical(path: Path, data: Labelled, classifier: PatternClassifier) -> None:
    """Choose and write the maps that the gallery shows."""
    shown = to_images(data.weights, data.lengths, data.causal)
    probabilities = classifier.probabilities(shown).cpu().numpy()
    lengths = data.lengths.cpu().numpy()
    texts = np.array([name.rpartition("/")[0] for name in data.names])  # an id is model/text/head
    picked = pick_typical(
        data.names, data.labels.cpu().numpy(), probabilities, data.head, texts, lengths, data.causal.cpu().numpy()
    )
    place = {str(name): k for k, name in enumerate(data.names)}
    cut = {name: data.weights[k, : lengths[k], : lengths[k]].cpu().numpy() for name, k in place.items()}
    save_typical(path, {pattern: [cut[name] for name in names] for pattern, names in picked.items()})


CANDIDATES = {
    "chosen": Settings(),
    "mixup": Settings(mixup=0.2),
    "less dropout and decay": Settings(dropout=0.3, decay=0.05),
    "no augmentation": Settings(augment=False),
    "all channels": Settings(channels=(0, 1, 2, 3, 4)),
    "map and mask only": Settings(channels=(0, 2)),
    "wider": Settings(widths=(16, 16, 32, 32, 64, 64, 96, 96)),
    "averaged weights": Settings(average=0.99),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--report", type=Path, default=None)
    parser.add_argument("--typical", type=Path, default=None, help="where to write typical maps of each pattern")
    parser.add_argument(
        "--networks", type=int, default=3, help="how many networks, by seed, are averaged in the shipped classifier"
    )
    parser.add_argument(
        "--fold-networks", type=int, default=3, help="how many of them are averaged where folds or models are left out"
    )
    parser.add_argument(
        "--choose", action="store_true", help="compare the candidate settings by folds on the training models first"
    )
    parser.add_argument("--settings", default="chosen", choices=sorted(CANDIDATES))
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    everything = load_labelled(given.folder).to(device)
    training = everything.select(everything.model != HELD_OUT)
    held = everything.select(everything.model == HELD_OUT)
    report: dict[str, Any] = {"candidates": {}}
    chosen = given.settings
    if given.choose:
        for name, settings in CANDIDATES.items():
            said = cross_validate(training, settings).argmax(-1)
            report["candidates"][name] = score(training.labels.cpu().numpy(), said, training.head)
            print(name, report["candidates"][name]["macro F1"], report["candidates"][name]["accuracy"], flush=True)
        chosen = max(report["candidates"], key=lambda name: report["candidates"][name]["macro F1"][0])
    settings, seeds, few = CANDIDATES[chosen], range(given.networks), range(given.fold_networks)
    report["chosen"] = chosen
    networks = tuple(fit(training, settings, seed) for seed in seeds)
    held_truth, held_said = held.labels.cpu().numpy(), predict(networks, held).argmax(-1)
    report[f"held out, {HELD_OUT}"] = score(held_truth, held_said, held.head)
    by_design = held.drawn == "design"
    report[f"held out, {HELD_OUT}, by design only"] = score(
        held_truth[by_design], held_said[by_design], held.head[by_design]
    )
    nothing = np.zeros((len(PATTERNS), len(PATTERNS)), dtype=int)
    if given.out is not None:  # at once: what follows takes longer
        PatternClassifier(networks, nothing, nothing).save(given.out)
    folds = cross_validate(training, settings, few).argmax(-1)
    truth = training.labels.cpu().numpy()
    encoder = ~training.causal.cpu().numpy()
    report["folds, training models"] = score(truth, folds, training.head)
    report["folds, wiki-bert"] = score(truth[encoder], folds[encoder], training.head[encoder])
    report["folds, causal"] = score(truth[~encoder], folds[~encoder], training.head[~encoder])
    print(json.dumps(report["folds, training models"]), flush=True)
    causal_truth, causal_said, causal_head = [], [], []
    for model in sorted(set(training.model[~encoder])):
        rest, own = training.select(training.model != model), training.select(training.model == model)
        said = predict([fit(rest, settings, seed) for seed in few], own).argmax(-1)
        report[f"causal, {model} left out"] = score(own.labels.cpu().numpy(), said, own.head)
        causal_truth.append(own.labels.cpu().numpy())
        causal_said.append(said)
        causal_head.append(own.head)
    truth_left, said_left, head_left = (np.concatenate(parts) for parts in (causal_truth, causal_said, causal_head))
    report["causal, each model left out"] = score(truth_left, said_left, head_left)
    # Mistakes are counted on maps of heads or models that the judging networks never saw.
    seen_not = confusion(np.concatenate([truth[encoder], held_truth]), np.concatenate([folds[encoder], held_said]))
    classifier = PatternClassifier(networks, seen_not, confusion(truth_left, said_left))
    if given.out is not None:
        classifier.save(given.out)
    if given.typical is not None:
        write_typical(given.typical, everything, classifier)
    text = json.dumps(report, indent=1)
    if given.report is not None:
        given.report.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
