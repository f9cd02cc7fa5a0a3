"""What an analysis asks of the weights equals plain arithmetic on them, by blocks of rows and in
the GPU's kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from headwise.models import HeadModel
from headwise.models.masks import MaskPattern, is_open, row_mask
from headwise.models.statistics import (
    StatsRequest,
    StatsResult,
    Visibility,
    can_join,
    compute_statistics,
    cpu_attention,
    equal_labels,
    fused,
    join_layers,
    reducer,
)
from headwise.models.tap import Call
from headwise.models.view import AttentionRows, Layer
from headwise.testing.models import random_model
from headwise.text.encode import Batch

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
WORDS = ["the", "dog", "saw", "a", "cat", "."]
TEXTS = [
    "the dog saw a cat .",
    "a cat .",
    "the dog the dog the dog saw a cat . a dog saw the cat .",
]


class Watch:
    """Asks, and keeps what it is told."""

    def __init__(self, ask: StatsRequest, needs: frozenset[str] = frozenset()) -> None:
        self.request: StatsRequest | None = ask
        self.needs = needs
        self.told: list[StatsResult] = []

    def on_rows(self, rows: AttentionRows) -> None: ...

    def on_layer(self, layer: Layer) -> None: ...

    def on_statistics(self, result: StatsResult) -> None:
        self.told.append(result)


def everything(batch: Batch) -> StatsRequest:
    ids = torch.where(batch.attention_mask, batch.ids, -1)
    before = torch.cat([torch.full_like(ids[:, :1], -1), ids[:, :-1]], dim=1)
    return StatsRequest(
        columns={
            "first": torch.arange(ids.shape[1], device=ids.device).expand_as(ids) == 0,
            "odd": ids % 2 == 1,
        },
        equal_labels={"same": (ids, ids), "after": (ids, before)},
        offsets=frozenset({-2, -1, 0, 1, 40}),
        pairs={
            "some": torch.tensor(
                [[0, 1, 2, 2, 2], [3, 0, 5, 5, 16], [1, 2, 5, 0, 3]], device=ids.device
            )
        },
        rows={"few": torch.tensor([0, 2, 5, 6], device=ids.device)},
        max_offset=4,
        distance=True,
        received=True,
        entropy=True,
        max_weight=True,
        without_first=True,
        uniform=True,
    )


def assert_equal_to_loops(
    told: StatsResult,
    weights: np.ndarray,
    visible: np.ndarray,
    ask: StatsRequest,
    tolerance: float = 1e-6,
) -> None:
    """Against loops: `weights[example, head, row, key]` as a trace has them, `visible[example, row,
    key]`."""
    close = {"atol": tolerance, "rtol": tolerance}
    n = weights.shape[-1]
    apart = np.arange(n)[None] - np.arange(n)[:, None]
    for name, keys in ask.columns.items():
        np.testing.assert_allclose(
            told.columns[name].cpu(), (weights * keys.cpu().numpy()[:, None, None]).sum(-1), **close
        )
    for name, (own, theirs) in ask.equal_labels.items():
        equal = (own.cpu().numpy()[:, :, None] == theirs.cpu().numpy()[:, None]) & (
            own.cpu().numpy() >= 0
        )[:, :, None]
        np.testing.assert_allclose(
            told.equal_labels[name].cpu(), (weights * equal[:, None]).sum(-1), **close
        )
    for offset in ask.offsets:
        np.testing.assert_allclose(
            told.at_offset[offset].cpu(), (weights * (apart == offset)).sum(-1), **close
        )
    for name, (example, row, key) in ask.pairs.items():
        own = np.stack(
            [
                weights[e, :, i, j]
                for e, i, j in zip(example.cpu(), row.cpu(), key.cpu(), strict=True)
            ]
        )
        np.testing.assert_allclose(told.pair_weights[name].cpu(), own, **close)
    for name, wanted in ask.rows.items():
        own, seen = told.rows[name]
        np.testing.assert_allclose(own.cpu(), weights[:, :, wanted.cpu()], **close)
        np.testing.assert_array_equal(seen[:, 0].cpu(), visible[:, wanted.cpu()])
    around = range(-ask.max_offset, ask.max_offset + 1)
    by_offset = [(weights * (apart == offset)).sum((-2, -1)) for offset in around]
    np.testing.assert_allclose(told.diagonals.cpu(), np.stack(by_offset, -1), **close)
    np.testing.assert_array_equal(
        told.n_pairs.cpu(), np.stack([(visible * (apart == o)).sum((-2, -1)) for o in around], -1)
    )
    assert told.received is not None
    np.testing.assert_allclose(told.received.cpu(), weights.sum(-2), atol=tolerance * n)
    assert told.offset_sum is not None
    assert told.distance_sum is not None
    assert told.entropy is not None
    assert told.max_weight is not None
    np.testing.assert_allclose(
        told.offset_sum.cpu(), (weights * apart).sum((-2, -1)), atol=tolerance * n * n
    )
    np.testing.assert_allclose(
        told.distance_sum.cpu(), (weights * abs(apart)).sum((-2, -1)), atol=tolerance * n * n
    )
    tokens = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(tokens > 0, tokens * np.log(tokens), 0).sum(-1)
    np.testing.assert_allclose(told.entropy.cpu(), entropy, atol=5 * tolerance)
    np.testing.assert_allclose(told.max_weight.cpu(), weights.max(-1), **close)
    np.testing.assert_array_equal(told.n_visible.cpu(), visible.sum(-1))
    others = weights[..., 1:].astype(np.float64)
    left = others.sum(-1, keepdims=True)
    shares = others / np.where(left > 0, left, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(shares > 0, shares * np.log(shares), 0).sum(-1)
    assert told.without_first is not None
    np.testing.assert_allclose(told.without_first.mass.cpu(), left[..., 0], **close)
    np.testing.assert_allclose(told.without_first.entropy.cpu(), entropy, atol=5 * tolerance)
    np.testing.assert_allclose(told.without_first.max_weight.cpu(), shares.max(-1), **close)


def model(causal: bool, **options: Any) -> HeadModel:
    module, tokenizer = random_model(
        words=WORDS, causal=causal, layers=2, heads=3, d_head=8, **options
    )
    return HeadModel.open(module, tokenizer=tokenizer)


@pytest.mark.parametrize("block_rows", [None, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_by_rows_is_plain_arithmetic(causal: bool, block_rows: int | None) -> None:
    own = model(causal)
    batch = own.batch(TEXTS)
    ask, trace = everything(batch), own.trace(batch)
    watch = Watch(ask)
    own.forward(batch, watch, block_rows=block_rows)
    assert [told.layer for told in watch.told] == [0, 1]
    assert trace.attention is not None
    assert trace.visible is not None
    for layer, told in enumerate(watch.told):
        visible = trace.visible[:, layer, 0].numpy()
        assert_equal_to_loops(told, trace.attention[:, layer].numpy(), visible, ask)
        even = visible / np.maximum(visible.sum(-1, keepdims=True), 1)
        assert told.uniform is not None
        assert_equal_to_loops(told.uniform, even[:, None], visible, ask)


@pytest.mark.parametrize(
    "at_once", [40, 150, 700]
)  # some rows of a head, some heads of an example, some examples
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_that_fit_a_cache_are_plain_arithmetic(
    causal: bool, at_once: int, monkeypatch: Any
) -> None:
    own = model(causal)
    batch = own.batch([*TEXTS, *TEXTS[:2]])
    ask, trace = everything(batch), own.trace(batch)
    monkeypatch.setattr(cpu_attention, "BLOCK_WEIGHTS", at_once)
    monkeypatch.setattr(reducer, "BLOCK_WEIGHTS", at_once)
    for needs in (frozenset[str](), frozenset({"attention"})):
        watch = Watch(ask, needs)
        out = own.forward(batch, watch).last_hidden_state
        assert (out - own.forward(batch).last_hidden_state)[batch.attention_mask].abs().max() < 1e-5
        assert trace.attention is not None
        assert trace.visible is not None
        for layer, told in enumerate(watch.told):
            assert_equal_to_loops(
                told, trace.attention[:, layer].numpy(), trace.visible[:, layer, 0].numpy(), ask
            )


def test_entropy_from_scores_is_that_of_the_weights() -> None:
    """Sharp heads, whose scores are large, with a first token that takes nearly all: against double
    precision."""
    made = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 3, 24, 8, generator=made) * 4 for _ in range(2))
    key[:, :, 0] += query.mean(2)
    mask = torch.zeros(2, 1, 24, 24)
    mask[1, ..., 20:] = -torch.inf
    call = Call(torch.nn.Identity(), query, key, query, mask)
    wanted = reducer.PreparedRequest(
        StatsRequest(without_first=True, entropy=True, max_weight=True), (2, 24, 24), query.device
    )
    found = reducer.StatsReducer(wanted, 3, query)
    room = query.new_empty(2, 24, 3, 8)
    with torch.no_grad():
        cpu_attention.CpuAttention(
            call, key, query, room, [24, 24], False, cpu_attention.ScratchBuffer()
        ).attend(0, 24, None, found)
    seen = mask[:, 0] == 0
    told = found.result(0, Visibility(seen.sum(-1), torch.zeros(2, 1), {}))
    scores = (query.double() @ key.double().transpose(2, 3)) * call.scaling + mask
    weights = scores.softmax(-1)
    shares = weights[..., 1:] / weights[..., 1:].sum(-1, keepdim=True)
    bound = 1e-5 * float(scores[scores.isfinite()].abs().max())
    assert told.entropy is not None
    assert told.without_first is not None
    assert (told.entropy - torch.special.entr(weights).sum(-1)).abs().max() < bound
    assert (told.without_first.entropy - torch.special.entr(shares).sum(-1)).abs().max() < bound
    torch.testing.assert_close(
        told.without_first.max_weight, shares.amax(-1).float(), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        room, (weights @ query.double()).transpose(1, 2).float(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("kinds", "way"), [(2, "columns"), (200, "sparse"), (9, "dense")])
def test_equal_labels_by_every_way(kinds: int, way: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(equal_labels, "DENSE_SHARE", 12)
    made = torch.Generator().manual_seed(0)
    own, theirs = (torch.randint(-1, kinds, (3, 40), generator=made) for _ in range(2))
    weights = torch.rand(3, 2, 40, 40, generator=made)
    ask = StatsRequest(
        equal_labels={"kind": (own, theirs)},
        pairs={"some": torch.tensor([[2, 0], [1, 39], [39, 0]])},
    )
    assert "kind" in getattr(
        reducer.PreparedRequest(ask, (3, 40, 40), weights.device).equal_labels, way
    )
    same = (own[:, :, None] == theirs[:, None]) & (own >= 0)[..., None]
    told = compute_statistics(
        ask, AttentionRows(0, 0, 40, weights, torch.ones(3, 1, 40, 40, dtype=torch.bool))
    )
    torch.testing.assert_close(told.equal_labels["kind"], (weights * same[:, None]).sum(-1))
    torch.testing.assert_close(
        told.pair_weights["some"], torch.stack([weights[2, :, 1, 39], weights[0, :, 39, 0]])
    )


@pytest.mark.parametrize("causal", [False, True])
def test_little_beside_a_sink_is_as_exact_as_much(causal: bool) -> None:
    """The first token takes all but a millionth: what is left is still known to rounding."""
    own = model(causal)
    batch = own.batch(TEXTS)
    scores = torch.randn(
        3, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    scores[..., 0] += 15
    n = batch.ids.shape[1]
    visible = (
        batch.attention_mask[:, None, :, None]
        & batch.attention_mask[:, None, None]
        & (torch.ones(n, n).tril().bool() | (not causal))
    )
    weights = (scores[..., :n, :n].masked_fill(~visible, -torch.inf)).softmax(-1).nan_to_num(0)
    ask = StatsRequest(without_first=True, entropy=True)
    told = compute_statistics(ask, AttentionRows(0, 0, n, weights.float(), visible))
    left = weights[..., 1:].sum(-1)
    assert 0 < left[left > 0].max() < 1e-4
    shares = weights[..., 1:] / left.clamp(min=1e-30)[..., None]
    entropy = torch.special.entr(shares).sum(-1)
    assert told.without_first is not None
    assert (told.without_first.entropy - entropy).abs().max() < 1e-5
    assert ((told.without_first.mass - left).abs() <= 1e-6 * left).all()


@pytest.mark.parametrize("needs", [frozenset[str](), frozenset({"attention"})])
def test_what_is_asked_alone_is_what_is_asked_with_the_rest(needs: frozenset[str]) -> None:
    own = model(causal=True)
    batch = own.batch(TEXTS)
    whole = Watch(everything(batch), needs)
    own.forward(batch, whole)
    first = everything(batch).columns["first"]
    alone = Watch(
        StatsRequest({"rest": first}, entropy=True), needs
    )  # a set of keys may be called what it likes
    own.forward(batch, alone)
    for told, wanted in zip(alone.told, whole.told, strict=True):
        torch.testing.assert_close(told.entropy, wanted.entropy)
        torch.testing.assert_close(told.columns["rest"], wanted.columns["first"])


def test_layers_side_by_side_are_layers_of_more_heads() -> None:
    own = model(causal=False)
    batch = own.batch(TEXTS)
    ask, trace = everything(batch), own.trace(batch)
    watch = Watch(ask)
    own.forward(batch, watch)
    assert trace.attention is not None
    assert trace.visible is not None
    visible = trace.visible[:, 0, 0].numpy()
    assert_equal_to_loops(
        join_layers(watch.told), trace.attention.flatten(1, 2).numpy(), visible, ask
    )
    assert join_layers(watch.told[:1]) is watch.told[0]


def test_layers_that_lack_a_part_of_the_others_stand_alone() -> None:
    own = model(causal=True)
    batch = own.batch(["one two three four", "five six"])
    watch, changed = Watch(StatsRequest(entropy=True)), Watch(StatsRequest(entropy=True))
    own.forward(batch, watch)
    assert can_join(*watch.told[:2])
    own.forward(
        batch, changed, interventions={(1, 0): "uniform"}
    )  # whose weights are formed, so that the largest is not needed
    assert (changed.told[0].max_weight is None) != (changed.told[1].max_weight is None)
    assert not can_join(*changed.told[:2])


@pytest.mark.parametrize(
    ("causal", "window", "softcap"),
    [(True, 0, 0.0), (True, 3, 5.0), (False, 0, 0.0), (False, 3, 0.0)],
)
def test_single_weights_and_rows_beside_the_kernel(
    causal: bool, window: int, softcap: float
) -> None:
    """What the kernel leaves to plain products, from its logsumexp: grouped keys, padding, windows,
    caps."""
    made = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 4, 7, 8, generator=made), torch.randn(2, 2, 7, 8, generator=made)
    lengths, place = torch.tensor([7, 5]), torch.arange(7)
    raw = (query @ key.repeat_interleave(2, dim=1).transpose(2, 3)) * 0.5
    raw = softcap * torch.tanh(raw / softcap) if softcap else raw
    apart = place[:, None] - place
    seen = (place < lengths[:, None])[:, :, None] & (place < lengths[:, None])[:, None]
    seen = seen & ((apart >= 0) | (not causal)) & ((apart.abs() < window) | (not window))
    raw = raw.masked_fill(~seen[:, None], -torch.inf)
    scores: Any = SimpleNamespace(
        query=query, key=key, lengths=lengths, scaling=0.5, causal=causal, window=window
    )
    scores.softcap = softcap
    weights, wanted = raw.softmax(-1).nan_to_num(), torch.tensor([0, 3, 6])
    logsumexp = raw.logsumexp(-1).nan_to_num(neginf=torch.inf)
    visibility = fused._visibility(StatsRequest(rows={"some": wanted}, max_offset=4), scores)
    shown = visibility.rows["some"]
    rows = fused._row_weights(scores, logsumexp, wanted, shown)
    torch.testing.assert_close(rows, weights[:, :, wanted])
    assert torch.equal(shown[:, 0], seen[:, wanted])
    pairs = torch.cartesian_prod(torch.arange(2), place, place).T
    found = fused._pair_weights(scores, logsumexp, pairs)
    torch.testing.assert_close(found, weights.permute(0, 2, 3, 1).reshape(-1, 4))
    assert torch.equal(visibility.n_visible, seen.sum(-1))
    counted = torch.stack(
        [(seen & (-apart == offset)).sum((1, 2)) for offset in range(-4, 5)], dim=-1
    )
    assert torch.equal(visibility.n_pairs, counted)


def test_a_mask_of_true_and_false_hides_what_an_additive_one_hides() -> None:
    made = torch.Generator().manual_seed(0)
    query, key, bias = (torch.randn(2, 3, 6, 8, generator=made) for _ in range(3))
    bias = bias[..., :6]
    seen = torch.rand(2, 1, 6, 6, generator=made) > 0.4
    seen[..., 0] = True
    added = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    wanted = (
        ((query @ key.transpose(2, 3)) * 8**-0.5 + bias).masked_fill(~seen, -torch.inf).softmax(-1)
    )
    for mask in (seen, added):
        call = Call(torch.nn.Identity(), query, key, query, mask, bias=bias)
        assert torch.equal(is_open(call.rows_mask(0, 6)), seen)
        torch.testing.assert_close(call.weights(key, 0, 6)[0], wanted)
        torch.testing.assert_close(call.fused(key, query, 0, 6), wanted @ query)
        room = query.new_empty(2, 6, 3, 8)
        with torch.no_grad():
            cpu_attention.CpuAttention(
                call, key, query, room, [6, 6], False, cpu_attention.ScratchBuffer()
            ).attend(0, 6, None, None)
        torch.testing.assert_close(room.transpose(1, 2), wanted @ query)
        triangle = Call(torch.nn.Identity(), query, key, query, mask, causal=True).rows_mask(0, 6)
        assert torch.equal(is_open(triangle), seen.tril())


def test_two_asks_are_one() -> None:
    first, second = (
        StatsRequest(max_offset=2, entropy=True, offsets=frozenset({1})),
        StatsRequest(max_offset=5, offsets=frozenset({-1})),
    )
    both = StatsRequest.merge([first, second])
    assert both is not None
    assert (both.max_offset, both.entropy, both.max_weight, both.offsets) == (
        5,
        True,
        False,
        frozenset({-1, 1}),
    )
    assert StatsRequest.merge([]) is None


@pytest.mark.parametrize(
    ("kind", "settings", "wanted"),
    [
        ("llama", {}, {MaskPattern(True)}),
        ("bert", {}, {MaskPattern(False)}),
        ("mistral", {"sliding_window": 5}, {MaskPattern(True, 5)}),
        ("gemma3_text", {"sliding_window": 5}, {MaskPattern(True), MaskPattern(True, 5)}),
        ("modernbert", {"local_attention": 6}, {MaskPattern(False), MaskPattern(False, 4)}),
    ],
)
def test_masks_are_read_as_sights(
    kind: str, settings: dict[str, Any], wanted: set[MaskPattern], monkeypatch: Any
) -> None:
    """The masks of real architectures, as transformers builds them, come to what the kernel is
    told."""
    small = {
        "hidden_size": 24,
        "intermediate_size": 16,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "head_dim": 12,
    }
    config = AutoConfig.for_model(
        kind,
        **small,
        num_key_value_heads=1,
        vocab_size=30,
        max_position_embeddings=64,
        pad_token_id=0,
        **settings,
    )
    own = HeadModel.open(AutoModel.from_config(config).eval())
    found = []

    def recording_row_mask(**arguments: Any) -> Any:
        made = row_mask(**arguments)
        found.append(None if made is None else made.pattern)
        return made

    monkeypatch.setattr("headwise.models.tap.row_mask", recording_row_mask)
    ids = torch.randint(1, 30, (2, 12))
    real = torch.arange(12) < torch.tensor([[12], [7]])
    with torch.no_grad():
        from headwise.models.session import Session

        with Session(own.sites, real, block_rows=4).running():
            own.run(ids, real, torch.zeros_like(ids))
    assert set(found) == wanted


def test_a_mask_of_another_kind_is_no_sight() -> None:
    def chunks(batch: int, head: int, query: Any, key: Any) -> Any:
        return (query // 4 == key // 4) & (key <= query)

    made = row_mask(
        batch_size=1,
        q_length=16,
        kv_length=16,
        mask_function=chunks,
        attention_mask=None,
        dtype=torch.float32,
        local_size=4,
    )
    assert made is not None
    assert made.pattern is None


@CUDA
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_gives_the_same(causal: bool) -> None:
    own = model(causal)
    own.module.to("cuda")
    own.device = torch.device("cuda")
    batch = own.batch(TEXTS)
    ask, trace = everything(batch), own.trace(batch)
    watch = Watch(ask)
    own.forward(batch, watch)
    assert trace.attention is not None
    assert trace.visible is not None
    for layer, told in enumerate(watch.told):
        visible = trace.visible[:, layer, 0].cpu().numpy()
        assert_equal_to_loops(told, trace.attention[:, layer].cpu().numpy(), visible, ask, 1e-5)
        assert told.uniform is not None
        assert_equal_to_loops(
            told.uniform,
            (visible / np.maximum(visible.sum(-1, keepdims=True), 1))[:, None],
            visible,
            ask,
            1e-5,
        )
