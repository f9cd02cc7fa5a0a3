"""`headwise list` and `headwise cite`: the analyses and the papers behind them."""

from __future__ import annotations

from rich.table import Table

from headwise.cli.command import command
from headwise.cli.screen import out
from headwise.core.errors import ParameterError
from headwise.core.options import option


@command("list")
def list_analyses() -> None:
    """List the analyses, the paper behind each, and what they need."""
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
    analyses: tuple[str, ...] = option(
        (), argument=True, metavar="ANALYSIS", help="Analyses; default: all."
    ),
    bibtex: bool = option(False, help="Print BibTeX."),
) -> None:
    """Print how to cite headwise, and the papers behind analyses.

    [dim]Example:[/dim] headwise cite surface --bibtex
    """
    from headwise.analyses.contract import known_analyses
    from headwise.analyses.papers import HEADWISE, reference
    from headwise.core.errors import unknown

    registry = known_analyses()
    for name in analyses:
        if name not in registry:
            raise ParameterError(unknown("analysis", name, registry))
    # A dict, not a set: papers are printed once, in the order of the analyses.
    keys: dict[str, None] = {}
    for name in analyses or registry:
        paper = registry[name].paper
        keys |= dict.fromkeys((paper.key, *paper.more))
    for source in (HEADWISE, *map(reference, keys)):
        text = source.bibtex if bibtex else source.citation
        out.print(text, markup=False, soft_wrap=True)
