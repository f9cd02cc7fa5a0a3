"""The architectures that are supported and not supported, by opening a tiny model of each."""

from __future__ import annotations

import importlib.util
import logging
from itertools import islice
from typing import Any

import torch

from docs_site.cache import ROOT, kept, quick
from docs_site.docstrings import table
from headwise.core.errors import ModelError
from headwise.models import HeadModel

TINY = (
    ROOT / "tests" / "models" / "tiny_models.py"
)  # the models that tests compare with their own eager attention


def page() -> str:
    """Markdown: three tables."""
    found = kept("architectures", read_architectures)
    families = len({row[1] for row in found["supported"] + found["pairs"]})
    return (
        "\n\n".join(
            [
                "# Supported architectures",
                f"Made by this site's build, which opens a tiny random model of each: {families} model classes of "
                f"transformers {found['transformers']} are supported. "
                "`tests/models/test_coverage.py` compares each with its own eager "
                "attention, values, outputs and hidden states, to 1e-5. Others that use transformers' "
                "attention registry are supported too; those that do not are rejected by name, in one sentence, before "
                "anything runs.",
                "## Encoders and decoders",
                table(
                    ("family", "class of transformers", "kind", "what is particular"),
                    found["supported"],
                ),
                "## Encoder-decoders",
                "Each has three stacks, chosen by `--stack encoder`, `decoder` or `cross`.",
                table(("family", "class of transformers", "stacks"), found["pairs"]),
                "## Not supported",
                table(
                    ("family", "class of transformers", "what headwise says"),
                    found["not_supported"],
                ),
            ]
        )
        + "\n"
    )


def read_architectures() -> dict[str, Any]:
    """Open one of each."""
    import transformers

    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    spec = importlib.util.spec_from_file_location("tiny_models", TINY)
    assert spec is not None
    assert spec.loader is not None
    tiny = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny)
    most = 2 if quick() else None
    supported = [
        (name, f"`{made[1]}`", *_kind(tiny.build(*made), tiny))
        for name, made in islice(tiny.SUPPORTED.items(), most)
    ]
    pairs = []
    for name, made in islice(tiny.SEQ2SEQ.items(), most):
        stacks = []
        for stack in ("encoder", "decoder", "cross"):
            HeadModel.open(tiny.build(*made), stack=stack)
            stacks.append(stack)
        pairs.append((name, f"`{made[1]}`", ", ".join(stacks)))
    not_supported = []
    for name, made in islice(tiny.NOT_SUPPORTED.items(), most):
        try:
            HeadModel.open(tiny.build(*made))
        except ModelError as error:
            not_supported.append((name, f"`{made[1]}`", str(error)))
    return {
        "supported": supported,
        "pairs": pairs,
        "not_supported": not_supported,
        "transformers": transformers.__version__,
    }


def _kind(module: Any, tiny: Any) -> tuple[str, str]:
    """Encoder or decoder, and what is particular: told by what the model does."""
    model = HeadModel.open(module)
    trace = model.trace(tiny.ids_batch((11,), model.pad_id))
    assert trace.visible is not None
    seen = trace.visible[0, :, 0]
    particular = []
    if model.kv_heads != model.heads:
        particular.append(f"{model.heads // model.kv_heads} heads share keys and values")
    if int(seen.sum(-1).max(-1).values.min()) < 11:
        particular.append("sliding windows")
    if trace.sink is not None and bool((trace.sink > 0).any()):
        particular.append("learned sinks")
    return "decoder" if model.causal else "encoder", ", ".join(particular)
