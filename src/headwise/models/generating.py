"""Generation of text with heads changed: a session that works with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.core.checks import at_least
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.core.labels import head_name
from headwise.models.inputs import Input
from headwise.models.interventions import (
    Intervention,
    Patch,
    Plan,
    of_heads,
    on_outputs,
    on_weights,
    plan_interventions,
)
from headwise.models.masks import is_open
from headwise.models.opening import quiet
from headwise.models.sites import LayerCount, Sites
from headwise.models.tap import Call, Running, led_to
from headwise.text.encode import Encoder
from headwise.text.example import Example

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel

OURS = ("input_ids", "attention_mask", "return_dict_in_generate", "num_return_sequences", "use_cache")


class Generation(Running):
    """A session for many passes, of the whole input or of its last token with what was cached before it.

    Parameters
    ----------
    sites : Sites
        The attention modules of the stack.
    plan : Plan
        Interventions by layer and head.
    """

    def __init__(self, sites: Sites, plan: Plan) -> None:
        self.plan, self.layer_count = plan, LayerCount(sites)

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """The call's attention with what is planned for its layer; without a plan, the model's own."""
        layer = self.layer_count.of_call(call.module)
        plan = {} if layer is None else self.plan.get(layer, {})
        if not plan:
            return call.plain()
        examples, _, queries, keys, _, _ = call.sizes
        key, value = call.repeated()
        weights, sink = call.weights(key, 0, queries)
        mask = call.rows_mask(0, queries)
        seen = weights.new_ones(examples, 1, queries, keys, dtype=torch.bool)
        if mask is not None:
            seen = seen & is_open(mask).any(1, keepdim=True)
        weights, _ = on_weights(plan, weights, seen, sink, 0)
        output = weights.to(value.dtype) @ value
        output = on_outputs(plan, output, torch.ones(examples, queries, dtype=torch.bool, device=output.device))
        return output.transpose(1, 2).contiguous(), weights


def generated(
    model: HeadModel,
    text: Input,
    interventions: Mapping[Any, Intervention] | None,
    max_new_tokens: int,
    seed: int,
    options: Mapping[str, Any],
) -> list[int]:
    """The ids of the new tokens; see `HeadModel.generate`."""
    at_least("max_new_tokens", max_new_tokens, 1)
    module: Any = model.module
    if not model.has_lm_head or not hasattr(module, "generate") or (model.lm_kind == "masked"):
        raise ModelError(f"{model.name} does not generate text: give a causal or encoder-decoder language model.")
    for name in OURS:
        if name in options:
            raise ParameterError(f"`{name}` of transformers' generate is set by headwise; leave it out.")
    heads_only = of_heads(interventions)
    if len(heads_only) < len(interventions or {}):
        raise ParameterError("Text is generated with interventions on heads and layers; streams are not changed in it.")
    plan = plan_interventions(heads_only, model.layers, model.heads, model.d_head)
    whole = False
    for layer, heads in plan.items():
        for head, what in heads.items():
            if isinstance(what, Patch):
                raise ParameterError(
                    f"The Patch of {head_name(layer, head)} fits one length, and a text that is generated grows; give "
                    "zero, uniform, mean or a Mean."
                )
            whole = whole or what == "mean"
    if model.encoder_part is not None and isinstance(text, str):  # a source alone, whichever stack is looked at
        text = Encoder.encode(model.encoder, Example(text=text)) or text
    batch = model.batch(text)
    if len(batch) != 1:
        raise InputError(f"This takes one text, and {len(batch)} were given; ask for one at a time.")
    ids = batch.ids
    prompt = 0 if model.encoder_part is not None else ids.shape[1]
    if prompt + max_new_tokens > model.max_length:
        raise InputError(
            f"The text of {ids.shape[1]} tokens and {max_new_tokens} new ones are more than the {model.max_length} "
            f"that {model.name} takes; ask for at most {max(model.max_length - prompt, 0)}."
        )
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    settings = {"do_sample": False, "pad_token_id": model.pad_id, "max_new_tokens": max_new_tokens, **options}
    devices = [model.device] if model.device.type == "cuda" else []
    session = Generation(model.sites, plan) if plan else None
    try:
        with led_to(session), model.evaluating(), torch.no_grad(), quiet(), torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            found = module.generate(**inputs, **settings, use_cache=not whole)
    except (ValueError, TypeError) as error:  # options that transformers does not know or that do not go together
        if not options:
            raise
        said = " ".join(str(error).split())[:300]
        raise ParameterError(f"transformers refuses to generate with {', '.join(options)}: {said}") from error
    return [int(token) for token in found[0, prompt:]]
