"""Flip random bits in the folder of an unfinished run and go on: the atlas must not change.

    python benchmarks/bit_flips.py [--flips 200]

A run is stopped before its result is saved, so that all its pieces lie there: shards, phases of an
experiment, results. Each trial copies the folder, flips one bit of one of its files (every fifth
trial cuts a file short, swaps two or loses one instead), and goes on. What is damaged must be found
and made again, or have no effect: the atlas has the digest of the undisturbed one, and nothing is
asked of the user."""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import xarray as xr

from headwise import Corpus, HeadModel, RunOptions, make_analysis
from headwise.analyses.contract import Experiment, ExperimentContext, Paper
from headwise.run import Run, RunCallbacks, Source
from headwise.testing import random_model
from headwise.testing.corpora import battery_examples
from headwise.text.encode import Encoded

OTHER = ("cut", "swapped", "lost", "emptied")


@dataclass(frozen=True)
class Phased(Experiment):
    """An experiment whose phases are quick: numbers drawn, summed, and summed again."""

    name: ClassVar[str] = "phased"
    title: ClassVar[str] = "Phases"
    paper: ClassVar[Paper] = Paper("clark2019", "none")
    automatic: ClassVar[bool] = False

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        heads = (bench.shape.layers, bench.shape.heads)
        total = np.zeros(heads)
        for row in bench.rows:

            def make(row: Encoded = row) -> tuple[dict[str, np.ndarray], dict[str, int]]:
                return {"sum": np.random.default_rng(int(row.ids.sum())).random(heads)}, {
                    "tokens": len(row)
                }

            piece = bench.store.checkpoint(f"row-{row.index:04d}", make)
            total += piece.arrays["sum"] * piece.facts["tokens"]
        coords = {"layer": np.arange(heads[0]), "head": np.arange(heads[1])}
        return xr.Dataset({"total": (("layer", "head"), total)}, coords)


def make(model: HeadModel, folder: Path, notes: list[str]) -> str:
    """The digest of the atlas (all numbers, labels, attributes, the provenance), by what the folder
    holds and what is made now."""
    windows = {"max_tokens": 12, "overlap": 4, "documents": "windows"}
    analyses = [
        make_analysis("surface"),
        make_analysis("offsets"),
        make_analysis("coreference", windows),
        Phased(),
    ]
    source = Source(model, Corpus.from_examples(battery_examples(), "battery"))
    with Run(
        source,
        analyses,
        folder,
        RunOptions(full=True, shard_size=3, batch_tokens=64),
        RunCallbacks(note=notes.append),
    ) as run:
        return run.atlas().digest


def damage(folder: Path, how: str, rng: random.Random) -> str:
    """Damage one file, and say which."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    if how == "flipped":
        place = rng.randrange(8 * len(content))
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
    elif how == "cut":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "lost":
        path.unlink()
    else:
        path.write_bytes(rng.choice(files).read_bytes())
    return path.relative_to(folder).as_posix()


def trials(flips: int, seed: int = 0) -> Counter[tuple[str, str]]:
    """So many damages; an AssertionError at the first that changes the atlas."""
    rng = random.Random(seed)
    table: Counter[tuple[str, str]] = Counter()
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        expected = make(model, whole, [])
        for trial in range(flips):
            folder = Path(temporary) / "run"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
            how = OTHER[trial // 5 % len(OTHER)] if trial % 5 == 4 else "flipped"
            name = damage(folder, how, rng)
            notes: list[str] = []
            found = make(model, folder, notes)
            assert found == expected, f"trial {trial}: {name} {how} changes the atlas"
            told = any("made again" in note for note in notes)
            table[how, "made again, and said" if told else "without effect"] += 1
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = trials(options.flips, options.seed)
    for (how, what), count in sorted(found.items()):
        print(f"{how:10}{what:24}{count:6}")
    print(f"{sum(found.values())} damages, none changed the atlas")
