"""Models on several devices, partly on the disk, in other precisions; hashes of their files and of
their tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from headwise.core.errors import ModelError, ParameterError
from headwise.models import HeadModel
from headwise.models.fingerprint import hash_tensors, trace_of, weight_files
from headwise.run import make_atlas
from headwise.testing.corpora import battery_examples
from headwise.testing.models import random_model
from headwise.text import Corpus

TEXT = "the cat saw the dog"
SPREAD = {
    "transformer.wte": "cpu", "transformer.wpe": "cpu", "transformer.drop": "cpu", "transformer.h.0": "cpu",
    "transformer.h.1": "disk", "transformer.h.2": "disk", "transformer.ln_f": "disk", "lm_head": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, tokenizer = random_model(causal=True, layers=3, d_head=8)
    where = tmp_path_factory.mktemp("models") / "gpt2"
    module.save_pretrained(where)  # type: ignore[operator]
    tokenizer.save_pretrained(where)
    return where


# --- on the disk ----------------------------------------------------------------------------------


def test_a_model_partly_on_the_disk_gives_the_same_numbers(folder: Path) -> None:
    whole, spread = HeadModel.open(folder, device="cpu"), HeadModel.open(folder, device_map=SPREAD)
    assert any(parameter.is_meta for parameter in spread.module.parameters())
    assert (spread.device, spread.identity()) == (whole.device, whole.identity())
    corpus = Corpus.from_examples(battery_examples(), "battery")
    names = ["surface", "gradient", "circuits", "logits"]
    one, two = (make_atlas(model, corpus, names, limit=2) for model in (whole, spread))
    assert set(two) == set(names) == set(one)
    for group in one:
        for name, values in one[group].data_vars.items():
            if values.dtype.kind == "f":
                np.testing.assert_array_equal(
                    two[group][name].values, values.values, err_msg=f"{group} {name}"
                )


def test_weights_on_the_disk_are_hashed_and_checked(folder: Path, tmp_path: Path) -> None:
    whole, spread = HeadModel.open(folder, device="cpu"), HeadModel.open(folder, device_map=SPREAD)
    assert hash_tensors(spread.module) == hash_tensors(whole.module)
    with pytest.raises(ModelError, match="lies on several devices"):
        spread.in_precision(torch.float64)
    broken = whole.module
    with torch.no_grad():
        broken.transformer.h[2].ln_1.weight[0] = torch.nan
    broken.save_pretrained(tmp_path)
    whole.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"hold NaN or infinity, first in 'transformer\.h\.2\.ln_1\.weight'"
    ):
        HeadModel.open(tmp_path, device_map=SPREAD)


def test_what_a_user_names_wrongly(folder: Path) -> None:
    for given, said in (
        ({"device_map": "everywhere"}, "`device_map` must be one of auto, balanced"),
        ({"device_map": "no.json"}, "`device_map` must be one of auto, balanced"),
        ({"device_map": {}}, "`device_map` must name a device for each module"),
        ({"device_map": "auto", "device": "cpu"}, "cannot be combined with `device`"),
        ({"dtype": "float8"}, "dtype"),
    ):
        with pytest.raises(ParameterError, match=said):
            HeadModel.open(folder, **given)
    assert HeadModel.open(folder, dtype="bfloat16").dtype == torch.bfloat16
    assert HeadModel.open(folder, dtype="auto", device="cpu").dtype == torch.float32


# --- several devices, pretended -------------------------------------------------------------------


class Elsewhere(Tensor):
    """A tensor of the CPU that says it lies on another device, and refuses to meet tensors of
    others, as those do."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> Elsewhere:
        how: dict[str, Any] = {
            "dtype": inner.dtype,
            "device": device,
            "requires_grad": inner.requires_grad,
        }
        made = Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), **how)
        made.inner = inner.detach()
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return computed(func, args, dict(kwargs or {}))


class Pretended(TorchDispatchMode):
    """Within it, tensors can be made on devices that are not there, and moved to them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, dict(kwargs or {}))


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    where = {x.device for x in tensors if isinstance(x, Elsewhere)}
    moves = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    # A number in no array goes anywhere, and so do places in an array.
    met = {x.device for x in tensors if x.ndim and func is not torch.ops.aten.index.Tensor}
    if len(where) > 1 or (not moves and where and met - where):
        raise RuntimeError(f"{func}: tensors on {sorted(map(str, met | where))}")
    device = torch.device(kwargs.get("device") or next(iter(where), "cpu"))
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    plain = tree_map(lambda x: x.inner if isinstance(x, Elsewhere) else x, (args, kwargs))
    found = func(*plain[0], **plain[1])
    if device.type == "cpu":
        return found
    if func.overloadpacket.__name__.endswith("_") and isinstance(args[0], Elsewhere):
        return args[0]
    return tree_map(lambda x: Elsewhere(x, device) if isinstance(x, Tensor) else x, found)


def put(module: nn.Module, device: torch.device) -> None:
    """Put a layer on a pretended device: its weights, and its inputs as accelerate would."""
    for part in module.modules() if device.type != "cpu" else ():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(
                part, name, nn.Parameter(Elsewhere(parameter.detach(), device), requires_grad=False)
            )
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, Elsewhere(buffer, device))

    def to(values: Any, place: torch.device) -> Any:
        if place.type == "cpu":
            return tree_map(lambda x: x.inner if isinstance(x, Elsewhere) else x, values)
        return tree_map(
            lambda x: Elsewhere(x, place) if isinstance(x, Tensor) else x,
            to(values, torch.device("cpu")),
        )

    forward = module.forward
    module.forward = lambda *args, **kwargs: forward(*to(args, device), **to(kwargs, device))


@pytest.fixture
def two_devices() -> Iterator[tuple[HeadModel, HeadModel]]:
    plain, tokenizer = random_model(layers=3, d_head=8)
    other, _ = random_model(layers=3, d_head=8)
    put(other.bert.encoder.layer[1], torch.device("meta:1"))
    put(other.bert.encoder.layer[2], torch.device("meta:2"))
    put(other.cls, torch.device("cpu"))
    with Pretended():
        yield HeadModel.open(plain, tokenizer=tokenizer), HeadModel.open(other, tokenizer=tokenizer)


def test_layers_on_other_devices_give_the_same_numbers(
    two_devices: tuple[HeadModel, HeadModel],
) -> None:
    one, other = two_devices
    texts = [TEXT, "a dog"]
    needs = {"attention", "outputs", "hidden"}
    first, second = one.trace(texts, needs), other.trace(texts, needs)
    for name in needs:
        torch.testing.assert_close(getattr(second, name), getattr(first, name), rtol=0, atol=0)
    for changes in ({"L1H0": "zero"}, {"L2": "uniform"}, {(1, "residual"): "mean"}):
        first, second = (
            model.trace(texts, interventions=changes, block_rows=2) for model in two_devices
        )
        torch.testing.assert_close(second.attention, first.attention, rtol=0, atol=0)


def test_analyses_of_a_model_on_several_devices(two_devices: tuple[HeadModel, HeadModel]) -> None:
    corpus = Corpus.from_examples(battery_examples(), "battery")
    names = ["surface", "distance"]
    one, other = (make_atlas(model, corpus, names, limit=2) for model in two_devices)
    assert set(one) == set(other) == set(names)
    for group in one:
        for name, values in one[group].data_vars.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(
                    other[group][name].values, values.values, atol=1e-6, err_msg=f"{group} {name}"
                )


# --- hashes ---------------------------------------------------------------------------------------


def test_files_are_hashed_where_nothing_was_changed(folder: Path) -> None:
    model = HeadModel.open(folder, device="cpu")
    told = model.identity()
    assert told["weights_from"] == "files"
    again = HeadModel.open(model.module, tokenizer=model.tokenizer)
    assert again.identity()["weight_hash"] == told["weight_hash"]
    # In bfloat16 the files are the same: that the precision is another is said beside.
    half = HeadModel.open(folder, dtype="bfloat16").identity()
    assert (half["weight_hash"], half["dtype"]) == (told["weight_hash"], "bfloat16")


def test_shards_and_their_order_do_not_matter(folder: Path, tmp_path: Path) -> None:
    whole = HeadModel.open(folder, device="cpu")
    told = whole.identity()
    whole.module.save_pretrained(tmp_path, max_shard_size="20kB")
    whole.tokenizer.save_pretrained(tmp_path)
    assert len(weight_files(str(tmp_path))) > 2
    assert HeadModel.open(tmp_path, device="cpu").identity()["weight_hash"] == told["weight_hash"]


@pytest.mark.parametrize("way", ["in place", "data", "swapped", "replaced"])
def test_a_changed_model_is_hashed_by_its_tensors(folder: Path, way: str) -> None:
    model = HeadModel.open(folder, device="cpu")
    before = trace_of(model.module)
    weight = model.module.transformer.h[1].mlp.c_fc.weight
    with torch.no_grad():
        if way == "in place":
            weight[0, 0] += 1e-3
        elif way == "data":
            weight.data[3, 5] *= 1.01
        elif way == "swapped":
            weight.data = weight.data.flip(0)
        else:
            model.module.transformer.h[1].mlp.c_fc.weight = nn.Parameter(weight * 2)
    assert trace_of(model.module) != before
    assert model.identity()["weights_from"] == "tensors"
    assert not model.same_weights(HeadModel.open(folder, device="cpu").identity())


def test_changed_files_are_not_hashed_in_their_stead(folder: Path, tmp_path: Path) -> None:
    model = HeadModel.open(folder, device="cpu")
    model.module.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    later = HeadModel.open(tmp_path, device="cpu")
    other, _ = random_model(causal=True, layers=3, d_head=8, seed=1)
    other.save_pretrained(tmp_path)
    assert later.identity()["weights_from"] == "tensors"
    assert later.same_weights({"weight_hash": hash_tensors(model.module)})


def test_the_two_ways_are_never_taken_for_each_other(folder: Path, tmp_path: Path) -> None:
    model = HeadModel.open(folder, device="cpu")
    tensors = hash_tensors(model.module)
    assert model.identity()["weight_hash"] != tensors
    assert model.same_weights(
        {"weight_hash": tensors}
    )  # as an atlas of an earlier version tells it
    assert model.same_weights({"weight_hash": tensors, "weights_from": "tensors"})
    assert model.same_weights({"weight_hash": tensors, "weights_from": "files"}) is False
    assert model.same_weights({}) is None
    bare, _ = random_model(causal=True, layers=3, d_head=8)
    given = HeadModel.open(bare, tokenizer=model.tokenizer)
    assert given.identity()["weights_from"] == "tensors"
    assert model.same_weights(given.identity())
    assert given.same_weights(model.identity()) is None  # nobody knows which files it came from


def test_a_run_goes_on_whichever_way_its_model_is_given(folder: Path, tmp_path: Path) -> None:
    corpus = Corpus.from_examples(battery_examples(), "battery")
    bare, tokenizer = random_model(causal=True, layers=3, d_head=8)
    given = HeadModel.open(bare, tokenizer=tokenizer)
    given.name = folder.name
    made = make_atlas(given, corpus, ["surface"], folder=tmp_path, limit=4)
    again = make_atlas(
        HeadModel.open(folder, device="cpu"), corpus, ["surface"], folder=tmp_path, limit=4
    )
    assert again.to_bytes() == made.to_bytes()
    assert (
        json.loads((tmp_path / "run.json").read_text())["identity"]["model"]["weights_from"]
        == "tensors"
    )
