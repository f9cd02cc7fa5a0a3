"""Trains the classifier of maps and scores it: folds over heads for choosing, a whole model held
out for the report.

    python tools/train_patterns/train.py FOLDER [--out WEIGHTS] [--report RESULTS.json] [--typical
    TYPICAL.npz]

FOLDER holds maps.npz, maps.csv and labels.csv (data/patterns); README.md has the command that made
the shipped files."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fitting import Settings, Task, fit_all, predict
from labelled import Labelled, load_labelled, to_images
from planted import planted_maps
from safetensors.torch import save_file

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


def head_folds(data: Labelled, folds: int = FOLDS, seed: int = 0) -> np.ndarray:
    """A fold number for each map; all maps of a head share it."""
    heads = sorted(set(data.head))
    fold = dict(
        zip(
            np.random.default_rng(seed).permutation(heads),
            np.arange(len(heads)) % folds,
            strict=True,
        )
    )
    return np.array([fold[head] for head in data.head])


def confusion(truth: np.ndarray, said: np.ndarray) -> np.ndarray:
    """Counts `[true, said]`."""
    table = np.zeros((len(PATTERNS), len(PATTERNS)), dtype=int)
    np.add.at(table, (truth, said), 1)
    return table


def f1_scores(table: np.ndarray) -> np.ndarray:
    """F1 of each class from counts `[..., true, said]`; NaN for a class that neither occurs nor is
    said."""
    hit = np.diagonal(table, axis1=-2, axis2=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(
            table.sum(-1) + table.sum(-2) > 0, 2 * hit / (table.sum(-1) + table.sum(-2)), np.nan
        )


def score(
    truth: np.ndarray, said: np.ndarray, head: np.ndarray, repeats: int = 2000, seed: int = 0
) -> dict[str, Any]:
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
        return np.concatenate(
            [f1, np.nanmean(f1[..., occurs], -1, keepdims=True), accuracy[..., None]], -1
        )

    with warnings.catch_warnings():  # a class that never occurs is NaN throughout, and shown so
        warnings.simplefilter("ignore", RuntimeWarning)
        point, (low, high) = measures(whole), percentile_interval(measures(resampled))
    names = [*PATTERNS, "macro F1", "accuracy"]
    out: dict[str, Any] = {
        name: [round(float(v), 3) for v in (point[k], low[k], high[k])]
        for k, name in enumerate(names)
    }
    return out | {
        "n": len(truth),
        "per class": whole.sum(-1).astype(int).tolist(),
        "confusion": whole.astype(int).tolist(),
    }


def apart(
    data: Labelled, group: np.ndarray, settings: Settings, seeds: Sequence[int]
) -> list[Task]:
    """Networks that together judge every map without having seen its group: for each group, all
    seeds."""
    return [
        Task(np.flatnonzero(group != own), settings, seed)
        for own in sorted(set(group))
        for seed in seeds
    ]


def judged(data: Labelled, group: np.ndarray, networks: Sequence[PatternNetwork]) -> np.ndarray:
    """What those networks say of every map, as places in PATTERNS."""
    groups = sorted(set(group))
    each = len(networks) // len(groups)
    said = np.zeros(len(data), int)
    for k, own in enumerate(groups):
        said[group == own] = predict(
            networks[k * each : (k + 1) * each], data.select(group == own)
        ).argmax(-1)
    return said


def save_classifier(
    path: Path, classifier: PatternClassifier, about: Mapping[str, str] | None = None
) -> None:
    """Write weights (as float16), confusion counts and what else there is to say of them to one
    file."""
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
    save_file(
        tensors,
        path,
        metadata={key: json.dumps(value) for key, value in known.items()} | dict(about or {}),
    )


def pick_typical(data: Labelled, probabilities: np.ndarray) -> dict[str, list[int]]:
    """For each pattern the places of the maps that the classifier is surest of and right about.

    Each is of another head on another text, none shorter than 20 tokens, the last one causal.
    """
    labels, lengths, causal = (
        getattr(data, name).cpu().numpy() for name in ("labels", "lengths", "causal")
    )
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


def probabilities_of(data: Labelled, classifier: PatternClassifier) -> np.ndarray:
    """What a classifier says of every map, `[map, pattern]`."""
    return (
        classifier.probabilities(to_images(data.weights, data.lengths, data.causal)).cpu().numpy()
    )


def write_typical(path: Path, data: Labelled, probabilities: np.ndarray) -> None:
    """Choose and write the maps that the gallery shows."""
    cut = [
        own[:n, :n].cpu().numpy()
        for own, n in zip(data.weights, data.lengths.tolist(), strict=True)
    ]
    picked = pick_typical(data, probabilities)
    save_maps(
        path,
        {f"{pattern}|{k}": cut[i] for pattern, own in picked.items() for k, i in enumerate(own)},
    )


CANDIDATES = {
    "planted 1": Settings(planted=1),
    "planted 1, votes": Settings(planted=1, votes=True),
    "planted 1, votes, longer": Settings(planted=1, votes=True, epochs=120),
    "planted 3, votes, longer": Settings(planted=3, votes=True, epochs=120),
    "planted 1, votes, less dropout and decay": Settings(
        planted=1, votes=True, dropout=0.3, decay=0.05
    ),
    "planted 1, votes, mixup": Settings(planted=1, votes=True, mixup=0.2),
}
PLANTED = 3000  # planted maps, by seed 0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="where to write the weights")
    parser.add_argument("--report", type=Path, help="where to write the scores")
    parser.add_argument(
        "--errors",
        type=Path,
        help="where to write the mistakes by head, which shares are corrected by",
    )
    parser.add_argument("--typical", type=Path, help="where to write typical maps of each pattern")
    parser.add_argument(
        "--networks", type=int, default=3, help="networks, by seed, that the classifier averages"
    )
    parser.add_argument(
        "--fold-networks",
        type=int,
        default=3,
        help="those averaged where folds or models are left out",
    )
    parser.add_argument(
        "--choose",
        type=int,
        default=0,
        metavar="NETWORKS",
        help="compare the candidates, with so many networks; no more",
    )
    parser.add_argument(
        "--chosen", type=Path, help="the report of --choose: its best candidate is taken"
    )
    parser.add_argument(
        "--settings", default="planted 1, votes, longer", choices=sorted(CANDIDATES)
    )
    parser.add_argument(
        "--epochs", type=int, help="instead of those of the settings, to try the program out"
    )
    parser.add_argument(
        "--planted", type=int, default=PLANTED, help="how many planted maps to make"
    )
    parser.add_argument("--jobs", type=int, default=1, help="networks trained at a time")
    given = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    everything = load_labelled(given.folder).to(device)
    planted = planted_maps(given.planted).to(device)
    held_out = everything.model == HELD_OUT
    training, held = everything.select(~held_out), everything.select(held_out)
    candidates = {
        name: own if given.epochs is None else replace(own, epochs=given.epochs)
        for name, own in CANDIDATES.items()
    }
    report: dict[str, Any] = {"candidates": {}, "chosen": given.settings}
    if given.chosen is not None:
        report["candidates"] = json.loads(given.chosen.read_text("utf-8"))["candidates"]
        report["chosen"] = max(
            candidates, key=lambda name: report["candidates"][name]["macro F1"][0]
        )
    if given.choose:
        report["candidates"] = compared(
            training, planted, candidates, range(given.choose), given.jobs
        )
        write_report(report, given.report)
        return
    settings = candidates[report["chosen"]]
    folds, seeds = head_folds(training), range(given.fold_networks)
    tasks = [Task(np.arange(len(training)), settings, seed) for seed in range(given.networks)]
    own_folds, own_models = (
        apart(training, group, settings, seeds) for group in (folds, training.model)
    )
    fitted = list(fit_all(training, planted, [*tasks, *own_folds, *own_models], given.jobs))
    networks, rest = tuple(fitted[: given.networks]), fitted[given.networks :]
    said = Said(
        held=predict(networks, held).argmax(-1),
        folds=judged(training, folds, rest[: len(own_folds)]),
        models=judged(training, training.model, rest[len(own_folds) :]),
    )
    counts, causal_counts, errors = score_all(report, training, held, said)
    if given.errors is not None:
        given.errors.write_text(json.dumps(errors) + "\n", encoding="utf-8")
    classifier = PatternClassifier(networks, counts, causal_counts)
    about = {
        "data": everything.digest,
        "settings": json.dumps(asdict(settings)),
        "planted": json.dumps(given.planted),
    }
    if given.out is not None:
        save_classifier(given.out, classifier, about)
    if given.typical is not None:
        write_typical(given.typical, everything, probabilities_of(everything, classifier))
    write_report(report, given.report)


def write_report(report: dict[str, Any], path: Path | None) -> None:
    """To a file, where one is named, and to the screen."""
    text = json.dumps(report, indent=1)
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")
    print(text)


def compared(
    training: Labelled,
    planted: Labelled,
    candidates: Mapping[str, Settings],
    seeds: Sequence[int],
    jobs: int,
) -> dict[str, Any]:
    """How each candidate does on the training models when the model itself is left out: what a new
    model will meet."""
    model, truth = training.model, training.labels.cpu().numpy()
    tasks = [
        task for settings in candidates.values() for task in apart(training, model, settings, seeds)
    ]
    fitted, each = fit_all(training, planted, tasks, jobs), len(tasks) // len(candidates)
    tried = {}
    for name in candidates:
        tried[name] = score(
            truth, judged(training, model, list(islice(fitted, each))), training.head
        )
        print(name, tried[name]["macro F1"], tried[name]["accuracy"], flush=True)
    return tried


@dataclass(frozen=True, eq=False)
class Said:
    """What is said of maps by networks that never saw their model (`held`, `models`) or their head
    (`folds`)."""

    held: np.ndarray
    folds: np.ndarray
    models: np.ndarray


def score_all(
    report: dict[str, Any], training: Labelled, held: Labelled, said: Said
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Write every score into the report; the confusion counts of encoders and of causal models, and
    by head."""
    held_truth, truth = held.labels.cpu().numpy(), training.labels.cpu().numpy()
    report[f"held out, {HELD_OUT}"] = score(held_truth, said.held, held.head)
    drawn = held.drawn == "design"
    report[f"held out, {HELD_OUT}, by design only"] = score(
        held_truth[drawn], said.held[drawn], held.head[drawn]
    )
    encoder = ~training.causal.cpu().numpy()
    for name, own in (
        ("training models", encoder | ~encoder),
        ("wiki-bert", encoder),
        ("causal", ~encoder),
    ):
        report[f"folds, {name}"] = score(truth[own], said.folds[own], training.head[own])
    for model in sorted(set(training.model)):
        own = training.model == model
        report[f"{model} left out"] = score(truth[own], said.models[own], training.head[own])
    report["causal, each model left out"] = score(
        truth[~encoder], said.models[~encoder], training.head[~encoder]
    )
    sizes = {
        str(model): _size(training.head[training.model == model])
        for model in sorted(set(training.model))
    }
    causal = " and ".join(sorted(set(training.model[~encoder])))
    encoders = " and ".join(sorted(set(training.model[encoder])))
    every, by_model = np.full(len(held), True), {"by_model": True}
    unseen = f"maps of {HELD_OUT}, a model never in training"
    by_head = {
        "trained_on": sizes,
        "seen": {
            "encoder": _mistakes(
                (truth, said.folds, training.head), encoder, SEEN.format(encoders)
            ),
            "causal": _mistakes((truth, said.folds, training.head), ~encoder, SEEN.format(causal)),
        },
        "unseen": {
            "encoder": _mistakes((held_truth, said.held, held.head), every, unseen, **by_model),
            "causal": _mistakes(
                (truth, said.models, training.head), ~encoder, UNSEEN.format(causal), **by_model
            ),
        },
    }
    counts = confusion(
        np.concatenate([truth[encoder], held_truth]),
        np.concatenate([said.folds[encoder], said.held]),
    )
    return counts, confusion(truth[~encoder], said.models[~encoder]), by_head


def _size(heads: np.ndarray) -> list[int]:
    """Layers and heads of a model, of which every one is labelled, from names like `wiki-bert
    L3H5`."""
    places = np.array([[int(n) for n in name.rpartition(" L")[2].split("H")] for name in heads])
    return (places.max(0) + 1).tolist()


def _mistakes(
    judged_maps: tuple[np.ndarray, np.ndarray, np.ndarray],
    own: np.ndarray,
    origin: str,
    by_model: bool = False,
) -> dict[str, Any]:
    """The confusion counts of each head, over some of the maps (truth, what is said, head), and the
    model of each head where it is models that the mistakes must carry over to."""
    truth, said, head = (values[own] for values in judged_maps)
    heads = sorted(set(head))
    tables = [confusion(truth[head == name], said[head == name]).tolist() for name in heads]
    units = {"unit": [name.rpartition(" L")[0] for name in heads]} if by_model else {}
    return {"origin": f"{len(truth)} {origin}", "tables": tables, **units}


if __name__ == "__main__":
    main()
