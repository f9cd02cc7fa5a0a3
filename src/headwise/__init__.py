"""headwise tells what each attention head of a transformer language model does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from headwise.core.errors import HeadwiseError
from headwise.core.version import __version__

if TYPE_CHECKING:
    from headwise.analyses.contract import Analysis, known_analyses, make_analysis
    from headwise.atlas import Atlas
    from headwise.models import HeadModel
    from headwise.run import RunOptions, make_atlas
    from headwise.text import Corpus, Example, open_corpus

# Names are imported when first used, so that `import headwise` and `headwise --help` take milliseconds, not the seconds that torch and transformers take.
_HOMES = {
    "Analysis": "headwise.analyses.contract",
    "Atlas": "headwise.atlas",
    "Corpus": "headwise.text",
    "Example": "headwise.text",
    "HeadModel": "headwise.models",
    "RunOptions": "headwise.run",
    "known_analyses": "headwise.analyses.contract",
    "make_analysis": "headwise.analyses.contract",
    "make_atlas": "headwise.run",
    "open_corpus": "headwise.text",
}

__all__ = [
    "Analysis",
    "Atlas",
    "Corpus",
    "Example",
    "HeadModel",
    "HeadwiseError",
    "RunOptions",
    "__version__",
    "known_analyses",
    "make_analysis",
    "make_atlas",
    "open_corpus",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'headwise' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
