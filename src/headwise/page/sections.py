"""The section of one analysis on the page: figures and tables as files, and the text around them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headwise.atlas import Atlas, measures
from headwise.atlas.describe import LABEL_CATEGORIES, SHORT_LABELS
from headwise.atlas.role_words import roles_text
from headwise.core.failures import Failure, isolated
from headwise.core.spreadsheet import csv_text
from headwise.page.data import described, model_structure, packed
from headwise.page.measures import paper_of
from headwise.page.sample import Sample, draw_all_maps, draw_heads, telling_heads
from headwise.page.wording import parameters_text
from headwise.page.write import (
    LARGE_FIGURE,
    HeadGrid,
    PageFigure,
    PageHead,
    PageTable,
    Section,
)
from headwise.plots import figure_bytes, figures_for
from headwise.plots.registry import DrawnFigure, inline_svg, tables_for
from headwise.plots.style import FORMATS

# The columns of `describe_heads` in the table of heads, and their names on the page.
HEAD_COLUMNS = {
    "also": "also",
    "attention": "attention goes to (token types and positions overlap)",
    "finds": "finds (baseline)",
    "roles": "roles",
    "maps": "its maps are",
}
TABLE_ROWS = 400  # longer tables are on the page as a link to their CSV


@dataclass(slots=True)
class Drawing:
    """A section, the content of its files by their path from the page, and unexpected failures.

    `formats` are those of figures beside SVG, which the page shows."""

    section: Section = field(default_factory=lambda: Section("", ""))
    files: dict[str, bytes] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    formats: Sequence[str] = ()

    def figure(self, group: str, drawn: DrawnFigure, numbers: str = "") -> PageFigure:
        """Add a figure as SVG, and in the other formats that are wanted, and return how the page
        shows it.

        A figure that the page shows as a bitmap is written as PNG too.

        Parameters
        ----------
        group : str
            The analysis.
        drawn : DrawnFigure
            The figure.
        numbers : str, default ""
            The path of the table with the numbers that it shows.
        """
        svg_content = figure_bytes(drawn.figure, "svg")
        is_large = len(packed(svg_content)) > LARGE_FIGURE
        paths = []
        for extension in FORMATS:
            path = f"figures/{group}-{drawn.name}.{extension}"
            if extension == "svg":
                content = svg_content
            elif extension in self.formats or (extension == "png" and is_large):
                content = figure_bytes(drawn.figure, extension)
            else:
                continue
            self.files[path] = content
            paths.append(path)
        if numbers:
            paths.append(numbers)
        svg = Path(f"figures/{group}-{drawn.name}.svg")
        return PageFigure(drawn.title, drawn.caption, svg, paths, drawn.paper)

    def table(self, table: pd.DataFrame, name: str) -> str:
        """Add a table as CSV and return its path, relative to the page."""
        path = f"tables/{name}.csv"
        self.files[path] = csv_text(table).encode()
        return path


def draw_section(atlas: Atlas, name: str, formats: Sequence[str] = ()) -> Drawing:
    """Draw the figures and tables of one analysis; `formats` of figures beside SVG."""
    model = atlas.provenance.get("model", {})
    corpus = atlas.provenance.get("corpus", {})
    dataset = atlas[name].assign_attrs(
        {"corpus": corpus.get("name", ""), **atlas[name].attrs, "model": model.get("name", "")}
    )
    drawing = Drawing(formats=formats)
    all_values = drawing.table(atlas.to_dataframe(name), name)

    figures: list[PageFigure] = []
    for spec in figures_for(name):
        with isolated(f"figure {name}-{spec.name}", drawing.failures.append):
            for drawn in spec.draw(dataset):
                page_figure = drawing.figure(name, drawn, all_values)
                inline = inline_svg(name, drawn.name, dataset)
                figures.append(replace(page_figure, inline=inline))

    tables: list[PageTable] = []
    for table in tables_for(name):
        with isolated(f"table {name}-{table.name}", drawing.failures.append):
            # Columns that are empty for this model are left out.
            frame = table.function(dataset).dropna(axis="columns", how="all")
            if len(frame):
                csv = drawing.table(frame, f"{name}-{table.name}")
                columns = list(frame.columns)
                tables.append(PageTable(table.title, columns, _cells(frame), csv, table.note))
    extremes = atlas.summary(name)
    if 0 < len(extremes) <= TABLE_ROWS:
        extremes = extremes.drop(columns="analysis").dropna(subset="mean")
        columns = list(extremes.columns)
        tables.append(PageTable("Extremes over heads", columns, _cells(extremes), all_values))

    failure_notes = [failure.sentence for failure in drawing.failures]
    drawing.section = Section(
        name,
        str(dataset.attrs.get("title", name)),
        paper_of(dataset),
        text=str(dataset.attrs.get("summary", "")),
        figures=figures,
        tables=tables,
        definition=_definition(dataset),
        notes=_section_notes(atlas, name) + failure_notes,
    )
    return drawing


def draw_sample(atlas: Atlas, sample: Sample, formats: Sequence[str] = ()) -> Drawing:
    """Draw one input with the attention of every head; `formats` of figures beside SVG."""
    drawing = Drawing(formats=formats)
    figures: list[PageFigure] = []
    with isolated("figure sample-heads", drawing.failures.append):
        heads = DrawnFigure(
            name="heads",
            title="Most extreme heads on one input",
            caption="Tokens (left) attend to tokens (right); a line is as dark as its weight.",
            paper="Clark et al. 2019, Fig 1",
            figure=draw_heads(sample, telling_heads(atlas)),
        )
        figures.append(drawing.figure("sample", heads))
    with isolated("figure sample-maps", drawing.failures.append):
        maps = DrawnFigure(
            name="maps",
            title="All maps of one input",
            caption="Row: the token that attends; column: the token attended to; darker is more.",
            paper="Kovaleva et al. 2019, App. A",
            figure=draw_all_maps(sample),
        )
        figures.append(drawing.figure("sample", maps))
    drawing.section = Section(
        "sample",
        "One input, drawn whole",
        text=f"Tokens: {' '.join(sample.tokens)}",
        figures=figures,
        notes=[failure.sentence for failure in drawing.failures],
    )
    return drawing


def head_grid(atlas: Atlas) -> tuple[HeadGrid | None, dict[str, bytes]]:
    """Return the grid of heads with their labels, and its table as a file.

    The grid is None if the atlas has no measures over heads."""
    heads = described(atlas)
    if not len(heads):
        return None, {}
    columns = {}
    for name, title in HEAD_COLUMNS.items():
        if (heads[name] != "").any():
            columns[name] = title
    heads = heads.drop(columns="models", errors="ignore")
    page_heads = []
    for row in heads.to_dict("records"):
        words = {**row, "roles": roles_text(row["roles"])}
        page_heads.append(
            PageHead(
                name=row["name"],
                layer=row["layer"],
                word=SHORT_LABELS.get(row["does"], row["does"]),
                kind=row["kind"],
                below=SHORT_LABELS.get(row["below"], row["below"]),
                strong=row["best"],
                cells=[words[name] for name in columns],
            )
        )
    drawing = Drawing()
    csv = drawing.table(heads.drop(columns="below"), "heads")
    structure = model_structure(atlas)
    grid = HeadGrid(
        heads=page_heads,
        columns=list(columns.values()),
        kinds=LABEL_CATEGORIES,
        csv=csv,
        groups=[(name, size) for name, size in structure.get("kv_groups", ())],
        layers=dict(enumerate(structure.get("layer_kinds", ()))),
    )
    return grid, drawing.files


def _section_notes(atlas: Atlas, analysis: str) -> list[str]:
    """Return what an analysis read, and whether that is less than the corpus."""
    corpus = atlas.provenance.get("corpus", {})
    parts = corpus.get("parts", {})
    notes = []
    for name, part in parts.items():
        if analysis in part["analyses"]:
            notes.append(f"Read {name}, {part['licence']}: {part['examples']:,} examples.")
    if parts and not notes:
        notes.append(
            f"Read {corpus['name']}, {corpus['licence']}: {corpus['examples']:,} examples."
        )
    n_sampled = atlas.provenance.get("sampled", {}).get(analysis)
    if n_sampled:
        notes.append(
            f"Read the first {n_sampled:,} examples only: its budget, which the option `full` lifts."
        )
    return notes


def _definition(dataset: xr.Dataset) -> str:
    """Return the measures and parameters of an analysis in two sentences."""
    text = (
        f"Measures: {', '.join(measures(dataset))}. Means are over examples, with their 95 % "
        "interval in the table."
    )
    parameters = json.loads(str(dataset.attrs.get("parameters", "{}")))
    if parameters:
        text += f" Parameters: {parameters_text(parameters)}."
    return text


def _cells(frame: pd.DataFrame) -> list[list[Any]]:
    """Return the cells of a table for readers, with three decimals.

    They are plain values, which are the same after they were in a checkpoint."""
    rows = []
    for row in frame.values.tolist():
        cells = []
        for cell in row:
            if isinstance(cell, np.generic):
                cell = cell.item()
            if isinstance(cell, float) and not pd.isna(cell):
                cell = f"{cell:.3f}"
            cells.append(cell)
        rows.append(cells)
    return rows
