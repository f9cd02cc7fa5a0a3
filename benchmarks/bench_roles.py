"""Sieve bias by masked products against the released per-token loops (Pande et al. 2021), on the
same maps in the same run: local and block.

    python benchmarks/bench_roles.py [--length 128] [--inputs 8] [--layers 12] [--heads 12]

The released arithmetic (the notebooks `local_score` and `block_score`), in our words: for every
layer, head and token, the mean weight on a slice of the row (the band, or the own segment) over the
mean weight of the whole row; in the block score, times the row's entropy by scipy, and special
tokens count as tokens of the segment they follow or end. What is timed is all of that. What is
compared are the numbers where the definition is the paper's: no entropy factor, no special tokens,
and a band that ends where the input does. The entropy is most of the block loop's time, so the loop
without it is timed too. At least 30 times (local) and 500 times (block) are wanted."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from scipy.stats import entropy

from common import best_time, report_ratio
from headwise.analyses.roles.matrix_bias import ScaledSieves
from headwise.analyses.roles.sieves import find_sieve, sieve_matrices
from headwise.core.token_types import OTHER, TYPE_NAMES
from headwise.text.encode import NO_WORD, Batch, Encoded, collate
from headwise.text.example import Example


def made_row(index: int, length: int) -> Encoded:
    """A pair of segments of about equal length."""
    middle = length // 2
    special = np.zeros(length, dtype=bool)
    special[[0, middle, length - 1]] = True
    segment = np.where(special, -1, (np.arange(length) > middle).astype(np.int64))
    ids = np.random.default_rng(index).integers(1000, 30000, length)
    token_type = np.where(special, TYPE_NAMES.index("sep"), OTHER)
    token_type[0] = TYPE_NAMES.index("cls")
    words = np.full(length, NO_WORD)
    return Encoded(
        index,
        Example(text="a", pair="b"),
        ids,
        (segment > 0).astype(np.int64),
        words,
        segment,
        special,
        token_type,
        False,
        False,
    )


def released_local(attention: np.ndarray) -> np.ndarray:
    """`[layer, head]` by loops over layers, heads and tokens; attention `[layer, head, token,
    token]`."""
    layers, heads, n, _ = attention.shape
    out = np.zeros((layers, heads))
    for layer in range(layers):
        for head in range(heads):
            own = attention[layer, head]
            score = 0.0
            for t in range(n):
                usual = np.sum(own[t, :]) / n
                low, high = max(0, t - 2), min(n, t + 3)
                score += np.sum(own[t, low:high]) / (high - low) / usual
            out[layer, head] = score / n
    return out


def released_block(
    attention: np.ndarray, middle: int, with_entropy: bool = True, with_special: bool = True
) -> np.ndarray:
    """The same for the own segment of `[CLS] a [SEP] b [SEP]`, whose first [SEP] stands at
    `middle`; as released unless told otherwise."""
    layers, heads, n, _ = attention.shape
    out = np.zeros((layers, heads))
    for layer in range(layers):
        for head in range(heads):
            own = attention[layer, head]
            score, tokens = 0.0, 0
            for t in range(n):
                if not with_special and t in (0, middle, n - 1):
                    continue
                usual = np.sum(own[t, :]) / n
                low, high = (1, middle) if t < middle else (middle + 1, n - 1)
                found = np.sum(own[t, low:high]) / (high - low) / usual
                score += found * entropy(own[t, :]) if with_entropy else found
                tokens += 1
            out[layer, head] = score / tokens
    return out


def ours(names: list[str], batch: Batch, maps: torch.Tensor) -> torch.Tensor:
    """`[example, layer, head, role]`, the sieves built anew."""
    shares = ScaledSieves(sieve_matrices([find_sieve(name) for name in names], batch))
    visible = (
        batch.attention_mask[:, None, :, None] & batch.attention_mask[:, None, None, :]
    ).contiguous()
    layers = [shares.score(maps[:, layer], visible) for layer in range(maps.shape[1])]
    return torch.stack([sums["total"] / sums["count"] for sums in layers], dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("length", 128),
        ("inputs", 8),
        ("layers", 12),
        ("heads", 12),
        ("repeats", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = (options.inputs, options.layers, options.heads, options.length, options.length)
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul_(2).softmax(-1)
    rows = [made_row(index, options.length) for index in range(options.inputs)]
    batch = collate(rows)
    one = maps[0].numpy()
    middle = options.length // 2
    wanted = {"local": 30, "block": 500}
    released = {"local": lambda: released_local(one), "block": lambda: released_block(one, middle)}
    paper = {
        "local": lambda: released_local(one),
        "block": lambda: released_block(one, middle, with_entropy=False, with_special=False),
    }
    for name, loops in released.items():
        slow = best_time(loops, 1 if name == "block" else 3)
        fast = (
            best_time(lambda name=name: ours([name], batch, maps), options.repeats) / options.inputs
        )
        difference = float(
            np.abs(ours([name], batch, maps)[0, ..., 0].numpy() - paper[name]()).max()
        )
        assert difference < 1e-4, f"{name}: the numbers differ by {difference}"
        print(f"{name}: largest difference {difference:.1e} where the definition is the paper's")
        what = f"sieve bias, {name}, all heads, one input of {options.length} tokens"
        report_ratio(
            what, fast, "released per-token loops", slow, wanted=f"at least {wanted[name]} x"
        )
        if name == "block":
            report_ratio(
                what,
                fast,
                "the same loops without their entropy factor",
                best_time(lambda: released_block(one, middle, False), 3),
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
