"""Heads that find antecedents: how often the head word of a mention attends most to the head word of one of its antecedents (Clark et al. 2019, §4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.contract import Observer, Paper, Shape, at_least, layer_head_coords, one_of
from headwise.analyses.coreference.baselines import BASELINES, baseline_choices, candidates_of
from headwise.analyses.coreference.mentions import MENTION_TYPES, expressions_of
from headwise.analyses.coreference.windows import Window, windows
from headwise.core.errors import ParameterError
from headwise.models.view import Layer, Rows
from headwise.models.words import word_index, word_maps, word_visibility
from headwise.stats.accumulators import State, Sums
from headwise.stats.corrections import CORRECTIONS, correct
from headwise.stats.intervals import wilson_interval
from headwise.stats.tests import FEW, mcnemar_exact
from headwise.text.corpus import Corpus
from headwise.text.encode import Batch, Encoded, Encoder

TYPES = ("all", *MENTION_TYPES)
CANDIDATES = ("mentions", "words")
DOCUMENTS = ("cut", "windows")
COUNTED = ("examples", "unaligned", "without_mentions", "mentions", "singletons", "cut", "without_antecedent", "scored")
DIMS = ("layer", "head", "mention_type")


@dataclass(frozen=True)
class Coreference(Observer):
    """Single heads as antecedent selectors, §4.3 and Table 2.

    For the head word m of a mention, the prediction is the candidate c that m attends to most, `argmax_c A[m, c]` on word-level maps (to a word: sum over its pieces;
    from a word: mean; ties go to the first word). It is right where c is the head word of an *antecedent*: an earlier mention of the same entity. Candidates are the head
    words of all coreferent mentions (entities mentioned once are none) that start earlier, the mention's own head word left out. Scored are mentions with an antecedent; those
    behind the cut or with no antecedent before it are counted (attributes `mentions_cut`, `mentions_without_antecedent`). A decoder sees candidates before the head word alone.

    - `accuracy[layer, head, mention_type]`, with `accuracy_n` and Wilson's 95 % interval `accuracy_low`, `accuracy_high`; `mention_type` is `all`, `pronoun`, `proper`,
      `nominal`, by the part of speech of the head word (without parts of speech: a list of pronouns; a capital letter inside a sentence makes a name);
    - `baseline_accuracy[baseline, mention_type]` with its interval: `nearest` (the mention before it), `head_match` (the nearest with the same head word), `rules` (the nearest
      that passes the first of four sieves: same words; same head word; number, gender and person agree, where known; any);
    - `count[mention_type]`; `few[mention_type]`: under 30;
    - `p_value[baseline, layer, head, mention_type]`: McNemar's exact one-tailed test that the head is right more often than the baseline on the same mentions; `p_adjusted` is
      corrected over all of them, since the best head is picked;
    - `best_layer`, `best_head`, `best_accuracy` (with interval) `[mention_type]`, and `best_baseline` (on the best head's mentions), `best_margin`, `best_p_value`,
      `best_p_adjusted[baseline, mention_type]`.

    Head words come from the corpus or its trees; else the head is the last word before the first preposition, relative word, comma, colon, bracket or dash.

    Parameters
    ----------
    candidates
        `mentions` (as above), or `words`: the most attended of all other words, wherever they stand.
    documents
        What happens to documents of more than `max_tokens`: `cut` to their beginning, as in the paper, or run in overlapping `windows`, each
        mention scored in the first that holds it.
    max_tokens
        The longest input, special tokens included; 0 for as long as the model takes.
    overlap
        Tokens that neighbouring windows share.
    correction
        `holm`, `benjamini_hochberg` or `none`.
    """

    candidates: str = "mentions"
    documents: str = "cut"
    max_tokens: int = 128
    overlap: int = 64
    correction: str = "holm"

    name: ClassVar[str] = "coreference"
    title: ClassVar[str] = "Heads that find antecedents: coreference"
    paper: ClassVar[Paper] = Paper("clark2019", "§4.3, Table 2")
    requires: ClassVar[frozenset[str]] = frozenset({"words", "coreference"})

    def __post_init__(self) -> None:
        one_of("candidates", self.candidates, CANDIDATES)
        one_of("documents", self.documents, DOCUMENTS)
        one_of("correction", self.correction, CORRECTIONS)
        at_least("max_tokens", self.max_tokens, 0)
        if 0 < self.max_tokens < 8:
            raise ParameterError(f"`max_tokens` must be 0 (no cut) or at least 8; it is {self.max_tokens!r}.")
        if self.overlap < 0 or (self.max_tokens and self.overlap >= self.max_tokens and self.documents == "windows"):
            raise ParameterError(
                f"`overlap` must be at least 0 and less than max_tokens ({self.max_tokens}); it is {self.overlap!r}."
            )

    def view(self, corpus: Corpus, encoder: Encoder, longest: int, truncated: int) -> Corpus | None:
        longest_wanted = min(self.max_tokens or encoder.max_length, encoder.max_length)
        if longest <= longest_wanted and not (truncated and self.documents == "windows"):
            return None
        return windows(corpus, encoder.tokenizer, longest_wanted, self.overlap if self.documents == "windows" else None)

    # --- the pass ---------------------------------------------------------------------------------------------------

    def start(self, shape: Shape) -> State:
        heads = (shape.layers, shape.heads, len(TYPES))
        return State(
            correct=Sums(*heads),
            possible=Sums(*heads),
            both=Sums(len(BASELINES), *heads),
            baseline_possible=Sums(len(BASELINES), *heads),
            baseline=Sums(len(BASELINES), len(TYPES)),
            count=Sums(len(TYPES)),
            counted=Sums(len(COUNTED)),
        )

    def reduce(self, rows: Rows, batch: Batch) -> Mapping[str, Tensor]:
        if not len(_table(batch, self.candidates).word):
            return {}
        index = word_index(batch)
        return {"maps": word_maps(rows, index), "visible": word_visibility(rows, index)}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        table = _table(batch, self.candidates)
        if layer.layer == 0:
            state.sums("counted").add(torch.tensor([table.counted[name] for name in COUNTED]))
            state.sums("baseline").add(table.baseline.double().T @ table.types)
            state.sums("count").add(table.types.sum(0))
        if not len(table.word):
            return
        found, possible = score(sums["maps"], sums["visible"] > 0, table)
        baseline = table.baseline.double()
        here = (layer.layer,)
        state.sums("correct").add(found.T @ table.types, here)
        state.sums("possible").add(possible.T @ table.types, here)
        for name, values in (("both", found), ("baseline_possible", possible)):
            joint = torch.einsum("mh,mb,mt->bht", values, baseline, table.types)
            state.sums(name).add(joint, (slice(None), *here))

    # --- what comes of it -------------------------------------------------------------------------------------------

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        totals = {name: state.sums(name).total.numpy() for name in state}
        dataset = accuracy_dataset(totals, self.correction).assign_coords(layer_head_coords(shape))
        counted = {name: int(n) for name, n in zip(COUNTED, totals["counted"], strict=True)}
        attrs: dict[str, Any] = {"examples": counted["examples"], "examples_unaligned": counted["unaligned"]}
        attrs["examples_without_mentions"] = counted["without_mentions"]
        attrs |= {f"mentions_{name}": counted[name] for name in ("scored", "cut", "without_antecedent", "singletons")}
        attrs["mentions"] = counted["mentions"]
        if not counted["scored"]:
            attrs["note"] = "No mention has an antecedent before it in the same input, so no head could be scored."
        elif shape.causal:
            attrs["note"] = (
                "A decoder's words see only what stands before them: mentions whose antecedents' head words all come later are not scored."
            )
        return dataset.assign_attrs(attrs)


# --- mentions of a batch --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The scored mentions of a batch.

    `example`, `word` (its head word) `[mention]`; `types[mention, type]` 0 or 1, the first type being all; `candidate`, `antecedent[mention, word]` bool;
    `baseline[mention, baseline]` bool: whether its pick is right; `counted`: what was left out, by reason.
    """

    example: Tensor
    word: Tensor
    types: Tensor
    candidate: Tensor
    antecedent: Tensor
    baseline: Tensor
    counted: Mapping[str, int]


@lru_cache(maxsize=4)
def _table(batch: Batch, candidates: str) -> Table:
    present = word_index(batch).present.cpu().numpy()
    counted = dict.fromkeys(COUNTED, 0)
    rows: list[tuple[int, int, int]] = []
    masks: list[tuple[np.ndarray, np.ndarray, list[bool]]] = []
    for number, row in enumerate(batch.rows):
        if row.example.mentions is None:
            counted["without_mentions"] += 1
        elif not row.aligned:
            counted["unaligned"] += 1
        else:
            counted["examples"] += 1
            for head, kind, allowed, right, picks in _scored(row, present[number], candidates, counted):
                rows.append((number, head, MENTION_TYPES.index(kind) + 1))
                masks.append((allowed, right, picks))
    device = batch.device
    places = torch.tensor(rows, dtype=torch.int64, device=device).reshape(-1, 3)
    types = torch.nn.functional.one_hot(places[:, 2], len(TYPES)).double()
    types[:, 0] = 1
    width = present.shape[1]
    candidate, antecedent = (
        torch.from_numpy(np.stack([mask[i] for mask in masks]) if masks else np.zeros((0, width), bool)).to(device)
        for i in (0, 1)
    )
    baseline = torch.tensor([mask[2] for mask in masks], dtype=torch.bool, device=device).reshape(-1, len(BASELINES))
    return Table(places[:, 0], places[:, 1], types, candidate, antecedent, baseline, counted)


def _scored(row: Encoded, present: np.ndarray, candidates: str, counted: dict[str, int]) -> Any:
    """Head word, kind, candidate words, antecedents' head words and what the baselines get right, for each mention that can be scored."""
    example = row.example
    window = example if isinstance(example, Window) else None
    coreferent = expressions_of(
        example, singletons=window is not None
    )  # a window's mentions are coreferent in their document
    counted["singletons"] += window.singletons if window else len(example.mentions or ()) - len(coreferent)
    counted["cut"] += window.cut if window else 0
    counted["mentions"] += window.cut if window else 0
    first = window.first if window else 0
    here = [e for e in coreferent if e.end <= len(present) and present[e.start : e.end].all() and present[e.head]]
    new = [e for e in coreferent if e.end > first]
    counted["mentions"] += len(new)
    counted["cut"] += len([e for e in new if e not in here])
    for mention in here:
        if mention.end <= first:
            continue
        earlier = candidates_of(mention, here)
        right = {e.head for e in earlier if e.entity == mention.entity}
        if not right:
            counted["without_antecedent"] += 1
            continue
        counted["scored"] += 1
        allowed = np.zeros(len(present), bool)
        if candidates == "words":
            allowed[present] = True
            allowed[mention.head] = False
        else:
            allowed[[e.head for e in earlier]] = True
        antecedent = np.zeros(len(present), bool)
        antecedent[list(right)] = True
        picks = [pick is not None and pick.head in right for pick in baseline_choices(mention, earlier).values()]
        yield mention.head, mention.kind, allowed, antecedent, picks


def score(maps: Tensor, visible: Tensor, table: Table) -> tuple[Tensor, Tensor]:
    """Whether each head finds an antecedent, and whether it could: both float64 `[mention, head]`.

    Parameters
    ----------
    maps
        `[example, head, from word, to word]`
    visible
        Bool `[example, 1 or head, from word, to word]`
    """
    weights = maps[table.example, :, table.word]  # mention, head, word
    seen = visible[table.example, :, table.word]
    chosen = weights.masked_fill(~(table.candidate[:, None] & seen), -1.0).argmax(-1, keepdim=True)
    shown = (table.antecedent[:, None] & seen).expand(-1, maps.shape[1], -1)
    possible = shown.any(-1)
    found = shown.gather(-1, chosen)[..., 0]
    return found.double(), possible.double()


# --- from counts to accuracies --------------------------------------------------------------------------------------------------


def accuracy_dataset(totals: Mapping[str, np.ndarray], correction: str) -> xr.Dataset:
    """Accuracies with intervals, baselines, tests and best heads from counts."""
    hits, tries, count = totals["correct"], totals["possible"], totals["count"]
    with np.errstate(divide="ignore", invalid="ignore"):
        accuracy = np.where(tries > 0, hits / tries, np.nan)
        baseline = np.where(count > 0, totals["baseline"] / count, np.nan)
    low, high = wilson_interval(hits, tries)
    baseline_low, baseline_high = wilson_interval(totals["baseline"], np.broadcast_to(count, totals["baseline"].shape))
    only_head = hits - totals["both"]
    only_baseline = totals["baseline_possible"] - totals["both"]
    p_value = np.where(tries > 0, mcnemar_exact(only_head, only_baseline), np.nan)
    share = {"units": "share of mentions"}
    with_baseline = ("baseline", *DIMS)
    variables: dict[str, Any] = {
        "accuracy": (DIMS, accuracy.astype(np.float32), share),
        "accuracy_n": (DIMS, tries.astype(np.int64), {"long_name": "mentions behind accuracy"}),
        "accuracy_low": (DIMS, low.astype(np.float32), {"long_name": "lower end of Wilson's 95 % interval"}),
        "accuracy_high": (DIMS, high.astype(np.float32), {"long_name": "upper end of Wilson's 95 % interval"}),
        "baseline_accuracy": (("baseline", "mention_type"), baseline, share),
        "baseline_accuracy_low": (("baseline", "mention_type"), baseline_low),
        "baseline_accuracy_high": (("baseline", "mention_type"), baseline_high),
        "count": ("mention_type", count.astype(np.int64), {"long_name": "mentions with an antecedent"}),
        "few": ("mention_type", count < FEW, {"long_name": f"fewer than {FEW} mentions"}),
        "p_value": (
            with_baseline,
            p_value,
            {"long_name": "right more often than the baseline: McNemar, exact, one-tailed"},
        ),
        "p_adjusted": (
            with_baseline,
            correct(p_value, correction),
            {"long_name": f"p_value corrected over heads, types and baselines ({correction})"},
        ),
    }
    dataset = xr.Dataset(variables, coords={"mention_type": list(TYPES), "baseline": list(BASELINES)})
    with np.errstate(divide="ignore", invalid="ignore"):
        paired = np.where(tries > 0, totals["baseline_possible"] / tries, np.nan)
    return dataset.assign(best_heads(dataset, paired))


def best_heads(dataset: xr.Dataset, paired: np.ndarray) -> dict[str, xr.Variable]:
    """For each mention type the head with the highest accuracy (the first of equals); −1 and NaN where nothing was scored.

    `paired[baseline, layer, head, type]` are the baselines' accuracies on the mentions a head could be scored on.
    """
    accuracy = dataset["accuracy"].values
    layers, heads, types = accuracy.shape
    flat = np.where(np.isnan(accuracy), -1.0, accuracy).reshape(-1, types)
    best, scored = flat.argmax(0), flat.max(0, initial=-1.0) >= 0
    layer, head = np.unravel_index(best, (layers, heads))
    place = (layer, head, np.arange(types))
    one, several = ("mention_type",), ("baseline", "mention_type")
    out = {
        "best_layer": xr.Variable(one, np.where(scored, layer, -1)),
        "best_head": xr.Variable(one, np.where(scored, head, -1)),
    }
    for name in ("accuracy", "accuracy_low", "accuracy_high"):
        out[f"best_{name}"] = xr.Variable(one, np.where(scored, dataset[name].values[place], np.nan))
    out["best_accuracy_n"] = xr.Variable(one, np.where(scored, dataset["accuracy_n"].values[place], 0))
    for name, values in (
        ("baseline", paired),
        ("p_value", dataset["p_value"].values),
        ("p_adjusted", dataset["p_adjusted"].values),
    ):
        out[f"best_{name}"] = xr.Variable(several, np.where(scored, values[(slice(None), *place)], np.nan))
    out["best_margin"] = xr.Variable(several, out["best_accuracy"].values - out["best_baseline"].values)
    return out
