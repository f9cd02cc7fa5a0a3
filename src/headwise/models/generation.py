"""Predictions and generated text of a model with interventions on its heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from headwise.core.checks import at_least
from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.core.labels import head_name
from headwise.models.inputs import Input
from headwise.models.interventions import (
    Intervention,
    InterventionPlan,
    Patch,
    attend_by_plan,
    head_interventions,
    plan_interventions,
)
from headwise.models.loading import quiet
from headwise.models.sites import LayerCount, Sites
from headwise.models.tap import Call, TapSession, use_session
from headwise.text.encode import Batch, Encoder
from headwise.text.example import Example

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel

# Arguments of transformers' `generate` that headwise sets itself.
SET_BY_HEADWISE = (
    "input_ids",
    "attention_mask",
    "return_dict_in_generate",
    "num_return_sequences",
    "use_cache",
)


def compare_predictions(
    model: HeadModel,
    text: Input,
    interventions: Mapping[Any, Intervention],
    *,
    top: int,
    tokens: Sequence[str | int] | None,
    position: int | None,
) -> pd.DataFrame:
    """Return the predictions before and after interventions; see `HeadModel.effect`."""
    at_least("top", top, 1)
    batch = model.one_input(text)
    place = _predicting_position(model, batch, position)
    logits_before = _logits_at(model, batch, None, place)
    logits_after = _logits_at(model, batch, interventions, place)
    before = logits_before.log_softmax(-1)
    after = logits_after.log_softmax(-1)
    if tokens is None:
        # The likeliest in either distribution, so that what rises to the top is among them.
        likeliest = torch.maximum(before, after).topk(min(top, len(before))).indices.tolist()
        ids = sorted(likeliest, key=lambda token: (-float(before[token]), token))
    else:
        ids = [token_id(model, token, len(before)) for token in tokens]
    token_text = batch.rows[0].token_text
    table = pd.DataFrame(
        {
            "token": [token_text(token) for token in ids],
            "id": ids,
            "logit_before": logits_before[ids].numpy(),
            "logit_after": logits_after[ids].numpy(),
            "probability_before": before.exp()[ids].numpy(),
            "probability_after": after.exp()[ids].numpy(),
        }
    )
    kl = float((before.exp() * (before - after)).sum())
    table.attrs = {"position": place, "kl": kl}
    return table


def _logits_at(
    model: HeadModel,
    batch: Batch,
    interventions: Mapping[Any, Intervention] | None,
    position: int,
) -> Tensor:
    logits: Tensor = model.forward(batch, interventions=interventions, logits=True).logits
    return logits[0, position].double().cpu()


def _predicting_position(model: HeadModel, batch: Batch, position: int | None) -> int:
    """Return the token whose prediction is shown: the given one, the last, or the first mask."""
    length = int(batch.lengths[0])
    if model.lm_kind is None:
        raise ModelError(
            f"{model.name} was opened without a language-modelling head; open it with task='lm'."
        )
    if position is not None:
        if not -length <= position < length:
            raise ParameterError(
                f"`position` must lie in the {length} tokens of the text; it is {position}."
            )
        return position % length
    if model.lm_kind == "causal":
        return length - 1
    mask_id = model.encoder.tokenizer.mask_token_id
    positions = torch.empty(0)
    if mask_id is not None:
        positions = (batch.ids[0] == mask_id).nonzero()
    if not len(positions):
        token = model.encoder.tokenizer.mask_token
        raise InputError(
            f"The text has no {token} to predict; put one into it, or pass `position`."
        )
    return int(positions[0])


def token_id(model: HeadModel, token: str | int, vocabulary: int) -> int:
    """Return the id of a token given as text or id; a text of several tokens is rejected."""
    if isinstance(token, str):
        ids = model.encoder.tokenizer(token, add_special_tokens=False, verbose=False)["input_ids"]
        # Tokenizers that write ▁ for a space put one before a text: before a text that begins with
        # a space it stands alone, and is not the token.
        if len(ids) == 2 and token.strip() and not model.encoder.piece_text(int(ids[0])):
            ids = ids[1:]
        if len(ids) != 1:
            pieces = ", ".join(repr(model.encoder.token_text(piece)) for piece in ids) or "none"
            raise InputError(
                f"'{token}' is not a single token (its pieces: {pieces}); pass one that is, or ids."
            )
        return int(ids[0])
    if not 0 <= token < vocabulary:
        raise ParameterError(f"There is no token {token}: the model has ids 0 to {vocabulary - 1}.")
    return int(token)


def generate(
    model: HeadModel,
    text: Input,
    interventions: Mapping[Any, Intervention] | None,
    max_new_tokens: int,
    *,
    as_ids: bool,
    seed: int,
    options: Mapping[str, Any],
) -> Any:
    """Continue a text with interventions on heads; see `HeadModel.generate`."""
    at_least("max_new_tokens", max_new_tokens, 1)
    module: Any = model.module
    if not model.has_lm_head or not hasattr(module, "generate") or model.lm_kind == "masked":
        raise ModelError(
            f"{model.name} does not generate text: open a causal or encoder-decoder language model."
        )
    for name in SET_BY_HEADWISE:
        if name in options:
            raise ParameterError(
                f"`{name}` of transformers' generate is set by headwise; leave it out."
            )
    plan = _generation_plan(model, interventions)
    if model.encoder_part is not None and isinstance(text, str):
        # Generation reads a source alone, whichever stack is watched.
        text = Encoder.encode(model.encoder, Example(text=text)) or text
    ids = model.one_input(text).ids
    n_prompt = 0 if model.encoder_part is not None else ids.shape[1]
    if n_prompt + max_new_tokens > model.max_length:
        raise InputError(
            f"The text of {ids.shape[1]} tokens and {max_new_tokens} new ones are more than the "
            f"{model.max_length} that {model.name} takes; pass max_new_tokens of at most "
            f"{max(model.max_length - n_prompt, 0)}."
        )
    settings = {
        "do_sample": False,
        "pad_token_id": model.pad_id,
        "max_new_tokens": max_new_tokens,
        **options,
        # A mean over all tokens changes with each new one: nothing can be cached then.
        "use_cache": not _has_mean(plan),
    }
    session = _Generation(model.sites, plan) if plan else None
    gpus = [model.device] if model.device.type == "cuda" else []
    try:
        with (
            use_session(session),
            model.evaluating(),
            torch.no_grad(),
            quiet(),
            torch.random.fork_rng(gpus),
        ):
            torch.manual_seed(seed)
            generated = module.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), **settings
            )
    except (ValueError, TypeError) as error:
        # Options that transformers does not know, or that do not go together.
        if not options:
            raise
        reason = " ".join(str(error).split())[:300]
        raise ParameterError(
            f"transformers cannot generate with {', '.join(options)}: {reason}"
        ) from error
    new_ids = [int(token) for token in generated[0, n_prompt:]]
    if as_ids:
        return new_ids
    return model.encoder.tokenizer.decode(new_ids, skip_special_tokens=True)


def _generation_plan(
    model: HeadModel, interventions: Mapping[Any, Intervention] | None
) -> InterventionPlan:
    """Return the interventions by layer and head; those that generation cannot apply are
    rejected."""
    on_heads = head_interventions(interventions)
    if len(on_heads) < len(interventions or {}):
        raise ParameterError(
            "Text is generated with interventions on heads and layers; streams cannot be changed."
        )
    plan = plan_interventions(on_heads, model.layers, model.heads, model.d_head)
    for layer, heads in plan.items():
        for head, intervention in heads.items():
            if isinstance(intervention, Patch):
                raise ParameterError(
                    f"The Patch of {head_name(layer, head)} fits one length, but generated text "
                    "grows; use zero, uniform, mean or a Mean."
                )
    return plan


def _has_mean(plan: InterventionPlan) -> bool:
    return any("mean" in heads.values() for heads in plan.values())


class _Generation(TapSession):
    """A session for many passes: over the whole input, or over its last token with a cache."""

    def __init__(self, sites: Sites, plan: InterventionPlan) -> None:
        self.plan = plan
        self.layer_count = LayerCount(sites)

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Compute a call with the interventions on its layer; without any, as the model does."""
        layer = self.layer_count.of_call(call.module)
        plan = {} if layer is None else self.plan.get(layer, {})
        if not plan:
            return call.plain()
        _, output, weights = attend_by_plan(call, plan)
        return output.transpose(1, 2).contiguous(), weights
