"""Tasks: files in GLUE's formats, labels, metrics, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as reference

from headwise.core.errors import InputError, ParameterError
from headwise.text import Corpus, Example
from headwise.text.known_tasks import NUMBERS
from headwise.text.tasks import GLUE, METRICS, Task, read_task, score


def test_metrics_are_those_of_scikit_learn_and_scipy() -> None:
    from scipy.stats import pearsonr, spearmanr

    random = np.random.default_rng(0)
    truth, said = random.integers(0, 2, 200), random.integers(0, 2, 200)
    x, y = random.normal(size=100), random.normal(size=100)
    assert METRICS["accuracy"](truth, said) == pytest.approx(reference.accuracy_score(truth, said))
    assert METRICS["f1"](truth, said) == pytest.approx(reference.f1_score(truth, said))
    assert METRICS["matthews"](truth, said) == pytest.approx(
        reference.matthews_corrcoef(truth, said)
    )
    assert METRICS["pearson"](x, y) == pytest.approx(pearsonr(x, y).statistic)
    assert METRICS["spearman"](x, y) == pytest.approx(spearmanr(x, y).statistic)


def test_metrics_of_a_constant_prediction_are_zero_not_nan() -> None:
    found = score(("accuracy", "f1", "matthews", "pearson"), np.array([0, 1, 1, 1]), np.zeros(4))
    assert found == {"accuracy": 0.25, "f1": 0.0, "matthews": 0.0, "pearson": 0.0}


def write(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n")
    return path


def glue(folder: Path) -> Path:
    """Small files in the formats of all tasks."""
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    pairs = [f"{i % 2}\t1\t2\tone {i}\ttwo {i}" for i in range(6)]
    write(folder / "MRPC" / "msr_paraphrase_train.txt", header, *pairs)
    write(folder / "MRPC" / "test.tsv", header, *pairs[:4])
    columns = (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    )
    for name in ("glue-train.tsv", "glue-dev.tsv"):
        write(
            folder / "STS-B" / name,
            columns,
            *(f"{i}\ta\tb\tc\td\te\tf\tone {i}\ttwo\t{i / 2}" for i in range(5)),
        )
    for name in ("train.tsv", "dev.tsv"):
        write(folder / "SST-2" / name, "sentence\tlabel", *(f"text {i}\t{i % 2}" for i in range(4)))
        write(
            folder / "RTE" / name,
            "index\tsentence1\tsentence2\tlabel",
            *(f"{i}\ta\tb\t{'not_' * (i % 2)}entailment" for i in range(4)),
        )
        write(folder / "CoLA" / name, *(f"gj04\t{i % 2}\t\ttext {i}" for i in range(4)))
        write(
            folder / "QNLI" / name,
            "index\tquestion\tsentence\tlabel",
            *(f"{i}\tq\ts\t{'not_' * (i % 2)}entailment" for i in range(4)),
        )
        write(
            folder / "QQP" / name,
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            *(f"{i}\t1\t2\ta\tb\t{i % 2}" for i in range(4)),
        )
    labels = ("neutral", "entailment", "contradiction")
    for name in ("train.tsv", "dev_matched.tsv"):
        write(
            folder / "MNLI" / name,
            "index\tsentence1\tsentence2\tgold_label",
            *(f"{i}\ta {i}\tb\t{labels[i % 3]}" for i in range(6)),
        )
    return folder


@pytest.mark.parametrize("name", list(GLUE))
def test_every_glue_task_is_read_from_its_folder(name: str, tmp_path: Path) -> None:
    folder = glue(tmp_path / "glue")
    task = read_task(name.lower().replace("-", ""), data=folder)
    assert task.name == name
    assert task.metrics == GLUE[name].metrics
    assert task.outputs == (1 if name == "STS-B" else 3 if name == "MNLI" else 2)
    assert task.train
    assert len(task.targets(task.dev)) == len(task.dev)
    assert task.fingerprint() == read_task(name, data=folder / name).fingerprint()


def test_a_limited_regression_keeps_its_parts_and_numbers() -> None:
    task = Task.of_parts(
        "own", tuple(corpus(*map(float, range(20)))), tuple(corpus(*map(float, range(9)))), NUMBERS
    )
    limited = task.limit(5, None, 4)
    assert (limited.kind, limited.second_metric, limited.classes, limited.outputs) == (
        "regression",
        "spearman",
        (),
        1,
    )
    assert (len(limited.train), len(limited.dev)) == (5, 4)
    assert {example.label for example in limited.dev} <= set(map(float, range(9)))


def test_class_numbers_follow_the_sorted_labels(tmp_path: Path) -> None:
    task = read_task("RTE", data=glue(tmp_path))
    assert task.classes == ("entailment", "not_entailment")
    assert task.targets(task.dev).tolist() == [0, 1, 0, 1]


def test_f1_is_of_the_label_1(tmp_path: Path) -> None:
    task = read_task("MRPC", data=glue(tmp_path))
    assert task.classes[1] == "1"


def corpus(*labels: object, pair: bool = False) -> Corpus:
    return Corpus.from_examples(
        [
            Example(text=f"t {i}", pair="p" if pair else None, label=label, origin=f"f:{i + 1}")
            for i, label in enumerate(labels)
        ]
    )


def test_what_is_refused(tmp_path: Path) -> None:
    both = corpus("a", "b", "a", "b")
    with pytest.raises(InputError, match="only one class"):
        read_task("own", train=corpus("a", "a"), dev=corpus("a"))
    with pytest.raises(InputError, match="'c' of the dev part is missing in the train part"):
        read_task("own", train=both, dev=corpus("a", "b", "c"))
    with pytest.raises(InputError, match="'b' of the train part is missing in the dev part"):
        read_task("own", train=both, dev=corpus("a", "a"))
    with pytest.raises(
        InputError, match=r"1 of 2 examples of the dev part have no label, the first is f:2"
    ):
        read_task("own", train=both, dev=corpus("a", None))
    with pytest.raises(InputError, match="NaN"):
        read_task("own", train=corpus(1.0, 2.0), dev=corpus(1.0, float("nan")))
    with pytest.raises(InputError, match="second sentence"):
        read_task("own", train=both, dev=corpus("a", "b", pair=True))
    with pytest.raises(InputError, match="no train file"):
        read_task("own", dev=both)
    with pytest.raises(ParameterError, match="needs its files"):
        read_task("MRPC")
    with pytest.raises(ParameterError, match="is not a GLUE task"):
        read_task("own", data=tmp_path)
    with pytest.raises(InputError, match="none of the files of RTE"):
        read_task("RTE", data=tmp_path)


def test_a_limit_keeps_labels_in_proportion(tmp_path: Path) -> None:
    task = read_task("own", train=corpus(*"aaab" * 10), dev=corpus(*"aaab" * 10), limit=8)
    assert sorted(str(e.label) for e in task.train) == ["a"] * 6 + ["b"] * 2


@pytest.mark.real
def test_real_glue_folders(shared: Path) -> None:
    sizes = {
        name: (len(t.train), len(t.dev))
        for name in ("MRPC", "RTE", "STS-B", "CoLA")
        if (t := read_task(name, data=shared / "data" / "glue"))
    }
    assert sizes == {
        "MRPC": (4076, 1725),
        "RTE": (2490, 277),
        "STS-B": (5749, 1500),
        "CoLA": (8551, 1043),
    }
