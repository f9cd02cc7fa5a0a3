"""Search a corpus for rows on which a head meets a condition: names in, rows out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from torch import nn

from headwise.analyses.examples.find import Hit, RowCondition, find_rows
from headwise.core.options import part_of, takes_options
from headwise.models import HeadModel
from headwise.run.options import FindOptions, SourceOptions
from headwise.run.source import Source
from headwise.text import Corpus, Spec


@takes_options(FindOptions)
def find(
    head: str,
    model: HeadModel | nn.Module | str | Path | None = None,
    corpus: Corpus | Spec | str | Path | None = None,
    *,
    options: FindOptions,
) -> list[Hit]:
    """Return rows of a corpus on which a head gives a token at least a certain weight.

    Parameters
    ----------
    head : str
        The head, like `L5H1`.
    model : HeadModel, module of transformers, str, Path or None, default None
        Open, or a hub name or folder; default: built-in model.
    corpus : Corpus, str, Path, Spec or None, default None
        Open, or a SPEC as on the command line; default: built-in corpus.
    options : FindOptions, optional
        Or each of its fields as a keyword: `above`, `role`, `token`, `query`, `sink`, `hits`,
        `limit`, and those of `SourceOptions`.

    Returns
    -------
    list of Hit
        `where`, `text` (with «query» and ⟦key⟧ marked), `query`, `key` and `weight` of each row, in
        the order of the corpus.

    Examples
    --------
    >>> rows = find("L0H2", above=0.3, limit=4, hits=2)
    >>> [row.weight >= 0.3 for row in rows]
    [True, True]
    """
    return list(stream_hits(head, Source(model, corpus, part_of(options, SourceOptions)), options))


def stream_hits(head: str, source: Source, options: FindOptions) -> Iterator[Hit]:
    """Yield the rows that `find` returns, each as soon as it is found."""
    condition = RowCondition(
        above=options.above,
        role=options.role,
        token=options.token,
        query=options.query,
        sink=options.sink,
    )
    model = source.open_model()
    try:
        corpus = source.open_corpus(model, options.limit)
        yield from islice(find_rows(model, corpus, head, condition), options.hits)
    finally:
        if source.opens_model:
            model.close()
