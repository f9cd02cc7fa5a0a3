"""Heads that follow syntax: against slow loops, on planted heads, and on input that is not as it
should be."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from headwise.analyses.accuracy import best_heads_parameter
from headwise.analyses.dependency.analysis import Dependency
from headwise.analyses.dependency.result import DIRECTIONS
from headwise.core.errors import ParameterError
from headwise.core.labels import head_name, parse_head
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import observe_batches
from headwise.run.plan import model_shape
from headwise.stats.corrections import correct_families, holm
from headwise.stats.flips import sign_flip_test
from headwise.testing import eager_maps, planted_annotations
from headwise.testing.corpora import battery_examples
from headwise.testing.models import random_model
from headwise.text import Corpus, batches, open_corpus
from headwise.text.example import ROOT, Example
from slow_dependency import Slow, differences, slow_dependency


def measured(
    model: HeadModel, examples: list[Example], analysis: Dependency, max_tokens: int = 200
) -> xr.Dataset:
    corpus = Corpus.from_examples(examples, "test")
    shape = model_shape(model, EncodedCorpus(corpus, model.encoder).scan)
    rows = [model.encode(example, i) for i, example in enumerate(examples)]
    analysis.missing_items(shape)
    states = observe_batches(
        model,
        batches(rows, max_tokens, model.pad_id),
        [analysis],
        {"dependency": analysis.start(shape)},
    )
    dataset = analysis.result(states["dependency"], shape)
    assert set(dataset.dims) <= set(dataset.coords)  # every dim can be selected by label
    return dataset


def with_odd_ones(examples: list[Example]) -> list[Example]:
    """The same, two sentences with possessors, and one of two words."""
    rows = "the 2 det|teacher 4 nmod:poss|'s 2 case|dog 5 nsubj|saw 0 root|his 7 nmod:poss|cat 5 obj|. 5 punct"
    cells = [cell.split() for cell in rows.split("|")]
    words, heads, relations = zip(*cells, strict=True)
    example = Example(
        words=words,
        heads=tuple(int(h) - 1 for h in heads),
        relations=relations,
        upos=("NOUN",) * len(words),
    )
    # In a decoder nothing attends to the last word: its head, the first word, must not be found by
    # a default.
    last = Example(
        words=("sleeps", "."), heads=(ROOT, 0), relations=("root", "punct"), upos=("VERB", "PUNCT")
    )
    return [*examples, example, replace(example, upos=None), last]


def assert_same(dataset: xr.Dataset, slow: Slow, sentences: int, reach: int = 10) -> None:
    """Every number of the dataset, from the slow counts."""
    relations, tags = (
        [str(r) for r in dataset["relation"].values],
        [str(t) for t in dataset["upos"].values],
    )
    assert set(relations) - {"all"} == {label for label in slow.offsets if label != "all"}
    value = {str(name): dataset[name].values for name in dataset.data_vars}
    p_family = np.full(value["accuracy"].shape, np.nan)
    for r, relation in enumerate(relations):
        counts = slow.offsets[relation]
        total = sum(counts.values())
        best = max(range(-reach, reach + 1), key=lambda o: (counts[o], -o))
        assert value["count"][r] == total
        assert value["baseline"][r] == pytest.approx(counts[best] / total)
        assert value["baseline_offset"][r] == best
        better: dict[tuple, np.ndarray] = {}
        for d, layer, head in np.ndindex(value["accuracy"].shape[:3]):
            here, key = (d, layer, head, r), (DIRECTIONS[d], layer, head, relation)
            assert value["accuracy_n"][here] == slow.tried[key]
            assert value["possible"][d, r] == slow.tried[key]
            if not slow.tried[key]:
                assert np.isnan(value["accuracy"][here])
                continue
            assert value["accuracy"][here] == pytest.approx(slow.found[key] / slow.tried[key]), key
            better[here], bar, name = differences(slow, key, sentences, reach)
            assert value["bar"][d, r] == pytest.approx(bar), key
            assert value["bar_name"][d, r] == name, key
            for group in ("with", "without"):
                means = [mean[layer, head] for mean in slow.noop[group, DIRECTIONS[d], relation]]
                assert value[f"noop_{group}_n"][here] == len(means)
                assert not means or abs(value[f"noop_{group}"][here] - np.mean(means)) < 1e-5
        tests = sign_flip_test(np.stack(list(better.values()), 1))
        for place, alone, family in zip(better, tests.p_value, tests.p_adjusted, strict=True):
            assert value["p_value"][place] == pytest.approx(alone)
            p_family[place] = family
    np.testing.assert_allclose(value["p_family"], p_family)
    rare = (value["count"] < 30) & (value["count"] >= 30).any()
    expected = correct_families(np.where(rare, np.nan, p_family))
    np.testing.assert_allclose(
        value["p_adjusted"], np.where(rare & ~np.isnan(p_family), 1.0, expected)
    )
    for r, relation in enumerate(relations):
        place = (
            str(value["best_direction"][r]),
            int(value["best_layer"][r]),
            int(value["best_head"][r]),
        )
        own = {key: tried for key, tried in slow.tried.items() if key[3] == relation and tried}
        enough = min(30, max(own.values(), default=0))
        scores = {key[:3]: slow.found[key] / tried for key, tried in own.items() if tried >= enough}
        if not scores:
            assert place == ("", -1, -1)
            continue
        assert scores[place] == max(scores.values()) == pytest.approx(value["best_accuracy"][r])
        for (g, group), (u, tag) in product(enumerate(("with", "without")), enumerate(tags)):
            means = [mean[place[1:]] for mean in slow.noop[group, place[0], relation, tag]]
            assert value["best_noop_upos_n"][r, g, u] == len(means)
            assert not means or abs(value["best_noop_upos"][r, g, u] - np.mean(means)) < 2e-6
    for layer, head, u in np.ndindex(value["noop_upos"].shape):
        means = [mean[layer, head] for mean in slow.noop["upos", tags[u]]]
        assert value["noop_upos_n"][layer, head, u] == len(means)
        assert not means or abs(value["noop_upos"][layer, head, u] - np.mean(means)) < 2e-6


@pytest.mark.parametrize(
    ("parameters", "slow"),
    [
        ({}, {}),
        ({"subtypes": "keep"}, {"keep_subtypes": True}),
        ({"poss_rule": True}, {"poss_rule": True}),
        ({"with_root": True, "with_punct": True}, {"with_root": True, "with_punct": True}),
        ({"reach": 2}, {"reach": 2}),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_slow_loops(causal: bool, parameters: dict, slow: dict) -> None:
    module, tokenizer = random_model(causal=causal)
    model = HeadModel.open(module, tokenizer=tokenizer)
    examples = with_odd_ones(
        [example for example in battery_examples() if not (causal and example.has_pair)]
    )
    rows = [model.encode(example) for example in examples]
    target = "cls" if causal else "sep"  # where heads with nothing to do look
    expected = slow_dependency(eager_maps(model, rows), rows, causal=causal, target=target, **slow)
    assert_same(
        measured(model, examples, Dependency(**parameters)),
        expected,
        len(examples),
        slow.get("reach", 10),
    )


@pytest.mark.parametrize("causal", [False, True])
def test_the_words_without_their_order(causal: bool) -> None:
    """`lexical`, by plain loops: the chance that a random word of a part of speech is the answer."""
    module, tokenizer = random_model(causal=causal)
    model = HeadModel.open(module, tokenizer=tokenizer)
    examples = [example for example in battery_examples() if not example.has_pair]
    dataset = measured(model, examples, Dependency())
    hits: dict = defaultdict(lambda: defaultdict(float))
    count: dict = Counter()
    for example in examples:
        n_words = len(example.all_words)
        for word, (head, relation) in enumerate(zip(example.heads, example.relations, strict=True)):
            # A decoder's words see what stands before them.
            seen = {
                "dependent_to_head": range(word if causal else n_words),
                "head_to_dependent": range(word + 1 if causal else 0, n_words),
            }
            for direction, words in seen.items():
                candidates = [other for other in words if other != word]
                if head == ROOT or head not in candidates:
                    continue
                upos = example.upos[head]
                n_alike = sum(example.upos[other] == upos for other in candidates)
                key = direction, relation.split(":")[0]
                hits[key][upos] += 1 / n_alike
                count[key] += 1
    assert len(count) > 10
    for (direction, relation), by_upos in hits.items():
        place = {"direction": direction, "relation": relation}
        best = max(by_upos.values()) / count[direction, relation]
        assert float(dataset["lexical"].sel(place)) == pytest.approx(best, abs=1e-6)
    shuffled = measured(model, [_reversed(example) for example in examples], Dependency())
    if not causal:  # words in another order say as much
        xr.testing.assert_allclose(shuffled["lexical"], dataset["lexical"])


def _reversed(example: Example) -> Example:
    """The same words and links, from the last word to the first."""
    last = len(example.all_words) - 1
    heads = [ROOT if head == ROOT else last - head for head in reversed(example.heads)]
    return Example(
        words=example.all_words[::-1],
        heads=tuple(heads),
        relations=example.relations[::-1],
        upos=example.upos[::-1],
    )


def test_of_baselines_that_tie_the_bar_is_the_first_in_their_order() -> None:
    """To a word that all attend to evenly, the first of them: also where one has three pieces, and
    thirds add up."""
    words, heads = ("saw", "teacherer", "it", "a", "cat", "."), (ROOT, 0, 0, 4, 0, 0)
    relations = ("root", "obj", "obl", "det", "obl", "punct")
    example = Example(words=words, heads=heads, relations=relations, upos=("NOUN",) * len(words))
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    row = model.encode(example)
    assert row.word.tolist().count(1) == 3
    dataset = measured(model, [example], Dependency())
    assert_same(dataset, slow_dependency(eager_maps(model, [row]), [row]), 1)
    kinds = dataset.sel(direction="head_to_dependent")
    assert kinds["baseline_accuracy"].sel(relation="obl").values.tolist() == [0.5, 1, 1]
    assert kinds["baseline_accuracy"].sel(relation="obj").values.tolist() == [1, 1, 1]
    assert str(kinds["bar_name"].sel(relation="obl").values) == "uniform"
    assert str(kinds["bar_name"].sel(relation="obj").values) == "offset"


def test_planted_heads_find_what_they_should() -> None:
    singles = [example for example in battery_examples() if not example.has_pair]
    planted, examples = planted_annotations(
        singles, (("tree", "children", "previous"), ("uniform", "next", "tree:obj"))
    )
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    dataset = measured(model, examples, Dependency())
    accuracy = dataset["accuracy"]
    assert (
        accuracy.sel(direction="dependent_to_head", layer=0, head=0) == 1
    ).all()  # the tree head: every relation, UAS 100 %
    assert (accuracy.sel(direction="head_to_dependent", layer=0, head=1) == 1).all()
    pairs = [
        (h - d)
        for e in examples
        for d, (h, r) in enumerate(zip(e.heads or (), e.relations or (), strict=True))
        if h != ROOT and r != "punct"
    ]
    next_accuracy = float(
        accuracy.sel(direction="dependent_to_head", layer=1, head=1, relation="all")
    )
    # The last word's next token is [SEP]: its other words get next to nothing, and the largest of
    # that is no prediction of `next`.
    assert next_accuracy == pytest.approx(pairs.count(1) / len(pairs), abs=0.03)
    assert float(accuracy.sel(direction="dependent_to_head", layer=1, head=2, relation="obj")) == 1
    assert (dataset["best_accuracy"] == 1).all()
    assert set(dataset["best_layer"].values) == {0}
    # Words without an object relation rest on [SEP].
    at = dataset.sel(direction="dependent_to_head", layer=1, head=2, relation="obj")
    assert float(at["noop_with"]) == pytest.approx(0, abs=1e-4)
    assert float(at["noop_without"]) == pytest.approx(1, abs=1e-4)


def test_a_decoder_is_scored_on_what_it_can_see() -> None:
    singles = [example for example in battery_examples() if not example.has_pair]
    planted, examples = planted_annotations(singles, (("tree", "children"),), causal=True)
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    dataset = measured(model, examples, Dependency())
    assert (
        dataset.attrs["noop_target"] == "first"
    )  # whether or not the tokenizer opens texts with a token of its own
    arcs = [
        (d, h, r)
        for e in examples
        for d, (h, r) in enumerate(zip(e.heads or (), e.relations or (), strict=True))
        if h != ROOT
    ]
    for relation in ("det", "obj", "nsubj"):
        back, ahead = (
            sum(r == relation and (h < d) == first for d, h, r in arcs) for first in (True, False)
        )
        assert dataset["possible"].sel(relation=relation).values.tolist() == [back, ahead]
    accuracy = dataset["accuracy"]
    assert float(accuracy.sel(direction="dependent_to_head", layer=0, head=0, relation="obj")) == 1
    assert np.isnan(
        accuracy.sel(direction="dependent_to_head", relation="det")
    ).all()  # a determiner never sees its noun
    assert float(accuracy.sel(direction="head_to_dependent", layer=0, head=1, relation="det")) == 1
    assert str(dataset["best_direction"].sel(relation="det").values) == "head_to_dependent"
    assert "before" in dataset.attrs["note"]
    assert (dataset["baseline_possible_offset"].sel(direction="dependent_to_head") <= 0).all()


def test_the_test_against_the_baseline_has_the_right_level() -> None:
    """Heads that guess: after correction hardly any is called better than the baseline."""
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    dataset = measured(model, battery_examples(), Dependency())
    assert (dataset["p_family"].values >= dataset["p_value"].values).all()
    assert (dataset["p_adjusted"].values >= dataset["p_family"].values).all()
    assert (dataset["p_adjusted"].values >= 0.05).all()


def test_heads_that_know_no_syntax_do_not_pass_for_syntactic() -> None:
    """Even attention finds long words, attention on the first token the first word: both are
    baselines now."""
    singles = [example for example in battery_examples() if not example.has_pair]
    planted, examples = planted_annotations(singles, (("uniform", "tree"), ("uniform", "previous")))
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    dataset = measured(model, examples, Dependency())
    even = dataset.sel(layer=0, head=0)
    kinds = dataset["baseline_accuracy"]
    assert (even["accuracy"] <= dataset["bar"] + 1e-6).all()
    assert (even["p_value"] > 0.4).all()
    assert (dataset["bar"] >= kinds.max("baseline_kind") - 1e-9).all()
    assert dataset.attrs["units"] == "examples"
    in_documents = [replace(example, document=f"d{i // 3}") for i, example in enumerate(examples)]
    grouped = measured(model, in_documents, Dependency())
    assert (grouped.attrs["units"], grouped.attrs["unit_count"]) == (
        "documents",
        -(-len(examples) // 3),
    )
    xr.testing.assert_equal(grouped["accuracy"], dataset["accuracy"])
    tree = ("dependent_to_head", 0, 1, "all")
    place = dict(zip(("direction", "layer", "head", "relation"), tree, strict=True))
    assert float(grouped["p_value"].sel(place)) >= float(dataset["p_value"].sel(place))


def test_heads_found_on_one_text_are_tested_on_another() -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    examples = battery_examples()
    there, here = examples[::2], examples[1::2]
    heads = best_heads_parameter(measured(model, there, Dependency()))
    assert len(heads) > 3
    plain, dataset = (
        measured(model, here, Dependency()),
        measured(model, here, Dependency(heads=heads)),
    )
    tested = []
    for text in heads:
        relation, name, direction = text.split()
        if relation not in dataset["relation"]:
            continue
        one, (layer, head) = dataset.sel(relation=relation), parse_head(name)
        own = plain.sel(relation=relation, direction=direction, layer=layer, head=head)
        assert float(one["given_accuracy"]) == pytest.approx(float(own["accuracy"]))
        assert float(one["given_p_value"]) == pytest.approx(float(own["p_value"]))
        assert float(one["given_margin"]) == pytest.approx(
            float(own["accuracy"] - plain["bar"].sel(relation=relation, direction=direction))
        )
        tested.append(float(own["p_value"]))
    # Nothing was picked here: corrected over the relations alone.
    np.testing.assert_allclose(
        np.sort(dataset["given_p_adjusted"].dropna("relation")), np.sort(holm(np.array(tested)))
    )
    lines = Dependency(heads=heads).summary(dataset)
    assert "found elsewhere" in lines[0]
    assert any(heads[0].split()[1] in line for line in lines)
    for wrong, summary_text in (
        ("obj L4H0", "write it like"),
        ("obj L9H0 dependent_to_head", "2 layers of 3 heads"),
    ):
        with pytest.raises(ParameterError, match=summary_text):
            measured(model, here, Dependency(heads=(wrong,)))


def test_the_summary_names_best_heads_and_baselines() -> None:
    module, tokenizer = random_model()
    dataset = measured(
        HeadModel.open(module, tokenizer=tokenizer), battery_examples(), Dependency()
    )
    lines = Dependency().summary(dataset)
    for relation in ("all",):
        one = dataset.sel(relation=relation)
        (line,) = [line for line in lines if line.split()[0] == relation]
        assert head_name(int(one["best_layer"]), int(one["best_head"])) in line
        assert f"{100 * float(one['best_heldout_accuracy']):.1f} %" in line
        assert float(one["best_heldout_accuracy"]) < float(one["best_accuracy"])
        assert f"{100 * float(one['best_baseline']):.1f} %" in line


# --- input that is not as it should be ------------------------------------------------------------


@pytest.fixture
def model() -> HeadModel:
    module, tokenizer = random_model()
    return HeadModel.open(module, tokenizer=tokenizer)


def test_a_relation_that_does_not_occur_is_refused_with_those_that_do(model: HeadModel) -> None:
    with pytest.raises(
        ParameterError,
        match=r"no relation in this corpus 'dobj'\. Did you mean 'obj'\? Known: advmod, amod, .*obj, obl, punct",
    ):
        measured(model, battery_examples(), Dependency(relations=("nsubj", "dobj")))


def test_chosen_relations_by_tuple_or_text(model: HeadModel) -> None:
    every = measured(model, battery_examples(), Dependency())
    for chosen in (("obj", "nsubj"), "obj, nsubj"):
        dataset = measured(model, battery_examples(), Dependency(relations=chosen))
        assert list(dataset["relation"].values) == ["all", "obj", "nsubj"]
        xr.testing.assert_allclose(
            dataset["accuracy"], every["accuracy"].sel(relation=["all", "obj", "nsubj"])
        )


def test_a_treebank_without_objects(model: HeadModel) -> None:
    example = Example(
        words=("the", "dog", "runs"), heads=(1, 2, ROOT), relations=("det", "nsubj", "root")
    )
    dataset = measured(model, [example], Dependency())
    assert list(dataset["relation"].values) == ["all", "det", "nsubj"]
    assert int(dataset["count"].sel(relation="all")) == 2
    assert dataset["few"].all()


def test_words_that_do_not_align_are_counted_not_guessed(model: HeadModel) -> None:
    good = battery_examples()[0]
    empty = replace(good, words=("the", "", *good.words[2:]))  # a word of no pieces
    bare = replace(good, heads=None, relations=None)
    dataset = measured(model, [good, empty, bare], Dependency())
    alone = measured(model, [good], Dependency())
    assert (
        dataset.attrs["examples"],
        dataset.attrs["examples_unaligned"],
        dataset.attrs["examples_without_tree"],
    ) == (
        1,
        1,
        1,
    )
    xr.testing.assert_equal(dataset["accuracy"], alone["accuracy"])
    xr.testing.assert_allclose(dataset["noop_without"], alone["noop_without"])


def test_words_behind_a_cut_are_counted(model: HeadModel) -> None:
    example = battery_examples()[0]
    assert example.heads is not None
    model.encoder.max_length = 7  # five words of ten
    dataset = measured(model, [example], Dependency())
    kept = [h for h in example.heads[:5] if h < 5]
    assert int(dataset["count"].sum() - dataset["count"].sel(relation="all")) == len(
        [h for h in kept if h != ROOT]
    )
    assert dataset.attrs["words_cut"] == len(example.heads) - len(kept)


def test_nothing_aligns(model: HeadModel) -> None:
    good = battery_examples()[0]
    dataset = measured(model, [replace(good, words=("", *good.words[1:]))], Dependency())
    assert np.isnan(dataset["accuracy"]).all()
    assert (dataset["best_layer"] == -1).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"subtypes": "drop"}, "fold, keep"),
        ({"reach": 0}, "at least 1"),
        ({"correction": "x"}, "holm"),
        ({"noop": "mask"}, "auto, sep, cls, first, off"),
    ],
)
def test_parameters_are_checked(parameters: dict, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Dependency(**parameters)


# --- the real thing -------------------------------------------------------------------------------


@pytest.mark.real
def test_some_sentences_of_wiki_bert(shared: Path, wiki_model: HeadModel) -> None:
    model = wiki_model
    # Each of a document of its own: the slow way counts sentences, in their order.
    many = bool(os.environ.get("HEADWISE_FULL"))
    chosen = islice(open_corpus(shared / "data/trees/en_ewt-ud-dev.conllu.xz"), 50 if many else 24)
    examples = [replace(example, document=None) for example in chosen]
    few = examples if many else examples[:8]
    rows = [model.encode(example) for example in few]
    slow = slow_dependency(eager_maps(model, rows), rows)
    assert_same(measured(model, few, Dependency(), max_tokens=2048), slow, len(rows))
    dataset = measured(model, examples, Dependency(), max_tokens=2048)
    assert str(dataset["best_direction"].sel(relation="obj").values) == "dependent_to_head"
    assert (
        float(
            dataset["accuracy"].sel(relation="obj", direction="dependent_to_head", layer=4, head=0)
        )
        > 0.7
    )
