"""Statistics of attention weights, computed while a model runs.

An analysis states what it needs as a `StatsRequest` and gets a `StatsResult` for each layer:

- `request.py`: the request and its result;
- `reducer.py`, `equal_labels.py`: statistics from blocks of weights, on any device; and who may
  attend to whom (`Visibility`), the same for all layers with one mask;
- `cpu_attention.py`: attention on a CPU, reduced block by block in the cache;
- `fused.py`, `launch.py`, `kernels.py`: the same statistics inside a GPU's attention kernel.

Where a head's entropy comes from: on a CPU `StatsReducer._finish_entropy_of_scores` where scores
are known, else `StatsReducer._add_entropy_of_weights`; on a GPU the kernel `attend` in
`kernels.py`."""

from headwise.models.statistics.reducer import Visibility, compute_statistics
from headwise.models.statistics.request import (
    MIN_MASS_WITHOUT_FIRST,
    StatsRequest,
    StatsResult,
    WithoutFirst,
    can_join,
    join_layers,
)

__all__ = [
    "MIN_MASS_WITHOUT_FIRST",
    "StatsRequest",
    "StatsResult",
    "Visibility",
    "WithoutFirst",
    "can_join",
    "compute_statistics",
    "join_layers",
]
