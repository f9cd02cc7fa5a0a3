"""The packed files of wiki-bert-3, the demo model of headwise; `path()` says where they lie."""

from __future__ import annotations

from pathlib import Path

__all__ = ["path"]


def path() -> Path:
    """The folder with the packed weights (`model.int8.safetensors`), the config and the tokenizer."""
    return Path(__file__).resolve().parent / "data"
