"""Patching: exact on the planted decoder, equal to a slow computation, pairs checked, nothing on
random weights."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pytest
from typer.testing import CliRunner

import headwise
from headwise.cli.main import app
from headwise.core.errors import InputError, ModelError, OutputError, ParameterError
from headwise.experiments.patching import (
    PromptPair,
    builtin_pairs,
    patch,
    read_pairs,
    usable_pairs,
)
from headwise.experiments.patching.result import describe_best_heads
from headwise.models import HeadModel
from headwise.models.interventions import Patch
from headwise.plots import figures_for
from headwise.testing import planted_decoder, random_model

# After word1 came word2 (clean) or word3 (corrupted): the induction head carries it.
PAIRS = [
    PromptPair(
        f"word{a} word{b} word{c} word{a}",
        f"word{a} word{d} word{c} word{a}",
        f"word{b}",
        f"word{d}",
        f"pair:{a}",
    )
    for a, b, c, d in list(permutations(range(1, 12), 4))[::257]
]
FEW_PAIRS = PAIRS[:4]


@pytest.fixture(scope="module")
def planted():
    return planted_decoder(words=12, max_length=16)


@pytest.fixture(scope="module")
def result(planted):
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model:
        return patch(model, PAIRS, positions=3)


def test_the_planted_induction_head_carries_everything(planted, result) -> None:
    place = planted.where("induction")
    for name in ("recovered", "lost", "estimate"):
        values = result[name].values.copy()
        assert values[place] == pytest.approx(1, abs=1e-4), name
        values[place] = 0
        assert np.abs(values).max() < 1e-4, name
    assert result["recovered_p_adjusted"].values[place] < 0.05
    assert result["recovered_at"].values[place][0] == pytest.approx(
        1, abs=1e-4
    )  # the last token, and no other
    assert np.abs(result["recovered_at"].values[place][1:]).max() < 1e-4
    assert result["ablated"].values[place] == pytest.approx(
        0.5, abs=1e-3
    )  # without it neither answer is preferred
    assert result.attrs["clean"] == pytest.approx(-result.attrs["corrupted"], rel=1e-3)
    assert result.attrs["clean_right"] == 1


def test_a_slow_computation_agrees_and_random_weights_are_nothing() -> None:
    module, tokenizer = random_model(causal=True, layers=3, heads=4, d_head=6)
    words = ["cat", "dog", "bird", "child", "saw", "heard", "near", "under"]
    random = np.random.default_rng(0)
    pairs = []
    for index in range(30):
        a, b, c, d = random.choice(words, 4, replace=False)
        pairs.append(PromptPair(f"the {a} {b}", f"the {c} {b}", str(a), str(d), f"random:{index}"))
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        result = patch(model, pairs, ablate=5)
        whole = patch(model, pairs, share=False)
        moved, gaps, lost = [], [], []
        for pair in pairs:
            clean, corrupted = model.batch(pair.clean), model.batch(pair.corrupted)
            outputs = model.trace(clean, {"outputs"}).outputs[0]  # layer, head, token, size
            ids = [
                tokenizer(text, add_special_tokens=False)["input_ids"][0]
                for text in (pair.answer, pair.wrong)
            ]

            def d(batch, ids=ids, **options):
                logits = model.forward(batch, logits=True, **options).logits[0, -1]
                return float(logits[ids[0]] - logits[ids[1]])

            base = d(corrupted)
            gaps.append(d(clean) - base)
            intact = d(clean)
            lost.append(
                [
                    [intact - d(clean, interventions={(i, j): "zero"}) for j in range(4)]
                    for i in range(3)
                ]
            )
            moved.append(
                [
                    [
                        d(corrupted, interventions={(i, j): Patch(output=outputs[i, j])}) - base
                        for j in range(4)
                    ]
                    for i in range(3)
                ]
            )
    expected = np.sum(moved, 0) / np.sum(gaps)
    np.testing.assert_allclose(result["recovered"].values, expected, rtol=1e-3, atol=1e-4)
    best = np.argsort(-expected, axis=None)[:5]
    ablated = result["ablated"].values.ravel()
    assert set(np.flatnonzero(np.isfinite(ablated))) == set(best)
    np.testing.assert_allclose(
        ablated[best], (np.sum(lost, 0) / np.sum(gaps)).ravel()[best], rtol=1e-3, atol=1e-4
    )
    assert (
        np.isfinite(result["ablated_p_adjusted"].values) == np.isfinite(result["ablated"].values)
    ).all()
    # Shares of a small gap, up to 5: their float32 rounding is relative.
    np.testing.assert_allclose(
        whole["recovered"].values, result["recovered"].values, rtol=1e-5, atol=1e-5
    )
    assert (result["recovered_p_adjusted"] > 0.05).all()
    assert result.attrs["pearson"] > 0.8  # small weights: nearly linear


def test_repeated_pairs_are_one_pair_and_few_are_not_tested(planted) -> None:
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model:
        once = patch(model, FEW_PAIRS, ablate=2)
        often = patch(model, FEW_PAIRS * 10, ablate=2)
    assert often.attrs["pairs"] == once.attrs["pairs"] == 4
    assert often.attrs["duplicate_pairs"] == 36
    for name in once.data_vars:
        np.testing.assert_array_equal(often[name].values, once[name].values, err_msg=name)
    for name in ("recovered", "lost", "estimate", "ablated"):
        assert np.isnan(once[f"{name}_p"].values).all(), name
        assert np.isnan(once[f"{name}_p_adjusted"].values).all(), name
    assert describe_best_heads(once, 1) == ["L1H0 +1.00"]  # without a p-value


def test_built_in_pairs_are_drawn_until_enough_can_be_used(
    planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def every_second(model, pair, number):
        return None, "unusable" if number % 2 else ""

    monkeypatch.setattr("headwise.experiments.patching.pairs.encode_pair", every_second)
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model:
        pairs = usable_pairs(model, "agreement", 5)
    assert pairs == builtin_pairs("agreement", 10)


def test_pairs_are_read_whatever_their_letters(tmp_path) -> None:
    path = tmp_path / "pairs.jsonl"
    row = {"clean": "one line\u2028of text", "corrupted": "two", "answer": "c", "wrong": "\ud800d"}
    path.write_text(
        json.dumps(row, ensure_ascii=False).replace("\ud800", "\\ud800"), encoding="utf-8"
    )
    (pair,) = read_pairs(
        path
    )  # what Unicode calls a line separator ends no line, half a character is none
    assert (pair.clean, pair.wrong) == ("one line\u2028of text", "\ufffdd")


def test_pairs_are_checked(planted, tmp_path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        json.dumps(
            {"clean": "word1 word2", "corrupted": "word1", "answer": "word3", "wrong": "word4"}
        )
    )
    pairs = read_pairs(path)
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model:
        with pytest.raises(InputError, match=r"pairs.jsonl:1: the inputs have 3 and 2 tokens"):
            patch(model, pairs)
        same = PromptPair("word1", "word2", "word3 word1", "word3 word2", "same:1")
        with pytest.raises(InputError, match="both answers begin with the same token"):
            patch(model, [same])
        kept = patch(model, [*FEW_PAIRS, same], exact=False, strict=False)
    assert kept.attrs["left_out_pairs"] == 1
    path.write_text('{"clean": "a"}')
    with pytest.raises(InputError, match="`corrupted` must be a text"):
        read_pairs(path)
    with pytest.raises(ParameterError, match="agreement"):
        builtin_pairs("nothing", 3)


def test_builtin_pairs_are_minimal() -> None:
    for pair in builtin_pairs("agreement", 20):
        clean, corrupted = pair.clean.split(), pair.corrupted.split()
        assert sum(a != b for a, b in zip(clean, corrupted, strict=True)) == 1
        plural = clean[1].endswith("s")
        assert (pair.answer in (" are", " were", " have")) == plural
    for pair in builtin_pairs("names", 20):
        assert (
            pair.clean.split().count(pair.wrong.strip())
            + pair.clean.count(f"{pair.wrong.strip()},")
            >= 1
        )
        assert pair.answer != pair.wrong


@pytest.mark.usefixtures("only_svg")
def test_command_and_figures(planted, result, tmp_path) -> None:
    assert [one.name for spec in figures_for("patching") for one in spec.draw(result)] == [
        "heads",
        "first-order",
        "positions",
    ]
    folder = tmp_path / "model"
    planted.model.save_pretrained(folder)
    planted.tokenizer.save_pretrained(folder)
    pairs = tmp_path / "pairs.jsonl"
    rows = [
        {"clean": p.clean, "corrupted": p.corrupted, "answer": p.answer, "wrong": p.wrong}
        for p in [*FEW_PAIRS, *FEW_PAIRS]
    ]
    pairs.write_text("\n".join(map(json.dumps, rows)))
    done = CliRunner().invoke(
        app,
        [
            "patch",
            str(folder),
            "--pairs",
            str(pairs),
            "--out",
            str(tmp_path / "p.nc"),
            "--figures",
            str(tmp_path),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "4 repeated pairs were counted once." in done.output
    assert "Fewer than 30 different pairs: no head is tested" in " ".join(done.output.split())
    assert "Bring back most: L1H0 +1.00, " in " ".join(done.output.split())
    assert "Zeroed in the clean run, they lose: L1H0 +0.50" in " ".join(done.output.split())
    assert (tmp_path / "patching-heads.svg").exists()


def test_the_public_function_writes_a_file_and_rejects_what_it_cannot_do(planted, tmp_path) -> None:
    assert headwise.patch is patch
    rows = []
    for pair in FEW_PAIRS:
        row = {"clean": pair.clean, "corrupted": pair.corrupted}
        rows.append(row | {"answer": pair.answer, "wrong": pair.wrong})
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    out = tmp_path / "patching.nc"
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model:
        written = headwise.patch(model, path, exact=False, ablate=0, limit=3, out=out)
        assert written.attrs["pairs"] == 3
        saved = headwise.Atlas.load(out)["patching"]
        np.testing.assert_allclose(saved["estimate"].values, written["estimate"].values)
        with pytest.raises(OutputError) as raised:
            headwise.patch(model, path, exact=False, ablate=0, limit=3, out=out)
        assert raised.value.option == "overwrite"
        headwise.patch(model, path, exact=False, ablate=0, limit=2, out=out, overwrite=True)
        assert headwise.Atlas.load(out)["patching"].attrs["pairs"] == 2
        with pytest.raises(ParameterError, match="There is no option of patch 'position'"):
            headwise.patch(model, path, position=3)
        with pytest.raises(ParameterError, match="`limit` must be at least 2"):
            headwise.patch(model, path, limit=1)
        with pytest.raises(InputError, match="the answer '' has no tokens"):
            headwise.patch(model, [PromptPair("word1", "word2", "", "word3", "empty")])
        longer = PromptPair("word1 word2", "word1", "word3", "word4", "uneven")
        with pytest.raises(InputError, match="No pair can be used"):
            headwise.patch(model, [longer], strict=False)
    module, tokenizer = random_model(layers=1, heads=2, d_head=4)
    with (
        HeadModel.open(module, tokenizer=tokenizer) as encoder,
        pytest.raises(ModelError, match="no language-modelling head"),
    ):
        headwise.patch(encoder)
    path.write_text("")
    with pytest.raises(InputError, match="holds no pairs"):
        read_pairs(path)


def test_whole_runs_are_made_where_layers_pass_on_more(
    planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HeadModel.open(planted.model, tokenizer=planted.tokenizer) as model:
        shared = patch(model, FEW_PAIRS, ablate=0)
        monkeypatch.setattr(
            "headwise.experiments.patching.run.PatchRunner.shares", lambda runner: False
        )
        whole = patch(model, FEW_PAIRS, ablate=0)
    assert shared.attrs["note"] == ""
    assert "whole runs were made" in whole.attrs["note"]
    np.testing.assert_allclose(whole["recovered"].values, shared["recovered"].values, atol=1e-5)
