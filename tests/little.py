"""A small stand-in for the built-in model."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import BertConfig, BertForPreTraining

from headwise.models.demo import demo_model_path


def little_model(folder: Path) -> Path:
    """A model with the files, the tokenizer and the heads of the built-in one, random and a quarter
    as wide: for code that must run on it, whatever its numbers are."""
    shutil.copytree(
        demo_model_path(), folder, ignore=shutil.ignore_patterns("*.safetensors", "headwise-*")
    )
    config = BertConfig.from_pretrained(folder, hidden_size=96, intermediate_size=96)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForPreTraining(config).save_pretrained(folder)
    return folder
