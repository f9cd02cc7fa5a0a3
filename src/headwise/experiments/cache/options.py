"""The options of `cache`; this module imports neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.core.errors import ParameterError
from headwise.core.options import check_options, option
from headwise.models.options import ModelOptions

SHARES = (0.0, 0.125, 0.25, 0.5, 0.75)


@dataclass(frozen=True)
class CacheOptions(ModelOptions):
    """The options of `cache`: what short heads keep, and how the choice of whole heads is judged."""

    # `documents` and `length` select the texts, which the identity of a job lists.
    documents: int = option(
        8, min=4, in_identity=False, help="Use at most this many long texts, half to rank heads."
    )
    length: int = option(
        1024, min=16, in_identity=False, help="Tokens of each text; shorter ones are joined."
    )
    sink: int = option(4, min=0, help="How many of the first tokens short heads keep.")
    window: int = option(256, min=1, help="How many of the last tokens short heads keep.")
    keep: float | None = option(
        None,
        min=0.0,
        help="The share of key/value heads kept whole in the pattern; by default the smallest of "
        "those tried whose loss rises by no more than `at_most`.",
    )
    at_most: float = option(
        0.01, min=0.0, help="The largest rise of the loss (nats per token) that is acceptable."
    )
    random: int = option(
        20, min=0, help="Random choices of as many whole heads that the ranking is compared with."
    )
    needles: int = option(
        8, min=0, help="Needles in unrelated text that the model is asked for, with heads short."
    )
    recipes: bool = option(
        True,
        flag="recipes/no-recipes",
        help="Compare with rankings by induction and by retrieval (released recipes).",
    )
    seed: int = option(0, min=0, help="Seed of the random choices.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.keep is not None and self.keep > 1:
            raise ParameterError("`keep` is a share of the key/value heads, at most 1.")
        if self.sink + self.window >= self.length:
            raise ParameterError(
                f"Short heads keep {self.sink + self.window} tokens, which is no less than the "
                f"{self.length} of a text; raise `length` or lower `window`."
            )
