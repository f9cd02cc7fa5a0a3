"""Models with planted heads, slow independent computations, and the battery of checks that every
analysis must pass."""

from headwise.testing.behaviours import RULES
from headwise.testing.contributions import contributions
from headwise.testing.decoder import PlantedDecoder, planted_decoder
from headwise.testing.indirect_objects import PlantedNames, planted_names
from headwise.testing.levels import RandomRuns, check_random_models, random_calls
from headwise.testing.lookup import planted_annotations
from headwise.testing.models import permute_heads, random_model
from headwise.testing.planted import Planted, planted_model
from headwise.testing.slow import eager, eager_hidden, eager_maps

__all__ = [
    "RULES",
    "Planted",
    "PlantedDecoder",
    "PlantedNames",
    "RandomRuns",
    "check_random_models",
    "contributions",
    "eager",
    "eager_hidden",
    "eager_maps",
    "permute_heads",
    "planted_annotations",
    "planted_decoder",
    "planted_model",
    "planted_names",
    "random_calls",
    "random_model",
]
