"""Store a model in a quarter of its size: each matrix as int8 rows with one float32 scale a row."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

PACKED = "model.int8.safetensors"
UNPACKED = "model.safetensors"
LARGEST = 127
# Tied to the word embeddings, or a buffer that transformers makes again.
DERIVED = (
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "bert.embeddings.position_ids",
)
OTHER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def pack_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return int8 matrices with their scales under `NAME.scale`, and vectors as float32."""
    packed = {}
    for name, value in weights.items():
        if name in DERIVED:
            continue
        value = value.detach().float().cpu()
        if value.ndim != 2:
            packed[name] = value.contiguous()
            continue
        scale = value.abs().amax(1).clamp(min=1e-12) / LARGEST
        steps = (value / scale[:, None]).round().clamp(-LARGEST, LARGEST)
        packed[name] = steps.to(torch.int8).contiguous()
        packed[f"{name}.scale"] = scale.contiguous()
    return packed


def unpack_weights(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the float32 weights that `pack_weights` stored."""
    weights = {}
    for name, value in packed.items():
        if name.endswith(".scale"):
            continue
        scale = packed.get(f"{name}.scale")
        weights[name] = value.float() if scale is None else value.float() * scale[:, None]
    return weights


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of a folder, packed or not, under the names of `BertForPreTraining`."""
    if (folder / PACKED).exists():
        return unpack_weights(load_file(folder / PACKED))
    weights = load_file(folder / UNPACKED)
    if any(name.startswith("bert.") for name in weights):
        return weights
    return {f"bert.{name}": value for name, value in weights.items()}  # an encoder without heads


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="train_demo_model pack", description=__doc__)
    parser.add_argument("model", type=Path, help="folder with model.safetensors and config.json")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of its tokenizer")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)

    options.out.mkdir(parents=True, exist_ok=True)
    save_file(pack_weights(load_weights(options.model)), options.out / PACKED)
    config = json.loads((options.model / "config.json").read_text())
    (options.out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for name in OTHER_FILES:
        if (options.tokenizer / name).exists():
            shutil.copyfile(options.tokenizer / name, options.out / name)
