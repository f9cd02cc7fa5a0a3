"""What a run reads: a model and a corpus, open or by name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from torch import nn

from headwise.core.checks import check_types
from headwise.core.errors import ParameterError
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.options import SourceOptions
from headwise.text import Corpus, Spec, annotate, open_corpus


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
    options : SourceOptions, optional
        How the model is opened and the corpus read.
    rows : EncodedCorpus, optional
        The corpus as tokens, where a model with the same tokenizer has encoded it already; `corpus`
        and the limit of the run then count for nothing.
    """

    model: HeadModel | nn.Module | str | Path | None = None
    corpus: Corpus | Spec | str | Path | None = None
    options: SourceOptions = SourceOptions()
    rows: EncodedCorpus | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if isinstance(self.model, HeadModel):
            self._reject_opening_options()

    def _reject_opening_options(self) -> None:
        """Raise where an open model comes with options that only opening one can follow."""
        for declared in fields(self.options):
            changed = getattr(self.options, declared.name) != declared.default
            if changed and declared.name != "parser":
                raise ParameterError(
                    f"`{declared.name}` is an option for opening a model, and this model is open "
                    "already: pass it to HeadModel.open."
                )

    @property
    def opens_model(self) -> bool:
        """Whether the model is opened here, and so to be closed by whoever opens it."""
        return not isinstance(self.model, HeadModel)

    def open_model(self) -> HeadModel:
        """Return the model, opened where it is not yet."""
        if isinstance(self.model, HeadModel):
            return self.model
        keywords = self.options.keywords()
        del keywords["parser"]
        return HeadModel.open(self.model, **keywords)

    def encode(self, model: HeadModel, limit: int | None = None, seed: int = 0) -> EncodedCorpus:
        """Return at most `limit` examples of the corpus as tokens of the model."""
        if self.rows is not None:
            return self.rows
        return EncodedCorpus(self.open_corpus(model, limit, seed), model.encoder)

    def open_corpus(self, model: HeadModel, limit: int | None = None, seed: int = 0) -> Corpus:
        """Return at most `limit` examples of the corpus, annotated where a parser is named."""
        corpus = open_corpus(
            self.corpus, tokenizer=model.tokenizer, limit=limit, seed=seed, prose=model.causal
        )
        if self.options.parser is None:
            return corpus
        # After the sample is drawn: examples that are not used need not be parsed.
        return annotate(corpus, self.options.parser)
