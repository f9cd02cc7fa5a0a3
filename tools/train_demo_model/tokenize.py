"""Turn the text of Wikipedia articles into one array of tokens and the starts of its paragraphs."""

from __future__ import annotations

import argparse
import gzip
import html
import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

ARTICLE = re.compile(r'<doc id="(\d+)" url="[^"]*" title="([^"]*)">\n(.*?)</doc>', re.DOTALL)
SHORTEST_PARAGRAPH = 60  # characters; shorter lines are headings and list items
FEWEST_WORDS = 10
FEWEST_PARAGRAPHS = 4
SHORTEST_ARTICLE = 1500  # characters in all its paragraphs
FEWEST_TOKENS = 8  # of a paragraph
PARAGRAPHS_AT_ONCE = 5000


def read_held_out(files: Sequence[Path]) -> set[str]:
    """Return ids and titles of articles that are kept for evaluation (JSON lines, gzip or not)."""
    names = set()
    for file in files:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
        for line in content.decode("utf-8").splitlines():
            article = json.loads(line)
            names.add(str(article["id"]))
            names.add(article["title"])
    return names


def paragraphs_of(text: str, held_out: set[str]) -> Iterator[str]:
    """Yield the paragraphs of the articles in one file as wikiextractor writes it.

    Tables and templates that the extractor left in the text are dropped with their lines, and
    short articles (lists, redirects) altogether.
    """
    for match in ARTICLE.finditer(text):
        number, title, body = match.groups()
        if number in held_out or html.unescape(title) in held_out:
            continue
        kept = []
        for line in body.split("\n")[1:]:  # the first line repeats the title
            long_enough = len(line) >= SHORTEST_PARAGRAPH and len(line.split()) >= FEWEST_WORDS
            if long_enough and "{{" not in line and "|" not in line:
                kept.append(line)
        n_characters = sum(len(line) for line in kept)
        if len(kept) >= FEWEST_PARAGRAPHS and n_characters >= SHORTEST_ARTICLE:
            yield from kept


def all_paragraphs(files: Sequence[Path], held_out: set[str]) -> Iterator[str]:
    for file in files:
        yield from paragraphs_of(file.read_text(encoding="utf-8"), held_out)


def tokenize_files(
    files: Sequence[Path], tokenizer_file: Path, held_out: set[str], max_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of all paragraphs (uint16) and the position where each paragraph starts."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    chunks: list[np.ndarray] = []
    starts: list[int] = []
    n_tokens = 0

    def add(paragraphs: list[str]) -> None:
        nonlocal n_tokens
        for encoding in tokenizer.encode_batch(paragraphs, add_special_tokens=False):
            if len(encoding.ids) >= FEWEST_TOKENS:
                chunks.append(np.array(encoding.ids, dtype=np.uint16))
                starts.append(n_tokens)
                n_tokens += len(encoding.ids)

    waiting: list[str] = []
    started = time.monotonic()
    for paragraph in all_paragraphs(files, held_out):
        waiting.append(paragraph)
        if len(waiting) == PARAGRAPHS_AT_ONCE:
            add(waiting)
            waiting = []
            print(f"{n_tokens / 1e6:.1f} M tokens, {time.monotonic() - started:.0f} s", flush=True)
            if n_tokens >= max_tokens:
                break
    add(waiting)
    return np.concatenate(chunks), np.array(starts, dtype=np.int32)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="train_demo_model tokenize", description=__doc__)
    parser.add_argument("text", type=Path, help="folder with files */wiki_* of wikiextractor")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="folder for the two arrays")
    parser.add_argument(
        "--held-out", type=Path, nargs="*", default=[], help="articles to leave out"
    )
    parser.add_argument("--every", type=int, default=1, help="take every n-th file of the text")
    parser.add_argument("--max-tokens", type=int, default=100_000_000)
    options = parser.parse_args(arguments)

    files = sorted(options.text.glob("*/wiki_*"))[:: options.every]
    held_out = read_held_out(options.held_out)
    tokens, starts = tokenize_files(files, options.tokenizer, held_out, options.max_tokens)
    options.out.mkdir(parents=True, exist_ok=True)
    np.save(options.out / "tokens.npy", tokens)
    np.save(options.out / "paragraphs.npy", starts)
    print(f"{len(tokens):,} tokens in {len(starts):,} paragraphs")
