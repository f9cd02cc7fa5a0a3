"""How work is sent to a worker: a job is pickled, the models it refers to are opened there again.

A model that was opened by name is opened by that name on the worker, and rejected there if its
weights differ; a module that was passed in is sent itself. Either way a worker opens it once, and
whatever a job holds of it (the model, its module, its tokenizer) becomes the worker's."""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from headwise.core.errors import HeadwiseError, ModelError
from headwise.models import HeadModel
from headwise.models.fallbacks import select_tap
from headwise.models.fingerprint import weight_hash
from headwise.models.headmodel import OPEN

PARTS = ("module", "sites", "tokenizer", "encoder_part")  # what else of a model a job may hold


@dataclass(frozen=True, slots=True)
class Shipment:
    """What a worker needs to open a model: `reopens` by name, or the pickled `module` and
    `tokenizer`."""

    name: str
    stack: str
    device: str
    weights: tuple[str, str]  # the hash of its weights, and what it was taken of
    reopens: Mapping[str, Any] | None
    content: bytes = b""

    @property
    def key(self) -> str:
        """The same key for the same model."""
        return f"{self.weights[0]}-{self.stack}-{self.device}-{self.name}"


@dataclass(frozen=True, slots=True)
class Parcel:
    """A job, pickled, and the models it refers to, by key."""

    content: bytes
    models: Mapping[str, Shipment]


class Packer:
    """Packs one job and its units: models that are open now, and all their modules and weights, are
    sent as names."""

    def __init__(self) -> None:
        self._parts: defaultdict[int, list[tuple[HeadModel, str]]] = defaultdict(list)
        self._known: dict[int, Shipment] = {}
        self._job: set[int] | None = None  # the modules of the job's models, once it is packed
        for model in list(OPEN):
            self._register(model)

    def _register(self, model: HeadModel) -> None:
        """Remember which objects are parts of a model."""
        for name in PARTS:
            self._parts[id(getattr(model, name))].append((model, name))
        for name, module in model.module.named_modules():
            self._parts[id(module)].append((model, f"module:{name}"))
        for name, weight in model.module.named_parameters():
            self._parts[id(weight)].append((model, f"weight:{name}"))
        self._parts.pop(id(None), None)

    def pack(self, job: object) -> Parcel:
        """Return a job as it is sent."""
        content, needed = self._pickled(job)
        for _, model in needed:
            self._register(model)  # a model with another limit is not among the open ones
        self._job = {id(model.module) for _, model in needed}
        return Parcel(
            content, {shipment.key: _loaded(shipment, model) for shipment, model in needed}
        )

    def pack_unit(self, unit: object) -> bytes:
        """Return a unit of the job, which is packed before, as it is sent; the models it refers to
        are the job's."""
        return self._pickled(unit)[0]

    def _pickled(self, thing: object) -> tuple[bytes, list[tuple[Shipment, HeadModel]]]:
        file = io.BytesIO()
        pickler = _pickler()(file, self)
        try:
            pickler.dump(thing)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise HeadwiseError(
                f"This work cannot be sent to workers ({error}); use the backend 'local'.",
                option="backend local",
            ) from error
        return file.getvalue(), list(pickler.needed.values())

    def name_of(self, thing: object) -> tuple[HeadModel, tuple[Any, ...]] | None:
        """Return the model that an object belongs to, and its name there; None if the object itself
        is sent."""
        if isinstance(thing, HeadModel):
            if thing.tokenizer is None:
                return thing, ("",)
            return thing, ("", thing.encoder.max_length, thing.encoder.overlong)
        # Models may share a tokenizer: in a unit, it is a name only of a model that the workers
        # have.
        for model, name in self._parts.get(id(thing), ()):
            if self._job is None or id(model.module) in self._job:
                return model, (name,)
        return None

    def shipment(self, model: HeadModel) -> Shipment:
        """Return what is sent of a model."""
        if id(model.module) not in self._known:
            self._known[id(model.module)] = _shipment(model)
        return self._known[id(model.module)]


def unpack(parcel: Parcel) -> Any:
    """Return the job, on a worker; models that it does not refer to are closed."""
    for key in [key for key in _opened if key not in parcel.models]:
        _opened.pop(key).close()
        _limited.clear()
    return _Unpickler(io.BytesIO(parcel.content), parcel.models).load()


def unpack_unit(content: bytes) -> Any:
    """Return a unit, on a worker that has its job."""
    return _Unpickler(io.BytesIO(content), {}).load()


# --- the driver's side ----------------------------------------------------------------------------


@cache
def _pickler() -> Any:
    """Return a pickler, of functions too, that writes models and their parts as names."""
    from ray import cloudpickle  # slow to import, and only there with the extra `ray`

    base: Any = cloudpickle.CloudPickler

    class Pickler(base):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO, packer: Packer) -> None:
            super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
            self.needed: dict[str, tuple[Shipment, HeadModel]] = {}
            self._packer = packer

        def persistent_id(self, thing: Any) -> tuple[Any, ...] | None:
            named = self._packer.name_of(thing)
            if named is None:
                return None
            model, name = named
            shipment = self._packer.shipment(model)
            self.needed[shipment.key] = (shipment, model)
            return (shipment.key, *name)

    return Pickler


def _shipment(model: HeadModel) -> Shipment:
    reopens = None if model.reopens is None else dict(model.reopens)
    if reopens is not None and reopens["model"] is not None:
        folder = Path(reopens["model"]).expanduser()
        reopens["model"] = str(folder.resolve()) if folder.is_dir() else reopens["model"]
    # A worker's GPU is the first that it sees. The weights may have changed since they were last
    # hashed.
    device = "cuda" if model.device.type == "cuda" else str(model.device)
    weights = weight_hash(model.module)
    assert weights is not None
    return Shipment(model.name, model.stack, device, weights, reopens)


def _loaded(shipment: Shipment, model: HeadModel) -> Shipment:
    """Return the same with the module in it, where that has to be sent itself."""
    if shipment.reopens is not None:
        return shipment
    with _untapped(model):
        return replace(shipment, content=dumps((model.module, model.tokenizer)))


def dumps(thing: object) -> bytes:
    """Return any object pickled, functions too."""
    from ray import cloudpickle

    pickled: Any = cloudpickle.dumps  # has no types
    return bytes(pickled(thing))


@contextmanager
def _untapped(model: HeadModel) -> Iterator[None]:
    """Take the tap off a model for the time of a block."""
    model.close()
    try:
        yield
    finally:
        model._undo += select_tap(model.module)  # in place: copies made by `limited` share it


# --- the worker's side ----------------------------------------------------------------------------

_opened: dict[str, HeadModel] = {}
_limited: dict[tuple[Any, ...], HeadModel] = {}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, models: Mapping[str, Shipment]) -> None:
        super().__init__(file)
        self._models = models

    def persistent_load(self, name: tuple[Any, ...]) -> Any:
        key, part, *limit = name
        if key not in _opened:
            _opened[key] = _open(self._models[key])
        model = _opened[key]
        kind, colon, path = part.partition(":")
        if colon:
            return (
                model.module.get_submodule(path)
                if kind == "module"
                else model.module.get_parameter(path)
            )
        if part:
            return getattr(model, part)
        if not limit:
            return model
        if name not in _limited:
            _limited[name] = model.limited(*limit)
        return _limited[name]


def _open(shipment: Shipment) -> HeadModel:
    if shipment.reopens is None:
        # From the driver of this very run, never from a file.
        module, tokenizer = pickle.loads(shipment.content)
        assert isinstance(module, nn.Module)
        model = HeadModel.open(module, tokenizer=tokenizer, stack=shipment.stack)
    else:
        device = None if shipment.reopens["device_map"] is not None else shipment.device
        model = HeadModel.open(**shipment.reopens, device=device, stack=shipment.stack)
        if weight_hash(model.module, shipment.weights[1]) != shipment.weights:
            raise ModelError(
                f"The weights of '{shipment.name}' on this worker's machine differ from those of "
                "the command's machine; give every machine the same folder."
            )
    model.name = shipment.name
    return model
