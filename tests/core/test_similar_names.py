"""What a typo gets: the nearest name, in one line, wherever a name is looked up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from headwise import Atlas, HeadModel, make_analysis, open_corpus
from headwise.core.errors import HeadwiseError, similar_names, unknown
from headwise.core.interrupts import Interrupted, keeping_work
from headwise.core.labels import existing_heads, parse_head
from headwise.models.token_array import TokenArray
from headwise.testing import random_model

LONGEST = 400  # characters of a message on a typo
MANY = [f"{group}.measure_{number}" for group in ("roles", "features") for number in range(300)]


def test_a_typo_among_hundreds_of_names_gets_one_of_them() -> None:
    said = unknown("measure", "surface.entrpy", [*MANY, "surface.entropy"])
    assert said == "There is no measure 'surface.entrpy'. Did you mean 'surface.entropy'?"
    assert len(unknown("measure", "x" * 5000, MANY)) < 5000 + LONGEST


def test_case_and_the_last_part_of_a_name_count() -> None:
    known = ["surface.entropy", "surface.mass.sep", "roles.bias"]
    assert similar_names("ENTROPY", known) == ["surface.entropy"]
    assert similar_names("roles.bais", known) == ["roles.bias"]
    assert similar_names("qqq", known) == []


def test_a_name_that_is_not_near_gets_a_few_examples() -> None:
    assert unknown("measure", "qqq", MANY).endswith(
        "There are 600, such as roles.measure_0, roles.measure_1, roles.measure_2."
    )


@pytest.mark.parametrize("name", ["l7h9", "L7.H9", "7.9", "l07h09", "layer 7 head 9", "L7 H9"])
def test_other_spellings_of_a_head_are_answered_with_the_right_one(name: str) -> None:
    with pytest.raises(HeadwiseError, match=r"Did you mean 'L7H9'\?"):
        parse_head(name)


def test_what_is_no_head_at_all_is_one_sentence() -> None:
    for wrong in ("third", (1,), (1, "x"), 3.5, ["L1H1"]):
        with pytest.raises(HeadwiseError, match="A head is named like"):
            existing_heads([wrong], 12, 12)  # type: ignore[list-item]


def test_every_lookup_answers_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("a b c")
    values = xr.DataArray(np.ones((2, 3)), dims=("layer", "head"))
    measures = {f"measure_{number}": values for number in range(200)}
    atlas = Atlas({"surface": xr.Dataset({"entropy": values, **measures})})
    for look_up, right in (
        (lambda: atlas["surfaec"], "'surface'"),
        (lambda: atlas.plot("surface.entrpy"), "'surface.entropy'"),
        (lambda: atlas.head("L0H1")["surface", "entrpy"], "('surface', 'entropy')"),
        (lambda: make_analysis("surfce"), "'surface'"),
        (lambda: make_analysis("induction", {"lenght": 3}), "'length'"),
        (lambda: open_corpus(tmp_path / "sentnces.txt"), "sentences.txt'"),
        (lambda: Atlas.load(tmp_path / "sentences.tx"), "sentences.txt'"),
    ):
        with pytest.raises(HeadwiseError) as caught:
            look_up()
        assert f"Did you mean {right}" in str(caught.value) or right in str(caught.value)
        assert len(str(caught.value).replace(str(tmp_path), "")) < LONGEST


def test_tokens_hint_at_their_spaces() -> None:
    weights = TokenArray(np.eye(3), {"query": ["The", " cat", "."]}, ("query", "key"))
    assert float(weights.sel(query=" cat").sum()) == 1
    for token, hint in (
        ("cat", "Did you mean ' cat', with a space?"),
        (" The", "Did you mean 'The', without a space?"),
        ("xyz", "The tokens are 'The', ' cat', '.'."),
    ):
        with pytest.raises(KeyError) as caught:
            weights.sel(query=token)
        assert str(caught.value).endswith(hint)
    with pytest.raises(KeyError, match="with a space"):
        weights.loc[{"query": ["The", "cat"]}]
    assert type(weights.mean("key")) is TokenArray


def test_lists_of_heads_and_as_many_rows_as_asked() -> None:
    words = ["the", "cat", "saw", "a", "dog", "and", "slept"]
    module, tokenizer = random_model(words=words, causal=True)
    model = HeadModel.open(module, tokenizer=tokenizer)
    for heads in (["L0H1", "L1H2"], ("L0H1", "L1H2"), [(0, 1), (1, 2)]):
        maps = model.attention("the cat saw a dog", heads)
        assert list(maps["head"].values) == ["L0H1", "L1H2"]
        np.testing.assert_array_equal(maps[1], model.attention("the cat saw a dog", "L1H2"))
    with pytest.raises(HeadwiseError, match="list of heads is empty"):
        model.attention("the cat", [])
    for top in (1, 3, 5):
        table = model.effect("the cat saw", {"L0H1": "zero", "L1H0": "zero"}, top=top)
        assert len(table) == top
        likeliest = table[["probability_before", "probability_after"]].max(axis=1).min()
        everything = model.effect("the cat saw", {"L0H1": "zero", "L1H0": "zero"}, top=7)
        shown = set(table["id"])
        others = everything[~everything["id"].isin(shown)]
        assert others[["probability_before", "probability_after"]].max(axis=None) <= likeliest


def test_an_interruption_promises_only_what_is_kept() -> None:
    assert str(Interrupted("SIGINT")) == "Interrupted by SIGINT."
    with keeping_work(object()):
        said = str(Interrupted("SIGTERM"))
    assert said == ("Interrupted by SIGTERM; finished work is kept: repeat the command to resume.")
    assert str(Interrupted("SIGINT")) == "Interrupted by SIGINT."
