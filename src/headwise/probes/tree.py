"""Graph-based parsers of few parameters on all heads' word-level maps (Clark et al. 2019, §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

NEVER = -1e9
NEAR = (-2, -1, 0, 1, 2)  # distances with an indicator of their own


class WordMaps:
    """Word-level maps `[from word, to word, head]` of many sentences, one behind the other in one
    float16 array.

    Parameters
    ----------
    sizes : sequence of int
        The words of each sentence.
    heads : int
        Of all layers together.
    values : ndarray, optional
        The array of `WordMaps.length(sizes, heads)` numbers, where it is not to be in memory.
    """

    def __init__(self, sizes: Sequence[int], heads: int, values: np.ndarray | None = None) -> None:
        self.sizes, self.heads = np.asarray(sizes, dtype=np.int64), heads
        self.starts = np.concatenate([[0], np.cumsum(self.sizes**2 * heads)])
        self.values = np.zeros(self.starts[-1], dtype=np.float16) if values is None else values

    @staticmethod
    def length(sizes: Sequence[int], heads: int) -> int:
        """How many numbers there are."""
        return int((np.asarray(sizes, dtype=np.int64) ** 2).sum()) * heads

    def flat(self, sentence: int) -> np.ndarray:
        """The numbers of a sentence, to be read or written."""
        return self.values[self.starts[sentence] : self.starts[sentence + 1]]

    def read(self, sentences: Sequence[int], width: int) -> Tensor:
        """Maps `[sentence, from word, to word, head]` as float32, padded by zeros to `width`
        words."""
        out = torch.zeros(len(sentences), width, width, self.heads)
        for place, sentence in enumerate(sentences):
            n = int(self.sizes[sentence])
            block = np.array(self.flat(sentence)).reshape(n, n, self.heads)
            out[place, :n, :n] = torch.from_numpy(block).float()
        return out


def flat_maps(maps: np.ndarray) -> np.ndarray:
    """`maps[head, from word, to word]` of a sentence in the order that `WordMaps` keeps."""
    return np.moveaxis(maps, 0, -1).ravel()


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Sentences for the probes: word vectors, each word's head (the number of words for the root),
    who is scored."""

    vectors: list[np.ndarray]
    heads: list[np.ndarray]
    scored: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def sizes(self) -> list[int]:
        return [len(heads) for heads in self.heads]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some sentences as padded tensors.

    `maps[sentence, from, to, head]` (None for probes that look at no maps), `vectors[sentence,
    word, size]`, `head[sentence, word]` (width for the root, −100 for words that are not scored),
    `real[sentence, word]`."""

    sentences: list[int]
    maps: Tensor | None
    vectors: Tensor
    head: Tensor
    attention_mask: Tensor


def part_of(
    trees: Trees, sentences: Sequence[int], word_maps: WordMaps | None, device: torch.device | str
) -> Part:
    """Pad some sentences to the longest of them."""
    width = max(len(trees.heads[s]) for s in sentences)
    vectors = torch.zeros(len(sentences), width, trees.vectors[sentences[0]].shape[1])
    head = torch.full((len(sentences), width), -100)
    attention_mask = torch.zeros(len(sentences), width, dtype=torch.bool)
    for place, s in enumerate(sentences):
        n = len(trees.heads[s])
        vectors[place, :n] = torch.from_numpy(trees.vectors[s])
        gold = np.where(trees.heads[s] == n, width, trees.heads[s])
        head[place, :n] = torch.from_numpy(np.where(trees.scored[s], gold, -100))
        attention_mask[place, :n] = True
    maps = None if word_maps is None else word_maps.read(sentences, width).to(device)
    return Part(
        list(sentences), maps, vectors.to(device), head.to(device), attention_mask.to(device)
    )


class TreeProbe(nn.Module):
    """Scores of every candidate head of every word.

    `forward` gives `[sentence, dependent, candidate]`, the last candidate being the root.
    """

    needs_maps = True
    convex = False  # and of few parameters: its one optimum is found by L-BFGS

    def forward(self, part: Part) -> Tensor:
        scores, root = self.scores(part)
        size = scores.shape[1]
        closed = ~part.attention_mask[:, None, :] | torch.eye(
            size, dtype=torch.bool, device=scores.device
        )
        return torch.cat([scores.masked_fill(closed, NEVER), root[..., None]], dim=-1)

    def scores(self, part: Part) -> tuple[Tensor, Tensor]:
        """Scores of words `[sentence, dependent, candidate]` and of the root `[sentence,
        dependent]`."""
        raise NotImplementedError


class AttentionProbe(TreeProbe):
    """`p(i|j) ∝ exp(Σ_k w_k A_k[i, j] + u_k A_k[j, i])`, the root with a learned bias.

    Starts from zero: the problem is convex.
    """

    convex = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.zeros(heads, 2)
        )  # w: from candidate to dependent; u: the other way
        self.root = nn.Parameter(torch.zeros(()))

    def scores(self, part: Part) -> tuple[Tensor, Tensor]:
        assert part.maps is not None
        both = part.maps @ self.weight  # from, to, which
        return both[..., 0].transpose(1, 2) + both[..., 1], self.root.expand(
            part.attention_mask.shape
        )

    def head_weights(self, part: Part) -> Tensor:
        """The weight of each head, `[scored word, head, (w, u)]`: the same for all words."""
        return self.weight.expand(int((part.head >= 0).sum()), -1, -1)


class AttentionWordsProbe(TreeProbe):
    """The same with `w_k = W_k · (v_i ⊕ v_j)` and `u_k = U_k · (v_i ⊕ v_j)`.

    The root, which no attention reaches, has a learned bias and vector: `b + r · v_j`.

    `W_k · (v_i ⊕ v_j)` is a sum of one number for the candidate and one for the dependent, so
    nothing of size word² × vector is ever formed."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.candidate = nn.Parameter(torch.zeros(size, heads, 2))  # of W and U, the half for v_i
        self.dependent = nn.Parameter(torch.zeros(size, heads, 2))  # the half for v_j
        self.root = nn.Parameter(torch.zeros(()))
        self.root_vector = nn.Parameter(torch.zeros(size))

    def _parts(self, part: Part) -> tuple[Tensor, Tensor]:
        flat = (part.vectors @ weight.flatten(1) for weight in (self.candidate, self.dependent))
        # sentence, word, head, (w, u)
        candidate, dependent = (f.view(*f.shape[:-1], *self.candidate.shape[1:]) for f in flat)
        return candidate, dependent

    def scores(self, part: Part) -> tuple[Tensor, Tensor]:
        assert part.maps is not None
        candidate, dependent = self._parts(part)
        # For w the looking word is the candidate, for u the dependent.
        looking = torch.stack([candidate[..., 0], dependent[..., 1]], dim=-1)
        looked_at = torch.stack([dependent[..., 0], candidate[..., 1]], dim=-1)
        both = part.maps @ looking + (part.maps.transpose(1, 2) @ looked_at).transpose(
            1, 2
        )  # from, to, which
        return both[..., 0].transpose(1, 2) + both[
            ..., 1
        ], self.root + part.vectors @ self.root_vector

    def head_weights(self, part: Part) -> Tensor:
        """The weight of each head for each scored word and its true head, `[word, head, (w, u)]`.

        Words under the root have none.
        """
        candidate, dependent = self._parts(part)
        sentence, word = ((part.head >= 0) & (part.head < part.attention_mask.shape[1])).nonzero(
            as_tuple=True
        )
        return candidate[sentence, part.head[sentence, word]] + dependent[sentence, word]


class DistanceWordsProbe(TreeProbe):
    """One hidden layer on the vectors of both words and on their distance.

    Distance / length ahead and behind apart, indicators of −2..2 and of the root.

    The root has a learned vector.
    """

    needs_maps = False

    def __init__(self, size: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        features = len(NEAR) + 2

        def drawn(rows: int) -> nn.Parameter:
            return nn.Parameter(
                torch.randn(rows, hidden, generator=generator) / np.sqrt(2 * size + features)
            )

        self.candidate, self.dependent, self.distance = drawn(size), drawn(size), drawn(features)
        self.root_vector = nn.Parameter(torch.zeros(size))
        self.root_feature = drawn(1)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.out = nn.Parameter(torch.randn(hidden, generator=generator) / np.sqrt(hidden))

    def scores(self, part: Part) -> tuple[Tensor, Tensor]:
        dependent = part.vectors @ self.dependent + self.bias
        candidate = part.vectors @ self.candidate
        near = (
            distance_features(part.attention_mask) @ self.distance
        )  # sentence, dependent, candidate, hidden
        words = torch.relu(dependent[:, :, None] + candidate[:, None] + near) @ self.out
        root = (
            torch.relu(dependent + self.root_vector @ self.candidate + self.root_feature[0])
            @ self.out
        )
        return words, root


def distance_features(attention_mask: Tensor) -> Tensor:
    """Features `[sentence, dependent, candidate, feature]` of distances, candidate − dependent.

    d / n ahead, −d / n behind, and an indicator for each of −2..2.
    """
    width = attention_mask.shape[1]
    places = torch.arange(width, device=attention_mask.device)
    distance = (places[None, :] - places[:, None]).float()
    length = attention_mask.sum(1).clamp(min=1)[:, None, None].float()
    shares = [distance.clamp(min=0) / length, (-distance).clamp(min=0) / length]
    indicators = [(distance == d).float().expand(len(attention_mask), -1, -1) for d in NEAR]
    return torch.stack([*shares, *indicators], dim=-1)


def right_branching(trees: Trees, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Words found and words scored when every word's head is the next one (the last word has
    none)."""
    correct = []
    for s in sentences:
        following = np.arange(len(trees.heads[s])) + 1
        found = (trees.heads[s] == following) & (following < len(following)) & trees.scored[s]
        correct.append(int(found.sum()))
    total = [int(trees.scored[s].sum()) for s in sentences]
    return np.array(correct, dtype=float), np.array(total, dtype=float)
