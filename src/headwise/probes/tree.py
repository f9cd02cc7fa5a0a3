"""Graph-based parsers with few parameters on the word-level attention of all heads (Clark et al.
2019, §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from headwise.stats.products import matmul

EXCLUDED = -1e9  # score of what cannot be a head
NOT_SCORED = -100  # gold head of words that are not scored; cross_entropy ignores it
NEAR_DISTANCES = (-2, -1, 0, 1, 2)  # distances with an indicator feature of their own


class WordMaps:
    """Word-level maps `[from word, to word, head]` of many sentences, concatenated in one float16
    array.

    Parameters
    ----------
    sizes : sequence of int
        Number of words of each sentence.
    heads : int
        Number of heads, all layers together.
    values : ndarray, optional
        An array of `WordMaps.length(sizes, heads)` numbers, for instance in a file; by default one
        in memory.
    """

    def __init__(self, sizes: Sequence[int], heads: int, values: np.ndarray | None = None) -> None:
        self.sizes = np.asarray(sizes, dtype=np.int64)
        self.heads = heads
        self.starts = np.concatenate([[0], np.cumsum(self.sizes**2 * heads)])
        if values is None:
            values = np.zeros(self.starts[-1], dtype=np.float16)
        self.values = values

    @staticmethod
    def length(sizes: Sequence[int], heads: int) -> int:
        """Return how many numbers the maps of such sentences have."""
        return int((np.asarray(sizes, dtype=np.int64) ** 2).sum()) * heads

    def flat(self, sentence: int) -> np.ndarray:
        """Return a view on the numbers of a sentence, to read or write."""
        return self.values[self.starts[sentence] : self.starts[sentence + 1]]

    def read(self, sentences: Sequence[int], width: int) -> Tensor:
        """Return maps `[sentence, from word, to word, head]` as float32, padded with zeros to
        `width` words."""
        padded = torch.zeros(len(sentences), width, width, self.heads)
        for row, sentence in enumerate(sentences):
            n = int(self.sizes[sentence])
            maps = np.array(self.flat(sentence)).reshape(n, n, self.heads)
            padded[row, :n, :n] = torch.from_numpy(maps).float()
        return padded


def flatten_maps(maps: np.ndarray) -> np.ndarray:
    """Return `maps[head, from word, to word]` of a sentence in the order of `WordMaps`."""
    return np.moveaxis(maps, 0, -1).ravel()


@dataclass(frozen=True, slots=True, eq=False)
class DependencyTrees:
    """Sentences for the probes.

    Attributes
    ----------
    vectors : list of ndarray
        Word vectors `[word, size]` of each sentence.
    heads : list of ndarray
        The head of each word; the number of words stands for the root.
    scored : list of ndarray
        Whether each word is scored (all but punctuation).
    """

    vectors: list[np.ndarray]
    heads: list[np.ndarray]
    scored: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def sizes(self) -> list[int]:
        """Number of words of each sentence."""
        return [len(heads) for heads in self.heads]


@dataclass(frozen=True, slots=True, eq=False)
class TreeBatch:
    """Some sentences as padded tensors.

    Attributes
    ----------
    sentences : list of int
        Their numbers.
    maps : Tensor, optional
        `[sentence, from, to, head]`; None for probes that use no attention.
    vectors : Tensor
        `[sentence, word, size]`.
    gold_heads : Tensor
        `[sentence, word]`: the width of the batch for the root, `NOT_SCORED` for words that are not
        scored.
    word_mask : Tensor
        `[sentence, word]`: False for padding.
    """

    sentences: list[int]
    maps: Tensor | None
    vectors: Tensor
    gold_heads: Tensor
    word_mask: Tensor

    @property
    def width(self) -> int:
        """Words of the longest sentence."""
        return self.word_mask.shape[1]

    @property
    def scored(self) -> Tensor:
        """Bool `[sentence, word]`: words whose head is scored."""
        return self.gold_heads >= 0


def make_tree_batch(
    trees: DependencyTrees,
    sentences: Sequence[int],
    word_maps: WordMaps | None,
    device: torch.device | str,
) -> TreeBatch:
    """Pad some sentences to the longest of them."""
    width = max(len(trees.heads[sentence]) for sentence in sentences)
    vectors = torch.zeros(len(sentences), width, trees.vectors[sentences[0]].shape[1])
    gold_heads = torch.full((len(sentences), width), NOT_SCORED)
    word_mask = torch.zeros(len(sentences), width, dtype=torch.bool)
    for row, sentence in enumerate(sentences):
        heads = trees.heads[sentence]
        n = len(heads)
        vectors[row, :n] = torch.from_numpy(trees.vectors[sentence])
        root_last = np.where(heads == n, width, heads)
        scored_heads = np.where(trees.scored[sentence], root_last, NOT_SCORED)
        gold_heads[row, :n] = torch.from_numpy(scored_heads)
        word_mask[row, :n] = True
    maps = None
    if word_maps is not None:
        maps = word_maps.read(sentences, width).to(device)
    return TreeBatch(
        list(sentences), maps, vectors.to(device), gold_heads.to(device), word_mask.to(device)
    )


class TreeProbe(nn.Module):
    """Scores of every candidate head of every word.

    `forward` returns `[sentence, dependent, candidate]`; the last candidate is the root.
    """

    needs_maps = True
    convex = False  # True: few parameters and one optimum, which L-BFGS finds

    def forward(self, batch: TreeBatch) -> Tensor:
        scores, root_scores = self.scores(batch)
        own_word = torch.eye(batch.width, dtype=torch.bool, device=scores.device)
        excluded = ~batch.word_mask[:, None, :] | own_word
        return torch.cat([scores.masked_fill(excluded, EXCLUDED), root_scores[..., None]], dim=-1)

    def scores(self, batch: TreeBatch) -> tuple[Tensor, Tensor]:
        """Return scores of words `[sentence, dependent, candidate]` and of the root `[sentence,
        dependent]`."""
        raise NotImplementedError


class AttentionProbe(TreeProbe):
    """`p(i|j) ∝ exp(Σ_k w_k A_k[i, j] + u_k A_k[j, i])`, the root with a learned bias.

    Starts from zero: the problem is convex.
    """

    convex = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        # [head, (w, u)]: w weighs attention from candidate to dependent, u the reverse.
        self.weight = nn.Parameter(torch.zeros(heads, 2))
        self.root = nn.Parameter(torch.zeros(()))

    def scores(self, batch: TreeBatch) -> tuple[Tensor, Tensor]:
        assert batch.maps is not None
        # The two weight vectors stand on the left, here and below: a product with two columns, and
        # its derivative above all, takes several times as long.
        weight = self.weight.T.expand(*batch.maps.shape[:2], -1, -1)
        weighted = weight @ batch.maps.transpose(2, 3)  # sentence, from, (w, u), to
        scores = weighted[:, :, 0].transpose(1, 2) + weighted[:, :, 1]
        return scores, self.root.expand(batch.word_mask.shape)

    def head_weights(self, batch: TreeBatch) -> Tensor:
        """Return the weight of each head, `[scored word, head, (w, u)]`: the same for all words."""
        return self.weight.expand(int(batch.scored.sum()), -1, -1)


class AttentionWordsProbe(TreeProbe):
    """`AttentionProbe` with `w_k = W_k · (v_i ⊕ v_j)` and `u_k = U_k · (v_i ⊕ v_j)`.

    The root, which no attention reaches, has a learned bias and vector: `b + r · v_j`.
    """

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.candidate = nn.Parameter(torch.zeros(size, heads, 2))  # of W and U, the half for v_i
        self.dependent = nn.Parameter(torch.zeros(size, heads, 2))  # the half for v_j
        self.root = nn.Parameter(torch.zeros(()))
        self.root_vector = nn.Parameter(torch.zeros(size))

    def _word_weights(self, batch: TreeBatch) -> tuple[Tensor, Tensor]:
        """Return what each word adds to w and u as candidate and as dependent, `[sentence, word,
        head, (w, u)]`.

        `W_k · (v_i ⊕ v_j)` is the sum of one number for the candidate and one for the dependent, so
        that no tensor of size word² × vector is formed.
        """
        candidate = matmul(batch.vectors, self.candidate.flatten(1))
        dependent = matmul(batch.vectors, self.dependent.flatten(1))
        shape = (*batch.word_mask.shape, *self.candidate.shape[1:])
        return candidate.view(shape), dependent.view(shape)

    def scores(self, batch: TreeBatch) -> tuple[Tensor, Tensor]:
        assert batch.maps is not None
        candidate, dependent = self._word_weights(batch)
        # For w the attending word is the candidate, for u the dependent.
        attending = torch.stack([candidate[..., 0], dependent[..., 1]], dim=2)
        attended = torch.stack([dependent[..., 0], candidate[..., 1]], dim=2)
        by_attending = attending @ batch.maps.transpose(2, 3)  # sentence, from, (w, u), to
        by_attended = attended @ batch.maps.permute(0, 2, 3, 1)  # sentence, to, (w, u), from
        of_w = by_attending[:, :, 0].transpose(1, 2) + by_attended[:, :, 0]
        of_u = by_attending[:, :, 1] + by_attended[:, :, 1].transpose(1, 2)
        scores = of_w + of_u  # sentence, dependent, candidate
        return scores, self.root + batch.vectors @ self.root_vector

    def head_weights(self, batch: TreeBatch) -> Tensor:
        """Return the weight of each head for each scored word and its true head, `[word, head, (w,
        u)]`.

        Words under the root are left out.
        """
        candidate, dependent = self._word_weights(batch)
        has_head = batch.scored & (batch.gold_heads < batch.width)
        sentence, word = has_head.nonzero(as_tuple=True)
        head = batch.gold_heads[sentence, word]
        return candidate[sentence, head] + dependent[sentence, word]


class DistanceWordsProbe(TreeProbe):
    """One hidden layer on the vectors of both words and their distance; the root has a learned
    vector and a feature of its own.

    Parameters
    ----------
    size : int
        Of word vectors.
    hidden : int
        Width of the hidden layer.
    generator : torch.Generator
        Draws the initial weights.
    """

    needs_maps = False

    def __init__(self, size: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        n_features = len(NEAR_DISTANCES) + 2

        def random_weights(rows: int) -> nn.Parameter:
            weights = torch.randn(rows, hidden, generator=generator)
            return nn.Parameter(weights / np.sqrt(2 * size + n_features))

        # The order of these lines decides which random numbers each parameter gets.
        self.candidate = random_weights(size)
        self.dependent = random_weights(size)
        self.distance = random_weights(n_features)
        self.root_vector = nn.Parameter(torch.zeros(size))
        self.root_feature = random_weights(1)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.out = nn.Parameter(torch.randn(hidden, generator=generator) / np.sqrt(hidden))

    def scores(self, batch: TreeBatch) -> tuple[Tensor, Tensor]:
        dependent = matmul(batch.vectors, self.dependent) + self.bias
        candidate = matmul(batch.vectors, self.candidate)
        distance = distance_features(batch.word_mask) @ self.distance
        # sentence, dependent, candidate, hidden
        hidden = torch.relu(dependent[:, :, None] + candidate[:, None] + distance)
        # Added one after the other, from the left: another order rounds differently, and training
        # amplifies that.
        root_candidate = self.root_vector @ self.candidate
        root_hidden = torch.relu(dependent + root_candidate + self.root_feature[0])
        return hidden @ self.out, root_hidden @ self.out


def distance_features(word_mask: Tensor) -> Tensor:
    """Return features of distances d = candidate − dependent, `[sentence, dependent, candidate,
    feature]`.

    d / n for candidates to the right, −d / n for those to the left, and an indicator for each of
    −2..2.
    """
    positions = torch.arange(word_mask.shape[1], device=word_mask.device)
    distance = (positions[None, :] - positions[:, None]).float()
    length = word_mask.sum(1).clamp(min=1)[:, None, None].float()
    features = [distance.clamp(min=0) / length, (-distance).clamp(min=0) / length]
    for near in NEAR_DISTANCES:
        features.append((distance == near).float().expand(len(word_mask), -1, -1))
    return torch.stack(features, dim=-1)


def right_branching(trees: DependencyTrees, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return correct words and scored words of each sentence when every word's head is the next
    word (the last word has none)."""
    correct = []
    total = []
    for sentence in sentences:
        heads = trees.heads[sentence]
        scored = trees.scored[sentence]
        next_word = np.arange(len(heads)) + 1
        # The word after the last is no word: it would stand for the root.
        hits = (heads == next_word) & (next_word < len(heads)) & scored
        correct.append(int(hits.sum()))
        total.append(int(scored.sum()))
    return np.array(correct, dtype=float), np.array(total, dtype=float)
