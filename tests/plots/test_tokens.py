"""The colours that page, explorer, notebooks and figures share: one source, readable, and told apart
by the colour-blind."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from headwise.atlas.describe import LABEL_CATEGORIES
from headwise.plots import scripts, style

# Machado, Oliveira & Fernandes 2009, severity 1: linear RGB as each kind of colour-blindness sees it.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
# An encoder has no sink and no tests on repeats; a decoder has no `to cls` and `to sep`.
ENCODER = {"syntax", "coreference", "position", "delimiters", "broad", "cls", "sep", "other"}
DECODER = set(LABEL_CATEGORIES) - {"cls", "sep"}
# CIE76 units of colour difference: 2.3 is just noticeable side by side.
LEAST_DIFFERENCE = 10
LEAST_OF_RECEDING = 6  # sink and other: both recede, and their text tells them apart
RECEDING = {"sink", "other"}


def blocks() -> list[dict[str, str]]:
    """The colours of each theme: light, dark by the system, dark by the host."""
    css = scripts.view_file(scripts.TOKENS)
    themes = [part for part in css.split("}") if "color-scheme:" in part]
    return [dict(re.findall(r"--hw-([a-z-]+): (#[0-9a-f]{6});", theme)) for theme in themes]


def linear(colour: str) -> np.ndarray:
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_both_dark_themes_are_the_same_and_every_theme_has_every_colour() -> None:
    light, dark, dark_by_host = blocks()
    assert dark == dark_by_host
    assert set(light) == set(dark)
    for category in LABEL_CATEGORIES:
        assert {category, f"on-{category}"} <= set(light)
        assert f".kind-{category} {{" in scripts.view_file(scripts.TOKENS)


def test_figures_use_the_colours_of_the_page() -> None:
    light = blocks()[0]
    assert {name: light[name] for name in style.CATEGORY_COLOURS} == style.CATEGORY_COLOURS
    assert set(style.CATEGORY_COLOURS) == set(LABEL_CATEGORIES)
    for colour in style.TYPE_COLOURS.values():
        assert style.contrast(np.array(to_rgb(colour)), np.ones(3)) >= 3


def test_no_colour_of_a_category_is_written_anywhere_else() -> None:
    source = Path(style.__file__).parents[1]
    for path in source.rglob("*"):
        if path.suffix in (".css", ".js", ".html", ".py") and path.name != scripts.TOKENS:
            text = path.read_text(encoding="utf-8").lower()
            repeated = [colour for colour in style.CATEGORY_COLOURS.values() if colour in text]
            assert repeated == [], path


@pytest.mark.parametrize("theme", [0, 1])
def test_text_on_every_category_can_be_read(theme: int) -> None:
    colours = blocks()[theme]
    for category in LABEL_CATEGORIES:
        ink = np.array(to_rgb(colours[f"on-{category}"]))
        fill = np.array(to_rgb(colours[category]))
        assert style.contrast(ink, fill) >= 4.5, category  # WCAG 2.1, AA


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", [0, 1])
def test_categories_of_a_model_are_told_apart(theme: int, vision: str) -> None:
    colours = blocks()[theme]
    seen = {name: lab(VISION[vision] @ linear(colours[name])) for name in LABEL_CATEGORIES}
    for first, second in combinations(LABEL_CATEGORIES, 2):
        pair = {first, second}
        if not (pair <= ENCODER or pair <= DECODER):
            continue
        least = LEAST_OF_RECEDING if pair == RECEDING else LEAST_DIFFERENCE
        assert np.linalg.norm(seen[first] - seen[second]) >= least, (first, second)


@pytest.mark.parametrize("theme", [0, 1])
def test_induction_strikes_the_eye_and_sinks_recede(theme: int) -> None:
    """By how far a colour is from the paper and how colourful it is."""
    colours = blocks()[theme]
    paper = lab(linear(colours["paper"]))
    far = {name: np.linalg.norm(lab(linear(colours[name])) - paper) for name in DECODER}
    chroma = {name: np.hypot(*lab(linear(colours[name]))[1:]) for name in DECODER}
    assert max(far, key=far.__getitem__) == "repeats"
    assert max(chroma, key=chroma.__getitem__) == "repeats"
    assert set(sorted(far, key=far.__getitem__)[:2]) == RECEDING
