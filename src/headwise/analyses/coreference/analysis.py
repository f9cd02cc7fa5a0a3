"""Heads that find antecedents: how often a mention's head word attends most to that of one of its
antecedents.

Clark et al. 2019, §4.3.
"""

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
    parse_heads,
)
from headwise.analyses.contract import Observer, Paper, Shape, at_least, layer_head_coords, one_of
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
from headwise.stats.units import UnitSums, most_units, share_interval
from headwise.text.corpus import Corpus
from headwise.text.encode import Batch, Encoded, Encoder, units_of

TYPES = ("all", *MENTION_TYPES)
CANDIDATES = ("mentions", "words")
DOCUMENTS = ("cut", "windows")
COUNTED = (
    *("examples", "unaligned", "without_mentions", "shortened"),
    *("mentions", "singletons", "cut", "without_antecedent", "scored"),
)
DIMS = ("layer", "head", "mention_type")


@dataclass(frozen=True)
class Coreference(Observer):
    """Single heads as antecedent selectors, §4.3 and Table 2.

    For the head word m of a mention, the prediction is the candidate c that m attends to most,
    `argmax_c A[m, c]` on word-level maps (to a word: sum over its pieces; from a word: mean; ties
    go to the first word). It is right where c is the head word of an *antecedent*: an earlier
    mention of the same entity. Candidates are the head words of all coreferent mentions (entities
    mentioned once are none) that start earlier, the mention's own head word left out. Scored are
    mentions with an antecedent; those behind the cut or with no antecedent before it are counted
    (attributes `mentions_cut`, `mentions_without_antecedent`), and so are the texts that were cut
    (`documents_cut`). A decoder sees candidates before the head word alone.

    - `accuracy[layer, head, mention_type]`, with `accuracy_n` and a 95 % interval `accuracy_low`, `accuracy_high`
      (Wilson's, with the effective number over documents, or examples where no documents are known:
      attribute `units`); `mention_type` is `all`, `pronoun`, `proper`, `nominal`, by the part of
      speech of the head word (without parts of speech: a list of pronouns; a capital letter inside
      a sentence makes a name);
    - `baseline_accuracy[baseline, mention_type]` with its interval: `nearest` (the mention before it), `head_match`
      (the nearest with the same head word), `rules` (the nearest that passes the first of four
      sieves: same words; same head word; number, gender and person agree, where known; any),
      `uniform` (attention spread evenly: the candidate of most pieces) and `first` (attention on
      the first token alone, a sink: the first candidate); `bar[mention_type]` is the best of them,
      `bar_name` which that is;
    - `count[mention_type]`; `few[mention_type]`: under 30;
    - `p_value[baseline, layer, head, mention_type]`: the one-tailed sign-flip test over documents (or examples) that
      the head is right more often than the baseline on the same mentions; `p_family` is corrected
      over the heads (max-T), since the best is picked, `p_adjusted` over baselines and types too;
    - `best_layer`, `best_head`, `best_accuracy` (with interval) `[mention_type]`, and `best_baseline` (on the best
      head's mentions), `best_margin`, `best_p_value`, `best_p_adjusted[baseline, mention_type]`.

    Head words come from the corpus or its trees; else the head is the last word before the first
    preposition, relative word, comma, colon, bracket or dash.

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
        `headwise.analyses.accuracy.best_heads_parameter` gives them from a result (`--heads-from FILE.nc`).
        Nothing is picked here, so `given_p_adjusted` is corrected over baselines and types alone;
        `given_layer`, `given_head`, `given_accuracy` and the rest as for `best_`.

    Notes
    -----
    Question: Which single heads find the antecedent of a mention better than simple rules do?

    Assumes: Mentions are given; the head word stands for the mention; only candidates compete, not
    all words.

    Traps: Cut at `max_tokens`, documents keep their beginnings alone, where antecedents are few and
    near. The best head is picked on the same text (`--heads-from` tests it on another).

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
        "share of mentions": "best_accuracy best_baseline best_margin"
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
                f"`overlap` must be at least 0 and less than max_tokens ({self.max_tokens}); it is {self.overlap!r}."
            )

    def view(self, corpus: Corpus, encoder: Encoder, longest: int, truncated: int) -> Corpus | None:
        longest_wanted = min(self.max_tokens or encoder.max_length, encoder.max_length)
        if longest <= longest_wanted and not (truncated and self.documents == "windows"):
            return None
        return windows(
            corpus,
            encoder.tokenizer,
            longest_wanted,
            self.overlap if self.documents == "windows" else None,
        )

    # --- the pass ---------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        types, ways = len(TYPES), len(BASELINES)
        shapes = {
            "correct": (shape.layers, shape.heads, types),
            "possible": (shape.layers, types),
            "baseline_possible": (ways, shape.layers, types),
            "baseline": (ways, types),
            "count": (types,),
        }
        most = most_units(*shapes["correct"])
        by_unit = {
            name: UnitSums(*sizes, dtype=torch.int32, most=most) for name, sizes in shapes.items()
        }
        return State(by_unit, counted=Sums(len(COUNTED)))

    def reduce_rows(self, rows: AttentionRows, batch: Batch) -> Mapping[str, Tensor]:
        if not len(scored_mentions(batch, self.candidates).types):
            return {}
        index = word_index(batch)
        return {"maps": word_maps(rows, index), "visible": word_visibility(rows, index)}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        mentions = scored_mentions(batch, self.candidates)
        if layer.layer == 0:
            state.sums("counted").add(torch.tensor([mentions.counted[name] for name in COUNTED]))
        if not len(mentions.types):
            return
        units = batch.remember("units", lambda: units_of(batch.rows))

        def count(name: str, values: Tensor, where: tuple[int | slice, ...] = ()) -> None:
            """Add `values[mention, ...]` up by unit and type."""
            kinds = mentions.types.reshape(len(values), *[1] * (values.dim() - 1), -1)
            state.by_unit(name).add(
                [units[e] for e in mentions.owners], values[..., None].double() * kinds, where
            )

        visible, here = sums["visible"] > 0, layer.layer
        found, possible = find_words(sums["maps"], visible, mentions.questions)
        count("correct", found, (here,))
        count("possible", possible[:, 0], (here,))
        simple = find_words(simple_maps(batch, causal=False)[0], visible, mentions.questions)[0]
        count(
            "baseline_possible",
            torch.cat([mentions.rules * possible[:, :1], simple], 1),
            (slice(None), here),
        )
        if here == 0:
            count("count", torch.ones_like(mentions.types[:, 0]))
            simple = find_words(*simple_maps(batch, causal=False), mentions.questions)[0]
            count("baseline", torch.cat([mentions.rules, simple], 1))

    # --- what comes of it -------------------------------------------------------------------------

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return (dataset["p_adjusted"] < 0.05).all(
            "baseline"
        )  # better than one rule is not better than the best

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        by_unit = {name: own for name, own in state.items() if isinstance(own, UnitSums)}
        counts = {name: own.totals for name, own in by_unit.items()}
        given = parse_heads(self.heads, shape) if self.heads else {}
        dataset = accuracy_dataset(counts, self.correction, given).assign_coords(
            layer_head_coords(shape)
        )
        counted = {
            name: int(n) for name, n in zip(COUNTED, state.sums("counted").total, strict=True)
        }
        attrs: dict[str, Any] = {name: counted[name] for name in ("examples", "mentions")}
        attrs |= {"units": by_unit["count"].unit_name, "unit_count": len(counts["count"])}
        attrs |= {f"examples_{name}": counted[name] for name in ("unaligned", "without_mentions")}
        attrs |= {
            "documents_cut": counted["shortened"],
            "documents": self.documents,
            "max_tokens": self.max_tokens,
        }
        attrs |= {
            f"mentions_{name}": counted[name]
            for name in ("scored", "cut", "without_antecedent", "singletons")
        }
        if not counted["scored"]:
            attrs["note"] = (
                "No mention has an antecedent before it in the same input, so no head could be scored."
            )
        elif shape.causal:
            attrs["note"] = (
                "A decoder's words see only what stands before them: mentions whose antecedents' head words all come "
                "later are not scored."
            )
        return dataset.assign_attrs(attrs)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        name = "given" if "given_layer" in dataset else "best"
        rows = []
        for kind in map(str, dataset["mention_type"].values):
            one = dataset.sel(mention_type=kind)
            if int(one[f"{name}_layer"]) < 0:
                continue
            bar = one[f"{name}_baseline"]
            best = BASELINES[int(np.nanargmax(bar.values))]
            ways = ", ".join(f"{way} {100 * float(bar.sel(baseline=way)):.1f}" for way in BASELINES)
            over_best = format_p_value(float(one[f"{name}_p_adjusted"].sel(baseline=best)))
            rows.append((kind, *format_accuracy(one, name), ways, f"over {best}: {over_best}"))
        title = (
            "Best head for each kind of mention"
            if name == "best"
            else "Heads found elsewhere, on these texts"
        )
        over = f"{dataset.attrs['unit_count']:,} {dataset.attrs['units']}"
        note = [str(dataset.attrs["note"])] if "note" in dataset.attrs else []
        return [
            f"{title}, beside the baselines (over {over}):",
            *align_columns(rows),
            *cut_text(dataset),
            *note,
        ]


# --- mentions of a batch --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ScoredMentions:
    """The scored mentions of a batch.

    `questions` asks the head word of each for the head words of its antecedents; `types[mention,
    type]` is 0 or 1, the first type being all; `rules[mention, baseline]` 0 or 1: whether the pick
    of each baseline that reads the mentions is right; `owners` the examples they are of; `counted`:
    what was left out, by reason."""

    questions: WordQuestions
    types: Tensor
    rules: Tensor
    owners: list[int]
    counted: Mapping[str, int]


def scored_mentions(batch: Batch, candidates: str = "mentions") -> ScoredMentions:
    """Those of a batch, gathered once for all its layers."""
    return batch.remember((ScoredMentions, candidates), lambda: _gather(batch, candidates))


def _gather(batch: Batch, candidates: str) -> ScoredMentions:
    present = word_index(batch).present.cpu().numpy()
    counted = dict.fromkeys(COUNTED, 0)
    rows: list[tuple[int, int, int]] = []
    masks: list[
        np.ndarray
    ] = []  # of each mention `[2, word]`: its candidates, the head words of its antecedents
    baseline: list[list[bool]] = []
    for number, row in enumerate(batch.rows):
        if row.example.mentions is None:
            counted["without_mentions"] += 1
        elif not row.aligned:
            counted["unaligned"] += 1
        else:
            counted["examples"] += 1
            counted["shortened"] += row.truncated or (
                isinstance(row.example, Window) and row.example.shortened
            )
            for mention, mask, picks in _scored(row, present[number], candidates, counted):
                rows.append((number, mention.head, TYPES.index(mention.kind)))
                masks.append(mask)
                baseline.append(picks)
    example, word, kind = (
        torch.tensor(rows, dtype=torch.int64, device=batch.device).reshape(-1, 3).unbind(1)
    )
    types = torch.nn.functional.one_hot(kind, len(TYPES)).double()
    types[:, 0] = 1
    stacked = np.stack(masks, 1) if masks else np.zeros((2, 0, present.shape[1]), bool)
    questions = WordQuestions(example, word, *torch.from_numpy(stacked).to(batch.device))
    right = torch.tensor(baseline, dtype=torch.float64, device=batch.device).reshape(-1, len(RULES))
    return ScoredMentions(questions, types, right, example.tolist(), counted)


def _scored(
    row: Encoded, present: np.ndarray, candidates: str, counted: dict[str, int]
) -> Iterator[tuple[Expression, np.ndarray, list[bool]]]:
    """Each mention that can be scored, its masks as in `_gather`, and what the baselines get
    right."""
    example = row.example
    window = example if isinstance(example, Window) else None
    # A window's mentions are coreferent in their document.
    coreferent = expressions_of(example, singletons=window is not None)
    counted["singletons"] += (
        window.singletons if window else len(example.mentions or ()) - len(coreferent)
    )
    first, behind = (window.first, window.cut) if window else (0, 0)
    here = [
        e
        for e in coreferent
        if e.end <= len(present) and present[e.start : e.end].all() and present[e.head]
    ]
    new = [e for e in coreferent if e.end > first]
    counted["mentions"] += behind + len(new)
    counted["cut"] += behind + len([e for e in new if e not in here])
    for mention in here:
        if mention.end <= first:
            continue
        earlier = candidates_of(mention, here)
        right = {e.head for e in earlier if e.entity == mention.entity}
        if not right:
            counted["without_antecedent"] += 1
            continue
        counted["scored"] += 1
        mask = np.zeros((2, len(present)), bool)
        if candidates == "words":
            mask[0] = present
            mask[0, mention.head] = False
        else:
            mask[0, [e.head for e in earlier]] = True
        mask[1, list(right)] = True
        picks = [
            pick is not None and pick.head in right
            for pick in baseline_choices(mention, earlier).values()
        ]
        yield mention, mask, picks


# --- from counts to accuracies --------------------------------------------------------------------


def accuracy_dataset(
    counts: Mapping[str, np.ndarray], correction: str, given: Mapping[str, tuple[int, ...]]
) -> xr.Dataset:
    """Accuracies with intervals, baselines, tests and best heads from counts, each `[unit, ...]`;
    and the heads that are given by type, (layer, head)."""
    hits, possible, count = counts["correct"], counts["possible"], counts["count"].sum(0)
    simple = counts["baseline"]
    tries = np.broadcast_to(possible[:, :, None], hits.shape)
    low, high = share_interval(simple, np.broadcast_to(counts["count"][:, None], simple.shape))
    by_type, tested = ("baseline", "mention_type"), ("baseline", *DIMS)
    right = share(simple.sum(0), count)
    bar = np.where(count > 0, right.max(0), np.nan)
    p_value, p_family = _tests(counts)
    better = "right more often than the baseline: sign-flip test over units, one-tailed"
    corrected = np.moveaxis(p_family, 0, -2)  # families are baselines and types
    adjusted = correct_families(corrected.reshape(*corrected.shape[:-2], -1), correction).reshape(
        corrected.shape
    )
    variables: dict[str, Any] = {
        **accuracy_variables(DIMS, hits, tries, "mentions"),
        "baseline_accuracy": (by_type, right, {"units": "share of mentions"}),
        "baseline_accuracy_low": (by_type, low),
        "baseline_accuracy_high": (by_type, high),
        "bar": (
            "mention_type",
            bar,
            {"long_name": "the best of the baselines", "units": "share of mentions"},
        ),
        "bar_name": (
            "mention_type",
            np.where(count > 0, np.array(BASELINES)[np.nan_to_num(right).argmax(0)], ""),
        ),
        "count": (
            "mention_type",
            count.astype(np.int64),
            {"long_name": "mentions with an antecedent"},
        ),
        "few": ("mention_type", count < FEW, {"long_name": f"fewer than {FEW} mentions"}),
        "p_value": (tested, p_value, {"long_name": better}),
        "p_family": (tested, p_family, {"long_name": "p_value corrected over heads (max-T)"}),
        "p_adjusted": (
            tested,
            np.moveaxis(adjusted, -2, 0),
            {"long_name": f"p_family corrected over baselines and types ({correction})"},
        ),
    }
    dataset = xr.Dataset(
        variables, coords={"mention_type": list(TYPES), "baseline": list(BASELINES)}
    )
    paired = share(counts["baseline_possible"].sum(0), possible.sum(0))  # [baseline, layer, type]
    paired = np.broadcast_to(paired[:, :, None], p_value.shape)
    place, scored = argmax_heads(dataset["accuracy"].values)
    dataset = dataset.assign(heads_at(dataset, paired, place, scored))
    if given:
        places = np.array([given.get(kind, (0, 0)) for kind in TYPES])
        known = np.array([kind in given for kind in TYPES]) & (count > 0)
        own = heads_at(dataset, paired, (*places.T, np.arange(len(TYPES))), known, "given")
        p = correct(own["given_p_value"].values, correction)
        dataset = dataset.assign(own | {"given_p_adjusted": xr.Variable(by_type, p)})
    return dataset


def _tests(counts: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """p of every head against every baseline, `[baseline, layer, head, type]`, by itself and over
    the heads."""
    hits, simple = counts["correct"].astype(np.float32), counts["baseline_possible"]
    p_value, p_family = np.full((2, simple.shape[1], *hits.shape[1:]), np.nan)
    for baseline, kind in np.ndindex(simple.shape[1], hits.shape[-1]):
        if counts["possible"][..., kind].any():
            tests = sign_flip_test(hits[..., kind] - simple[:, baseline, :, None, kind])
            p_value[baseline, ..., kind], p_family[baseline, ..., kind] = (
                tests.p_value,
                tests.p_adjusted,
            )
    tried = counts["possible"].sum(0)[None, :, None] > 0
    return np.where(tried, p_value, np.nan), np.where(tried, p_family, np.nan)


def heads_at(
    dataset: xr.Dataset, paired: np.ndarray, place: Places, scored: np.ndarray, name: str = "best"
) -> dict[str, xr.Variable]:
    """What is known of one head for each mention type, under `name_...`; −1 and NaN where `scored`
    is False.

    `paired[baseline, layer, head, type]` are the baselines' accuracies on the mentions a head could
    be scored on."""
    out = {dim: np.where(scored, at, -1) for dim, at in zip(("layer", "head"), place, strict=False)}
    out["accuracy_n"] = np.where(scored, dataset["accuracy_n"].values[place], 0)
    for key in ("accuracy", "accuracy_low", "accuracy_high"):
        out[key] = np.where(scored, dataset[key].values[place], np.nan)
    by_baseline = {"baseline": paired} | {
        key: dataset[key].values for key in ("p_value", "p_adjusted")
    }
    for key, values in by_baseline.items():
        out[key] = np.where(scored, values[:, place[0], place[1], place[2]], np.nan)
    out["margin"] = out["accuracy"] - out["baseline"]
    return {
        f"{name}_{key}": xr.Variable(("baseline", "mention_type")[-array.ndim :], array)
        for key, array in out.items()
    }
