"""Questions that one line of Python asks of a model and one text: what a head attends to, what it
gives, what the model says next and goes on with without it. `HeadModel` has them as methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor

from headwise.core.checks import at_least
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.core.labels import existing_heads, head_name
from headwise.models.inputs import Input
from headwise.models.interventions import (
    Intervention,
    Patch,
    Plan,
    attend_by_plan,
    named_place,
    of_heads,
    plan_interventions,
)
from headwise.models.loading import quiet
from headwise.models.sites import LayerCount, Sites
from headwise.models.tap import Call, Running, use_session
from headwise.text.encode import Batch, Encoder
from headwise.text.example import Example

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel

Interventions = Mapping[Any, Intervention]
OURS = (
    "input_ids",
    "attention_mask",
    "return_dict_in_generate",
    "num_return_sequences",
    "use_cache",
)


def attention(
    self: HeadModel, text: Input, head: str | tuple[int, int] | int | None = None, *,
    interventions: Interventions | None = None,
) -> xr.DataArray:  # fmt: skip
    """The attention of one head on one text, its tokens as coordinates: dims `query` (who looks)
    and `key`.

    Parameters
    ----------
    text : str, or what `batch` takes
        One input.
    head : str, tuple or int, optional
        `L3H5`; for a whole layer (`L3`) there is a dim `head`; by default all, with dims `layer`
        and `head`.
    interventions : mapping, optional
        As in `forward`; the weights are those after it.
    """
    batch, found = _traced(self, text, "attention", interventions)
    dims = {"query": np.array(batch.tokens[0]), "key": np.array(batch.keys.tokens[0])}
    return _labelled(self, found[0], head, dims, "attention", "attention weight")


def outputs(
    self: HeadModel, text: Input, head: str | tuple[int, int] | int | None = None, *,
    interventions: Interventions | None = None,
) -> xr.DataArray:  # fmt: skip
    """What one head gives at each token of one text, before the output projection: dims `token` and
    `dimension`.

    Parameters
    ----------
    text, head, interventions
        As in `attention`; the outputs are those after an intervention.
    """
    batch, found = _traced(self, text, "outputs", interventions)
    dims = {"token": np.array(batch.tokens[0]), "dimension": np.arange(found.shape[-1])}
    return _labelled(self, found[0], head, dims, "output", "output of the head")


def effect(
    self: HeadModel,
    text: Input,
    interventions: Interventions,
    *,
    top: int = 5,
    tokens: Sequence[str | int] | None = None,
    position: int | None = None,
) -> pd.DataFrame:
    """What the model says next (or at the mask), before and after an intervention.

    One row for each of the likeliest tokens before and after, the likeliest before first: `token`,
    `id`, `logit_before`, `logit_after`, `probability_before`, `probability_after`. In `attrs`:
    `position`, and `kl`, the divergence of the distribution after from that before, in nats.

    Parameters
    ----------
    text : str, or what `batch` takes
        One input. A masked language model is asked about its mask token.
    interventions : mapping
        `{"L3H5": "zero"}`, as in `forward`.
    top : int, default 5
        So many of the likeliest tokens of each.
    tokens : sequence of str or int, optional
        These tokens instead, as texts or ids.
    position : int, optional
        Which token's prediction; by default the last one's, or the first mask token's.
    """
    at_least("top", top, 1)
    batch = one_input(self, text)
    place = _position(self, batch, position)
    raw = [
        self.forward(batch, interventions=change, logits=True).logits[0, place].double().cpu()
        for change in (None, interventions)
    ]
    before, after = (logits.log_softmax(-1) for logits in raw)
    if tokens is None:
        chosen = dict.fromkeys(
            int(token)
            for part in (before, after)
            for token in part.topk(min(top, len(part))).indices
        )
        ids = sorted(chosen, key=lambda token: -float(before[token]))
    else:
        ids = [_token_id(self, token, len(before)) for token in tokens]
    spell = batch.rows[0].spell
    table = pd.DataFrame({"token": [spell(token) for token in ids], "id": ids})
    for name, values in (("logit", raw), ("probability", (before.exp(), after.exp()))):
        for when, of in zip(("before", "after"), values, strict=True):
            table[f"{name}_{when}"] = of[ids].numpy()
    table.attrs = {"position": place, "kl": float((before.exp() * (before - after)).sum())}
    return table


def generate(
    self: HeadModel,
    text: Input,
    *,
    interventions: Interventions | None = None,
    max_new_tokens: int = 20,
    as_ids: bool = False,
    seed: int = 0,
    **options: Any,
) -> Any:
    """What the model goes on with, with heads disabled: the new text alone.

    Greedy, with the cache of keys and values. Every token is what a whole forward pass with the
    same interventions would give; `mean`, which changes with every token, is computed that way. A
    `Patch` fits one length and is refused.

    Parameters
    ----------
    text : str, or what `batch` takes
        One input; of an encoder-decoder, its source.
    interventions : mapping, optional
        `{"L3H5": "zero"}`: `zero`, `uniform`, `mean` or a `Mean`, of heads and layers.
    max_new_tokens : int, default 20
        At most so many.
    as_ids : bool, default False
        Give token ids instead of text.
    seed : int, default 0
        For `do_sample=True`; the caller's random state is left as it was.
    **options
        Of transformers' `generate`: `do_sample`, `temperature`, `num_beams` and so on.
    """
    at_least("max_new_tokens", max_new_tokens, 1)
    module: Any = self.module
    if not self.has_lm_head or not hasattr(module, "generate") or (self.lm_kind == "masked"):
        raise ModelError(
            f"{self.name} does not generate text: give a causal or encoder-decoder language model."
        )
    for name in OURS:
        if name in options:
            raise ParameterError(
                f"`{name}` of transformers' generate is set by headwise; leave it out."
            )
    heads_only = of_heads(interventions)
    if len(heads_only) < len(interventions or {}):
        raise ParameterError(
            "Text is generated with interventions on heads and layers; streams are not changed in it."
        )
    plan = plan_interventions(heads_only, self.layers, self.heads, self.d_head)
    whole = False
    for layer, heads in plan.items():
        for head, what in heads.items():
            if isinstance(what, Patch):
                raise ParameterError(
                    f"The Patch of {head_name(layer, head)} fits one length, and a text that is generated grows; give "
                    "zero, uniform, mean or a Mean."
                )
            whole = whole or what == "mean"
    if self.encoder_part is not None and isinstance(
        text, str
    ):  # a source alone, whichever stack is looked at
        text = Encoder.encode(self.encoder, Example(text=text)) or text
    ids = one_input(self, text).ids
    prompt = 0 if self.encoder_part is not None else ids.shape[1]
    if prompt + max_new_tokens > self.max_length:
        raise InputError(
            f"The text of {ids.shape[1]} tokens and {max_new_tokens} new ones are more than the {self.max_length} "
            f"that {self.name} takes; ask for at most {max(self.max_length - prompt, 0)}."
        )
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    settings = {
        "do_sample": False,
        "pad_token_id": self.pad_id,
        "max_new_tokens": max_new_tokens,
        **options,
    }
    devices = [self.device] if self.device.type == "cuda" else []
    session = _Generation(self.sites, plan) if plan else None
    try:
        with (
            use_session(session),
            self.evaluating(),
            torch.no_grad(),
            quiet(),
            torch.random.fork_rng(devices),
        ):
            torch.manual_seed(seed)
            found = module.generate(**inputs, **settings, use_cache=not whole)
    except (
        ValueError,
        TypeError,
    ) as error:  # options that transformers does not know or that do not go together
        if not options:
            raise
        said = " ".join(str(error).split())[:300]
        raise ParameterError(
            f"transformers refuses to generate with {', '.join(options)}: {said}"
        ) from error
    new = [int(token) for token in found[0, prompt:]]
    return new if as_ids else self.encoder.tokenizer.decode(new, skip_special_tokens=True)


class _Generation(Running):
    """A session for many passes, of the whole input or of its last token with what was cached
    before it."""

    def __init__(self, sites: Sites, plan: Plan) -> None:
        self.plan, self.layer_count = plan, LayerCount(sites)

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """The call's attention with what is planned for its layer; without a plan, the model's
        own."""
        layer = self.layer_count.of_call(call.module)
        plan = {} if layer is None else self.plan.get(layer, {})
        if not plan:
            return call.plain()
        _, output, weights = attend_by_plan(call, plan)
        return output.transpose(1, 2).contiguous(), weights


def one_input(model: HeadModel, text: Input) -> Batch:
    """One input as a batch; several are refused."""
    batch = model.batch(text)
    if len(batch) != 1:
        raise InputError(
            f"This takes one text, and {len(batch)} were given; ask for one at a time."
        )
    return batch


def _labelled(
    model: HeadModel,
    values: Tensor,
    head: Any,
    dims: Mapping[str, np.ndarray],
    name: str,
    about: str,
) -> xr.DataArray:
    """The values `[layer, head, …]` of a head, a layer or all."""
    place = named_place(head) if isinstance(head, str) else head
    coords: dict[str, Any] = dict(dims)
    array = values.cpu().numpy()
    if place is None:
        coords = {"layer": np.arange(model.layers), "head": np.arange(model.heads), **dims}
    elif isinstance(place, int) and not isinstance(place, bool):
        existing_heads([(place, 0)], model.layers, model.heads)
        array, coords = array[place], {"head": np.arange(model.heads), **dims}
    else:
        (found,) = existing_heads([place], model.layers, model.heads)
        array, name = array[found], head_name(*found)
    return xr.DataArray(
        array, coords, tuple(coords), name, {"long_name": about, "model": model.name}
    )


def _traced(
    model: HeadModel, text: Input, what: str, interventions: Interventions | None
) -> tuple[Batch, torch.Tensor]:
    """One text, and its attention or its outputs, `[example, layer, head, ...]`."""
    batch = one_input(model, text)
    found = getattr(model.trace(batch, {what}, interventions=interventions), what)
    assert isinstance(found, torch.Tensor)
    return batch, found


def _position(model: HeadModel, batch: Batch, position: int | None) -> int:
    length = int(batch.lengths[0])
    if model.lm_kind is None:
        raise ModelError(
            f"{model.name} was opened without a language-model head; open it with task='lm'."
        )
    if position is not None:
        if not -length <= position < length:
            raise ParameterError(
                f"`position` must lie in the {length} tokens of the text; it is {position}."
            )
        return position % length
    if model.lm_kind == "causal":
        return length - 1
    mask = model.encoder.tokenizer.mask_token_id
    found = (batch.ids[0] == mask).nonzero() if mask is not None else torch.empty(0)
    if not len(found):
        token = model.encoder.tokenizer.mask_token
        raise InputError(
            f"The text has no {token} to predict; put one into it, or say which token by `position`."
        )
    return int(found[0])


def _token_id(model: HeadModel, token: str | int, vocabulary: int) -> int:
    if isinstance(token, str):
        ids = model.encoder.tokenizer(token, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) != 1:
            parts = ", ".join(repr(model.encoder.token_text(i)) for i in ids) or "none"
            raise InputError(
                f"'{token}' is no single token (its pieces: {parts}); give one that is, or ids."
            )
        return int(ids[0])
    if not 0 <= token < vocabulary:
        raise ParameterError(f"There is no token {token}: the model has ids 0 to {vocabulary - 1}.")
    return int(token)
