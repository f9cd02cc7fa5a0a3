"""§4.2: heads that link a frame's target to its core elements; Figures 3 and 4."""

from __future__ import annotations

import re

import numpy as np
import xarray as xr

from headwise.analyses.frames.analysis import Frames
from headwise.analyses.frames.figures import best_heads, frame_annotation, frame_heads
from headwise.analyses.frames.links import chosen_links
from headwise.core.labels import head_name
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.schema import NotRunError, Outcome, Picture, Row, Verdict
from headwise.experiments.reproduction.shared import by_head, maps_of, pictures
from headwise.text import Corpus, Example
from headwise.text.demo import demo_corpus

QUICK = 120
ASKED = re.compile(r"address(es|ed|ing)?", re.IGNORECASE)


def _sentences(bench: Bench) -> tuple[Corpus, list[str], int]:
    """The exemplars that pass the paper's filters, drawn where fewer are wanted; how many there
    are."""
    asked = Frames()
    if bench.data.find("framenet") is None:
        corpus, differs = (
            demo_corpus(),
            ["No FrameNet was given: examples of the built-in grammar stand in."],
        )
    else:
        corpus, differs = bench.corpus("framenet"), []
    encode = bench.model.encoder.encode
    kept = [
        example
        for example in corpus
        if example.words is not None
        and len(example.all_words) <= asked.max_words
        and (row := encode(example)) is not None
        and chosen_links(row, asked)[1]
    ]
    if not kept:
        raise NotRunError("no sentence passes the paper's filters")
    whole = Corpus.from_examples(kept, corpus.name)
    limit = bench.count(len(kept), QUICK)
    return whole.sample(limit, bench.seed) if limit < len(kept) else whole, differs, len(kept)


def _scored(bench: Bench) -> tuple[xr.Dataset, Corpus, dict[str, str], list[str], int]:
    corpus, differs, total = bench.remember("frames", lambda: _sentences(bench))
    found = bench.watch(corpus, bench.analysis("frames"))
    seen = {
        "sentences": f"{corpus.name}, {int(found.attrs['sentences']):,} of {total:,} that pass the filters"
    }
    if total > 473:
        differs = [
            *differs,
            "FrameNet 1.7 has more exemplars that pass than the version the authors had.",
        ]
    return found, corpus, seen, differs, total


def frame_heads_of(bench: Bench) -> list[tuple[int, int]]:
    """The two heads with the highest scores."""
    return best_heads(by_head(_scored(bench)[0]["score"]))


def heads(bench: Bench) -> Outcome:
    """Figure 3."""
    found, corpus, seen, differs, total = _scored(bench)
    rows = []
    for key, (layer, head) in zip(
        ("best", "second"), best_heads(by_head(found["score"])), strict=False
    ):
        one = found.isel(layer=layer, head=head)
        p = float(one["p_adjusted"]) if "p_adjusted" in one else np.nan
        told = f", corrected p {p:.3g}" if np.isfinite(p) else ""
        rows.append(Row.of(key, one, "score", f"{head_name(layer, head)}{told}", scale=1.0))
    rows.append(Row("sentences", total, note=f"{int(found.attrs['sentences']):,} were used"))
    above = by_head(found["above"]) > 0
    sure = by_head(found["stands_out"]) > 0 if "stands_out" in found else np.zeros_like(above)
    names = [head_name(int(a), int(b)) for a, b in np.argwhere(above)]
    both = [head_name(int(a), int(b)) for a, b in np.argwhere(above & sure)]
    told = f"above: {', '.join(names)}; of them standing out: {', '.join(both) or 'none'}"
    tested = "p_adjusted" in found and bool(found["p_adjusted"].notnull().any())
    why = "" if tested else "fewer than 30 sentences: not tested"
    verdicts = {"two-heads": Verdict(told, len(both) > 0 if tested else None, why)}
    drawn = [*pictures("frames", found, "heads"), _on_sentence(bench, found, _example(corpus))]
    return Outcome(rows, pictures=drawn, claims=verdicts, differs=differs, seen=seen)


def annotation(bench: Bench) -> Outcome:
    """Figure 4: an annotated sentence, and what the best heads do on it."""
    found, corpus, seen, differs, _ = _scored(bench)
    example = _example(corpus)
    links = example.frames or ()
    frame, elements = links[0].frame, ", ".join(dict.fromkeys(link.element for link in links))
    named = f"frame {frame.replace('_', ' ')}, elements {elements.replace('_', ' ')}"
    caption = f"Above: the target; below: its elements, core ones in whole lines ({named})."
    drawn = [
        Picture("annotation", "A sentence with its frame", caption, frame_annotation(example)),
        _on_sentence(bench, found, example),
    ]
    target = " ".join(example.all_words[links[0].target[0] : links[0].target[1]])
    if not ASKED.fullmatch(target):
        differs = [
            *differs,
            f"No sentence of “address” is among them: the target here is “{target}”.",
        ]
    return Outcome(pictures=drawn, differs=differs, seen=seen | {"sentence": named})


def _example(corpus: Corpus) -> Example:
    """A sentence whose target is `address` with two core elements, else one with most core
    elements."""
    best: tuple[int, Example | None] = (-1, None)
    for example in corpus:
        links = [link for link in example.frames or () if link.core]
        words = {example.all_words[link.target[0]] for link in links}
        rank = 10 * any(ASKED.fullmatch(word) for word in words) + len(
            {link.element for link in links}
        )
        if rank > best[0]:
            best = (rank, example)
    assert best[1] is not None
    return best[1]


def _on_sentence(bench: Bench, found: xr.Dataset, example: Example) -> Picture:
    """The two best heads on one sentence, the elements' tokens marked and named."""
    row = bench.model.encode(example)
    word = row.word
    links = [link for link in example.frames or () if link.core] or list(example.frames or ())
    target = np.flatnonzero((word >= links[0].target[0]) & (word < links[0].target[1])).tolist()
    named = {
        int(place): link.element.replace("_", " ")
        for link in links
        for place in np.flatnonzero((word >= link.span[0]) & (word < link.span[1]))
    }
    planes, tokens = maps_of(bench.model, example)
    frame = links[0].frame.replace("_", " ")
    figure = frame_heads(found, tokens, planes, target, named, frame=frame)
    caption = f"Frame {frame}: where the target's attention goes in the two best heads; elements are marked and named."
    return Picture("sentence", "The two best heads on one sentence", caption, figure)
