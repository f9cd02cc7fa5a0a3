"""Input contributions of all heads of the demo model: exact against batched reverse mode, a sketch
against exact.

    python benchmarks/bench_attribution.py [--tokens 32] [--outputs 12]

Reverse mode is timed (the shortest of three) on a random sample of outputs (a layer, a head, a
token: d_head gradients each, batched) and scaled to all of them layer by layer, since an output's
gradient costs as much as the layers below it. The exact contributions must equal it on that sample.
Times are processor time, so a busy machine does not change them much."""

from __future__ import annotations

import argparse
import time

import torch

from common import demo_rows, report_ratio
from headwise.analyses.attribution.forward import exact_squared_norms
from headwise.analyses.attribution.pushforward import forward_mode
from headwise.analyses.attribution.reverse import jacobian_squared_norms, reverse_graph
from headwise.analyses.attribution.sketch import ContributionOptions, sketch
from headwise.models import HeadModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None, help="a folder; nothing for the demo model")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument(
        "--outputs", type=int, default=12, help="outputs in the sample of reverse mode"
    )
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = HeadModel.open(given.model, device="cpu")
    batch = model.batch(demo_rows(model, 1, given.tokens))
    print(
        f"{model.name}, {given.tokens} tokens, {given.threads} threads; tangents go by {forward_mode(model, batch)}"
    )

    began = time.process_time()
    squares = exact_squared_norms(model, batch).heads
    exact_seconds = time.process_time() - began

    graph = reverse_graph(model, batch)
    generator = torch.Generator().manual_seed(0)
    layers = (
        torch.arange(given.outputs) * model.layers // given.outputs
    )  # spread over the layers, heads and tokens at random
    seconds = torch.zeros(given.outputs)
    worst = 0.0
    for number, layer in enumerate(layers.tolist()):
        head, token = (
            int(torch.randint(0, size, (), generator=generator))
            for size in (model.heads, given.tokens)
        )
        output = graph.outputs[layer][:, head, token]
        times = []
        for _ in range(
            3
        ):  # the shortest: one gradient that had to wait for a core would be multiplied by hundreds
            began = time.process_time()
            slow = jacobian_squared_norms(output, graph.leaf_inputs[0]).sqrt()
            times.append(time.process_time() - began)
        seconds[number] = min(times)
        worst = max(
            worst, float(((squares[:, layer, head, token].sqrt() - slow).abs() / slow.max()).max())
        )
    assert worst < 1e-4, f"exact and reverse mode differ by {worst:.1e}"
    reverse_seconds = float(seconds.mean()) * model.layers * model.heads * given.tokens
    print(
        f"reverse mode: {given.outputs} random outputs of {model.layers * model.heads * given.tokens}, "
        f"each {model.d_head} gradients at once; largest difference {worst:.1e}"
    )
    report_ratio(
        "exact, all layers and heads",
        exact_seconds,
        "batched reverse mode (scaled from the sample)",
        reverse_seconds,
        wanted="5 x faster",
    )

    began = time.process_time()
    found = sketch(model, batch, ContributionOptions(error=0.05))
    sketch_seconds = time.process_time() - began
    exact = squares.sqrt() / squares.sqrt().sum(-1, keepdim=True)
    variation = float(((found.heads - exact).abs().sum(-1) / 2).median())
    inside = float(((found.low <= exact) & (exact <= found.high)).double().mean())
    print(
        f"sketch: {int(found.tangents[0])} tangents a token, median total variation of a row {variation:.3f} "
        f"(0.05 wanted), {inside:.1%} of truths in their 95 % interval"
    )
    report_ratio("sketch at 5 %", sketch_seconds, "exact", exact_seconds, wanted="8 x faster")


if __name__ == "__main__":
    main()
