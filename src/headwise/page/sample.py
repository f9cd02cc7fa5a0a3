"""Inputs with all their maps: kept beside the atlas, drawn whole, and shown by the page for each
head."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from safetensors import SafetensorError
from safetensors.numpy import load, save

from headwise.analyses.attribution import MIXING_METHODS, contributions, mixing
from headwise.analyses.offsets.figures import READINGS as LOOKS
from headwise.atlas import Atlas
from headwise.atlas.behaviours import SINK, attention_shares
from headwise.core.checks import one_of
from headwise.core.errors import ModelError, ParameterError
from headwise.core.labels import head_name
from headwise.plots import all_maps, draw_head

if TYPE_CHECKING:
    from torch import Tensor

    from headwise.models import HeadModel
    from headwise.text import Example
    from headwise.text.encode import Batch, Encoded

ABOUT = ("tokens", "keys", "words", "special", "model")
SHOWN = ("attention", "previous_layer", "input", *MIXING_METHODS)
SAMPLE = (
    "sample.safetensors"  # beside the atlas: the page can then be drawn again without the model
)
LOOKED_AT = 50  # examples among which samples are chosen
SENTENCES = 4  # samples of an atlas
SPACES = (" ", "▁", "Ġ")  # what tokenizers write before a piece that begins a word


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The maps of one input: `attention[layer, head, query, key]`, NaN where a row may not look;
    `keys` are the tokens looked at where those are others (the source, in cross-attention). `words`
    numbers the word of each token (-1 for none), `special` says which tokens are no text; both None
    where that is not known."""

    tokens: list[str]
    attention: np.ndarray
    keys: list[str] | None = None
    words: list[int] | None = None
    special: list[bool] | None = None
    model: str | None = None  # whose maps these are, where several models are compared

    def head(self, layer: int, head: int) -> np.ndarray:
        layers, heads = self.attention.shape[:2]
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ParameterError(
                f"There is no head L{layer}H{head}: this model has {layers} layers of {heads} heads, counted from 0."
            )
        return np.asarray(self.attention[layer, head])


def sample_bytes(samples: Sequence[Sample], atlas: Atlas) -> bytes:
    """Samples as a file that knows which atlas it belongs to, by that atlas's digest."""
    told = [{name: getattr(sample, name) for name in ABOUT} for sample in samples]
    # One entry: the order of several would be random.
    about = json.dumps({"atlas": atlas.digest, "samples": told})
    arrays = {_array(i): np.ascontiguousarray(sample.attention) for i, sample in enumerate(samples)}
    return save(arrays, metadata={"about": about})


def read_samples(folder: Path, atlas: Atlas) -> list[Sample]:
    """The samples that lie beside this atlas; none where there are none or they belong to
    another."""
    try:
        content = (folder / SAMPLE).read_bytes()
        length = int.from_bytes(content[:8], "little")
        about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
        if about["atlas"] != atlas.digest:
            return []
        arrays = load(content)
        told = about.get("samples", [about])  # files of one sample had it at the top
        return [_read(one, arrays[_array(i)]) for i, one in enumerate(told)]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        RecursionError,
        SafetensorError,
    ):
        return []


def _array(number: int) -> str:
    return f"attention_{number}" if number else "attention"


def _read(about: dict[str, Any], attention: np.ndarray) -> Sample:
    """A sample of a file; refuses one whose parts do not fit."""
    tokens, keys = (
        None if given is None else [str(t) for t in given]
        for given in (about["tokens"], about["keys"])
    )
    words, special = about.get("words"), about.get("special")
    given = [list(tokens or ()), *(own for own in (words, special) if own is not None)]
    if tokens is None or attention.shape[2:] != (
        len(tokens),
        len(tokens if keys is None else keys),
    ):
        raise ValueError("tokens and maps of a sample do not fit")
    if len({len(own) for own in given}) > 1:
        raise ValueError("a sample names the words of other tokens")
    return Sample(
        tokens,
        attention,
        keys,
        None if words is None else [int(word) for word in words],
        None if special is None else [bool(one) for one in special],
        None if about.get("model") is None else str(about["model"]),
    )


def sample_of(
    model: HeadModel,
    example: Example | str,
    what: str = "attention",
    heads: Sequence[tuple[int, int]] | None = None,
) -> Sample:
    """Run one input and keep its maps.

    Parameters
    ----------
    model : HeadModel
        What runs.
    example : Example or str
        The input.
    what : {"attention", "previous_layer", "input", "rollout", "norm", "flow", "value_zeroing", "chefer"}
        Attention (default), what tokens of the previous layer, or of the input, contribute to each
        head's output (hidden token attribution, exact), or another reading of mixing
        (`docs/attribution.md`).
    heads : sequence of tuple, optional
        Only these are needed: some readings take long for all.
    """
    one_of("what", what, SHOWN)
    batch = model.batch(example)
    attention, visible = _weights(model, batch)
    deep = what == "input"
    if what == "attention":
        maps = attention
    elif what in MIXING_METHODS:
        found = mixing(model, batch, what, heads=heads)
        assert found.heads is not None  # some are always asked for
        maps, deep = found.heads, MIXING_METHODS[what].deep
    else:
        maps = contributions(model, batch, what, "exact").heads
    seen = visible.any(0, keepdim=True) if deep else visible
    return _with_tokens(model, batch, maps[0].where(seen, float("nan")))


def layer_sample(model: HeadModel, example: Example | str, what: str) -> Sample:
    """Run one input and keep what leaves its layers, by a reading: `attention[layer, 0, receiving,
    source]`.

    Parameters
    ----------
    model, example
        As in `sample_of`.
    what : {"attention", "input", "rollout", "norm", "flow", "value_zeroing", "chefer"}
        `attention`: the mean of a layer's heads; `input`: hidden token attribution of the hidden
        states.
    """
    one_of("what", what, tuple(one for one in SHOWN if one != "previous_layer"))
    batch = model.batch(example)
    attention, visible = _weights(model, batch)
    note = ""
    if what == "attention":
        maps: Tensor | None = attention.mean(2)
    elif what in MIXING_METHODS:
        found = mixing(model, batch, what, heads=())
        maps, note = found.layers, found.note
    else:
        maps = contributions(model, batch, what, "exact", layer_output=True).layers
    if maps is None:
        raise ModelError(f"{what} has no maps of layers here ({note}); name heads.")
    return _with_tokens(model, batch, maps[0].where(visible.any(0)[0], float("nan"))[:, None])


def _weights(model: HeadModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """The weights of one input, and which keys each row may see, without the dim of inputs."""
    trace = model.trace(batch, {"attention"})
    assert trace.attention is not None
    assert trace.visible is not None
    return trace.attention, trace.visible[0]


def _with_tokens(model: HeadModel, batch: Batch, maps: Tensor) -> Sample:
    tokens, keys = (
        [model.encoder.piece_text(int(i)) or "·" for i in b.ids[0]] for b in (batch, batch.keys)
    )
    row = batch.rows[0]
    return Sample(
        tokens,
        maps.cpu().numpy(),
        None if batch.keys is batch else keys,
        _words(row),
        row.special.tolist(),
    )


def _words(row: Encoded) -> list[int] | None:
    """The word of each token: the example's own, else by the marks that the tokenizer sets before
    pieces of words."""
    if row.aligned and (row.word >= 0).any():
        return [int(word) for word in row.word]
    tokens = row.tokens
    if any(token.startswith(SPACES) for token in tokens):
        begins = [token.startswith(SPACES) for token in tokens]
    elif any(token.startswith("##") for token in tokens):
        begins = [not token.startswith("##") for token in tokens]
    else:
        return None
    found, word, after_special = [], -1, True
    for begin, special in zip(begins, row.special.tolist(), strict=True):
        word += bool(not special and (begin or after_special))
        found.append(-1 if special else word)
        after_special = special
    return found


def choose_samples(
    model: HeadModel,
    corpus: Iterable[Example],
    count: int = SENTENCES,
    shortest: int = 10,
    longest: int = 26,
) -> list[Sample]:
    """The maps of readable inputs of the corpus.

    Parameters
    ----------
    model : HeadModel
        What runs.
    corpus : iterable of Example
        Its first `LOOKED_AT` examples are looked at.
    count : int, default 4
        How many at most.
    shortest, longest : int, default 10 and 26
        Tokens of an input; shorter ones are taken where there are no others.

    Returns
    -------
    list of Sample
        The longest first, then others evenly spread over the lengths there are; none where all are
        too long.
    """
    candidates = [
        (len(row), -i, example)
        for i, example in enumerate(islice(corpus, LOOKED_AT))
        if (row := model.encoder.encode(example, i)) is not None
    ]
    fitting = [c for c in candidates if shortest <= c[0] <= longest] or [
        c for c in candidates if c[0] <= longest
    ]
    fitting.sort(key=lambda c: c[:2], reverse=True)
    places = np.unique(
        np.linspace(0, len(fitting) - 1, min(count, len(fitting))).round().astype(int)
    )
    return [sample_of(model, fitting[place][2]) for place in places]


def said_of(what: str) -> str:
    """What a figure says of the maps that `sample_of` gives."""
    return "attention weight" if what == "attention" else f"share by {LOOKS[what][0]}"


def draw_all_maps(sample: Sample, what: str = "attention") -> Figure:
    """Every map of the input (Kovaleva et al. 2019, App. A); of a large model some, evenly spread,
    as the figure says."""
    return all_maps(sample.attention, sample.tokens, sample.keys, said_of(what))


def draw_heads(sample: Sample, heads: Sequence[tuple[int, int]], **options: object) -> Figure:
    """Chosen heads side by side as lines between words (Clark et al. 2019, Fig 1)."""
    maps = {head_name(*h): sample.head(*h) for h in heads}
    return draw_head(maps, sample.tokens, keys=sample.keys, **options)  # type: ignore[arg-type]


def draw_layers(sample: Sample, layers: Sequence[int], **options: object) -> Figure:
    """Chosen layers of a `layer_sample` side by side, as `draw_heads` draws heads."""
    maps = {f"L{layer}": sample.head(layer, 0) for layer in layers}
    return draw_head(maps, sample.tokens, keys=sample.keys, **options)  # type: ignore[arg-type]


def telling_heads(atlas: Atlas, count: int = 4) -> list[tuple[int, int]]:
    """Heads to draw: those with most attention on the previous, next and closing token (of a
    decoder, on the first), and the broadest; fewer where these coincide."""
    if "surface" not in atlas:
        return [(0, h) for h in range(min(count, atlas.heads))]
    surface = atlas["surface"]
    named = attention_shares(surface)
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
