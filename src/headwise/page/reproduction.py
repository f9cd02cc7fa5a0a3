"""The page of a reproduced paper: plain data in, one HTML file out in the look of the atlas
page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.core.version import __version__
from headwise.page.write import page_environment


def render_reproduction(facts: Mapping[str, Any], files: Mapping[str, bytes]) -> str:
    """Return the page as a string, with its figures embedded.

    Parameters
    ----------
    facts : mapping
        The `facts` of the report that `headwise.experiments.reproduction.reproduce` returns.
    files : mapping of str to bytes
        The files that the figures name; they are written beside the page too.
    """

    def embedded(name: str) -> str:
        encoded = base64.b64encode(files[name]).decode("ascii")
        return f"data:image/svg+xml;base64,{encoded}"

    n_entries = len(facts["entries"])
    n_claims = len(facts["claims"])
    entry_counts = facts["counts"]["entries"]
    claim_counts = facts["counts"]["claims"]
    header_facts = [
        ("Computed", f"{entry_counts['done']} of {n_entries}"),
        ("Claims as printed", f"{claim_counts['as printed']} of {n_claims}"),
        ("In a weaker form", str(claim_counts["in a weaker form"])),
        ("Do not hold", str(claim_counts["does not hold"])),
        ("Undecided", str(claim_counts["undecided"])),
        ("Cannot be tried", str(claim_counts["cannot be tried"])),
    ]
    template = page_environment().get_template("reproduction.html")
    return template.render(
        embedded=embedded,
        brand="papers reproduced",
        title=f"{facts['paper']['short']}, on {facts['model']['name']}",
        subtitle=facts["paper"]["citation"],
        facts=header_facts,
        files=[(name, name) for name in ("report.md", "report.json")],
        paper=facts,
        version=facts["headwise"],
    )


def render_claims(
    counts: Mapping[str, Any],
    sections: Sequence[Mapping[str, Any]],
    meanings: Mapping[str, str],
    text: str,
) -> str:
    """Return the page of claims by models as a string.

    Parameters
    ----------
    counts : mapping
        `columns` and `rows` of the table of verdicts by paper and model.
    sections : sequence of mapping
        For each paper `key`, `title`, and `columns` and `rows` of its claims.
    meanings : mapping of str to str
        What each verdict means.
    text : str
        How far the models agree.
    """
    template = page_environment().get_template("claims.html")
    return template.render(
        brand="papers reproduced",
        title="Claims by models",
        subtitle=text,
        facts=[],
        files=[(name, name) for name in ("claims.md", "claims.json")],
        counts=counts,
        sections=sections,
        meanings=meanings,
        version=__version__,
    )
