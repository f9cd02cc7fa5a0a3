"""Write the page of an atlas: plain data in, one self-contained HTML file out."""

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
from headwise.core.labels import HEAD_NAME
from headwise.core.version import __version__
from headwise.page.data import data_text, packed
from headwise.page.unfinished import Banner
from headwise.page.wording import run_facts
from headwise.plots.scripts import PAGE, design_style, joined_script

_MANY_HEADS = 600  # a grid of more heads has no room for labels in its cells
LARGE_FIGURE = 100_000  # characters of a packed SVG; a larger one is replaced by a bitmap
_MANY_ROWS = 400  # of a table on the page; the CSV has all
_ORDINALS = (
    *("first", "second", "third", "fourth", "fifth"),
    *("sixth", "seventh", "eighth", "ninth", "tenth"),
)
# Where matplotlib writes points (a 72nd of an inch) with six decimals: paths, positions, shifts.
# Scales have many decimals for a reason, and are no coordinates.
_COORDINATES = re.compile(rb'\s(?:d|x|y)="[^"]*"|translate\([^)]*\)')
_LONG_NUMBER = re.compile(rb"\d+\.\d{3,}(?![\de])")
# Files in assets/, in the order in which the script needs them.
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
)
GROWING_SCRIPT = "grow"


@dataclass(frozen=True, slots=True)
class PageFigure:
    """One figure: its SVG (text, or the path of a file) and the files to download.

    Paths are relative to the page. `inline` is SVG that the page shows in place of the picture, as
    a part of itself."""

    title: str
    caption: str
    svg: str | Path
    files: Sequence[str] = ()
    paper: str = ""
    inline: str = ""


@dataclass(frozen=True, slots=True)
class PageTable:
    """One table: column names, rows of strings and numbers, and its CSV file relative to the page.

    None and NaN are shown as a dash."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    csv: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """The figures, tables and texts of one analysis.

    In `text` and `definition`, blank lines separate paragraphs and backticks mark code."""

    name: str
    title: str
    paper: str = ""
    text: str = ""
    figures: Sequence[PageFigure] = ()
    tables: Sequence[PageTable] = ()
    definition: str = ""
    notes: Sequence[str] = field(default_factory=tuple)  # what was sampled or left out here


@dataclass(frozen=True, slots=True)
class PageHead:
    """One head in the grid: its label, what is shown below it, and its row in the table of heads."""

    name: str
    layer: int
    word: str
    kind: str
    below: str = ""
    strong: bool = False
    cells: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class HeadGrid:
    """The grid of heads, layers down and heads across, and the table below it.

    `kinds` says what each colour means, `columns` names the cells of the table, `groups` are the
    key/value groups of heads with their sizes, `layers` says what layers may attend to where they
    differ. With more than `_MANY_HEADS` heads, cells show only their colour, and the table has
    only labelled heads."""

    heads: Sequence[PageHead]
    columns: Sequence[str]
    kinds: Mapping[str, str]
    csv: str = ""
    groups: Sequence[tuple[str, int]] = ()
    layers: Mapping[int, str] = field(default_factory=dict)

    @property
    def many(self) -> bool:
        """Whether there are too many heads for labels in the cells."""
        return len(self.heads) > _MANY_HEADS

    @property
    def example(self) -> tuple[str, str]:
        """The name of a head of this grid, and what it says in words; by default L7H9.

        The last head of the eighth layer or of an earlier one: a higher count is hard to read."""
        example = ("L7H9", "the tenth head of the eighth layer")
        for head in self.heads:
            match = HEAD_NAME.match(head.name)
            if match is None or head.layer > 7 or int(match[2]) >= len(_ORDINALS):
                continue
            layer, position = _ORDINALS[head.layer], _ORDINALS[int(match[2])]
            example = (head.name, f"the {position} head of the {layer} layer")
        return example

    @property
    def listed(self) -> Sequence[PageHead]:
        """The heads of the table."""
        if not self.many:
            return self.heads
        return [head for head in self.heads if head.kind != "other"][:_MANY_ROWS]

    @property
    def labelled(self) -> bool:
        """Whether any head has a label: an atlas of one analysis may have none to give."""
        return any(head.kind != "other" for head in self.heads)


class Content(TypedDict, total=False):
    """The content of a page."""

    title: Required[str]
    subtitle: str
    facts: Sequence[tuple[str, str]]  # name and value, shown at the top: counts, sizes
    notes: Sequence[str]  # what was sampled, truncated or left out
    grid: HeadGrid | None  # what each head does
    highlights: Sequence[tuple[str, str]]  # a head's name (`L7H9`) and in what it is most extreme
    sections: Sequence[Section]  # one per analysis
    # Versions, fingerprints, parameters: shown at the end, mappings as nested lists.
    provenance: Mapping[str, Any]
    # What was not computed for this model or corpus, with the reason: listed once, at the end.
    absent: Sequence[str]
    citations: Sequence[str]  # web addresses in them are the only links that leave the page
    # Tables on all heads, each a section of its own before the figures.
    tables: Sequence[PageTable]
    # What the page's script reads (`headwise.page.data.page_data`); without it, no script.
    data: Mapping[str, Any] | None
    # Label and path, relative to the page, of files to link at the top (the atlas itself).
    files: Sequence[tuple[str, str]]
    # What is still to come; None for a finished page.
    banner: Banner | None


def write_page(path: Path | str, **content: Unpack[Content]) -> None:
    """Write one self-contained HTML page, usually `index.html`, atomically (see `Content`)."""
    path = Path(path)
    write_atomically(path, render_page(path.parent, **content).encode())


def render_page(folder: Path | None = None, **content: Unpack[Content]) -> str:
    """Return the page as a string; relative paths of SVG files are read from `folder`."""
    sections = content.get("sections", ())
    names = [section.name for section in sections]
    if len(set(names)) != len(names):
        raise ParameterError(f"`sections` must have different names; they are {', '.join(names)}.")
    data = content.get("data")
    has_script = data is not None
    variables: dict[str, Any] = {
        "subtitle": "",
        "grid": None,
        "data": None,
        "facts": (),
        "notes": (),
        "highlights": (),
        "sections": (),
        "tables": (),
        "absent": (),
        "citations": (),
        "files": (),
        "banner": None,
        **content,
        "brand": "atlas of attention heads",
        "many_rows": _MANY_ROWS,
        "papers": _by_paper(sections),
        "provenance": _tree(content.get("provenance", {})),
        "run_facts": run_facts(content.get("provenance", {})),
        "embed": lambda figure: _embed(figure, folder, has_script),
    }
    grid = content.get("grid")
    variables["head_names"] = {head.name for head in grid.heads} if grid else set()
    banner = content.get("banner")
    is_live = banner is not None and banner.live
    # Only a page that asks its server for more may connect to it.
    variables["connects"] = is_live
    if data is not None:
        variables |= script_variables(page_script(growing=is_live))
        variables["data_text"] = Markup(data_text(data))
    return page_environment().get_template("template.html").render(variables)


def script_variables(script: str) -> dict[str, Markup]:
    """Return what a template needs of a script: the page's content security policy allows only the
    one with this digest."""
    digest = hashlib.sha256(script.encode()).digest()
    return {"script": Markup(script), "script_hash": Markup(f"sha256-{_base64(digest)}")}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


@cache
def page_environment() -> jinja2.Environment:
    """Return the templates, filters and style of all pages.

    It is made once, since compiling templates takes time."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("headwise.page", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (_anchor, _cell, _ending, _linked, _numeric, _prose, _relative):
        environment.filters[function.__name__.strip("_")] = function
    page_style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    style = Markup(design_style() + page_style)
    environment.globals.update(
        style=style, version=__version__, script="", data=None, connects=False
    )
    return environment


def page_script(growing: bool = False) -> str:
    """Return the script of the page: its files joined, in a scope of their own.

    Parameters
    ----------
    growing : bool, default False
        With what reloads a page that grows.
    """
    folder = Path(__file__).parent / "assets"
    files = [joined_script(PAGE)]
    for name in (*SCRIPTS, GROWING_SCRIPT) if growing else SCRIPTS:
        files.append((folder / f"{name}.js").read_text(encoding="utf-8"))
    return in_own_scope("\n".join(files))


def in_own_scope(script: str) -> str:
    """Return a script whose names nothing else on the page sees."""
    return f'(() => {{\n"use strict";\n{script}\n}})();'


def _by_paper(sections: Sequence[Section]) -> list[tuple[str, list[Section]]]:
    """Return sections by paper, in order of appearance; those that follow none come last."""
    by_paper: dict[str, list[Section]] = {}
    for section in sections:
        paper = section.paper.partition(", ")[0]
        by_paper.setdefault(paper, []).append(section)
    without_paper = by_paper.pop("", [])
    if without_paper:
        return [*by_paper.items(), ("More", without_paper)]
    return list(by_paper.items())


@dataclass(frozen=True, slots=True)
class _Image:
    """How the page shows a figure."""

    address: str
    packed: bool  # whether the address is a packed SVG for the script, not one for browsers
    width: int | None  # pixels on screen


def _embed(figure: PageFigure, folder: Path | None, has_script: bool) -> _Image:
    """Return a figure as a data address, or packed for the page's script.

    Figures are images of their own: the ids of several SVGs cannot clash, and no script inside
    one can run."""
    content = _svg_content(figure, folder)
    width = None
    size = re.search(rb'<svg[^>]*\swidth="([0-9.]+)pt"', content[:4000])
    if size:
        # Figures are made for print: 1.3 times as large, their smallest letters are readable.
        width = round(float(size.group(1)) * 4 / 3 * 1.3)
    if not has_script:
        return _Image(f"data:image/svg+xml;base64,{_base64(content)}", False, width)
    packed_svg = packed(_rounded(content))
    bitmap = b""
    if len(packed_svg) > LARGE_FIGURE:
        bitmap = _bitmap(figure, folder, width)
    if not bitmap or len(bitmap) * 4 / 3 >= len(packed_svg):  # 4 / 3: the cost of base64
        return _Image(packed_svg, True, width)
    return _Image(f"data:image/webp;base64,{_base64(bitmap)}", False, width)


def _rounded(svg: bytes) -> bytes:
    """Return an SVG of matplotlib with coordinates to a hundredth of a point.

    That is a fiftieth of a pixel, and about a quarter less to store in large figures. The files in
    `figures/` stay exact."""

    def shorten(number: re.Match[bytes]) -> bytes:
        return (b"%.2f" % float(number[0])).rstrip(b"0").rstrip(b".")

    return _COORDINATES.sub(lambda part: _LONG_NUMBER.sub(shorten, part[0]), svg)


def _svg_content(figure: PageFigure, folder: Path | None) -> bytes:
    if not isinstance(figure.svg, Path):
        return figure.svg.encode("utf-8")
    path = figure.svg
    if folder is not None and not path.is_absolute():
        path = folder / path
    try:
        return path.read_bytes()
    except OSError as error:
        raise OutputError(
            f"The figure {path} cannot be read ({error.strerror}): write it before the page."
        ) from None


def _bitmap(figure: PageFigure, folder: Path | None, width: int | None) -> bytes:
    """Return a figure's PNG at screen size, as WebP, for figures with thousands of points.

    Returns no bytes where there is no PNG beside the page."""
    from PIL import Image

    name = next((name for name in figure.files if name.endswith(".png")), None)
    if name is None or folder is None or width is None or not (folder / name).is_file():
        return b""
    with Image.open(folder / name) as image:
        new_width = min(round(width * 1.25), image.width)  # some more, for dense screens
        new_height = max(1, round(image.height * new_width / image.width))
        small = image.convert("RGB").resize((new_width, new_height))
    buffer = io.BytesIO()
    # Half the bytes of a PNG of 128 colours, and no difference that can be seen.
    small.save(buffer, "webp", quality=82, method=4)
    return buffer.getvalue()


def _anchor(text: str) -> str:
    """Return a text as an id within the page."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"


def _numeric(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool)


def _cell(value: Any) -> str:
    """Return the text of a table cell: numbers with four digits, a dash if there is none."""
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
    """Return a text as paragraphs (separated by blank lines), with code in backticks marked."""
    paragraphs = []
    for part in re.split(r"\n\s*\n", text):
        if part.strip():
            marked = _marked(part.strip(), r"`([^`]+)`", "<code>{}</code>")
            paragraphs.append(Markup("<p>{}</p>").format(marked))
    return Markup("\n").join(paragraphs)


def _linked(text: str) -> Markup:
    """Return a citation with its web addresses as links."""
    address = r"(https?://[^\s<>\"']*[^\s<>\"'.,;)])"
    return _marked(text, address, '<a href="{0}" rel="noopener">{0}</a>')


def _marked(text: str, pattern: str, markup: str) -> Markup:
    """Return a text with the matches of a pattern in markup; all of the text is escaped."""
    parts = []
    for index, part in enumerate(re.split(pattern, text)):
        # Splitting by a group puts the matches at odd places.
        is_match = index % 2 == 1
        parts.append(Markup(markup).format(part) if is_match else escape(part))
    return Markup("").join(parts)


def _relative(path: str) -> str:
    """Return a file beside the page as a link; reject all but plain relative paths."""
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
    """Return provenance for the template: mappings as lists of pairs, everything else as text."""
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return [(str(key), _tree(item)) for key, item in value.items()]
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping | list | tuple) for item in value):
            return json.dumps(value, ensure_ascii=False, default=str)
        return ", ".join(map(str, value)) or "–"
    return str(value)
