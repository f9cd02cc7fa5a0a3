"""`headwise.cache`: the planted head that needs the distant context, random weights, files, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import headwise
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.experiments.cache import pattern_of
from headwise.experiments.cache.run import long_texts
from headwise.models import HeadModel
from headwise.testing import planted_decoder, random_model
from headwise.testing.names import check_names
from headwise.text import Example

LENGTH = 48
WORDS = [f"word{number}" for number in range(1, 12)]


def repeated_words(path: Path, count: int) -> Path:
    """Texts in which words come again after a long time."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(count):
        words = [str(word) for word in random.choice(WORDS, LENGTH + 4)]
        rows.append(json.dumps({"text": " ".join(words), "document": f"text {number}"}))
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repeated_words(tmp_path_factory.mktemp("cache") / "texts.jsonl", 8)


def test_the_induction_head_needs_the_distant_context(corpus: Path) -> None:
    decoder = planted_decoder(max_length=LENGTH + 16)
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        result = headwise.cache(
            model, corpus, documents=8, length=LENGTH, sink=1, window=4, needles=0, random=5
        )
    check_names("cache", result)
    error = result["output_error"]
    far_readers = {decoder.where("induction"), decoder.where("duplicate"), decoder.where("idle")}
    near_readers = {decoder.where(name) for name in ("previous", "sink", "copying")}
    for place in near_readers:
        assert float(error[place]) < 0.05
    for place in far_readers:
        assert float(error[place]) > 0.2
    for name in ("distant", "output_error"):
        assert (result[f"{name}_low"] <= result[name] + 1e-9).all()
        assert (result[name] <= result[f"{name}_high"] + 1e-9).all()


def test_more_whole_heads_cost_less(corpus: Path) -> None:
    decoder = planted_decoder(max_length=LENGTH + 16)
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        result = headwise.cache(
            model, corpus, length=LENGTH, sink=1, window=4, needles=0, random=10, keep=0.5
        )
    divergence = result["divergence"].sel(ranking="output error").values
    assert divergence[0] > divergence[-1] >= -1e-6
    memory = result["bytes_per_token"].values
    assert (np.diff(memory) > 0).all()
    assert memory[-1] < result.attrs["whole_bytes_per_token"]
    assert int(result["whole"].sum()) == 3
    pattern = pattern_of(result)
    assert (pattern.sink, pattern.window) == (1, 4)
    assert result.sizes["draw"] == 10


def test_texts_are_as_long_as_asked_for() -> None:
    decoder = planted_decoder(max_length=64)
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        examples = []
        for number in range(40):
            examples.append(
                Example(text="word1 word2 word3 word4 word5", document=f"d{number // 10}")
            )
        texts = long_texts(model, examples, 4, 30)
        assert [len(text) for text in texts] == [30] * 4
        with pytest.raises(InputError, match="gives 1 texts of 60 tokens"):
            long_texts(model, examples[:14], 4, 60)
        with pytest.raises(InputError, match="takes at most 64 tokens"):
            long_texts(model, examples, 4, 100)


def test_models_without_such_a_cache_are_rejected() -> None:
    module, tokenizer = random_model(causal=False, layers=2, heads=2, d_head=8)
    with (
        HeadModel.open(module, tokenizer=tokenizer, device="cpu") as model,
        pytest.raises(ModelError, match="keeps no cache"),
    ):
        headwise.cache(model, length=64, window=16)


def test_options_that_cannot_be_met() -> None:
    with pytest.raises(ParameterError, match="no less than the 64 of a text"):
        headwise.cache(None, length=64, window=64)
    with pytest.raises(ParameterError, match="at most 1"):
        headwise.cache(None, keep=1.5)


def test_the_command_writes_result_pattern_and_figures(tmp_path: Path, corpus: Path) -> None:
    from headwise.cli.main import whole_command

    decoder = planted_decoder(max_length=LENGTH + 16)
    folder = tmp_path / "model"
    decoder.model.save_pretrained(folder)
    decoder.tokenizer.save_pretrained(folder)
    arguments = ["cache", str(folder), "--corpus", str(corpus), "--length", str(LENGTH)]
    arguments += [
        "--sink",
        "1",
        "--window",
        "4",
        "--needles",
        "0",
        "--random",
        "3",
        "--keep",
        "0.5",
    ]
    arguments += ["--device", "cpu", "--out", str(tmp_path / "cache.nc")]
    arguments += [
        "--pattern",
        str(tmp_path / "pattern.json"),
        "--figures",
        str(tmp_path / "figures"),
    ]
    with pytest.raises(SystemExit) as stopped:
        whole_command()(arguments)
    assert not stopped.value.code
    pattern = headwise.CachePattern.load(tmp_path / "pattern.json")
    result = headwise.Atlas.load(tmp_path / "cache.nc")["cache"]
    assert (pattern.whole == result["whole"].values).all()
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert {"cache-heads", "cache-curve"} <= figures
