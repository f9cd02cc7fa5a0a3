"""A view for notebooks: HTML that is interactive where scripts run and a picture elsewhere, or a
widget."""

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
from headwise.plots.scripts import NOTEBOOK, joined_script, view_style
from headwise.plots.style import FORMATS, save_figure

DPI = 110  # of pictures in notebooks


@dataclass(frozen=True, eq=False)
class View:
    """Something a notebook displays: interactive where scripts run, else a picture or a table.

    The HTML is self-contained and needs no network, so it stays in a saved notebook: whoever opens
    that later sees the picture and, where scripts may run, the interactive view.

    Parameters
    ----------
    title : str
        What it shows, in one line.
    data : mapping, optional
        What the script draws; None if there is only a picture.
    picture : callable, optional
        Draws the picture (a matplotlib figure).
    table : str, default ""
        HTML to show if there is no picture.
    note : str, default ""
        What a reader must know, shown below.
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
        """Write the picture as .svg, .pdf or .png, atomically, and return the path."""
        target = Path(path)
        extension = target.suffix.removeprefix(".")
        if extension not in FORMATS:
            known = ", ".join(f".{known}" for known in FORMATS)
            raise ParameterError(f"A picture ends in {known}; this is '{target.name}'.")
        (written,) = save_figure(self.figure, target.parent, target.stem, [extension])
        return written

    @cached_property
    def png(self) -> bytes:
        """The picture as PNG, small enough for a notebook."""
        buffer = io.BytesIO()
        with style.context():
            self.figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
        return buffer.getvalue()

    @cached_property
    def html(self) -> str:
        """The picture (or table) and the script as one piece of HTML."""
        style_sheet = Markup(view_style())
        static = Markup(self.table)
        if self.picture is not None:
            source = base64.b64encode(self.png).decode("ascii")
            image = '<img alt="{}" src="data:image/png;base64,{}" style="max-width:100%">'
            static = Markup(image).format(self.title, source)
        note = Markup("")
        if self.note:
            note = Markup('<div class="hw-quiet">{}</div>').format(self.note)
        if self.data is None:
            parts = '<div class="hw"><style>{}</style>{}{}</div>'
            return str(Markup(parts).format(style_sheet, static, note))
        # Without `<` in the data, nothing in it can end the script element.
        content = json.dumps(self.data, allow_nan=False).replace("<", "\\u003c")
        name = hashlib.sha256(content.encode()).hexdigest()[:16]
        # The same view may be twice in a notebook: each script draws those not drawn yet.
        not_drawn = f'[data-headwise="{name}"]:not([data-drawn])'
        script = (
            f"(()=>{{{joined_script(NOTEBOOK)}\nconst data={content};"
            f"for(const el of document.querySelectorAll('{not_drawn}'))"
            "{el.setAttribute('data-drawn','');"
            "try{show(el,data);}catch(error){console.error(error);}}})();"
        )
        parts = (
            '<div class="hw"><style>{}</style><div data-headwise="{}">{}</div>{}</div>'
            "<script>{}</script>"
        )
        return str(Markup(parts).format(style_sheet, name, static, note, Markup(script)))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": repr(self), "text/html": self.html}
        if self.picture is not None:
            bundle["image/png"] = base64.b64encode(self.png).decode("ascii")
        return bundle

    def _display_(self) -> Any:
        """Return what marimo displays: a widget if possible, since marimo runs no script in HTML."""
        if self.data is not None and find_spec("anywidget"):
            return self.widget()
        return _Html(self.html)

    def widget(self) -> Any:
        """Return an anywidget whose `selected` head Python can read and set.

        It needs the extra `notebook`."""
        if self.data is None:
            raise ParameterError(f"{self.title} is not interactive: it has no widget.")
        return _widget_class()(data=dict(self.data), selected=str(self.data.get("selected") or ""))


@dataclass(frozen=True, slots=True)
class _Html:
    """An object that notebooks display as HTML."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


@cache
def _module_script() -> str:
    """Return all scripts as one module, as anywidget needs it."""
    return f"{joined_script(NOTEBOOK)}\nexport default {{ render }};\n"


@cache
def _widget_class() -> Any:
    if find_spec("anywidget") is None:
        raise MissingExtraError("anywidget", "notebook", "A widget")
    import anywidget
    import traitlets

    class HeadsWidget(anywidget.AnyWidget):
        """A view of heads; `selected` is the selected head (`L3H5`)."""

        _esm = _module_script()
        _css = view_style()
        data = traitlets.Dict().tag(sync=True)
        selected = traitlets.Unicode("").tag(sync=True)

    return HeadsWidget
