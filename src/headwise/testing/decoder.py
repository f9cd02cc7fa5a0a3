"""A two-layer decoder without feed-forward layers whose weights are set: the oracle of the
questions asked of decoders.

Every token's embedding is a row of one-hot codes (position, token), as in `planted`; two more
blocks are empty at first: `before`, into which the previous-token head writes the code of the token
before, and `said`, which the output matrix reads. The induction head of the second layer looks for
its own token in `before`, which the previous-token head wrote: that is K-composition, and the only
one there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from headwise.core.checks import at_least
from headwise.testing.behaviours import Term
from headwise.testing.models import Size
from headwise.testing.planted import PAYLOAD, Layout, empty_model, query_key, set_layer
from headwise.testing.vocabulary import Vocabulary, make_vocabulary

HEADS = (("previous", "duplicate", "sink"), ("induction", "copying", "idle"))
LOUD = 2.0  # what the induction head writes, in units of what the copying head writes


@dataclass(frozen=True, eq=False)
class PlantedDecoder:
    """The planted decoder with all that is known of it.

    `model` is a `GPT2LMHeadModel`, in eval mode with eager attention. Its heads, by layer and head,
    are `HEADS`:

    - `previous` attends to the token before (the first to itself), and writes its code into `before`;
    - `duplicate` to earlier tokens with its own id alike, the first token where there is none;
    - `sink` to the first token, whose value is zero;
    - `induction` to tokens that stand after its own token, the first token where there is none, and writes what it sees
      into `said`, `LOUD` times as loud as `copying`;
    - `copying` to itself, and writes what it sees into `said`;
    - `idle` to all visible tokens alike.

    `loudness` is what an output of the copying head adds to the logit of its token, less the mean
    over the vocabulary."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerFast
    max_length: int
    loudness: float
    vocabulary: Vocabulary = field(repr=False)

    def where(self, name: str) -> tuple[int, int]:
        """The (layer, head) that was made to do this."""
        return next((layer, row.index(name)) for layer, row in enumerate(HEADS) if name in row)

    def expected_map(self, ids: Sequence[int]) -> np.ndarray:
        """What every head must do on one row of token ids, by plain rules: float64 [layer, head,
        query, key]."""
        n = len(ids)
        out = np.zeros((len(HEADS), len(HEADS[0]), n, n))
        for i in range(n):
            targets = {
                "previous": [max(i - 1, 0)],
                "duplicate": [j for j in range(i) if ids[j] == ids[i]] or [0],
                "sink": [0],
                "induction": [j for j in range(i + 1) if ids[max(j - 1, 0)] == ids[i]] or [0],
                "copying": [i],
                "idle": list(range(i + 1)),
            }
            for name, found in targets.items():
                layer, head = self.where(name)
                out[layer, head, i, found] = 1 / len(found)
        return out


def planted_decoder(
    *, words: int = 40, max_length: int = 48, loudness: float = 4.0, seed: int = 0
) -> PlantedDecoder:
    """The planted decoder: previous-token, induction, duplicate-token, sink and copying heads.

    Parameters
    ----------
    words : int, default 40
        Words of its vocabulary.
    max_length : int, default 48
        The longest input in tokens, the beginning-of-sequence token included.
    loudness : float, default 4.0
        What the copying head adds to the logit of the token it sees; the induction head adds twice
        that.
    seed : int, default 0
        For what the other heads write where nobody reads.

    Examples
    --------
    >>> made = planted_decoder(words=6, max_length=12)
    >>> made.where("induction")
    (1, 0)
    """
    at_least("words", words, 2)
    vocabulary = make_vocabulary([f"word{i}" for i in range(words)], None, {}, {}, causal=True)
    tokens = len(vocabulary)
    sizes = {"position": max_length, "token": tokens, "before": tokens, "said": tokens}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    needed = max(-(-(sum(sizes.values()) + PAYLOAD) // 3), tokens + max_length + 1)
    layout = Layout(sizes, starts, ("",), 3 * needed, needed)
    model = empty_model(vocabulary, Size(2, 3, layout.hidden, 4, max_length), True, seed)
    with torch.no_grad():
        for table, block in ((model.transformer.wte, "token"), (model.transformer.wpe, "position")):
            codes = [layout.onehot(block, i) for i in range(sizes[block])]
            table.weight.copy_(torch.from_numpy(np.array(codes)))
        # The output matrix reads `said`, whose codes are centred: the mean over the vocabulary is
        # zero.
        model.lm_head.weight.zero_()
        said = slice(starts["said"], starts["said"] + tokens)
        model.lm_head.weight[:, said] = loudness / (1 - 1 / tokens) * torch.eye(tokens)
        random = np.random.default_rng(seed)
        opening = layout.onehot("token", vocabulary.tokenizer.bos_token_id)
        for layer, row in enumerate(HEADS):
            scores = query_key([_terms(name, layout) for name in row], layout)
            values, outputs = zip(
                *(_moves(name, layout, random, opening) for name in row), strict=True
            )
            set_layer(model, layer, scores, np.array(values), np.array(outputs))
    return PlantedDecoder(model, vocabulary.tokenizer, max_length, loudness, vocabulary)


def _terms(name: str, layout: Layout) -> list[Term]:
    """What the scores of a head are made of."""
    positions, tokens = np.eye(layout.sizes["position"]), np.eye(layout.sizes["token"])
    first = Term(
        "", np.ones((1, 1)), "position", positions[:1]
    )  # the first token, which is what is left
    before = 2 * np.eye(len(positions), k=1) + positions
    return {
        "previous": [Term("position", before, "position", positions)],
        "duplicate": [
            Term("token", 2 * tokens, "token", tokens),
            Term("position", -2 * positions, "position", positions),
            first,
        ],
        "sink": [first],
        "induction": [Term("token", 2 * tokens, "before", tokens), first],
        "copying": [Term("position", positions, "position", positions)],
        "idle": [],
    }[name]


def _moves(
    name: str, layout: Layout, random: np.random.Generator, opening: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Value weight `[d_head, hidden]` and output weight `[hidden, d_head]` of a head."""
    value, output = (
        np.zeros((layout.d_head, layout.hidden)),
        np.zeros((layout.hidden, layout.d_head)),
    )
    tokens = layout.sizes["token"]
    block = slice(layout.starts["token"], layout.starts["token"] + tokens)
    target = {"previous": "before", "induction": "said", "copying": "said"}.get(name)
    if target is not None:
        value[:tokens, block] = np.eye(tokens)
        start = layout.starts[target]
        output[start : start + tokens, :tokens] = np.eye(tokens) * (
            LOUD if name == "induction" else 1.0
        )
        return value, output
    value[:, block] = random.normal(size=(layout.d_head, tokens)) / np.sqrt(tokens)
    if name == "sink":
        value -= np.outer(value @ opening, opening) / (opening @ opening)
    payload = random.normal(size=(PAYLOAD, layout.d_head)) / np.sqrt(layout.d_head)
    output[-PAYLOAD:] = payload - payload.mean(0)  # zero mean: layer norms leave it alone
    return value, output
