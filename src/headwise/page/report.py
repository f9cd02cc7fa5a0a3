"""Everything a user opens after a run: figures, tables and the page, written from an atlas."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from headwise.atlas import Atlas, measures
from headwise.atlas.describe import KINDS, OTHER, SHORT
from headwise.core.errors import OutputError
from headwise.core.labels import head_name
from headwise.page.sample import Sample, draw_all_maps, draw_heads, telling_heads
from headwise.page.write import HeadGrid, PageFigure, PageHead, PageTable, Section, write_page
from headwise.plots import figures_for, save_figure
from headwise.plots.registry import tables_for

# From what a head looks at, to what it finds, to what heads do together; an analysis not named here comes after these.
READING_ORDER = (
    *("surface", "offsets", "patterns", "roles", "features", "token_pairs", "dependency", "coreference", "frames"),
    *("distance", "gradient", "attribution", "probing", "tree_probe"),
)
# The columns of `describe_heads` that the page shows, and how it names them.
TOLD = {"attention": "attention goes to", "finds": "finds (baseline)", "roles": "roles", "maps": "its maps are"}
TABLE_ROWS = 400  # longer tables are on the page as a link to their CSV


def write_report(
    atlas: Atlas, folder: Path, sample: Sample | None = None, report: Callable[[str, int, int], None] | None = None
) -> Path:
    """Write `figures/`, `tables/` and `index.html` beside the atlas; returns the page's path. With a sample, one input is drawn whole too."""
    model, corpus = atlas.provenance.get("model", {}), atlas.provenance.get("corpus", {})
    sections = []
    for done, name in enumerate(
        sorted(atlas, key=lambda name: READING_ORDER.index(name) if name in READING_ORDER else len(READING_ORDER))
    ):
        dataset = atlas[name].assign_attrs(model=model.get("name", ""), corpus=corpus.get("name", ""))
        figures = []
        for spec in figures_for(name):
            for drawn in spec.draw(dataset):
                figures.append(
                    _saved(drawn.figure, folder, f"{name}-{drawn.name}", drawn.title, drawn.caption, drawn.paper)
                )
        table = atlas.to_dataframe(name)
        csv = _write_csv(table, folder / "tables" / f"{name}.csv")
        tables = []
        for made in tables_for(name):
            frame = made.function(dataset)
            if len(frame):
                own = _write_csv(frame, folder / "tables" / f"{name}-{made.name}.csv").relative_to(folder).as_posix()
                tables.append(PageTable(made.title, list(frame.columns), _shown(frame), own, made.note))
        best = _summary_table(atlas, name)
        if len(best):
            tables.append(
                PageTable(
                    "Extremes over heads", list(best.columns), best.values.tolist(), csv.relative_to(folder).as_posix()
                )
            )
        attrs = dataset.attrs
        sections.append(
            Section(
                name,
                str(attrs.get("title", name)),
                f"{attrs.get('paper', '')}, {attrs.get('section', '')}",
                figures=figures,
                tables=tables,
                definition=_what(dataset.attrs, measures(dataset)),
                notes=_section_notes(atlas, name),
            )
        )
        if report:
            report("figures", done + 1, len(atlas))
    if sample is not None:
        sections.append(_sample_section(atlas, folder, sample))
    page = folder / "index.html"
    watched = _corpus_name(corpus)
    write_page(
        page,
        title=f"What the heads of {model.get('name', '?')} do",
        subtitle=f"{atlas.layers} layers × {atlas.heads} heads, watched on {watched}",
        facts=[
            ("Architecture", str(model.get("architecture", "?"))),
            *((name.capitalize(), f"{corpus[name]:,}") for name in ("examples", "tokens") if name in corpus),
            ("Analyses", str(len(atlas))),
        ],
        files=[("everything as labelled arrays (atlas.nc)", "atlas.nc")] if (folder / "atlas.nc").exists() else [],
        notes=_notes(atlas),
        grid=_grid(atlas, folder),
        highlights=highlights(atlas),
        sections=sections,
        provenance={"digest": atlas.digest, **atlas.provenance},
        citations=list(
            dict.fromkeys(str(atlas[name].attrs["citation"]) for name in atlas if atlas[name].attrs.get("citation"))
        ),
    )
    return page


def _saved(figure: Figure, folder: Path, name: str, title: str, caption: str, paper: str) -> PageFigure:
    """Write a figure in every format and say how the page shows it."""
    paths = save_figure(figure, folder / "figures", name)
    svg = next(
        path for path in paths if path.suffix == ".svg"
    ).resolve()  # the page reads a relative path as beside itself
    return PageFigure(title, caption, svg, [path.relative_to(folder).as_posix() for path in paths], paper)


def _corpus_name(corpus: dict[str, Any]) -> str:
    name = str(corpus.get("name", "?"))
    return "the built-in demo corpus" if name == "demo" else name


def _grid(atlas: Atlas, folder: Path) -> HeadGrid | None:
    """A word for each head, and the findings behind it; None where the atlas has nothing to take one from."""
    heads = atlas.describe()
    if set(heads["kind"]) <= {"other"}:
        return None
    csv = _write_csv(heads, folder / "tables" / "heads.csv")
    told = {name: words for name, words in TOLD.items() if (heads[name] != "").any()}
    cells = [
        PageHead(
            row["name"],
            row["layer"],
            SHORT.get(row["does"], row["does"]),
            row["kind"],
            SHORT[row["looks"]] if row["does"] != row["looks"] and row["looks"] != OTHER else "",
            row["best"],
            [row[name] for name in told],
        )
        for row in heads.to_dict("records")
    ]
    return HeadGrid(cells, list(told.values()), KINDS, csv.relative_to(folder).as_posix())


def _sample_section(atlas: Atlas, folder: Path, sample: Sample) -> Section:
    drawn = [
        (
            "sample-heads",
            "Telling heads on one input",
            "Tokens look (left) at tokens (right); a line is as dark as its weight.",
            draw_heads(sample, telling_heads(atlas)),
            "Clark et al. 2019, Fig 1",
        ),
        (
            "sample-maps",
            "All maps of one input",
            "Row: the token that looks; column: the token looked at; darker is more.",
            draw_all_maps(sample),
            "Kovaleva et al. 2019, App. A",
        ),
    ]
    figures = [_saved(figure, folder, name, title, caption, paper) for name, title, caption, figure, paper in drawn]
    return Section("sample", "One input, drawn whole", text=f"Tokens: {' '.join(sample.tokens)}", figures=figures)


def highlights(atlas: Atlas) -> list[tuple[str, str]]:
    """The head that goes furthest in each measure a reader asks for first, in words."""
    asked = {
        ("surface", "position", "-1"): "most on the previous token",
        ("surface", "position", "1"): "most on the next token",
        ("surface", "position", "0"): "most on the token itself",
        ("surface", "mass", "cls"): "most on the opening token",
        ("surface", "mass", "sep"): "most on the closing token",
        ("surface", "mass", "punct"): "most on full stops and commas",
        ("surface", "max_weight", ""): "sharpest: largest mean weight",
        ("surface", "entropy", ""): "broadest: highest entropy (nats)",
        ("offsets", "mean_distance", "attention"): "looks furthest (tokens)",
    }
    found = []
    for (analysis, variable, item), words in asked.items():
        if analysis not in atlas:
            continue
        frame = atlas.to_dataframe(analysis)
        part = frame[(frame["variable"] == variable) & (frame["item"] == item) & frame["value"].notna()]
        if len(part):
            row = part.loc[part["value"].idxmax()]
            interval = (
                ""
                if pd.isna(row["low"])
                else f" (95 % interval {row['low']:.3f} to {row['high']:.3f}, {int(row['n'])} examples)"
            )
            found.append((head_name(int(row["layer"]), int(row["head"])), f"{words}: {row['value']:.3f}{interval}"))
    return found


def _notes(atlas: Atlas) -> list[str]:
    notes = []
    corpus = atlas.provenance.get("corpus", {})
    for name, words in (
        ("truncated", "were cut to the longest input allowed"),
        ("skipped", "were left out as too long"),
        ("unaligned", "have words that the tokenizer cannot align"),
    ):
        if corpus.get(name):
            notes.append(f"{corpus[name]:,} examples {words}.")
    notes += [f"Corpus: {note}: {count:,}." for note, count in corpus.get("notes", {}).items()]
    sampled = atlas.provenance.get("sampled", {})
    if sampled:
        counts = ", ".join(f"{name} {count:,}" for name, count in sampled.items())
        notes.append(
            f"Some analyses saw only the first examples, as many as their budget allows: {counts}. --full lifts the budgets."
        )
    for name, items in atlas.provenance.get("left_out", {}).items():
        if name not in atlas:  # what is missing from an analysis that ran is said there
            notes += [f"{name}{f' ({item})' if item else ''} left out: {reason}." for item, reason in items.items()]
    return notes + list(atlas.provenance.get("notes", []))


def _section_notes(atlas: Atlas, name: str) -> list[str]:
    """What one analysis did not see or could not compute."""
    sampled = atlas.provenance.get("sampled", {}).get(name)
    notes = [f"Saw the first {sampled:,} examples only: its budget, which --full lifts."] if sampled else []
    return notes + [
        f"{item} left out: {reason}." for item, reason in atlas.provenance.get("left_out", {}).get(name, {}).items()
    ]


def _what(attrs: dict[str, object], names: list[str]) -> str:
    text = f"Measures: {', '.join(names)}. Means are over examples, with their 95 % interval in the table."
    parameters = json.loads(str(attrs.get("parameters", "{}")))
    if parameters:
        text += " Parameters: " + ", ".join(f"{key} = {value}" for key, value in parameters.items()) + "."
    return text


def _summary_table(atlas: Atlas, name: str) -> pd.DataFrame:
    frame = Atlas({name: atlas[name]}, {}).summary()
    if not len(frame) or len(frame) > TABLE_ROWS:
        return pd.DataFrame()
    shown = frame.drop(columns="analysis")
    for column in ("mean", "lowest", "highest"):
        shown[column] = shown[column].map(lambda value: f"{value:.3f}")
    return shown


def _shown(frame: pd.DataFrame) -> list[list[Any]]:
    """The cells of a table as people read them: three figures behind the point."""
    return [
        [f"{cell:.3f}" if isinstance(cell, float) and not pd.isna(cell) else cell for cell in row]
        for row in frame.values.tolist()
    ]


def _write_csv(table: pd.DataFrame, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(path, index=False, float_format="%.7g")
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}); choose another folder with --out."
        ) from error
    return path
