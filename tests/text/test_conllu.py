"""CoNLL-U: what is a word, what is not, and what is wrong with a row; checked against the `conllu`
package."""

from __future__ import annotations

from itertools import islice

import conllu
import numpy as np
import pytest
from tiny_tokenizers import bert_like, gpt2_like, llama_like

from headwise.core.errors import InputError
from headwise.text import open_corpus
from headwise.text.encode import NO_WORD, Encoder

TREE = """# newdoc id = first
# sent_id = 1
# text = I don't like it
1\tI\tI\tPRON\tPRP\tCase=Nom|Number=Sing\t4\tnsubj\t4:nsubj\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\tMood=Ind\t4\taux\t4:aux\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t4:advmod\t_
4\tlike\tlike\tVERB\tVB\tVerbForm=Inf\t0\troot\t0:root\t_
4.1\tlike\tlike\tVERB\tVB\t_\t_\t_\t0:root\tCopyOf=4
5\tit\tit\tPRON\tPRP\tNumber=Sing\t4\tobj\t4:obj\tSpaceAfter=No

# sent_id = 2
1\t_\t_\tPUNCT\t_\t_\t2\tpunct\t_\tSpaceAfter=No
2-3\tZum\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tZu\tzu\tADP\t_\t_\t0\troot\t_\t_
3\tdem\tder\tDET\t_\t_\t2\tdet\t_\t_

# newdoc id = second
# sent_id = 3
1\tYes\tyes\tINTJ\t_\t_\t0\troot\t_\t_
"""


def written(tmp_path, text, name="t.conllu"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_sentences_know_their_document(tmp_path):
    path = written(tmp_path, TREE)
    assert [e.document for e in open_corpus(path)] == ["first", "first", "second"]
    assert [e.document for e in open_corpus(path, documents=True)] == ["first", "second"]
    undivided = TREE.replace("# newdoc id = first\n", "").replace(
        "# newdoc id = second", "# newdoc"
    )
    assert [e.document for e in open_corpus(written(tmp_path, undivided))] == [None, None, None]


def test_sentences(tmp_path):
    first, second, third = open_corpus(written(tmp_path, TREE))
    assert first.words == ("I", "do", "n't", "like", "it")
    assert first.heads == (3, 3, 3, -1, 3)
    assert first.relations == ("nsubj", "aux", "advmod", "root", "obj")
    assert first.upos == ("PRON", "AUX", "PART", "VERB", "PRON")
    assert first.lemmas == ("I", "do", "not", "like", "it")
    assert first.features[0] == {"Case": "Nom", "Number": "Sing"}
    assert first.features[2] == {}
    assert first.scheme == "ud"
    assert first.origin.endswith("t.conllu:1")
    assert second.words == ("_", "Zu", "dem")
    assert second.features is None
    assert third.origin.endswith(":18")


def test_documents(tmp_path):
    first, second = open_corpus(written(tmp_path, TREE), documents=True)
    assert first.words == ("I", "do", "n't", "like", "it", "_", "Zu", "dem")
    assert first.heads == (3, 3, 3, -1, 3, 6, -1, 6)
    assert first.sentences == (0,) * 5 + (1,) * 3
    assert len(first.features) == 8
    assert first.mentions is None
    assert first.origin.endswith("t.conllu:1, document first")
    assert second.words == ("Yes",)
    undivided = TREE.replace("# newdoc id = first\n", "").replace("# newdoc id = second\n", "")
    (whole,) = open_corpus(written(tmp_path, undivided, "name.conllu"), documents=True)
    assert len(whole.words) == 9
    assert whole.origin.endswith("document name")


def words_in_text(example):
    return [example.text[start:end] for start, end in example.spans]


def test_text_is_read_as_it_was_written(tmp_path):
    first, second, third = open_corpus(written(tmp_path, TREE))
    assert first.text == "I don't like it"
    assert words_in_text(first) == list(first.words)
    # No `# text`: SpaceAfter and the form of the multiword token tell.
    assert second.text == "_Zum"
    assert words_in_text(second) == ["_", "Zum", "Zum"]
    # Neither: the words stand apart, as any tokenizer gets words.
    assert third.text is None
    (document, _) = open_corpus(written(tmp_path, TREE), documents=True)
    assert document.text == "I don't like it _Zum"
    assert words_in_text(document) == ["I", "do", "n't", "like", "it", "_", "Zum", "Zum"]


def test_words_apart_on_request(tmp_path):
    path = written(tmp_path, TREE)
    for documents in (False, True):
        for example in open_corpus(path, text=False, documents=documents):
            assert example.text is None
            assert example.spans is None


def sentence(rows, comment=None):
    lines = [] if comment is None else [f"# text = {comment}"]
    for number, (form, misc) in enumerate(rows, 1):
        head = 0 if number == 1 else 1
        lines.append(f"{number}\t{form}\t_\tX\t_\t_\t{head}\tdep\t_\t{misc}")
    return "\n".join(lines) + "\n\n"


PLAIN = [("Wait", "_"), ("…", "_"), ("what", "_"), ("?", "_")]


@pytest.mark.parametrize(
    ("rows", "comment", "text"),
    [
        # The comment has spaces that the rows do not tell: two, a tab, a space that cannot break.
        (PLAIN, "Wait  …\twhat\u00a0?", "Wait  …\twhat\u00a0?"),
        (PLAIN, "Wait…what?", "Wait…what?"),
        # White space within a word, and at the start of one.
        ([("20 000", "_"), ("€", "_")], "20 000€", "20 000€"),
        ([("in spite", "_"), (" of", "_")], "in spite of", "in spite of"),
        ([("a = b", "_"), (".", "_")], "a = b.", "a = b."),
        # Other words than the rows: the rows tell, if they tell anything.
        ([("Hi", "SpaceAfter=No"), ("!", "_")], "Hello!", "Hi!"),
        ([("Hi", "SpaceAfter=No"), ("!", "_")], "Hi! there", "Hi!"),
        ([("Hi", "_"), ("!", "_")], "Hello!", None),
        ([("Hi", "_"), ("!", "_")], "Hi", None),
        ([("Hi", "_"), ("!", "_")], "", None),
        ([("Hi", "_"), ("!", "_")], None, None),
        ([("Hi", "Foo=1|SpaceAfter=No"), ("!", "SpaceAfter=No")], None, "Hi!"),
    ],
)
def test_text_comment_and_space_after(tmp_path, rows, comment, text):
    path = written(tmp_path, sentence(rows, comment))
    corpus = open_corpus(path)
    (example,) = corpus
    assert example.text == text
    assert example.words == tuple(form for form, _ in rows)
    if text is not None:
        assert words_in_text(example) == list(example.words)
    has_other_words = bool(comment) and text is None
    assert bool(corpus.survey().notes) == has_other_words


def test_document_of_sentences_with_and_without_text(tmp_path):
    content = sentence([("Hi", "_"), ("!", "_")], "Hi!") + sentence([("So", "_"), (".", "_")])
    (example,) = open_corpus(written(tmp_path, content), documents=True)
    assert example.text == "Hi! So ."
    assert words_in_text(example) == ["Hi", "!", "So", "."]


SPEECH = (
    "# text = the  dog don't stop, and ran away.\n"
    "1\tthe\t_\tX\t_\t_\t0\troot\t_\t_\n"
    "2\tdog\t_\tX\t_\t_\t1\tdep\t_\t_\n"
    "3-4\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "3\tdo\t_\tX\t_\t_\t1\tdep\t_\t_\n"
    "4\tn't\t_\tX\t_\t_\t1\tdep\t_\t_\n"
    "5\tstop\t_\tX\t_\t_\t1\tdep\t_\tSpaceAfter=No\n"
    "6\t,\t_\tX\t_\t_\t1\tdep\t_\t_\n"
    "7\tand\t_\tX\t_\t_\t1\tdep\t_\t_\n"
    "8\tran away\t_\tX\t_\t_\t1\tdep\t_\tSpaceAfter=No\n"
    "9\t.\t_\tX\t_\t_\t1\tdep\t_\t_\n\n"
)


def word_of_each_piece(example, pieces):
    """Find the pieces in the text one after the other: the word that shares most characters."""
    words = []
    position = 0
    for piece in pieces:
        position = example.text.index(piece, position)
        end = position + len(piece)
        shared = [min(end, last) - max(position, first) for first, last in example.spans]
        words.append(int(np.argmax(shared)))
        position = end
    return words


@pytest.mark.parametrize("tokenizer", [bert_like, gpt2_like, llama_like])
def test_words_align_with_the_text_as_written(tmp_path, tokenizer):
    """Two spaces, a contraction in a multiword token, a space within a word, commas attached."""
    (example,) = open_corpus(written(tmp_path, SPEECH))
    assert example.text == "the  dog don't stop, and ran away."
    row = Encoder(tokenizer(), 64).encode(example)
    assert row.aligned
    aligned = [token for token, word in enumerate(row.word) if word != NO_WORD]
    pieces = [row.pieces[token] for token in aligned]
    assert row.word[aligned].tolist() == word_of_each_piece(example, pieces)
    # The same words apart are other tokens: "do n't", "stop ,".
    (apart,) = open_corpus(written(tmp_path, SPEECH), text=False)
    row_apart = Encoder(tokenizer(), 64).encode(apart)
    assert row_apart.every_word
    assert row_apart.pieces != row.pieces


def test_columns_that_are_empty_throughout(tmp_path):
    bare = "1\ta\t_\t_\t_\t_\t_\t_\t_\t_\n2\tb\t_\t_\t_\t_\t_\t_\t_\t_\n"
    (example,) = open_corpus(written(tmp_path, bare))
    assert (example.heads, example.relations, example.upos, example.lemmas) == (None,) * 4


ROW = "{id}\tw\tw\tX\t_\t_\t{head}\tdep\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("1\ta\ta\tX\t_\t_\t0\troot\t_\n", 3, "9 columns"),
        ("1 a a X _ _ 0 root _ _\n", 3, "1 columns"),
        (
            ROW.format(id=1, head=0) + ROW.format(id=2, head=7),
            4,
            "HEAD is 7, but the sentence has 2 words",
        ),
        (ROW.format(id=1, head=0) + ROW.format(id=2, head="x"), 4, "HEAD is 'x'"),
        (ROW.format(id=1, head=0) + ROW.format(id=2, head="_"), 4, "HEAD is '_'"),
        (ROW.format(id=1, head=0) + ROW.format(id=2, head="-1"), 4, "HEAD is '-1'"),
        (
            ROW.format(id=1, head=0) + ROW.format(id=2, head=3) + ROW.format(id=3, head=2),
            4,
            "cycle through word 2",
        ),
        (ROW.format(id=1, head=1), 3, "cycle through word 1"),
        (
            ROW.format(id=1, head=0) + ROW.format(id=3, head=1),
            4,
            "ID is 3; word 2 is expected here",
        ),
        (ROW.format(id="one", head=0), 3, "ID is 'one'"),
        ("1\t\ta\tX\t_\t_\t0\troot\t_\t_\n", 3, "FORM is empty"),
    ],
)
def test_broken_rows_say_where_and_why(tmp_path, text, line, why):
    good = ROW.format(id=1, head=0) + "\n"
    with pytest.raises(InputError, match=why) as caught:
        list(open_corpus(written(tmp_path, good + text)))
    assert f"t.conllu:{line}: " in str(caught.value)


def compare_with_package(path_text, examples):
    parsed = conllu.parse(path_text)
    assert len(parsed) == len(examples)
    for sentence, example in zip(parsed, examples, strict=True):
        rows = [token for token in sentence if isinstance(token["id"], int)]
        assert example.words == tuple(t["form"] for t in rows)
        assert example.heads == tuple(t["head"] - 1 for t in rows)
        assert example.relations == tuple(t["deprel"] for t in rows)
        assert example.upos == tuple(t["upos"] for t in rows)
        if example.features is not None:
            assert list(example.features) == [t["feats"] or {} for t in rows]


def test_agrees_with_the_package(tmp_path):
    compare_with_package(TREE, list(open_corpus(written(tmp_path, TREE))))


@pytest.mark.real
@pytest.mark.parametrize("name", ["en_ewt-ud-dev", "ar_pud-ud-test", "de_gsd-ud-dev"])
def test_agrees_with_the_package_on_treebanks(shared, name):
    import lzma

    path = shared / "data" / "trees" / f"{name}.conllu.xz"
    text = "\n\n".join(lzma.decompress(path.read_bytes()).decode().split("\n\n")[:300]) + "\n\n"
    compare_with_package(text, list(islice(open_corpus(path), 300)))


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("en_ewt-ud-train", 12544),
        ("en_ewt-ud-dev", 2001),
        ("en_pud-ud-test", 1000),
        ("de_pud-ud-test", 1000),
        ("ar_pud-ud-test", 1000),
        ("de_gsd-ud-dev", 799),
    ],
)
def test_counts_of_treebanks(shared, name, count):
    survey = open_corpus(shared / "data" / "trees" / f"{name}.conllu.xz").survey()
    assert survey.count == count
    assert survey.examples_with["dependencies"] == count
    assert {"nsubj", "obj", "case"} <= set(survey.relations)


@pytest.mark.real
def test_text_of_a_treebank_is_the_text_it_states(shared):
    import lzma

    path = shared / "data" / "trees" / "en_ewt-ud-dev.conllu.xz"
    stated = [
        line[9:].rstrip("\n")
        for line in lzma.decompress(path.read_bytes()).decode().split("\n")
        if line.startswith("# text = ")
    ]
    read = [e.text for e in open_corpus(path)]
    assert read == [text.strip() for text in stated]
