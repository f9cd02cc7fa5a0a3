"""Questions that one line of Python asks of a model and one text: what a head attends to, what it gives, what the model
says next without it. `HeadModel` has them as methods."""

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
from headwise.models.generating import generated
from headwise.models.inputs import Input
from headwise.models.interventions import Intervention, named_place

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel
    from headwise.text.encode import Batch

Interventions = Mapping[Any, Intervention]


def attention(
    self: HeadModel, text: Input, head: str | tuple[int, int] | int | None = None, *,
    interventions: Interventions | None = None,
) -> xr.DataArray:  # fmt: skip
    """The attention of one head on one text, its tokens as coordinates: dims `query` (who looks) and `key`.

    Parameters
    ----------
    text : str, or what `batch` takes
        One input.
    head : str, tuple or int, optional
        `L3H5`; for a whole layer (`L3`) there is a dim `head`; by default all, with dims `layer` and `head`.
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
    """What one head gives at each token of one text, before the output projection: dims `token` and `dimension`.

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

    One row for each of the likeliest tokens before and after, the likeliest before first: `token`, `id`,
    `logit_before`, `logit_after`, `probability_before`, `probability_after`. In `attrs`: `position`, and `kl`, the
    divergence of the distribution after from that before, in nats.

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
    batch = _one(self, text)
    place = _position(self, batch, position)
    raw = [
        self.forward(batch, interventions=change, logits=True).logits[0, place].double().cpu()
        for change in (None, interventions)
    ]
    before, after = (logits.log_softmax(-1) for logits in raw)
    if tokens is None:
        chosen = dict.fromkeys(
            int(token) for part in (before, after) for token in part.topk(min(top, len(part))).indices
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

    Greedy, with the cache of keys and values. Every token is what a whole forward pass with the same interventions
    would give; `mean`, which changes with every token, is computed that way. A `Patch` fits one length and is refused.

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
    ids = generated(self, text, interventions, max_new_tokens, seed, options)
    return ids if as_ids else self.encoder.tokenizer.decode(ids, skip_special_tokens=True)


def _one(model: HeadModel, text: Input) -> Batch:
    batch = model.batch(text)
    if len(batch) != 1:
        raise InputError(f"This takes one text, and {len(batch)} were given; ask for one at a time.")
    return batch


def _labelled(
    model: HeadModel, values: Tensor, head: Any, dims: Mapping[str, np.ndarray], name: str, about: str
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
    return xr.DataArray(array, coords, tuple(coords), name, {"long_name": about, "model": model.name})


def _traced(
    model: HeadModel, text: Input, what: str, interventions: Interventions | None
) -> tuple[Batch, torch.Tensor]:
    """One text, and its attention or its outputs, `[example, layer, head, ...]`."""
    batch = _one(model, text)
    found = getattr(model.trace(batch, {what}, interventions=interventions), what)
    assert isinstance(found, torch.Tensor)
    return batch, found


def _position(model: HeadModel, batch: Batch, position: int | None) -> int:
    length = int(batch.lengths[0])
    if model.lm_kind is None:
        raise ModelError(f"{model.name} was opened without a language-model head; open it with task='lm'.")
    if position is not None:
        if not -length <= position < length:
            raise ParameterError(f"`position` must lie in the {length} tokens of the text; it is {position}.")
        return position % length
    if model.lm_kind == "causal":
        return length - 1
    mask = model.encoder.tokenizer.mask_token_id
    found = (batch.ids[0] == mask).nonzero() if mask is not None else torch.empty(0)
    if not len(found):
        token = model.encoder.tokenizer.mask_token
        raise InputError(f"The text has no {token} to predict; put one into it, or say which token by `position`.")
    return int(found[0])


def _token_id(model: HeadModel, token: str | int, vocabulary: int) -> int:
    if isinstance(token, str):
        ids = model.encoder.tokenizer(token, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) != 1:
            parts = ", ".join(repr(model.encoder.token_text(i)) for i in ids) or "none"
            raise InputError(f"'{token}' is no single token (its pieces: {parts}); give one that is, or ids.")
        return int(ids[0])
    if not 0 <= token < vocabulary:
        raise ParameterError(f"There is no token {token}: the model has ids 0 to {vocabulary - 1}.")
    return int(token)
