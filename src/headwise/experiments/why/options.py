"""The options of `why`; this module imports neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.core.errors import ParameterError
from headwise.core.options import option
from headwise.models.options import ModelOptions


@dataclass(frozen=True)
class WhyOptions(ModelOptions):
    """The options of `why`: one score of a text, or many of a corpus."""

    text: str = option("", help="One text; without it, a corpus.")
    query: str = option(
        "",
        help="The token of the text that attends: its text, or its position; default: the last.",
    )
    key: str = option(
        "",
        help="The token attended to: its text, or its position; default: the one that is attended "
        "to most, the first token excluded.",
    )
    # `limit`, `tokens` and `seed` select the rows, which the identity of a job lists.
    limit: int = option(
        64, min=1, in_identity=False, help="Use at most this many examples of the corpus."
    )
    tokens: int = option(
        128, min=4, in_identity=False, help="Use this many tokens of each example, the first ones."
    )
    seed: int = option(0, min=0, in_identity=False, help="Seed of the draw of examples.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.query or self.key) and not self.text:
            raise ParameterError("`query` and `key` name tokens of a `text`; give one.")
