"""The options of a reproduction, in Python and as the command line parses them."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwise
from headwise.core.errors import InputError, ParameterError
from headwise.core.options import list_options
from headwise.experiments.reproduction import ReproductionContext, ReproductionOptions
from headwise.experiments.reproduction.options import parse_entry_names, parse_model_folders
from headwise.testing import planted_model


@pytest.fixture(scope="module")
def model() -> headwise.HeadModel:
    planted = planted_model([["previous", "next"], ["sep", "cls"]], words=["the", "cat", "."])
    return headwise.HeadModel.open(planted.model, tokenizer=planted.tokenizer)


def test_the_public_function_takes_the_options_as_keywords(model: headwise.HeadModel) -> None:
    report = headwise.reproduce("jo2020", model, only=["table1"], quick=True, seed=3)
    assert report.facts["options"] == {"quick": True, "variant": "paper", "scale": 1.0, "seed": 3}
    assert [entry["key"] for entry in report.facts["entries"]] == ["table1"]


def test_keywords_replace_fields_of_given_options(model: headwise.HeadModel) -> None:
    options = ReproductionOptions(only=["table1"], seed=1)
    report = headwise.reproduce("jo2020", model, options=options, seed=2)
    assert report.facts["options"]["seed"] == 2


def test_an_unknown_option_is_rejected_with_the_likely_one(model: headwise.HeadModel) -> None:
    with pytest.raises(ParameterError, match="Did you mean 'quick'"):
        headwise.reproduce("jo2020", model, quik=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"variant": "mine"}, "`variant` must be one of paper, released"),
        ({"scale": 0.0}, "`scale` must be at least 0.001"),
        ({"seed": -1}, "`seed` must be at least 0"),
        ({"quick": "yes"}, "`quick`"),
    ],
)
def test_values_that_are_not_allowed_are_rejected(values: dict, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        ReproductionOptions(**values)


def test_a_folder_of_a_fine_tuned_model_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="with a model of MRPC") as raised:
        ReproductionOptions(finetuned={"MRPC": tmp_path / "nowhere"})
    assert raised.value.option == "finetuned"


def test_entries_are_parsed_from_repeated_lists() -> None:
    assert parse_entry_names(["table1, fig2,", "fig3"]) == ("table1", "fig2", "fig3")


def test_model_folders_are_parsed_by_task() -> None:
    assert parse_model_folders(["MRPC=a/b", "de=c=d"]) == {"MRPC": "a/b", "de": "c=d"}
    for text in ("MRPC", "MRPC="):
        with pytest.raises(ParameterError, match="TASK=FOLDER"):
            parse_model_folders([text])


def test_every_option_has_a_help_text() -> None:
    for summary in list_options(ReproductionOptions):
        assert summary.help.endswith("."), summary.name


@pytest.mark.parametrize(
    ("options", "size", "limit"),
    [
        ({}, 1000, None),
        ({"scale": 0.25}, 250, 250),
        ({"scale": 0.001}, 1, 1),
        ({"quick": True, "scale": 0.25}, 48, 48),
    ],
)
def test_sample_sizes_follow_quick_and_scale(
    model: headwise.HeadModel, tmp_path: Path, options: dict, size: int, limit: int | None
) -> None:
    job = None  # sizes need no job
    context = ReproductionContext(
        model,
        model,
        ReproductionOptions(**options),
        job,  # type: ignore[arg-type]
        tmp_path,
    )
    assert context.sample_size(1000, 48) == size
    assert context.sample_limit(1000, 48) == limit
