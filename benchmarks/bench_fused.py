"""Fused statistics against the model's own plain pass, on a GPU: time and memory at the sizes
people use.

    python benchmarks/bench_fused.py          # the shape of Qwen3-8B: 36 layers × 32 heads, 8
    key/value heads python benchmarks/bench_fused.py --layers 4 --analyses surface,offsets

The reference is the same model's `sdpa` pass over the same batch, measured in the same run; memory
is the peak beside the plain pass's. At 2,048 tokens the means of the first layer, whose inputs are
the same to the last bit, are compared with those from full rows."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoModel, Qwen3Config

from headwise.analyses.contract import Observer, Shape, make_analysis
from headwise.core.token_types import OTHER, TYPE_NAMES
from headwise.models import HeadModel
from headwise.run.engine import observe_batch
from headwise.stats.accumulators import State
from headwise.text.encode import Batch, Encoded, collate
from headwise.text.example import Example

SIZES = ("8x512", "4x2048", "1x8192", "1x16384", "1x32768")


def plain_model(layers: int) -> torch.nn.Module:
    config = Qwen3Config(
        num_hidden_layers=layers, hidden_size=4096, intermediate_size=12288, num_attention_heads=32
    )
    config.num_key_value_heads, config.head_dim, config.max_position_embeddings = 8, 128, 40960
    config.pad_token_id = 0
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModel.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    return model.eval()


def rows_of(count: int, length: int, vocabulary: int) -> list[Encoded]:
    """Rows of random tokens, some of them punctuation: a text without a tokenizer."""
    random = np.random.default_rng(0)
    rows = []
    for index in range(count):
        ids = random.integers(1, vocabulary, length)
        no = np.zeros(length, dtype=bool)
        word = np.arange(length)
        text = Example(text=f"example {index}")
        is_punct = random.random(length) < 0.1
        rows.append(
            Encoded(
                index,
                text,
                ids,
                no.astype(int),
                word,
                no.astype(int),
                special=no,
                token_type=np.where(is_punct, TYPE_NAMES.index("punct"), OTHER),
                truncated=False,
                aligned=False,
            )
        )
    return rows


def best(work: Callable[[], object], times: int) -> tuple[float, float]:
    """The shortest of some runs in seconds, and the peak of memory in GiB."""
    work()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds), torch.cuda.max_memory_allocated() / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--analyses", default="surface,offsets,roles,sinks")
    parser.add_argument(
        "--sieves",
        default="local,local:prev,first,rare,same_word,previous,duplicate,induction,sink",
    )
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    module = plain_model(given.layers)
    sieves = {"roles": {"sieves": given.sieves, "tau": 2.0}}
    analyses = [make_analysis(name, sieves.get(name, {})) for name in given.analyses.split(",")]
    vocabulary = module.config.vocab_size
    print(f"{torch.cuda.get_device_name()}, {given.layers} layers, bf16: {given.analyses}")
    for count, length in (map(int, size.split("x")) for size in given.sizes):
        rows = rows_of(count, length, vocabulary)
        batch = collate(rows, 0, "cuda")
        with torch.no_grad():
            plain, own = best(lambda b=batch: module(input_ids=b.ids, use_cache=False), given.times)
        model = HeadModel.open(module)
        states = started(model, batch, analyses)  # once for all batches of a run
        watched, peak = best(
            lambda m=model, b=batch, s=states: observe_batch(m, b, analyses, s), given.times
        )
        line = f"{count} × {length:>6}: plain {plain:.3f} s, watched {watched:.3f} s, ratio {watched / plain:.2f}, "
        line += f"{peak - own:+.2f} GiB"
        if length == 2048:
            line += f", largest difference to full rows {difference(model, rows[:1], analyses):.1e}"
        model.close()
        module.set_attn_implementation("sdpa")
        print(line, flush=True)


def started(model: HeadModel, batch: Batch, analyses: list[Observer]) -> dict[str, State]:
    shape = Shape(
        model.layers,
        model.heads,
        model.d_head,
        model.config.hidden_size,
        model.causal,
        batch.ids.shape[1],
        ("punct", "other"),
    )
    return {analysis.name: analysis.start(shape) for analysis in analyses}


def observe(model: HeadModel, batch: Batch, analyses: list[Observer]) -> dict[str, State]:
    states = started(model, batch, analyses)
    observe_batch(model, batch, analyses, states)
    return states


def difference(model: HeadModel, rows: list[Encoded], analyses: list[Observer]) -> float:
    """The largest difference of any mean between the kernel and full rows."""
    fused = observe(model, collate(rows, 0, "cuda"), analyses)
    with patch("headwise.models.strategies.scores_of", return_value=None):
        by_rows = observe(model, collate(rows, 0, "cuda"), analyses)
    worst = 0.0
    for name, state in fused.items():
        others = by_rows[name].arrays()
        for key, value in state.arrays().items():
            if key.endswith("/mean"):
                gap = np.abs(value - others[key])[0] / np.maximum(1, np.abs(value[0]))
                worst = max(worst, float(np.nanmax(gap)))
    return worst


if __name__ == "__main__":
    main()
