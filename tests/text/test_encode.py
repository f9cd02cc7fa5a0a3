"""Tokens, words, segments and batches of examples, for tokenizers of several kinds."""

from __future__ import annotations

import copy
import gc
import random
import tracemalloc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import ALL, bert_like, gpt2_like, llama_like

from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.text import Encoder, Example, batches, collate
from headwise.text.encode import NO_SEGMENT, NO_WORD

WORDS = ("The", "dog", "chased", "a", "weatherdog", ",", "and", "ran", ".")


def spelled(encoder, row, word):
    """What the pieces of a word spell, put together by hand."""
    return "".join(encoder.piece_text(int(row.ids[t])) for t in np.flatnonzero(row.word == word))


@pytest.mark.parametrize("make", ALL)
def test_words_given_apart_get_their_own_pieces(make):
    encoder = Encoder(make(), 64)
    words = tuple(w.lower() for w in WORDS)
    row = encoder.encode(Example(words=words), 7)
    assert row.index == 7
    assert row.aligned
    assert not row.truncated
    assert row.word_count == len(words)
    for number, word in enumerate(words):
        assert spelled(encoder, row, number) == word
        assert (row.word == number).any()
    assert (np.diff(row.word[row.word >= 0]) >= 0).all()


@pytest.mark.parametrize("make", ALL)
def test_words_given_apart_are_the_same_text_for_the_model(make):
    encoder = Encoder(make(), 64)
    words = tuple(w.lower() for w in WORDS)
    apart = encoder.encode(Example(words=words))
    whole = make()(" ".join(words))["input_ids"]
    assert apart.ids.tolist() == whole


def test_byte_level_words_are_not_glued_together():
    encoder = Encoder(gpt2_like(), 64)
    assert not encoder.splits_words
    assert Encoder(bert_like(), 64).splits_words
    row = encoder.encode(Example(words=("the", "dog", "ran")))
    assert gpt2_like().decode(row.ids) == "the dog ran"


@pytest.mark.parametrize("make", ALL)
def test_words_as_places_in_a_text(make):
    text = "the dog chased  a cat, and ran."
    words = ("the", "dog", "chased", "a", "cat", ",", "and", "ran", ".")
    spans, at = [], 0
    for word in words:
        at = text.index(word, at)
        spans.append((at, at + len(word)))
        at += len(word)
    encoder = Encoder(make(), 64)
    row = encoder.encode(Example(text=text, words=words, spans=tuple(spans)))
    offsets = make()(text, return_offsets_mapping=True)["offset_mapping"]
    for token, (start, end) in enumerate(offsets):
        touched = {
            w for w, (a, b) in enumerate(spans) for c in range(start, end) if a <= c < b
        }  # character by character
        if row.word[token] == NO_WORD:
            assert not touched
        else:
            assert row.word[token] in touched
    assert row.aligned


def test_a_piece_on_two_words_is_of_the_one_it_is_mostly_of():
    encoder = Encoder(bert_like(), 64)
    row = encoder.encode(
        Example(text="cat the dog", words=("cat t", "he dog"), spans=((0, 5), (5, 11)))
    )
    the = bert_like().convert_ids_to_tokens(row.ids).index("the")
    assert row.word[the] == 1
    assert row.aligned
    assert row.every_word
    one = encoder.encode(
        Example(text="the dog", words=("t", "he", "dog"), spans=((0, 1), (1, 3), (4, 7)))
    )
    assert one.aligned  # all characters of all words are in some token
    assert not one.every_word
    assert 0 not in one.word


def test_a_word_without_pieces_is_not_aligned():
    row = Encoder(bert_like(), 64).encode(Example(words=("the", "\u200b", "dog")))
    assert not row.aligned


def test_text_without_words_has_none():
    row = Encoder(bert_like(), 64).encode(Example(text="the dog"))
    assert (row.word == NO_WORD).all()
    assert row.word_count == 0


@pytest.mark.parametrize("apart", [True, False])
def test_pairs(apart):
    first, second = ("the", "dog", "."), ("a", "cat", ",", "away")
    spans = ((0, 3), (4, 7), (8, 9), (0, 1), (2, 5), (6, 7), (8, 12))
    example = (
        Example(words=first, words_pair=second)
        if apart
        else Example(
            text="the dog .", pair="a cat , away", words=first, words_pair=second, spans=spans
        )
    )
    encoder = Encoder(bert_like(), 64)
    row = encoder.encode(example)
    tokens = bert_like().convert_ids_to_tokens(row.ids)
    assert tokens[0] == "[CLS]"
    assert row.aligned
    seps = np.flatnonzero(row.sep)
    assert len(seps) == 2
    assert seps[1] == len(row) - 1
    inner = seps[0]
    assert (row.segment[1:inner] == 0).all()
    assert (row.segment[inner + 1 : -1] == 1).all()
    assert (row.segment[row.special] == NO_SEGMENT).all()
    assert np.flatnonzero(row.special).tolist() == [0, *seps.tolist()]
    assert row.types.tolist() == [0] * (inner + 1) + [1] * (len(row) - inner - 1)
    assert row.word[1:inner].max() == 2
    assert row.word[inner + 1] == 3
    assert row.word[-2] == 6
    punct = [i for i, token in enumerate(tokens) if token in (".", ",")]
    assert np.flatnonzero(row.punct).tolist() == punct
    assert row.cls.tolist() == [True] + [False] * (len(row) - 1)


def test_special_tokens_of_decoders():
    gpt, llama = Encoder(gpt2_like(), 64), Encoder(llama_like(), 64)
    assert gpt.token_types == ("cls", "punct", "other")
    assert "sep" not in gpt.token_types
    assert llama.token_types == ("cls", "sep", "punct", "other")
    row = llama.encode(Example(words=("the", "dog", ".")))
    assert row.cls.tolist() == [True] + [False] * (len(row) - 1)
    assert not row.sep.any()
    assert row.punct.tolist()[-1]
    row = gpt.encode(Example(words=("the", "dog", ".")))
    assert not row.cls.any()
    assert row.punct.tolist()[-1]
    assert row.word.tolist() == sorted(row.word.tolist())


def test_truncation_cuts_the_end_and_is_told():
    example = Example(words=("the", "dog", "chased", "a", "cat") * 10)
    cut = Encoder(bert_like(), 16).encode(example)
    assert len(cut) == 16
    assert cut.truncated
    assert cut.aligned
    assert cut.sep[-1]
    assert cut.word[1] == 0
    assert 0 < cut.word_count < 50
    assert Encoder(bert_like(), 16, "skip").encode(example) is None
    assert not Encoder(bert_like(), 200).encode(example).truncated


def test_truncation_takes_from_the_longer_segment():
    cut = Encoder(bert_like(), 12).encode(
        Example(words=("the", "dog"), words_pair=("the", "cat") * 20)
    )
    assert len(cut) == 12
    assert set(cut.word[cut.segment == 0]) == {0, 1}
    assert cut.aligned
    assert cut.word[cut.segment == 1][0] == 2


def test_a_tokenizer_that_cuts_left_is_made_to_cut_right():
    import copy

    left = copy.deepcopy(bert_like())
    left.truncation_side = "left"
    row = Encoder(left, 8).encode(Example(words=("the", "dog", "chased", "a", "cat") * 3))
    assert row.word[1] == 0
    assert row.aligned
    assert left.truncation_side == "left"


def test_refusals():
    with pytest.raises(ParameterError, match="overlong"):
        Encoder(bert_like(), 8, "drop")
    with pytest.raises(ModelError, match="fast tokenizer"):
        Encoder(object(), 8)
    with pytest.raises(InputError, match="no words"):
        Encoder(bert_like(), 8).encode(Example(words=(), origin="x:1"))
    with pytest.raises(InputError, match="x:1: the text has no tokens"):
        Encoder(gpt2_like(), 8).encode(Example(text="", origin="x:1"))


def rows_of(lengths):
    encoder = Encoder(bert_like(), 200)
    return [encoder.encode(Example(words=("the",) * n), index) for index, n in enumerate(lengths)]


def test_padding_is_no_token():
    rows = rows_of([3, 9, 5])
    batch = collate(rows, pad_id=99, pad_to=20)
    assert batch.ids.shape == (3, 20)
    assert batch.lengths.tolist() == [len(r) for r in rows]
    for i, row in enumerate(rows):
        n = len(row)
        assert batch.ids[i, :n].tolist() == row.ids.tolist()
        assert (batch.ids[i, n:] == 99).all()
        assert batch.attention_mask[i].tolist() == [True] * n + [False] * (20 - n)
        for name in ("special", "cls", "sep", "punct"):
            assert not getattr(batch, name)[i, n:].any()
        assert (batch.word[i, n:] == NO_WORD).all()
        assert (batch.segment[i, n:] == NO_SEGMENT).all()
    kinds = sum(batch.token_mask(k).int() for k in ("cls", "sep", "punct", "other"))
    assert torch.equal(kinds, batch.attention_mask.int())
    assert batch.select([2, 0]).index == [2, 0]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(1, 150),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_batches_hold_every_row_once_sorted_and_small(lengths, most, min_length_ratio):
    rows = rows_of(lengths)
    made = batches(rows, most, min_length_ratio=min_length_ratio)
    order = [i for batch in made for i in batch.index]
    assert sorted(order) == list(range(len(rows)))
    sizes = [len(rows[i]) for i in order]
    assert sizes == sorted(sizes)
    for batch in made:
        assert len(batch) == 1 or batch.ids.numel() <= most
        assert batch.ids.shape[1] == int(batch.lengths.max())
        assert int(batch.lengths.min()) >= min_length_ratio * int(batch.lengths.max())


def test_no_encoder_outlives_its_use() -> None:
    """The texts of pieces are kept by the encoder: a cache of the module would keep every tokenizer
    for good."""
    encoder = Encoder(copy.deepcopy(bert_like()), 32)
    encoder.encode(Example(text="the dog chased a cat"))
    tokenizer = weakref.ref(encoder.tokenizer)
    del encoder
    gc.collect()
    assert tokenizer() is None


def test_cut_rows_are_what_tokenizers_themselves_keep():
    rng = random.Random(0)
    vocabulary = [
        "the",
        "dog",
        "chased",
        "a",
        ",",
        "and",
        ".",
        "don't",
        "stop",
        "weather",
        "\u200b",
        "xyzzy",
    ]
    for make in ALL:
        tokenizer = make()
        for longest in (8, 9, 17, 64):
            encoder = Encoder(tokenizer, longest)
            for _ in range(12):
                one, two = (
                    " ".join(rng.choices(vocabulary, k=rng.choice([1, 3, 9, 30, 900])))
                    for _ in range(2)
                )
                short = " ".join(
                    two.split()[:30]
                )  # tokenizers make all pairs of pieces: two long texts take gigabytes
                for text, pair in ((one, None), (one, short), (short, one)):
                    row = encoder.encode(Example(text=text, pair=pair))
                    cut = "longest_first" if pair else True
                    wanted = tokenizer(text, pair, truncation=cut, max_length=longest)
                    assert row.ids.tolist() == wanted["input_ids"]


def test_of_a_far_too_long_text_only_a_beginning_is_tokenized(monkeypatch):
    encoder = Encoder(gpt2_like(), 16)
    read = []
    tokenize = type(encoder.tokenizer).__call__
    monkeypatch.setattr(
        type(encoder.tokenizer),
        "__call__",
        lambda self, text, *a, **k: read.append(len(text)) or tokenize(self, text, *a, **k),
    )
    row = encoder.encode(Example(text="the dog " * 50_000))
    assert row.truncated
    assert max(read) <= 1600
    spaces = encoder.encode(
        Example(text=" " * 2000 + "the dog")
    )  # too few tokens in the beginning: all is read
    assert max(read) == 2007
    assert len(spaces) <= 16


def test_two_long_texts_take_no_table_of_pairs_of_pieces():
    encoder = Encoder(bert_like(), 16)
    text = "the dog chased a cat " * 4000
    tracemalloc.start()
    row = encoder.encode(Example(text=text, pair=text))
    assert tracemalloc.get_traced_memory()[1] < 200_000_000
    tracemalloc.stop()
    assert len(row) == 16
    assert [int((row.segment == part).sum()) for part in (0, 1)] == [6, 7]
