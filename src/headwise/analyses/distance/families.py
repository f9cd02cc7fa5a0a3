"""What families of heads do: behaviours of other analyses, averaged over families (Clark et al. 2019, §6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from headwise.core.behaviours import behaviour_scores, head_labels


def with_behaviours(datasets: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """The same datasets; `distance` gets what its heads and families do, where there is something to take that from.

    `behaviour[head_a]` is one word for each head, `family_behaviour[family, behaviour_name]` the mean of each behaviour
    over the heads of a family, `family_size[family]` their number.
    """
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
    words = head_labels(datasets, layers, heads).ravel()
    labels: dict[str, Any] = {
        "behaviour": ("head_a", words, {"long_name": "what the head does, in a word"}),
        "family_behaviour": (("family", "behaviour_name"), means.T, {"long_name": "mean over the heads of a family"}),
        "family_size": ("family", members.sum(0).astype(np.int64), {"long_name": "heads of the family"}),
    }
    coords = {"family": np.arange(members.shape[1]), "behaviour_name": scores["behaviour"].values}
    out["distance"] = distance.assign(labels).assign_coords(coords)
    return out
