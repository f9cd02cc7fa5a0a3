"""The training of the built-in model, on a tiny configuration: from text to packed weights."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertForPreTraining

from train_demo_model import pack, tokenize, train
from train_demo_model.batches import (
    CLS,
    FULL_STOP,
    IGNORED,
    MASK,
    SEP,
    Batch,
    TokenCorpus,
    draw_batch,
)
from train_demo_model.evaluate import evaluate
from train_demo_model.forward import Outputs, forward

VOCABULARY = 1200
LENGTH = 32
N_PARAGRAPHS = 4000  # so many that the held-out end has examples


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of ten words, each from a set of words of its own paragraph."""
    folder = tmp_path_factory.mktemp("tokens")
    random = np.random.default_rng(0)
    paragraphs = []
    for _ in range(N_PARAGRAPHS):
        words = random.integers(1013, VOCABULARY, 12)
        paragraph = random.choice(words, (4, 11))
        paragraph[:, -1] = FULL_STOP
        paragraphs.append(paragraph.reshape(-1))
    np.save(folder / "tokens.npy", np.concatenate(paragraphs).astype(np.uint16))
    np.save(folder / "paragraphs.npy", np.arange(N_PARAGRAPHS, dtype=np.int32) * 44)
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForPreTraining(config).save_pretrained(folder)
    return folder


@pytest.fixture
def batch(tokens: Path) -> Batch:
    corpus = TokenCorpus.load(tokens, "cpu").split(LENGTH)[0]
    return draw_batch(corpus, 64, LENGTH, VOCABULARY, torch.Generator().manual_seed(0))


def test_articles_become_tokens(tmp_path: Path) -> None:
    line = "every paragraph of this article has more than ten words and sixty characters in it ."
    body = "\n".join(["Title", "", *[line] * 20, "a heading", "| a table |" + line])
    articles = [f'<doc id="{n}" url="u" title="T{n}">\n{body}\n</doc>' for n in (1, 2)]
    (tmp_path / "AA").mkdir()
    (tmp_path / "AA" / "wiki_00").write_text("\n".join(articles), encoding="utf-8")
    words = {word: 1000 + number for number, word in enumerate(sorted(set(line.split())))}
    tokenizer = Tokenizer(WordLevel(words, unk_token="every"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    held_out = tmp_path / "held.jsonl"
    held_out.write_text(json.dumps({"id": 7, "title": "T2"}) + "\n")
    options = ["--tokenizer", str(tmp_path / "tokenizer.json"), "--out", str(tmp_path)]
    tokenize.main([str(tmp_path), *options, "--held-out", str(held_out)])
    n_words = len(line.split())
    np.testing.assert_array_equal(np.load(tmp_path / "paragraphs.npy"), np.arange(20) * n_words)
    ids = np.load(tmp_path / "tokens.npy")
    assert ids.dtype == np.uint16
    assert list(ids[:n_words]) == [words[word] for word in line.split()]


def test_batches_are_pairs_with_masked_words(batch: Batch) -> None:
    assert (batch.input_ids[:, 0] == CLS).all()
    is_sep = batch.input_ids == SEP
    for row in range(len(batch.input_ids)):
        first = int(batch.first_sep[row])
        last = int(batch.last_sep[row])
        assert is_sep[row].nonzero().squeeze(1).tolist() == sorted({first, last})
        assert batch.attention_mask[row].nonzero().squeeze(1).tolist() == list(range(last + 1))
        assert batch.segments[row].nonzero().squeeze(1).tolist() == list(range(first + 1, last + 1))
        assert (batch.is_random_next[row] == IGNORED) == (first == last)
    is_masked = batch.masked_labels != IGNORED
    n_words = batch.attention_mask.sum(1) - 1 - is_sep.sum(1)
    torch.testing.assert_close(is_masked.sum(1), (n_words * 0.15).round().clamp(min=1).long())
    shown = batch.input_ids.gather(1, batch.masked_positions)[is_masked]
    assert 0.7 < (shown == MASK).float().mean() < 0.9
    assert (batch.masked_labels[is_masked] > MASK).all()


def test_the_true_continuation_follows(tokens: Path) -> None:
    corpus = TokenCorpus.load(tokens, "cpu")
    batch = draw_batch(corpus, 200, LENGTH, VOCABULARY, torch.Generator().manual_seed(1))
    restored = batch.input_ids.clone()
    is_masked = batch.masked_labels != IGNORED
    original = torch.where(
        is_masked, batch.masked_labels, restored.gather(1, batch.masked_positions)
    )
    restored.scatter_(1, batch.masked_positions, original)
    text = " ".join(map(str, corpus.tokens.tolist()))
    for row in range(200):
        first = int(batch.first_sep[row])
        last = int(batch.last_sep[row])
        words = [*restored[row, 1:first].tolist(), *restored[row, first + 1 : last].tolist()]
        follows = f" {' '.join(map(str, words))} " in f" {text} "
        if batch.is_random_next[row] != IGNORED:
            assert follows == (batch.is_random_next[row] == 0)


def test_forward_is_that_of_transformers(start: Path, batch: Batch) -> None:
    model = train.open_model(start).eval()
    outputs = forward(model, *batch.tensors())
    model.set_attn_implementation("eager")
    theirs = model(
        input_ids=batch.input_ids,
        token_type_ids=batch.segments,
        attention_mask=batch.attention_mask.long(),
        output_attentions=True,
        output_hidden_states=True,
    )
    chosen = batch.masked_positions[:, :, None].expand(-1, -1, VOCABULARY)
    logits = theirs.prediction_logits.gather(1, chosen)
    masked_loss = F.cross_entropy(logits.flatten(0, 1), batch.masked_labels.flatten())
    next_loss = F.cross_entropy(theirs.seq_relationship_logits, batch.is_random_next)
    torch.testing.assert_close(outputs.masked_loss, masked_loss)
    torch.testing.assert_close(outputs.next_loss, next_loss)
    rows = batch.attention_mask.clone()
    rows[:, 0] = False
    is_sep = (batch.input_ids == SEP)[:, None]
    for layer, weights in enumerate(theirs.attentions):
        mean_over_heads = weights.mean(1)
        torch.testing.assert_close(outputs.to_cls[layer], mean_over_heads[..., 0][rows].mean())
        to_sep = (mean_over_heads * is_sep).sum(-1)
        torch.testing.assert_close(outputs.to_sep[layer], to_sep[rows].mean())


def test_guidance_moves_attention_to_sep_and_fades(start: Path, tokens: Path) -> None:
    assert train.guidance_strength(0.3) == 1
    assert train.guidance_strength(0.625) == pytest.approx(0.5)
    assert train.guidance_strength(0.8) == 0
    corpus = TokenCorpus.load(tokens, "cpu").split(LENGTH)[0]
    settings = train.Settings(steps=40, batch=16, length=LENGTH, rate=1e-2)

    def trained(**changes: float) -> Outputs:
        model = train.open_model(start)
        changed = train.Settings(**{**settings.__dict__, **changes})
        train.train(model, corpus, changed, "cpu", on_line=lambda line: None)
        return evaluate(model, corpus, LENGTH, "cpu", batches=1, size=64)

    guided = trained()
    plain = trained(away_from_cls=0.0, toward_sep=0.0)
    middle = train.TOWARD_SEP
    assert (guided.to_sep[middle] > 2 * plain.to_sep[middle]).all()
    assert (guided.to_cls[middle] < plain.to_cls[middle]).all()


def test_from_start_to_packed_weights(
    start: Path, tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tokens", str(tokens), "--out", str(tmp_path / "out"), "--device", "cpu"]
    sizes = ["--steps", "10", "--batch", "8", "--length", str(LENGTH), "--draw-sep-anew"]
    train.main([str(start), *options, *sizes])
    printed = capsys.readouterr().out
    assert re.search(r"step 10, .* guidance 0.00: masked words: loss \d", printed)
    assert "held out: masked words: loss" in printed

    model = BertForPreTraining.from_pretrained(tmp_path / "out")
    assert model.config.hidden_dropout_prob == 0.1
    pack.main([str(tmp_path / "out"), "--tokenizer", str(start), "--out", str(tmp_path / "packed")])
    unpacked = pack.load_weights(tmp_path / "packed")
    stored = load_file(tmp_path / "packed" / pack.PACKED)
    assert stored["bert.embeddings.word_embeddings.weight"].dtype == torch.int8
    for name, value in pack.load_weights(tmp_path / "out").items():
        largest = value.abs().amax(-1, keepdim=True) if value.ndim == 2 else value.abs()
        assert ((unpacked[name] - value).abs() <= largest / 254 * 1.01 + 1e-9).all(), name
    assert set(unpacked) == set(pack.load_weights(tmp_path / "out"))
