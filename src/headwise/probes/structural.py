"""The structural probe: a linear map under which squared distances of word vectors are distances in
the tree (Hewitt & Manning 2019), for all layers of a model at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.csgraph import minimum_spanning_tree, shortest_path
from torch import Tensor, nn

from headwise.probes.tree import Trees
from headwise.probes.tree_fit import LEAST_STEPS, batches_of

PAIRS = 4096  # word pairs in a batch, padding included
LOWERED = 0.1  # the rate, when the validation loss did not fall
TINY = 1e-9  # a distance of nothing is an edge too


@dataclass(frozen=True, slots=True)
class StructuralSettings:
    """How the probe is trained: Adam on the mean absolute error of distances, each sentence divided
    by the square of its words; the rate falls to a tenth after an epoch without a smaller
    validation loss, the third time training ends. `rank` 0 is the width of the vectors."""

    rank: int = 0
    epochs: int = 30
    learning_rate: float = 1e-3
    seed: int = 0
    device: str = "cpu"


def tree_distances(heads: np.ndarray) -> np.ndarray:
    """Edges between all pairs of words of a tree; `heads` has the number of words for the root.

    >>> tree_distances(np.array([1, 3, 1])).tolist()
    [[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]
    """
    size = len(heads)
    edges = np.zeros((size, size))
    own = np.flatnonzero(heads < size)
    edges[own, heads[own]] = 1
    return np.asarray(shortest_path(edges, directed=False, unweighted=True))


def spanning_edges(distances: np.ndarray) -> set[tuple[int, int]]:
    """The edges of the minimum spanning tree, the smaller word first."""
    found = minimum_spanning_tree(np.triu(np.maximum(distances, TINY), 1)).tocoo()
    return {
        (min(a, b), max(a, b)) for a, b in zip(found.row.tolist(), found.col.tolist(), strict=True)
    }


def undirected_hits(
    distances: np.ndarray, heads: np.ndarray, scored: np.ndarray
) -> tuple[int, int]:
    """Edges of the tree that a spanning tree over the scored words has, and edges there are between
    such words."""
    words = np.flatnonzero(scored)
    place = {int(word): i for i, word in enumerate(words)}
    gold = {
        (min(i, place[int(heads[word])]), max(i, place[int(heads[word])]))
        for i, word in enumerate(words)
        if int(heads[word]) in place
    }
    if len(words) < 2 or not gold:
        return 0, len(gold)
    return len(gold & spanning_edges(distances[np.ix_(words, words)])), len(gold)


class StructuralProbe(nn.Module):
    """`d(i, j) = ‖B (h_i − h_j)‖²` with a matrix B for each layer."""

    def __init__(self, layers: int, width: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        drawn = torch.rand(layers, width, rank, generator=generator) - 0.5
        self.weight = nn.Parameter(drawn * (2 * 0.05))  # as in the authors' code

    def forward(self, states: Tensor) -> Tensor:
        """From `states[sentence, layer, word, width]` to distances `[sentence, layer, word,
        word]`."""
        mapped = states @ self.weight
        squares = mapped.square().sum(-1)
        return (
            squares[..., :, None] + squares[..., None, :] - 2 * mapped @ mapped.transpose(-1, -2)
        ).clamp(min=0)


States = Callable[[int], np.ndarray]  # from a sentence's number to `[layer, word, width]`
Report = Callable[[int, int], None]


class StructuralFit:
    """One probe for all layers: trained on some sentences, stopped on others, scored on a third
    part."""

    def __init__(self, trees: Trees, states: States, settings: StructuralSettings) -> None:
        self.trees, self.states, self.settings = trees, states, settings
        self._distances: dict[int, np.ndarray] = {}

    def fit(
        self, train: np.ndarray, validation: np.ndarray, report: Report | None = None
    ) -> StructuralProbe:
        """The probe, each layer in the state with the smallest validation loss."""
        settings = self.settings
        layers, _, width = self.states(int(train[0])).shape
        generator = torch.Generator().manual_seed(settings.seed)
        probe = StructuralProbe(layers, width, settings.rank or width, generator).to(
            settings.device
        )
        order = np.random.default_rng([settings.seed, 11])
        groups, held = (
            [*batches_of(self.trees.sizes, part, PAIRS)] for part in (train, validation)
        )
        optimizer = torch.optim.Adam(probe.parameters(), lr=settings.learning_rate)
        best = torch.full((layers,), torch.inf, device=settings.device)
        kept, lowered = probe.weight.detach().clone(), 0
        for epoch in range(settings.epochs):
            # A small corpus is gone through several times between looks at the validation part.
            turns = -(-LEAST_STEPS // len(groups))
            for place in np.concatenate([order.permutation(len(groups)) for _ in range(turns)]):
                loss = self._loss(probe, groups[place]).mean(0).sum()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                found = torch.cat([self._loss(probe, group) for group in held]).mean(0)
            better = found < best
            kept[better], best = probe.weight.detach()[better], torch.minimum(found, best)
            if report is not None:
                report(epoch + 1, settings.epochs)
            if not bool(better.any()):
                lowered += 1
                if lowered == 3:
                    break
                for group in optimizer.param_groups:
                    group["lr"] *= LOWERED
        with torch.no_grad():
            probe.weight.copy_(kept)
        return probe

    def _padded(self, group: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """States, tree distances (−1 where there is none) and numbers of words of a few
        sentences."""
        sizes = [self.trees.sizes[s] for s in group]
        widest, first = max(sizes), self.states(group[0])
        states = torch.zeros(len(group), first.shape[0], widest, first.shape[2])
        gold = torch.full((len(group), 1, widest, widest), -1.0)
        for i, (sentence, size) in enumerate(zip(group, sizes, strict=True)):
            states[i, :, :size] = torch.from_numpy(self.states(sentence).astype(np.float32))
            if sentence not in self._distances:
                self._distances[sentence] = tree_distances(self.trees.heads[sentence])
            found = self._distances[sentence]
            gold[i, 0, :size, :size] = torch.from_numpy(
                np.where(np.isfinite(found), found, -1.0)
            ).float()
        device = self.settings.device
        return states.to(device), gold.to(device), torch.tensor(sizes, device=device)

    def _loss(self, probe: StructuralProbe, group: Sequence[int]) -> Tensor:
        """`[sentence, layer]`"""
        states, gold, sizes = self._padded(group)
        error = (probe(states) - gold).abs() * (gold >= 0)
        loss: Tensor = error.sum((-1, -2)) / sizes[:, None].square()
        return loss

    @torch.no_grad()
    def score(self, probe: StructuralProbe, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Edges found `[sentence, layer]`, and edges there are `[sentence]`."""
        found, total = np.zeros((len(sentences), len(probe.weight))), np.zeros(len(sentences))
        place = {int(s): i for i, s in enumerate(sentences)}
        for group in batches_of(self.trees.sizes, sentences, PAIRS):
            distances = probe(self._padded(group)[0]).double().cpu().numpy()
            for row, sentence in zip(distances, group, strict=True):
                size = self.trees.sizes[sentence]
                for layer, plane in enumerate(row):
                    own = (
                        plane[:size, :size],
                        self.trees.heads[sentence],
                        self.trees.scored[sentence],
                    )
                    found[place[sentence], layer], total[place[sentence]] = undirected_hits(*own)
        return found, total
