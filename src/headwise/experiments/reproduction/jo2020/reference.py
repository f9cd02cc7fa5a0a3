"""Jo & Myaeng's released accuracies of heads (transformer_anatomy, MIT), as labelled arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from headwise.core.labels import head_name
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.shared import best_head

# Our names of SentEval's tasks by theirs.
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
BASE = "bert-base-uncased"


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """Scores in percent of one model on one task, `[layer, head]`; of layers `[layer]` where they
    were released."""

    validation: np.ndarray
    test: np.ndarray
    layer_validation: np.ndarray | None
    layer_test: np.ndarray | None

    @property
    def best_head(self) -> tuple[int, int]:
        """The head with the best validation score; of equals the first."""
        return best_head(self.validation)

    def told(self) -> str:
        """That head, with its test score."""
        return f"{head_name(*self.best_head)} {self.test[self.best_head]:.1f}"

    def top(self, count: int) -> list[tuple[int, int]]:
        """The heads with the best validation scores, as `probing` picks them."""
        order = np.argsort(-self.validation, axis=None, kind="stable")[:count]
        return [divmod(int(place), self.validation.shape[1]) for place in order]


def released(bench: Bench) -> dict[tuple[str, str], Released]:
    """By model and (our name of the) task; a head that was entered twice counts once."""
    table = pd.read_csv(bench.data.path("jo2020")).drop_duplicates(
        ["model", "task", "layer", "head"]
    )
    found = {}
    for (model, task), part in table.groupby(["model", "task"], sort=True):
        heads, whole = part[part["head"] >= 0], part[part["head"] < 0].sort_values("layer")
        shape = int(heads["layer"].max()) + 1, int(heads["head"].max()) + 1
        planes = []
        for column in ("validation", "test"):
            plane = np.full(shape, np.nan)
            plane[heads["layer"], heads["head"]] = heads[column]
            planes.append(plane)
        layers = [
            whole[column].to_numpy() if len(whole) else None for column in ("validation", "test")
        ]
        found[str(model), TASKS.get(str(task), str(task))] = Released(*planes, *layers)
    return found
