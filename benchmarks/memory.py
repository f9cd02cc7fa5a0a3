"""Peak memory: flat in the number of examples, linear in the length of one.

    python benchmarks/memory.py [--examples 20000] [--length 3900]
                                [--what examples,length,soak,model] [--analyses A,B] [--limit 4]

First a run over N short examples and over ten times as many: the peak may differ by 5 %. Then
`distance` and `gradient` on one long input and on one of half its length: all maps of all layers
together would take the bytes in the last column, four times as many for twice the length. The
models are tiny and random, each run has a process of its own. A soak of 100,000 examples prints
memory and processor time for every tenth of them: both must stay.

`model`: the peak of each analysis of a decoder of 1.5 B parameters in bf16 (random weights from a
config, 3.1 GB), each in a process of its own; `--analyses all` for every one that applies."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import pairwise

MANY = """
import json, os, resource, sys, tempfile, time
from headwise import Corpus, HeadModel, make_analysis
from headwise.run import RunCallbacks, RunOptions, run_analyses
from headwise.testing import random_model
from headwise.testing.corpora import battery_examples
count = int(sys.argv[1])
base = [e for e in battery_examples(8) if e.pair is None and e.words_pair is None]
def stream(notes):  # examples are made as they are read: the corpus itself holds nothing
    for i in range(count):
        yield base[i % len(base)]
module, tokenizer = random_model(layers=4, heads=4, d_head=8)
model = HeadModel.open(module, tokenizer=tokenizer)
analyses = [make_analysis(name) for name in sys.argv[2].split(",")]
moments = []
def note(what, done, total):
    if what == "examples" and done >= len(moments) * count // 10:
        pages = int(open("/proc/self/statm").read().split()[1])
        moments.append((done, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, time.process_time(), time.perf_counter()))
with tempfile.TemporaryDirectory() as folder:
    options = RunOptions(full=True, shard_size=512, batch_tokens=16384)
    run_analyses(model, Corpus("stream", stream), analyses, folder, options, RunCallbacks(progress=note))
print(json.dumps(moments))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
LONG = """
import resource, sys, tempfile
from headwise import Corpus, HeadModel, make_analysis
from headwise.run import run_analyses
from headwise.testing import random_model
length = int(sys.argv[1])
module, tokenizer = random_model(layers=12, heads=12, d_head=4, max_length=length + 2)
model = HeadModel.open(module, tokenizer=tokenizer)
text = " ".join(["the cat saw a dog"] * (length // 5))
with tempfile.TemporaryDirectory() as folder:
    run_analyses(model, Corpus.from_texts([text]), [make_analysis(sys.argv[2])], folder)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""

# The shape of a decoder of 1.5 B parameters with a large vocabulary and grouped keys.
MODEL = """
import resource, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
from headwise import HeadModel, make_atlas
from headwise.testing import random_model
name, limit, layers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
config = LlamaConfig(
    vocab_size=151_936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=layers,
    num_attention_heads=12, num_key_value_heads=2, tie_word_embeddings=True, bos_token_id=1,
)
module = LlamaForCausalLM(config)
torch.set_default_dtype(torch.float32)
_, tokenizer = random_model(causal=True)
weights = sum(p.numel() * p.element_size() for p in module.parameters())
model = HeadModel.open(module, tokenizer=tokenizer)
make_atlas(model, analyses=None if name == "all" else [name], limit=limit)
print(weights)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def said(code: str, *arguments: object) -> list[str]:
    """What some code in a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def peak(code: str, *arguments: object) -> float:
    """Its peak resident memory in MiB."""
    return int(said(code, *arguments)[-1]) / 1024


def soak(analyses: str, examples: int = 100_000) -> None:
    """Memory and speed of every tenth of a long run; the first tenth, which fills what is kept, is
    left out."""
    moments = json.loads(said(MANY, examples, analyses)[-2])
    print(
        "| examples | MiB | ms of processor time an example | examples a second |\n|---|---|---|---|"
    )
    costs, sizes = [], []
    for (before, _, cpu, clock), (done, size, cpu_then, clock_then) in pairwise(moments[1:]):
        costs.append(1e3 * (cpu_then - cpu) / (done - before))
        sizes.append(size)
        print(
            f"| {done:,} | {size:.0f} | {costs[-1]:.2f} | {(done - before) / (clock_then - clock):.0f} |"
        )
    memory, cost = (max(all_of) / min(all_of) - 1 for all_of in (sizes, costs))
    print(f"most to least: memory {memory:+.1%} (at most +5 % wanted), processor time {cost:+.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--length", type=int, default=3900)
    parser.add_argument("--analyses", default="surface,offsets,roles")
    parser.add_argument("--what", default="examples,length")
    parser.add_argument("--limit", type=int, default=4, help="examples, of `model`")
    parser.add_argument("--layers", type=int, default=28, help="layers, of `model`")
    options = parser.parse_args()
    if "soak" in options.what:
        soak(options.analyses)
    if "model" in options.what:
        for name in options.analyses.split(","):
            *_, weights, largest = said(MODEL, name, options.limit, options.layers)
            gibibytes = int(largest) / 2**20
            print(f"{name}: weights {int(weights) / 2**30:.2f} GiB, peak {gibibytes:.2f} GiB")
            print(json.dumps({"what": f"peak memory of {name}", "GiB": gibibytes}), flush=True)
    if "examples" in options.what:
        many = 10 * options.examples
        small, large = (
            peak(MANY, options.examples, options.analyses),
            peak(MANY, many, options.analyses),
        )
        growth = large / small - 1
        print(
            f"{options.analyses}: {options.examples:,} examples: {small:.0f} MiB; {many:,}: {large:.0f} MiB; growth "
            f"{growth:+.1%} (at most +5 % wanted)"
        )
        print(
            json.dumps(
                {
                    "what": "peak memory by examples",
                    "small": small,
                    "large": large,
                    "growth": growth,
                }
            )
        )
    if "length" in options.what:
        for name in ("distance", "gradient"):
            half, whole = peak(LONG, options.length // 2, name), peak(LONG, options.length, name)
            maps = 144 * options.length**2 * 4 / 2**20
            print(
                f"{name}: one input of {options.length // 2:,} tokens: {half:.0f} MiB; of {options.length:,}: "
                f"{whole:.0f} MiB; all its maps: {maps:.0f} MiB"
            )
            print(
                json.dumps(
                    {"what": f"peak memory of {name}", "half": half, "whole": whole, "maps": maps}
                )
            )
