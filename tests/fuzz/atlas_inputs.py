"""Atlases and damage: bytes turned, cut and put elsewhere, and files made to be wrong in one way,
each of which once ended in a traceback or not at all."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import xarray as xr

from headwise.atlas import Atlas
from headwise.atlas.file import LENGTH, sealed
from headwise.core.errors import AtlasError

LONGEST_MESSAGE = 1500
KINDS = ("bit", "byte", "zeros", "ones", "cut", "move", "number", "text")
NUMBERS = (0, 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
Edit = tuple[str, float, float, int]


@cache
def whole() -> Atlas:
    """A small atlas with all that files have: numbers, texts, counts, labels, attributes,
    provenance."""
    rng = np.random.default_rng(0)
    heads = {"layer": [0, 1], "head": [0, 1, 2]}
    surface = xr.Dataset(
        {
            "entropy": (
                ("layer", "head"),
                rng.random((2, 3)).astype(np.float32),
                {"units": "nats"},
            ),
            "entropy_n": (("layer", "head"), np.full((2, 3), 7)),
            "mass": (("layer", "head", "token_type"), rng.random((2, 3, 2))),
            "sure": (("layer",), np.array([True, False])),
        },
        coords=heads | {"token_type": ["cls", "sep"], "group": ("head", [0, 0, 1])},
        attrs={"title": "What heads attend to", "inputs": 7, "share": 0.5, "sizes": [1, 2]},
    )
    offsets = xr.Dataset(
        {"curve": (("layer", "head", "offset"), rng.random((2, 3, 9)))}, coords=heads
    )
    return Atlas(
        {"surface": surface, "offsets": offsets},
        {"model": {"name": "tiny"}, "corpus": {"name": "toy", "examples": 7}},
    )


@cache
def seed_bytes(folder: Path) -> bytes:
    """The atlas as it lies on the disk."""
    return whole().save(folder / "seed.nc", overwrite=True).read_bytes()


def edited(content: bytes, edits: list[Edit]) -> bytes:
    """The bytes after some edits: (kind, place, extent, which number)."""
    data = bytearray(content)
    for kind, where, extent, which in edits:
        at = int(where * max(len(data) - 1, 0))
        length = 1 + int(extent**4 * 600)
        if not data:
            break
        if kind == "bit":
            data[at] ^= 1 << which % 8
        elif kind == "byte":
            data[at] = which * 37 % 256
        elif kind == "zeros":
            data[at : at + length] = bytes(len(data[at : at + length]))
        elif kind == "ones":
            data[at : at + length] = b"\xff" * len(data[at : at + length])
        elif kind == "cut":
            del data[at : at + length]
        elif kind == "move":
            other = int(extent * (len(data) - 1))
            piece = bytes(data[other : other + 64])
            data[at : at + len(piece)] = piece
        elif kind == "number":
            size = (2, 4, 8)[which % 3]
            number = NUMBERS[which % len(NUMBERS)] % (1 << 8 * size)
            data[at : at + size] = number.to_bytes(size, "little")
        else:
            data[at : at + 8] = b"headwise"
    return bytes(data)


def random_edits(rng: random.Random) -> list[Edit]:
    """One to four edits."""
    count = 1 + min(rng.randrange(4), rng.randrange(4))
    return [
        (rng.choice(KINDS), rng.random(), rng.random(), rng.randrange(64)) for _ in range(count)
    ]


def attack(path: Path) -> str:
    """Load a file and return "read", or the message of the `AtlasError` that rejects it.

    Anything else that is raised is a fault, and so is an atlas that differs from the original."""
    try:
        atlas = Atlas.load(path)
    except AtlasError as error:
        said = str(error)
        said.encode()
        fit = len(said) < LONGEST_MESSAGE and "\n" not in said and "\x1b" not in said
        assert fit, f"{len(said)} characters are no sentence: {said[:300]!r}"
        return said
    assert atlas.digest == whole().digest
    repr(atlas)
    atlas.to_dataframe()
    return "read"


# --- wrong in one way -----------------------------------------------------------------------------


def _attribute(name: str, value: object) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        if value is None:
            del file.attrs[name]
        else:
            file.attrs[name] = value

    return change


def _provenance(value: object) -> Callable[[h5py.File], None]:
    return _attribute("provenance", json.dumps(value))


def _instead(name: str, **how: object) -> Callable[[h5py.File], None]:
    """Another array in the place of one."""

    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, **how)

    return change


def _link(name: str, link: object) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file[name] = link

    return change


def _itself(file: h5py.File) -> None:
    file["surface/again"] = file["surface"]


def _root(file: h5py.File) -> None:
    file["again"] = file["/"]


def _dims(file: h5py.File) -> None:
    """An array whose dims point at an array that is no dim."""
    del file["surface/entropy"].attrs["DIMENSION_LIST"]
    file["surface/entropy"].attrs["DIMENSION_LIST"] = np.arange(3)


def _bare_dim(file: h5py.File) -> None:
    """A dim of 10^12 without an array: labels 0, 1, 2 … would be made for it."""
    dim = file["surface"].create_dataset("long", shape=(10**12,), dtype=">f4")
    dim.make_scale("This is a netCDF dimension but not a netCDF variable.         9")


HUGE = {"shape": (10**6, 10**6), "dtype": "f8"}
HOSTILE: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "no format": (_attribute("headwise_format", None), "not a headwise atlas"),
    "a format in words": (_attribute("headwise_format", "two"), "not the number of a format"),
    "a format of many": (_attribute("headwise_format", np.arange(5)), "not the number of a format"),
    "a format below one": (_attribute("headwise_format", -3), "not the number of a format"),
    "a format between": (_attribute("headwise_format", 2.5), "not the number of a format"),
    "an empty format": (
        _attribute("headwise_format", h5py.Empty("i8")),
        "not the number of a format",
    ),
    "a later format": (_attribute("headwise_format", 99), "format 99"),
    "no digest": (_attribute("digest", None), "its digest is None"),
    "a digest of numbers": (_attribute("digest", 12), "its digest is 12"),
    "a short digest": (_attribute("digest", "abc"), "its digest is 'abc'"),
    "no provenance": (_attribute("provenance", None), "provenance is not text"),
    "provenance of numbers": (_attribute("provenance", np.arange(3.0)), "provenance is not text"),
    "provenance that is no JSON": (_attribute("provenance", "{"), "provenance is not JSON"),
    "provenance of 5,000 digits": (_attribute("provenance", "9" * 5000), "provenance is"),
    "provenance as a list": (_provenance([1]), "not a mapping"),
    "a model in a word": (_provenance({"model": "bert"}), "'model' in its provenance"),
    "deep provenance": (_provenance(json.loads("[" * 900 + "]" * 900)), "more than 50 deep"),
    "very deep provenance": (
        _attribute("provenance", "[" * 20_000 + "]" * 20_000),
        "more than 50 deep",
    ),
    "edited provenance": (_provenance({"model": {"name": "other"}}), "changed or damaged"),
    "an edited attribute of a group": (
        lambda f: f["surface"].attrs.__setitem__("inputs", 8),
        "changed or damaged",
    ),
    "an edited attribute of an array": (
        lambda f: f["surface/entropy"].attrs.__setitem__("units", "bits"),
        "changed or damaged",
    ),
    "an attribute more": (
        lambda f: f["offsets"].attrs.__setitem__("note", "mine"),
        "changed or damaged",
    ),
    "an edited value": (
        lambda f: f["surface/entropy"].__setitem__((0, 0), 5),
        "changed or damaged",
    ),
    "10^12 elements": (_instead("surface/mass", **HUGE), "more than are stored"),
    "10^12 packed elements": (
        _instead("surface/mass", **HUGE, chunks=(1000, 1000), compression="gzip"),
        "more than",
    ),
    "10^12 texts": (
        _instead("surface/mass", shape=(10**12,), dtype=h5py.string_dtype()),
        "more than are stored",
    ),
    "a dim of 10^12": (_bare_dim, "over the limit"),
    "a group that holds itself": (_itself, "a group where an array belongs"),
    "a group that holds all": (_root, "a group where an array belongs"),
    "a soft link": (_link("surface/else", h5py.SoftLink("/surface/mass")), "link to another place"),
    "a link that leads nowhere": (
        _link("surface/else", h5py.SoftLink("/none")),
        "link to another place",
    ),
    "a link to another file": (
        _link("more", h5py.ExternalLink("other.nc", "/")),
        "link to another place",
    ),
    "an array of its own": (
        lambda f: f.create_dataset("alone", data=np.ones(3)),
        "outside of every group",
    ),
    "records": (
        _instead("surface/mass", data=np.zeros(3, dtype=[("a", "i4")])),
        "not of numbers or texts",
    ),
    "lists of any length": (
        _instead("surface/mass", shape=(3,), dtype=h5py.vlen_dtype(np.int32)),
        "not of numbers or texts",
    ),
    "references": (
        _instead("surface/mass", shape=(3,), dtype=h5py.ref_dtype),
        "not of numbers or texts",
    ),
    "nothing": (_instead("surface/mass", data=h5py.Empty("f8")), "is empty"),
    "a named type": (
        lambda f: f["surface"].__setitem__("kind", np.dtype("f8")),
        "a datatype where an array belongs",
    ),
    "dims that are none": (_dims, ""),
    "no groups": (
        lambda f: [f.__delitem__(name) for name in ("surface", "offsets")],
        "changed or damaged",
    ),
}


def hostile(name: str, folder: Path) -> Path:
    """A file that is wrong in one way."""
    path = folder / "hostile.nc"
    seed = whole().save(folder / "seed.nc", overwrite=True)
    shutil.copy(seed, path)
    with h5py.File(path, "r+") as file:
        HOSTILE[name][0](file)
    path.write_bytes(sealed(path.read_bytes()))  # as whoever makes such a file would
    return path


def unsealed(content: bytes) -> bytes:
    """A file as headwise wrote them before there were seals."""
    return content[:-LENGTH]


def endless(content: bytes) -> bytes:
    """A heap of texts whose first has no length: HDF5 looks for the next one there for ever."""
    data = bytearray(unsealed(content))
    heap = data.index(b"GCOL")
    data[heap + 16 : heap + 200] = bytes(184)
    return bytes(data)
