"""Exact input contributions on a GPU: a BERT-base-shaped random model, 34 tokens; half precision,
tf32, float32.

    PYTHONPATH=src python benchmarks/gpu_attribution.py [--tokens 34] [--memory 24000]

Nothing is downloaded. The error is that of contributions on sampled rows against reverse mode in
float64."""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel

from headwise.analyses.attribution.forward import exact_squared_norms, tangents_per_chunk
from headwise.analyses.attribution.precision import compiled_kernels, matrix_products
from headwise.analyses.attribution.pushforward import forward_mode, push_tangents
from headwise.analyses.attribution.reverse import jacobian_squared_norms, reverse_graph
from headwise.analyses.attribution.sketch import ContributionOptions, sketch
from headwise.core.token_types import OTHER
from headwise.models import HeadModel
from headwise.text.encode import Batch, Encoded, collate
from headwise.text.example import Example


def random_bert(layers: int, heads: int, hidden: int) -> BertModel:
    """BERT with random weights, of a size at which its attention is far from uniform."""
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        vocab_size=1000,
    )
    model = BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2.5)
    return model


def token_batch(tokens: int, device: torch.device, seed: int = 0) -> Batch:
    ids = np.random.default_rng(seed).integers(5, 1000, tokens)
    none, no = np.zeros(tokens, dtype=np.int64), np.zeros(tokens, dtype=bool)
    return collate(
        [
            Encoded(
                seed, Example(text="x"), ids, none, none - 1, none, no, none + OTHER, False, False
            )
        ],
        0,
        device,
    )


def synchronised(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Shortest of several timings in seconds, after one run to warm up."""
    work()
    times = []
    for _ in range(repeats):
        synchronised(device)
        began = time.perf_counter()
        work()
        synchronised(device)
        times.append(time.perf_counter() - began)
    return min(times)


def peak_mib(work: Callable[[], Any], device: torch.device) -> float | None:
    """Largest GPU memory that a run takes beyond what is there before it, in MiB; None on a CPU.

    What earlier measurements left to the garbage collector (a model in float64 with its graph, say)
    is collected first: as part of what was there it would make the peak look smaller, once it goes
    while the run is under way."""
    if device.type != "cuda":
        return None
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def matrix_rate(device: torch.device, rows: int, width: int, kind: str, repeats: int) -> float:
    """FLOP/s of the largest product there is in the model: a chunk of tangents by the first
    feed-forward matrix."""
    dtype = torch.float16 if kind == "half" else torch.float32
    a, b = (
        torch.randn(*size, device=device, dtype=dtype)
        for size in ((rows, width), (width, 4 * width))
    )
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    try:
        seconds = timed(lambda: [a @ b for _ in range(10)], device, repeats) / 10
    finally:
        torch.set_float32_matmul_precision("highest")
    return 2 * rows * width * 4 * width / seconds


def needed_flops(model: HeadModel, tokens: int) -> float:
    """Operations of the matrix products that the tangents need: the last layer only as far as its
    heads."""
    d = model.hidden
    dense, read = 12 * d * d, 3 * d * d
    attention = 4 * tokens * d  # two products for the scores, two for the outputs, each token
    per_token = 2 * ((model.layers - 1) * (dense + attention) + read + attention)
    return float(per_token * tokens * tokens * d)


def largest_error(
    model: HeadModel, batch: Batch, squares: torch.Tensor, rows: int
) -> tuple[float, float]:
    """Largest and mean total variation of sampled rows of contributions against reverse mode in
    float64."""
    double = model.in_precision(torch.float64)
    graph = reverse_graph(double, batch)
    generator = torch.Generator().manual_seed(1)
    errors = []
    for number in range(rows):
        layer = number * model.layers // rows
        head, token = (
            int(torch.randint(0, size, (), generator=generator))
            for size in (model.heads, batch.ids.shape[1])
        )
        truth = jacobian_squared_norms(
            graph.outputs[layer][:, head, token], graph.leaf_inputs[0]
        ).sqrt()[0]
        found = squares[0, layer, head, token].sqrt()
        errors.append(float((found / found.sum() - truth / truth.sum()).abs().sum() / 2))
    double.close()
    return max(errors), float(np.mean(errors))


def kernels(model: HeadModel, batch: Batch, memory: float, kind: str) -> dict[str, float]:
    """Where the time of one chunk goes on the device: matrix products, everything else."""
    from torch.profiler import ProfilerActivity, profile

    count = tangents_per_chunk(model, batch, memory)
    tangents = torch.randn(count, 1, batch.ids.shape[1], model.hidden, device=model.device)
    with (
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen,
        matrix_products(kind),
    ):
        push_tangents(
            model, batch, tangents, lambda layer, moved: torch.linalg.vector_norm(moved, dim=-1)
        )
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in seen.key_averages():
        device_time = float(getattr(event, "self_device_time_total", 0.0))
        if device_time and str(getattr(event, "device_type", "")).endswith("CUDA"):
            name = event.key.lower()
            product = any(
                word in name for word in ("gemm", "cutlass", "cublas", "nvjet", "xmma", "matmul")
            )
            kind = "matrix products" if product else event.key[:70]
            times[kind] = times.get(kind, 0.0) + device_time
    total = sum(times.values()) or 1.0
    shares = dict(
        sorted(((k, round(v / total, 3)) for k, v in times.items()), key=lambda item: -item[1])[:8]
    )
    return {"milliseconds": round(total / 1000, 1), **shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=34)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument(
        "--memory",
        type=float,
        nargs="+",
        default=[2000.0, 8000.0, 24000.0],
        help="MiB for tangents, each tried",
    )
    parser.add_argument("--rows", type=int, default=24, help="rows whose error is measured")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--products", nargs="+", default=["half", "tf32", "float32"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    device = torch.device(given.device)
    model = HeadModel.open(random_bert(given.layers, given.heads, given.hidden), device=device)
    batch = token_batch(given.tokens, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    flops = needed_flops(model, given.tokens)
    print(
        f"{name}, torch {torch.__version__}; {given.layers} layers × {given.heads} heads, hidden {given.hidden}, "
        f"{given.tokens} tokens; tangents go by {forward_mode(model, batch)}"
    )
    print(
        f"{given.tokens * given.hidden:,} tangents, {flops / 1e12:.1f} TFLOP of matrix products a sentence"
    )
    report: list[dict[str, Any]] = []
    for kind in given.products if device.type == "cuda" else ("float32",):
        label = "IEEE float32" if kind == "float32" else kind
        rate = matrix_rate(
            device,
            4096 * given.tokens if device.type == "cuda" else 512,
            given.hidden,
            kind,
            given.repeats,
        )
        print(f"\n{label}: measured matrix rate {rate / 1e12:.1f} TFLOP/s")
        for memory in given.memory:
            with matrix_products(kind):
                peak = peak_mib(
                    lambda memory=memory: exact_squared_norms(model, batch, memory=memory), device
                )
                seconds = timed(
                    lambda memory=memory: exact_squared_norms(model, batch, memory=memory),
                    device,
                    given.repeats,
                )
            achieved = flops / seconds
            line = {
                "precision": label,
                "memory_mib": memory,
                "tangents_per_chunk": tangents_per_chunk(model, batch, memory),
                "seconds": round(seconds, 4),
                "tflops": round(achieved / 1e12, 1),
                "share_of_matrix_rate": round(achieved / rate, 3),
                "peak_mib": None if peak is None else round(peak),
                "peak_within_memory": None if peak is None else peak <= memory,
            }
            report.append(line)
            print(json.dumps(line))
        try:
            with matrix_products(kind), compiled_kernels():
                seconds = timed(
                    lambda: exact_squared_norms(model, batch, memory=given.memory[-1]),
                    device,
                    given.repeats,
                )
            line = {
                "precision": f"{label}, compiled",
                "memory_mib": given.memory[-1],
                "seconds": round(seconds, 4),
                "tflops": round(flops / seconds / 1e12, 1),
            }
            report.append(line | {"share_of_matrix_rate": round(flops / seconds / rate, 3)})
            print(json.dumps(report[-1]))
        except Exception as error:  # no compiler on this machine
            print(f"nothing is compiled here: {type(error).__name__}: {str(error)[:200]}")
        with matrix_products(kind):
            squares = exact_squared_norms(model, batch, memory=given.memory[-1]).heads
        with matrix_products(kind), compiled_kernels("compiled" in str(report[-1]["precision"])):
            again = exact_squared_norms(model, batch, memory=given.memory[-1]).heads
        apart = float((again.sqrt() - squares.sqrt()).abs().max() / squares.sqrt().max())
        print(f"{label}: largest difference by compiling: {apart:.1e} of the largest norm")
        largest, mean = largest_error(model, batch, squares, given.rows)
        print(
            f"{label}: total variation to float64 on {given.rows} rows: largest {largest:.1e}, mean {mean:.1e}"
        )
        if device.type == "cuda":
            try:
                print(
                    f"{label}: device time of one chunk: {json.dumps(kernels(model, batch, given.memory[-1], kind))}"
                )
            except (
                Exception
            ) as error:  # the profiler is not everywhere; the figures above stand without it
                print(f"no profile: {type(error).__name__}: {error}")
        with matrix_products(kind):
            seconds = timed(
                lambda: sketch(
                    model, batch, ContributionOptions(error=0.05, memory=given.memory[-1])
                ),
                device,
                given.repeats,
            )
        print(f"{label}: sketch at 5 %: {seconds:.3f} s")
    best = min(report, key=lambda line: line["seconds"])
    print(
        f"\nbest: {best['seconds']:.3f} s a sentence with {best['precision']} (under 0.6 s wanted)"
    )


if __name__ == "__main__":
    main()
