"""Running only the layers from a given one on: what the layers below gave in an undisturbed run is
given again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from headwise.models import HeadModel
from headwise.models.forward_call import only_in_this_thread
from headwise.models.session import Session
from headwise.models.sites import Sites


class Prefix:
    """What each layer of a model gave on one batch, in the order of the layers' calls (a module
    shared between layers is called several times).

    `recording` keeps it during a run; `skipping(l)` makes layers 0 to l−1 give it again without
    computing anything. Layer outputs are all that passes from one layer to the next in most
    architectures; `serves` says whether the layers are modules that can be stood in for, and the
    first batch is compared with whole runs."""

    def __init__(self, model: HeadModel) -> None:
        self.model = model
        self.outputs: list[Any] = []
        self.head_outputs: dict[int, Tensor] = {}

    @staticmethod
    def serves(sites: Sites) -> bool:
        """Whether every layer is a module of its own (or one that is called once for each
        layer)."""
        alone = all(site.entry is not None for site in sites.by_module.values())
        return alone and len(sites.entries) == len(sites.by_module)

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.outputs = []

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            self.outputs.append(output)

        with ExitStack() as stack:
            for entry in self.model.sites.entries:
                stack.callback(entry.register_forward_hook(only_in_this_thread(keep)).remove)
            yield

    @contextmanager
    def skipping(self, layer: int, session: Session) -> Iterator[None]:
        """Layers below `layer` give what they gave, to this thread alone; the session counts them
        as seen, so that shared modules know which layer they are."""
        calls, owner = 0, threading.get_ident()
        entries = self.model.sites.entries

        def stand_in(module: nn.Module) -> Any:
            own = type(module).forward.__get__(module)

            def forward(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                if threading.get_ident() != owner:
                    return own(*args, **kwargs)
                calls += 1
                return self.outputs[calls - 1] if calls <= layer else own(*args, **kwargs)

            return forward

        before = [entry.__dict__.get("forward") for entry in entries]
        if any(own is not None for own in before):
            layer = 0  # another tool has put its own forward there: it is left to run
            yield
            return
        session.layer_count.skip(layer)
        for entry in entries:
            entry.forward = stand_in(entry)
        try:
            yield
        finally:
            for entry in entries:
                del entry.forward
