"""Random-weights models beside a model: as sharp as it, on its own inputs, made once and kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from headwise import Corpus, HeadModel
from headwise.analyses.contract import make_analysis
from headwise.analyses.nulls import RandomNull
from headwise.core.errors import ModelError
from headwise.core.failures import Failure
from headwise.core.store import Checkpoint
from headwise.core.workers import Workers, use_workers
from headwise.models.random_init import with_random_weights
from headwise.run import Run, Source, nulls
from headwise.run.encoded import EncodedCorpus
from headwise.run.runner import RunCallbacks, run_analyses
from headwise.testing import eager_maps, random_model
from headwise.testing.corpora import battery_examples
from headwise.text.encode import Encoded

CORPUS = Corpus.from_examples(battery_examples(6))
ASKED = {"roles": {"bootstrap": 0, "random_models": 2}, "token_pairs": {"random_models": 1}}


@pytest.fixture
def model() -> HeadModel:
    module, tokenizer = random_model()
    return HeadModel.open(module, tokenizer=tokenizer)


def analyses() -> list:
    return [make_analysis(name, given) for name, given in ASKED.items()]


@pytest.mark.parametrize("causal", [False, True])
def test_a_random_model_is_made_as_sharp_as_the_model(causal: bool) -> None:
    module, tokenizer = random_model(causal=causal, seed=3)
    model = HeadModel.open(module, tokenizer=tokenizer)
    rows = [model.encode(example, i) for i, example in enumerate(battery_examples())]
    largest = [m.max(-1).reshape(len(m), -1) for m in eager_maps(model, rows)]
    slow = np.concatenate(largest, 1).mean(1)
    target = nulls.sharpness(model, rows)
    assert target == pytest.approx(slow, rel=1e-5)
    random = with_random_weights(model, 5)
    wanted = np.array([0.6, 0.35])  # layers of differing sharpness
    nulls.sharpen(random, nulls.matching_factors(random, wanted, rows))
    assert nulls.sharpness(random, rows) == pytest.approx(wanted, abs=0.05)
    nulls.sharpen(random, nulls.matching_factors(random, 0 * wanted, rows))  # uniform at most
    uniform = [1 / (i + 1) if causal else 1 / len(row) for row in rows for i in range(len(row))]
    assert nulls.sharpness(random, rows) == pytest.approx([np.mean(uniform)] * 2, abs=0.03)


def test_results_have_random_models_beside_them_and_are_kept(
    model: HeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(model: HeadModel, seed: int = 0) -> HeadModel:
        made.append(seed)
        return with_random_weights(model, seed)

    monkeypatch.setattr(nulls, "with_random_weights", counted)
    first = run_analyses(model, CORPUS, analyses(), tmp_path / "run")
    assert len(made) == len(set(made)) == 2  # both analyses watch the same pass of the first
    assert first["roles"].attrs["random_models"] == 2
    assert first["token_pairs"].attrs["random_models"] == 1
    assert first["roles"]["random_bound"].notnull().sum() > 5
    again = run_analyses(model, CORPUS, analyses(), tmp_path / "run")
    assert len(made) == 2
    assert again["roles"].identical(first["roles"])


def test_units_of_a_model_add_up(
    model: HeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_analyses(model, CORPUS, analyses(), tmp_path / "whole")
    monkeypatch.setattr(nulls, "UNIT_ROWS", 9)
    told: list[tuple[int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        if what == "random models":
            told.append((done, total))

    parts = run_analyses(
        model, CORPUS, analyses(), tmp_path / "parts", callbacks=RunCallbacks(progress=progress)
    )
    assert len(told) > 6
    assert told == [(done, told[-1][1]) for done in range(len(told))]
    for name in ASKED:
        xr.testing.assert_allclose(parts[name], whole[name], rtol=1e-5)


def test_a_unit_that_ends_its_workers_is_a_failure_of_the_run(
    model: HeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending(Workers):
        def run_units(self, store: Any, job: Any, units: Any) -> Iterator[Checkpoint | Failure]:
            for name, unit in units:
                if name == "random-1-0-0":
                    yield Failure(name, "it ended its worker 3 times", "")
                else:
                    yield from super().run_units(store, job, [(name, unit)])

    with use_workers(Ending()), Run(Source(model, CORPUS), analyses(), tmp_path) as run:
        atlas = run.atlas()
    assert list(run.failures) == ["random-weights models (random-1-0-0)"]
    assert atlas["roles"].attrs.get("random_models", 0) == 0


@pytest.mark.parametrize("keep", [10**6, 5])
def test_rows_are_spread_over_what_the_analysis_looks_at(model: HeadModel, keep: int) -> None:
    rows = EncodedCorpus(CORPUS, model.encoder, keep=keep)
    frames = make_analysis("frames", {"exclude": "links", "min_distance": 1, "max_words": 40})
    roles = make_analysis("roles")
    assert isinstance(frames, RandomNull)
    assert isinstance(roles, RandomNull)
    wanted = [row.index for row in rows if frames.applies_to(row)]
    assert 0 < len(wanted) < len(rows)

    def spread(**options: int) -> dict[str, list[int]]:
        found = nulls.spread_rows(rows, [frames, roles], {"frames": limit, "roles": 7}, **options)
        return {name: [row.index for row in own] for name, own in found.items()}

    limit = None
    assert spread() == {"frames": wanted, "roles": list(range(7))}
    assert spread(most=4)["frames"] == [wanted[k * len(wanted) // 4] for k in range(4)]
    limit = 11
    assert spread()["frames"] == [index for index in wanted if index < 11]


def test_of_a_long_corpus_only_the_chosen_rows_are_held(
    model: HeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = EncodedCorpus(Corpus.from_texts(["the cat saw a dog"] * 1000), model.encoder, keep=5)
    held = []

    def counting(row: Encoded) -> bool:
        if row.index % 250 == 249:
            held.append(sum(type(o) is Encoded for o in gc.get_objects()))
        return True

    roles = make_analysis("roles")
    monkeypatch.setattr(type(roles), "applies_to", staticmethod(counting))
    chosen = nulls.spread_rows(rows, [roles], {})["roles"]
    assert [row.index for row in chosen] == [k * 1000 // 128 for k in range(128)]
    assert max(held) - held[0] < 100  # a block at a time


def test_how_many_models() -> None:
    roles = make_analysis("roles")
    assert [roles.random_count(heads, 10**6) for heads in (144, 72, 12, 1000)] == [1, 2, 4, 1]
    assert roles.random_count(144, 10**9) == 0
    assert make_analysis("roles", {"random_models": 3}).random_count(144, 10**9) == 3
    assert make_analysis("roles", {"tau": "paper"}).random_count(144, 10**6) == 0
    assert make_analysis("frames", {"permutations": 0}).random_count(144, 10**6) == 0


def test_a_model_that_cannot_be_made_anew_stands_alone_and_that_is_said(
    model: HeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(model: HeadModel, seed: int = 0) -> HeadModel:
        raise ModelError("It cannot be made anew.")

    monkeypatch.setattr(nulls, "with_random_weights", reject)
    said: list[str] = []
    atlas = run_analyses(
        model, CORPUS, analyses(), tmp_path / "run", callbacks=RunCallbacks(note=said.append)
    )
    assert said == ["No random-weights model for roles, token_pairs: It cannot be made anew."]
    assert atlas["roles"].attrs["random_models"] == 0
    assert "random_bound" not in atlas["roles"]
