"""The circuit on the page: an edge says its effect when it is focused, a node leads to its card, and
names of a stranger's file stay text."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import xarray as xr

from browsing import needs_browser, running_browser
from headwise.atlas import Atlas
from headwise.experiments.circuit.inline_figures import circuit_diagram, edge_words
from headwise.experiments.circuit.layout import circuit_layout
from headwise.page.report import write_report
from headwise.plots.registry import inline_svg

EDGES = (
    ("embedding", "L0H1", "value", 1.5, np.nan),
    ("L0H1", "L1H0", "key", 1.2, 1.25),
    ("L1H0", "logits", "", -0.4, -0.4),
)


def circuit(edges: Any = EDGES, in_circuit: bool = True) -> xr.Dataset:
    effect = np.array([edge[3] for edge in edges])
    variables = {
        "effect": ("edge", effect),
        "effect_n": ("edge", np.full(len(edges), 9)),
        "effect_low": ("edge", effect - 0.1),
        "effect_high": ("edge", effect + 0.1),
        "effect_p_adjusted": ("edge", np.array([0.001, 0.02, *[np.nan] * (len(edges) - 2)])),
        "exact": ("edge", np.array([edge[4] for edge in edges])),
        "in_circuit": ("edge", np.full(len(edges), in_circuit)),
        "head_effect": (("layer", "head"), np.arange(4.0).reshape(2, 2)),
        "mlp_effect": ("layer", np.zeros(2)),
    }
    coords = {
        "layer": [0, 1],
        "head": [0, 1],
        "edge": np.arange(len(edges)),
        "sender": ("edge", [edge[0] for edge in edges]),
        "receiver": ("edge", [edge[1] for edge in edges]),
        "input": ("edge", [edge[2] for edge in edges]),
    }
    facts = {
        "title": "Circuit",
        "task": "agreement",
        "pairs": 9,
        "clean": 1.0,
        "corrupted": 0.0,
        "circuit_edges": 3,
    }
    return xr.Dataset(variables, coords, facts)


def test_an_edge_in_words() -> None:
    strongest, second, last = circuit_layout(circuit()).edges
    assert edge_words(strongest) == (
        "embedding → L0H1 (value):",
        "effect +1.50 (+1.40 … +1.60), p 0.001",
    )
    assert edge_words(second)[1].endswith("exact +1.25, p 0.02")
    assert edge_words(last) == (
        "L1H0 → logits:",
        "effect −0.40 (−0.50 … −0.30), exact −0.40, not tested",
    )


def test_the_words_of_a_long_edge_are_near_every_part_of_it() -> None:
    """A drawing of thirty layers is taller than a screen: words at one place would be out of sight
    while the other end of the edge is pointed at."""
    n_layers = 30
    chain = ["embedding", *(f"L{layer}H0" for layer in range(n_layers)), "logits"]
    edges = []
    for sender, receiver in pairwise(chain):
        edges.append((sender, receiver, "" if receiver == "logits" else "value", 1.0, np.nan))
    edges.append(("embedding", "logits", "", 0.5, np.nan))
    drawing = ElementTree.fromstring(circuit_diagram(circuit(edges)))
    drawn_edges = drawing.findall(".//*[@class='edge']")
    assert len(drawn_edges) == len(edges)
    nodes = [float(text.get("y")) for text in drawing.findall(".//*[@class='node']/text")]
    for edge in drawn_edges:
        numbers = [float(number) for number in re.findall(r"[\d.]+", edge.find("path").get("d"))]
        start, end = numbers[1], numbers[-1]
        lines = edge.findall("*[@class='words']/tspan")
        heights = [float(line.get("y")) for line in lines]
        for point in np.linspace(start, end, 20):
            assert min(abs(point - height) for height in heights) < 300
        for height in heights:
            assert min(abs(node - height) for node in nodes) > 10
        for line in lines:
            half_width = 3.8 * len(line.text)
            assert half_width <= float(line.get("x")) <= 760 - half_width


def test_nodes_lead_to_cards_and_names_stay_text() -> None:
    text = circuit_diagram(circuit())
    assert text.count('class="edge"') == 3
    assert '<a class="node" href="#L0H1">' in text
    assert 'href="#embedding"' not in text
    strange = (*EDGES[:2], ('<script>alert("1")</script>', "logits", "", 0.3, np.nan))
    assert "<script>" not in circuit_diagram(circuit(strange))
    assert inline_svg("circuit", "graph", circuit()) == text
    # Without a circuit the picture stays, which says so.
    assert circuit_diagram(circuit(in_circuit=False)) == ""
    assert inline_svg("circuit", "curve", circuit()) == ""


@needs_browser
@pytest.mark.slow
def test_the_graph_on_the_page(tmp_path: Path) -> None:
    atlas = Atlas({"circuit": circuit()}, {"model": {"name": "little"}})
    report = write_report(atlas, tmp_path)
    assert not report.failures
    errors: list[str] = []
    with running_browser() as browser:
        page = browser.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        # As low as a phone on its side: the drawing and the card are never both in sight.
        page.set_viewport_size({"width": 1280, "height": 400})
        page.goto(report.page.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        edge = page.locator(".hw-circuit .edge").nth(1)
        words = edge.locator(".words")
        assert not words.is_visible()
        edge.focus()
        assert words.is_visible()
        assert words.text_content() == (
            "L0H1 → L1H0 (key): effect +1.20 (+1.10 … +1.30), exact +1.25, p 0.02"
        )
        # On a phone the drawing is scrolled sideways, and stays large enough to be read.
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert words.locator("tspan").first.bounding_box()["height"] >= 10
        page.set_viewport_size({"width": 1280, "height": 400})
        page.locator(".hw-circuit a.node", has_text="L1H0").click()
        assert page.url.endswith("#L1H0")
        card = page.locator("#card")
        assert "L1H0" in card.inner_text()
        # The card lies above the drawing: it comes into sight.
        page.wait_for_function(
            "() => { const y = document.getElementById('card').getBoundingClientRect().top;"
            " return -1 <= y && y < 400; }",
            timeout=5000,
        )
    assert not errors
