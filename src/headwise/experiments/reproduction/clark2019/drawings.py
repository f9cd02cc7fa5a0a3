"""Figures 1 and 5: heads drawn on sentences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from headwise.atlas.behaviours import BROADLY, shares
from headwise.core.labels import head_name
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.clark2019.corpora import segments, treebank
from headwise.experiments.reproduction.clark2019.syntax import antecedents, called, dependency
from headwise.experiments.reproduction.schema import NotRunError, Outcome, Picture, Row
from headwise.experiments.reproduction.shared import best_head, by_head, maps_of
from headwise.plots import draw_head
from headwise.text import Example
from headwise.text.example import ROOT

PATTERNS = {
    "broad": BROADLY,
    "next": "next token",
    "delimiter": "to sep",
    "punctuation": "to punct",
}
SHOWN = ("dobj", "det", "poss", "auxpass", "pobj")  # Figure 5
LONGEST, LOOKED_AT = 26, 400  # tokens of a sentence that is drawn; sentences looked at


def patterns(bench: Bench) -> Outcome:
    """Figure 1: a head that attends broadly, to the next token, to separators, to periods and
    commas."""
    corpus, seen, differs = segments(bench)
    found = bench.watch(corpus, bench.analysis("surface"))
    by_kind = {**shares(found), BROADLY: found["entropy"]}
    heads = {}
    for name, kind in PATTERNS.items():
        own = by_kind.get(kind)
        if own is not None and bool(own.notnull().any()):
            best = best_head(by_head(own))
            heads[name] = (*best, float(by_head(own)[best]))
    maps, tokens = maps_of(bench.model, _short(bench, lambda example: 1))
    named = {
        f"{head_name(a, b)} ({name}, {value:.2f})": maps[a, b]
        for name, (a, b, value) in heads.items()
    }
    figure = draw_head(named, tokens, title="Heads that show the patterns of §3")
    caption = (
        "The head that goes furthest in each pattern, by its mean over the segments (entropy in nats for the broad "
        "one, else share of attention), drawn on one short text. Left: the token that looks; right: looked at."
    )
    differs = [*differs, "Heads are picked by number, not by eye; the text is not the paper's."]
    picture = Picture("patterns", "Heads that show the patterns", caption, figure)
    return Outcome(pictures=[picture], differs=differs, seen=seen)


def phenomena(bench: Bench) -> Outcome:
    """Figure 5: the best head of each phenomenon on a sentence that has it."""
    found, seen, differs = dependency(bench)
    drawn = []
    for name in SHOWN:
        label = called(found, name)
        one = None if label is None else found.sel(relation=label)
        if one is None or int(one["best_layer"]) < 0:
            continue
        layer, head = int(one["best_layer"]), int(one["best_head"])
        forward = str(one["best_direction"].values) == "dependent_to_head"
        try:
            example = _short(bench, partial(_count, str(label)))
        except NotRunError:
            continue
        maps, tokens = maps_of(bench.model, example)
        marked = _pieces(bench, example, str(label), forward)
        title = f"{head_name(layer, head)}: {100 * float(one['best_accuracy']):.1f} % at {label}"
        caption = (
            f"Words that look {'from dependent to head' if forward else 'from head to dependent'} by the relation "
            f"{label} are coloured, with their lines. A sentence that has it most often among short ones."
        )
        figure = draw_head(maps[layer, head], tokens, highlight=marked, title=title)
        drawn.append(Picture(name, title, caption, figure))
    if not drawn:
        raise NotRunError("no relation of the figure occurs in a short sentence of this treebank")
    own, more, other = antecedents(bench)
    best = own.sel(mention_type="all")
    where = head_name(int(best["best_layer"]), int(best["best_head"]))
    row = Row.of("coreference", best, "best_accuracy", f"{where}; see Table 2")
    return Outcome([row], pictures=drawn, differs=[*differs, *other], seen=seen | more)


def _short(bench: Bench, score: Callable[[Example], int]) -> Example:
    """The sentence with most of something, among the short ones at the beginning of the
    treebank."""
    corpus = treebank(bench, LOOKED_AT)[0]
    best: tuple[int, Example | None] = (0, None)
    for example in islice(corpus, LOOKED_AT):
        row = bench.model.encoder.encode(example)
        if (
            row is not None
            and row.aligned
            and 8 <= len(row) <= LONGEST
            and score(example) > best[0]
        ):
            best = (score(example), example)
    if best[1] is None:
        raise NotRunError("no short sentence of the treebank has it")
    return best[1]


def _count(label: str, example: Example) -> int:
    return sum(relation == label for relation in example.relations or ())


def _pieces(bench: Bench, example: Example, label: str, forward: bool) -> list[int]:
    """Tokens of the words that look: the dependents of a relation, or its heads."""
    row = bench.model.encode(example)
    words = {
        dependent if forward else head
        for dependent, (head, relation) in enumerate(
            zip(example.heads or (), example.relations or (), strict=True)
        )
        if relation == label and head != ROOT
    }
    return [place for place, word in enumerate(row.word.tolist()) if word in words]
