"""Judge a claim: evidence and the claim's rule in, one of five verdicts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwise.experiments.reproduction.estimates import Outcome
from headwise.experiments.reproduction.printed import Claim

AS_PRINTED = "as printed"
WEAKER = "in a weaker form"
DOES_NOT_HOLD = "does not hold"
UNDECIDED = "undecided"
CANNOT = "cannot be tried"
VERDICTS = (AS_PRINTED, WEAKER, DOES_NOT_HOLD, UNDECIDED, CANNOT)
# What each verdict means, for readers of a report.
VERDICT_MEANINGS = {
    AS_PRINTED: "the sentence is true of our measurement, with its numbers and quantities",
    WEAKER: "a weaker sentence, given beside it, is true",
    DOES_NOT_HOLD: "our measurement contradicts the sentence and its weaker forms",
    UNDECIDED: "the interval spans the bound, or the sample is too small",
    CANNOT: "this model or these data do not allow a trial",
}
SPANS_BOUND = "the interval spans the bound"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured for a claim.

    Parameters
    ----------
    ours : str, default ""
        What was measured, with intervals and the counts behind shares.
    printed : Outcome, default open
        Whether the condition of the sentence as printed is met.
    weaker : mapping of str to Outcome
        Whether each weaker condition of the claim is met, by its key.
    sample : mapping of str to int
        How much was measured, by what is counted (`segments`, `inputs`).
    undecided : str, default ""
        Why nothing is decided, whatever the numbers say.
    cannot : str, default ""
        Why the claim cannot be tried here.
    open_because : str, default ""
        What is missing where the condition as printed stays open.
    """

    ours: str = ""
    printed: Outcome = Outcome.OPEN
    weaker: Mapping[str, Outcome] = field(default_factory=dict)
    sample: Mapping[str, int] = field(default_factory=dict)
    undecided: str = ""
    cannot: str = ""
    open_because: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a claim: one of `VERDICTS`, what was measured, and why (for a weaker form: the
    sentence that holds)."""

    verdict: str
    ours: str
    why: str = ""


def cannot_try(why: str) -> Evidence:
    """Return the evidence on a claim that cannot be tried here."""
    return Evidence(cannot=why)


def judge(claim: Claim, evidence: Evidence) -> Verdict:
    """Return the verdict on a claim.

    A rule that leaves out a part of its sentence gives a weaker form at best; a sample below the
    claim's minimum decides nothing.

    Raises
    ------
    ValueError
        If the evidence names other weaker forms, or other samples, than the claim.
    """
    if evidence.cannot:
        return Verdict(CANNOT, evidence.ours, evidence.cannot)
    if evidence.undecided:
        return Verdict(UNDECIDED, evidence.ours, evidence.undecided)
    _check_names(claim, evidence)
    for name, minimum in claim.minimum.items():
        count = evidence.sample[name]
        if count < minimum:
            why = f"{count:,} {name}, the rule needs {minimum:,}"
            return Verdict(UNDECIDED, evidence.ours, why)
    if evidence.printed is Outcome.TRUE and not claim.leaves_out:
        return Verdict(AS_PRINTED, evidence.ours)
    if evidence.printed is Outcome.TRUE:
        return Verdict(WEAKER, evidence.ours, f"all but {claim.leaves_out}, which was not tried")
    for form in claim.weaker:
        if evidence.weaker[form.key] is Outcome.TRUE:
            why = form.supports
            if evidence.printed is Outcome.OPEN:
                why += f"; as printed it is undecided: {evidence.open_because or SPANS_BOUND}"
            return Verdict(WEAKER, evidence.ours, why)
    if evidence.printed is Outcome.OPEN:
        why = evidence.open_because or SPANS_BOUND
        if evidence.open_because and Outcome.OPEN in evidence.weaker.values():
            # More than what is missing leaves it open.
            why += "; what was measured does not decide it either"
        return Verdict(UNDECIDED, evidence.ours, why)
    for form in claim.weaker:
        if evidence.weaker[form.key] is Outcome.OPEN:
            why = f"not as printed; open is whether {form.supports}"
            return Verdict(UNDECIDED, evidence.ours, why)
    return Verdict(DOES_NOT_HOLD, evidence.ours)


def _check_names(claim: Claim, evidence: Evidence) -> None:
    expected_forms = {form.key for form in claim.weaker}
    if set(evidence.weaker) != expected_forms:
        raise ValueError(
            f"{claim.key}: weaker forms {sorted(evidence.weaker)}, not {sorted(expected_forms)}"
        )
    if not set(claim.minimum) <= set(evidence.sample):
        raise ValueError(f"{claim.key}: no count of {sorted(claim.minimum)}")
