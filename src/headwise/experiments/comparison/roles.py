"""Roles that heads gain and lose from one model to another (Pande et al. 2021 look at their bias alone)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from headwise.analyses.roles.analysis import Roles
from headwise.analyses.roles.significance import DIMS, held_at
from headwise.experiments.comparison.measures import Measured
from headwise.experiments.comparison.result import third_of

ALPHA = 0.05


def role_changes(change: xr.Dataset, measured: Sequence[Measured], analysis: Roles) -> dict[str, Any]:
    """Variables of the group `change_roles`: who has which role in each model, by the τ of the first, and who gains or
    loses one.

    - `has_role[model_all, layer, head, role]`;
    - `gained`, `lost[model, layer, head, role]`: roles that a head has and had not in the first model, and those it had
      and has no more; `gained_sure`, `lost_sure`: those of them whose bias surely changed that way
      (`bias_change_p_adjusted < 0.05`), since a head at the border of a role crosses it by chance;
    - `gained_count`, `lost_count`, `gained_sure_count`, `lost_sure_count[model, third, role]`: heads in each third of
      the layers; `role_count[model_all, role]`: all heads of a role.

    Parameters
    ----------
    change : Dataset
        The group as far as it is made: `bias_change` and its p-values.
    measured : sequence of Measured
        What `roles` gave for each model, the first first.
    analysis : Roles
        The analysis, whose rules decide.
    """
    tau = float(measured[0].dataset.attrs["tau"])
    found = []
    for one in measured:
        mean, count = (one.dataset[name].transpose(*DIMS).values for name in ("bias", "bias_n"))
        spread = one.dataset["spread"].transpose(*DIMS).values.astype(float)
        found.append(held_at(tau, mean, np.square(spread), count, analysis)[1])
    has = np.stack(found)
    moved = change["bias_change"].transpose("model", *DIMS).values
    sure = change["bias_change_p_adjusted"].transpose("model", *DIMS).values < ALPHA
    gained, lost = has[1:] & ~has[:1], ~has[1:] & has[:1]
    by_head = {
        "gained": (gained, "roles that the head has and had not in the first model"),
        "lost": (lost, "roles that the head had in the first model and has no more"),
        "gained_sure": (gained & sure & (moved > 0), "gained, and the bias surely rose"),
        "lost_sure": (lost & sure & (moved < 0), "lost, and the bias surely fell"),
    }
    thirds = third_of(has.shape[1])
    variables: dict[str, Any] = {"has_role": (("model_all", *DIMS), has, {"long_name": f"has the role at τ = {tau:g}"})}
    for name, (values, about) in by_head.items():
        variables[name] = (("model", *DIMS), values, {"long_name": about})
        counted = np.stack([values[:, thirds == third].sum((1, 2)) for third in range(3)], 1)
        variables[f"{name}_count"] = (("model", "third", "role"), counted, {"long_name": f"heads: {about}"})
    variables["role_count"] = (("model_all", "role"), has.sum((1, 2)), {"long_name": "heads with the role"})
    return variables
