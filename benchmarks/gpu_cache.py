"""Caches with short heads on a GPU: speed and memory of generation with a long context, and what a
smaller cache costs a real model.

    python benchmarks/gpu_cache.py --parts speed --write speed.md
    python benchmarks/gpu_cache.py --parts quality --model HuggingFaceTB/SmolLM2-135M \
        --corpus articles.jsonl.gz --lengths 2048 8192 --write quality.md

`speed`: random weights in the shape of an 8B model (36 layers × 32 heads, 8 key/value heads, width
4,096), bfloat16, made on the device. The prompt is read in chunks, then tokens are generated one by
one, with transformers' own cache and with `HeadwiseCache`, half of the key/value heads short. What
the model says does not matter; time and memory do. One text alone does not fill a large GPU: the time
of a token is then that of launching kernels, whatever the cache. So several batches are measured, and
beside the tokens per second how long the device was busy for each step. Every row is written when it
is there. To try it without a GPU:

    python benchmarks/gpu_cache.py --parts speed --device cpu --context 640 --chunk 256 --tokens 8 \
        --batches 1 2 --layers 4 --heads 4 --kv-heads 2 --head-dim 16 --width 64 --vocabulary 500

`quality`: `headwise cache` on long texts in float32 (`--dtype bfloat16` runs the model in half
precision; statistics stay in float32): the curve with intervals over texts, and at the recommended
budget the rise of the loss and the needles found, against random choices and the uniform window.
Then tokens generated with `HeadwiseCache` are compared with those that a mask of the same pattern
predicts."""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Caches grow, and every new size would be a block of its own that nothing else can use. To be set
# before torch takes memory.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, Qwen3Config

import headwise
from headwise.experiments.cache import pattern_of
from headwise.experiments.cache.result import UNIFORM, describe_recommendation
from headwise.experiments.cache.run import as_batch
from headwise.models.kv_cache import CachePattern, HeadwiseCache
from headwise.models.short_context import LongTextModel

GIB = 2**30
SINK = 4
WINDOW = 256


class Progress:
    """Prints what is done, at most every few seconds and at the end of each step."""

    def __init__(self, every: float = 5.0) -> None:
        self.every = every
        self.began = time.perf_counter()
        self.last = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.perf_counter()
        if done < total and now - self.last < self.every:
            return
        self.last = now
        print(f"  {now - self.began:6.1f} s  {what} {done}/{total}", flush=True)


# --- speed and memory -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Generation:
    """What one generation took: seconds, bytes of the cache as stated and as held, and memory of
    the device beyond the weights (NaN where it cannot be read).

    `tokens_per_second` has one number for each repeated run of new tokens; `busy_ms` is the time that
    kernels took for one step."""

    what: str
    batch: int
    prefill_seconds: float
    tokens_per_second: list[float]
    busy_ms: float
    stated_bytes: float
    held_bytes: int
    cache_memory: float
    prefill_peak: float
    generation_peak: float


def large_model(given: argparse.Namespace) -> torch.nn.Module:
    config = Qwen3Config(
        num_hidden_layers=given.layers,
        hidden_size=given.width,
        intermediate_size=3 * given.width,
        num_attention_heads=given.heads,
        num_key_value_heads=given.kv_heads,
        head_dim=given.head_dim,
        vocab_size=given.vocabulary,
        max_position_embeddings=2 * given.context,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device(given.device), torch.no_grad():
        module = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    return module.eval()


def half_pattern(layers: int, kv_heads: int, seed: int = 0) -> CachePattern:
    """Half of all key/value heads whole, chosen at random over all layers."""
    random = np.random.default_rng(seed)
    whole = np.zeros(layers * kv_heads, bool)
    whole[random.permutation(whole.size)[: whole.size // 2]] = True
    return CachePattern(whole.reshape(layers, kv_heads), SINK, WINDOW)


def held_bytes(cache: Any) -> int:
    """Bytes of keys and values in a cache; of `HeadwiseCache` without the room for tokens to come,
    which is part of what is allocated."""
    if isinstance(cache, HeadwiseCache):
        return cache.nbytes
    total = 0
    for layer in cache.layers:
        for part in (layer.keys, layer.values):
            total += part.numel() * part.element_size()
    return total


class Device:
    """Waiting for a device and reading its memory; on a CPU memory is not read."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.is_gpu = self.device.type == "cuda"

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def allocated(self) -> float:
        return float(torch.cuda.memory_allocated(self.device)) if self.is_gpu else float("nan")

    def empty(self) -> None:
        if self.is_gpu:
            torch.cuda.empty_cache()

    def reset_peak(self) -> None:
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> float:
        return float(torch.cuda.max_memory_allocated(self.device)) if self.is_gpu else float("nan")


def read_prompt(module: torch.nn.Module, ids: Tensor, cache: Any, chunk: int) -> Tensor:
    """Read a prompt in chunks; return the most likely next token, `[example, 1]`."""
    following = ids[:, :1]
    for start in range(0, ids.shape[1], chunk):
        output = module(
            input_ids=ids[:, start : start + chunk],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        following = output.logits[:, -1:].argmax(-1)
    return following


def write_tokens(module: torch.nn.Module, following: Tensor, cache: Any, count: int) -> Tensor:
    """Generate greedily; return the tokens, `[example, token]`."""
    tokens = [following]
    for _ in range(count - 1):
        output = module(input_ids=tokens[-1], past_key_values=cache, use_cache=True)
        tokens.append(output.logits[:, -1:].argmax(-1))
    return torch.cat(tokens, 1)


def busy_ms(module: torch.nn.Module, following: Tensor, cache: Any, device: Device) -> float:
    """Return how long the kernels of one step took, in milliseconds; NaN without a GPU."""
    if not device.is_gpu:
        return float("nan")
    steps = 4
    activities = [torch.profiler.ProfilerActivity.CUDA]
    try:
        with torch.profiler.profile(activities=activities) as profile:
            write_tokens(module, following, cache, steps + 1)
            device.wait()
        total = sum(event.self_device_time_total for event in profile.key_averages())
    except Exception as error:
        # The profiler needs rights and libraries that some machines lack; times are there without.
        print(f"  the profiler does not run here: {error}", flush=True)
        return float("nan")
    return total / steps / 1000


@torch.no_grad()
def measure_generation(
    module: torch.nn.Module,
    what: str,
    pattern: CachePattern | None,
    ids: Tensor,
    given: argparse.Namespace,
) -> Generation:
    """Time one generation with a fresh cache; `pattern` None is transformers' own cache."""
    device = Device(given.device)

    def new_cache() -> Any:
        if pattern is None:
            return DynamicCache(config=module.config)
        return HeadwiseCache(pattern)

    # Kernels are chosen before anything is timed.
    cache = new_cache()
    warm_up = ids[:, : 2 * given.chunk]
    write_tokens(module, read_prompt(module, warm_up, cache, given.chunk), cache, 8)
    del cache
    gc.collect()
    device.wait()
    device.empty()

    weights = device.allocated()
    cache = new_cache()
    device.reset_peak()
    began = time.perf_counter()
    following = read_prompt(module, ids, cache, given.chunk)
    device.wait()
    prefill_seconds = time.perf_counter() - began
    prefill_peak = device.peak() - weights

    device.reset_peak()
    tokens_per_second = []
    for _ in range(given.repeats):
        device.wait()
        began = time.perf_counter()
        # The first of these tokens is there already: it came out of the prompt or of the last run.
        tokens = write_tokens(module, following, cache, given.tokens + 1)
        device.wait()
        seconds = time.perf_counter() - began
        following = tokens[:, -1:]
        tokens_per_second.append(len(ids) * given.tokens / seconds)
    generation_peak = device.peak() - weights

    # The last generated token was not read again.
    context = ids.shape[1] + given.repeats * given.tokens
    if pattern is None:
        tokens_held = float(context)
    else:
        tokens_held = pattern.tokens_held(context)
    bytes_per_token = given.layers * given.kv_heads * given.head_dim * 2 * module.dtype.itemsize
    held = held_bytes(cache)
    cache_memory = device.allocated() - weights
    measured = Generation(
        what=what,
        batch=len(ids),
        prefill_seconds=prefill_seconds,
        tokens_per_second=tokens_per_second,
        busy_ms=busy_ms(module, following, cache, device),
        stated_bytes=len(ids) * tokens_held * bytes_per_token,
        held_bytes=held,
        cache_memory=cache_memory,
        prefill_peak=prefill_peak,
        generation_peak=generation_peak,
    )
    del cache
    gc.collect()
    return measured


def speed(given: argparse.Namespace) -> list[str]:
    print(
        f"speed: {given.layers} layers × {given.heads} heads ({given.kv_heads} key/value), "
        f"{given.context} tokens",
        flush=True,
    )
    began = time.perf_counter()
    module = large_model(given)
    n_parameters = sum(parameter.numel() for parameter in module.parameters())
    print(
        f"  {n_parameters / 1e9:.2f} G parameters, {time.perf_counter() - began:.1f} s", flush=True
    )
    generator = torch.Generator().manual_seed(0)
    pattern = half_pattern(given.layers, given.kv_heads)
    lines = [
        f"Generation with {given.context:,} tokens of context, {given.repeats} × {given.tokens} new "
        f"ones: random weights, {given.layers} layers × {given.heads} heads ({given.kv_heads} "
        f"key/value heads of {given.head_dim}), {n_parameters / 1e9:.1f} G parameters in bfloat16, "
        f"{device_name(given.device)}, torch {torch.__version__}; sink {SINK}, window {WINDOW}; the "
        f"prompt in chunks of {given.chunk:,}; without cuDNN's attention. Tokens per second of the "
        "whole batch: median (slowest to fastest run). Busy: time of the kernels of one step. Memory "
        "is beyond the weights, in GiB.",
        "",
        "| batch | cache | tokens/s | busy, ms | prompt, s | cache as stated | cache held | allocated "
        "after | peak, prompt | peak, generation |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for batch in given.batches:
        shape = (batch, given.context)
        ids = torch.randint(1, given.vocabulary, shape, generator=generator).to(given.device)
        for what, used in (("all heads whole", None), ("half of the heads short", pattern)):
            try:
                row = measure_generation(module, what, used, ids, given)
            except torch.OutOfMemoryError:
                lines.append(f"| {batch} | {what} | out of memory |" + " |" * 7)
            else:
                lines.append(speed_row(row))
            # What an error still refers to is freed before the next row.
            gc.collect()
            Device(given.device).empty()
            print("  " + lines[-1], flush=True)
            if given.write is not None:
                given.write.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return lines


def speed_row(row: Generation) -> str:
    rates = sorted(row.tokens_per_second)
    cells = [
        str(row.batch),
        row.what,
        f"{np.median(rates):.1f} ({rates[0]:.1f} to {rates[-1]:.1f})",
        f"{row.busy_ms:.1f}",
        f"{row.prefill_seconds:.2f}",
        f"{row.stated_bytes / GIB:.3f}",
        f"{row.held_bytes / GIB:.3f}",
        f"{row.cache_memory / GIB:.3f}",
        f"{row.prefill_peak / GIB:.2f}",
        f"{row.generation_peak / GIB:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def device_name(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(torch.device(device))
    return device


# --- what a smaller cache costs -------------------------------------------------------------------


def quality(given: argparse.Namespace) -> list[str]:
    lines: list[str] = []
    for length in given.lengths:
        print(f"quality: {given.model}, {length} tokens", flush=True)
        began = time.perf_counter()
        with headwise.HeadModel.open(given.model, device=given.device, dtype=given.dtype) as model:
            result = headwise.cache(
                model,
                given.corpus,
                documents=given.documents,
                length=length,
                sink=SINK,
                window=given.window,
                random=given.random,
                needles=given.needles,
                at_most=given.at_most,
                progress=Progress(),
            )
            seconds = time.perf_counter() - began
            print(f"  {seconds:.0f} s", flush=True)
            for sentence in describe_recommendation(result):
                print("  " + sentence, flush=True)
            if given.save is not None:
                given.save.mkdir(parents=True, exist_ok=True)
                headwise.Atlas({"cache": result}).save(given.save / f"cache-{length}.nc")
                pattern_of(result).save(given.save / f"pattern-{length}.json")
            same, count = same_tokens(model, result, given)
        print(f"  {same} of {count} generated tokens are those of the mask", flush=True)
        lines += quality_tables(result, length, seconds, given)
        lines += [
            "",
            f"Tokens of `HeadwiseCache` that are those of the mask: {same} of {count}.",
            "",
        ]
    return lines


@torch.no_grad()
def same_tokens(
    model: headwise.HeadModel, result: xr.Dataset, given: argparse.Namespace
) -> tuple[int, int]:
    """Return how many generated tokens a pass with a mask predicts too, and how many there are."""
    facts = result.attrs
    pattern = pattern_of(result)
    if facts["recommended_share"] == 1.0:
        # Nothing is cut in the recommended pattern: take half of the heads by the ranking.
        scores = result["output_error"].values
        pattern = CachePattern(scores >= np.median(scores), pattern.sink, pattern.window)
    module = AutoModelForCausalLM.from_pretrained(
        given.model, dtype=model.dtype, attn_implementation="sdpa"
    )
    module = module.to(given.device).eval()
    count = 64
    n_prompt = min(int(facts["length"]), model.max_length) - count
    corpus = headwise.open_corpus(given.corpus, prose=True)
    from headwise.experiments.cache.run import long_texts

    text = long_texts(model, corpus, 4, int(facts["length"])).texts[0]
    ids = torch.as_tensor(text[:n_prompt], device=given.device)[None]
    cache = HeadwiseCache(pattern)
    first = read_prompt(module, ids, cache, given.chunk)
    tokens = write_tokens(module, first, cache, count)
    del module, cache
    everything = torch.cat([ids, tokens], 1)[0].cpu().numpy()
    long_model = LongTextModel(model, pattern.sink, pattern.window)
    whole = pattern.whole.copy()
    whole[list(pattern.sliding)] = True
    hidden = long_model.hidden(as_batch(model, everything[:-1]), long_model.short(whole))
    predicted = long_model.logits(hidden[n_prompt - 1 :]).argmax(-1)
    return int((predicted == tokens[0]).sum()), count


def interval(dataset: xr.Dataset, name: str, digits: int = 4) -> str:
    mean = float(dataset[name])
    low = float(dataset[f"{name}_low"])
    high = float(dataset[f"{name}_high"])
    return f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def percent(dataset: xr.Dataset, name: str) -> str:
    if name not in dataset:
        return "-"
    mean = 100 * float(dataset[name])
    low = 100 * float(dataset[f"{name}_low"])
    high = 100 * float(dataset[f"{name}_high"])
    return f"{mean:.0f} ({max(low, 0):.0f} to {min(high, 100):.0f})"


def quality_tables(
    result: xr.Dataset, length: int, seconds: float, given: argparse.Namespace
) -> list[str]:
    facts = result.attrs
    whole_bytes = facts["whole_bytes_per_token"]
    lines = [
        f"### {length:,} tokens",
        "",
        f"{facts['ranking_texts']} texts rank, {facts['judging_texts']} others judge; "
        f"{facts.get('needles', 0)} needles; sink {facts['sink']}, window {facts['window']}; "
        f"{given.dtype} on {device_name(given.device)}, {seconds:.0f} s. All heads whole: "
        f"{whole_bytes / 1024:.1f} KiB per token, needles "
        f"{100 * facts.get('intact_needle', float('nan')):.0f} %. In brackets: 95 % intervals over "
        "texts (needles).",
        "",
    ]
    for sentence in describe_recommendation(result):
        lines.append(f"- {sentence}")
    lines += [
        "",
        "| ranking | share whole | KiB per token | rise of the loss, nats | divergence, nats | "
        "needles, % |",
        "|---|---|---|---|---|---|",
    ]
    for ranking in result["ranking"].values:
        for number, share in enumerate(result["share"].values):
            row = result.sel(ranking=ranking, share=share)
            cells = [
                str(ranking),
                f"{share:g}",
                f"{float(result['bytes_per_token'][number]) / 1024:.1f}",
                interval(row, "loss_rise"),
                interval(row, "divergence"),
                percent(row, "needle"),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *comparison_table(result)]
    return lines


def comparison_table(result: xr.Dataset) -> list[str]:
    """The ranking against random choices and the uniform window, at one share."""
    facts = result.attrs
    if "uniform_p" not in facts:
        return []
    share = facts["compared_share"]
    own = result.sel(ranking=str(result["ranking"].values[0]), share=share)
    uniform = result.sel(ranking=UNIFORM, share=share)
    lines = [
        f"With {share:g} of the heads whole:",
        "",
        "| choice | rise of the loss | p | needles, % | p |",
        "|---|---|---|---|---|",
        f"| headwise (output error) | {interval(own, 'loss_rise')} | | {percent(own, 'needle')} | |",
        f"| uniform window | {interval(uniform, 'loss_rise')} | {facts['uniform_p']:.3g} | "
        f"{percent(uniform, 'needle')} | {facts.get('uniform_needle_p', float('nan')):.3g} |",
    ]
    if "random_p" in facts:
        drawn = result["random_loss_rise"].values
        needles = "-"
        if "random_needle" in result:
            found = 100 * result["random_needle"].values
            needles = f"{found.mean():.0f} ({found.min():.0f} to {found.max():.0f})"
        lines.append(
            f"| random, {len(drawn)} draws (smallest to largest) | {drawn.mean():+.4f} "
            f"({drawn.min():+.4f} to {drawn.max():+.4f}) | {facts['random_p']:.3g} | {needles} | "
            f"{facts.get('random_needle_p', float('nan')):.3g} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=["speed", "quality"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--write", type=Path, help="Markdown file for the tables")
    parser.add_argument("--save", type=Path, help="folder for cache-LENGTH.nc and patterns")
    of_quality = parser.add_argument_group("quality")
    of_quality.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M")
    of_quality.add_argument("--corpus", help="long texts; default: the built-in ones")
    of_quality.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    of_quality.add_argument("--documents", type=int, default=16)
    of_quality.add_argument("--needles", type=int, default=12)
    of_quality.add_argument("--random", type=int, default=20)
    of_quality.add_argument("--window", type=int, default=WINDOW)
    of_quality.add_argument("--at-most", type=float, default=0.01)
    of_quality.add_argument("--dtype", default="float32")
    of_speed = parser.add_argument_group("speed")
    of_speed.add_argument("--context", type=int, default=16384)
    of_speed.add_argument("--chunk", type=int, default=2048)
    of_speed.add_argument("--tokens", type=int, default=64, help="new tokens of a timed run")
    of_speed.add_argument("--repeats", type=int, default=3, help="timed runs")
    of_speed.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    of_speed.add_argument("--layers", type=int, default=36)
    of_speed.add_argument("--heads", type=int, default=32)
    of_speed.add_argument("--kv-heads", type=int, default=8)
    of_speed.add_argument("--head-dim", type=int, default=128)
    of_speed.add_argument("--width", type=int, default=4096)
    of_speed.add_argument("--vocabulary", type=int, default=151936)
    given = parser.parse_args(arguments)
    # cuDNN's attention plans anew, for up to a second, for every length of keys it has not seen; the
    # length grows with each chunk. Off for both caches.
    torch.backends.cuda.enable_cudnn_sdp(False)
    lines: list[str] = []
    # Speed first: it writes the file after every row.
    for part in sorted(given.parts, reverse=True):
        work = {"speed": speed, "quality": quality}[part]
        lines += [*work(given), ""]
        if torch.device(given.device).type == "cuda":
            torch.cuda.empty_cache()
        # Written after each part: what is measured is kept if the next one does not end.
        if given.write is not None:
            given.write.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
