"""What the explorer's page asks of its models: attention of all heads, one head in full,
attribution, predictions."""

from __future__ import annotations

import base64
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headwise.analyses.attribution.contributions import head_contributions
from headwise.atlas import Atlas
from headwise.atlas.describe import CARD_COLUMNS, SHORT_LABELS
from headwise.core.checks import at_least, check_types, one_of
from headwise.core.errors import InputError, ParameterError
from headwise.core.labels import existing_heads, head_name
from headwise.models import HeadModel
from headwise.models.trace import TraceWatcher
from headwise.text.encode import Batch
from headwise.text.example import Example

LONGEST_TEXT = 4_000  # characters of a text
MOST_TOKENS = 128
MOST_CELLS = (
    8_000_000  # weights of all heads together that are sent: large models read shorter texts
)
MOST_TOP = 50
WAYS = ("zero", "uniform", "mean")
KEPT, KEPT_BYTES = 6, 64 * 2**20  # inputs whose weights are kept for the next click


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about one input of one model.

    Parameters
    ----------
    text : str
        The sentence.
    pair : str, optional
        A second one; of a decoder that reads a source, its target.
    model : int, default 0
        Which of the explorer's models.
    disabled : tuple of str, default ()
        Heads that are disabled (`L3H5`).
    how : {"zero", "uniform", "mean"}, default "zero"
        What disabling does: no output, uniform attention, or the head's mean output over the input.
    mask : int, optional
        A token that is replaced by the mask token, of a masked language model.
    position : int, optional
        The token after which the next one is predicted; the last one unless given.
    top : int, default 8
        So many of the likeliest tokens.
    """

    text: str
    pair: str | None = None
    model: int = 0
    disabled: tuple[str, ...] = ()
    how: str = "zero"
    mask: int | None = None
    position: int | None = None
    top: int = 8

    def __post_init__(self) -> None:
        check_types(self)
        one_of("how", self.how, WAYS)
        at_least("top", self.top, 1)
        if self.top > MOST_TOP:
            raise ParameterError(f"`top` must be at most {MOST_TOP}; it is {self.top}.")
        for name in ("text", "pair"):
            if len(getattr(self, name) or "") > LONGEST_TEXT:
                raise InputError(
                    f"`{name}` is longer than {LONGEST_TEXT:,} characters; give a shorter one."
                )
        if not self.text.strip():
            raise InputError("`text` is empty; type a sentence.")

    @property
    def plain(self) -> Question:
        """The same with every head at work."""
        return replace(self, disabled=(), how="zero")


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """One pass over one input: `weights[layer, head, query, key]`, and what the model says where it
    was asked."""

    batch: Batch
    weights: np.ndarray
    said: torch.Tensor | None  # log-probabilities, over the vocabulary or the classes
    position: int | None
    why: str = ""  # why nothing is said

    @property
    def bytes(self) -> int:
        return self.weights.nbytes + (0 if self.said is None else self.said.nbytes)


class Explorer:
    """Answers about one model or two, as names and values that JSON holds. Nothing is read from
    disk or written to it.

    Parameters
    ----------
    models : sequence of HeadModel
        One, or two to stand side by side.
    atlas : Atlas, optional
        What is known of the heads; it must have the shape of the first model.

    Examples
    --------
    >>> from headwise.testing.models import random_model
    >>> module, tokenizer = random_model()
    >>> with HeadModel.open(module, tokenizer=tokenizer) as model:
    ...     seen = Explorer([model]).look(Question("the cat saw the dog"))
    >>> seen["tokens"][1:3], seen["shape"]
    (['the', 'cat'], [2, 3, 7, 7])
    """

    def __init__(self, models: Sequence[HeadModel], atlas: Atlas | None = None) -> None:
        if not 1 <= len(models) <= 2:
            raise ParameterError(
                f"The explorer shows one model or two side by side; {len(models)} were given."
            )
        self.models = []
        for model in models:
            fitting = math.isqrt(MOST_CELLS // (model.layers * model.heads))
            self.models.append(
                model.limited(
                    max(2, min(MOST_TOKENS, fitting, model.encoder.max_length)), "truncate"
                )
            )
        self.notes: list[str] = []
        self.words = [
            self._words(model, atlas, first=place == 0) for place, model in enumerate(self.models)
        ]
        self._kept: OrderedDict[Question, Seen] = OrderedDict()

    def _words(
        self, model: HeadModel, atlas: Atlas | None, first: bool
    ) -> list[list[dict[str, str]]] | None:
        """What each head does in a word, `[layer][head]`, where the atlas is of this model."""
        if atlas is None:
            return None
        told = atlas.provenance.get("model", {})
        same = model.same_weights(told)
        if not same and not first:
            return None
        if (atlas.layers, atlas.heads) != (model.layers, model.heads):
            raise ParameterError(
                f"The atlas is of {told.get('name', 'a model')} with {atlas.layers} layers of {atlas.heads} heads, but "
                f"{model.name} has {model.layers} of {model.heads}; give the atlas of this model."
            )
        if not same:
            whose = f"The words come from an atlas of {told.get('name', 'an unnamed model')}"
            unsure = (
                "; whether its weights were these is not known."
                if same is None
                else ", which had other weights."
            )
            self.notes.append(whose + unsure)
        words: list[list[dict[str, str]]] = [
            [{} for _ in range(model.heads)] for _ in range(model.layers)
        ]
        for row in atlas.describe().to_dict("records"):
            words[row["layer"]][row["head"]] = {
                "word": SHORT_LABELS.get(row["does"], row["does"]),
                **{name: str(row[name] or "") for name in CARD_COLUMNS},
            }
        return words

    def state(self) -> dict[str, Any]:
        """What the page needs to know before anything is asked."""
        models = [
            {
                "name": model.name,
                "stack": model.stack,
                "layers": model.layers,
                "heads": model.heads,
                "causal": model.causal,
                "predicts": self._predicts(model),
                "mask": model.encoder.tokenizer.mask_token if model.lm_kind == "masked" else None,
                "needs_pair": model.encoder_part is not None and model.stack != "encoder",
                "attributes": model.stack != "cross",
                "tokens": model.encoder.max_length,
                "words": words,
            }
            for model, words in zip(self.models, self.words, strict=True)
        ]
        return {"models": models, "ways": WAYS, "longest": LONGEST_TEXT, "notes": self.notes}

    # --- answers ----------------------------------------------------------------------------------

    def look(self, question: Question) -> dict[str, Any]:
        """Attention of all heads as bytes (255 times the root of the weight), what the model
        predicts, and where heads are disabled, what it predicted before and how far each head's
        attention has moved."""
        begun = time.perf_counter()
        now = self._seen(question)
        before = self._seen(question.plain) if question.disabled else None
        batch = now.batch
        moved = (
            None if before is None else 0.5 * np.abs(now.weights - before.weights).sum(-1).mean(-1)
        )
        row = batch.rows[0]
        return {
            "tokens": _texts(batch),
            "special": batch.special[0].tolist(),
            "keys": None if batch.keys is batch else _texts(batch.keys),
            "keys_special": batch.keys.special[0].tolist(),
            "shape": list(now.weights.shape),
            "maps": _base64(np.rint(255 * np.sqrt(now.weights.clip(0, 1))).astype(np.uint8)),
            "moved": None if moved is None else np.round(moved, 4).tolist(),
            "predictions": self._predictions(question, now, before),
            "truncated": bool(row.truncated),
            "seconds": round(time.perf_counter() - begun, 3),
        }

    def head(self, question: Question, head: str) -> dict[str, Any]:
        """The weights of one head in full, and as they were before heads were disabled."""
        layer, number = self._place(question, head)
        now = self._seen(question).weights[layer, number]
        before = self._seen(question.plain).weights[layer, number] if question.disabled else None
        return {
            "shape": list(now.shape),
            "weights": _base64(now.astype("<f4")),
            "before": None if before is None else _base64(before.astype("<f4")),
        }

    def attribution(
        self, question: Question, head: str, token: int, source: str = "input"
    ) -> dict[str, Any]:
        """What each token contributes to the head's output at a token (hidden token attribution,
        exact), beside the attention that this token pays."""
        begun = time.perf_counter()
        place = self._place(question, head)
        check_types(_Click(token, source))
        model, seen = self._model(question), self._seen(question)
        off = dict.fromkeys(question.disabled, question.how)
        row = head_contributions(model, seen.batch.rows[0], place, token, source, off)
        return {
            "contribution": [float(share) for share in row],
            "attention": [float(weight) for weight in seen.weights[(*place, token)]],
            "seconds": round(time.perf_counter() - begun, 3),
        }

    # --- passes -----------------------------------------------------------------------------------

    def _model(self, question: Question) -> HeadModel:
        if not 0 <= question.model < len(self.models):
            raise ParameterError(
                f"There is no model {question.model}: the explorer has {len(self.models)}, from 0."
            )
        return self.models[question.model]

    def _place(self, question: Question, head: str) -> tuple[int, int]:
        model = self._model(question)
        if not isinstance(head, str):
            raise ParameterError("`head` must be a name like L3H5.")
        (place,) = existing_heads([head], model.layers, model.heads)
        return place

    def _seen(self, question: Question) -> Seen:
        """One pass; the last ones are kept, so that the next click need not run them again."""
        question, kept = (
            replace(question, top=1),
            self._kept,
        )  # how much is shown of a pass does not change it
        if question not in kept:
            kept[question] = self._pass(self._model(question), question)
        kept.move_to_end(question)
        while len(kept) > KEPT or (
            len(kept) > 1 and sum(seen.bytes for seen in kept.values()) > KEPT_BYTES
        ):
            kept.popitem(last=False)
        return kept[question]

    def _pass(self, model: HeadModel, question: Question) -> Seen:
        heads = existing_heads(question.disabled, model.layers, model.heads)
        row = model.encode(Example(text=question.text, pair=question.pair))
        if question.mask is not None:
            mask = model.encoder.tokenizer.mask_token_id
            if model.lm_kind != "masked" or mask is None:
                raise ParameterError(f"{model.name} has no mask token; leave `mask` out.")
            ids = row.ids.copy()
            ids[_inside("mask", question.mask, len(ids))] = mask
            row = replace(row, ids=ids)
        batch = model.batch(row)
        position, why = self._asked_position(model, batch, question)
        off = {head_name(*head): question.how for head in heads}
        watcher = TraceWatcher(frozenset({"attention"}))
        output = model.forward(batch, watcher, interventions=off, logits=not why)
        weights = watcher.trace().attention
        assert weights is not None
        said = None
        if not why:
            logits = output.logits[0] if position is None else output.logits[0, position]
            said = logits.float().log_softmax(-1).cpu()
        return Seen(batch, weights[0].float().cpu().numpy(), said, position, why)

    @staticmethod
    def _predicts(model: HeadModel) -> str | None:
        """`masked`, `causal`, `class`, or nothing."""
        if model.lm_kind is not None:
            return model.lm_kind
        sorts = (
            type(model.module).__name__.endswith("ForSequenceClassification")
            and model.stack == "encoder"
        )
        return "class" if sorts and model.encoder_part is None else None

    def _asked_position(
        self, model: HeadModel, batch: Batch, question: Question
    ) -> tuple[int | None, str]:
        """Where the model is asked; or why it is not."""
        kind, length = self._predicts(model), int(batch.lengths[0])
        if kind is None:
            return None, f"{model.name} was opened without a head that predicts anything."
        if kind == "class":
            return None, ""
        if kind == "causal":
            return length - 1 if question.position is None else _inside(
                "position", question.position, length
            ), ""
        masked = (batch.ids[0] == model.encoder.tokenizer.mask_token_id).nonzero()
        if not len(masked):
            return (
                None,
                f"Nothing is masked: write {model.encoder.tokenizer.mask_token}, or mask a token.",
            )
        return (int(masked[0]) if question.mask is None else question.mask), ""

    def _predictions(self, question: Question, now: Seen, before: Seen | None) -> dict[str, Any]:
        """The likeliest tokens (or classes), those of before first, each with its probability now
        and before."""
        model = self._model(question)
        found: dict[str, Any] = {
            "kind": self._predicts(model),
            "position": now.position,
            "why": now.why,
            "rows": [],
        }
        if now.said is None:
            return found
        first = now.said if before is None or before.said is None else before.said
        top = min(question.top, len(first))
        ids = dict.fromkeys(int(i) for said in (first, now.said) for i in said.topk(top).indices)
        labels: Any = model.config.id2label or {}
        spell: Callable[[int], Any] = now.batch.rows[0].token_text
        spell = (lambda i: labels.get(i, i)) if found["kind"] == "class" else spell
        found["rows"] = [
            {
                "token": str(spell(i)),
                "before": float(first[i].exp()),
                "now": float(now.said[i].exp()),
            }
            for i in ids
        ]
        if before is not None:
            found["kl"] = float((first.exp() * (first - now.said)).sum())
        return found


@dataclass(frozen=True, slots=True)
class _Click:
    """What a click on a token says, so that its types are checked."""

    token: int
    source: str


def question_of(content: Mapping[str, Any]) -> Question:
    """The question in a request; names that no question has are refused."""
    known = Question.__dataclass_fields__
    strange = [name for name in content if name not in known]
    if strange or "text" not in content:
        raise InputError(
            f"A question has {', '.join(known)}" + (f", not '{strange[0]}'." if strange else ".")
        )
    return Question(**content)


def _inside(name: str, place: int, length: int) -> int:
    if not 0 <= place < length:
        raise ParameterError(
            f"`{name}` must be one of the {length} tokens of the text, from 0; it is {place}."
        )
    return place


def _texts(batch: Batch) -> list[str]:
    return [token or "·" for token in batch.tokens[0]]


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
