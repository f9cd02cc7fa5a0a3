"""The tables of data/patterns/RESULTS.md: how well the classifier does, how far labellers agree,
what can be corrected.

python tools/train_patterns/agree.py data/patterns [--write]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import product
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

FIRST, SECOND, THIRD = (f"vision language model{n}" for n in ("", " 2", " 3"))
SHORT = {
    "first": FIRST,
    "second": SECOND,
    "third": THIRD,
    "fourth": PAIR[0],
    "fifth": PAIR[1],
    "decided": None,
}
KINDS = (HELD_OUT, "wiki-bert", "causal models", "all models")


def of_kind(own: Labelled, kind: str) -> Labelled:
    """The maps of a model, of the causal ones, or all."""
    causal = own.causal.numpy()
    return own.select(
        {"causal models": causal, "all models": causal | ~causal}.get(kind, own.model == kind)
    )


def shared(one: Labelled, other: Labelled) -> tuple[Labelled, Labelled]:
    """The maps that both labelled, in one order."""
    first, second = (a.select(np.isin(a.names, b.names)) for a, b in ((one, other), (other, one)))
    return first.select(np.argsort(first.names)), second.select(np.argsort(second.names))


def row(name: str, scored: dict[str, Any], kappa: str = "") -> str:
    """A line of the table."""
    cells = [
        f"{p:.2f} ({low:.2f} to {high:.2f})"
        for p, low, high in (scored["macro F1"], scored["accuracy"])
    ]
    classes = [
        f"{scored[k][0]:.2f} · {n}" if n else ""
        for k, n in zip(PATTERNS, scored["per class"], strict=True)
    ]
    return f"| {' | '.join([name, str(scored['n']), kappa, *classes, *cells])} |"


def tables(folder: Path) -> str:
    """The table in Markdown: F1 of each pattern and how many maps have it, macro F1, accuracy;
    intervals over heads."""
    maps = read_maps(folder / "maps.npz")
    labelled = {
        short: load_labelled(folder, labeller=labeller, maps=maps)
        for short, labeller in SHORT.items()
    }
    lines = [
        f"| {' | '.join(['compared', 'maps', 'kappa', *PATTERNS, 'macro F1', 'accuracy'])} |",
        f"|{'---|' * (5 + len(PATTERNS))}",
    ]
    by_first_edition = product(
        (("first", "second"), ("first", "third")), (HELD_OUT, "causal models")
    )
    for (one, other), kind in (*product([("fourth", "fifth")], KINDS), *by_first_edition):
        a, b = shared(*(of_kind(labelled[short], kind) for short in (one, other)))
        truth, said = a.labels.numpy(), b.labels.numpy()
        kappa = cohen_kappa([PATTERNS[k] for k in truth], [PATTERNS[k] for k in said])
        between = f"{kappa.kappa:.2f} ({kappa.low:.2f} to {kappa.high:.2f})"
        lines.append(
            row(f"{kind}: labellers {one} and {other}", score(truth, said, a.head), between)
        )
    held = {
        short: of_kind(labelled[short], HELD_OUT)
        for short in ("decided", "fourth", "fifth", "first", "third")
    }
    decided = held["decided"]
    said_of = dict(
        zip(decided.names, predict(shipped_classifier().networks, decided).argmax(-1), strict=True)
    )
    for short, own in held.items():
        classified = np.array([said_of[name] for name in own.names])
        lines.append(
            row(
                f"{HELD_OUT}: classifier and {short}",
                score(own.labels.numpy(), classified, own.head),
            )
        )
    alike, classified = decided.votes.amax(-1).numpy() == 1, np.array(list(said_of.values()))
    agreed = score(decided.labels.numpy()[alike], classified[alike], decided.head[alike])
    lines.append(row(f"{HELD_OUT}: classifier, where fourth and fifth agree", agreed))
    return "\n".join(lines)


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


def scores(folder: Path) -> str:
    """How well the classifier does, from what training wrote."""
    found = json.loads((folder / "results.json").read_text("utf-8"))
    lines = [
        f"| {' | '.join(['scored on', 'maps', *PATTERNS, 'macro F1', 'accuracy'])} |",
        f"|{'---|' * (4 + len(PATTERNS))}",
    ]
    for name, told in SCORED.items():
        own = found[name]
        cells = [
            f"{p:.2f} ({low:.2f} to {high:.2f})"
            for p, low, high in (own[k] for k in (*PATTERNS, "macro F1"))
        ]
        cells[:-1] = [f"{cell} · {n}" for cell, n in zip(cells, own["per class"], strict=False)]
        accuracy = "{:.2f} ({:.2f} to {:.2f})".format(*own["accuracy"])
        lines.append(f"| {' | '.join([told, str(own['n']), *cells, accuracy])} |")
    return "\n".join(lines)


def confusions(folder: Path) -> str:
    """What is said for what, on models never seen."""
    found = json.loads((folder / "results.json").read_text("utf-8"))
    parts = []
    for name in (f"held out, {HELD_OUT}", "causal, each model left out"):
        lines = [
            f"| {' | '.join(['true, by what is said', *PATTERNS])} |",
            f"|{'---|' * (1 + len(PATTERNS))}",
        ]
        for label, counts in zip(PATTERNS, found[name]["confusion"], strict=True):
            lines.append(f"| {' | '.join([label, *map(str, counts)])} |")
        parts.append(f"{name[0].upper()}{name[1:]}:\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def candidates(folder: Path) -> str:
    """How each setting did on the training models, each left out in turn."""
    tried = json.loads((folder / "results.json").read_text("utf-8"))["candidates"]
    rows = (
        "| {} | {:.2f} ({:.2f} to {:.2f}) |".format(name, *own["macro F1"])
        for name, own in tried.items()
    )
    return "\n".join(["| settings | macro F1 |", "|---|---|", *rows])


def corrected(repeats: int = 300) -> str:
    """Shares of one half of the labelled heads (or models), corrected by the mistakes on the other
    half."""
    lines = ["| mistakes on | off as counted | off corrected | nearer in |", "|---|---|---|---|"]
    for seen, causal in ((True, False), (True, True), (False, True)):
        errors = shipped_errors(seen, causal)
        known, others = errors.halves(repeats, np.random.default_rng(0))
        total = others.sum((-2, -1))[:, None]
        truth, said = others.sum(-1) / total, others.sum(-2) / total
        off = [
            ((shares - truth) ** 2).sum(-1)
            for shares in (said, corrected_shares(said, said_given_true(known)))
        ]
        counted, mended = (np.sqrt(own.mean()) for own in off)
        lines.append(
            f"| {errors.origin} | {counted:.3f} | {mended:.3f} | {np.mean(off[1] < off[0]):.0%} of halves |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(arguments or sys.argv[1:])
    write = "--write" in given
    (folder,) = (Path(name) for name in given if name != "--write")
    page = folder / "RESULTS.md"
    text = page.read_text("utf-8")
    for name, made in made_tables(folder).items():
        print(made, end="\n\n")
        text = re.sub(
            rf"(<!-- {name}, made by tools/train_patterns/agree.py -->\n).*?(<!-- end -->)",
            lambda found, made=made: f"{found[1]}\n{made}\n\n{found[2]}",
            text,
            flags=re.DOTALL,
        )
    if write:
        page.write_text(text, "utf-8")


def made_tables(folder: Path) -> dict[str, str]:
    """All tables of the page by name."""
    return {
        "scores": scores(folder),
        "agreement": tables(folder),
        "confusions": confusions(folder),
        "corrected": corrected(),
        "candidates": candidates(folder),
    }


if __name__ == "__main__":
    main()
