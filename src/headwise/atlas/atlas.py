"""The result of a run: labelled arrays of every analysis with their provenance."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from headwise.atlas.arrays import netcdf_bytes
from headwise.atlas.card import HeadCard
from headwise.atlas.check import MAX_BYTES
from headwise.atlas.describe import describe_heads
from headwise.atlas.file import atlas_digest, read_tree, remember_seal, sealed, to_tree
from headwise.atlas.hub import (
    ATLAS_FILE,
    HubUpload,
    dataset_card,
    download_atlas,
    is_hub_address,
    upload_atlas,
)
from headwise.atlas.representation import html_card
from headwise.atlas.tables import extremes, long_table, measures
from headwise.core.display import NotebookDisplay, plot_of
from headwise.core.errors import OutputError, ParameterError, unknown
from headwise.core.files import write_atomically
from headwise.core.labels import labelled, parse_head


class Atlas(NotebookDisplay, Mapping[str, xr.Dataset]):
    """The results on every head of a model: one labelled `xarray.Dataset` for each analysis, by name.

    Parameters
    ----------
    datasets : mapping of str to xarray.Dataset
        The result of each analysis. A dim without labels gets 0, 1, 2 …; a variable with the name
        of a dim is rejected.
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
        self._datasets: dict[str, xr.Dataset] = {}
        for name, dataset in sorted(datasets.items()):
            self._datasets[name] = labelled(name, dataset)
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
        """The digest of variables, attributes and provenance, which the file contains too."""
        return atlas_digest(self._datasets, self.provenance)

    @property
    def layers(self) -> int:
        """The number of layers of the model."""
        return self._largest_size("layer")

    @property
    def heads(self) -> int:
        """The number of heads of a layer."""
        return self._largest_size("head")

    def _largest_size(self, dim: str) -> int:
        return max((dataset.sizes.get(dim, 0) for dataset in self._datasets.values()), default=0)

    # --- the file ---------------------------------------------------------------------------------

    def to_datatree(self) -> xr.DataTree:
        """Return the whole atlas as an `xarray.DataTree`, like the one in the file."""
        return to_tree(self._datasets, self.provenance)

    def to_bytes(self) -> bytes:
        """Return the bytes of the atlas's NetCDF file; the same atlas gives the same bytes."""
        # In memory: HDF5 never writes to a disk that may be full.
        content = netcdf_bytes(self.to_datatree())
        remember_seal(hashlib.sha256(content).hexdigest())
        return sealed(content)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the atlas as NetCDF, atomically, and return the path.

        Parameters
        ----------
        path : str or Path
            Where to write; folders are created.
        overwrite : bool, default False
            Whether an existing file may be replaced.
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
        """Read an atlas from a file.

        A file that is no atlas, is damaged, or has a later format is rejected with the reason before
        any of its arrays is read. The digest of format 3 covers everything, so that edited
        provenance is rejected too; that of formats 1 and 2 covers the variables alone.

        Parameters
        ----------
        path : str or Path
            The file, or the folder with its `atlas.nc`. Files of formats 1 and 2 are read too; their
            variables get the current names. `hf://OWNER/NAME` is the atlas of a dataset on the
            Hugging Face hub, `hf://OWNER/NAME@REVISION/FILE.nc` one of its revisions and files.
        max_bytes : int or None, default 4 GiB
            The most its arrays may take in memory; None for no limit.
        """
        if is_hub_address(path):
            path = download_atlas(str(path))
        return cls(*read_tree(Path(path), max_bytes))

    def joined(self, *others: Atlas) -> Atlas:
        """Return an atlas with the groups of other results on the same model too.

        A result of `headwise.cache` then shows on the cards and the page of an atlas. A group that
        both have is rejected, and so is a result on another model. The provenance is this atlas's;
        that of the others is kept in its entry `joined`.

        Parameters
        ----------
        *others : Atlas
            Results on the same model, as `Atlas.load` reads them.

        Examples
        --------
        >>> first = Atlas({"surface": xr.Dataset()}, {"model": {"name": "tiny"}})
        >>> other = Atlas({"cache": xr.Dataset()}, {"model": {"name": "tiny"}})
        >>> list(first.joined(other))
        ['cache', 'surface']
        """
        datasets = dict(self._datasets)
        joined_provenance = list(self.provenance.get("joined", ()))
        own_model = self.provenance.get("model", {})
        for other in others:
            other_model = other.provenance.get("model", {})
            # The hash of the weights says it if both were hashed in the same way, else the sizes.
            compared = ["architecture", "layers", "heads"]
            if own_model.get("weights_from") == other_model.get("weights_from"):
                compared.append("weight_hash")
            for name in compared:
                if own_model.get(name) != other_model.get(name):
                    raise ParameterError(
                        f"The results are not on the same model: {name} is {own_model.get(name)} "
                        f"of {own_model.get('name')}, and {other_model.get(name)} of "
                        f"{other_model.get('name')}."
                    )
            twice = sorted(set(other) & set(datasets))
            if twice:
                raise ParameterError(f"Both results have the group {', '.join(twice)}.")
            datasets |= other
            joined_provenance.append(other.provenance)
        return Atlas(datasets, {**self.provenance, "joined": joined_provenance})

    def push_to_hub(
        self,
        repo_id: str,
        *,
        path_in_repo: str = ATLAS_FILE,
        private: bool | None = None,
        token: str | None = None,
        revision: str | None = None,
        commit_message: str | None = None,
        create_pr: bool = False,
    ) -> str:
        """Upload the atlas to a dataset of the Hugging Face hub; `Atlas.load("hf://OWNER/NAME")`
        reads it again.

        Parameters
        ----------
        repo_id : str
            The dataset, `OWNER/NAME`; it is created where there is none.
        path_in_repo : str, default "atlas.nc"
            The file, for datasets of several atlases.
        private : bool, optional
            Whether a new dataset is private; by default as your account is set.
        token : str, optional
            By default the one of `hf auth login`, or of the environment.
        revision : str, optional
            The branch; by default `main`.
        commit_message : str, optional
            By default "Upload atlas".
        create_pr : bool, default False
            Open a pull request instead of writing to the branch.

        Returns
        -------
        str
            The address of the commit.
        """
        card = dataset_card(self._title(), self.provenance, repo_id, path_in_repo)
        upload = HubUpload(
            repo_id, path_in_repo, private, token, revision, commit_message, create_pr
        )
        return upload_atlas(self.to_bytes(), card, upload)

    # --- tables and views -------------------------------------------------------------------------

    def head(self, layer: int | str, head: int | None = None) -> HeadCard:
        """Return all results on one head: `atlas.head(7, 9)` or `atlas.head("L7H9")`."""
        if isinstance(layer, str):
            layer, head = parse_head(layer)
        if head is None or not (0 <= layer < self.layers and 0 <= head < self.heads):
            raise ParameterError(
                f"There is no head L{layer}H{head}: this model has {self.layers} layers of "
                f"{self.heads} heads, counted from 0."
            )
        return HeadCard(self._datasets, (self.layers, self.heads), layer, head)

    def describe(self) -> pd.DataFrame:
        """Return a row for each head: its label, and the results behind it with their numbers.

        See `headwise.atlas.describe`."""
        return describe_heads(self._datasets, self.layers, self.heads)

    def to_dataframe(self, analysis: str | None = None) -> pd.DataFrame:
        """Return a long table with one row for each value.

        Its columns are `analysis`, `variable`, `layer`, `head`, the other labels as `item`, `value`,
        `n`, `low`, `high`.

        Parameters
        ----------
        analysis : str, optional
            Only this one; by default all.
        """
        return long_table(self._selected(analysis))

    def summary(self, analysis: str | None = None) -> pd.DataFrame:
        """Return for each measure and label its mean over heads, and its lowest and highest head.

        Curves (over 40 labels) are left out.

        Parameters
        ----------
        analysis : str, optional
            Only this one; by default all.
        """
        return extremes(self._selected(analysis))

    def _selected(self, analysis: str | None) -> Mapping[str, xr.Dataset]:
        if analysis is None:
            return self._datasets
        return {analysis: self[analysis]}

    def plot(self, measure: str = "") -> Any:
        """Draw all heads with their labels, coloured by a measure, or draw one of the figures.

        A notebook displays the view.

        Parameters
        ----------
        measure : str, default ""
            A measure (`surface.entropy`, `dependency.accuracy.obj`, or its short name if only one
            measure has it: `entropy`), or a figure by the name of its file (`distance-map`). By
            default heads are coloured by their labels.

        Returns
        -------
        View
            With `figure` (of matplotlib), `save("entropy.svg")`, and `widget()`, whose selection
            Python can read and set.
        """
        return plot_of(self, measure)

    def __repr__(self) -> str:
        lines = [f"<{self._title()}>"]
        for name, text in self._contents():
            lines.append(f"  {name}: {text}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_card(self._title(), self._contents())

    def _title(self) -> str:
        model = self.provenance.get("model", {})
        corpus = self.provenance.get("corpus", {})
        return (
            f"headwise.Atlas of {model.get('name', '?')}: {self.layers} layers x {self.heads} heads, "
            f"{corpus.get('examples', '?')} examples of {corpus.get('name', '?')}"
        )

    def _contents(self) -> list[tuple[str, str]]:
        """Return the analyses and their measures."""
        return [(name, ", ".join(measures(dataset))) for name, dataset in self.items()]
