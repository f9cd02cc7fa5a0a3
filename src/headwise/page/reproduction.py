"""The page of a reproduced paper: plain data in, one HTML file out in the look of the atlas
page."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from headwise.page.write import page_environment


def render_reproduction(facts: Mapping[str, Any], files: Mapping[str, bytes]) -> str:
    """The page as a string, its figures in it.

    Parameters
    ----------
    facts : mapping
        What `headwise.experiments.reproduction.reproduce` gives.
    files : mapping of str to bytes
        The files that the figures name; they lie beside the page too.
    """

    def embedded(name: str) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(files[name]).decode("ascii")

    counts, of = facts["counts"], len(facts["claims"])
    told = [
        ("Computed", f"{counts['entries']['done']} of {len(facts['entries'])}"),
        ("Claims that hold", f"{counts['claims']['holds']} of {of}"),
        ("That do not", str(counts["claims"]["does not hold"])),
        ("Not tried", str(counts["claims"]["not tried"])),
    ]
    return (
        page_environment()
        .get_template("reproduction.html")
        .render(
            embedded=embedded,
            brand="papers reproduced",
            title=f"{facts['paper']['short']}, on {facts['model']['name']}",
            subtitle=facts["paper"]["citation"],
            facts=told,
            files=[(name, name) for name in ("report.md", "report.json")],
            paper=facts,
            version=facts["headwise"],
        )
    )
