"""The options for opening a model: where it runs, in which precision, which stack."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.core.options import CheckedOptions, option

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel


@dataclass(frozen=True)
class ModelOptions(CheckedOptions):
    """Where a model runs and in which precision; the meaning is that of `HeadModel.open`."""

    # Jobs record the identity of the open model, which includes its precision, and the type of its
    # device: not these options, whose defaults depend on the machine.
    device: Any = option(
        None,
        cli_type=str | None,
        in_identity=False,
        help="cpu, cuda, cuda:1, mps ...; default: the best available.",
    )
    dtype: Any = option(
        None,
        in_identity=False,
        cli_type=str | None,
        help="Precision of the weights: float32, bfloat16, float16; auto (default): the "
        "checkpoint's own on a GPU, at least float32 on a CPU.",
    )
    device_map: Any = option(
        None,
        in_identity=False,
        cli_type=str | None,
        help="For a model too large for one device: auto, balanced, sequential, or devices by "
        "module as JSON or a .json file; the rest stays in memory or on the disk. Needs the extra "
        "`big`.",
    )

    def keywords(self) -> dict[str, Any]:
        """Return the options by name, for `HeadModel.open` and its like."""
        return {declared.name: getattr(self, declared.name) for declared in fields(self)}

    def open(self, model: HeadModel | str | Path | None) -> HeadModel:
        """Return the model, opened with these options where it is not open yet."""
        from headwise.models.headmodel import HeadModel

        if isinstance(model, HeadModel):
            return model
        return HeadModel.open(model, **self.keywords())


@dataclass(frozen=True)
class StackOptions(ModelOptions):
    """Also which stack of an encoder-decoder."""

    stack: str | None = option(
        None,
        help="Of an encoder-decoder: encoder (default), decoder or cross; the last two need pairs "
        "of source and target (fields `source` and `target`, or two text fields).",
    )
