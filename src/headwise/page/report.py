"""Everything a user opens after a run: figures, tables and the page, written from an atlas."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from headwise.atlas import Atlas
from headwise.atlas.behaviours import attention_shares
from headwise.core.failures import Failure
from headwise.core.files import sweep
from headwise.core.labels import head_name
from headwise.core.store import CheckpointStore
from headwise.page.compared import COLUMNS, changed_most, models_of
from headwise.page.data import page_data
from headwise.page.files import ReportFiles
from headwise.page.measures import group_order
from headwise.page.parallel import drawn_beside
from headwise.page.sample import SAMPLE, Sample, sample_bytes
from headwise.page.sections import Drawing, draw_sample, draw_section, head_grid
from headwise.page.write import Content, HeadGrid, PageFigure, PageTable, Section, write_page
from headwise.text.demo import REAL

# The measures a reader asks for first, by analysis, variable and label, and what the head that goes
# furthest does.
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
Made = TypeVar("Made")
_SAMPLE = "sample"  # the section of one input drawn whole
COUNTED = {
    "truncated": "were cut to the longest input allowed",
    "skipped": "were left out as too long",
    "unaligned": "have words that the tokenizer cannot align",
}


@dataclass(frozen=True, slots=True)
class Report:
    """The page, and what of it failed unexpectedly and is missing from it."""

    page: Path
    failures: tuple[Failure, ...] = ()


def write_report(
    atlas: Atlas,
    folder: Path,
    samples: Sequence[Sample] = (),
    report: Callable[[str, int, int], None] | None = None,
    *,
    store: CheckpointStore | None = None,
    overwrite: bool = True,
) -> Report:
    """Write `figures/`, `tables/` and `index.html` beside the atlas.

    Parameters
    ----------
    atlas : Atlas
        What to show. A group that nobody has heard of gets a section too, with the figures
        registered for it.
    folder : Path
        Where to write. Files of an earlier report that this one has not go; what else is there
        stays.
    samples : sequence of Sample, optional
        Inputs with their maps, which the page shows for each head; the first is drawn whole too.
        They are kept in `sample.safetensors`.
    report : callable, optional
        Told how far it is: what, done, total.
    store : CheckpointStore, optional
        The checkpoints of the sections that are drawn: an interrupted call resumes from there.
    overwrite : bool, default True
        Whether files of the same name that headwise did not write may be replaced.
    """
    return _Writing(atlas, folder, store, overwrite).write(samples, report)


class _Writing:
    """One report under way."""

    def __init__(
        self, atlas: Atlas, folder: Path, store: CheckpointStore | None, overwrite: bool
    ) -> None:
        self.atlas, self.folder = atlas, folder
        for part in (folder, folder / "figures", folder / "tables"):
            sweep(
                part
            )  # a page may stand elsewhere than what it shows, as that of a comparison does
        self.files = ReportFiles(folder, overwrite)
        self.store = None if store is None else store.part("page", {"atlas": atlas.digest})
        self.failures: list[Failure] = []

    def write(
        self, samples: Sequence[Sample], report: Callable[[str, int, int], None] | None
    ) -> Report:
        """Everything; the page last, since it tells that all is there."""
        atlas = self.atlas
        self.files.check("index.html")
        if samples:
            self.files.write({SAMPLE: sample_bytes(samples, atlas)})
        names = [*sorted(atlas, key=group_order), *([_SAMPLE] if samples else [])]
        kept = {name: facts for name in names if (facts := self._kept(name)) is not None}

        def draw(name: str) -> Drawing:
            return draw_sample(atlas, samples[0]) if name == _SAMPLE else draw_section(atlas, name)

        sections = []
        with drawn_beside([name for name in names if name not in kept], draw) as drawings:
            for name in names:
                sections.append(
                    self._section(kept[name] if name in kept else self._keep(name, next(drawings)))
                )
                if report:
                    report("figures", len(sections), len(names))
        notes: list[str] = []
        grid, files = self._attempt("the table of heads", partial(head_grid, atlas), notes) or (
            None,
            {},
        )
        self.files.write(files)
        self.files.note(["index.html"])
        page = self.folder / "index.html"
        data = None
        if grid is not None:
            data = self._attempt(
                "the numbers in the page", partial(page_data, atlas, samples), notes
            )
            notes += data["left_out"] if data else []
        content = _content(atlas, self.folder, sections, grid, notes)
        content["data"] = data
        write_page(page, **content)
        self.files.close()
        return Report(page, tuple(self.failures))

    def _kept(self, name: str) -> dict[str, Any] | None:
        """What is known of a section that was drawn before, where all its files are whole; it is
        not drawn again."""
        piece = None if self.store is None else self.store.load(f"section-{name}")
        if piece is None or not self.files.intact(piece.facts["files"]):
            return None
        self.files.note(piece.facts["files"])
        return dict(piece.facts)

    def _keep(self, name: str, drawing: Drawing) -> dict[str, Any]:
        """Write the files of a section; what is known of it."""
        digests = self.files.write(drawing.files)
        told = {
            "section": asdict(drawing.section),
            "failures": [f.facts() for f in drawing.failures],
        }
        facts: dict[str, Any] = json.loads(json.dumps(told | {"files": digests}, default=_plain))
        if self.store is not None:
            self.store.save(f"section-{name}", {}, facts)
        return facts

    def _section(self, facts: dict[str, Any]) -> Section:
        self.failures += [Failure(**failure) for failure in facts["failures"]]
        told = facts["section"]
        figures = [
            PageFigure(**{**figure, "svg": Path(figure["svg"])}) for figure in told["figures"]
        ]
        tables = [PageTable(**table) for table in told["tables"]]
        return Section(**{**told, "figures": figures, "tables": tables})

    def _attempt(self, what: str, make: Callable[[], Made], notes: list[str]) -> Made | None:
        """What is made; nothing where that fails, which is noted."""
        try:
            return make()
        except Exception as error:  # an atlas may hold what others have made
            failure = Failure.of(what, error)
            self.failures.append(failure)
            notes.append(failure.sentence)
            return None


def _plain(value: Any) -> Any:
    """Cells of numpy, and paths, as JSON can hold them."""
    return value.item() if hasattr(value, "item") else str(value)


def _content(
    atlas: Atlas, folder: Path, sections: list[Section], grid: HeadGrid | None, notes: list[str]
) -> Content:
    """What stands on the page."""
    model, corpus = atlas.provenance.get("model", {}), atlas.provenance.get("corpus", {})
    watched = str(corpus.get("name", "?"))
    models = models_of(atlas)
    changes, note = changed_most(atlas) if models else ([], "")
    return Content(
        title=f"What changed from {models[0]} to {', '.join(models[1:])}"
        if models
        else f"What the heads of {model.get('name', '?')} do",
        tables=[PageTable("What changed most", COLUMNS, changes, note=note)] if changes else [],
        subtitle=f"{atlas.layers} layers × {atlas.heads} heads, run on "
        + (f"the built-in corpus ({watched})" if watched == REAL else watched),
        facts=[
            ("Architecture", str(model.get("architecture", "?"))),
            *(
                (name.capitalize(), f"{corpus[name]:,}")
                for name in ("examples", "tokens")
                if name in corpus
            ),
            ("Analyses", str(len(atlas))),
        ],
        files=[("everything as labelled arrays (atlas.nc)", "atlas.nc")]
        if (folder / "atlas.nc").exists()
        else [],
        notes=_notes(atlas) + notes,
        absent=_absent(atlas),
        grid=grid,
        highlights=highlights(atlas),
        sections=sections,
        provenance={"digest": atlas.digest, **atlas.provenance},
        citations=list(
            dict.fromkeys(
                str(d.attrs["citation"]) for d in atlas.values() if d.attrs.get("citation")
            )
        ),
    )


def highlights(atlas: Atlas) -> list[tuple[str, str]]:
    """Return the most extreme head of each measure that readers look for first, in words."""
    frames = {}
    for name in ("surface", "offsets"):
        if name in atlas:
            frames[name] = atlas.to_dataframe(name)
    # An encoder's opening token and the first token are the same: one of them is enough.
    redundant_type = "cls"
    if "surface" in atlas and "to cls" in attention_shares(atlas["surface"]):
        redundant_type = "first"
    rows = []
    for (analysis, variable, item), words in ASKED.items():
        if analysis not in frames or item == redundant_type:
            continue
        frame = frames[analysis]
        is_measure = (frame["variable"] == variable) & (frame["item"] == item)
        values = frame[is_measure & frame["value"].notna()]
        if not len(values):
            continue
        best = values.loc[values["value"].idxmax()]
        text = f"{words}: {best['value']:.3f}"
        if not pd.isna(best["low"]):
            interval = f"{best['low']:.3f} to {best['high']:.3f}"
            text += f" (95 % interval {interval}, {int(best['n'])} examples)"
        rows.append((head_name(int(best["layer"]), int(best["head"])), text))
    return rows


def _notes(atlas: Atlas) -> list[str]:
    """Return what was sampled, truncated or left out, for the top of the page."""
    corpus = atlas.provenance.get("corpus", {})
    sampled = atlas.provenance.get("sampled", {})
    notes = []
    for name, words in COUNTED.items():
        if corpus.get(name):
            notes.append(f"{corpus[name]:,} examples {words}.")
    for note, count in corpus.get("notes", {}).items():
        notes.append(f"Corpus: {note}: {count:,}.")
    for name, part in corpus.get("parts", {}).items():
        notes.append(
            f"{', '.join(part['analyses'])}: on the part {name} of the corpus "
            f"({part['examples']:,} examples), since {corpus.get('name', 'the rest')} has no such "
            "annotations."
        )
    if sampled:
        counts = ", ".join(f"{name} {count:,}" for name, count in sampled.items())
        notes.append(
            f"Some analyses read only as many examples as their budget allows: {counts}. The option "
            "`full` lifts the budgets."
        )
    for name, error in atlas.provenance.get("failed", {}).items():
        notes.append(Failure(name, error, "").sentence)
    return notes + list(atlas.provenance.get("notes", []))


def _absent(atlas: Atlas) -> list[str]:
    """Return what was not computed for this model or corpus, with the reason: analyses first."""
    analyses = []
    items = []
    for name, reasons in atlas.provenance.get("left_out", {}).items():
        for item, reason in reasons.items():
            if item:
                items.append(f"{name} ({item}): {reason}.")
            else:
                analyses.append(f"{name}: {reason}.")
    return analyses + items
