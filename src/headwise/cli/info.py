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
    names: tuple[str, ...] = option(
        (),
        argument=True,
        metavar="NAME",
        help="Analyses, and commands like circuit or knockout; default: all.",
    ),
    bibtex: bool = option(False, help="Print BibTeX."),
) -> None:
    """Print how to cite headwise and the papers behind it.

    [dim]Example:[/dim] headwise cite surface circuit --bibtex
    """
    from headwise.analyses.contract import known_analyses
    from headwise.analyses.papers import COMMAND_PAPERS, HEADWISE, reference
    from headwise.core.errors import unknown

    papers: dict[str, tuple[str, ...]] = {}
    for name, cls in known_analyses().items():
        papers[name] = (cls.paper.key, *cls.paper.more)
    papers |= COMMAND_PAPERS
    for name in names:
        if name not in papers:
            raise ParameterError(unknown("analysis or command", name, papers))
    # A dict, not a set: papers are printed once, in the order of the analyses.
    keys: dict[str, None] = {}
    for name in names or papers:
        keys |= dict.fromkeys(papers[name])
    for source in (HEADWISE, *map(reference, keys)):
        text = source.bibtex if bibtex else source.citation
        out.print(text, markup=False, soft_wrap=True)
