"""The classifier of attention maps: a network of eight convolutions, and its trained weights that come with the package."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from headwise.analyses.patterns.maps import CHANNELS, map_images
from headwise.core.errors import InputError, ParameterError

PATTERNS = ("vertical", "diagonal", "vertical+diagonal", "block", "heterogeneous")
WEIGHTS = "weights.safetensors"
# Maps that go through the network at once: beyond this, a processor's cache loses more than batching gains.
CHUNK = 256


class PatternNetwork(nn.Module):
    """Eight 3 × 3 convolutions with ReLU, in four pairs between which the image is halved, then the mean and the maximum over places and one linear layer.

    Takes `[map, channel, SIZE, SIZE]` (see `headwise.analyses.patterns.maps`), gives logits `[map, pattern]` in the order of `PATTERNS`.
    """

    def __init__(
        self,
        widths: tuple[int, ...] = (12, 12, 24, 24, 48, 48, 64, 64),
        channels: int = len(CHANNELS),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for k, width in enumerate(widths):
            layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            if k % 2 and k < len(widths) - 1:
                layers.append(nn.MaxPool2d(2))
            before = width
        self.convolutions = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout)
        self.classify = nn.Linear(2 * before, len(PATTERNS))

    def forward(self, images: Tensor) -> Tensor:
        features = self.convolutions(images)
        pooled = torch.cat([features.mean((-2, -1)), features.amax((-2, -1))], dim=-1)
        return self.classify(self.dropout(pooled))


@dataclass(frozen=True, eq=False)
class PatternClassifier:
    """A trained network (or several, whose probabilities are averaged) with what is known of its mistakes.

    `confusion[c, d]` counts the held-out maps of true class c that it called d: what `patterns` corrects its proportions by; `confusion_causal` likewise for causal maps.
    """

    networks: tuple[PatternNetwork, ...]
    confusion: np.ndarray
    confusion_causal: np.ndarray

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """`[map, channel, SIZE, SIZE]` to `[map, pattern]`."""
        out = images.new_empty(len(images), len(PATTERNS))
        for begin in range(0, len(images), CHUNK):
            part = images[begin : begin + CHUNK].contiguous(memory_format=torch.channels_last)
            out[begin : begin + CHUNK] = torch.stack([network(part).softmax(-1) for network in self.networks]).mean(0)
        return out

    def to(self, device: torch.device) -> PatternClassifier:
        """The same classifier on a device."""
        return PatternClassifier(
            tuple(copy.deepcopy(network).to(device) for network in self.networks), self.confusion, self.confusion_causal
        )

    def save(self, path: Path) -> None:
        """Write weights (as float16) and confusion counts to one file."""
        tensors = {
            f"{k}.{name}": value
            for k, network in enumerate(self.networks)
            for name, value in network.state_dict().items()
        }
        tensors = {
            name: value.half() if value.is_floating_point() else value
            for name, value in tensors.items()
            if not name.endswith("num_batches_tracked")
        }
        about = {
            "patterns": json.dumps(PATTERNS),
            "channels": json.dumps(CHANNELS),
            "networks": str(len(self.networks)),
        }
        about |= {
            "confusion": json.dumps(self.confusion.tolist()),
            "confusion_causal": json.dumps(self.confusion_causal.tolist()),
        }
        save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, path, metadata=about)


def _assemble(tensors: dict[str, Tensor], about: dict[str, str], where: str) -> PatternClassifier:
    if json.loads(about.get("patterns", "[]")) != list(PATTERNS) or json.loads(about.get("channels", "[]")) != list(
        CHANNELS
    ):
        raise InputError(
            f"{where} holds no pattern classifier of this version; train one with headwise.analyses.patterns.train."
        )
    networks = []
    for k in range(int(about["networks"])):
        own = {name.split(".", 1)[1]: value.float() for name, value in tensors.items() if name.startswith(f"{k}.")}
        widths = tuple(
            len(own[name])
            for name in sorted(own, key=_layer_order)
            if name.startswith("convolutions") and own[name].ndim == 4
        )
        network = PatternNetwork(widths)
        network.load_state_dict(own, strict=False)
        networks.append(_channels_last(_fused(network.eval())))
    return PatternClassifier(
        tuple(networks), np.array(json.loads(about["confusion"])), np.array(json.loads(about["confusion_causal"]))
    )


def _channels_last(network: PatternNetwork) -> PatternNetwork:
    """The layout in which convolutions are fastest."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs do not know the argument


def _fused(network: PatternNetwork) -> PatternNetwork:
    """The same function with each normalisation taken into the convolution before it: a fifth faster."""
    layers: list[nn.Module] = []
    for layer in network.convolutions:
        if isinstance(layer, nn.BatchNorm2d):
            convolution = layers.pop()
            assert isinstance(convolution, nn.Conv2d)
            layer = fuse_conv_bn_eval(convolution, layer)
        layers.append(layer)
    network.convolutions = nn.Sequential(*layers)
    return network


def _layer_order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split(".") if part.isdigit())


def _metadata(raw: bytes) -> dict[str, str]:
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]).get("__metadata__", {})


def load_classifier(path: Path) -> PatternClassifier:
    """A classifier from a file that `PatternClassifier.save` wrote."""
    try:
        return _assemble(load_file(path), _metadata(Path(path).read_bytes()), str(path))
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as a pattern classifier ({error}).") from error


@lru_cache(maxsize=1)
def shipped_classifier() -> PatternClassifier:
    """The classifier that comes with headwise."""
    raw = resources.files("headwise.analyses.patterns").joinpath(WEIGHTS).read_bytes()
    return _assemble(load(raw), _metadata(raw), WEIGHTS)


def classify_maps(maps: Tensor, causal: bool, classifier: PatternClassifier | None = None) -> Tensor:
    """Pattern probabilities of attention maps, or of any maps with non-negative rows (contributions, for instance).

    Parameters
    ----------
    maps
        `[..., n, n]`, rows receiving, columns giving; without padding. Rows need not sum to one: they are made to.
    causal
        Whether a row may look at later columns; if so, what stands there is ignored.
    classifier
        Another than the shipped one.

    Returns
    -------
    Tensor
        `[..., pattern]`, in the order of `PATTERNS`, on the CPU's or the maps' own device.
    """
    if maps.ndim < 2 or maps.shape[-1] != maps.shape[-2] or maps.shape[-1] == 0:
        raise ParameterError(f"`maps` must be square, [..., n, n]; its shape is {list(maps.shape)}.")
    if (maps < 0).any() or not torch.isfinite(maps).all():
        raise ParameterError("`maps` must hold finite numbers that are not negative; take absolute values first.")
    chosen = classifier or shipped_classifier()
    device = next(chosen.networks[0].parameters()).device
    n = maps.shape[-1]
    flat = maps.reshape(-1, n, n).float()
    if causal:
        flat = flat.tril()
    flat = flat / flat.sum(-1, keepdim=True).clamp(min=1e-12)
    out = torch.empty(len(flat), len(PATTERNS))
    for begin in range(0, len(flat), CHUNK):
        out[begin : begin + CHUNK] = chosen.probabilities(
            map_images(flat[begin : begin + CHUNK].to(device), causal)
        ).cpu()
    return out.reshape(*maps.shape[:-2], len(PATTERNS)).to(maps.device)
