"""A parser's words on the pieces of decoders' tokenizers: GPT-2's and SmolLM2's bytes, Qwen's and
Llama 3's patterns, sentencepiece with byte fallback (Llama 2, Gemma), trained on the spot; and the
real ones where they are at hand."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headwise import Example
from headwise.text.encode import NO_WORD, Encoder

PROSE = [
    "He said: \"I don't know.\" Then (quietly) they're gone, aren't they?",
    "The café's naïve façade — it's 1,234.50 € — wasn't cheap…",
    "東京 is big; Москва's cold. 😀 We'll see, won't we?",
] * 20
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# What spaCy makes of English: clitics apart, every mark a word of its own.
WORD = re.compile(r"n't|'(?:s|re|ve|m|ll|d)\b|\w+?(?=n't)|\w+|[^\w\s]", re.UNICODE)


@cache
def bytes_of(kind: str) -> Any:
    made = Tokenizer(models.BPE())
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind != "qwen")]
    if kind == "smollm2":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if kind == "qwen":  # and Llama 3
        made.normalizer = normalizers.NFC()
        steps.insert(0, pre_tokenizers.Split(Regex(QWEN), behavior="isolated"))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        PROSE, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


@cache
def pieces_of(kind: str) -> Any:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if kind == "gemma":  # spaces become marks before anything is split, and none is put in front
        made.normalizer = normalizers.Replace(" ", "▁")
        made.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    else:
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=["<unk>", "<s>", *bytes_],
        limit_alphabet=60,
        show_progress=False,
    )
    made.train_from_iterator(
        [word for text in PROSE for word in text.replace(" ", " ▁").split(" ")], trainer
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", unk_token="<unk>")


MADE = {
    **{kind: lambda kind=kind: bytes_of(kind) for kind in ("gpt2", "smollm2", "qwen")},
    **{kind: lambda kind=kind: pieces_of(kind) for kind in ("llama", "gemma")},
}


def assert_words_and_tokens_align(tokenizer: Any, text: str) -> None:
    """Every word is covered; every token is of a word it has most characters of, or of none and has
    none."""
    found = list(WORD.finditer(text))
    words, spans = tuple(m[0] for m in found), tuple(m.span() for m in found)
    row = Encoder(tokenizer, 4000).encode(Example(text=text, words=words, spans=spans))
    assert row is not None
    assert row.aligned, text
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    for token, (start, end) in enumerate(offsets):
        shares = [len(set(range(start, end)) & set(range(*span))) for span in spans]
        if max(shares) == 0:
            assert row.word[token] == NO_WORD
        elif not row.special[token]:
            assert shares[row.word[token]] == max(shares)
    # A word that shares no token with another has all that it says in tokens of its own.
    for number, span in enumerate(spans):
        inside = [t for t, (a, b) in enumerate(offsets) if min(b, span[1]) > max(a, span[0])]
        if all(
            sum(min(offsets[t][1], e) > max(offsets[t][0], s) for s, e in spans) == 1
            for t in inside
        ):
            assert {row.word[t] for t in inside} == {number}


BITS = st.sampled_from(
    [
        "the",
        "don't",
        "they're",
        "café",
        "naïve",
        "Москва's",
        "東京",
        "😀",
        "won't.",
        '"Oh!"',
        "(1,234.50)",
        "it's…",
        "—",
        "a",
    ]
)


@pytest.mark.parametrize("kind", list(MADE))
@settings(max_examples=25, deadline=None)
@given(st.lists(BITS, min_size=1, max_size=12))
def test_words_of_ordinary_text_align(kind: str, bits: list[str]) -> None:
    assert_words_and_tokens_align(MADE[kind](), " ".join(bits))


REAL = {
    "smollm2": os.environ.get("HEADWISE_SMOLLM2", ""),
    "stories15M": os.path.join(os.environ.get("HEADWISE_SHARED", ""), "models", "stories15M"),
}


@pytest.mark.real
@pytest.mark.parametrize("name", list(REAL))
def test_words_of_ordinary_text_align_with_real_tokenizers(name: str) -> None:
    if not (Path(REAL[name]) / "tokenizer.json").is_file():
        pytest.skip(f"{name} is not at hand")
    real = AutoTokenizer.from_pretrained(REAL[name], local_files_only=True)
    for text in PROSE[:3]:
        assert_words_and_tokens_align(real, text)
