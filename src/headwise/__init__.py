"""headwise shows what each attention head of a transformer language model does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwise.core.errors import HeadwiseError
from headwise.core.lazy import EXPERIMENTS, FIGURES, VIEWS, lazy_names, register_loader
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
    from headwise.experiments.ablation import ablate, prune
    from headwise.experiments.cache import cache
    from headwise.experiments.circuit import circuit
    from headwise.experiments.comparison import compare
    from headwise.experiments.finetuning import finetune
    from headwise.experiments.knockout import knockout
    from headwise.experiments.patching import PromptPair, patch
    from headwise.experiments.probe import probe
    from headwise.experiments.reproduction import reproduce
    from headwise.experiments.track import track
    from headwise.experiments.why import why
    from headwise.models import HeadModel, Mean, Patch, Scale
    from headwise.models.kv_cache import CachePattern, HeadwiseCache
    from headwise.page.gallery import gallery
    from headwise.page.views import draw
    from headwise.run import RunOptions, make_atlas
    from headwise.run.estimate import plan
    from headwise.run.find import find
    from headwise.text import Corpus, Example, open_corpus

__all__ = [  # noqa: RUF022  (in the order of a reader, not of the alphabet)
    # a model and a text
    "HeadModel",
    "Corpus",
    "Example",
    "open_corpus",
    # what its heads do
    "make_atlas",
    "plan",
    "probe",
    "Atlas",
    "RunOptions",
    "draw",
    "find",
    "gallery",
    "why",
    # a model that is changed
    "ablate",
    "patch",
    "circuit",
    "PromptPair",
    "knockout",
    "cache",
    "CachePattern",
    "HeadwiseCache",
    "prune",
    "compare",
    "track",
    "finetune",
    "Mean",
    "Patch",
    "Scale",
    "reproduce",
    # analyses, and new ones
    "known_analyses",
    "make_analysis",
    "Analysis",
    "Observer",
    "Experiment",
    "sieve",
    # errors, version
    "HeadwiseError",
    "__version__",
]

# Names are imported when first used, so that `import headwise` and `headwise --help` take
# milliseconds, not the seconds that torch and transformers take.
__getattr__ = lazy_names(
    __name__,
    {
        "headwise.analyses.contract": (
            "Analysis",
            "Experiment",
            "Observer",
            "known_analyses",
            "make_analysis",
        ),
        "headwise.analyses.roles.sieves": ("sieve",),
        "headwise.atlas": ("Atlas",),
        "headwise.experiments.probe": ("probe",),
        "headwise.experiments.ablation": ("ablate", "prune"),
        "headwise.experiments.cache": ("cache",),
        "headwise.experiments.circuit": ("circuit",),
        "headwise.experiments.comparison": ("compare",),
        "headwise.experiments.finetuning": ("finetune",),
        "headwise.experiments.knockout": ("knockout",),
        "headwise.experiments.patching": ("PromptPair", "patch"),
        "headwise.experiments.reproduction": ("reproduce",),
        "headwise.experiments.why": ("why",),
        "headwise.experiments.track": ("track",),
        "headwise.models.kv_cache": ("CachePattern", "HeadwiseCache"),
        "headwise.models": ("HeadModel", "Mean", "Patch", "Scale"),
        "headwise.page.gallery": ("gallery",),
        "headwise.page.views": ("draw",),
        "headwise.run": ("RunOptions", "make_atlas"),
        "headwise.run.estimate": ("plan",),
        "headwise.run.find": ("find",),
        "headwise.text": ("Corpus", "Example", "open_corpus"),
    },
)


def __dir__() -> list[str]:
    return __all__


# Lower layers display results, list figures and run experiments; the code for that lies in higher
# layers, and this module lies above all of them.


def _load_views() -> Any:
    from headwise.page import views

    return views


def _load_figures() -> None:
    from headwise.experiments.all_figures import load_figures

    load_figures()


def _load_experiments() -> Any:
    import headwise

    return headwise


register_loader(EXPERIMENTS, _load_experiments)
register_loader(VIEWS, _load_views)
register_loader(FIGURES, _load_figures)
