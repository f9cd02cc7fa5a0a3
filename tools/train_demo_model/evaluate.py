"""Measure a model on text it was not trained on: masked words, next sentence, special tokens."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from train_demo_model.batches import TokenCorpus, draw_batch
from train_demo_model.forward import Outputs, forward


@torch.no_grad()
def evaluate(
    model: nn.Module,
    corpus: TokenCorpus,
    length: int,
    device: str,
    batches: int = 20,
    size: int = 512,
    seed: int = 0,
) -> Outputs:
    """Return the mean of each figure over batches drawn from a corpus, in float32."""
    generator = torch.Generator(device=device).manual_seed(seed)
    collected: list[Outputs] = []
    for _ in range(batches):
        batch = draw_batch(corpus, size, length, model.config.vocab_size, generator)
        collected.append(forward(model, *batch.tensors()))
    return Outputs(*[torch.stack(values).mean(0) for values in zip(*collected, strict=True)])


def report(outputs: Outputs) -> str:
    """Return all figures in one line; those of layers in their order, in hundredths."""

    def by_layer(values: Tensor) -> str:
        return " ".join(f"{100 * value:.0f}" for value in values.tolist())

    return (
        f"masked words: loss {outputs.masked_loss:.3f}, accuracy {outputs.masked_accuracy:.3f}; "
        f"next sentence: loss {outputs.next_loss:.3f}, accuracy {outputs.next_accuracy:.3f}; "
        f"cosine of [CLS] and [SEP] x 100: {by_layer(outputs.cosine)}; "
        f"attention to [CLS] %: {by_layer(outputs.to_cls)}; to [SEP] %: {by_layer(outputs.to_sep)}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    from train_demo_model.train import open_model

    parser = argparse.ArgumentParser(prog="train_demo_model evaluate", description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model, packed or not")
    parser.add_argument("--tokens", type=Path, required=True, help="folder written by `tokenize`")
    parser.add_argument("--all", action="store_true", help="all the text, not its held-out end")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)

    model = open_model(options.model).to(options.device)
    corpus = TokenCorpus.load(options.tokens, options.device)
    if not options.all:
        corpus = corpus.split(options.length)[1]
    figures = evaluate(model, corpus, options.length, options.device, options.batches, options.size)
    print(report(figures))
