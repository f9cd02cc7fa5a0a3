"""The structural probe: a linear map under which squared distances of word vectors are distances in
the tree (Hewitt & Manning 2019), for all layers of a model at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.csgraph import minimum_spanning_tree, shortest_path
from torch import Tensor, nn

from headwise.probes.tree import DependencyTrees
from headwise.probes.tree_fit import MIN_STEPS, batch_by_length

BATCH_PAIRS = 4096  # word pairs in a batch, padding included
RATE_DECAY = 0.1  # factor on the learning rate when the validation loss did not fall
MAX_DECAYS = 2  # the next time training ends
MIN_DISTANCE = 1e-9  # scipy takes a distance of 0 for a missing edge
INITIAL_RANGE = 0.05  # initial weights lie in ±0.05, as in the authors' code


@dataclass(frozen=True, slots=True)
class StructuralSettings:
    """How the structural probe is trained.

    Adam minimises the mean absolute error of distances, the sum of each sentence divided by the
    square of its number of words. The rate is divided by ten after an epoch without a smaller
    validation loss; the third time training ends.

    Parameters
    ----------
    rank : int, default 0
        Rows of the map; 0 for the width of the vectors.
    epochs : int, default 30
        The most epochs.
    learning_rate : float, default 0.001
        Of Adam, at first.
    seed : int, default 0
        For initial weights and the order of batches.
    device : str, default "cpu"
        Where the probe is trained.
    """

    rank: int = 0
    epochs: int = 30
    learning_rate: float = 1e-3
    seed: int = 0
    device: str = "cpu"


def tree_distances(heads: np.ndarray) -> np.ndarray:
    """Return the number of edges between all pairs of words of a tree.

    `heads` gives the head of each word; the number of words stands for the root.

    >>> tree_distances(np.array([1, 3, 1])).tolist()
    [[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]
    """
    n_words = len(heads)
    edges = np.zeros((n_words, n_words))
    with_head = np.flatnonzero(heads < n_words)
    edges[with_head, heads[with_head]] = 1
    return np.asarray(shortest_path(edges, directed=False, unweighted=True))


def spanning_edges(distances: np.ndarray) -> set[tuple[int, int]]:
    """Return the edges of the minimum spanning tree, the smaller word first."""
    positive = np.triu(np.maximum(distances, MIN_DISTANCE), 1)
    tree = minimum_spanning_tree(positive).tocoo()
    return {_edge(a, b) for a, b in zip(tree.row.tolist(), tree.col.tolist(), strict=True)}


def _edge(a: int, b: int) -> tuple[int, int]:
    return (min(a, b), max(a, b))


def undirected_hits(
    distances: np.ndarray, heads: np.ndarray, scored: np.ndarray
) -> tuple[int, int]:
    """Return how many edges of the true tree the spanning tree over the scored words has, and how
    many edges there are between scored words."""
    words = np.flatnonzero(scored)
    position_of = {int(word): position for position, word in enumerate(words)}
    true_edges = set()
    for position, word in enumerate(words):
        head = int(heads[word])
        if head in position_of:
            true_edges.add(_edge(position, position_of[head]))
    if len(words) < 2 or not true_edges:
        return 0, len(true_edges)
    predicted_edges = spanning_edges(distances[np.ix_(words, words)])
    return len(true_edges & predicted_edges), len(true_edges)


class StructuralProbe(nn.Module):
    """`d(i, j) = ‖B (h_i − h_j)‖²` with a matrix B for each layer."""

    def __init__(self, layers: int, width: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        uniform = torch.rand(layers, width, rank, generator=generator) - 0.5
        self.weight = nn.Parameter(uniform * (2 * INITIAL_RANGE))

    def forward(self, states: Tensor) -> Tensor:
        """Return distances `[sentence, layer, word, word]` from `states[sentence, layer, word,
        width]`."""
        mapped = states @ self.weight
        squares = mapped.square().sum(-1)
        products = mapped @ mapped.transpose(-1, -2)
        distances = squares[..., :, None] + squares[..., None, :] - 2 * products
        return distances.clamp(min=0)  # rounding can leave small negative values


States = Callable[[int], np.ndarray]  # from a sentence's number to `[layer, word, width]`
Report = Callable[[int, int], None]  # epochs done, the most epochs


class StructuralTraining:
    """Trains one probe for all layers and scores it.

    Parameters
    ----------
    trees : DependencyTrees
        All sentences.
    states : callable
        From a sentence's number to its hidden states `[layer, word, width]`.
    settings : StructuralSettings
        How the probe is trained.
    """

    def __init__(
        self, trees: DependencyTrees, states: States, settings: StructuralSettings
    ) -> None:
        self.trees = trees
        self.states = states
        self.settings = settings
        self._tree_distances: dict[int, np.ndarray] = {}

    def fit(
        self, train: np.ndarray, validation: np.ndarray, report: Report | None = None
    ) -> StructuralProbe:
        """Return the trained probe, each layer in the state with the smallest validation loss."""
        settings = self.settings
        n_layers, _, width = self.states(int(train[0])).shape
        generator = torch.Generator().manual_seed(settings.seed)
        probe = StructuralProbe(n_layers, width, settings.rank or width, generator)
        probe.to(settings.device)
        batch_order = np.random.default_rng([settings.seed, 11])
        train_groups = list(batch_by_length(self.trees.sizes, train, BATCH_PAIRS))
        validation_groups = list(batch_by_length(self.trees.sizes, validation, BATCH_PAIRS))
        # An epoch of a small corpus is several passes: validation would be checked too often.
        n_passes = -(-MIN_STEPS // len(train_groups))

        optimizer = torch.optim.Adam(probe.parameters(), lr=settings.learning_rate)
        smallest_loss = torch.full((n_layers,), torch.inf, device=settings.device)
        best_weight = probe.weight.detach().clone()
        n_decays = 0
        for epoch in range(settings.epochs):
            orders = [batch_order.permutation(len(train_groups)) for _ in range(n_passes)]
            for number in np.concatenate(orders):
                loss = self._loss(probe, train_groups[number]).mean(0).sum()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                losses = [self._loss(probe, group) for group in validation_groups]
                validation_loss = torch.cat(losses).mean(0)
            improved = validation_loss < smallest_loss
            best_weight[improved] = probe.weight.detach()[improved]
            smallest_loss = torch.minimum(validation_loss, smallest_loss)
            if report is not None:
                report(epoch + 1, settings.epochs)
            if bool(improved.any()):
                continue
            if n_decays == MAX_DECAYS:
                break
            n_decays += 1
            for group in optimizer.param_groups:
                group["lr"] *= RATE_DECAY
        with torch.no_grad():
            probe.weight.copy_(best_weight)
        return probe

    def _pad(self, group: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return states, tree distances (−1 where there is none) and numbers of words of some
        sentences."""
        sizes = [self.trees.sizes[sentence] for sentence in group]
        widest = max(sizes)
        n_layers, _, width = self.states(group[0]).shape
        states = torch.zeros(len(group), n_layers, widest, width)
        distances = torch.full((len(group), 1, widest, widest), -1.0)
        for row, (sentence, size) in enumerate(zip(group, sizes, strict=True)):
            states[row, :, :size] = torch.from_numpy(self.states(sentence).astype(np.float32))
            if sentence not in self._tree_distances:
                self._tree_distances[sentence] = tree_distances(self.trees.heads[sentence])
            edges = self._tree_distances[sentence]
            # A sentence with several roots has words that no path connects.
            connected = np.where(np.isfinite(edges), edges, -1.0)
            distances[row, 0, :size, :size] = torch.from_numpy(connected).float()
        device = self.settings.device
        return states.to(device), distances.to(device), torch.tensor(sizes, device=device)

    def _loss(self, probe: StructuralProbe, group: Sequence[int]) -> Tensor:
        """Return the loss of each sentence and layer, `[sentence, layer]`."""
        states, distances, sizes = self._pad(group)
        error = (probe(states) - distances).abs() * (distances >= 0)
        loss: Tensor = error.sum((-1, -2)) / sizes[:, None].square()
        return loss

    @torch.no_grad()
    def score(self, probe: StructuralProbe, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges found, `[sentence, layer]`, and the edges there are, `[sentence]`."""
        hits = np.zeros((len(sentences), len(probe.weight)))
        totals = np.zeros(len(sentences))
        row_of = {int(sentence): row for row, sentence in enumerate(sentences)}
        for group in batch_by_length(self.trees.sizes, sentences, BATCH_PAIRS):
            states, _, _ = self._pad(group)
            distances = probe(states).double().cpu().numpy()
            for sentence, by_layer in zip(group, distances, strict=True):
                row = row_of[sentence]
                size = self.trees.sizes[sentence]
                for layer, plane in enumerate(by_layer):
                    hits[row, layer], totals[row] = undirected_hits(
                        plane[:size, :size], self.trees.heads[sentence], self.trees.scored[sentence]
                    )
        return hits, totals
