"""A view for notebooks: one HTML that draws itself where scripts run and is a picture elsewhere; or
a widget."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from headwise.core.errors import MissingExtraError, ParameterError
from headwise.plots import style
from headwise.plots.save import FORMATS, save_figure
from headwise.plots.scripts import NOTEBOOK, joined_script, view_file

DOTS = 110  # per inch, of pictures in notebooks


@dataclass(frozen=True, eq=False)
class View:
    """Something a notebook shows: interactive where scripts run, else a picture or a table.

    The HTML is complete in itself and asks nothing of the network, so a saved notebook keeps it:
    whoever opens it later sees the picture, and where scripts may run, the view.

    Parameters
    ----------
    title : str
        What it is, in a line.
    data : mapping, optional
        What the script draws; nothing where there is only a picture.
    picture : callable, optional
        Makes the picture (a matplotlib figure).
    table : str, default ""
        HTML to show where there is no picture.
    note : str, default ""
        What a reader must know, below it.
    """

    title: str
    data: Mapping[str, Any] | None = None
    picture: Callable[[], Figure] | None = None
    table: str = ""
    note: str = ""

    def __repr__(self) -> str:
        return f"<headwise view: {self.title}>"

    @cached_property
    def figure(self) -> Figure:
        """The picture as a matplotlib figure."""
        if self.picture is None:
            raise ParameterError(f"There is no picture of {self.title}; it is shown as a table.")
        return self.picture()

    def save(self, path: str | Path) -> Path:
        """Write the picture as .svg, .pdf or .png, whole or not at all; gives the path."""
        target = Path(path)
        ending = target.suffix.removeprefix(".")
        if ending not in FORMATS:
            raise ParameterError(
                f"A picture ends in {', '.join('.' + known for known in FORMATS)}; this is '{target.name}'."
            )
        (written,) = save_figure(self.figure, target.parent, target.stem, [ending])
        return written

    @cached_property
    def png(self) -> bytes:
        """The picture, small enough for a notebook."""
        buffer = io.BytesIO()
        with style.context():
            self.figure.savefig(buffer, format="png", dpi=DOTS, metadata={"Software": None})
        return buffer.getvalue()

    @cached_property
    def html(self) -> str:
        """Picture (or table) and script in one piece."""
        still = Markup(self.table)
        if self.picture is not None:
            source = base64.b64encode(self.png).decode("ascii")
            still = Markup(
                '<img alt="{}" src="data:image/png;base64,{}" style="max-width:100%">'
            ).format(self.title, source)
        note = (
            Markup('<div class="hw-quiet">{}</div>').format(self.note) if self.note else Markup("")
        )
        if self.data is None:
            whole = '<div class="hw"><style>{}</style>{}{}</div>'
            return str(Markup(whole).format(Markup(view_file("heads.css")), still, note))
        content = json.dumps(self.data, allow_nan=False).replace("<", "\\u003c")
        name = hashlib.sha256(content.encode()).hexdigest()[:16]
        # Without `<` nothing ends the script. The same view may stand twice in a notebook.
        script = (
            f"(()=>{{{joined_script(NOTEBOOK)}\nconst data={content};"
            f"for(const el of document.querySelectorAll('[data-headwise=\"{name}\"]:not([data-drawn])'))"
            "{el.setAttribute('data-drawn','');try{show(el,data);}catch(error){console.error(error);}}})();"
        )
        parts = '<div class="hw"><style>{}</style><div data-headwise="{}">{}</div>{}</div><script>{}</script>'
        return str(
            Markup(parts).format(Markup(view_file("heads.css")), name, still, note, Markup(script))
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": repr(self), "text/html": self.html}
        if self.picture is not None:
            bundle["image/png"] = base64.b64encode(self.png).decode("ascii")
        return bundle

    def _display_(self) -> Any:
        """What marimo shows: the widget where it can be had, for marimo runs no script of an
        HTML."""
        return (
            self.widget() if self.data is not None and find_spec("anywidget") else _Html(self.html)
        )

    def widget(self) -> Any:
        """The view as an anywidget, whose `selected` head Python can read and set; needs the extra
        `notebook`."""
        if self.data is None:
            raise ParameterError(f"{self.title} is shown as it is; there is nothing to point at.")
        return _widget_class()(data=dict(self.data), selected=str(self.data.get("selected") or ""))


@dataclass(frozen=True, slots=True)
class _Html:
    """HTML alone."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


@cache
def _module_script() -> str:
    """All scripts as one module, as anywidget wants it."""
    return f"{joined_script(NOTEBOOK)}\nexport default {{ render }};\n"


@cache
def _widget_class() -> Any:
    if find_spec("anywidget") is None:
        raise MissingExtraError("anywidget", "notebook", "A widget")
    import anywidget
    import traitlets

    class HeadsWidget(anywidget.AnyWidget):
        """A view of heads; `selected` is the picked head (`L3H5`)."""

        _esm = _module_script()
        _css = view_file("heads.css")
        data = traitlets.Dict().tag(sync=True)
        selected = traitlets.Unicode("").tag(sync=True)

    return HeadsWidget
