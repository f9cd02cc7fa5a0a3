"""The classifier of attention maps: a network of eight convolutions, and its trained weights, which
are shipped."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from headwise.analyses.patterns.maps import CHANNELS, map_images
from headwise.core.errors import InputError, ParameterError

PATTERNS = ("vertical", "diagonal", "vertical+diagonal", "block", "heterogeneous")
WEIGHTS = "weights.safetensors"
MEANING = {
    "patterns": PATTERNS,
    "channels": CHANNELS,
}  # what a file of weights must say of what goes in and comes out
# Maps that go through the network at once: beyond this, a processor's cache loses more than
# batching gains.
CHUNK = 256


class PatternNetwork(nn.Module):
    """Eight 3 × 3 convolutions with ReLU, in four pairs between which the image is halved, and one
    linear layer.

    That layer sees the mean and the maximum over places. Takes `[map, channel, SIZE, SIZE]` (see
    `headwise.analyses.patterns.maps`), gives logits `[map, pattern]` in the order of `PATTERNS`.
    """

    def __init__(
        self, widths: tuple[int, ...] = (12, 12, 24, 24, 48, 48, 64, 64), dropout: float = 0.0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = len(CHANNELS)
        for k, width in enumerate(widths):
            layers += [
                nn.Conv2d(before, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            if k % 2 and k < len(widths) - 1:
                layers.append(nn.MaxPool2d(2))
            before = width
        self.convolutions = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout)
        self.classify = nn.Linear(2 * before, len(PATTERNS))

    def forward(self, images: Tensor) -> Tensor:
        features = self.convolutions(images)
        pooled = torch.cat([features.mean((-2, -1)), features.amax((-2, -1))], dim=-1)
        logits: Tensor = self.classify(self.dropout(pooled))
        return logits


@dataclass(frozen=True, eq=False)
class PatternClassifier:
    """A trained network (or several, whose probabilities are averaged) with what is known of its
    mistakes.

    `confusion[c, d]` counts the held-out maps of true class c that it called d: what `patterns`
    corrects its proportions by; `confusion_causal` likewise for causal maps."""

    networks: tuple[PatternNetwork, ...]
    confusion: np.ndarray
    confusion_causal: np.ndarray

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """`[map, channel, SIZE, SIZE]` to `[map, pattern]`."""
        out = images.new_empty(len(images), len(PATTERNS))
        own = torch.backends.cudnn
        as_they_are = {
            "enabled": own.enabled,
            "benchmark": own.benchmark,
            "deterministic": own.deterministic,
        }
        with own.flags(
            **as_they_are, allow_tf32=False
        ):  # the same numbers as on a CPU, to rounding
            for begin in range(0, len(images), CHUNK):
                part = images[begin : begin + CHUNK].contiguous(memory_format=torch.channels_last)
                said = torch.stack([network(part).softmax(-1) for network in self.networks])
                out[begin : begin + CHUNK] = said.mean(0)
        return out

    def to(self, device: torch.device) -> PatternClassifier:
        """The same classifier on a device."""
        return replace(
            self, networks=tuple(copy.deepcopy(network).to(device) for network in self.networks)
        )


def load_classifier(path: Path) -> PatternClassifier:
    """A classifier from a file of weights that `tools/train_patterns` wrote."""
    try:
        with safe_open(path, "pt") as file:
            about, tensors = (
                file.metadata() or {},
                {name: file.get_tensor(name) for name in file.keys()},  # noqa: SIM118
            )
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as a pattern classifier ({error}).") from error
    if any(about.get(key) != json.dumps(names) for key, names in MEANING.items()):
        raise InputError(
            f"{path} holds no pattern classifier of this version; train one with tools/train_patterns."
        )
    try:
        networks = tuple(_network(tensors, f"{k}.") for k in range(int(about["networks"])))
        confusion, causal = (
            np.array(json.loads(about[key])) for key in ("confusion", "confusion_causal")
        )
    except (
        KeyError,
        ValueError,
        RuntimeError,
    ) as error:  # what is not there, is no number, or has another shape
        raise InputError(
            f"{path} is a damaged pattern classifier ({error}); train one again."
        ) from error
    return PatternClassifier(networks, confusion, causal)


def _network(tensors: Mapping[str, Tensor], prefix: str) -> PatternNetwork:
    """One network from its weights, whose names begin with `prefix`."""
    own = {
        name.removeprefix(prefix): value.float()
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    convolutions = {
        int(name.split(".")[1]): len(value) for name, value in own.items() if value.ndim == 4
    }
    network = PatternNetwork(tuple(convolutions[place] for place in sorted(convolutions)))
    lacking = [
        name
        for name in network.load_state_dict(own, strict=False).missing_keys
        if "batches" not in name
    ]
    if lacking:
        raise KeyError(lacking[0])
    # torch's stubs do not know the argument; it is the layout in which convolutions are fastest
    return _fused(network.eval()).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _fused(network: PatternNetwork) -> PatternNetwork:
    """The same function with each normalisation taken into the convolution before it: a fifth
    faster."""
    layers: list[nn.Module] = []
    for layer in network.convolutions:
        if isinstance(layer, nn.BatchNorm2d):
            convolution = layers.pop()
            assert isinstance(convolution, nn.Conv2d)
            layer = fuse_conv_bn_eval(convolution, layer)
        layers.append(layer)
    network.convolutions = nn.Sequential(*layers)
    return network


_SHIPPED: WeakValueDictionary[str, PatternClassifier] = WeakValueDictionary()


def shipped_classifier() -> PatternClassifier:
    """The classifier that comes with headwise; the same one as long as somebody holds it."""
    found = _SHIPPED.get(WEIGHTS)
    if found is None:
        with resources.as_file(resources.files("headwise.analyses.patterns") / WEIGHTS) as path:
            found = _SHIPPED[WEIGHTS] = load_classifier(path)
    return found


def classify_maps(
    maps: Tensor, causal: bool, classifier: PatternClassifier | None = None
) -> Tensor:
    """Pattern probabilities of attention maps, or of any maps with non-negative rows
    (contributions, for instance).

    Parameters
    ----------
    maps : Tensor
        `[..., n, n]`, rows receiving, columns giving; without padding. Rows need not sum to one:
        they are made to.
    causal : bool
        Whether later columns are hidden from a row; if so, what stands there is ignored.
    classifier : PatternClassifier, optional
        Another than the shipped one.

    Returns
    -------
    Tensor
        `[..., pattern]`, in the order of `PATTERNS`, on the maps' own device.

    Examples
    --------
    >>> stripe = torch.zeros(30, 30)
    >>> stripe[:, 4] = 1
    >>> PATTERNS[int(classify_maps(stripe, causal=False).argmax())]
    'vertical'
    """
    if maps.ndim < 2 or maps.shape[-1] != maps.shape[-2] or maps.shape[-1] == 0:
        raise ParameterError(
            f"`maps` must be square, [..., n, n]; its shape is {list(maps.shape)}."
        )
    if (maps < 0).any() or not torch.isfinite(maps).all():
        raise ParameterError(
            "`maps` must hold finite numbers that are not negative; take absolute values first."
        )
    chosen = classifier or shipped_classifier()
    device = next(chosen.networks[0].parameters()).device
    n = maps.shape[-1]
    flat = maps.reshape(-1, n, n).float()
    flat = flat.tril() if causal else flat
    flat = flat / flat.sum(-1, keepdim=True).clamp(min=1e-12)
    parts = (flat[begin : begin + CHUNK].to(device) for begin in range(0, len(flat), CHUNK))
    found = torch.cat([chosen.probabilities(map_images(part, causal)) for part in parts])
    return found.reshape(*maps.shape[:-2], len(PATTERNS)).to(maps.device)
