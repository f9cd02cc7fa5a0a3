"""A sentence encoder from chosen heads: their output vectors at the sentence's token, one after the
other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn

from headwise.core.errors import (
    InputError,
    MissingExtraError,
    ModelError,
    OutputError,
    ParameterError,
)
from headwise.core.labels import existing_heads, head_name
from headwise.models import HeadModel
from headwise.models.session import Session
from headwise.models.vectors import pool_tokens, token_rule
from headwise.models.view import Layer, Watcher

CONFIG = "head_pooling.json"


class _Chosen(Watcher):
    """Takes the outputs of the chosen heads out of a pass, with their history for gradients."""

    needs = frozenset({"outputs"})

    def __init__(self, wanted: dict[int, list[int]], attention_mask: Tensor, token: str) -> None:
        self.wanted, self.attention_mask, self.token = wanted, attention_mask, token
        self.found: dict[tuple[int, int], Tensor] = {}

    def on_layer(self, layer: Layer) -> None:
        heads = self.wanted.get(layer.layer)
        if heads:
            assert layer.outputs is not None
            pooled = pool_tokens(layer.outputs[:, heads], self.attention_mask, self.token)
            self.found.update({(layer.layer, head): pooled[:, i] for i, head in enumerate(heads)})


class HeadPooling(nn.Module):
    """The concatenation of `O[l, h]` of chosen heads at the sentence's token (Jo & Myaeng 2020,
    §3.3): `n * d_head` numbers a sentence.

    A `torch.nn.Module` with the model inside, trained end to end like any other; in evaluation mode
    dropout is off. It has the methods of a sentence-transformers input module:
    `SentenceTransformer(modules=[pooling])` works, and so does what it saves.

    Parameters
    ----------
    model
        A `HeadModel`, or what `HeadModel.open` takes.
    heads
        The chosen heads in order: pairs (layer, head), or names like `L7H9`.
    token
        `first`, `last`, `mean`, or `auto` (first for encoders, last real token for decoders).
    normalize
        Scale each sentence vector to length one.
    """

    save_in_root = True  # sentence-transformers: the first module lies in the model's own folder
    config_file_name = CONFIG

    def __init__(
        self,
        model: Any,
        heads: Iterable[Sequence[int] | str],
        *,
        token: str = "auto",
        normalize: bool = False,
    ) -> None:
        super().__init__()
        opened = model if isinstance(model, HeadModel) else HeadModel.open(model)
        self.heads = chosen_heads(heads, opened)
        self.token = token_rule(opened, token)
        self.normalize = bool(normalize)
        self.model = opened
        self.backbone: nn.Module = (
            opened.module
        )  # registered: its weights are this module's weights
        self.max_seq_length = opened.max_length

    @classmethod
    def from_probing(
        cls,
        model: Any,
        dataset: xr.Dataset,
        task: str,
        n: int | None = None,
        selection: str = "top",
        **options: Any,
    ) -> HeadPooling:
        """The n best heads of a probing result for a task (`selection`: `top`, or `greedy`); by
        default as many as were joined there."""
        if task not in dataset.task.values:
            raise ParameterError(
                f"The probing result has no task '{task}'; it has {', '.join(map(str, dataset.task.values))}."
            )
        if f"{selection}_layer" not in dataset:
            raise ParameterError(
                f"The probing result has no selection '{selection}'; run it with greedy=True, or take `top`."
            )
        layers, heads = (
            dataset[f"{selection}_{what}"].sel(task=task).values for what in ("layer", "head")
        )
        count = int(dataset.attrs.get("top", len(layers))) if n is None else n
        known = int((layers >= 0).sum())
        if not 1 <= count <= known:
            raise ParameterError(
                f"`n` must be from 1 to {known}, the heads this result has ranked; it is {count}."
            )
        return cls(
            model,
            [
                (int(layer), int(head))
                for layer, head in zip(layers[:count], heads[:count], strict=True)
            ],
            **options,
        )

    @property
    def names(self) -> list[str]:
        """The chosen heads, `L7H9` and so on."""
        return [head_name(layer, head) for layer, head in self.heads]

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer

    @property
    def device(self) -> torch.device:
        return next(self.backbone.parameters()).device

    def extra_repr(self) -> str:
        return f"heads={','.join(self.names)}, token={self.token}, size={self.get_embedding_dimension()}"

    # --- running ----------------------------------------------------------------------------------

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `sentence_embedding[example, n * d_head]` to a dict with `input_ids`,
        `attention_mask` and, where the model has segments, `token_type_ids`.

        Padding must be on the right. Gradients flow where they are enabled.
        """
        ids = features["input_ids"]
        mask = features.get("attention_mask")
        attention_mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        if (attention_mask[:, 1:] & ~attention_mask[:, :-1]).any():
            raise InputError(
                "The batch is padded on the left; set the tokenizer's padding_side to right."
            )
        self.model.check_length(ids)
        types = features.get("token_type_ids")
        wanted: dict[int, list[int]] = {}
        for layer, head in self.heads:
            wanted.setdefault(layer, []).append(head)
        watcher = _Chosen(wanted, attention_mask, self.token)
        with Session(self.model.sites, attention_mask, watcher).running():
            self.model.run(ids, attention_mask, torch.zeros_like(ids) if types is None else types)
        vector = torch.cat([watcher.found[place] for place in self.heads], -1)
        return {
            **features,
            "sentence_embedding": nn.functional.normalize(vector, dim=-1)
            if self.normalize
            else vector,
        }

    def preprocess(
        self, inputs: Sequence[str | tuple[str, str]], prompt: str | None = None, **_: Any
    ) -> dict[str, Tensor]:
        """Texts, or pairs of texts, as padded token ids (cut where they are too long)."""
        if self.tokenizer is None:
            raise ModelError(
                f"{self.model.name} was opened without a tokenizer, so it cannot read text; pass `tokenizer` to "
                "HeadModel.open."
            )
        texts = [text if isinstance(text, str) else tuple(text) for text in inputs]
        first = [(prompt or "") + (text if isinstance(text, str) else text[0]) for text in texts]
        second = [text[1] for text in texts if not isinstance(text, str)]
        if second and len(second) != len(first):
            raise InputError(
                "Texts and pairs of texts cannot be encoded together; give one or the other."
            )
        rows = self.tokenizer(
            first,
            second or None,
            truncation=True,
            max_length=min(self.max_seq_length or self.model.max_length, self.model.max_length),
            return_token_type_ids="token_type_ids" in self.tokenizer.model_input_names,
        )
        width = max(len(row) for row in rows["input_ids"])
        fill = {"input_ids": self.model.pad_id, "attention_mask": 0, "token_type_ids": 0}
        return {
            name: torch.tensor(
                [row + [fill[name]] * (width - len(row)) for row in rows[name]], dtype=torch.long
            )
            for name in fill
            if name in rows
        }

    def tokenize(self, texts: Sequence[str | tuple[str, str]], **options: Any) -> dict[str, Tensor]:
        """The older name of `preprocess`."""
        return self.preprocess(texts, **options)

    @torch.no_grad()
    def encode(self, texts: Sequence[str | tuple[str, str]], batch_size: int = 64) -> Tensor:
        """Sentence vectors [text, n * d_head] on the CPU, in evaluation mode; the texts are run in
        order of length."""
        if isinstance(texts, str):
            raise ParameterError("`texts` must be a list of texts, not one text.")
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))
        out = torch.zeros(len(texts), self.get_embedding_dimension())
        training = self.training
        self.eval()
        try:
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                features = {
                    name: value.to(self.device)
                    for name, value in self.preprocess([texts[i] for i in chosen]).items()
                }
                out[chosen] = self(features)["sentence_embedding"].float().cpu()
        finally:
            self.train(training)
        return out

    # --- what sentence-transformers asks ----------------------------------------------------------

    modalities = ("text",)

    def get_embedding_dimension(self) -> int:
        return len(self.heads) * self.model.d_head

    get_sentence_embedding_dimension = get_embedding_dimension
    get_word_embedding_dimension = get_embedding_dimension

    def get_config_dict(self) -> dict[str, Any]:
        return {
            "heads": self.names,
            "token": self.token,
            "normalize": self.normalize,
            "stack": self.model.stack,
        }

    # --- files ------------------------------------------------------------------------------------

    def save(self, folder: str | Path, *_: Any, safe_serialization: bool = True, **__: Any) -> None:
        """Write an ordinary model folder (safetensors, config, tokenizer), which `HeadModel.open`
        opens, with the chosen heads beside it in one JSON file."""
        where = Path(folder)
        try:
            where.mkdir(parents=True, exist_ok=True)
            self.backbone.save_pretrained(where)  # type: ignore[operator]
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(where)
            (where / CONFIG).write_text(
                json.dumps({**self.get_config_dict(), "d_head": self.model.d_head}, indent=1) + "\n"
            )
        except OSError as error:
            raise OutputError(
                f"The sentence encoder cannot be written to '{folder}' ({error})."
            ) from error

    @classmethod
    def load(
        cls,
        folder: str | Path,
        subfolder: str = "",
        *,
        device: torch.device | str | None = None,
        **_: Any,
    ) -> HeadPooling:
        """Open what `save` wrote."""
        where = Path(folder) / subfolder
        try:
            config = json.loads((where / CONFIG).read_text())
            heads, token, normalize = config["heads"], config["token"], config["normalize"]
        except OSError as error:
            raise InputError(
                f"'{where}' is no saved sentence encoder of heads: it has no {CONFIG} that can be read."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"'{where / CONFIG}' is damaged ({type(error).__name__}: {error}); save the sentence encoder again."
            ) from error
        model = HeadModel.open(where, device=device, stack=config.get("stack"))
        if config.get("d_head", model.d_head) != model.d_head:
            raise ModelError(
                f"'{where}' holds a model with heads of size {model.d_head}, but its heads were chosen for size "
                f"{config['d_head']}: a checkpoint of another model."
            )
        return cls(model, heads, token=token, normalize=normalize)

    def sentence_transformer(self, **options: Any) -> Any:
        """This encoder as a `SentenceTransformer` (extra `sentence-transformers`)."""
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MissingExtraError(
                "sentence-transformers", "sentence-transformers", "A SentenceTransformer from heads"
            ) from error
        return SentenceTransformer(modules=[self], device=str(self.device), **options)


def chosen_heads(
    heads: Iterable[Sequence[int] | str], model: HeadModel
) -> tuple[tuple[int, int], ...]:
    """Heads as pairs; refuses what is no head of the model, twice the same, and none at all."""
    found = existing_heads(heads, model.layers, model.heads)
    twice = next((place for i, place in enumerate(found) if place in found[:i]), None)
    if twice is not None:
        raise ParameterError(f"The head {head_name(*twice)} is named twice.")
    if not found:
        raise ParameterError("`heads` must name at least one head.")
    return tuple(found)
