"""The options of `track`; this module imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwise.core.errors import ParameterError
from headwise.core.options import option
from headwise.run.options import SourceOptions

ANALYSES = ("surface", "sinks", "induction", "offsets")
LEAST_MODELS = 4  # a step needs two models on each side


def parse_steps(text: str) -> tuple[float, ...]:
    """Return the numbers in a list with commas between.

    >>> parse_steps("0, 100,1000")
    (0.0, 100.0, 1000.0)
    """
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise ParameterError(
            f"Steps are numbers with commas between, one for each model; they are '{text}'."
        ) from None


def parse_measures(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas between."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True)
class TrackOptions(SourceOptions):
    """The options of `track`: the steps, the examples, and what births are judged by."""

    # The identity of a job lists the steps and the fingerprint of the examples.
    steps: Sequence[float] | None = option(
        None,
        in_identity=False,
        cli_type=str | None,
        parse=parse_steps,
        help="The training step of each model, with commas between; default: the last number in "
        "each name, or 0, 1, 2 ...",
    )
    limit: int | None = option(
        128,
        min=1,
        in_identity=False,
        help="Use at most this many examples, drawn at random by the seed.",
    )
    measures: Sequence[str] | None = option(
        None,
        cli_type=str | None,
        parse=parse_measures,
        help="Measures whose births are listed and drawn, with commas between "
        "(surface.position.-1, induction.prefix_matching ...); default: previous and next token, "
        "first token, closing token, induction, duplicate.",
    )
    least: float = option(
        0.05, min=0.0, help="The smallest rise of a measure that counts as a birth."
    )
    random: int = option(
        4,
        min=2,
        help="Random-weights models that say how much measures vary by chance.",
    )
    seed: int = option(0, min=0, help="Seed of everything random.")
