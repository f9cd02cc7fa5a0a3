"""What analyses of named items share: needs by what is chosen, what a batch remembers, labels on
every dim, seeds."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from headwise import Corpus, HeadModel, make_atlas
from headwise.analyses.contract import Observer, make_analysis
from headwise.run.encoded import EncodedCorpus
from headwise.run.engine import observe_batches
from headwise.run.plan import model_shape
from headwise.testing import random_model
from headwise.testing.corpora import battery_examples
from headwise.text.encode import batches

# name, parameters, and the function that makes what every layer of a batch needs
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("roles", {"sieves": "local,relation:det,nsubj"}, "sieve_stats.uniform_sieves"),
    ("features", {"extra": "old: form=old & upos=ADJ"}, "analysis.feature_masks"),
    ("token_pairs", {"extra": "det: upos=DET -> noun up det"}, "analysis.matched_pairs"),
    ("frames", {"min_distance": 1, "max_words": 40, "permutations": 5}, "analysis.gather_links"),
    (
        "roles",
        {"sieves": "local,relation:det,nsubj", "reading": "released"},
        "matrix_bias.sieve_matrices",
    ),
]


@pytest.fixture(scope="module")
def model() -> HeadModel:
    module, tokenizer = random_model()
    return HeadModel.open(module, tokenizer=tokenizer)


@pytest.mark.parametrize(("name", "analysis_parameters", "maker"), CASES)
def test_what_layers_share_is_made_once_a_batch_and_not_kept(
    model: HeadModel,
    name: str,
    analysis_parameters: dict[str, Any],
    maker: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, maker = maker.split(".")
    module = importlib.import_module(f"headwise.analyses.{name}.{place}")
    original, calls = getattr(module, maker), []
    monkeypatch.setattr(module, maker, lambda *args: calls.append(args) or original(*args))
    analysis = make_analysis(name, analysis_parameters)
    assert isinstance(analysis, Observer)
    corpus = Corpus.from_examples(battery_examples())
    states = {name: analysis.start(model_shape(model, EncodedCorpus(corpus, model.encoder).scan))}
    cut = batches([model.encode(example, i) for i, example in enumerate(corpus)], 60, model.pad_id)
    observe_batches(model, cut, [analysis], states)
    assert len(calls) == len(cut) > 1  # of several layers each
    assert not any(batch._memo for batch in cut)


@pytest.mark.parametrize(("name", "analysis_parameters", "maker"), CASES)
def test_every_dim_has_labels(
    model: HeadModel, name: str, analysis_parameters: dict[str, Any], maker: str
) -> None:
    corpus = Corpus.from_examples(battery_examples())
    dataset = make_atlas(model, corpus, [name], parameters={name: analysis_parameters})[name]
    for variable in dataset.data_vars.values():
        assert set(variable.dims) <= set(dataset.coords), variable.name
        assert variable.name not in dataset.dims
        variable.sel({dim: dataset[dim].values[0] for dim in variable.dims})


def test_a_run_gives_its_seed_where_none_was_given(model: HeadModel) -> None:
    assert make_analysis("roles").seeded(7).parameters["seed"] == 7
    assert make_analysis("frames", {"seed": 0}).seeded(7).parameters["seed"] == 0
    corpus = Corpus.from_examples(battery_examples())
    expected_links = [
        make_atlas(model, corpus, ["frames"], parameters={"frames": CASES[3][1] | {"seed": seed}})[
            "frames"
        ]["expected"]
        for seed in (0, 0, 1)
    ]
    assert expected_links[0].identical(expected_links[1])
    assert not expected_links[0].equals(expected_links[2])


@pytest.mark.parametrize(
    ("name", "analysis_parameters", "needed"),
    [
        ("roles", {}, set()),
        ("roles", {"sieves": "nsubj,amod", "tau": 3}, {"words", "dependencies"}),
        ("roles", {"sieves": "siblings,nsubj", "tau": 3}, {"words"}),
        ("roles", {"sieves": "relation:det", "tau": 3}, {"words", "dependencies"}),
        ("features", {}, set()),
        ("features", {"features": "noun,verb"}, {"words", "pos"}),
        ("features", {"features": "noun,cls"}, set()),
        ("token_pairs", {}, {"words"}),
        ("token_pairs", {"pairs": "verb->subject"}, {"words", "dependencies"}),
        ("token_pairs", {"pairs": "noun->pronoun"}, {"words", "pos"}),
    ],
)
def test_what_is_required_depends_on_what_is_chosen(
    name: str, analysis_parameters: dict[str, Any], needed: set[str]
) -> None:
    assert make_analysis(name, analysis_parameters).requires == needed
