"""Hidden token attribution: how much of each token is in each head's output (Pascual et al. 2021),
and other measures of mixing."""

from headwise.analyses.attribution.contributions import METHODS, SOURCES, contributions
from headwise.analyses.attribution.mixing_methods import MIXING_METHODS, Mixing, mixing
from headwise.analyses.attribution.mixing_methods.norms import norm_weighted
from headwise.analyses.attribution.mixing_methods.rollout import rollout
from headwise.analyses.attribution.sketch import ContributionOptions, Contributions
from headwise.stats.correlation import row_correlations

__all__ = [
    "METHODS",
    "MIXING_METHODS",
    "SOURCES",
    "ContributionOptions",
    "Contributions",
    "Mixing",
    "contributions",
    "mixing",
    "norm_weighted",
    "rollout",
    "row_correlations",
]
