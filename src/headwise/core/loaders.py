"""What a layer uses without importing it: the layer above registers how it is loaded.

Results display themselves in notebooks, and `plots` lists the figures of every analysis; the code
for both lies in higher layers. `headwise/__init__.py`, above all layers, registers a loader for
each, and the lower layer calls `load` when it needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

VIEWS = "views"  # loads the module that shows results in notebooks
FIGURES = "figures"  # imports every module of figures, which registers them

_loaders: dict[str, Callable[[], Any]] = {}


def register_loader(name: str, loader: Callable[[], Any]) -> None:
    """Say how `name` is loaded; a second registration replaces the first."""
    _loaders[name] = loader


def load(name: str) -> Any:
    """Call the loader of `name` and return what it returns."""
    return _loaders[name]()
