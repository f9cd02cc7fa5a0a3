"""What the attribution of all edges costs at the size of 8B, on a GPU, in plain passes.

    python benchmarks/gpu_circuits.py --write gpu_circuits.md
    python benchmarks/gpu_circuits.py --device cpu --layers 2 --heads 4 --kv-heads 2 --hidden 64

A decoder of the shape of Qwen3-8B with random weights is built on the device in bfloat16. All edges
between its heads, MLPs, embedding and logits are scored for 8 pairs of 64 random tokens, both runs
included, 4 pairs at once and then 8. The reference is a forward and backward pass of the same model
over the same tokens, all pairs at once, to its embeddings. At most 40 such passes are wanted. Each
line is written as soon as it is known."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from circuits import plain_pass, table, write
from headwise.experiments.circuit.options import CircuitOptions
from headwise.experiments.circuit.run import ScoreGroup
from headwise.experiments.patching.pairs import EncodedPair
from headwise.models import HeadModel
from headwise.models.residual_graph import ResidualGraph

MOST_PASSES = 40


def random_decoder(arguments: argparse.Namespace) -> PreTrainedModel:
    """Return a decoder with random weights, built on the device."""
    config = Qwen3Config(
        vocab_size=arguments.vocabulary,
        num_hidden_layers=arguments.layers,
        hidden_size=arguments.hidden,
        intermediate_size=3 * arguments.hidden,
        num_attention_heads=arguments.heads,
        num_key_value_heads=arguments.kv_heads,
        head_dim=arguments.hidden // arguments.heads,
        max_position_embeddings=4096,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device(arguments.device):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return module.eval()


def random_pairs(model: HeadModel, n_pairs: int, n_tokens: int) -> list[EncodedPair]:
    """Return pairs of random tokens that differ in one token near the start."""
    random = np.random.default_rng(0)
    vocabulary = model.config.vocab_size
    clean = random.integers(1, vocabulary, (n_pairs, n_tokens))
    corrupted = clean.copy()
    corrupted[:, 3] = random.integers(1, vocabulary, n_pairs)
    clean_rows = model.batch(torch.as_tensor(clean, device=model.device)).rows
    corrupted_rows = model.batch(torch.as_tensor(corrupted, device=model.device)).rows
    pairs = []
    for number in range(n_pairs):
        pairs.append(
            EncodedPair(
                clean=clean_rows[number],
                corrupted=corrupted_rows[number],
                answer=5,
                wrong=7,
                positions=np.arange(n_tokens),
            )
        )
    return pairs


def measure(work: Callable[[], object], device: torch.device, times: int) -> tuple[float, str]:
    """Return the shortest of several runs in seconds after one to warm up, and the peak of memory as
    text (measured on a GPU alone)."""
    on_gpu = device.type == "cuda"
    work()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if on_gpu else "not measured"
    return min(seconds), peak


def score_in_chunks(score: ScoreGroup, pairs: list[EncodedPair], chunk: int) -> None:
    for start in range(0, len(pairs), chunk):
        arrays, _ = score(pairs[start : start + chunk])
        if not np.isfinite(arrays["effect"]).all():
            raise SystemExit("An effect is not a number.")


def report(file: Path | None, text: str) -> None:
    """Print a text and append it to a file, if there is one."""
    print(text, flush=True)
    write(file, text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument(
        "--chunk", nargs="+", type=int, default=[4, 8], help="pairs that run at once"
    )
    parser.add_argument("--steps", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--write", type=Path, help="append the table to this file")
    arguments = parser.parse_args()

    began = time.perf_counter()
    module = random_decoder(arguments)
    fewest_passes: dict[int, float] = {}  # by number of steps
    with HeadModel.open(module, tokenizer=None) as model:
        print(f"model built, {time.perf_counter() - began:.0f} s", flush=True)
        graph = ResidualGraph(model)
        n_edges = len(graph.edges)
        n_inputs = len(graph.head_inputs)  # found once for a model, not once for each group
        print(f"{n_edges} edges, {n_inputs} layers read, {time.perf_counter() - began:.0f} s")
        pairs = random_pairs(model, arguments.pairs, arguments.tokens)
        plain, plain_peak = measure(partial(plain_pass, model, pairs), model.device, 5)
        device_name = "CPU"
        if model.device.type == "cuda":
            device_name = torch.cuda.get_device_name()
        head = [
            f"{device_name}, bfloat16, {arguments.layers} layers x {arguments.heads} heads, "
            f"{n_edges} edges, {arguments.pairs} pairs of {arguments.tokens} tokens; plain forward "
            f"and backward pass {plain:.3f} s, peak memory {plain_peak}",
            "",
            *table(["method", "pairs at once", "all edges", "plain passes", "peak memory"], []),
        ]
        report(arguments.write, "\n".join(head))
        for chunk in arguments.chunk:
            for steps in arguments.steps:
                score = ScoreGroup(graph, CircuitOptions(steps=steps))
                work = partial(score_in_chunks, score, pairs, chunk)
                seconds, peak = measure(work, model.device, arguments.times)
                passes = seconds / plain
                fewest_passes[steps] = min(passes, fewest_passes.get(steps, passes))
                name = "EAP" if steps == 1 else f"EAP-IG, {steps} steps"
                cells = [name, str(chunk), f"{seconds:.3f} s", f"{passes:.1f}", peak]
                report(arguments.write, f"| {' | '.join(cells)} |")
    return 0 if max(fewest_passes.values()) <= MOST_PASSES else 1


if __name__ == "__main__":
    raise SystemExit(main())
