"""The options of `compare`; this module imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwise.core.checks import at_least
from headwise.core.options import option
from headwise.models.options import ModelOptions

ANALYSES = ("surface", "roles", "features")
FAMILY_ANALYSES = ("surface", "induction", "dependency")  # of a comparison by depth: cheap labels
MOST_MODELS = 8  # of a comparison by depth
CORRECTION_NAMES = ("holm", "benjamini_hochberg", "none")
PAPER_EXAMPLES = 1000  # as many as Kovaleva et al. took


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas between; none for `none`.

    >>> parse_names("surface, roles"), parse_names("none")
    (('surface', 'roles'), ())
    """
    if text.strip() == "none":
        return ()
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _same_for_all_parts(count: int) -> tuple[int, int, int]:
    at_least("probing_limits", count, 1)
    return (count, count, count)


@dataclass(frozen=True)
class ComparisonOptions(ModelOptions):
    """The options of `compare`: what is compared, and how."""

    # The first five options are recorded as what they select: the groups of the result, the
    # analyses with their parameters, the models by name, the fingerprints of the probing tasks.
    by: str = option(
        "auto",
        choices=("auto", "head", "depth"),
        in_identity=False,
        metavar="auto|head|depth",
        help="Compare head by head, or by label and relative depth; auto: head by head where all "
        "are models of one shape.",
    )
    analyses: Sequence[Any] | None = option(
        None,
        in_identity=False,
        cli_type=str | None,
        parse=parse_names,
        help="Analyses, with commas between. Head by head: those whose means by example are "
        "compared beside the maps (default: surface,roles,features); `none` for nothing. By depth: "
        "those that give labels (default: surface,induction,dependency). Those that do not apply "
        "are left out and named in the provenance.",
    )
    names: Sequence[str] | None = option(
        None,
        in_identity=False,
        cli_type=str | None,
        parse=parse_names,
        help="Names of the models, with commas between; default: their own.",
    )
    probing: Any = option(
        None,
        in_identity=False,
        cli_type=str | None,
        help="Tasks to probe all models for: SentEval files, GLUE folders, labelled corpora.",
    )
    probing_limits: tuple[int | None, int | None, int | None] = option(
        (None, None, None),
        in_identity=False,
        flag="probing-limit",
        cli_type=int | None,
        parse=_same_for_all_parts,
        help="Use at most this many training, validation and test examples of a probing task.",
    )
    # The fingerprint of the corpus covers `limit` and `parser`.
    limit: int | None = option(
        PAPER_EXAMPLES, min=1, in_identity=False, help="Use at most this many examples."
    )
    correction: str = option(
        "holm",
        choices=CORRECTION_NAMES,
        help="holm, benjamini_hochberg or none, over all heads (and labels) of a variable.",
    )
    parser: str | None = option(
        None,
        in_identity=False,
        help="A spaCy pipeline (name or folder) that annotates plain text.",
    )
    variant: str = option(
        "paper",
        choices=("paper", "released"),
        aliases=("as",),
        metavar="paper|released",
        help="Maps and analyses as the papers print them, or as the code released with them "
        "computes them where it differs.",
    )
    # Recorded by a comparison by depth alone.
    bins: int | None = option(
        None,
        min=1,
        in_identity=False,
        help="By depth: how many parts of equal relative depth; default: the layers of the "
        "shallowest model, at most 6.",
    )
    seed: int = option(0, min=0, help="For everything random.")
