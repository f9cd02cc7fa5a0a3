"""Run only the layers from a given one on (the layers below give what they gave in the intact
model), only the tokens from a given one on (those before give their keys and values), and the last
feed-forward part for the last token alone."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor, nn

from headwise.core.errors import ModelError
from headwise.models.forward_call import body_of, only_in_this_thread
from headwise.models.headmodel import HeadModel
from headwise.models.interventions import feed_forward
from headwise.models.sites import LayerCount, Sites


class CountsLayers(Protocol):
    """A session that knows which layer each attention call belongs to."""

    layer_count: LayerCount


class Prefix:
    """What each layer of a model gave on one batch, so that interventions on a late layer need not
    run the layers before it again.

    `recording` keeps it during a run; `skipping(l)` makes layers 0 to l−1 give it again without
    computing anything. That is right where nothing but its output passes from one layer to the
    next, as in most architectures: `supports` says whether the layers are modules that can be
    replaced, and experiments compare a first batch with whole runs.

    Parameters
    ----------
    model : HeadModel
        The model.

    Attributes
    ----------
    outputs : list
        What each layer gave, in the order of their calls: a module that several layers share is
        called several times.
    head_outputs : dict of int to Tensor
        The outputs of the heads by layer, where an experiment keeps them too.
    """

    def __init__(self, model: HeadModel) -> None:
        self.model = model
        self.outputs: list[Any] = []
        self.head_outputs: dict[int, Tensor] = {}

    @staticmethod
    def supports(sites: Sites) -> bool:
        """Return whether every layer is a module of its own (or one that is called once for each
        layer)."""
        # An entry is the module of a layer, a site its attention: one of each for every layer.
        has_entries = all(site.entry is not None for site in sites.by_module.values())
        return has_entries and len(sites.entries) == len(sites.by_module)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the output of each layer of a run in this block."""
        self.outputs = []

        def keep_output(module: nn.Module, args: Any, output: Any) -> None:
            self.outputs.append(output)

        with ExitStack() as stack:
            for entry in self.model.sites.entries:
                stack.callback(entry.register_forward_hook(only_in_this_thread(keep_output)).remove)
            yield

    def repeated(self, times: int, layer: int, start: int = 0) -> Prefix:
        """Return what layers below `layer` give for the same batch written several times, from
        token `start` on.

        The next layer reads nothing but what leaves the last of them: all of them give that."""
        copies = Prefix(self.model)
        if layer > 0:
            last = self.outputs[layer - 1]
            tokens_first = self.model.sites.tokens_first
            copies.outputs = [_repeat_output(last, times, start, tokens_first)] * layer
        return copies

    @contextmanager
    def skipping(self, layer: int, session: CountsLayers) -> Iterator[None]:
        """Let layers below `layer` give what they gave, to this thread alone.

        The session counts them as seen, so that shared modules know which layer they are."""
        calls = 0
        owner = threading.get_ident()
        entries = self.model.sites.entries

        def replacement(module: nn.Module) -> Any:
            # The method of the class: on the module itself `forward` is this replacement.
            original = type(module).forward.__get__(module)

            def forward(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                if threading.get_ident() != owner:
                    return original(*args, **kwargs)
                calls += 1
                if calls <= layer:
                    return self.outputs[calls - 1]
                return original(*args, **kwargs)

            return forward

        if any(entry.__dict__.get("forward") is not None for entry in entries):
            # Another tool (accelerate) has put its own forward there: all layers run.
            yield
            return
        session.layer_count.skip(layer)
        for entry in entries:
            entry.forward = replacement(entry)
        try:
            yield
        finally:
            for entry in entries:
                del entry.forward


class SharedTokens:
    """Keys and values of the first tokens of a batch, computed once.

    In a causal model these tokens do not see what is changed after them, so runs that differ only
    later may begin after them.

    Parameters
    ----------
    model : HeadModel
        A causal language model.
    ids : Tensor
        The tokens that the runs share, `[example, token]`.

    Attributes
    ----------
    length : int
        Number of shared tokens; 0 for a model without a cache of keys and values that can be
        copied.
    """

    def __init__(self, model: HeadModel, ids: Tensor) -> None:
        self.length = 0
        self._cache: Any = None
        accepted = inspect.signature(model.module.forward).parameters
        if ids.shape[1] == 0 or "past_key_values" not in accepted:
            return
        # Made without the model's configuration, it keeps all keys in layers with a window too: masks
        # are those of whole runs.
        cache = transformers.DynamicCache()
        try:
            with torch.no_grad(), model.evaluating():
                body_of(model.module)(input_ids=ids, past_key_values=cache, use_cache=True)
        except (AttributeError, IndexError, TypeError, ValueError):
            # A model with states of another sort takes no such cache: whole runs are always right.
            return
        # A model that brings a cache of its own leaves this one empty.
        if len(cache.layers) == model.layers:
            self.length = ids.shape[1]
            self._cache = cache

    def for_copies(self, times: int) -> Any:
        """Return a cache for the batch written several times; a run appends to it, so that each
        needs its own."""
        if self._cache is None:
            return None
        cache = copy.deepcopy(self._cache)
        n_examples = len(cache.layers[0].keys)
        cache.batch_select_indices(torch.arange(n_examples).repeat(times))
        return cache


@contextmanager
def last_token_alone(model: HeadModel) -> Iterator[None]:
    """Let the last layer's feed-forward part compute the last token alone, for runs of which only the
    logits of the last token are read. What it gives for other tokens is zero.

    Nothing is saved in a layer whose feed-forward part cannot be told from the rest, or reads more
    than the hidden states."""
    try:
        part = feed_forward(model.sites.entries[-1])
    except (ModelError, IndexError):
        yield
        return
    n_tokens = 0

    def cut(module: nn.Module, args: Any, kwargs: Any) -> Any:
        nonlocal n_tokens
        n_tokens = 0
        is_alone = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        if is_alone and args[0].ndim == 3:
            n_tokens = args[0].shape[1]
            return (args[0][:, -1:],), kwargs
        return None

    def fill(module: nn.Module, args: Any, output: Any) -> Any:
        if n_tokens < 2:
            return None
        if isinstance(output, tuple):
            return (_padded(output[0], n_tokens), *output[1:])
        return _padded(output, n_tokens)

    with ExitStack() as stack:
        before = part.register_forward_pre_hook(only_in_this_thread(cut), with_kwargs=True)
        stack.callback(before.remove)
        stack.callback(part.register_forward_hook(only_in_this_thread(fill)).remove)
        yield


def _padded(last: Tensor, n_tokens: int) -> Tensor:
    """Return the output for the last token with zeros for those before it."""
    return nn.functional.pad(last, (0, 0, n_tokens - 1, 0))


def _repeat_output(output: Any, times: int, start: int, tokens_first: bool) -> Any:
    """Return the output of a layer for a batch written several times in a row, from a token on.

    Hidden states are `[example, token, width]`, in a model with `tokens_first` `[token, example,
    width]`."""
    if isinstance(output, Tensor):
        if tokens_first and output.ndim == 3:
            return output[start:].repeat(1, times, 1)
        if output.ndim >= 3:
            output = output[:, start:]
        return output.repeat(times, *[1] * (output.ndim - 1))
    if isinstance(output, tuple | list):
        parts = [_repeat_output(part, times, start, tokens_first) for part in output]
        return parts if isinstance(output, list) else tuple(parts)
    return output
