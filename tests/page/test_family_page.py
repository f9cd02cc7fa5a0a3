"""The page of a family in a browser: keys, matches, a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browsing import needs_browser
from headwise import Atlas
from headwise.experiments.comparison import ComparisonOptions
from headwise.experiments.family.result import MemberLabels, family_datasets
from headwise.page.family import render_family


def member(name: str, rows: list[list[str]]) -> MemberLabels:
    label = np.array(rows)
    category = np.where(label == "other", "other", "position")
    return MemberLabels(name, label, label, category, label, (), frozenset())


@pytest.fixture
def page(tmp_path: Path) -> Path:
    small = member("small", [["previous token", "other"], ["other", "next token"]])
    large = member(
        "large",
        [["other"] * 3, ["other", "other", "previous token"], ["other"] * 3, ["other"] * 3],
    )
    datasets = family_datasets([small, large], ["toy", "toy"], 2, ComparisonOptions())
    path = tmp_path / "index.html"
    path.write_text(render_family(Atlas(datasets), [], tmp_path), encoding="utf-8")
    return path


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_heads_are_walked_by_keys_and_lead_to_their_match(
    chromium: Any, page: Path, width: int
) -> None:
    messages: list[str] = []
    context = chromium.new_context(viewport={"width": width, "height": 800})
    tab = context.new_page()
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.goto(page.as_uri())
    # The page opens with the first matched pair.
    assert tab.inner_text("#chosen") == "small L0H0: previous token (depth 25 %)"
    assert "large: L1H2 at 38 % of the depth (1 of 12 heads have this label)" in tab.inner_text(
        "#matches"
    )
    assert tab.locator(".family-grid button.same").count() == 2
    tab.focus(".family-grid button[tabindex='0']")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#chosen") == "small L1H1: next token (depth 75 %)"
    assert "no head is matched" in tab.inner_text("#matches")
    # To the right of the last head lies the next model, at the same depth.
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#chosen") == "large L3H0: no significant label (depth 88 %)"
    tab.select_option("#label", "previous token")
    assert tab.locator(".family-grid button.faint").count() == 14
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    context.close()
    assert messages == []
