"""The members of a family: models, open or by name, and atlases that were made before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from torch import nn

from headwise.atlas import Atlas
from headwise.atlas.hub import ATLAS_FILE, is_hub_address
from headwise.core.errors import ModelError, ParameterError
from headwise.core.options import part_of
from headwise.experiments.comparison.options import ComparisonOptions
from headwise.models import HeadModel, loading
from headwise.models.demo import demo_model_path
from headwise.models.options import ModelOptions

ModelLike = HeadModel | nn.Module | str | Path | None
MemberLike = ModelLike | Atlas
DEMO = "demo"  # how a list of models names the built-in one


@dataclass(frozen=True, slots=True)
class Member:
    """One model of a family, and what its labels are read from.

    Attributes
    ----------
    name : str
        How the result calls it.
    source : model, str, Path or None
        The model; of an atlas its path, None where it has none. None also for the built-in model.
    identity : dict
        What tells it from others: of a model its weights, of an atlas its digest too.
    atlas : Atlas, optional
        The atlas, where one was given; nothing is then measured.
    """

    name: str
    source: ModelLike
    identity: dict[str, Any]
    atlas: Atlas | None = field(default=None, repr=False)


def is_atlas(source: MemberLike) -> TypeGuard[Atlas | str | Path]:
    """Return whether this is an atlas, or the path of one: a file, a folder with an `atlas.nc`, or
    an address on the hub."""
    if isinstance(source, Atlas):
        return True
    if not isinstance(source, str | Path):
        return False
    if is_hub_address(str(source)):
        return True
    path = Path(source).expanduser()
    try:
        # A folder may hold a model and its atlas: then it is the model.
        holds_atlas = (path / ATLAS_FILE).is_file() and not (path / "config.json").is_file()
        return path.is_file() or holds_atlas
    except OSError:  # no path at all, but perhaps a name on the hub
        return False


def compares_by_depth(sources: Sequence[MemberLike], by: str) -> bool:
    """Return whether models are compared by label and relative depth, not head by head.

    Parameters
    ----------
    sources : sequence
        Models and atlases.
    by : str
        `depth`, `head`, or `auto`: by depth where one is an atlas or shapes differ.
    """
    has_atlas = any(is_atlas(source) for source in sources)
    if by == "head" and has_atlas:
        raise _no_maps()
    if by != "auto":
        return by == "depth"
    if has_atlas:
        return True
    shapes = set()
    for source in sources:
        shapes.add(_shape_of(source))
    # Where a config does not say the shape, the comparison head by head opens the model and tells.
    return len(shapes) > 1 and None not in shapes


def _no_maps() -> ParameterError:
    return ParameterError(
        "An atlas has no maps to compare head by head; name its model, or compare by depth.",
        option="by depth",
    )


def _shape_of(source: MemberLike) -> tuple[Any, Any] | None:
    """Return layers and heads of a model, from its config where it is not open; None where that
    does not tell."""
    if isinstance(source, HeadModel):
        return source.layers, source.heads
    if isinstance(source, nn.Module):
        config: Any = source.config
    elif source is None or source == DEMO:
        config = loading.load_config(demo_model_path())
    elif isinstance(source, str | Path):
        config = loading.load_config(source)
    else:
        return None
    text_config = config.get_text_config()
    layers = getattr(text_config, "num_hidden_layers", None)
    heads = getattr(text_config, "num_attention_heads", None)
    if not isinstance(layers, int) or not isinstance(heads, int):
        return None
    return layers, heads


@contextmanager
def opened(source: MemberLike, options: ComparisonOptions) -> Iterator[HeadModel]:
    """Yield the open model; one that is opened here is closed afterwards."""
    if isinstance(source, HeadModel):
        yield source
        return
    if isinstance(source, Atlas):
        raise _no_maps()
    model_options = part_of(options, ModelOptions)
    if source == DEMO:
        source = None
    with HeadModel.open(source, **model_options.keywords()) as model:
        yield model


def read_atlas(source: Atlas | str | Path) -> Atlas:
    """Return an atlas, read from its file where it is a path; reject a result of something else."""
    atlas = source if isinstance(source, Atlas) else Atlas.load(source)
    if not atlas.layers or not atlas.heads:
        raise ModelError(
            f"'{source}' has no values by layer and head, so it is no atlas of a model; name a "
            "result of `headwise atlas`."
        )
    return atlas


def distinct_names(own_names: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """Return the names that are given, or the models' own, numbered where they are the same.

    >>> distinct_names(["bert", "bert"], None)
    ['bert', 'bert (2)']
    """
    if names is not None:
        if len(names) != len(own_names) or len(set(names)) < len(names):
            raise ParameterError(
                f"`names` must be {len(own_names)} different names; they are {list(names)}."
            )
        return list(names)
    numbered: list[str] = []
    for own_name in own_names:
        name = own_name
        number = 2
        while name in numbered:
            name = f"{own_name} ({number})"
            number += 1
        numbered.append(name)
    return numbered
