"""Small real transformers models whose heads are made to do known things, by setting weights: the
oracle of all tests.

How it works. Every token's embedding is a row of one-hot codes (position, segment, kind of token,
token, word, ...), each code centred so that its mean is zero. Layer norms get a huge epsilon and a
weight of its square root, which makes them plain centring: they leave the codes as they are,
exactly. Queries and keys read the codes (their biases put back what centring took) and prefer a
head's targets to all else by at least `GAP` in the logit. Values are random; output projections
write only into a few *payload* dimensions that no query or key reads, and feed-forward layers write
nothing. So every layer sees the same codes, every map is known, and yet head outputs, hidden states
and gradients are not trivial: they are linear, with closed forms (`contributions`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from headwise.core.errors import ParameterError
from headwise.testing.behaviours import (
    GAP,
    Behaviour,
    Term,
    expected_weights,
    parse_behaviour,
    terms,
)
from headwise.testing.models import Size, blank_model
from headwise.testing.vocabulary import KINDS, Vocabulary, make_vocabulary
from headwise.text.encode import Encoded, Encoder
from headwise.text.example import Example

PAYLOAD = 8  # dimensions that output projections write into
NORM_EPSILON = 1e8  # against variances under 1: layer norm is linear to 1e-8
TABLE = "table:"


@dataclass(frozen=True, eq=False)
class Planted:
    """A planted model with all that is known of it.

    `model` is a `BertForMaskedLM` or, for causal models, a `GPT2LMHeadModel`, in eval mode with
    eager attention. `values[layer, head, d_head, hidden]` and `outputs[layer, head, hidden,
    d_head]` are its value and output projections."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerFast
    behaviours: tuple[tuple[str, ...], ...]
    causal: bool
    max_length: int
    seed: int
    vocabulary: Vocabulary = field(repr=False)
    values: np.ndarray = field(repr=False)
    outputs: np.ndarray = field(repr=False)

    @property
    def layers(self) -> int:
        return len(self.behaviours)

    @property
    def heads(self) -> int:
        return len(self.behaviours[0])

    def where(self, behaviour: str) -> list[tuple[int, int]]:
        """The (layer, head) pairs that were made to do this."""
        return [
            (layer, head)
            for layer, row in enumerate(self.behaviours)
            for head, name in enumerate(row)
            if name == behaviour
        ]

    def encoder(self) -> Encoder:
        return Encoder(self.tokenizer, self.max_length)

    def encode(self, examples: Sequence[Example | str]) -> list[Encoded]:
        """Examples (or plain texts) as rows of tokens, indexed in their order."""
        encoder = self.encoder()
        made = [Example(text=e) if isinstance(e, str) else e for e in examples]
        rows = [encoder.encode(example, index) for index, example in enumerate(made)]
        return [row for row in rows if row is not None]

    def expected_map(
        self, row: Encoded | Sequence[int], types: Sequence[int] | None = None
    ) -> np.ndarray:
        """What every head must do on one row of tokens.

        Float64 [layer, head, query, key], by plain rules on ids, positions and token types.
        """
        if isinstance(row, Encoded):
            ids, types = row.ids.tolist(), row.types.tolist()
        else:
            ids = [int(i) for i in row]
        types = [0] * len(ids) if types is None else list(types)
        self._check_colours(ids)
        known: dict[str, np.ndarray] = {}
        for name in {name for layer in self.behaviours for name in layer}:
            known[name] = expected_weights(
                parse_behaviour(name, self.causal, self.vocabulary),
                ids,
                types,
                self.vocabulary,
                self.causal,
            )
        return np.array([[known[name] for name in layer] for layer in self.behaviours])

    def _check_colours(self, ids: Sequence[int]) -> None:
        colours: dict[int, int] = {}
        for i in ids:
            if colours.setdefault(self.vocabulary.token_colour[i], i) != i:
                raise ParameterError(
                    "Two words that never stand together in the examples this model was planted for do so here; "
                    "plant it with `words` instead."
                )


def planted_model(
    behaviours: Sequence[Sequence[str]],
    *,
    causal: bool = False,
    words: Sequence[str] | None = None,
    examples: Sequence[Example] | None = None,
    tables: Mapping[str, Mapping[str, str]] | None = None,
    relation: Mapping[str, str] | None = None,
    max_length: int = 64,
    seed: int = 0,
) -> Planted:
    """A small model whose heads do what is named.

    Parameters
    ----------
    behaviours
        Names by layer and head, from `RULES`: the same number of heads in each layer.
    causal
        A GPT-2 with a beginning-of-sequence token, instead of a BERT with `[CLS] a [SEP] b [SEP]`.
    words
        The words the tokenizer knows; `play|ing` has the pieces `play` and `##ing`. All others are
        `[UNK]`.
    examples
        Instead of `words`: the corpus the model is for, whose words become the vocabulary. What
        never stands together there shares its code.
    tables
        For `tree`, `children`, `to:TABLE`, `from:TABLE`: which word each word points at.
    relation
        For `tree:RELATION`: the relation of each word.
    max_length
        Tokens of the longest row, special ones included.
    seed
        For the values, the payload and the language-model head.

    Returns
    -------
    Planted
        `expected_map(row)` equals the model's attention to 1e-5.
    """
    if (
        not behaviours
        or not behaviours[0]
        or any(len(row) != len(behaviours[0]) for row in behaviours)
    ):
        raise ParameterError(
            "`behaviours` needs at least one head, and the same number of heads in every layer."
        )
    vocabulary = make_vocabulary(words, examples, tables or {}, relation or {}, causal)
    parsed = [[parse_behaviour(name, causal, vocabulary) for name in row] for row in behaviours]
    layout = _layout(parsed, vocabulary, causal, max_length)
    layers, heads = len(parsed), len(parsed[0])
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(layers, heads, layout.d_head, layout.hidden)) / np.sqrt(
        layout.hidden
    )
    outputs = np.zeros((layers, heads, layout.hidden, layout.d_head))
    payload = generator.normal(size=(layers, heads, PAYLOAD, layout.d_head)) / np.sqrt(
        layout.d_head
    )
    outputs[:, :, -PAYLOAD:] = payload - payload.mean(
        2, keepdims=True
    )  # zero mean: layer norms leave it alone too
    model = empty_model(vocabulary, Size(layers, heads, layout.hidden, 4, max_length), causal, seed)
    with torch.no_grad():
        _set_embeddings(model, vocabulary, layout, causal, max_length)
        for layer, row in enumerate(parsed):
            asked = [terms(behaviour, layout.sizes, layout.relations) for behaviour in row]
            set_layer(model, layer, query_key(asked, layout), values[layer], outputs[layer])
    named = tuple(tuple(row) for row in behaviours)
    return Planted(
        model, vocabulary.tokenizer, named, causal, max_length, seed, vocabulary, values, outputs
    )


# --- building -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each one-hot code lies in the hidden vector, and how wide everything is."""

    sizes: dict[str, int]
    starts: dict[str, int]
    relations: tuple[str, ...]
    hidden: int
    d_head: int

    def onehot(self, block: str, index: int) -> np.ndarray:
        """The centred code: its mean is zero, so layer norms leave it alone."""
        out = np.zeros(self.hidden)
        size, start = self.sizes[block], self.starts[block]
        out[start : start + size] = np.eye(size)[index] - 1 / size
        return out

    def reader(self, block: str, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weight and bias that give `matrix · onehot` from a hidden vector with the centred
        code."""
        weight = np.zeros((len(matrix), self.hidden))
        if not block:
            return weight, matrix[:, 0]
        size, start = self.sizes[block], self.starts[block]
        weight[:, start : start + size] = matrix
        return weight, matrix.sum(1) / size


def _layout(
    parsed: Sequence[Sequence[Behaviour]], vocabulary: Vocabulary, causal: bool, max_length: int
) -> Layout:
    relations = ("", *sorted(set(vocabulary.relation.values())))
    sizes = {"position": max_length, "kind": len(KINDS), "token": max(vocabulary.token_colour) + 1}
    if not causal:
        sizes["segment"] = 2
    if vocabulary.tables:
        words = max(vocabulary.word_colour.values()) + 2  # index 0: no word
        sizes |= {"word": words} | {f"{TABLE}{name}": words for name in vocabulary.tables}
    if vocabulary.relation:
        sizes["relation"] = len(relations)
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    needed = max(
        sum(len(term.query) for term in terms(b, sizes, relations)) for row in parsed for b in row
    )
    heads = len(parsed[0])
    d_head = max(needed, -(-(sum(sizes.values()) + PAYLOAD) // heads), 2)
    return Layout(sizes, starts, relations, d_head * heads, d_head)


def empty_model(vocabulary: Vocabulary, size: Size, causal: bool, seed: int) -> Any:
    """Linear layer norms, no dropout, a random language-model head."""
    bert = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    dropouts = ("resid_pdrop", "embd_pdrop", "attn_pdrop") if causal else bert
    changes: dict[str, Any] = dict.fromkeys(dropouts, 0.0)
    changes |= {"tie_word_embeddings": False, "initializer_range": 0.2}
    changes["layer_norm_epsilon" if causal else "layer_norm_eps"] = NORM_EPSILON
    model = blank_model(vocabulary, size, causal, seed, **changes)
    model.set_attn_implementation("eager")
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.constant_(module.weight, NORM_EPSILON**0.5)
            nn.init.zeros_(module.bias)
    return model


def _set_embeddings(
    model: Any, vocabulary: Vocabulary, layout: Layout, causal: bool, max_length: int
) -> None:
    colours = {name: colour + 1 for name, colour in vocabulary.word_colour.items()}  # 0: no word
    words = np.array([_token_code(i, colours, vocabulary, layout) for i in range(len(vocabulary))])
    positions = np.array([layout.onehot("position", p) for p in range(max_length)])
    if causal:
        pairs = [(model.transformer.wte, words), (model.transformer.wpe, positions)]
    else:
        found = model.bert.embeddings
        segments = np.array([layout.onehot("segment", s) for s in range(2)])
        pairs = [
            (found.word_embeddings, words),
            (found.position_embeddings, positions),
            (found.token_type_embeddings, segments),
        ]
    for embedding, table in pairs:
        embedding.weight.copy_(torch.from_numpy(table))


def _token_code(
    token: int, colours: Mapping[str, int], vocabulary: Vocabulary, layout: Layout
) -> np.ndarray:
    out = layout.onehot("kind", KINDS.index(vocabulary.kind[token]))
    out += layout.onehot("token", vocabulary.token_colour[token])
    word = vocabulary.word_of.get(token)
    if vocabulary.tables:
        out += layout.onehot("word", colours.get(word or "", 0))
        for name, table in vocabulary.tables.items():
            out += layout.onehot(f"{TABLE}{name}", colours.get(table.get(word or "", ""), 0))
    if vocabulary.relation:
        out += layout.onehot(
            "relation", layout.relations.index(vocabulary.relation.get(word or "", ""))
        )
    return out


def query_key(row: Sequence[Sequence[Term]], layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Weights [side, head · d_head, hidden] and biases [side, head · d_head] of queries and keys
    with these terms."""
    weights = np.zeros((2, len(row), layout.d_head, layout.hidden))
    biases = np.zeros((2, len(row), layout.d_head))
    loudness = GAP * np.sqrt(layout.d_head)  # attention divides the scores by that root
    for head, terms_of_head in enumerate(row):
        start = 0
        for term in terms_of_head:
            stop = start + len(term.query)
            sides = (term.query_block, loudness * term.query), (term.key_block, term.key)
            for side, (block, matrix) in enumerate(sides):
                weights[side, head, start:stop], biases[side, head, start:stop] = layout.reader(
                    block, matrix
                )
            start = stop
    return weights.reshape(2, -1, layout.hidden), biases.reshape(2, -1)


def set_layer(
    model: Any,
    index: int,
    scores: tuple[np.ndarray, np.ndarray],
    values: np.ndarray,
    outputs: np.ndarray,
) -> None:
    """Set a layer to what `query_key` gives, `values` [head, d_head, hidden] and `outputs` [head,
    hidden, d_head]; its feed-forward layers write nothing."""
    hidden = values.shape[-1]
    query, key, value, output, query_bias, key_bias = (
        torch.from_numpy(part).float()
        for part in (
            *scores[0],
            values.reshape(-1, hidden),
            outputs.transpose(1, 0, 2).reshape(hidden, -1),
            *scores[1],
        )
    )
    if hasattr(model, "bert"):
        layer = model.bert.encoder.layer[index]
        own, dense, last = layer.attention.self, layer.attention.output.dense, layer.output.dense
        linears = (
            (own.query, query, query_bias),
            (own.key, key, key_bias),
            (own.value, value, None),
        )
        for linear, weight, bias in (*linears, (dense, output, None)):
            linear.weight.copy_(weight)
            linear.bias.copy_(torch.zeros(len(weight)) if bias is None else bias)
    else:
        layer = model.transformer.h[index]
        layer.attn.c_attn.weight.copy_(torch.cat([query, key, value]).T)
        layer.attn.c_attn.bias.copy_(torch.cat([query_bias, key_bias, torch.zeros(len(value))]))
        layer.attn.c_proj.weight.copy_(output.T)
        layer.attn.c_proj.bias.zero_()
        last = layer.mlp.c_proj
    last.weight.zero_()
    last.bias.zero_()
