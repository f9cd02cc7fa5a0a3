"""The result of a run: labelled arrays of every analysis with their provenance, in one NetCDF file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headwise.core.errors import AtlasError, OutputError, ParameterError, unknown
from headwise.core.labels import head_name, parse_head, tidy

FORMAT = 1


def dataset_digest(datasets: Mapping[str, xr.Dataset]) -> str:
    """A digest over all variables: names, dims, types, bytes. Attributes are left out."""
    digest = hashlib.sha256()
    for group in sorted(datasets):
        dataset = datasets[group]
        for name in sorted(map(str, dataset.variables)):
            array = dataset.variables[name]
            values = np.ascontiguousarray(array.values)
            text = values.dtype.kind in "UOST"  # which of these kinds a string has depends on whether it was in a file
            data = "\0".join(map(str, values.ravel().tolist())).encode() if text else values.tobytes()
            digest.update(
                f"{group}/{name}{array.dims}{values.shape}{'text' if text else values.dtype.str}".encode() + data
            )
    return digest.hexdigest()


class Atlas(Mapping[str, xr.Dataset]):
    """What is known of every head of a model: one `xarray.Dataset` for each analysis, by name.

    >>> atlas = Atlas.load("atlas/atlas.nc")
    >>> atlas["surface"]["entropy"].sel(layer=7)
    >>> atlas.head(7, 9)
    """

    def __init__(self, datasets: Mapping[str, xr.Dataset], provenance: Mapping[str, Any]) -> None:
        self._datasets = dict(sorted(datasets.items()))
        self.provenance = dict(provenance)

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
        return dataset_digest(self._datasets)

    @property
    def layers(self) -> int:
        return max((d.sizes.get("layer", 0) for d in self._datasets.values()), default=0)

    @property
    def heads(self) -> int:
        return max((d.sizes.get("head", 0) for d in self._datasets.values()), default=0)

    # --- the file ---------------------------------------------------------------------------------------------------

    def to_datatree(self) -> xr.DataTree:
        """The whole atlas as an `xarray.DataTree`, as it lies in the file."""
        root = xr.Dataset(
            attrs={
                "headwise_format": FORMAT,
                "provenance": json.dumps(self.provenance, sort_keys=True),
                "digest": self.digest,
            }
        )
        return xr.DataTree.from_dict({"/": root, **self._datasets})

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the atlas as NetCDF, whole or not at all."""
        path = Path(path)
        if path.exists() and not overwrite:
            raise OutputError(
                f"{path} exists; give --overwrite (overwrite=True) to replace it, or choose another name."
            )
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.to_datatree().to_netcdf(temporary, engine="h5netcdf")
            os.replace(temporary, path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise OutputError(
                f"{path} cannot be written ({error.strerror or error}); free some space or choose another place."
            ) from error
        return path

    @classmethod
    def load(cls, path: str | Path) -> Atlas:
        """Read an atlas; a file that is none, is damaged, or is of a later format is refused with the reason."""
        path = Path(path)
        if path.is_dir():
            path = path / "atlas.nc"
        if not path.exists():
            raise AtlasError(f"There is no file {path}; run `headwise atlas` to make one.")
        try:
            with xr.open_datatree(path, engine="h5netcdf") as tree:
                attrs = dict(tree.attrs)
                datasets = {name: tidy(node.to_dataset().load()) for name, node in tree.children.items()}
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise AtlasError(
                f"{path} is not a NetCDF file that can be read ({type(error).__name__}: {error})."
            ) from error
        if "headwise_format" not in attrs:
            raise AtlasError(f"{path} is a NetCDF file, but not a headwise atlas.")
        if int(attrs["headwise_format"]) > FORMAT:
            raise AtlasError(
                f"{path} has atlas format {attrs['headwise_format']}; this headwise reads up to {FORMAT}: pip install --upgrade headwise."
            )
        atlas = cls(datasets, json.loads(attrs["provenance"]))
        if atlas.digest != attrs["digest"]:
            raise AtlasError(
                f"{path} has been changed or damaged since it was written: its digest does not fit its contents."
            )
        return atlas

    # --- looking at it ----------------------------------------------------------------------------------------------

    def head(self, layer: int | str, head: int | None = None) -> HeadCard:
        """Everything known of one head: `atlas.head(7, 9)` or `atlas.head("L7H9")`."""
        if isinstance(layer, str):
            layer, head = parse_head(layer)
        if head is None or not (0 <= layer < self.layers and 0 <= head < self.heads):
            raise ParameterError(
                f"There is no head L{layer}H{head}: this model has {self.layers} layers of {self.heads} heads, counted from 0."
            )
        return HeadCard(self, layer, head)

    def describe(self) -> pd.DataFrame:
        """What each head does, one row for each: a word for it, and what the analyses found with their numbers (see `headwise.atlas.describe`)."""
        from headwise.atlas.describe import describe_heads

        return describe_heads(self._datasets, self.layers, self.heads)

    def to_dataframe(self, analysis: str | None = None) -> pd.DataFrame:
        """A long table: one row for each value, with columns `analysis`, `variable`, `layer`, `head`, the other labels as `item`, `value`, `n`, `low`, `high`."""
        names = [analysis] if analysis is not None else list(self)
        tables = [_long_table(name, self[name]) for name in names]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def summary(self) -> pd.DataFrame:
        """For each per-head measure and label: mean over heads, lowest and highest head with their values. Curves (over 40 labels) are left out."""
        frame = _per_head(self.to_dataframe())
        frame = frame[frame["value"].notna()]
        rows = []
        for (analysis, variable, item), part in frame.groupby(["analysis", "variable", "item"], sort=False):
            low, high = part.loc[part["value"].idxmin()], part.loc[part["value"].idxmax()]
            rows.append(
                {
                    "analysis": analysis,
                    "variable": variable,
                    "item": item,
                    "mean": part["value"].mean(),
                    "lowest": low["value"],
                    "lowest_head": head_name(int(low["layer"]), int(low["head"])),
                    "highest": high["value"],
                    "highest_head": head_name(int(high["layer"]), int(high["head"])),
                }
            )
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        model, corpus = self.provenance.get("model", {}), self.provenance.get("corpus", {})
        lines = [
            f"<headwise.Atlas of {model.get('name', '?')}: {self.layers} layers x {self.heads} heads, {corpus.get('examples', '?')} examples of {corpus.get('name', '?')}>"
        ]
        lines += [f"  {name}: {', '.join(map(str, measures(dataset)))}" for name, dataset in self.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from headwise.atlas.representation import html_card

        rows = [(name, ", ".join(map(str, measures(dataset)))) for name, dataset in self.items()]
        title = repr(self).splitlines()[0].strip("<>")
        return html_card(title, rows)


class HeadCard:
    """One head: every measure of every analysis at its place, with count and interval, and its rank among all heads (1 is the highest).

    `does` says what it does in a word, with what was found; `table` has the measures; `datasets` everything, curves too, as labelled arrays.
    """

    def __init__(self, atlas: Atlas, layer: int, head: int) -> None:
        self.name = head_name(layer, head)
        self.layer, self.head = layer, head
        self.datasets = {
            name: data.sel(layer=layer, head=head)
            for name, data in atlas.items()
            if {"layer", "head"} <= set(data.dims)
        }
        told = atlas.describe().set_index("name").loc[self.name, ["does", "attention", "finds", "roles", "maps"]]
        self.does = {name: text for name, text in told.items() if text}
        frame = _per_head(atlas.to_dataframe())
        ranks = frame.groupby(["analysis", "variable", "item"], sort=False)["value"].rank(ascending=False, method="min")
        here = (frame["layer"] == layer) & (frame["head"] == head)
        self.table = frame[here].assign(rank=ranks[here]).drop(columns=["layer", "head"]).reset_index(drop=True)

    def __getitem__(self, key: tuple[str, str] | tuple[str, str, str]) -> float:
        """`card["surface", "entropy"]` or `card["surface", "token_type", "sep"]`."""
        analysis, variable, *item = key
        rows = self.table[(self.table["analysis"] == analysis) & (self.table["variable"] == variable)]
        if item:
            rows = rows[rows["item"] == str(item[0])]
        if len(rows) != 1:
            raise ParameterError(f"{key} names {len(rows)} values of head {self.name}; see .table for all.")
        return float(rows["value"].iloc[0])

    def __repr__(self) -> str:
        told = [f"{name}: {text}" for name, text in self.does.items()]
        return "\n".join([f"<headwise head {self.name}>", *told, self.table.to_string(index=False, **_SHOWN)])

    def _repr_html_(self) -> str:
        from headwise.atlas.representation import html_card

        return html_card(f"Head {self.name}", list(self.does.items())) + self.table.to_html(index=False, **_SHOWN)


_SHOWN: dict[str, Any] = {"float_format": "{:.3f}".format, "formatters": dict.fromkeys(("n", "rank"), "{:,.0f}".format)}
CURVE = 40  # a measure with more labels than this is a curve, which a table of measures cannot show


def _per_head(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that speak of one head, without curves."""
    frame = frame[frame["layer"].notna() & frame["head"].notna()]
    labels = frame.groupby(["analysis", "variable"], sort=False)["item"].transform("nunique")
    return frame[labels <= CURVE]


def measures(dataset: xr.Dataset) -> list[str]:
    """The variables that are measures of their own, without the `_n`, `_low`, `_high` that stand beside them."""
    names = [str(name) for name in dataset.data_vars]
    beside = {f"{name}{suffix}" for name in names for suffix in ("_n", "_low", "_high")}
    return [name for name in names if name not in beside]


def _long_table(analysis: str, dataset: xr.Dataset) -> pd.DataFrame:
    tables = []
    for name in measures(dataset):
        array = dataset[name]
        if array.dtype.kind not in "fiub" or "token" in array.dims:  # the maps of one input are for drawing
            continue
        labelled = {
            str(d): array[f"{d}_name"].values if f"{d}_name" in array.coords else array[d].values for d in array.dims
        }
        frame = (
            pd.MultiIndex.from_product(labelled.values(), names=labelled).to_frame(index=False)
            if array.ndim
            else pd.DataFrame(index=[0])
        )
        frame["value"] = array.values.ravel()
        for suffix, column in (("_n", "n"), ("_low", "low"), ("_high", "high")):
            beside = dataset.get(f"{name}{suffix}")
            frame[column] = beside.values.ravel() if beside is not None and beside.dims == array.dims else np.nan
        labels = [str(d) for d in array.dims if d not in ("layer", "head")]
        frame["item"] = frame[labels].astype(str).agg(" ".join, axis=1) if labels else ""
        for place in ("layer", "head"):
            if place not in frame:
                frame[place] = pd.NA
        frame["analysis"], frame["variable"] = analysis, name
        frame["value"] = frame["value"].astype(float)
        tables.append(
            frame[["analysis", "variable", "layer", "head", "item", "value", "n", "low", "high"]].astype(
                {"layer": "Int64", "head": "Int64", "n": "Float64"}
            )
        )
    return (
        pd.concat(tables, ignore_index=True)
        if tables
        else pd.DataFrame(columns=["analysis", "variable", "layer", "head", "item", "value", "n", "low", "high"])
    )
