"""Writes what the grammar makes as JSON lines that headwise reads, the same bytes every time."""

from __future__ import annotations

import argparse
import bz2
import json
from collections.abc import Sequence
from pathlib import Path

from demo_corpus.examples import demo_examples
from demo_corpus.tasks import TASKS, demo_probing
from demo_corpus.treebank import treebank_examples
from headwise.text.example import Example
from headwise.text.readers.rows import row_of_example

SIZE = 400  # examples of the corpus that ships with headwise
DATA = Path(__file__).resolve().parents[2] / "src" / "headwise" / "text" / "data"
SHIPPED = DATA / "demo.jsonl.bz2"
SHIPPED_TREES = DATA / "ewt.jsonl.bz2"


def packed(examples: Sequence[Example]) -> bytes:
    """Examples as compressed JSON lines. Bzip2 has one implementation and no time stamp: the bytes
    depend on the examples alone."""
    lines = (
        json.dumps(row_of_example(e), ensure_ascii=False, separators=(",", ":")) + "\n"
        for e in examples
    )
    return bz2.compress("".join(lines).encode())


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the shipped corpus, its real part, or another of the grammar's."""
    parser = argparse.ArgumentParser(prog="python tools/demo_corpus", description=__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=SHIPPED,
        help="the file (.jsonl.bz2); by default the shipped one",
    )
    parser.add_argument("--size", type=int, default=SIZE, help=f"how many examples ({SIZE})")
    parser.add_argument(
        "--seed", type=int, default=0, help="another seed gives other sentences (0)"
    )
    parser.add_argument(
        "--task", choices=list(TASKS), help="sentences with the labels of a probing task instead"
    )
    parser.add_argument(
        "--treebank",
        type=Path,
        help="en_ewt-ud-train.conllu: write the real part of the shipped corpus from it instead",
    )
    given = parser.parse_args(arguments)
    if given.treebank is not None:
        _write(
            treebank_examples(given.treebank), SHIPPED_TREES if given.out == SHIPPED else given.out
        )
        return
    if given.out == SHIPPED and (given.size, given.seed, given.task) != (SIZE, 0, None):
        parser.error("the shipped corpus has its size and seed; name another file with --out")
    examples = (
        demo_probing(given.task, given.size, given.seed)
        if given.task
        else demo_examples(given.size, given.seed)
    )
    _write(examples, given.out)


def _write(examples: Sequence[Example], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    content = packed(examples)
    out.write_bytes(content)
    print(f"{out}: {len(examples)} examples, {len(content):,} bytes")
