"""How results display themselves in notebooks.

The views that draw them lie in a higher layer, `page`; they are loaded when something is displayed
(see `core.lazy`).
"""

from __future__ import annotations

import sys
from typing import Any

from headwise.core.lazy import VIEWS, load


def view_of(thing: object) -> Any:
    """Return the view of an atlas, of a head's card or of a trace."""
    return load(VIEWS).view_of(thing)


def plot_of(atlas: object, measure: str) -> Any:
    """Return the view of an atlas coloured by a measure."""
    return load(VIEWS).atlas_view(atlas, measure)


class NotebookDisplay:
    """A result that displays itself in Jupyter, VS Code and marimo.

    It is interactive where scripts run, a picture or a table elsewhere."""

    __slots__ = ()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        text_only = include and not {"text/html", "image/png"} & set(include)
        if _in_terminal() or text_only:
            # A terminal asks for every format and shows the text: do not draw for nothing.
            return {"text/plain": repr(self)}
        formats = view_of(self)._repr_mimebundle_(include, exclude)
        return {**formats, "text/plain": repr(self)}

    def _display_(self) -> Any:
        """Return what marimo shows."""
        return view_of(self)._display_()

    def widget(self) -> Any:
        """Return the view as an anywidget, whose `selected` head Python can read and set.

        Needs the extra `notebook`."""
        return view_of(self).widget()


def _in_terminal() -> bool:
    """Whether IPython runs in a terminal, which shows text alone but asks for everything."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "TerminalInteractiveShell"
