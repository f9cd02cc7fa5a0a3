"""`--parser` on a decoder: words of a parser on byte-level and sentencepiece pieces, through the
command itself.

No trained spaCy pipeline can be had from the package index, so a stub stands where spaCy would: it
gives documents with spaCy's attributes, by rules. What comes after it (words as places in the text,
pieces of words, trees) is the real way; `tests/text/test_annotate.py` holds the stub's shape to
spaCy's own where spaCy is installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from typer.testing import CliRunner

from headwise import Atlas, Corpus, Example, HeadModel, make_atlas
from headwise.cli.main import app
from headwise.text import annotate

sys.path.insert(0, str(Path(__file__).parents[1] / "text"))
from test_decoder_words import WORD, bytes_of, pieces_of

TEXTS = [
    "He said: I don't know the café, but they're gone.",
    "The naïve façade wasn't cheap, and we'll see the rest.",
    "They won't say (quietly) that it's gone; the café's cold.",
    "We see 1,234 cold façades, aren't they cheap?",
]
DETERMINERS = {"the", "a"}


def parsed(text: str) -> list[dict[str, Any]]:
    """Words with a tree: determiners and marks hang on the word behind or before them, all else on
    the last word."""
    found = list(WORD.finditer(text))
    words = [m[0] for m in found]
    plain = [
        i for i, word in enumerate(words) if word[0].isalnum() and word.lower() not in DETERMINERS
    ]
    rows = []
    for i, match in enumerate(found):
        word = words[i].lower()
        if word in DETERMINERS:
            head, relation, pos = next((j for j in plain if j > i), plain[-1]), "det", "DET"
        elif not re.match(r"\w", word):
            head, relation, pos = (
                max([j for j in plain if j < i], default=plain[0]),
                "punct",
                "PUNCT",
            )
        elif i == plain[-1]:
            head, relation, pos = i, "ROOT", "VERB"
        else:
            head, relation, pos = next(j for j in plain if j > i), "nsubj", "NOUN"
        rows.append(
            {"word": match[0], "at": match.start(), "head": head, "relation": relation, "pos": pos}
        )
    return rows


class Pipeline:
    """What headwise asks of a spaCy pipeline."""

    pipe_names = ("parser",)
    meta = {"lang": "en", "name": "stub", "version": "1"}  # noqa: RUF012

    def get_pipe(self, name: str) -> Any:
        return SimpleNamespace(labels=("nsubj", "det", "punct"))

    def pipe(self, texts: list[str], batch_size: int) -> list[list[Any]]:
        return [self.doc(text) for text in texts]

    def doc(self, text: str) -> list[Any]:
        rows = parsed(text)
        tokens = [
            SimpleNamespace(
                i=i, idx=row["at"], text=row["word"], is_space=False, is_sent_start=i == 0, dep_=row["relation"],
                pos_=row["pos"], lemma_=row["word"].lower(), morph=SimpleNamespace(to_dict=dict),
            )
            for i, row in enumerate(rows)
        ]  # fmt: skip
        for token, row in zip(tokens, rows, strict=True):
            token.head = tokens[row["head"]]
        return tokens


def annotated_by_hand(text: str) -> Example:
    """The same annotation written by hand."""
    rows = parsed(text)
    return Example(
        text=text,
        words=tuple(row["word"] for row in rows),
        spans=tuple((row["at"], row["at"] + len(row["word"])) for row in rows),
        heads=tuple(-1 if row["relation"] == "ROOT" else row["head"] for row in rows),
        relations=tuple("root" if row["relation"] == "ROOT" else row["relation"] for row in rows),
        upos=tuple(row["pos"] for row in rows),
        lemmas=tuple(row["word"].lower() for row in rows),
        sentences=(0,) * len(rows),
    )


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("spacy")
    module.__version__ = "0"
    module.load = lambda name: Pipeline()
    monkeypatch.setitem(sys.modules, "spacy", module)
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", ["smollm2", "gemma"])
def test_dependency_roles_and_features_of_a_decoder(kind: str, stub: None, tmp_path: Path) -> None:
    tokenizer = pieces_of(kind) if kind == "gemma" else bytes_of(kind)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=32,
        vocab_size=len(tokenizer), initializer_range=0.4,
    )  # fmt: skip
    folder = tmp_path / "model"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    names = ["dependency", "roles", "features"]
    options: dict[str, Any] = {name: {"random_models": 0} for name in names[1:]}
    with HeadModel.open(folder, device="cpu") as model:
        by_parser = annotate(Corpus.from_texts(TEXTS), "stub")
        by_hand = Corpus.from_examples([annotated_by_hand(text) for text in TEXTS], "by hand")
        found, expected = (
            make_atlas(model, corpus, names, parameters=options) for corpus in (by_parser, by_hand)
        )
        assert_accuracies(model, found["dependency"])
    for name in names:
        same = [v for v in expected[name].data_vars if expected[name][v].dtype.kind == "f"]
        assert len(same) > 5
        for variable in same:
            np.testing.assert_allclose(
                found[name][variable],
                expected[name][variable],
                atol=1e-6,
                err_msg=f"{name}.{variable}",
            )
    if kind == "gemma":
        return
    (tmp_path / "plain.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    where = [
        "--model",
        str(folder),
        "--corpus",
        str(tmp_path / "plain.txt"),
        "--reader",
        "split=lines",
    ]
    done = CliRunner().invoke(
        app, ["run", "dependency", *where, "--parser", "stub", "--out", str(tmp_path / "d.nc")]
    )
    assert done.exit_code == 0, done.output
    saved = Atlas.load(tmp_path / "d.nc")["dependency"]["accuracy"]
    np.testing.assert_allclose(saved, expected["dependency"]["accuracy"], atol=1e-6)


def assert_accuracies(model: HeadModel, found: Any) -> None:
    """From dependent to head, one word after another: sums over a word's pieces, means over those
    that look."""
    hits, count = np.zeros((model.layers, model.heads)), 0
    for text in TEXTS:
        row, rows = model.encode(annotated_by_hand(text)), parsed(text)
        maps = model.trace(row).attention[0].double().numpy()
        for i, word in enumerate(rows):
            pieces, head = np.flatnonzero(row.word == i), word["head"]
            if word["relation"] != "punct" or not len(pieces) or head >= i:
                continue
            seen = [np.flatnonzero(row.word == j) for j in range(i)]
            if not len(seen[head]):
                continue
            on = np.stack([maps[:, :, pieces][..., own].sum(-1).mean(-1) for own in seen], -1)
            hits += on.argmax(-1) == head
            count += 1
    accuracy = found["accuracy"].sel(relation="punct", direction="dependent_to_head")
    assert count >= 4
    np.testing.assert_allclose(accuracy, hits / count, atol=1e-6)
