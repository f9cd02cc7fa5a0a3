"""GLUE's files as they are, other TSV files, and SentEval's."""

from __future__ import annotations

import csv

import pytest

from headwise.core.errors import InputError, ParameterError
from headwise.text import open_corpus


def put(path, text):
    path.write_bytes(text.encode())
    return path


def triples(corpus):
    return [(e.text, e.pair, e.label) for e in corpus]


CASES = {
    "MRPC": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t"He said\tno " at all\n0\t7\t8\tx\ty\n',
        [('"He said', 'no " at all', "1"), ("x", "y", "0")],
    ),
    "SST-2": ("sentence\tlabel\nit 's good \t1\n", [("it 's good", None, "1")]),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tg\tf\ty\to\tn\tn\ta b\tc d\t3.800\n",
        [("a b", "c d", 3.8)],
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n",
        [("a", "b", "not_entailment")],
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel\n0\tWho?\tMe.\tentailment\n",
        [("Who?", "Me.", "entailment")],
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\ta?\tb?\t1\n",
        [("a?", "b?", "1")],
    ),
    "MNLI": (
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\ta\tb\tneutral\tentailment\n",
        [("a", "b", "entailment")],
    ),
    "CoLA": (
        "gj04\t0\t*\tBad the.\ngj04\t1\t\tGood.\n",
        [("Bad the.", None, "0"), ("Good.", None, "1")],
    ),
    "XNLI": (
        "Er ging.\tEr blieb.\tcontradiction\r\n",
        [("Er ging.", "Er blieb.", "contradiction")],
    ),
}


@pytest.mark.parametrize("task", CASES)
def test_tasks_by_header_and_by_name(tmp_path, task):
    text, expected = CASES[task]
    path = put(tmp_path / "dev.tsv", text)
    assert triples(open_corpus(path)) == expected
    assert triples(open_corpus(f"glue:{task.lower()}:{path}")) == expected
    assert triples(open_corpus(f"glue-tsv:{path}", task=task)) == expected


def test_quotes_are_characters(tmp_path):
    text = 'sentence\tlabel\n"open quote\t1\nclosed" here\t0\n""\t1\n'
    assert triples(open_corpus(put(tmp_path / "q.tsv", text))) == [
        ('"open quote', None, "1"),
        ('closed" here', None, "0"),
        ('""', None, "1"),
    ]


def test_files_without_labels(tmp_path):
    assert triples(open_corpus(put(tmp_path / "a.tsv", "index\tsentence\n0\thello\n"))) == [
        ("hello", None, None)
    ]
    mrpc = "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\ta\tb\n"
    assert triples(open_corpus(put(tmp_path / "a.tsv", mrpc))) == [("a", "b", None)]
    assert triples(
        open_corpus(
            f"glue:CoLA:{put(tmp_path / 'a.tsv', 'index' + chr(9) + 'sentence' + chr(10) + '0' + chr(9) + 'x y')}"
        )
    ) == [("x y", None, None)]


def test_generic_headers(tmp_path):
    assert triples(open_corpus(put(tmp_path / "a.tsv", "label\ttext\nx\thello\n"))) == [
        ("hello", None, "x")
    ]
    assert triples(open_corpus(put(tmp_path / "a.tsv", "text\tpair\nhello\tyou\n"))) == [
        ("hello", "you", None)
    ]
    assert triples(open_corpus(put(tmp_path / "a.tsv", "sentence1\tsentence2\nhello\tyou\n"))) == [
        ("hello", "you", None)
    ]
    assert triples(open_corpus(put(tmp_path / "a.tsv", "text\tscore\nhello\t2\n"))) == [
        ("hello", None, 2.0)
    ]
    assert triples(
        open_corpus(put(tmp_path / "a.tsv", "premise\thypothesis\tlabel\na\tb\tc\n"))
    ) == [("a", "b", "c")]


def test_rows_that_a_line_break_tore_apart(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    torn = header + '0\t1\t2\ta?\tb?\t1\n1\t3\t4\t"torn\nhere"\tc?\t0\n2\t5\t6\td?\te?\t0\n'
    path = put(tmp_path / "train.tsv", torn)
    corpus = open_corpus(path)
    assert [e.text for e in corpus] == ["a?", "d?"]
    ((note, count),) = corpus.notes.items()
    assert count == 2
    assert "train.tsv:3: the row has 4 columns where the first line has 6" in note
    with pytest.raises(InputError, match=r"train\.tsv:3: the row has 4 columns"):
        list(open_corpus(path, bad_rows="error"))
    own = put(tmp_path / "own.tsv", "text\tlabel\na\tb\nbroken\n")
    with pytest.raises(InputError, match=r"own\.tsv:3: the row has 1 columns .*bad_rows=skip"):
        list(open_corpus(own))
    assert len(list(open_corpus(own, bad_rows="skip"))) == 1


def test_refusals(tmp_path):
    path = put(tmp_path / "a.tsv", "x\ty\n1\t2\n")
    with pytest.raises(InputError, match=r"a\.tsv:1: the header names no text"):
        open_corpus(path)
    with pytest.raises(ParameterError, match=r"no GLUE task 'MRCP'\. Did you mean 'MRPC'"):
        open_corpus(f"glue:MRCP:{path}")
    with pytest.raises(InputError, match="the header of a MRPC file has #1 String"):
        open_corpus(f"glue:MRPC:{path}")
    with pytest.raises(ParameterError, match="bad_rows"):
        open_corpus(path, bad_rows="maybe")
    score = put(tmp_path / "s.tsv", "text\tscore\nhello\thigh\n")
    with pytest.raises(InputError, match=r"s\.tsv:2: the column 'score' holds 'high'"):
        open_corpus(score)


def test_senteval(tmp_path):
    path = put(
        tmp_path / "bigram_shift.txt", "tr\tO\tA b c .\nva\tI\tB a c .\nte\tO\tc .\ntr\tI\td .\n"
    )
    assert triples(open_corpus(f"senteval:{path}", part="tr")) == [
        ("A b c .", None, "O"),
        ("d .", None, "I"),
    ]
    assert triples(open_corpus(f"senteval:{path}", part="validation")) == [("B a c .", None, "I")]
    assert len(list(open_corpus(path))) == 4  # known by its first line
    assert len(list(open_corpus(path, part="te"))) == 1
    with pytest.raises(ParameterError, match="`part` must be one of"):
        open_corpus(path, part="x")
    bad = put(tmp_path / "bad.txt", "tr\tO\tA b\nxx\tO\tB\n")
    with pytest.raises(InputError, match=r"bad\.txt:2: a SentEval row"):
        list(open_corpus(f"senteval:{bad}"))


def rows_by_csv(path, encoding="utf-8-sig"):
    with open(path, encoding=encoding, newline="\n") as handle:
        return list(csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "count", "columns"),
    [
        ("SST-2/train.tsv", 67349, (0, None, 1)),
        ("SST-2/dev.tsv", 872, (0, None, 1)),
        ("MRPC/msr_paraphrase_train.txt", 4076, (3, 4, 0)),
        ("MRPC/test.tsv", 1725, (3, 4, 0)),
        ("STS-B/glue-train.tsv", 5749, (7, 8, 9)),
        ("STS-B/glue-dev.tsv", 1500, (7, 8, 9)),
        ("RTE/train.tsv", 2490, (1, 2, 3)),
        ("RTE/dev.tsv", 277, (1, 2, 3)),
        ("CoLA/train.tsv", 8551, (3, None, 1)),
        ("CoLA/dev.tsv", 1043, (3, None, 1)),
        ("QNLI/dev.tsv", 5463, (1, 2, 3)),
    ],
)
def test_glue_as_it_is(shared, name, count, columns):
    path = shared / "data" / "glue" / name
    corpus = open_corpus(path)
    read = triples(corpus)
    assert len(read) == count
    assert corpus.notes == {}
    rows = rows_by_csv(path)[0 if "CoLA" in name else 1 :]
    text, pair, label = columns
    score = float if "STS-B" in name else str
    expected = [
        (r[text].strip(), None if pair is None else r[pair].strip(), score(r[label])) for r in rows
    ]
    assert read == expected


@pytest.mark.real
@pytest.mark.parametrize("language", ["en", "de", "ar"])
def test_xnli(shared, language):
    survey = open_corpus(shared / "data" / "xnli" / f"dev-{language}.tsv").survey()
    assert (survey.count, survey.annotations) == (2490, {"segments", "label"})


@pytest.mark.real
def test_probing_files(shared):
    import gzip

    for path in sorted((shared / "data" / "probing").glob("*.txt.gz")):
        lines = gzip.decompress(path.read_bytes()).decode().split("\n")
        for part in ("tr", "va", "te"):
            expected = sum(line.startswith(part + "\t") for line in lines)
            assert sum(1 for _ in open_corpus(path, part=part)) == expected
