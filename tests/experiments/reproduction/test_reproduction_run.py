"""Running a reproduction: printed numbers beside ours, missing data named, finished entries stored,
claims judged."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from headwise.core.errors import InputError, OutputError, ParameterError
from headwise.experiments.reproduction import (
    Entry,
    EntryResult,
    Evidence,
    NotRunError,
    ReportFigure,
    ReportRow,
    ReportTable,
    Reproduction,
    ReproductionContext,
    ReproductionOptions,
    papers,
    reproduce,
    reproduction_of,
    run,
)
from headwise.experiments.reproduction.data import DataFolder
from headwise.experiments.reproduction.estimates import Outcome
from headwise.experiments.reproduction.printed import printed_paper
from headwise.experiments.reproduction.shared import size_text
from headwise.models import HeadModel
from headwise.page.reproduction import render_reproduction
from headwise.testing import planted_model
from headwise.testing.toy import toy_task
from headwise.text import Corpus, Example
from headwise.text.demo import builtin_corpus

WORDS = ["the", "a", "cat", "dog", "saw", "sleeps", ".", ","]
SEEDS = {
    "clark2019": "003",
    "kovaleva2019": "001",
    "pascual2021": "000",
    "pande2021": "002",
    "jo2020": "004",
}
ReplaceEntries = Callable[..., None]
TRUE = Outcome.TRUE


@pytest.fixture(scope="module")
def model() -> HeadModel:
    planted = planted_model([["previous", "next", "uniform"], ["sep", "cls", "self"]], words=WORDS)
    return HeadModel.open(planted.model, tokenizer=planted.tokenizer)


@pytest.fixture
def replace_entries(monkeypatch: pytest.MonkeyPatch) -> ReplaceEntries:
    """Put entries in the place of Clark et al.'s; their printed numbers are the paper's."""

    def replace(*entries: Entry) -> None:
        monkeypatch.setattr(
            run, "reproduction_of", lambda key: Reproduction(key, ["BERT-base."], entries)
        )

    return replace


def entry_with_figure(context: ReproductionContext) -> EntryResult:
    figure = Figure()
    figure.subplots().plot([0, 1])
    return EntryResult(
        [
            ReportRow("cls-entropy", 3.5, 3.4, 3.6, note="L1"),
            ReportRow("more", 0.25, label="one of ours"),
        ],
        [ReportTable("Layers", ["layer", "<b>"], [["L0", 0.5]])],
        [ReportFigure("line", "A line", "It rises.", figure)],
        {"cls-last": Evidence("3.5 nats", TRUE, {"higher": TRUE}, {"segments": 1000})},
        ["Another | corpus."],
        {"text": "two sentences"},
    )


def test_printed_stands_beside_ours_with_the_difference(
    model: HeadModel, replace_entries: ReplaceEntries
) -> None:
    replace_entries(Entry("fig4", "entropy", entry_with_figure))
    report = reproduce("clark2019", model)
    text = report.markdown()
    assert "| 3.89 nats | 3.50 nats (3.40 to 3.60) | −0.390 (−0.490 to −0.290) | L1 |" in text
    assert "| one of ours | – | 0.250 | – |" in text
    assert "Another | corpus." in text  # in prose, not in a table
    assert "(figures/clark2019-fig4-line.svg)" in text
    assert {Path(name).suffix for name in report.files} == {".svg", ".pdf", ".png"}
    claims = {claim["key"]: claim for claim in report.facts["claims"]}
    assert claims["cls-last"]["verdict"] == "as printed"
    assert claims["broad-low"]["verdict"] == "cannot be tried"
    assert report.facts["counts"]["claims"] == {
        "as printed": 1,
        "in a weaker form": 0,
        "does not hold": 0,
        "undecided": 0,
        "cannot be tried": 2,
    }
    page = render_reproduction(json.loads(report.to_json()), report.files)
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count("data:image/svg+xml") == 1
    assert "3.50 nats (3.40 to 3.60)" in page


def test_a_missing_data_set_is_named_with_where_to_get_it(
    model: HeadModel, replace_entries: ReplaceEntries
) -> None:
    replace_entries(
        Entry("fig4", "entropy", entry_with_figure, needs=("ewt-dev",)),
        Entry("fig2", "types", entry_not_run),
    )
    report = reproduce("clark2019", model)
    first, second = report.facts["entries"]
    assert first["status"] == "not run"
    assert first["reason"].startswith(
        "needs UD English EWT, dev, from https://universaldependencies.org"
    )
    assert first["rows"][0]["printed"] == 3.89  # what is printed is shown all the same
    assert second["reason"] == "the model has no such thing"
    for claim in report.facts["claims"]:
        assert claim["verdict"] == "cannot be tried"
        assert claim["why"]
    assert "**Not run**: needs UD English EWT" in report.markdown()


def entry_not_run(context: ReproductionContext) -> EntryResult:
    raise NotRunError("the model has no such thing")


def test_a_failed_entry_is_named_and_the_others_are_computed(
    model: HeadModel, replace_entries: ReplaceEntries
) -> None:
    def broken(context: ReproductionContext) -> EntryResult:
        raise ZeroDivisionError("no rows")

    replace_entries(Entry("fig2", "types", broken), Entry("fig4", "entropy", entry_with_figure))
    report = reproduce("clark2019", model)
    assert [entry["status"] for entry in report.facts["entries"]] == ["failed", "done"]
    assert [failure.what for failure in report.failures] == ["fig2 of clark2019"]


def test_an_interrupted_call_resumes(
    model: HeadModel, replace_entries: ReplaceEntries, tmp_path: Path
) -> None:
    calls: Counter[str] = Counter()

    def first(context: ReproductionContext) -> EntryResult:
        calls["first"] += 1
        return entry_with_figure(context)

    def second(context: ReproductionContext) -> EntryResult:
        calls["second"] += 1
        if calls["second"] == 1:
            raise KeyboardInterrupt
        return EntryResult()

    replace_entries(Entry("fig4", "entropy", first), Entry("fig2", "types", second))
    with pytest.raises(KeyboardInterrupt):
        reproduce("clark2019", model, folder=tmp_path)
    report = reproduce("clark2019", model, folder=tmp_path)
    assert calls == {"first": 1, "second": 2}
    assert report.to_json() == reproduce("clark2019", model).to_json()
    with pytest.raises(OutputError, match="differs in seed"):
        reproduce("clark2019", model, options=ReproductionOptions(seed=1), folder=tmp_path)


def test_finished_runs_are_stored_and_not_repeated(
    model: HeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    original_run = ReproductionContext._run
    monkeypatch.setattr(
        ReproductionContext,
        "_run",
        lambda *arguments: runs.append(arguments[3].name) or original_run(*arguments),
    )
    options = ReproductionOptions(data=write_articles(tmp_path), only=("text3.1", "fig2", "fig4"))
    report = reproduce("clark2019", model, options=options)
    assert runs == ["surface"]  # three entries, one pass
    rows = {row["key"]: row for entry in report.facts["entries"] for row in entry["rows"]}
    assert (rows["previous"]["ours"], rows["next"]["ours"]) == (1, 1)  # as planted
    assert rows["previous"]["note"].startswith("L0H0")
    assert rows["next"]["note"].startswith("L0H1")
    claims = {claim["key"]: claim for claim in report.facts["claims"]}
    assert claims["earlier"]["ours"] == "2 of 2 heads in the first half of the layers"
    assert "broadest L0H2" in claims["broad-low"]["ours"]  # the uniform head
    # So few segments decide nothing, however clear the numbers are.
    assert claims["broad-low"]["verdict"] == "undecided"
    assert "segments, the rule needs 100" in claims["broad-low"]["why"]


def write_articles(folder: Path) -> Path:
    deep_folder = folder / "data" / "deep"
    deep_folder.mkdir(parents=True)
    paragraphs = [
        "the cat saw a dog .",
        "a dog sleeps .",
        "the dog saw the cat ,",
        "the cat sleeps .",
    ]
    (deep_folder / "articles.jsonl").write_text(
        json.dumps({"title": "a", "paragraphs": paragraphs}) + "\n"
    )
    return folder / "data"


def test_data_sets_are_found_as_their_owners_ship_them(tmp_path: Path) -> None:
    for name in ("UD_English-EWT/en_ewt-ud-dev.conllu", "glue_data/MRPC/msr_paraphrase_train.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "SentEval/data/probing").mkdir(parents=True)
    (tmp_path / "SentEval/data/probing/tree_depth.txt").write_text("")
    (tmp_path / "glue_data/QNLI").mkdir()
    (tmp_path / "glue_data/QNLI/dev.tsv").write_text("")
    data = DataFolder(tmp_path)
    assert data.path("ewt-dev").name == "en_ewt-ud-dev.conllu"
    assert data.path("senteval-tree_depth").parent.name == "probing"
    assert data.find("glue-MRPC") is None  # without its test part it cannot be scored
    (tmp_path / "glue_data/MRPC/msr_paraphrase_test.txt").write_text("")
    assert DataFolder(tmp_path).path("glue-MRPC").name == "MRPC"
    assert data.find("glue-QNLI") is None
    assert data.path("glue-QNLI-dev").name == "QNLI"
    with pytest.raises(
        NotRunError, match=r"needs GLUE's RTE, train and dev, from https://gluebenchmark\.com/tasks"
    ):
        data.path("glue-RTE")
    with pytest.raises(InputError, match="There is no folder"):
        DataFolder(tmp_path / "nowhere")


def test_data_are_named_as_someone_states_them(tmp_path: Path) -> None:
    probing = tmp_path / "data" / "probing"
    probing.mkdir(parents=True)
    for name in ("tree_depth.txt.gz", "odd_man_out.txt", "word_content.txt"):
        (probing / name).write_text("")
    data = DataFolder(tmp_path / "data")
    assert data.source("senteval-tree_depth") == ""
    # A file of the name above the data, but outside the data folder, says nothing about them.
    (tmp_path / "sources.json").write_text('{"*": "other data"}')
    assert data.source("senteval-tree_depth") == ""
    (tmp_path / "data" / "sources.json").write_text('{"*": "SentEval"}')
    assert data.source("senteval-tree_depth") == "SentEval"
    stated = {"*": "X-Probe", "odd_man_out.txt": "Wikipedia", "tree_depth": "dependency depth"}
    (probing / "sources.json").write_text(json.dumps(stated))
    assert data.source("senteval-tree_depth") == "dependency depth"
    assert data.source("senteval-odd_man_out") == "Wikipedia"
    assert data.source("senteval-word_content") == "X-Probe"
    elsewhere = tmp_path / "mine.json"
    elsewhere.write_text('{"tree_*": "mine"}')
    data = DataFolder(tmp_path / "data", elsewhere)
    assert data.source("senteval-tree_depth") == "mine"
    assert data.source("senteval-odd_man_out") == ""
    for content in ("[1]", '{"a": 1}', "{"):
        elsewhere.write_text(content)
        with pytest.raises(InputError, match=r"mine\.json"):
            DataFolder(tmp_path / "data", elsewhere)


@pytest.mark.real
def test_the_shared_data_are_found(shared: Path) -> None:
    data = DataFolder(shared / "data")
    names = (
        "wikipedia",
        "ewt-dev",
        "ewt-train",
        "ontogum",
        "framenet",
        "glove",
        "jo2020",
        "glue-MRPC",
        "xnli-en",
    )
    assert all(data.find(name) is not None for name in names)
    assert data.find("glue-QNLI") is None


def test_a_missing_fine_tuned_model_is_rejected_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no folder .* with a model of MRPC"):
        ReproductionOptions(finetuned={"MRPC": tmp_path / "nowhere"})


def test_an_open_model_is_not_fine_tuned(model: HeadModel, tmp_path: Path) -> None:
    context = ReproductionContext(model, model, ReproductionOptions(), None, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(
        NotRunError, match="an open model cannot be fine-tuned; pass its folder or name"
    ):
        context.train(toy_task(8), "jo")


def test_unknown_names_are_rejected(model: HeadModel) -> None:
    with pytest.raises(ParameterError, match="Did you mean 'clark2019'"):
        reproduce("clarke2019", model)
    with pytest.raises(ParameterError, match="table or figure of clark2019 'table9'"):
        reproduce("clark2019", model, options=ReproductionOptions(only=("table9",)))
    with pytest.raises(ParameterError, match="`variant` must be one of paper, released"):
        ReproductionOptions(variant="mine")


@pytest.mark.parametrize("key", papers())
def test_entries_and_printed_numbers_fit(key: str) -> None:
    printed = printed_paper(key)
    entries = [entry.key for entry in reproduction_of(key).entries]
    assert entries == [name for name in printed.entries if name in entries]  # the paper's order
    assert {claim.entry for claim in printed.claims} <= set(printed.entries)
    for caption in printed.entries.values():
        assert len({value.key for value in caption.values}) == len(caption.values)
    keys = [claim.key for claim in printed.claims]
    assert len(set(keys)) == len(keys)


NUMBERED = {  # as the papers have them
    "clark2019": ["fig1", "fig2", "fig3", "fig4", "fig5", "table1", "table2", "table3", "fig6"],
    "kovaleva2019": [
        "fig1",
        "fig2",
        "fig3",
        "fig4",
        "table1",
        "fig5",
        "fig6",
        "fig7",
        "fig8",
        "fig9",
    ],
}


@pytest.mark.parametrize("key", NUMBERED)
def test_every_numbered_table_and_figure_has_an_entry(key: str) -> None:
    entries = [entry.key for entry in reproduction_of(key).entries]
    assert [name for name in entries if re.fullmatch(r"(fig|table)\d+", name)] == NUMBERED[key]
    assert set(entries) == set(printed_paper(key).entries)


@pytest.mark.real
@pytest.mark.parametrize("key", NUMBERED)
def test_the_numbers_are_those_of_the_paper(key: str, shared: Path) -> None:
    (file,) = (shared / "seeds").glob(f"{SEEDS[key]}_*.txt")
    captions = re.findall(r"^(Figure|Table) (\d+):", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(
        {f"{'fig' if kind == 'Figure' else 'table'}{number}" for kind, number in captions}
    ) == sorted(NUMBERED[key])


@pytest.mark.real
@pytest.mark.parametrize("key", papers())
def test_printed_numbers_and_claims_stand_in_the_paper(key: str, shared: Path) -> None:
    (file,) = (shared / "seeds").glob(f"{SEEDS[key]}_*.txt")
    text = without_layout(file.read_text(encoding="utf-8"))
    printed = printed_paper(key)
    for where, caption in printed.entries.items():
        for quote in (caption.quote, *(value.quote for value in caption.values)):
            assert without_layout(quote) in text, (where, quote)
        for value in caption.values:
            assert re.search(
                rf"(?<![\d.]){re.escape(f'{value.value:g}')}(?!\d)|two|four|five", value.quote
            ), value
    for claim in printed.claims:
        assert without_layout(claim.quote) in text, claim


def without_layout(text: str) -> str:
    """A text without marks of its layout."""
    text = re.sub(r"<[^<>]+>", "", text)
    return re.sub(r"\s+", " ", re.sub(r"[`*\\$]", "", text)).strip()


def test_sentences_and_examples_are_counted_by_their_names() -> None:
    assert size_text(builtin_corpus().alone()) == "375 examples of 500 sentences"
    # Two sentences as one running text are still two.
    assert size_text(builtin_corpus(prose=True).alone()) == "375 examples of 500 sentences"
    tree = Example(words=("dogs", "bark"), heads=(1, -1), relations=("nsubj", "root"))
    assert size_text(Corpus.from_examples([tree, tree], "trees")) == "2 sentences"
    assert size_text(Corpus.from_examples([Example("dogs")], "plain")) == "1 examples"
