"""Hidden token attribution: how much of each token is in each head's output (Pascual et al. 2021),
and other readings of mixing."""

from headwise.analyses.attribution.contributions import METHODS, SOURCES, contributions
from headwise.analyses.attribution.readings import READINGS, Mixing, mixing
from headwise.analyses.attribution.readings.norms import norm_weighted
from headwise.analyses.attribution.readings.rollout import rollout
from headwise.analyses.attribution.sketch import Contributions, Options
from headwise.stats.correlation import row_correlations

__all__ = [
    "METHODS",
    "READINGS",
    "SOURCES",
    "Contributions",
    "Mixing",
    "Options",
    "contributions",
    "mixing",
    "norm_weighted",
    "rollout",
    "row_correlations",
]
