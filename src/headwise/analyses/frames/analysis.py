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

FORWARD = "frames forward"  # from target to element
BACKWARD = "frames backward"
RANDOM_PERMUTATIONS = 99  # on random weights only the mean over permutations is used
HEADS = ("layer", "head")
COUNTED = ("score_n", "sentences")  # what significance requires 30 of: variable, plural
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
    """Score the weights between a frame's target and its elements.

    Each sentence contributes the links (target, core element) that pass the filters; every pair of
    their pieces (i of the target, j of the element) counts.

    - `score[layer, head]`: the largest `A[i, j]` over the pairs of all links of a sentence, then
      the mean over sentences; `score_reverse`: of `A[j, i]`; `score_both`: of the larger; each with
      `_n`, `_low`, `_high`. A decoder's pairs count where they are visible;
    - `above[layer, head]`: the score lies above the `percentile`-th percentile of all heads' (the
      paper's rule; the attribute `cut` is that value);
    - `p_value`, `reverse_p_value`, `both_p_value[layer, head]`: permutation tests against three
      nulls, the largest p of the three. `moved`: every link is moved along its sentence, target and
      element together, by a random number of tokens, so that all distances stay; `other_target`:
      the same element, at its place, seen from another word of the sentence; `other_element`: the
      same target, at its place, attending to other words. A head that prefers a distance, a word or a
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
      more and above `random_bound`: the condition for a head that follows frames;
    - `by_frame[layer, head, frame]`, `by_element[layer, head, element]`: `score` for the sentences
      and links of each, with `_n`, `_low`, `_high`.

    Parameters
    ----------
    max_words : int, default 12
        Leave out longer sentences (in words, as the corpus gives them).
    max_element : int, default 3
        Leave out links to longer elements.
    min_distance : int, default 2
        Leave out links whose words are closer than this: `min |i − j|` over their words.
    core : bool, default True
        Only core elements.
    exclude : str, default "sentences"
        What links that fail the filters on elements and distance take with them: their `sentences`
        (the paper's reading), or nothing but themselves (`links`).
    margin : float, default 0.05
        Smallest excess of a head that stands out.
    percentile : float, default 99
        For `above`.
    permutations : int, default 999
        Number of permutations; 0 for no test.
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

    Pitfalls: The largest of several weights grows with their number, so a score says nothing
    without `expected`. The 99th percentile (`above`) always marks one head in a hundred, even for
    random weights; `stands_out` marks none of those. Few sentences pass the filters.

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

    # --- the pass ---------------------------------------------------------------------------------

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
        pairs = {FORWARD: links.forward.places, BACKWARD: links.backward.places}
        return StatsRequest(pairs=pairs, uniform=True)

    def reduce(self, answers: StatsResult, batch: Batch) -> Mapping[str, Tensor]:
        assert answers.uniform is not None
        # Uniform attention is above 0 exactly where a pair is visible.
        uniform = answers.uniform.pair_weights
        return {
            "forward": answers.pair_weights[FORWARD],
            "seen": uniform[FORWARD],
            "backward": answers.pair_weights[BACKWARD],
            "seen_back": uniform[BACKWARD],
        }

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        links = self._links(batch)
        if layer.layer == 0:
            state.sums("counts").add(torch.tensor([links.counts[name] for name in COUNTS]))
        if not links.sentences:
            return
        # [position of a link, head]: the largest weight over its pairs of pieces
        forward = group_max(sums["forward"].double(), sums["seen"] > 0, links.forward)
        backward = group_max(sums["backward"].double(), sums["seen_back"] > 0, links.backward)
        either = torch.fmax(forward, backward)
        for direction, weights in enumerate((forward, backward, either)):
            scores = links.max_per_sentence(weights[links.own])
            state.moments(SCORES[direction]).add(scores, (layer.layer,))
            if not self.permutations:
                continue
            for null in range(len(NULLS)):
                permuted = links.permuted_scores(null, weights)  # [sentence, permutation, head]
                where = (null, direction, layer.layer)
                state.sums("permuted").add(permuted.nan_to_num(0.0).sum(0), where)
        records = state["links"]
        assert isinstance(records, LinkRecords)
        records.add_named(links.keys, links.names, forward[links.own], (layer.layer,))

    # --- the result -------------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        counts = {}
        for name, value in zip(COUNTS, state.sums("counts").total, strict=True):
            counts[name] = int(value)
        if not counts["sentences"] and any(counts.values()):
            raise self._no_link_error(counts)

        variables: dict[str, xr.Variable] = {}
        for name in SCORES:
            variables |= mean_variables(name, HEADS, state.moments(name), units="attention weight")
        score = variables["score"].values
        cut = float("nan")
        if np.isfinite(score).any():
            cut = float(np.nanpercentile(score, self.percentile))
        long_name = f"score above the {self.percentile:g}th percentile of all heads"
        variables["above"] = xr.Variable(HEADS, score > cut, {"long_name": long_name})
        if self.permutations:
            variables |= self._tests(state, counts["sentences"])
            excess = score - variables["expected"].values
            variables["excess"] = xr.Variable(HEADS, excess, {"long_name": "score − expected"})
            variables["stands_out"] = significant_excess(variables, self.margin, counted=COUNTED)

        records = state["links"]
        assert isinstance(records, LinkRecords)
        coords = layer_head_coords(shape)
        for place, item in enumerate(("frame", "element")):
            labels, moments = records.by_name(place)
            coords[item] = np.array(labels, dtype=str)
            variables |= mean_variables(f"by_{item}", (*HEADS, item), moments)
        attrs = {**counts, "cut": cut, "random_models": 0}
        return xr.Dataset(variables, coords=coords, attrs=attrs)

    def _tests(self, state: State, n_sentences: int) -> dict[str, xr.Variable]:
        """Return the permutation tests of all scores."""
        permuted = state.sums("permuted").total.numpy()
        variables: dict[str, xr.Variable] = {}
        for place, name in enumerate(SCORES):
            direction = name.removeprefix("score").strip("_")
            tests = _permutation_variables(direction, state.moments(name), permuted[:, place])
            if n_sentences < FEW:
                # The scores of a handful of sentences are shown, never tested.
                for test_name, variable in tests.items():
                    if "p_" in test_name:
                        variable.values[:] = np.nan
            variables |= tests
        return variables

    def _no_link_error(self, counts: Mapping[str, int]) -> ParameterError:
        return ParameterError(
            "No sentence has a link that passes the filters "
            f"({counts['sentences_too_long']:,} are longer than {self.max_words} words, "
            f"{counts['sentences_without_link']:,} have no such link, "
            f"{counts['sentences_with_other_links']:,} others beside it, "
            f"{counts['sentences_without_frames']:,} no frame, "
            f"{counts['sentences_unaligned']:,} words that do not align); loosen `max_words`, "
            '`max_element`, `min_distance` or `core`, or set `exclude="links"`.'
        )

    # --- beside random-weights models -------------------------------------------------------------

    def applies_to(self, row: Encoded) -> bool:
        _, links = chosen_links(row, self)
        return bool(links)

    def random_count(self, heads: int, parameters: int) -> int:
        return super().random_count(heads, parameters) if self.permutations else 0

    def reduced(self) -> Self:
        return replace(self, permutations=min(self.permutations, RANDOM_PERMUTATIONS))

    def apply_null(self, dataset: xr.Dataset, random_results: Sequence[xr.Dataset]) -> xr.Dataset:
        mean, bound = random_bound("excess", random_results, dataset["excess"].size)
        variables = {
            "stands_out": significant_excess(dataset, self.margin, bound, COUNTED),
            **above_random_variable(dataset["excess"], bound),
        }
        attrs = {
            "random_excess": float(mean),
            "random_bound": float(bound),
            **null_attributes(random_results),
        }
        return dataset.assign(variables).assign_attrs(attrs)

    # --- summary ----------------------------------------------------------------------------------

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return variable_of(dataset, "stands_out")

    def summary(self, dataset: xr.Dataset) -> list[str]:
        attrs = dataset.attrs
        score = dataset["score"].values
        is_tested = "expected" in dataset
        heads = [(int(layer), int(head)) for layer, head in np.argwhere(dataset["above"].values)]
        heads.sort(key=lambda place: -float(score[place]))
        highest = []
        for place in heads:
            text = f"{head_name(*place)} {float(score[place]):.2f}"
            if is_tested:
                expected = float(dataset["expected"].values[place])
                text += f" (the same words unlinked {expected:.2f})"
            highest.append(text)
        lines = [
            f"{attrs['sentences']:,} sentences with {attrs['links']:,} links; highest: "
            f"{', '.join(highest)}"
        ]
        if attrs["sentences"] < FEW:
            lines.append(too_few_text(dataset))
        elif is_tested:
            significant = [head_name(*at) for at in np.argwhere(dataset["stands_out"].values)]
            conditions = f"p < 0.05 corrected, +{self.margin:g} or more"
            if attrs["random_models"]:
                conditions += f", random heads below +{attrs['random_bound']:.2f}"
            names = ", ".join(significant) or "none"
            lines.append(f"Heads that stand out ({conditions}): {names}")
        return lines


def too_few_text(dataset: xr.Dataset) -> str:
    """Say why there is no test, and why sentences were left out; "" if there are enough."""
    attrs = dataset.attrs
    if attrs["sentences"] >= FEW:
        return ""
    return (
        f"Only {attrs['sentences']:,} sentences, fewer than {FEW}: no head is tested. Left out: "
        f"{attrs['sentences_too_long']:,} too long (max_words), "
        f"{attrs['sentences_without_link']:,} without such a link, "
        f"{attrs['sentences_with_other_links']:,} with others beside it (exclude=links keeps these)"
    )


def _permutation_variables(
    direction: str, moments: Moments, permuted: np.ndarray
) -> dict[str, xr.Variable]:
    """Return the p-values of a mean score `[layer, head]`, by the null that is hardest to beat.

    `permuted[null, layer, permutation, head]` are the sums of scores of permuted links.
    """
    tests = [_permutation_test(moments, of_null) for of_null in permuted]
    p_value, p_adjusted, expected = (np.stack(parts).max(0) for parts in zip(*tests, strict=True))
    prefix = f"{direction}_" if direction else ""
    suffix = f"_{direction}" if direction else ""
    values = {
        f"{prefix}p_value": (p_value, "permuted links give as much, by the hardest null"),
        f"{prefix}p_adjusted": (p_adjusted, "corrected over heads (largest standardised score)"),
        f"expected{suffix}": (
            expected.astype(np.float32),
            "mean score of permuted links, by the hardest null",
        ),
    }
    variables = {}
    for name, (array, long_name) in values.items():
        variables[name] = xr.Variable(HEADS, array, {"long_name": long_name})
    return variables


def _permutation_test(
    moments: Moments, permuted: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return p, p corrected over heads, and the expected score, all `[layer, head]`.

    `permuted[layer, permutation, head]` are sums over sentences.
    """
    count = moments.count.numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = permuted.transpose(1, 0, 2) / count  # [permutation, layer, head]
        observed = np.where(count > 0, moments.mean.numpy(), np.nan)
        expected = drawn.mean(0)
        spread = drawn.std(0)
        # A head whose permuted scores do not vary beyond rounding is never above them.
        varies = spread > 1e-6 * np.maximum(np.abs(expected), 1e-6)
        constant_z = np.where(np.isnan(observed), np.nan, 0.0)
        z = np.where(varies, (observed - expected) / spread, constant_z)
        drawn_z = np.where(varies, (drawn - expected) / spread, 0.0)
    slack = 1e-9  # equal scores count as at least as large
    n_drawn = len(drawn_z)
    p_value = (1 + (drawn_z >= z - slack).sum(0)) / (1 + n_drawn)
    largest_z = drawn_z.max((1, 2))
    p_adjusted = (1 + (largest_z[:, None, None] >= z - slack).sum(0)) / (1 + n_drawn)
    p_adjusted = np.maximum(p_adjusted, p_value)
    is_known = ~np.isnan(z)
    return (
        np.where(is_known, p_value, np.nan),
        np.where(is_known, p_adjusted, np.nan),
        np.where(is_known, expected, np.nan),
    )
