"""A gallery: one page of many atlases, with the grid of each, and a search over all their heads.

The page is static. What it searches (the label and the leading measures of every head) is part of it,
so that it answers without a server.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from headwise.atlas import Atlas, behaviours
from headwise.atlas.describe import ANTECEDENTS, LABEL_CATEGORIES
from headwise.core.errors import ParameterError
from headwise.core.folders import written_before
from headwise.core.options import recorded_options, takes_options
from headwise.core.token_types import TOKEN_TYPES
from headwise.page.data import data_text
from headwise.page.measures import head_measures
from headwise.page.options import GalleryOptions
from headwise.page.report import ReportFiles
from headwise.page.write import in_own_scope, page_environment, script_variables
from headwise.run import Job
from headwise.run.progress import Progress, no_progress

INDEX = "index.html"
DIGITS = 4  # of a value, more than a reader compares
LABELS_OF_CARD = 5  # the most frequent labels, which a card counts
# The measure behind each label, by which a search for the label ranks; a relation has its own.
LABEL_MEASURES = {
    behaviours.INDUCTION: "induction.prefix_matching",
    behaviours.DUPLICATE: "induction.duplicate",
    behaviours.RETRIEVAL: "retrieval.score",
    behaviours.COPYING: "circuits.ov_copying",
    behaviours.SINK: "sinks.first",
    behaviours.BROAD_LABEL: "surface.entropy",
    ANTECEDENTS: "coreference.accuracy.all",
    "previous token": "surface.position.-1",
    "same token": "surface.position.0",
    "next token": "surface.position.1",
    **{each.label: f"surface.mass.{each.name}" for each in TOKEN_TYPES if each.label},
}
RELATION_MEASURE = "dependency.accuracy."
EXAMPLES = (  # searches that the page offers, where it has the measure
    ("induction.prefix_matching", "best induction heads of all"),
    ("surface.position.-1", "previous token"),
    ("sinks.first", "strongest sinks"),
    ("retrieval.score", "retrieval"),
    ("dependency.accuracy.obj", "objects (obj)"),
    ("coreference.accuracy.all", "antecedents"),
    ("surface.entropy", "lowest entropy"),
)


@dataclass(frozen=True, slots=True)
class GalleryEntry:
    """One atlas of a gallery.

    Parameters
    ----------
    atlas : Atlas
        The results.
    folder : Path, optional
        The folder of its page; None if it has none.
    key : str
        The name of its folder in the gallery.
    model : str
        The name of the model, numbered where several atlases are of one.
    """

    atlas: Atlas
    folder: Path | None
    key: str
    model: str

    @property
    def corpus(self) -> str:
        """What the model was run on."""
        corpus = self.atlas.provenance.get("corpus", {})
        text = str(corpus.get("name", "?"))
        n_examples = corpus.get("examples")
        if isinstance(n_examples, int):
            text += f", {n_examples:,} examples"
        return text


@takes_options(GalleryOptions)
def gallery(
    atlases: Sequence[str | Path | Atlas],
    folder: str | Path = "gallery",
    *,
    progress: Progress = no_progress,
    options: GalleryOptions,
) -> Path:
    """Write one page of many atlases: a card with the grid of each, and a search over all heads.

    Parameters
    ----------
    atlases : sequence of str, Path or Atlas
        Folders of `headwise atlas`, NetCDF files, or atlases (which have no page to link to).
    folder : str or Path, default "gallery"
        Where to write; put it on any web server, or open its `index.html`.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    options : GalleryOptions, optional
        Or each of its fields as a keyword: `title`, `copy`, `overwrite`.

    Returns
    -------
    Path
        The page.

    Examples
    --------
    >>> import tempfile
    >>> from headwise import make_atlas
    >>> atlas = make_atlas(analyses=["surface"], limit=2)
    >>> gallery([atlas], tempfile.mkdtemp()).name
    'index.html'
    """
    # Read first: a name that is wrong leaves no folder behind.
    entries = _read_entries(atlases, progress)
    paths = [Path(item) for item in atlases if not isinstance(item, Atlas)]
    with Job.for_report(
        Path(folder),
        INDEX,
        work=".gallery.run",
        overwrite=options.overwrite,
        sources=paths,
        progress=progress,
    ) as job:
        return _write_gallery(job, Path(folder), entries, options)


def _write_gallery(
    job: Job, folder: Path, entries: Sequence[GalleryEntry], options: GalleryOptions
) -> Path:
    """Write the gallery of a job whose target is open; see `gallery`."""
    digests = [entry.atlas.digest for entry in entries]
    job.begin({"gallery": digests, "options": recorded_options(options)})
    files = ReportFiles(folder, overwrite=job.output.may_replace)
    linked = []
    for number, entry in enumerate(entries):
        job.progress("pages", number, len(entries))
        has_page = options.copy and entry.folder is not None
        if has_page:
            files.write(_page_files(entry))
        else:
            entry = replace(entry, folder=None)
        linked.append(entry)
    job.progress("pages", len(entries), len(entries))
    files.check(INDEX)
    files.note([INDEX])
    job.write(render_gallery(linked, options.title).encode())
    files.close()
    job.finish()
    return folder / INDEX


# --- reading --------------------------------------------------------------------------------------


def _read_entries(atlases: Sequence[str | Path | Atlas], progress: Progress) -> list[GalleryEntry]:
    """Return the atlases, each with a key that no other has."""
    if not atlases:
        raise ParameterError("A gallery needs at least one atlas.")
    entries: dict[str, GalleryEntry] = {}
    n_of_model: Counter[str] = Counter()
    for number, item in enumerate(atlases):
        progress("atlases", number, len(atlases))
        page_folder = None
        atlas = item
        if not isinstance(atlas, Atlas):
            path = Path(atlas)
            atlas = Atlas.load(path)
            beside = path if path.is_dir() else path.parent
            if INDEX in written_before(beside) and (beside / INDEX).is_file():
                page_folder = beside
        if atlas.digest in entries:
            continue  # a pattern of folders may name one twice
        model = str(atlas.provenance.get("model", {}).get("name", "?"))
        key = re.sub(r"[^a-z0-9.]+", "-", model.lower()).strip("-.") or "atlas"
        n_of_model[key] += 1
        if n_of_model[key] > 1:
            model += f" ({n_of_model[key]})"
            key += f"-{n_of_model[key]}"
        entries[atlas.digest] = GalleryEntry(atlas, page_folder, key, model)
    progress("atlases", len(atlases), len(atlases))
    return list(entries.values())


def _page_files(entry: GalleryEntry) -> dict[str, bytes]:
    """Return the files of an atlas's page by their path in the gallery."""
    assert entry.folder is not None
    contents = {}
    for name in sorted({*written_before(entry.folder), "atlas.nc"}):
        path = entry.folder / name
        # A manifest may be damaged or forged: nothing outside the folder is copied.
        inside = path.resolve().is_relative_to(entry.folder.resolve())
        if inside and path.is_file():
            contents[f"{entry.key}/{name}"] = path.read_bytes()
    return contents


# --- the page -------------------------------------------------------------------------------------


def gallery_data(entries: Sequence[GalleryEntry]) -> dict[str, Any]:
    """Return what the page searches, as JSON can hold it.

    Returns
    -------
    dict
        `measures`: name, label, group and unit of each; `labels`: text, category and measure of each;
        `examples`: searches to offer; `atlases`: model, corpus, sizes, page, the number of each
        head's label, and the values of measures by their number, heads in the order of layers.
    """
    measures: dict[str, dict[str, str]] = {}
    labels: dict[tuple[str, str], int] = {}
    atlases = []
    for entry in entries:
        described = entry.atlas.describe()
        values: dict[str, list[float | None]] = {}
        for measure in head_measures(entry.atlas):
            if not measure.leading or measure.kind != "value" or measure.model:
                continue
            measures.setdefault(
                measure.name,
                {
                    "name": measure.name,
                    "label": measure.label,
                    "group": measure.group,
                    "unit": measure.unit,
                },
            )
            values[measure.name] = _rounded(measure.values)
        atlases.append(
            {
                "model": entry.model,
                "corpus": entry.corpus,
                "layers": entry.atlas.layers,
                "heads": entry.atlas.heads,
                "page": _page_address(entry),
                "labels": _label_numbers(described, labels),
                "values": values,
            }
        )
    return {
        "measures": list(measures.values()),
        "labels": [_label(text, kind, measures) for text, kind in labels],
        "examples": _offered_searches(measures),
        "atlases": atlases,
    }


def _label(text: str, kind: str, measures: Iterable[str]) -> dict[str, str]:
    """Return a label, with the measure behind it if some atlas has it."""
    label = {"text": text, "kind": kind}
    measure = LABEL_MEASURES.get(text, "")
    if kind == "syntax":
        measure = RELATION_MEASURE + text
    if measure in measures:
        label["measure"] = measure
    return label


def _page_address(entry: GalleryEntry) -> str | None:
    return None if entry.folder is None else f"{entry.key}/{INDEX}"


def _rounded(values: np.ndarray) -> list[float | None]:
    """Return the values of all heads, None where there is none."""
    rounded: list[float | None] = []
    for value in values.ravel().tolist():
        rounded.append(float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None)
    return rounded


def _label_numbers(described: pd.DataFrame, labels: dict[tuple[str, str], int]) -> list[int]:
    """Return the number of each head's label; new labels get the next number."""
    numbers = []
    for text, kind in zip(described["does"], described["kind"], strict=True):
        numbers.append(labels.setdefault((str(text), str(kind)), len(labels)))
    return numbers


def _offered_searches(names: Iterable[str]) -> list[str]:
    """Return the searches to offer: those whose measure some atlas has."""
    known = set(names)
    offered = [text for name, text in EXAMPLES if name in known]
    return list(dict.fromkeys(offered))


def render_gallery(entries: Sequence[GalleryEntry], title: str) -> str:
    """Return the page as a string."""
    data = gallery_data(entries)
    n_heads = sum(atlas["layers"] * atlas["heads"] for atlas in data["atlases"])
    folder = Path(__file__).parent
    script = in_own_scope((folder / "assets" / "gallery.js").read_text(encoding="utf-8"))
    environment = page_environment()
    gallery_style = (folder / "gallery.css").read_text(encoding="utf-8")
    style = Markup(str(environment.globals["style"]) + gallery_style)
    cards = []
    for number, entry in enumerate(entries):
        cards.append(_card(entry, number))
    return environment.get_template("gallery.html").render(
        brand="gallery of atlases",
        title=title,
        subtitle="",
        facts=[
            ("Models", str(len(entries))),
            ("Heads", f"{n_heads:,}"),
            ("Measures", f"{len(data['measures']):,}"),
        ],
        files=(),
        cards=cards,
        kinds=LABEL_CATEGORIES,
        style=style,
        data=data,
        data_text=Markup(data_text(data)),
        **script_variables(script),
    )


def _card(entry: GalleryEntry, number: int) -> dict[str, Any]:
    """Return what the card of an atlas shows."""
    described = entry.atlas.describe()
    counts = Counter(zip(described["does"], described["kind"], strict=True))
    frequent: list[tuple[str, str, int]] = []
    for (text, kind), count in counts.most_common():
        if kind != "other" and len(frequent) < LABELS_OF_CARD:
            frequent.append((text, kind, count))
    return {
        "number": number,
        "model": entry.model,
        "corpus": entry.corpus,
        "layers": entry.atlas.layers,
        "heads": entry.atlas.heads,
        "page": _page_address(entry),
        "labels": frequent,
        "n_labelled": sum(count for (_, kind), count in counts.items() if kind != "other"),
        "cells": _cells_by_kind(described),
    }


def _cells_by_kind(described: pd.DataFrame) -> Mapping[str, str]:
    """Return the cells of the grid as one SVG path for each category of labels."""
    paths: dict[str, list[str]] = {}
    for row in described[["layer", "head", "kind"]].itertuples(index=False):
        paths.setdefault(str(row.kind), []).append(f"M{row.head} {row.layer}h1v1h-1z")
    return {kind: "".join(cells) for kind, cells in paths.items()}
