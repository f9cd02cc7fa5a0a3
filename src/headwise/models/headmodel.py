"""A model whose heads can be watched, changed and differentiated."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import numpy as np
import pandas as pd
import torch
import transformers
import xarray as xr
from torch import Tensor, nn

from headwise.core.checks import at_least, one_of
from headwise.core.errors import InputError, ModelError, ParameterError, unknown
from headwise.core.labels import existing_heads, head_name, parse_place
from headwise.core.lazy import EXPERIMENTS, load
from headwise.models import fingerprint, generation, loading
from headwise.models.devices import (
    DeviceMap,
    as_device_map,
    as_dtype,
    input_device,
    is_spread,
)
from headwise.models.fallbacks import select_tap
from headwise.models.forward_call import call_part, evaluating, shifted
from headwise.models.gradients import stream_gradients
from headwise.models.inputs import Input, input_rows
from headwise.models.interventions import (
    Intervention,
    head_interventions,
    plan_interventions,
    plan_streams,
)
from headwise.models.measure import measure
from headwise.models.session import BLOCK_BYTES, Session, at_least_float32
from headwise.models.sites import STACKS, LayerCount, Sites
from headwise.models.sizes import head_of, input_limit, padding_id
from headwise.models.tap import Call, TapSession, use_session
from headwise.models.token_array import TokenArray
from headwise.models.view import AttentionRows, Trace, TraceWatcher, Watcher, check_needs
from headwise.text.encode import TOO_LONG_RULES, Batch, Encoded, Encoder, collate
from headwise.text.example import Example
from headwise.text.targets import TargetEncoder

Interventions = Mapping[Any, Intervention]
Heads = str | int | tuple[int, int] | Sequence[str | tuple[int, int]]
DEMO_NAME = "wiki-bert-3"
# Every open model of this process, except the copies that `limited` returns.
OPEN: WeakSet[HeadModel] = WeakSet()


class HeadModel:
    """A transformer whose attention heads can be read and changed.

    Open one with `HeadModel.from_pretrained` (or `HeadModel.open`, the same).

    Attributes
    ----------
    name, module, tokenizer, encoder, config, device, dtype
        The model and where it runs. A bare module has no tokenizer (None) and no `encoder`.
    layers, heads, kv_heads, d_head, hidden
        Sizes, measured in a run: attention layers, query heads, key/value heads, size of a head's
        output, width of the hidden states.
    kv_groups
        The key/value group of each query head.
    causal, stack
        Whether tokens attend only to earlier ones; `encoder`, `decoder` (self-attention) or
        `cross`.
    max_length, pad_id
        The longest input in tokens that the model takes (`encoder` may be limited to less); the id
        that fills batches.
    lm_kind
        `masked`, `causal`, or None without a language-modelling head.
    notes, reopens
        What a user should know about how the model was opened; the arguments to open it again
        (None if a module was given).
    sites, encoder_part
        The attention modules of the stack; the encoder of an encoder-decoder. With `run`,
        `evaluating` and `in_precision` they serve code that makes passes of its own.
    """

    def __init__(
        self,
        module: transformers.PreTrainedModel,
        tokenizer: Any,
        name: str,
        stack: str | None,
        notes: list[str],
        max_length: int | None = None,
        overlong: str = "truncate",
    ) -> None:
        loading.check_transformers()
        if stack is not None and stack not in STACKS:
            raise ParameterError(unknown("stack", stack, STACKS))
        one_of("overlong", overlong, TOO_LONG_RULES)
        if max_length is not None:
            at_least("max_length", max_length, 2)
        self.module = module
        self.tokenizer = tokenizer
        self.name = name
        self.notes = notes
        self.weight_hash: tuple[str, str] | None = None
        self.config = module.config
        self.device: torch.device = input_device(module)
        self.dtype: torch.dtype = next(
            parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()
        )
        loading.check_text(type(module), name)
        loading.check_weights(module, name)
        if tokenizer is not None:
            loading.check_tokenizer(module, tokenizer, name)
        self._is_spread = is_spread(module)
        self.pad_id = padding_id(module, tokenizer)
        self.max_length = input_limit(module, tokenizer, notes)
        input_length = self.max_length
        if max_length is not None:
            input_length = min(max_length, self.max_length)
            if max_length > self.max_length:
                notes.append(
                    f"Inputs of {max_length} tokens were requested; "
                    f"the model takes at most {self.max_length}."
                )
        self.encoder_part: nn.Module | None = None
        if self.config.is_encoder_decoder:
            self.encoder_part = module.get_encoder()
        self._undo = select_tap(module)
        try:
            self.sites, self.stack, self.hidden = measure(
                module, self.encoder_part, self.pad_id, stack
            )
        except BaseException:
            self.close()
            raise
        self.has_lm_head, self.lm_kind = head_of(module, self.stack)
        self._encoder: Encoder | None = None
        if tokenizer is not None:
            self._encoder = Encoder(tokenizer, input_length, overlong)
            if self.encoder_part is not None and self.stack != "encoder":
                to_decoder_input = partial(shifted, module)
                is_cross = self.stack == "cross"
                self._encoder = TargetEncoder(self._encoder, to_decoder_input, cross=is_cross)
        self.layers = self.sites.layers
        self.heads = self.sites.heads
        self.kv_heads = self.sites.kv_heads
        self.causal = self.sites.causal
        self.d_head = self.sites.d_heads[0]
        group_size = self.heads // self.kv_heads
        self.kv_groups = tuple(head // group_size for head in range(self.heads))
        self._note_layers_without_attention()
        self.reopens: dict[str, Any] | None = None
        OPEN.add(self)

    def _note_layers_without_attention(self) -> None:
        config = self.config.get_text_config(decoder=self.stack != "encoder")
        n_layers = getattr(config, "num_hidden_layers", self.layers)
        if self.encoder_part is None and isinstance(n_layers, int) and n_layers != self.layers:
            self.notes.append(
                f"{self.layers} of the model's {n_layers} layers compute attention; "
                "only those are counted, from 0."
            )

    # --- opening and closing ----------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | nn.Module | None = None,
        *,
        tokenizer: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        device_map: DeviceMap | None = None,
        stack: str | None = None,
        task: str | None = None,
        max_length: int | None = None,
        overlong: str = "truncate",
    ) -> HeadModel:
        """Open a model so that its heads can be read and changed.

        Parameters
        ----------
        model : str, Path or Module, optional
            A folder, a hub name, or a module of transformers; default: the built-in model.
        tokenizer : optional
            A fast tokenizer, or a folder or name to load it from; by default the one beside the
            model.
        device : torch.device or str, optional
            Where to run; by default a GPU if there is one. A given module stays where it is.
        dtype : torch.dtype or str, optional
            Precision of the weights (`float32`, `bfloat16`, `float16`); by default (`auto`) the
            checkpoint's own on a GPU, at least float32 on a CPU.
        device_map : str or mapping, optional
            For a model that does not fit one device (needs accelerate): `auto`, `balanced`,
            `balanced_low_0`, `sequential`, or devices by module (`{"model.layers.3": 1, "lm_head":
            "disk", ...}`). Weights in memory or on disk move to a device when they are needed.
            Excludes `device`.
        stack : str, optional
            Of an encoder-decoder: `encoder` (default), `decoder`, `cross`; the last two read pairs,
            source and target.
        task : str, optional
            `lm` (masked or causal, whichever the model is) or `classification`; by default the head
            that the checkpoint has.
        max_length : int, optional
            The longest input in tokens, special ones included; by default, and at most, what the
            model takes.
        overlong : str, default "truncate"
            What happens to longer inputs: `truncate` or `skip`.
        """
        notes: list[str] = []
        dtype = as_dtype(dtype)
        checked_map = as_device_map(device_map)
        if checked_map is not None and (device is not None or isinstance(model, nn.Module)):
            rival = "a module, which has its devices already"
            if not isinstance(model, nn.Module):
                rival = "`device`"
            raise ParameterError(
                f"`device_map` says where the weights go; it cannot be combined with {rival}."
            )
        reopens: dict[str, Any] | None = None
        if isinstance(model, nn.Module):
            module = loading.unwrapped(model)
            name = type(module).__name__
            if device is not None:
                module = module.to(loading.as_device(device))
            if dtype is not None:
                module = module.to(dtype)
        else:
            target_device = loading.as_device(device)
            path = loading.model_path(model)
            reopens = {
                "model": None if model is None else path,
                "tokenizer": tokenizer,
                "dtype": dtype,
                "task": task,
                "device_map": device_map,
            }
            module = loading.load_model(path, task, target_device, dtype, notes, checked_map)
            folder = Path(path).expanduser()
            name = folder.resolve().name if folder.is_dir() else path
            # A model that reads no text has no tokenizer either: say the first, not the second.
            loading.check_text(type(module), name)
            if model is None:
                name = DEMO_NAME  # its folder in the cache is named by a hash
            if tokenizer is None:
                tokenizer = path
        if isinstance(tokenizer, str | Path):
            tokenizer = loading.load_tokenizer(tokenizer)
        opened = cls(module, tokenizer, name, stack, notes, max_length, overlong)
        opened.reopens = reopens
        return opened

    open = from_pretrained

    def close(self) -> None:
        """Restore the module as it was before opening."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        sizes = f"layers={self.layers}, heads={self.heads}, d_head={self.d_head}"
        return f"HeadModel({self.name!r}, {self.stack}, {sizes}, {self.dtype}, {self.device})"

    # --- identity and limits ----------------------------------------------------------------------

    def identity(self, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what distinguishes this model from others.

        Name, architecture, sizes, a hash of the weights (`weight_hash`), and what was hashed
        (`weights_from`: the `files` they came from, or the `tensors`).

        Parameters
        ----------
        like : mapping, optional
            An earlier identity. If it has the same weights, hashed in the other way, its hash is
            returned.
        """
        return fingerprint.identity(self, like)

    def same_weights(self, identity: Mapping[str, Any]) -> bool | None:
        """Return whether an identity is that of these weights, whichever way it was hashed.

        None if that cannot be known: the identity has no hash, or one of files, and these weights
        came from none.

        Parameters
        ----------
        identity : mapping
            What `identity` returned, or `atlas.provenance["model"]`.
        """
        return fingerprint.same_weights(self, identity)

    @property
    def encoder(self) -> Encoder:
        """Turns examples into rows of tokens."""
        if self._encoder is None:
            raise ModelError(
                f"{self.name} was opened without a tokenizer and cannot read text: "
                "pass `tokenizer` to HeadModel.from_pretrained."
            )
        return self._encoder

    def limited(self, max_length: int, overlong: str | None = None) -> HeadModel:
        """Return the same open model with a lower limit for its inputs.

        Both share the module and the tap: this one stays as it is, and closing either closes both.

        Parameters
        ----------
        max_length : int
            The longest input in tokens.
        overlong : str, optional
            What happens to longer inputs; by default unchanged.
        """
        limited = copy.copy(self)
        limited._encoder = self.encoder.limited(max_length, overlong)
        return limited

    # --- text -------------------------------------------------------------------------------------

    def encode(self, example: Example | str, index: int = 0) -> Encoded:
        """Return one example (or plain text) as a row of tokens."""
        if isinstance(example, str):
            example = Example(text=example)
        row = self.encoder.encode(example, index)
        if row is None:
            raise InputError(f"The example is longer than {self.encoder.max_length} tokens.")
        return row

    def batch(self, inputs: Input, mask: Any = None) -> Batch:
        """Return one input or several as one batch on the model's device.

        Parameters
        ----------
        inputs : str, Example, Encoded, token ids, BatchEncoding, or several
            Token ids are lists of whole numbers or a tensor `[token]` or `[example, token]`. A
            Batch stays as it is.
        mask : array or Tensor, optional
            The attention mask of token ids, in their shape; by default all are tokens. Padding must
            be on the right.
        """
        if isinstance(inputs, Batch):
            return inputs
        if isinstance(inputs, str) and mask is None:
            rows = [self.encode(inputs)]
        else:
            vocabulary = getattr(self.module.get_input_embeddings(), "num_embeddings", None)
            rows = input_rows(inputs, mask, self.encode, self._encoder, vocabulary)
        return collate(rows, self.pad_id, self.device)

    def one_input(self, text: Input) -> Batch:
        """Return one input as a batch; several are rejected."""
        batch = self.batch(text)
        if len(batch.rows) != 1:
            raise InputError(f"Pass one text at a time; {len(batch.rows)} were given.")
        return batch

    # --- reading heads on one text ----------------------------------------------------------------

    def attention(
        self,
        text: Input,
        head: Heads | None = None,
        *,
        interventions: Interventions | None = None,
    ) -> xr.DataArray:
        """Return the attention of one head on one text, with the tokens as coordinates.

        Dims are `query` (the token that attends) and `key`. The forward pass stops after the last
        requested layer, and only the requested heads' maps are formed.

        Parameters
        ----------
        text : str, or what `batch` takes
            One input.
        head : str, tuple, int or list, optional
            `L3H5` or (3, 5). A layer (`L3` or 3) or a list of heads (`["L17H3", "L18H6"]`) adds a
            dim `head`; by default all heads, with dims `layer` and `head`.
        interventions : mapping, optional
            As in `forward`; the weights are those after it.
        """
        batch = self.one_input(text)
        coords = {
            "query": np.array(batch.rows[0].tokens),
            "key": np.array(batch.keys.rows[0].tokens),
        }
        array = self._read_heads(batch, "attention", head, interventions, coords)
        array.attrs["long_name"] = "attention weight"
        return array

    def outputs(
        self,
        text: Input,
        head: Heads | None = None,
        *,
        interventions: Interventions | None = None,
    ) -> xr.DataArray:
        """Return the output of one head at each token of one text, before the output projection.

        Dims are `token` and `dimension`.

        Parameters
        ----------
        text, head, interventions
            As in `attention`; the outputs are those after an intervention.
        """
        batch = self.one_input(text)
        check_needs(frozenset({"outputs"}), self.name, self.sites.d_heads, self.hidden)
        coords = {
            "token": np.array(batch.rows[0].tokens),
            "dimension": np.arange(self.d_head),
        }
        array = self._read_heads(batch, "outputs", head, interventions, coords)
        array.attrs["long_name"] = "output of the head"
        return array

    def _read_heads(
        self,
        batch: Batch,
        kind: str,
        head: Heads | None,
        interventions: Interventions | None,
        coords: dict[str, np.ndarray],
    ) -> xr.DataArray:
        """Return `attention` or `outputs` of a head, a list of heads, a layer or all heads."""
        name = "attention" if kind == "attention" else "output"
        attrs = {"model": self.name}
        place = parse_place(head)
        if place is None:
            traced = getattr(self.trace(batch, {kind}, interventions=interventions), kind)
            numbers = {"layer": np.arange(self.layers), "head": np.arange(self.heads)}
            dims = ("layer", "head", *coords)
            return TokenArray(traced[0].cpu().numpy(), numbers | coords, dims, name, attrs)
        if isinstance(place, list):
            heads = existing_heads(place, self.layers, self.heads)
            if not heads:
                raise ParameterError("The list of heads is empty; name at least one, like 'L7H9'.")
            coords = {"head": np.array([head_name(*pair) for pair in heads])} | coords
        elif isinstance(place, int) and not isinstance(place, bool):
            heads = existing_heads([(place, 0)], self.layers, self.heads)
            heads = [(place, number) for number in range(self.heads)]
            coords = {"head": np.arange(self.heads)} | coords
        else:
            heads = existing_heads([place], self.layers, self.heads)
        values = self._head_values(batch, kind, heads, interventions)
        if "head" not in coords:
            values = values[0]
            name = head_name(*heads[0])
        return TokenArray(values, coords, tuple(coords), name, attrs)

    def _head_values(
        self,
        batch: Batch,
        kind: str,
        heads: Sequence[tuple[int, int]],
        interventions: Interventions | None,
    ) -> np.ndarray:
        """Return the maps or outputs of some heads on one text, `[head, token, ...]`."""
        if interventions:
            traced = getattr(self.trace(batch, {kind}, interventions=interventions), kind)
            return np.stack([traced[0, layer, head].cpu().numpy() for layer, head in heads])
        reader = _HeadReader(self.sites, heads, kind, stops=not self._is_spread)
        try:
            with evaluating(self.module), torch.no_grad(), use_session(reader):
                self.run(batch.ids, batch.attention_mask, batch.types, source=batch.source)
        except _AllHeadsRead:
            pass
        if not reader.values.keys() >= set(heads):
            raise ModelError(
                f"The tap did not see all layers of {self.name}: "
                "the module was closed or changed after opening; open it again."
            )
        return np.stack([reader.values[pair].cpu().numpy() for pair in heads])

    def why(
        self, text: Input, head: str | tuple[int, int], query: str | int, key: str | int
    ) -> xr.Dataset:
        """Return why a head attends from one token to another: its score, split over the components
        that wrote the residual stream at both.

        `score[query_component, key_component]` adds up to the head's score; `query_margin` and
        `key_margin` are its sums over rows and columns. Norms are held at their actual scale. In
        `attrs`: the tokens, the `score`, the `weight`, and, where the model has them, what a
        position bias and soft capping add.

        Parameters
        ----------
        text : str, or what `batch` takes
            One input.
        head : str or tuple
            `L3H5` or (3, 5).
        query, key : str or int
            The token that attends and the one attended to: its text, or its position.
        """
        from headwise.models.score_attribution import ScoreAttribution, token_position, why_dataset

        batch = self.one_input(text)
        place = parse_place(head)
        ((layer, number),) = existing_heads([place], self.layers, self.heads)
        query_position = token_position(batch, query, "query")
        key_position = token_position(batch, key, "key")
        parts = ScoreAttribution(self).parts(batch, layer, number)
        if not bool(parts.visible[query_position, key_position]):
            raise InputError(
                f"Token {query_position} cannot attend to token {key_position}: it is hidden from it."
            )
        dataset: xr.Dataset = why_dataset(
            parts, batch, (layer, number), query_position, key_position
        )
        return dataset

    def logit_attribution(
        self,
        text: Input,
        answer: str | int,
        *,
        against: str | int | None = None,
        position: int = -1,
        interventions: Interventions | None = None,
    ) -> xr.DataArray:
        """Return what every component adds directly to the logit of an answer.

        Components are the embedding, every head, every feed-forward part (`L3MLP`) and a constant;
        they add up to `attrs["logit"]`, the logit less the mean over the vocabulary (or less the
        logit of another answer).

        Parameters
        ----------
        text : str, or what `batch` takes
            One input.
        answer : str or int
            A token, as text or id.
        against : str or int, optional
            Another token whose logit is subtracted.
        position : int, default -1
            The token after which the answer would follow.
        interventions : mapping, optional
            `{"L3H5": "zero"}`: the logit of the model with these interventions on its heads.
        """
        from headwise.models.direct import logit_attribution

        batch = self.one_input(text)
        n_tokens = batch.ids.shape[1]
        if not -n_tokens <= position < n_tokens:
            raise ParameterError(
                f"`position` is {position}; the text has tokens 0 to {n_tokens - 1}."
            )
        vocabulary = self.config.get_text_config().vocab_size
        other = None if against is None else generation.token_id(self, against, vocabulary)
        target = generation.token_id(self, answer, vocabulary)
        return logit_attribution(self, batch, target, other, position % n_tokens, interventions)

    def patch(
        self,
        clean: str,
        corrupted: str,
        answer: str | None = None,
        wrong: str | None = None,
        **options: Any,
    ) -> xr.Dataset:
        """Return what each head carries from one input into another; see `headwise.patch`.

        Parameters
        ----------
        clean, corrupted : str
            Inputs with equally many tokens.
        answer, wrong : str, optional
            What follows each; by default the likeliest token of the model that is not blank.
        **options
            Options of `headwise.patch`.
        """
        answers = []
        for text, given in ((clean, answer), (corrupted, wrong)):
            if given is None:
                logits = self.forward(text, logits=True).logits[0, -1]
                given = self._likeliest_text(logits)
            answers.append(given)
        experiments = load(EXPERIMENTS)
        pair = experiments.PromptPair(clean, corrupted, answers[0], answers[1], "the pair")
        dataset: xr.Dataset = experiments.patch(self, [pair], **options)
        return dataset

    def _likeliest_text(self, logits: Tensor) -> str:
        """Return the likeliest token that is not blank: a lone space before a word is no answer."""
        for token in logits.argsort(descending=True).tolist():
            text = self.encoder.token_text(token)
            if text.strip():
                return text
        raise ModelError(f"{self.name} has no tokens with a text.")

    def circuit(self, pairs: Any, **options: Any) -> xr.Dataset:
        """Return which edges between the parts of the model carry a behaviour; see
        `headwise.circuit`, whose options these are."""
        dataset: xr.Dataset = load(EXPERIMENTS).circuit(self, pairs, **options)
        return dataset

    # --- predictions ------------------------------------------------------------------------------

    def effect(
        self,
        text: Input,
        interventions: Interventions,
        *,
        top: int = 5,
        tokens: Sequence[str | int] | None = None,
        position: int | None = None,
    ) -> pd.DataFrame:
        """Return what the model predicts next (or at the mask), before and after an intervention.

        One row for each of the `top` likeliest tokens, by the larger of their two probabilities, the
        likeliest before first:
        `token`, `id`, `logit_before`, `logit_after`, `probability_before`, `probability_after`. In
        `attrs`: `position`, and `kl`, the divergence of the distribution after from that before, in
        nats.

        Parameters
        ----------
        text : str, or what `batch` takes
            One input. A masked language model predicts at its mask token.
        interventions : mapping
            `{"L3H5": "zero"}`, as in `forward`.
        top : int, default 5
            Number of tokens.
        tokens : sequence of str or int, optional
            Show these tokens instead, as texts or ids.
        position : int, optional
            Which token's prediction; by default the last one's, or the first mask token's.
        """
        return generation.compare_predictions(
            self, text, interventions, top=top, tokens=tokens, position=position
        )

    def generate(
        self,
        text: Input,
        *,
        interventions: Interventions | None = None,
        max_new_tokens: int = 20,
        as_ids: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> Any:
        """Continue a text with interventions on heads; return the new text alone.

        Greedy by default, with the cache of keys and values. Every token is the one that a whole
        forward pass with the same interventions would give; `mean`, which changes with every token,
        is computed that way. A `Patch` fits one length only and is rejected.

        Parameters
        ----------
        text : str, or what `batch` takes
            One input; of an encoder-decoder, its source.
        interventions : mapping, optional
            `{"L3H5": "zero"}`: `zero`, `uniform`, `mean` or a `Mean`, of heads and layers.
        max_new_tokens : int, default 20
            The largest number of new tokens.
        as_ids : bool, default False
            Return token ids instead of text.
        seed : int, default 0
            For `do_sample=True`; the caller's random state does not change.
        **options
            Of transformers' `generate`: `do_sample`, `temperature`, `num_beams` and so on.
        """
        return generation.generate(
            self, text, interventions, max_new_tokens, as_ids=as_ids, seed=seed, options=options
        )

    # --- running ----------------------------------------------------------------------------------

    def forward(
        self,
        inputs: Input,
        watcher: Watcher | None = None,
        *,
        interventions: Interventions | None = None,
        block_rows: int | None = None,
        block_bytes: int = BLOCK_BYTES,
        logits: bool = False,
        logit_rows: Tensor | None = None,
    ) -> Any:
        """Run the model once over a batch, without gradients and dropout; return its output.

        Parameters
        ----------
        inputs : Batch, or what `batch` takes
            The examples.
        watcher : Watcher, optional
            Sees each layer while it is computed, with what its `needs` name.
        interventions : mapping, optional
            `{"L3H5": what}` or `{"L3": what}` (or (3, 5) and 3): `uniform`, `zero`, `mean`, a
            `Mean` or a `Patch`. Watchers see the weights after it. `(3, "residual")` is what enters
            a layer, `(3, "mlp")` the output of its feed-forward part.
        block_rows, block_bytes : int, optional
            Number of query rows whose weights are formed at a time; by default all, unless they
            would take more than `block_bytes`. Results do not depend on it.
        logits : bool, default False
            Run the whole model with its head; otherwise only what the watched stack needs.
        logit_rows : Tensor, optional
            The positions of the tokens whose logits are returned; default: all.
        """
        batch = self.batch(inputs)
        session = self._session(batch, watcher, interventions, block_rows, block_bytes)
        with torch.no_grad():
            return self._forward(session, batch, logits, logit_rows)

    def trace(
        self,
        inputs: Input,
        needs: set[str] | frozenset[str] = frozenset({"attention"}),
        *,
        interventions: Interventions | None = None,
        block_rows: int | None = None,
    ) -> Trace:
        """Return attention, head outputs or hidden states of all layers, stacked.

        Parameters
        ----------
        inputs, interventions, block_rows
            As in `forward`.
        needs : set of str, default {"attention"}
            Any of `attention`, `outputs`, `hidden`.
        """
        watcher = TraceWatcher(frozenset(needs))
        batch = self.batch(inputs)
        session = self._session(batch, watcher, interventions, block_rows)
        with torch.no_grad():
            self._forward(session, batch, logits=False)
        return watcher.trace(session.final, batch)

    def gradients(
        self,
        inputs: Input,
        loss: Callable[[Any, Batch], Tensor],
        *,
        interventions: Interventions | None = None,
        block_rows: int | None = None,
    ) -> list[AttentionRows]:
        """Return attention weights with d loss / d weights, layer by layer.

        The gradient is with respect to the very weights that multiply the values, after any
        intervention; dropout is off. Weights and gradient are zero outside V(i).

        Parameters
        ----------
        inputs, interventions, block_rows
            As in `forward`.
        loss : callable
            `loss(output, batch)` returns one loss for each example, `[example]`, from the output of
            the whole model. Examples do not interact, so the gradient of the sum is that of each.
        """
        blocks: list[AttentionRows] = []
        stream_gradients(
            self,
            self.batch(inputs),
            loss,
            blocks.append,
            interventions=interventions,
            block_rows=block_rows,
            max_kept_bytes=None,
        )
        return blocks

    def _session(
        self,
        batch: Batch,
        watcher: Watcher | None,
        interventions: Interventions | None,
        block_rows: int | None,
        block_bytes: int = BLOCK_BYTES,
        keep: bool = False,
    ) -> Session:
        needs = frozenset() if watcher is None else watcher.needs
        check_needs(needs, self.name, self.sites.d_heads, self.hidden)
        if block_rows is not None:
            at_least("block_rows", block_rows, 1)
        plan = None
        streams = None
        if interventions:
            on_heads = head_interventions(interventions)
            plan = plan_interventions(on_heads, self.layers, self.heads, self.d_head)
            streams = plan_streams(interventions, self.layers, self.hidden)
        return Session(
            self.sites,
            batch.attention_mask,
            watcher,
            plan,
            block_rows=block_rows,
            block_bytes=block_bytes,
            keep=keep,
            streams=streams,
            keys=batch.keys.attention_mask,
        )

    def _forward(
        self, session: Session, batch: Batch, logits: bool, logit_rows: Tensor | None = None
    ) -> Any:
        has_head = self.has_lm_head or hasattr(self.module, "num_labels")
        if logits and not has_head:
            raise ModelError(
                f"{self.name} was opened without a head, so it has no logits; open it with `task`."
            )
        with evaluating(self.module), session.running():
            output = self.run(
                batch.ids,
                batch.attention_mask,
                batch.types,
                logits=logits,
                logit_rows=logit_rows,
                source=batch.source,
            )
        n_seen = session.layer_count.seen
        if n_seen != self.layers:
            raise ModelError(
                f"The tap saw {n_seen} of the {self.layers} layers of {self.name}: "
                "the module was closed or changed after opening; open it again."
            )
        if "hidden" in session.needs and session.final is None:
            # XLM has no module for a layer, so no hook saw what leaves the last one.
            session.final = at_least_float32(output.last_hidden_state)
        return output

    # --- for passes that other parts of headwise watch in their own way ---------------------------

    def run(
        self,
        ids: Tensor,
        attention_mask: Tensor,
        types: Tensor,
        *,
        logits: bool = False,
        logit_rows: Tensor | None = None,
        source: Batch | None = None,
        past: Any = None,
    ) -> Any:
        """Call the smallest part of the model that computes its stack, in the session, mode and
        gradients of the context.

        Parameters
        ----------
        ids, attention_mask, types : Tensor
            Token ids, attention mask and segments, `[example, token]`.
        logits : bool, default False
            Run the whole model with its head.
        logit_rows : Tensor, optional
            The positions of the tokens whose logits are returned; default: all.
        source : Batch, optional
            What the encoder reads, if the stack is the decoder's.
        past : Cache, optional
            Keys and values of tokens before these (`SharedTokens`); the attention mask is then that
            of all tokens.
        """
        n_tokens = ids.shape[1]
        if n_tokens > self.max_length:
            raise InputError(
                f"The batch is {n_tokens} tokens long; {self.name} takes at most {self.max_length}."
            )
        encoder_input = None if source is None else (source.ids, source.attention_mask)
        return call_part(
            self.module,
            self.encoder_part,
            self.stack,
            ids,
            attention_mask,
            types,
            logits=logits,
            logit_rows=logit_rows,
            source=encoder_input,
            past=past,
        )

    def evaluating(self) -> AbstractContextManager[None]:
        """Set evaluation mode for a `with` block, then restore the mode of every module."""
        return evaluating(self.module)

    def in_precision(self, dtype: torch.dtype) -> HeadModel:
        """Return a copy with weights of another dtype and a tap of its own; close it after use."""
        if self._is_spread:
            raise ModelError(
                f"{self.name} lies on several devices, so it cannot be copied in another "
                "precision; open it on one."
            )
        # The tap is taken off meanwhile: the copy must not share its patched methods.
        self.close()
        try:
            module = copy.deepcopy(self.module)
        finally:
            self._undo = select_tap(self.module)
        try:
            module = module.to(dtype)
        except (ValueError, RuntimeError, TypeError) as error:
            dtype_name = str(dtype).removeprefix("torch.")
            raise ModelError(
                f"The weights of {self.name} cannot be converted to {dtype_name} ({error}); "
                "use an unquantised model."
            ) from error
        converted = HeadModel(module, self.tokenizer, self.name, self.stack, [])
        converted._encoder = self._encoder
        return converted


class _AllHeadsRead(Exception):
    """Ends a forward pass once the last requested layer has been read."""


class _HeadReader(TapSession):
    """A pass over one text that reads some heads and stops after the last of their layers.

    Parameters
    ----------
    sites : Sites
        The attention modules of the stack.
    heads : sequence of (int, int)
        Layers and heads to read.
    kind : str
        `attention` or `outputs`.
    stops : bool
        End the pass after the last requested layer. Not for weights that are moved in and out
        while a model runs: the hooks that move them out again must be reached.

    Attributes
    ----------
    values
        Maps `[query, key]` or outputs `[token, d_head]` by (layer, head), in float32 or better.
    """

    def __init__(
        self, sites: Sites, heads: Sequence[tuple[int, int]], kind: str, *, stops: bool
    ) -> None:
        self.layer_count = LayerCount(sites)
        self.kind = kind
        self.values: dict[tuple[int, int], Tensor] = {}
        self._heads_by_layer: dict[int, list[int]] = {}
        for layer, head in heads:
            self._heads_by_layer.setdefault(layer, []).append(head)
        self._last_layer = max(self._heads_by_layer) if stops else None

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        heads = self._heads_by_layer.get(layer)
        if heads is not None:
            selected = call.select_heads(heads)
            values, _ = selected.weights(selected.key, 0, selected.sizes[2])
            if self.kind == "outputs":
                values = at_least_float32(values.to(selected.value.dtype) @ selected.value)
            for number, head in enumerate(heads):
                self.values[layer, head] = values[0, number]
            if layer == self._last_layer:
                raise _AllHeadsRead
        return call.output(BLOCK_BYTES), None
