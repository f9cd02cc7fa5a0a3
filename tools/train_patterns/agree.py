"""Make the tables of data/patterns/RESULTS.md: how well the classifier does, how far labellers
agree, what can be corrected.

python tools/train_patterns/agree.py data/patterns [--write]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fitting import predict
from labelled import PAIR, Labelled, load_labelled
from train import HELD_OUT, score

from headwise.analyses.patterns import cohen_kappa
from headwise.analyses.patterns.correct import corrected_shares, said_given_true, shipped_errors
from headwise.analyses.patterns.network import PATTERNS, shipped_classifier
from headwise.analyses.patterns.store import read_maps

LABELLERS = {
    "first": "vision language model",
    "second": "vision language model 2",
    "third": "vision language model 3",
    "fourth": PAIR[0],
    "fifth": PAIR[1],
    "decided": None,
}
MODEL_SETS = (HELD_OUT, "wiki-bert", "causal models", "all models")


def of_models(maps: Labelled, models: str) -> Labelled:
    """Return the maps of one model, of the causal ones, or all."""
    if models == "causal models":
        return maps.select(maps.causal.numpy())
    if models == "all models":
        return maps
    return maps.select(maps.model == models)


def shared(one: Labelled, other: Labelled) -> tuple[Labelled, Labelled]:
    """Return the maps that both labelled, in the same order."""
    first = one.select(np.isin(one.names, other.names))
    second = other.select(np.isin(other.names, one.names))
    return first.select(np.argsort(first.names)), second.select(np.argsort(second.names))


def with_interval(values: Sequence[float]) -> str:
    """Return "0.70 (0.60 to 0.80)" from a value and the ends of its interval."""
    value, low, high = values
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def row(name: str, scored: dict[str, Any], kappa: str = "") -> str:
    """Return a line of the table."""
    classes = []
    for pattern, n_maps in zip(PATTERNS, scored["per class"], strict=True):
        classes.append(f"{scored[pattern][0]:.2f} · {n_maps}" if n_maps else "")
    totals = [with_interval(scored["macro F1"]), with_interval(scored["accuracy"])]
    return f"| {' | '.join([name, str(scored['n']), kappa, *classes, *totals])} |"


def tables(folder: Path) -> str:
    """Return the table in Markdown: F1 of each pattern and how many maps have it, macro F1,
    accuracy; intervals over heads."""
    maps = read_maps(folder / "maps.npz")
    labelled = {}
    for short, labeller in LABELLERS.items():
        labelled[short] = load_labelled(folder, labeller=labeller, maps=maps)
    lines = [
        f"| {' | '.join(['compared', 'maps', 'kappa', *PATTERNS, 'macro F1', 'accuracy'])} |",
        f"|{'---|' * (5 + len(PATTERNS))}",
    ]
    comparisons = [("fourth", "fifth", models) for models in MODEL_SETS]
    for other in ("second", "third"):
        comparisons += [("first", other, models) for models in (HELD_OUT, "causal models")]
    for one, other, models in comparisons:
        first, second = shared(of_models(labelled[one], models), of_models(labelled[other], models))
        lines.append(_agreement_row(f"{models}: labellers {one} and {other}", first, second))
    lines += _classifier_rows(labelled)
    return "\n".join(lines)


def _agreement_row(name: str, first: Labelled, second: Labelled) -> str:
    """Return the line that compares two labellers of the same maps."""
    first_labels = first.labels.numpy()
    second_labels = second.labels.numpy()
    kappa = cohen_kappa(
        [PATTERNS[label] for label in first_labels], [PATTERNS[label] for label in second_labels]
    )
    kappa_text = with_interval((kappa.kappa, kappa.low, kappa.high))
    return row(name, score(first_labels, second_labels, first.head), kappa_text)


def _classifier_rows(labelled: dict[str, Labelled]) -> list[str]:
    """Return the lines that compare the classifier with labellers, on the held-out model."""
    decided = of_models(labelled["decided"], HELD_OUT)
    predicted = predict(shipped_classifier().networks, decided).argmax(-1)
    prediction_of_map = dict(zip(decided.names, predicted, strict=True))
    lines = []
    for short in ("decided", "fourth", "fifth", "first", "third"):
        maps = of_models(labelled[short], HELD_OUT)
        predictions = np.array([prediction_of_map[name] for name in maps.names])
        scored = score(maps.labels.numpy(), predictions, maps.head)
        lines.append(row(f"{HELD_OUT}: classifier and {short}", scored))
    labellers_agree = decided.votes.amax(-1).numpy() == 1
    scored = score(
        decided.labels.numpy()[labellers_agree],
        predicted[labellers_agree],
        decided.head[labellers_agree],
    )
    lines.append(row(f"{HELD_OUT}: classifier, where fourth and fifth agree", scored))
    return lines


SCORED = {
    f"held out, {HELD_OUT}": f"**held out: {HELD_OUT}**, never in training",
    f"held out, {HELD_OUT}, by design only": "… of these, drawn by design (every head alike)",
    "causal, each model left out": "**causal: each causal model left out in turn**",
    "SmolLM2-135M left out": "… SmolLM2-135M left out",
    "stories15M left out": "… stories15M left out",
    "wiki-bert left out": "wiki-bert left out: no encoder but planted ones in training",
    "folds, training models": "five folds over heads, all three training models",
    "folds, wiki-bert": "… wiki-bert only",
    "folds, causal": "… causal only",
}


def training_results(folder: Path) -> dict[str, Any]:
    """Return the results that training wrote."""
    results: dict[str, Any] = json.loads((folder / "results.json").read_text("utf-8"))
    return results


def scores(folder: Path) -> str:
    """Return how well the classifier does, from the results of training."""
    results = training_results(folder)
    lines = [
        f"| {' | '.join(['scored on', 'maps', *PATTERNS, 'macro F1', 'accuracy'])} |",
        f"|{'---|' * (4 + len(PATTERNS))}",
    ]
    for name, title in SCORED.items():
        scored = results[name]
        cells = [title, str(scored["n"])]
        for pattern, n_maps in zip(PATTERNS, scored["per class"], strict=False):
            cells.append(f"{with_interval(scored[pattern])} · {n_maps}")
        cells += [with_interval(scored["macro F1"]), with_interval(scored["accuracy"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def confusions(folder: Path) -> str:
    """Return the confusion tables on models never seen."""
    results = training_results(folder)
    parts = []
    for name in (f"held out, {HELD_OUT}", "causal, each model left out"):
        lines = [
            f"| {' | '.join(['true, by what is said', *PATTERNS])} |",
            f"|{'---|' * (1 + len(PATTERNS))}",
        ]
        for label, counts in zip(PATTERNS, results[name]["confusion"], strict=True):
            lines.append(f"| {' | '.join([label, *map(str, counts)])} |")
        parts.append(f"{name[0].upper()}{name[1:]}:\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def candidates(folder: Path) -> str:
    """Return how each setting did on the training models, each left out in turn."""
    lines = ["| settings | macro F1 |", "|---|---|"]
    for name, scored in training_results(folder)["candidates"].items():
        lines.append(f"| {name} | {with_interval(scored['macro F1'])} |")
    return "\n".join(lines)


def corrected(repeats: int = 300) -> str:
    """Return how far the shares of one half of the labelled heads (or models) are from the truth,
    as counted and corrected by the errors on the other half."""
    lines = ["| mistakes on | off as counted | off corrected | nearer in |", "|---|---|---|---|"]
    for seen, causal in ((True, False), (True, True), (False, True)):
        errors = shipped_errors(seen, causal)
        known, others = errors.halves(repeats, np.random.default_rng(0))
        total = others.sum((-2, -1))[:, None]
        truth = others.sum(-1) / total
        predicted = others.sum(-2) / total
        corrected_prediction = corrected_shares(predicted, said_given_true(known))
        off_counted = ((predicted - truth) ** 2).sum(-1)
        off_corrected = ((corrected_prediction - truth) ** 2).sum(-1)
        is_nearer = off_corrected < off_counted
        lines.append(
            f"| {errors.origin} | {np.sqrt(off_counted.mean()):.3f} | "
            f"{np.sqrt(off_corrected.mean()):.3f} | {np.mean(is_nearer):.0%} of halves |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables; with --write, put them into RESULTS.md."""
    words = list(arguments or sys.argv[1:])
    write = "--write" in words
    (folder,) = (Path(word) for word in words if word != "--write")
    page = folder / "RESULTS.md"
    text = page.read_text("utf-8")
    for name, table in all_tables(folder).items():
        print(table, end="\n\n")
        text = re.sub(
            rf"(<!-- {name}, made by tools/train_patterns/agree.py -->\n).*?(<!-- end -->)",
            lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
    if write:
        page.write_text(text, "utf-8")


def all_tables(folder: Path) -> dict[str, str]:
    """Return all tables of the page by name."""
    return {
        "scores": scores(folder),
        "agreement": tables(folder),
        "confusions": confusions(folder),
        "corrected": corrected(),
        "candidates": candidates(folder),
    }


if __name__ == "__main__":
    main()
