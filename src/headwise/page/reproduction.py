"""The page of a reproduced paper: plain data in, one HTML file out in the look of the atlas page."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from headwise.page.write import _cell, _ending, _relative


def render_reproduction(facts: Mapping[str, Any], files: Mapping[str, bytes]) -> str:
    """The page as a string, its figures in it.

    Parameters
    ----------
    facts : mapping
        What `headwise.experiments.reproduction.reproduce` gives.
    files : mapping of str to bytes
        The files that the figures name; they lie beside the page too.
    """

    def embedded(name: str) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(files[name]).decode("ascii")

    loader = jinja2.PackageLoader("headwise.page", ".")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters.update(cell=_cell, ending=_ending, relative=_relative, embedded=embedded)
    style = Markup((Path(__file__).parent / "style.css").read_text(encoding="utf-8"))
    return environment.get_template("reproduction.html").render(facts=facts, style=style)
