"""How results show themselves in notebooks: the views are found by name, so that what is shown need
not import them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

VIEWS = "headwise.page.views"  # knows how to show what
MEASURES = "headwise.page.measures"


def view_of(thing: object) -> Any:
    """The view of an atlas, of a head's card or of a trace."""
    return import_module(VIEWS).view_of(thing)


def _in_terminal() -> bool:
    """Whether IPython runs in a terminal, which shows text alone but asks for everything."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "TerminalInteractiveShell"


def plot_of(atlas: object, measure: str) -> Any:
    """The view of an atlas coloured by a measure."""
    return import_module(VIEWS).atlas_view(atlas, measure)


def leading_measures() -> Mapping[str, tuple[str, ...]]:
    """The measures a reader asks for first, by group."""
    found: Mapping[str, tuple[str, ...]] = import_module(MEASURES).LEADING
    return found


class NotebookDisplay:
    """Shows itself in Jupyter, VS Code and marimo: interactive where scripts run, a picture or a
    table elsewhere."""

    __slots__ = ()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if _in_terminal() or (include and not {"text/html", "image/png"} & set(include)):
            return {"text/plain": repr(self)}  # nobody would see the rest
        return {**view_of(self)._repr_mimebundle_(include, exclude), "text/plain": repr(self)}

    def _display_(self) -> Any:
        """What marimo shows."""
        return view_of(self)._display_()

    def widget(self) -> Any:
        """The same as an anywidget, whose `selected` head Python can read and set; needs the extra
        `notebook`."""
        return view_of(self).widget()
