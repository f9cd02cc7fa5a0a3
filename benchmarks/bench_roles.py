"""Sieve bias by masked products against the released per-token loops (Pande et al. 2021), on the same maps in the same run: local and block.

    python benchmarks/bench_roles.py [--length 128] [--inputs 8] [--layers 12] [--heads 12]

The released arithmetic, in our words: for every layer, head and token, slice the band (or collect the tokens of the own segment one by one), average
the weights there, divide by the average of the row (1/n). Two things of theirs are not the paper's definition and left out: a band one token too wide
at the right edge, and an entropy factor in the block score. At least 30 times (local) and 500 times (block) are wanted.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from common import best_time, report_ratio
from headwise.analyses.roles import Shares
from headwise.sieves import find_sieve, sieve_matrices
from headwise.text.encode import NO_WORD, Batch, Encoded, collate
from headwise.text.example import Example


def made_row(index: int, length: int) -> Encoded:
    """A pair of segments of about equal length."""
    middle = length // 2
    special = np.zeros(length, dtype=bool)
    special[[0, middle, length - 1]] = True
    segment = np.where(special, -1, (np.arange(length) > middle).astype(np.int64))
    ids = np.random.default_rng(index).integers(1000, 30000, length)
    cls, sep = np.zeros(length, dtype=bool), special.copy()
    cls[0], sep[0] = True, False
    none = np.zeros(length, dtype=bool)
    words = np.full(length, NO_WORD)
    return Encoded(
        index, Example(text="a", pair="b"), ids, (segment > 0).astype(np.int64), words, segment, special, cls, sep, none, False, False
    )


def released_local(attention: np.ndarray) -> np.ndarray:
    """`[layer, head]` by loops over layers, heads and tokens; attention `[layer, head, token, token]`."""
    layers, heads, n, _ = attention.shape
    out = np.zeros((layers, heads))
    for layer in range(layers):
        for head in range(heads):
            scores = []
            for t in range(n):
                low, high = max(0, t - 2), min(n, t + 3)
                scores.append(attention[layer, head, t, low:high].sum() / (high - low) * n)  # rows sum to one
            out[layer, head] = np.mean(scores)
    return out


def released_block(attention: np.ndarray, segment: list[int]) -> np.ndarray:
    """The same with the tokens of the own segment gathered one by one."""
    layers, heads, n, _ = attention.shape
    out = np.zeros((layers, heads))
    for layer in range(layers):
        for head in range(heads):
            scores = []
            for t in range(n):
                if segment[t] < 0:
                    continue
                total, size = 0.0, 0
                for other in range(n):
                    if segment[other] == segment[t]:
                        total += attention[layer][head][t][other]
                        size += 1
                scores.append(total / size * n)
            out[layer, head] = np.mean(scores)
    return out


def ours(names: list[str], batch: Batch, maps: torch.Tensor) -> torch.Tensor:
    """`[example, layer, head, role]`, the sieves built anew."""
    shares = Shares(sieve_matrices([find_sieve(name) for name in names], batch))
    visible = (batch.real[:, None, :, None] & batch.real[:, None, None, :]).contiguous()
    layers = [shares.score(maps[:, layer], visible) for layer in range(maps.shape[1])]
    return torch.stack([sums["total"] / sums["count"] for sums in layers], dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("length", 128), ("inputs", 8), ("layers", 12), ("heads", 12), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = (options.inputs, options.layers, options.heads, options.length, options.length)
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul_(2).softmax(-1)
    rows = [made_row(index, options.length) for index in range(options.inputs)]
    batch = collate(rows)
    one = maps[0].numpy()
    segment = rows[0].segment.tolist()
    for name, released, wanted in (
        ("local", lambda: released_local(one), 30),
        ("block", lambda: released_block(one, segment), 500),
    ):
        slow = best_time(released, 1 if name == "block" else 3)
        fast = best_time(lambda name=name: ours([name], batch, maps), options.repeats) / options.inputs
        difference = float(np.abs(ours([name], batch, maps)[0, ..., 0].numpy() - released()).max())
        assert difference < 1e-4, f"{name}: the numbers differ by {difference}"
        print(f"{name}: largest difference {difference:.1e}")
        report_ratio(
            f"sieve bias, {name}, all heads, one input of {options.length} tokens",
            fast,
            "released per-token loops",
            slow,
            wanted=f"at least {wanted} x",
        )
    everything = [
        "local",
        "local:prev",
        "local:next",
        "block",
        "delimiter",
        "cls",
        "sep",
        "rare",
        "same_word",
        "same_word:other_segment",
        "first",
    ]
    fast = best_time(lambda: ours(everything, batch, maps), options.repeats) / options.inputs
    print(f"{len(everything)} roles together: {fast:.4g} s an input")


if __name__ == "__main__":
    main()
