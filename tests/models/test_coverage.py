"""Every architecture either gives its own eager attention through the tap, or is refused by
name."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import NOT_SUPPORTED, SEQ2SEQ, SUPPORTED, build, ids_batch
from torch import Tensor

from headwise.core.errors import ModelError
from headwise.models import AttentionRows, HeadModel, Layer
from headwise.text.encode import Batch, collate

REQUIRED = [
    "bert",
    "roberta",
    "xlm-roberta",
    "electra",
    "albert",
    "distilbert",
    "mobilebert",
    "modernbert",
    "gpt1",
    "gpt2",
    "gpt-neox",
    "opt",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt-oss",
    "deberta-v2",
    "bloom",
    "falcon",
    "xlnet",
]


class Everything:
    """Keeps the weights, values and outputs of every layer."""

    needs = frozenset({"attention", "outputs", "hidden"})

    def __init__(self) -> None:
        self.blocks: list[AttentionRows] = []
        self.layers: list[Layer] = []

    def on_rows(self, rows: AttentionRows) -> None:
        self.blocks.append(rows)

    def on_layer(self, layer: Layer) -> None:
        self.layers.append(layer)


def own_pass(model: Any, batch: Batch, stack: str | None) -> tuple[Any, Tensor]:
    """The model's own eager output and its attentions [example, layer, head, query, key] of a
    stack."""
    read = batch.source or batch
    inputs: dict[str, Any] = {
        "input_ids": read.ids,
        "attention_mask": read.attention_mask.long(),
        "output_attentions": True,
        "output_hidden_states": True,
    }
    if stack is not None:
        inputs |= {
            "decoder_input_ids": batch.ids,
            "decoder_attention_mask": batch.attention_mask.long(),
        }
    if "use_cache" in model.forward.__code__.co_varnames or stack is not None:
        inputs["use_cache"] = False
    with torch.no_grad():
        output = model(**inputs)
    return output, torch.stack(
        output.attentions if stack is None else getattr(output, f"{stack}_attentions"), dim=1
    )


def assert_tap_agrees_with_the_model(model: Any, stack: str | None) -> None:
    own = copy.deepcopy(model)
    opened = HeadModel.open(model, stack=stack)
    batch = ids_batch(pad_id=opened.pad_id)
    if stack in ("decoder", "cross"):  # a source of its own, longer and shorter than the target
        sources = ids_batch((7, 13, 6), pad_id=opened.pad_id, seed=1).rows
        both = zip(batch.rows, sources, strict=True)
        paired = [replace(row, source=source, cross=stack == "cross") for row, source in both]
        batch = collate(paired, opened.pad_id)
    watcher = Everything()
    opened.forward(batch, watcher)
    output, attentions = own_pass(own, batch, stack)

    assert (
        [rows.layer for rows in watcher.blocks]
        == [layer.layer for layer in watcher.layers]
        == list(range(opened.layers))
    )
    assert attentions.shape[1] == opened.layers
    assert attentions.shape[2] == opened.heads
    for rows, layer in zip(watcher.blocks, watcher.layers, strict=True):
        expected = attentions[:, rows.layer]
        for example, length in enumerate(batch.lengths.tolist()):
            torch.testing.assert_close(
                rows.weights[example, :, :length], expected[example, :, :length], atol=1e-5, rtol=0
            )
            assert not rows.weights[example, :, length:].any()
            total = rows.weights[example, :, :length].sum(-1) + (
                0 if rows.sink is None else rows.sink[example, :, :length]
            )
            torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)
        assert rows.visible.shape[1] == 1  # V(i) is the same for all heads
        visible = rows.visible.expand_as(rows.weights)
        assert not rows.weights[~visible].any()
        assert (
            rows.weights[visible] > 0
        ).all()  # nothing that is seen is called unseen, in these small models
        assert layer.value is not None
        assert layer.outputs is not None
        value = layer.value.repeat_interleave(opened.heads // layer.value.shape[1], dim=1)
        produced = rows.weights @ value
        for example, length in enumerate(batch.lengths.tolist()):
            torch.testing.assert_close(
                layer.outputs[example, :, :length],
                produced[example, :, :length],
                atol=1e-5,
                rtol=1e-5,
            )
    if stack is None:
        for layer, expected in zip(watcher.layers, output.hidden_states, strict=False):
            assert layer.hidden is not None
            torch.testing.assert_close(
                layer.hidden[batch.attention_mask],
                expected[batch.attention_mask],
                atol=1e-5,
                rtol=1e-5,
            )

    blocked = opened.trace(batch, block_rows=4)
    assert blocked.attention is not None
    torch.testing.assert_close(
        blocked.attention,
        torch.stack([rows.weights for rows in watcher.blocks], 1),
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize("name", SUPPORTED)
def test_served(name: str) -> None:
    assert_tap_agrees_with_the_model(build(*SUPPORTED[name]), None)


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_encoder_decoders(name: str, stack: str) -> None:
    assert_tap_agrees_with_the_model(build(*SEQ2SEQ[name]), stack)


@pytest.mark.parametrize("name", NOT_SUPPORTED)
def test_refused_by_name(name: str) -> None:
    model = build(*NOT_SUPPORTED[name])
    before = model.config._attn_implementation
    why = "has no attention" if name in ("fnet", "mamba") else "is not supported.*own way"
    with pytest.raises(ModelError, match=f"^{type(model).__name__} {why}"):
        HeadModel.open(model)
    assert model.config._attn_implementation == before


def test_how_many() -> None:
    assert set(REQUIRED) <= set(SUPPORTED)
    assert {"t5", "bart"} <= set(SEQ2SEQ)
    assert len({spec[0] for table in (SUPPORTED, SEQ2SEQ) for spec in table.values()}) >= 35


@pytest.mark.parametrize(
    "name", ["mistral", "gemma3", "qwen3", "gpt-oss", "modernbert", "gpt-neo", "olmo3"]
)
def test_windows_are_really_shorter_than_the_input(name: str) -> None:
    opened = HeadModel.open(build(*SUPPORTED[name]))
    seen = opened.trace(ids_batch((11,), opened.pad_id)).visible
    assert seen is not None
    widths = seen[0, :, 0].sum(-1).max(-1).values.tolist()
    assert min(widths) in (4, 5)  # 4 tokens, or 2 to either side
    assert name in ("mistral",) or max(widths) == 11


def test_the_cap_changes_something() -> None:
    name, cls, arguments = SUPPORTED["gemma2"]
    batch = ids_batch()
    with_cap, without = (
        HeadModel.open(build(name, cls, arguments | {"attn_logit_softcapping": cap}))
        .trace(batch)
        .attention
        for cap in (0.5, None)
    )
    assert with_cap is not None
    assert without is not None
    assert (with_cap - without).abs().max() > 0.01


def test_the_sink_takes_mass() -> None:
    opened = HeadModel.open(build(*SUPPORTED["gpt-oss"]))
    batch = ids_batch()
    trace = opened.trace(batch)
    assert trace.sink is not None
    assert trace.attention is not None
    real = batch.attention_mask[:, None, None].expand_as(trace.sink)
    assert trace.sink[real].min() > 0.01
    assert not trace.sink[~real].any()
    assert trace.attention.sum(-1)[real].max() < 0.99


def test_grouped_heads_keep_their_group() -> None:
    opened = HeadModel.open(build(*SUPPORTED["llama"]))
    assert (opened.heads, opened.kv_heads, opened.kv_groups) == (4, 2, (0, 0, 1, 1))
    single = HeadModel.open(build(*SUPPORTED["gpt-bigcode"]))
    assert single.kv_groups == (0, 0, 0, 0)


def test_unknown_stack_is_named() -> None:
    with pytest.raises(
        ModelError, match="BertModel has no attention of the kind 'decoder'; it has encoder"
    ):
        HeadModel.open(build(*SUPPORTED["bert"]), stack="decoder")
