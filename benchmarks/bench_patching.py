"""Activation patching of all heads: headwise against a loop of TransformerLens (4.x) on the same
random GPT-2, and the cost of attributing all edges of a circuit in units of plain passes.

    python benchmarks/bench_patching.py [--torch-products]

TransformerLens is left out, saying so, where it is not installed. Times are of the processor, so
that other programs on the machine matter little."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from headwise.experiments.patching.pairs import EncodedPair
from headwise.experiments.patching.run import PatchRunner
from headwise.models import HeadModel
from headwise.models.residual_graph import ResidualGraph
from headwise.stats import products

PAIRS = 4
TOKENS = 16
CHANGED = 5  # the token in which the inputs of a pair differ: headwise runs those before it once
LAYERS = 12
HEADS = 12
ANSWER = 7
WRONG = 9
VOCABULARY = 5000  # the output matrix costs both alike


def processor_time(work: Callable[[], Any], repeats: int = 1) -> tuple[Any, float]:
    """Return what the work returns, and the shortest of several processor times."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        result = work()
        times.append(time.process_time() - began)
    return result, min(times)


def with_headwise(model: HeadModel, clean: torch.Tensor, corrupted: torch.Tensor) -> torch.Tensor:
    """Return the difference of two logits with each head patched, `[layer, head, pair]`."""
    positions = np.arange(TOKENS)
    pairs = []
    for number in range(PAIRS):
        clean_row = model.batch(clean[number : number + 1]).rows[0]
        corrupted_row = model.batch(corrupted[number : number + 1]).rows[0]
        pairs.append(EncodedPair(clean_row, corrupted_row, ANSWER, WRONG, positions))
    with model.evaluating():
        runner = PatchRunner(model, pairs, share=True)
        layers = [runner.patched_layer("corrupted", layer) for layer in range(LAYERS)]
    return torch.stack(layers)


def with_transformer_lens(
    folder: Path, module: GPT2LMHeadModel, clean: torch.Tensor, corrupted: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """Return the usual loop of TransformerLens: a hook on z for every head."""
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_transformers(str(folder), hf_model=module, device="cpu")
    _, cache = bridge.run_with_cache(clean)

    def loop() -> torch.Tensor:
        rows = []
        with torch.no_grad():
            for layer in range(LAYERS):
                name = f"blocks.{layer}.attn.hook_z"
                for head in range(HEADS):

                    def patch(
                        z: torch.Tensor, hook: Any, name: str = name, head: int = head
                    ) -> torch.Tensor:
                        patched = z.clone()
                        width = z.shape[-1] if z.ndim == 4 else z.shape[-1] // HEADS
                        source = cache[name]
                        if z.ndim == 4:
                            patched[:, :, head] = source[:, :, head]
                        else:
                            columns = slice(head * width, (head + 1) * width)
                            patched[..., columns] = source[..., columns]
                        return patched

                    logits = bridge.run_with_hooks(corrupted, fwd_hooks=[(name, patch)])
                    rows.append(logits[:, -1, ANSWER] - logits[:, -1, WRONG])
        return torch.stack(rows).view(LAYERS, HEADS, PAIRS)

    return loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="the shortest time counts")
    parser.add_argument(
        "--torch-products",
        action="store_true",
        help="headwise multiplies by torch's own products, as where oneDNN is not faster",
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, n_head=HEADS, vocab_size=VOCABULARY)).eval()
    clean = torch.randint(0, VOCABULARY, (PAIRS, TOKENS))
    other_tokens = torch.randint(0, VOCABULARY, (PAIRS,))
    if options.torch_products:
        products.is_faster = lambda: False
    print(f"products by {'oneDNN' if products.is_faster() else 'torch'}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "gpt2"
        module.save_pretrained(folder)
        with HeadModel.open(module, tokenizer=None, device="cpu") as model:
            # With the first token changed nothing is shared: the least that headwise saves.
            for changed in (CHANGED, 0):
                corrupted = clean.clone()
                corrupted[:, changed] = other_tokens
                print(f"inputs that differ in token {changed}:")
                compare_loops(model, folder, clean, corrupted, options.repeats)
            edge_costs(model, clean, corrupted)


def compare_loops(
    model: HeadModel, folder: Path, clean: torch.Tensor, corrupted: torch.Tensor, repeats: int
) -> None:
    """Print how long both take to patch all heads, and how far their numbers are apart."""
    ours, our_time = processor_time(lambda: with_headwise(model, clean, corrupted), repeats)
    print(f"  headwise, {LAYERS * HEADS} heads, {PAIRS} pairs: {our_time:.1f} s")
    try:
        copy = GPT2LMHeadModel.from_pretrained(folder).eval()
        loop = with_transformer_lens(folder, copy, clean, corrupted)
    except ImportError as error:
        print(f"  TransformerLens is not installed ({error}): not compared.")
        return
    theirs, their_time = processor_time(loop, repeats)
    apart = float((ours - theirs).abs().max())
    effect = float((theirs - theirs.mean((0, 1))).abs().max())
    print(
        f"  TransformerLens: {their_time:.1f} s, {their_time / our_time:.1f} x the time (3 wanted); "
        f"largest difference {apart:.1e} (1e-4 wanted), of effects up to {effect:.1e}"
    )


def edge_costs(model: HeadModel, clean: torch.Tensor, corrupted: torch.Tensor) -> None:
    """Print the cost of attributing all edges in plain forward and backward passes."""
    graph = ResidualGraph(model)
    batch = model.batch(clean)

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return logits[:, ANSWER] - logits[:, WRONG]

    def plain() -> None:
        embedding = model.module.get_input_embeddings()
        hook = embedding.register_forward_hook(lambda *args: args[2].requires_grad_())
        with torch.enable_grad():
            logits = model.module(input_ids=clean).logits[:, -1]
            torch.autograd.grad(metric(logits).sum(), [model.module.transformer.wte.weight])
        hook.remove()

    model.module.requires_grad_(False)
    model.module.transformer.wte.weight.requires_grad_()
    _ = graph.head_inputs
    plain()
    _, plain_time = processor_time(plain, 3)

    def attribute() -> torch.Tensor:
        before = graph.record(batch)
        after = graph.record(model.batch(corrupted))
        change = after.contributions - before.contributions
        return graph.edge_attribution(batch, change, metric)

    _, edge_time = processor_time(attribute, 3)
    print(
        f"all {len(graph.edges)} edges: {edge_time:.2f} s, {edge_time / plain_time:.1f} plain "
        "forward and backward passes (12 wanted, with 5 points)"
    )


if __name__ == "__main__":
    main()
