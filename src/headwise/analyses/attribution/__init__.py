"""Hidden token attribution: how much of each token is in each head's output (Pascual et al. 2021)."""

from headwise.analyses.attribution.contributions import METHODS, SOURCES, Contributions, Options, contributions
from headwise.analyses.attribution.mixing import norm_weighted, rollout
from headwise.stats.correlation import row_correlations

__all__ = [
    "METHODS",
    "SOURCES",
    "Contributions",
    "Options",
    "contributions",
    "norm_weighted",
    "rollout",
    "row_correlations",
]
