"""Every parameter of every analysis with every kind of wrong value: one sentence or an analysis,
nothing else."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import pytest

from headwise.analyses.contract import (
    REGISTRY,
    Analysis,
    Observer,
    Paper,
    choose_analyses,
    known_analyses,
    make_analysis,
)
from headwise.core.errors import HeadwiseError, ParameterError
from headwise.run import make_atlas

WRONG = (
    None, True, [], [1], ["x", "x"], [[]], {}, {"a": 1}, "", "x", ",", "a\0b", "../" * 2000, "\ud800", b"x",
    0, -1, 2.5, 10**30, 10**5000, float("nan"), float("inf"), np.array([1, 2]), object(),
)  # fmt: skip
PARAMETERS = [
    (name, field.name)
    for name, cls in known_analyses().items()
    for field in fields(cls)  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("analysis", "parameter"), PARAMETERS)
def test_a_wrong_value_is_a_sentence(analysis: str, parameter: str) -> None:
    for value in WRONG:
        said, made = outcome(analysis, parameter, value)
        assert "\n" not in said
        assert len(said) < 2000
        if made is not None:  # then it is of a type that can be written down
            hash(made)
            assert type(made.parameters[parameter]) in (bool, int, float, str, tuple, type(None))


def outcome(analysis: str, parameter: str, value: object) -> tuple[str, Analysis | None]:
    """What was said against a value, or the analysis it made."""
    try:
        return "", make_analysis(analysis, {parameter: value})
    except HeadwiseError as error:
        return str(error), None


def test_types_are_checked_before_an_analysis_looks_at_values() -> None:
    try:

        @dataclass(frozen=True)
        class Deep(Observer):
            name: ClassVar[str] = "deep-for-a-test"
            paper: ClassVar[Paper] = Paper("clark2019", "")
            depth: int = 1

            def __post_init__(self) -> None:
                if self.depth > 9:
                    raise ParameterError("`depth` must be at most 9.")

        with pytest.raises(ParameterError, match="`depth` must be a whole number; it is 'x'"):
            Deep("x")  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match=r"^deep-for-a-test: `depth` must be at most 9"):
            make_analysis("deep-for-a-test", {"depth": 10})
        assert Deep(2).depth == 2
    finally:
        REGISTRY.pop("deep-for-a-test", None)


def test_an_analysis_named_twice_is_refused() -> None:
    with pytest.raises(ParameterError, match="'surface' is named twice"):
        choose_analyses(["surface", "offsets", "surface"])
    with pytest.raises(ParameterError, match="'surface' is named twice"):
        choose_analyses(["surface", make_analysis("surface")])


def test_an_analysis_of_neither_kind_is_named() -> None:
    try:

        @dataclass(frozen=True)
        class Neither(Analysis):
            name: ClassVar[str] = "neither-for-a-test"
            paper: ClassVar[Paper] = Paper("clark2019", "")

        with pytest.raises(
            ParameterError, match="'neither-for-a-test' is neither an Observer nor an Experiment"
        ):
            make_atlas(analyses=[Neither()], limit=1)
    finally:
        REGISTRY.pop("neither-for-a-test", None)
