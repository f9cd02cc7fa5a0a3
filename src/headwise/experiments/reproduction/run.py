"""Reproduce a paper: compute its entries one after the other, store each when it is finished, and
put the report together."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from headwise.analyses.papers import REFERENCES, reference
from headwise.core.errors import HeadwiseError, OutputError, ParameterError, unknown
from headwise.core.failures import Failure, UnexpectedError
from headwise.core.options import recorded_options, takes_options
from headwise.core.version import __version__
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.markdown import ROW_COLUMNS, as_markdown, row_cells, summary
from headwise.experiments.reproduction.options import ReproductionOptions
from headwise.experiments.reproduction.printed import Claim, PrintedValue, printed_paper
from headwise.experiments.reproduction.rules import CANNOT, VERDICTS, Verdict, judge
from headwise.experiments.reproduction.schema import (
    Entry,
    EntryResult,
    ReportFigure,
    ReportRow,
    Reproduction,
)
from headwise.models import HeadModel
from headwise.plots import figure_bytes
from headwise.run.job import Job, Progress, no_progress

FORMATS = ("svg", "pdf", "png")
# What became of an entry.
DONE = "done"
NOT_RUN = "not run"
FAILED = "failed"
# Folders beside the report.
WORK_FOLDER = ".reproduction"
FINETUNED_FOLDER = "finetuned"


def papers() -> tuple[str, ...]:
    """Return the keys of the papers that can be reproduced."""
    package_path = import_module("headwise.experiments.reproduction").__path__
    modules = [module.name for module in pkgutil.iter_modules(package_path)]
    return tuple(sorted(name for name in modules if name in REFERENCES))


def reproduction_of(paper: str) -> Reproduction:
    """Return a paper's reproduction by its key."""
    if paper not in papers():
        raise ParameterError(unknown("paper to reproduce", paper, papers()))
    module = import_module(f"headwise.experiments.reproduction.{paper}")
    reproduction: Reproduction = module.REPRODUCTION
    return reproduction


@dataclass(frozen=True, eq=False)
class ReproductionReport:
    """The report of a reproduced paper.

    Attributes
    ----------
    facts : dict
        The report as data that JSON can hold: the paper, the model, every entry, every claim, and
        counts.
    files : dict of str to bytes
        The figures as SVG, PDF and PNG, by their path beside the report.
    failures : list of Failure
        Entries that failed unexpectedly; all others are in the report.
    """

    facts: dict[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    failures: Sequence[Failure] = ()

    def to_json(self) -> bytes:
        """Return the report as JSON."""
        text = json.dumps(self.facts, indent=1, ensure_ascii=False)
        return (text + "\n").encode()

    def markdown(self, figures: bool = True) -> str:
        """Return the report as Markdown."""
        return as_markdown(self.facts, figures)


@takes_options(ReproductionOptions)
def reproduce(
    paper: str,
    model: HeadModel | str | Path | None = None,
    *,
    options: ReproductionOptions,
    folder: Job | str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> ReproductionReport:
    """Reproduce a paper on a model: every numbered table and figure in its order, the printed
    numbers beside ours.

    Each field of `ReproductionOptions` is a keyword of this function.

    Parameters
    ----------
    paper : str
        The key of a paper, for instance `clark2019`; `papers()` lists them.
    model : HeadModel, str, Path or None, default None
        A hub name or folder, an open model, or None for the built-in one. An open model cannot be
        fine-tuned.
    options : ReproductionOptions, optional
        All options at once, instead of keywords.
    folder : str, Path or Job, optional
        Where finished work is stored, in `.reproduction`, and fine-tuned models, in `finetuned`. An
        interrupted call resumes: repeat it with the same folder. A temporary folder by default. A
        command passes its own job, whose checkpoints lie in `.reproduction`.
    overwrite : bool, default False
        Start again where the folder holds other unfinished work.
    progress : callable, optional
        Called with a name, the number of finished units, and their total.

    Returns
    -------
    ReproductionReport
        The report as data, Markdown and figures.
    """
    reproduction = reproduction_of(paper)
    entries = _selected_entries(reproduction, options.only)
    with ExitStack() as stack:
        if isinstance(folder, Job):
            job = folder
        else:
            base = folder or stack.enter_context(TemporaryDirectory(prefix="headwise-"))
            job = stack.enter_context(
                Job.in_folder(Path(base) / WORK_FOLDER, overwrite=overwrite, progress=progress)
            )
        assert job.folder is not None
        finetuned_models = job.folder.parent / FINETUNED_FOLDER
        if isinstance(model, HeadModel):
            open_model = model
        else:
            open_model = stack.enter_context(HeadModel.open(model, device=options.device))
        # A job that retries failed entries may replace its report, but not resume other work.
        job.begin(_identity(paper, open_model, options), fresh=overwrite)
        context = ReproductionContext(open_model, model, options, job, finetuned_models)
        return ReportBuilder(reproduction, context).build(entries)


def _selected_entries(reproduction: Reproduction, only: Sequence[str]) -> list[Entry]:
    keys = [entry.key for entry in reproduction.entries]
    for key in only:
        if key not in keys:
            raise ParameterError(unknown(f"table or figure of {reproduction.key}", key, keys))
    if not only:
        return list(reproduction.entries)
    return [entry for entry in reproduction.entries if entry.key in only]


def _identity(paper: str, model: HeadModel, options: ReproductionOptions) -> dict[str, Any]:
    """Return what distinguishes this work from other work in the same folder."""
    return {
        "paper": paper,
        "model": model.identity(),
        "device": model.device.type,
        **recorded_options(options),
    }


class ReportBuilder:
    """Computes the entries of one paper and builds the report."""

    def __init__(self, reproduction: Reproduction, context: ReproductionContext) -> None:
        self.reproduction = reproduction
        self.context = context
        self.job = context.job
        self.printed = printed_paper(reproduction.key)
        self.files: dict[str, bytes] = {}
        self.failures: list[Failure] = []

    def build(self, entries: Sequence[Entry]) -> ReproductionReport:
        """Compute the entries and return the report."""
        entry_facts = []
        for n_done, entry in enumerate(entries):
            self.job.progress(self.reproduction.key, n_done, len(entries))
            entry_facts.append(self._entry_facts(entry))
        self.job.progress(self.reproduction.key, len(entries), len(entries))

        facts_by_key = {facts["key"]: facts for facts in entry_facts}
        claims = []
        for claim in self.printed.claims:
            if claim.entry in facts_by_key:
                claims.append(_claim_facts(claim, facts_by_key[claim.entry]))
        for facts in entry_facts:
            del facts["claims"]  # in the report they stand together, with their verdicts
            cells = [row_cells(row) for row in facts["rows"]]
            facts["shown"] = {"columns": list(ROW_COLUMNS), "rows": cells}

        report = self._header()
        report["entries"] = entry_facts
        report["claims"] = claims
        report["counts"] = {
            "entries": _count(entry_facts, "status", (DONE, NOT_RUN, FAILED)),
            "claims": _count(claims, "verdict", VERDICTS),
        }
        report["summary"] = summary(report)
        return ReproductionReport(report, self.files, self.failures)

    def _header(self) -> dict[str, Any]:
        paper = reference(self.reproduction.key)
        options = self.context.options
        finetuned = {task: Path(path).name for task, path in options.finetuned.items()}
        return {
            "headwise": __version__,
            "paper": {"key": paper.key, "short": paper.short, "citation": paper.citation},
            "settings": list(self.reproduction.settings),
            "model": self.context.model.identity(),
            "options": {
                "quick": options.quick,
                "variant": options.variant,
                "scale": options.scale,
                "seed": options.seed,
            },
            "finetuned": finetuned,
        }

    def _entry_facts(self, entry: Entry) -> dict[str, Any]:
        """Return an entry as data; a finished one comes from the store."""
        printed = self.printed.entries[entry.key]
        facts: dict[str, Any] = {
            "key": entry.key,
            "title": entry.title,
            "where": printed.where,
            "quote": printed.quote,
        }
        data = self.context.data
        missing = [data.missing(name) for name in entry.needs if data.find(name) is None]
        if missing:
            return facts | self._empty_facts(entry, NOT_RUN, "; ".join(missing))
        checkpoint_name = f"entry-{entry.key}"
        checkpoint = self.job.started_store.load(checkpoint_name)
        if checkpoint is None:
            try:
                packed = self._pack(entry, entry.compute(self.context))
            except OutputError:
                raise  # the disk is at fault, not the entry
            except UnexpectedError as error:
                self.failures += error.failures
                reason = "; ".join(failure.error for failure in error.failures)
                return facts | self._empty_facts(entry, FAILED, reason)
            except HeadwiseError as error:
                return facts | self._empty_facts(entry, NOT_RUN, str(error).rstrip("."))
            except Exception as error:
                failure = Failure.of(f"{entry.key} of {self.reproduction.key}", error)
                self.failures.append(failure)
                return facts | self._empty_facts(entry, FAILED, failure.error)
            checkpoint = self.job.checkpoint(checkpoint_name, lambda: packed)
        for name, array in checkpoint.arrays.items():
            self.files[name] = array.tobytes()
        return facts | {"status": DONE, "reason": "", **checkpoint.facts}

    def _empty_facts(self, entry: Entry, status: str, reason: str) -> dict[str, Any]:
        """Return the facts of an entry without results: the printed numbers alone."""
        return {
            "status": status,
            "reason": reason,
            "tables": [],
            "figures": [],
            "differs": [],
            "rows": self._row_facts(entry, ()),
            "seen": {},
            "claims": {},
        }

    def _pack(
        self, entry: Entry, result: EntryResult
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Convert a result to what the store holds: figures as bytes, the rest as JSON."""
        known_claims = {}
        for claim in self.printed.claims:
            if claim.entry == entry.key:
                known_claims[claim.key] = claim
        unknown_claims = sorted(set(result.evidence) - set(known_claims))
        if unknown_claims:
            raise ValueError(f"claims that are not printed: {', '.join(unknown_claims)}")
        arrays: dict[str, np.ndarray] = {}
        figures = []
        for figure in result.figures:
            figure_files = self._draw(entry, figure)
            arrays |= figure_files
            figures.append(
                {"title": figure.title, "caption": figure.caption, "files": list(figure_files)}
            )
        verdicts = {}
        for key, evidence in result.evidence.items():
            verdicts[key] = asdict(judge(known_claims[key], evidence))
        facts = {
            "rows": self._row_facts(entry, result.rows),
            "tables": [asdict(table) for table in result.tables],
            "figures": figures,
            "claims": verdicts,
            "differs": list(result.deviations),
            "seen": dict(result.inputs),
        }
        return arrays, _to_json_values(facts)

    def _draw(self, entry: Entry, figure: ReportFigure) -> dict[str, np.ndarray]:
        """Return a figure in all formats, as arrays of bytes by file name."""
        files = {}
        for file_format in FORMATS:
            name = f"figures/{self.reproduction.key}-{entry.key}-{figure.name}.{file_format}"
            content = figure_bytes(figure.figure, file_format)
            files[name] = np.frombuffer(content, dtype=np.uint8)
        return files

    def _row_facts(self, entry: Entry, rows: Sequence[ReportRow]) -> list[dict[str, Any]]:
        """Return the printed numbers in their order with ours beside them, then the numbers that
        only we have."""
        ours = {row.key: row for row in rows}
        facts = []
        for value in self.printed.entries[entry.key].values:
            row = ours.pop(value.key, ReportRow(value.key, None))
            facts.append(_row_facts(value, row))
        for row in ours.values():
            value = PrintedValue(row.key, row.label or row.key, None, "", row.unit)
            facts.append(_row_facts(value, row))
        return facts


def _row_facts(printed: PrintedValue, row: ReportRow) -> dict[str, Any]:
    return {
        "key": printed.key,
        "label": printed.label,
        "unit": printed.unit,
        "quote": printed.quote,
        "printed": printed.value,
        "printed_note": printed.note,
        "ours": row.ours,
        "low": row.low,
        "high": row.high,
        "note": row.note,
    }


def _claim_facts(claim: Claim, entry_facts: Mapping[str, Any]) -> dict[str, Any]:
    verdict = entry_facts["claims"].get(claim.key)
    if verdict is None:
        why = entry_facts["reason"] or "nothing was computed for it"
        verdict = asdict(Verdict(CANNOT, "", why))
    return {**asdict(claim), **verdict}


def _count(
    facts: Sequence[Mapping[str, Any]], field_name: str, values: Sequence[str]
) -> dict[str, int]:
    """Count how often each value occurs in a field."""
    counts = dict.fromkeys(values, 0)
    for item in facts:
        counts[item[field_name]] += 1
    return counts


def _to_json_values(value: Any) -> Any:
    """Convert numbers of numpy and torch to plain ones, and NaN to None, which JSON can hold."""
    if isinstance(value, dict):
        return {str(key): _to_json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_values(item) for item in value]
    if isinstance(value, np.generic | torch.Tensor):
        value = value.item()
    if isinstance(value, float) and np.isnan(value):
        return None
    return value
