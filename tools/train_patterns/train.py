"""Trains the classifier of maps and scores it: folds over heads for choosing, a whole model held out for the report.

    python tools/train_patterns/train.py FOLDER [--out WEIGHTS] [--report RESULTS.json] [--typical TYPICAL.npz]

FOLDER holds maps.npz, maps.csv and labels.csv (data/patterns); README.md has the command that made the shipped files.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from labelled import Labelled, augmented, load_labelled, to_images
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from headwise.analyses.patterns.maps import CHANNELS
from headwise.analyses.patterns.network import PATTERNS, PatternClassifier, PatternNetwork
from headwise.analyses.patterns.store import save_maps
from headwise.stats.bootstrap import percentile_interval, resamples

HELD_OUT = "all-MiniLM-L6-v2"
FOLDS = 5
SEEN = "maps of {}, each judged by networks that did not see its head"
UNSEEN = "maps of {}, each judged by networks that did not see its model"
TYPICAL = 3  # maps of each pattern that the gallery shows
FEWEST_TOKENS = 20  # of such a map


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
            # On a processor bfloat16 takes half the time, and is no worse.
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cpu"):
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
    """F1 per class, macro F1 over the classes that occur, and accuracy.

    Each has a percentile-bootstrap interval over heads, whose maps resemble each other.
    """
    _, group = np.unique(head, return_inverse=True)
    tables = np.zeros((group.max() + 1, len(PATTERNS), len(PATTERNS)))
    np.add.at(tables, (group, truth, said), 1)
    resampled = np.einsum("rg,gcd->rcd", resamples(len(tables), repeats, seed), tables)
    whole = tables.sum(0)
    occurs = whole.sum(-1) > 0

    def measures(table: np.ndarray) -> np.ndarray:
        f1 = f1_scores(table)
        accuracy = np.diagonal(table, axis1=-2, axis2=-1).sum(-1) / table.sum((-2, -1))
        return np.concatenate([f1, np.nanmean(f1[..., occurs], -1, keepdims=True), accuracy[..., None]], -1)

    with warnings.catch_warnings():  # a class that never occurs is NaN throughout, and shown so
        warnings.simplefilter("ignore", RuntimeWarning)
        point, (low, high) = measures(whole), percentile_interval(measures(resampled))
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


def save_classifier(path: Path, classifier: PatternClassifier, about: Mapping[str, str] | None = None) -> None:
    """Write weights (as float16), confusion counts and what else there is to say of them to one file."""
    tensors = {
        f"{k}.{name}": (value.half() if value.is_floating_point() else value).cpu().contiguous()
        for k, network in enumerate(classifier.networks)
        for name, value in network.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    known = {
        "patterns": PATTERNS,
        "channels": CHANNELS,
        "networks": len(classifier.networks),
        "confusion": classifier.confusion.tolist(),
        "confusion_causal": classifier.confusion_causal.tolist(),
    }
    save_file(tensors, path, metadata={key: json.dumps(value) for key, value in known.items()} | dict(about or {}))


def pick_typical(data: Labelled, probabilities: np.ndarray) -> dict[str, list[int]]:
    """For each pattern the places of the maps that the classifier is surest of and right about.

    Each is of another head on another text, none shorter than 20 tokens, the last one causal.
    """
    labels, lengths, causal = (getattr(data, name).cpu().numpy() for name in ("labels", "lengths", "causal"))
    texts = np.array([name.rpartition("/")[0] for name in data.names])  # an id is model/text/head
    found: dict[str, list[int]] = {}
    for k, pattern in enumerate(PATTERNS):
        chosen = found[pattern] = []
        fitting = (labels == k) & (probabilities.argmax(-1) == k) & (lengths >= FEWEST_TOKENS)
        for kind, upto in ((~causal, TYPICAL - 1), (causal, TYPICAL)):
            for i in np.argsort(-probabilities[:, k], kind="stable"):
                new = data.head[i] not in data.head[chosen] and texts[i] not in texts[chosen]
                if fitting[i] and kind[i] and new and len(chosen) < upto:
                    chosen.append(int(i))
    return found


def write_typical(path: Path, data: Labelled, classifier: PatternClassifier) -> None:
    """Choose and write the maps that the gallery shows."""
    probabilities = classifier.probabilities(to_images(data.weights, data.lengths, data.causal)).cpu().numpy()
    cut = [own[:n, :n].cpu().numpy() for own, n in zip(data.weights, data.lengths.tolist(), strict=True)]
    picked = pick_typical(data, probabilities)
    save_maps(path, {f"{pattern}|{k}": cut[i] for pattern, own in picked.items() for k, i in enumerate(own)})


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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="where to write the weights")
    parser.add_argument("--report", type=Path, help="where to write the scores")
    parser.add_argument(
        "--errors", type=Path, help="where to write the mistakes by head, which shares are corrected by"
    )
    parser.add_argument("--typical", type=Path, help="where to write typical maps of each pattern")
    parser.add_argument("--networks", type=int, default=3, help="networks, by seed, that the classifier averages")
    parser.add_argument(
        "--fold-networks", type=int, default=3, help="those averaged where folds or models are left out"
    )
    parser.add_argument(
        "--choose", action="store_true", help="compare the candidates by folds on training models first"
    )
    parser.add_argument("--settings", default="chosen", choices=sorted(CANDIDATES))
    parser.add_argument("--epochs", type=int, help="instead of those of the settings, to try the program out")
    given = parser.parse_args(arguments)
    everything = load_labelled(given.folder).to("cuda" if torch.cuda.is_available() else "cpu")
    held_out = everything.model == HELD_OUT
    training, held = everything.select(~held_out), everything.select(held_out)
    candidates = {
        name: own if given.epochs is None else replace(own, epochs=given.epochs) for name, own in CANDIDATES.items()
    }
    report: dict[str, Any] = {"candidates": {}, "chosen": given.settings}
    if given.choose:
        tried = report["candidates"]
        for name, settings in candidates.items():
            said = cross_validate(training, settings).argmax(-1)
            tried[name] = score(training.labels.cpu().numpy(), said, training.head)
            print(name, tried[name]["macro F1"], tried[name]["accuracy"], flush=True)
        report["chosen"] = max(tried, key=lambda name: tried[name]["macro F1"][0])
    settings, few = candidates[report["chosen"]], range(given.fold_networks)
    networks = tuple(fit(training, settings, seed) for seed in range(given.networks))
    about = {"data": everything.digest, "settings": json.dumps(asdict(settings))}
    if given.out is not None:  # at once: what follows takes longer
        nothing = np.zeros((len(PATTERNS), len(PATTERNS)), dtype=int)
        save_classifier(given.out, PatternClassifier(networks, nothing, nothing), about)
    # Mistakes are counted on maps of heads or models that the judging networks never saw.
    counts, causal_counts, errors = score_all(report, training, held, networks, settings, few)
    if given.errors is not None:
        given.errors.write_text(json.dumps(errors) + "\n", encoding="utf-8")
    classifier = PatternClassifier(networks, counts, causal_counts)
    if given.out is not None:
        save_classifier(given.out, classifier, about)
    if given.typical is not None:
        write_typical(given.typical, everything, classifier)
    text = json.dumps(report, indent=1)
    if given.report is not None:
        given.report.write_text(text + "\n", encoding="utf-8")
    print(text)


def score_all(
    report: dict[str, Any],
    training: Labelled,
    held: Labelled,
    networks: Sequence[PatternNetwork],
    settings: Settings,
    seeds: Sequence[int],
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Write every score into the report; the confusion counts of encoders and of causal models, and by head."""
    held_truth, held_said = held.labels.cpu().numpy(), predict(networks, held).argmax(-1)
    report[f"held out, {HELD_OUT}"] = score(held_truth, held_said, held.head)
    drawn = held.drawn == "design"
    report[f"held out, {HELD_OUT}, by design only"] = score(held_truth[drawn], held_said[drawn], held.head[drawn])
    truth, folds = training.labels.cpu().numpy(), cross_validate(training, settings, seeds).argmax(-1)
    encoder = ~training.causal.cpu().numpy()
    for name, own in (("training models", encoder | ~encoder), ("wiki-bert", encoder), ("causal", ~encoder)):
        report[f"folds, {name}"] = score(truth[own], folds[own], training.head[own])
    print(json.dumps(report["folds, training models"]), flush=True)
    left: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for model in sorted(set(training.model[~encoder])):
        rest, alone = training.select(training.model != model), training.select(training.model == model)
        said = predict([fit(rest, settings, seed) for seed in seeds], alone).argmax(-1)
        left.append((alone.labels.cpu().numpy(), said, alone.head))
        report[f"causal, {model} left out"] = score(*left[-1])
    causal_truth, causal_said, causal_head = (np.concatenate(parts) for parts in zip(*left, strict=True))
    report["causal, each model left out"] = score(causal_truth, causal_said, causal_head)
    encoders = confusion(np.concatenate([truth[encoder], held_truth]), np.concatenate([folds[encoder], held_said]))
    sizes = {str(model): _size(training.head[training.model == model]) for model in sorted(set(training.model))}
    own = " and ".join(sorted(set(training.model[~encoder])))
    by_head = {
        "trained_on": sizes,
        "seen": {
            "encoder": _mistakes(truth[encoder], folds[encoder], training.head[encoder], SEEN.format("wiki-bert")),
            "causal": _mistakes(truth[~encoder], folds[~encoder], training.head[~encoder], SEEN.format(own)),
        },
        "unseen": {
            "encoder": _mistakes(held_truth, held_said, held.head, f"maps of {HELD_OUT}, a model never in training"),
            "causal": _mistakes(causal_truth, causal_said, causal_head, UNSEEN.format(own)),
        },
    }
    return encoders, confusion(causal_truth, causal_said), by_head


def _size(heads: np.ndarray) -> list[int]:
    """Layers and heads of a model, of which every one is labelled, from names like `wiki-bert L3H5`."""
    places = np.array([[int(n) for n in name.rpartition(" L")[2].split("H")] for name in heads])
    return (places.max(0) + 1).tolist()


def _mistakes(truth: np.ndarray, said: np.ndarray, head: np.ndarray, origin: str) -> dict[str, Any]:
    """The confusion counts of each head."""
    tables = [confusion(truth[head == name], said[head == name]).tolist() for name in sorted(set(head))]
    return {"origin": f"{len(truth)} {origin}", "tables": tables}


if __name__ == "__main__":
    main()
