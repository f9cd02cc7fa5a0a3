"""docs/python.md: its code runs as printed, on a tiny model with a tokenizer of the same kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headwise.models import HeadModel

TEXT = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
WORDS = (
    "The",
    "cat",
    "sat",
    "on",
    "the",
    "mat",
    ".",
    "Dogs",
    "bark",
    "Once",
    "upon",
    "a",
    "time",
    "dog",
)


def tokenizer() -> Any:
    """Byte-level, with the words of the document as single tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: place for place, piece in enumerate(letters)}
    merges = []
    for word in WORDS:
        for piece in ("Ġ" + word, word):
            built = piece[0]
            for letter in piece[1:]:
                if (built, letter) not in merges:
                    merges.append((built, letter))
                built += letter
                vocabulary.setdefault(built, len(vocabulary))
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def test_the_code_of_the_document_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    words = tokenizer()
    config = transformers.LlamaConfig(
        hidden_size=48,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=48,
        vocab_size=len(words),
    )
    tiny = HeadModel.open(transformers.LlamaForCausalLM(config).eval(), tokenizer=words)
    monkeypatch.setattr(HeadModel, "open", lambda name: tiny)
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    space: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "python.md", "exec", dont_inherit=True), space)
    assert len(blocks) == 8
    assert space["found"].layers.shape == (1, 4, 7, 7)
    assert space["map"].sel(query=" sat", key=" cat").shape == ()
    assert space["given"].sel(token=" cat").shape == (8,)
    assert "probability_after" in capsys.readouterr().out
    assert space["trace"].hidden.shape[:2] == (2, 5)
    assert space["logits"].shape[-1] == len(words)
    assert space["batch"].tokens == [["The", " cat", " sat", "."], ["Dogs", " bark", "."]]


def test_the_code_of_others_is_python() -> None:
    others = re.findall(r"```py\n(.*?)```", TEXT, re.S)
    assert len(others) == 5
    for block in others:
        compile(block, "python.md", "exec")
