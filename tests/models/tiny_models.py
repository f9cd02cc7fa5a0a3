"""Tiny random models of many architectures, a tokenizer made in code, and batches of token ids, for
the tests of the models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headwise.core.token_types import OTHER
from headwise.text.encode import Batch, Encoded, collate
from headwise.text.example import Example

VOCABULARY = 60
PLAIN = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 40,
}
GROUPED = PLAIN | {"num_key_value_heads": 2, "head_dim": 8}
IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
OLD = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 40}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 3,
    "num_heads": 4,
    "vocab_size": VOCABULARY,
    "decoder_start_token_id": 0,
}
BART = {
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 40,
    "decoder_start_token_id": 2,
}
BAND = {
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}

# name -> (config class, model class, arguments of the config)
SUPPORTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", PLAIN),
    "roberta": ("RobertaConfig", "RobertaModel", PLAIN | IDS),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaModel", PLAIN | IDS),
    "xlm-roberta-xl": ("XLMRobertaXLConfig", "XLMRobertaXLModel", PLAIN | IDS),
    "camembert": ("CamembertConfig", "CamembertModel", PLAIN | IDS),
    "electra": ("ElectraConfig", "ElectraModel", PLAIN | {"embedding_size": 16}),
    "albert": ("AlbertConfig", "AlbertModel", PLAIN | {"embedding_size": 16}),
    "albert-groups": (
        "AlbertConfig",
        "AlbertModel",
        PLAIN | {"embedding_size": 16, "num_hidden_groups": 3},
    ),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "vocab_size": VOCABULARY},
    ),
    "mobilebert": (
        "MobileBertConfig",
        "MobileBertModel",
        PLAIN | {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    ),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertModel",
        PLAIN | {"global_attn_every_n_layers": 2, "local_attention": 4, "pad_token_id": 1},
    ),
    "data2vec-text": ("Data2VecTextConfig", "Data2VecTextModel", PLAIN | IDS),
    "ernie": ("ErnieConfig", "ErnieModel", PLAIN),
    "esm": (
        "EsmConfig",
        "EsmModel",
        PLAIN | {"pad_token_id": 1, "mask_token_id": 3, "position_embedding_type": "rotary"},
    ),
    "eurobert": (
        "EuroBertConfig",
        "EuroBertModel",
        GROUPED | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "mask_token_id": 3},
    ),
    "nomic-bert": ("NomicBertConfig", "NomicBertModel", PLAIN),
    "jina": ("JinaEmbeddingsV3Config", "JinaEmbeddingsV3Model", PLAIN),
    "bert-generation": ("BertGenerationConfig", "BertGenerationEncoder", PLAIN),
    "roberta-prelayernorm": ("RobertaPreLayerNormConfig", "RobertaPreLayerNormModel", PLAIN | IDS),
    "xmod": (
        "XmodConfig",
        "XmodModel",
        PLAIN | IDS | {"languages": ["en_XX"], "default_language": "en_XX"},
    ),
    "gpt1": ("OpenAIGPTConfig", "OpenAIGPTModel", OLD),
    "gpt2": (
        "GPT2Config",
        "GPT2Model",
        OLD | {"bos_token_id": 1, "eos_token_id": 1, "scale_attn_by_inverse_layer_idx": True},
    ),
    "gpt-bigcode": ("GPTBigCodeConfig", "GPTBigCodeModel", OLD | {"multi_query": True}),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXModel", PLAIN),
    "gpt-neo": (
        "GPTNeoConfig",
        "GPTNeoModel",
        {
            "hidden_size": 32,
            "num_layers": 3,
            "num_heads": 4,
            "attention_types": [[["global", "local", "global"], 1]],
            "window_size": 4,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 40,
        },
    ),
    "gptj": ("GPTJConfig", "GPTJModel", OLD | {"rotary_dim": 4}),
    "codegen": ("CodeGenConfig", "CodeGenModel", OLD | {"rotary_dim": 4}),
    "ctrl": (
        "CTRLConfig",
        "CTRLModel",
        {
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "dff": 48,
            "vocab_size": VOCABULARY,
            "n_positions": 40,
        },
    ),
    "biogpt": ("BioGptConfig", "BioGptModel", PLAIN | IDS),
    "opt": ("OPTConfig", "OPTModel", PLAIN | {"ffn_dim": 48, "word_embed_proj_dim": 32} | IDS),
    "llama": ("LlamaConfig", "LlamaModel", GROUPED),
    "mistral": ("MistralConfig", "MistralModel", GROUPED | {"sliding_window": 4}),
    "mixtral": ("MixtralConfig", "MixtralModel", GROUPED | EXPERTS | {"sliding_window": 4}),
    "qwen2": ("Qwen2Config", "Qwen2Model", GROUPED | {"use_sliding_window": True} | BAND),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        "Qwen2MoeModel",
        GROUPED
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "qwen3": ("Qwen3Config", "Qwen3Model", GROUPED | {"use_sliding_window": True} | BAND),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeModel",
        GROUPED | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "gemma": ("GemmaConfig", "GemmaModel", GROUPED),
    "gemma2": (
        "Gemma2Config",
        "Gemma2Model",
        GROUPED | BAND | {"attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 2},
    ),
    "gemma3": ("Gemma3TextConfig", "Gemma3TextModel", GROUPED | BAND),
    "phi": ("PhiConfig", "PhiModel", PLAIN),
    "phi3": ("Phi3Config", "Phi3Model", GROUPED | {"pad_token_id": 0, "sliding_window": 4}),
    "phimoe": ("PhimoeConfig", "PhimoeModel", GROUPED | EXPERTS),
    "gpt-oss": ("GptOssConfig", "GptOssModel", GROUPED | BAND | EXPERTS),
    "olmo": ("OlmoConfig", "OlmoModel", GROUPED),
    "olmo2": ("Olmo2Config", "Olmo2Model", GROUPED),
    "olmo3": ("Olmo3Config", "Olmo3Model", GROUPED | BAND),
    "olmoe": ("OlmoeConfig", "OlmoeModel", GROUPED | {"num_experts": 4, "num_experts_per_tok": 2}),
    "cohere": ("CohereConfig", "CohereModel", GROUPED),
    "cohere2": ("Cohere2Config", "Cohere2Model", GROUPED | BAND),
    "granite": ("GraniteConfig", "GraniteModel", GROUPED),
    "stablelm": ("StableLmConfig", "StableLmModel", GROUPED),
    "starcoder2": ("Starcoder2Config", "Starcoder2Model", GROUPED | {"sliding_window": 4}),
    "smollm3": (
        "SmolLM3Config",
        "SmolLM3Model",
        GROUPED | {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 2},
    ),
    "glm": ("GlmConfig", "GlmModel", GROUPED | {"pad_token_id": 0}),
    "glm4": ("Glm4Config", "Glm4Model", GROUPED | {"pad_token_id": 0}),
    "helium": ("HeliumConfig", "HeliumModel", GROUPED),
    "nemotron": ("NemotronConfig", "NemotronModel", GROUPED),
    "persimmon": ("PersimmonConfig", "PersimmonModel", PLAIN),
    "exaone4": ("Exaone4Config", "Exaone4Model", GROUPED | BAND),
    "ernie4.5": ("Ernie4_5Config", "Ernie4_5Model", GROUPED),
    "seed-oss": ("SeedOssConfig", "SeedOssModel", GROUPED),
    "arcee": ("ArceeConfig", "ArceeModel", GROUPED),
    "apertus": ("ApertusConfig", "ApertusModel", GROUPED),
    "deepseek-v3": (
        "DeepseekV3Config",
        "DeepseekV3Model",
        PLAIN
        | {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "moe_intermediate_size": 16,
        },
    ),
    "xglm": (
        "XGLMConfig",
        "XGLMModel",
        {
            "d_model": 32,
            "ffn_dim": 48,
            "num_layers": 3,
            "attention_heads": 4,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 40,
        }
        | IDS,
    ),
    "bloom": (
        "BloomConfig",
        "BloomModel",
        {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": VOCABULARY},
    ),
    "falcon": ("FalconConfig", "FalconModel", PLAIN | {"multi_query": True}),
    "falcon-alibi": ("FalconConfig", "FalconModel", PLAIN | {"multi_query": False, "alibi": True}),
    "falcon-new": (
        "FalconConfig",
        "FalconModel",
        PLAIN | {"new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "mpt": (
        "MptConfig",
        "MptModel",
        {"d_model": 32, "n_heads": 4, "n_layers": 3, "vocab_size": VOCABULARY, "max_seq_len": 40},
    ),
    "deberta": (
        "DebertaConfig",
        "DebertaModel",
        PLAIN
        | {
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "max_relative_positions": 20,
        },
    ),
    "deberta-v2": (
        "DebertaV2Config",
        "DebertaV2Model",
        PLAIN
        | {
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "max_relative_positions": 20,
        },
    ),
    "xlnet": (
        "XLNetConfig",
        "XLNetModel",
        {"d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 48, "vocab_size": VOCABULARY},
    ),
    "xlm": (
        "XLMConfig",
        "XLMModel",
        {
            "emb_dim": 32,
            "n_layers": 3,
            "n_heads": 4,
            "n_words": VOCABULARY,
            "max_position_embeddings": 40,
        },
    ),
    "flaubert": (
        "FlaubertConfig",
        "FlaubertModel",
        {
            "emb_dim": 32,
            "n_layers": 3,
            "n_heads": 4,
            "n_words": VOCABULARY,
            "max_position_embeddings": 40,
        },
    ),
    "mpnet": ("MPNetConfig", "MPNetModel", PLAIN),
    "megatron-bert": ("MegatronBertConfig", "MegatronBertModel", PLAIN),
    "rembert": ("RemBertConfig", "RemBertModel", PLAIN | {"input_embedding_size": 16}),
    "roformer": ("RoFormerConfig", "RoFormerModel", PLAIN),
    "gpt-neox-japanese": ("GPTNeoXJapaneseConfig", "GPTNeoXJapaneseModel", PLAIN),
}
SEQ2SEQ: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5": ("T5Config", "T5Model", T5),
    "mt5": ("MT5Config", "MT5Model", T5),
    "umt5": ("UMT5Config", "UMT5Model", T5),
    "bart": ("BartConfig", "BartModel", BART),
    "mbart": ("MBartConfig", "MBartModel", BART),
    "pegasus": ("PegasusConfig", "PegasusModel", BART),
    "marian": ("MarianConfig", "MarianModel", BART | {"pad_token_id": 1}),
    "m2m100": ("M2M100Config", "M2M100Model", BART),
    "blenderbot": ("BlenderbotConfig", "BlenderbotModel", BART),
    "plbart": ("PLBartConfig", "PLBartModel", BART),
    "switch": (
        "SwitchTransformersConfig",
        "SwitchTransformersModel",
        T5
        | {
            "num_decoder_layers": 3,
            "num_experts": 2,
            "num_sparse_encoder_layers": 0,
            "num_sparse_decoder_layers": 0,
        },
    ),
    "t5gemma": (
        "T5GemmaConfig",
        "T5GemmaModel",
        {"encoder": GROUPED | BAND, "decoder": GROUPED | BAND, "vocab_size": VOCABULARY},
    ),
    "fsmt": (
        "FSMTConfig",
        "FSMTModel",
        {k: v for k, v in BART.items() if k != "vocab_size"}
        | {"langs": ["en", "de"], "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY},
    ),
}

# outside the attention registry, and no way in
NOT_SUPPORTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "squeezebert": ("SqueezeBertConfig", "SqueezeBertModel", PLAIN | {"embedding_size": 32}),
    "convbert": (
        "ConvBertConfig",
        "ConvBertModel",
        PLAIN | {"embedding_size": 32, "head_ratio": 2},
    ),
    "longformer": ("LongformerConfig", "LongformerModel", PLAIN | {"attention_window": 4}),
    "bigbird": ("BigBirdConfig", "BigBirdModel", PLAIN),
    "funnel": (
        "FunnelConfig",
        "FunnelModel",
        {
            "vocab_size": VOCABULARY,
            "block_sizes": [1, 1],
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 48,
            "num_decoder_layers": 1,
        },
    ),
    "fnet": (
        "FNetConfig",
        "FNetModel",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "intermediate_size": 48,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 40,
        },
    ),
    "mamba": (
        "MambaConfig",
        "MambaModel",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "state_size": 8},
    ),
    "prophetnet": (
        "ProphetNetConfig",
        "ProphetNetModel",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 40,
        },
    ),
    "led": (
        "LEDConfig",
        "LEDModel",
        {k: v for k, v in BART.items() if k != "max_position_embeddings"}
        | {
            "max_encoder_position_embeddings": 40,
            "max_decoder_position_embeddings": 40,
            "attention_window": 4,
        },
    ),
}


def build(
    config_class: str,
    model_class: str,
    arguments: dict[str, Any],
    *,
    seed: int = 0,
    scale: float | None = None,
) -> Any:
    """A random model in evaluation mode with the eager path. Weight matrices are enlarged, so that
    attention is far from uniform."""
    torch.manual_seed(seed)
    if scale is None:
        scale = (
            1.5 if "num_heads" in arguments and "d_kv" in arguments else 4.0
        )  # T5 does not scale its scores
    config = getattr(transformers, config_class)(**arguments)
    model = (
        getattr(transformers, model_class)._from_config(config, attn_implementation="eager").eval()
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
            elif name.endswith("sinks"):
                parameter.normal_()
    return model


def ids_batch(
    lengths: Sequence[int] = (11, 8, 5), pad_id: int = 1, seed: int = 0, pad_to: int = 0
) -> Batch:
    """Rows of random ids, padded on the right."""
    generator = np.random.default_rng(seed)
    rows = []
    for index, length in enumerate(lengths):
        ids = generator.integers(5, VOCABULARY, length)
        none, no = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=bool)
        rows.append(
            Encoded(
                index, Example(text="x"), ids, none, none - 1, none, no, none + OTHER, False, False
            )
        )
    return collate(rows, pad_id, pad_to=pad_to)


def word_tokenizer(size: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words `w0`, `w1`, ... with [CLS] and [SEP]."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {
        word: i for i, word in enumerate([*names, *(f"w{i}" for i in range(size - len(names)))])
    }
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names_of = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=40, model_input_names=inputs, **names_of
    )
