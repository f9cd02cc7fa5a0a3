"""One input drawn whole: all its maps on a page, and the most telling heads as lines between words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from safetensors import SafetensorError
from safetensors.numpy import load, save

from headwise.analyses.attribution.contributions import contributions
from headwise.atlas import Atlas
from headwise.core.behaviours import SINK, shares
from headwise.core.checks import one_of
from headwise.core.errors import ParameterError
from headwise.core.labels import head_name
from headwise.plots import all_maps, draw_head

if TYPE_CHECKING:
    from headwise.models import HeadModel
    from headwise.text import Example

SHOWN = ("attention", "previous_layer", "input")
SAMPLE = "sample.safetensors"  # beside the atlas: the page can then be drawn again without the model
LOOKED_AT = 50  # examples among which the sample is chosen


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The maps of one input: `attention[layer, head, query, key]`, NaN where a row may not look; `keys` are the tokens
    looked at where those are others (the source, in cross-attention)."""

    tokens: list[str]
    attention: np.ndarray
    keys: list[str] | None = None

    def head(self, layer: int, head: int) -> np.ndarray:
        layers, heads = self.attention.shape[:2]
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ParameterError(
                f"There is no head L{layer}H{head}: this model has {layers} layers of {heads} heads, counted from 0."
            )
        return np.asarray(self.attention[layer, head])


def sample_bytes(sample: Sample, atlas: Atlas) -> bytes:
    """A sample as a file that knows which atlas it belongs to, by that atlas's digest."""
    # One entry: the order of several would be random.
    about = json.dumps({"atlas": atlas.digest, "tokens": sample.tokens, "keys": sample.keys})
    return save({"attention": np.ascontiguousarray(sample.attention)}, metadata={"about": about})


def read_sample(folder: Path, atlas: Atlas) -> Sample | None:
    """The sample that was drawn beside this atlas; None where there is none or it belongs to another."""
    try:
        content = (folder / SAMPLE).read_bytes()
        length = int.from_bytes(content[:8], "little")
        about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
        attention = load(content)["attention"]
        tokens, keys = (
            None if given is None else [str(t) for t in given] for given in (about["tokens"], about["keys"])
        )
        if tokens is None or about["atlas"] != atlas.digest:
            return None
        fitting = attention.shape[2:] == (len(tokens), len(tokens if keys is None else keys))
        return Sample(tokens, attention, keys) if fitting else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, SafetensorError):
        return None


def sample_of(model: HeadModel, example: Example | str, what: str = "attention") -> Sample:
    """Run one input and keep its maps.

    Parameters
    ----------
    model : HeadModel
        What runs.
    example : Example or str
        The input.
    what : {"attention", "previous_layer", "input"}, default "attention"
        Attention, or what tokens of the previous layer, or of the input, contribute to each head's output (hidden token
        attribution, exact).
    """
    one_of("what", what, SHOWN)
    batch = model.batch(example)
    trace = model.trace(batch, {"attention"})
    assert trace.attention is not None
    assert trace.visible is not None
    maps = trace.attention if what == "attention" else contributions(model, batch, what, "exact").heads
    seen = trace.visible[0] if what != "input" else trace.visible[0].any(0, keepdim=True)
    shown = maps[0].where(seen, float("nan"))
    tokens, keys = ([model.encoder.piece_text(int(i)) or "·" for i in b.ids[0]] for b in (batch, batch.keys))
    return Sample(tokens, shown.cpu().numpy(), None if batch.keys is batch else keys)


def choose_sample(model: HeadModel, corpus: Iterable[Example], shortest: int = 10, longest: int = 26) -> Sample | None:
    """The maps of a readable input of the corpus: the longest among the first ones that has at most `longest` tokens;
    None where there is none."""
    candidates = [
        (len(row), -i, example)
        for i, example in enumerate(islice(corpus, LOOKED_AT))
        if (row := model.encoder.encode(example, i)) is not None
    ]
    fitting = [c for c in candidates if shortest <= c[0] <= longest] or [c for c in candidates if c[0] <= longest]
    return sample_of(model, max(fitting, key=lambda c: c[:2])[2]) if fitting else None


def draw_all_maps(sample: Sample) -> Figure:
    """Every map of the input (Kovaleva et al. 2019, App. A); of a large model some, evenly spread, as the figure
    says."""
    return all_maps(sample.attention, sample.tokens, sample.keys)


def draw_heads(sample: Sample, heads: Sequence[tuple[int, int]], **options: object) -> Figure:
    """Chosen heads side by side as lines between words (Clark et al. 2019, Fig 1)."""
    maps = {head_name(*h): sample.head(*h) for h in heads}
    return draw_head(maps, sample.tokens, keys=sample.keys, **options)  # type: ignore[arg-type]


def telling_heads(atlas: Atlas, count: int = 4) -> list[tuple[int, int]]:
    """Heads to draw: those with most attention on the previous, next and closing token (of a decoder, on the first),
    and the broadest; fewer where these coincide."""
    if "surface" not in atlas:
        return [(0, h) for h in range(min(count, atlas.heads))]
    surface = atlas["surface"]
    named = shares(surface)
    order = ("previous token", "next token", "to sep", SINK, "to cls", "same token")
    wanted = [named[name] for name in order if name in named]
    wanted.insert(3, surface["entropy"])
    found: dict[tuple[int, int], None] = {}
    for array in wanted:
        values = array.transpose("layer", "head").values
        if np.isfinite(values).any():
            layer, head = np.unravel_index(int(np.nanargmax(values)), values.shape)
            found[int(layer), int(head)] = None
    return list(found)[:count]
