"""The scripts that draw in a browser, as one piece: what the page and the views of notebooks put
into themselves."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

DRAWING = ("d3/d3", "drawing")  # a few parts of d3, and what is drawn with them
NOTEBOOK = (*DRAWING, "heads", "notebook")


@cache
def view_file(name: str) -> str:
    """One of the files in views/."""
    return (
        resources.files("headwise.plots")
        .joinpath("views", *name.split("/"))
        .read_text(encoding="utf-8")
    )


@cache
def joined_script(names: tuple[str, ...]) -> str:
    """Modules of views/ one after the other, in the order in which they need each other, as a plain
    script that imports and exports nothing."""
    whole = "\n".join(view_file(f"{name}.js") for name in names)
    plain = re.sub(r"(?m)^(import .* from .*;|export default .*;)$|^export ", "", whole)
    assert "</" not in plain, "this would end the script"
    return plain
