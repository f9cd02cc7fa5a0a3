"""`headwise list` and `headwise cite`: what there is, and whose it is."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from headwise.cli.command import command
from headwise.cli.screen import out
from headwise.core.errors import ParameterError


@command("list")
def list_analyses() -> None:
    """The analyses, the paper behind each, and what they need."""
    from headwise.analyses.contract import known_analyses
    from headwise.analyses.papers import reference

    table = Table("analysis", "what it tells", "paper", "needs", "parameters")
    for name, cls in known_analyses().items():
        paper = reference(cls.paper.key)
        parameters = ", ".join(f"{key}={value}" for key, value in cls().parameters.items())
        table.add_row(
            name,
            cls.title,
            f"{paper.short} {cls.paper.section}",
            ", ".join(sorted(cls().requires)) or "any text",
            parameters,
        )
    out.print(table)


@command("cite")
def cite(
    analyses: Annotated[list[str] | None, typer.Argument(help="Analyses; nothing for all.")] = None,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="As BibTeX.")] = False,
) -> None:
    """How to cite the papers behind analyses, and headwise.

    [dim]Example:[/dim] headwise cite surface --bibtex
    """
    from headwise.analyses.contract import known_analyses
    from headwise.analyses.papers import reference
    from headwise.core.errors import unknown

    registry = known_analyses()
    for name in analyses or []:
        if name not in registry:
            raise ParameterError(unknown("analysis", name, registry))
    papers = [registry[name].paper for name in (analyses or registry)]
    keys = dict.fromkeys(key for paper in papers for key in (paper.key, *paper.more))
    for key in keys:
        paper = reference(key)
        out.print(paper.bibtex if bibtex else paper.citation, markup=False, soft_wrap=True)
