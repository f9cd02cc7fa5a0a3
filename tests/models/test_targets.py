"""Encoder-decoders: sources and targets, shifted as the model does it; cross-attention from target
to source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import BART, SEQ2SEQ, T5, build, word_tokenizer

from headwise import Corpus, make_atlas
from headwise.core.errors import HeadwiseError, InputError, ModelError
from headwise.experiments.ablation import AblationOptions, ScoredLanguageModel, ablate_scored_model
from headwise.models import HeadModel
from headwise.models.forward_call import shifted
from headwise.page.sample import draw_all_maps, draw_heads, sample_of
from headwise.text import Example, open_corpus
from headwise.text.targets import half

LARGE = {
    "t5": ("T5Config", "T5ForConditionalGeneration", T5 | {"pad_token_id": 0, "eos_token_id": 3}),
    "bart": (
        "BartConfig",
        "BartForConditionalGeneration",
        BART | {"pad_token_id": 0, "decoder_start_token_id": 3},
    ),
}
PAIRS = [("w1 w2 w3 w4 w5", "w7 w8 w9"), ("w4 w4", "w5 w6 w7 w8 w9 w10"), ("w11 w12 w13", "w14")]
EXAMPLES = [Example(text=source, pair=target) for source, target in PAIRS]


def opened(name: str, stack: str) -> HeadModel:
    return HeadModel.open(build(*LARGE[name]), tokenizer=word_tokenizer(), stack=stack)


@pytest.mark.parametrize("stack", ["decoder", "cross"])
@pytest.mark.parametrize("name", LARGE)
def test_maps_and_logits_are_those_of_the_model_given_labels(name: str, stack: str) -> None:
    """The model, given the target as labels, makes the decoder's input itself: the tap must see the
    same."""
    model = opened(name, stack)
    batch = model.batch(EXAMPLES)
    trace = model.trace(batch)
    logits = model.forward(batch, logits=True).logits
    assert trace.attention is not None
    own, tokenizer = build(*LARGE[name]), word_tokenizer()
    for place, (source, target) in enumerate(PAIRS):
        read, labels = (tokenizer(text, return_tensors="pt") for text in (source, target))
        with torch.no_grad():
            output = own(
                input_ids=read["input_ids"],
                attention_mask=read["attention_mask"],
                labels=labels["input_ids"],
                output_attentions=True,
            )
        wanted = torch.cat(getattr(output, f"{stack}_attentions"))
        queries, keys = wanted.shape[-2:]
        assert queries == labels["input_ids"].shape[1] == int(batch.lengths[place])
        assert (
            keys
            == (read if stack == "cross" else labels)["input_ids"].shape[1]
            == int(batch.keys.lengths[place])
        )
        torch.testing.assert_close(
            trace.attention[place, :, :, :queries, :keys], wanted, atol=1e-5, rtol=0
        )
        torch.testing.assert_close(logits[place, :queries], output.logits[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "name", ["t5", "bart", "mbart", "marian", "pegasus", "fsmt", "t5gemma", "m2m100", "switch"]
)
def test_targets_are_shifted_for_every_family(name: str) -> None:
    kind, cls, arguments = SEQ2SEQ[name]
    if name == "t5gemma":
        arguments = arguments | {"decoder_start_token_id": 2}
    model = build(kind, cls, arguments)
    ids = np.array([7, 8, 9, 3])
    found = shifted(model, ids)
    assert found[1:].tolist() == [7, 8, 9]
    assert len(found) == 4


def test_a_target_has_labels_of_its_own() -> None:
    example = Example(
        words=("a", "b"),
        words_pair=("w1", "w2", "w3"),
        heads=(1, -1, 3, -1, 3),
        relations=("r", "root", "x", "root", "y"),
    )
    target = half(example, second=True)
    assert (target.words, target.heads, target.relations) == (
        ("w1", "w2", "w3"),
        (1, -1, 1),
        ("x", "root", "y"),
    )
    assert half(example, second=False).heads == (1, -1)
    row = opened("bart", "cross").encode(example)
    assert row.pieces == ("[SEP]", "[CLS]", "w1", "w2", "w3")  # it starts from what ends a text
    assert row.word.tolist() == [-1, -1, 0, 1, 2]
    assert row.special.tolist() == [True, True, False, False, False]
    assert row.aligned
    assert row.source is not None
    assert row.source.example.words == ("a", "b")
    sample = sample_of(opened("bart", "cross"), EXAMPLES[0])
    assert sample.tokens == ["[SEP]", "[CLS]", "w7", "w8", "w9"]
    assert sample.keys == ["[CLS]", "w1", "w2", "w3", "w4", "w5", "[SEP]"]
    assert sample.attention.shape[2:] == (5, 7)
    for figure in (draw_heads(sample, [(0, 1)]), draw_all_maps(sample)):
        shown = [
            text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))
        ]
        assert any("w7" in text for text in shown)
        assert any("w5" in text for text in shown)


def test_without_a_target_it_is_refused(tmp_path: Path) -> None:
    model = opened("t5", "decoder")
    for call in (
        lambda: model.batch("w1 w2"),
        lambda: make_atlas(model, Corpus.from_examples([Example(text="w1")])),
    ):
        with pytest.raises(InputError, match="needs a source and a target, and there is no target"):
            call()
    encoder = opened("t5", "encoder")
    with pytest.raises(ModelError, match="give pairs"):
        encoder.forward(encoder.batch("w1 w2"), logits=True)
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"source": "w1 w2", "target": "w3"}\n')
    [read] = list(open_corpus(str(file)))
    assert (read.text, read.pair) == ("w1 w2", "w3")


@pytest.mark.parametrize("stack", ["decoder", "cross"])
def test_analyses_and_ablation_of_a_decoder_that_reads_a_source(stack: str) -> None:
    model = opened("bart", stack)
    corpus = Corpus.from_examples(EXAMPLES)
    atlas = make_atlas(model, corpus, ["surface", "distance"])
    maps, batch = model.trace(model.batch(EXAMPLES)).attention, model.batch(EXAMPLES)
    assert maps is not None
    # BART's decoder starts from its end token: there it is the first token, and no other is one.
    kind = "first" if stack == "decoder" else "sep"
    by_hand = []
    for place in range(3):
        rows, keys = int(batch.lengths[place]), int(batch.keys.lengths[place])
        of_kind = batch.keys.token_mask(kind)[place, :keys]
        by_hand.append(float(maps[place, 1, 2, :rows, :keys][:, of_kind].sum(-1).mean()))
    found = atlas["surface"]["mass"].sel(layer=1, head=2, token_type=kind)
    assert float(found) == pytest.approx(np.mean(by_hand), abs=1e-5)
    assert np.isnan(atlas["surface"]["position"]).all() == (stack == "cross")
    with (
        pytest.raises(HeadwiseError, match="cross-attention of a decoder")
        if stack == "cross"
        else _nothing()
    ):
        make_atlas(model, corpus, ["offsets"])
    dataset = ablate_scored_model(ScoredLanguageModel(model, corpus), AblationOptions(layers=False))
    assert np.isfinite(dataset["difference"]).all()
    assert float(abs(dataset["difference"]).max()) > 0


def test_what_asks_for_a_text_alone_is_left_out_of_a_decoder_that_reads_a_source() -> None:
    asked = ["circuits", "induction", "logits", "opening_token", "retrieval"]
    atlas = make_atlas(opened("t5", "decoder"), Corpus.from_examples(EXAMPLES), ["surface", *asked])
    assert list(atlas) == ["surface"]


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()
