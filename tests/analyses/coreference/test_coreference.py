"""`coreference`: planted heads are right every time, and a plain loop over mentions gives every
number."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib.text
import numpy as np
import pytest
import xarray as xr
from scipy import stats

from headwise import Corpus, HeadModel, make_atlas
from headwise.analyses.accuracy import best_heads_parameter
from headwise.analyses.contract import make_analysis
from headwise.analyses.coreference import windows
from headwise.analyses.coreference.analysis import Coreference
from headwise.analyses.coreference.figures import antecedents
from headwise.core.errors import MissingAnnotationError, ParameterError
from headwise.run import RunOptions, run_analyses
from headwise.stats.flips import sign_flip_test
from headwise.stats.units import share_interval
from headwise.testing import eager_maps, planted_annotations, random_model
from headwise.testing.corpora import battery_examples
from headwise.text import open_corpus
from headwise.text.attach import attach_trees
from headwise.text.demo import demo_corpus
from headwise.text.encode import Encoded
from headwise.text.example import Example, Mention

KINDS = ("all", "pronoun", "proper", "nominal")


def word_level(full: np.ndarray, row: Encoded) -> np.ndarray:
    """[layer, head, from word, to word] by loops over words."""
    count = int(row.word.max()) + 1
    out = np.zeros((*full.shape[:2], count, count))
    to_words = np.stack([full[..., row.word == b].sum(-1) for b in range(count)], -1)
    for a in range(count):
        out[:, :, a] = to_words[:, :, row.word == a].mean(2)
    return out


def slow(
    maps: Sequence[np.ndarray], rows: Sequence[Encoded], causal: bool, words: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, tried [layer, head, kind] and the nearest-mention baseline's hits [kind], mention by
    mention, from whole maps of one example at a time."""
    layers, heads = maps[0].shape[:2]
    right, tried, nearest = np.zeros((layers, heads, 4)), np.zeros((layers, heads, 4)), np.zeros(4)
    for full, row in zip(maps, rows, strict=True):
        example = row.example
        if example.mentions is None or not row.aligned:
            continue
        known = hasattr(example, "first")
        names = [m.entity for m in example.mentions]
        coreferent = [m for m in example.mentions if known or names.count(m.entity) > 1]
        level = word_level(full, row)
        for m in coreferent:
            if known and m.end <= example.first:
                continue
            before = [o for o in coreferent if o.start < m.start and o.head != m.head]
            antecedents = [o.head for o in before if o.entity == m.entity]
            if not antecedents:
                continue
            tag = example.upos[m.head]
            kinds = [0, 1 if tag == "PRON" else 2 if tag == "PROPN" else 3]
            last = max(before, key=lambda o: (o.start, -o.end))
            nearest[kinds] += last.head in antecedents
            options = (
                [w for w in range(level.shape[-1]) if w != m.head]
                if words
                else [o.head for o in before]
            )
            if causal:
                options = [w for w in options if w < m.head]
                if not any(w in options for w in antecedents):
                    continue
            options = sorted(set(options))
            for layer in range(layers):
                for head in range(heads):
                    best = max(
                        options, key=lambda w: level[layer, head, m.head, w]
                    )  # the first of equals
                    right[layer, head, kinds] += best in antecedents
                    tried[layer, head, kinds] += 1
    return right, tried, nearest


def assert_equal_to_slow(
    found: xr.Dataset, right: np.ndarray, tried: np.ndarray, nearest: np.ndarray
) -> None:
    assert set(found.dims) <= set(found.coords)  # every dim can be selected by label
    np.testing.assert_array_equal(found["accuracy_n"], tried)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found["accuracy"], right / tried, atol=1e-6)
        np.testing.assert_allclose(
            found["baseline_accuracy"].sel(baseline="nearest"),
            nearest / found["count"].values,
            atol=1e-12,
        )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("candidates", ["mentions", "words"])
def test_equal_to_a_plain_loop(candidates: str, causal: bool) -> None:
    module, tokenizer = random_model(causal=causal)
    model = HeadModel.open(module, tokenizer=tokenizer)
    corpus = Corpus.from_examples([e for e in battery_examples(3) if not causal or not e.has_pair])
    found = make_atlas(
        model, corpus, ["coreference"], parameters={"coreference": {"candidates": candidates}}
    )["coreference"]
    rows = [model.encode(example, i) for i, example in enumerate(corpus)]
    assert_equal_to_slow(found, *slow(eager_maps(model, rows), rows, causal, candidates == "words"))
    assert found["accuracy"].min() > 0 or found["accuracy"].max() <= 1


@pytest.mark.parametrize("causal", [False, True])
def test_a_planted_head_finds_every_antecedent(causal: bool) -> None:
    examples = [
        e for e in demo_corpus(size=60) if e.mentions and len(e.all_words) < 40 and not e.has_pair
    ][:25]
    planted, renamed = planted_annotations(
        examples, [["to:antecedent", "uniform"], ["self", "to:antecedent"]], causal=causal
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    for candidates in ("mentions", "words"):
        found = make_atlas(
            model,
            Corpus.from_examples(renamed),
            ["coreference"],
            parameters={"coreference": {"candidates": candidates}},
        )["coreference"]
        accuracy = found["accuracy"].sel(mention_type="all").values
        assert int(found["count"].sel(mention_type="all")) > 5
        assert accuracy[0, 0] == accuracy[1, 1] == 1.0
        assert accuracy[0, 1] < 1.0
        assert float(found["best_accuracy"].sel(mention_type="all")) == 1.0
        assert (
            int(found["best_layer"].sel(mention_type="all"))
            == int(found["best_head"].sel(mention_type="all"))
            == 0
        )
        scored = found["count"].values > 0
        assert (found["accuracy"].values[0, 0][scored] == 1.0).all()
        assert (
            found.attrs["mentions"]
            == found.attrs["mentions_scored"] + found.attrs["mentions_without_antecedent"]
        )


def test_tests_and_intervals() -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    corpus = Corpus.from_examples(battery_examples(4))
    found = make_atlas(model, corpus, ["coreference"])["coreference"]
    # One document at a time: what an interval over documents, and a test over them, are made of.
    alone = [
        make_atlas(model, Corpus.from_examples([e]), ["coreference"])["coreference"]
        for e in corpus
        if e.mentions
    ]
    assert sum(int(d["count"][0]) for d in alone) == int(found["count"][0])
    tries = np.stack([d["accuracy_n"] for d in alone])
    hits = np.rint(np.nan_to_num(np.stack([d["accuracy"] for d in alone])) * tries)
    for end, expected in zip(("low", "high"), share_interval(hits, tries), strict=True):
        np.testing.assert_allclose(found[f"accuracy_{end}"], expected, atol=1e-6)
    for baseline in found["baseline"].values:
        simple = np.stack(
            [d["baseline_accuracy"].sel(baseline=baseline).fillna(0) * d["count"] for d in alone]
        )
        p = sign_flip_test(hits[..., 0] - simple[:, None, None, 0])
        own = found.sel(baseline=baseline, mention_type="all")
        np.testing.assert_allclose(own["p_value"], p.p_value, atol=1e-9)
        np.testing.assert_allclose(own["p_family"], p.p_adjusted, atol=1e-9)
    assert (
        found["accuracy"].sel(mention_type="proper").isnull().all()
    )  # there is no name in the corpus
    tested = found.sel(mention_type=["all", "pronoun", "nominal"])
    assert (tested["p_adjusted"] >= tested["p_value"] - 1e-12).all()


def test_head_and_baseline_are_compared_on_the_same_mentions() -> None:
    """Documents of one scored mention each: wins and losses can be counted apart."""
    module, tokenizer = random_model(seed=5)
    model = HeadModel.open(module, tokenizer=tokenizer)
    nouns = ("cat", "dog", "bird", "child", "teacher", "gardener", "house", "tree")
    examples = []
    tags = ("DET", "NOUN", "VERB", "DET", "NOUN", "CCONJ", "PRON", "VERB", "DET", "NOUN")
    for number in range(24):
        first, second = nouns[number % 8], nouns[(number * 3 + 1) % 8]
        words = ("the", first, "saw", "the", second, "and", "it", "heard", "a", "cat")
        same, other = (
            "ab" if number % 2 else "ba"
        )  # both are mentioned twice, so both are candidates
        mentions = (
            Mention(0, 2, "a", 1),
            Mention(3, 5, "b", 4),
            Mention(6, 7, same, 6),
            Mention(8, 10, other, 9),
        )
        examples.append(Example(words=words, upos=tags, mentions=mentions))
    only_head = only_baseline = 0
    for example in examples:
        one = make_atlas(model, Corpus.from_examples([example]), ["coreference"])[
            "coreference"
        ].sel(mention_type="pronoun", layer=0, head=1)
        if int(one["accuracy_n"]):
            own, other = (
                float(one["accuracy"]),
                float(one["baseline_accuracy"].sel(baseline="nearest")),
            )
            only_head += own > other
            only_baseline += other > own
    found = make_atlas(model, Corpus.from_examples(examples), ["coreference"])["coreference"]
    expected = stats.binomtest(
        only_head, only_head + only_baseline, 0.5, alternative="greater"
    ).pvalue
    assert only_head + only_baseline > 3
    assert float(
        found["p_value"].sel(baseline="nearest", layer=0, head=1, mention_type="pronoun")
    ) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("causal", [False, True])
def test_a_sink_and_an_even_head_are_baselines(causal: bool) -> None:
    """A head with all its attention on the first token finds the first candidate, an even one the
    longest: neither may pass for a head that finds antecedents."""
    examples = [
        e for e in demo_corpus(size=60) if e.mentions and len(e.all_words) < 40 and not e.has_pair
    ][:25]
    planted, renamed = planted_annotations(
        examples, [["first", "uniform"], ["first", "to:antecedent"]], causal=causal
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    found = make_atlas(model, Corpus.from_examples(renamed), ["coreference"])["coreference"]
    own = found.sel(mention_type="all")
    rest = own.sel(layer=0, head=0)
    assert float(rest["accuracy"]) == pytest.approx(
        float(own["baseline_accuracy"].sel(baseline="first")), abs=0.02
    )
    assert float(rest["p_value"].sel(baseline="first")) > 0.5
    assert float(own["p_value"].sel(baseline="uniform", layer=0, head=1)) > 0.2
    assert float(own["bar"]) >= float(rest["accuracy"]) - 0.02
    assert float(own["accuracy"].sel(layer=1, head=1)) == 1


def test_heads_found_elsewhere_and_the_headline() -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    examples = [example for example in battery_examples(4) if example.mentions]
    first, second = (
        make_atlas(model, Corpus.from_examples(part), ["coreference"])["coreference"]
        for part in (examples[::2], examples[1::2])
    )
    heads = best_heads_parameter(first)
    given = make_atlas(model, Corpus.from_examples(examples[1::2]), [Coreference(heads=heads)])[
        "coreference"
    ]
    at = {
        "layer": int(first["best_layer"][0]),
        "head": int(first["best_head"][0]),
        "mention_type": "all",
    }
    assert float(given["given_accuracy"][0]) == pytest.approx(float(second["accuracy"].sel(at)))
    np.testing.assert_allclose(given["given_p_value"][:, 0], second["p_value"].sel(at))
    lines = Coreference().summary(given)
    assert heads[0].split()[1] in lines[1]
    assert all(name in lines[1] for name in ("nearest", "rules", "uniform", "first"))


def long_document(sentences: int = 12) -> Example:
    words: list[str] = []
    upos: list[str] = []
    mentions: list[Mention] = []
    for number in range(sentences):
        at = len(words)
        words += ["the", "teacher", "saw", "a", "dog", "and", "it", "sings", "."]
        upos += ["DET", "NOUN", "VERB", "DET", "NOUN", "CCONJ", "PRON", "VERB", "PUNCT"]
        mentions += [
            Mention(at, at + 2, "t", at + 1),
            Mention(at + 3, at + 5, f"d{number}", at + 4),
            Mention(at + 6, at + 7, f"d{number}", at + 6),
        ]
    return Example(
        words=tuple(words),
        upos=tuple(upos),
        mentions=tuple(mentions),
        sentences=tuple(i // 9 for i in range(len(words))),
    )


def notes_of(found: xr.Dataset) -> list[str]:
    """The notes on what was cut under the figure of antecedents, which the page shows."""
    drawn = antecedents(found)
    texts = [text.get_text().replace("\n", " ") for text in drawn.findobj(matplotlib.text.Text)]
    return [text for text in texts if "cut to their beginnings" in text]


@pytest.mark.parametrize("documents", ["cut", "windows"])
def test_long_documents_are_cut_or_run_in_windows(documents: str, tmp_path: Path) -> None:
    module, tokenizer = random_model(max_length=64)
    model = HeadModel.open(module, tokenizer=tokenizer)
    corpus = Corpus.from_examples([long_document(), *battery_examples()])
    analysis = make_analysis(
        "coreference", {"documents": documents, "max_tokens": 32, "overlap": 12}
    )
    atlas = run_analyses(
        model, corpus, [make_analysis("surface"), analysis], tmp_path, RunOptions(full=True)
    )
    found = atlas["coreference"]
    view = windows(corpus, tokenizer, 32, 12 if documents == "windows" else None)
    rows = [model.encode(example, i) for i, example in enumerate(view)]
    assert max(map(len, rows)) <= 32
    assert_equal_to_slow(found, *slow(eager_maps(model, rows), rows, False, False))
    total = (
        found.attrs["mentions_scored"]
        + found.attrs["mentions_without_antecedent"]
        + found.attrs["mentions_cut"]
    )
    assert total == found.attrs["mentions"]
    assert found.attrs["mentions_cut"] == (
        0 if documents == "windows" else 36 - 9
    )  # 30 pieces: two sentences of 11, and up to `it` in the third
    # What was cut is said, in numbers, where the answer is read.
    assert found.attrs["documents_cut"] == int(documents == "cut")
    said = " ".join(analysis.summary(found))
    of, mentions = found.attrs["examples"], found.attrs["mentions"]
    sentence = f"1 of {of} texts were cut to their beginnings (32 tokens at most): 27 of {mentions} mentions"
    assert (sentence in said) == (documents == "cut")
    assert ("behind the cut" in said) == (documents == "cut")
    assert len(notes_of(found)) == int(documents == "cut")
    # The other analyses still see the corpus as it stands.
    alone = make_atlas(model, corpus, ["surface"])["surface"]
    xr.testing.assert_allclose(atlas["surface"]["entropy"], alone["entropy"])


def test_a_document_with_one_mention_scores_nothing_and_says_so() -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    example = Example(words=("the", "cat", "saw", "a", "dog"), mentions=(Mention(0, 2, "a"),))
    found = make_atlas(model, Corpus.from_examples([example]), ["coreference"])["coreference"]
    assert found["accuracy"].isnull().all()
    assert (found["best_layer"] == -1).all()
    assert "No mention has an antecedent" in found.attrs["note"]
    assert found.attrs["mentions_singletons"] == 1


def test_words_without_pieces_are_counted_not_guessed() -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    good = battery_examples()[-1]
    bad = Example(
        words=("the", " ", "cat", "saw", "it"), mentions=(Mention(0, 3, "a"), Mention(4, 5, "a"))
    )
    found = make_atlas(model, Corpus.from_examples([good, bad]), ["coreference"])["coreference"]
    assert found.attrs["examples_unaligned"] == 1
    assert found.attrs["examples"] == 1


def test_what_cannot_be_is_refused() -> None:
    module, tokenizer = random_model()
    with pytest.raises(MissingAnnotationError, match="no coreference"):
        make_atlas(
            HeadModel.open(module, tokenizer=tokenizer),
            Corpus.from_examples([Example(words=("a", "cat"))]),
            ["coreference"],
        )
    for wrong in (
        {"candidates": "all"},
        {"documents": "whole"},
        {"max_tokens": 4},
        {"max_tokens": -1},
        {"overlap": -1},
        {"documents": "windows", "overlap": 128},
    ):
        with pytest.raises(ParameterError):
            make_analysis("coreference", wrong)


@pytest.fixture(scope="module")
def ontogum(shared: Path) -> Corpus:
    """Some of OntoGUM with the trees of GUM, whose documents come in the same order, read once."""
    count = 50 if os.environ.get("HEADWISE_FULL") else 4
    folder = shared / "data" / "coreference"
    some = open_corpus(f"ontogum:{folder / 'ontogum_conll.tar.xz'}").limit(count)
    joined = list(
        attach_trees(some, open_corpus(f"gum:{folder / 'gum_conllu.tar.xz'}").limit(count))
    )
    assert all(example.heads is not None for example in joined)
    assert len(joined) == count
    return Corpus.from_examples(joined, some.name)


@pytest.mark.real
@pytest.mark.parametrize("name", ["wiki_bert", "stories"])
def test_equal_to_a_plain_loop_on_real_models(
    name: str, ontogum: Corpus, request: pytest.FixtureRequest
) -> None:
    model = HeadModel.open(request.getfixturevalue(name))
    found = make_atlas(model, ontogum, ["coreference"], full=True)["coreference"]
    rows = [
        model.encode(example, i) for i, example in enumerate(windows(ontogum, model.tokenizer, 128))
    ]
    assert len(rows) == len(list(ontogum))
    right, tried, nearest = slow(eager_maps(model, rows), rows, model.causal, False)
    np.testing.assert_array_equal(found["accuracy_n"], tried)
    # Where two words get all but the same weight, rounding decides: at most one mention of a head
    # may differ.
    assert np.abs(found["accuracy"] * found["accuracy_n"] - right).max() <= 1.01
    assert (np.abs(found["accuracy"] * found["accuracy_n"] - right) > 0.01).mean() < 0.01
    np.testing.assert_allclose(
        found["baseline_accuracy"].sel(baseline="nearest"), nearest / found["count"].values
    )
