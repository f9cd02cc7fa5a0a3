"""Jo & Myaeng's released accuracies of heads (transformer_anatomy, MIT), as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from headwise.core.labels import head_name
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.shared import best_head

# SentEval's names of the tasks, by the names in the released file.
TASKS = {
    "Length": "sentence_length",
    "WordContent": "word_content",
    "Depth": "tree_depth",
    "TopConstituents": "top_constituents",
    "BigramShift": "bigram_shift",
    "Tense": "past_present",
    "SubjNumber": "subj_number",
    "ObjNumber": "obj_number",
    "OddManOut": "odd_man_out",
    "CoordinationInversion": "coordination_inversion",
}
BERT_BASE = "bert-base-uncased"


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedAccuracies:
    """Accuracies in per cent of one model on one task, `[layer, head]`; of whole layers `[layer]`
    where they were released."""

    validation: np.ndarray
    test: np.ndarray
    layer_validation: np.ndarray | None
    layer_test: np.ndarray | None

    @property
    def best_head(self) -> tuple[int, int]:
        """The head with the best validation accuracy; of equals the first."""
        return best_head(self.validation)

    @property
    def best_head_text(self) -> str:
        """The name of that head, with its test accuracy."""
        return f"{head_name(*self.best_head)} {self.test[self.best_head]:.1f}"

    def top_heads(self, count: int) -> list[tuple[int, int]]:
        """Return the heads with the best validation accuracies, as `probing` picks them."""
        order = np.argsort(-self.validation, axis=None, kind="stable")[:count]
        return [divmod(int(index), self.validation.shape[1]) for index in order]


def released_accuracies(
    context: ReproductionContext,
) -> dict[tuple[str, str], ReleasedAccuracies]:
    """Read the released file, by model and task (in SentEval's names)."""
    table = pd.read_csv(context.data.path("jo2020"))
    # The released file lists some heads twice.
    table = table.drop_duplicates(["model", "task", "layer", "head"])
    accuracies = {}
    for (model, task), part in table.groupby(["model", "task"], sort=True):
        heads = part[part["head"] >= 0]
        # Head -1 stands for the whole layer.
        layers = part[part["head"] < 0].sort_values("layer")
        accuracies[str(model), TASKS.get(str(task), str(task))] = ReleasedAccuracies(
            _head_array(heads, "validation"),
            _head_array(heads, "test"),
            layers["validation"].to_numpy() if len(layers) else None,
            layers["test"].to_numpy() if len(layers) else None,
        )
    return accuracies


def _head_array(heads: pd.DataFrame, column: str) -> np.ndarray:
    """Return a column as `[layer, head]`; NaN for heads that are not listed."""
    n_layers = int(heads["layer"].max()) + 1
    n_heads = int(heads["head"].max()) + 1
    values = np.full((n_layers, n_heads), np.nan)
    values[heads["layer"], heads["head"]] = heads[column]
    return values
