"""Answers to the requests of the explorer's page: attention of all heads, the weights of one head,
attribution, predictions, what each head adds to a logit, and the tokens that a model writes."""

from __future__ import annotations

import base64
import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headwise.analyses.attribution.contributions import head_contributions
from headwise.atlas import Atlas
from headwise.atlas.behaviours import MIN_SHARE
from headwise.atlas.describe import CARD_COLUMNS, SHORT_LABELS
from headwise.atlas.role_words import roles_text
from headwise.core.checks import at_least, check_types, one_of
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.core.labels import existing_heads, head_name
from headwise.models import HeadModel
from headwise.models.direct import logit_attribution
from headwise.models.structure import Structure, find_structure
from headwise.models.view import TraceWatcher
from headwise.text.encode import Batch, Encoded
from headwise.text.example import Example

LONGEST_TEXT = 4_000  # characters
MOST_TOKENS = 128
# Weights of all heads together that are sent to the page: large models read shorter texts.
MOST_CELLS = 8_000_000
MOST_TOP = 50
MOST_WRITTEN = 60  # tokens that a model writes for one request
WAYS = ("zero", "uniform", "mean")
# Forward passes that are kept for the next click, and their size in bytes.
CACHED_PASSES = 6
CACHE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Question:
    """A request about one input of one model.

    Parameters
    ----------
    text : str
        The sentence.
    pair : str, optional
        A second sentence; for an encoder-decoder, the target.
    model : int, default 0
        Index of the model in the explorer.
    disabled : tuple of str, default ()
        Heads to disable (`L3H5`).
    how : {"zero", "uniform", "mean"}, default "zero"
        What disabling does: no output, uniform attention, or the head's mean output over the input.
    mask : int, optional
        Position of a token to replace by the mask token, for a masked language model.
    position : int, optional
        The token after which the next one is predicted; default: the last token.
    top : int, default 8
        How many of the most likely tokens to return.
    written : tuple of int, default ()
        Ids of tokens that follow the text, as `Explorer.write` returns them.
    """

    text: str
    pair: str | None = None
    model: int = 0
    disabled: tuple[str, ...] = ()
    how: str = "zero"
    mask: int | None = None
    position: int | None = None
    top: int = 8
    written: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)
        one_of("how", self.how, WAYS)
        at_least("top", self.top, 1)
        if self.top > MOST_TOP:
            raise ParameterError(f"`top` must be at most {MOST_TOP}; it is {self.top}.")
        for name in ("text", "pair"):
            text = getattr(self, name) or ""
            if len(text) > LONGEST_TEXT:
                raise InputError(
                    f"`{name}` is longer than {LONGEST_TEXT:,} characters; give a shorter one."
                )
        if not self.text.strip():
            raise InputError("`text` is empty; type a sentence.")
        if len(self.written) > MOST_WRITTEN:
            raise ParameterError(
                f"`written` has at most {MOST_WRITTEN} tokens; it has {len(self.written)}."
            )

    @property
    def of_intact_model(self) -> Question:
        """The same request with no head disabled."""
        return replace(self, disabled=(), how="zero")


@dataclass(frozen=True, slots=True, eq=False)
class ExploredInput:
    """One forward pass over one input, with the model's prediction where there is one."""

    batch: Batch
    weights: np.ndarray  # [layer, head, query, key]
    log_probs: torch.Tensor | None  # over the vocabulary or the classes
    position: int | None  # the token of the prediction; None for a class
    truncated: bool  # whether the end of the text was left out
    why: str = ""  # why nothing is predicted

    @property
    def bytes(self) -> int:
        """Size in memory, for the cache."""
        size = self.weights.nbytes
        if self.log_probs is not None:
            size += self.log_probs.nbytes
        return size


class Explorer:
    """Answers requests about one or two models with values that JSON can hold.

    Nothing is read from disk or written to it.

    Parameters
    ----------
    models : sequence of HeadModel
        One model, or two to compare side by side.
    atlas : Atlas, optional
        The source of the heads' labels; it must have the shape of the first model.

    Examples
    --------
    >>> from headwise.testing.models import random_model
    >>> module, tokenizer = random_model()
    >>> with HeadModel.open(module, tokenizer=tokenizer) as model:
    ...     answer = Explorer([model]).all_heads(Question("the cat saw the dog"))
    >>> answer["tokens"][1:3], answer["shape"]
    (['the', 'cat'], [2, 3, 7, 7])
    """

    def __init__(self, models: Sequence[HeadModel], atlas: Atlas | None = None) -> None:
        if not 1 <= len(models) <= 2:
            raise ParameterError(
                f"The explorer shows one model or two side by side; {len(models)} were given."
            )
        self.models = []
        for model in models:
            tokens_that_fit = math.isqrt(MOST_CELLS // (model.layers * model.heads))
            longest = min(MOST_TOKENS, tokens_that_fit, model.encoder.max_length)
            self.models.append(model.limited(max(2, longest), "truncate"))
        self.notes: list[str] = []
        self.labels = []
        for index, model in enumerate(self.models):
            self.labels.append(self._head_labels(model, atlas, is_first=index == 0))
        self._cache: OrderedDict[Question, ExploredInput] = OrderedDict()
        self._structures: dict[int, Structure] = {}

    def _head_labels(
        self, model: HeadModel, atlas: Atlas | None, is_first: bool
    ) -> list[list[dict[str, str]]] | None:
        """Return label, category and description of each head, `[layer][head]`, where the atlas is
        of this model."""
        if atlas is None:
            return None
        atlas_model = atlas.provenance.get("model", {})
        same_weights = model.same_weights(atlas_model)
        if not same_weights and not is_first:
            return None
        if (atlas.layers, atlas.heads) != (model.layers, model.heads):
            raise ParameterError(
                f"The atlas is of {atlas_model.get('name', 'a model')} with {atlas.layers} layers "
                f"of {atlas.heads} heads, but {model.name} has {model.layers} of {model.heads}; "
                "give the atlas of this model."
            )
        if not same_weights:
            source = (
                f"The labels come from an atlas of {atlas_model.get('name', 'an unnamed model')}"
            )
            if same_weights is None:
                self.notes.append(f"{source}; it is not known whether the weights are the same.")
            else:
                self.notes.append(f"{source}, which had other weights.")

        labels: list[list[dict[str, str]]] = []
        for _ in range(model.layers):
            labels.append([{} for _ in range(model.heads)])
        for row in atlas.describe().to_dict("records"):
            head_labels = {
                "label": SHORT_LABELS.get(row["does"], row["does"]),
                "category": row["kind"],
            }
            for name in CARD_COLUMNS:
                head_labels[name] = str(row[name] or "")
            if row["roles"]:
                head_labels["roles"] = roles_text(row["roles"])
            labels[row["layer"]][row["head"]] = head_labels
        return labels

    def state(self) -> dict[str, Any]:
        """Return what the page needs to know before its first request."""
        models = []
        for model, labels in zip(self.models, self.labels, strict=True):
            mask_token = None
            if model.lm_kind == "masked":
                mask_token = model.encoder.tokenizer.mask_token
            models.append(
                {
                    "name": model.name,
                    "stack": model.stack,
                    "layers": model.layers,
                    "heads": model.heads,
                    "causal": model.causal,
                    "predicts": self._prediction_kind(model),
                    "mask": mask_token,
                    "needs_pair": model.encoder_part is not None and model.stack != "encoder",
                    "attributes": model.stack != "cross",
                    "writes": self._writes(model),
                    "tokens": model.encoder.max_length,
                    "labels": labels,
                }
            )
        return {
            "models": models,
            "ways": WAYS,
            "longest": LONGEST_TEXT,
            "most_written": MOST_WRITTEN,
            "notes": self.notes,
        }

    # --- answers ----------------------------------------------------------------------------------

    def all_heads(self, question: Question) -> dict[str, Any]:
        """Return the attention of all heads and what the model predicts.

        The weights are bytes, 255 times their square root. `sinks` says of a decoder's heads whether
        the first token gets more than half of their attention on this input. Where heads are
        disabled, the answer also has the predictions of the intact model and, under `moved`, the
        total variation distance of each head's attention from that of the intact model.
        """
        started = time.perf_counter()
        now = self._cached_pass(question)
        before = self._cached_pass(question.of_intact_model) if question.disabled else None
        moved = None
        if before is not None:
            distance = 0.5 * np.abs(now.weights - before.weights).sum(-1).mean(-1)
            moved = np.round(distance, 4).tolist()

        batch = now.batch
        # The square root spreads small weights over more of the 256 levels.
        levels = np.rint(255 * np.sqrt(now.weights.clip(0, 1))).astype(np.uint8)
        return {
            "tokens": _token_texts(batch),
            "special": batch.special[0].tolist(),
            "keys": None if batch.keys is batch else _token_texts(batch.keys),
            "keys_special": batch.keys.special[0].tolist(),
            "shape": list(now.weights.shape),
            "maps": _base64(levels),
            "moved": moved,
            "sinks": self._sinks(question, now),
            "predictions": self._predictions(question, now, before),
            "truncated": now.truncated,
            "seconds": round(time.perf_counter() - started, 3),
        }

    def head(self, question: Question, head: str) -> dict[str, Any]:
        """Return the exact weights of one head, and those of the intact model where heads are
        disabled."""
        layer, number = self._layer_and_head(question, head)
        now = self._cached_pass(question).weights[layer, number]
        before = None
        if question.disabled:
            intact = self._cached_pass(question.of_intact_model)
            before = _base64(intact.weights[layer, number].astype("<f4"))
        return {
            "shape": list(now.shape),
            "weights": _base64(now.astype("<f4")),
            "before": before,
        }

    def attribution(
        self, question: Question, head: str, token: int, source: str = "input"
    ) -> dict[str, Any]:
        """Return what each token contributes to a head's output at one token.

        This is exact hidden token attribution (Pascual et al. 2021); the attention of that token is
        returned beside it.

        Parameters
        ----------
        question : Question
            The input.
        head : str
            The head (`L3H5`).
        token : int
            Position of the token at which the output is attributed.
        source : {"input", "previous_layer"}, default "input"
            Contributions of the first layer's input, or of the input of the head's own layer.
        """
        started = time.perf_counter()
        layer_and_head = self._layer_and_head(question, head)
        check_types(_AttributionParameters(token, source))
        explored = self._cached_pass(question)
        contribution = head_contributions(
            self._model(question),
            explored.batch.rows[0],
            layer_and_head,
            token,
            source,
            dict.fromkeys(question.disabled, question.how),
        )
        return {
            "contribution": [float(share) for share in contribution],
            "attention": [float(weight) for weight in explored.weights[(*layer_and_head, token)]],
            "seconds": round(time.perf_counter() - started, 3),
        }

    def logit(self, question: Question, answer: int) -> dict[str, Any]:
        """Return what each head adds directly to the logit of a token.

        The parts (heads, embedding, feed-forward parts, constant) add up to `logit`, which is the
        token's logit less the mean over the vocabulary.

        Parameters
        ----------
        question : Question
            The input; its `position` (default: the last token) is where the token would follow.
        answer : int
            Id of the token, as `all_heads` returns it with every prediction.
        """
        check_types(_LogitParameters(answer))
        model = self._model(question)
        if model.lm_kind != "causal" or model.encoder_part is not None:
            raise ModelError(
                "What a head adds directly to a logit is defined for decoder-only language models."
            )
        explored = self._cached_pass(question)
        vocabulary = model.config.get_text_config().vocab_size
        if not 0 <= answer < vocabulary:
            raise ParameterError(f"`answer` must be a token id from 0 to {vocabulary - 1}.")
        if question.model not in self._structures:
            self._structures[question.model] = find_structure(model)
        assert explored.position is not None
        parts = logit_attribution(
            model,
            explored.batch,
            answer,
            None,
            explored.position,
            dict.fromkeys(question.disabled, question.how),
            self._structures[question.model],
        )
        by_head = []
        feed_forward = 0.0
        for layer in range(model.layers):
            names = [head_name(layer, head) for head in range(model.heads)]
            by_head.append(parts.sel(component=names).values.tolist())
            feed_forward += float(parts.sel(component=f"L{layer}MLP"))
        return {
            "heads": by_head,
            "embedding": float(parts.sel(component="embedding")),
            "feed_forward": feed_forward,
            "constant": float(parts.sel(component="constant")),
            "logit": parts.attrs["logit"],
            "token": explored.batch.rows[0].token_text(answer),
        }

    def write(self, question: Question, tokens: int = 12) -> dict[str, Any]:
        """Let the model continue the text, greedily, with the disabled heads disabled.

        Each token is the likeliest one after all tokens before it: to see what the heads did when
        it was written, ask again with the tokens before it as `written`.

        Parameters
        ----------
        question : Question
            The input.
        tokens : int, default 12
            How many tokens to write; fewer where the model ends its text or reads no more.
        """
        started = time.perf_counter()
        check_types(_WriteParameters(tokens))
        at_least("tokens", tokens, 1)
        model = self._model(question)
        if not self._writes(model):
            raise ModelError(f"{model.name} is no decoder-only language model: it writes no text.")
        row, _ = self._row(model, question)
        room = min(MOST_WRITTEN, model.encoder.max_length - len(row))
        if room < 1:
            raise InputError(
                f"The text fills the {model.encoder.max_length} tokens that are read here; shorten "
                "it to let the model write."
            )
        ids = model.generate(
            row,
            interventions=dict.fromkeys(question.disabled, question.how),
            max_new_tokens=min(tokens, room),
            as_ids=True,
        )
        return {
            "ids": ids,
            "tokens": [row.token_text(token) or "·" for token in ids],
            "seconds": round(time.perf_counter() - started, 3),
        }

    # --- forward passes ---------------------------------------------------------------------------

    def _model(self, question: Question) -> HeadModel:
        if not 0 <= question.model < len(self.models):
            raise ParameterError(
                f"There is no model {question.model}: the explorer has {len(self.models)}, from 0."
            )
        return self.models[question.model]

    def _layer_and_head(self, question: Question, head: str) -> tuple[int, int]:
        model = self._model(question)
        if not isinstance(head, str):
            raise ParameterError("`head` must be a name like L3H5.")
        (layer_and_head,) = existing_heads([head], model.layers, model.heads)
        return layer_and_head

    def _cached_pass(self, question: Question) -> ExploredInput:
        """Return one forward pass; the latest ones are cached for the next click."""
        # How many predictions are returned does not change the pass.
        key = replace(question, top=1)
        cache = self._cache
        if key not in cache:
            cache[key] = self._forward_pass(self._model(key), key)
        cache.move_to_end(key)
        while len(cache) > CACHED_PASSES or (len(cache) > 1 and self._cache_size() > CACHE_BYTES):
            cache.popitem(last=False)
        return cache[key]

    def _cache_size(self) -> int:
        return sum(explored.bytes for explored in self._cache.values())

    def _forward_pass(self, model: HeadModel, question: Question) -> ExploredInput:
        disabled_heads = existing_heads(question.disabled, model.layers, model.heads)
        row, truncated = self._row(model, question)
        if question.mask is not None:
            mask_id = model.encoder.tokenizer.mask_token_id
            if model.lm_kind != "masked" or mask_id is None:
                raise ParameterError(f"{model.name} has no mask token; leave `mask` out.")
            ids = row.ids.copy()
            ids[_checked_position("mask", question.mask, len(ids))] = mask_id
            row = replace(row, ids=ids)
        batch = model.batch(row)
        position, why = self._prediction_position(model, batch, question)

        interventions = {head_name(*head): question.how for head in disabled_heads}
        watcher = TraceWatcher(frozenset({"attention"}))
        output = model.forward(batch, watcher, interventions=interventions, logits=not why)
        weights = watcher.trace().attention
        assert weights is not None
        log_probs = None
        if not why:
            logits = output.logits[0] if position is None else output.logits[0, position]
            log_probs = logits.float().log_softmax(-1).cpu()
        return ExploredInput(
            batch, weights[0].float().cpu().numpy(), log_probs, position, truncated, why
        )

    def _row(self, model: HeadModel, question: Question) -> tuple[Encoded, bool]:
        """Return the tokens of the text and of what was written after it, and whether the end of
        the text was left out."""
        row = model.encode(Example(text=question.text, pair=question.pair))
        if not question.written:
            return row, bool(row.truncated)
        if not self._writes(model):
            raise ParameterError(f"{model.name} writes no text; leave `written` out.")
        n_tokens = len(row) + len(question.written)
        if n_tokens > model.encoder.max_length:
            raise ParameterError(
                f"The text and `written` are {n_tokens} tokens; at most "
                f"{model.encoder.max_length} are read here."
            )
        ids = [*row.ids.tolist(), *question.written]
        return model.batch(ids).rows[0], bool(row.truncated)

    def _sinks(self, question: Question, explored: ExploredInput) -> list[list[bool]] | None:
        """Return which heads of a decoder put more than half of their attention on the first
        token, on this input; None for other models."""
        model = self._model(question)
        if not model.causal or explored.batch.keys is not explored.batch:
            return None
        # The first token sees only itself: it says nothing of a head.
        to_first = explored.weights[:, :, 1:, 0]
        if not to_first.shape[-1]:
            return None
        is_sink: list[list[bool]] = (to_first.mean(-1) > MIN_SHARE).tolist()
        return is_sink

    @staticmethod
    def _writes(model: HeadModel) -> bool:
        """Whether the model continues a text: a decoder-only language model."""
        return model.lm_kind == "causal" and model.encoder_part is None

    # --- predictions ------------------------------------------------------------------------------

    @staticmethod
    def _prediction_kind(model: HeadModel) -> str | None:
        """Return `masked`, `causal`, `class`, or None for a model that predicts nothing."""
        if model.lm_kind is not None:
            return model.lm_kind
        is_classifier = type(model.module).__name__.endswith("ForSequenceClassification")
        if is_classifier and model.stack == "encoder" and model.encoder_part is None:
            return "class"
        return None

    def _prediction_position(
        self, model: HeadModel, batch: Batch, question: Question
    ) -> tuple[int | None, str]:
        """Return the position whose prediction is read, and "" or why nothing is predicted."""
        kind = self._prediction_kind(model)
        if kind is None:
            return None, f"{model.name} was opened without a head that predicts anything."
        if kind == "class":
            return None, ""
        if kind == "causal":
            length = int(batch.lengths[0])
            if question.position is None:
                return length - 1, ""
            return _checked_position("position", question.position, length), ""

        tokenizer = model.encoder.tokenizer
        masked_positions = (batch.ids[0] == tokenizer.mask_token_id).nonzero()
        if not len(masked_positions):
            return None, f"Nothing is masked: write {tokenizer.mask_token}, or mask a token."
        if question.mask is not None:
            return question.mask, ""
        return int(masked_positions[0]), ""

    def _predictions(
        self, question: Question, now: ExploredInput, before: ExploredInput | None
    ) -> dict[str, Any]:
        """Return the most likely tokens (or classes), each with its probability now and in the
        intact model, by the latter."""
        model = self._model(question)
        kind = self._prediction_kind(model)
        predictions: dict[str, Any] = {
            "kind": kind,
            "position": now.position,
            "why": now.why,
            "rows": [],
        }
        if now.log_probs is None:
            return predictions

        intact_log_probs = now.log_probs
        if before is not None and before.log_probs is not None:
            intact_log_probs = before.log_probs
        top = min(question.top, len(intact_log_probs))
        # The likeliest in either distribution, as in `HeadModel.effect`.
        likeliest = torch.maximum(intact_log_probs, now.log_probs).topk(top).indices.tolist()
        ids = sorted(likeliest, key=lambda token: (-float(intact_log_probs[token]), token))
        class_names: Any = model.config.id2label or {}
        for token_id in ids:
            if kind == "class":
                name = class_names.get(token_id, token_id)
            else:
                name = now.batch.rows[0].token_text(token_id)
            predictions["rows"].append(
                {
                    "token": str(name),
                    "id": token_id,
                    "before": float(intact_log_probs[token_id].exp()),
                    "now": float(now.log_probs[token_id].exp()),
                }
            )
        if before is not None:
            log_ratio = intact_log_probs - now.log_probs
            predictions["kl"] = float((intact_log_probs.exp() * log_ratio).sum())
        return predictions


@dataclass(frozen=True, slots=True)
class _AttributionParameters:
    """The parameters of an attribution request beside its question; a dataclass so that
    `check_types` can check them."""

    token: int
    source: str


@dataclass(frozen=True, slots=True)
class _LogitParameters:
    """As `_AttributionParameters`, of a request about a logit."""

    answer: int


@dataclass(frozen=True, slots=True)
class _WriteParameters:
    """As `_AttributionParameters`, of a request to write."""

    tokens: int


def question_of(content: Mapping[str, Any]) -> Question:
    """Return the question of a request; unknown names are rejected."""
    known_names = Question.__dataclass_fields__
    unknown_names = [name for name in content if name not in known_names]
    expected = f"A question has {', '.join(known_names)}"
    if unknown_names:
        raise InputError(f"{expected}, not '{unknown_names[0]}'.")
    if "text" not in content:
        raise InputError(f"{expected}.")
    return Question(**content)


def _checked_position(name: str, position: int, length: int) -> int:
    if not 0 <= position < length:
        raise ParameterError(
            f"`{name}` must be one of the {length} tokens of the text, from 0; it is {position}."
        )
    return position


def _token_texts(batch: Batch) -> list[str]:
    return [token or "·" for token in batch.tokens[0]]


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
