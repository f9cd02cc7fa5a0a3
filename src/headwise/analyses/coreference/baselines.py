"""Baselines that choose an antecedent without a model (Clark et al. 2019, §4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwise.analyses.coreference.mentions import FEATURES, Expression

RULES = ("nearest", "head_match", "rules")
# The last two are heads that know nothing: uniform attention, and a sink.
BASELINES = (*RULES, "uniform", "first")
Sieve = Callable[[Expression], bool]


def candidates_of(expression: Expression, expressions: Sequence[Expression]) -> list[Expression]:
    """Return the mentions that start earlier, in reading order, without those with the same head
    word (nested ones)."""
    candidates = []
    for candidate in expressions:
        if candidate.start < expression.start and candidate.head != expression.head:
            candidates.append(candidate)
    return candidates


def baseline_choices(
    expression: Expression, candidates: Sequence[Expression]
) -> dict[str, Expression | None]:
    """Return what each baseline chooses; None where it chooses nothing.

    `nearest`: the mention before it in reading order; `head_match`: the nearest with the same head
    word; `rules`: the nearest that passes the first sieve which any candidate passes: same words,
    same head word, agreement in number, gender and person, any (after Lee et al. 2011)."""

    def same_words(candidate: Expression) -> bool:
        return candidate.text == expression.text

    def same_head(candidate: Expression) -> bool:
        return candidate.head_text == expression.head_text

    def agrees(candidate: Expression) -> bool:
        return agree(expression, candidate)

    by_rules = None
    for sieve in (same_words, same_head, agrees, _any):
        by_rules = _nearest(candidates, sieve)
        if by_rules is not None:
            break
    return {
        "nearest": _nearest(candidates, _any),
        "head_match": _nearest(candidates, same_head),
        "rules": by_rules,
    }


def _nearest(candidates: Sequence[Expression], sieve: Sieve) -> Expression | None:
    """Return the last candidate that passes a sieve; None if none does."""
    for candidate in reversed(candidates):
        if sieve(candidate):
            return candidate
    return None


def _any(candidate: Expression) -> bool:
    return True


def agree(first: Expression, second: Expression) -> bool:
    """Return whether no feature is known of both and different: unknown ones agree with anything."""
    for name in FEATURES:
        known_of_both = name in first.features and name in second.features
        if known_of_both and first.features[name] != second.features[name]:
            return False
    return True
