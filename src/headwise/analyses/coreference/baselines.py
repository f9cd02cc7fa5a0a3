"""Ways to pick an antecedent without a model (Clark et al. 2019, §4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwise.analyses.coreference.mentions import FEATURES, Expression

RULES = ("nearest", "head_match", "rules")
BASELINES = (
    *RULES,
    "uniform",
    "first",
)  # the last two are heads that know nothing: uniform attention, and a sink
Sieve = Callable[[Expression], bool]


def candidates_of(expression: Expression, expressions: Sequence[Expression]) -> list[Expression]:
    """The mentions that start earlier, in reading order, those with the same head word (nested
    ones) left out."""
    return [
        other
        for other in expressions
        if other.start < expression.start and other.head != expression.head
    ]


def baseline_choices(
    expression: Expression, candidates: Sequence[Expression]
) -> dict[str, Expression | None]:
    """What each baseline picks, None where it picks nothing.

    `nearest`: the mention before it in reading order; `head_match`: the nearest with the same head
    word; `rules`: the nearest that passes the first sieve any passes: all words the same, head word
    the same, number, gender and person agree, any (after Lee et al. 2011)."""

    def nearest(passes: Sieve) -> Expression | None:
        return next((other for other in reversed(candidates) if passes(other)), None)

    def same_head(other: Expression) -> bool:
        return other.head_text == expression.head_text

    sieves: tuple[Sieve, ...] = (
        lambda other: other.text == expression.text,
        same_head,
        lambda other: agree(expression, other),
        lambda other: True,
    )
    by_rules = next((found for sieve in sieves if (found := nearest(sieve)) is not None), None)
    return {"nearest": nearest(sieves[-1]), "head_match": nearest(same_head), "rules": by_rules}


def agree(first: Expression, second: Expression) -> bool:
    """Whether no feature is known of both and different: what is unknown agrees with anything."""
    return all(
        first.features.get(name) in (None, second.features.get(name)) or name not in second.features
        for name in FEATURES
    )
