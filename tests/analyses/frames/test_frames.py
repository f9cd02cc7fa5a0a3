"""`frames`: equal to loops over links; planted heads stand out, heads that only know distances do
not; FrameNet's own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import matplotlib.text
import numpy as np
import pytest
import torch
import xarray as xr

from headwise import Corpus, HeadModel, make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.frames.figures import frame_scores
from headwise.core.errors import InputError, MissingAnnotationError, ParameterError
from headwise.models.statistics import compute_statistics
from headwise.models.view import AttentionRows, Layer
from headwise.run.encoded import EncodedCorpus
from headwise.run.plan import model_shape
from headwise.testing import eager_maps, planted_annotations, planted_model
from headwise.text import open_corpus
from headwise.text.encode import Encoded, batches
from headwise.text.example import Example, FrameLink

LOOSE = {"min_distance": 1, "max_words": 40}


def passes(link: FrameLink, filters: dict) -> bool:
    target, element = range(*link.target), range(*link.span)
    near = min(abs(a - b) for a in target for b in element)
    return len(element) <= 3 and near >= filters.get("min_distance", 2)


def slow_scores(
    maps: Sequence[np.ndarray], rows: Sequence[Encoded], causal: bool, filters: dict
) -> tuple[dict[str, list[np.ndarray]], dict[str, list[np.ndarray]]]:
    """Scores of each sentence `[layer, head]` in the three directions, and those by frame, from
    loops over words and pieces."""
    out: dict[str, list[np.ndarray]] = {"score": [], "score_reverse": [], "score_both": []}
    by_frame: dict[str, list[np.ndarray]] = {}
    for full, row in zip(maps, rows, strict=True):
        example = row.example
        if len(example.all_words) > filters.get("max_words", 12):
            continue
        core = [link for link in example.frames or () if link.core]
        passing = [link for link in core if passes(link, filters)]
        if filters.get("exclude", "sentences") == "sentences" and len(passing) < len(core):
            continue
        here: dict[str, list[np.ndarray]] = {"score": [], "score_reverse": []}
        frames: dict[str, list[np.ndarray]] = {}
        for link in passing:
            target, element = range(*link.target), range(*link.span)
            for i in range(len(row)):
                for j in range(len(row)):
                    if row.word[i] in target and row.word[j] in element:
                        if not causal or j <= i:
                            here["score"].append(full[:, :, i, j])
                            frames.setdefault(link.frame, []).append(full[:, :, i, j])
                        if not causal or i <= j:
                            here["score_reverse"].append(full[:, :, j, i])
        for name, values in here.items():
            if values:
                out[name].append(np.max(values, axis=0))
        if here["score"] + here["score_reverse"]:
            out["score_both"].append(np.max(here["score"] + here["score_reverse"], axis=0))
        for frame, values in frames.items():
            by_frame.setdefault(frame, []).append(np.max(values, axis=0))
    return out, by_frame


def compare(
    dataset: xr.Dataset,
    maps: Sequence[np.ndarray],
    rows: Sequence[Encoded],
    causal: bool,
    filters: dict,
) -> None:
    scores, by_frame = slow_scores(maps, rows, causal, filters)
    for name, values in scores.items():
        assert (dataset[f"{name}_n"] == len(values)).all(), name
        np.testing.assert_allclose(dataset[name], np.mean(values, axis=0), atol=2e-6, err_msg=name)
    seen = [
        name
        for name in dataset["frame"].values
        if (dataset["by_frame_n"].sel(frame=name) > 0).any()
    ]
    assert set(seen) == set(by_frame)
    for frame, values in by_frame.items():
        one = dataset.sel(frame=frame)
        assert (one["by_frame_n"] == len(values)).all()
        np.testing.assert_allclose(
            one["by_frame"], np.mean(values, axis=0), atol=2e-6, err_msg=frame
        )


def sentences(count: int, seed: int = 0) -> list[Example]:
    """Sentences of six to twelve words, with one or two links at random places."""
    rng = np.random.default_rng(seed)
    out = []
    for number in range(count):
        length = int(rng.integers(6, 13))
        links = []
        for _ in range(int(rng.integers(1, 3))):
            target, element = rng.choice(length - 1, 2, replace=False)
            size = int(rng.integers(1, 3))
            links.append(
                FrameLink(
                    f"Frame{rng.integers(3)}",
                    f"Element{rng.integers(2)}",
                    (int(target), int(target) + 1),
                    (int(element), int(element) + size),
                    bool(rng.random() < 0.8),
                )
            )
        links = [link for link in links if not link.span[0] <= link.target[0] < link.span[1]]
        out.append(
            Example(
                words=tuple(f"w{number}x{i}" for i in range(length)),
                frames=tuple(links),
                origin=f"made:{number}",
            )
        )
    return out


@pytest.mark.parametrize("causal", [False, True])
def test_equal_to_loops(causal: bool) -> None:
    planted, examples = planted_annotations(
        sentences(24),
        [["to:frame", "uniform"], ["previous", "from:frame"]],
        causal=causal,
        several_pieces_every=3,
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    rows = [model.encode(example, i) for i, example in enumerate(examples)]
    maps = [planted.expected_map(row) for row in rows]
    for filters in (
        {},
        {"exclude": "links"},
        LOOSE,
        {"max_words": 10, "min_distance": 3, "exclude": "links"},
    ):
        dataset = make_atlas(
            model,
            Corpus.from_examples(examples),
            ["frames"],
            parameters={"frames": {**filters, "permutations": 20, "random_models": 0}},
        )["frames"]
        compare(dataset, maps, rows, causal, filters)
        counted = (
            "sentences",
            "sentences_too_long",
            "sentences_without_link",
            "sentences_with_other_links",
        )
        assert sum(dataset.attrs[name] for name in counted) == len(examples)


def test_nulls_tell_frames_from_distances_words_and_places() -> None:
    plain = []
    for number, example in enumerate(sentences(48, seed=1)):
        # every element stands three words before its target: a head for that distance is no head
        # for frames; and every element is the same word, which occurs nowhere else: a head for that
        # word is none either
        at = 4 + number % (len(example.words) - 5)
        words = [*example.words[: at - 3], "topic", *example.words[at - 2 :]]
        plain.append(
            replace(
                example,
                words=tuple(words),
                frames=(FrameLink("F", "E", (at, at + 1), (at - 3, at - 2)),),
            )
        )
    heads = ["to:frame", "offset:-3", "uniform", "previous"]
    planted, examples = planted_annotations(plain, [heads], several_pieces_every=0)
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    frame_parameters = {"frames": {"permutations": 299}}
    dataset = make_atlas(
        model, Corpus.from_examples(examples), ["frames"], parameters=frame_parameters
    )["frames"].sel(layer=0)
    assert dataset["score"].values[:2] == pytest.approx([1, 1], abs=1e-5)
    assert float(dataset["p_value"].sel(head=0)) == pytest.approx(1 / 300)
    assert float(dataset["p_adjusted"].sel(head=0)) < 0.05
    assert float(dataset["p_value"].sel(head=1)) > 0.9
    assert float(dataset["expected"].sel(head=1)) == pytest.approx(1, abs=1e-5)
    assert float(dataset["p_adjusted"].sel(head=2)) > 0.9
    assert not dataset["above"].sel(head=[2, 3]).any()
    assert dataset["stands_out"].values.tolist() == [True, False, False, False]
    assert dataset.attrs["random_models"] == 4
    assert 0 < dataset.attrs["random_bound"] < float(dataset["excess"].sel(head=0))


def test_a_head_for_the_element_s_word_is_no_frame_head() -> None:
    """All words look at the element: the target does so as well, but no more than others."""
    rng = np.random.default_rng(5)
    rows, links, maps = 40, [], []
    examples = []
    for number in range(rows):
        length = 9
        element, target = (int(x) for x in rng.permutation(np.arange(1, length - 1, 2))[:2])
        links.append((target, element))
        words = tuple("magnet" if i == element else f"w{number}x{i}" for i in range(length))
        link = FrameLink("F", "E", (target, target + 1), (element, element + 1))
        examples.append(Example(words=words, frames=(link,), origin=f"made:{number}"))
        maps.append((target, element))
    analysis = make_analysis("frames", {"permutations": 99, "seed": 1})
    planted = planted_model([["uniform", "uniform"]], words=[w for e in examples for w in e.words])
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    shape = model_shape(model, EncodedCorpus(Corpus.from_examples(examples), model.encoder).scan)
    state = analysis.start(shape)
    encoded = [model.encode(example, i) for i, example in enumerate(examples)]
    for batch in batches(encoded, 4000, model.pad_id):
        n = batch.ids.shape[1]
        weights = torch.full((len(batch), 2, n, n), 0.01)
        for place, row in enumerate(batch.rows):
            target, element = links[row.index]
            weights[place, 0, :, element + 1] = 0.9  # a head for the word
            weights[place, 1, target + 1, element + 1] = 0.9  # a head for the link
        visible = torch.ones(len(batch), 1, n, n, dtype=torch.bool)
        summary_text = compute_statistics(
            analysis.request(batch), AttentionRows(0, 0, n, weights, visible)
        )
        analysis.observe(state, analysis.reduce(summary_text, batch), Layer(0), batch)
    computed = analysis.result(state, shape).sel(layer=0)
    assert computed["score"].values == pytest.approx([0.9, 0.9], abs=1e-6)
    assert computed["expected"].values[0] > 0.85
    assert computed["p_value"].values[0] > 0.5
    assert computed["p_adjusted"].values[1] < 0.05
    assert computed["stands_out"].values.tolist() == [False, True]


def test_few_sentences_are_said_and_nothing_is_tested() -> None:
    planted, examples = planted_annotations(
        sentences(40, seed=1), [["to:frame", "uniform"]], several_pieces_every=0
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    frame_parameters = {"frames": {"permutations": 20, "random_models": 0, "exclude": "links"}}
    whole, few = (
        make_atlas(model, Corpus.from_examples(part), ["frames"], parameters=frame_parameters)[
            "frames"
        ]
        for part in (examples * 3, examples[:12])
    )
    analysis = make_analysis("frames")
    assert few.attrs["sentences"] < 30 <= whole.attrs["sentences"]
    assert whole["p_value"].notnull().all()
    for name in (
        "p_value",
        "reverse_p_value",
        "both_p_value",
        "p_adjusted",
        "reverse_p_adjusted",
        "both_p_adjusted",
    ):
        assert few[name].isnull().all()
    assert not few["stands_out"].any()
    figure_text, whole_said = (" ".join(analysis.summary(one)) for one in (few, whole))
    sentence = f"Only {few.attrs['sentences']} sentences, fewer than 30: no head is tested"
    assert sentence in figure_text
    assert "stand out" not in figure_text
    assert "stand out" in whole_said
    assert "Only" not in whole_said
    for one, is_few in ((few, True), (whole, False)):
        drawn = " ".join(
            text.get_text() for text in frame_scores(one).findobj(matplotlib.text.Text)
        ).replace("\n", " ")
        assert (sentence in drawn) == is_few
        assert ("fewer than 30: rough" in drawn) == is_few
        assert ("corrected" in drawn) != is_few


def test_the_permutation_test_holds_its_level() -> None:
    """Links at random places of sentences that a model with random heads reads: a test at 5 %
    rejects about 5 % of heads."""
    from headwise.testing import random_model

    words = [f"v{i}" for i in range(60)]
    rng = np.random.default_rng(3)
    small = 0
    heads = 0
    for seed in range(6):
        examples = [
            replace(e, words=tuple(rng.choice(words, len(e.words))))
            for e in sentences(70, seed=20 + seed)
        ]
        # where a link lies must not depend on the place in the sentence: it is moved at random, as
        # under the null
        examples = [
            replace(e, frames=tuple(_moved(link, len(e.words), rng) for link in e.frames[:1]))
            for e in examples
            if e.frames
        ]
        module, tokenizer = random_model(words=words, layers=3, heads=4, seed=seed)
        computed = make_atlas(
            HeadModel.open(module, tokenizer=tokenizer),
            Corpus.from_examples(examples),
            ["frames"],
            parameters={"frames": {"permutations": 99, "random_models": 0}},
        )["frames"]
        assert computed.attrs["sentences"] >= 30
        small += int((computed["p_value"] <= 0.05).sum())
        heads += computed["p_value"].size
        assert (computed["p_adjusted"] >= computed["p_value"] - 1e-9).all()
    assert (
        small / heads <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / heads) + 0.02
    )  # heads of one model share sentences


def _moved(link: FrameLink, length: int, rng: np.random.Generator) -> FrameLink:
    low, high = min(link.target[0], link.span[0]), max(link.target[1], link.span[1])
    shift = int(rng.integers(-low, length - high + 1))
    return replace(
        link,
        target=(link.target[0] + shift, link.target[1] + shift),
        span=(link.span[0] + shift, link.span[1] + shift),
    )


@pytest.mark.real
def test_framenet_on_a_real_model(shared: Path, wiki_model: HeadModel) -> None:
    model = wiki_model
    exemplars = open_corpus(f"framenet:{shared / 'data' / 'frames' / 'exemplars.jsonl.gz'}")
    examples = list(islice(exemplars, 0, 4000, 50))  # of some frames, without reading all 20,000
    corpus = Corpus.from_examples(examples, "exemplars")
    frame_parameters = {"exclude": "links", "permutations": 50, "random_models": 1}
    dataset = make_atlas(model, corpus, ["frames"], parameters={"frames": frame_parameters})[
        "frames"
    ]
    rows = [
        model.encode(example, i)
        for i, example in enumerate(examples)
        if len(example.all_words) <= 12
    ][:8]
    kept = Corpus.from_examples([row.example for row in rows])
    frame_parameters = {"permutations": 0, "random_models": 0}
    part = make_atlas(model, kept, ["frames"], parameters={"frames": frame_parameters})["frames"]
    compare(part, eager_maps(model, rows), rows, False, {})
    assert 10 < dataset.attrs["sentences"] < 80
    assert int(dataset["above"].sum()) == 2  # of 144 heads


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"frame span 3\.\.9 lies outside the 4 words"):
        Example(words=("a", "b", "c", "d"), frames=(FrameLink("F", "E", (0, 1), (3, 9)),))
    planted = planted_model([["uniform"]], words=["a"])
    with pytest.raises(MissingAnnotationError, match="frames"):
        make_atlas(
            HeadModel.open(planted.model, tokenizer=planted.tokenizer),
            Corpus.from_texts(["a"]),
            ["frames"],
        )
    near = Example(words=("a", "a", "a"), frames=(FrameLink("F", "E", (0, 1), (1, 2)),))
    with pytest.raises(
        ParameterError,
        match=r"passes the filters \(0 are longer than 12 words, 1 have no such link, 0 others beside it, 0 no frame.*"
        r"loosen `max_words`",
    ):
        make_atlas(
            HeadModel.open(planted.model, tokenizer=planted.tokenizer),
            Corpus.from_examples([near]),
            ["frames"],
        )
    for parameters, figure_text in (
        ({"max_words": 0}, "max_words"),
        ({"percentile": 100}, "percentile"),
        ({"exclude": "words"}, "exclude"),
        ({"margin": 2}, "margin"),
        ({"permutations": -1}, "permutations"),
    ):
        with pytest.raises(ParameterError, match=figure_text):
            make_analysis("frames", parameters)
