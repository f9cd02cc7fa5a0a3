"""headwise tells what each attention head of a transformer language model does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from headwise.core.errors import HeadwiseError
from headwise.core.version import __version__

if TYPE_CHECKING:
    from headwise.analyses.contract import (
        Analysis,
        Experiment,
        Observer,
        known_analyses,
        make_analysis,
    )
    from headwise.analyses.roles.sieves import sieve
    from headwise.atlas import Atlas
    from headwise.models import HeadModel
    from headwise.page.views import draw
    from headwise.run import RunOptions, make_atlas
    from headwise.run.estimate import plan
    from headwise.text import Corpus, Example, open_corpus

# Names are imported when first used, so that `import headwise` and `headwise --help` take
# milliseconds, not the seconds that torch and transformers take.
_HOMES = {
    "headwise.analyses.contract": (
        "Analysis",
        "Experiment",
        "Observer",
        "known_analyses",
        "make_analysis",
    ),
    "headwise.analyses.roles.sieves": ("sieve",),
    "headwise.atlas": ("Atlas",),
    "headwise.models": ("HeadModel",),
    "headwise.page.views": ("draw",),
    "headwise.run": ("RunOptions", "make_atlas"),
    "headwise.run.estimate": ("plan",),
    "headwise.text": ("Corpus", "Example", "open_corpus"),
}

__all__ = [
    "Analysis",
    "Atlas",
    "Corpus",
    "Example",
    "Experiment",
    "HeadModel",
    "HeadwiseError",
    "Observer",
    "RunOptions",
    "__version__",
    "draw",
    "known_analyses",
    "make_analysis",
    "make_atlas",
    "open_corpus",
    "plan",
    "sieve",
]


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'headwise' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
