"""The circuit as an inline drawing of the page: an edge that is pointed at or focused says its
effect, a node leads to the card of its head. It needs no script."""

from __future__ import annotations

import re
from html import escape

import numpy as np
import xarray as xr

from headwise.experiments.circuit.figures import INPUT_COLOURS, INPUT_NAMES
from headwise.experiments.circuit.layout import CircuitEdge, CircuitLayout, circuit_layout
from headwise.plots.registry import inline_figure

HEAD = re.compile(r"L\d+H\d+")
WIDTH = 760
ROW_HEIGHT = 56
MARGIN = 30
LEGEND_HEIGHT = 48  # colours, and how to read an edge
WORDS_SPACING = 8  # rows: the words of a long edge are repeated, so that one of them is in sight
LINE_HEIGHT = 15
WIDEST = 7.0  # pixels: the line of the strongest edge
NARROWEST = 1.2
NODE_HEIGHT = 22
LETTER_WIDTH = 7.6

# Colours are fixed, as those of all figures are, which stand on white in the dark, too.
STYLE = """
.hw-circuit { width: 100%; min-width: 640px; max-width: 760px; height: auto; }
.hw-circuit { font: 13px system-ui, sans-serif; }
.hw-circuit .edge { outline: none; }
.hw-circuit .edge path { fill: none; stroke-opacity: 0.6; }
.hw-circuit .edge .reach { stroke: transparent; stroke-width: 14; }
.hw-circuit .edge .words { visibility: hidden; pointer-events: none; }
.hw-circuit .edge .words { paint-order: stroke; stroke: #ffffff; stroke-width: 5px; }
.hw-circuit .edge:hover .words, .hw-circuit .edge:focus .words { visibility: visible; }
.hw-circuit .edges:hover .line, .hw-circuit .edges:focus-within .line { stroke-opacity: 0.15; }
.hw-circuit .edges .edge:hover .line, .hw-circuit .edges .edge:focus .line { stroke-opacity: 1; }
.hw-circuit .edge:focus .line { stroke: #111418; }
.hw-circuit .hint { fill: #57616c; }
.hw-circuit .node rect { fill: #ffffff; stroke: #57616c; }
.hw-circuit a.node:hover rect, .hw-circuit a.node:focus rect { stroke: #0062a3; stroke-width: 2; }
.hw-circuit a.node text { fill: #0062a3; text-decoration: underline; }
"""


@inline_figure("circuit", name="graph")
def circuit_diagram(dataset: xr.Dataset) -> str:
    """Return the circuit as SVG text; empty where there is no circuit."""
    layout = circuit_layout(dataset)
    if not layout.edges:
        return ""
    height = LEGEND_HEIGHT + 2 * MARGIN + ROW_HEIGHT * (len(layout.rows) - 1)
    largest = max(abs(edge.effect) for edge in layout.edges)
    parts = [
        f'<svg class="hw-circuit" viewBox="0 0 {WIDTH} {height}" role="group" '
        f'aria-label="The circuit: {len(layout.edges)} edges">',
        f"<style>{STYLE}</style>",
        _legend(layout),
        '<text class="hint" x="8" y="40">Point at an edge, or move to it by the tab key, to read '
        "its effect.</text>",
        '<g class="edges">',
    ]
    # Weak edges last, so that they can be pointed at where they cross strong ones.
    for edge in sorted(layout.edges, key=lambda edge: -abs(edge.effect)):
        parts.append(_edge(edge, layout, largest))
    parts.append("</g>")
    for name, place in layout.places.items():
        parts.append(_node(name, *_pixels(place, layout)))
    parts.append("</svg>")
    return "".join(parts)


def edge_words(edge: CircuitEdge) -> tuple[str, str]:
    """Return an edge and what is known of it, each in a line."""
    receiver = f"{edge.receiver} ({edge.input})" if edge.input else edge.receiver
    words = f"effect {edge.effect:+.2f} ({edge.low:+.2f} … {edge.high:+.2f})"
    if np.isfinite(edge.exact):
        words += f", exact {edge.exact:+.2f}"
    if np.isfinite(edge.p):
        words += f", p {edge.p:.2g}"
    else:
        words += ", not tested"
    return f"{edge.sender} → {receiver}:", words.replace("-", "−")


def _pixels(place: tuple[float, float], layout: CircuitLayout) -> tuple[float, float]:
    """Return a place of the layout in pixels: the embedding at the bottom, the logits at the top."""
    x = MARGIN + place[0] * (WIDTH - 2 * MARGIN)
    y = LEGEND_HEIGHT + MARGIN + (len(layout.rows) - 1 - place[1]) * ROW_HEIGHT
    return x, y


def _edge(edge: CircuitEdge, layout: CircuitLayout, largest: float) -> str:
    x1, y1 = _pixels(layout.places[edge.sender], layout)
    x2, y2 = _pixels(layout.places[edge.receiver], layout)
    # Edges that span several rows bend sideways, so that they do not run through the nodes between.
    n_rows = layout.places[edge.receiver][1] - layout.places[edge.sender][1]
    bend = 0.0
    if n_rows > 1:
        bend = -14.0 * n_rows if x1 >= x2 else 14.0 * n_rows
    control = f"{(x1 + x2) / 2 + bend:.1f} {(y1 + y2) / 2:.1f}"
    curve = f"M {x1:.1f} {y1:.1f} Q {control} {x2:.1f} {y2 + NODE_HEIGHT / 2:.1f}"
    width = max(NARROWEST, WIDEST * abs(edge.effect) / largest)
    dashes = "" if edge.effect > 0 else ' stroke-dasharray="6 4"'
    label = escape(" ".join(edge_words(edge)))
    parts = [
        f'<g class="edge" tabindex="0" role="img" aria-label="{label}">'
        f'<path class="reach" d="{curve}"/>'
        f'<path class="line" d="{curve}" stroke="{INPUT_COLOURS[edge.input]}" '
        f'stroke-width="{width:.1f}"{dashes}/>'
    ]
    # The words stand halfway between two rows, where no node covers them.
    n_rows = round(n_rows)
    n_places = 1 + (n_rows - 1) // WORDS_SPACING
    for place in range(n_places):
        row = ((2 * place + 1) * n_rows) // (2 * n_places)
        share = (row + 0.5) / n_rows
        x = x1 + share * (x2 - x1) + 2 * share * (1 - share) * bend
        parts.append(_words(edge, x, y1 - (row + 0.5) * ROW_HEIGHT))
    parts.append("</g>")
    return "".join(parts)


def _words(edge: CircuitEdge, x: float, y: float) -> str:
    """Return what is known of an edge as two lines around a point, within the drawing."""
    lines = edge_words(edge)
    half_width = LETTER_WIDTH * max(len(line) for line in lines) / 2
    x = min(max(x, half_width), WIDTH - half_width)
    first = f'<tspan x="{x:.1f}" y="{y - 2:.1f}">{escape(lines[0])} </tspan>'
    second = f'<tspan x="{x:.1f}" y="{y - 2 + LINE_HEIGHT:.1f}">{escape(lines[1])}</tspan>'
    return f'<text class="words" text-anchor="middle">{first}{second}</text>'


def _node(name: str, x: float, y: float) -> str:
    width = LETTER_WIDTH * len(name) + 14
    text = escape(name)
    box = (
        f'<rect x="{x - width / 2:.1f}" y="{y - NODE_HEIGHT / 2:.1f}" width="{width:.1f}" '
        f'height="{NODE_HEIGHT}" rx="4"/>'
        f'<text x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle">{text}</text>'
    )
    if HEAD.fullmatch(name):
        return f'<a class="node" href="#{text}">{box}</a>'
    return f'<g class="node">{box}</g>'


def _legend(layout: CircuitLayout) -> str:
    """Return the colours of the inputs, and what dashes mean."""
    x = 8
    parts = []
    used = {edge.input for edge in layout.edges}
    for name, colour in INPUT_COLOURS.items():
        if name in used:
            label = INPUT_NAMES[name]
            parts.append(f'<path d="M {x} 14 h 24" stroke="{colour}" stroke-width="4"/>')
            parts.append(f'<text x="{x + 30}" y="18">{label}</text>')
            x += 48 + int(LETTER_WIDTH * len(label))
    if any(edge.effect < 0 for edge in layout.edges):
        parts.append(
            f'<path d="M {x} 14 h 24" stroke="#57616c" stroke-width="3" stroke-dasharray="6 4"/>'
            f'<text x="{x + 30}" y="18">against the answer</text>'
        )
    return "".join(parts)
