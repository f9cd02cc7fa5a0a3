"""Everything a user opens after a run: figures, tables and the page, written from an atlas."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from headwise.atlas import Atlas, measures
from headwise.atlas.describe import KINDS, SHORT
from headwise.core.behaviours import OTHER, shares
from headwise.core.errors import OutputError
from headwise.core.labels import head_name
from headwise.core.spreadsheet import csv_text
from headwise.page.sample import Sample, draw_all_maps, draw_heads, telling_heads
from headwise.page.write import HeadGrid, PageFigure, PageHead, PageTable, Section, write_page
from headwise.plots import figures_for, save_figure
from headwise.plots.registry import tables_for
from headwise.text.demo import REAL

# From what a head looks at, to what it finds, to what heads do together; an analysis not named here comes after these.
READING_ORDER = (
    *("surface", "offsets", "patterns", "roles", "features", "token_pairs", "dependency", "coreference", "frames"),
    *("sinks", "induction", "examples", "retrieval", "logits", "circuits"),
    *("distance", "gradient", "attribution", "probing", "tree_probe"),
)
# The columns of `describe_heads` that the page shows, and how it names them.
TOLD = {"attention": "attention goes to", "finds": "finds (baseline)", "roles": "roles", "maps": "its maps are"}
TABLE_ROWS = 400  # longer tables are on the page as a link to their CSV
# The measures a reader asks for first, by analysis, variable and label, and what the head that goes furthest does.
ASKED = {
    ("surface", "position", "-1"): "most on the previous token",
    ("surface", "position", "1"): "most on the next token",
    ("surface", "position", "0"): "most on the token itself",
    ("surface", "mass", "first"): "most on the first token",
    ("surface", "mass", "cls"): "most on the opening token",
    ("surface", "mass", "sep"): "most on the closing token",
    ("surface", "mass", "punct"): "most on full stops and commas",
    ("surface", "max_weight", ""): "sharpest: largest mean weight",
    ("surface", "entropy", ""): "broadest: highest entropy (nats)",
    ("offsets", "mean_distance", "attention"): "looks furthest (tokens)",
}
COUNTED = {
    "truncated": "were cut to the longest input allowed",
    "skipped": "were left out as too long",
    "unaligned": "have words that the tokenizer cannot align",
}


def write_report(
    atlas: Atlas, folder: Path, sample: Sample | None = None, report: Callable[[str, int, int], None] | None = None
) -> Path:
    """Write `figures/`, `tables/` and `index.html` beside the atlas; returns the page's path.

    Parameters
    ----------
    atlas : Atlas
        What to show. A group that nobody has heard of gets a section too, with the figures registered for it.
    folder : Path
        Where to write.
    sample : Sample, optional
        The maps of one input, which is then drawn whole too.
    report : callable, optional
        Told how far it is: what, done, total.
    """
    model, corpus = atlas.provenance.get("model", {}), atlas.provenance.get("corpus", {})
    sections = []
    for name in sorted(atlas, key=_place):
        sections.append(_section(atlas, name, folder))
        if report:
            report("figures", len(sections), len(atlas))
    if sample is not None:
        sections.append(_sample_section(atlas, folder, sample))
    watched = str(corpus.get("name", "?"))
    page = folder / "index.html"
    write_page(
        page,
        title=f"What the heads of {model.get('name', '?')} do",
        subtitle=f"{atlas.layers} layers × {atlas.heads} heads, watched on "
        + (f"the built-in corpus ({watched})" if watched == REAL else watched),
        facts=[
            ("Architecture", str(model.get("architecture", "?"))),
            *((name.capitalize(), f"{corpus[name]:,}") for name in ("examples", "tokens") if name in corpus),
            ("Analyses", str(len(atlas))),
        ],
        files=[("everything as labelled arrays (atlas.nc)", "atlas.nc")] if (folder / "atlas.nc").exists() else [],
        notes=_notes(atlas),
        absent=_absent(atlas),
        grid=_grid(atlas, folder),
        highlights=highlights(atlas),
        sections=sections,
        provenance={"digest": atlas.digest, **atlas.provenance},
        citations=list(dict.fromkeys(str(d.attrs["citation"]) for d in atlas.values() if d.attrs.get("citation"))),
    )
    return page


def _place(name: str) -> int:
    return READING_ORDER.index(name) if name in READING_ORDER else len(READING_ORDER)


def _section(atlas: Atlas, name: str, folder: Path) -> Section:
    """What one analysis has to show: its figures and tables, written to their files."""
    model, corpus = atlas.provenance.get("model", {}), atlas.provenance.get("corpus", {})
    dataset = atlas[name].assign_attrs(
        {"corpus": corpus.get("name", ""), **atlas[name].attrs, "model": model.get("name", "")}
    )
    figures = [
        _saved(drawn.figure, folder, f"{name}-{drawn.name}", drawn.title, drawn.caption, drawn.paper)
        for spec in figures_for(name)
        for drawn in spec.draw(dataset)
    ]
    everything = _write_csv(atlas.to_dataframe(name), folder, name)
    tables = []
    for spec in tables_for(name):
        frame = spec.function(dataset).dropna(axis="columns", how="all")  # what this model has not is no column
        if len(frame):
            csv = _write_csv(frame, folder, f"{name}-{spec.name}")
            tables.append(PageTable(spec.title, list(frame.columns), _shown(frame), csv, spec.note))
    best = atlas.summary(name)
    if 0 < len(best) <= TABLE_ROWS:
        best = best.drop(columns="analysis").dropna(subset="mean")
        tables.append(PageTable("Extremes over heads", list(best.columns), _shown(best), everything))
    attrs = dataset.attrs
    return Section(
        name,
        str(attrs.get("title", name)),
        ", ".join(str(attrs[key]) for key in ("paper", "section") if attrs.get(key)),
        figures=figures,
        tables=tables,
        definition=_what(attrs, measures(dataset)),
        notes=_section_notes(atlas, name),
    )


def _saved(figure: Figure, folder: Path, name: str, title: str, caption: str, paper: str) -> PageFigure:
    """Write a figure in every format and say how the page shows it."""
    paths = save_figure(figure, folder / "figures", name)
    svg = next(path for path in paths if path.suffix == ".svg").resolve()  # a relative path would be beside the page
    return PageFigure(title, caption, svg, [path.relative_to(folder).as_posix() for path in paths], paper)


def _grid(atlas: Atlas, folder: Path) -> HeadGrid | None:
    """A word for each head, and the findings behind it; None where the atlas has nothing to take one from."""
    heads = atlas.describe()
    if set(heads["kind"]) <= {"other"}:
        return None
    told = {name: words for name, words in TOLD.items() if (heads[name] != "").any()}
    cells = [
        PageHead(
            row["name"],
            row["layer"],
            SHORT.get(row["does"], row["does"]),
            row["kind"],
            SHORT[row["looks"]] if row["looks"] not in (row["does"], OTHER) else "",
            row["best"],
            [row[name] for name in told],
        )
        for row in heads.to_dict("records")
    ]
    groups, layers = _places(atlas)
    return HeadGrid(cells, list(told.values()), KINDS, _write_csv(heads, folder, "heads"), groups, layers)


def _places(atlas: Atlas) -> tuple[list[tuple[str, int]], dict[int, str]]:
    """The key/value groups of heads with their sizes, and what layers may see where some see less than all."""
    found = {name: data[name].values for data in atlas.values() for name in ("kv_group", "layer_kind") if name in data}
    groups = [(f"kv {group}", len(list(own))) for group, own in groupby(found.get("kv_group", ()))]
    return groups, {layer: str(kind) for layer, kind in enumerate(found.get("layer_kind", ()))}


def _sample_section(atlas: Atlas, folder: Path, sample: Sample) -> Section:
    heads = _saved(
        draw_heads(sample, telling_heads(atlas)),
        folder,
        "sample-heads",
        "Telling heads on one input",
        "Tokens look (left) at tokens (right); a line is as dark as its weight.",
        "Clark et al. 2019, Fig 1",
    )
    maps = _saved(
        draw_all_maps(sample),
        folder,
        "sample-maps",
        "All maps of one input",
        "Row: the token that looks; column: the token looked at; darker is more.",
        "Kovaleva et al. 2019, App. A",
    )
    text = f"Tokens: {' '.join(sample.tokens)}"
    return Section("sample", "One input, drawn whole", text=text, figures=[heads, maps])


def highlights(atlas: Atlas) -> list[tuple[str, str]]:
    """The head that goes furthest in each measure a reader asks for first, in words."""
    frames = {name: atlas.to_dataframe(name) for name in ("surface", "offsets") if name in atlas}
    found = []
    opening = "cls" if "surface" in atlas and "to cls" in shares(atlas["surface"]) else "first"
    for (analysis, variable, item), words in ASKED.items():
        if analysis not in frames or item == ("first" if opening == "cls" else "cls"):  # the same token
            continue
        frame = frames[analysis]
        part = frame[(frame["variable"] == variable) & (frame["item"] == item) & frame["value"].notna()]
        if len(part):
            row = part.loc[part["value"].idxmax()]
            text = f"{words}: {row['value']:.3f}"
            if not pd.isna(row["low"]):
                text += f" (95 % interval {row['low']:.3f} to {row['high']:.3f}, {int(row['n'])} examples)"
            found.append((head_name(int(row["layer"]), int(row["head"])), text))
    return found


def _notes(atlas: Atlas) -> list[str]:
    """What was sampled, cut or left out, for the head of the page."""
    corpus, sampled = atlas.provenance.get("corpus", {}), atlas.provenance.get("sampled", {})
    notes = [f"{corpus[name]:,} examples {words}." for name, words in COUNTED.items() if corpus.get(name)]
    notes += [f"Corpus: {note}: {count:,}." for note, count in corpus.get("notes", {}).items()]
    for name, part in corpus.get("parts", {}).items():
        notes.append(
            f"{', '.join(part['analyses'])}: on the part {name} of the corpus ({part['examples']:,} examples), since "
            f"{corpus.get('name', 'the rest')} has no such annotations."
        )
    if sampled:
        counts = ", ".join(f"{name} {count:,}" for name, count in sampled.items())
        notes.append(
            "Some analyses saw only the first examples, as many as their budget allows: "
            f"{counts}. --full lifts the budgets."
        )
    return notes + list(atlas.provenance.get("notes", []))


def _absent(atlas: Atlas) -> list[str]:
    """What does not apply to this model or corpus, each once, with its reason: analyses first."""
    left_out = [
        (item != "", f"{name}{f' ({item})' if item else ''}: {reason}.")
        for name, items in atlas.provenance.get("left_out", {}).items()
        for item, reason in items.items()
    ]
    return [text for _, text in sorted(left_out, key=lambda entry: entry[0])]


def _section_notes(atlas: Atlas, analysis: str) -> list[str]:
    """What one analysis did not see or could not compute."""
    sampled = atlas.provenance.get("sampled", {}).get(analysis)
    corpus = atlas.provenance.get("corpus", {})
    seen = {name: part for name, part in corpus.get("parts", {}).items() if analysis in part["analyses"]}
    notes = [f"Saw {name}, {part['licence']}: {part['examples']:,} examples." for name, part in seen.items()]
    if not seen and corpus.get("parts"):
        notes = [f"Saw {corpus['name']}, {corpus['licence']}: {corpus['examples']:,} examples."]
    notes += [f"Saw the first {sampled:,} examples only: its budget, which --full lifts."] if sampled else []
    return notes


def _what(attrs: Mapping[str, object], names: list[str]) -> str:
    text = f"Measures: {', '.join(names)}. Means are over examples, with their 95 % interval in the table."
    parameters = json.loads(str(attrs.get("parameters", "{}")))
    if parameters:
        text += " Parameters: " + ", ".join(f"{key} = {value}" for key, value in parameters.items()) + "."
    return text


def _shown(frame: pd.DataFrame) -> list[list[Any]]:
    """The cells of a table as people read them: three figures behind the point."""
    return [
        [f"{cell:.3f}" if isinstance(cell, float) and not pd.isna(cell) else cell for cell in row]
        for row in frame.values.tolist()
    ]


def _write_csv(table: pd.DataFrame, folder: Path, name: str) -> str:
    """Write a table; returns its path as the page links it."""
    path = folder / "tables" / f"{name}.csv"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(csv_text(table), encoding="utf-8", newline="")
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}); choose another folder with --out."
        ) from error
    return path.relative_to(folder).as_posix()
