"""What families of heads do: the behaviours other analyses found, averaged over the families that `distance` found (Clark et al. 2019, §6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from headwise.core.behaviours import behaviour_scores, head_labels


def with_behaviours(datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """The same datasets; `distance` gets `behaviour[head_a]`, one word for each head, and `family_behaviour[family, behaviour_name]`, the mean of
    each behaviour over the heads of a family, with `family_size[family]`, where there is something to take them from."""
    out = dict(datasets)
    distance = datasets.get("distance")
    if distance is None or "cluster" not in distance:
        return out
    scores = behaviour_scores(datasets)
    if not scores.size:
        return out
    layers, heads = scores.sizes["layer"], scores.sizes["head"]
    if layers * heads != distance.sizes["head_a"]:
        return out
    family = distance["cluster"].values
    members = np.eye(int(family.max()) + 1)[family]  # [head, family]
    flat = scores.values.reshape(len(scores), -1)
    present = np.isfinite(flat).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = (np.where(present > 0, flat, 0.0) @ members) / (present @ members)
    labels: dict[str, Any] = {
        "behaviour": (
            "head_a",
            head_labels(datasets, layers, heads).ravel(),
            {"long_name": "what the head does, in a word"},
        ),
        "family_behaviour": (("family", "behaviour_name"), means.T, {"long_name": "mean over the heads of a family"}),
        "family_size": ("family", members.sum(0).astype(np.int64), {"long_name": "heads of the family"}),
    }
    out["distance"] = distance.assign(labels).assign_coords(
        family=np.arange(members.shape[1]), behaviour_name=scores["behaviour"].values
    )
    return out
