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
# Metadata of a weights file: the meaning of its inputs and outputs.
METADATA = {"patterns": PATTERNS, "channels": CHANNELS}
# Maps whose images are made at once: beyond this, cache misses cost more than batching gains.
CHUNK = 256
# Maps that go through the network at once on a CPU: with 64, what is between two convolutions leaves
# the cache of its core, and a map takes 1.5 times as long.
CPU_CHUNK = 16


class _MaxOfPairs(nn.Module):
    """What `nn.MaxPool2d(2)` computes for images of even size, four times as fast with channels
    last."""

    def forward(self, images: Tensor) -> Tensor:
        rows = torch.maximum(images[:, :, ::2], images[:, :, 1::2])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


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
    """A trained network (or several, whose probabilities are averaged) with its known errors.

    `confusion[c, d]` counts the held-out maps of true class c that it classified as d, by which
    `patterns` corrects its proportions; `confusion_causal` likewise for causal maps."""

    networks: tuple[PatternNetwork, ...]
    confusion: np.ndarray
    confusion_causal: np.ndarray

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """Return `[map, pattern]` from `[map, channel, SIZE, SIZE]`."""
        result = images.new_empty(len(images), len(PATTERNS))
        cudnn = torch.backends.cudnn
        # Without TF32 the numbers are those of a CPU, up to rounding; all other flags stay.
        flags = cudnn.flags(
            enabled=cudnn.enabled,
            benchmark=cudnn.benchmark,
            deterministic=cudnn.deterministic,
            allow_tf32=False,
        )
        with flags:
            step = CHUNK if images.is_cuda else CPU_CHUNK
            for start in range(0, len(images), step):
                rows = slice(start, start + step)
                part = images[rows].contiguous(memory_format=torch.channels_last)
                of_networks = torch.stack([network(part).softmax(-1) for network in self.networks])
                result[rows] = of_networks.mean(0)
        return result

    def to(self, device: torch.device) -> PatternClassifier:
        """Return the same classifier on a device."""
        networks = tuple(copy.deepcopy(network).to(device) for network in self.networks)
        return replace(self, networks=networks)


def load_classifier(path: Path) -> PatternClassifier:
    """Load a classifier from a weights file that `tools/train_patterns` wrote."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as a pattern classifier ({error}).") from error
    if any(metadata.get(key) != json.dumps(names) for key, names in METADATA.items()):
        raise InputError(
            f"{path} holds no pattern classifier of this version; train one with "
            "tools/train_patterns."
        )
    try:
        n_networks = int(metadata["networks"])
        networks = tuple(_load_network(tensors, f"{k}.") for k in range(n_networks))
        confusion = np.array(json.loads(metadata["confusion"]))
        confusion_causal = np.array(json.loads(metadata["confusion_causal"]))
    except (KeyError, ValueError, RuntimeError) as error:
        # An entry is missing, is no number, or has another shape.
        raise InputError(
            f"{path} is a damaged pattern classifier ({error}); train one again."
        ) from error
    return PatternClassifier(networks, confusion, confusion_causal)


def _load_network(tensors: Mapping[str, Tensor], prefix: str) -> PatternNetwork:
    """Return one network from its weights, whose names begin with `prefix`."""
    weights = {}
    widths: dict[int, int] = {}  # by the place of the convolution
    for name, value in tensors.items():
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            weights[name] = value.float()
            if value.ndim == 4:
                widths[int(name.split(".")[1])] = len(value)
    network = PatternNetwork(tuple(widths[place] for place in sorted(widths)))
    for name in network.load_state_dict(weights, strict=False).missing_keys:
        # The number of batches that a normalisation saw is not saved.
        if "batches" not in name:
            raise KeyError(name)
    # Channels last is the layout in which convolutions are fastest; torch's stubs do not know it.
    return _fuse(network.eval()).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _fuse(network: PatternNetwork) -> PatternNetwork:
    """Fold each normalisation into the convolution before it, which is a fifth faster, and pool
    faster: the same function."""
    layers: list[nn.Module] = []
    for layer in network.convolutions:
        if isinstance(layer, nn.BatchNorm2d):
            convolution = layers.pop()
            assert isinstance(convolution, nn.Conv2d)
            layer = fuse_conv_bn_eval(convolution, layer)
        elif isinstance(layer, nn.MaxPool2d):
            layer = _MaxOfPairs()
        layers.append(layer)
    network.convolutions = nn.Sequential(*layers)
    return network


_SHIPPED: WeakValueDictionary[str, PatternClassifier] = WeakValueDictionary()


def shipped_classifier() -> PatternClassifier:
    """Return the classifier that comes with headwise; it is loaded once while it is in use."""
    classifier = _SHIPPED.get(WEIGHTS)
    if classifier is None:
        with resources.as_file(resources.files("headwise.analyses.patterns") / WEIGHTS) as path:
            classifier = load_classifier(path)
        _SHIPPED[WEIGHTS] = classifier
    return classifier


def classify_maps(
    maps: Tensor, causal: bool, classifier: PatternClassifier | None = None
) -> Tensor:
    """Return the pattern probabilities of attention maps, or of any maps with non-negative rows
    (contributions, for example).

    Parameters
    ----------
    maps : Tensor
        `[..., n, n]`, rows receiving, columns giving; without padding. Rows are scaled to sum
        to one.
    causal : bool
        Whether later columns are hidden from a row; if so, what stands there is ignored.
    classifier : PatternClassifier, optional
        Default: the shipped one.

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
    if classifier is None:
        classifier = shipped_classifier()
    device = next(classifier.networks[0].parameters()).device
    n_tokens = maps.shape[-1]
    flat = maps.reshape(-1, n_tokens, n_tokens).float()
    if causal:
        flat = flat.tril()
    flat = flat / flat.sum(-1, keepdim=True).clamp(min=1e-12)
    parts = []
    for start in range(0, len(flat), CHUNK):
        part = flat[start : start + CHUNK].to(device)
        parts.append(classifier.probabilities(map_images(part, causal)))
    probabilities = torch.cat(parts)
    return probabilities.reshape(*maps.shape[:-2], len(PATTERNS)).to(maps.device)
