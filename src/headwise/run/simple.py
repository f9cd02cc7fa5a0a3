"""The short way in for notebooks and scripts: names in, an atlas out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import nn
from tqdm.auto import tqdm

from headwise.analyses.contract import Analysis, choose_analyses
from headwise.atlas import Atlas
from headwise.core.options import takes_options
from headwise.models import HeadModel
from headwise.run.options import AtlasOptions
from headwise.run.runner import Listener, Report, Run
from headwise.run.source import Source
from headwise.text import Corpus, Spec


@takes_options(AtlasOptions)
def make_atlas(
    model: HeadModel | nn.Module | str | Path | None = None,
    corpus: Corpus | Spec | str | Path | None = None,
    analyses: Sequence[str | Analysis] | None = None,
    *,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    folder: str | Path | None = None,
    progress: bool | Report = False,
    options: AtlasOptions,
) -> Atlas:
    """An atlas of a model's heads.

    Parameters
    ----------
    model : HeadModel, module of transformers, str, Path or None, default None
        Open, or a hub name or folder; None for the built-in demo model.
    corpus : Corpus, str, Path, Spec or None, default None
        Open, or a SPEC as on the command line; None for the built-in corpus.
    analyses : sequence of str or Analysis, optional
        Names or analyses; None for all that apply.
    parameters : mapping, optional
        `{"offsets": {"reach": 20}}`: parameters by analysis.
    folder : str or Path, optional
        Where finished pieces are kept, so that a killed call can be repeated; None for a temporary
        folder.
    progress : bool or callable, default False
        True for bars in a notebook or a terminal, or what is told how far it is: `progress(what,
        done, total)`.
    options : AtlasOptions, optional
        Or each of its fields as a keyword: `limit`, `full`, `seed`, `shard_size`, `batch_tokens`,
        `overwrite` as in `RunOptions`; `device`, `stack`, `dtype`, `device_map`, `max_length`,
        `overlong`, `parser` as in `SourceOptions`.

    Examples
    --------
    >>> atlas = make_atlas(analyses=["surface"], limit=2)
    >>> dict(atlas["surface"]["entropy"].mean("head").sizes)
    {'layer': 12}
    """
    source = Source(model, corpus, options.source_options())
    chosen = choose_analyses(analyses, parameters)
    with Bars() if progress is True else nullcontext(progress or None) as report:
        listener = Listener() if report is None else Listener(report)
        with Run(source, chosen, folder, options.run_options(), listener) as run:
            return run.atlas()


class Bars:
    """A bar for each thing that is counted, in a notebook or a terminal; told `(what, done,
    total)`."""

    def __init__(self) -> None:
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        for bar in self._bars.values():
            bar.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._bars:
            self._bars[what] = tqdm(desc=what, total=total)
        bar = self._bars[what]
        bar.total = total
        bar.update(done - bar.n)
        bar.refresh()
