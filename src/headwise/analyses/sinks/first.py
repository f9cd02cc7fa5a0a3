"""What rows give to the first token: the part that every question about it needs."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.analyses.surface.analysis import FIRST
from headwise.models.ask import Answers
from headwise.text.encode import Batch

SHORTEST = 3  # tokens of an input that has anything to say


def on_first(answers: Answers, batch: Batch, threshold: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Which rows are asked, bool `[example, 1, row]`: those after the first that see it, of inputs that are long
    enough. And sums over them: how many they are (`rows`), their weights on the first token (`first`), how many of
    these are above the threshold (`above`), and what a uniform head would give (`uniform`)."""
    first, even = answers.columns[FIRST], answers.uniform
    assert even is not None
    uniform = even.columns[FIRST]
    later = torch.arange(first.shape[-1], device=first.device) > 0
    long = (batch.lengths >= SHORTEST)[:, None, None]
    sees = (uniform > 0) & batch.real[:, None] & later & long
    found = {
        "rows": sees.sum(-1),
        "first": (first * sees).sum(-1, dtype=torch.float64),
        "above": ((first > threshold) & sees).sum(-1),
        "uniform": (uniform * sees).sum(-1, dtype=torch.float64),
    }
    return sees, found
