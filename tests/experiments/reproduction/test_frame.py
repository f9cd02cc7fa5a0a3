"""The frame of reproductions: printed beside ours, missing data said, finished entries kept, claims
judged."""

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
    NotRunError,
    ReportFigure,
    ReportRow,
    ReportTable,
    Reproduction,
    ReproductionContext,
    ReproductionOptions,
    Verdict,
    papers,
    reproduce,
    reproduction_of,
    run,
)
from headwise.experiments.reproduction.data import DataFolder
from headwise.experiments.reproduction.printed import printed_paper
from headwise.models import HeadModel
from headwise.page.reproduction import render_reproduction
from headwise.testing import planted_model
from headwise.testing.toy import toy_task

WORDS = ["the", "a", "cat", "dog", "saw", "sleeps", ".", ","]
SEEDS = {
    "clark2019": "003",
    "kovaleva2019": "001",
    "pascual2021": "000",
    "pande2021": "002",
    "jo2020": "004",
}
Paper = Callable[..., None]


@pytest.fixture(scope="module")
def model() -> HeadModel:
    planted = planted_model([["previous", "next", "uniform"], ["sep", "cls", "self"]], words=WORDS)
    return HeadModel.open(planted.model, tokenizer=planted.tokenizer)


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Paper:
    """Put entries in the place of Clark et al.'s; their printed numbers are the paper's."""

    def put(*entries: Entry) -> None:
        monkeypatch.setattr(
            run, "reproduction_of", lambda key: Reproduction(key, ["BERT-base."], entries)
        )

    return put


def drawn(context: ReproductionContext) -> EntryResult:
    figure = Figure()
    figure.subplots().plot([0, 1])
    return EntryResult(
        [
            ReportRow("cls-entropy", 3.5, 3.4, 3.6, note="L1"),
            ReportRow("more", 0.25, label="one of ours"),
        ],
        [ReportTable("Layers", ["layer", "<b>"], [["L0", 0.5]])],
        [ReportFigure("line", "A line", "It rises.", figure)],
        {"cls-last": Verdict("3.5 nats", True)},
        ["Another | corpus."],
        {"text": "two sentences"},
    )


def test_printed_stands_beside_ours_with_the_difference(model: HeadModel, paper: Paper) -> None:
    paper(Entry("fig4", "entropy", drawn))
    found = reproduce("clark2019", model)
    text = found.markdown()
    assert "| 3.89 nats | 3.50 nats (3.40 to 3.60) | −0.390 (−0.490 to −0.290) | L1 |" in text
    assert "| one of ours | – | 0.250 | – |" in text
    assert "Another | corpus." in text  # in prose, not in a table
    assert "(figures/clark2019-fig4-line.svg)" in text
    assert {Path(name).suffix for name in found.files} == {".svg", ".pdf", ".png"}
    claims = {claim["key"]: claim for claim in found.facts["claims"]}
    assert claims["cls-last"]["verdict"] == "holds"
    assert claims["broad-low"]["verdict"] == "not tried"
    assert found.facts["counts"]["claims"] == {"holds": 1, "does not hold": 0, "not tried": 2}
    page = render_reproduction(json.loads(found.to_json()), found.files)
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count("data:image/svg+xml") == 1
    assert "3.50 nats (3.40 to 3.60)" in page


def test_a_missing_data_set_is_said_with_where_to_get_it(model: HeadModel, paper: Paper) -> None:
    paper(Entry("fig4", "entropy", drawn, needs=("ewt-dev",)), Entry("fig2", "types", refused))
    found = reproduce("clark2019", model)
    first, second = found.facts["entries"]
    assert first["status"] == "not run"
    assert first["reason"].startswith(
        "needs UD English EWT, dev, from https://universaldependencies.org"
    )
    assert first["rows"][0]["printed"] == 3.89  # what is printed is shown all the same
    assert second["reason"] == "the model has no such thing"
    assert all(claim["verdict"] == "not tried" and claim["why"] for claim in found.facts["claims"])
    assert "**Not run**: needs UD English EWT" in found.markdown()


def refused(context: ReproductionContext) -> EntryResult:
    raise NotRunError("the model has no such thing")


def test_what_fails_is_named_and_the_others_go_on(model: HeadModel, paper: Paper) -> None:
    def broken(context: ReproductionContext) -> EntryResult:
        raise ZeroDivisionError("no rows")

    paper(Entry("fig2", "types", broken), Entry("fig4", "entropy", drawn))
    found = reproduce("clark2019", model)
    assert [entry["status"] for entry in found.facts["entries"]] == ["failed", "done"]
    assert [failure.what for failure in found.failures] == ["fig2 of clark2019"]


def test_a_killed_call_goes_on_where_it_stopped(
    model: HeadModel, paper: Paper, tmp_path: Path
) -> None:
    calls: Counter[str] = Counter()

    def first(context: ReproductionContext) -> EntryResult:
        calls["first"] += 1
        return drawn(context)

    def second(context: ReproductionContext) -> EntryResult:
        calls["second"] += 1
        if calls["second"] == 1:
            raise KeyboardInterrupt
        return EntryResult()

    paper(Entry("fig4", "entropy", first), Entry("fig2", "types", second))
    with pytest.raises(KeyboardInterrupt):
        reproduce("clark2019", model, folder=tmp_path)
    found = reproduce("clark2019", model, folder=tmp_path)
    assert calls == {"first": 1, "second": 2}
    assert found.to_json() == reproduce("clark2019", model).to_json()
    with pytest.raises(OutputError, match="differs in seed"):
        reproduce("clark2019", model, options=ReproductionOptions(seed=1), folder=tmp_path)


def test_runs_are_kept_and_not_done_twice(
    model: HeadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    plain = ReproductionContext._run
    monkeypatch.setattr(
        ReproductionContext, "_run", lambda *given: runs.append(given[3].name) or plain(*given)
    )
    options = ReproductionOptions(data=_data(tmp_path), only=("text3.1", "fig2", "fig4"))
    found = reproduce("clark2019", model, options=options)
    assert runs == ["surface"]  # three entries, one pass
    rows = {row["key"]: row for entry in found.facts["entries"] for row in entry["rows"]}
    assert (rows["previous"]["ours"], rows["next"]["ours"]) == (1, 1)  # as planted
    assert rows["previous"]["note"].startswith("L0H0")
    assert rows["next"]["note"].startswith("L0H1")
    told = {claim["key"]: claim["verdict"] for claim in found.facts["claims"]}
    assert told["earlier"] == "holds"
    assert told["broad-low"] == "holds"  # the uniform head is L0H2


def _data(folder: Path) -> Path:
    place = folder / "data" / "deep"
    place.mkdir(parents=True)
    paragraphs = [
        "the cat saw a dog .",
        "a dog sleeps .",
        "the dog saw the cat ,",
        "the cat sleeps .",
    ]
    (place / "articles.jsonl").write_text(
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
    found = DataFolder(tmp_path)
    assert found.path("ewt-dev").name == "en_ewt-ud-dev.conllu"
    assert found.path("senteval-tree_depth").parent.name == "probing"
    assert found.find("glue-MRPC") is None  # without its test part it cannot be scored
    (tmp_path / "glue_data/MRPC/msr_paraphrase_test.txt").write_text("")
    assert DataFolder(tmp_path).path("glue-MRPC").name == "MRPC"
    assert found.find("glue-QNLI") is None
    assert found.path("glue-QNLI-dev").name == "QNLI"
    with pytest.raises(
        NotRunError, match=r"needs GLUE's RTE, train and dev, from https://gluebenchmark\.com/tasks"
    ):
        found.path("glue-RTE")
    with pytest.raises(InputError, match="There is no folder"):
        DataFolder(tmp_path / "nowhere")


@pytest.mark.real
def test_the_shared_data_are_found(shared: Path) -> None:
    found = DataFolder(shared / "data")
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
    assert all(found.find(name) is not None for name in names)
    assert found.find("glue-QNLI") is None


def test_a_fine_tuned_model_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no folder .* with a model of MRPC"):
        ReproductionOptions(finetuned={"MRPC": tmp_path / "nowhere"})


def test_an_open_model_is_not_fine_tuned_nor_another_in_its_place(
    model: HeadModel, tmp_path: Path
) -> None:
    context = ReproductionContext(model, model, ReproductionOptions(), None, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(
        NotRunError, match="an open model cannot be fine-tuned; pass its folder or name"
    ):
        context.train(toy_task(8), "jo")


def test_names_that_are_none_are_refused(model: HeadModel) -> None:
    with pytest.raises(ParameterError, match="Did you mean 'clark2019'"):
        reproduce("clarke2019", model)
    with pytest.raises(ParameterError, match="table or figure of clark2019 'table9'"):
        reproduce("clark2019", model, options=ReproductionOptions(only=("table9",)))
    with pytest.raises(ParameterError, match="`variant` must be one of paper, released"):
        ReproductionOptions(variant="mine")


@pytest.mark.parametrize("key", papers())
def test_entries_and_printed_numbers_fit(key: str) -> None:
    kept = printed_paper(key)
    entries = [entry.key for entry in reproduction_of(key).entries]
    assert entries == [name for name in kept.entries if name in entries]  # the paper's order
    assert {claim.entry for claim in kept.claims} <= set(kept.entries)
    for caption in kept.entries.values():
        assert len({value.key for value in caption.values}) == len(caption.values)
    keys = [claim.key for claim in kept.claims]
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
    text = plain(file.read_text(encoding="utf-8"))
    kept = printed_paper(key)
    for where, caption in kept.entries.items():
        for quote in (caption.quote, *(value.quote for value in caption.values)):
            assert plain(quote) in text, (where, quote)
        for value in caption.values:
            assert re.search(
                rf"(?<![\d.]){re.escape(f'{value.value:g}')}(?!\d)|two|four|five", value.quote
            ), value
    for claim in kept.claims:
        assert plain(claim.quote) in text, claim


def plain(text: str) -> str:
    """A text without marks of its layout."""
    text = re.sub(r"<[^<>]+>", "", text)
    return re.sub(r"\s+", " ", re.sub(r"[`*\\$]", "", text)).strip()
