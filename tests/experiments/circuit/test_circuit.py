"""`headwise.circuit`: a planted circuit and nothing else, random weights, held-out halves, pairs of
unequal length, interruption, command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import headwise
from headwise.core.errors import InputError, ParameterError
from headwise.experiments.circuit.layout import circuit_layout, depth
from headwise.experiments.circuit.result import (
    _share_interval,
    does_task,
    mean_by_unit,
    rank_edges,
)
from headwise.experiments.circuit.run import sample_by_rank, split_by_unit
from headwise.experiments.patching import BUILTIN, PromptPair, builtin_pairs
from headwise.experiments.patching.pairs import encode_pair, encode_pairs
from headwise.models import HeadModel
from headwise.testing import planted_decoder, random_model
from headwise.testing.names import check_names

WORDS = [f"word{number}" for number in range(1, 12)]
N_PAIRS = 24


def induction_pairs(count: int = N_PAIRS, seed: int = 0) -> list[PromptPair]:
    """Lists in which the last word has occurred: what followed it there follows again."""
    random = np.random.default_rng(seed)
    pairs = []
    for number in range(count):
        words = [str(word) for word in random.choice(WORDS, 7, replace=False)]
        repeated, answer, exchanged, wrong, *others = words
        clean = [others[0], repeated, answer, others[1], exchanged, wrong, others[2], repeated]
        corrupted = list(clean)
        corrupted[1] = exchanged
        corrupted[4] = repeated
        unit = f"unit {number}"
        pairs.append(
            PromptPair(" ".join(clean), " ".join(corrupted), answer, wrong, f"pair:{number}", unit)
        )
    return pairs


@pytest.fixture(scope="module")
def planted() -> Iterator[tuple[HeadModel, dict[str, str]]]:
    decoder = planted_decoder()
    names = {}
    for name in ("previous", "induction", "copying"):
        layer, head = decoder.where(name)
        names[name] = f"L{layer}H{head}"
    opened = HeadModel.open(decoder.model, tokenizer=decoder.tokenizer, device="cpu")
    with opened as model:
        yield model, names


def test_exactly_the_planted_edges(planted: tuple[HeadModel, dict[str, str]]) -> None:
    model, names = planted
    result = headwise.circuit(model, induction_pairs(), random=20, exact=10)
    check_names("circuit", result)
    facts = result.attrs
    assert facts["does_task"] == 1
    assert facts["right"] == 1.0
    significant = result["effect_p_adjusted"].values < 0.05
    edges = set()
    for edge in np.flatnonzero(significant):
        row = result.isel(edge=int(edge))
        if abs(float(row["effect"])) > 0.01 * facts["clean"]:
            edges.add(
                (str(row["sender"].values), f"{row['receiver'].values}.{row['input'].values}")
            )
    previous = names["previous"]
    induction = names["induction"]
    assert edges == {
        ("embedding", f"{previous}.value"),
        (previous, f"{induction}.key"),
        (induction, "logits."),
    }
    # Each of the three carries the whole behaviour: the model without it gives what it gives on
    # the corrupted input.
    for sender, receiver in edges:
        node, _, role = receiver.partition(".")
        is_edge = (
            (result["sender"] == sender) & (result["receiver"] == node) & (result["input"] == role)
        )
        exact = float(result["exact"].values[is_edge.values][0])
        assert exact == pytest.approx(facts["clean"] - facts["corrupted"], rel=0.02)
    assert facts["circuit_edges"] == 3
    assert facts["circuit_faithfulness"] == pytest.approx(1.0, abs=0.02)
    assert facts["area"] > facts["random_area_most"]
    assert facts["area_p"] == pytest.approx(1 / 21)


def test_faithfulness_and_completeness_at_both_ends(
    planted: tuple[HeadModel, dict[str, str]],
) -> None:
    model, _ = planted
    result = headwise.circuit(model, induction_pairs(8), random=2, exact=0)
    curve = result["faithfulness"].values
    assert curve[-1] == pytest.approx(1.0, abs=1e-3)
    assert curve[0] == 0.0  # one edge is no path
    assert result["completeness"].values[-1] == pytest.approx(0.0, abs=1e-3)
    assert (result["random_faithfulness"].values[:, -1] > 0.99).all()


def test_one_pair_cannot_be_halved(planted: tuple[HeadModel, dict[str, str]]) -> None:
    model, _ = planted
    (pair,) = induction_pairs(1)
    with pytest.raises(InputError, match="at least two different pairs"):
        model.circuit([pair, pair])


def test_random_weights_do_no_task() -> None:
    for seed in range(3):
        module, tokenizer = random_model(causal=True, layers=2, heads=3, d_head=8, seed=seed)
        with HeadModel.open(module, tokenizer=tokenizer, device="cpu") as model:
            words = [word for word in tokenizer.get_vocab() if word.isalpha()][:12]
            pairs = []
            for number in range(20):
                a, b, c, d = np.random.default_rng(number).choice(words, 4, replace=False)
                pairs.append(PromptPair(f"{a} {b}", f"{c} {b}", str(a), str(d), f"pair:{number}"))
            result = headwise.circuit(model, pairs, random=0, strict=False)
        assert result.attrs["does_task"] == 0
        assert "does not do this task" in result.attrs["note"]
        assert np.isnan(result["effect_p_adjusted"].values).all()
        assert not result["in_circuit"].values.any()


def test_the_task_check_needs_more_than_luck() -> None:
    random = np.random.default_rng(0)
    units = [f"unit {number}" for number in range(40)]
    assert does_task(1 + 0.5 * random.standard_normal(40), units).done
    n_done = sum(does_task(random.standard_normal(40), units).done for _ in range(200))
    assert n_done <= 6  # 1 % of 200, and room for chance
    # Forty pairs of two units are two observations.
    two_units = ["first", "second"] * 20
    assert not does_task(np.tile([3.0, 0.1], 20), two_units).done
    # The answers of a unit are alike: its pairs are not as many observations.
    alike = np.repeat(np.where(np.arange(10) < 8, 1.0, -1.0), 10) + 0.01 * np.arange(100)
    of_ten = does_task(alike, [f"unit {number}" for number in range(10) for _ in range(10)])
    of_hundred = does_task(alike, [f"unit {number}" for number in range(100)])
    assert of_ten.right == of_hundred.right == 0.8
    assert of_ten.right_low < 0.5 < 0.7 < of_hundred.right_low


def test_units_are_averaged_and_split(planted: tuple[HeadModel, dict[str, str]]) -> None:
    values = np.array([[1.0, 2.0], [3.0, 4.0], [10.0, 0.0]])
    by_unit = mean_by_unit(values, ["a", "a", "b"])
    np.testing.assert_allclose(by_unit, [[2.0, 3.0], [10.0, 0.0]])
    assert rank_edges(np.array([[0.1, -3.0, 1.0]]), ["a"]).tolist() == [1, 2, 0]
    encoded, _ = encode_pairs(planted[0], induction_pairs(10), strict=True)
    ranking, judging = split_by_unit(encoded)
    assert {pair.unit for pair in ranking}.isdisjoint(pair.unit for pair in judging)
    assert len(ranking) == len(judging) == 5


def test_named_edges_are_patched_exactly(planted: tuple[HeadModel, dict[str, str]]) -> None:
    model, names = planted
    result = headwise.circuit(
        model,
        induction_pairs(8),
        random=0,
        exact=0,
        senders=f"{names['previous']}, embedding",
        receivers=f"{names['induction']}.key, {names['induction']}.query",
    )
    patched = result.isel(edge=np.isfinite(result["exact"].values))
    assert patched.sizes["edge"] == 4
    with pytest.raises(ParameterError, match="Name both"):
        headwise.circuit(model, induction_pairs(4), senders="L0H0")


def test_the_check_compares_estimate_and_exact(planted: tuple[HeadModel, dict[str, str]]) -> None:
    model, _ = planted
    result = headwise.circuit(model, induction_pairs(12), random=0, check=20, steps=20)
    assert result.attrs["checked_edges"] == 20
    assert result.attrs["pearson"] > 0.9
    assert result.attrs["pearson_low"] < result.attrs["pearson"]


def test_the_divergence_as_a_metric(planted: tuple[HeadModel, dict[str, str]]) -> None:
    model, names = planted
    result = headwise.circuit(model, induction_pairs(12), random=0, exact=3, metric="kl")
    assert result.attrs["clean"] == pytest.approx(0, abs=1e-5)
    assert result.attrs["corrupted"] < 0
    strongest = {str(name) for name in result["sender"].values[:3]}
    assert names["induction"] in strongest


# --- pairs ----------------------------------------------------------------------------------------


def test_marked_spans_align_inputs_of_unequal_length(
    planted: tuple[HeadModel, dict[str, str]],
) -> None:
    model, _ = planted
    pair = PromptPair("word1 [[word2 word3]] word4", "word1 [[word5]] word4", "word6", "word7", "p")
    tokens, reason = encode_pair(model, pair, 0)
    assert reason == ""
    # After the opening token, marked spans are aligned at their ends: word3 with word5, and word2
    # with nothing.
    assert tokens.clean.special.tolist() == [True, False, False, False, False]
    assert tokens.positions.tolist() == [0, 1, -1, 2, 3]
    uneven = PromptPair(
        "word1 [[word2]] word4", "word1 word8 [[word5]] word4", "word6", "word7", "p"
    )
    _, reason = encode_pair(model, uneven, 0)
    assert "outside the marks" in reason
    one_mark = PromptPair(
        "[[word1]] word2 [[word3]]", "[[word1]] word2 word3", "word6", "word7", "p"
    )
    _, reason = encode_pair(model, one_mark, 0)
    assert "marked spans" in reason
    unmarked = PromptPair("word1 word2 word3", "word1 word3", "word6", "word7", "mine:1")
    with pytest.raises(InputError, match="mine:1: the inputs have 4 and 3 tokens"):
        headwise.circuit(model, [unmarked])


def test_marked_pairs_are_searched(planted: tuple[HeadModel, dict[str, str]]) -> None:
    model, names = planted
    pairs = []
    for pair in induction_pairs(12):
        clean = pair.clean.split()
        corrupted = pair.corrupted.split()
        # One more word inside the marks of the corrupted input.
        clean[0] = f"[[{clean[0]}]]"
        corrupted[0] = f"[[word11 {corrupted[0]}]]"
        pairs.append(
            PromptPair(
                " ".join(clean), " ".join(corrupted), pair.answer, pair.wrong, unit=pair.unit
            )
        )
    result = headwise.circuit(model, pairs, random=0, exact=0)
    assert names["previous"] in {str(name) for name in result["sender"].values[:4]}
    assert result.attrs["circuit_faithfulness"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("name", BUILTIN)
def test_built_in_pairs_differ_and_are_repeatable(name: str) -> None:
    pairs = builtin_pairs(name, 20, seed=1)
    assert pairs == builtin_pairs(name, 20, seed=1)
    assert len({(pair.clean, pair.corrupted) for pair in pairs}) == 20
    for pair in pairs:
        assert pair.clean != pair.corrupted
        assert pair.answer != pair.wrong
        assert len(pair.clean.split()) == len(pair.corrupted.split())
        assert pair.unit


# --- drawing, files, command line -----------------------------------------------------------------


def test_the_drawing_goes_from_the_embedding_to_the_logits(
    planted: tuple[HeadModel, dict[str, str]],
) -> None:
    model, names = planted
    result = headwise.circuit(model, induction_pairs(), random=2, exact=0)
    layout = circuit_layout(result)
    assert [row[0] for row in layout.rows] == [
        "embedding",
        names["previous"],
        names["induction"],
        "logits",
    ]
    for edge in layout.edges:
        assert layout.places[edge.sender][1] < layout.places[edge.receiver][1]
        assert depth(edge.sender) < depth(edge.receiver)
        assert edge.low <= edge.effect <= edge.high


def test_the_command_writes_draws_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headwise.cli.main import whole_command

    decoder = planted_decoder()
    folder = tmp_path / "model"
    decoder.model.save_pretrained(folder)
    decoder.tokenizer.save_pretrained(folder)
    rows = []
    for pair in induction_pairs(12):
        rows.append(
            json.dumps(
                {
                    "clean": pair.clean,
                    "corrupted": pair.corrupted,
                    "answer": pair.answer,
                    "wrong": pair.wrong,
                    "unit": pair.unit,
                }
            )
        )
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(rows))

    def run(out: str, code: int = 0) -> None:
        arguments = ["circuit", str(folder), "--pairs", str(pairs), "--random", "2"]
        arguments += ["--device", "cpu", "--out", str(tmp_path / out)]
        arguments += ["--figures", str(tmp_path / f"figures-{out}")]
        with pytest.raises(SystemExit) as stopped:
            whole_command()(arguments)
        assert (stopped.value.code or 0) == code

    run("first.nc")
    printed = capsys.readouterr().out
    assert "L0H0 -> L1H0.key" in printed
    assert "edges reach 80%" in printed
    figures = {path.stem for path in (tmp_path / "figures-first.nc").iterdir()}
    assert {"circuit-curve", "circuit-graph", "circuit-nodes"} <= figures

    # Interrupted after the edges were scored: the same command resumes and gives the same bytes.
    from headwise.experiments.circuit import run as circuit_run

    original = circuit_run.CircuitSearch._smallest

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(circuit_run.CircuitSearch, "_smallest", interrupted)
    run("second.nc", code=130)
    monkeypatch.setattr(circuit_run.CircuitSearch, "_smallest", original)
    n_scored = 0
    score = circuit_run.ScoreGroup.__call__

    def counted(self: circuit_run.ScoreGroup, group: object) -> object:
        nonlocal n_scored
        n_scored += 1
        return score(self, group)

    monkeypatch.setattr(circuit_run.ScoreGroup, "__call__", counted)
    run("second.nc")
    assert n_scored == 0
    assert (tmp_path / "first.nc").read_bytes() == (tmp_path / "second.nc").read_bytes()


def test_nothing_is_left_on_the_model(planted: tuple[HeadModel, dict[str, str]]) -> None:
    model, _ = planted
    headwise.circuit(model, induction_pairs(4), random=0, exact=1)
    for part in model.module.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    with torch.no_grad():
        assert torch.isfinite(model.forward("word1 word2", logits=True).logits).all()


def test_edges_for_the_check_come_from_each_tenfold_of_the_ranking() -> None:
    ranking = np.random.default_rng(3).permutation(2000)
    sampled = sample_by_rank(ranking, 100, seed=0)
    assert len(set(sampled)) == len(sampled) == 100
    ranks = np.argsort(ranking)[sampled]
    counts = np.histogram(ranks, [0, 10, 100, 1000, 2000])[0]
    assert counts.tolist() == [10, 30, 30, 30]
    assert len(sample_by_rank(ranking, 0, seed=0)) == 0


def test_intervals_of_faithfulness_are_over_units_and_hold_the_truth() -> None:
    """By the percentile bootstrap eight units held the true share in 88 % of the draws."""
    random = np.random.default_rng(0)
    n_holding = 0
    for _ in range(400):
        gap = random.normal(4.0, 1.5, 8)
        values = 0.7 * gap + random.normal(0.0, 0.6, 8)
        units = [f"noun {number}" for number in range(8)]
        low, high = _share_interval(values[:, None], gap, np.zeros(8), units)
        n_holding += bool(low[0] <= 0.7 <= high[0])
    assert n_holding >= 0.93 * 400
    # Pairs of one unit are no further evidence.
    twice = _share_interval(
        values.repeat(2)[:, None],
        gap.repeat(2),
        np.zeros(16),
        [unit for unit in units for _ in "ab"],
    )
    np.testing.assert_allclose(twice, (low, high), rtol=1e-6)
    # The share itself lies inside, also where units have more pairs than others.
    sizes = random.integers(1, 6, 8)
    uneven = _share_interval(
        values.repeat(sizes)[:, None],
        gap.repeat(sizes),
        np.zeros(sizes.sum()),
        np.array(units).repeat(sizes).tolist(),
    )
    share = values.repeat(sizes).sum() / gap.repeat(sizes).sum()
    assert uneven[0][0] < share < uneven[1][0]
