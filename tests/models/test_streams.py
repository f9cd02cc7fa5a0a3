"""Interventions in the residual stream and after feed-forward parts, against changed weights and
other inputs."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import SEQ2SEQ, SUPPORTED, build, ids_batch
from torch import Tensor

from headwise.core.errors import ModelError, ParameterError
from headwise.models import HeadModel, Mean, Patch
from headwise.text.encode import Batch

LAYER = 1
LAST = {  # the last linear map of a layer's feed-forward part
    "gpt2": "h.1.mlp.c_proj",
    "llama": "layers.1.mlp.down_proj",
    "gpt-neox": "layers.1.mlp.dense_4h_to_h",
    "falcon": "h.1.mlp.dense_4h_to_h",
    "opt": "decoder.layers.1.fc2",
    "bert": "encoder.layer.1.output.dense",
    "distilbert": "transformer.layer.1.ffn.lin2",
    "t5": "encoder.block.1.layer.1.DenseReluDense.wo",
    "bart": "encoder.layers.1.fc2",
}


def final(model: HeadModel, batch: Batch, **options: object) -> Tensor:
    found: Tensor = model.forward(batch, **options).last_hidden_state  # type: ignore[arg-type]
    return found[batch.attention_mask]


@pytest.mark.parametrize("name", LAST)
def test_streams_against_changed_weights_and_other_inputs(name: str) -> None:
    module = build(*{**SUPPORTED, **SEQ2SEQ}[name])
    silent = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in silent.get_submodule(LAST[name]).parameters():
            parameter.zero_()
    batch, other = (ids_batch((7, 7), seed=seed) for seed in (0, 1))
    model = HeadModel.open(module)
    wanted = final(HeadModel.open(silent), batch)
    torch.testing.assert_close(final(model, batch, interventions={(LAYER, "mlp"): "zero"}), wanted)
    assert not torch.allclose(wanted, final(model, batch), atol=1e-3)
    hidden = model.trace(other, {"hidden"}).hidden
    assert hidden is not None
    patch = Patch(output=hidden[:, LAYER])
    # What enters a layer is all that the layers above see of the input.
    torch.testing.assert_close(
        final(model, batch, interventions={(LAYER, "residual"): patch}), final(model, other)
    )


def test_where_examples_and_tokens_are_flattened_means_and_one_patch_for_all_reach_the_feed_forward_part() -> (
    None
):
    module = build(*SUPPORTED["opt"])  # its feed-forward part works on [example · token, width]
    model, batch = HeadModel.open(module), ids_batch((7, 7))
    given: list[Tensor] = []
    with module.get_submodule(LAST["opt"]).register_forward_hook(
        lambda _, __, output: given.append(output)
    ):
        model.forward(batch)
    mean, one = given[0].view(2, 7, -1).mean(1, keepdim=True), torch.randn(7, model.hidden)
    for what, output in (("mean", mean), (Patch(output=one), one)):
        wanted = final(
            model, batch, interventions={(LAYER, "mlp"): Patch(output=output.expand(2, 7, -1))}
        )
        torch.testing.assert_close(
            final(model, batch, interventions={(LAYER, "mlp"): what}), wanted
        )


def test_means_single_examples_and_shared_layers() -> None:
    model = HeadModel.open(build(*SUPPORTED["albert"]))  # one module, called for every layer
    batch = ids_batch((6, 4))
    hidden = model.trace(batch, {"hidden"}).hidden
    assert hidden is not None
    seen = model.trace(batch, {"hidden"}, interventions={(2, "residual"): "mean"}).hidden
    assert seen is not None
    torch.testing.assert_close(seen[:, :2], hidden[:, :2])
    torch.testing.assert_close(seen[1, 2, 0], hidden[1, 2, :4].mean(0))
    torch.testing.assert_close(seen[1, 2, 0], seen[1, 2, 3])
    vector = torch.arange(32.0)
    seen = model.trace(
        batch, {"hidden"}, interventions={(1, "residual"): Mean(vector), (0, 1): "zero"}
    ).hidden
    assert seen is not None
    assert (seen[:, 1] == vector).all()


@pytest.mark.parametrize(("name", "stream"), [("falcon", "mlp"), ("gpt1", "residual")])
def test_a_vector_for_all_tokens_serves_models_that_write_into_it_or_want_it_in_one_piece(
    name: str, stream: str
) -> None:
    model, batch, vector = (
        HeadModel.open(build(*SUPPORTED[name])),
        ids_batch((6, 4)),
        torch.arange(32.0),
    )
    whole = Patch(output=vector.expand(2, 6, 32).clone())
    found = [
        final(model, batch, interventions={(LAYER, stream): what}) for what in (Mean(vector), whole)
    ]
    torch.testing.assert_close(*found)
    final(model, batch, interventions={(LAYER, stream): "mean"})


def test_what_streams_do_not_take() -> None:
    model, batch = HeadModel.open(build(*SUPPORTED["bert"])), ids_batch((5,))
    wrong = {
        (1, "residual"): ("uniform", "takes zero, mean"),
        (1, "mlp"): (Mean(torch.zeros(8)), r"size, \[32\]"),
        (3, "mlp"): ("zero", "no layer 3"),
        (0, "attention"): ("zero", "residual, mlp"),
    }
    for key, (what, words) in wrong.items():
        with pytest.raises(ParameterError, match=words):
            model.forward(batch, interventions={key: what})  # type: ignore[dict-item]
    with pytest.raises(ParameterError, match=r"must have shape \[1, 5, 32\]"):
        model.forward(batch, interventions={(1, "mlp"): Patch(output=torch.zeros(4, 32))})
    with pytest.raises(ModelError, match="cannot be told"):
        HeadModel.open(build(*SUPPORTED["xlnet"])).forward(
            batch, interventions={(1, "mlp"): "zero"}
        )
