"""The options of a run, declared once for Python and the command line (see `core.options`)."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.core.options import CheckedOptions, option
from headwise.models.options import StackOptions

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class SourceOptions(StackOptions):
    """How a model is opened and a corpus is read."""

    max_length: int | None = option(
        None,
        min=2,
        help="Cut inputs to this many tokens, special ones included; default: what the model "
        "takes.",
    )
    overlong: str = option(
        "truncate",
        choices=("truncate", "skip"),
        help="What happens to inputs that are too long: truncate or skip.",
    )
    parser: str | None = option(
        None, help="A spaCy pipeline (name or folder) that annotates plain text."
    )


@dataclass(frozen=True)
class RunOptions(CheckedOptions):
    """How to run analyses, apart from which and on what; all of it is recorded.

    Parameters
    ----------
    limit : int, optional
        Use at most this many examples, drawn at random by the seed (see
        `headwise.text.corpus.Corpus.sample`).
    full : bool, default False
        Every analysis reads every example; otherwise each keeps to its own budget.
    shard_size : int, optional
        Examples of one checkpoint: the most work that an interruption can cost. By default 64; 32
        where an example costs four times what it costs in BERT, so that small budgets, which are
        rounded up to whole shards, stay small.
    batch_tokens : int, default 4096
        Tokens that go through the model at once, padding included.
    seed : int, default 0
        For everything random.
    overwrite : bool, default False
        Start again where the folder holds another run, instead of raising an error. An unfinished
        run of the same work resumes.
    """

    # A run records what the next three options come to: the fingerprint of the examples, the limit
    # of each analysis, and the plan's shard size.
    limit: int | None = option(
        None,
        min=1,
        in_identity=False,
        help="Use at most this many examples, drawn at random by the seed.",
    )
    full: bool = option(
        False,
        in_identity=False,
        help="Lift the budgets: every analysis reads every example.",
    )
    shard_size: int | None = option(
        None,
        min=1,
        command_line=False,
        in_identity=False,
        help="Examples of one checkpoint; default: 64, or 32.",
    )
    batch_tokens: int = option(
        BATCH_TOKENS,
        min=1,
        command_line=False,
        help="Tokens that go through the model at once, padding included.",
    )
    seed: int = option(0, min=0, help="Seed of everything random.")
    overwrite: bool = option(False, in_identity=False, help="Replace existing results.")


@dataclass(frozen=True)
class AtlasOptions(SourceOptions, RunOptions):
    """The options of `make_atlas`, `plan` and `headwise atlas`."""


@dataclass(frozen=True)
class GrowthOptions(CheckedOptions):
    """How an atlas grows: when it is written before it is finished, and when it stops. The numbers
    of the finished atlas do not depend on it.

    Parameters
    ----------
    rounds : int, optional
        At most so many rounds, each of which ends with an atlas that is valid so far; 1 for none
        before all is done. By default the first comes soon, and more as long as they take no more
        than a tenth of the time.
    minutes : float, optional
        Stop after so many minutes, but not before the first round is done, with what is finished by
        then.
    """

    rounds: int | None = option(
        None,
        min=1,
        in_identity=False,
        help="At most so many rounds, each of which ends with an atlas of what is done so far; 1: "
        "only one at the end. Default: a first one soon, then as many as cost little.",
    )
    minutes: float | None = option(
        None,
        min=0,
        in_identity=False,
        help="Stop after so many minutes, with what is done by then; repeating the command "
        "continues.",
    )


@dataclass(frozen=True)
class GrowingAtlasOptions(AtlasOptions, GrowthOptions):
    """The options of `make_atlas` and `headwise atlas`."""


@dataclass(frozen=True)
class FindOptions(SourceOptions):
    """The options of `find` and `headwise find`."""

    above: float = option(0.5, min=0.0, help="The lowest weight.")
    role: str = option(
        "", help="Only pairs with this role: induction, nsubj, relation:det, previous ..."
    )
    token: str = option("", help="Only rows that attend to this token.")
    query: str = option("", help="Only rows of this token.")
    sink: bool = option(
        False, help="Include attention to the first token, the attention sink of many heads."
    )
    hits: int = option(20, min=1, help="Stop after this many rows.")
    limit: int | None = option(
        None, min=1, help="Use at most this many examples, drawn at random by the seed."
    )
