"""Statistics of attention weights, computed while a model runs.

An analysis states what it needs as a `StatsRequest` and gets a `StatsResult` for each layer:

- `request.py`: the request and its result;
- `visibility.py`: who may attend to whom (`Visibility`), the same for all layers with one mask;
- `reducer.py`, `equal_labels.py`: statistics from blocks of weights, on any device;
- `cpu_attention.py`: attention on a CPU, reduced block by block in the cache;
- `fused.py`, `launch.py`, `kernels.py`: the same statistics inside a GPU's attention kernel.

Where a head's entropy comes from: `StatsReducer._finish_entropy_of_scores` (CPU), the kernel
`attend` in `kernels.py` (GPU)."""

from headwise.models.statistics.request import (
    MIN_MASS_WITHOUT_SINK,
    StatsRequest,
    StatsResult,
    WithoutSink,
    can_join,
    join_layers,
)
from headwise.models.statistics.visibility import Visibility, compute_statistics

__all__ = [
    "MIN_MASS_WITHOUT_SINK",
    "StatsRequest",
    "StatsResult",
    "Visibility",
    "WithoutSink",
    "can_join",
    "compute_statistics",
    "join_layers",
]
