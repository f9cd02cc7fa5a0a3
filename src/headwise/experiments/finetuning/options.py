"""The options of `finetune`; this module imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.core.errors import ParameterError
from headwise.core.options import CheckedOptions, option

POOLINGS = ("last_layer", "best_layer", "top_heads")
STARTS = ("none", "random", "pretrained", "frozen")
SAVED_MODELS = ("all", "first", "none")
MAX_LENGTH = 128


def parse_heads(text: str) -> list[str]:
    """Return the names of heads in a list with commas between.

    >>> parse_heads("L7H9, L8H1")
    ['L7H9', 'L8H1']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


@dataclass(frozen=True)
class FinetuneOptions(CheckedOptions):
    """The options of `finetune`: the data, what is trained, how, and how often."""

    # A training records what most options stand for: the fingerprint of the task (`data` to
    # `limit`), the whole recipe (`recipe`, `epochs`, `batch_size`, `learning_rate`), the layer or
    # heads that were chosen (`layer` to `probing`), its own seed and the length of its inputs.
    # `save_models` and `checkpoints` do not change the numbers.
    data: Path | str | None = option(
        None,
        in_identity=False,
        cli_type=Path | None,
        help="The task's folder, or GLUE's folder with the task's in it.",
    )
    train: Any = option(
        None,
        in_identity=False,
        cli_type=str | None,
        help="The training file, instead of the folder's.",
    )
    dev: Any = option(
        None,
        in_identity=False,
        cli_type=str | None,
        help="The file that is scored, instead of the folder's.",
    )
    limit: int | None = option(
        None,
        in_identity=False,
        min=1,
        help="Use at most this many examples, drawn at random by the seed.",
    )
    pooling: str = option(
        "last_layer",
        choices=POOLINGS,
        help="last_layer (the model's own classification class), best_layer (the output of "
        "`layer`, or of the best by a probe on the training part) or top_heads (the outputs of "
        "`heads`, or of the `top` best).",
    )
    start: str = option(
        "pretrained",
        choices=STARTS,
        help="none (no training: pre-trained encoder, random classifier), random (all weights "
        "drawn anew, then trained), pretrained, or frozen (only the head is trained).",
    )
    recipe: Any = option(
        "kovaleva",
        in_identity=False,
        cli_type=str,
        help="kovaleva, jo or pande: optimizer, rate, batch size and epochs of the paper.",
    )
    seeds: Any = option(
        5,
        in_identity=False,
        cli_type=int,
        help="How many trainings, with seeds from `seed` on; in Python also the seeds themselves.",
    )
    seed: int = option(
        0,
        in_identity=False,
        min=0,
        help="The first seed; heads and layers are ranked on a sample drawn with it too.",
    )
    layer: int | None = option(
        None, in_identity=False, help="For best_layer: this layer, instead of the best by a probe."
    )
    heads: Sequence[Any] | None = option(
        None,
        in_identity=False,
        cli_type=str | None,
        parse=parse_heads,
        help="For top_heads: these heads (L7H9,L8H1), instead of the best by a probe.",
    )
    top: int | None = option(
        None,
        in_identity=False,
        min=1,
        help="For top_heads: how many; default: as many as a layer has.",
    )
    probing: Path | str | None = option(
        None,
        in_identity=False,
        cli_type=Path | None,
        help="For top_heads and best_layer: a probing result of this task to take them from.",
    )
    epochs: int | None = option(None, in_identity=False, min=1, help="Instead of the recipe's.")
    batch_size: int | None = option(None, in_identity=False, min=1, help="Instead of the recipe's.")
    learning_rate: float | None = option(
        None, in_identity=False, flag="lr", help="Learning rate instead of the recipe's."
    )
    max_length: int = option(
        MAX_LENGTH,
        in_identity=False,
        min=2,
        help="Cut inputs to this many tokens (special ones included).",
    )
    device: Any = option(
        None,
        in_identity=False,
        cli_type=str | None,
        help="cpu, cuda, cuda:1, mps ...; default: the best available.",
    )
    half: bool = option(False, help="bfloat16 where that is safe (GPU).")
    save_models: str = option(
        "all",
        in_identity=False,
        choices=SAVED_MODELS,
        help="all, first (of the first seed) or none.",
    )
    checkpoints: bool = option(
        True,
        in_identity=False,
        command_line=False,
        help="Keep each finished epoch until the training is done; without, an interrupted call "
        "starts its current training again.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        owners = {"layer": "best_layer", "heads": "top_heads", "top": "top_heads"}
        for name, owner in owners.items():
            if getattr(self, name) is not None and self.pooling != owner:
                raise ParameterError(
                    f"`{name}` belongs to the pooling {owner}; the pooling is {self.pooling}."
                )
        if self.heads is not None and self.top is not None:
            raise ParameterError("Give either `heads` or `top`, not both.")
