"""What one analysis has to show on the page: figures and tables as files, and the words around
them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import xarray as xr

from headwise.atlas import Atlas, measures
from headwise.atlas.describe import LABEL_GROUPS, SHORT_LABELS
from headwise.core.failures import Failure
from headwise.core.spreadsheet import csv_text
from headwise.page.data import described, model_structure
from headwise.page.sample import Sample, draw_all_maps, draw_heads, telling_heads
from headwise.page.write import HeadGrid, PageFigure, PageHead, PageTable, Section
from headwise.plots import figure_bytes, figures_for
from headwise.plots.registry import DrawnFigure, FigureSpec, TableSpec, tables_for
from headwise.plots.save import FORMATS

Made = TypeVar("Made")
# The columns of `describe_heads` that the page shows, and how it names them.
TOLD = {
    "attention": "attention goes to",
    "finds": "finds (baseline)",
    "roles": "roles",
    "maps": "its maps are",
}
TABLE_ROWS = 400  # longer tables are on the page as a link to their CSV


@dataclass(slots=True)
class Drawing:
    """A section, the bytes of its files by their path from the page, and what of it failed
    unexpectedly."""

    section: Section = field(default_factory=lambda: Section("", ""))
    files: dict[str, bytes] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def attempt(self, what: str, make: Callable[[], list[Made]]) -> list[Made]:
        """What is made; nothing where that fails, which is noted."""
        try:
            return make()
        except Exception as error:  # a figure, of whoever wrote it, may fail in any way
            self.failures.append(Failure.of(what, error))
            return []

    def figure(self, group: str, drawn: DrawnFigure, numbers: str = "") -> PageFigure:
        """A figure in every format, and how the page shows it; `numbers` is the table it shows."""
        names = {format: f"figures/{group}-{drawn.name}.{format}" for format in FORMATS}
        self.files |= {path: figure_bytes(drawn.figure, format) for format, path in names.items()}
        files = [*names.values(), *filter(None, [numbers])]
        return PageFigure(drawn.title, drawn.caption, Path(names["svg"]), files, drawn.paper)

    def table(self, table: pd.DataFrame, name: str) -> str:
        """A table as CSV; returns its path as the page links it."""
        path = f"tables/{name}.csv"
        self.files[path] = csv_text(table).encode()
        return path


def draw_section(atlas: Atlas, name: str) -> Drawing:
    """The figures and tables of one analysis."""
    model, corpus = atlas.provenance.get("model", {}), atlas.provenance.get("corpus", {})
    dataset = atlas[name].assign_attrs(
        {"corpus": corpus.get("name", ""), **atlas[name].attrs, "model": model.get("name", "")}
    )
    drawing = Drawing()
    everything = drawing.table(atlas.to_dataframe(name), name)

    def drawn_of(spec: FigureSpec) -> list[PageFigure]:
        return [drawing.figure(name, one, everything) for one in spec.draw(dataset)]

    figures: list[PageFigure] = []
    for spec in figures_for(name):
        figures += drawing.attempt(f"figure {name}-{spec.name}", partial(drawn_of, spec))
    tables: list[PageTable] = []
    for table in tables_for(name):
        for frame in drawing.attempt(f"table {name}-{table.name}", partial(_table, table, dataset)):
            if len(frame):
                csv = drawing.table(frame, f"{name}-{table.name}")
                tables.append(
                    PageTable(table.title, list(frame.columns), _shown(frame), csv, table.note)
                )
    best = atlas.summary(name)
    if 0 < len(best) <= TABLE_ROWS:
        best = best.drop(columns="analysis").dropna(subset="mean")
        tables.append(
            PageTable("Extremes over heads", list(best.columns), _shown(best), everything)
        )
    attrs = dataset.attrs
    drawing.section = Section(
        name,
        str(attrs.get("title", name)),
        ", ".join(str(attrs[key]) for key in ("paper", "section") if attrs.get(key)),
        figures=figures,
        tables=tables,
        definition=_what(attrs, measures(dataset)),
        notes=_section_notes(atlas, name) + [failure.sentence for failure in drawing.failures],
    )
    return drawing


def draw_sample(atlas: Atlas, sample: Sample) -> Drawing:
    """One input, drawn whole."""
    drawing = Drawing()

    def heads() -> list[PageFigure]:
        title, paper = "Telling heads on one input", "Clark et al. 2019, Fig 1"
        caption = "Tokens look (left) at tokens (right); a line is as dark as its weight."
        figure = draw_heads(sample, telling_heads(atlas))
        return [drawing.figure("sample", DrawnFigure("heads", title, caption, paper, figure))]

    def maps() -> list[PageFigure]:
        title, paper = "All maps of one input", "Kovaleva et al. 2019, App. A"
        caption = "Row: the token that looks; column: the token looked at; darker is more."
        return [
            drawing.figure(
                "sample", DrawnFigure("maps", title, caption, paper, draw_all_maps(sample))
            )
        ]

    figures = drawing.attempt("figure sample-heads", heads) + drawing.attempt(
        "figure sample-maps", maps
    )
    drawing.section = Section(
        "sample",
        "One input, drawn whole",
        text=f"Tokens: {' '.join(sample.tokens)}",
        figures=figures,
        notes=[failure.sentence for failure in drawing.failures],
    )
    return drawing


def head_grid(atlas: Atlas) -> tuple[HeadGrid | None, dict[str, bytes]]:
    """A word for each head with the findings behind it, and its table as a file; None where the
    atlas knows no heads."""
    heads = described(atlas)
    if not len(heads):
        return None, {}
    told = {name: words for name, words in TOLD.items() if (heads[name] != "").any()}
    heads = heads.drop(columns="models", errors="ignore")
    cells = [
        PageHead(
            row["name"],
            row["layer"],
            SHORT_LABELS.get(row["does"], row["does"]),
            row["kind"],
            SHORT_LABELS.get(row["below"], row["below"]),
            row["best"],
            [row[name] for name in told],
        )
        for row in heads.to_dict("records")
    ]
    drawing = Drawing()
    found = model_structure(atlas)
    groups = [(name, size) for name, size in found.get("kv_groups", ())]
    layers = dict(enumerate(found.get("layer_kinds", ())))
    table = drawing.table(heads.drop(columns="below"), "heads")
    grid = HeadGrid(cells, list(told.values()), LABEL_GROUPS, table, groups, layers)
    return grid, drawing.files


def _section_notes(atlas: Atlas, analysis: str) -> list[str]:
    """What one analysis did not see or could not compute."""
    sampled = atlas.provenance.get("sampled", {}).get(analysis)
    corpus = atlas.provenance.get("corpus", {})
    seen = {
        name: part for name, part in corpus.get("parts", {}).items() if analysis in part["analyses"]
    }
    notes = [
        f"Read {name}, {part['licence']}: {part['examples']:,} examples."
        for name, part in seen.items()
    ]
    if not seen and corpus.get("parts"):
        notes = [f"Read {corpus['name']}, {corpus['licence']}: {corpus['examples']:,} examples."]
    notes += (
        [f"Read the first {sampled:,} examples only: its budget, which the option `full` lifts."]
        if sampled
        else []
    )
    return notes


def _what(attrs: Mapping[str, object], names: list[str]) -> str:
    text = f"Measures: {', '.join(names)}. Means are over examples, with their 95 % interval in the table."
    parameters = json.loads(str(attrs.get("parameters", "{}")))
    if parameters:
        text += (
            " Parameters: "
            + ", ".join(f"{key} = {value}" for key, value in parameters.items())
            + "."
        )
    return text


def _table(spec: TableSpec, dataset: xr.Dataset) -> list[pd.DataFrame]:
    """The table; what this model has not is no column."""
    return [spec.function(dataset).dropna(axis="columns", how="all")]


def _shown(frame: pd.DataFrame) -> list[list[Any]]:
    """The cells of a table as people read them: three figures behind the point."""
    return [
        [f"{cell:.3f}" if isinstance(cell, float) and not pd.isna(cell) else cell for cell in row]
        for row in frame.values.tolist()
    ]
