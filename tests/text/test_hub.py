"""Datasets of the hub: names, columns, folders on disk; the package is optional."""

from __future__ import annotations

import sys
import types

import pytest

from headwise.core.errors import InputError, MissingExtraError, ParameterError
from headwise.text import open_corpus
from headwise.text.readers.hub import parse_hub


def test_names():
    assert parse_hub("hf:glue/mrpc:train") == ("glue", "mrpc", "train")
    assert parse_hub("hf:nyu-mll/glue/mrpc:validation") == ("nyu-mll/glue", "mrpc", "validation")
    assert parse_hub("hf:imdb:test") == ("imdb", None, "test")
    for bad in ("hf:glue/mrpc", "hf:a/b/c/d:train", "hf::train", "hf:glue/:train"):
        with pytest.raises(ParameterError, match="hf:dataset/config:split"):
            parse_hub(bad)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'headwise\[datasets\]'"):
        open_corpus("hf:glue/mrpc:train")


class Feature:
    def __init__(self, names):
        self.names = names


class Dataset(list):
    features = None
    info = None


def stub(monkeypatch, load):
    module = types.ModuleType("datasets")
    module.load_dataset = load
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_columns(monkeypatch):
    calls = []

    def load(name, config=None, *, split, streaming):
        calls.append((name, config, split, streaming))
        rows = Dataset(
            [
                {"sentence1": "a", "sentence2": "b", "label": 1, "idx": 0},
                {"sentence1": "c", "sentence2": "d", "label": -1, "idx": 1},
            ]
        )
        rows.features = {"label": Feature(["no", "yes"]), "idx": object()}
        return rows

    stub(monkeypatch, load)
    corpus = open_corpus("hf:glue/mrpc:train")
    assert [(e.text, e.pair, e.label) for e in corpus] == [("a", "b", "yes"), ("c", "d", None)]
    assert calls == [("glue", "mrpc", "train", True)]
    assert corpus.name == "glue/mrpc:train"
    assert next(iter(corpus)).origin == "hf:glue/mrpc:train, row 1"


def test_owner_and_dataset_look_like_dataset_and_config(monkeypatch):
    def load(name, config=None, *, split, streaming):
        if name != "stanfordnlp/imdb":
            raise FileNotFoundError(f"no {name}")
        return Dataset([{"text": "x"}])

    stub(monkeypatch, load)
    assert next(iter(open_corpus("hf:stanfordnlp/imdb:train"))).text == "x"
    with pytest.raises(
        InputError,
        match=r"hf:no/thing:train: the dataset cannot be opened \(FileNotFoundError: no no\)",
    ):
        open_corpus("hf:no/thing:train")


def test_rows_without_text(monkeypatch):
    stub(monkeypatch, lambda name, config=None, **_: Dataset([{"image": 3}]))
    with pytest.raises(
        InputError, match="row 1: the row needs `text` or `words`; it has `image`; name the field"
    ):
        open_corpus("hf:mnist:train")
    stub(
        monkeypatch,
        lambda name, config=None, **_: Dataset([{"tokens": ["a", "b"], "ner_tags": [0, 0]}]),
    )
    assert next(iter(open_corpus("hf:ner:train"))).words == ("a", "b")


def test_a_real_folder(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {"question": ["Who?", "When?"], "sentence": ["Me.", "Now."], "label": [0, 1]}
    features = datasets.Features(
        {
            "question": datasets.Value("string"),
            "sentence": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["entailment", "not_entailment"]),
        }
    )
    made = datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows, features=features)})
    made.save_to_disk(tmp_path / "qnli")
    corpus = open_corpus(f"hf:{tmp_path / 'qnli'}:train")
    expected = [("Who?", "Me.", "entailment"), ("When?", "Now.", "not_entailment")]
    assert (
        [(e.text, e.pair, e.label) for e in corpus]
        == expected
        == [(e.text, e.pair, e.label) for e in corpus]
    )
    assert corpus.name == "qnli:train"
    with pytest.raises(InputError, match="no split 'test'; it has train"):
        open_corpus(f"hf:{tmp_path / 'qnli'}:test")
