"""Typical maps of each pattern, that come with the package: labelled maps which the classifier is surest of."""

from __future__ import annotations

import io
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from headwise.analyses.patterns.network import PATTERNS
from headwise.analyses.patterns.store import from_bytes, to_bytes

FILE = "typical.npz"
PER_PATTERN = 3


def typical_maps() -> dict[str, list[np.ndarray]]:
    """`{pattern: [weights [n, n], ...]}`, the surest first."""
    raw = resources.files("headwise.analyses.patterns").joinpath(FILE).read_bytes()
    with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
        return {
            name: [from_bytes(stored[key]) for key in sorted(stored.files) if key.split("|")[0] == name]
            for name in PATTERNS
        }


def pick_typical(
    names: np.ndarray,
    labels: np.ndarray,
    probabilities: np.ndarray,
    heads: np.ndarray,
    texts: np.ndarray,
    tokens: np.ndarray,
    causal: np.ndarray,
) -> dict[str, list[str]]:
    """For each pattern the ids of the labelled maps that the classifier is surest of and right about: each of another head on another text, none shorter than 20 tokens, the last
    one causal."""
    out: dict[str, list[str]] = {}
    for k, pattern in enumerate(PATTERNS):
        chosen: list[int] = []
        fitting = (labels == k) & (probabilities.argmax(-1) == k) & (tokens >= 20)
        for kind, upto in ((~causal, PER_PATTERN - 1), (causal, PER_PATTERN)):
            for i in np.argsort(-probabilities[:, k], kind="stable"):
                new = heads[i] not in heads[chosen] and texts[i] not in texts[chosen]
                if fitting[i] and kind[i] and new and len(chosen) < upto:
                    chosen.append(int(i))
        out[pattern] = [str(names[i]) for i in chosen]
    return out


def save_typical(path: Path, maps: dict[str, list[np.ndarray]]) -> None:
    """Write what `typical_maps` reads."""
    stored: dict[str, Any] = {
        f"{name}|{k}": to_bytes(weights) for name, own in maps.items() for k, weights in enumerate(own)
    }
    np.savez_compressed(path, **stored)
