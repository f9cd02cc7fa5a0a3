"""Word-level maps against a plain double loop, whole and by blocks of rows."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.models import HeadModel
from headwise.models.view import AttentionRows
from headwise.models.words import word_index, word_maps, word_visibility
from headwise.testing import eager_maps
from headwise.testing.corpora import battery_examples
from headwise.testing.models import random_model
from headwise.text.encode import Batch, Encoded, collate
from slow_dependency import word_map


@pytest.fixture
def rows() -> tuple[list[Encoded], list[np.ndarray]]:
    module, tokenizer = random_model()
    model = HeadModel.open(module, tokenizer=tokenizer)
    encoded = [model.encode(example, i) for i, example in enumerate(battery_examples()[:4])]
    return encoded, eager_maps(model, encoded)


def padded(maps: list[np.ndarray], batch: Batch) -> torch.Tensor:
    """The first layer's weights as the tap shows them."""
    width = batch.ids.shape[1]
    out = torch.zeros(len(batch), maps[0].shape[1], width, width)
    for i, m in enumerate(maps):
        out[i, :, : m.shape[-1], : m.shape[-1]] = torch.from_numpy(m[0])
    return out


def test_equals_the_double_loop(rows: tuple[list[Encoded], list[np.ndarray]]) -> None:
    encoded, maps = rows
    batch = collate(encoded, pad_to=40)
    weights = padded(maps, batch)
    index = word_index(batch)
    visible = (batch.attention_mask[:, :, None] & batch.attention_mask[:, None])[:, None]
    found = word_maps(AttentionRows(0, 0, 40, weights, visible), index, batch.sep[..., None])
    for i, (row, m) in enumerate(zip(encoded, maps, strict=True)):
        count = row.word_count
        for head in range(m.shape[1]):
            np.testing.assert_allclose(
                found[i, head, :count, :count], word_map(m[0, head], row), atol=1e-6
            )
        for word in range(count):  # the extra column: mass on [SEP], mean over the word's pieces
            expected = m[0][:, row.word == word][..., row.sep].sum(-1).mean(-1)
            np.testing.assert_allclose(found[i, :, word, -1], expected, atol=1e-6)
        assert (found[i, :, count:] == 0).all()
    parts = [
        AttentionRows(
            0, start, start + 7, weights[:, :, start : start + 7], visible[:, :, start : start + 7]
        )
        for start in range(0, 40, 7)
    ]
    np.testing.assert_allclose(
        sum(word_maps(part, index, batch.sep[..., None]) for part in parts), found, atol=1e-6
    )


def test_words_have_several_pieces_here(rows: tuple[list[Encoded], list[np.ndarray]]) -> None:
    assert any((row.word >= 0).sum() > row.word_count for row in rows[0])


def test_visibility(rows: tuple[list[Encoded], list[np.ndarray]]) -> None:
    batch = collate(rows[0][:2])
    width = batch.ids.shape[1]
    place = torch.arange(width)
    visible = (
        (place[None] <= place[:, None])
        & batch.attention_mask[:, :, None]
        & batch.attention_mask[:, None]
    )[:, None]
    found = (
        word_visibility(AttentionRows(0, 0, width, visible.float(), visible), word_index(batch)) > 0
    )
    for i, row in enumerate(rows[0][:2]):
        count = row.word_count
        np.testing.assert_array_equal(
            found[i, 0, :count, :count], np.tril(np.ones((count, count), dtype=bool))
        )


def test_examples_that_do_not_align_have_no_words(
    rows: tuple[list[Encoded], list[np.ndarray]],
) -> None:
    batch = collate([rows[0][0], replace(rows[0][1], aligned=False)])
    index = word_index(batch)
    assert index.present[0].any()
    assert not index.present[1].any()


def test_the_index_is_made_once_and_goes_with_its_batch(
    rows: tuple[list[Encoded], list[np.ndarray]],
) -> None:
    batch = collate(rows[0])
    assert word_index(batch) is word_index(batch)
    member = weakref.ref(word_index(batch).member)
    del batch
    gc.collect()
    assert member() is None
