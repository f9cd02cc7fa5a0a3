"""The JavaScript that draws in a browser, joined into one script for the page and for notebooks."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

DRAWING = ("d3/d3", "drawing")  # a few parts of d3, and the drawing functions that use them
NOTEBOOK = (*DRAWING, "heads", "notebook")


@cache
def view_file(name: str) -> str:
    """Return the text of a file in `views/`."""
    path = resources.files("headwise.plots").joinpath("views", *name.split("/"))
    return path.read_text(encoding="utf-8")


@cache
def joined_script(names: tuple[str, ...]) -> str:
    """Return modules of `views/` as one plain script without imports and exports.

    The names must be in the order of their dependencies.
    """
    modules = "\n".join(view_file(f"{name}.js") for name in names)
    script = re.sub(r"(?m)^(import .* from .*;|export default .*;)$|^export ", "", modules)
    assert "</" not in script, "'</' would end the script element of the page"
    return script
