"""Types of parameters, checked once by the annotations of a dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from headwise.core.checks import at_least, check_types, shown
from headwise.core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Options:
    whole: int = 1
    real: float = 0.5
    switch: bool = False
    text: str = ""
    names: tuple[str, ...] | str = ()
    pair: tuple[int, float] = (1, 2.0)
    maybe: float | None = None
    place: str | Path | None = None
    kind: Literal["a", "b"] = "a"
    more: Mapping[str, int] | None = None
    any: Any = None

    def __post_init__(self) -> None:
        check_types(self)


WRONG = [
    ("whole", True), ("whole", 1.0), ("whole", "1"), ("whole", None), ("whole", 2**63), ("whole", 10**5000),
    ("whole", [1]), ("real", True), ("real", "x"), ("real", float("nan")), ("real", float("inf")), ("real", 10**400),
    ("switch", 1), ("switch", "yes"), ("text", None), ("text", 3), ("text", b"x"), ("text", "a\0b"), ("text", "\ud800"),
    ("names", 3), ("names", ["a", 1]), ("names", {"a": 1}), ("pair", (1,)), ("pair", (1.5, 2)), ("maybe", "x"),
    ("maybe", []), ("place", 3), ("kind", "c"), ("kind", []), ("more", [1]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_type_is_one_sentence(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match=f"^`{name}` must be ") as caught:
        Options(**{name: value})  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300


def test_what_fits_stays_or_becomes_plain() -> None:
    made = Options(
        whole=np.int64(3), real=2, names=["a"], pair=[1, 2], maybe=np.float32(0.5), place=Path("x")
    )  # type: ignore[arg-type]
    assert type(made.whole) is int
    assert (made.real, made.names, made.pair, made.maybe) == (2, ("a",), (1, 2), 0.5)
    assert type(made.maybe) is float
    given = ("a", "b")
    assert Options(names=given).names is given
    assert Options(any=object, more={"a": 1}, kind="b")


def test_the_sentence_says_what_is_allowed() -> None:
    with pytest.raises(
        ParameterError, match="`names` must be a list of which each is a text or a text; it is 3"
    ):
        Options(names=3)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="`maybe` must be a number or nothing"):
        Options(maybe="x")  # type: ignore[arg-type]
    assert shown(10**5000) == "a number of 16,610 bits"


def test_every_error_is_one_line_that_a_screen_can_show() -> None:
    said = str(ParameterError(f"There is no {'a/' * 5000}b\n\x1b[2J\ud800 here\tnow."))
    assert len(said) < 400
    assert "\\x1b[2J\\ud800 here now." in said
    assert "\n" not in said
    said.encode()


@pytest.mark.parametrize("value", [None, "3", [], True, float("nan"), 0])
def test_at_least_takes_numbers(value: object) -> None:
    with pytest.raises(ParameterError, match="must be at least 1"):
        at_least("x", value, 1)  # type: ignore[arg-type]
