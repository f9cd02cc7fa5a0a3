"""How long the questions for decoders take on one core, each against one plain pass over the same
corpus.

    python benchmarks/bench_decoders.py MODEL [--limit 64]

Prints a table: processor time of each question, and its ratio to a pass in which nobody watches.
"""

from __future__ import annotations

import argparse
import time

import torch

from headwise import HeadModel, make_atlas, open_corpus
from headwise.experiments.patching import builtin_pairs, patch
from headwise.text.encode import batches

QUESTIONS = ("sinks", "opening_token", "induction", "logits", "circuits", "examples", "retrieval")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--limit", type=int, default=64)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with HeadModel.open(given.model, device="cpu") as model:
        rows = [
            model.encode(e, i)
            for i, e in enumerate(open_corpus(tokenizer=model.tokenizer, limit=given.limit))
        ]
        start = time.process_time()
        for batch in batches(rows, 4096, model.pad_id, model.device):
            model.forward(batch)
        plain = time.process_time() - start
        print(f"{'plain pass':<20}{plain:>9.1f} s{1:>9.1f}")
        for name in QUESTIONS:
            start = time.process_time()
            make_atlas(model, analyses=[name], limit=given.limit)
            spent = time.process_time() - start
            print(f"{name:<20}{spent:>9.1f} s{spent / plain:>9.1f}", flush=True)
        start = time.process_time()
        patch(model, builtin_pairs("agreement", given.limit), exact=False, strict=False)
        spent = time.process_time() - start
        print(f"{'patch, first order':<20}{spent:>9.1f} s{spent / plain:>9.1f}")


if __name__ == "__main__":
    main()
