"""Opening models, the one attention tap, and interventions on heads."""

from headwise.models.headmodel import HeadModel
from headwise.models.interventions import Mean, Patch, Scale
from headwise.models.trace import Trace
from headwise.models.view import TAPS, Layer, Rows, Watcher

__all__ = ["TAPS", "HeadModel", "Layer", "Mean", "Patch", "Rows", "Scale", "Trace", "Watcher"]
