"""Three ways to pick an antecedent without a model: the nearest mention, the nearest with the same head word, and four sieves (Clark et al. 2019, §4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwise.analyses.coreference.mentions import FEATURES, Expression

BASELINES = ("nearest", "head_match", "rules")


def candidates_of(expression: Expression, expressions: Sequence[Expression]) -> list[Expression]:
    """The mentions that start earlier, in reading order, those with the same head word (nested ones) left out."""
    return [other for other in expressions if other.start < expression.start and other.head != expression.head]


def nearest(expression: Expression, candidates: Sequence[Expression]) -> Expression | None:
    """The mention before it in reading order."""
    return candidates[-1] if candidates else None


def head_match(expression: Expression, candidates: Sequence[Expression]) -> Expression | None:
    """The nearest mention with the same head word; none where there is none."""
    return _nearest_that(candidates, lambda other: other.head_text == expression.head_text)


def rules(expression: Expression, candidates: Sequence[Expression]) -> Expression | None:
    """The nearest mention that passes the first sieve any passes: all words the same, head word the same, number, gender and person agree, any (after Lee et al. 2011)."""
    sieves: tuple[Callable[[Expression], bool], ...] = (
        lambda other: other.text == expression.text,
        lambda other: other.head_text == expression.head_text,
        lambda other: agree(expression, other),
        lambda other: True,
    )
    for sieve in sieves:
        found = _nearest_that(candidates, sieve)
        if found is not None:
            return found
    return None


def agree(first: Expression, second: Expression) -> bool:
    """Whether no feature is known of both and different: what is unknown agrees with anything."""
    return all(
        first.features.get(name) in (None, second.features.get(name)) or name not in second.features
        for name in FEATURES
    )


def baseline_choices(expression: Expression, candidates: Sequence[Expression]) -> dict[str, Expression | None]:
    """What each baseline picks."""
    return {
        name: rule(expression, candidates) for name, rule in zip(BASELINES, (nearest, head_match, rules), strict=True)
    }


def _nearest_that(candidates: Sequence[Expression], passes: Callable[[Expression], bool]) -> Expression | None:
    return next((other for other in reversed(candidates) if passes(other)), None)
