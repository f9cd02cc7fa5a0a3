"""Write the page of an atlas: plain data in, one HTML file out that needs nothing else to be
read."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Required, TypedDict, Unpack
from urllib.parse import quote, urlsplit

import jinja2
from markupsafe import Markup, escape

from headwise.core.errors import OutputError, ParameterError
from headwise.core.files import write_atomically
from headwise.core.version import __version__
from headwise.page.data import data_text, packed
from headwise.plots.scripts import DRAWING, joined_script, view_file

_MANY_HEADS = 600  # of a grid whose cells have room for a word
SCRIPTS = (
    "base",
    "ask",
    "state",
    "picker",
    "grid",
    "maps",
    "card",
    "compare",
    "distance",
    "start",
)  # in assets/
_LARGE_FIGURE = 100_000  # letters of a packed SVG, above which a smaller bitmap is taken
_MANY_ROWS = 400  # a page shows no more rows of a table; the CSV has them all


@dataclass(frozen=True, slots=True)
class PageFigure:
    """One figure: its SVG (text or a file to read) and the files to download, relative to the
    page."""

    title: str
    caption: str
    svg: str | Path
    files: Sequence[str] = ()
    paper: str = ""


@dataclass(frozen=True, slots=True)
class PageTable:
    """One table: column names, rows of strings and numbers (None and NaN show as a dash), and its
    CSV file relative to the page."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    csv: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """What one analysis has to show: blank lines in `text` and `definition` part paragraphs, `code`
    in backticks is set as such."""

    name: str
    title: str
    paper: str = ""
    text: str = ""
    figures: Sequence[PageFigure] = ()
    tables: Sequence[PageTable] = ()
    definition: str = ""
    notes: Sequence[str] = field(default_factory=tuple)  # what was sampled or dropped here


@dataclass(frozen=True, slots=True)
class PageHead:
    """One head in the grid: what it does and where it looks, each in a short word, and the cells of
    its row in the table below."""

    name: str
    layer: int
    word: str
    kind: str
    below: str = ""
    strong: bool = False
    cells: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class HeadGrid:
    """Every head at its place, layers down and heads across: `kinds` says what each colour means,
    `columns` names the cells of the table, `groups` the key/value groups of heads with their sizes,
    `layers` what layers may see where they differ. Of more than `_MANY_HEADS` heads a cell shows
    its colour alone, and the table has only those with a word."""

    heads: Sequence[PageHead]
    columns: Sequence[str]
    kinds: Mapping[str, str]
    csv: str = ""
    groups: Sequence[tuple[str, int]] = ()
    layers: Mapping[int, str] = field(default_factory=dict)

    @property
    def many(self) -> bool:
        return len(self.heads) > _MANY_HEADS

    @property
    def listed(self) -> Sequence[PageHead]:
        """The heads of the table."""
        if not self.many:
            return self.heads
        return [head for head in self.heads if head.kind != "other"][:_MANY_ROWS]


class Content(TypedDict, total=False):
    """What is on a page."""

    title: Required[str]  # what was looked at
    subtitle: str
    facts: Sequence[tuple[str, str]]  # name and value, shown at the top: counts, sizes
    notes: Sequence[str]  # what was sampled, truncated or dropped
    grid: HeadGrid | None  # what each head does
    highlights: Sequence[tuple[str, str]]  # a head's name (`L7H9`) and in what it goes furthest
    sections: Sequence[Section]  # one per analysis
    provenance: Mapping[
        str, Any
    ]  # versions, fingerprints, parameters: shown at the end, mappings as nested lists
    absent: Sequence[
        str
    ]  # what does not apply to this model or corpus, with the reason: named once, at the end
    citations: Sequence[str]  # web addresses in them are the only links that leave the page
    tables: Sequence[
        PageTable
    ]  # what concerns all heads, each a section of its own before the figures
    data: (
        Mapping[str, Any] | None
    )  # what the page's script reads (`headwise.page.data.page_data`); no script without
    files: Sequence[
        tuple[str, str]
    ]  # label and file, relative to the page, to link at the top (the atlas itself)


def write_page(path: Path | str, **content: Unpack[Content]) -> None:
    """Write one self-contained HTML page (see `Content`), usually `index.html`, whole or not at
    all."""
    path = Path(path)
    write_atomically(path, render_page(path.parent, **content).encode())


def render_page(folder: Path | None = None, **content: Unpack[Content]) -> str:
    """The page as a string; SVG files given by a relative path are read from `folder`."""
    given: dict[str, Any] = {
        "subtitle": "",
        "grid": None,
        "data": None,
        **dict.fromkeys(
            ("facts", "notes", "highlights", "sections", "tables", "absent", "citations", "files"),
            (),
        ),
        **content,
    }
    names = [section.name for section in given["sections"]]
    if len(set(names)) != len(names):
        raise ParameterError(f"`sections` must have different names; they are {', '.join(names)}.")
    scripted = given["data"] is not None
    given |= {"embed": lambda figure: _embed(figure, folder, scripted), "many_rows": _MANY_ROWS}
    if scripted:
        script = page_script()
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
        given |= {"script": Markup(script), "script_hash": Markup(f"sha256-{digest}")}
        given["data_text"] = Markup(data_text(given["data"]))
    given["head_names"] = {head.name for head in given["grid"].heads} if given["grid"] else set()
    given["papers"] = _by_paper(given["sections"])
    given["provenance"] = _tree(given.get("provenance", {}))
    return (
        page_environment()
        .get_template("template.html")
        .render({**given, "brand": "atlas of attention heads"})
    )


@cache
def page_environment() -> jinja2.Environment:
    """What all pages are written with: templates, filters, the style; made once, since templates
    are compiled."""
    loader = jinja2.PackageLoader("headwise.page", ".")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.trim_blocks = environment.lstrip_blocks = True
    filters = (_anchor, _brief, _cell, _ending, _linked, _numeric, _prose, _relative)
    environment.filters.update({function.__name__.strip("_"): function for function in filters})
    style = view_file("heads.css") + (Path(__file__).parent / "style.css").read_text(
        encoding="utf-8"
    )
    environment.globals.update(style=Markup(style), version=__version__, script="", data=None)
    return environment


def page_script() -> str:
    """The script of the page: its files one after the other, in a scope of their own."""
    folder = Path(__file__).parent / "assets"
    files = [
        joined_script(DRAWING),
        *((folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS),
    ]
    return '(() => {\n"use strict";\n' + "\n".join(files) + "\n})();"


def _by_paper(sections: Sequence[Section]) -> list[tuple[str, list[Section]]]:
    """Sections by the paper they follow, in the order in which papers first come; last what follows
    none."""
    found: dict[str, list[Section]] = {}
    for section in sections:
        found.setdefault(section.paper.partition(", ")[0], []).append(section)
    ours = found.pop("", [])
    return [*found.items(), *([("More", ours)] if ours else [])]


@dataclass(frozen=True, slots=True)
class _Image:
    address: str
    packed: bool  # whether the address is a packed SVG, for the script, or one that a browser shows
    width: int | None  # pixels on screen


def _embed(figure: PageFigure, folder: Path | None, packs: bool) -> _Image:
    """The figure as a data address, or packed for the page's script: always an image of its own, so
    that the ids of several SVGs never meet and no script in one can run."""
    if isinstance(figure.svg, Path):
        path = figure.svg if figure.svg.is_absolute() or folder is None else folder / figure.svg
        try:
            content = path.read_bytes()
        except OSError as error:
            raise OutputError(
                f"The figure {path} cannot be read ({error.strerror}): write it before the page."
            ) from None
    else:
        content = figure.svg.encode("utf-8")
    size = re.search(rb'<svg[^>]*\swidth="([0-9.]+)pt"', content[:4000])
    # Made for print, figures are shown 1.3 times as large on screen, so that their smallest letters
    # stay readable.
    width = round(float(size.group(1)) * 4 / 3 * 1.3) if size else None
    if packs:
        text = packed(content)
        bitmap = _bitmap(figure, folder, width) if len(text) > _LARGE_FIGURE else b""
        if not bitmap or len(bitmap) * 4 / 3 >= len(text):
            return _Image(text, True, width)
        return _Image(
            "data:image/png;base64," + base64.b64encode(bitmap).decode("ascii"), False, width
        )
    return _Image(
        "data:image/svg+xml;base64," + base64.b64encode(content).decode("ascii"), False, width
    )


def _bitmap(figure: PageFigure, folder: Path | None, width: int | None) -> bytes:
    """The PNG beside the page of a figure with thousands of points, as large as a screen shows it;
    nothing where there is none. The SVG lies beside the page too."""
    from PIL import Image

    name = next((name for name in figure.files if name.endswith(".png")), None)
    if name is None or folder is None or width is None or not (folder / name).is_file():
        return b""
    with Image.open(folder / name) as image:
        wide = min(round(width * 1.25), image.width)  # more than its place, for dense screens
        small = image.convert("RGB").resize(
            (wide, max(1, round(image.height * wide / image.width)))
        )
    written = io.BytesIO()
    small.quantize(128, dither=Image.Dither.NONE).save(written, "png", optimize=True)
    return written.getvalue()


def _anchor(text: str) -> str:
    """A text as an id within the page."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"


def _brief(title: str) -> str:
    """A title for the list of contents: what stands before its colon."""
    return title.partition(":")[0]


def _numeric(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool)


def _cell(value: Any) -> str:
    """A table cell: numbers to four digits, a dash where there is none."""
    if value is None:
        return "–"
    if not _numeric(value):
        return str(value)
    number = float(value)
    if math.isnan(number):
        return "–"
    if number.is_integer() and abs(number) < 1e15:
        text = f"{int(number):,}" if abs(number) >= 10_000 else str(int(number))
    elif 1e-3 <= abs(number) < 1e6:
        text = f"{number:.4g}" if abs(number) >= 1 else f"{number:.3f}"
    else:
        text = f"{number:.2e}"
    return text.replace("-", "−") if number < 0 else text


def _prose(text: str) -> Markup:
    """Paragraphs parted by blank lines, code in backticks."""
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    marked = (_marked(part, r"`([^`]+)`", "<code>{}</code>") for part in paragraphs)
    return Markup("\n").join(Markup("<p>{}</p>").format(part) for part in marked)


def _linked(text: str) -> Markup:
    """A citation with its web addresses as links."""
    return _marked(
        text, r"(https?://[^\s<>\"']*[^\s<>\"'.,;)])", '<a href="{0}" rel="noopener">{0}</a>'
    )


def _marked(text: str, pattern: str, markup: str) -> Markup:
    """A text with what the pattern finds in markup; all of it is escaped."""
    parts = re.split(pattern, text)
    return Markup("").join(
        Markup(markup).format(part) if i % 2 else escape(part) for i, part in enumerate(parts)
    )


def _relative(path: str) -> str:
    """A file beside the page as a link; anything that is not a plain relative path is refused."""
    plain = str(path).replace("\\", "/")
    parts = PurePosixPath(plain).parts
    if not parts or plain.startswith("/") or ".." in parts or urlsplit(plain).scheme:
        raise ParameterError(
            f"A file linked from the page must be a relative path inside its folder; it is {path!r}."
        )
    return quote(plain)


def _ending(path: str) -> str:
    return PurePosixPath(path).suffix.lstrip(".").upper() or path


def _tree(value: Any) -> Any:
    """Provenance as the template walks it: mappings to lists of pairs, everything else to text."""
    if isinstance(value, Mapping):
        return [(str(key), _tree(item)) for key, item in value.items()]
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        nested = any(isinstance(item, Mapping | list | tuple) for item in value)
        return (
            json.dumps(value, ensure_ascii=False, default=str)
            if nested
            else ", ".join(map(str, value)) or "–"
        )
    return "–" if value is None else str(value)
