"""What the layers of a model may see, as its config tells: everything, a sliding window, chunks."""

from __future__ import annotations

from typing import Any

from headwise.models.headmodel import HeadModel
from headwise.models.sizes import text_config

FULL = "full"
NAMES = {"global": FULL, "local": "sliding"}  # GPT-Neo's words


def layer_kinds(model: HeadModel) -> tuple[str, ...]:
    """What each layer of a model may see, see `kinds_of_layers`."""
    return kinds_of_layers(text_config(model.module, decoder=model.stack != "encoder"), model.layers)


def kinds_of_layers(config: Any, layers: int) -> tuple[str, ...]:
    """`full`, `sliding` or `chunked` for each layer that computes attention; all `full` where the config does not say.

    >>> from types import SimpleNamespace
    >>> kinds_of_layers(SimpleNamespace(layer_types=["full_attention", "sliding_attention"]), 2)
    ('full', 'sliding')
    >>> kinds_of_layers(SimpleNamespace(sliding_window=128), 2), kinds_of_layers(SimpleNamespace(), 1)
    (('sliding', 'sliding'), ('full',))
    """
    given = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if given is not None:
        named = [str(kind).removesuffix("_attention") for kind in given]
        seen = [
            NAMES.get(kind, kind) for kind in named if not kind.startswith(("linear", "mamba", "conv", "recurrent"))
        ]
        return tuple(seen) if len(seen) == layers else (FULL,) * layers
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return ("sliding" if windowed else FULL,) * layers
