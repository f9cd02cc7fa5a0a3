"""A run: resumes, refuses what it is not, and says what it leaves out."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import sklearn.manifold  # noqa: F401  (its import, which comes late, draws from Python's generator)
import torch
import xarray as xr

from headwise import Atlas, Corpus, HeadModel, RunOptions, known_analyses, make_analysis, make_atlas
from headwise.analyses.contract import Analysis, Experiment, ExperimentContext, Paper
from headwise.analyses.offsets.analysis import Offsets
from headwise.core.errors import InputError, MissingAnnotationError, OutputError, ParameterError
from headwise.core.failures import UnexpectedError
from headwise.core.files import write_atomically
from headwise.core.store import Checkpoint, CheckpointStore
from headwise.run import Run, RunCallbacks, Source, run_analyses
from headwise.run import engine as engine_module
from headwise.run import runner as runner_module
from headwise.run.encoded import EncodedCorpus
from headwise.run.plan import Plan, make_plan
from headwise.testing import planted_model, random_model
from headwise.testing.corpora import battery_examples
from headwise.text.encode import Encoded, Encoder
from headwise.text.example import Example

SMALL: dict[str, dict[str, object]] = {
    "attribution": {"length": 11, "patterns": 1},
    "distance": {"permutations": 50},
    "frames": {"min_distance": 1, "max_words": 40, "core": False, "permutations": 50},
    "roles": {"bootstrap": 50, "random_models": 1},
    "token_pairs": {"random_models": 1},
    "tree_probe": {"epochs": 1, "learning_rate": 0.01},
}
BEHAVIOURS = [["previous", "next", "self", "sep"], ["cls", "uniform", "same_word", "block"]]
TEXTS: list[str | tuple[str, str]] = [
    "the cat saw a dog .",
    ("the cat", "the dog sleeps ."),
    "dog",
    "a cat , a dog , a cat",
    "the dog saw the cat",
    ("a dog", "a cat ."),
]


@pytest.fixture(scope="module")
def model() -> HeadModel:
    planted = planted_model(BEHAVIOURS, words=["the", "a", "cat", "dog", "saw", "sleeps", ".", ","])
    return HeadModel.open(planted.model, tokenizer=planted.tokenizer)


@pytest.fixture
def corpus() -> Corpus:
    return Corpus.from_texts(TEXTS, name="toy")


def analyses() -> list[Analysis]:
    return [make_analysis("surface"), make_analysis("offsets")]


def planned(model: HeadModel, corpus: Corpus, chosen: list[Analysis]) -> Plan:
    return make_plan(model, EncodedCorpus(corpus, model.encoder), chosen, shard_size=2)


def options(**given: object) -> RunOptions:
    defaults: dict[str, object] = {"full": True, "shard_size": 2, "batch_tokens": 24}
    return RunOptions(**defaults | given)  # type: ignore[arg-type]


def test_a_stopped_run_resumes_and_ends_in_the_same_bytes(
    model: HeadModel, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_analyses(model, corpus, analyses(), tmp_path / "whole", options())
    seen = []
    original = CheckpointStore.save

    def stopping(store: CheckpointStore, name: str, *rest: object) -> Checkpoint:
        if name == "shard-000001" and len(seen) < 2:
            raise KeyboardInterrupt
        seen.append(int(name.removeprefix("shard-")))
        return original(store, name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointStore, "save", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_analyses(model, corpus, analyses(), tmp_path / "part", options())
    assert seen == [0]
    seen.append(-1)
    resumed = run_analyses(model, corpus, analyses(), tmp_path / "part", options())
    assert seen == [0, -1, 1, 2]  # the finished shard was not done again
    whole.save(tmp_path / "a.nc")
    resumed.save(tmp_path / "b.nc")
    assert (tmp_path / "a.nc").read_bytes() == (tmp_path / "b.nc").read_bytes()


def test_what_the_corpus_lacks_is_looked_for_in_its_parts(model: HeadModel, tmp_path: Path) -> None:
    """Each analysis sees the corpus, or the first part that has what it needs, and says which."""
    tree = Example(
        words=("a", "cat", "sleeps"),
        heads=(1, 2, -1),
        relations=("det", "nsubj", "root"),
        upos=("X",) * 3,
    )
    treebank = Corpus.from_examples([tree] * 3, name="trees")
    labels = Corpus.from_examples([replace(tree, label="x")] * 5, name="labels")
    both = Corpus("whole", Corpus.from_texts(TEXTS).walk, parts=[treebank, labels])
    asked = [make_analysis("dependency"), make_analysis("surface")]
    atlas = run_analyses(model, both, asked, tmp_path / "both", options())
    assert {name: dataset.attrs["corpus"] for name, dataset in atlas.items()} == {
        "dependency": "trees",
        "surface": "whole",
    }
    assert atlas.provenance["corpus"]["parts"]["trees"]["analyses"] == ["dependency"]
    assert atlas.provenance["corpus"]["parts"]["trees"]["examples"] == 3
    assert "labels" not in atlas.provenance["corpus"]["parts"]  # nothing asked for it
    for name, corpus in (("dependency", treebank), ("surface", Corpus.from_texts(TEXTS))):
        alone = run_analyses(model, corpus, [make_analysis(name)], tmp_path / name, options())
        xr.testing.assert_equal(alone[name], atlas[name])
    with pytest.raises(MissingAnnotationError, match="no coreference"):
        run_analyses(model, both, [make_analysis("coreference")], tmp_path / "none", options())


def test_another_run_in_the_same_folder_is_rejected(
    model: HeadModel, corpus: Corpus, tmp_path: Path
) -> None:
    run_analyses(model, corpus, analyses(), tmp_path, options())
    with pytest.raises(OutputError, match="differs in corpus"):
        run_analyses(
            model, Corpus.from_texts(["a dog"], name="toy"), analyses(), tmp_path, options()
        )
    run_analyses(
        model,
        Corpus.from_texts(["a dog"], name="toy"),
        analyses(),
        tmp_path,
        options(overwrite=True),
    )


def test_a_run_with_an_edited_plugin_is_another_run(
    model: HeadModel, corpus: Corpus, tmp_path: Path
) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("# nothing yet\n")
    roles = make_analysis("roles", {"plugin": str(plugin)})
    run_analyses(model, corpus, [roles], tmp_path / "run", options())
    run_analyses(model, corpus, [roles], tmp_path / "run", options())
    plugin.write_text("# something else\n")
    with pytest.raises(OutputError, match="differs in files"):
        run_analyses(model, corpus, [roles], tmp_path / "run", options())


def test_a_parameter_longer_than_a_file_name_is_a_text(model: HeadModel, tmp_path: Path) -> None:
    words = "|".join(
        ["cat", *(f"word{n}" for n in range(60))]
    )  # more than the 255 characters that a file's name may have
    features = make_analysis("features", {"features": "felines", "extra": f"felines: form={words}"})
    words_only = Corpus.from_examples(
        [Example(words=("the", "cat", "saw", "a", "dog"))], name="toy"
    )
    found = run_analyses(model, words_only, [features], tmp_path, options())
    assert found.provenance["files"] == {}


def test_shard_size_and_batch_size_do_not_change_the_result(
    model: HeadModel, corpus: Corpus, tmp_path: Path
) -> None:
    one = run_analyses(
        model,
        corpus,
        analyses(),
        tmp_path / "one",
        RunOptions(full=True, shard_size=1, batch_tokens=8),
    )
    many = run_analyses(
        model,
        corpus,
        analyses(),
        tmp_path / "many",
        RunOptions(full=True, shard_size=100, batch_tokens=4096),
    )
    for group in one:
        for name in one[group].data_vars:
            np.testing.assert_allclose(
                one[group][name], many[group][name], rtol=1e-5, atol=1e-6, err_msg=f"{group}.{name}"
            )


def test_a_damaged_shard_is_computed_again_and_that_is_said(
    model: HeadModel, corpus: Corpus, tmp_path: Path
) -> None:
    before = run_analyses(model, corpus, analyses(), tmp_path / "run", options())
    shard = tmp_path / "run" / "shard-000001.checkpoint"
    shard.write_bytes(shard.read_bytes()[:50])
    said: list[str] = []
    after = run_analyses(
        model, corpus, analyses(), tmp_path / "run", options(), RunCallbacks(note=said.append)
    )
    assert said == ["shard-000001.checkpoint is damaged and is computed again."]
    before.save(tmp_path / "a.nc")
    after.save(tmp_path / "b.nc")
    assert (tmp_path / "a.nc").read_bytes() == (tmp_path / "b.nc").read_bytes()


def test_memory_shortage_makes_batches_smaller_and_is_said(
    model: HeadModel, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run_analyses(model, corpus, analyses(), tmp_path / "a", options())
    original = engine_module.observe_batch

    def short(model: HeadModel, batch: object, *rest: object, **more: object) -> None:
        if len(batch) > 1:  # type: ignore[arg-type]
            raise torch.OutOfMemoryError("no memory")
        original(model, batch, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(engine_module, "observe_batch", short)
    atlas = run_analyses(model, corpus, analyses(), tmp_path / "b", options())
    np.testing.assert_allclose(
        atlas["surface"]["entropy"], expected["surface"]["entropy"], atol=1e-6
    )
    assert "memory was short" in atlas.provenance["notes"][0]


def test_limit_and_budget(
    model: HeadModel, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    atlas = run_analyses(model, corpus, analyses(), tmp_path / "a", options(limit=3))
    assert int(atlas["surface"]["entropy_n"].max()) == 3
    monkeypatch.setattr(type(make_analysis("offsets")), "budget", 2)
    atlas = run_analyses(model, corpus, analyses(), tmp_path / "b", options(full=False))
    assert int(atlas["offsets"]["mean_offset_n"].max()) == 2
    assert int(atlas["surface"]["entropy_n"].max()) == len(TEXTS)
    assert atlas.provenance["sampled"] == {"offsets": 2}


def test_over_long_inputs_are_cut_or_skipped_and_counted(
    model: HeadModel, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.encoder, "max_length", 6)
    plan = planned(model, corpus, analyses())
    assert plan.scan.truncated == 5
    assert plan.scan.longest == 6
    monkeypatch.setattr(model.encoder, "overlong", "skip")
    plan = planned(model, corpus, analyses())
    assert (plan.scan.examples, plan.scan.skipped) == (1, 5)
    atlas = run_analyses(model, corpus, analyses(), tmp_path, options())
    assert int(atlas["surface"]["entropy_n"].max()) == 1
    monkeypatch.setattr(model.encoder, "max_length", 2)
    with pytest.raises(InputError, match="all 6 examples are longer than 2 tokens"):
        planned(model, corpus, analyses())


def test_an_analysis_whose_annotation_is_missing_is_left_out_with_the_way_to_get_it(
    model: HeadModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wanting(type(make_analysis("surface"))):  # type: ignore[misc]  # a class made here
        name = ""  # not registered
        requires = frozenset({"dependencies"})

    monkeypatch.setattr(Wanting, "name", "surface")
    wanting = Wanting()
    plan = planned(model, corpus, [wanting, make_analysis("offsets")])
    assert [a.name for a in plan.analyses] == ["offsets"]
    assert "`parser`" in plan.left_out["surface"][""]
    message = "surface: the corpus has no dependencies"
    with pytest.raises(MissingAnnotationError, match=message) as caught:
        planned(model, corpus, [wanting])
    assert caught.value.option == "parser"


def test_make_atlas_takes_names(model: HeadModel, corpus: Corpus) -> None:
    atlas = make_atlas(model, corpus, ["offsets"], parameters={"offsets": {"reach": 2}})
    assert isinstance(atlas, Atlas)
    assert atlas["offsets"]["offset"].values.tolist() == [-2, -1, 0, 1, 2]


def test_provenance_has_no_path_and_no_time(
    model: HeadModel, corpus: Corpus, tmp_path: Path
) -> None:
    atlas = run_analyses(model, corpus, analyses(), tmp_path, options())
    text = json.dumps(atlas.provenance)
    assert str(tmp_path) not in text
    assert {
        "model",
        "corpus",
        "analyses",
        "seed",
        "torch",
        "headwise",
        "threads",
    } <= atlas.provenance.keys()
    assert len(atlas.provenance["model"]["weight_hash"]) == 64
    assert atlas["surface"].attrs["citation"].startswith("Kevin Clark")


def test_a_full_disk_is_one_sentence_and_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path / "run", {"a": 1})
    store.save("first", {"x": np.zeros(3)}, {})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_atomically(tmp_path / "run" / "other", b"x")
    with pytest.raises(OutputError, match=r"second.*No space left"):
        store.save("second", {"x": np.zeros(3)}, {})
    assert store.has("first")
    assert not store.has("second")
    assert not list((tmp_path / "run").glob("*.headwise-tmp")) + list(
        (tmp_path / "run").glob(".*.headwise-tmp")
    )


def test_words_that_do_not_align_are_counted(model: HeadModel) -> None:
    words = Example(text="the cat", words=("the", "cat", "x"), spans=((0, 3), (4, 7), (7, 8)))
    plan = planned(model, Corpus.from_examples([words]), analyses())
    assert plan.scan.unaligned == 1


def test_the_corpus_is_read_and_encoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, tokenizer = random_model()
    opened = HeadModel.open(module, tokenizer=tokenizer)
    examples = battery_examples(3)
    read: Counter[str] = Counter()
    encoded: Counter[str] = Counter()

    def stream(notes: object) -> Iterator[Example]:
        for example in examples:
            read[example.origin] += 1
            yield example

    original = Encoder.encode

    def counting(encoder: Encoder, example: Example, index: int = 0) -> Encoded | None:
        encoded[example.origin] += 1
        return original(encoder, example, index)

    monkeypatch.setattr(Encoder, "encode", counting)

    @dataclass(frozen=True)
    class Asking(Experiment):
        title, paper = "rows", Paper("clark2019", "§1")

        def perform(self, bench: ExperimentContext) -> xr.Dataset:
            rows = list(bench.rows)
            assert [row.example for row in rows] == list(bench.corpus) == examples
            return xr.Dataset({"tokens": ((), sum(map(len, rows)))})

    Asking.name = "asking"  # not in the registry
    others = [make_analysis(name, SMALL[name]) for name in ("attribution", "tree_probe")]
    found = run_analyses(
        opened, Corpus("counted", stream), [*analyses(), Asking(), *others], tmp_path, options()
    )
    assert len(found) == 5
    assert int(found["asking"]["tokens"]) == found.provenance["corpus"]["tokens"]
    assert set(read.values()) == {1}
    assert set(encoded.values()) == {1}


def test_rows_too_many_for_memory_are_read_again_and_give_the_same(
    model: HeadModel, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = EncodedCorpus(corpus, model.encoder)
    again = EncodedCorpus(corpus, model.encoder, keep=5)
    assert again.scan == kept.scan
    for size in (1, 2, 4, 100):
        blocks = [
            [[row.index for row in block.encoded(rows.encoder)] for block in rows.blocks(size)]
            for rows in (kept, again)
        ]
        assert blocks[0] == blocks[1]
        assert len(blocks[0]) == -(-len(TEXTS) // size)
    whole = run_analyses(model, corpus, analyses(), tmp_path / "a", options())
    monkeypatch.setattr(EncodedCorpus.__init__, "__defaults__", (5,))
    streamed = run_analyses(model, corpus, analyses(), tmp_path / "b", options())
    for group in whole:
        xr.testing.assert_identical(whole[group], streamed[group])


@pytest.mark.parametrize("change", ["other", "fewer", "more"])
def test_a_corpus_that_changes_meanwhile_is_rejected(model: HeadModel, change: str) -> None:
    texts = [f"the cat saw {'a ' * (i % 5)}dog" for i in range(150)]
    corpus = Corpus.from_texts(texts)
    rows = EncodedCorpus(corpus, model.encoder, keep=5)
    changed = {
        "other": [*texts[:100], "a cat", *texts[101:]],
        "fewer": texts[:140],
        "more": [*texts[:149], "dog", "dog"],
    }
    corpus._stream = Corpus.from_texts(changed[change])._stream
    walk = iter(rows)
    assert len(list(islice(walk, 64))) == 64  # so far all is as it was
    with pytest.raises(InputError, match="changed while it was read"):
        list(walk)


def test_a_plan_cannot_be_changed(model: HeadModel, corpus: Corpus) -> None:
    plan = planned(model, corpus, [*analyses(), make_analysis("dependency")])
    with pytest.raises(FrozenInstanceError):
        plan.shard_size = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        plan.scan.examples = 3  # type: ignore[misc]
    for mapping in (plan.left_out, plan.left_out["dependency"], plan.limits, plan.scan.notes):
        with pytest.raises(TypeError):
            mapping["surface"] = {}  # type: ignore[index]


@pytest.mark.slow
def test_nothing_of_the_callers_is_left_changed(tmp_path: Path) -> None:
    module, tokenizer = random_model()
    module.train()
    attention = module.config._attn_implementation
    opened = HeadModel.open(module, tokenizer=tokenizer)
    corpus = Corpus.from_examples(battery_examples(3), "battery")
    chosen = [
        make_analysis(name, SMALL.get(name))
        for name, cls in known_analyses().items()
        if cls.automatic
    ]

    def state() -> dict[str, object]:
        return {
            "threads": torch.get_num_threads(),
            "torch": torch.get_rng_state().numpy().tobytes(),
            "numpy": repr(np.random.get_state()),
            "python": random.getstate(),
            "gradients": torch.is_grad_enabled(),
            "dtype": torch.get_default_dtype(),
            "training": [m.training for m in module.modules()],
            "trained": [(p.requires_grad, p.grad is None) for p in module.parameters()],
            "weights": [p.detach().numpy().tobytes() for p in module.parameters()],
            "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()],
            "encoding": (opened.encoder.max_length, opened.encoder.overlong),
        }

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    before = state()
    found = run_analyses(
        opened, corpus, chosen, tmp_path / "run", RunOptions(full=True, shard_size=16)
    )
    assert len(found) > 8
    torch.set_num_threads(2)  # a run adopts the threads of the run it resumes
    again = run_analyses(
        opened, corpus, chosen, tmp_path / "run", RunOptions(full=True, shard_size=16)
    )
    assert again.provenance["threads"] == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    after = state()
    torch.set_num_threads(threads)
    assert [key for key in before if before[key] != after[key]] == []
    opened.close()
    assert module.config._attn_implementation == attention


def test_two_seeds_give_two_draws_and_are_two_runs(tmp_path: Path) -> None:
    module, tokenizer = random_model()
    opened = HeadModel.open(module, tokenizer=tokenizer)
    corpus = Corpus.from_examples(battery_examples(1)[:2], "battery")
    drawing = [
        make_analysis("gradient"),
        make_analysis("attribution", {"length": "all", "patterns": 0, "method": "sketch"}),
    ]

    def drawn(seed: int, folder: str) -> Atlas:
        return run_analyses(opened, corpus, drawing, tmp_path / folder, options(seed=seed))

    first, again, other = drawn(0, "a"), drawn(0, "b"), drawn(1, "c")
    for group, name in (("gradient", "importance"), ("attribution", "share")):
        assert first.provenance["analyses"][group]["seed"] == 0
        xr.testing.assert_identical(first[group], again[group])
        assert not first[group][name].equals(other[group][name])
    with pytest.raises(OutputError, match="differs in analyses, seed"):
        drawn(1, "a")
    own = make_analysis("gradient", {"seed": 7})
    assert own.seeded(1).parameters["seed"] == 7  # a seed of its own is kept


def test_a_folder_is_held_until_the_result_is_safe(
    model: HeadModel, corpus: Corpus, tmp_path: Path
) -> None:
    with Run(Source(model, corpus), analyses(), tmp_path / "run", options()) as run:
        run.atlas().save(tmp_path / "atlas.nc")
        with pytest.raises(OutputError, match="in use by process"):
            run_analyses(model, corpus, analyses(), tmp_path / "run", options())
        run.job.finish()
    assert not (tmp_path / "run").exists()


def test_overwrite_resumes_the_same_run_and_replaces_another(
    model: HeadModel, corpus: Corpus, tmp_path: Path
) -> None:
    run_analyses(model, corpus, analyses(), tmp_path, options())
    shard = tmp_path / "shard-000000.checkpoint"
    made = shard.stat().st_mtime_ns
    run_analyses(model, corpus, analyses(), tmp_path, options(overwrite=True))
    assert shard.stat().st_mtime_ns == made
    run_analyses(model, corpus, analyses()[:1], tmp_path, options(overwrite=True))
    assert shard.stat().st_mtime_ns != made


def test_python_has_the_options_of_the_command_line(model: HeadModel, corpus: Corpus) -> None:
    with pytest.raises(
        ParameterError, match=r"`max_length` is an option for opening a model.*HeadModel\.open"
    ):
        make_atlas(model, corpus, ["surface"], max_length=6)
    with pytest.raises(
        ParameterError, match=r"no option of make_atlas 'limits'\. Did you mean 'limit'"
    ):
        make_atlas(model, corpus, ["surface"], limits=6)
    with pytest.raises(ParameterError, match="`limit` must be at least 1"):
        make_atlas(model, corpus, ["surface"], limit=0)
    with pytest.raises(
        ParameterError,
        match=r"names 'offsets', which is not among the analyses of this run \(surface\)",
    ):
        make_atlas(model, corpus, ["surface"], parameters={"offsets": {"reach": 2}})
    with pytest.raises(ParameterError, match="`overlong` must be one of truncate, skip"):
        make_atlas(None, corpus, ["surface"], overlong="cut")


@pytest.mark.parametrize(
    "where",
    [
        "request",
        "reduce",
        "update",
        "result",
        "start",
        "missing_items",
        "own_corpus",
        "unmatched",
        "extend",
    ],
)
def test_an_analysis_that_fails_is_taken_out_without_touching_the_others(
    model: HeadModel, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def failing(*_: object) -> None:
        raise ValueError("no rows")

    alone = run_analyses(model, corpus, [make_analysis("surface")], tmp_path / "alone", options())
    if where == "own_corpus":  # as if Offsets were such an observer
        monkeypatch.setattr(runner_module, "OwnCorpusObserver", Offsets)
    monkeypatch.setattr(Offsets, where, failing, raising=where != "own_corpus")
    with Run(Source(model, corpus), analyses(), tmp_path / "run", options()) as run:
        atlas = run.atlas()
        assert run.failures["offsets"].error == "ValueError: no rows"
        assert "in failing" in run.failures["offsets"].trace
    assert atlas["surface"].identical(alone["surface"])
    assert ("offsets" in atlas) == (where in ("unmatched", "extend"))
    assert atlas.provenance["failed"] == {"offsets": "ValueError: no rows"}
    monkeypatch.undo()
    if where in (
        "request",
        "reduce",
        "update",
        "result",
    ):  # kept: the resumed run does not try again
        with Run(Source(model, corpus), analyses(), tmp_path / "run", options()) as run:
            assert run.atlas().to_bytes() == atlas.to_bytes()
            assert run.failures["offsets"].sentence.startswith(
                "offsets failed unexpectedly (ValueError: no rows);"
            )


def test_only_failures_make_an_error_and_errors_of_the_disk_are_none(
    model: HeadModel, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise ZeroDivisionError("by nothing")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Offsets, "update", failing)
    with pytest.raises(
        UnexpectedError, match=r"offsets failed unexpectedly .ZeroDivisionError: by nothing"
    ):
        run_analyses(model, corpus, [make_analysis("offsets")], tmp_path / "a", options())
    monkeypatch.setattr(Offsets, "update", full)
    with pytest.raises(OutputError, match="No space left on device; free some space"):
        run_analyses(model, corpus, analyses(), tmp_path / "b", options())
