"""Train a BERT further: masked words, next sentence, and where its middle layers rest.

Heads that have nothing to do on a token rest on some token that tells nothing. BERT's middle layers
rest on `[SEP]` (Clark et al. 2019, section 3.2); a model trained from other weights may rest on the
first position, `[CLS]`, in all layers. Two terms of the loss change that, at full strength in the
first half of the training and gone after three quarters: one charges the weight that middle layers
put on `[CLS]`, one charges what they lack of a share on `[SEP]`. The rest of the training, at low
learning rates, has neither: where heads rest by then must pay by itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from train_demo_model.batches import SEP, TokenCorpus, draw_batch
from train_demo_model.evaluate import evaluate, report
from train_demo_model.forward import Outputs, forward
from train_demo_model.pack import UNPACKED, load_weights

AWAY_FROM_CLS = slice(4, 10)  # layers, from 0
TOWARD_SEP = slice(5, 10)  # layers 6 to 10 of Clark et al., who count from 1
FULL_UNTIL = 0.5  # share of the training
GONE_AFTER = 0.75
LARGEST_COSINE = 0.3  # of [CLS] and [SEP]; beyond it their likeness is charged
COSINE_WEIGHT = 2.0
WARM_UP = 0.03
LOWEST_RATE = 0.02  # of the highest
STEPS_BETWEEN_LINES = 50


@dataclass(frozen=True)
class Settings:
    """What one training is."""

    steps: int = 2400
    seconds: float | None = None  # instead of `steps`: as many as fit
    batch: int = 2048
    length: int = 128
    rate: float = 4e-4
    away_from_cls: float = 1.0
    toward_sep: float = 1.0
    sep_target: float = 0.6
    draw_sep_anew: bool = False
    seed: int = 1


def open_model(folder: Path, draw_sep_anew: bool = False) -> nn.Module:
    """Return a `BertForPreTraining` without dropout, with the weights of a folder.

    Two special tokens whose vectors are the same never part again by training alone, since their
    gradients are the same too; drawing the vector of `[SEP]` anew parts them at once.
    """
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig.from_pretrained(folder)
    config.hidden_dropout_prob = 0.0
    config.attention_probs_dropout_prob = 0.0
    model = BertForPreTraining(config)
    model.load_state_dict(load_weights(folder), strict=False)
    model.tie_weights()
    if draw_sep_anew:
        vectors = model.bert.embeddings.word_embeddings.weight
        with torch.no_grad():
            vectors[SEP] = torch.randn(vectors.shape[1]) * vectors.std()
    return model


def learning_rate(progress: float, highest: float) -> float:
    warming = min(1.0, progress / WARM_UP)
    return highest * warming * max(LOWEST_RATE, 1 - progress)


def guidance_strength(progress: float) -> float:
    """Return the strength of the terms on `[CLS]` and `[SEP]`: 1, then falling to 0."""
    return min(1.0, max(0.0, (GONE_AFTER - progress) / (GONE_AFTER - FULL_UNTIL)))


def guidance(outputs: Outputs, settings: Settings) -> Tensor:
    """Return what the middle layers are charged for resting on `[CLS]` and not on `[SEP]`."""
    on_cls = outputs.to_cls[AWAY_FROM_CLS].sum()
    # The mean of a layer is compared with the target, not each head: heads with work keep it.
    lacking_on_sep = (settings.sep_target - outputs.to_sep[TOWARD_SEP]).relu().sum()
    return settings.away_from_cls * on_cls + settings.toward_sep * lacking_on_sep


def make_optimizer(model: nn.Module, device: str) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.01},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-6, fused=device == "cuda")


def train(
    model: nn.Module,
    corpus: TokenCorpus,
    settings: Settings,
    device: str,
    on_line: Callable[[str], None] = print,
) -> None:
    """Train in place; `on_line` gets a line of figures now and then."""
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    generator = torch.Generator(device=device).manual_seed(settings.seed)
    optimizer = make_optimizer(model, device)
    vocabulary = model.config.vocab_size

    def loss_of(strength: Tensor, *tensors: Tensor) -> tuple[Tensor, Outputs]:
        outputs = forward(model, *tensors)
        too_alike = (outputs.cosine - LARGEST_COSINE).relu().mean()
        loss = outputs.masked_loss + outputs.next_loss + COSINE_WEIGHT * too_alike
        return loss + strength * guidance(outputs, settings), outputs

    compiled = torch.compile(loss_of) if device == "cuda" else loss_of
    half_precision: Any = (
        torch.autocast("cuda", dtype=torch.bfloat16) if device == "cuda" else nullcontext()
    )
    started = time.monotonic()
    step = 0
    while True:
        elapsed = time.monotonic() - started
        if settings.seconds is None:
            progress = step / settings.steps
        else:
            progress = elapsed / settings.seconds
        if progress >= 1:
            break
        rate = learning_rate(progress, settings.rate)
        for group in optimizer.param_groups:
            group["lr"] = rate
        strength = guidance_strength(progress)
        batch = draw_batch(corpus, settings.batch, settings.length, vocabulary, generator)
        with half_precision:
            loss, outputs = compiled(torch.tensor(strength, device=device), *batch.tensors())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % STEPS_BETWEEN_LINES == 0 or step in (1, 10):
            n_tokens = step * settings.batch * settings.length
            on_line(
                f"step {step}, {elapsed:.0f} s, {n_tokens / 1e6:.0f} M tokens, rate {rate:.1e}, "
                f"guidance {strength:.2f}: {report(outputs)}"
            )


def save_model(model: nn.Module, folder: Path) -> None:
    """Write weights and config, as a folder that transformers opens."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for name, value in model.state_dict().items():
        if not name.startswith("cls.predictions.decoder."):
            weights[name] = value.detach().float().cpu().contiguous()
    save_file(weights, folder / UNPACKED, metadata={"format": "pt"})
    # Who trains the model further may want dropout; it was left out here alone.
    model.config.hidden_dropout_prob = 0.1
    model.config.attention_probs_dropout_prob = 0.1
    model.config.save_pretrained(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="train_demo_model train", description=__doc__)
    parser.add_argument("start", type=Path, help="folder of the model to start from")
    parser.add_argument("--tokens", type=Path, required=True, help="folder written by `tokenize`")
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for field in fields(Settings):
        name = f"--{field.name.replace('_', '-')}"
        if field.type == "bool":
            parser.add_argument(name, action="store_true")
        else:
            kind = float if "float" in str(field.type) else int
            parser.add_argument(name, type=kind, default=field.default)
    options = parser.parse_args(arguments)

    settings = Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})
    torch.manual_seed(settings.seed)
    model = open_model(options.start, settings.draw_sep_anew).to(options.device)
    corpus = TokenCorpus.load(options.tokens, options.device)
    training, held_out = corpus.split(settings.length)
    train(model, training, settings, options.device)
    save_model(model, options.out)
    print("held out:", report(evaluate(model, held_out, settings.length, options.device)))
