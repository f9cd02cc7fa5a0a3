"""Opening models, the one attention tap, and interventions on heads."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel
    from headwise.models.interventions import Mean, Patch, Scale
    from headwise.models.view import TAPS, AttentionRows, Layer, Trace, Watcher

# Imported when first used: a module of this room that needs no transformers does not wait for it.
_HOMES = {"HeadModel": "headmodel", "Trace": "view"}
_HOMES |= dict.fromkeys(("Mean", "Patch", "Scale"), "interventions")
_HOMES |= dict.fromkeys(("TAPS", "Layer", "AttentionRows", "Watcher"), "view")

__all__ = [
    "TAPS",
    "AttentionRows",
    "HeadModel",
    "Layer",
    "Mean",
    "Patch",
    "Scale",
    "Trace",
    "Watcher",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"headwise.models.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'headwise.models' has no attribute '{name}'")
