"""Distances between all pairs of 1,152 heads on a GPU: time and memory against the model's own
plain pass.

    python benchmarks/gpu_distance.py         # the shape of Qwen3-8B: 36 layers × 32 heads, 8 × 512
    tokens python benchmarks/gpu_distance.py --sizes 4x2048 1x8192

At most 10 × the plain pass and 2 GiB are wanted for 8 × 512 tokens, exact. Some rows are compared
with float64."""

from __future__ import annotations

import argparse

import torch

from bench_fused import best, observe, plain_model, rows_of
from headwise.analyses.contract import Shape
from headwise.analyses.distance.analysis import Distance
from headwise.models import HeadModel
from headwise.stats.divergence import pairwise_js
from headwise.text.encode import collate


def exact_js(maps: torch.Tensor) -> torch.Tensor:
    """In float64, head by head."""
    flat = maps.double().flatten(1)
    own = torch.special.xlogy(flat, flat).sum(1)
    out = torch.stack(
        [torch.special.xlogy((flat + one) / 2, (flat + one) / 2).sum(1) for one in flat]
    )
    return (own[:, None] + own[None]) / 2 - out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--sizes", nargs="+", default=["8x512"])
    parser.add_argument("--times", type=int, default=2)
    given = parser.parse_args()
    module = plain_model(given.layers)
    heads = 32 * given.layers
    rows = torch.randn(heads, 24, 512, device="cuda").mul(4).softmax(-1)
    apart = (pairwise_js(rows) - exact_js(rows)).abs().max() / 24
    print(
        f"{torch.cuda.get_device_name()}, {heads} heads; kernel against float64: {float(apart):.1e} nats a row"
    )
    for size in given.sizes:
        count, length = map(int, size.split("x"))
        batch = collate(rows_of(count, length, module.config.vocab_size), 0, "cuda")
        with torch.no_grad():
            plain, own = best(lambda b=batch: module(input_ids=b.ids, use_cache=False), 3)
        model = HeadModel.open(module)
        shape = Shape(
            model.layers,
            model.heads,
            model.d_head,
            module.config.hidden_size,
            True,
            length,
            ("other",),
        )
        for label, analysis in (
            ("exact", Distance(rows=0)),
            ("as planned", Distance().planned(shape)),
        ):
            if label == "exact" and length > 1024:
                continue  # as many passes as there are windows
            watched, peak = best(
                lambda m=model, b=batch, a=analysis: observe(m, b, [a]), given.times
            )
            state = observe(model, batch, [analysis])["distance"]
            sampled = int(state.sums("shown").total[0])
            print(
                f"{count} × {length}, {label} ({sampled or 'all'} rows): plain {plain:.3f} s, watched {watched:.3f} s, "
                f"ratio {watched / plain:.1f}, {peak - own:+.2f} GiB",
                flush=True,
            )
        model.close()
        module.set_attn_implementation("sdpa")


if __name__ == "__main__":
    main()
