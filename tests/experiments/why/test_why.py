"""`headwise.why`: the planted writer on one text and on a corpus, sums, random weights, command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import headwise
from headwise.atlas import Atlas
from headwise.cli.main import app
from headwise.core.errors import InputError, ParameterError
from headwise.experiments.why.figures import summed_table
from headwise.experiments.why.result import largest_pairs
from headwise.experiments.why.run import FIRING_SHARE, FIRST_ROW, firing_rows
from headwise.models import HeadModel
from headwise.models.score_attribution import ScoreAttribution
from headwise.testing import PlantedDecoder, planted_decoder, random_model
from headwise.testing.names import check_names

TEXT = "word1 word2 word3 word4 word2"
WORDS = [f"word{number}" for number in range(1, 12)]


@pytest.fixture(scope="module")
def decoder() -> PlantedDecoder:
    return planted_decoder()


@pytest.fixture(scope="module")
def planted(decoder: PlantedDecoder) -> Iterator[HeadModel]:
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu") as model:
        yield model


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in which some words have occurred before and others have not."""
    random = np.random.default_rng(0)
    lines = []
    for _ in range(12):
        words = [str(word) for word in random.choice(WORDS, 10)]
        lines.append(json.dumps({"text": " ".join(words)}))
    path = tmp_path_factory.mktemp("why") / "texts.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_one_score_is_that_of_the_model(planted: HeadModel, decoder: PlantedDecoder) -> None:
    layer, head = decoder.where("induction")
    name = f"L{layer}H{head}"
    result = headwise.why(name, planted, text=TEXT, query="5", key="word3")
    same = planted.why(TEXT, name, 5, "word3")
    np.testing.assert_allclose(result["score"].values, same["score"].values)
    # The last token and what it attends to most are the defaults.
    default = headwise.why(name, planted, text=TEXT)
    assert default.attrs["query_position"] == 5
    assert default.attrs["key"] == "word3"
    pairs = largest_pairs(result, 3)
    assert sum(part for _, _, part in pairs) == pytest.approx(result.attrs["score"], rel=1e-4)
    previous = "L{}H{}".format(*decoder.where("previous"))
    assert pairs[0][:2] == ("embedding", previous)
    table, rows, columns = summed_table(result)
    assert table.shape == (len(rows), len(columns))
    assert table.sum() == pytest.approx(result.attrs["score"], rel=1e-4)


def test_on_a_corpus_the_key_is_written_by_the_previous_token_head(
    planted: HeadModel, decoder: PlantedDecoder, corpus: Path
) -> None:
    layer, head = decoder.where("induction")
    result = headwise.why(f"L{layer}H{head}", planted, corpus)
    check_names("why", result)
    assert result.attrs["examples"] == 12
    assert result.attrs["firing_rows"] > 12
    previous = "L{}H{}".format(*decoder.where("previous"))
    key = result["key_difference"]
    assert key.idxmax().item() == previous
    assert float(result["key_difference_p_adjusted"].sel(component=previous)) < 0.01
    assert result["query_difference"].idxmax().item() == "embedding"
    # No other head has a part in it.
    for component in ("L0H1", "L0H2"):
        assert abs(float(key.sel(component=component))) < 0.01 * float(key.max())
        assert np.isnan(float(result["key_difference_p_adjusted"].sel(component=component)))
    # Both margins add up to the mean score.
    for side in ("query", "key"):
        total = result[f"{side}_margin"].sum("component").values
        np.testing.assert_allclose(total, result["mean_score"].values, atol=1e-3)


def test_rows_fire_by_the_rule(planted: HeadModel, decoder: PlantedDecoder) -> None:
    layer, head = decoder.where("induction")
    parts = ScoreAttribution(planted).parts(planted.one_input(TEXT), layer, head)
    rows, keys, fires = firing_rows(parts)
    expected = []
    for row in range(FIRST_ROW, len(parts.weights)):
        others = parts.weights[row, 1:]
        mass = float(others.sum())
        fires_here = mass > 1e-4 and float(others.max()) >= FIRING_SHARE * mass
        expected.append((row, int(others.argmax()) + 1, fires_here))
    assert list(zip(rows.tolist(), keys.tolist(), fires.tolist(), strict=True)) == expected
    assert (5, 3, True) in expected
    assert not any(fires[:-1])  # no word but the last has occurred before


def test_few_examples_are_not_tested(tmp_path: Path) -> None:
    module, tokenizer = random_model(causal=True, layers=2, heads=2, d_head=8, seed=0)
    words = [word for word in tokenizer.get_vocab() if word.isalpha()][:8]
    path = tmp_path / "few.jsonl"
    path.write_text("\n".join(json.dumps({"text": " ".join(words)}) for _ in range(3)))
    with HeadModel.open(module, tokenizer=tokenizer, device="cpu") as model:
        result = headwise.why("L1H0", model, path)
        # Twelve texts of three documents are three.
        rows = [{"text": " ".join(words), "document": f"d{number % 3}"} for number in range(12)]
        path.write_text("\n".join(map(json.dumps, rows)))
        of_documents = headwise.why("L1H0", model, path)
    assert np.isnan(result["key_difference_p_adjusted"].values).all()
    assert "examples have rows" in result.attrs["note"]
    assert np.isnan(of_documents["key_difference_p_adjusted"].values).all()
    assert "documents have rows" in of_documents.attrs["note"]


def test_examples_of_one_document_are_one_observation(tmp_path: Path) -> None:
    """Every text three times: as documents they say no more than once, as examples they do."""
    module, tokenizer = random_model(
        causal=True, layers=2, heads=2, d_head=8, seed=0, words=WORDS, max_length=16
    )
    rows = []
    for number in range(12):
        words = np.random.default_rng(number).choice(WORDS, 10)
        rows.append({"text": " ".join(words)})
    repeated = [row for row in rows for _ in range(3)]
    in_documents = [{**row, "document": row["text"]} for row in repeated]
    results = []
    with HeadModel.open(module, tokenizer=tokenizer, device="cpu") as model:
        for texts in (rows, repeated, in_documents):
            path = tmp_path / f"texts-{len(results)}.jsonl"
            path.write_text("\n".join(map(json.dumps, texts)))
            results.append(headwise.why("L1H0", model, path))
    once, as_examples, as_documents = results
    for name in ("key_margin_low", "key_difference_high", "key_difference_p_adjusted"):
        np.testing.assert_allclose(as_documents[name], once[name], rtol=1e-4, atol=1e-7)
    assert float(as_examples["mean_score_low"][1]) > float(once["mean_score_low"][1]) + 1e-4


def test_what_cannot_be_answered_is_said(planted: HeadModel, corpus: Path) -> None:
    with pytest.raises(ParameterError, match="not both"):
        headwise.why("L1H0", planted, corpus, text=TEXT)
    with pytest.raises(ParameterError, match="tokens of a `text`"):
        headwise.why("L1H0", planted, corpus, query="word1")
    with pytest.raises(InputError, match="no token 'word9'"):
        headwise.why("L1H0", planted, text=TEXT, key="word9")


def test_the_command_prints_writes_and_draws(
    decoder: PlantedDecoder, corpus: Path, tmp_path: Path
) -> None:
    from typer.testing import CliRunner

    folder = tmp_path / "model"
    torch.manual_seed(0)
    decoder.model.save_pretrained(folder)
    decoder.tokenizer.save_pretrained(folder)
    layer, head = decoder.where("induction")
    name = f"L{layer}H{head}"
    arguments = ["why", name, str(folder), "--device", "cpu"]
    figures = tmp_path / "figures"
    shown = CliRunner().invoke(app, [*arguments, "--text", TEXT, "--figures", str(figures)])
    assert shown.exit_code == 0, shown.output
    assert "L0H0" in shown.output
    assert "all others" in shown.output
    assert list(figures.glob("why-pairs.*"))
    out = tmp_path / "why.nc"
    source = ["--corpus", str(corpus), "--out", str(out), "--figures", str(figures)]
    shown = CliRunner().invoke(app, [*arguments, *source])
    assert shown.exit_code == 0, shown.output
    assert "its role fires in" in shown.output
    assert list(figures.glob("why-margins.*"))
    assert Atlas.load(out)["why"].attrs["head"] == name
