"""The result of a run: labelled arrays of every analysis with their provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from headwise.atlas.arrays import netcdf_bytes
from headwise.atlas.card import HeadCard
from headwise.atlas.check import MAX_BYTES
from headwise.atlas.describe import describe_heads
from headwise.atlas.file import atlas_digest, read_tree, to_tree
from headwise.atlas.representation import html_card
from headwise.atlas.seal import sealed
from headwise.atlas.tables import extremes, long_table, measures
from headwise.core.display import NotebookDisplay, plot_of
from headwise.core.errors import OutputError, ParameterError, unknown
from headwise.core.files import write_atomically
from headwise.core.labels import labelled, parse_head


class Atlas(NotebookDisplay, Mapping[str, xr.Dataset]):
    """What is known of every head of a model: one `xarray.Dataset` for each analysis, by name, with
    labels on every dim.

    Parameters
    ----------
    datasets : mapping of str to xarray.Dataset
        The result of each analysis. A dim without labels gets 0, 1, 2 …; a variable named like a
        dim is refused.
    provenance : mapping, optional
        What was run on what: model, corpus, parameters, versions. Strings, numbers, lists and
        mappings of these.

    Examples
    --------
    >>> values = xr.DataArray([[0.5, 2.0]], dims=("layer", "head"))
    >>> atlas = Atlas({"surface": xr.Dataset({"entropy": values})}, {"model": {"name": "tiny"}})
    >>> float(atlas["surface"]["entropy"].sel(layer=0, head=1))
    2.0
    >>> atlas.head("L0H1")["surface", "entropy"]
    2.0
    """

    def __init__(
        self, datasets: Mapping[str, xr.Dataset], provenance: Mapping[str, Any] | None = None
    ) -> None:
        self._datasets = {
            name: labelled(name, dataset) for name, dataset in sorted(datasets.items())
        }
        self.provenance = dict(provenance or {})

    def __getitem__(self, analysis: str) -> xr.Dataset:
        if analysis not in self._datasets:
            raise ParameterError(unknown("analysis in this atlas", analysis, self._datasets))
        return self._datasets[analysis]

    def __contains__(self, analysis: object) -> bool:
        return analysis in self._datasets

    def __iter__(self) -> Iterator[str]:
        return iter(self._datasets)

    def __len__(self) -> int:
        return len(self._datasets)

    @property
    def digest(self) -> str:
        """A digest over everything: variables, attributes, provenance. The file carries it too."""
        return atlas_digest(self._datasets, self.provenance)

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return max((d.sizes.get("layer", 0) for d in self._datasets.values()), default=0)

    @property
    def heads(self) -> int:
        """How many heads a layer has."""
        return max((d.sizes.get("head", 0) for d in self._datasets.values()), default=0)

    # --- the file ---------------------------------------------------------------------------------

    def to_datatree(self) -> xr.DataTree:
        """The whole atlas as an `xarray.DataTree`, as it lies in the file."""
        return to_tree(self._datasets, self.provenance)

    def to_bytes(self) -> bytes:
        """The whole atlas as the bytes of its NetCDF file: the same atlas gives the same bytes."""
        return sealed(
            netcdf_bytes(self.to_datatree())
        )  # in memory: HDF5 never writes to a disk that may be full

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the atlas as NetCDF, whole or not at all.

        Parameters
        ----------
        path : str or Path
            Where to; folders are made.
        overwrite : bool, default False
            Whether a file that is there may be replaced.
        """
        path = Path(path)
        if path.exists() and not overwrite:
            raise OutputError(
                f"{path} exists; pass overwrite=True to replace it, or choose another name.",
                option="overwrite",
            )
        write_atomically(path, self.to_bytes())
        return path

    @classmethod
    def load(cls, path: str | Path, *, max_bytes: int | None = MAX_BYTES) -> Atlas:
        """Read an atlas; a file that is none, is damaged, or is of a later format is refused with
        the reason, before any of its arrays is read.

        The digest of a file of format 3 covers all of it, so that edited provenance is refused too;
        that of the formats 1 and 2 covers the variables alone.

        Parameters
        ----------
        path : str or Path
            The file, or the folder with its `atlas.nc`. Files of formats 1 and 2 are read too, with
            the names of today.
        max_bytes : int or None, default 4 GiB
            The most its arrays may take in memory; None for no limit.
        """
        return cls(*read_tree(Path(path), max_bytes))

    # --- looking at it ----------------------------------------------------------------------------

    def head(self, layer: int | str, head: int | None = None) -> HeadCard:
        """Everything known of one head: `atlas.head(7, 9)` or `atlas.head("L7H9")`."""
        if isinstance(layer, str):
            layer, head = parse_head(layer)
        if head is None or not (0 <= layer < self.layers and 0 <= head < self.heads):
            raise ParameterError(
                f"There is no head L{layer}H{head}: this model has {self.layers} layers of {self.heads} heads, "
                "counted from 0."
            )
        return HeadCard(self._datasets, (self.layers, self.heads), layer, head)

    def describe(self) -> pd.DataFrame:
        """What each head does, one row for each: a word for it, and what the analyses found with
        their numbers (see `headwise.atlas.describe`)."""
        return describe_heads(self._datasets, self.layers, self.heads)

    def to_dataframe(self, analysis: str | None = None) -> pd.DataFrame:
        """A long table: one row for each value, with columns `analysis`, `variable`, `layer`,
        `head`, the other labels as `item`, `value`, `n`, `low`, `high`.

        Parameters
        ----------
        analysis : str, optional
            Only this one; all unless given.
        """
        return long_table(self._datasets if analysis is None else {analysis: self[analysis]})

    def summary(self, analysis: str | None = None) -> pd.DataFrame:
        """For each per-head measure and label: mean over heads, lowest and highest head with their
        values. Curves (over 40 labels) are left out.

        Parameters
        ----------
        analysis : str, optional
            Only this one; all unless given.
        """
        return extremes(self._datasets if analysis is None else {analysis: self[analysis]})

    def plot(self, measure: str = "") -> Any:
        """Draw all heads: what each does, or coloured by a measure; or one of the figures. Shows
        itself in a notebook.

        Parameters
        ----------
        measure : str, default ""
            A measure (`surface.entropy`, `dependency.accuracy.obj`, or its short name where that is
            clear: `entropy`), or a figure by the name of its file (`distance-map`); what each head
            does unless given.

        Returns
        -------
        View
            With `figure` (of matplotlib), `save("entropy.svg")`, and `widget()` for a view Python
            can listen to.
        """
        return plot_of(self, measure)

    def __repr__(self) -> str:
        return "\n".join(
            [f"<{self._title()}>", *(f"  {name}: {text}" for name, text in self._contents())]
        )

    def _repr_html_(self) -> str:
        return html_card(self._title(), self._contents())

    def _title(self) -> str:
        model, corpus = self.provenance.get("model", {}), self.provenance.get("corpus", {})
        return (
            f"headwise.Atlas of {model.get('name', '?')}: {self.layers} layers x {self.heads} heads, "
            f"{corpus.get('examples', '?')} examples of {corpus.get('name', '?')}"
        )

    def _contents(self) -> list[tuple[str, str]]:
        return [(name, ", ".join(measures(dataset))) for name, dataset in self.items()]
