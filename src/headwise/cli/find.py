"""`headwise find`: rows of a corpus on which one head meets a condition."""

from __future__ import annotations

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import ModelName, TextOptions
from headwise.core.options import option, part_of
from headwise.run.options import FindOptions, SourceOptions


@command("find")
def find_command(
    *,
    head: str = option(argument=True, metavar="HEAD", help="The head, like L5H1."),
    model: ModelName,
    text: TextOptions,
    options: FindOptions,
) -> None:
    """Print places in a text where a head attends strongly.

    These are the rows in which it gives one token at least a certain weight: «query» looks at
    ⟦key⟧.

    [dim]Examples:[/dim]

      headwise find L4H0 --above 0.8

      headwise find L5H1 gpt2 --corpus wiki.txt --role induction --hits 5

      headwise find L6H1 --role relation:det --query dog
    """
    from headwise.run import Source
    from headwise.run.find import stream_hits

    source = Source(model.name, text.spec(), part_of(options, SourceOptions))
    n_hits = 0
    for hit in stream_hits(head, source, options):
        n_hits += 1
        line = f"{hit.weight:.2f}  {hit.text}  {hit.where}"
        common.out.print(line, highlight=False, soft_wrap=True)
    if not n_hits:
        common.out.print(
            f"No matching row in this corpus; lower --above ({options.above:g}) or drop a condition."
        )
