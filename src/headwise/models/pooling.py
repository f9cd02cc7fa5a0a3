"""A sentence encoder from chosen heads: their output vectors at the sentence's token,
concatenated."""

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


class _PooledHeads(Watcher):
    """Pools the outputs of the chosen heads during a pass; gradients flow through them."""

    needs = frozenset({"outputs"})

    def __init__(
        self, heads: Iterable[tuple[int, int]], attention_mask: Tensor, token: str
    ) -> None:
        self.attention_mask = attention_mask
        self.token = token
        self.vectors: dict[tuple[int, int], Tensor] = {}
        self._heads_by_layer: dict[int, list[int]] = {}
        for layer, head in heads:
            self._heads_by_layer.setdefault(layer, []).append(head)

    def on_layer(self, layer: Layer) -> None:
        heads = self._heads_by_layer.get(layer.layer)
        if not heads:
            return
        assert layer.outputs is not None
        pooled = pool_tokens(layer.outputs[:, heads], self.attention_mask, self.token)
        for number, head in enumerate(heads):
            self.vectors[layer.layer, head] = pooled[:, number]


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
        # Registered as a part: its weights are this module's weights.
        self.backbone: nn.Module = opened.module
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
        """Return an encoder from the best heads of a probing result.

        Parameters
        ----------
        model
            A `HeadModel`, or what `HeadModel.open` takes.
        dataset : Dataset
            The probing result.
        task : str
            The task whose ranking is used.
        n : int, optional
            Number of heads; by default as many as were joined in the result.
        selection : str, default "top"
            `top` or `greedy`.
        **options
            Of `HeadPooling`.
        """
        if task not in dataset.task.values:
            tasks = ", ".join(map(str, dataset.task.values))
            raise ParameterError(f"The probing result has no task '{task}'; it has {tasks}.")
        if f"{selection}_layer" not in dataset:
            raise ParameterError(
                f"The probing result has no selection '{selection}'; run it with greedy=True, or "
                "take `top`."
            )
        layers = dataset[f"{selection}_layer"].sel(task=task).values
        heads = dataset[f"{selection}_head"].sel(task=task).values
        if n is None:
            n = int(dataset.attrs.get("top", len(layers)))
        n_ranked = int((layers >= 0).sum())
        if not 1 <= n <= n_ranked:
            raise ParameterError(
                f"`n` must be from 1 to {n_ranked}, the heads this result has ranked; it is {n}."
            )
        best = []
        for layer, head in zip(layers[:n], heads[:n], strict=True):
            best.append((int(layer), int(head)))
        return cls(model, best, **options)

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
        size = self.get_embedding_dimension()
        return f"heads={','.join(self.names)}, token={self.token}, size={size}"

    # --- running ----------------------------------------------------------------------------------

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `sentence_embedding[example, n * d_head]` to a dict with `input_ids`,
        `attention_mask` and, where the model has segments, `token_type_ids`.

        Padding must be on the right. Gradients flow where they are enabled.
        """
        ids = features["input_ids"]
        mask = features.get("attention_mask")
        attention_mask = torch.ones_like(ids, dtype=torch.bool)
        if mask is not None:
            attention_mask = mask.bool()
        if (attention_mask[:, 1:] & ~attention_mask[:, :-1]).any():
            raise InputError(
                "The batch is padded on the left; set the tokenizer's padding_side to right."
            )
        types = features.get("token_type_ids")
        if types is None:
            types = torch.zeros_like(ids)
        watcher = _PooledHeads(self.heads, attention_mask, self.token)
        with Session(self.model.sites, attention_mask, watcher).running():
            self.model.run(ids, attention_mask, types)
        embedding = torch.cat([watcher.vectors[place] for place in self.heads], -1)
        if self.normalize:
            embedding = nn.functional.normalize(embedding, dim=-1)
        return {**features, "sentence_embedding": embedding}

    def preprocess(
        self, inputs: Sequence[str | tuple[str, str]], prompt: str | None = None, **_: Any
    ) -> dict[str, Tensor]:
        """Return texts, or pairs of texts, as padded token ids (truncated if too long)."""
        if self.tokenizer is None:
            raise ModelError(
                f"{self.model.name} was opened without a tokenizer, so it cannot read text; pass "
                "`tokenizer` to HeadModel.open."
            )
        first = []
        second = []
        for text in inputs:
            if isinstance(text, str):
                first.append((prompt or "") + text)
            else:
                first.append((prompt or "") + text[0])
                second.append(text[1])
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
        padding = {"input_ids": self.model.pad_id, "attention_mask": 0, "token_type_ids": 0}
        features = {}
        for name, value in padding.items():
            if name in rows:
                padded = [row + [value] * (width - len(row)) for row in rows[name]]
                features[name] = torch.tensor(padded, dtype=torch.long)
        return features

    def tokenize(self, texts: Sequence[str | tuple[str, str]], **options: Any) -> dict[str, Tensor]:
        """The older name of `preprocess`."""
        return self.preprocess(texts, **options)

    @torch.no_grad()
    def encode(self, texts: Sequence[str | tuple[str, str]], batch_size: int = 64) -> Tensor:
        """Return sentence vectors [text, n * d_head] on the CPU, in evaluation mode."""
        if isinstance(texts, str):
            raise ParameterError("`texts` must be a list of texts, not one text.")
        # In order of length: a batch then has little padding.
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))
        embeddings = torch.zeros(len(texts), self.get_embedding_dimension())
        was_training = self.training
        self.eval()
        try:
            for start in range(0, len(order), batch_size):
                in_batch = order[start : start + batch_size]
                features = self.preprocess([texts[i] for i in in_batch])
                for name, value in features.items():
                    features[name] = value.to(self.device)
                embeddings[in_batch] = self(features)["sentence_embedding"].float().cpu()
        finally:
            self.train(was_training)
        return embeddings

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
        path = Path(folder)
        config = {**self.get_config_dict(), "d_head": self.model.d_head}
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.backbone.save_pretrained(path)  # type: ignore[operator]
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(path)
            (path / CONFIG).write_text(json.dumps(config, indent=1) + "\n")
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
        """Open an encoder that `save` wrote."""
        path = Path(folder) / subfolder
        try:
            config = json.loads((path / CONFIG).read_text())
            heads = config["heads"]
            token = config["token"]
            normalize = config["normalize"]
        except OSError as error:
            raise InputError(
                f"'{path}' is no saved sentence encoder of heads: it has no {CONFIG} that can be "
                "read."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"'{path / CONFIG}' is damaged ({type(error).__name__}: {error}); save the "
                "sentence encoder again."
            ) from error
        model = HeadModel.open(path, device=device, stack=config.get("stack"))
        if config.get("d_head", model.d_head) != model.d_head:
            raise ModelError(
                f"'{path}' holds a model with heads of size {model.d_head}, but its heads were "
                f"chosen for size {config['d_head']}: a checkpoint of another model."
            )
        return cls(model, heads, token=token, normalize=normalize)

    def sentence_transformer(self, **options: Any) -> Any:
        """Return this encoder as a `SentenceTransformer` (extra `sentence-transformers`)."""
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
    """Return heads as pairs; reject heads that the model does not have, repeated ones, and an empty
    list."""
    pairs = existing_heads(heads, model.layers, model.heads)
    for number, pair in enumerate(pairs):
        if pair in pairs[:number]:
            raise ParameterError(f"The head {head_name(*pair)} is named twice.")
    if not pairs:
        raise ParameterError("`heads` must name at least one head.")
    return tuple(pairs)
