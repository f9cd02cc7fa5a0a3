"""The labelled maps as training sees them: padded to one width, as images, and made anew in small
ways."""

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

TENSORS, ARRAYS = (
    ("weights", "lengths", "causal", "labels", "votes"),
    ("model", "head", "drawn", "names"),
)
# Two labelled every map by the second edition of the guide; a third decided where they differ.
PAIR, DECIDES = ("vision language model 4", "vision language model 5"), "vision language model 6"


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
    head: (
        np.ndarray
    )  # model, layer and head in one string: the unit that folds and resamples keep together
    drawn: np.ndarray
    names: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, keep: np.ndarray) -> Labelled:
        """Some of the maps, by place or by a mask."""
        plain = np.flatnonzero(keep) if keep.dtype == bool else keep
        index = torch.as_tensor(plain, device=self.labels.device)
        return Labelled(
            *(getattr(self, name)[index] for name in TENSORS),
            *(getattr(self, name)[plain] for name in ARRAYS),
        )

    def to(self, device: str) -> Labelled:
        """The same maps on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in TENSORS})

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it as arrays by name, to be sent to another process."""
        return {name: getattr(self, name).cpu().numpy() for name in TENSORS} | {
            name: getattr(self, name) for name in ARRAYS
        }

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray]) -> Labelled:
        """What `arrays` gave."""
        return cls(
            *(torch.from_numpy(arrays[name]) for name in TENSORS),
            *(arrays[name] for name in ARRAYS),
        )

    @property
    def digest(self) -> str:
        """SHA-256 of all that training looks at, by which weights say what they were trained on."""
        total = hashlib.sha256()
        for name in (*TENSORS, *ARRAYS):
            values = getattr(self, name)
            total.update(
                values.cpu().numpy().tobytes() if name in TENSORS else "\n".join(values).encode()
            )
        return total.hexdigest()


def opinions(labels: Sequence[Label], labeller: str | None) -> dict[str, list[str]]:
    """By map, the label that counts, followed by all that were given by those who count.

    Of one labeller where one is named. Else of those who decided together, where the table has
    them: what both of the pair said, or what the third said of a map on which they differ. Else of
    the first in the table, so that a second opinion makes no map count twice."""
    given = {
        name: {own.id: own.label for own in labels if own.labeller == name}
        for name in (*PAIR, DECIDES)
    }
    if labeller is None and all(given[name] for name in PAIR):
        first, second = (given[name] for name in PAIR)
        return {
            name: [one]
            if one == second[name]
            else [given[DECIDES][name], given[DECIDES][name], one, second[name]]
            for name, one in first.items()
        }
    if labeller is None and labels:
        labeller = labels[0].labeller
    return {own.id: [own.label] for own in labels if own.labeller == labeller}


def load_labelled(
    folder: Path,
    round: int = 1,
    labeller: str | None = None,
    maps: Mapping[str, np.ndarray] | None = None,
) -> Labelled:
    """Maps with the labels of one pass: of one labeller, or of those who decided together
    (`opinions`). Maps that were read before need not be read again."""
    maps = maps or read_maps(folder / "maps.npz")
    with (folder / "maps.csv").open(newline="", encoding="utf-8") as file:
        origin = {row["id"]: row for row in csv.DictReader(file)}
    labels = [label for label in read_labels(folder / "labels.csv", maps) if label.round == round]
    said = opinions(labels, labeller)
    if not said:
        whose = "" if labeller is None else f" of '{labeller}'"
        raise InputError(
            f"{folder / 'labels.csv'} has no labels{whose} in pass {round}; name a labeller and a pass that are in it."
        )
    unknown = [name for name in said if name not in origin]
    if unknown:
        raise InputError(f"{folder / 'maps.csv'} says nothing of the labelled map '{unknown[0]}'.")
    width = max(len(maps[name]) for name in said)
    weights, votes = torch.zeros(len(said), width, width), torch.zeros(len(said), len(PATTERNS))
    for k, (name, (_, *given)) in enumerate(said.items()):
        own = torch.from_numpy(maps[name])
        weights[k, : len(own), : len(own)] = own / own.sum(-1, keepdim=True).clamp(min=1e-9)
        for label in given or said[name]:
            votes[k, PATTERNS.index(label)] += 1
    rows = [origin[name] for name in said]
    return Labelled(
        weights,
        torch.tensor([len(maps[name]) for name in said]),
        torch.tensor([row["causal"] == "1" for row in rows]),
        torch.tensor([PATTERNS.index(label) for label, *_ in said.values()]),
        votes / votes.sum(-1, keepdim=True),
        np.array([row["model"] for row in rows]),
        np.array([f"{row['model']} L{row['layer']}H{row['head']}" for row in rows]),
        np.array([row["drawn"] for row in rows]),
        np.array(list(said)),
    )


def visible_of(lengths: Tensor, causal: Tensor, width: int) -> Tensor:
    """V(i) as bool `[map, 1, width, width]`."""
    place = torch.arange(width, device=lengths.device)
    real = place[None] < lengths[:, None]
    square = real[:, :, None] & real[:, None, :]
    ahead = place[None, :] > place[:, None]
    return (square & ~(ahead[None] & causal[:, None, None]))[:, None]


def to_images(weights: Tensor, lengths: Tensor, causal: Tensor) -> Tensor:
    """`[map, n, n]`, padded, to `[map, channel, SIZE, SIZE]`."""
    visible = visible_of(lengths, causal, weights.shape[-1])
    return images(
        shrink(weights[:, None] * visible, lengths), shrink_visible(visible, lengths), lengths
    )[:, 0]


def augmented(
    weights: Tensor, lengths: Tensor, causal: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The same maps otherwise: tokens left out, axes turned round (encoders), weights sharpened or
    flattened, noise.

    What a labeller sees stays the same kind: tokens that many attend to, which may make a map
    vertical, stay."""
    count, width = weights.shape[0], weights.shape[-1]
    device = weights.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    place = torch.arange(width, device=device)[None]
    real = place < lengths[:, None]
    turn = (uniform(count) < 0.5) & ~causal
    order = torch.where(turn[:, None] & real, lengths[:, None] - 1 - place, place.expand(count, -1))
    column = (weights.sum(-2) / lengths[:, None]).gather(-1, order)
    share = uniform(count, 1) * 0.25 * (uniform(count, 1) < 0.7) * (lengths[:, None] > 10)
    keep = real & (
        (uniform(count, width) >= share) | (column > 2.0 / lengths[:, None]) | (place == 0)
    )
    fresh = keep.sum(-1)
    order = order.gather(-1, torch.argsort(~keep, dim=-1, stable=True))
    weights = weights.gather(-2, order[:, :, None].expand_as(weights)).gather(
        -1, order[:, None, :].expand_as(weights)
    )
    visible = visible_of(fresh, causal, width)[:, 0]
    # sharpen or flatten, noise
    power = 0.8 + 0.45 * uniform(count, 1, 1)
    noise = torch.exp(
        0.3 * uniform(count, 1, 1) * torch.randn(weights.shape, generator=generator, device=device)
    )
    weights = weights.clamp(min=0) ** power * noise * visible
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)
    blend = 0.08 * uniform(count, 1, 1) * (uniform(count, 1, 1) < 0.5)
    weights = (1 - blend) * weights + blend * visible / visible.sum(-1, keepdim=True).clamp(min=1)
    return weights * visible, fresh
