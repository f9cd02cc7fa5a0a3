"""Heads that link a frame's target to its elements, against the same words unlinked (Kovaleva et
al. 2019, §4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import (
    Paper,
    Shape,
    at_least,
    layer_head_coords,
    mean_variables,
    one_of,
)
from headwise.analyses.frames.links import (
    NULLS,
    BatchLinks,
    LinkRecords,
    chosen_links,
    gather_links,
)
from headwise.analyses.nulls import (
    RandomNull,
    above_random_variable,
    null_attributes,
    random_bound,
    significant_excess,
)
from headwise.core.errors import ParameterError
from headwise.core.labels import head_name, variable_of
from headwise.models.statistics import StatsRequest, StatsResult
from headwise.models.token_pairs import group_max
from headwise.models.view import Layer
from headwise.stats.accumulators import Moments, State, Sums
from headwise.stats.bootstrap import FEW
from headwise.text.encode import Batch, Encoded

THERE, BACK = "frames there", "frames back"  # from target to element, and the other way
FEWER = 99  # permutations on random weights, where only their mean is of interest
HEADS = ("layer", "head")
COUNTED = ("score_n", "sentences")
SCORES = ("score", "score_reverse", "score_both")
COUNTS = (
    "sentences",
    "sentences_too_long",
    "sentences_without_link",
    "sentences_with_other_links",
    "sentences_unaligned",
    "sentences_without_frames",
    "links",
)


@dataclass(frozen=True)
class Frames(RandomNull):
    """Weights between a frame's target and its elements.

    Of each sentence the links (target, core element) that pass the filters; every pair of their
    pieces (i of the target, j of the element) counts.

    - `score[layer, head]`: the largest `A[i, j]` over the pairs of all links of a sentence, then
      the mean over sentences; `score_reverse`: of `A[j, i]`; `score_both`: of the larger; each with
      `_n`, `_low`, `_high`. A decoder's pairs count where they are visible;
    - `above[layer, head]`: the score lies above the `percentile`-th percentile of all heads' (the
      paper's rule; the attribute `cut` is that value);
    - `p_value`, `reverse_p_value`, `both_p_value[layer, head]`: permutation tests against three
      nulls, the largest p of the three. `moved`: every link is moved along its sentence, target and
      element together, by a random number of tokens, so that all distances stay; `other_target`:
      the same element, at its place, seen from another word of the sentence; `other_element`: the
      same target, at its place, looking at other words. A head that likes a distance, a word or a
      place scores as high under one of them. p is the share of `permutations` whose mean score is
      at least as large; `p_adjusted` and so on: corrected over heads by the largest standardised
      score of each permutation (Westfall and Young); none of them from fewer than 30 sentences.
      `expected`, `expected_reverse`, `expected_both`: the mean over permutations, of the null where
      it is largest; `excess`: `score − expected`;
    - `random_excess`, an attribute: the mean `excess` of heads of random-weights models of the same
      shape, as sharp as this one, on the same sentences (they keep words, places, distances and
      links; only the training is missing); `random_bound`: what, at 0.05, none of their heads
      passes; `above_random[layer, head]`: `excess − random_bound`;
    - `stands_out[layer, head]`: `p_adjusted < 0.05`, 30 sentences or more, an excess of `margin` or
      more and above `random_bound`: what a head must have to be called one that follows frames;
    - `by_frame[layer, head, frame]`, `by_element[layer, head, element]`: `score` for the sentences
      and links of each, with `_n`, `_low`, `_high`.

    Parameters
    ----------
    max_words : int, default 12
        Longer sentences are left out (in words, as the corpus gives them).
    max_element : int, default 3
        BatchLinks to longer elements are left out.
    min_distance : int, default 2
        BatchLinks whose words lie nearer than this are left out: `min |i − j|` over their words.
    core : bool, default True
        Only core elements.
    exclude : str, default "sentences"
        What links that fail the filters on elements and distance take with them: their `sentences`
        (the paper's reading), or nothing but themselves (`links`).
    margin : float, default 0.05
        The least excess of a head that stands out.
    percentile : float, default 99
        For `above`.
    permutations : int, default 999
        How many; 0 leaves the test out.
    random_models : int, optional
        Random-weights models beside the model. By default one to four, so many that they have 144
        heads, and none for models of more than 500 million parameters; 0 for none.
    seed : int, optional
        For the permutations; the run's by default.

    Notes
    -----
    Question: Which heads link a frame's target to its elements, more than they link the same words
    unlinked?

    Assumes: Frames and elements are annotated rightly; a link shows as one large weight between any
    of their pieces.

    Traps: The largest of several weights grows with their number, so a score says nothing without
    `expected`. The 99th percentile (`above`) always calls one head in a hundred, random weights
    too; `stands_out` calls none of those. Few sentences pass the filters.

    Cost: The pass of the model, permutations on what it kept, and a pass of one to four
    random-weights models."""

    max_words: int = 12
    max_element: int = 3
    min_distance: int = 2
    core: bool = True
    exclude: str = "sentences"
    margin: float = 0.05
    percentile: float = 99.0
    permutations: int = 999
    random_models: int | None = None
    seed: int | None = None

    name: ClassVar[str] = "frames"
    title: ClassVar[str] = "Heads that follow frame semantics"
    paper: ClassVar[Paper] = Paper("kovaleva2019", "§4.2, Fig 3-4")
    units: ClassVar[Mapping[str, str]] = {
        "attention weight": "expected expected_reverse expected_both excess by_frame by_element above_random"
    }
    requires: ClassVar[frozenset[str]] = frozenset({"words", "frames"})

    def __post_init__(self) -> None:
        for name in ("max_words", "max_element"):
            at_least(name, getattr(self, name), 1)
        for name in ("min_distance", "permutations"):
            at_least(name, getattr(self, name), 0)
        one_of("exclude", self.exclude, ("sentences", "links"))
        self.check_random_models()
        if not 0 <= self.margin < 1:
            raise ParameterError(f"`margin` must be at least 0 and below 1; it is {self.margin!r}.")
        if not 0 < self.percentile < 100:
            raise ParameterError(
                f"`percentile` must lie between 0 and 100; it is {self.percentile!r}."
            )

    def _links(self, batch: Batch) -> BatchLinks:
        return batch.remember(("frames", self), lambda: gather_links(batch, self))

    def start(self, shape: Shape) -> State:
        heads = (shape.layers, shape.heads)
        state = State({name: Moments(*heads) for name in SCORES})
        state["links"] = LinkRecords(*heads)
        state["permuted"] = Sums(
            len(NULLS), len(SCORES), shape.layers, self.permutations, shape.heads
        )
        state["counts"] = Sums(len(COUNTS))
        return state

    def request(self, batch: Batch) -> StatsRequest:
        links = self._links(batch)
        return StatsRequest(
            pairs={THERE: links.forward.places, BACK: links.backward.places}, uniform=True
        )

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        assert answers.uniform is not None
        own, even = answers.pair_weights, answers.uniform.pair_weights
        return {
            "forward": own[THERE],
            "seen": even[THERE],
            "backward": own[BACK],
            "seen_back": even[BACK],
        }

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        links = self._links(batch)
        if layer.layer == 0:
            state.sums("counts").add(torch.tensor([links.counts[name] for name in COUNTS]))
        if not links.sentences:
            return
        # [place of a link (0 is its own), head]: the largest weight over the pairs of pieces there
        there = group_max(sums["forward"].double(), sums["seen"] > 0, links.forward)
        back = group_max(sums["backward"].double(), sums["seen_back"] > 0, links.backward)
        either = torch.fmax(there, back)
        for direction, places in enumerate((there, back, either)):
            state.moments(SCORES[direction]).add(
                links.over_sentences(places[links.own]), (layer.layer,)
            )
            for null in range(len(NULLS) if self.permutations else 0):
                moved = links.permuted(null, places)  # [sentence, permutation, head]
                state.sums("permuted").add(
                    moved.nan_to_num(0.0).sum(0), (null, direction, layer.layer)
                )
        records = state["links"]
        assert isinstance(records, LinkRecords)
        records.add_named(links.keys, links.names, there[links.own], (layer.layer,))

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        variables: dict[str, xr.Variable] = {}
        for name in SCORES:
            variables |= mean_variables(name, HEADS, state.moments(name), units="attention weight")
        score = variables["score"].values
        cut = (
            float(np.nanpercentile(score, self.percentile))
            if np.isfinite(score).any()
            else float("nan")
        )
        above = f"score above the {self.percentile:g}th percentile of all heads"
        variables["above"] = xr.Variable(HEADS, score > cut, {"long_name": above})
        permuted = state.sums("permuted").total.numpy()
        counts = {
            name: int(value) for name, value in zip(COUNTS, state.sums("counts").total, strict=True)
        }
        for place, name in enumerate(SCORES) if self.permutations else ():
            direction = name.removeprefix("score").strip("_")
            made = _permutation_variables(direction, state.moments(name), permuted[:, place])
            if counts["sentences"] < FEW:  # what a handful of sentences give is shown, never tested
                for tested in (own for own in made if "p_" in own):
                    made[tested].values[:] = np.nan
            variables |= made
        if self.permutations:
            excess = variables["score"].values - variables["expected"].values
            variables["excess"] = xr.Variable(HEADS, excess, {"long_name": "score − expected"})
            variables["stands_out"] = significant_excess(variables, self.margin, counted=COUNTED)
        records = state["links"]
        assert isinstance(records, LinkRecords)
        coords = layer_head_coords(shape)
        for place, kind in enumerate(("frame", "element")):
            labels, moments = records.by_name(place)
            coords[kind] = np.array(labels, dtype=str)
            variables |= mean_variables(f"by_{kind}", (*HEADS, kind), moments)
        if not counts["sentences"] and any(counts.values()):
            raise ParameterError(
                f"No sentence has a link that passes the filters ({counts['sentences_too_long']:,} are longer than "
                f"{self.max_words} words, {counts['sentences_without_link']:,} have no such link, "
                f"{counts['sentences_with_other_links']:,} others beside it, "
                f"{counts['sentences_without_frames']:,} no frame, {counts['sentences_unaligned']:,} words that do not "
                "align); loosen `max_words`, `max_element`, `min_distance` or `core`, or give `exclude=links`."
            )
        return xr.Dataset(
            variables, coords=coords, attrs={**counts, "cut": cut, "random_models": 0}
        )

    # --- beside random-weights models -------------------------------------------------------------

    def applies_to(self, row: Encoded) -> bool:
        return bool(chosen_links(row, self)[1])

    def random_count(self, heads: int, parameters: int) -> int:
        return super().random_count(heads, parameters) if self.permutations else 0

    def reduced(self) -> Self:
        return replace(self, permutations=min(self.permutations, FEWER))

    def apply_null(self, dataset: xr.Dataset, random_results: Sequence[xr.Dataset]) -> xr.Dataset:
        mean, bound = random_bound("excess", random_results, dataset["excess"].size)
        attrs = {
            "random_excess": float(mean),
            "random_bound": float(bound),
            **null_attributes(random_results),
        }
        made = {
            "stands_out": significant_excess(dataset, self.margin, bound, COUNTED),
            **above_random_variable(dataset["excess"], bound),
        }
        return dataset.assign(made).assign_attrs(attrs)

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return variable_of(dataset, "stands_out")

    def summary(self, dataset: xr.Dataset) -> list[str]:
        attrs, score = dataset.attrs, dataset["score"]
        best = [tuple(at) for at in np.argwhere(dataset["above"].values)]
        best.sort(key=lambda at: -float(score.values[at]))
        tested = "expected" in dataset

        def one(at: tuple[int, ...]) -> str:
            beside = (
                f" (the same words unlinked {float(dataset['expected'].values[at]):.2f})"
                if tested
                else ""
            )
            return f"{head_name(*at)} {float(score.values[at]):.2f}{beside}"

        lines = [
            f"{attrs['sentences']:,} sentences with {attrs['links']:,} links; highest: {', '.join(map(one, best))}"
        ]
        if attrs["sentences"] < FEW:
            lines.append(too_few(dataset))
        elif tested:
            out = [head_name(*at) for at in np.argwhere(dataset["stands_out"].values)]
            beside = (
                f", random heads below +{attrs['random_bound']:.2f}"
                if attrs["random_models"]
                else ""
            )
            least = f"p < 0.05 corrected, +{self.margin:g} or more{beside}"
            lines.append(f"Heads that stand out ({least}): {', '.join(out) or 'none'}")
        return lines


def too_few(dataset: xr.Dataset) -> str:
    """Why there is no test, and where the other sentences went; "" where there are enough."""
    attrs = dataset.attrs
    if attrs["sentences"] >= FEW:
        return ""
    return (
        f"Only {attrs['sentences']:,} sentences, fewer than {FEW}: no head is tested. Left out: "
        f"{attrs['sentences_too_long']:,} too long (max_words), {attrs['sentences_without_link']:,} without such a "
        f"link, {attrs['sentences_with_other_links']:,} with others beside it (exclude=links keeps these)"
    )


def _permutation_variables(
    prefix: str, moments: Moments, permuted: np.ndarray
) -> dict[str, xr.Variable]:
    """p-values of a mean score `[layer, head]` against the sums `[null, layer, permutation, head]`
    that links put elsewhere gave: the null that is hardest to beat counts."""
    tests = [_permutation_test(moments, drawn) for drawn in permuted]
    p, adjusted, expected = (np.stack(parts) for parts in zip(*tests, strict=True))
    start, end = (f"{prefix}_", f"_{prefix}") if prefix else ("", "")
    made = {
        f"{start}p_value": (p.max(0), "links put elsewhere give as much, by the hardest null"),
        f"{start}p_adjusted": (
            adjusted.max(0),
            "corrected over heads (largest standardised score)",
        ),
        f"expected{end}": (
            expected.max(0).astype(np.float32),
            "mean score of links put elsewhere, by the hardest null",
        ),
    }
    return {
        name: xr.Variable(HEADS, values, {"long_name": about})
        for name, (values, about) in made.items()
    }


def _permutation_test(
    moments: Moments, permuted: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p, p corrected over heads, and the expected score `[layer, head]`, from sums `[layer,
    permutation, head]`."""
    count = moments.count.numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = permuted.transpose(1, 0, 2) / count
        observed = np.where(count > 0, moments.mean.numpy(), np.nan)
        expected, spread = drawn.mean(0), drawn.std(0)
        varies = spread > 1e-6 * np.maximum(np.abs(expected), 1e-6)
        z = np.where(
            varies, (observed - expected) / spread, np.where(np.isnan(observed), np.nan, 0.0)
        )
        drawn_z = np.where(varies, (drawn - expected) / spread, 0.0)
    slack = 1e-9
    p = (1 + (drawn_z >= z - slack).sum(0)) / (1 + len(drawn_z))
    largest = drawn_z.max((1, 2))
    adjusted = (1 + (largest[:, None, None] >= z - slack).sum(0)) / (1 + len(drawn_z))
    known = ~np.isnan(z)
    return tuple(
        np.where(known, values, np.nan) for values in (p, np.maximum(adjusted, p), expected)
    )  # type: ignore[return-value]
