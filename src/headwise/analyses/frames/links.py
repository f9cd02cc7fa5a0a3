"""Frame links of a batch as pairs of tokens, at their own and every other position of a sentence,
and the records that are kept of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headwise.models.token_pairs import TokenPairs, token_pairs
from headwise.stats.accumulators import Moments
from headwise.stats.records import Records
from headwise.text.encode import Batch, Encoded
from headwise.text.example import FrameLink

if TYPE_CHECKING:
    from headwise.analyses.frames.analysis import Frames

NULLS = ("moved", "other_target", "other_element")
# A link's key is the number of its example times this, plus its own number.
MAX_LINKS = 10_000

# A link with the tokens of its target and of its element.
LinkTokens = tuple[FrameLink, np.ndarray, np.ndarray]
# Tokens that attend, and tokens they attend to.
Position = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class BatchLinks:
    """The links of a batch.

    A *position* is a link at one place of its sentence: group `g` of `forward` (target to element)
    and of `backward` holds its pairs of pieces. `own[link]` is the link's true position,
    `sentence[link]` the number of its sentence among those used. `draws[null, link, permutation]`
    is the position a null moves it to."""

    forward: TokenPairs
    backward: TokenPairs
    own: Tensor
    sentence: Tensor
    sentences: int
    draws: Tensor
    keys: list[int]
    names: list[tuple[str, str]]
    counts: Mapping[str, int]

    def max_per_sentence(self, values: Tensor) -> Tensor:
        """Return the largest of `values[link, ...]` in each sentence; NaN where none of its links
        has a value."""
        filled = values.nan_to_num(-torch.inf)
        largest = filled.new_full((self.sentences, *values.shape[1:]), -torch.inf)
        sentence = self.sentence.view(-1, *[1] * (values.dim() - 1)).expand_as(filled)
        largest.scatter_reduce_(0, sentence, filled, "amax")
        return torch.where(largest.isinf(), torch.nan, largest)

    def permuted_scores(self, null: int, weights: Tensor) -> Tensor:
        """Return scores `[sentence, permutation, head]` with every link at the position that a null
        drew for it; `weights[position, head]`."""
        return self.max_per_sentence(weights[self.draws[null]])


def gather_links(batch: Batch, analysis: Frames) -> BatchLinks:
    """Return all links of a batch that count, with every position they could have."""
    counts: Counter[str] = Counter()
    pairs: list[tuple[int, int, int, int]] = []  # example, query, key, position
    example_of_position: list[int] = []
    own: list[int] = []
    sentence: list[int] = []
    keys: list[int] = []
    names: list[tuple[str, str]] = []
    draws: list[np.ndarray] = []
    n_sentences = 0
    for number, row in enumerate(batch.rows):
        outcome, links = chosen_links(row, analysis)
        counts[outcome] += 1
        if not links:
            continue
        generator = np.random.default_rng([analysis.seed or 0, row.index])
        for place, (link, target, element) in enumerate(links):
            own.append(len(example_of_position))
            drawn = []
            for positions in _null_positions(row, target, element, analysis.min_distance):
                first = len(example_of_position)
                for queries, targets in [(target, element), *positions]:
                    position = len(example_of_position)
                    for i in queries:
                        for j in targets:
                            pairs.append((number, int(i), int(j), position))
                    example_of_position.append(number)
                # Position `first` is the link's own: a permutation may leave it in place.
                size = analysis.permutations
                drawn.append(first + generator.integers(0, len(positions) + 1, size=size))
            draws.append(np.stack(drawn))
            sentence.append(n_sentences)
            keys.append(row.index * MAX_LINKS + place)
            names.append((link.frame, link.element))
        n_sentences += 1
        counts["links"] += len(links)
    device = batch.device
    reversed_pairs = [(example, j, i, position) for example, i, j, position in pairs]
    all_draws = np.array(draws, dtype=np.int64)
    all_draws = all_draws.reshape(len(own), len(NULLS), analysis.permutations)
    return BatchLinks(
        forward=token_pairs(pairs, example_of_position, device),
        backward=token_pairs(reversed_pairs, example_of_position, device),
        own=torch.tensor(own, dtype=torch.int64, device=device),
        sentence=torch.tensor(sentence, dtype=torch.int64, device=device),
        sentences=n_sentences,
        draws=torch.from_numpy(all_draws).transpose(0, 1).to(device),
        keys=keys,
        names=names,
        counts=counts,
    )


def chosen_links(row: Encoded, analysis: Frames) -> tuple[str, list[LinkTokens]]:
    """Return what a sentence is counted as, and its links that count."""
    example = row.example
    if example.frames is None:
        return "sentences_without_frames", []
    if not row.aligned:
        return "sentences_unaligned", []
    if len(example.all_words) > analysis.max_words:
        return "sentences_too_long", []
    candidates = [link for link in example.frames if link.core or not analysis.core]
    passing = [link for link in candidates if _passes(link, analysis)]
    if passing and analysis.exclude == "sentences" and len(passing) < len(candidates):
        return "sentences_with_other_links", []
    links: list[LinkTokens] = []
    for link in passing:
        target = _tokens_of(row, link.target)
        element = _tokens_of(row, link.span)
        if target is not None and element is not None:
            links.append((link, target, element))
    if not links:
        return "sentences_without_link", []
    return "sentences", links


def _tokens_of(row: Encoded, span: tuple[int, int]) -> np.ndarray | None:
    """Return the tokens of a span of words; None if one of its words was cut off."""
    start, stop = span
    tokens = np.flatnonzero((row.word >= start) & (row.word < stop))
    n_words = len(np.unique(row.word[tokens]))
    return tokens if n_words == stop - start else None


def _passes(link: FrameLink, analysis: Frames) -> bool:
    """Return whether a link passes the filters on elements and distance."""
    target_start, target_stop = link.target
    element_start, element_stop = link.span
    distance = 0
    if element_start >= target_stop:
        distance = element_start - (target_stop - 1)
    elif target_start >= element_stop:
        distance = target_start - (element_stop - 1)
    element_length = element_stop - element_start
    return element_length <= analysis.max_element and distance >= analysis.min_distance


# --- where the nulls put a link -------------------------------------------------------------------


def _null_positions(
    row: Encoded, target: np.ndarray, element: np.ndarray, min_distance: int
) -> list[list[Position]]:
    """Return where each null can put a link besides its own position.

    All within its segment and off special tokens. `moved`: target and element together, so that
    distances stay; `other_target`: the same element seen from other words; `other_element`: the
    same target attending to other words. A target or element that is moved keeps its number of
    tokens, lies on the same side of the other end (a decoder sees one side only), as far from it as
    links must, and on none of its own words."""
    both = np.concatenate([target, element])
    inside = ~row.special & (row.segment == row.segment[both[0]])
    moved = []
    if inside[both].all():
        for shift in _shifts(both, inside):
            if shift:
                moved.append((target + shift, element + shift))
    other_target = []
    for shift in _free_shifts(row, target, element, inside, min_distance):
        other_target.append((target + shift, element))
    other_element = []
    for shift in _free_shifts(row, element, target, inside, min_distance):
        other_element.append((target, element + shift))
    return [moved, other_target, other_element]


def _shifts(tokens: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return by how many places these tokens can be moved so that all of them stay inside."""
    shifts = np.arange(-int(tokens.min()), len(inside) - int(tokens.max()))
    stays_inside = inside[shifts[:, None] + tokens].all(1)
    return np.asarray(shifts[stays_inside])


def _free_shifts(
    row: Encoded,
    moving: np.ndarray,
    fixed: np.ndarray,
    inside: np.ndarray,
    min_distance: int,
) -> np.ndarray:
    """Return the shifts that put no token on a word it comes from, and keep its side and distance
    from the fixed end."""
    shifts = _shifts(moving, inside)
    words = row.word[shifts[:, None] + moving]
    fixed_words = row.word[fixed]
    if moving[0] > fixed[0]:
        gap = (words - fixed_words.max()).min(1)
    else:
        gap = (fixed_words.min() - words).min(1)
    is_far_enough = gap >= max(min_distance, 1)
    on_own_word = np.isin(words, row.word[moving]).any(1)
    return np.asarray(shifts[is_far_enough & ~on_own_word])


# --- records --------------------------------------------------------------------------------------


class LinkRecords(Records):
    """One row of scores `[layer, head]` for each link, with the names of its frame and element."""

    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.names: dict[int, tuple[str, str]] = {}

    def add_named(
        self,
        keys: Sequence[int],
        names: Sequence[tuple[str, str]],
        values: Tensor,
        where: tuple[int | slice, ...],
    ) -> None:
        self.add(keys, values, where)
        self.names.update(zip(keys, names, strict=True))

    def merge(self, other: Records) -> None:
        super().merge(other)
        assert isinstance(other, LinkRecords)
        self.names.update(other.names)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays to save; names are bytes of UTF-8, one line per link."""
        lines = ["\t".join(self.names[int(key)]) for key in self.index]
        encoded = "\n".join(lines).encode()
        return {**super().arrays(), "names": np.frombuffer(encoded, dtype=np.uint8).copy()}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        super().load(arrays)
        lines = bytes(np.asarray(arrays["names"], dtype=np.uint8)).decode().split("\n")
        self.names = {}
        for key, line in zip(arrays["index"], lines, strict=False):
            frame, _, element = line.partition("\t")
            self.names[int(key)] = (frame, element)

    def by_name(self, place: int) -> tuple[list[str], Moments]:
        """Return labels (frames for place 0, elements for 1), and the scores of each,
        `[layer, head, label]`.

        Of a sentence's links of one label the largest counts.
        """
        # label -> sentence -> rows of its links
        rows_by_label: dict[str, dict[int, list[int]]] = {}
        for number, key in enumerate(self.index.tolist()):
            by_sentence = rows_by_label.setdefault(self.names[key][place], {})
            by_sentence.setdefault(key // MAX_LINKS, []).append(number)
        labels = sorted(rows_by_label)
        values = self.values
        moments = Moments(*self.shape, len(labels))
        for column, label in enumerate(labels):
            scores = []
            for numbers in rows_by_label[label].values():
                scores.append(np.fmax.reduce(values[numbers]))
            where = (slice(None), slice(None), column)
            moments.add(torch.from_numpy(np.stack(scores)), where)
        return labels, moments
