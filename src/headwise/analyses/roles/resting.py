"""Roles of heads that rest on the first token, with it left out: tests, and who has which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from headwise.analyses.roles.significance import DIMS, Variables, labelled, strong, without_rounding
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import correct
from headwise.stats.tests import z_test

if TYPE_CHECKING:
    from headwise.analyses.roles.analysis import Roles

RESTS = 0.5  # of its attention on the first token


def tested_rest(moments: Moments, resting: Moments, tau: float, asked: Roles) -> Variables:
    """Tests of `bias_rest[layer, head, role]` of the heads that rest; NaN for the others."""
    count = moments.count.numpy()
    mean = np.where(count > 0, moments.mean.numpy(), np.nan)
    mean, variance = without_rounding(mean, moments.variance(), tau)
    rests = (resting.mean.numpy() > RESTS)[..., None]
    p_value = np.where(rests, z_test(mean, variance, count, tau).p_value, np.nan)
    made = {
        "bias_rest_spread": (np.sqrt(variance).astype(np.float32), "standard deviation of the scores behind bias_rest"),
        "bias_rest_p": (p_value, "one-tailed z-test of mean ≤ τ, the first token left out; heads that rest"),
        "bias_rest_p_adjusted": (
            correct(p_value, asked.correction),
            f"bias_rest_p corrected over heads that rest and roles ({asked.correction})",
        ),
    }
    found = labelled(DIMS, made)
    known = {"bias_rest": xr.Variable(DIMS, mean), "bias_rest_n": xr.Variable(DIMS, count)}
    dataset = xr.Dataset(found | known, attrs={"tau": tau})
    return found | {"has_role_rest": decided_rest(dataset, asked, np.full(mean.shape[-1], np.nan))}


def decided_rest(dataset: xr.Dataset, asked: Roles, bound: np.ndarray) -> xr.Variable:
    """Who has which role once the first token is left out, by the rule for all heads; `bound[role]` is NaN where what
    random heads reach is not known."""
    mean, count, spread, p = (
        dataset[f"bias_rest{suffix}"].transpose(*DIMS).values for suffix in ("", "_n", "_spread", "_p_adjusted")
    )
    able = strong(float(dataset.attrs["tau"]), mean, np.square(spread.astype(float)), count, asked, bound)
    has = able & (p < asked.alpha)
    about = f"as has_role_adjusted, of heads that rest, the first token left out: bias_rest_p_adjusted < {asked.alpha}"
    return xr.Variable(DIMS, has, {"long_name": about})
