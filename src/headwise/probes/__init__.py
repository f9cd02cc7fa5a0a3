"""Classifiers trained for every head at once."""

from headwise.probes.features import ArrayFeatures, JoinedFeatures, PairFeatures, ProbeFeatures
from headwise.probes.linear import ProbeScores, fit_probes, fit_regressions
from headwise.probes.ridge import GreedyOptions, greedy_heads
from headwise.probes.settings import PENALTIES, ProbeSettings

__all__ = [
    "PENALTIES",
    "ArrayFeatures",
    "GreedyOptions",
    "JoinedFeatures",
    "PairFeatures",
    "ProbeFeatures",
    "ProbeScores",
    "ProbeSettings",
    "fit_probes",
    "fit_regressions",
    "greedy_heads",
]
