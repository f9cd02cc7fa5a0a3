"""Wikipedia's paragraphs as pairs of at most 128 tokens, with the demo model's tokenizer."""

from __future__ import annotations

from itertools import islice

import pytest

from headwise.text import Encoder, open_corpus


@pytest.mark.real
def test_wikipedia_pairs(shared, wiki_bert):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(wiki_bert)
    articles = open_corpus(shared / "data" / "wikipedia" / "articles.jsonl.gz", tokenizer=tokenizer)
    corpus = list(islice(articles, 200))
    encoder = Encoder(tokenizer, 128)
    lengths = []
    for example in corpus:
        row = encoder.encode(example)
        assert not row.truncated
        lengths.append(len(row))
        assert row.sep.sum() == 2
    assert len(lengths) == 200
    assert max(lengths) <= 128
    assert (
        sorted(lengths)[20] >= 60
    )  # "most of our segments are 128 tokens long": few are much shorter
    assert len({int(e.origin.rsplit(":", 1)[1]) for e in corpus}) > 1
