"""The five patterns of attention maps (Kovaleva et al. 2019, §4.1) and their trained classifier."""

from headwise.analyses.patterns.network import (
    PATTERNS,
    PatternClassifier,
    classify_maps,
    load_classifier,
    shipped_classifier,
)
from headwise.analyses.patterns.store import Label, read_labels, read_maps, save_maps
from headwise.stats.agreement import Kappa, cohen_kappa

__all__ = [
    "PATTERNS",
    "Kappa",
    "Label",
    "PatternClassifier",
    "classify_maps",
    "cohen_kappa",
    "load_classifier",
    "read_labels",
    "read_maps",
    "save_maps",
    "shipped_classifier",
]
