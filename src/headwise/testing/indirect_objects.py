"""A three-layer decoder without feed-forward layers that names the indirect object, its weights set:
the oracle of circuits (Wang et al. 2022, in its smallest form).

An input is `A B ... A end`, and the answer is the name that occurs once, B. Three heads do it, each
reading what the one before wrote:

- `duplicate` (layer 0): the second A attends to the first, and writes its code into `repeated`;
- `suppression` (layer 1): the last token attends to the one before it, the second A, and moves
  `repeated` into `suppressed`;
- `mover` (layer 2): the last token attends to the names at the beginning, but not to the one that
  is `suppressed`, and writes the code of what it attends to into `said`, which the output reads.

So four edges carry the behaviour, each all of it: the embedding to the query of `duplicate`, that to
the value of `suppression`, that to the query of `mover`, and that to the logits. The other head of
each layer attends to all tokens alike and writes what nothing reads."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

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

HEADS = (("duplicate", "idle"), ("suppression", "idle"), ("mover", "idle"))
NAME_POSITIONS = (1, 2)  # of the two names at the beginning, after the opening token
# Where each head reads the code that it writes elsewhere.
READS = {"duplicate": "token", "suppression": "repeated", "mover": "token"}
WRITES = {"duplicate": "repeated", "suppression": "suppressed", "mover": "said"}


@dataclass(frozen=True, eq=False)
class PlantedNames:
    """A decoder that names the indirect object.

    `logit` is what the mover adds to the logit of the name it attends to, over any other token: the
    difference of the answers' logits is `logit` on a clean input and its negative where the other
    name is repeated."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerFast
    logit: float
    vocabulary: Vocabulary = field(repr=False)

    def where(self, name: str) -> tuple[int, int]:
        """Return the (layer, head) of `duplicate`, `suppression` or `mover`."""
        for layer, row in enumerate(HEADS):
            if name in row:
                return layer, row.index(name)
        raise ParameterError(unknown("head", name, [row[0] for row in HEADS]))


def planted_names(
    *, words: int = 20, max_length: int = 12, logit: float = 4.0, seed: int = 0
) -> PlantedNames:
    """Return a decoder in which three heads in a row name the indirect object.

    Parameters
    ----------
    words : int, default 20
        Words of its vocabulary, `word0` and so on; each may be a name.
    max_length : int, default 12
        The longest input in tokens, the beginning-of-sequence token included.
    logit : float, default 4.0
        The difference of the answers' logits.
    seed : int, default 0
        For what the idle heads write.

    Examples
    --------
    >>> planted_names(words=6).where("mover")
    (2, 0)
    """
    vocabulary = make_vocabulary([f"word{i}" for i in range(words)], None, {}, {}, causal=True)
    n_tokens = len(vocabulary)
    n_heads = len(HEADS[0])
    sizes = {"position": max_length, "token": n_tokens}
    sizes |= {"repeated": n_tokens, "suppressed": n_tokens, "said": n_tokens}
    # Wide enough for the codes and the payload, and for the ranks of the terms of `duplicate`.
    d_head = max(-(-(sum(sizes.values()) + PAYLOAD) // n_heads), n_tokens + max_length + 1)
    layout = Layout(sizes, ("",), n_heads * d_head, d_head)
    size = Size(len(HEADS), n_heads, layout.hidden, INNER_SIZE, max_length)
    model = empty_model(vocabulary, size, True, seed)
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for table, block in ((model.transformer.wte, "token"), (model.transformer.wpe, "position")):
            codes = [layout.onehot(block, i) for i in range(sizes[block])]
            table.weight.copy_(torch.from_numpy(np.array(codes)))
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, layout.block("said")] = logit * torch.eye(n_tokens)
        for layer, names in enumerate(HEADS):
            scores = query_key([_terms(name, layout) for name in names], layout)
            values = []
            outputs = []
            for name in names:
                value, output = _value_and_output(name, layout, random)
                values.append(value)
                outputs.append(output)
            set_layer(model, layer, scores, np.array(values), np.array(outputs))
    return PlantedNames(model, vocabulary.tokenizer, logit, vocabulary)


def _terms(name: str, layout: Layout) -> list[Term]:
    """Return the terms of a head's scores."""
    positions = np.eye(layout.sizes["position"])
    tokens = np.eye(layout.sizes["token"])
    always = np.ones((1, 1))
    match name:
        case "duplicate":
            same_token = Term("token", 2 * tokens, "token", tokens)
            not_itself = Term("position", -2 * positions, "position", positions)
            # Preferred by less: what is left where no token is repeated.
            first_token = Term("", always, "position", positions[:1])
            return [same_token, not_itself, first_token]
        case "suppression":
            previous = 2 * np.eye(len(positions), k=1) + positions
            return [Term("position", previous, "position", positions)]
        case "mover":
            names = Term("", 4 * always, "position", positions[list(NAME_POSITIONS)].sum(0)[None])
            not_suppressed = Term("suppressed", -2 * tokens, "token", tokens)
            return [names, not_suppressed]
        case "idle":
            return []
    raise AssertionError(name)


def _value_and_output(
    name: str, layout: Layout, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the value weight `[d_head, hidden]` and the output weight `[hidden, d_head]` of a
    head."""
    value = np.zeros((layout.d_head, layout.hidden))
    output = np.zeros((layout.hidden, layout.d_head))
    n_tokens = layout.sizes["token"]
    if name in READS:
        value[:n_tokens, layout.block(READS[name])] = np.eye(n_tokens)
        output[layout.block(WRITES[name]), :n_tokens] = np.eye(n_tokens)
        return value, output
    token_block = layout.block("token")
    value[:, token_block] = random.normal(size=(layout.d_head, n_tokens)) / np.sqrt(n_tokens)
    payload = random.normal(size=(PAYLOAD, layout.d_head)) / np.sqrt(layout.d_head)
    output[-PAYLOAD:] = payload - payload.mean(0)  # zero mean: layer norms leave it unchanged
    return value, output
