"""All claims of several reports in one table: claims by models, with their verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.core.errors import InputError
from headwise.experiments.reproduction.markdown import DASH, table_lines
from headwise.experiments.reproduction.rules import (
    AS_PRINTED,
    DOES_NOT_HOLD,
    VERDICT_MEANINGS,
    VERDICTS,
    WEAKER,
)

REPORT = "report.json"
# Verdicts that say something of the claim.
DECIDED = (AS_PRINTED, WEAKER, DOES_NOT_HOLD)
HOLDS = (AS_PRINTED, WEAKER)


@dataclass(frozen=True, slots=True)
class SummaryClaim:
    """One claim, and by model its verdict with the reason."""

    paper: str
    key: str
    where: str
    quote: str
    printed: str
    verdicts: Mapping[str, str]
    reasons: Mapping[str, str]

    def together(self, models: Sequence[str]) -> str:
        """Say what can be told from all models together."""
        decided = {model: self.verdicts.get(model, "") for model in models}
        decided = {model: verdict for model, verdict in decided.items() if verdict in DECIDED}
        if len(decided) < 2:
            return "no comparison: decided on fewer than two models"
        if set(decided.values()) == {AS_PRINTED}:
            return f"as printed on {_of_models(decided, models)}"
        if set(decided.values()) <= set(HOLDS):
            return f"at least in a weaker form on {_of_models(decided, models)}"
        if set(decided.values()) == {DOES_NOT_HOLD}:
            return f"does not hold on {_of_models(decided, models)}"
        return "differs between models"


def _of_models(decided: Mapping[str, str], models: Sequence[str]) -> str:
    if len(decided) < len(models):
        return ", ".join(decided)
    return "both" if len(models) == 2 else f"all {len(models)}"


@dataclass(frozen=True, slots=True)
class ClaimSummary:
    """The claims of all reports by paper, with the verdict of each model.

    Attributes
    ----------
    models : list of str
        The models, in the order of the reports.
    papers : dict of str to str
        The papers: key and short citation.
    claims : list of SummaryClaim
        All claims, paper by paper.
    sizes : dict
        By paper and model, how large the samples were.
    """

    models: list[str]
    papers: dict[str, str]
    claims: list[SummaryClaim]
    sizes: dict[tuple[str, str], str] = field(default_factory=dict)

    def counts(self, paper: str, model: str) -> dict[str, int]:
        """Count the verdicts of a paper's claims on a model."""
        counts = dict.fromkeys(VERDICTS, 0)
        for claim in self.claims:
            if claim.paper == paper and model in claim.verdicts:
                counts[claim.verdicts[model]] += 1
        return counts

    def count_rows(self) -> list[list[Any]]:
        """Return a row for each paper and model: its sample size, and how often each verdict."""
        rows = []
        for key, short in self.papers.items():
            for model in self.models:
                if (key, model) in self.sizes:
                    counts = self.counts(key, model)
                    rows.append([short, model, self.sizes[key, model], *counts.values()])
        return rows

    def claim_rows(self, paper: str) -> list[list[str]]:
        """Return a row for each claim of a paper: the sentence, the verdict of each model with its
        reason, and what all models tell together."""
        rows = []
        for claim in self.claims:
            if claim.paper != paper:
                continue
            cells = [f"“{claim.quote}” ({claim.where})"]
            for model in self.models:
                cells.append(_verdict_cell(claim, model))
            if len(self.models) > 1:
                cells.append(claim.together(self.models))
            rows.append(cells)
        return rows

    @property
    def claim_columns(self) -> list[str]:
        """The header of the rows of claims."""
        columns = ["claim", *self.models]
        return [*columns, "together"] if len(self.models) > 1 else columns

    def text(self) -> str:
        """Say in a sentence how far the models agree."""
        n_claims = len(self.claims)
        if len(self.models) < 2:
            return f"{n_claims} claims of {len(self.papers)} papers on {self.models[0]}."
        together = [claim.together(self.models) for claim in self.claims]
        n_open = sum(text.startswith("no comparison") for text in together)
        n_differ = together.count("differs between models")
        n_agree = n_claims - n_open - n_differ
        return (
            f"{n_claims} claims of {len(self.papers)} papers on {len(self.models)} models. "
            f"{n_claims - n_open} are decided on at least two models: on {n_agree} these agree "
            f"whether it holds, on {n_differ} they do not."
        )

    def markdown(self, title: str = "Claims by models") -> str:
        """Return the whole table as Markdown."""
        lines = [f"# {title}", "", self.text(), ""]
        meanings = [f"*{name}*: {meaning}" for name, meaning in VERDICT_MEANINGS.items()]
        lines += [f"Verdicts: {'; '.join(meanings)}.", ""]
        lines += [*table_lines(("paper", "model", "samples", *VERDICTS), self.count_rows()), ""]
        for key, short in self.papers.items():
            lines += [f"## {short}", ""]
            lines += [*table_lines(self.claim_columns, self.claim_rows(key)), ""]
        return "\n".join(lines).rstrip() + "\n"

    def to_json(self) -> bytes:
        """Return the table as JSON."""
        claims = []
        for claim in self.claims:
            claims.append(
                {
                    "paper": claim.paper,
                    "key": claim.key,
                    "quote": claim.quote,
                    "verdicts": dict(claim.verdicts),
                    "reasons": dict(claim.reasons),
                    "together": claim.together(self.models),
                }
            )
        content = {"models": self.models, "papers": self.papers, "claims": claims}
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _verdict_cell(claim: SummaryClaim, model: str) -> str:
    verdict = claim.verdicts.get(model)
    if verdict is None:
        return DASH
    reason = claim.reasons[model]
    return f"**{verdict}**: {reason}" if reason else f"**{verdict}**"


def summarize_reports(reports: Sequence[Mapping[str, Any]]) -> ClaimSummary:
    """Put the claims of several reports into one table.

    Parameters
    ----------
    reports : sequence of mapping
        The `facts` of reports: of several papers, of several models, or both. Of two reports of the
        same paper and model the later one counts.

    Returns
    -------
    ClaimSummary
        The claims by models.
    """
    models: list[str] = []
    papers: dict[str, str] = {}
    sizes: dict[tuple[str, str], str] = {}
    by_key: dict[tuple[str, str], SummaryClaim] = {}
    for facts in reports:
        model = str(facts["model"]["name"])
        paper = str(facts["paper"]["key"])
        if model not in models:
            models.append(model)
        papers[paper] = str(facts["paper"]["short"])
        sizes[paper, model] = _size_text(facts["options"])
        for claim in facts["claims"]:
            earlier = by_key.get((paper, claim["key"]))
            verdicts = dict(earlier.verdicts) if earlier else {}
            reasons = dict(earlier.reasons) if earlier else {}
            verdicts[model] = claim["verdict"]
            reasons[model] = claim["why"]
            by_key[paper, claim["key"]] = SummaryClaim(
                paper,
                claim["key"],
                claim["where"],
                claim["quote"],
                claim["printed"],
                verdicts,
                reasons,
            )
    return ClaimSummary(models, papers, list(by_key.values()), sizes)


def _size_text(options: Mapping[str, Any]) -> str:
    if options["quick"]:
        return "quick"
    return "the paper's" if options["scale"] == 1 else f"{options['scale']:g} of the paper's"


def read_reports(folders: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Read the data of reports from their folders."""
    reports = []
    for folder in folders:
        path = Path(folder) / REPORT
        if not path.is_file():
            raise InputError(
                f"There is no report of a reproduction in '{folder}' ({REPORT} is missing).",
                option="summary",
            )
        reports.append(json.loads(path.read_text(encoding="utf-8")))
    return reports
