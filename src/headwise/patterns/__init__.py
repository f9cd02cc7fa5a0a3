"""The five patterns of attention maps (Kovaleva et al. 2019, §4.1): a trained classifier, its labelled maps, and the tool to label more."""

from headwise.patterns.agreement import Kappa, cohen_kappa
from headwise.patterns.label import serve_labels
from headwise.patterns.network import PATTERNS, PatternClassifier, classify_maps, load_classifier, shipped_classifier
from headwise.patterns.store import Label, read_labels, read_maps, save_maps

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
    "serve_labels",
    "shipped_classifier",
]
