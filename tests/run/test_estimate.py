"""What a run would take: exact where the time of every stage is planted, and told the same way in
Python and on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from torch import Tensor
from transformers import MegatronBertConfig, MegatronBertModel

from headwise import Corpus, HeadModel, RunOptions, make_analysis, make_atlas, plan
from headwise.analyses.attribution.analysis import work_per_input
from headwise.analyses.contract import (
    Experiment,
    ExperimentContext,
    Observer,
    Paper,
    Shape,
    relative_cost,
)
from headwise.analyses.offsets.analysis import Offsets
from headwise.core.errors import ParameterError
from headwise.models.view import AttentionRows, Layer
from headwise.run import Run, RunCallbacks, Source, estimate, extrapolation, progress
from headwise.run import plan as plan_module
from headwise.run.encoded import EncodedCorpus
from headwise.stats.accumulators import Moments, State
from headwise.testing import random_model
from headwise.testing.models import Size, blank_llama
from headwise.testing.vocabulary import make_vocabulary
from headwise.text.encode import Batch

NOW = [0.0]


def works(seconds: float) -> None:
    NOW[0] += seconds


@dataclass(frozen=True)
class Watching(Offsets):
    """Half a second for every example and layer; its result, one second and a tenth for each
    example."""

    name = ""

    def update(self, state: State, sums: Mapping[str, Tensor], layers: slice, batch: Batch) -> None:
        works(0.5 * len(batch) * (layers.stop - layers.start))
        super().update(state, sums, layers, batch)

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        works(0.5 * len(batch))
        super().observe(state, sums, layer, batch)

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        found = super().result(state, shape)
        works(1.0 + 0.1 * float(np.max(found["histogram_n"].values)))
        return found


@dataclass(frozen=True)
class Trying(Experiment):
    """Two seconds, and three for every example it may use."""

    title, paper = "tries", Paper("clark2019", "§1")
    budget = 40

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        works(2.0 + 3.0 * (bench.limit or 0))
        return xr.Dataset({"x": ((), 1.0)})


@dataclass(frozen=True)
class Long(Experiment):
    """A minute in a hundred steps, whatever the corpus."""

    title, paper = "takes long", Paper("clark2019", "§1")

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        for step in range(100):
            works(0.6)
            bench.progress("steps", step + 1, 100)
        return xr.Dataset({"x": ((), 1.0)})


@dataclass(frozen=True)
class Slow(Observer):
    """Five seconds for every example and layer, whose rows it is shown."""

    title, paper = "is slow", Paper("clark2019", "§1")

    def start(self, shape: Shape) -> State:
        return State(mass=Moments(shape.layers, shape.heads))

    def reduce_rows(self, rows: AttentionRows, batch: Batch) -> Mapping[str, Tensor]:
        works(5.0 * len(batch))
        return {"mass": rows.weights.sum((-1, -2))}

    def observe(self, state: State, sums: Mapping[str, Tensor], layer: Layer, batch: Batch) -> None:
        state.moments("mass").add(sums["mass"].double(), (layer.layer,))

    def result(self, state: State, shape: Shape) -> xr.Dataset:
        return xr.Dataset({"mass": (("layer", "head"), state.moments("mass").mean.numpy())})


Watching.name, Trying.name, Long.name, Slow.name = (
    "watching",
    "trying",
    "long",
    "slow",
)  # not in the registry


@pytest.fixture
def planted_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes only while the planted analyses work."""
    NOW[0] = 0.0
    fake: Any = SimpleNamespace(perf_counter=lambda: NOW[0], process_time=lambda: NOW[0] / 2)
    monkeypatch.setattr(progress, "time", fake)
    monkeypatch.setattr(estimate, "time", fake)
    monkeypatch.setattr(estimate, "CPU_SECONDS", 400.0)  # the planted analyses take long


@pytest.fixture(scope="module")
def opened() -> HeadModel:
    module, tokenizer = random_model(words=["the", "cat", "saw", "a", "dog"], d_head=8)
    return HeadModel.open(module, tokenizer=tokenizer)


def texts(count: int) -> Corpus:
    words = ["the", "cat", "saw", "a", "dog"]
    return Corpus.from_texts(
        [" ".join(words[i % 5] for i in range(k % 9 + 2)) for k in range(count)], name="many"
    )


def test_what_is_said_is_what_then_happens(
    planted_time: None, opened: HeadModel, tmp_path: Path
) -> None:
    source, asked = Source(opened, texts(150)), [Watching(), Trying(), Long()]
    options = RunOptions(full=False)
    said = {cost.stage: cost for cost in estimate.estimate(source, asked, options, sample=8).stages}
    NOW[0] = 0.0
    was = progress.Clock()
    with was.running(), Run(source, asked, tmp_path, options) as run:
        run.atlas()
    assert (
        said["watching"].seconds
        == pytest.approx(150 * 0.5 * 2 + 1 + 15)
        == was.usage["watching"].seconds
    )
    assert said["trying"].seconds == pytest.approx(2 + 3 * 40) == was.usage["trying"].seconds
    assert said["long"].seconds == pytest.approx(60) == was.usage["long"].seconds
    assert (said["watching"].examples, said["trying"].examples) == (150, 40)
    assert said["watching"].cpu_seconds == pytest.approx(said["watching"].seconds / 2)


def test_a_calibration_is_short(
    planted_time: None, opened: HeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "CPU_SECONDS", 10.0)
    said = estimate.estimate(Source(opened, texts(600)), [Long()], RunOptions(full=True), sample=8)
    # Stopped after its share, half of the time: 5 s of processor time, 0.3 for each step.
    assert NOW[0] <= 0.6 * 18
    assert said.stages[-1].seconds == pytest.approx(60)


def test_what_no_time_is_left_for_is_estimated_from_the_pass_and_said(
    planted_time: None, opened: HeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "CPU_SECONDS", 2.0)
    source = Source(opened, texts(150))
    stages = estimate.estimate(source, [Slow(), Trying()], RunOptions(full=False)).stages
    said = {cost.stage: cost for cost in stages}
    assert said["slow"].seconds == pytest.approx(150 * 5 * 2)
    assert said["trying"].note == estimate.NOT_MEASURED
    assert said["trying"].cpu_high == pytest.approx(3 * said["trying"].cpu_seconds)
    assert NOW[0] <= 10 + 20 + 10 + 20 + 60  # one row twice, then one and two


def test_a_deep_model_is_cut_and_whole_again_afterwards(planted_time: None) -> None:
    words = ["the", "cat", "saw", "a", "dog"]
    module, tokenizer = random_model(words=words, d_head=8, layers=12)
    deep = HeadModel.open(module, tokenizer=tokenizer)
    before = deep.attention("the cat saw a dog", "L11H0")
    costs = estimate.estimate(Source(deep, texts(150)), [Watching()], RunOptions(full=True), 8)
    took = NOW[0]
    said = {cost.stage: cost for cost in costs.stages}["watching"]
    assert said.seconds == pytest.approx(150 * 0.5 * 12 + 16)
    assert said.cpu_low < said.cpu_seconds < said.cpu_high
    assert took < 8 * 0.5 * 12 * 2  # eight rows through the whole model, twice
    assert deep.config.num_hidden_layers == 12
    np.testing.assert_array_equal(deep.attention("the cat saw a dog", "L11H0"), before)


def test_the_range_of_a_sum_is_narrower_than_the_sum_of_ranges() -> None:
    stage = estimate.Cost("a", 1, 10.0, 10.0, 0, cpu_low=5.0, cpu_high=20.0)
    costs = estimate.Costs((stage, replace(stage, stage="b")), 1, 1)
    assert costs.cpu_seconds == 20
    assert costs.cpu_high == pytest.approx((20 + 200**0.5) * estimate.MACHINE_FACTOR)
    assert costs.cpu_low == pytest.approx((20 - 50**0.5) / estimate.MACHINE_FACTOR)
    assert 10 < costs.cpu_low < costs.cpu_high < 40


@pytest.mark.parametrize("name", ["induction", "retrieval"])
def test_the_smallest_work_is_a_share_of_the_whole(name: str) -> None:
    analysis = make_analysis(name)
    assert isinstance(analysis, Experiment)
    small, times = analysis.smallest()
    assert small.smallest()[1] == 1.0
    # Of induction: 25 sequences, 22 runs of 6 to confirm. Of retrieval: 256 and 512, six each.
    assert times == {"induction": (25 + 22 * 6) / 2, "retrieval": 18.0}[name]


def test_larger_work_is_several_times_the_smallest() -> None:
    analysis = make_analysis("induction")
    assert isinstance(analysis, Experiment)
    small, times = analysis.smallest()
    assert analysis.larger() == (replace(small, sequences=8), times / 4)
    assert make_analysis("retrieval").larger() is None


def test_a_sample_too_small_for_a_result_is_said(
    planted_time: None, opened: HeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Watching, state: State, shape: Shape) -> xr.Dataset:
        raise ParameterError("No sentence has what it looks for.")

    monkeypatch.setattr(Watching, "result", refused)
    found = estimate.estimate(
        Source(opened, texts(150)), [Watching()], RunOptions(full=True), sample=8
    ).stages[-1]
    assert found.seconds == pytest.approx(150 * 0.5 * 2)
    assert "without its result" in found.note


def test_what_cannot_be_done_is_said_with_its_reason(opened: HeadModel) -> None:
    attribution = make_analysis("attribution", {"length": 2})  # every input is longer
    costs = plan(opened, Corpus.from_texts(["the cat saw a dog"] * 4), [attribution], sample=2)
    said = {cost.stage: cost.note for cost in costs.stages}["attribution"]
    assert said.startswith(
        "cannot be done on this corpus: None of the 4 inputs has from 2 to 2 tokens"
    )


def test_budgets_and_limits_are_those_of_the_run(opened: HeadModel) -> None:
    costs = plan(opened, texts(200), ["surface", "distance"], sample=2)
    found = {cost.stage: cost.examples for cost in costs.stages}
    assert found == {"opening": 200, "model pass": 200, "surface": 200, "distance": 128}
    assert {
        cost.examples for cost in plan(opened, texts(200), ["distance"], limit=30, sample=2).stages
    } == {30}
    assert 0 < costs.seconds == pytest.approx(sum(cost.seconds for cost in costs.stages))
    assert costs.memory > 2**20
    assert list(costs.table().columns)[:3] == ["stage", "examples", "seconds"]
    assert costs.to_dict()["stages"][0]["stage"] == "opening"
    # The first round: the opening, and 64 of 200 examples of what shares the pass.
    by_stage = {cost.stage: cost.cpu_seconds for cost in costs.stages}
    first = by_stage["opening"] + 0.32 * (by_stage["model pass"] + by_stage["surface"])
    assert costs.first_cpu_seconds == pytest.approx(first)
    assert costs.to_dict()["first_cpu_seconds"] == costs.first_cpu_seconds
    with pytest.raises(ParameterError, match="option of plan"):
        plan(opened, texts(3), ["surface"], limits=3)  # type: ignore[call-arg]


def test_stages_within_a_stage_are_apart_or_part_of_it(planted_time: None) -> None:
    one = progress.Clock()
    with one.running():
        with progress.stage("outer"):
            works(1)
            with progress.stage("inner"):
                works(2)
            works(4)
        with progress.stage("whole", whole=True):
            works(8)
            with progress.stage("inner"):
                works(16)
    assert {name: spent.seconds for name, spent in one.usage.items()} == {
        "outer": 5,
        "inner": 2,
        "whole": 24,
    }
    with progress.stage("nobody asks"):
        works(1)


def test_the_largest_memory_of_a_stage_is_its_own() -> None:
    one = progress.Clock()
    with one.running():
        with progress.stage("large", memory=True):
            np.ones(200 * 2**20, dtype=np.uint8).sum()
        with progress.stage("small", memory=True):
            pass
    assert one.usage["large"].memory - one.usage["small"].memory > 150 * 2**20


def test_observers_of_the_registry_have_a_clock_each(opened: HeadModel, tmp_path: Path) -> None:
    one = progress.Clock()
    with (
        one.running(),
        Run(
            Source(opened, texts(3)),
            [make_analysis("surface"), make_analysis("gradient")],
            tmp_path,
        ) as run,
    ):
        run.atlas()
    assert {"model pass", "surface", "gradient"} <= set(one.usage)


def test_every_batch_and_every_result_is_told(opened: HeadModel, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    doing: list[str] = []
    callbacks = RunCallbacks(progress=lambda *what: told.append(what), stage=doing.append)
    asked = [make_analysis("surface"), make_analysis("roles")]
    with Run(
        Source(opened, texts(20)),
        asked,
        tmp_path,
        RunOptions(full=True, shard_size=10, batch_tokens=40),
        callbacks,
    ) as run:
        run.atlas()
    examples = [done for what, done, total in told if what == "examples" and total == 20]
    assert examples == sorted(examples)
    assert examples[-1] == 20
    assert len(set(examples)) > 4  # more often than after each of the two shards
    assert [done for what, done, _ in told if what == "results"][-3:] == [0, 1, 2]
    models = [done for what, done, _ in told if what == "random models"]
    assert models
    assert models == list(range(len(models)))
    assert {"model pass", "surface", "roles", "random models"} <= set(doing)


def test_bars_in_python(opened: HeadModel, capsys: pytest.CaptureFixture[str]) -> None:
    make_atlas(opened, texts(3), ["surface"], progress=True)
    assert "examples" in capsys.readouterr().err
    seen: list[str] = []
    make_atlas(opened, texts(3), ["surface"], progress=lambda what, *_: seen.append(what))
    assert {"examples", "results"} <= set(seen)


@pytest.mark.parametrize(
    ("takes", "within"),
    [
        (lambda n: 2 + 3 * n, 1.001),  # nearly all for every example
        (lambda n: 10 + 0.2 * n, 1.3),
        (lambda n: 5 + 2 * n**0.5, 1.2),
        (lambda n: 3 + 4 * np.log(n), 1.4),  # probing on 12, 50 and 200 sentences: 12, 17, 21 s
        (lambda n: 7.0, 1.001),
    ],
)
def test_the_time_of_fits_lies_between_a_line_and_a_power(
    takes: Callable[[int], float], within: float
) -> None:
    few, more = (progress.Usage(takes(count), takes(count) / 2, 0) for count in (12, 50))
    said = extrapolation.extrapolate_fit(extrapolation.CostLine(12, 50, few, more), 200)
    assert takes(200) / within <= said.seconds <= takes(200) * within
    assert said.cpu_seconds == pytest.approx(said.seconds / 2)


def test_noise_makes_no_time_that_falls() -> None:
    line = extrapolation.CostLine(12, 50, progress.Usage(9.0, 0.0, 0), progress.Usage(8.0, 0.0, 0))
    assert extrapolation.extrapolate_fit(line, 200) == progress.Usage(8.0, 0.0, 0)


def test_budgets_of_a_thousand_heads(
    opened: HeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = replace(
        plan_module.model_shape(opened, EncodedCorpus(texts(3), opened.encoder).scan),
        layers=36,
        heads=32,
    )
    names = {
        "patterns": 30,
        "distance": 30,
        "tree_probe": 30,
        "probing": 375,
        "attribution": 4,
        "surface": None,
    }
    assert {name: make_analysis(name).max_examples(large) for name in names} == names
    sizes = []
    for work, size in ((1.0, None), (8.0, None), (8.0, 7)):
        monkeypatch.setattr(plan_module, "relative_cost", lambda _, work=work: work)
        options = RunOptions(full=True, shard_size=size)
        with Run(
            Source(opened, texts(3)),
            [make_analysis("surface")],
            tmp_path / str(len(sizes)),
            options,
        ) as run:
            sizes.append(run.plan.shard_size)
    assert sizes == [64, 32, 7]


def test_a_large_vocabulary_is_part_of_the_cost(opened: HeadModel) -> None:
    shape = replace(
        plan_module.model_shape(opened, EncodedCorpus(texts(3), opened.encoder).scan),
        layers=18,
        heads=4,
        hidden=640,
        extras={"vocabulary": 262_144},
    )
    without = replace(shape, extras={})
    # 18 layers of about 12 × 640² weights, and 262,144 × 640 of the output matrix.
    assert relative_cost(shape) == relative_cost(without) == pytest.approx(18 * 640**2 / 7_077_888)
    assert relative_cost(shape, logits=True) == pytest.approx(3.017, abs=1e-3)
    assert relative_cost(without, logits=True) == relative_cost(without)
    suppression = make_analysis("copy_suppression")
    assert suppression.max_examples(shape) == 30
    assert suppression.max_examples(without) == 61
    assert make_analysis("patterns").max_examples(shape) == 38  # no logits
    induction = make_analysis("induction")
    assert induction.planned(shape).parameters["confirm"] == 4
    assert induction.planned(without).parameters["confirm"] == 6
    chosen = replace(induction, confirm=9)
    assert chosen.planned(shape) == chosen


def shape_of(**sizes: Any) -> Shape:
    return Shape(**{"causal": True, "max_length": 512, "token_types": ()} | sizes)


def test_attribution_reads_fewer_inputs_of_what_costs_more() -> None:
    attribution = make_analysis("attribution")
    bert = shape_of(layers=12, heads=12, d_head=64, hidden=768, causal=False)
    assert attribution.max_examples(bert) == 12
    assert attribution.max_examples(replace(bert, layers=6, hidden=384, d_head=32)) == 12
    # The same layers before whose scores comes a norm, or rotary positions: every token has its own
    # Jacobians of queries, keys and values.
    assert attribution.max_examples(replace(bert, causal=True)) == 4
    rotary = replace(bert, layers=8, extras={"rotary": True})
    assert attribution.max_examples(rotary) == 4
    assert attribution.max_examples(replace(rotary, extras={"rotary": False})) == 12
    # Each dimension of each token is moved by itself.
    small = replace(bert, layers=2, hidden=384, d_head=32)
    assert attribution.max_examples(small) == 12
    # 2 × (4 × 24² × 12 × 384² + 2 × 24² × 384² × 1,152) = 400e9; BERT has 228e9.
    assert attribution.max_examples(replace(small, extras={"forms_weights": True})) == 6
    # Layers of twice the weights cost about twice as much.
    assert attribution.max_examples(replace(bert, extras={"layer_weights": 24 * 768**2})) == 6
    # A small Gemma 3, whose heads are wide; SmolLM2; stories15M.
    gemma = shape_of(
        layers=18,
        heads=4,
        d_head=256,
        hidden=640,
        kv_groups=(0, 0, 0, 0),
        extras={"layer_weights": 5_570_560, "rotary": True},
    )
    # 4 × 24² × 5,570,560 through a layer, twice 24 × 640² × (4 + 2 × 1) × 256 within it.
    expected = 18 * (4 * 24**2 * 5_570_560 + 2 * 24 * 640**2 * 6 * 256)
    assert work_per_input(gemma) == expected
    assert expected / work_per_input(bert) == pytest.approx(3.40, abs=0.01)
    assert attribution.max_examples(gemma) == 4
    smollm2 = shape_of(
        layers=30,
        heads=9,
        d_head=64,
        hidden=576,
        kv_groups=(0, 0, 0, 1, 1, 1, 2, 2, 2),
        extras={"layer_weights": 3_538_944, "rotary": True},
    )
    assert attribution.max_examples(smollm2) == 4
    stories = shape_of(layers=6, heads=6, d_head=48, hidden=288, extras={"layer_weights": 995_328})
    assert attribution.max_examples(stories) == 12


def test_the_shape_knows_the_weights_of_a_layer(opened: HeadModel) -> None:
    scan = EncodedCorpus(texts(3), opened.encoder).scan
    extras = plan_module.model_shape(opened, scan).extras
    layer = opened.module.bert.encoder.layer[0]
    matrices = [
        layer.attention.self.query,
        layer.attention.self.key,
        layer.attention.self.value,
        layer.attention.output.dense,
        layer.intermediate.dense,
        layer.output.dense,
    ]
    assert extras["layer_weights"] == sum(matrix.weight.numel() for matrix in matrices)
    assert not extras["rotary"]
    assert not extras["forms_weights"]
    config = MegatronBertConfig(
        vocab_size=opened.module.config.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    with HeadModel.open(MegatronBertModel(config).eval(), tokenizer=opened.tokenizer) as model:
        assert plan_module.model_shape(model, scan).extras["forms_weights"]
    vocabulary = make_vocabulary(["a", "b"], None, {}, {}, True)
    llama = blank_llama(vocabulary, Size(2, 2, 16, 32, 32), seed=0)
    with HeadModel.open(llama, tokenizer=vocabulary.tokenizer) as model:
        assert plan_module.model_shape(model, scan).extras["rotary"]


def test_the_vocabulary_is_that_of_the_head(opened: HeadModel) -> None:
    module, tokenizer = random_model(causal=True)
    with HeadModel.open(module, tokenizer=tokenizer) as model:
        scan = EncodedCorpus(texts(3), model.encoder).scan
        assert model.has_lm_head
        size = plan_module.model_shape(model, scan).extras["vocabulary"]
        assert size == module.get_output_embeddings().weight.shape[0]
        body = HeadModel.open(module.base_model, tokenizer=tokenizer)
        assert plan_module.model_shape(body, scan).extras["vocabulary"] == 0
