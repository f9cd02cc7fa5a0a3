"""A paper reproduced: its entries computed one after the other, each kept when it is done, and the
report of all."""

from __future__ import annotations

import json
import pkgutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.analyses.papers import REFERENCES, reference
from headwise.core.errors import HeadwiseError, OutputError, ParameterError, unknown
from headwise.core.failures import Failure, UnexpectedError
from headwise.core.store import CheckpointStore
from headwise.core.version import __version__
from headwise.experiments.reproduction.bench import Bench, ReproductionOptions
from headwise.experiments.reproduction.markdown import ROW_COLUMNS, as_markdown, row_cells, summary
from headwise.experiments.reproduction.printed import Claim, Value, printed
from headwise.experiments.reproduction.schema import Entry, Outcome, Reproduction, Row
from headwise.experiments.work import Report, kept_work, silent
from headwise.models import HeadModel
from headwise.plots import figure_bytes

FORMATS = ("svg", "pdf", "png")
DONE, NOT_RUN, FAILED = "done", "not run", "failed"
WORK, TRAINED = ".reproduction", "finetuned"  # folders beside the report
HOLDS, FAILS, UNTRIED = "holds", "does not hold", "not tried"


def papers() -> tuple[str, ...]:
    """The papers that can be reproduced, by key."""
    home = import_module("headwise.experiments.reproduction").__path__
    return tuple(
        sorted(module.name for module in pkgutil.iter_modules(home) if module.name in REFERENCES)
    )


def reproduction_of(paper: str) -> Reproduction:
    """A paper's reproduction by its key."""
    if paper not in papers():
        raise ParameterError(unknown("paper to reproduce", paper, papers()))
    found: Reproduction = import_module(f"headwise.experiments.reproduction.{paper}").REPRODUCTION
    return found


@dataclass(frozen=True, eq=False)
class Reproduced:
    """A report: plain data, and the files of its figures by their path beside it.

    Attributes
    ----------
    facts : dict
        As JSON can hold it: the paper, the model, every entry, every claim, and counts.
    files : dict of str to bytes
        Figures, as SVG, PDF and PNG.
    failures : list of Failure
        Entries that failed unexpectedly; the others are there.
    """

    facts: dict[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    failures: Sequence[Failure] = ()

    def to_json(self) -> bytes:
        """The report as data."""
        return (json.dumps(self.facts, indent=1, ensure_ascii=False) + "\n").encode()

    def markdown(self, figures: bool = True) -> str:
        """The report as Markdown."""
        return as_markdown(self.facts, figures)


def reproduce(
    paper: str,
    model: HeadModel | str | Path | None = None,
    options: ReproductionOptions = ReproductionOptions(),  # noqa: B008  (frozen)
    *,
    folder: str | Path | None = None,
    overwrite: bool = False,
    report: Report = silent,
) -> Reproduced:
    """Reproduce a paper on a model: every numbered table and figure in its order, the printed
    numbers beside ours.

    Parameters
    ----------
    paper : str
        `clark2019`, say; `papers()` has them all.
    model : HeadModel, str, Path or None, default None
        A hub name or folder, an open model, or None for the built-in one. An open model cannot be
        fine-tuned.
    options : ReproductionOptions, optional
        Data sets, entries, sample sizes.
    folder : str or Path, optional
        Where finished work is kept, in `.reproduction`, and fine-tuned models, in `finetuned`: the
        same call goes on where a killed one stopped. A temporary one by default.
    overwrite : bool, default False
        Start anew where other work lies there.
    report : callable, optional
        Told how far it is.
    """
    asked = reproduction_of(paper)
    entries = _chosen(asked, options.only)
    with tempfile.TemporaryDirectory(prefix="headwise-") as temporary:
        place = Path(folder or temporary)
        opened = (
            model if isinstance(model, HeadModel) else HeadModel.open(model, device=options.device)
        )
        try:
            identity = _identity(paper, opened, options)
            with kept_work(place / WORK, identity, overwrite=overwrite) as store:
                bench = Bench(opened, model, options, store, place / TRAINED, report)
                return _Reproducing(asked, bench, store).all(entries, report)
        finally:
            if opened is not model:
                opened.close()


def _chosen(asked: Reproduction, only: Sequence[str]) -> list[Entry]:
    known = [entry.key for entry in asked.entries]
    for name in only:
        if name not in known:
            raise ParameterError(unknown(f"table or figure of {asked.key}", name, known))
    return [entry for entry in asked.entries if not only or entry.key in only]


def _identity(paper: str, model: HeadModel, options: ReproductionOptions) -> dict[str, Any]:
    """What tells this work from other work. Which entries are asked for does not: a later call may
    ask for more."""
    given = {
        name: value for name, value in asdict(options).items() if name not in ("only", "device")
    }
    return {"paper": paper, "model": model.identity(), "device": model.device.type, **given}


class _Reproducing:
    """One paper under way."""

    def __init__(self, asked: Reproduction, bench: Bench, store: CheckpointStore) -> None:
        self.asked, self.bench, self.store = asked, bench, store
        self.printed = printed(asked.key)
        self.files: dict[str, bytes] = {}
        self.failures: list[Failure] = []

    def all(self, entries: Sequence[Entry], report: Report) -> Reproduced:
        told = []
        for done, entry in enumerate(entries):
            report(self.asked.key, done, len(entries))
            told.append(self._entry(entry))
        report(self.asked.key, len(entries), len(entries))
        chosen = {entry.key for entry in entries}
        claims = [
            self._claim(claim, told) for claim in self.printed.claims if claim.entry in chosen
        ]
        for one in told:
            one.pop("claims")
            one["shown"] = {
                "columns": list(ROW_COLUMNS),
                "rows": [row_cells(row) for row in one["rows"]],
            }
        paper, options = reference(self.asked.key), asdict(self.bench.options)
        facts: dict[str, Any] = {
            "headwise": __version__,
            "paper": {"key": paper.key, "short": paper.short, "citation": paper.citation},
            "settings": list(self.asked.settings),
            "model": self.bench.model.identity(),
            "options": {name: options[name] for name in ("quick", "reading", "scale", "seed")},
            "finetuned": {
                task: Path(where).name for task, where in self.bench.options.finetuned.items()
            },
            "entries": told,
            "claims": claims,
            "counts": {
                "entries": {
                    one: sum(e["status"] == one for e in told) for one in (DONE, NOT_RUN, FAILED)
                },
                "claims": {
                    one: sum(c["verdict"] == one for c in claims) for one in (HOLDS, FAILS, UNTRIED)
                },
            },
        }
        return Reproduced({**facts, "summary": summary(facts)}, self.files, self.failures)

    def _entry(self, entry: Entry) -> dict[str, Any]:
        """What an entry comes to, with what is printed; a finished one is not computed again."""
        caption = self.printed.entries[entry.key]
        facts: dict[str, Any] = {
            "key": entry.key,
            "title": entry.title,
            "where": caption.where,
            "quote": caption.quote,
        }
        missing = [
            self.bench.data.missing(name)
            for name in entry.needs
            if self.bench.data.find(name) is None
        ]
        if missing:
            return facts | self._nothing(entry, NOT_RUN, "; ".join(missing))
        kept = self.store.load(f"entry-{entry.key}")
        if kept is None:
            try:
                made = self._packed(entry, entry.compute(self.bench))
            except OutputError:
                raise
            except UnexpectedError as error:
                self.failures += error.failures
                return facts | self._nothing(
                    entry, FAILED, "; ".join(one.error for one in error.failures)
                )
            except HeadwiseError as error:
                return facts | self._nothing(entry, NOT_RUN, str(error).rstrip("."))
            except Exception as error:
                failure = Failure.of(f"{entry.key} of {self.asked.key}", error)
                self.failures.append(failure)
                return facts | self._nothing(entry, FAILED, failure.error)
            kept = self.store.checkpoint(f"entry-{entry.key}", lambda: made)
        self.files |= {name: array.tobytes() for name, array in kept.arrays.items()}
        return facts | {"status": DONE, "reason": "", **kept.facts}

    def _nothing(self, entry: Entry, status: str, reason: str) -> dict[str, Any]:
        empty: dict[str, Any] = {name: [] for name in ("tables", "figures", "differs")}
        return {
            "status": status,
            "reason": reason,
            **empty,
            "rows": self._rows(entry, ()),
            "seen": {},
            "claims": {},
        }

    def _packed(
        self, entry: Entry, outcome: Outcome
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """An outcome as the store holds it: figures as bytes, the rest as JSON."""
        arrays: dict[str, np.ndarray] = {}
        figures = []
        for picture in outcome.pictures:
            names = [
                f"figures/{self.asked.key}-{entry.key}-{picture.name}.{format}"
                for format in FORMATS
            ]
            for name, format in zip(names, FORMATS, strict=True):
                arrays[name] = np.frombuffer(figure_bytes(picture.figure, format), dtype=np.uint8)
            figures.append({"title": picture.title, "caption": picture.caption, "files": names})
        stray = set(outcome.claims) - {
            claim.key for claim in self.printed.claims if claim.entry == entry.key
        }
        if stray:
            raise ValueError(f"claims that are not printed: {', '.join(sorted(stray))}")
        facts = {
            "rows": self._rows(entry, outcome.rows),
            "tables": [asdict(table) for table in outcome.tables],
            "figures": figures,
            "claims": {key: asdict(verdict) for key, verdict in outcome.claims.items()},
            "differs": list(outcome.differs),
            "seen": dict(outcome.seen),
        }
        return arrays, _plain(facts)

    def _rows(self, entry: Entry, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The printed numbers in their order with ours beside them, then those of ours that have
        none."""
        ours = {row.key: row for row in rows}
        printed = self.printed.entries[entry.key].values
        found = [_row(value, ours.pop(value.key, Row(value.key, None))) for value in printed]
        return found + [
            _row(Value(row.key, row.label or row.key, None, "", row.unit), row)
            for row in ours.values()
        ]

    def _claim(self, claim: Claim, told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        entry = next(entry for entry in told if entry["key"] == claim.entry)
        untried = {
            "ours": "",
            "holds": None,
            "why": entry["reason"] or "nothing was computed for it",
        }
        found = entry["claims"].get(claim.key, untried)
        verdict = {True: HOLDS, False: FAILS, None: UNTRIED}[found["holds"]]
        return {**asdict(claim), "ours": found["ours"], "verdict": verdict, "why": found["why"]}


def _row(printed: Value, own: Row) -> dict[str, Any]:
    told = {name: getattr(printed, name) for name in ("key", "label", "unit", "quote")}
    numbers = {name: getattr(own, name) for name in ("ours", "low", "high", "note")}
    return {**told, "printed": printed.value, "printed_note": printed.note, **numbers}


def _plain(value: Any) -> Any:
    """Numbers of numpy as plain ones, NaN as nothing: what JSON can hold."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic | torch.Tensor):
        value = value.item()
    return None if isinstance(value, float) and value != value else value
