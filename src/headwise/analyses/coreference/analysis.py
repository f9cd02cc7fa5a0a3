"""Heads that find antecedents: how often a mention attends most to an antecedent.

Clark et al. 2019, §4.3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.accuracy import (
    Places,
    accuracy_variables,
    argmax_heads,
    format_accuracy,
    held_out_variables,
    parse_heads,
    picking_note,
    shown_accuracy,
)
from headwise.analyses.contract import (
    OwnCorpusObserver,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
    one_of,
)
from headwise.analyses.coreference.baselines import (
    BASELINES,
    RULES,
    baseline_choices,
    candidates_of,
)
from headwise.analyses.coreference.mentions import MENTION_TYPES, Expression, expressions_of
from headwise.analyses.coreference.windows import Window, cut_text, windows
from headwise.analyses.summaries import align_columns, format_p_value
from headwise.core.errors import ParameterError
from headwise.core.labels import SIGNIFICANCE_LEVEL
from headwise.models.view import AttentionRows, Layer
from headwise.models.words import (
    WordQuestions,
    find_words,
    simple_maps,
    word_index,
    word_maps,
    word_visibility,
)
from headwise.stats.accumulators import State, Sums
from headwise.stats.bootstrap import FEW
from headwise.stats.corrections import CORRECTIONS, correct, correct_families
from headwise.stats.flips import sign_flip_test
from headwise.stats.intervals import share
from headwise.stats.picking import cross_fit
from headwise.stats.units import UnitSums, default_max_units, share_interval
from headwise.text.corpus import Corpus
from headwise.text.encode import Batch, Encoded, Encoder, units_of

TYPES = ("all", *MENTION_TYPES)
CANDIDATES = ("mentions", "words")
DOCUMENTS = ("cut", "windows")
COUNTED = (
    "examples",
    "unaligned",
    "without_mentions",
    "shortened",
    "mentions",
    "singletons",
    "cut",
    "without_antecedent",
    "scored",
)
DIMS = ("layer", "head", "mention_type")


@dataclass(frozen=True)
class Coreference(OwnCorpusObserver):
    """Single heads as antecedent selectors, §4.3 and Table 2.

    A mention is represented by its head word m. The prediction of a head is the candidate word c
    that m attends to most, `argmax_c A[m, c]`. A is the word-level attention map: the sum over the
    subwords of the attended word, the mean over the subwords of the attending word. Ties go to the
    first word. The prediction is right if c is the head word of an *antecedent*, an earlier mention
    of the same entity.

    Candidates are the head words of all mentions that start earlier and belong to an entity with at
    least two mentions. The mention's own head word is not a candidate. In a decoder, only
    candidates before the head word are visible.

    Only mentions with an antecedent are scored. The others are counted in attributes: those beyond
    the cut (`mentions_cut`) and those without an antecedent (`mentions_without_antecedent`). The
    attribute `documents_cut` counts the texts that were cut.

    - `accuracy[layer, head, mention_type]`, with `accuracy_n` and the 95 % interval `accuracy_low`,
      `accuracy_high`. The interval is Wilson's with the effective sample size over documents, or
      over examples if no documents are known (attribute `units`).
    - `mention_type` is `all`, `pronoun`, `proper` or `nominal`, by the part of speech of the head
      word. Without parts of speech, pronouns come from a list, and a capital letter inside a
      sentence marks a proper name.
    - `baseline_accuracy[baseline, mention_type]`, with its interval. The baselines choose

      - `nearest`: the mention before this one;
      - `head_match`: the nearest mention with the same head word;
      - `rules`: the nearest mention that passes the first of four sieves: same words; same head
        word; number, gender and person agree, where known; any mention;
      - `uniform`: what uniform attention chooses, the candidate with the most subwords;
      - `first`: what attention to the first token alone (a sink) chooses, the first candidate.

    - `bar[mention_type]`: the accuracy of the best baseline; `bar_name`: its name.
    - `count[mention_type]`: scored mentions; `few[mention_type]`: whether they are under 30.
    - `p_value[baseline, layer, head, mention_type]`: one-tailed sign-flip test over documents (or
      examples) that the head is right more often than the baseline on the same mentions.
      `p_family` is corrected over heads (max-T), because the best head is selected. `p_adjusted` is
      also corrected over baselines and types.
    - `best_layer`, `best_head`, `best_accuracy` (with interval) `[mention_type]`: the best head.
      `best_baseline` (on that head's mentions), `best_margin`, `best_p_value`,
      `best_p_adjusted[baseline, mention_type]`: its comparison with each baseline.
    - `best_heldout_accuracy[mention_type]`: the accuracy of the best head on texts that it was not
      picked on (picked on one half of the documents, scored on the other, and the reverse);
      `best_heldout_baseline`, `best_heldout_margin[baseline, mention_type]` (with interval) on the
      same mentions; `best_heldout_same`: whether both halves pick the same head. Summaries, figures
      and reports show these.

    Head words come from the corpus or its trees. Without either, the head word is the last word
    before the first preposition, relative word, comma, colon, bracket or dash.

    Parameters
    ----------
    candidates : {"mentions", "words"}, default "mentions"
        `mentions` (as above), or `words`: the most attended of all other words, wherever they
        stand.
    documents : {"cut", "windows"}, default "cut"
        What happens to documents of more than `max_tokens`: `cut` to their beginning, as in the
        paper, or run in overlapping `windows`, each mention scored in the first that holds it.
    max_tokens : int, default 128
        The longest input, special tokens included; 0 for as long as the model takes.
    overlap : int, default 64
        Tokens that neighbouring windows share.
    correction : {"holm", "benjamini_hochberg", "none"}, default "holm"
        For the number of baselines and types.
    heads : tuple of str or str, optional
        Heads found on other texts, to be tested on these: `type head`, as
        `headwise.analyses.accuracy.best_heads_parameter` returns them from a result.
        Nothing is picked here, so `given_p_adjusted` is corrected over baselines and types alone;
        `given_layer`, `given_head`, `given_accuracy` and the rest as for `best_`.

    Notes
    -----
    Question: Which single heads find the antecedent of a mention better than simple rules do?

    Assumes: Mentions are given; the head word stands for the mention; only candidates compete, not
    all words.

    Pitfalls: Cut at `max_tokens`, documents keep their beginnings alone, where antecedents are few
    and near. `best_accuracy` is of the head picked on the same text, and flattered;
    `best_heldout_accuracy` is not.

    Cost: The pass of the model over documents.
    """

    candidates: str = "mentions"
    documents: str = "cut"
    max_tokens: int = 128
    overlap: int = 64
    correction: str = "holm"
    heads: tuple[str, ...] | str = ()

    name: ClassVar[str] = "coreference"
    title: ClassVar[str] = "Heads that find antecedents: coreference"
    paper: ClassVar[Paper] = Paper("clark2019", "§4.3, Table 2")
    units: ClassVar[Mapping[str, str]] = {
        "share of mentions": "best_accuracy best_baseline best_margin best_heldout_accuracy "
        "best_heldout_baseline best_heldout_margin"
    }
    requires: ClassVar[frozenset[str]] = frozenset({"words", "coreference"})

    def __post_init__(self) -> None:
        one_of("candidates", self.candidates, CANDIDATES)
        one_of("documents", self.documents, DOCUMENTS)
        one_of("correction", self.correction, CORRECTIONS)
        parse_heads(self.heads)
        at_least("max_tokens", self.max_tokens, 0)
        if 0 < self.max_tokens < 8:
            raise ParameterError(
                f"`max_tokens` must be 0 (no cut) or at least 8; it is {self.max_tokens!r}."
            )
        if self.overlap < 0 or (
            self.max_tokens and self.overlap >= self.max_tokens and self.documents == "windows"
        ):
            raise ParameterError(
                f"`overlap` must be at least 0 and less than max_tokens ({self.max_tokens}); "
                f"it is {self.overlap!r}."
            )

    def own_corpus(
        self, corpus: Corpus, encoder: Encoder, longest: int, truncated: int
    ) -> Corpus | None:
        max_tokens = min(self.max_tokens or encoder.max_length, encoder.max_length)
        needs_windows = truncated and self.documents == "windows"
        if longest <= max_tokens and not needs_windows:
            return None
        overlap = self.overlap if self.documents == "windows" else None
        return windows(corpus, encoder.tokenizer, max_tokens, overlap)

    # --- the pass -------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        n_types = len(TYPES)
        n_baselines = len(BASELINES)
        # Numbers of mentions, by unit of sampling:
        # - correct: the head's prediction is right;
        # - possible: the heads of the layer can be scored, because the mention sees an antecedent
        #   (in a decoder, or with a sliding window, not every mention does);
        # - baseline_possible: of these, the baseline's prediction is right;
        # - baseline: of all mentions with an antecedent, the baseline's prediction is right;
        # - count: all mentions with an antecedent.
        shapes = {
            "correct": (shape.layers, shape.heads, n_types),
            "possible": (shape.layers, n_types),
            "baseline_possible": (n_baselines, shape.layers, n_types),
            "baseline": (n_baselines, n_types),
            "count": (n_types,),
        }
        # All counts have the same units, as many as the largest array allows.
        max_units = default_max_units(*shapes["correct"])
        state = State()
        for name, sizes in shapes.items():
            state[name] = UnitSums(*sizes, dtype=torch.int32, max_units=max_units)
        state["counted"] = Sums(len(COUNTED))
        return state

    def reduce_rows(self, rows: AttentionRows, batch: Batch) -> Mapping[str, Tensor]:
        if not len(scored_mentions(batch, self.candidates).types):
            return {}
        index = word_index(batch)
        return {"maps": word_maps(rows, index), "visible": word_visibility(rows, index)}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        mentions = scored_mentions(batch, self.candidates)
        is_first_layer = layer.layer == 0
        if is_first_layer:
            counted = torch.tensor([mentions.counted[name] for name in COUNTED])
            state.sums("counted").add(counted)
        if not len(mentions.types):
            return
        units = batch.remember("units", lambda: units_of(batch.rows))
        unit_of_mention = [units[example] for example in mentions.example_of_mention]

        def count(name: str, values: Tensor, where: tuple[int | slice, ...] = ()) -> None:
            """Add `values[mention, ...]` up by unit and mention type."""
            types = mentions.types.reshape(len(values), *[1] * (values.dim() - 1), -1)
            state.by_unit(name).add(unit_of_mention, values[..., None].double() * types, where)

        visible = sums["visible"] > 0
        questions = mentions.questions
        found, possible = find_words(sums["maps"], visible, questions)
        count("correct", found, (layer.layer,))
        count("possible", possible[:, 0], (layer.layer,))
        # The baselines on the mentions that this layer's heads can be scored on.
        uniform_maps, uniform_visible = simple_maps(batch, causal=False)
        simple_found, _ = find_words(uniform_maps, visible, questions)
        rules_found = mentions.rules * possible[:, :1]
        count(
            "baseline_possible",
            torch.cat([rules_found, simple_found], 1),
            (slice(None), layer.layer),
        )
        if is_first_layer:
            count("count", torch.ones_like(mentions.types[:, 0]))
            simple_found, _ = find_words(uniform_maps, uniform_visible, questions)
            count("baseline", torch.cat([mentions.rules, simple_found], 1))

    # --- the result -----------------------------------------------------------------------------

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        # Better than one rule is not better than the best of them.
        return (dataset["p_adjusted"] < SIGNIFICANCE_LEVEL).all("baseline")

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        counts = {}
        for name, accumulator in state.items():
            if isinstance(accumulator, UnitSums):
                counts[name] = accumulator.totals
        given_heads = parse_heads(self.heads, shape) if self.heads else {}
        dataset = accuracy_dataset(counts, self.correction, given_heads)
        dataset = dataset.assign_coords(layer_head_coords(shape))

        totals = state.sums("counted").total
        counted = {name: int(total) for name, total in zip(COUNTED, totals, strict=True)}
        attrs: dict[str, Any] = {
            "examples": counted["examples"],
            "mentions": counted["mentions"],
            "units": state.by_unit("count").unit_name,
            "unit_count": len(counts["count"]),
            "examples_unaligned": counted["unaligned"],
            "examples_without_mentions": counted["without_mentions"],
            "documents_cut": counted["shortened"],
            "documents": self.documents,
            "max_tokens": self.max_tokens,
            "mentions_scored": counted["scored"],
            "mentions_cut": counted["cut"],
            "mentions_without_antecedent": counted["without_antecedent"],
            "mentions_singletons": counted["singletons"],
        }
        if not counted["scored"]:
            attrs["note"] = (
                "No mention has an antecedent before it in the same input, so no head was scored."
            )
        elif shape.causal:
            attrs["note"] = (
                "A decoder's words see only what stands before them: mentions whose antecedents' "
                "head words all come later are not scored."
            )
        return dataset.assign_attrs(attrs)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        name = "given" if "given_layer" in dataset else "best"
        rows = []
        for mention_type in map(str, dataset["mention_type"].values):
            of_type = dataset.sel(mention_type=mention_type)
            if int(of_type[f"{name}_layer"]) < 0:
                continue
            baselines = of_type[f"{name}_baseline"]
            if shown_accuracy(of_type, name) == "best_heldout_accuracy":
                baselines = of_type["best_heldout_baseline"]
            texts = []
            for baseline in BASELINES:
                accuracy = 100 * float(baselines.sel(baseline=baseline))
                texts.append(f"{baseline} {accuracy:.1f}")
            best_baseline = BASELINES[int(np.nanargmax(baselines.values))]
            p_adjusted = float(of_type[f"{name}_p_adjusted"].sel(baseline=best_baseline))
            rows.append(
                (
                    mention_type,
                    *format_accuracy(of_type, name),
                    ", ".join(texts),
                    f"over {best_baseline}: {format_p_value(p_adjusted)}",
                )
            )
        title = "Best head for each mention type"
        if name == "given":
            title = "Heads chosen on other texts, on these texts"
        n_units = f"{dataset.attrs['unit_count']:,} {dataset.attrs['units']}"
        lines = [f"{title}, beside the baselines (over {n_units}):", *align_columns(rows)]
        if name == "best":
            lines += picking_note(dataset, [row[1] for row in rows])
        lines += cut_text(dataset)
        if "note" in dataset.attrs:
            lines.append(str(dataset.attrs["note"]))
        return lines


# --- mentions of a batch ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ScoredMentions:
    """The scored mentions of a batch.

    Attributes
    ----------
    questions : WordQuestions
        For each mention its head word, the candidates and the head words of its antecedents.
    types : Tensor
        0 or 1, `[mention, type]`: whether the mention is of the type; the first type is all.
    rules : Tensor
        0 or 1, `[mention, baseline]`: whether the choice is right, for the baselines that are rules
        over mentions.
    example_of_mention : list of int
        The number of each mention's example in the batch.
    counted : mapping of str to int
        Numbers of examples and mentions, by the names of `COUNTED`.
    """

    questions: WordQuestions
    types: Tensor
    rules: Tensor
    example_of_mention: list[int]
    counted: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class ScoredMention:
    """One mention that can be scored, with its candidates and the head words of its antecedents,
    bool `[word]`, and whether the choice of each rule is right."""

    mention: Expression
    candidates: np.ndarray
    antecedents: np.ndarray
    rules_right: list[bool]


def scored_mentions(batch: Batch, candidates: str = "mentions") -> ScoredMentions:
    """Return the scored mentions of a batch, collected once for all its layers."""
    return batch.remember(
        (ScoredMentions, candidates), lambda: _collect_scored_mentions(batch, candidates)
    )


def _collect_scored_mentions(batch: Batch, candidates: str) -> ScoredMentions:
    present = word_index(batch).present.cpu().numpy()
    counted = dict.fromkeys(COUNTED, 0)
    scored: list[ScoredMention] = []
    example_of_mention: list[int] = []
    for number, row in enumerate(batch.rows):
        if row.example.mentions is None:
            counted["without_mentions"] += 1
            continue
        if not row.aligned:
            counted["unaligned"] += 1
            continue
        counted["examples"] += 1
        is_shortened = isinstance(row.example, Window) and row.example.shortened
        counted["shortened"] += row.truncated or is_shortened
        of_row = list(_scored_in(row, present[number], candidates, counted))
        scored += of_row
        example_of_mention += [number] * len(of_row)

    device = batch.device
    n_words = present.shape[1]
    head_words = torch.tensor(
        [scored_mention.mention.head for scored_mention in scored], dtype=torch.int64
    )
    type_numbers = [TYPES.index(scored_mention.mention.mention_type) for scored_mention in scored]
    types = torch.nn.functional.one_hot(
        torch.tensor(type_numbers, dtype=torch.int64, device=device), len(TYPES)
    ).double()
    types[:, 0] = 1
    candidate_words = np.array(
        [scored_mention.candidates for scored_mention in scored], bool
    ).reshape(-1, n_words)
    antecedent_words = np.array(
        [scored_mention.antecedents for scored_mention in scored], bool
    ).reshape(-1, n_words)
    questions = WordQuestions(
        torch.tensor(example_of_mention, dtype=torch.int64, device=device),
        head_words.to(device),
        torch.from_numpy(candidate_words).to(device),
        torch.from_numpy(antecedent_words).to(device),
    )
    rules_right = [scored_mention.rules_right for scored_mention in scored]
    rules = torch.tensor(rules_right, dtype=torch.float64, device=device).reshape(-1, len(RULES))
    return ScoredMentions(questions, types, rules, example_of_mention, counted)


def _scored_in(
    row: Encoded, present: np.ndarray, candidates: str, counted: dict[str, int]
) -> Iterator[ScoredMention]:
    """Yield each mention of an example that can be scored, and count the others."""
    example = row.example
    if isinstance(example, Window):
        # A window's mentions are coreferent in their document, if not in the window.
        coreferent = expressions_of(example, singletons=True)
        counted["singletons"] += example.singletons
        first_new_word = example.first
        n_behind_cut = example.cut
    else:
        coreferent = expressions_of(example, singletons=False)
        counted["singletons"] += len(example.mentions or ()) - len(coreferent)
        first_new_word = 0
        n_behind_cut = 0
    # Mentions whose words are all in the input, truncated as it may be.
    whole = []
    for mention in coreferent:
        in_input = mention.end <= len(present) and present[mention.start : mention.end].all()
        if in_input and present[mention.head]:
            whole.append(mention)
    # The others were scored in an earlier window.
    new = [mention for mention in coreferent if mention.end > first_new_word]
    n_cut = len([mention for mention in new if mention not in whole])
    counted["mentions"] += n_behind_cut + len(new)
    counted["cut"] += n_behind_cut + n_cut
    for mention in whole:
        if mention.end <= first_new_word:
            continue
        earlier = candidates_of(mention, whole)
        antecedent_heads = {other.head for other in earlier if other.entity == mention.entity}
        if not antecedent_heads:
            counted["without_antecedent"] += 1
            continue
        counted["scored"] += 1
        if candidates == "words":
            candidate_words = present.astype(bool)
            candidate_words[mention.head] = False
        else:
            candidate_words = np.zeros(len(present), bool)
            candidate_words[[other.head for other in earlier]] = True
        antecedent_words = np.zeros(len(present), bool)
        antecedent_words[list(antecedent_heads)] = True
        rules_right = []
        for choice in baseline_choices(mention, earlier).values():
            rules_right.append(choice is not None and choice.head in antecedent_heads)
        yield ScoredMention(mention, candidate_words, antecedent_words, rules_right)


# --- from counts to accuracies ------------------------------------------------------------------


def accuracy_dataset(
    counts: Mapping[str, np.ndarray], correction: str, given_heads: Mapping[str, tuple[int, ...]]
) -> xr.Dataset:
    """Return accuracies with intervals, baselines, tests and best heads.

    Parameters
    ----------
    counts : mapping of str to ndarray
        Those of the state, each `[unit, ...]`; see `Coreference.start`.
    correction : str
        For the number of baselines and types.
    given_heads : mapping of str to (int, int)
        Heads chosen on other texts, (layer, head) by mention type.
    """
    hits = counts["correct"]
    possible = counts["possible"]
    count = counts["count"].sum(0)
    tries = np.broadcast_to(possible[:, :, None], hits.shape)
    p_value, p_family = _tests(counts)
    p_adjusted = _correct_over_families(p_family, correction)
    dims = ("baseline", *DIMS)
    better = "right more often than the baseline: sign-flip test over units, one-tailed"
    adjusted = f"p_family corrected over baselines and types ({correction})"
    variables: dict[str, Any] = {
        **accuracy_variables(DIMS, hits, tries, "mentions"),
        **_baseline_variables(counts),
        "count": (
            "mention_type",
            count.astype(np.int64),
            {"long_name": "mentions with an antecedent"},
        ),
        "few": ("mention_type", count < FEW, {"long_name": f"fewer than {FEW} mentions"}),
        "p_value": (dims, p_value, {"long_name": better}),
        "p_family": (dims, p_family, {"long_name": "p_value corrected over heads (max-T)"}),
        "p_adjusted": (dims, p_adjusted, {"long_name": adjusted}),
    }
    coords = {"mention_type": list(TYPES), "baseline": list(BASELINES)}
    dataset = xr.Dataset(variables, coords=coords)

    # Heads and baselines are compared in pairs, on the same mentions: the accuracy of each baseline
    # on the mentions that a head was scored on, `[baseline, layer, head, type]`.
    paired = share(counts["baseline_possible"].sum(0), possible.sum(0))
    paired = np.broadcast_to(paired[:, :, None], p_value.shape)
    places, scored = argmax_heads(dataset["accuracy"].values)
    dataset = dataset.assign(heads_at(dataset, paired, places, scored))
    fit = cross_fit(hits, tries)
    rules_hits = np.moveaxis(counts["baseline_possible"], 1, 0)[:, :, :, None]
    rules_hits = np.broadcast_to(rules_hits, (len(rules_hits), *hits.shape))
    dataset = dataset.assign(held_out_variables(fit, hits, tries, rules_hits, "mention_type"))
    if given_heads:
        heads = np.array([given_heads.get(mention_type, (0, 0)) for mention_type in TYPES])
        is_given = np.array([mention_type in given_heads for mention_type in TYPES])
        given_places = (*heads.T, np.arange(len(TYPES)))
        given = heads_at(dataset, paired, given_places, is_given & (count > 0), "given")
        # Nothing was chosen on these texts: no correction over heads.
        p_given = correct(given["given_p_value"].values, correction)
        given["given_p_adjusted"] = xr.Variable(("baseline", "mention_type"), p_given)
        dataset = dataset.assign(given)
    return dataset


def _baseline_variables(counts: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the accuracy of each baseline with its interval, and the best of them."""
    dims = ("baseline", "mention_type")
    hits = counts["baseline"]
    count = counts["count"].sum(0)
    low, high = share_interval(hits, np.broadcast_to(counts["count"][:, None], hits.shape))
    accuracy = share(hits.sum(0), count)
    best = np.where(count > 0, accuracy.max(0), np.nan)
    best_name = np.array(BASELINES)[np.nan_to_num(accuracy).argmax(0)]
    return {
        "baseline_accuracy": (dims, accuracy, {"units": "share of mentions"}),
        "baseline_accuracy_low": (dims, low),
        "baseline_accuracy_high": (dims, high),
        "bar": (
            "mention_type",
            best,
            {"long_name": "the best of the baselines", "units": "share of mentions"},
        ),
        "bar_name": ("mention_type", np.where(count > 0, best_name, "")),
    }


def _correct_over_families(p_family: np.ndarray, correction: str) -> np.ndarray:
    """Return p-values `[baseline, layer, head, type]` corrected over baselines and types."""
    baseline_last = np.moveaxis(p_family, 0, -2)
    flat = baseline_last.reshape(*baseline_last.shape[:-2], -1)
    corrected = correct_families(flat, correction).reshape(baseline_last.shape)
    return np.moveaxis(corrected, -2, 0)


def _tests(counts: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return p of every head against every baseline, `[baseline, layer, head, type]`, by itself and
    corrected over the heads."""
    hits = counts["correct"].astype(np.float32)
    baseline_hits = counts["baseline_possible"]
    n_baselines = baseline_hits.shape[1]
    p_value = np.full((n_baselines, *hits.shape[1:]), np.nan)
    p_family = np.full_like(p_value, np.nan)
    for baseline, mention_type in np.ndindex(n_baselines, hits.shape[-1]):
        if counts["possible"][..., mention_type].any():
            baseline_of_type = baseline_hits[:, baseline, :, None, mention_type]
            tests = sign_flip_test(hits[..., mention_type] - baseline_of_type)
            p_value[baseline, ..., mention_type] = tests.p_value
            p_family[baseline, ..., mention_type] = tests.p_adjusted
    was_tried = counts["possible"].sum(0)[None, :, None] > 0
    return np.where(was_tried, p_value, np.nan), np.where(was_tried, p_family, np.nan)


def heads_at(
    dataset: xr.Dataset, paired: np.ndarray, places: Places, scored: np.ndarray, name: str = "best"
) -> dict[str, xr.Variable]:
    """Return what is known of one head for each mention type, as variables `name_...`.

    Parameters
    ----------
    dataset : Dataset
        With accuracies and tests.
    paired : ndarray
        The baselines' accuracies on the mentions a head was scored on, `[baseline, layer, head,
        type]`.
    places : tuple of ndarray
        Layers, heads and types.
    scored : ndarray
        Bool `[type]`: elsewhere the values are −1, 0 or NaN.
    name : str, default "best"
        How the variables begin.
    """
    layers, heads, types = places
    values = {
        "layer": np.where(scored, layers, -1),
        "head": np.where(scored, heads, -1),
        "accuracy_n": np.where(scored, dataset["accuracy_n"].values[places], 0),
    }
    for key in ("accuracy", "accuracy_low", "accuracy_high"):
        values[key] = np.where(scored, dataset[key].values[places], np.nan)
    by_baseline = {
        "baseline": paired,
        "p_value": dataset["p_value"].values,
        "p_adjusted": dataset["p_adjusted"].values,
    }
    for key, array in by_baseline.items():
        values[key] = np.where(scored, array[:, layers, heads, types], np.nan)
    values["margin"] = values["accuracy"] - values["baseline"]
    variables = {}
    for key, array in values.items():
        dims = ("baseline", "mention_type") if array.ndim == 2 else ("mention_type",)
        variables[f"{name}_{key}"] = xr.Variable(dims, array)
    return variables
