"""Run only the layers from a given one on: the layers below give what they gave in the intact
model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from torch import Tensor, nn

from headwise.models import HeadModel
from headwise.models.forward_call import only_in_this_thread
from headwise.models.sites import LayerCount, Sites


class CountsLayers(Protocol):
    """A session that knows which layer each attention call belongs to."""

    layer_count: LayerCount


class Prefix:
    """What each layer of a model gave on one batch, in the order of the layers' calls (a module
    shared between layers is called several times).

    `recording` keeps it during a run; `skipping(l)` makes layers 0 to l−1 give it again without
    computing anything. Layer outputs are all that passes from one layer to the next in most
    architectures; `supports` says whether the layers are modules that can be replaced, and the first
    batch is compared with whole runs."""

    def __init__(self, model: HeadModel) -> None:
        self.model = model
        self.outputs: list[Any] = []
        self.head_outputs: dict[int, Tensor] = {}

    @staticmethod
    def supports(sites: Sites) -> bool:
        """Return whether every layer is a module of its own (or one that is called once for each
        layer)."""
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

    def repeated(self, times: int, layer: int) -> Prefix:
        """Return what layers below `layer` give for the same batch written several times.

        Only what leaves the last of them is read, so all of them give that."""
        copies = Prefix(self.model)
        if layer > 0:
            last = self.outputs[layer - 1]
            copies.outputs = [_repeat_output(last, times)] * layer
        return copies

    @contextmanager
    def skipping(self, layer: int, session: CountsLayers) -> Iterator[None]:
        """Let layers below `layer` give what they gave, to this thread alone.

        The session counts them as seen, so that shared modules know which layer they are."""
        calls = 0
        owner = threading.get_ident()
        entries = self.model.sites.entries

        def replacement(module: nn.Module) -> Any:
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
            # Another tool has put its own forward there: it is left to run.
            layer = 0
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


def _repeat_output(output: Any, times: int) -> Any:
    """Return the output of a layer for a batch written several times in a row."""
    if isinstance(output, Tensor):
        return output.repeat(times, *[1] * (output.ndim - 1))
    if isinstance(output, tuple):
        return tuple(_repeat_output(part, times) for part in output)
    return output
