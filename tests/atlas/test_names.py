"""The names in the file: plain xarray, without headwise, selects by label on every dim of every
variable; files of format 1 still load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from headwise.analyses.contract import known_analyses
from headwise.atlas import Atlas
from headwise.core.errors import ParameterError
from headwise.experiments.ablation import AblationOptions, ScoredLanguageModel, ablate_scored_model
from headwise.experiments.comparison import compare
from headwise.models import HeadModel
from headwise.models.demo import demo_model_path
from headwise.run import make_atlas
from headwise.text import open_corpus

# Written by a version of headwise before format 2.
FORMAT_1 = Path(__file__).parent / "data" / "format-1.nc"
READER = """
import gc, sys

gc.disable()  # nothing here lives long enough to need it

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "headwise":
            raise ImportError("headwise is not installed here")

sys.meta_path.insert(0, Nothing())
import h5netcdf.core, h5netcdf.dimensions
import xarray as xr

# h5netcdf looks for an array by its path whenever anything is asked of it, which is half of all
# time: once is enough.
for cls in (h5netcdf.core.BaseObject, h5netcdf.dimensions.Dimension):
    def cached_h5ds(self, read=vars(cls)["_h5ds"].fget):
        if "_cached" not in vars(self):
            self._cached = read(self)
        return self._cached
    cls._h5ds = property(cached_h5ds)

for line in sys.stdin:
    tree = xr.open_datatree(line.rstrip(), engine="h5netcdf")
    for node in tree.children.values():
        group = node.to_dataset().load()
        for name, array in group.data_vars.items():
            assert name not in group.dims, f"{node.name}.{name} is named like a dim"
            assert set(array.dims) <= set(array.indexes), f"{node.name}.{name}: a dim has no labels"
        for dim in group.dims:
            labels = group[dim].values
            assert len(set(labels.tolist())) == len(labels), f"two labels of {node.name}.{dim} are the same"
            own = group[[name for name, array in group.data_vars.items() if dim in array.dims]]
            for place in {0, len(labels) - 1}:
                chosen, expected = own.sel({dim: labels[place]}), own.isel({dim: place})
                for name in own.data_vars:
                    assert chosen.variables[name].equals(expected.variables[name]), f"{node.name}.{name} by {dim}"
    print(*tree.children, flush=True)
    print(tree["surface"]["mass"].sel(token_type="sep").dims, flush=True)
"""


@pytest.fixture(scope="module")
def read_plainly() -> Iterator[Callable[[Path], list[str]]]:
    """Return a function that reads a file in a process without headwise, and returns its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(
        [sys.executable, "-c", READER], text=True, env=environment, **pipes
    ) as process:

        def output_for(path: Path) -> list[str]:
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            lines = [process.stdout.readline() for _ in range(2)]
            assert all(lines), process.stderr.read()[-2000:]
            return [line.rstrip("\n") for line in lines]

        yield output_for


def tiny_model() -> HeadModel:
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    size = {
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 16,
    }
    model = BertForMaskedLM(
        BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **size)
    ).eval()
    return HeadModel.open(model, tokenizer=tokenizer)


def test_plain_xarray_selects_by_label_in_the_groups_of_experiments(
    read_plainly: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    first, second = tiny_model(), tiny_model()
    compared = compare([first, second], analyses=["surface"], names=["a", "b"], limit=4)
    ablated = ablate_scored_model(
        ScoredLanguageModel(first, open_corpus(None), limit=4),
        AblationOptions(sets={"pair": "L0H1,L1H2"}),
    )
    # What each reads of a file of its own, side by side in one.
    both = Atlas(
        {
            **compared,
            "ablation": ablated,
            "surface": make_atlas(first, analyses=["surface"], limit=2)["surface"],
        }
    )
    assert {"ablation", "change", "surface"} <= set(both)
    groups, _ = read_plainly(both.save(tmp_path / "atlas.nc"))
    assert groups.split() == list(both)


def test_plain_xarray_selects_by_label_on_every_dim(
    read_plainly: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    parameters = {
        "attribution": {"length": "all"},
        "distance": {"permutations": 50},
        "frames": {"exclude": "links", "permutations": 50},
        "roles": {"bootstrap": 50, "random_models": 1},
        "token_pairs": {"random_models": 1},
        "tree_probe": {"epochs": 1, "learning_rate": 0.01},
    }
    atlas = make_atlas(tiny_model(), limit=10, parameters=parameters)
    left_out = {name for name, items in atlas.provenance["left_out"].items() if "" in items}
    automatic = {name for name, cls in known_analyses().items() if cls.automatic}
    assert set(atlas) | left_out == automatic
    decoder_only = {
        "induction",
        "sinks",
        "opening_token",
        "circuits",
        "logits",
        "copy_suppression",
        "function_vectors",
        "successors",
        "retrieval",
    }
    assert left_out == decoder_only
    groups, dims = read_plainly(atlas.save(tmp_path / "atlas.nc"))
    assert groups.split() == list(atlas)
    assert dims == "('layer', 'head')"


def test_format_1_loads_with_the_current_names(
    read_plainly: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    atlas = Atlas.load(FORMAT_1)
    surface = atlas["surface"]
    with xr.open_dataset(FORMAT_1, group="surface", engine="h5netcdf") as before:
        for old in (
            "token_type",
            "token_type_n",
            "token_type_low",
            "token_type_from_sep",
            "token_type_from_other_high",
        ):
            new = surface[old.replace("token_type", "mass", 1)]
            np.testing.assert_array_equal(new.values, before[old].values)
    assert not [name for name in surface.variables if str(name).startswith("token_type_")]
    assert list(surface["token_type"].values) == ["cls", "sep", "punct", "other"]
    np.testing.assert_allclose(surface["mass"].sum("token_type"), 1, atol=1e-5)
    assert atlas["gradient"]["importance"].sel(token_type="sep").dims == ("layer", "head")
    assert list(atlas["distance"]["axis"].values) == [0, 1]
    assert atlas.head("L1H2")["surface", "mass", "sep"] == float(
        surface["mass"].sel(layer=1, head=2, token_type="sep")
    )
    groups, _ = read_plainly(atlas.save(tmp_path / "again.nc"))
    assert groups.split() == list(atlas)
    assert Atlas.load(tmp_path / "again.nc").digest == atlas.digest


def test_a_variable_with_the_name_of_a_dim_is_rejected() -> None:
    with pytest.raises(ParameterError, match="'own' has a variable and a dim called 'kind'"):
        Atlas({"own": xr.Dataset({"kind": (("layer", "kind"), np.ones((2, 2)))})})
