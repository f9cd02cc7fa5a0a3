"""Everything a user opens after a run: figures, tables and the page, written from an atlas."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from headwise.analyses.papers import HEADWISE, current_citation
from headwise.atlas import Atlas
from headwise.atlas.behaviours import attention_shares, is_decoder, special_token_note
from headwise.core.checks import one_of
from headwise.core.errors import OutputError
from headwise.core.failures import Failure, isolated
from headwise.core.files import file_digest, sweep, write_atomically
from headwise.core.folders import MANIFEST, written_before
from headwise.core.labels import head_name
from headwise.core.store import CheckpointStore, as_json
from headwise.core.token_types import TOKEN_TYPES
from headwise.page.compared import CHANGE, COLUMNS, changed_most, models_of
from headwise.page.data import page_data
from headwise.page.measures import group_order
from headwise.page.parallel import draw_parallel
from headwise.page.sample import SAMPLE, Sample, sample_bytes
from headwise.page.sections import Drawing, draw_sample, draw_section, head_grid
from headwise.page.unfinished import DRAWING, RUNNING, Banner, unfinished_lines
from headwise.page.write import Content, HeadGrid, PageFigure, PageTable, Section, write_page
from headwise.plots.style import FORMATS
from headwise.stats.picking import simultaneous_interval
from headwise.text.demo import TREEBANK

# The measures that readers look for first, by analysis, variable and label, and what the most
# extreme head does.
HIGHLIGHTS = {
    ("surface", "position", "-1"): "most on the previous token",
    ("surface", "position", "1"): "most on the next token",
    ("surface", "position", "0"): "most on the token itself",
    ("surface", "mass", "first"): "most on the first token",
    **{("surface", "mass", each.name): f"most on {each.phrase}" for each in TOKEN_TYPES},
    ("surface", "max_weight", ""): "sharpest: largest mean weight",
    ("surface", "entropy", ""): "broadest: highest entropy, in nats",
    ("offsets", "mean_distance", "attention"): "looks furthest, in tokens",
}
MIN_EXAMPLES = 0.5  # of the examples, on which an extreme head must have a value
Progress = Callable[[str, int, int], None]
_SAMPLE = "sample"  # the section of one input drawn whole
# What happened to examples, by the count in the provenance.
COUNTED = {
    "truncated": "were cut to the longest input allowed",
    "skipped": "were left out as too long",
    "unaligned": "have words that the tokenizer cannot align",
}


@dataclass(frozen=True, slots=True)
class Report:
    """The path of the page, and the parts that failed unexpectedly and are missing from it."""

    page: Path
    failures: tuple[Failure, ...] = ()


def write_report(
    atlas: Atlas,
    folder: Path,
    samples: Sequence[Sample] = (),
    report: Progress | None = None,
    *,
    store: CheckpointStore | None = None,
    overwrite: bool = True,
    formats: Sequence[str] = (),
) -> Report:
    """Write `figures/`, `tables/` and `index.html` beside the atlas.

    Parameters
    ----------
    atlas : Atlas
        What to show. A group of an unknown analysis gets a section too, with the figures
        registered for it.
    folder : Path
        Where to write. Files of an earlier report that this one does not have are deleted; all
        other files stay.
    samples : sequence of Sample, optional
        Inputs with their maps, which the page shows for each head; the first is drawn whole too.
        They are stored in `sample.safetensors`.
    report : callable, optional
        Called with the progress: task, finished parts, total.
    store : CheckpointStore, optional
        The checkpoints of the sections that are drawn: an interrupted call resumes from there.
    overwrite : bool, default True
        Whether files of the same name that headwise did not write may be replaced.
    formats : sequence of str, optional
        Formats of the figures beside SVG: `pdf`, `png`. Drawing all three takes three times as
        long.
    """
    for file_format in formats:
        one_of("formats", file_format, FORMATS)
    return _ReportWriter(atlas, folder, store, overwrite, formats).write(samples, report)


def write_quick_page(
    atlas: Atlas, folder: Path, *, overwrite: bool = True, live: bool = False
) -> Report:
    """Write `index.html` beside an atlas that grows: its heads and their numbers, no figures.

    Parameters
    ----------
    atlas : Atlas
        What is done so far; of a finished one, the page says that its figures are being drawn.
    folder : Path
        Where to write. Figures and tables of an earlier report are deleted.
    overwrite : bool, default True
        Whether a page that headwise did not write may be replaced.
    live : bool, default False
        Whether the page reloads itself while `headwise.explore.folder.serve_folder` serves it.
    """
    lines = unfinished_lines(atlas.provenance) or [DRAWING, RUNNING]
    banner = Banner(lines, atlas.digest, live)
    return _ReportWriter(atlas, folder, None, overwrite, ()).write_page([], (), banner)


class _ReportWriter:
    """The steps that write one report."""

    def __init__(
        self,
        atlas: Atlas,
        folder: Path,
        store: CheckpointStore | None,
        overwrite: bool,
        formats: Sequence[str],
    ) -> None:
        self.atlas = atlas
        self.formats = tuple(formats)
        self.folder = folder
        # No run sweeps the folder where the page of a comparison lies.
        for part in (folder, folder / "figures", folder / "tables"):
            sweep(part)
        self.files = ReportFiles(folder, overwrite)
        self.store = None
        if store is not None:
            facts = {"atlas": atlas.digest, "formats": sorted(set(formats))}
            self.store = store.part("page", facts)
        self.failures: list[Failure] = []

    def write(self, samples: Sequence[Sample], report: Progress | None) -> Report:
        """Write everything; the page comes last, so that it exists only if all else does."""
        self.files.check("index.html")
        if samples:
            self.files.write({SAMPLE: sample_bytes(samples, self.atlas)})
        sections = self._write_sections(samples, report)
        lines = unfinished_lines(self.atlas.provenance)
        banner = Banner(lines, self.atlas.digest) if lines else None
        return self.write_page(sections, samples, banner)

    def write_page(
        self, sections: list[Section], samples: Sequence[Sample], banner: Banner | None
    ) -> Report:
        """Write the page with sections that are drawn, and the table of heads."""
        self.files.check("index.html")
        notes: list[str] = []

        def on_failure(failure: Failure) -> None:
            self.failures.append(failure)
            notes.append(failure.sentence)

        grid = None
        grid_files: dict[str, bytes] = {}
        with isolated("the table of heads", on_failure):
            grid, grid_files = head_grid(self.atlas)
        self.files.write(grid_files)
        self.files.note(["index.html"])
        data = None
        if grid is not None:
            with isolated("the numbers in the page", on_failure):
                data = page_data(self.atlas, samples)
                notes += data["left_out"]
        content = _content(self.atlas, self.folder, sections, grid, notes)
        content["data"] = data
        content["banner"] = banner
        page = self.folder / "index.html"
        write_page(page, **content)
        self.files.close()
        return Report(page, tuple(self.failures))

    def _write_sections(self, samples: Sequence[Sample], report: Progress | None) -> list[Section]:
        """Return all sections; those with a checkpoint are not drawn again."""
        names = sorted(self.atlas, key=group_order)
        if samples:
            names.append(_SAMPLE)
        drawn_before = {}
        for name in names:
            section = self._load_section(name)
            if section is not None:
                drawn_before[name] = section
        missing = [name for name in names if name not in drawn_before]

        def draw(name: str) -> Drawing:
            if name == _SAMPLE:
                return draw_sample(self.atlas, samples[0], formats=self.formats)
            return draw_section(self.atlas, name, formats=self.formats)

        sections = []
        with draw_parallel(missing, draw) as drawings:
            for name in names:
                section = drawn_before.get(name)
                if section is None:
                    section = self._save_section(name, next(drawings))
                sections.append(section)
                if report:
                    report("figures", len(sections), len(names))
        return sections

    def _save_section(self, name: str, drawing: Drawing) -> Section:
        """Write the files of a section and its checkpoint, note its failures, and return it."""
        digests = self.files.write(drawing.files)
        self.failures += drawing.failures
        if self.store is not None:
            facts = {
                "section": asdict(drawing.section),
                "failures": [failure.facts() for failure in drawing.failures],
                "files": digests,
            }
            self.store.save(f"section-{name}", {}, as_json(facts))
        return drawing.section

    def _load_section(self, name: str) -> Section | None:
        """Return a section that was drawn before, and note its failures; None without one, or if
        any of its files is not as it was written."""
        if self.store is None:
            return None
        checkpoint = self.store.load(f"section-{name}")
        if checkpoint is None or not self.files.intact(checkpoint.facts["files"]):
            return None
        facts = checkpoint.facts
        self.files.note(facts["files"])
        for failure in facts["failures"]:
            self.failures.append(Failure(**failure))
        fields = dict(facts["section"])
        figures = []
        for figure in fields.pop("figures"):
            figures.append(PageFigure(**{**figure, "svg": Path(figure["svg"])}))
        tables = [PageTable(**table) for table in fields.pop("tables")]
        return Section(**fields, figures=figures, tables=tables)


def _content(
    atlas: Atlas, folder: Path, sections: list[Section], grid: HeadGrid | None, notes: list[str]
) -> Content:
    """Return the content of the page, without its data."""
    model = atlas.provenance.get("model", {})
    corpus = atlas.provenance.get("corpus", {})
    title = f"What the heads of {model.get('name', '?')} do"
    tables = []
    if CHANGE in atlas:
        models = models_of(atlas)
        title = f"What changed from {models[0]} to {', '.join(models[1:])}"
        changes, note = changed_most(atlas)
        if changes:
            tables.append(PageTable("What changed most", COLUMNS, changes, note=note))

    corpus_name = str(corpus.get("name", "?"))
    if corpus_name == TREEBANK:
        corpus_name = f"the built-in corpus ({corpus_name})"
    facts = [("Architecture", str(model.get("architecture", "?")))]
    so_far = atlas.provenance.get("unfinished", {}).get("examples", {}).get(corpus.get("name"))
    for name in ("examples", "tokens"):
        if so_far and name == "examples":
            facts.append(("Examples", f"{so_far[0]:,} of {so_far[1]:,} so far"))
        elif name in corpus:
            facts.append((name.capitalize(), f"{corpus[name]:,}"))
    facts.append(("Analyses", str(len(atlas))))

    files = []
    if (folder / "atlas.nc").exists():
        files.append(("everything as labelled arrays (atlas.nc)", "atlas.nc"))

    # A dict keeps the first of equal citations, in order.
    citations: dict[str, None] = {HEADWISE.citation: None}
    for dataset in atlas.values():
        if dataset.attrs.get("citation"):
            paper = str(dataset.attrs.get("paper", ""))
            citations[current_citation(paper, str(dataset.attrs["citation"]))] = None

    return Content(
        title=title,
        tables=tables,
        subtitle=f"{atlas.layers} layers × {atlas.heads} heads, run on {corpus_name}",
        facts=facts,
        files=files,
        notes=page_notes(atlas) + notes,
        absent=_absent(atlas),
        grid=grid,
        highlights=highlights(atlas),
        sections=sections,
        provenance={"digest": atlas.digest, **atlas.provenance},
        citations=list(citations),
    )


def highlights(atlas: Atlas) -> list[tuple[str, str]]:
    """Return the most extreme head of each measure that readers look for first, in words.

    Of a decoder excluding the first token, which would make its strongest sink the most extreme
    head of several measures."""
    frames = {}
    for name in ("surface", "offsets"):
        if name in atlas:
            frames[name] = atlas.to_dataframe(name)
    # An encoder's opening token and the first token are the same: one of them is enough.
    redundant_type = "cls"
    if "surface" in atlas and "to cls" in attention_shares(atlas["surface"]):
        redundant_type = "first"
    decoder = "surface" in atlas and is_decoder(atlas["surface"])
    rows = []
    for (analysis, variable, item), words in HIGHLIGHTS.items():
        if analysis not in frames or item == redundant_type:
            continue
        if decoder and item != "first":
            if f"{variable}_rest" not in atlas[analysis]:
                continue
            variable = f"{variable}_rest"
            words = f"{words}, excluding the first token"
        frame = frames[analysis]
        is_measure = (frame["variable"] == variable) & (frame["item"] == item)
        values = frame[is_measure & frame["value"].notna()]
        if not len(values):
            continue
        if values["n"].notna().any():
            # Excluding the first token, a strong sink has values on few examples only.
            values = values[values["n"] >= MIN_EXAMPLES * values["n"].max()]
        best = values.loc[values["value"].idxmax()]
        text = f"{words}: {best['value']:.3f}"
        if not pd.isna(best["low"]):
            # The head was picked because it is the highest: the interval allows for that.
            low, high = simultaneous_interval(
                best["value"], best["low"], best["high"], int(best["n"]), len(values)
            )
            text += (
                f" (95 % interval {low:.3f} to {high:.3f} for the highest of {len(values)} heads, "
                f"{int(best['n'])} examples)"
            )
        rows.append((head_name(int(best["layer"]), int(best["head"])), text))
    return rows


def page_notes(atlas: Atlas) -> list[str]:
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
    if "surface" in atlas:
        note = special_token_note(atlas["surface"])
        if note:
            notes.append(note)
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


class ReportFiles:
    """The files that a report writes into a folder.

    The manifest tells headwise's files from those of users. Files of an earlier report are deleted
    if the new one does not have them; files of users are not touched.

    Parameters
    ----------
    folder : Path
        Where to write.
    overwrite : bool, default True
        Whether files of the same name that headwise did not write may be replaced.
    """

    def __init__(self, folder: Path, overwrite: bool = True) -> None:
        self.folder = folder
        self.overwrite = overwrite
        self._before = written_before(folder)
        self._names: set[str] = set()

    def check(self, name: str) -> None:
        """Raise `OutputError` if a file would replace one that headwise did not write."""
        if self.overwrite or name in self._before | self._names:
            return
        path = self.folder / name
        if path.exists():
            raise OutputError(
                f"{path} was not written by headwise; pass overwrite=True to replace it, or choose "
                "another folder.",
                option="overwrite",
            )

    def note(self, names: Iterable[str]) -> None:
        """List files in the manifest that exist already or are about to be written."""
        known = self._before | self._names
        self._names |= set(names)
        if not self._names <= known:
            self._write_manifest(known | self._names)

    def write(self, contents: Mapping[str, bytes]) -> dict[str, str]:
        """Write files by their path from the folder, and return their digests."""
        for name in contents:
            self.check(name)
        self.note(contents)
        digests = {}
        for name, content in contents.items():
            write_atomically(self.folder / name, content)
            digests[name] = hashlib.sha256(content).hexdigest()
        return digests

    def intact(self, digests: Mapping[str, str]) -> bool:
        """Return whether files still have the digests they were written with."""
        return all(file_digest(self.folder / name) == digest for name, digest in digests.items())

    def close(self) -> None:
        """Delete the files of an earlier report that this one did not write."""
        for name in self._before - self._names:
            path = self.folder / name
            # A manifest may be damaged or forged: nothing outside the folder is deleted.
            if path.resolve().is_relative_to(self.folder.resolve()) and not path.is_dir():
                path.unlink(missing_ok=True)
        self._write_manifest(self._names)

    def _write_manifest(self, names: set[str]) -> None:
        content = json.dumps({"files": sorted(names)}, indent=1).encode()
        write_atomically(self.folder / MANIFEST, content)
