"""Planted maps: attention made of known parts (columns, a line, segments, content), labelled by
what is seen of them.

A map is a softmax over logits that add up those parts, as a head's are. Which parts go in is drawn
for a wanted label; the label is kept only where the guide (data/patterns/README.md), read in shades
of the map as it is shown, agrees. Maps between two labels are thrown away: planted maps teach what
is clear, the labelled ones where the borders lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from labelled import Labelled

from headwise.analyses.patterns.network import PATTERNS

MODEL = "planted"
SHORTEST, LONGEST = 8, 128
DARK = 0.5  # a shade (square root of the weight over the 99th percentile) that is seen as ink
DARKER = 0.12  # by so much a line is darker than what is beside it
MOST_TRIES = 60


@dataclass(frozen=True)
class Seen:
    """What of the parts is seen in a map: shares of its height or length, and contrasts of
    shades."""

    stripe: float  # share of the rows over which the darkest column is dark and darker than what is beside it
    line: float  # share of the rows in which the place of a line by the diagonal is darker than what is beside it
    columns: float  # share of the differences between cells that whole columns explain
    blocks: float  # mean shade within segments over that outside
    content: float  # mean shade beside the diagonal and outside the columns that are dark over half of their height


def shades(weights: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """The map as a labeller sees it, 0 for white to 1 for black."""
    top = np.quantile(weights[visible], 0.99)
    return np.asarray(np.sqrt(np.minimum(weights / max(top, 1e-9), 1)) * visible)


def look(shade: np.ndarray, visible: np.ndarray, segment: np.ndarray) -> Seen:
    """Measure what is seen of stripes, lines and blocks."""
    n = len(shade)
    rows = np.arange(n)
    apart = np.abs(rows[:, None] - rows[None])
    usual = np.array([np.median(row[own]) for row, own in zip(shade, visible, strict=True)])
    beside = visible & (apart > 1)
    height = beside.sum(0)
    dark = beside & (shade >= np.maximum(DARK, usual[:, None] + 0.2))
    stripe = np.where(height >= n / 3, dark.sum(0) / np.maximum(height, 1), 0).max()
    line = max(_stands_out(shade, visible, offset).sum() / n for offset in range(-4, 5))
    # columns as a whole, away from the diagonal: how much of the spread over cells they explain
    away = visible & (apart > 2)
    count = away.sum(0)
    mean = (shade * away).sum(0) / np.maximum(count, 1)
    whole = shade[away].mean() if away.any() else 0.0
    columns = ((mean - whole) ** 2 * count).sum() / max(((shade - whole) ** 2 * away).sum(), 1e-9)
    same = segment[:, None] == segment[None]
    blocks = 1.0
    if (away & ~same).any() and (away & same).any():
        blocks = shade[away & same].mean() / max(shade[away & ~same].mean(), 1e-3)
    rest = away & ~(((shade >= DARK) & visible).sum(0) >= visible.sum(0) / 2)
    content = shade[rest].mean() if rest.any() else 0.0
    return Seen(float(stripe), float(line), float(columns), float(blocks), float(content))


def _stands_out(shade: np.ndarray, visible: np.ndarray, offset: int) -> np.ndarray:
    """Of each row, whether its cell on a line along the diagonal is darker than those three to five
    cells beside it."""
    n = len(shade)
    rows = np.arange(max(0, -offset), min(n, n - offset))
    columns = rows[:, None] + offset + np.array([-5, -4, -3, 3, 4, 5])
    there = (columns >= 0) & (columns < n)
    columns = np.clip(columns, 0, n - 1)
    there &= visible[rows[:, None], columns]
    beside = np.ma.median(np.ma.masked_array(shade[rows[:, None], columns], ~there), axis=1).filled(
        1.0
    )
    return np.asarray(shade[rows, rows + offset] >= beside + DARKER)


def is_clear(seen: Seen, wanted: str) -> bool:
    """Whether what is seen is clearly what was wanted."""
    if wanted == "vertical":
        return (
            seen.line < 0.45 and seen.blocks < 1.7 and seen.stripe >= 0.6 and seen.columns >= 0.45
        )
    if wanted == "diagonal":
        return seen.line >= 0.6 and seen.stripe < 0.4 and seen.columns < 0.5
    if wanted == "vertical+diagonal":
        return seen.line >= 0.6 and seen.stripe >= 0.6 and seen.columns >= 0.4
    if wanted == "block":
        return seen.blocks >= 1.8 and seen.columns < 0.55 and seen.line < 0.65
    return seen.line < 0.5 and seen.columns < 0.42 and seen.blocks < 1.3 and seen.content >= 0.12


def draw(wanted: str, causal: bool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A map `[n, n]` with the parts of the wanted label, and the segment of each token."""
    n = int(np.exp(rng.uniform(np.log(SHORTEST if wanted != "block" else 16), np.log(LONGEST))))
    place = np.arange(n)
    segment, ends = _segments(n, 2 if wanted == "block" else 1, rng)
    away = place[None] - place[:, None]  # key minus query
    rank = int(rng.integers(2, 9))
    words = rng.normal(size=(int(rng.integers(max(n // 3, 3), n + 1)), rank))[  # words come again
        rng.integers(0, max(n // 3, 3), n)
    ]
    content = words @ rng.normal(size=(rank, rank)) @ words.T / rank
    texture = rng.uniform(
        *{"vertical": (0.1, 1.6), "heterogeneous": (0.2, 2.4)}.get(wanted, (0.1, 0.9))
    )
    logits = texture * content + rng.uniform(0.05, 0.5) * rng.normal(size=(n, n))
    salience = rng.normal(size=n)
    if wanted == "heterogeneous":
        logits += rng.uniform(0, 0.7) * salience
        if rng.random() < 0.45:  # a wide blur around the diagonal
            logits -= rng.uniform(0.5, 6) * np.abs(away) / n
        if rng.random() < 0.3:  # short columns: spots that a few neighbouring rows share
            for _ in range(int(rng.integers(2, max(n // 3, 3)))):
                top, size = int(rng.integers(n)), int(rng.integers(2, max(n // 4, 3)))
                logits[top : top + size, rng.integers(n)] += rng.uniform(1, 3)
    else:
        logits += rng.uniform(0, 0.5) * salience
    if wanted in (
        "vertical",
        "vertical+diagonal",
    ):  # a stripe alone may take nearly all of the attention
        logits += _stripes(segment, ends, causal, 8.0 if wanted == "vertical" else 5.0, rng)
    if wanted in ("diagonal", "vertical+diagonal"):
        logits += _line(away, n, causal, rng)
    if wanted == "block":
        same = segment[:, None] == segment[None]
        logits += rng.uniform(0.8, 4) * same
        if rng.random() < 0.5:
            logits += rng.uniform(0.3, 1.2) * salience
        if rng.random() < 0.4:  # attention fades with distance
            logits -= rng.uniform(1, 4) * np.abs(away) / n
        if rng.random() < 0.4:  # a token of each segment that the segment looks at
            logits[:, ends] += rng.uniform(0.5, 2.5)
    # Tokens at the ends that all look at: faintly where a line is all, a dark column where content
    # or blocks are more.
    if wanted == "diagonal" and rng.random() < 0.5:
        logits[:, rng.choice([0, n - 1])] += rng.uniform(0, 2)
    if wanted in ("heterogeneous", "block") and rng.random() < 0.8:
        logits[:, 0 if causal else rng.choice([0, n - 1])] += rng.uniform(1.5, 5)
        if rng.random() < 0.3:
            logits[:, ends[-1]] += rng.uniform(1.5, 5)
    if causal and rng.random() < 0.5:
        logits[:, 0] += rng.uniform(0, 3) if wanted != "diagonal" else rng.uniform(0, 1.5)
    if wanted == "vertical":
        if rng.random() < 0.4:  # neighbours, faintly
            logits += rng.uniform(0, 1.5) * (np.abs(away) <= 1)
        if rng.random() < 0.3:
            logits -= rng.uniform(0.5, 2.5) * np.abs(away) / n
    odd = rng.random(n) < rng.uniform(
        0, 0.08
    )  # rows of their own, as of delimiters: flat or elsewhere
    logits[odd] = rng.normal(size=(int(odd.sum()), n)) * rng.uniform(0.2, 2)
    if causal:
        logits = np.where(away > 0, -np.inf, logits)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True), segment


def _segments(n: int, fewest: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Segments of a text in order, none shorter than a sixth of it, and the last token of each."""
    pieces = int(rng.choice([1, 2, 2, 3] if fewest == 1 else [2, 2, 2, 3, 4]))
    while True:
        cuts = (
            np.sort(rng.choice(np.arange(1, n), pieces - 1, replace=False))
            if pieces > 1
            else np.array([], int)
        )
        edges = np.concatenate([[0], cuts, [n]])
        if np.diff(edges).min() >= max(n // 6, 2):
            return np.repeat(np.arange(pieces), np.diff(edges)), edges[1:] - 1


def _stripes(
    segment: np.ndarray, ends: np.ndarray, causal: bool, strongest: float, rng: np.random.Generator
) -> np.ndarray:
    """Columns that all rows look at, few or many; or each segment its own last token."""
    n = len(segment)
    out = np.zeros((n, n))
    kind = rng.choice(["edge", "few", "many", "own"], p=[0.35, 0.3, 0.25, 0.1])
    if kind == "edge":
        columns = (
            np.unique([0, *ends])
            if rng.random() < 0.4
            else np.array([0 if causal else rng.choice([0, n - 1])])
        )
        out[:, columns] += rng.uniform(1.5, strongest)
    elif kind == "few":
        columns = rng.choice(max(int(0.7 * n), 1), int(rng.integers(1, 5)))
        out[:, columns] += rng.uniform(1.5, strongest, len(columns))
    elif kind == "many":
        out += rng.uniform(1, 3) * (rng.normal(size=n) + (rng.random(n) < 0.15) * 1.5)
    elif causal:
        out[:, 0] += rng.uniform(2, strongest)
    else:
        out += rng.uniform(2, strongest) * (ends[segment][:, None] == np.arange(n)[None])
    return out


def _line(away: np.ndarray, n: int, causal: bool, rng: np.random.Generator) -> np.ndarray:
    """A line or band along the diagonal, of uneven strength."""
    offset = int(rng.choice([0, -1, -1, -2, -3] if causal else [-2, -1, -1, 0, 1, 1, 2]))
    wide = rng.random() < 0.35
    width = rng.uniform(1, 0.08 * n + 1) if wide else rng.uniform(0.3, 1.0)
    strength = rng.uniform(2, 8) * (1 + rng.uniform(0, 0.4) * rng.normal(size=(n, 1)))
    out = strength * np.exp(-(((away - offset) / width) ** 2) / 2)
    if rng.random() < 0.3:  # more weight on one side
        out += rng.uniform(0.5, 2) * np.exp(-np.abs(away) / rng.uniform(2, 0.1 * n + 3))
    if rng.random() < 0.2:  # faint lines further off
        step = int(rng.integers(3, max(n // 4, 4)))
        out += rng.uniform(0.3, 1.2) * ((away - offset) % step == 0)
    return out


def planted_maps(count: int, seed: int = 0) -> Labelled:
    """`count` maps, as many of each label, half of them causal; each is a head of its own."""
    rng = np.random.default_rng(seed)
    weights = torch.zeros(count, LONGEST, LONGEST)
    lengths, labels, causal = np.zeros((3, count), int)
    for k in range(count):
        wanted, causal[k], labels[k] = (
            PATTERNS[k % len(PATTERNS)],
            k // len(PATTERNS) % 2,
            k % len(PATTERNS),
        )
        for _ in range(MOST_TRIES):
            found, segment = draw(wanted, bool(causal[k]), rng)
            visible = (
                np.tri(len(found), dtype=bool) if causal[k] else np.ones_like(found, dtype=bool)
            )
            if is_clear(look(shades(found, visible), visible, segment), wanted):
                break
        else:
            raise RuntimeError(f"no clear {wanted} map in {MOST_TRIES} draws")
        lengths[k] = len(found)
        weights[k, : len(found), : len(found)] = torch.from_numpy(found)
    names = np.array([f"{MODEL}/{seed}-{k}/L0H{k}" for k in range(count)])
    heads = np.array([f"{MODEL} L0H{k}" for k in range(count)])
    return Labelled(
        weights,
        torch.from_numpy(lengths),
        torch.from_numpy(causal).bool(),
        torch.from_numpy(labels),
        torch.eye(len(PATTERNS))[labels],
        np.full(count, MODEL),
        heads,
        np.full(count, "planted"),
        names,
    )
