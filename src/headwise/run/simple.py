"""The short way in for notebooks and scripts: names in, an atlas out."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.analyses.contract import Analysis, known_analyses, make_analysis
from headwise.atlas import Atlas
from headwise.run.runner import RunOptions, run_analyses

if TYPE_CHECKING:
    from torch import nn

    from headwise.models import HeadModel
    from headwise.text import Corpus


def make_atlas(
    model: HeadModel | nn.Module | str | Path | None = None,
    corpus: Corpus | str | Path | None = None,
    analyses: Sequence[str | Analysis] | None = None,
    *,
    limit: int | None = None,
    full: bool = False,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
) -> Atlas:
    """An atlas of a model's heads.

    Parameters
    ----------
    model
        A `HeadModel`, a module of transformers, a hub name, a folder; None for the built-in demo model.
    corpus
        A `Corpus` or a SPEC as on the command line; None for the demo corpus.
    analyses
        Names or analyses; None for all that apply.
    limit
        Use at most this many examples.
    full
        Lift the budgets: every analysis sees every example.
    parameters
        `{"offsets": {"reach": 20}}`: parameters by analysis.
    folder
        Where finished shards are kept, so that a killed call can be repeated; None for a temporary folder.

    Examples
    --------
    >>> atlas = make_atlas(analyses=["surface"], limit=100)
    >>> atlas["surface"]["entropy"].mean("head")
    """
    from headwise.models import HeadModel
    from headwise.text import open_corpus

    given = parameters or {}
    names = analyses if analyses is not None else [name for name, cls in known_analyses().items() if cls.automatic]
    chosen = [make_analysis(item, given.get(item)) if isinstance(item, str) else item for item in names]
    opened = model if isinstance(model, HeadModel) else HeadModel.open(model)
    text = open_corpus(corpus, tokenizer=opened.tokenizer, limit=limit)
    options = RunOptions(limit=limit, full=full, seed=seed)
    if folder is not None:
        return run_analyses(opened, text, chosen, folder, options)
    with tempfile.TemporaryDirectory() as temporary:
        return run_analyses(opened, text, chosen, temporary, options)
