"""Measure a model by running a few tokens through it: its attention modules, its stack, the width of
its hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.core.errors import ModelError
from headwise.models.devices import input_device
from headwise.models.forward_call import call_part, evaluating
from headwise.models.session import Session
from headwise.models.sites import Sites, find_sites
from headwise.models.view import TraceWatcher

# Importing PreTrainedModel takes seconds: only who opens a model waits for it.
if TYPE_CHECKING:
    from transformers import PreTrainedModel

N_TOKENS = 6


def measure(
    module: PreTrainedModel, encoder: nn.Module | None, pad_id: int, stack: str | None
) -> tuple[Sites, str, int]:
    """Return the attention modules of a stack, the name of the stack, and the width of its hidden
    states (0: of no usual shape), from two short inputs run through a tapped model.

    Parameters
    ----------
    module : PreTrainedModel
        The model.
    encoder : Module, optional
        The encoder of an encoder-decoder.
    pad_id : int
        The id that fills batches.
    stack : str, optional
        The requested stack; by default the encoder if there is one.
    """
    device = input_device(module)
    attention_mask = torch.ones(2, N_TOKENS, dtype=torch.bool, device=device)
    attention_mask[1, 4:] = False
    vocabulary = getattr(module.get_input_embeddings(), "num_embeddings", 100)
    ids = torch.arange(2 * N_TOKENS, device=device).view(2, N_TOKENS) * 7 % max(vocabulary - 1, 1)
    ids = torch.where(ids >= pad_id, ids + 1, ids).clamp(max=vocabulary - 1)
    ids = torch.where(attention_mask, ids, pad_id)
    reads_target = encoder is not None and stack in ("decoder", "cross")

    def run(n_tokens: int = N_TOKENS - 1) -> Any:
        if not reads_target:
            types = torch.zeros_like(ids)
            return call_part(module, encoder, "encoder", ids, attention_mask, types)
        # The decoder gets one token less than the encoder: cross-attention is known by its shape.
        target_ids = ids[:, :n_tokens]
        return call_part(
            module,
            encoder,
            "decoder",
            target_ids,
            attention_mask[:, :n_tokens],
            torch.zeros_like(target_ids),
            source=(ids, attention_mask),
        )

    try:
        with evaluating(module), torch.no_grad():
            sites, measured_stack = find_sites(module, run, attention_mask, stack, encoder)
            watcher = TraceWatcher(frozenset({"hidden"}))
            with Session(sites, attention_mask, watcher).running() as session:
                output = run(N_TOKENS)
    except ModelError:
        raise
    except Exception as error:  # whatever an architecture that expects other inputs may raise
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{type(module).__name__} does not run on plain text with the tap "
            f"({type(error).__name__}: {reason}); it is not supported."
        ) from error
    hidden = output.last_hidden_state if session.final is None else session.final
    sites.tokens_first = tuple(hidden.shape[:2]) == (N_TOKENS, 2)
    width = hidden.shape[-1] if hidden.ndim == 3 else 0
    return sites, measured_stack, width
