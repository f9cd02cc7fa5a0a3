"""How the cost of an example grows with length, layers, heads and examples: a random model of each
size, watched by `surface`, `offsets` and `roles`, against the same model's bare eager pass.
Processor time on one core.

python benchmarks/bench_growth.py [--repeats 3]
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import BertConfig, BertModel

from headwise import HeadModel, make_analysis
from headwise.run.encoded import CorpusScan
from headwise.run.engine import observe_batch
from headwise.run.plan import model_shape
from headwise.testing.models import random_model
from headwise.text.encode import batches
from headwise.text.example import Example

BASE = {"length": 128, "layers": 4, "heads": 8, "examples": 8}
VARIED = {
    "length": (64, 128, 256, 512),
    "layers": (2, 4, 8),
    "heads": (4, 8, 16),
    "examples": (4, 8, 16, 32),
}
D_HEAD = 32


def spent(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def measured(size: dict[str, int], repeats: int) -> tuple[float, float]:
    """Seconds of the bare pass and of the watched one: the smallest of several, taken in turns."""
    _, tokenizer = random_model(d_head=D_HEAD, max_length=1024)
    width = size["heads"] * D_HEAD
    shape = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": size["heads"],
    }
    config = BertConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=size["layers"],
        max_position_embeddings=1024,
        attn_implementation="eager",
        **shape,
    )
    model = HeadModel.open(BertModel(copy.deepcopy(config)).eval(), tokenizer=tokenizer)
    bare = BertModel(config).eval()
    words = [word for word in sorted(tokenizer.get_vocab()) if word.isalpha()]
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(words, size["length"] - 2)) for _ in range(size["examples"])]
    rows = [
        row
        for i, text in enumerate(texts)
        if (row := model.encoder.encode(Example(text=text), i)) is not None
    ]
    cut = batches(rows, 4096, model.pad_id)
    analyses = [make_analysis(name) for name in ("surface", "offsets", "roles")]
    about = model_shape(model, CorpusScan(longest=max(map(len, rows))))

    def plain() -> None:
        with torch.no_grad():
            for batch in cut:
                bare(
                    input_ids=batch.ids,
                    attention_mask=batch.attention_mask.long(),
                    output_attentions=True,
                )

    def watched() -> None:
        states = {a.name: a.start(about) for a in analyses}
        for batch in cut:
            observe_batch(model, batch, analyses, states)

    both = [(spent(plain), spent(watched)) for _ in range(repeats + 1)][1:]
    return min(one for one, _ in both), min(other for _, other in both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"beside what is varied: {BASE}, {D_HEAD} numbers a head")
    print(f"{'varied':<10}{'':>6}{'bare, ms':>10}{'watched, ms':>13}{'ratio':>7}")
    for what, values in VARIED.items():
        for value in values:
            bare, watched = measured(BASE | {what: value}, given.repeats)
            print(
                f"{what:<10}{value:>6}{1e3 * bare:>10.0f}{1e3 * watched:>13.0f}{watched / bare:>7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
