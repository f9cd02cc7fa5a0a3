"""What is imported when it is first used: public names of packages, and code of higher layers.

Results display themselves in notebooks, and `plots` lists the figures of every analysis; the code
for both lies in higher layers. `headwise/__init__.py`, above all layers, registers a loader for
each, and the lower layer calls `load` when it needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return a `__getattr__` for a package that imports its public names on first use.

    A package that imports torch or transformers at the top makes every import of one of its
    modules wait for them, even of a module that needs neither (`options.py`). With this, only
    those who use a heavy name wait.

    Parameters
    ----------
    package : str
        The package's `__name__`.
    homes : mapping
        The names by the module that defines them: `{"headwise.run.runner": ("Run",)}`.

    Examples
    --------
    >>> look_up = lazy_names("headwise.core", {"headwise.core.version": ("__version__",)})
    >>> isinstance(look_up("__version__"), str)
    True
    """

    def look_up(name: str) -> object:
        for home, names in homes.items():
            if name in names:
                return getattr(import_module(home), name)
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return look_up


VIEWS = "views"  # loads the module that shows results in notebooks
EXPERIMENTS = "experiments"  # loads a module with the functions that change a model
FIGURES = "figures"  # imports every module of figures, which registers them

_loaders: dict[str, Callable[[], Any]] = {}


def register_loader(name: str, loader: Callable[[], Any]) -> None:
    """Say how `name` is loaded; a second registration replaces the first."""
    _loaders[name] = loader


def load(name: str) -> Any:
    """Call the loader of `name` and return what it returns."""
    return _loaders[name]()
