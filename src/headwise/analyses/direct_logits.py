"""Experiments on what heads add directly to the logits: which models allow it."""

from __future__ import annotations

from typing import ClassVar

from headwise.analyses.contract import Experiment, Shape
from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.structure import Structure, find_structure


class DirectLogitExperiment(Experiment):
    """An experiment that follows the outputs of heads through the weights to the logits.

    Write `perform`, which begins with `structure_to_logits`."""

    reads_logits: ClassVar[bool] = True

    def unsupported_reason(self, shape: Shape) -> str | None:
        if shape.extras.get("reads_source"):
            return "the model is an encoder-decoder, whose weights are not followed to the logits"
        if not shape.causal or shape.extras.get("lm_kind") != "causal":
            return "the model has no language-modelling head"
        return None

    @staticmethod
    def structure_to_logits(model: HeadModel) -> Structure:
        """Return the parts of a model; raise an error where its heads do not lead to the logits."""
        structure = find_structure(model)
        if structure.refusal is not None:
            raise ModelError(f"Heads add nothing of their own to the logits: {structure.refusal}.")
        return structure
