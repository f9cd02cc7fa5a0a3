"""The JavaScript that draws in a browser and the styles beside it, joined for the page and for
notebooks."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

DRAWING = ("d3/d3", "drawing")  # a few parts of d3, and the drawing functions that use them
PAGE = (*DRAWING, "export")
NOTEBOOK = (*DRAWING, "heads", "notebook")
# The styles: colours and type; one head large and all heads small; the parts of whole pages.
TOKENS = "tokens.css"
VIEW_STYLES = (TOKENS, "heads.css")
PAGE_STYLES = (*VIEW_STYLES, "design.css")


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


@cache
def view_style() -> str:
    """Return the style of a view in a notebook: it changes nothing outside elements `.hw`."""
    return "".join(view_file(name) for name in VIEW_STYLES)


@cache
def design_style() -> str:
    """Return the style that whole pages share: the page of an atlas and the explorer."""
    return "".join(view_file(name) for name in PAGE_STYLES)
