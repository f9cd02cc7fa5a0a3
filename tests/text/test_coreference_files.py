"""Mentions from GUM's marks, OntoGUM's three columns and CoNLL-2012."""

from __future__ import annotations

import io
import re
import tarfile
from collections import Counter

import pytest

from headwise.core.errors import InputError
from headwise.text import Corpus, Mention, open_corpus
from headwise.text.attach import attach_trees, document_name
from headwise.text.readers.entities import bracketed

GUM = """# newdoc id = doc_a
# global.Entity = GRP-etype-infstat-salience-centering-minspan-link-identity
1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\tEntity=(1-person-new-sssss-cf1-2-coref
2\tmayor\tmayor\tNOUN\t_\tNumber=Sing\t5\tnsubj\t_\t_
3\tof\tof\tADP\t_\t_\t4\tcase\t_\t_
4\tRome\tRome\tPROPN\t_\t_\t2\tnmod\t_\tEntity=(2-place-new-nnnnn-cf2-1-sgl-Rome%2DCity)1)|X=y
5\tspoke\tspeak\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No

1\tShe\tshe\tPRON\t_\t_\t2\tnsubj\t_\tEntity=(1-person-giv:act-sssss-cf1-1-ana)
2\tleft\tleave\tVERB\t_\t_\t0\troot\t_\tEntity=(3-event-new-n-cf3-1-pred)
"""

ONTO = (
    "# begin document \n0\tThe\t(1\n1\tmayor\t_\n2\tof\t_\n3\tRome\t(2)1)\n4\tspoke\t_\n5\tShe\t(1)\n6\t\t_\n"
    "# end document\n"
)

CONLL = """#begin document (nw/x/00/x_0001); part 000
nw/x/00/x_0001 0 0 The DT (TOP(S(NP(NP* - - - - * - (0
nw/x/00/x_0001 0 1 big JJ * - - - - * - -
nw/x/00/x_0001 0 2 dogs NNS *) - - - - * - -
nw/x/00/x_0001 0 3 of IN (PP* - - - - * - -
nw/x/00/x_0001 0 4 Rome NNP (NP*))) - - - - * - (1)|0)
nw/x/00/x_0001 0 5 bark VBP (VP* bark 01 1 - * (V*) -
nw/x/00/x_0001 0 6 . . *))) - - - - * - -

nw/x/00/x_0001 0 0 They PRP (TOP(S(NP*) - - - - * - (0)
nw/x/00/x_0001 0 1 run VBP (VP*))) run 01 1 - * (V*) -

#end document
#begin document (nw/x/00/x_0001); part 001
nw/x/00/x_0001 1 0 Yes UH (TOP(INTJ*)) - - - - * - -
#end document
"""


def put(path, text):
    path.write_text(text)
    return path


def test_gum(tmp_path):
    path = put(tmp_path / "a.conllu", GUM)
    (document,) = open_corpus(f"gum:{path}")
    assert document.mentions == (
        Mention(0, 4, "1", 1),
        Mention(3, 4, "2", 3),
        Mention(5, 6, "1", 5),
        Mention(6, 7, "3", 6),
    )
    assert document_name(document) == "doc_a"
    fewer = open_corpus(f"gum:{path}", skip_links=("pred", "sgl"))
    assert [m.entity for m in next(iter(fewer)).mentions] == ["1", "1"]
    assert sum(fewer.notes.values()) == 2
    (bare,) = open_corpus(path, documents=True, entities=False)
    assert bare.mentions is None


def test_heads_that_the_marks_name(tmp_path):
    marked = GUM.replace(
        "GRP-etype-infstat-salience-centering-minspan-link-identity", "eid-etype-head-other"
    )
    marked = re.sub(
        r"\((\d)-[^()\n|]*",
        lambda m: f"({m[1]}-x-{4 if m[1] == '1' and 'new' in m[0] else 1}-o",
        marked,
    )
    (document,) = open_corpus(f"gum:{put(tmp_path / 'a.conllu', marked)}")
    assert document.mentions[0] == Mention(0, 4, "1", 3)


def test_mentions_in_parts_are_counted(tmp_path):
    parts = GUM.replace("(3-event-new-n-cf3-1-pred)", "(3[1/2]-event-new-n-cf3-1-pred)")
    corpus = open_corpus(f"gum:{put(tmp_path / 'a.conllu', parts)}")
    assert len(next(iter(corpus)).mentions) == 3
    list(corpus)
    assert corpus.notes == {"mentions left out: in several parts": 1}


def test_ontogum_and_trees(tmp_path):
    onto = open_corpus(put(tmp_path / "doc_a.conll", ONTO))
    (document,) = onto
    assert document.words == ("The", "mayor", "of", "Rome", "spoke", "She", "_")
    assert document.mentions == (Mention(0, 4, "1"), Mention(3, 4, "2"), Mention(5, 6, "1"))
    assert document_name(document) == "doc_a"
    assert onto.notes == {"empty tokens, read as _": 1}
    trees = open_corpus(f"gum:{put(tmp_path / 't.conllu', GUM)}")
    (joined,) = attach_trees(onto, trees)
    assert joined.mentions == (Mention(0, 4, "1", 1), Mention(3, 4, "2", 3), Mention(5, 6, "1", 5))
    assert joined.words[-1] == "left"
    (named,) = open_corpus(tmp_path / "doc_a.conll", trees=f"gum:{tmp_path / 't.conllu'}")
    assert named == joined
    assert joined.heads == (1, 4, 3, 1, -1, 6, -1)
    other = attach_trees(
        open_corpus(put(tmp_path / "doc_a.conll", ONTO.replace("Rome", "Oslo"))), trees
    )
    assert next(iter(other)).heads is None
    assert other.notes["documents without a tree: other words"] == 1
    nameless = attach_trees(open_corpus(put(tmp_path / "doc_b.conll", ONTO)), trees)
    assert next(iter(nameless)).heads is None
    with pytest.raises(InputError, match="holds sentences, not documents"):
        list(attach_trees(onto, open_corpus(tmp_path / "t.conllu")))
    with pytest.raises(InputError, match="doc_a has no trees to attach; give a treebank"):
        list(attach_trees(onto, onto))


@pytest.mark.parametrize("name", ["x.v4_gold_conll", "x.conll"])
def test_conll2012(tmp_path, name):
    path = put(tmp_path / name, CONLL)
    for spec in (path, f"conll2012:{path}", f"conll:{path}"):
        first, second = open_corpus(spec)
        assert first.words == ("The", "big", "dogs", "of", "Rome", "bark", ".", "They", "run")
        assert first.mentions == (
            Mention(0, 5, "0", 2),
            Mention(4, 5, "1", 4),
            Mention(7, 8, "0", 7),
        )
        assert first.upos == ("DET", "ADJ", "NOUN", "ADP", "PROPN", "VERB", "PUNCT", "PRON", "VERB")
        assert first.features[2] == {"Number": "Plur"}
        assert first.sentences == (0,) * 7 + (1,) * 2
        assert document_name(first) == "nw/x/00/x_0001 part 000"
        assert second.mentions == ()


def test_heads_of_phrases():
    from headwise.text.readers.ptb import PhraseHeads, phrases

    def head(words, tags, bits):
        head_of = PhraseHeads(phrases(bits.split(), ["x"] * 9, [0] * 9), tags.split())
        return words.split()[head_of(0, len(tags.split()))]

    assert head("the old dog", "DT JJ NN", "(NP* * *)") == "dog"
    assert head("the dog 's tail", "DT NN POS NN", "(NP(NP* * *) *)") == "tail"
    assert head("the dog 's", "DT NN POS", "(NP* * *)") == "dog"
    assert head("cats and dogs", "NNS CC NNS", "(NP* * *)") == "cats"
    assert head("a cat and a dog", "DT NN CC DT NN", "(NP(NP* *) * (NP* *))") == "cat"
    assert head("oil and gas prices", "NN CC NN NNS", "(NP* * * *)") == "prices"
    assert head("the dog that ran", "DT NN WDT VBD", "(NP(NP* *) (SBAR(WHNP*) (S(VP*))))") == "dog"
    assert head("he", "PRP", "(NP*)") == "he"
    assert head("Mr. Ed Lee", "NNP NNP NNP", "* * *") == "Lee"  # no constituent: the last noun


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("(2)1)", "(2)", r"doc_a\.conll:2: the mention of entity 1 begins here but ends nowhere"),
        ("(1\n", "_\n", r"doc_a\.conll:5: the mention of entity 1 ends here but begins nowhere"),
        ("(1)", "1", r"doc_a\.conll:7: '1' is not a list of brackets"),
        ("4\tspoke\t_", "4\tspoke", r"doc_a\.conll:6: the row has 2 columns"),
    ],
)
def test_broken_ontogum(tmp_path, old, new, why):
    with pytest.raises(InputError, match=why):
        open_corpus(put(tmp_path / "doc_a.conll", ONTO.replace(old, new)))


def test_broken_conll2012(tmp_path):
    with pytest.raises(InputError, match=r"x\.conll:3: the row has 4 columns"):
        open_corpus(put(tmp_path / "x.conll", CONLL.replace("big JJ * - - - - * - -", "big")))
    with pytest.raises(InputError, match=r"x\.conll:2: the parse column opens a bracket"):
        open_corpus(put(tmp_path / "x.conll", CONLL.replace("*)))", "*))")))
    with pytest.raises(InputError, match="its rows have 5 columns"):
        open_corpus(put(tmp_path / "x.conll", "a\tb\tc\td\te\n"))


def test_nested_brackets_of_one_entity():
    marks = ["(1", "(1", "1)", "1)", "(a)"]
    found = [(b.start, b.end, b.entity) for b in bracketed((m, "x") for m in marks)]
    assert found == [(1, 3, "1"), (0, 4, "1"), (4, 5, "a")]


@pytest.mark.real
def test_the_gum_documents(shared):
    folder = shared / "data" / "coreference"
    gum = open_corpus(f"gum:{folder / 'gum_conllu.tar.xz'}")
    onto = open_corpus(folder / "ontogum_conll.tar.xz")
    gum_documents, onto_documents = list(gum), list(onto)
    assert len(gum_documents) == len(onto_documents) == 81
    assert open_corpus(folder / "gum_conllu.tar.xz").survey().count == 3472
    closes = Counter()
    for archive in ("gum_conllu", "ontogum_conll"):
        with tarfile.open(folder / f"{archive}.tar.xz") as tar:
            for member in tar:
                text = io.TextIOWrapper(
                    tar.extractfile(member), encoding="utf-8", newline="\n"
                ).read()
                for line in text.split("\n"):
                    row = line.split("\t")
                    mark = (
                        "".join(re.findall(r"Entity=([^|\t]*)", row[9]))
                        if len(row) == 10
                        else row[2]
                        if len(row) == 3
                        else ""
                    )
                    closes[archive] += mark.count(")")
    assert sum(len(d.mentions) for d in gum_documents) == closes["gum_conllu"] == 21270
    assert sum(len(d.mentions) for d in onto_documents) == closes["ontogum_conll"]
    for document in gum_documents:
        for mention in document.mentions:
            assert mention.start <= mention.head < mention.end
            assert not mention.start <= document.heads[mention.head] < mention.end
    joined = attach_trees(onto, Corpus.from_examples(gum_documents, gum.name))
    assert all(d.heads is not None for d in joined)
    assert joined.notes == {"empty tokens, read as _": 1}
