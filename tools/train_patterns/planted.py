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
SHORTEST = 8
LONGEST = 128
DARK = 0.5  # a shade (square root of the weight over the 99th percentile) that is seen as ink
LINE_CONTRAST = 0.12  # a line is darker than the cells beside it by at least this much
MAX_TRIES = 60


@dataclass(frozen=True)
class VisibleParts:
    """How visible the parts of a map are: shares of its height or length, and contrasts of
    shades.

    Attributes
    ----------
    stripe
        Share of the rows over which the darkest column is dark and darker than what is beside it.
    line
        Share of the rows in which a line along the diagonal is darker than what is beside it.
    columns
        Share of the differences between cells that whole columns explain.
    blocks
        Mean shade within segments over that outside.
    content
        Mean shade beside the diagonal and outside the columns that are dark over half of their
        height.
    """

    stripe: float
    line: float
    columns: float
    blocks: float
    content: float


def shades(weights: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Return the map as a labeller sees it, 0 for white to 1 for black."""
    top = np.quantile(weights[visible], 0.99)
    return np.asarray(np.sqrt(np.minimum(weights / max(top, 1e-9), 1)) * visible)


def measure_parts(shade: np.ndarray, visible: np.ndarray, segment: np.ndarray) -> VisibleParts:
    """Measure how visible stripes, lines and blocks are."""
    n = len(shade)
    position = np.arange(n)
    distance = np.abs(position[:, None] - position[None])

    row_median = np.array([np.median(row[seen]) for row, seen in zip(shade, visible, strict=True)])
    off_diagonal = visible & (distance > 1)
    height = off_diagonal.sum(0)
    is_dark = off_diagonal & (shade >= np.maximum(DARK, row_median[:, None] + 0.2))
    dark_share = np.where(height >= n / 3, is_dark.sum(0) / np.maximum(height, 1), 0)

    line = max(_stands_out(shade, visible, offset).sum() / n for offset in range(-4, 5))

    # Columns as a whole, away from the diagonal: how much of the spread over cells they explain.
    away = visible & (distance > 2)
    count = away.sum(0)
    column_mean = (shade * away).sum(0) / np.maximum(count, 1)
    mean = shade[away].mean() if away.any() else 0.0
    between_columns = ((column_mean - mean) ** 2 * count).sum()
    total_spread = ((shade - mean) ** 2 * away).sum()

    same_segment = segment[:, None] == segment[None]
    inside = away & same_segment
    outside = away & ~same_segment
    blocks = 1.0
    if outside.any() and inside.any():
        blocks = shade[inside].mean() / max(shade[outside].mean(), 1e-3)

    is_stripe = ((shade >= DARK) & visible).sum(0) >= visible.sum(0) / 2
    other_cells = away & ~is_stripe
    content = shade[other_cells].mean() if other_cells.any() else 0.0
    return VisibleParts(
        stripe=float(dark_share.max()),
        line=float(line),
        columns=float(between_columns / max(total_spread, 1e-9)),
        blocks=float(blocks),
        content=float(content),
    )


def _stands_out(shade: np.ndarray, visible: np.ndarray, offset: int) -> np.ndarray:
    """Return of each row whether its cell on a line along the diagonal is darker than those three
    to five cells beside it."""
    n = len(shade)
    rows = np.arange(max(0, -offset), min(n, n - offset))
    columns = rows[:, None] + offset + np.array([-5, -4, -3, 3, 4, 5])
    is_inside = (columns >= 0) & (columns < n)
    columns = np.clip(columns, 0, n - 1)
    is_inside &= visible[rows[:, None], columns]
    neighbours = np.ma.masked_array(shade[rows[:, None], columns], ~is_inside)
    beside = np.ma.median(neighbours, axis=1).filled(1.0)
    return np.asarray(shade[rows, rows + offset] >= beside + LINE_CONTRAST)


def is_clear(parts: VisibleParts, wanted: str) -> bool:
    """Return whether what is visible is clearly the wanted pattern."""
    if wanted == "vertical":
        return (
            parts.line < 0.45
            and parts.blocks < 1.7
            and parts.stripe >= 0.6
            and parts.columns >= 0.45
        )
    if wanted == "diagonal":
        return parts.line >= 0.6 and parts.stripe < 0.4 and parts.columns < 0.5
    if wanted == "vertical+diagonal":
        return parts.line >= 0.6 and parts.stripe >= 0.6 and parts.columns >= 0.4
    if wanted == "block":
        return parts.blocks >= 1.8 and parts.columns < 0.55 and parts.line < 0.65
    return (
        parts.line < 0.5 and parts.columns < 0.42 and parts.blocks < 1.3 and parts.content >= 0.12
    )


def draw(wanted: str, causal: bool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a map `[n, n]` with the parts of the wanted label, and the segment of each token."""
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
    if wanted in ("vertical", "vertical+diagonal"):
        # A stripe alone may take nearly all of the attention.
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
    # Some rows are different, as those of delimiters are: flat, or elsewhere.
    odd = rng.random(n) < rng.uniform(0, 0.08)
    logits[odd] = rng.normal(size=(int(odd.sum()), n)) * rng.uniform(0.2, 2)
    if causal:
        logits = np.where(away > 0, -np.inf, logits)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True), segment


def _segments(n: int, fewest: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return segments of a text in order, none shorter than a sixth of it, and the last token of
    each."""
    pieces = int(rng.choice([1, 2, 2, 3] if fewest == 1 else [2, 2, 2, 3, 4]))
    while True:
        cuts = np.array([], int)
        if pieces > 1:
            cuts = np.sort(rng.choice(np.arange(1, n), pieces - 1, replace=False))
        edges = np.concatenate([[0], cuts, [n]])
        if np.diff(edges).min() >= max(n // 6, 2):
            return np.repeat(np.arange(pieces), np.diff(edges)), edges[1:] - 1


def _stripes(
    segment: np.ndarray, ends: np.ndarray, causal: bool, strongest: float, rng: np.random.Generator
) -> np.ndarray:
    """Return columns that all rows attend to, few or many; or for each segment its last token."""
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
    """Return a line or band along the diagonal, of uneven strength."""
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
    """Return `count` maps, as many of each label, half of them causal; each is a head of its own."""
    rng = np.random.default_rng(seed)
    weights = torch.zeros(count, LONGEST, LONGEST)
    lengths = np.zeros(count, int)
    labels = np.arange(count) % len(PATTERNS)
    causal = np.arange(count) // len(PATTERNS) % 2 == 1
    for number in range(count):
        planted = _clear_map(PATTERNS[labels[number]], bool(causal[number]), rng)
        n_tokens = len(planted)
        lengths[number] = n_tokens
        weights[number, :n_tokens, :n_tokens] = torch.from_numpy(planted)
    return Labelled(
        weights=weights,
        lengths=torch.from_numpy(lengths),
        causal=torch.from_numpy(causal),
        labels=torch.from_numpy(labels),
        votes=torch.eye(len(PATTERNS))[labels],
        model=np.full(count, MODEL),
        head=np.array([f"{MODEL} L0H{number}" for number in range(count)]),
        drawn=np.full(count, "planted"),
        names=np.array([f"{MODEL}/{seed}-{number}/L0H{number}" for number in range(count)]),
    )


def _clear_map(wanted: str, causal: bool, rng: np.random.Generator) -> np.ndarray:
    """Return a map that clearly shows the wanted pattern."""
    for _ in range(MAX_TRIES):
        weights, segment = draw(wanted, causal, rng)
        visible = np.ones_like(weights, dtype=bool)
        if causal:
            visible = np.tri(len(weights), dtype=bool)
        parts = measure_parts(shades(weights, visible), visible, segment)
        if is_clear(parts, wanted):
            return weights
    raise RuntimeError(f"no clear {wanted} map in {MAX_TRIES} draws")
