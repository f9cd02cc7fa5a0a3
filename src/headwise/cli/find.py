"""`headwise find`: rows of a corpus on which one head does something."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from headwise.cli import common
from headwise.cli.either import model_either_way


def find_command(
    head: Annotated[str, typer.Argument(metavar="HEAD", help="The head, like L5H1.")],
    model: common.ModelOption = None,
    corpus: common.CorpusSpec = None,
    reader: common.Reader = None,
    text_field: common.TextField = None,
    above: Annotated[float, typer.Option("--above", min=0.0, max=1.0, help="The least weight.")] = 0.5,
    role: Annotated[
        str, typer.Option("--role", help="Only pairs in this role: induction, nsubj, relation:det, previous …")
    ] = "",
    token: Annotated[str, typer.Option("--token", help="Only where this token is looked at.")] = "",
    query: Annotated[str, typer.Option("--query", help="Only where this token looks.")] = "",
    sink: Annotated[bool, typer.Option("--sink", help="Also looks at the first token, where heads rest.")] = False,
    hits: Annotated[int, typer.Option("--hits", min=1, help="Stop after so many rows.")] = 20,
    limit: common.Limit = None,
    parser: common.Parser = None,
    device: common.Device = None,
    dtype: common.Dtype = None,
    device_map: common.DeviceMap = None,
) -> None:
    """Stream rows of a corpus on which a head gives a token at least so much weight: «query» looks at ⟦key⟧.

    [dim]Examples:[/dim]

      headwise find L4H0 --above 0.8

      headwise find L5H1 gpt2 --corpus wiki.txt --role induction --hits 5

      headwise find L6H1 --role relation:det --query dog
    """
    from headwise.analyses.examples import Condition, find_rows
    from headwise.models import HeadModel
    from headwise.text import annotate, open_corpus

    wanted = Condition(above=above, role=role, token=token, query=query, sink=sink)
    opened = HeadModel.open(model, device=device, dtype=dtype, device_map=device_map)
    text = open_corpus(common.corpus_of(corpus, reader, text_field), tokenizer=opened.tokenizer, limit=limit)
    text = annotate(text, parser) if parser else text
    found = False
    for hit in islice(find_rows(opened, text, head, wanted), hits):
        found = True
        common.out.print(f"{hit.weight:.2f}  {hit.text}  {hit.where}", highlight=False, soft_wrap=True)
    if not found:
        common.out.print(f"No row of this corpus fits; lower --above ({above:g}) or drop a condition.")


def register(app: typer.Typer) -> None:
    app.command("find")(model_either_way(find_command))
