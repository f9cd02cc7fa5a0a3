"""Frame links of a batch as pairs of tokens, at their own and every other place of a sentence, and
what is kept."""

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
LINKS_AT_MOST = (
    10_000  # of one example: a link's key is its example's number times this, plus its own
)


@dataclass(frozen=True, slots=True, eq=False)
class BatchLinks:
    """The links of a batch.

    A *place* is a link at one position: group `g` of `forward` (target to element) and of
    `backward` holds its pairs of pieces. `own[link]` is the link's true place, `sentence[link]` the
    number of its sentence among those used. `draws` says where each of the nulls puts it."""

    forward: TokenPairs
    backward: TokenPairs
    own: Tensor
    sentence: Tensor
    sentences: int
    draws: Tensor  # int64 [null, link, permutation]: the place it is moved to
    keys: list[int]
    names: list[tuple[str, str]]
    counts: Mapping[str, int]

    def over_sentences(self, values: Tensor) -> Tensor:
        """The largest of `values[link, ...]` in each sentence; NaN where none of its links has a
        value."""
        shown = values.nan_to_num(-torch.inf)
        out = shown.new_full((self.sentences, *values.shape[1:]), -torch.inf)
        place = self.sentence.view(-1, *[1] * (values.dim() - 1)).expand_as(shown)
        out.scatter_reduce_(0, place, shown, "amax")
        return torch.where(out.isinf(), torch.nan, out)

    def permuted(self, null: int, places: Tensor) -> Tensor:
        """Scores `[sentence, permutation, head]` with every link at the place that a null drew for
        it."""
        return self.over_sentences(places[self.draws[null]])


def gather_links(batch: Batch, asked: Frames) -> BatchLinks:
    """All links of a batch that count, with every place they could have."""
    counts: Counter[str] = Counter()
    forward: list[tuple[int, int, int, int]] = []
    owner: list[int] = []
    own, sentence, keys = list[int](), list[int](), list[int]()
    names, draws = list[tuple[str, str]](), list[np.ndarray]()
    sentences = 0
    for number, row in enumerate(batch.rows):
        reason, links = chosen_links(row, asked)
        counts[reason] += 1
        if not links:
            continue
        generator = np.random.default_rng([asked.seed or 0, row.index])
        for place, (link, target, element) in enumerate(links):
            own.append(len(owner))
            drawn = []
            for places in _places(row, target, element, asked.min_distance):
                first = len(owner)
                for looking, seen in [(target, element), *places]:
                    forward.extend(
                        (number, int(i), int(j), len(owner)) for i in looking for j in seen
                    )
                    owner.append(number)
                drawn.append(
                    first + generator.integers(0, len(places) + 1, size=asked.permutations)
                )
            draws.append(np.stack(drawn))
            sentence.append(sentences)
            keys.append(row.index * LINKS_AT_MOST + place)
            names.append((link.frame, link.element))
        sentences += 1
        counts["links"] += len(links)
    device = batch.device
    return BatchLinks(
        forward=token_pairs(forward, owner, device),
        backward=token_pairs([(e, j, i, g) for e, i, j, g in forward], owner, device),
        own=torch.tensor(own, dtype=torch.int64, device=device),
        sentence=torch.tensor(sentence, dtype=torch.int64, device=device),
        sentences=sentences,
        draws=torch.from_numpy(
            np.array(draws, dtype=np.int64).reshape(len(own), len(NULLS), asked.permutations)
        )
        .transpose(0, 1)
        .to(device),
        keys=keys,
        names=names,
        counts=counts,
    )


def chosen_links(
    row: Encoded, asked: Frames
) -> tuple[str, list[tuple[FrameLink, np.ndarray, np.ndarray]]]:
    """What a sentence is counted as, and its links that count with the tokens of target and
    element."""
    example = row.example
    if example.frames is None:
        return "sentences_without_frames", []
    if not row.aligned:
        return "sentences_unaligned", []
    if len(example.all_words) > asked.max_words:
        return "sentences_too_long", []
    wanted = [link for link in example.frames if link.core or not asked.core]
    passing = [link for link in wanted if _passes(link, asked)]
    if passing and asked.exclude == "sentences" and len(passing) < len(wanted):
        return "sentences_with_other_links", []
    found = []
    for link in passing:
        target, element = (
            np.flatnonzero((row.word >= a) & (row.word < b)) for a, b in (link.target, link.span)
        )
        if all(
            len(np.unique(row.word[t])) == b - a
            for t, (a, b) in ((target, link.target), (element, link.span))
        ):
            found.append((link, target, element))  # none of their words was cut off
    return ("sentences", found) if found else ("sentences_without_link", [])


def _passes(link: FrameLink, asked: Frames) -> bool:
    """Whether a link passes the filters on elements and distance."""
    (a, b), (c, d) = link.target, link.span
    distance = c - (b - 1) if c >= b else a - (d - 1) if a >= d else 0
    return d - c <= asked.max_element and distance >= asked.min_distance


Place = tuple[np.ndarray, np.ndarray]  # tokens that look, tokens that are looked at


def _places(row: Encoded, target: np.ndarray, element: np.ndarray, apart: int) -> list[list[Place]]:
    """Where each of the nulls can put a link besides its own place, all within its segment and off
    special tokens.

    `moved`: target and element together, so that distances stay; `other_target`: the same element
    seen from other words; `other_element`: the same target looking at other words. A target or
    element that is put elsewhere keeps its number of tokens, lies on the same side of the other end
    (a decoder sees one side only), as far from it as links must, and on none of its words."""
    both = np.concatenate([target, element])
    inside = ~row.special & (row.segment == row.segment[both[0]])
    return [
        [(target + shift, element + shift) for shift in _shifts(both, inside) if shift]
        if inside[both].all()
        else [],
        [(target + shift, element) for shift in _free_shifts(row, target, element, inside, apart)],
        [(target, element + shift) for shift in _free_shifts(row, element, target, inside, apart)],
    ]


def _shifts(tokens: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """By how many tokens these can be moved so that all of them are inside."""
    shifts = np.arange(-int(tokens.min()), len(inside) - int(tokens.max()))
    return np.asarray(shifts[inside[shifts[:, None] + tokens].all(1)])


def _free_shifts(
    row: Encoded, moving: np.ndarray, other: np.ndarray, inside: np.ndarray, apart: int
) -> np.ndarray:
    """Those that put no token on a word it comes from, and all far enough from the other end, on
    its own side."""
    shifts = _shifts(moving, inside)
    words, fixed = row.word[shifts[:, None] + moving], row.word[other]
    gap = (words - fixed.max()).min(1) if moving[0] > other[0] else (fixed.min() - words).min(1)
    return np.asarray(shifts[(gap >= max(apart, 1)) & ~np.isin(words, row.word[moving]).any(1)])


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
        """Names are saved as bytes of UTF-8, a line each."""
        text = "\n".join("\t".join(self.names[int(key)]) for key in self.index)
        return {**super().arrays(), "names": np.frombuffer(text.encode(), dtype=np.uint8).copy()}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        super().load(arrays)
        lines = bytes(np.asarray(arrays["names"], dtype=np.uint8)).decode().split("\n")
        self.names = {}
        for key, line in zip(arrays["index"], lines, strict=False):
            frame, _, element = line.partition("\t")
            self.names[int(key)] = (frame, element)

    def by_name(self, place: int) -> tuple[list[str], Moments]:
        """Labels (frames for 0, elements for 1), and the scores of each, `[layer, head, label]`.

        Of a sentence's links of one label the largest counts.
        """
        by_label: dict[str, dict[int, list[int]]] = {}
        for number, key in enumerate(self.index.tolist()):
            by_label.setdefault(self.names[key][place], {}).setdefault(
                key // LINKS_AT_MOST, []
            ).append(number)
        labels, values = sorted(by_label), self.values
        moments = Moments(*self.shape, len(labels))
        for column, label in enumerate(labels):
            scores = [np.fmax.reduce(values[numbers]) for numbers in by_label[label].values()]
            moments.add(torch.from_numpy(np.stack(scores)), (slice(None), slice(None), column))
        return labels, moments
