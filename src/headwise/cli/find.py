"""`headwise find`: rows of a corpus on which one head does something."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from headwise.cli import common, options
from headwise.cli.command import command


@command("find")
def find_command(
    *,
    head: Annotated[str, typer.Argument(metavar="HEAD", help="The head, like L5H1.")],
    model: options.ModelName,
    text: options.TextOptions,
    above: Annotated[float, typer.Option(min=0.0, max=1.0, help="The least weight.")] = 0.5,
    role: Annotated[
        str,
        typer.Option(help="Only pairs in this role: induction, nsubj, relation:det, previous …"),
    ] = "",
    token: Annotated[str, typer.Option(help="Only where this token is looked at.")] = "",
    query: Annotated[str, typer.Option(help="Only where this token looks.")] = "",
    sink: Annotated[
        bool, typer.Option("--sink", help="Also looks at the first token, where heads rest.")
    ] = False,
    hits: Annotated[int, typer.Option(min=1, help="Stop after so many rows.")] = 20,
    limit: options.Limit = None,
    parser: options.Parser = None,
    placed: options.ModelOptions,
) -> None:
    """Stream rows of a corpus on which a head gives a token at least so much weight: «query» looks
    at ⟦key⟧.

    [dim]Examples:[/dim]

      headwise find L4H0 --above 0.8

      headwise find L5H1 gpt2 --corpus wiki.txt --role induction --hits 5

      headwise find L6H1 --role relation:det --query dog
    """
    from headwise.analyses.examples import Condition, find_rows
    from headwise.run import Source, SourceOptions

    wanted = Condition(above=above, role=role, token=token, query=query, sink=sink)
    source = Source(model.name, text.spec(), SourceOptions(**placed.keywords(), parser=parser))
    opened = source.open_model()
    found = False
    for hit in islice(find_rows(opened, source.open_corpus(opened, limit), head, wanted), hits):
        found = True
        common.out.print(
            f"{hit.weight:.2f}  {hit.text}  {hit.where}", highlight=False, soft_wrap=True
        )
    if not found:
        common.out.print(
            f"No row of this corpus fits; lower --above ({above:g}) or drop a condition."
        )
