"""What the benchmarks share: rows of a fixed length from the demo prose, timing, and one way to
print a ratio."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from headwise.text.encode import Encoded
from headwise.text.example import Example


def best_time(work: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest of several timings, in seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def demo_rows(model: Any, count: int, length: int, seed: int = 0) -> list[Encoded]:
    """Pairs of texts of exactly `length` tokens: whole words of the tokenizer's vocabulary in
    random order (what the words are does not matter for time)."""
    rng = np.random.default_rng(seed)
    words = [w for w in model.tokenizer.get_vocab() if w.isalpha() and len(w) > 2]
    words.sort()
    rows = []
    for index in range(count):
        text = [" ".join(rng.choice(words, length)) for _ in range(2)]
        saved, model.encoder.max_length = model.encoder.max_length, length
        row = model.encoder.encode(Example(text=text[0], pair=text[1]), index)
        model.encoder.max_length = saved
        assert row is not None
        assert len(row) == length
        rows.append(row)
    return rows


def report_ratio(
    what: str, seconds: float, reference: str, reference_seconds: float, *, wanted: str = ""
) -> float:
    """Print one line for people and one for programs; returns seconds / reference_seconds."""
    ratio = seconds / reference_seconds
    faster = f"{1 / ratio:.1f} x faster" if ratio < 1 else f"{ratio:.2f} x the time"
    print(
        f"{what}: {seconds:.4g} s; {reference}: {reference_seconds:.4g} s; "
        f"{faster}{f' ({wanted} wanted)' if wanted else ''}"
    )
    print(
        json.dumps(
            {
                "what": what,
                "seconds": seconds,
                "reference": reference,
                "reference_seconds": reference_seconds,
                "ratio": ratio,
                "wanted": wanted,
            }
        )
    )
    return ratio
