"""A model whose heads can be watched, changed and differentiated."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import torch
import transformers
from torch import Tensor, nn

from headwise.core.checks import at_least, one_of
from headwise.core.errors import InputError, ModelError, ParameterError, unknown
from headwise.models import asked, fingerprint, loading
from headwise.models.devices import DeviceMap, dtype_of, home_of, is_spread, map_of
from headwise.models.fallbacks import select_tap
from headwise.models.forward_call import call_part, evaluating, shifted
from headwise.models.gradients import stream_gradients
from headwise.models.inputs import Input, check_length, input_rows
from headwise.models.interventions import Intervention, of_heads, plan_interventions, plan_streams
from headwise.models.measure import measure
from headwise.models.session import BLOCK_BYTES, Session, at_least_float32
from headwise.models.sites import KINDS
from headwise.models.sizes import head_of, input_limit, padding_id
from headwise.models.trace import Trace, TraceWatcher
from headwise.models.view import AttentionRows, Watcher, check_needs
from headwise.text.encode import TOO_LONG_RULES, Batch, Encoded, Encoder, collate
from headwise.text.example import Example
from headwise.text.targets import TargetEncoder

Interventions = Mapping[Any, Intervention]
DEMO_NAME = "wiki-bert"
OPEN: WeakSet[HeadModel] = (
    WeakSet()
)  # every model of this process, but for those that `limited` gave


class HeadModel:
    """A transformer with the tap selected; use `HeadModel.open`.

    Attributes
    ----------
    name, module, tokenizer, encoder, config, device, dtype
        What was opened and where it lives; `tokenizer` is None for a bare module, which then has no
        `encoder`.
    layers, heads, kv_heads, d_head, hidden
        Sizes as seen in a run: attention layers, query heads, key/value heads, size of a head's
        output, width of the hidden states.
    kv_groups
        The key/value group of each query head.
    causal, stack
        Whether tokens see only what is before them; `encoder`, `decoder` (self-attention) or
        `cross`.
    max_length, pad_id
        The longest input in tokens that the model takes (`encoder` may be limited to less); the id
        that fills batches.
    lm_kind
        `masked`, `causal` or None where there is no language-model head.
    notes, reopens
        What was decided at opening that a user should know; what `open` found it by (None where it
        got a module).
    sites, encoder_part
        The attention modules of the stack; the encoder of an encoder-decoder. With `run`,
        `evaluating` and `in_precision` they are for code that makes passes of its own.
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
        if stack is not None and stack not in KINDS:
            raise ParameterError(unknown("stack", stack, KINDS))
        one_of("overlong", overlong, TOO_LONG_RULES)
        at_least("max_length", 2 if max_length is None else max_length, 2)
        self.module, self.tokenizer, self.name, self.notes = module, tokenizer, name, notes
        self.hashed: tuple[str, str] | None = None
        self.config = module.config
        self.device: torch.device = home_of(module)
        self.dtype: torch.dtype = next(
            p.dtype for p in module.parameters() if p.is_floating_point()
        )
        loading.check_text(type(module), name)
        loading.check_weights(module, name)
        if tokenizer is not None:
            loading.check_tokenizer(module, tokenizer, name)
        self.pad_id = padding_id(module, tokenizer)
        self.max_length = input_limit(module, tokenizer, notes)
        if max_length is not None and max_length > self.max_length:
            notes.append(
                f"Inputs of {max_length} tokens were asked for; the model takes at most {self.max_length}."
            )
        limit = min(max_length or self.max_length, self.max_length)
        self._encoder = None if tokenizer is None else Encoder(tokenizer, limit, overlong)
        self.encoder_part: nn.Module | None = (
            module.get_encoder() if self.config.is_encoder_decoder else None
        )
        self._undo = select_tap(module)
        try:
            self.sites, self.stack, self.hidden = measure(
                module, self.encoder_part, self.pad_id, stack
            )
        except BaseException:
            self.close()
            raise
        self.has_lm_head, self.lm_kind = head_of(module, self.stack)
        if self._encoder is not None and self.encoder_part is not None and self.stack != "encoder":
            self._encoder = TargetEncoder(
                self._encoder, partial(shifted, module), cross=self.stack == "cross"
            )
        self._count()
        self.reopens: dict[str, Any] | None = None
        OPEN.add(self)

    # --- opening and closing ----------------------------------------------------------------------

    @classmethod
    def open(
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
        """Open a model and select the tap on it.

        Parameters
        ----------
        model : str, Path or Module, optional
            A folder, a hub name, a module of transformers, or None for the built-in demo model.
        tokenizer : optional
            A fast tokenizer, or a folder or name to load it from; by default the one beside the
            model.
        device : torch.device or str, optional
            Where to run; a GPU where there is one. A given module stays where it is.
        dtype : torch.dtype or str, optional
            Precision of the weights (`float32`, `bfloat16`, `float16`); by default (`auto`) the
            checkpoint's own on a GPU, at least float32 on a CPU.
        device_map : str or mapping, optional
            Of a model that does not fit one device (needs accelerate): `auto`, `balanced`,
            `balanced_low_0`, `sequential`, or devices by module (`{"model.layers.3": 1, "lm_head":
            "disk", ...}`). What lies in memory or on the disk is brought to a device when it is
            needed. `device` must not be given then.
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
        dtype, spread = dtype_of(dtype), map_of(device_map)
        if spread is not None and (device is not None or isinstance(model, nn.Module)):
            what = (
                "a module, which lies somewhere already"
                if isinstance(model, nn.Module)
                else "`device`"
            )
            raise ParameterError(
                f"`device_map` says where the weights go, so it cannot stand beside {what}."
            )
        reopens = None
        if isinstance(model, nn.Module):
            module, name = loading.unwrapped(model), type(loading.unwrapped(model)).__name__
            if device is not None:
                module = module.to(loading.device_of(device))
            if dtype is not None:
                module = module.to(dtype)
        else:
            where = loading.device_of(device)
            demo, model = model is None, loading.model_path(model)
            reopens = {
                "model": None if demo else model,
                "tokenizer": tokenizer,
                "dtype": dtype,
                "task": task,
            }
            reopens["device_map"] = device_map
            module = loading.load_model(model, task, where, dtype, notes, spread)
            name = (
                Path(model).expanduser().resolve().name
                if Path(model).expanduser().is_dir()
                else str(model)
            )
            loading.check_text(type(module), name)  # before its tokenizer is missed
            name = DEMO_NAME if demo else name  # its folder in the cache is named by a hash
            tokenizer = model if tokenizer is None else tokenizer
        if isinstance(tokenizer, str | Path):
            tokenizer = loading.load_tokenizer(tokenizer)
        made = cls(module, tokenizer, name, stack, notes, max_length, overlong)
        made.reopens = reopens
        return made

    def close(self) -> None:
        """Give the module back as it was."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        sizes = f"layers={self.layers}, heads={self.heads}, d_head={self.d_head}"
        return f"HeadModel({self.name!r}, {self.stack}, {sizes}, {self.dtype}, {self.device})"

    # --- what the model is ------------------------------------------------------------------------

    def _count(self) -> None:
        sites = self.sites
        self.layers, self.heads, self.kv_heads, self.causal = (
            sites.layers,
            sites.heads,
            sites.kv_heads,
            sites.causal,
        )
        self.d_head = sites.d_heads[0]
        self.kv_groups = tuple(head // (self.heads // self.kv_heads) for head in range(self.heads))
        config = self.config.get_text_config(decoder=self.stack != "encoder")
        counted = getattr(config, "num_hidden_layers", self.layers)
        if self.encoder_part is None and isinstance(counted, int) and counted != self.layers:
            self.notes.append(
                f"{self.layers} of the model's {counted} layers compute attention; only those are counted, from 0."
            )

    identity, same_weights = fingerprint.identity, fingerprint.same_weights

    @property
    def encoder(self) -> Encoder:
        """What turns examples into rows of tokens."""
        if self._encoder is None:
            raise ModelError(
                f"{self.name} was opened without a tokenizer and cannot read text: give HeadModel.open one."
            )
        return self._encoder

    def limited(self, max_length: int, overlong: str | None = None) -> HeadModel:
        """The same open model with a lower limit for its inputs, by default with what happens to
        longer ones unchanged.

        Both share the module and the tap: this one stays as it is, and closing either closes both.
        """
        other = copy.copy(self)
        other._encoder = self.encoder.limited(max_length, overlong)
        return other

    # --- text -------------------------------------------------------------------------------------

    def encode(self, example: Example | str, index: int = 0) -> Encoded:
        """One example (or plain text) as a row of tokens."""
        row = self.encoder.encode(
            Example(text=example) if isinstance(example, str) else example, index
        )
        if row is None:
            raise InputError(f"The example is longer than {self.encoder.max_length} tokens.")
        return row

    def batch(self, inputs: Input, mask: Any = None) -> Batch:
        """One input or several as one batch on the model's device.

        Parameters
        ----------
        inputs : str, Example, Encoded, token ids, BatchEncoding, or several
            Token ids are lists of whole numbers or a tensor `[token]` or `[example, token]`. A
            Batch stays as it is.
        mask : array or Tensor, optional
            Which token ids are real, in their shape; by default all are. Padding must be on the
            right.
        """
        if isinstance(inputs, Batch):
            return inputs
        embeddings = getattr(self.module.get_input_embeddings(), "num_embeddings", None)
        rows = input_rows(inputs, mask, self.encode, self._encoder, embeddings)
        return collate(rows, self.pad_id, self.device)

    attention, outputs, effect, generate = (
        asked.attention,
        asked.outputs,
        asked.effect,
        asked.generate,
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
    ) -> Any:
        """Run the model once over a batch, without gradients and dropout; gives the model's own
        output.

        Parameters
        ----------
        inputs : Batch, or what `batch` takes
            The examples.
        watcher : Watcher, optional
            Sees each layer while it is computed, with what its `needs` name.
        interventions : mapping, optional
            `{"L3H5": what}` or `{"L3": what}` (or (3, 5) and 3): `uniform`, `zero`, `mean`, a
            `Mean` or a `Patch`. Watchers see the weights after it. `(3, "residual")` is what enters
            a layer, `(3, "mlp")` what its feed-forward part gives.
        block_rows, block_bytes : int, optional
            Weights are formed for so many query rows at a time; by default for all, unless they
            would take more than `block_bytes`. Results do not depend on it.
        logits : bool, default False
            Run the whole model with its head; otherwise only what the watched stack needs.
        """
        batch = self.batch(inputs)
        session = self._session(batch, watcher, interventions, block_rows, block_bytes)
        with torch.no_grad():
            return self._forward(session, batch, logits)

    def trace(
        self,
        inputs: Input,
        needs: set[str] | frozenset[str] = frozenset({"attention"}),
        *,
        interventions: Interventions | None = None,
        block_rows: int | None = None,
    ) -> Trace:
        """Everything asked for (`attention`, `outputs`, `hidden`), of all layers, stacked."""
        watcher, batch = TraceWatcher(frozenset(needs)), self.batch(inputs)
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
        """Attention weights with d loss / d weights, layer by layer.

        `loss(output, batch)` gives one loss for each example, `[example]`, from the output of the
        whole model. Since examples do not see each other, the gradient of their sum is each one's
        own. The gradient is with respect to the very weights that multiply the values, after any
        intervention; dropout is off. Weights and gradient are zero outside V(i)."""
        batch = self.batch(inputs)
        found: list[AttentionRows] = []
        stream_gradients(
            self,
            batch,
            loss,
            found.append,
            interventions=interventions,
            block_rows=block_rows,
            max_kept_bytes=None,
        )
        return found

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
        at_least("block_rows", 1 if block_rows is None else block_rows, 1)
        check_length(batch.ids, self.max_length, self.name)
        plan = plan_interventions(of_heads(interventions), self.layers, self.heads, self.d_head)
        streams = plan_streams(interventions, self.layers, self.hidden)
        how: dict[str, Any] = {
            "block_rows": block_rows,
            "block_bytes": block_bytes,
            "keep": keep,
            "streams": streams,
        }
        return Session(
            self.sites, batch.attention_mask, watcher, plan, keys=batch.keys.attention_mask, **how
        )

    def _forward(self, session: Session, batch: Batch, logits: bool) -> Any:
        if logits and not (self.has_lm_head or hasattr(self.module, "num_labels")):
            raise ModelError(
                f"{self.name} was opened without a head, so it gives no logits; open it with `task`."
            )
        with self.evaluating(), session.running():
            output = self.run(
                batch.ids, batch.attention_mask, batch.types, logits=logits, source=batch.source
            )
        if session.layer_count.seen != self.layers:
            raise ModelError(
                f"The tap saw {session.layer_count.seen} of the {self.layers} layers of {self.name}: the module was "
                "closed or changed after opening; open it again."
            )
        if "hidden" in session.needs and session.final is None:
            # XLM keeps its layers in pieces: nothing else leaves the last one.
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
        source: Batch | None = None,
    ) -> Any:
        """Call the smallest part of the model that computes its stack, in the context's session,
        mode and gradients; `source` is what the encoder reads where the stack is its decoder's."""
        more: Any = {
            "logits": logits,
            "source": None if source is None else (source.ids, source.attention_mask),
        }
        return call_part(
            self.module, self.encoder_part, self.stack, ids, attention_mask, types, **more
        )

    def evaluating(self) -> AbstractContextManager[None]:
        """Evaluation mode for a `with` block; training mode is given back module by module."""
        return evaluating(self.module)

    def in_precision(self, dtype: torch.dtype) -> HeadModel:
        """A copy with weights of another type and a tap of its own, to be closed after use."""
        if is_spread(self.module):
            raise ModelError(
                f"{self.name} lies on several devices, so no copy of it in another precision is made; open it on one."
            )
        self.close()
        try:
            module = copy.deepcopy(self.module)
        finally:
            self._undo = select_tap(self.module)
        try:
            module = module.to(dtype)
        except (ValueError, RuntimeError, TypeError) as error:
            name = str(dtype).removeprefix("torch.")
            raise ModelError(
                f"The weights of {self.name} cannot be turned into {name} ({error}); give an unquantised model."
            ) from error
        made = HeadModel(module, self.tokenizer, self.name, self.stack, [])
        made._encoder = self._encoder
        return made
