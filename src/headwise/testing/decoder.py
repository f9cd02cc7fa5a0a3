"""A two-layer decoder without feed-forward layers whose weights are set: the oracle of
decoder-only analyses.

Every token's embedding is a row of one-hot codes (position, token), as in `planted`; two more
blocks are empty at first: `before`, into which the previous-token head writes the code of the token
before, and `said`, which the output matrix reads. The induction head of the second layer looks for
its own token in `before`, which the previous-token head wrote: that is the only composition, and a
K-composition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from headwise.core.checks import at_least
from headwise.core.errors import ParameterError, unknown
from headwise.testing.behaviours import Term
from headwise.testing.models import Size
from headwise.testing.planted import (
    INNER_SIZE,
    PAYLOAD,
    Layout,
    empty_model,
    query_key,
    set_layer,
)
from headwise.testing.vocabulary import Vocabulary, make_vocabulary

HEADS = (("previous", "duplicate", "sink"), ("induction", "copying", "idle"))
# The third layer of a decoder with copy suppression, and two heads that look like it and are not.
SUPPRESSING = ("suppression", "lowering", "doubting")
SUPPRESSION_SCALE = 1.5  # what these take off, in units of what the copying head writes
INDUCTION_SCALE = 2.0  # what the induction head writes, in units of what the copying head writes


@dataclass(frozen=True, eq=False)
class PlantedDecoder:
    """A planted decoder with all that is known of it.

    `model` is a `GPT2LMHeadModel`, in eval mode with eager attention. Its heads, by layer and head,
    are `HEADS`:

    - `previous` attends to the token before (the first to itself), and writes its code into
      `before`;
    - `duplicate` to earlier tokens with its own id alike, the first token where there is none;
    - `sink` to the first token, whose value is zero;
    - `induction` to tokens that follow its own token, the first token where there is none, and
      writes the code of what it attends to into `said`, `INDUCTION_SCALE` times as large as
      `copying`;
    - `copying` to itself, and writes its code into `said`;
    - `idle` to all visible tokens alike.

    With copy suppression there is a third layer, `SUPPRESSING`:

    - `suppression` attends to earlier tokens that the induction head has written into `said`, the
      first token, whose code it does not read, where there are none, and takes their code off
      `said`;
    - `lowering` attends to the token before, whatever is predicted, and takes its code off `said`;
    - `doubting` attends to itself, and takes half of all that is in `said` off it, wherever that
      stands.

    `loudness` is what an output of the copying head adds to the logit of its token, minus the mean
    over the vocabulary."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerFast
    max_length: int
    loudness: float
    vocabulary: Vocabulary = field(repr=False)
    names: tuple[tuple[str, ...], ...] = HEADS

    def where(self, name: str) -> tuple[int, int]:
        """Return the (layer, head) of a name of `HEADS` or `SUPPRESSING`."""
        for layer, row in enumerate(self.names):
            if name in row:
                return layer, row.index(name)
        raise ParameterError(unknown("head", name, [head for row in self.names for head in row]))

    def expected_map(self, ids: Sequence[int]) -> np.ndarray:
        """Return what every head of `HEADS` must do on one row of token ids, by plain rules:
        float64 `[layer, head, query, key]`."""
        n_tokens = len(ids)
        weights = np.zeros((len(HEADS), len(HEADS[0]), n_tokens, n_tokens))
        for query in range(n_tokens):
            duplicates = [key for key in range(query) if ids[key] == ids[query]]
            # The previous-token head attends from the first token to itself: its `before` is its
            # own code.
            followers = [key for key in range(query + 1) if ids[max(key - 1, 0)] == ids[query]]
            targets_by_head = {
                "previous": [max(query - 1, 0)],
                "duplicate": duplicates or [0],
                "sink": [0],
                "induction": followers or [0],
                "copying": [query],
                "idle": list(range(query + 1)),
            }
            for name, targets in targets_by_head.items():
                layer, head = self.where(name)
                weights[layer, head, query, targets] = 1 / len(targets)
        return weights


def planted_decoder(
    *,
    words: int = 40,
    max_length: int = 48,
    loudness: float = 4.0,
    seed: int = 0,
    suppressing: bool = False,
) -> PlantedDecoder:
    """Return a decoder with previous-token, induction, duplicate-token, sink and copying heads.

    Parameters
    ----------
    words : int, default 40
        Words of its vocabulary.
    max_length : int, default 48
        The longest input in tokens, the beginning-of-sequence token included.
    loudness : float, default 4.0
        What the copying head adds to the logit of its token; the induction head adds twice that to
        the logit of the token it attends to.
    seed : int, default 0
        For what the other heads write into dimensions that nothing reads.
    suppressing : bool, default False
        Add a third layer with a head that suppresses what the induction head predicts.

    Examples
    --------
    >>> decoder = planted_decoder(words=6, max_length=12)
    >>> decoder.where("induction")
    (1, 0)
    """
    at_least("words", words, 2)
    vocabulary = make_vocabulary([f"word{i}" for i in range(words)], None, {}, {}, causal=True)
    n_tokens = len(vocabulary)
    names_by_layer = (*HEADS, SUPPRESSING) if suppressing else HEADS
    n_layers = len(names_by_layer)
    n_heads = len(HEADS[0])
    sizes = {"position": max_length, "token": n_tokens, "before": n_tokens, "said": n_tokens}
    # Wide enough for the codes and the payload, and for the ranks of the terms of `duplicate`.
    d_head = max(-(-(sum(sizes.values()) + PAYLOAD) // n_heads), n_tokens + max_length + 1)
    layout = Layout(sizes, ("",), n_heads * d_head, d_head)
    size = Size(n_layers, n_heads, layout.hidden, INNER_SIZE, max_length)
    model = empty_model(vocabulary, size, True, seed)
    with torch.no_grad():
        for table, block in ((model.transformer.wte, "token"), (model.transformer.wpe, "position")):
            codes = [layout.onehot(block, i) for i in range(sizes[block])]
            table.weight.copy_(torch.from_numpy(np.array(codes)))
        # The output matrix reads `said`, whose codes are centred: the mean over the vocabulary is
        # zero.
        model.lm_head.weight.zero_()
        logit_scale = loudness / (1 - 1 / n_tokens)
        model.lm_head.weight[:, layout.block("said")] = logit_scale * torch.eye(n_tokens)
        random = np.random.default_rng(seed)
        opening = layout.onehot("token", vocabulary.tokenizer.bos_token_id)
        for layer, names in enumerate(names_by_layer):
            scores = query_key([_terms(name, layout) for name in names], layout)
            values = []
            outputs = []
            for name in names:
                value, output = _value_and_output(name, layout, random, opening)
                values.append(value)
                outputs.append(output)
            set_layer(model, layer, scores, np.array(values), np.array(outputs))
    return PlantedDecoder(
        model=model,
        tokenizer=vocabulary.tokenizer,
        max_length=max_length,
        loudness=loudness,
        vocabulary=vocabulary,
        names=names_by_layer,
    )


def _terms(name: str, layout: Layout) -> list[Term]:
    """Return the terms of a head's scores."""
    positions = np.eye(layout.sizes["position"])
    tokens = np.eye(layout.sizes["token"])
    # Preferred by one GAP only: what is left where there is no other target.
    first_token = Term("", np.ones((1, 1)), "position", positions[:1])
    previous = 2 * np.eye(len(positions), k=1) + positions
    match name:
        case "previous" | "lowering":
            return [Term("position", previous, "position", positions)]
        case "duplicate":
            same_token = Term("token", 2 * tokens, "token", tokens)
            not_itself = Term("position", -2 * positions, "position", positions)
            return [same_token, not_itself, first_token]
        case "sink":
            return [first_token]
        case "induction":
            return [Term("token", 2 * tokens, "before", tokens), first_token]
        case "suppression":
            # The induction head writes 2, the copying head 1: the first token lies between them.
            written = Term("said", 2 * tokens, "token", tokens)
            between = Term("", 3 * np.ones((1, 1)), "position", positions[:1])
            return [written, between]
        case "copying" | "doubting":
            return [Term("position", positions, "position", positions)]
        case "idle":
            return []
    raise AssertionError(name)


def _value_and_output(
    name: str, layout: Layout, random: np.random.Generator, opening: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the value weight `[d_head, hidden]` and the output weight `[hidden, d_head]` of a
    head."""
    value = np.zeros((layout.d_head, layout.hidden))
    output = np.zeros((layout.hidden, layout.d_head))
    n_tokens = layout.sizes["token"]
    token_block = layout.block("token")
    written_block = {"previous": "before", "induction": "said", "copying": "said"}.get(name)
    if name in SUPPRESSING:
        written_block = "said"
    if written_block is not None:
        scale = 1.0
        read_block = token_block
        if name == "induction":
            scale = INDUCTION_SCALE
        elif name == "doubting":
            scale = -0.5
            read_block = layout.block("said")
        elif name in SUPPRESSING:
            scale = -SUPPRESSION_SCALE
        value[:n_tokens, read_block] = np.eye(n_tokens)
        if name == "suppression":
            # Where it attends to the first token, it takes nothing off.
            opening_id = int(opening[token_block].argmax())
            value[opening_id] = 0.0
        output[layout.block(written_block), :n_tokens] = scale * np.eye(n_tokens)
        return value, output
    value[:, token_block] = random.normal(size=(layout.d_head, n_tokens)) / np.sqrt(n_tokens)
    if name == "sink":
        # The value of the opening token is zero.
        value -= np.outer(value @ opening, opening) / (opening @ opening)
    payload = random.normal(size=(PAYLOAD, layout.d_head)) / np.sqrt(layout.d_head)
    output[-PAYLOAD:] = payload - payload.mean(0)  # zero mean: layer norms leave it unchanged
    return value, output
