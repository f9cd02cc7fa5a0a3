"""What a model is, seen by running a few tokens through it: its attention modules, its stack, the
width of its hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.core.errors import ModelError
from headwise.models.devices import input_device
from headwise.models.forward_call import call_part, evaluating
from headwise.models.session import Session
from headwise.models.sites import Sites, find_sites
from headwise.models.trace import TraceWatcher

if (
    TYPE_CHECKING
):  # transformers takes seconds to bring it: whoever opens a model waits, nobody else
    from transformers import PreTrainedModel


def measure(
    module: PreTrainedModel, encoder: nn.Module | None, pad_id: int, stack: str | None
) -> tuple[Sites, str, int]:
    """The attention modules of a stack, the name of the stack, and the width of its hidden states
    (0: of no usual shape), seen by running two short made-up inputs through a model on which the
    tap is selected.

    Parameters
    ----------
    module : PreTrainedModel
        The model.
    encoder : Module, optional
        The encoder of an encoder-decoder.
    pad_id : int
        The id that fills batches.
    stack : str, optional
        The stack asked for; by default the encoder where there is one.
    """
    vocabulary = getattr(module.get_input_embeddings(), "num_embeddings", 100)
    device = input_device(module)
    ids = torch.arange(12, device=device).view(2, 6) * 7 % max(vocabulary - 1, 1)
    ids = torch.where(ids >= pad_id, ids + 1, ids).clamp(max=vocabulary - 1)
    attention_mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2], device=device)
    ids = torch.where(attention_mask, ids, pad_id)
    part = "decoder" if encoder is not None and stack in ("decoder", "cross") else "encoder"

    def run(tokens: int = 5) -> Any:
        if part == "encoder":
            return call_part(module, encoder, part, ids, attention_mask, torch.zeros_like(ids))
        # The decoder gets one token less than the encoder, so that cross-attention is told by its
        # shape.
        target = ids[:, :tokens], attention_mask[:, :tokens]
        return call_part(
            module,
            encoder,
            part,
            *target,
            torch.zeros_like(target[0]),
            source=(ids, attention_mask),
        )

    try:
        with evaluating(module), torch.no_grad():
            sites, found = find_sites(module, run, attention_mask, stack, encoder)
            with Session(
                sites, attention_mask, TraceWatcher(frozenset({"hidden"}))
            ).running() as session:
                output = run(tokens=6)
    except ModelError:
        raise
    except Exception as error:  # whatever an architecture that expects other inputs may raise
        text = " ".join(str(error).split())
        raise ModelError(
            f"{type(module).__name__} does not run on plain text with the tap "
            f"({type(error).__name__}: {text[:200]}); it is not served."
        ) from error
    shape = tuple((output.last_hidden_state if session.final is None else session.final).shape)
    sites.tokens_first = shape[:2] == (6, 2)
    return sites, found, shape[-1] if len(shape) == 3 else 0
