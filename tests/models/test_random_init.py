"""Twins with random weights, bodies without their heads, and models that read no text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import GROUPED, SUPPORTED, VOCABULARY, build, ids_batch, word_tokenizer

from headwise.core.errors import ModelError
from headwise.models import HeadModel
from headwise.models.random_init import random_but_embeddings, with_random_weights
from headwise.models.vectors import batch_vectors

LLAMA4 = GROUPED | {
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 48,
    "pad_token_id": 0,
}


@pytest.mark.parametrize("name", ["falcon", "gptj", "gpt-neo"])
def test_classes_built_by_the_name_of_their_attention_have_twins(name: str) -> None:
    model = HeadModel.open(build(*SUPPORTED[name]), tokenizer=word_tokenizer(), max_length=9)
    twins = [with_random_weights(model, seed) for seed in (0, 0, 1)]
    hashes = [twin.identity()["weight_hash"] for twin in twins]
    assert hashes[0] == hashes[1] != hashes[2]
    assert hashes[0] != model.identity()["weight_hash"]
    assert twins[0].encoder.max_length == 9
    batch = ids_batch((5, 3), pad_id=0)
    maps = [one.trace(batch).attention for one in (model, twins[0])]
    assert maps[0] is not None
    assert maps[1] is not None
    assert maps[0].shape == maps[1].shape
    kept = random_but_embeddings(model, 0).module
    assert torch.equal(
        kept.get_input_embeddings().weight, model.module.get_input_embeddings().weight
    )


def test_the_last_vector_of_a_layer_is_hidden_and_no_logit() -> None:
    """Llama 4 names another module as its base, T5 has none that holds both of its halves: both
    gave logits."""
    batch = ids_batch((7, 4), pad_id=0)
    llama = build("Llama4TextConfig", "Llama4ForCausalLM", LLAMA4)
    wanted = llama.model(
        input_ids=batch.ids, attention_mask=batch.attention_mask.long()
    ).last_hidden_state
    opened = HeadModel.open(llama)
    _, layers = batch_vectors(opened, batch, "first")
    assert layers.shape == (3, 2, opened.hidden)
    assert opened.hidden == 32 != VOCABULARY
    torch.testing.assert_close(
        torch.from_numpy(layers[-1]), wanted[:, 0].detach(), atol=1e-5, rtol=1e-5
    )


def test_models_without_text_are_refused_by_name() -> None:
    size = {"num_attention_heads": 4, "intermediate_size": 48, "image_size": 32, "patch_size": 8}
    with pytest.raises(ModelError, match=r"ViTModel.*reads images, no text"):
        HeadModel.open(
            build("ViTConfig", "ViTModel", {"hidden_size": 32, "num_hidden_layers": 2} | size)
        )


def test_an_image_model_in_a_folder_is_refused_for_what_it_reads(tmp_path: Path) -> None:
    size = {"num_attention_heads": 4, "intermediate_size": 48, "image_size": 32, "patch_size": 8}
    build(
        "ViTConfig", "ViTModel", {"hidden_size": 32, "num_hidden_layers": 2} | size
    ).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="reads images"):
        HeadModel.open(tmp_path)  # not: it has no tokenizer
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="reads images"):
        HeadModel.open(tmp_path)  # not: its weights cannot be read
