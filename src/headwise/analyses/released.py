"""Where the code that a paper's authors released computes something else than the paper says: the
one list of it.

headwise computes what the papers print. The variant "released" (the parameter `reading` of an
analysis) computes what the released code does, so that both can be compared with the printed
figures."""

from __future__ import annotations

from dataclasses import dataclass

PAPER = "paper"
RELEASED = "released"
VARIANTS = (PAPER, RELEASED)


@dataclass(frozen=True, slots=True)
class Quirk:
    """One difference between a paper and the code released with it."""

    name: str
    paper: str  # key
    where: str  # the analysis (or `change`, the comparison of maps) that computes it
    printed: str  # what the paper says as headwise reads and computes it
    released: str  # what the code does
    source: str  # the file of the released code


_CLARK = "attention-analysis, Syntax_Analysis.ipynb"
_PANDE = "heads-hypothesis, "
QUIRKS = (
    Quirk(
        "first_piece",
        "clark2019",
        "dependency",
        "attention from a word is the mean over its pieces",
        "it is that of its first piece",
        "attention-analysis, bpe_utils.py",
    ),
    Quirk(
        "roots_and_punctuation",
        "clark2019",
        "dependency",
        "the accuracy over all relations leaves out roots and punctuation",
        "it counts both, and a root is never found",
        _CLARK,
    ),
    Quirk(
        "possessive_mark",
        "clark2019",
        "dependency",
        "a possessor's own prediction counts",
        "where `'s` follows it, the prediction of that mark counts",
        _CLARK,
    ),
    Quirk(
        "padding_in_cosine",
        "kovaleva2019",
        "change",
        "maps are compared over the tokens of an input",
        "over 200 × 200 entries: the rows of padding tokens count as well",
        "dark-secrets-of-BERT, visualize_attention.ipynb",
    ),
    Quirk(
        "band_too_wide",
        "pande2021",
        "roles",
        "the local sieve of the last two tokens ends with the input",
        "the sum over it is divided by one token more than there is",
        _PANDE + "local_score.ipynb",
    ),
    Quirk(
        "entropy_in_block",
        "pande2021",
        "roles",
        "the block score of a token is its sieve bias; special tokens have no block",
        "it is multiplied by the entropy of the token's attention; [CLS] has the first block, every [SEP] the second",
        _PANDE + "block_score.ipynb",
    ),
    Quirk(
        "test_of_means",
        "pande2021",
        "roles",
        "a z-test, the variance with ddof 1",
        "Student's t, the variance with ddof 0",
        _PANDE + "label_heads.ipynb",
    ),
)


def quirks_of(*, paper: str | None = None, where: str | None = None) -> tuple[Quirk, ...]:
    """Return the differences of one paper, of one analysis, or all of them.

    >>> [quirk.name for quirk in quirks_of(where="change")]
    ['padding_in_cosine']
    """
    return tuple(q for q in QUIRKS if paper in (None, q.paper) and where in (None, q.where))
