"""`tree_probe`: a planted tree head parses the demo corpus; maps, splits, random weights and
kills."""

from __future__ import annotations

import lzma
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from headwise import Corpus, HeadModel, make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.tree_probe import analysis as module_under_test
from headwise.analyses.tree_probe import collect, structural
from headwise.analyses.tree_probe.analysis import PROBES
from headwise.core.errors import InputError, MissingAnnotationError, ParameterError
from headwise.core.store import CheckpointStore
from headwise.models.random_init import random_but_embeddings
from headwise.probes.tree import WordMaps
from headwise.run import RunOptions, run_analyses
from headwise.testing import eager_maps, planted_annotations, random_model
from headwise.testing.corpora import battery_examples
from headwise.text import open_corpus
from headwise.text.demo import demo_corpus
from headwise.text.encode import Encoded
from headwise.text.example import ROOT


def word_level(full: np.ndarray, row: Encoded) -> np.ndarray:
    count = int(row.word.max()) + 1
    out = np.zeros((*full.shape[:2], count, count))
    to_words = np.stack([full[..., row.word == b].sum(-1) for b in range(count)], -1)
    for a in range(count):
        out[:, :, a] = to_words[:, :, row.word == a].mean(2)
    return out


def test_a_planted_tree_head_parses_the_demo_corpus() -> None:
    examples = [
        e
        for e in demo_corpus(size=160)
        if e.heads is not None and not e.has_pair and len(e.all_words) <= 25
    ][:60]
    planted, renamed = planted_annotations(examples, [["uniform", "previous"], ["self", "tree"]])
    model = HeadModel.open(planted.model, tokenizer=planted.tokenizer)
    found = make_atlas(
        model,
        Corpus.from_examples(renamed),
        ["tree_probe"],
        parameters={"tree_probe": {"epochs": 4, "learning_rate": 0.1}},
        full=True,
    )["tree_probe"]
    uas = dict(zip(found["probe"].values.tolist(), found["uas"].values.tolist(), strict=True))
    assert uas["attention"] == 1.0
    assert uas["random_attention_words"] < 0.9
    assert uas["right_branching"] < 0.6
    weight = found["weight"].sel(probe="attention", direction="dependent_to_head")
    others = (
        weight.sel(layer=0, head=1),
        weight.sel(layer=1, head=0),
    )  # the uniform head's weight only shifts all words against the root
    assert float(weight.sel(layer=1, head=1)) > max(map(abs, map(float, others))) + 1
    assert (
        found["weight"]
        .sel(probe=["distance_words", "random_attention_words", "right_branching"])
        .isnull()
        .all()
    )
    assert found.attrs["sentences_train"] == 42
    assert found.attrs["sentences_validation"] == 6
    assert found.attrs["sentences_test"] == 12
    assert found.attrs["vector_coverage"] == 1.0


def test_right_branching_is_counted_on_the_test_part() -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    test = battery_examples(2)
    train = Corpus.from_examples(battery_examples(4), "train")
    path_free = make_analysis("tree_probe", {"train": "given", "epochs": 1, "learning_rate": 0.01})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwise.analyses.tree_probe.analysis.open_corpus", lambda *_, **__: train)
        found = _run(model, Corpus.from_examples(test), path_free)
    right = scored = 0
    for example in test:
        for word, (head, relation) in enumerate(zip(example.heads, example.relations, strict=True)):
            scored += relation != "punct"
            right += relation != "punct" and head == word + 1
    assert float(found["uas"].sel(probe="right_branching")) == pytest.approx(right / scored)
    assert found.attrs["words_tested"] == scored
    assert int(found["uas_n"][0]) == len(test)
    assert found.attrs["sentences_train"] + found.attrs["sentences_validation"] == 44
    assert set(found["probe"].values) == set(PROBES)


def _run(model: HeadModel, corpus: Corpus, analysis, folder: Path | None = None):
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        return run_analyses(model, corpus, [analysis], folder or temporary, RunOptions(full=True))[
            "tree_probe"
        ]


@pytest.fixture(scope="module")
def small() -> tuple[HeadModel, Corpus]:
    module, tokenizer = random_model()
    return HeadModel.open(module, tokenizer=tokenizer), Corpus.from_examples(battery_examples(2))


TWO_SEEDS = {
    "epochs": 1,
    "seeds": 2,
    "learning_rate": 0.01,
}  # searching a rate is most of a training


@pytest.fixture(scope="module")
def undisturbed(small: tuple[HeadModel, Corpus]):
    """What `TWO_SEEDS` gives; where the maps are held changes nothing, which the kills below see
    too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "COLLECT_TOKENS", 64)
        return _run(*small, make_analysis("tree_probe", TWO_SEEDS))


def test_maps_are_right_and_gone_in_the_end_and_finished_probes_are_not_trained_again(
    small: tuple[HeadModel, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, corpus = small
    seen: list[WordMaps] = []
    original = module_under_test.fit_tree_probe

    def watch(probe, train, *rest):
        maps = train.word_maps
        if not seen:
            rows = [model.encode(example, i) for i, example in enumerate(corpus)][:6]
            for i, (row, full) in enumerate(zip(rows, eager_maps(model, rows), strict=True)):
                expected = np.moveaxis(
                    word_level(full, row).reshape(-1, row.word_count, row.word_count), 0, -1
                )
                np.testing.assert_allclose(
                    maps.read([i], row.word_count)[0].numpy(), expected, atol=1e-3
                )
        seen.append(maps)
        if len(seen) == 3:
            raise KeyboardInterrupt  # the third probe is interrupted
        return original(probe, train, *rest)

    monkeypatch.setattr(module_under_test, "fit_tree_probe", watch)
    analysis = make_analysis("tree_probe", {"epochs": 2, "learning_rate": 0.01})
    with pytest.raises(KeyboardInterrupt):
        _run(model, corpus, analysis, tmp_path)
    assert list(tmp_path.rglob("trained-maps-*.checkpoint"))
    resumed = []
    monkeypatch.setattr(
        module_under_test,
        "fit_tree_probe",
        lambda *a: resumed.append(type(a[0]).__name__) or original(*a),
    )
    _run(model, corpus, analysis, tmp_path)
    assert resumed == [
        "DistanceWordsProbe",
        "AttentionWordsProbe",
    ]  # attention and attention + words were done
    assert not list(tmp_path.rglob("*-maps-*.checkpoint"))


@pytest.mark.parametrize(
    "phase",
    [
        "collect._compute_maps",
        "analysis.fit_tree_probe",
        "analysis.mean_head_weights",
        "analysis.right_branching",
    ],
)
@pytest.mark.parametrize("in_memory", [2**30, 1])
def test_an_interruption_in_any_phase_resumes_to_the_same_bytes(
    small: tuple[HeadModel, Corpus],
    undisturbed: xr.Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    phase: str,
    in_memory: int,
) -> None:
    model, corpus = small
    monkeypatch.setattr(collect, "COLLECT_TOKENS", 64)
    monkeypatch.setattr(collect, "MAX_BYTES_IN_MEMORY", in_memory)
    analysis = make_analysis("tree_probe", TWO_SEEDS)
    calls: list[int] = []
    module, name = (collect if "collect" in phase else module_under_test), phase.rpartition(".")[2]
    real = getattr(module, name)

    def killed(*args):
        calls.append(1)
        if len(calls) in (1, 3, 6):
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(module, name, killed)
    for _ in range(3):
        with suppress(KeyboardInterrupt):
            _run(model, corpus, analysis, tmp_path)
    assert calls
    monkeypatch.setattr(module, name, real)
    found = _run(model, corpus, analysis, tmp_path)
    for name, variable in undisturbed.variables.items():
        assert np.asarray(found[name].values).tobytes() == np.asarray(variable.values).tobytes(), (
            name
        )


def test_no_more_sentences_are_encoded_than_are_drawn(small: tuple[HeadModel, Corpus]) -> None:
    model, corpus = small
    examples = list(corpus)
    rows = [model.encode(example) for example in examples]
    whole = collect.SentenceSets()
    whole.add(examples, rows.__getitem__, 80)
    usable = len(whole.rows)
    asked: list[int] = []
    drawn = np.zeros(len(examples))
    for seed in range(200):
        data = collect.SentenceSets()
        data.add(examples[:3], rows.__getitem__, 80)
        first = len(data.rows)
        before = len(asked)
        data.add(
            examples,
            lambda place: asked.append(place) or rows[place],
            80,
            4,
            np.random.default_rng(seed),
        )
        assert [row.index for row in data.rows] == list(range(first + 4))
        chosen = [
            next(i for i, row in enumerate(rows) if row.example is own.example)
            for own in data.rows[first:]
        ]
        assert chosen == sorted(chosen)  # in the order of the corpus
        assert asked[-1] in chosen  # it ends with the last that was wanted
        assert set(chosen) <= set(asked[before:])
        drawn[chosen] += 1
    often = drawn[drawn > 0]
    assert len(often) == usable  # every sentence comes to be drawn, and as often as another
    assert abs(often - 200 * 4 / usable).max() < 4.5 * np.sqrt(200 * 4 / usable)


def test_random_weights_keep_the_embeddings() -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    other = random_but_embeddings(model, 3)
    own, made = dict(module.named_parameters()), dict(other.module.named_parameters())
    for name, value in own.items():
        same = torch.equal(value, made[name])
        if "embeddings" in name:
            assert same, name
        elif value.ndim == 2 and "decoder" not in name:
            assert not same, name


def test_several_seeds_have_a_deviation(undisturbed: xr.Dataset) -> None:
    deviation = undisturbed["uas_deviation"]
    assert deviation.sel(probe=["attention", "distance_words"]).notnull().all()
    assert np.isnan(deviation.sel(probe="right_branching"))


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    with pytest.raises(MissingAnnotationError, match="no dependencies"):
        make_atlas(model, Corpus.from_texts(["the cat"]), ["tree_probe"])
    with pytest.raises(InputError, match="training, validation and test"):
        _run(model, Corpus.from_examples(battery_examples()[:2]), make_analysis("tree_probe"))
    plain = tmp_path / "plain.txt"
    plain.write_text("the cat\n")
    with pytest.raises(MissingAnnotationError, match="has no trees"):
        _run(
            model,
            Corpus.from_examples(battery_examples(2)),
            make_analysis("tree_probe", {"train": str(plain)}),
        )
    for wrong in (
        {"validation": 1.0},
        {"epochs": 0},
        {"seeds": 0},
        {"longest": 1},
        {"learning_rate": -1},
        {"train_sentences": -1},
    ):
        with pytest.raises(ParameterError):
            make_analysis("tree_probe", wrong)


def beginning(treebank: Path, folder: Path, sentences: int) -> Path:
    """The first sentences of a treebank, in a file of their own."""
    text = lzma.decompress(treebank.read_bytes()).decode()
    path = folder / treebank.name.removesuffix(".xz")
    path.write_text("\n\n".join(text.split("\n\n")[:sentences]) + "\n\n")
    return path


@pytest.mark.real
@pytest.mark.slow
def test_order_of_probes_on_wiki_bert(wiki_model: HeadModel, shared: Path, tmp_path: Path) -> None:
    """Attention + words beats attention beats right-branching, and random weights stay far below,
    on EWT: on short sentences of its beginning, or on all of it."""
    many = bool(os.environ.get("HEADWISE_FULL"))
    model = wiki_model
    trees, vectors = (
        shared / "data" / "trees",
        shared / "data" / "vectors" / "glove_6B_100d_bertvocab_f16.npz",
    )
    train, test = trees / "en_ewt-ud-train.conllu.xz", trees / "en_ewt-ud-dev.conllu.xz"
    parameters: dict[str, object] = {"train": str(train), "vectors": str(vectors)}
    if not many:
        train, test = (beginning(path, tmp_path, 220) for path in (train, test))
        parameters |= {
            "train": str(train),
            "train_sentences": 70,
            "test_sentences": 50,
            "longest": 14,
        }
        parameters |= {"learning_rate": 0.005, "patience": 1}  # the search has tests of its own
    corpus = open_corpus(test)
    uas = make_atlas(
        model, corpus, ["tree_probe"], parameters={"tree_probe": parameters}, full=True
    )["tree_probe"]["uas"]
    by_name = dict(zip(uas["probe"].values.tolist(), uas.values.tolist(), strict=True))
    if many:
        assert by_name["attention_words"] > by_name["attention"] + 0.05
    assert by_name["attention"] > by_name["right_branching"] + 0.15
    assert by_name["random_attention_words"] < by_name["attention_words"] - 0.25


@pytest.mark.real
def test_attention_probe_equals_plain_loops_on_wiki_bert(
    wiki_model: HeadModel, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attention-only probe's UAS on real sentences, word by word from eager maps, with the
    weights it learned."""
    count = 50 if os.environ.get("HEADWISE_FULL") else 8
    quick = {
        "epochs": 1,
        "learning_rate": 0.01,
    }  # of the other probes: this one is trained to its optimum
    model = wiki_model
    examples = [
        e
        for e in open_corpus(shared / "data" / "trees" / "en_ewt-ud-dev.conllu.xz", limit=400)
        if 4 <= len(e.all_words) <= 14
    ][: 3 * count]
    test, train = examples[:count], Corpus.from_examples(examples[count:], "train")
    learned = []
    original = module_under_test.score_tree_probe
    monkeypatch.setattr(
        module_under_test,
        "score_tree_probe",
        lambda probe, *rest: learned.append(probe) or original(probe, *rest),
    )
    monkeypatch.setattr("headwise.analyses.tree_probe.analysis.open_corpus", lambda *_, **__: train)
    found = _run(
        model, Corpus.from_examples(test), make_analysis("tree_probe", {"train": "given", **quick})
    )
    probe = next(p for p in learned if type(p).__name__ == "AttentionProbe")
    w, u = probe.weight.detach().double().numpy().T
    right = scored = near = 0
    rows = [model.encode(example, i) for i, example in enumerate(test)]
    for example, row, full in zip(test, rows, eager_maps(model, rows), strict=True):
        maps = word_level(full, row).reshape(-1, row.word_count, row.word_count)
        for j, (head, relation) in enumerate(zip(example.heads, example.relations, strict=True)):
            if relation.split(":")[0] == "punct":
                continue
            scores = {
                i: float(w @ maps[:, i, j] + u @ maps[:, j, i])
                for i in range(row.word_count)
                if i != j
            }
            scores[ROOT] = float(probe.root.detach())
            ordered = sorted(scores.values())
            near += (
                ordered[-1] - ordered[-2] < 0.02
            )  # the stored maps are float16: such a tie may fall either way
            scored += 1
            right += max(scores, key=lambda i: scores[i]) == head
    assert found.attrs["words_tested"] == scored
    assert abs(float(found["uas"].sel(probe="attention")) * scored - right) <= near
    assert near < scored / 10


def test_the_structural_probe_stands_beside_the_others_when_asked() -> None:
    module, tokenizer = random_model(layers=1, heads=2, d_head=4)
    model = HeadModel.open(module, tokenizer=tokenizer)
    examples = [e for e in battery_examples(24) if e.heads is not None]
    parameters = {"tree_probe": {"epochs": 2, "learning_rate": 0.1, "structural": True}}
    corpus = Corpus.from_examples(examples)
    found = make_atlas(model, corpus, ["tree_probe"], parameters=parameters, full=True)[
        "tree_probe"
    ]
    assert found["uuas"].dims == ("hidden_layer",)
    assert found.sizes["hidden_layer"] == 2  # what enters the one layer, and what leaves it
    assert int(found.attrs["structural_layer"]) == int(found["validation_uuas"].values.argmax())
    assert bool(
        ((found["uuas_low"] <= found["uuas"]) & (found["uuas"] <= found["uuas_high"])).all()
    )
    assert (
        make_analysis("tree_probe").summary(found)[-1].startswith("structural probe, hidden states")
    )


def test_states_of_words_are_means_over_their_pieces(tmp_path: Path) -> None:
    module, tokenizer = random_model(layers=2, heads=2, d_head=4)
    model = HeadModel.open(module, tokenizer=tokenizer)
    rows = [
        model.encode(e, i)
        for i, e in enumerate(e for e in battery_examples(6) if e.heads is not None)
    ]
    with CheckpointStore(tmp_path, {"a": 1}) as store:
        states = structural.collect_states(model, rows, store, lambda done, total: None)
    for i, row in enumerate(rows):
        hidden = model.trace(row, {"hidden"}).hidden
        assert hidden is not None
        plain = hidden[0].float().numpy()
        slow = np.stack([plain[:, row.word == word].mean(1) for word in range(row.word_count)], 1)
        assert np.allclose(states(i), slow, atol=2e-2)
