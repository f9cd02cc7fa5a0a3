"""Removing heads: written folders open in plain transformers and give what the model gives with the
heads disabled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from headwise.core.errors import ModelError, OutputError, ParameterError
from headwise.experiments.ablation import (
    AblationCondition,
    PruneOptions,
    ScoredClassifier,
    ScoredLanguageModel,
    evaluate,
    prune,
)
from headwise.experiments.finetuning import FinetuneOptions, finetune
from headwise.models import HeadModel
from headwise.models.loading import quiet
from headwise.run.job import Job
from headwise.testing.models import random_model
from headwise.testing.toy import WORDS, toy_folder, toy_task
from headwise.text import Corpus, open_corpus

CPU = PruneOptions(device="cpu", mode="remove", limit=4)
AUTO = PruneOptions(device="cpu", limit=4)


@pytest.fixture(autouse=True)
def timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timed pass instead of the shortest of five."""
    monkeypatch.setattr("headwise.experiments.ablation.pruning_eval.REPEATS", 1)


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.25,
}


def decoder(folder: Path, kind: str = "llama", groups: int = 4) -> Path:
    _, tokenizer = random_model(causal=True, words=WORDS)
    torch.manual_seed(0)
    common = {"vocab_size": len(tokenizer), **SIZES}
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**common, num_key_value_heads=groups, head_dim=8))
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**common, num_key_value_heads=groups, head_dim=8))
    else:
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**common))
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def plain_logits(folder: Path) -> torch.Tensor:
    ids = torch.tensor([[3, 5, 7, 9, 4, 6]])
    with torch.no_grad(), quiet():
        return AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits


@pytest.mark.parametrize(
    ("kind", "groups", "heads"),
    [
        (
            "llama",
            4,
            [(0, 1), (0, 2), (1, 0), (1, 3), (2, 2), (2, 3)],
        ),  # the same number in every layer
        (
            "llama",
            2,
            [(0, 1), (0, 2), (1, 0), (1, 3), (2, 0), (2, 2)],
        ),  # and in every key/value group
        ("llama", 2, [(0, 0), (0, 1), (1, 2), (1, 3), (2, 0), (2, 1)]),  # or whole groups
        ("qwen3", 4, [(0, 1), (1, 0), (2, 3)]),  # three heads of 8 in a width of 32
    ],
)
def test_removed_heads_are_gone_and_the_rest_is_as_with_them_disabled(
    tmp_path: Path, kind: str, groups: int, heads: list[tuple[int, int]]
) -> None:
    source = decoder(tmp_path / "model", kind, groups)
    found = prune(source, heads, tmp_path / "out", options=CPU)
    assert found.difference <= 1e-5
    assert found.table["after"]["parameters"] < found.table["before"]["parameters"]
    model = HeadModel.open(source)
    batch = model.batch("the film was very good")
    ids = torch.tensor([[3, 5, 7, 9, 4, 6]])
    whole = plain_logits(source)
    with HeadModel.open(tmp_path / "out") as again:
        assert again.heads == 4 - len(heads) // 3
        expected = model.forward(
            batch, interventions=dict.fromkeys(heads, "zero"), logits=True
        ).logits
        assert (again.forward(batch, logits=True).logits - expected).abs().max() <= 1e-5
    assert plain_logits(tmp_path / "out").shape == whole.shape == (1, 6, model.config.vocab_size)
    assert not torch.allclose(plain_logits(tmp_path / "out"), whole, atol=1e-2)
    assert ids.shape == (1, 6)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "neox"])
def test_classes_that_cannot_have_fewer_heads_say_so_and_are_zeroed(
    tmp_path: Path, kind: str
) -> None:
    source = (
        decoder(tmp_path / "model", "neox")
        if kind == "neox"
        else toy_folder(tmp_path / "model", causal=kind == "gpt2")
    )
    heads = [(0, 1), (1, 0), (2, 3)]
    with pytest.raises(
        ModelError, match=r"cannot have fewer of them; zero these heads instead"
    ):  # and not that as many must go from every layer
        prune(source, heads[:1], tmp_path / "out", options=CPU)
    with pytest.raises(ModelError, match="mode zero") as raised:
        prune(source, heads, tmp_path / "out", options=CPU)
    assert raised.value.option == "zero"  # the command line adds its flag
    assert not (tmp_path / "out").exists()
    found = prune(source, heads, tmp_path / "out", options=AUTO)
    assert found.mode == "zero"
    assert "has heads of size hidden/number only" in found.note
    assert found.difference <= 1e-5
    assert found.absolute <= 1e-5
    model, again = HeadModel.open(source), HeadModel.open(tmp_path / "out")
    batch = model.batch("the film was very good")
    expected = model.forward(batch, interventions=dict.fromkeys(heads, "zero"), logits=True).logits
    assert (again.forward(batch, logits=True).logits - expected).abs().max() <= 1e-5
    assert (model.forward(batch, logits=True).logits - expected).abs().max() > 1e-2


def test_scores_before_and_after_stand_in_one_table(tmp_path: Path) -> None:
    task = toy_task(32)
    source = toy_folder(tmp_path / "bert")
    [record] = finetune(
        source,
        task,
        tmp_path / "runs",
        options=FinetuneOptions(
            seeds=1,
            epochs=2,
            learning_rate=3e-3,
            device="cpu",
            pooling="top_heads",
            heads=["L2H1", "L1H0"],
        ),
    )
    folder = tmp_path / "runs" / record.folder / "model"

    def score(where: Path) -> dict[str, float]:
        subject = ScoredClassifier.open(where, task, device="cpu")
        return subject.score(evaluate(subject, []).baseline)

    found = prune(
        folder,
        [(2, 0), (2, 3)],
        tmp_path / "out",
        mode="zero",
        score=score,
        device="cpu",
    )
    assert (
        found.table["before"]["accuracy"]
        == record.metrics["accuracy"]
        == found.table["after"]["accuracy"]
    )  # nobody reads those two
    changed = prune(
        folder,
        [(2, 1), (1, 0)],
        tmp_path / "read",
        mode="zero",
        score=score,
        device="cpu",
    )
    assert changed.table["after"]["accuracy"] != record.metrics["accuracy"]


@pytest.mark.parametrize("causal", [True, False])
def test_without_a_task_a_language_model_is_scored_by_its_loss(
    tmp_path: Path, causal: bool
) -> None:
    """Before and after are the whole model's loss and the one with the same heads disabled, as
    `ablate` has them."""
    source = decoder(tmp_path / "model") if causal else toy_folder(tmp_path / "model")
    heads = [(0, 1), (1, 0), (2, 3)]
    found = prune(source, heads, tmp_path / "out", device="cpu", mode="zero", limit=12)
    with HeadModel.open(source, device="cpu") as model:
        text = open_corpus(None, tokenizer=model.tokenizer, prose=causal)
        subject = ScoredLanguageModel(model, text, limit=12)
        ran = evaluate(subject, [AblationCondition("gone", tuple(heads))], "zero")
        whole, without = (subject.score(values)["loss"] for values in (ran.baseline, ran.values[0]))
    before, after = found.table["before"], found.table["after"]
    assert before["loss"] == pytest.approx(whole, rel=1e-5)
    assert after["loss"] == pytest.approx(without, rel=1e-5)
    assert abs(whole - without) > 1e-3
    assert before["seconds"] > 0 < after["seconds"]
    assert f"on {subject.examples} texts of the built-in corpus" in found.about
    named = Corpus.from_texts(["the film was very good", "a bad film"], name="mine")
    other = prune(source, heads, tmp_path / "other", device="cpu", mode="zero", corpus=named)
    assert "on 2 texts of 'mine'" in other.about
    assert other.table["before"]["loss"] != pytest.approx(whole, rel=1e-5)


def test_a_model_without_a_language_model_head_has_speed_but_no_score(tmp_path: Path) -> None:
    module, tokenizer = random_model(words=WORDS)
    with quiet():
        getattr(module, module.base_model_prefix, module).save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    found = prune(tmp_path / "plain", [(0, 0)], tmp_path / "out", options=AUTO)
    assert set(found.table["before"]) == set(found.table["after"]) == {"parameters", "seconds"}
    assert "has no language-modelling head" in found.about


def test_what_is_refused(tmp_path: Path) -> None:
    source = decoder(tmp_path / "model", groups=2)
    with pytest.raises(ModelError, match="some layer keeps one in each place"):
        prune(source, [(0, 1)], tmp_path / "out", options=CPU)
    with pytest.raises(ModelError, match=r"does not take 3 heads a layer"):
        prune(decoder(tmp_path / "plain"), [(0, 0), (1, 0), (2, 0)], tmp_path / "out", options=CPU)
    with pytest.raises(ParameterError, match="no head L3H0"):
        prune(source, [(3, 0)], tmp_path / "out", options=CPU)
    with pytest.raises(ParameterError, match="No head is named"):
        prune(source, [], tmp_path / "out", options=CPU)
    with pytest.raises(OutputError, match="overwrite=True"):
        prune(source, [(0, 0)], tmp_path / "plain", options=CPU)
    with pytest.raises(
        OutputError, match="is read by this command"
    ):  # before and after could not be told apart
        prune(source, [(0, 0)], source, device="cpu", mode="zero", overwrite=True)
    assert plain_logits(source).isfinite().all()


@pytest.mark.parametrize(
    ("groups", "heads", "left"),
    [
        (4, [(0, 1), (0, 2), (0, 3), (1, 0), (2, 2), (2, 3)], 3),  # one, three and two heads stay
        (
            4,
            [(0, h) for h in range(4)] + [(1, 0), (1, 1), (2, 0), (2, 3)],
            2,
        ),  # a layer without any
        (
            2,
            [(0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 2)],
            4,
        ),  # a whole group here, one of each group there
    ],
)
def test_layers_that_lose_unlike_numbers_keep_zeros(
    tmp_path: Path, groups: int, heads: list[tuple[int, int]], left: int
) -> None:
    source = decoder(tmp_path / "model", "qwen3", groups)
    if left == 4:  # two of each group stay in some layer: nothing can get smaller
        found = prune(source, heads, tmp_path / "out", options=AUTO)
        assert found.mode == "zero"
    else:
        found = prune(source, heads, tmp_path / "out", options=AUTO)
        assert found.mode == "remove"
        assert f"{3 * left - (12 - len(heads))} heads of smaller layers stay as zeros" in found.note
        assert found.table["after"]["parameters"] < found.table["before"]["parameters"]
    model, again = HeadModel.open(source), HeadModel.open(tmp_path / "out")
    assert again.heads == left
    batch = model.batch("the film was very good")
    expected = model.forward(batch, interventions=dict.fromkeys(heads, "zero"), logits=True).logits
    assert (again.forward(batch, logits=True).logits - expected).abs().max() <= 1e-5
    assert plain_logits(tmp_path / "out").isfinite().all()


@pytest.mark.real
def test_half_of_stories15m_is_removed(stories: Path, tmp_path: Path) -> None:
    heads = [
        (layer, head) for layer in range(6) for head in ((0, 2, 4) if layer % 2 else (1, 3, 5))
    ]
    found = prune(stories, heads, tmp_path / "out", options=CPU)
    assert found.difference <= 1e-5
    model, again = (
        HeadModel.open(folder, dtype=torch.float64, device="cpu")
        for folder in (stories, tmp_path / "out")
    )
    assert again.heads == 3
    batch = model.batch("Once upon a time there was a little girl.")
    expected = model.forward(batch, interventions=dict.fromkeys(heads, "zero"), logits=True).logits
    assert (
        again.forward(batch, logits=True).logits - expected
    ).abs().max() <= 1e-10  # without rounding nothing differs


def test_overwrite_deletes_nothing_that_headwise_did_not_write(tmp_path: Path) -> None:
    source = decoder(tmp_path / "model")
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("years of work")
    for place, why in (
        (thesis, "did not write"),
        (tmp_path, "still needed"),
    ):  # the model lies below the second
        with pytest.raises(OutputError, match=why):
            prune(source, [(0, 0)], place, options=CPU, overwrite=True)
    prune(source, [(0, 0)], tmp_path / "out", options=CPU, mode="zero")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    prune(source, [(0, 1)], tmp_path / "out", options=CPU, mode="zero", overwrite=True)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert (thesis / "chapter.tex").read_text() == "years of work"
    assert (source / "config.json").exists()


def test_a_link_stays_and_an_interrupted_call_ends_well_when_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = decoder(tmp_path / "model")
    target = tmp_path / "disk"
    target.mkdir()
    link = tmp_path / "out"
    link.symlink_to(target)
    prune(source, [(0, 0)], link, options=CPU, mode="zero")
    assert link.is_symlink()
    assert (target / "config.json").exists()
    with pytest.raises(OutputError) as raised:
        prune(source, [(0, 0)], link, options=CPU, mode="zero")
    assert raised.value.option == "overwrite"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        # The folder is written, its speed not yet measured.
        patched.setattr("headwise.experiments.ablation.pruning.time_both", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prune(source, [(0, 1)], tmp_path / "second", options=CPU, mode="zero")
    assert (tmp_path / "second" / "config.json").exists()
    result = prune(source, [(0, 1)], tmp_path / "second", options=CPU, mode="zero")
    assert result.heads == ((0, 1),)
    assert not list(tmp_path.glob(".*.run"))


def test_one_process_at_a_time_writes_a_folder(tmp_path: Path) -> None:
    source = decoder(tmp_path / "model")
    with (
        Job.for_folder(tmp_path / "out"),
        pytest.raises(OutputError, match="out"),
    ):
        prune(source, [(0, 0)], tmp_path / "out", options=CPU, mode="zero")
