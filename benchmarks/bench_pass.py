"""The full pass with `surface`, `offsets` and `roles` against a bare eager forward pass that
returns attentions: same batches, same run. At most 1.1 times is wanted.

Processor time is compared, which a busy machine disturbs least; --wall compares wall-clock time.

python benchmarks/bench_pass.py [--examples 64] [--length 128]
"""

from __future__ import annotations

import argparse
import time

import torch
from transformers import AutoModel

from common import demo_rows, report_ratio
from headwise import HeadModel, make_analysis
from headwise.models.demo import demo_model_path
from headwise.run.encoded import CorpusScan
from headwise.run.engine import observe_batch
from headwise.run.plan import model_shape
from headwise.text.encode import batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--analyses", default="surface,offsets,roles")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.wall else time.process_time
    model = HeadModel.open(demo_model_path())
    bare = AutoModel.from_pretrained(
        demo_model_path(), attn_implementation="eager", dtype=torch.float32
    ).eval()
    rows = demo_rows(model, options.examples, options.length)
    cut = batches(rows, 4096, model.pad_id)
    analyses = [make_analysis(name) for name in options.analyses.split(",") if name]
    shape = model_shape(model, CorpusScan(longest=options.length))
    times: dict[str, list[float]] = {"bare": [], "headwise": []}
    for _ in range(options.repeats):  # taken in turns, so that both meet the same machine
        began = clock()
        with torch.no_grad():
            for batch in cut:
                bare(
                    input_ids=batch.ids,
                    attention_mask=batch.attention_mask.long(),
                    token_type_ids=batch.types,
                    output_attentions=True,
                )
        times["bare"].append(clock() - began)
        began = clock()
        states = {a.name: a.start(shape) for a in analyses}
        for batch in cut:
            observe_batch(model, batch, analyses, states)
        times["headwise"].append(clock() - began)
    report_ratio(
        f"pass with {options.analyses or 'nobody watching'}, {options.examples} x {options.length} tokens",
        min(times["headwise"]),
        "bare eager pass",
        min(times["bare"]),
        wanted="at most 1.1",
    )


if __name__ == "__main__":
    main()
