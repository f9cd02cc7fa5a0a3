"""What tells an open model from others: methods of `HeadModel`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headwise.models.fingerprint import TENSORS, weight_hash

if TYPE_CHECKING:
    from headwise.models.headmodel import HeadModel

SIZES = ("stack", "layers", "heads", "kv_heads", "d_head", "hidden", "causal")


def identity(self: HeadModel, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What tells this model from others: name, architecture, sizes, a hash over its weights, and what that was taken of
    (`weights_from`: the `files` they came from, or the `tensors`).

    Parameters
    ----------
    like : mapping, optional
        An identity told before: where it is of the same weights, hashed the other way, its hash is given.
    """
    digest, way = _hash(self)
    if like and like.get("weights_from", TENSORS) != way and same_weights(self, like):
        digest, way = like["weight_hash"], like.get("weights_from", TENSORS)
    return {
        "name": self.name,
        "architecture": type(self.module).__name__,
        "model_type": self.config.model_type,
        "weight_hash": digest,
        "weights_from": way,
        **{name: getattr(self, name) for name in SIZES},
        "dtype": str(self.dtype).removeprefix("torch."),
    }


def same_weights(self: HeadModel, told: Mapping[str, Any]) -> bool | None:
    """Whether an identity (of an atlas's provenance, say) is that of these weights, whichever way it was hashed; None
    where that cannot be known: it tells no hash, or one of files, and these weights came from none.

    One that does not name the way is of the tensors, as all were before files could be hashed.

    Parameters
    ----------
    told : mapping
        What `identity` gave, or `atlas.provenance["model"]`.
    """
    way = told.get("weights_from", TENSORS)
    own = _hash(self)
    found = own if own[1] == way else weight_hash(self.module, way)
    return None if found is None or not told.get("weight_hash") else found[0] == told["weight_hash"]


def _hash(model: HeadModel) -> tuple[str, str]:
    """The hash of the weights as they are when it is first asked for."""
    if model.hashed is None:
        model.hashed = weight_hash(model.module)
        assert model.hashed is not None
    return model.hashed
