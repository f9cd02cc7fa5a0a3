"""Products of matrices by oneDNN against torch's own, in turns in the same run: a product, and a pass
of a model.

python benchmarks/bench_products.py [MODEL] [--examples 8] [--repeats 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from common import demo_rows, report_ratio
from headwise import HeadModel
from headwise.models.demo import demo_model_path
from headwise.stats import products
from headwise.text.encode import batches


def in_turns(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the shortest processor time of some work with oneDNN's products, and with torch's."""
    is_faster = products.is_faster
    times: dict[bool, list[float]] = {True: [], False: []}
    for repeat in range(2 * repeats + 2):
        by_onednn = repeat % 2 == 0
        products.is_faster = is_faster if by_onednn else lambda: False  # type: ignore[assignment]
        began = time.process_time()
        work()
        if repeat > 1:  # the first of each warms up
            times[by_onednn].append(time.process_time() - began)
    products.is_faster = is_faster
    return min(times[True]), min(times[False])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=str(demo_model_path()))
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if not products.is_faster():
        print("This processor has no use for oneDNN's products: torch's own are used everywhere.")
        return
    model = HeadModel.from_pretrained(options.model)
    x = torch.randn(1024, model.hidden)
    weight = torch.randn(4 * model.hidden, model.hidden)
    seconds = in_turns(lambda: products.linear(x, weight), options.repeats)
    what = f"1,024 x {model.hidden} x {4 * model.hidden} by oneDNN"
    report_ratio(what, seconds[0], "by MKL", seconds[1])
    for side, name in zip(seconds, ("oneDNN", "MKL"), strict=True):
        print(f"{name}: {2e-9 * x.numel() * len(weight) / side:.0f} billion operations a second")

    rows = demo_rows(model, options.examples, options.length)
    (batch,) = batches(rows, options.examples * options.length, model.pad_id)

    def run_pass() -> None:
        with torch.no_grad():
            model.forward(batch)

    seconds = in_turns(run_pass, options.repeats)
    what = f"a pass over {options.examples} inputs of {options.length} tokens by oneDNN"
    report_ratio(what, seconds[0], "by MKL", seconds[1])
    fast = model.trace(batch, {"attention"}).attention
    products.is_faster = lambda: False  # type: ignore[assignment]
    plain = model.trace(batch, {"attention"}).attention
    print(f"largest difference of an attention weight: {(fast - plain).abs().max():.1e}")


if __name__ == "__main__":
    main()
