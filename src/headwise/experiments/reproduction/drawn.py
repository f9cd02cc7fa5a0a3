"""Figures of analyses by their name, as pictures of an entry."""

from __future__ import annotations

import xarray as xr

from headwise.core.errors import ParameterError, unknown
from headwise.experiments.reproduction.frame import Picture
from headwise.plots import figures_for


def pictures(group: str, dataset: xr.Dataset, *names: str) -> list[Picture]:
    """The registered figures of a result, in the order of their names here; those that do not apply are left out."""
    known = {spec.name: spec for spec in figures_for(group)}
    found = []
    for name in names:
        if name not in known:
            raise ParameterError(unknown(f"figure of {group}", name, known))
        found += [
            Picture(f"{group}-{drawn.name}", drawn.title, drawn.caption, drawn.figure)
            for drawn in known[name].draw(dataset)
        ]
    return found
