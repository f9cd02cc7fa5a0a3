"""The labelled maps as training sees them: padded to one width, as images, and augmented."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.patterns.maps import images, shrink, shrink_visible
from headwise.analyses.patterns.network import PATTERNS
from headwise.analyses.patterns.store import Label, read_labels, read_maps
from headwise.core.errors import InputError

TENSORS = ("weights", "lengths", "causal", "labels", "votes")
ARRAYS = ("model", "head", "drawn", "names")
# Two labelled every map by the second edition of the guide; a third decided where they differ.
PAIR = ("vision language model 4", "vision language model 5")
DECIDES = "vision language model 6"


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled maps padded to one width, `weights[map, n, n]`, with labels (index into PATTERNS)
    and origin."""

    weights: Tensor
    lengths: Tensor
    causal: Tensor
    labels: Tensor
    votes: Tensor  # [map, pattern]: the share of labellers that gave it
    model: np.ndarray
    # Model, layer and head in one string: the unit that folds and resamples keep together.
    head: np.ndarray
    drawn: np.ndarray
    names: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, keep: np.ndarray) -> Labelled:
        """Return some of the maps, by place or by a mask."""
        places = np.flatnonzero(keep) if keep.dtype == bool else keep
        index = torch.as_tensor(places, device=self.labels.device)
        selected = {name: getattr(self, name)[index] for name in TENSORS}
        selected |= {name: getattr(self, name)[places] for name in ARRAYS}
        return Labelled(**selected)

    def to(self, device: str) -> Labelled:
        """Return the same maps on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in TENSORS})

    def arrays(self) -> dict[str, np.ndarray]:
        """Return everything as arrays by name, to be sent to another process."""
        arrays = {name: getattr(self, name).cpu().numpy() for name in TENSORS}
        return arrays | {name: getattr(self, name) for name in ARRAYS}

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray]) -> Labelled:
        """Return the maps that `arrays` was called on."""
        values = {name: torch.from_numpy(arrays[name]) for name in TENSORS}
        return cls(**values, **{name: arrays[name] for name in ARRAYS})

    @property
    def digest(self) -> str:
        """SHA-256 of all that training uses; weights files name what they were trained on by it."""
        digest = hashlib.sha256()
        for name in TENSORS:
            digest.update(getattr(self, name).cpu().numpy().tobytes())
        for name in ARRAYS:
            digest.update("\n".join(getattr(self, name)).encode())
        return digest.hexdigest()


def opinions(labels: Sequence[Label], labeller: str | None) -> dict[str, list[str]]:
    """Return by map the label that counts, followed by all votes where labellers differ.

    Those of one labeller if one is named. Else of those who decided together, if the table has
    them: the label of the pair, or that of the third for a map on which they differ. Else of the
    first in the table, so that a second opinion makes no map count twice."""
    by_labeller: dict[str, dict[str, str]] = {}
    for label in labels:
        by_labeller.setdefault(label.labeller, {})[label.id] = label.label
    if labeller is None and all(name in by_labeller for name in PAIR):
        first = by_labeller[PAIR[0]]
        second = by_labeller[PAIR[1]]
        decided = by_labeller.get(DECIDES, {})
        opinions_of_map = {}
        for name, pattern in first.items():
            if pattern == second[name]:
                opinions_of_map[name] = [pattern]
            else:
                opinions_of_map[name] = [decided[name], decided[name], pattern, second[name]]
        return opinions_of_map
    if labeller is None and labels:
        labeller = labels[0].labeller
    return {name: [pattern] for name, pattern in by_labeller.get(labeller or "", {}).items()}


def load_labelled(
    folder: Path,
    round: int = 1,
    labeller: str | None = None,
    maps: Mapping[str, np.ndarray] | None = None,
) -> Labelled:
    """Return maps with the labels of one pass: of one labeller, or of those who decided together
    (`opinions`). Pass `maps` if they were read before."""
    maps = maps or read_maps(folder / "maps.npz")
    with (folder / "maps.csv").open(newline="", encoding="utf-8") as file:
        origin = {row["id"]: row for row in csv.DictReader(file)}
    labels = [label for label in read_labels(folder / "labels.csv", maps) if label.round == round]
    by_map = opinions(labels, labeller)
    if not by_map:
        whose = "" if labeller is None else f" of '{labeller}'"
        raise InputError(
            f"{folder / 'labels.csv'} has no labels{whose} in pass {round}; name a labeller and a "
            "pass that are in it."
        )
    for name in by_map:
        if name not in origin:
            raise InputError(f"{folder / 'maps.csv'} says nothing of the labelled map '{name}'.")
    width = max(len(maps[name]) for name in by_map)
    weights = torch.zeros(len(by_map), width, width)
    votes = torch.zeros(len(by_map), len(PATTERNS))
    for place, (name, labels_of_map) in enumerate(by_map.items()):
        weights_of_map = torch.from_numpy(maps[name])
        n_tokens = len(weights_of_map)
        row_sums = weights_of_map.sum(-1, keepdim=True).clamp(min=1e-9)
        weights[place, :n_tokens, :n_tokens] = weights_of_map / row_sums
        # The first entry is the label that counts; votes follow it only where labellers differ.
        for label in labels_of_map[1:] or labels_of_map:
            votes[place, PATTERNS.index(label)] += 1
    rows = [origin[name] for name in by_map]
    patterns = [PATTERNS.index(labels_of_map[0]) for labels_of_map in by_map.values()]
    return Labelled(
        weights=weights,
        lengths=torch.tensor([len(maps[name]) for name in by_map]),
        causal=torch.tensor([row["causal"] == "1" for row in rows]),
        labels=torch.tensor(patterns),
        votes=votes / votes.sum(-1, keepdim=True),
        model=np.array([row["model"] for row in rows]),
        head=np.array([f"{row['model']} L{row['layer']}H{row['head']}" for row in rows]),
        drawn=np.array([row["drawn"] for row in rows]),
        names=np.array(list(by_map)),
    )


def visible_of(lengths: Tensor, causal: Tensor, width: int) -> Tensor:
    """Return V(i) as bool `[map, 1, width, width]`."""
    position = torch.arange(width, device=lengths.device)
    is_token = position[None] < lengths[:, None]
    both_tokens = is_token[:, :, None] & is_token[:, None, :]
    is_later = position[None, :] > position[:, None]
    is_hidden = is_later[None] & causal[:, None, None]
    return (both_tokens & ~is_hidden)[:, None]


def to_images(weights: Tensor, lengths: Tensor, causal: Tensor) -> Tensor:
    """Return the images `[map, channel, SIZE, SIZE]` of padded maps `[map, n, n]`."""
    visible = visible_of(lengths, causal, weights.shape[-1])
    mass = shrink(weights[:, None] * visible, lengths)
    visible_pairs = shrink_visible(visible, lengths)
    return images(mass, visible_pairs, lengths)[:, 0]


def augmented(
    weights: Tensor, lengths: Tensor, causal: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return augmented maps and their lengths: tokens left out, axes reversed (encoders), weights
    sharpened or flattened, noise.

    The pattern stays the same: tokens that many attend to, which may make a map vertical, are
    kept."""
    count = weights.shape[0]
    width = weights.shape[-1]
    device = weights.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    # The order of random draws is part of how the shipped weights were trained: keep it.
    length = lengths[:, None]
    position = torch.arange(width, device=device)[None]
    is_token = position < length
    is_reversed = ((uniform(count) < 0.5) & ~causal)[:, None]
    order = torch.where(is_reversed & is_token, length - 1 - position, position.expand(count, -1))

    # Leave out up to a quarter of the tokens of most maps, none that receives much or is the first.
    received = (weights.sum(-2) / length).gather(-1, order)
    left_out_share = uniform(count, 1) * 0.25 * (uniform(count, 1) < 0.7) * (length > 10)
    is_spared = uniform(count, width) >= left_out_share
    keep = is_token & (is_spared | (received > 2.0 / length) | (position == 0))
    new_lengths = keep.sum(-1)
    order = order.gather(-1, torch.argsort(~keep, dim=-1, stable=True))
    weights = weights.gather(-2, order[:, :, None].expand_as(weights))
    weights = weights.gather(-1, order[:, None, :].expand_as(weights))
    visible = visible_of(new_lengths, causal, width)[:, 0]

    # Sharpen or flatten, and add noise.
    power = 0.8 + 0.45 * uniform(count, 1, 1)
    noise_scale = 0.3 * uniform(count, 1, 1)
    noise = torch.randn(weights.shape, generator=generator, device=device)
    weights = weights.clamp(min=0) ** power * torch.exp(noise_scale * noise) * visible
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)

    # Blend with uniform attention.
    blend = 0.08 * uniform(count, 1, 1) * (uniform(count, 1, 1) < 0.5)
    n_visible = visible.sum(-1, keepdim=True).clamp(min=1)
    weights = (1 - blend) * weights + blend * visible / n_visible
    return weights * visible, new_lengths
