"""Opening models: from folders and modules, and what is refused or noted on the way."""

from __future__ import annotations

import json
import re
import resource
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import SEQ2SEQ, SUPPORTED, build, ids_batch, word_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import MambaConfig, MambaForCausalLM, PreTrainedTokenizerFast

from headwise.core.errors import InputError, ModelError, ParameterError
from headwise.models import HeadModel, loading
from headwise.models.loading import NEWEST_TRANSFORMERS, OLDEST_TRANSFORMERS, check_weights
from headwise.text.example import Example


def saved(
    folder: Path, name: str, cls: str, dtype: torch.dtype | None = None, tokenizer: Any = "words"
) -> Path:
    config, _, arguments = SUPPORTED[name] if name in SUPPORTED else SEQ2SEQ[name]
    model = build(config, cls, arguments)
    (model.to(dtype) if dtype else model).save_pretrained(folder)
    if tokenizer is not None:
        (word_tokenizer() if tokenizer == "words" else tokenizer).save_pretrained(folder)
    return folder


def test_a_folder(tmp_path: Path) -> None:
    model = HeadModel.open(saved(tmp_path / "little-bert", "bert", "BertForMaskedLM"), device="cpu")
    assert (model.name, model.stack, model.causal, model.lm_kind, model.has_lm_head) == (
        "little-bert",
        "encoder",
        False,
        "masked",
        True,
    )
    assert (
        model.layers,
        model.heads,
        model.kv_heads,
        model.d_head,
        model.hidden,
        model.max_length,
        model.pad_id,
    ) == (
        3,
        4,
        4,
        8,
        32,
        40,
        0,
    )
    batch = model.batch(
        ["w1 w2 w3", Example(words=("w4", "w5")), Example(text="w1", pair="w2 w3 w4 w5")]
    )
    assert batch.ids.shape == (3, 8)
    assert batch.types[2].tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    trace = model.trace(batch)
    assert trace.attention is not None
    assert trace.attention.shape == (3, 3, 4, 8, 8)
    assert model.forward(batch, logits=True).logits.shape == (3, 8, 60)
    assert "little-bert" in repr(model)


def test_segment_ids_reach_the_model(tmp_path: Path) -> None:
    model = HeadModel.open(saved(tmp_path, "bert", "BertForMaskedLM"), device="cpu")
    pair = model.batch(Example(text="w1 w2", pair="w3"))
    with torch.no_grad():
        expected = model.module.bert(
            input_ids=pair.ids, token_type_ids=pair.types
        ).last_hidden_state
        other = model.module.bert(input_ids=pair.ids).last_hidden_state
    torch.testing.assert_close(model.forward(pair).last_hidden_state, expected)
    assert (expected - other).abs().max() > 1e-3


def test_gpt2_gets_no_segment_ids() -> None:
    opened = HeadModel.open(build(*SUPPORTED["gpt2"]), tokenizer=word_tokenizer())
    batch = opened.batch("w1 w2 w3")
    with torch.no_grad():
        torch.testing.assert_close(
            opened.forward(batch).last_hidden_state,
            opened.module(input_ids=batch.ids).last_hidden_state,
        )


@pytest.mark.parametrize(
    ("name", "cls", "task", "expected", "kind"),
    [
        ("bert", "BertForPreTraining", None, "BertForMaskedLM", "masked"),
        ("bert", "BertForSequenceClassification", None, "BertForSequenceClassification", None),
        ("bert", "BertModel", None, "BertModel", None),
        ("bert", "BertModel", "classification", "BertForSequenceClassification", None),
        ("gpt2", "GPT2LMHeadModel", None, "GPT2LMHeadModel", "causal"),
        ("gpt2", "GPT2Model", None, "GPT2Model", None),
        ("electra", "ElectraForPreTraining", None, "ElectraModel", None),
        ("electra", "ElectraForMaskedLM", None, "ElectraForMaskedLM", "masked"),
        ("xlnet", "XLNetLMHeadModel", None, "XLNetLMHeadModel", "causal"),
        ("gpt1", "OpenAIGPTLMHeadModel", "lm", "OpenAIGPTLMHeadModel", "causal"),
        ("t5", "T5ForConditionalGeneration", None, "T5ForConditionalGeneration", None),
    ],
)
def test_the_head_that_is_there_is_opened(
    tmp_path: Path, name: str, cls: str, task: str | None, expected: str, kind: str | None
) -> None:
    model = HeadModel.open(saved(tmp_path, name, cls), device="cpu", task=task)
    assert type(model.module).__name__ == expected
    assert model.lm_kind == kind
    if task == "classification":
        assert any("newly initialised" in note and "classifier" in note for note in model.notes)
    elif name != "t5":
        assert not [note for note in model.notes if "pooler" not in note and "longest" not in note]


def test_an_encoder_decoder_by_stack(tmp_path: Path) -> None:
    folder = saved(tmp_path, "t5", "T5ForConditionalGeneration")
    for stack, causal, kind in (
        ("encoder", False, None),
        ("decoder", True, "causal"),
        ("cross", False, "causal"),
    ):
        model = HeadModel.open(folder, device="cpu", stack=stack)
        assert (model.stack, model.causal, model.lm_kind, model.layers) == (stack, causal, kind, 3)
        batch = model.batch(Example(text="w1 w2 w3", pair="w4 w5"))
        if stack == "encoder":  # it predicts nothing by itself
            with pytest.raises(ModelError, match="open it with stack='decoder'"):
                model.forward(batch, logits=True)
        else:
            assert model.forward(batch, logits=True).logits.shape == (1, batch.ids.shape[1], 60)


def test_half_precision_on_a_cpu_is_opened_in_single_and_said(tmp_path: Path) -> None:
    folder = saved(tmp_path, "bert", "BertForMaskedLM", torch.float16)
    model = HeadModel.open(folder, device="cpu")
    assert model.dtype == torch.float32
    assert "The checkpoint is in float16; on a CPU it is opened in float32." in model.notes
    asked = HeadModel.open(folder, device="cpu", dtype=torch.bfloat16)
    assert asked.dtype == torch.bfloat16
    assert not asked.notes


def test_identity_is_that_of_the_weights(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", "bert", "BertForMaskedLM")
    first, again = (
        HeadModel.open(folder, device="cpu").identity(),
        HeadModel.open(folder, device="cpu").identity(),
    )
    assert first == again
    assert json.loads(json.dumps(first)) == first
    assert (first["architecture"], first["model_type"], first["layers"], first["heads"]) == (
        "BertForMaskedLM",
        "bert",
        3,
        4,
    )
    assert len(first["weight_hash"]) == 64
    changed = HeadModel.open(folder, device="cpu")
    with torch.no_grad():
        changed.module.bert.embeddings.word_embeddings.weight[3, 3] += 1e-4
    assert changed.identity()["weight_hash"] != first["weight_hash"]


# --- what is refused ------------------------------------------------------------------------------


def refused(given: Any, sentence: str, **options: Any) -> None:
    with pytest.raises(ModelError) as caught:
        HeadModel.open(given, device="cpu", **options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "There is no folder")
    refused("./nothing", "There is no folder './nothing'.")
    refused(tmp_path, "has no config.json")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "is a file")


def test_a_hub_name_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:

    monkeypatch.setattr("headwise.models.loading.offline", lambda where: True)
    refused(
        "nobody-here/no-such-model",
        "'nobody-here/no-such-model' is neither a folder here nor a model that can be fetched from the hub now",
    )


def test_broken_files(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", "bert", "BertForMaskedLM")
    (folder / "model.safetensors").write_bytes(b"broken")
    refused(folder, "The weights of")
    (folder / "model.safetensors").unlink()
    refused(folder, "The weights of")
    (folder / "config.json").write_text('{"model_type": "no-such-kind"}')
    refused(folder, "The config.json of")
    (folder / "config.json").write_text("{")
    refused(folder, "The config.json of")


def test_remote_code_is_never_run(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", "bert", "BertForMaskedLM")
    (folder / "config.json").write_text(
        '{"model_type": "own", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}'
    )
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    refused(folder, "The config.json of")
    assert not (tmp_path / "ran").exists()


def test_nan_in_the_weights(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", "bert", "BertForMaskedLM")
    weights = load_file(folder / "model.safetensors")
    weights["bert.encoder.layer.1.attention.self.key.weight"][2, 3] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refused(
        folder, "hold NaN or infinity, first in 'bert.encoder.layer.1.attention.self.key.weight'"
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_infinities_that_cancel_are_seen_and_sums_that_overflow_are_none(
    dtype: torch.dtype,
) -> None:
    layer = nn.Linear(2, 2, bias=False).to(dtype).requires_grad_(False)
    layer.weight.fill_(torch.finfo(dtype).max)
    check_weights(layer, "large")
    layer.weight[0] = torch.tensor([float("inf"), float("-inf")])
    with pytest.raises(ModelError, match="'infinite' hold NaN or infinity, first in 'weight'"):
        check_weights(layer, "infinite")


def test_missing_weights(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", "bert", "BertForMaskedLM")
    weights = load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.attention.self.key.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refused(
        folder,
        "lacks 1 weights of BertForMaskedLM, the first is 'bert.encoder.layer.1.attention.self.key.weight'",
    )


def test_another_shape(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", "bert", "BertForMaskedLM")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    refused(folder, "shape")


def test_no_head_for_the_task(tmp_path: Path) -> None:
    refused(saved(tmp_path / "a", "bert", "BertModel"), "has no language-modelling head", task="lm")
    with pytest.raises(
        ParameterError, match="`task` must be one of lm, classification; it is 'ner'"
    ):
        HeadModel.open(tmp_path / "a", device="cpu", task="ner")
    with pytest.raises(ParameterError, match="There is no stack 'both'"):
        HeadModel.open(tmp_path / "a", device="cpu", stack="both")


def test_tokenizers_that_are_missing_or_do_not_fit(tmp_path: Path) -> None:
    refused(saved(tmp_path / "a", "bert", "BertForMaskedLM", tokenizer=None), "has no tokenizer")
    refused(
        saved(tmp_path / "b", "bert", "BertForMaskedLM", tokenizer=word_tokenizer(80)),
        "makes ids up to 79, but the model has embeddings for 0 to 59",
    )
    bare = HeadModel.open(build(*SUPPORTED["bert"]))
    assert bare.tokenizer is None
    with pytest.raises(ModelError, match="without a tokenizer"):
        bare.batch("w1")
    assert HeadModel.open(build(*SUPPORTED["bert"]), tokenizer=word_tokenizer()).batch(
        "w1 w2"
    ).ids.tolist() == [[2, 6, 7, 3]]


def test_too_long_an_input() -> None:
    opened = HeadModel.open(build(*SUPPORTED["roberta"]))
    assert opened.max_length == 38  # 40 rows of positions, the first two are the padding's
    opened.forward(ids_batch((38,)))
    with pytest.raises(
        InputError, match="The batch is 39 tokens long; RobertaModel takes at most 38"
    ):
        opened.forward(ids_batch((39,)))
    with pytest.raises(InputError, match="at least one example"):
        opened.batch([])


def test_inputs_are_limited_without_a_change_to_the_model() -> None:
    def opened(**limits: Any) -> HeadModel:
        return HeadModel.open(build(*SUPPORTED["bert"]), tokenizer=word_tokenizer(), **limits)

    text = " ".join(f"w{i}" for i in range(20))
    whole, cut, skipping = opened(), opened(max_length=6), opened(max_length=6, overlong="skip")
    assert len(whole.encode(text)) == 22
    assert (len(cut.encode(text)), cut.max_length, cut.encoder.max_length) == (
        6,
        whole.max_length,
        6,
    )
    with pytest.raises(InputError, match="longer than 6 tokens"):
        skipping.encode(text)
    longer = opened(max_length=1000)
    assert longer.encoder.max_length == whole.max_length
    assert longer.notes == [
        f"Inputs of 1000 tokens were requested; the model takes at most {whole.max_length}."
    ]
    shorter = whole.encoder.limited(4, "skip")
    assert (shorter.max_length, shorter.overlong, shorter.limited(9).max_length) == (4, "skip", 4)
    assert (whole.encoder.max_length, whole.encoder.overlong) == (whole.max_length, "truncate")
    copied = cut.in_precision(torch.float64)
    assert copied.encoder.max_length == 6
    for few in (0, 1):
        with pytest.raises(ParameterError, match=f"`max_length` must be at least 2; it is {few}"):
            opened(max_length=few)
    with pytest.raises(ParameterError, match="`overlong` must be one of truncate, skip"):
        opened(overlong="drop")


# --- words ----------------------------------------------------------------------------------------


def byte_level() -> PreTrainedTokenizerFast:
    pieces = ["a", "b", "c", "Ġ", "Ġa", "Ġb", "ab", "Ġab", "<eos>"]
    merges = [("Ġ", "a"), ("Ġ", "b"), ("a", "b"), ("Ġa", "b")]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", bos_token="<eos>")


def test_words_of_byte_level_tokenizers() -> None:
    opened = HeadModel.open(build(*SUPPORTED["gpt2"]), tokenizer=byte_level())
    words = opened.encode(Example(words=("ab", "b", "ab")))
    assert opened.tokenizer.convert_ids_to_tokens(words.ids.tolist()) == ["ab", "Ġb", "Ġab"]
    assert words.word.tolist() == [0, 1, 2]
    assert words.aligned


# --- real models ----------------------------------------------------------------------------------


@pytest.mark.real
def test_wiki_bert_equals_its_eager_self(wiki_bert: Path) -> None:
    from transformers import AutoModel

    model = HeadModel.open(wiki_bert, device="cpu")
    assert (model.layers, model.heads, model.d_head, model.lm_kind, model.max_length) == (
        12,
        12,
        32,
        "masked",
        512,
    )
    batch = model.batch(
        [
            "The cat sat on the mat, and slept.",
            "She gave him a book.",
            Example(text="One two.", pair="Three four five."),
        ]
    )
    eager = AutoModel.from_pretrained(
        wiki_bert, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        expected = eager(
            input_ids=batch.ids,
            attention_mask=batch.attention_mask.long(),
            token_type_ids=batch.types,
            output_attentions=True,
        )
    attentions = torch.stack(expected.attentions, 1) * batch.attention_mask[:, None, None, :, None]
    # To rounding, which twelve layers add to: the scale of the scores is applied inside their
    # product.
    torch.testing.assert_close(model.trace(batch).attention, attentions, rtol=0, atol=1e-5)


@pytest.mark.real
def test_stories_equals_its_eager_self(stories: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = HeadModel.open(stories, device="cpu")
    assert (model.causal, model.lm_kind, model.stack) == (True, "causal", "decoder")
    batch = model.batch(["Once upon a time there was a little dog.", "The end."])
    eager = AutoModelForCausalLM.from_pretrained(stories, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = eager(
            input_ids=batch.ids,
            attention_mask=batch.attention_mask.long(),
            output_attentions=True,
            use_cache=False,
        )
    attentions = torch.stack(expected.attentions, 1) * batch.attention_mask[:, None, None, :, None]
    # As for BERT above: the scale is applied inside the product, which rounds differently. By the
    # number of threads, the largest difference seen is 1.4e-6.
    torch.testing.assert_close(model.trace(batch).attention, attentions, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        model.forward(batch, logits=True).logits[batch.attention_mask],
        expected.logits[batch.attention_mask],
        atol=1e-4,
        rtol=1e-4,
    )


def test_float32_weights_under_a_float16_config_are_not_rounded(tmp_path: Path) -> None:
    """A config may say float16 of weights that are stored in float32; on a CPU they are opened as
    they are stored."""
    import json

    from safetensors.torch import load_file

    from headwise.testing import planted_model

    planted = planted_model([["self", "uniform"]], words=["cat", "dog"])
    planted.model.save_pretrained(tmp_path)
    planted.tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    stored = load_file(tmp_path / "model.safetensors")
    name = "bert.encoder.layer.0.attention.self.value.weight"
    assert (stored[name].half().float() != stored[name]).any()  # rounding would show
    model = HeadModel.open(tmp_path, device="cpu")
    assert torch.equal(dict(model.module.named_parameters())[name], stored[name])
    assert "float16" in model.notes[0]


@pytest.mark.parametrize(
    "device", ["banana", "cuda:x", "", "cpu:99999999999", "x" * 5000, "meta", "hpu"]
)
def test_a_device_that_is_none_is_refused_in_a_sentence(device):
    with pytest.raises(ParameterError, match=r"must be cpu, cuda|cannot be used here"):
        HeadModel.open(None, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_here_is_refused_before_anything_is_read(monkeypatch):
    monkeypatch.setattr(
        "headwise.models.loading.model_path", lambda _: pytest.fail("the model was looked for")
    )
    with pytest.raises(
        ParameterError, match=r"The device 'cuda' cannot be used here \(.*\); give cpu"
    ):
        HeadModel.open(None, device="cuda")


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-this-name/x"])
def test_a_name_that_no_folder_can_have_is_refused_in_a_sentence(name):
    with pytest.raises(ModelError, match=r"is no name of a folder|There is no folder") as caught:
        HeadModel.open(name)
    assert len(str(caught.value)) < 200  # not the whole name, nor the name twice


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 1_000_000}, "says num_hidden_layers = 1000000; at most 2,000"),
        ({"num_hidden_layers": 10**30}, "at most 2,000|cannot be read"),
        ({"text_config": {"n_layers": 10**6}}, "at most 2,000|cannot be read"),
        ({"vocab_size": 10**11}, "other shapes than its config.json says"),
        ({"hidden_size": 3_000_000}, "other shapes than its config.json says"),
        ({"max_position_embeddings": 10**10}, "other shapes than its config.json says"),
        ({"hidden_size": -12}, "cannot be read"),
        ({"hidden_size": "x"}, "cannot be read"),
        ({"num_attention_heads": 0}, "cannot be read"),
        ({"num_hidden_layers": 0}, "has no attention"),
    ],
)
def test_absurd_sizes_are_refused_before_memory_is_taken(change, said, tmp_path):
    saved(tmp_path, "bert", "BertForMaskedLM")
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(facts | change))
    with limited_memory(8 << 30), pytest.raises(ModelError, match=said):
        HeadModel.open(tmp_path, device="cpu")


def test_a_config_of_megabytes_is_not_read(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "x": "' + "y" * (17 << 20) + '"}')
    with pytest.raises(ModelError, match="over 16,777,216 bytes"):
        HeadModel.open(tmp_path)


@contextmanager
def limited_memory(more):
    """So much more address space than now, so that what takes it fails instead of hurting the
    machine."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("weights", [False, True])
def test_a_model_without_attention_is_refused_by_its_config(weights, tmp_path):
    """Also where there are no weights, which it would complain of otherwise."""
    config = MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=30, state_size=4)
    config.architectures = ["MambaForCausalLM"]
    if weights:
        MambaForCausalLM(config).save_pretrained(tmp_path)
    else:
        config.save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"^MambaForCausalLM has no attention, so it has no heads to look at"
    ):
        HeadModel.open(tmp_path, device="cpu")


@pytest.mark.parametrize("version", ["4.57.6", "5.14.1", "5.23.0.dev0", "6.0.0"])
def test_an_untested_transformers_is_refused_in_a_sentence(version, tmp_path, monkeypatch):
    module = build(SUPPORTED["bert"][0], "BertForMaskedLM", SUPPORTED["bert"][2])
    folder = saved(tmp_path, "bert", "BertForMaskedLM")
    monkeypatch.setattr(loading.transformers, "__version__", version)
    expected = (
        f"transformers {version} is installed; headwise is tested with 5.15 to 5.22: "
        "pip install 'transformers>=5.15,<5.23'."
    )
    for model in (folder, module, "a-hub-name/that-is-not-looked-up"):
        with pytest.raises(ModelError) as raised:
            HeadModel.open(model, tokenizer=word_tokenizer())
        assert str(raised.value) == expected


@pytest.mark.parametrize("version", ["5.15.0", "5.22.2", "5.22.9"])
def test_the_ends_of_the_tested_range_are_opened(version, tmp_path, monkeypatch):
    folder = saved(tmp_path, "bert", "BertForMaskedLM")
    monkeypatch.setattr(loading.transformers, "__version__", version)
    assert HeadModel.open(folder, device="cpu").layers == 3


def test_the_package_and_the_workflow_have_the_tested_range():
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (required,) = (line for line in project["dependencies"] if line.startswith("transformers"))
    oldest = ".".join(map(str, OLDEST_TRANSFORMERS))
    newest = ".".join(map(str, NEWEST_TRANSFORMERS))
    after_newest = f"{NEWEST_TRANSFORMERS[0]}.{NEWEST_TRANSFORMERS[1] + 1}"
    assert required == f"transformers>={oldest},<{after_newest}"
    workflow = (root / ".github" / "workflows" / "ci.yml").read_text()
    (tested,) = re.findall(r"^ +transformers: \[(.*)\]$", workflow, re.M)
    assert tested == f'"{oldest}.*", "{newest}.*"'
