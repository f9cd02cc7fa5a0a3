"""What to run on, and how: the same for Python and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.core.checks import at_least, check_types, one_of
from headwise.core.errors import ParameterError
from headwise.models import HeadModel
from headwise.text import Corpus, Spec, annotate, open_corpus
from headwise.text.encode import TOO_LONG_RULES

BATCH_TOKENS = 4096
OPENING = (
    "device",
    "stack",
    "dtype",
    "device_map",
    "max_length",
    "overlong",
)  # how a model is opened


@dataclass(frozen=True, slots=True)
class Source:
    """A model and a corpus, open or by name.

    Parameters
    ----------
    model : HeadModel, module of transformers, str, Path or None, default None
        Open, or a hub name or folder; None for the built-in demo model.
    corpus : Corpus, str, Path, Spec or None, default None
        Open, or a SPEC as on the command line (a `Spec` with options of its reader); None for the
        built-in corpus.
    device : str, optional
        Where the model runs; the best there is by default.
    stack : str, optional
        Of an encoder-decoder: `encoder`, `decoder` or `cross`.
    dtype : torch.dtype or str, optional
        Precision of the weights.
    device_map : str or mapping, optional
        How a model too large for one device is spread; see `HeadModel.open`.
    max_length : int, optional
        Cut inputs to this many tokens, special ones included; by default what the model takes.
    overlong : str, default "truncate"
        What happens to longer inputs: `truncate` or `skip`.
    parser : str, optional
        A spaCy pipeline that annotates plain text.
    """

    model: HeadModel | nn.Module | str | Path | None = None
    corpus: Corpus | Spec | str | Path | None = None
    device: str | torch.device | None = None
    stack: str | None = None
    dtype: torch.dtype | str | None = None
    device_map: str | Mapping[str, Any] | None = None
    max_length: int | None = None
    overlong: str = "truncate"
    parser: str | None = None

    def __post_init__(self) -> None:
        check_types(self)
        one_of("overlong", self.overlong, TOO_LONG_RULES)
        given = [
            f.name for f in fields(self) if f.name in OPENING and getattr(self, f.name) != f.default
        ]
        if isinstance(self.model, HeadModel) and given:
            raise ParameterError(
                f"`{min(given)}` is for opening a model, and this one is open: give it to HeadModel.open."
            )

    @property
    def opens_model(self) -> bool:
        """Whether the model is opened here, and so to be closed by whoever opens it."""
        return not isinstance(self.model, HeadModel)

    def open_model(self) -> HeadModel:
        """The model."""
        if isinstance(self.model, HeadModel):
            return self.model
        return HeadModel.open(self.model, **{name: getattr(self, name) for name in OPENING})

    def open_corpus(self, model: HeadModel, limit: int | None = None, seed: int = 0) -> Corpus:
        """At most `limit` examples, drawn, then annotated: what is not used need not be parsed."""
        corpus = open_corpus(
            self.corpus, tokenizer=model.tokenizer, limit=limit, seed=seed, prose=model.causal
        )
        return annotate(corpus, self.parser) if self.parser else corpus


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run, apart from what: all of it is recorded.

    Parameters
    ----------
    limit : int, optional
        Use at most this many examples, drawn at random by the seed (see
        `headwise.text.corpus.Corpus.sample`).
    full : bool, default True
        Every analysis sees every example; otherwise each keeps to its own budget.
    shard_size : int, optional
        Examples whose state is kept together: what a kill may cost. By default 64; 32 where an
        example costs four times what it costs in BERT, so that small budgets, which are rounded up
        to whole shards, stay small.
    batch_tokens : int, default 4096
        Tokens that go through the model at once, padding included.
    seed : int, default 0
        For everything random.
    overwrite : bool, default False
        Start anew where the folder holds another run, instead of refusing. An unfinished run of the
        same kind goes on.
    """

    limit: int | None = None
    full: bool = True
    shard_size: int | None = None
    batch_tokens: int = BATCH_TOKENS
    seed: int = 0
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        for name, low in (("limit", 1), ("shard_size", 1), ("batch_tokens", 1), ("seed", 0)):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), low)
