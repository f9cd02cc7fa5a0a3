"""The options of `cache`; this module imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwise.core.errors import ParameterError
from headwise.core.options import option
from headwise.models.options import ModelOptions

ERROR = "output error"
INDUCTION = "induction"
RETRIEVAL = "retrieval"
EFFECT = "effect"
GATES = "learned gates"
# How a pattern may be made, by the value of `rank_by`.
RANKINGS = {
    "error": ERROR,
    "effect": EFFECT,
    "induction": INDUCTION,
    "retrieval": RETRIEVAL,
    "gates": GATES,
}
SHARES = (0.0, 0.125, 0.25, 0.5, 0.75)
DIFFERENT_NEEDLES = 24  # that there are (`analyses.retrieval.trials`, which imports torch)


def parse_shares(text: str) -> tuple[float, ...]:
    """Return the numbers in a list with commas between.

    >>> parse_shares("0, 0.25")
    (0.0, 0.25)
    """
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise ParameterError(
            f"Shares are numbers from 0 to 1 with commas between, not '{text}'."
        ) from None


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
    rank_by: str = option(
        "error",
        choices=tuple(RANKINGS),
        help="What the pattern is made by, and compared with random choices: the output error without "
        "distant tokens, the effect on the predictions, induction, retrieval of needles, or learned "
        "gates.",
    )
    shares: Sequence[float] = option(
        SHARES,
        cli_type=str | None,
        parse=parse_shares,
        help="Shares of whole heads that are tried, with commas between; default: "
        "0, 0.125, 0.25, 0.5 and 0.75.",
    )
    random: int = option(
        20, min=0, help="Random choices of as many whole heads that the ranking is compared with."
    )
    random_texts: int | None = option(
        None,
        min=1,
        help="Judge random choices on at most this many texts and needles, to save time; by "
        "default on all.",
    )
    needles: int = option(
        8,
        min=0,
        help="Needles in unrelated text that the model is asked for, with heads short; as many "
        "others rank heads by retrieval.",
    )
    recipes: bool = option(
        True,
        flag="recipes/no-recipes",
        help="Compare with rankings by induction and by retrieval (released recipes).",
    )
    effects: int = option(
        0,
        min=0,
        help="Measure the effect of each key/value head on the predictions on at most this many "
        "texts, as one more ranking (two passes with gradients for each text); 0: none.",
    )
    gates: int = option(
        0,
        min=0,
        help="Learn a gate for every key/value head in this many steps, as one more ranking "
        "(each step is a pass with gradients); 0: none.",
    )
    seed: int = option(0, min=0, help="Seed of the random choices and of the gates.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None and self.keep > 1:
            raise ParameterError("`keep` is a share of the key/value heads, at most 1.")
        if self.rank_by == "gates" and not self.gates:
            raise ParameterError(
                "Heads are to be ranked by learned gates, and no gates are learned; say in how many "
                "steps by `gates`."
            )
        if self.rank_by == "effect" and not self.effects:
            raise ParameterError(
                "Heads are to be ranked by their effect, and no effects are measured; say on how many "
                "texts by `effects`."
            )
        if self.rank_by in ("induction", "retrieval") and not self.recipes:
            raise ParameterError(
                f"Heads are to be ranked by {self.rank_by}, which `recipes` leaves out."
            )
        if not self.shares or min(self.shares) < 0 or max(self.shares) > 1:
            raise ParameterError("`shares` are numbers from 0 to 1, at least one.")
        # Needles that rank heads must not judge the ranking.
        most_needles = DIFFERENT_NEEDLES // 2 if self.recipes else DIFFERENT_NEEDLES
        if self.needles > most_needles:
            raise ParameterError(
                f"There are {DIFFERENT_NEEDLES} different needles, so at most {most_needles} can judge"
                f"{' beside as many that rank' if self.recipes else ''}; lower `needles`."
            )
        # The loss is that of tokens that are predicted with something cut: at least one.
        if self.sink + self.window + 1 >= self.length:
            raise ParameterError(
                f"Short heads keep {self.sink + self.window} tokens, and in a text of {self.length} "
                "no token is predicted from more; raise `length` or lower `window`."
            )
