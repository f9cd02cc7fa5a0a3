"""Samples: inputs with all their attention maps, stored beside the atlas and shown by the page."""

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
from headwise.analyses.offsets.figures import SOURCE_STYLES as LOOKS
from headwise.atlas import Atlas
from headwise.atlas.behaviours import SINK, attention_shares
from headwise.core.checks import one_of
from headwise.core.errors import ModelError, ParameterError
from headwise.core.labels import head_name
from headwise.plots import all_maps, draw_head
from headwise.text.encode import Batch, Encoded, collate

if TYPE_CHECKING:
    from torch import Tensor

    from headwise.models import HeadModel
    from headwise.text import Example

SAMPLE_FACTS = ("tokens", "keys", "words", "special", "model")
SHOWN = ("attention", "previous_layer", "input", *MIXING_METHODS)
# Beside the atlas, so that the page can be drawn again without the model.
SAMPLE = "sample.safetensors"
CANDIDATES = 50  # examples among which samples are chosen
SENTENCES = 4  # samples of an atlas
SHORTEST = 10  # tokens of a sample, where there is one as long
LONGEST = 26
DRAWN_HEADS = 4  # on the first sample
SPACES = (" ", "▁", "Ġ")  # what tokenizers write before a subword that begins a word


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The attention maps of one input.

    Parameters
    ----------
    tokens : list of str
        The tokens of the queries.
    attention : ndarray
        `[layer, head, query, key]`, NaN where a query may not attend.
    keys : list of str, optional
        The tokens of the keys, where they are others (the source, in cross-attention).
    words : list of int, optional
        The number of the word of each token, -1 for none; None where words are not known.
    special : list of bool, optional
        Which tokens are not text; None where that is not known.
    model : str, optional
        The model, where several are compared.
    """

    tokens: list[str]
    attention: np.ndarray
    keys: list[str] | None = None
    words: list[int] | None = None
    special: list[bool] | None = None
    model: str | None = None

    def head(self, layer: int, head: int) -> np.ndarray:
        """Return the map of one head."""
        layers, heads = self.attention.shape[:2]
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ParameterError(
                f"There is no head L{layer}H{head}: this model has {layers} layers of {heads} "
                "heads, counted from 0."
            )
        return np.asarray(self.attention[layer, head])


def sample_bytes(samples: Sequence[Sample], atlas: Atlas) -> bytes:
    """Return samples as a file that names its atlas by the atlas's digest."""
    facts = []
    arrays = {}
    for number, sample in enumerate(samples):
        facts.append({name: getattr(sample, name) for name in SAMPLE_FACTS})
        arrays[_array_name(number)] = np.ascontiguousarray(sample.attention)
    # One metadata entry: safetensors writes several in random order.
    about = json.dumps({"atlas": atlas.digest, "samples": facts})
    return save(arrays, metadata={"about": about})


def read_samples(folder: Path, atlas: Atlas) -> list[Sample]:
    """Return the samples beside this atlas; none where they are missing, damaged, or another's."""
    try:
        content = (folder / SAMPLE).read_bytes()
        header_length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + header_length])
        about = json.loads(header["__metadata__"]["about"])
        if about["atlas"] != atlas.digest:
            return []
        arrays = load(content)
        # Older files have one sample, at the top level.
        facts = about.get("samples", [about])
        samples = []
        for number, sample_facts in enumerate(facts):
            samples.append(_parse_sample(sample_facts, arrays[_array_name(number)]))
        return samples
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


def _array_name(number: int) -> str:
    return f"attention_{number}" if number else "attention"


def _parse_sample(facts: dict[str, Any], attention: np.ndarray) -> Sample:
    """Return a sample of a file; raise ValueError where its parts do not fit together."""
    tokens = [str(token) for token in facts["tokens"]]
    keys = None
    if facts["keys"] is not None:
        keys = [str(token) for token in facts["keys"]]
    n_keys = len(tokens if keys is None else keys)
    if attention.shape[2:] != (len(tokens), n_keys):
        raise ValueError("tokens and maps of a sample do not fit")
    words = None
    if facts.get("words") is not None:
        words = [int(word) for word in facts["words"]]
    special = None
    if facts.get("special") is not None:
        special = [bool(is_special) for is_special in facts["special"]]
    for per_token in (words, special):
        if per_token is not None and len(per_token) != len(tokens):
            raise ValueError("a sample names the words of other tokens")
    model = None
    if facts.get("model") is not None:
        model = str(facts["model"])
    return Sample(tokens, attention, keys, words, special, model)


def sample_of(
    model: HeadModel,
    example: Batch | Example | str,
    what: str = "attention",
    heads: Sequence[tuple[int, int]] | None = None,
) -> Sample:
    """Run one input and return its maps.

    Parameters
    ----------
    model : HeadModel
        The model.
    example : Batch, Example or str
        The input; a batch of one.
    what : {"attention", "previous_layer", "input", "rollout", "norm", "flow", "value_zeroing", "chefer"}
        Attention (default), what tokens of the previous layer, or of the input, contribute to each
        head's output (hidden token attribution, exact), or another measure of context mixing
        (`docs/attribution.md`).
    heads : sequence of tuple, optional
        Only these are needed: some measures take long for all.
    """
    one_of("what", what, SHOWN)
    batch = model.batch(example)
    attention, visible = _weights(model, batch)
    # Through several layers a token can reach whatever any layer may attend to.
    through_layers = what == "input"
    if what == "attention":
        maps = attention
    elif what in MIXING_METHODS:
        mixed = mixing(model, batch, what, heads=heads)
        assert mixed.heads is not None  # some are always requested
        maps = mixed.heads
        through_layers = MIXING_METHODS[what].deep
    else:
        maps = contributions(model, batch, what, "exact").heads
    reachable = visible.any(0, keepdim=True) if through_layers else visible
    return _with_tokens(model, batch, maps[0].where(reachable, float("nan")))


def layer_sample(model: HeadModel, example: Example | str, what: str) -> Sample:
    """Run one input and return the maps of whole layers, `attention[layer, 0, query, key]`.

    Parameters
    ----------
    model, example
        As in `sample_of`.
    what : {"attention", "input", "rollout", "norm", "flow", "value_zeroing", "chefer"}
        `attention`: the mean of a layer's heads; `input`: hidden token attribution of the hidden
        states.
    """
    one_of("what", what, tuple(name for name in SHOWN if name != "previous_layer"))
    batch = model.batch(example)
    attention, visible = _weights(model, batch)
    note = ""
    if what == "attention":
        maps: Tensor | None = attention.mean(2)
    elif what in MIXING_METHODS:
        mixed = mixing(model, batch, what, heads=())
        maps = mixed.layers
        note = mixed.note
    else:
        maps = contributions(model, batch, what, "exact", layer_output=True).layers
    if maps is None:
        raise ModelError(f"{what} has no maps of layers here ({note}); name heads.")
    reachable = visible.any(0)[0]
    return _with_tokens(model, batch, maps[0].where(reachable, float("nan"))[:, None])


def _weights(model: HeadModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the weights of one input, and which keys each query may attend to."""
    trace = model.trace(batch, {"attention"})
    assert trace.attention is not None
    assert trace.visible is not None
    return trace.attention, trace.visible[0]


def _with_tokens(model: HeadModel, batch: Batch, maps: Tensor) -> Sample:
    """Return maps as a sample, with the tokens of the batch's one input."""
    row = batch.rows[0]
    keys = None
    if batch.keys is not batch:
        keys = _token_texts(model, batch.keys)
    return Sample(
        _token_texts(model, batch), maps.cpu().numpy(), keys, _words(row), row.special.tolist()
    )


def _token_texts(model: HeadModel, batch: Batch) -> list[str]:
    # A token without text (a space that the tokenizer strips) still needs a mark to point at.
    return [model.encoder.piece_text(int(token_id)) or "·" for token_id in batch.ids[0]]


def _words(row: Encoded) -> list[int] | None:
    """Return the number of the word of each token.

    The example's own words, else by the marks that the tokenizer sets on subwords; None where it
    sets none."""
    if row.aligned and (row.word >= 0).any():
        return [int(word) for word in row.word]
    tokens = row.tokens
    if any(token.startswith(SPACES) for token in tokens):
        begins_word = [token.startswith(SPACES) for token in tokens]
    elif any(token.startswith("##") for token in tokens):
        begins_word = [not token.startswith("##") for token in tokens]
    else:
        return None
    words = []
    word = -1
    after_special = True
    for begins, special in zip(begins_word, row.special.tolist(), strict=True):
        if not special and (begins or after_special):
            word += 1
        words.append(-1 if special else word)
        after_special = special
    return words


def choose_samples(
    model: HeadModel,
    rows: Iterable[Encoded],
    count: int = SENTENCES,
) -> list[Sample]:
    """Return the maps of some inputs of the corpus that are short enough to read: of 10 to 26
    tokens, or fewer where there are no others.

    Parameters
    ----------
    model : HeadModel
        The model.
    rows : iterable of Encoded
        The inputs of the corpus; the first `CANDIDATES` of them are considered.
    count : int, default 4
        The most samples.

    Returns
    -------
    list of Sample
        The longest first, then others evenly spread over the lengths there are; none where all are
        too long.
    """
    short_enough = [row for row in islice(rows, CANDIDATES) if len(row) <= LONGEST]
    long_enough = [row for row in short_enough if len(row) >= SHORTEST]
    # The longest first, of equal ones the earlier.
    candidates = sorted(long_enough or short_enough, key=len, reverse=True)
    evenly_spread = np.linspace(0, len(candidates) - 1, min(count, len(candidates)))
    samples = []
    for number in np.unique(evenly_spread.round().astype(int)):
        batch = collate([candidates[number]], model.pad_id, model.device)
        samples.append(sample_of(model, batch))
    return samples


def said_of(what: str) -> str:
    """Return what a figure says of the maps that `sample_of` returns."""
    if what == "attention":
        return "attention weight"
    return f"share by {LOOKS[what][0]}"


def draw_all_maps(sample: Sample, what: str = "attention") -> Figure:
    """Draw every map of the input (Kovaleva et al. 2019, App. A).

    Of a large model some are drawn, evenly spread, and the figure says so."""
    return all_maps(sample.attention, sample.tokens, sample.keys, said_of(what))


def draw_heads(sample: Sample, heads: Sequence[tuple[int, int]], **options: object) -> Figure:
    """Draw some heads side by side as lines between words (Clark et al. 2019, Fig 1)."""
    maps = {head_name(layer, head): sample.head(layer, head) for layer, head in heads}
    return draw_head(maps, sample.tokens, keys=sample.keys, **options)  # type: ignore[arg-type]


def draw_layers(sample: Sample, layers: Sequence[int], **options: object) -> Figure:
    """Draw some layers of a `layer_sample` side by side, as `draw_heads` draws heads."""
    maps = {f"L{layer}": sample.head(layer, 0) for layer in layers}
    return draw_head(maps, sample.tokens, keys=sample.keys, **options)  # type: ignore[arg-type]


def telling_heads(atlas: Atlas) -> list[tuple[int, int]]:
    """Return heads worth drawing: the most extreme ones.

    Those with most attention on the previous, next and closing token (of a decoder, on the first),
    and the broadest; fewer where these coincide."""
    if "surface" not in atlas:
        return [(0, head) for head in range(min(DRAWN_HEADS, atlas.heads))]
    surface = atlas["surface"]
    shares = attention_shares(surface)
    order = ("previous token", "next token", "to sep", SINK, "to cls", "same token")
    measures = [shares[name] for name in order if name in shares]
    measures.insert(3, surface["entropy"])
    # A dict, not a set: in the order of the measures, each head once.
    heads: dict[tuple[int, int], None] = {}
    for measure in measures:
        values = measure.transpose("layer", "head").values
        if np.isfinite(values).any():
            layer, head = np.unravel_index(int(np.nanargmax(values)), values.shape)
            heads[int(layer), int(head)] = None
    return list(heads)[:DRAWN_HEADS]
