"""Small transformers models whose heads do known things because their weights are set: the oracle
of all tests.

How it works. Every token's embedding is a row of one-hot codes (position, segment, token type,
token, word, ...), each code centred so that its mean is zero. Layer norms get a huge epsilon and a
weight of its square root, which makes them plain centring: they leave the codes unchanged, exactly.
Queries and keys read the codes (their biases put back what centring took) and prefer a head's
targets to everything else by at least `GAP` in the logit. Values are random; output projections
write only into a few *payload* dimensions that no query or key reads, and feed-forward layers write
nothing. So every layer reads the same codes and every map is known, and yet head outputs, hidden
states and gradients are not trivial: they are linear, with closed forms (`contributions`)."""

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
from headwise.testing.vocabulary import TOKEN_TYPES, Vocabulary, make_vocabulary
from headwise.text.encode import Encoded, Encoder
from headwise.text.example import Example

PAYLOAD = 8  # dimensions that output projections write into
NORM_EPSILON = 1e8  # against variances under 1: layer norm is linear to 1e-8
INNER_SIZE = 4  # of the feed-forward layers, which write nothing
TABLE = "table:"
NO_WORD = 0  # the code of tokens without a word; colours of words start after it


@dataclass(frozen=True, eq=False)
class Planted:
    """A planted model with all that is known of it.

    Attributes
    ----------
    model : Module
        A `BertForMaskedLM` or, for causal models, a `GPT2LMHeadModel`, in eval mode with eager
        attention.
    tokenizer : PreTrainedTokenizerFast
        Its tokenizer.
    behaviours : tuple of tuple of str
        What each head does, by layer and head.
    causal : bool
        Whether it is the GPT-2.
    max_length : int
        The longest row in tokens.
    seed : int
        The seed of the random values.
    vocabulary : Vocabulary
        Its tokens and what heads know of them.
    values : array
        The value projections, `[layer, head, d_head, hidden]`.
    outputs : array
        The output projections, `[layer, head, hidden, d_head]`.
    """

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
        """Return the (layer, head) pairs with this behaviour."""
        places = []
        for layer, names in enumerate(self.behaviours):
            for head, name in enumerate(names):
                if name == behaviour:
                    places.append((layer, head))
        return places

    def encoder(self) -> Encoder:
        return Encoder(self.tokenizer, self.max_length)

    def encode(self, examples: Sequence[Example | str]) -> list[Encoded]:
        """Return examples (or plain texts) as rows of tokens; those that are too long are left
        out."""
        encoder = self.encoder()
        rows = []
        for index, example in enumerate(examples):
            if isinstance(example, str):
                example = Example(text=example)
            row = encoder.encode(example, index)
            if row is not None:
                rows.append(row)
        return rows

    def expected_map(
        self, row: Encoded | Sequence[int], types: Sequence[int] | None = None
    ) -> np.ndarray:
        """Return what every head must do on one row of tokens, by plain rules.

        Parameters
        ----------
        row : Encoded or sequence of int
            A row, or its token ids.
        types : sequence of int, optional
            The segment of each token, where `row` holds ids only; default: all 0.

        Returns
        -------
        array
            Float64 `[layer, head, query, key]`.
        """
        if isinstance(row, Encoded):
            ids = row.ids.tolist()
            segments = row.types.tolist()
        else:
            ids = [int(token) for token in row]
            segments = [0] * len(ids) if types is None else list(types)
        self._check_colours(ids)
        map_of: dict[str, np.ndarray] = {}
        for names in self.behaviours:
            for name in names:
                if name in map_of:
                    continue
                behaviour = parse_behaviour(name, self.causal, self.vocabulary)
                map_of[name] = expected_weights(
                    behaviour, ids, segments, self.vocabulary, self.causal
                )
        return np.array([[map_of[name] for name in names] for names in self.behaviours])

    def _check_colours(self, ids: Sequence[int]) -> None:
        token_of_colour: dict[int, int] = {}
        for token in ids:
            colour = self.vocabulary.token_colour[token]
            if token_of_colour.setdefault(colour, token) != token:
                raise ParameterError(
                    "Two words occur together here that never do so in the examples this model was "
                    "planted for; plant it with `words` instead."
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
    """Return a small model whose heads do what `behaviours` names.

    Parameters
    ----------
    behaviours : sequence of sequences of str
        Names by layer and head, from `RULES`: the same number of heads in each layer.
    causal : bool, default False
        A GPT-2 with a beginning-of-sequence token, instead of a BERT with `[CLS] a [SEP] b [SEP]`.
    words : sequence of str, optional
        The words the tokenizer knows; `play|ing` has the pieces `play` and `##ing`. All others are
        `[UNK]`.
    examples : sequence of Example, optional
        Instead of `words`: the corpus the model is for, whose words become the vocabulary. Words
        that never occur together there may share a code.
    tables : mapping, optional
        For `tree`, `children`, `to:TABLE`, `from:TABLE`: which word each word points at.
    relation : mapping of str to str, optional
        For `tree:RELATION`: the relation of each word.
    max_length : int, default 64
        Tokens of the longest row, special ones included.
    seed : int, default 0
        For the values, the payload and the language-modelling head.

    Returns
    -------
    Planted
        `expected_map(row)` equals the model's attention to 1e-5.
    """
    heads_by_layer = {len(names) for names in behaviours}
    if len(heads_by_layer) != 1 or 0 in heads_by_layer:
        raise ParameterError(
            "`behaviours` needs at least one head, and the same number of heads in every layer."
        )
    vocabulary = make_vocabulary(words, examples, tables or {}, relation or {}, causal)
    parsed = [[parse_behaviour(name, causal, vocabulary) for name in row] for row in behaviours]
    layout = _make_layout(parsed, vocabulary, causal, max_length)
    n_layers = len(parsed)
    n_heads = len(parsed[0])
    random = np.random.default_rng(seed)
    values = random.normal(size=(n_layers, n_heads, layout.d_head, layout.hidden))
    values = values / np.sqrt(layout.hidden)
    payload = random.normal(size=(n_layers, n_heads, PAYLOAD, layout.d_head))
    payload = payload / np.sqrt(layout.d_head)
    outputs = np.zeros((n_layers, n_heads, layout.hidden, layout.d_head))
    # Zero mean: layer norms leave the payload unchanged too.
    outputs[:, :, -PAYLOAD:] = payload - payload.mean(2, keepdims=True)
    size = Size(n_layers, n_heads, layout.hidden, INNER_SIZE, max_length)
    model = empty_model(vocabulary, size, causal, seed)
    with torch.no_grad():
        _set_embeddings(model, vocabulary, layout, causal, max_length)
        for layer, row in enumerate(parsed):
            terms_by_head = [terms(head, layout.sizes, layout.relations) for head in row]
            scores = query_key(terms_by_head, layout)
            set_layer(model, layer, scores, values[layer], outputs[layer])
    return Planted(
        model=model,
        tokenizer=vocabulary.tokenizer,
        behaviours=tuple(tuple(row) for row in behaviours),
        causal=causal,
        max_length=max_length,
        seed=seed,
        vocabulary=vocabulary,
        values=values,
        outputs=outputs,
    )


# --- building -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each one-hot code lies in the hidden vector, and how wide everything is.

    Attributes
    ----------
    sizes : dict of str to int
        The size of each block of codes.
    relations : tuple of str
        The relations in the order of their codes.
    hidden : int
        The width of the hidden vector.
    d_head : int
        The width of a head.
    starts : dict of str to int
        Where each block starts; they follow each other in the order of `sizes`.
    """

    sizes: dict[str, int]
    relations: tuple[str, ...]
    hidden: int
    d_head: int
    starts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        starts = {}
        start = 0
        for block, size in self.sizes.items():
            starts[block] = start
            start += size
        object.__setattr__(self, "starts", starts)

    def block(self, name: str) -> slice:
        """Return the dimensions of a block of codes."""
        start = self.starts[name]
        return slice(start, start + self.sizes[name])

    def onehot(self, block: str, index: int) -> np.ndarray:
        """Return the centred code: its mean is zero, so layer norms leave it unchanged."""
        size = self.sizes[block]
        code = np.zeros(self.hidden)
        code[self.block(block)] = np.eye(size)[index] - 1 / size
        return code

    def reader(self, block: str, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weight and bias that give `matrix · onehot` from a hidden vector with the
        centred code."""
        weight = np.zeros((len(matrix), self.hidden))
        if not block:
            return weight, matrix[:, 0]
        weight[:, self.block(block)] = matrix
        return weight, matrix.sum(1) / self.sizes[block]


def _make_layout(
    parsed: Sequence[Sequence[Behaviour]], vocabulary: Vocabulary, causal: bool, max_length: int
) -> Layout:
    relations = ("", *sorted(set(vocabulary.relation.values())))
    sizes = {
        "position": max_length,
        "token_type": len(TOKEN_TYPES),
        "token": max(vocabulary.token_colour) + 1,
    }
    if not causal:
        sizes["segment"] = 2
    if vocabulary.tables:
        n_words = max(vocabulary.word_colour.values()) + 2  # one more for NO_WORD
        sizes["word"] = n_words
        for name in vocabulary.tables:
            sizes[f"{TABLE}{name}"] = n_words
    if vocabulary.relation:
        sizes["relation"] = len(relations)

    n_heads = len(parsed[0])
    # A head must hold the ranks of all its terms, and all heads together the codes and the payload.
    d_head = max(2, -(-(sum(sizes.values()) + PAYLOAD) // n_heads))
    for row in parsed:
        for behaviour in row:
            rank = sum(len(term.query) for term in terms(behaviour, sizes, relations))
            d_head = max(d_head, rank)
    return Layout(sizes, relations, d_head * n_heads, d_head)


def empty_model(vocabulary: Vocabulary, size: Size, causal: bool, seed: int) -> Any:
    """Return a model with linear layer norms, no dropout and a random language-modelling head."""
    changes: dict[str, Any] = {"tie_word_embeddings": False, "initializer_range": 0.2}
    if causal:
        changes["layer_norm_epsilon"] = NORM_EPSILON
        dropouts = ["resid_pdrop", "embd_pdrop", "attn_pdrop"]
    else:
        changes["layer_norm_eps"] = NORM_EPSILON
        dropouts = ["hidden_dropout_prob", "attention_probs_dropout_prob"]
    for dropout in dropouts:
        changes[dropout] = 0.0
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
    word_codes = {word: colour + 1 for word, colour in vocabulary.word_colour.items()}
    tokens = [_token_code(i, word_codes, vocabulary, layout) for i in range(len(vocabulary))]
    positions = [layout.onehot("position", position) for position in range(max_length)]
    if causal:
        tables = [(model.transformer.wte, tokens), (model.transformer.wpe, positions)]
    else:
        embeddings = model.bert.embeddings
        segments = [layout.onehot("segment", segment) for segment in range(2)]
        tables = [
            (embeddings.word_embeddings, tokens),
            (embeddings.position_embeddings, positions),
            (embeddings.token_type_embeddings, segments),
        ]
    for embedding, codes in tables:
        embedding.weight.copy_(torch.from_numpy(np.array(codes)))


def _token_code(
    token: int, word_codes: Mapping[str, int], vocabulary: Vocabulary, layout: Layout
) -> np.ndarray:
    code = layout.onehot("token_type", TOKEN_TYPES.index(vocabulary.token_type[token]))
    code += layout.onehot("token", vocabulary.token_colour[token])
    word = vocabulary.word_of.get(token, "")
    if vocabulary.tables:
        code += layout.onehot("word", word_codes.get(word, NO_WORD))
        for name, table in vocabulary.tables.items():
            target = table.get(word, "")
            code += layout.onehot(f"{TABLE}{name}", word_codes.get(target, NO_WORD))
    if vocabulary.relation:
        relation = vocabulary.relation.get(word, "")
        code += layout.onehot("relation", layout.relations.index(relation))
    return code


def query_key(
    terms_by_head: Sequence[Sequence[Term]], layout: Layout
) -> tuple[np.ndarray, np.ndarray]:
    """Return the query and key projections of a layer whose heads have these terms.

    Returns
    -------
    tuple of array
        Weights `[side, head · d_head, hidden]` and biases `[side, head · d_head]`; side 0 holds the
        queries, side 1 the keys.
    """
    n_heads = len(terms_by_head)
    weights = np.zeros((2, n_heads, layout.d_head, layout.hidden))
    biases = np.zeros((2, n_heads, layout.d_head))
    scale = GAP * np.sqrt(layout.d_head)  # attention divides the scores by that root
    for head, head_terms in enumerate(terms_by_head):
        start = 0
        for term in head_terms:
            rows = slice(start, start + len(term.query))
            query_weight, query_bias = layout.reader(term.query_block, scale * term.query)
            weights[0, head, rows] = query_weight
            biases[0, head, rows] = query_bias
            key_weight, key_bias = layout.reader(term.key_block, term.key)
            weights[1, head, rows] = key_weight
            biases[1, head, rows] = key_bias
            start = rows.stop
    return weights.reshape(2, -1, layout.hidden), biases.reshape(2, -1)


def set_layer(
    model: Any,
    index: int,
    scores: tuple[np.ndarray, np.ndarray],
    values: np.ndarray,
    outputs: np.ndarray,
) -> None:
    """Set the weights of a layer; its feed-forward layers write nothing.

    Parameters
    ----------
    model : BertForMaskedLM or GPT2LMHeadModel
        The model.
    index : int
        The layer.
    scores : tuple of array
        Weights and biases of queries and keys, as `query_key` returns them.
    values : array
        `[head, d_head, hidden]`.
    outputs : array
        `[head, hidden, d_head]`.
    """
    hidden = values.shape[-1]
    query, key = torch.from_numpy(scores[0]).float()
    query_bias, key_bias = torch.from_numpy(scores[1]).float()
    value = torch.from_numpy(values.reshape(-1, hidden)).float()
    output = torch.from_numpy(outputs.transpose(1, 0, 2).reshape(hidden, -1)).float()
    value_bias = torch.zeros(len(value))
    if hasattr(model, "bert"):
        layer = model.bert.encoder.layer[index]
        attention = layer.attention.self
        projections = (
            (attention.query, query, query_bias),
            (attention.key, key, key_bias),
            (attention.value, value, value_bias),
            (layer.attention.output.dense, output, torch.zeros(hidden)),
        )
        for linear, weight, bias in projections:
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        last_linear = layer.output.dense
    else:
        # GPT-2 holds query, key and value in one matrix, and all weights transposed.
        layer = model.transformer.h[index]
        layer.attn.c_attn.weight.copy_(torch.cat([query, key, value]).T)
        layer.attn.c_attn.bias.copy_(torch.cat([query_bias, key_bias, value_bias]))
        layer.attn.c_proj.weight.copy_(output.T)
        layer.attn.c_proj.bias.zero_()
        last_linear = layer.mlp.c_proj
    last_linear.weight.zero_()
    last_linear.bias.zero_()
